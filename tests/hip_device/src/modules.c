/* Modules: loading code objects on the current device, looking up kernels and globals. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

static const uint64_t largest_image = 1ULL << 31;
static uint64_t next_module_id = 1;

static void destroy(Module *module) {
    if (module->load_base != NULL) {
        memory_release(ALLOCATION_CODE, module->load_base);
    }
    code_object_free(&module->code);
    free(module->functions);
    free(module);
}

void module_hold(Module *module) { module->users++; }

void module_drop(Module *module) {
    module->users--;
    if (module->unloaded && module->users == 0) {
        destroy(module);
    }
}

static void unload_handle(Module *module) {
    for (uint32_t i = 0; i < module->code.kernel_count; i++) {
        if (module->functions[i].handle != NULL) {
            handle_destroy(module->functions[i].handle);
        }
    }
    handle_destroy(module->handle);
    module->unloaded = true;
    if (module->users == 0) {
        destroy(module);
    }
}

static void reset_one(void *object, void *context) {
    (void)context;
    unload_handle(object);
}

void modules_reset(void) {
    handle_for_each(HANDLE_MODULE, reset_one, NULL);
    next_module_id = 1;
}

static hipError_t place(Module *module, const void *image, uint64_t available) {
    hipError_t status =
        code_object_read(image, available, device_at(module->device), &module->code);
    if (status != hipSuccess) {
        return status;
    }
    enum { PAGE = 4096 };
    void *base;
    status = memory_allocate(ALLOCATION_CODE, module->device, module->code.load_size, PAGE, &base);
    if (status != hipSuccess) {
        return status;
    }
    module->load_base = base;
    code_object_load(&module->code, base);
    module->functions = calloc((size_t)module->code.kernel_count + 1, sizeof *module->functions);
    if (module->functions == NULL) {
        return hipErrorOutOfMemory;
    }
    for (uint32_t i = 0; i < module->code.kernel_count; i++) {
        module->functions[i] = (Function){.module = module, .kernel = &module->code.kernels[i]};
    }
    module->handle = handle_create(HANDLE_MODULE, module);
    return module->handle == NULL ? hipErrorOutOfMemory : hipSuccess;
}

static hipError_t load(hipModule_t *handle, const void *image, uint64_t available) {
    if (!modules_may_load()) {
        return hipErrorSharedObjectInitFailed;
    }
    if (handle == NULL || image == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = capture_forbid();
    if (status != hipSuccess) {
        return status;
    }
    Module *module = calloc(1, sizeof *module);
    if (module == NULL) {
        return hipErrorOutOfMemory;
    }
    module->device = current_thread()->device;
    status = place(module, image, available);
    if (status != hipSuccess) {
        destroy(module);
        return status;
    }
    module->id = next_module_id++;
    *handle = module->handle;
    return hipSuccess;
}

static hipError_t load_file(hipModule_t *handle, const char *path) {
    if (handle == NULL || path == NULL) {
        return hipErrorInvalidValue;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat information;
    if (file < 0) {
        return hipErrorFileNotFound;
    }
    if (fstat(file, &information) != 0 || information.st_size == 0) {
        close(file);
        return hipErrorInvalidImage;
    }
    size_t size = (size_t)information.st_size;
    void *image = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED) {
        return hipErrorOperatingSystem;
    }
    hipError_t status = load(handle, image, size);
    munmap(image, size);
    return status;
}

static hipError_t unload(hipModule_t handle) {
    if (handle == NULL) {
        return hipErrorInvalidHandle;
    }
    hipError_t status = capture_forbid();
    if (status != hipSuccess) {
        return status;
    }
    Module *module = handle_lookup(HANDLE_MODULE, handle);
    if (module == NULL) {
        return hipErrorNotFound;
    }
    unload_handle(module);
    return hipSuccess;
}

static hipError_t get_function(hipFunction_t *result, hipModule_t handle, const char *name) {
    if (result == NULL || name == NULL || name[0] == '\0') {
        return hipErrorInvalidValue;
    }
    if (handle == NULL) {
        return hipErrorInvalidHandle;
    }
    *result = NULL;
    Module *module = handle_lookup(HANDLE_MODULE, handle);
    if (module == NULL) {
        return hipErrorNotFound;
    }
    for (uint32_t i = 0; i < module->code.kernel_count; i++) {
        Function *function = &module->functions[i];
        if (strcmp(function->kernel->name, name) != 0) {
            continue;
        }
        if (function->handle == NULL) {
            function->handle = handle_create(HANDLE_FUNCTION, function);
        }
        *result = function->handle;
        return function->handle == NULL ? hipErrorOutOfMemory : hipSuccess;
    }
    return hipErrorNotFound;
}

static hipError_t get_global(hipDeviceptr_t *address, size_t *size, hipModule_t handle,
                             const char *name) {
    if ((address == NULL && size == NULL) || name == NULL || name[0] == '\0') {
        return hipErrorInvalidValue;
    }
    if (handle == NULL) {
        return hipErrorInvalidHandle;
    }
    const Module *module = handle_lookup(HANDLE_MODULE, handle);
    if (module == NULL) {
        return hipErrorNotFound;
    }
    for (uint32_t i = 0; i < module->code.global_count; i++) {
        const Global *global = &module->code.globals[i];
        if (strcmp(global->name, name) != 0) {
            continue;
        }
        if (address != NULL) {
            *address = module->load_base + global->address;
        }
        if (size != NULL) {
            *size = global->size;
        }
        return hipSuccess;
    }
    return hipErrorNotFound;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Workgroups that fit a compute unit at once, limited by waves, VGPRs and LDS. */
