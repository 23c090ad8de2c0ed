/* The devices: their targets, sizes and properties, and each thread's current device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* EF_AMDGPU_MACH and features: AMDGPUUsage. Wave, LDS and register sizes: the ISA documents. */
static const Architecture architectures[] = {
    /* name, product, mach, xnack, sramecc, clusters, major, minor, wave, LDS, CUs, SIMDs, waves,
     * VGPRs, granule */
    {"gfx908", "Test Instinct MI100", 0x30, true, true, false, 9, 0, 64, 65536, 120, 4, 8, 256, 4},
    {"gfx90a", "Test Instinct MI250X", 0x3f, true, true, false, 9, 0, 64, 65536, 110, 4, 8, 512, 8},
    {"gfx942", "Test Instinct MI300X", 0x4c, true, true, false, 9, 4, 64, 65536, 304, 4, 8, 512, 8},
    {"gfx950", "Test Instinct MI355X", 0x4f, true, true, false, 9, 5, 64, 163840, 256, 4, 8, 512,
     8},
    {"gfx1100", "Test Radeon RX 7900 XTX", 0x41, false, false, false, 11, 0, 32, 65536, 48, 2, 16,
     1536, 24},
    {"gfx1101", "Test Radeon RX 7800 XT", 0x46, false, false, false, 11, 0, 32, 65536, 30, 2, 16,
     1536, 24},
    {"gfx1200", "Test Radeon RX 9060 XT", 0x48, false, false, false, 12, 0, 32, 65536, 16, 2, 16,
     1536, 24},
    {"gfx1201", "Test Radeon RX 9070 XT", 0x4e, false, false, false, 12, 0, 32, 65536, 32, 2, 16,
     1536, 24},
    {"gfx1250", "Test Instinct MI450", 0x49, false, true, true, 12, 5, 32, 327680, 256, 4, 16,
     1024, 16},
};

static const char default_devices[] = "gfx942:sramecc+:xnack-";
static const uint64_t default_memory = 16ULL << 30;

static Device devices[MAX_DEVICES];
static int count;
static bool configured;

static const Architecture *find_architecture(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        const char *candidate = architectures[i].name;
        if (strlen(candidate) == length && memcmp(candidate, name, length) == 0) {
            return &architectures[i];
        }
    }
    return NULL;
}

/* A device has each feature on or off; a feature that its target does not name is off. */
static bool parse_target(const char *text, size_t length, Device *device) {
    const char *end = text + length;
    const char *colon = memchr(text, ':', length);
    const char *name_end = colon == NULL ? end : colon;
    const Architecture *arch = find_architecture(text, (size_t)(name_end - text));
    if (arch == NULL || length >= sizeof device->target) {
        return false;
    }
    *device = (Device){.arch = arch, .memory_size = default_memory};
    device->xnack = arch->has_xnack ? FEATURE_OFF : FEATURE_UNSUPPORTED;
    device->sramecc = arch->has_sramecc ? FEATURE_OFF : FEATURE_UNSUPPORTED;
    memcpy(device->target, text, length);
    for (const char *cursor = name_end; cursor < end;) {
        cursor++;
        const char *stop = memchr(cursor, ':', (size_t)(end - cursor));
        stop = stop == NULL ? end : stop;
        size_t size = (size_t)(stop - cursor);
        if (size < 2 || (stop[-1] != '+' && stop[-1] != '-')) {
            return false;
        }
        Feature value = stop[-1] == '+' ? FEATURE_ON : FEATURE_OFF;
        if (size == 6 && memcmp(cursor, "xnack", 5) == 0 && arch->has_xnack) {
            device->xnack = value;
        } else if (size == 8 && memcmp(cursor, "sramecc", 7) == 0 && arch->has_sramecc) {
            device->sramecc = value;
        } else {
            return false;
        }
        cursor = stop;
    }
    return true;
}

