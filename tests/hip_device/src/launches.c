/* Kernel launches: the checks of HIP 7, the packing of kernarg, and the hand-over to records.
 *
 * The order of checks and the codes follow hipModuleLaunchKernel of HIP 7: sizes give 1, a stream
 * of another device 400, a module of another device 101, more work-items than the kernel was
 * compiled for 719.
 */
#include <stdlib.h>
#include <string.h>

#include "state.h"

typedef struct {
    hipFunction_t function;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dynamic_lds;
    hipStream_t stream;
    void **params;
    void **extra;
    bool cooperative;
} Request;

static uint64_t product(const uint32_t sizes[3]) {
    return (uint64_t)sizes[0] * sizes[1] * sizes[2];
}

/* Products of u32 triples can pass 2^64, so compare step by step. */
static bool product_exceeds(const uint32_t sizes[3], uint64_t limit) {
    uint64_t plane = (uint64_t)sizes[0] * sizes[1];
    return sizes[2] != 0 && plane > limit / sizes[2];
}

static hipError_t check_sizes(const Request *request, const Device *device) {
    bool fits = request->grid[0] <= INT32_MAX && request->grid[1] <= 65536 &&
                request->grid[2] <= 65536 &&
                !product_exceeds(request->block, MAX_BLOCK_THREADS) &&
                request->dynamic_lds <= device->arch->lds_size;
    for (int axis = 0; axis < 3; axis++) {
        uint64_t work_items = (uint64_t)request->grid[axis] * request->block[axis];
        fits = fits && work_items > 0 && work_items <= UINT32_MAX;
    }
    return fits ? hipSuccess : hipErrorInvalidValue;
}

/* The same sizes through hipDrvLaunchKernelEx, which calls them a bad configuration. */
static hipError_t check_configuration(const Request *request, const Device *device) {
    return check_sizes(request, device) == hipSuccess ? hipSuccess : hipErrorInvalidConfiguration;
}

static hipError_t check_cluster(const Request *request, const Device *device) {
    const uint32_t *cluster = request->cluster;
    if (cluster[0] == 1 && cluster[1] == 1 && cluster[2] == 1) {
        return hipSuccess;
    }
    bool fits = device->arch->has_clusters && !product_exceeds(cluster, MAX_CLUSTER);
    for (int axis = 0; axis < 3; axis++) {
        fits = fits && cluster[axis] > 0 && request->grid[axis] % cluster[axis] == 0;
    }
    return fits ? hipSuccess : hipErrorInvalidClusterSize;
}

static hipError_t check_cooperative(const Request *request, const Function *function,
                                    const Device *device) {
    if (!request->cooperative) {
        return hipSuccess;
    }
    int blocks = function_occupancy(function, product(request->block), request->dynamic_lds);
    uint64_t resident = (uint64_t)blocks * device->arch->compute_units;
    return product_exceeds(request->grid, resident) ? hipErrorCooperativeLaunchTooLarge
                                                    : hipSuccess;
}

static hipError_t check_function(const Request *request, const Function *function,
                                 const Device *device, const StreamUse *use) {
    if (request->params != NULL && request->extra != NULL) {
        return hipErrorInvalidValue;
    }
    if (function->kernel->argument_count > 0 && request->params == NULL &&
        request->extra == NULL) {
        return hipErrorInvalidValue;
    }
    if (function->module->device != use->device) {
        return hipErrorInvalidDevice;
    }
    if (product(request->block) > function->kernel->max_block_threads) {
        return hipErrorLaunchFailure;
    }
    if ((uint64_t)function->kernel->static_lds + request->dynamic_lds > device->arch->lds_size) {
        return hipErrorOutOfMemory;
    }
    return check_cooperative(request, function, device);
}

/* Only explicit arguments are copied: padding stays zero, so both forms pack to the same bytes. */
static hipError_t pack_from_params(const Kernel *kernel, void **params, uint8_t *kernarg) {
    for (uint32_t i = 0; i < kernel->argument_count; i++) {
        const ExplicitArgument *argument = &kernel->arguments[i];
        if (params[i] == NULL) {
            return hipErrorInvalidValue;
        }
        memcpy(kernarg + argument->offset, params[i], argument->size);
    }
    return hipSuccess;
}