int function_occupancy(const Function *function, uint64_t block_threads, uint64_t dynamic_lds) {
    const Architecture *arch = device_at(function->module->device)->arch;
    const Kernel *kernel = function->kernel;
    uint32_t wave_size = kernel->wave_size == 0 ? arch->wave_size : kernel->wave_size;
    uint32_t registers = (kernel->vgprs + arch->vgpr_granule - 1) / arch->vgpr_granule *
                         arch->vgpr_granule * wave_size / arch->wave_size;
    uint32_t waves = arch->waves_per_simd;
    if (registers > 0) {
        waves = least(waves, arch->vgprs / registers);
    }
    uint64_t block_waves = (block_threads + wave_size - 1) / wave_size;
    uint64_t blocks = (uint64_t)waves * arch->simds / block_waves;
    uint64_t lds = kernel->static_lds + dynamic_lds;
    if (lds > 0 && arch->lds_size / lds < blocks) {
        blocks = arch->lds_size / lds;
    }
    return (int)blocks;
}

static hipError_t occupancy(int *blocks, hipFunction_t handle, int block_threads, size_t lds) {
    if (blocks == NULL || block_threads <= 0) {
        return hipErrorInvalidValue;
    }
    const Function *function = handle_lookup(HANDLE_FUNCTION, handle);
    if (function == NULL) {
        return hipErrorInvalidDeviceFunction;
    }
    *blocks = block_threads > MAX_BLOCK_THREADS
                  ? 0
                  : function_occupancy(function, (uint64_t)block_threads, lds);
    return hipSuccess;
}

static hipError_t function_attribute(int *value, int attribute, hipFunction_t handle) {
    const Function *function = handle_lookup(HANDLE_FUNCTION, handle);
    if (value == NULL) {
        return hipErrorInvalidValue;
    }
    if (function == NULL) {
        return hipErrorInvalidHandle;
    }
    const Kernel *kernel = function->kernel;
    const Architecture *arch = device_at(function->module->device)->arch;
    switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int)kernel->max_block_threads;
        return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)kernel->static_lds;
        return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)kernel->private_size;
        return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS:
        *value = (int)kernel->vgprs;
        return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_PTX_VERSION:
    case HIP_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = arch->major * 10 + arch->minor;
        return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = 0;
        return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = (int)(arch->lds_size - kernel->static_lds);
        return hipSuccess;
    default:
        return hipErrorInvalidValue;
    }
}

/* The device runs no host-registered kernels, so only module functions have attributes. */
static hipError_t function_attributes(hipFuncAttributes *attributes, const void *handle) {
    const Function *function = handle_lookup(HANDLE_FUNCTION, handle);
    if (attributes == NULL) {
        return hipErrorInvalidValue;
    }
    if (function == NULL) {
        return hipErrorInvalidDeviceFunction;
    }
    const Kernel *kernel = function->kernel;
    const Architecture *arch = device_at(function->module->device)->arch;
    *attributes = (hipFuncAttributes){
        .binaryVersion = arch->major * 10 + arch->minor,
        .ptxVersion = arch->major * 10 + arch->minor,
        .localSizeBytes = kernel->private_size,
        .maxDynamicSharedSizeBytes = (int)(arch->lds_size - kernel->static_lds),
        .maxThreadsPerBlock = (int)kernel->max_block_threads,
        .numRegs = (int)kernel->vgprs,
        .sharedSizeBytes = kernel->static_lds,
    };
    return hipSuccess;
}

HIP_EXPORT hipError_t hipModuleLoad(hipModule_t *module, const char *path) {
    API_CALL(load_file(module, path));
}

HIP_EXPORT hipError_t hipModuleLoadData(hipModule_t *module, const void *image) {
    API_CALL(load(module, image, largest_image));
}

HIP_EXPORT hipError_t hipModuleLoadDataEx(hipModule_t *module, const void *image, unsigned count,
                                          void *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    API_CALL(load(module, image, largest_image));
}

HIP_EXPORT hipError_t hipModuleUnload(hipModule_t module) { API_CALL(unload(module)); }

HIP_EXPORT hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module,
                                           const char *name) {
    API_CALL(get_function(function, module, name));
}

HIP_EXPORT hipError_t hipModuleGetGlobal(hipDeviceptr_t *address, size_t *size, hipModule_t module,
                                         const char *name) {
    API_CALL(get_global(address, size, module, name));
}

HIP_EXPORT hipError_t hipFuncGetAttribute(int *value, int attribute, hipFunction_t function) {
    API_CALL(function_attribute(value, attribute, function));
}

HIP_EXPORT hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, const void *function) {
    API_CALL(function_attributes(attributes, function));
}

HIP_EXPORT hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                                         hipFunction_t function,
                                                                         int block_threads,
                                                                         size_t dynamic_lds) {
    API_CALL(occupancy(blocks, function, block_threads, dynamic_lds));
}

uint64_t hiptest_live_modules(void) {
    state_lock();
    uint64_t count = handle_count(HANDLE_MODULE);
    state_unlock();
    return count;
}