hipError_t devices_configure(const char *specification) {
    count = 0;
    configured = true;
    for (const char *cursor = specification; *cursor != '\0';) {
        size_t length = strcspn(cursor, ",");
        if (count == MAX_DEVICES || !parse_target(cursor, length, &devices[count])) {
            fprintf(stderr,
                    "HIP test device: cannot model \"%.*s\" of \"%s\"; expected up to %d targets "
                    "such as gfx942:sramecc+:xnack-, separated by commas\n",
                    (int)length, cursor, specification, MAX_DEVICES);
            count = 0;
            return hipErrorInvalidValue;
        }
        count++;
        cursor += length;
        cursor += *cursor == ',';
    }
    return hipSuccess;
}

hipError_t devices_initialise(void) {
    if (configured) {
        return hipSuccess;
    }
    const char *specification = getenv("HIPTEST_DEVICES");
    hipError_t status =
        devices_configure(specification == NULL ? default_devices : specification);
    return status == hipSuccess ? hipSuccess : hipErrorNoDevice;
}

void devices_reset(void) {
    count = 0;
    configured = false;
}

int device_count(void) { return count; }

Device *device_at(int ordinal) {
    return ordinal >= 0 && ordinal < count ? &devices[ordinal] : NULL;
}

Device *current_device(void) { return device_at(current_thread()->device); }

static hipError_t get_count(int *result) {
    if (result == NULL) {
        return hipErrorInvalidValue;
    }
    *result = count;
    return hipSuccess;
}

static hipError_t get_device(int *result) {
    if (result == NULL) {
        return hipErrorInvalidValue;
    }
    *result = current_thread()->device;
    return hipSuccess;
}

static hipError_t set_device(int ordinal) {
    Device *device = device_at(ordinal);
    if (device == NULL) {
        return hipErrorInvalidDevice;
    }
    current_thread()->device = ordinal;
    return device->lost;
}

static int attribute_of(const Device *device, int ordinal, int attribute, bool *known) {
    const Architecture *arch = device->arch;
    switch (attribute) {
    case hipDeviceAttributeCanMapHostMemory:
    case hipDeviceAttributeConcurrentKernels:
    case hipDeviceAttributeCooperativeLaunch:
    case hipDeviceAttributeMemoryPoolsSupported:
        return 1;
    case hipDeviceAttributeComputeMode:
    case hipDeviceAttributeIntegrated:
    case hipDeviceAttributeManagedMemory:
    case hipDeviceAttributeUnifiedAddressing:
    case hipDeviceAttributePciDeviceId:
    case hipDeviceAttributePciDomainID:
        return 0;
    case hipDeviceAttributePciBusId:
        return ordinal + 1;
    case hipDeviceAttributeClockRate:
    case hipDeviceAttributeMemoryClockRate:
        return 2000000;
    case hipDeviceAttributeMemoryBusWidth:
        return 1024;
    case hipDeviceAttributeL2CacheSize:
        return 4 << 20;
    case hipDeviceAttributeComputeCapabilityMajor:
        return arch->major;
    case hipDeviceAttributeComputeCapabilityMinor:
        return arch->minor;
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
    case hipDeviceAttributeMaxThreadsPerBlock:
        return MAX_BLOCK_THREADS;
    case hipDeviceAttributeMaxGridDimX:
        return INT_MAX;
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ:
        return 65536;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
        return (int)(arch->simds * arch->waves_per_simd * arch->wave_size);
    case hipDeviceAttributeMultiprocessorCount:
    case hipDeviceAttributePhysicalMultiProcessorCount:
        return (int)arch->compute_units;
    case hipDeviceAttributeMaxRegistersPerBlock:
        return (int)(arch->vgprs * arch->wave_size * arch->simds);
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeSharedMemPerBlockOptin:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
    case hipDeviceAttributeSharedMemPerMultiprocessor:
        return (int)arch->lds_size;
    case hipDeviceAttributeWarpSize:
        return (int)arch->wave_size;
    default:
        *known = false;
        return 0;
    }
}