static hipError_t pack_from_extra(const Kernel *kernel, void **extra, uint8_t *kernarg) {
    if (extra[0] != HIP_LAUNCH_PARAM_BUFFER_POINTER ||
        extra[2] != HIP_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != HIP_LAUNCH_PARAM_END ||
        extra[3] == NULL) {
        return hipErrorInvalidValue;
    }
    const uint8_t *buffer = extra[1];
    size_t size = *(const size_t *)extra[3];
    if (kernel->argument_count == 0) {
        return size == 0 ? hipSuccess : hipErrorLaunchOutOfResources;
    }
    if (buffer == NULL || size < kernel->explicit_size) {
        return hipErrorInvalidValue;
    }
    for (uint32_t i = 0; i < kernel->argument_count; i++) {
        const ExplicitArgument *argument = &kernel->arguments[i];
        memcpy(kernarg + argument->offset, buffer + argument->offset, argument->size);
    }
    return hipSuccess;
}

static uint64_t hidden_value(HiddenKind kind, const Request *request) {
    switch (kind) {
    case HIDDEN_BLOCK_COUNT_X:
    case HIDDEN_BLOCK_COUNT_Y:
    case HIDDEN_BLOCK_COUNT_Z:
        return request->grid[kind - HIDDEN_BLOCK_COUNT_X];
    case HIDDEN_GROUP_SIZE_X:
    case HIDDEN_GROUP_SIZE_Y:
    case HIDDEN_GROUP_SIZE_Z:
        return request->block[kind - HIDDEN_GROUP_SIZE_X];
    case HIDDEN_GRID_DIMS:
        return 3;
    case HIDDEN_DYNAMIC_LDS_SIZE:
        return request->dynamic_lds;
    case HIDDEN_NONE:
        return 0; /* offsets and remainders are 0; queues and buffers are not modelled */
    }
    return 0;
}

static void fill_hidden(const Kernel *kernel, const Request *request, uint8_t *kernarg) {
    for (uint32_t i = 0; i < kernel->hidden_count; i++) {
        const HiddenArgument *hidden = &kernel->hidden[i];
        uint64_t value = hidden_value(hidden->kind, request);
        memcpy(kernarg + hidden->offset, &value, hidden->size < 8 ? hidden->size : 8);
    }
}

static hipError_t build_node(const Request *request, Function *function, const StreamUse *use,
                             Node *node) {
    const Kernel *kernel = function->kernel;
    uint8_t *kernarg = calloc(1, (size_t)kernel->kernarg_size + 1);
    if (kernarg == NULL) {
        return hipErrorOutOfMemory;
    }
    hipError_t status = hipSuccess;
    if (request->extra != NULL) {
        status = pack_from_extra(kernel, request->extra, kernarg);
    } else if (request->params != NULL) {
        status = pack_from_params(kernel, request->params, kernarg);
    }
    if (status != hipSuccess) {
        free(kernarg);
        return status;
    }
    fill_hidden(kernel, request, kernarg);
    *node = (Node){.kind = NODE_LAUNCH,
                   .as.launch = {.function = function,
                                 .kernarg = kernarg,
                                 .dynamic_lds = request->dynamic_lds,
                                 .device = use->device,
                                 .cooperative = request->cooperative}};
    memcpy(node->as.launch.grid, request->grid, sizeof request->grid);
    memcpy(node->as.launch.block, request->block, sizeof request->block);
    memcpy(node->as.launch.cluster, request->cluster, sizeof request->cluster);
    module_hold(function->module);
    return hipSuccess;
}

typedef hipError_t SizeCheck(const Request *request, const Device *device);

static hipError_t launch(const Request *request, SizeCheck *check) {
    StreamUse use;
    hipError_t status = stream_resolve(request->stream, &use);
    if (status != hipSuccess) {
        return status;
    }
    const Device *device = device_at(use.device);
    status = check(request, device);
    if (status != hipSuccess) {
        return status;
    }
    if (use.device != current_thread()->device) {
        return hipErrorInvalidHandle;
    }
    Function *function = handle_lookup(HANDLE_FUNCTION, request->function);
    if (function == NULL) {
        return hipErrorInvalidHandle;
    }
    status = check_cluster(request, device);
    if (status == hipSuccess) {
        status = check_function(request, function, device, &use);
    }
    Node node;
    if (status == hipSuccess) {
        status = build_node(request, function, &use, &node);
    }
    return status == hipSuccess ? stream_submit(&use, &node) : status;
}

