/* Events: marks in streams with a real clock, and the edges by which a capture spreads. */
#include <stdlib.h>
#include <time.h>

#include "state.h"

typedef struct {
    hipEvent_t handle;
    int device;
    unsigned flags;
    bool recorded;
    struct timespec time;
    Capture *capture; /* while it was last recorded in a capturing stream */
    Stream *stream;   /* that stream */
    uint64_t work;    /* what the stream had submitted by then */
} Event;

static void destroy_event(Event *event) {
    handle_destroy(event->handle);
    free(event);
}

static void reset_one(void *object, void *context) {
    (void)context;
    destroy_event(object);
}

void events_reset(void) { handle_for_each(HANDLE_EVENT, reset_one, NULL); }

static void forget_one(void *object, void *context) {
    Event *event = object;
    if (event->capture == context) {
        event->capture = NULL;
        event->stream = NULL;
    }
}

void event_forget_capture(const Capture *capture) {
    handle_for_each(HANDLE_EVENT, forget_one, (void *)capture);
}

static hipError_t create(hipEvent_t *handle, unsigned flags) {
    if (handle == NULL || (flags & ~(unsigned)hipEventKnownFlags) != 0) {
        return hipErrorInvalidValue;
    }
    Event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return hipErrorOutOfMemory;
    }
    *event = (Event){.device = current_thread()->device, .flags = flags};
    event->handle = handle_create(HANDLE_EVENT, event);
    if (event->handle == NULL) {
        free(event);
        return hipErrorOutOfMemory;
    }
    *handle = event->handle;
    return hipSuccess;
}

static hipError_t destroy(hipEvent_t handle) {
    Event *event = handle_lookup(HANDLE_EVENT, handle);
    if (event == NULL) {
        return hipErrorInvalidHandle;
    }
    destroy_event(event);
    return hipSuccess;
}

static hipError_t record(hipEvent_t handle, hipStream_t stream) {
    Event *event = handle_lookup(HANDLE_EVENT, handle);
    StreamUse use;
    if (event == NULL) {
        return hipErrorInvalidHandle;
    }
    hipError_t status = stream_resolve(stream, &use);
    if (status == hipSuccess) {
        status = capture_check_work(&use);
    }
    if (status != hipSuccess) {
        return status;
    }
    if (event->device != use.device) {
        return hipErrorInvalidHandle;
    }
    if (capture_is_active(&use)) {
        event->capture = use.stream->capture;
        event->stream = use.stream;
        event->work = use.stream->work;
        return hipSuccess;
    }
    event->capture = NULL;
    event->recorded = true;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return hipSuccess;
}

static hipError_t wait_in_capture(Stream *stream, Event *event) {
    Capture *capture = event->capture;
    if (stream->capture == NULL) {
        stream->capture = capture;
        stream->unjoined = true;
        return hipSuccess;
    }
    if (stream->capture != capture) {
        capture_invalidate(stream->capture);
        capture_invalidate(capture);
        return hipErrorStreamCaptureMerge;
    }
    if (event->stream != stream && event->stream->work == event->work) {
        event->stream->unjoined = false;
    }
    return hipSuccess;
}

static hipError_t stream_wait(hipStream_t handle, hipEvent_t event_handle, unsigned flags) {
    Event *event = handle_lookup(HANDLE_EVENT, event_handle);
    StreamUse use;
    if (event == NULL) {
        return hipErrorInvalidHandle;
    }
    if (flags > 1) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(handle, &use);
    if (status == hipSuccess) {
        status = capture_check_work(&use);
    }
    if (status != hipSuccess) {
        return status;
    }
    if (event->capture != NULL) {
        if (use.stream == NULL) {
            capture_invalidate(event->capture);
            return hipErrorStreamCaptureImplicit;
        }
        return wait_in_capture(use.stream, event);
    }
    if (capture_is_active(&use) && event->recorded) {
        capture_invalidate(use.stream->capture);
        return hipErrorStreamCaptureIsolation;
    }
    return hipSuccess;
}

static hipError_t wait(hipEvent_t handle, bool block) {
    Event *event = handle_lookup(HANDLE_EVENT, handle);
    if (event == NULL) {
        return hipErrorInvalidHandle;
    }
    if (event->capture != NULL) {
        capture_invalidate(event->capture);
        return hipErrorCapturedEvent;
    }
    return block ? capture_forbid() : hipSuccess;
}

static hipError_t elapsed(float *milliseconds, hipEvent_t start_handle, hipEvent_t stop_handle) {
    const Event *start = handle_lookup(HANDLE_EVENT, start_handle);
    const Event *stop = handle_lookup(HANDLE_EVENT, stop_handle);
    if (milliseconds == NULL) {
        return hipErrorInvalidValue;
    }
    if (start == NULL || stop == NULL || start->device != stop->device || !start->recorded ||
        !stop->recorded || ((start->flags | stop->flags) & hipEventDisableTiming)) {
        return hipErrorInvalidHandle;
    }
    *milliseconds = (float)((double)(stop->time.tv_sec - start->time.tv_sec) * 1e3 +
                            (double)(stop->time.tv_nsec - start->time.tv_nsec) * 1e-6);
    return hipSuccess;
}

HIP_EXPORT hipError_t hipEventCreate(hipEvent_t *event) { API_CALL(create(event, 0)); }

HIP_EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags) {
    API_CALL(create(event, flags));
}

HIP_EXPORT hipError_t hipEventDestroy(hipEvent_t event) { API_CALL(destroy(event)); }

HIP_EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    API_CALL(record(event, stream));
}

HIP_EXPORT hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
    API_CALL(stream_wait(stream, event, flags));
}

HIP_EXPORT hipError_t hipEventSynchronize(hipEvent_t event) { API_CALL(wait(event, true)); }

HIP_EXPORT hipError_t hipEventQuery(hipEvent_t event) { API_CALL(wait(event, false)); }

HIP_EXPORT hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop) {
    API_CALL(elapsed(milliseconds, start, stop));
}