static hipError_t get_attribute(int *value, int attribute, int ordinal) {
    const Device *device = device_at(ordinal);
    if (value == NULL) {
        return hipErrorInvalidValue;
    }
    if (device == NULL) {
        return hipErrorInvalidDevice;
    }
    bool known = true;
    int result = attribute_of(device, ordinal, attribute, &known);
    if (!known) {
        return hipErrorInvalidValue;
    }
    *value = result;
    return hipSuccess;
}

static hipError_t get_properties(hipDeviceProp_tR0600 *properties, int ordinal) {
    const Device *device = device_at(ordinal);
    if (properties == NULL) {
        return hipErrorInvalidValue;
    }
    if (device == NULL) {
        return hipErrorInvalidDevice;
    }
    const Architecture *arch = device->arch;
    *properties = (hipDeviceProp_tR0600){
        .totalGlobalMem = device->memory_size,
        .sharedMemPerBlock = arch->lds_size,
        .sharedMemPerBlockOptin = arch->lds_size,
        .sharedMemPerMultiprocessor = arch->lds_size,
        .maxSharedMemoryPerMultiProcessor = arch->lds_size,
        .regsPerBlock = (int)(arch->vgprs * arch->wave_size * arch->simds),
        .regsPerMultiprocessor = (int)(arch->vgprs * arch->wave_size * arch->simds),
        .warpSize = (int)arch->wave_size,
        .memPitch = INT_MAX,
        .maxThreadsPerBlock = MAX_BLOCK_THREADS,
        .maxThreadsDim = {MAX_BLOCK_THREADS, MAX_BLOCK_THREADS, MAX_BLOCK_THREADS},
        .maxGridSize = {INT_MAX, 65536, 65536},
        .clockRate = 2000000,
        .memoryClockRate = 2000000,
        .memoryBusWidth = 1024,
        .totalConstMem = INT_MAX,
        .major = arch->major,
        .minor = arch->minor,
        .multiProcessorCount = (int)arch->compute_units,
        .l2CacheSize = 4 << 20,
        .maxThreadsPerMultiProcessor =
            (int)(arch->simds * arch->waves_per_simd * arch->wave_size),
        .canMapHostMemory = 1,
        .concurrentKernels = 1,
        .pciBusID = ordinal + 1,
        .streamPrioritiesSupported = 1,
        .hostRegisterSupported = 1,
        .memoryPoolsSupported = 1,
        .cooperativeLaunch = 1,
        .clusterLaunch = arch->has_clusters,
        .isLargeBar = 1,
    };
    snprintf(properties->name, sizeof properties->name, "%s", arch->product);
    snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", device->target);
    snprintf(properties->uuid, sizeof properties->uuid, "GPU-%08x", (unsigned)ordinal);
    return hipSuccess;
}