hipError_t launch_execute(const Launch *launched, hipStream_t stream, hipGraphExec_t graph) {
    const Function *function = launched->function;
    Module *module = function->module;
    if (module->unloaded) {
        /* A graph outlived its module: hardware would run freed code. */
        set_sticky_error(hipErrorIllegalAddress);
        return hipErrorIllegalAddress;
    }
    HiptestLaunch record = {
        .module_id = module->id,
        .stream = (uint64_t)(uintptr_t)stream,
        .graph_exec = (uint64_t)(uintptr_t)graph,
        .kernel = function->kernel->name,
        .kernarg = launched->kernarg,
        .code_object = module->code.image,
        .code_object_size = module->code.image_size,
        .load_base = module->load_base,
        .load_size = module->code.load_size,
        .dynamic_lds = launched->dynamic_lds,
        .static_lds = function->kernel->static_lds,
        .kernarg_size = function->kernel->kernarg_size,
        .explicit_size = function->kernel->explicit_size,
        .device = launched->device,
        .cooperative = launched->cooperative,
    };
    memcpy(record.code_sha256, module->code.sha256, sizeof record.code_sha256);
    memcpy(record.grid, launched->grid, sizeof record.grid);
    memcpy(record.block, launched->block, sizeof record.block);
    memcpy(record.cluster, launched->cluster, sizeof record.cluster);
    hipError_t status = records_add(&record);
    void *context;
    HiptestHook hook = records_hook(&context);
    if (status != hipSuccess || hook == NULL) {
        return status;
    }
    module_hold(module);
    state_unlock();
    status = hook(&record, context);
    state_lock();
    module_drop(module);
    if (is_fault(status)) {
        set_sticky_error(status);
    }
    return status;
}

static hipError_t launch_configured(const HIP_LAUNCH_CONFIG *config, hipFunction_t function,
                                    void **params) {
    if (function == NULL) {
        return hipErrorInvalidHandle;
    }
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) {
        return hipErrorInvalidValue;
    }
    Request request = {.function = function,
                       .cluster = {1, 1, 1},
                       .dynamic_lds = config->sharedMemBytes,
                       .stream = config->hStream,
                       .params = params};
    memcpy(request.grid, config->grid, sizeof request.grid);
    memcpy(request.block, config->block, sizeof request.block);
    for (uint32_t i = 0; i < config->numAttrs; i++) {
        const hipLaunchAttribute *attribute = &config->attrs[i];
        switch (attribute->id) {
        case hipLaunchAttributeIgnore:
            break;
        case hipLaunchAttributeCooperative:
            request.cooperative = attribute->value.cooperative != 0;
            break;
        case hipLaunchAttributeClusterDimension:
            memcpy(request.cluster, attribute->value.cluster, sizeof request.cluster);
            break;
        default:
            return hipErrorInvalidConfiguration;
        }
    }
    return launch(&request, check_configuration);
}

HIP_EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x,
                                            unsigned grid_y, unsigned grid_z, unsigned block_x,
                                            unsigned block_y, unsigned block_z,
                                            unsigned dynamic_lds, hipStream_t stream,
                                            void **params, void **extra) {
    if (!records_wanted()) {
        bool sized = grid_x && grid_y && grid_z && block_x && block_y && block_z;
        return function == NULL ? hipErrorInvalidHandle
                                : (sized ? hipSuccess : hipErrorInvalidValue);
    }
    Request request = {.function = function,
                       .grid = {grid_x, grid_y, grid_z},
                       .block = {block_x, block_y, block_z},
                       .cluster = {1, 1, 1},
                       .dynamic_lds = dynamic_lds,
                       .stream = stream,
                       .params = params,
                       .extra = extra};
    API_CALL(launch(&request, check_sizes));
}

HIP_EXPORT hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned grid_x,
                                                       unsigned grid_y, unsigned grid_z,
                                                       unsigned block_x, unsigned block_y,
                                                       unsigned block_z, unsigned dynamic_lds,
                                                       hipStream_t stream, void **params) {
    Request request = {.function = function,
                       .grid = {grid_x, grid_y, grid_z},
                       .block = {block_x, block_y, block_z},
                       .cluster = {1, 1, 1},
                       .dynamic_lds = dynamic_lds,
                       .stream = stream,
                       .params = params,
                       .cooperative = true};
    API_CALL(launch(&request, check_sizes));
}

/* HIP 7 does not pass `extra` on: a kernel with arguments needs `params` here. */
HIP_EXPORT hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG *config, hipFunction_t function,
                                           void **params, void **extra) {
    (void)extra;
    API_CALL(launch_configured(config, function, params));
}
