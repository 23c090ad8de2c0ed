/* Stream capture: its modes, what it forbids, how it is invalidated, and how it ends in a graph. */
#include <stdlib.h>

#include "state.h"

static Capture *captures; /* those that have begun and not ended */
static uint64_t next_capture = 1;

void capture_invalidate(Capture *capture) { capture->invalid = true; }

hipError_t capture_forbid(void) {
    if (captures == NULL) {
        return hipSuccess;
    }
    const Thread *thread = current_thread();
    hipError_t status = hipSuccess;
    for (Capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = capture->mode != hipStreamCaptureModeRelaxed && capture->thread == thread->id;
        bool global = capture->mode == hipStreamCaptureModeGlobal &&
                      thread->mode == hipStreamCaptureModeGlobal;
        if (thread->mode != hipStreamCaptureModeRelaxed && (own || global)) {
            capture_invalidate(capture);
            status = hipErrorStreamCaptureUnsupported;
        }
    }
    return status;
}

static hipError_t forbid_always(hipError_t error) {
    for (Capture *capture = captures; capture != NULL; capture = capture->next) {
        capture_invalidate(capture);
    }
    return captures == NULL ? hipSuccess : error;
}

hipError_t capture_forbid_implicit(void) { return forbid_always(hipErrorStreamCaptureImplicit); }

hipError_t capture_forbid_device_wait(void) {
    return forbid_always(hipErrorStreamCaptureUnsupported);
}

static void invalidate_if_blocking(void *object, void *context) {
    const Stream *stream = object;
    if (stream->capture != NULL && !(stream->flags & hipStreamNonBlocking)) {
        capture_invalidate(stream->capture);
        *(hipError_t *)context = hipErrorStreamCaptureImplicit;
    }
}

hipError_t capture_check_work(const StreamUse *use) {
    hipError_t status = hipSuccess;
    if (captures == NULL) {
        return status;
    }
    if (use->stream == NULL) {
        handle_for_each(HANDLE_STREAM, invalidate_if_blocking, &status);
    } else if (use->stream->capture != NULL && use->stream->capture->invalid) {
        status = hipErrorStreamCaptureInvalidated;
    }
    return status;
}

hipError_t capture_check_wait(const StreamUse *use) {
    if (use->stream == NULL) {
        return capture_check_work(use);
    }
    if (use->stream->capture != NULL) {
        capture_invalidate(use->stream->capture);
        return hipErrorStreamCaptureUnsupported;
    }
    return capture_forbid();
}

bool capture_is_active(const StreamUse *use) {
    return use->stream != NULL && use->stream->capture != NULL && !use->stream->capture->invalid;
}

static void leave_one(void *object, void *context) {
    Stream *stream = object;
    if (stream->capture == context) {
        stream->capture = NULL;
        stream->unjoined = false;
    }
}

/* Frees the capture and gives back its graph. */
static Graph *end(Capture *capture) {
    Capture **link = &captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    event_forget_capture(capture);
    handle_for_each(HANDLE_STREAM, leave_one, capture);
    Graph *graph = capture->graph;
    free(capture);
    return graph;
}

void capture_leave(Stream *stream) {
    if (stream->capture != NULL && stream->capture->origin == stream) {
        graph_free(end(stream->capture));
    }
    stream->capture = NULL;
}

bool capture_owns(const Graph *graph) {
    const Capture *capture = captures;
    while (capture != NULL && capture->graph != graph) {
        capture = capture->next;
    }
    return capture != NULL;
}

static hipError_t begin(hipStream_t handle, int mode) {
    StreamUse use;
    hipError_t status = stream_resolve(handle, &use);
    if (status != hipSuccess) {
        return status;
    }
    if (use.stream == NULL) {
        return hipErrorStreamCaptureUnsupported;
    }
    if (mode < hipStreamCaptureModeGlobal || mode > hipStreamCaptureModeRelaxed) {
        return hipErrorInvalidValue;
    }
    if (use.stream->capture != NULL) {
        return hipErrorIllegalState;
    }
    Capture *capture = calloc(1, sizeof *capture);
    Graph *graph = graph_create();
    if (capture == NULL || graph == NULL) {
        free(capture);
        return hipErrorOutOfMemory;
    }
    *capture = (Capture){.id = next_capture++,
                         .mode = (hipStreamCaptureMode)mode,
                         .thread = current_thread()->id,
                         .origin = use.stream,
                         .graph = graph,
                         .next = captures};
    captures = capture;
    use.stream->capture = capture;
    return hipSuccess;
}