static hipError_t get_old_properties(hipDeviceProp_tR0000 *properties, int ordinal) {
    hipDeviceProp_tR0600 new;
    if (properties == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = get_properties(&new, ordinal);
    if (status != hipSuccess) {
        return status;
    }
    *properties = (hipDeviceProp_tR0000){
        .totalGlobalMem = new.totalGlobalMem,
        .sharedMemPerBlock = new.sharedMemPerBlock,
        .regsPerBlock = new.regsPerBlock,
        .warpSize = new.warpSize,
        .maxThreadsPerBlock = new.maxThreadsPerBlock,
        .clockRate = new.clockRate,
        .memoryClockRate = new.memoryClockRate,
        .memoryBusWidth = new.memoryBusWidth,
        .totalConstMem = new.totalConstMem,
        .major = new.major,
        .minor = new.minor,
        .multiProcessorCount = new.multiProcessorCount,
        .l2CacheSize = new.l2CacheSize,
        .maxThreadsPerMultiProcessor = new.maxThreadsPerMultiProcessor,
        .concurrentKernels = new.concurrentKernels,
        .pciBusID = new.pciBusID,
        .maxSharedMemoryPerMultiProcessor = new.maxSharedMemoryPerMultiProcessor,
        .canMapHostMemory = new.canMapHostMemory,
        .cooperativeLaunch = new.cooperativeLaunch,
    };
    memcpy(properties->name, new.name, sizeof new.name);
    memcpy(properties->gcnArchName, new.gcnArchName, sizeof new.gcnArchName);
    memcpy(properties->maxThreadsDim, new.maxThreadsDim, sizeof new.maxThreadsDim);
    memcpy(properties->maxGridSize, new.maxGridSize, sizeof new.maxGridSize);
    return hipSuccess;
}

static hipError_t get_name(char *name, int size, int ordinal) {
    const Device *device = device_at(ordinal);
    if (device == NULL) {
        return hipErrorInvalidDevice;
    }
    if (name == NULL || size <= 0) {
        return hipErrorInvalidValue;
    }
    snprintf(name, (size_t)size, "%s", device->arch->product);
    return hipSuccess;
}

static hipError_t get_bus_id(char *text, int size, int ordinal) {
    if (device_at(ordinal) == NULL) {
        return hipErrorInvalidDevice;
    }
    if (text == NULL || size <= 0) {
        return hipErrorInvalidValue;
    }
    snprintf(text, (size_t)size, "0000:%02x:00.0", (unsigned)ordinal + 1);
    return hipSuccess;
}

static hipError_t get_total_memory(size_t *bytes, int ordinal) {
    const Device *device = device_at(ordinal);
    if (bytes == NULL) {
        return hipErrorInvalidValue;
    }
    if (device == NULL) {
        return hipErrorInvalidDevice;
    }
    *bytes = device->memory_size;
    return hipSuccess;
}

static hipError_t get_memory_info(size_t *available, size_t *total) {
    const Device *device = current_device();
    if (available != NULL) {
        *available = device->memory_size - device->memory_used;
    }
    if (total != NULL) {
        *total = device->memory_size;
    }
    return hipSuccess;
}

static hipError_t get_version(int *version) {
    if (version == NULL) {
        return hipErrorInvalidValue;
    }
    *version = 70051831; /* HIP 7.0: major * 10^7 + minor * 10^5 + patch */
    return hipSuccess;
}

/* The function of that name as a version of HIP has it: since 6.0 properties have another layout. */
static hipError_t find_function(const char *name, void **function, int version,
                                hipDriverProcAddressQueryResult *found) {
    Dl_info own;
    if (name == NULL || function == NULL || dladdr((void *)find_function, &own) == 0) {
        return hipErrorInvalidValue;
    }
    if (version >= 600 && strcmp(name, "hipGetDeviceProperties") == 0) {
        name = "hipGetDevicePropertiesR0600";
    }
    void *library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    *function = library == NULL ? NULL : dlsym(library, name);
    if (library != NULL) {
        dlclose(library); /* this code runs in it, so it stays */
    }
    if (found != NULL) {
        *found = *function == NULL ? HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                   : HIP_GET_PROC_ADDRESS_SUCCESS;
    }
    return *function == NULL ? hipErrorNotFound : hipSuccess;
}

static hipError_t check_peer(int *possible, int device, int peer) {
    if (possible == NULL) {
        return hipErrorInvalidValue;
    }
    if (device_at(device) == NULL || device_at(peer) == NULL) {
        return hipErrorInvalidDevice;
    }
    *possible = device != peer;
    return hipSuccess;
}

static hipError_t device_handle(hipDevice_t *device, int ordinal) {
    if (device == NULL) {
        return hipErrorInvalidValue;
    }
    if (device_at(ordinal) == NULL) {
        return hipErrorInvalidDevice;
    }
    *device = ordinal;
    return hipSuccess;
}

static hipError_t capability(int *major, int *minor, int ordinal) {
    const Device *device = device_at(ordinal);
    if (major == NULL || minor == NULL) {
        return hipErrorInvalidValue;
    }
    if (device == NULL) {
        return hipErrorInvalidDevice;
    }
    *major = device->arch->major;
    *minor = device->arch->minor;
    return hipSuccess;
}

static hipError_t initialise(unsigned flags) {
    if (flags != 0) {
        return hipErrorInvalidValue;
    }
    note_explicit_init();
    return hipSuccess;
}

HIP_EXPORT hipError_t hipInit(unsigned flags) { API_CALL(initialise(flags)); }

HIP_EXPORT hipError_t hipGetDeviceCount(int *result) { API_CALL(get_count(result)); }

/* Which device is current can be asked and changed though that one is lost. */
static bool only_lost(hipError_t status) {
    const Device *device = current_device();
    return device != NULL && device->lost == status;
}

HIP_EXPORT hipError_t hipGetDevice(int *result) {
    static ApiSite site;
    hipError_t status = api_enter(&site, __func__);
    if (status == hipSuccess || only_lost(status)) {
        status = get_device(result);
    }
    return api_leave(status);
}

HIP_EXPORT hipError_t hipSetDevice(int ordinal) {
    static ApiSite site;
    hipError_t status = api_enter(&site, __func__);
    if (status == hipSuccess || only_lost(status)) {
        status = set_device(ordinal);
    }
    return api_leave(status);
}

HIP_EXPORT hipError_t hipDeviceGet(hipDevice_t *device, int ordinal) {
    API_CALL(device_handle(device, ordinal));
}

HIP_EXPORT hipError_t hipDeviceGetAttribute(int *value, int attribute, int ordinal) {
    API_CALL(get_attribute(value, attribute, ordinal));
}

HIP_EXPORT hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *properties, int ordinal) {
    API_CALL(get_properties(properties, ordinal));
}

