/* Streams: creation, lookup, waiting, and the submission of work.
 *
 * Work runs on submission, in program order, so a stream is always idle.
 */
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum { HIGHEST_PRIORITY = -1, LOWEST_PRIORITY = 1 };

static hipError_t create(hipStream_t *handle, unsigned flags, int priority) {
    if (handle == NULL || (flags != hipStreamDefault && flags != hipStreamNonBlocking)) {
        return hipErrorInvalidValue;
    }
    Stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return hipErrorOutOfMemory;
    }
    priority = priority < HIGHEST_PRIORITY ? HIGHEST_PRIORITY : priority;
    priority = priority > LOWEST_PRIORITY ? LOWEST_PRIORITY : priority;
    *stream =
        (Stream){.device = current_thread()->device, .flags = flags, .priority = priority};
    stream->handle = handle_create(HANDLE_STREAM, stream);
    if (stream->handle == NULL) {
        free(stream);
        return hipErrorOutOfMemory;
    }
    *handle = stream->handle;
    return hipSuccess;
}

static void destroy_stream(Stream *stream) {
    capture_leave(stream);
    handle_destroy(stream->handle);
    free(stream);
}

static void reset_one(void *object, void *context) {
    (void)context;
    destroy_stream(object);
}

void streams_reset(void) { handle_for_each(HANDLE_STREAM, reset_one, NULL); }

static hipError_t per_thread_stream(Stream **stream) {
    Thread *thread = current_thread();
    Stream **slot = &thread->streams[thread->device];
    if (*slot == NULL) {
        hipStream_t handle;
        hipError_t status = create(&handle, hipStreamDefault, 0);
        if (status != hipSuccess) {
            return status;
        }
        *slot = handle_lookup(HANDLE_STREAM, handle);
    }
    *stream = *slot;
    return hipSuccess;
}

hipError_t stream_resolve(hipStream_t handle, StreamUse *use) {
    *use = (StreamUse){.handle = handle, .device = current_thread()->device};
    if (handle == NULL || handle == hipStreamLegacy) {
        return hipSuccess;
    }
    if (handle == hipStreamPerThread) {
        return per_thread_stream(&use->stream);
    }
    use->stream = handle_lookup(HANDLE_STREAM, handle);
    if (use->stream == NULL) {
        return hipErrorContextIsDestroyed;
    }
    use->device = use->stream->device;
    return device_at(use->device)->lost;
}

hipError_t node_run(const Node *node, hipStream_t stream, hipGraphExec_t graph) {
    switch (node->kind) {
    case NODE_LAUNCH:
        return launch_execute(&node->as.launch, stream, graph);
    case NODE_COPY:
        memory_copy(node->as.copy.target, node->as.copy.source, node->as.copy.size);
        return hipSuccess;
    case NODE_FILL:
        memory_fill(node->as.fill.target, node->as.fill.value, node->as.fill.width,
                    node->as.fill.count);
        return hipSuccess;
    }
    return hipErrorUnknown;
}

hipError_t stream_submit(const StreamUse *use, Node *node) {
    hipError_t status = capture_check_work(use);
    if (status == hipSuccess && use->stream != NULL) {
        use->stream->work++;
    }
    if (status == hipSuccess && capture_is_active(use)) {
        Capture *capture = use->stream->capture;
        use->stream->unjoined = use->stream != capture->origin;
        status = graph_append(capture->graph, node);
        if (status == hipSuccess) {
            return status;
        }
    } else if (status == hipSuccess) {
        status = node_run(node, use->handle, NULL);
    }
    node_free(node);
    return status;
}

static hipError_t destroy(hipStream_t handle) {
    if (handle == NULL || handle == hipStreamLegacy || handle == hipStreamPerThread) {
        return hipErrorInvalidHandle;
    }
    Stream *stream = handle_lookup(HANDLE_STREAM, handle);
    if (stream == NULL) {
        return hipErrorContextIsDestroyed;
    }
    destroy_stream(stream);
    return hipSuccess;
}

static hipError_t wait(hipStream_t handle) {
    StreamUse use;
    hipError_t status = stream_resolve(handle, &use);
    return status == hipSuccess ? capture_check_wait(&use) : status;
}

static hipError_t get_device(hipStream_t handle, hipDevice_t *device) {
    StreamUse use;
    if (device == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(handle, &use);
    if (status == hipSuccess) {
        *device = use.device;
    }
    return status;
}

static hipError_t get_flags(hipStream_t handle, unsigned *flags) {
    StreamUse use;
    if (flags == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(handle, &use);
    if (status == hipSuccess) {
        *flags = use.stream == NULL ? hipStreamDefault : use.stream->flags;
    }
    return status;
}

static hipError_t get_priority(hipStream_t handle, int *priority) {
    StreamUse use;
    if (priority == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(handle, &use);
    if (status == hipSuccess) {
        *priority = use.stream == NULL ? 0 : use.stream->priority;
    }
    return status;
}

static hipError_t priority_range(int *lowest, int *highest) {
    if (lowest != NULL) {
        *lowest = LOWEST_PRIORITY;
    }
    if (highest != NULL) {
        *highest = HIGHEST_PRIORITY;
    }
    return hipSuccess;
}

HIP_EXPORT hipError_t hipStreamCreate(hipStream_t *stream) {
    API_CALL(create(stream, hipStreamDefault, 0));
}

HIP_EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags) {
    API_CALL(create(stream, flags, 0));
}

HIP_EXPORT hipError_t hipStreamCreateWithPriority(hipStream_t *stream, unsigned flags,
                                                  int priority) {
    API_CALL(create(stream, flags, priority));
}

HIP_EXPORT hipError_t hipStreamDestroy(hipStream_t stream) { API_CALL(destroy(stream)); }

HIP_EXPORT hipError_t hipStreamSynchronize(hipStream_t stream) { API_CALL(wait(stream)); }

HIP_EXPORT hipError_t hipStreamQuery(hipStream_t stream) { API_CALL(wait(stream)); }

HIP_EXPORT hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t *device) {
    API_CALL(get_device(stream, device));
}

HIP_EXPORT hipError_t hipStreamGetFlags(hipStream_t stream, unsigned *flags) {
    API_CALL(get_flags(stream, flags));
}

HIP_EXPORT hipError_t hipStreamGetPriority(hipStream_t stream, int *priority) {
    API_CALL(get_priority(stream, priority));
}

HIP_EXPORT hipError_t hipDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    API_CALL(priority_range(lowest, highest));
}

uint64_t hiptest_live_streams(void) {
    state_lock();
    uint64_t count = handle_count(HANDLE_STREAM);
    state_unlock();
    return count;
}