typedef struct {
    const Capture *capture;
    bool found;
} UnjoinedSearch;

static void find_unjoined(void *object, void *context) {
    const Stream *stream = object;
    UnjoinedSearch *search = context;
    search->found = search->found || (stream->capture == search->capture && stream->unjoined);
}

static hipError_t finish(hipStream_t handle, hipGraph_t *result) {
    StreamUse use;
    if (result == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(handle, &use);
    if (status != hipSuccess) {
        return status;
    }
    if (use.stream == NULL || use.stream->capture == NULL) {
        return hipErrorIllegalState;
    }
    Capture *capture = use.stream->capture;
    if (capture->origin != use.stream) {
        return hipErrorStreamCaptureUnmatched;
    }
    if (capture->mode != hipStreamCaptureModeRelaxed &&
        capture->thread != current_thread()->id) {
        return hipErrorStreamCaptureWrongThread;
    }
    UnjoinedSearch search = {.capture = capture};
    handle_for_each(HANDLE_STREAM, find_unjoined, &search);
    if (capture->invalid) {
        status = hipErrorStreamCaptureInvalidated;
    } else if (search.found) {
        status = hipErrorStreamCaptureUnjoined;
    }
    Graph *graph = end(capture);
    if (status == hipSuccess) {
        *result = graph->handle;
    } else {
        *result = NULL;
        graph_free(graph);
    }
    return status;
}

static hipStreamCaptureStatus status_of(const Stream *stream) {
    if (stream == NULL || stream->capture == NULL) {
        return hipStreamCaptureStatusNone;
    }
    return stream->capture->invalid ? hipStreamCaptureStatusInvalidated
                                    : hipStreamCaptureStatusActive;
}

static void find_blocking(void *object, void *context) {
    const Stream *stream = object;
    if (stream->capture != NULL && !(stream->flags & hipStreamNonBlocking)) {
        *(hipError_t *)context = hipErrorStreamCaptureImplicit;
    }
}

/* Asking invalidates nothing. */
static hipError_t information(hipStream_t handle, int *capture_status, unsigned long long *id,
                              hipGraph_t *graph) {
    StreamUse use;
    if (capture_status == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(handle, &use);
    if (status == hipSuccess && use.stream == NULL) {
        handle_for_each(HANDLE_STREAM, find_blocking, &status);
    }
    if (status != hipSuccess) {
        return status;
    }
    *capture_status = (int)status_of(use.stream);
    if (*capture_status == hipStreamCaptureStatusActive) {
        if (id != NULL) {
            *id = use.stream->capture->id;
        }
        if (graph != NULL) {
            *graph = use.stream->capture->graph->handle;
        }
    }
    return hipSuccess;
}

static hipError_t information_v2(hipStream_t handle, int *capture_status, unsigned long long *id,
                                 hipGraph_t *graph, const hipGraphNode_t **dependencies,
                                 size_t *dependency_count) {
    if (dependencies != NULL) {
        *dependencies = NULL;
    }
    if (dependency_count != NULL) {
        *dependency_count = 0;
    }
    return information(handle, capture_status, id, graph);
}

static hipError_t exchange_mode(int *mode) {
    if (mode == NULL || *mode < hipStreamCaptureModeGlobal ||
        *mode > hipStreamCaptureModeRelaxed) {
        return hipErrorInvalidValue;
    }
    Thread *thread = current_thread();
    hipStreamCaptureMode previous = thread->mode;
    thread->mode = (hipStreamCaptureMode)*mode;
    *mode = (int)previous;
    return hipSuccess;
}

HIP_EXPORT hipError_t hipStreamBeginCapture(hipStream_t stream, int mode) {
    API_CALL(begin(stream, mode));
}

HIP_EXPORT hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph) {
    API_CALL(finish(stream, graph));
}

HIP_EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, int *capture_status) {
    API_CALL(information(stream, capture_status, NULL, NULL));
}

HIP_EXPORT hipError_t hipStreamGetCaptureInfo(hipStream_t stream, int *capture_status,
                                              unsigned long long *id) {
    API_CALL(information(stream, capture_status, id, NULL));
}

HIP_EXPORT hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, int *capture_status,
                                                 unsigned long long *id, hipGraph_t *graph,
                                                 const hipGraphNode_t **dependencies,
                                                 size_t *dependency_count) {
    API_CALL(
        information_v2(stream, capture_status, id, graph, dependencies, dependency_count));
}

HIP_EXPORT hipError_t hipThreadExchangeStreamCaptureMode(int *mode) {
    API_CALL(exchange_mode(mode));
}