HIP_EXPORT hipError_t hipGetDevicePropertiesR0000(hipDeviceProp_tR0000 *properties, int ordinal) {
    API_CALL(get_old_properties(properties, ordinal));
}

HIP_EXPORT hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000 *properties, int ordinal) {
    API_CALL(get_old_properties(properties, ordinal));
}

HIP_EXPORT hipError_t hipDeviceGetName(char *name, int size, int ordinal) {
    API_CALL(get_name(name, size, ordinal));
}

HIP_EXPORT hipError_t hipDeviceGetPCIBusId(char *text, int size, int ordinal) {
    API_CALL(get_bus_id(text, size, ordinal));
}

HIP_EXPORT hipError_t hipDeviceComputeCapability(int *major, int *minor, int ordinal) {
    API_CALL(capability(major, minor, ordinal));
}

HIP_EXPORT hipError_t hipDeviceTotalMem(size_t *bytes, int ordinal) {
    API_CALL(get_total_memory(bytes, ordinal));
}

HIP_EXPORT hipError_t hipMemGetInfo(size_t *available, size_t *total) {
    API_CALL(get_memory_info(available, total));
}

HIP_EXPORT hipError_t hipRuntimeGetVersion(int *version) { API_CALL(get_version(version)); }

HIP_EXPORT hipError_t hipDriverGetVersion(int *version) { API_CALL(get_version(version)); }

HIP_EXPORT hipError_t hipGetProcAddress(const char *name, void **function, int version,
                                        uint64_t flags, hipDriverProcAddressQueryResult *found) {
    (void)flags;
    API_CALL(find_function(name, function, version, found));
}

HIP_EXPORT hipError_t hipDeviceCanAccessPeer(int *possible, int device, int peer) {
    API_CALL(check_peer(possible, device, peer));
}

HIP_EXPORT hipError_t hipDeviceSynchronize(void) { API_CALL(capture_forbid_device_wait()); }
