/* Graphs: what a capture kept, instantiated and replayed. Nodes run in the order of capture. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

typedef struct {
    hipGraphExec_t handle;
    Graph nodes;
    uint32_t users; /* launches in progress */
    bool destroyed;
} GraphExec;

Graph *graph_create(void) {
    Graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return NULL;
    }
    graph->handle = handle_create(HANDLE_GRAPH, graph);
    if (graph->handle == NULL) {
        free(graph);
        return NULL;
    }
    return graph;
}

hipError_t graph_append(Graph *graph, const Node *node) {
    if (graph->count == graph->capacity) {
        uint32_t capacity = graph->capacity == 0 ? 16 : graph->capacity * 2;
        Node *grown = realloc(graph->nodes, capacity * sizeof *grown);
        if (grown == NULL) {
            return hipErrorOutOfMemory;
        }
        graph->nodes = grown;
        graph->capacity = capacity;
    }
    graph->nodes[graph->count++] = *node;
    return hipSuccess;
}

static void free_nodes(Graph *graph) {
    for (uint32_t i = 0; i < graph->count; i++) {
        node_free(&graph->nodes[i]);
    }
    free(graph->nodes);
    graph->nodes = NULL;
    graph->count = 0;
}

void graph_free(Graph *graph) {
    free_nodes(graph);
    handle_destroy(graph->handle);
    free(graph);
}

hipError_t node_copy(const Node *node, Node *copy) {
    *copy = *node;
    if (node->kind == NODE_LAUNCH) {
        uint32_t size = node->as.launch.function->kernel->kernarg_size;
        copy->as.launch.kernarg = malloc((size_t)size + 1);
        if (copy->as.launch.kernarg == NULL) {
            return hipErrorOutOfMemory;
        }
        memcpy(copy->as.launch.kernarg, node->as.launch.kernarg, size);
        module_hold(node->as.launch.function->module);
    }
    return hipSuccess;
}

void node_free(Node *node) {
    if (node->kind == NODE_LAUNCH) {
        free(node->as.launch.kernarg);
        module_drop(node->as.launch.function->module);
    }
}

static hipError_t append_copies(Graph *target, const Graph *source) {
    for (uint32_t i = 0; i < source->count; i++) {
        Node copy;
        hipError_t status = node_copy(&source->nodes[i], &copy);
        if (status == hipSuccess) {
            status = graph_append(target, &copy);
            if (status != hipSuccess) {
                node_free(&copy);
            }
        }
        if (status != hipSuccess) {
            return status;
        }
    }
    return hipSuccess;
}

static void free_exec(GraphExec *exec) {
    free_nodes(&exec->nodes);
    free(exec);
}

static void drop_exec(GraphExec *exec) {
    if (exec->destroyed && exec->users == 0) {
        free_exec(exec);
    }
}

static hipError_t instantiate(hipGraphExec_t *handle, hipGraph_t graph_handle) {
    const Graph *graph = handle_lookup(HANDLE_GRAPH, graph_handle);
    if (handle == NULL || graph == NULL) {
        return hipErrorInvalidValue;
    }
    GraphExec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return hipErrorOutOfMemory;
    }
    hipError_t status = append_copies(&exec->nodes, graph);
    exec->handle = status == hipSuccess ? handle_create(HANDLE_GRAPH_EXEC, exec) : NULL;
    if (exec->handle == NULL) {
        free_exec(exec);
        return status == hipSuccess ? hipErrorOutOfMemory : status;
    }
    *handle = exec->handle;
    return hipSuccess;
}

static hipError_t instantiate_with_flags(hipGraphExec_t *handle, hipGraph_t graph,
                                         unsigned long long flags) {
    const unsigned long long known = 1 | 8; /* auto free on launch, use node priority */
    return (flags & ~known) == 0 ? instantiate(handle, graph) : hipErrorInvalidValue;
}

static hipError_t replay(GraphExec *exec, const StreamUse *use) {
    hipError_t status = hipSuccess;
    exec->users++;
    for (uint32_t i = 0; i < exec->nodes.count && status == hipSuccess; i++) {
        status = node_run(&exec->nodes.nodes[i], use->handle, exec->handle);
    }
    exec->users--;
    drop_exec(exec);
    return status;
}

static hipError_t launch(hipGraphExec_t handle, hipStream_t stream) {
    GraphExec *exec = handle_lookup(HANDLE_GRAPH_EXEC, handle);
    StreamUse use;
    if (exec == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = stream_resolve(stream, &use);
    if (status == hipSuccess) {
        status = capture_check_work(&use);
    }
    if (status != hipSuccess) {
        return status;
    }
    if (capture_is_active(&use)) {
        use.stream->work++;
        use.stream->unjoined = use.stream != use.stream->capture->origin;
        return append_copies(use.stream->capture->graph, &exec->nodes);
    }
    return replay(exec, &use);
}

static hipError_t destroy_exec(hipGraphExec_t handle) {
    GraphExec *exec = handle_lookup(HANDLE_GRAPH_EXEC, handle);
    if (exec == NULL) {
        return hipErrorInvalidValue;
    }
    handle_destroy(handle);
    exec->destroyed = true;
    drop_exec(exec);
    return hipSuccess;
}

static hipError_t destroy_graph(hipGraph_t handle) {
    Graph *graph = handle_lookup(HANDLE_GRAPH, handle);
    if (graph == NULL || capture_owns(graph)) {
        return hipErrorInvalidValue;
    }
    graph_free(graph);
    return hipSuccess;
}

/* Node handles are not modelled: only their number can be asked for. */
static hipError_t node_count(hipGraph_t handle, hipGraphNode_t *nodes, size_t *count) {
    const Graph *graph = handle_lookup(HANDLE_GRAPH, handle);
    if (graph == NULL || count == NULL) {
        return hipErrorInvalidValue;
    }
    if (nodes != NULL) {
        return hipErrorNotSupported;
    }
    *count = graph->count;
    return hipSuccess;
}

static void reset_graph(void *object, void *context) {
    (void)context;
    graph_free(object);
}

static void reset_exec(void *object, void *context) {
    (void)context;
    GraphExec *exec = object;
    destroy_exec(exec->handle);
}

void graphs_reset(void) {
    handle_for_each(HANDLE_GRAPH_EXEC, reset_exec, NULL);
    handle_for_each(HANDLE_GRAPH, reset_graph, NULL);
}

HIP_EXPORT hipError_t hipGraphInstantiate(hipGraphExec_t *exec, hipGraph_t graph,
                                          hipGraphNode_t *error_node, char *log, size_t size) {
    (void)error_node;
    (void)log;
    (void)size;
    API_CALL(instantiate(exec, graph));
}

HIP_EXPORT hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *exec, hipGraph_t graph,
                                                   unsigned long long flags) {
    API_CALL(instantiate_with_flags(exec, graph, flags));
}

HIP_EXPORT hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
    API_CALL(launch(exec, stream));
}

HIP_EXPORT hipError_t hipGraphExecDestroy(hipGraphExec_t exec) { API_CALL(destroy_exec(exec)); }

HIP_EXPORT hipError_t hipGraphDestroy(hipGraph_t graph) { API_CALL(destroy_graph(graph)); }

HIP_EXPORT hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *count) {
    API_CALL(node_count(graph, nodes, count));
}
