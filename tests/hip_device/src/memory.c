/* Device and pinned memory in host RAM: tracked allocations, copies and fills.
 *
 * Fresh memory holds a poison pattern. Work runs when it is submitted, so the Async forms differ
 * only in that a capturing stream keeps them for its graph.
 */
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum { POISON = 0xdb, ALIGNMENT = 256 };

static Allocation *allocations; /* by address */
static uint64_t count, capacity;

/* The number of allocations that start at or below the address. */
static uint64_t position(const void *address) {
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (allocations[middle].base <= (const uint8_t *)address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static Allocation *find(const void *address) {
    uint64_t index = position(address);
    if (index == 0) {
        return NULL;
    }
    Allocation *found = &allocations[index - 1];
    return (uint64_t)((const uint8_t *)address - found->base) < found->size ? found : NULL;
}

static hipError_t insert(Allocation allocation) {
    if (count == capacity) {
        uint64_t grown_capacity = capacity == 0 ? 64 : capacity * 2;
        Allocation *grown = realloc(allocations, grown_capacity * sizeof *grown);
        if (grown == NULL) {
            return hipErrorOutOfMemory;
        }
        allocations = grown;
        capacity = grown_capacity;
    }
    uint64_t index = position(allocation.base);
    memmove(&allocations[index + 1], &allocations[index], (count - index) * sizeof *allocations);
    allocations[index] = allocation;
    count++;
    return hipSuccess;
}

static void discard(Allocation *allocation) {
    if (allocation->kind != ALLOCATION_REGISTERED) {
        free(allocation->base);
    }
    if (allocation->kind == ALLOCATION_DEVICE) {
        device_at(allocation->device)->memory_used -= allocation->size;
    }
    uint64_t index = (uint64_t)(allocation - allocations);
    memmove(allocation, allocation + 1, (count - index - 1) * sizeof *allocations);
    count--;
}

hipError_t memory_allocate(AllocationKind kind, int ordinal, uint64_t size, uint64_t alignment,
                           void **pointer) {
    Device *device = device_at(ordinal);
    if (kind == ALLOCATION_DEVICE && size > device->memory_size - device->memory_used) {
        return hipErrorOutOfMemory;
    }
    if (size > SIZE_MAX - alignment) {
        return hipErrorOutOfMemory;
    }
    uint64_t rounded = (size + alignment - 1) / alignment * alignment;
    uint8_t *base = aligned_alloc(alignment, rounded);
    if (base == NULL) {
        return hipErrorOutOfMemory;
    }
    hipError_t status =
        insert((Allocation){.base = base, .size = size, .device = ordinal, .kind = kind});
    if (status != hipSuccess) {
        free(base);
        return status;
    }
    memset(base, POISON, rounded);
    if (kind == ALLOCATION_DEVICE) {
        device->memory_used += size;
    }
    *pointer = base;
    return hipSuccess;
}

hipError_t memory_release(AllocationKind kind, void *pointer) {
    Allocation *found = find(pointer);
    if (found == NULL || found->base != pointer || found->kind != kind) {
        return hipErrorInvalidValue;
    }
    discard(found);
    return hipSuccess;
}

void memory_reset(void) {
    while (count > 0) {
        discard(&allocations[count - 1]);
    }
}

uint64_t memory_live_allocations(void) {
    uint64_t live = 0;
    for (uint64_t i = 0; i < count; i++) {
        live += allocations[i].kind != ALLOCATION_CODE;
    }
    return live;
}

const Allocation *memory_find(const void *address) { return find(address); }

void memory_copy(void *target, const void *source, uint64_t size) {
    memmove(target, source, size);
}

void memory_fill(void *target, uint32_t value, unsigned width, uint64_t elements) {
    for (uint64_t i = 0; i < elements; i++) {
        memcpy((uint8_t *)target + i * width, &value, width);
    }
}

static hipError_t allocate(AllocationKind kind, void **pointer, size_t size, unsigned flags) {
    if (pointer == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = capture_forbid();
    if (status != hipSuccess) {
        return status;
    }
    *pointer = NULL;
    if (size == 0) {
        return hipSuccess;
    }
    status = memory_allocate(kind, current_thread()->device, size, ALIGNMENT, pointer);
    if (status == hipSuccess) {
        find(*pointer)->flags = flags;
    }
    return status;
}

static hipError_t release(AllocationKind kind, void *pointer) {
    hipError_t status = capture_forbid();
    if (status != hipSuccess || pointer == NULL) {
        return status;
    }
    return memory_release(kind, pointer);
}

/* Allocation nodes in graphs are not modelled, so a capturing stream refuses them. */
static hipError_t check_stream(hipStream_t stream) {
    StreamUse use;
    hipError_t status = stream_resolve(stream, &use);
    if (status == hipSuccess) {
        status = capture_check_work(&use);
    }
    if (status == hipSuccess && capture_is_active(&use)) {
        status = hipErrorNotSupported;
    }
    return status;
}

static hipError_t allocate_async(void **pointer, size_t size, hipStream_t stream) {
    hipError_t status = check_stream(stream);
    return status == hipSuccess ? allocate(ALLOCATION_DEVICE, pointer, size, 0) : status;
}

static hipError_t release_async(void *pointer, hipStream_t stream) {
    hipError_t status = check_stream(stream);
    if (status != hipSuccess) {
        return status;
    }
    return pointer == NULL ? hipErrorInvalidValue : release(ALLOCATION_DEVICE, pointer);
}

static hipError_t register_host(void *pointer, size_t size, unsigned flags) {
    if (pointer == NULL || size == 0) {
        return hipErrorInvalidValue;
    }
    uint64_t after = position((uint8_t *)pointer + size - 1);
    bool overlaps = find(pointer) != NULL || after != position(pointer);
    if (overlaps) {
        return hipErrorHostMemoryAlreadyRegistered;
    }
    return insert((Allocation){.base = pointer,
                               .size = size,
                               .device = current_thread()->device,
                               .kind = ALLOCATION_REGISTERED,
                               .flags = flags});
}

static hipError_t unregister_host(void *pointer) {
    if (pointer == NULL) {
        return hipErrorInvalidValue;
    }
    hipError_t status = memory_release(ALLOCATION_REGISTERED, pointer);
    return status == hipSuccess ? status : hipErrorHostMemoryNotRegistered;
}

static bool is_host(const Allocation *allocation) {
    return allocation->kind == ALLOCATION_HOST || allocation->kind == ALLOCATION_REGISTERED;
}

static hipError_t host_device_pointer(void **device, void *host, unsigned flags) {
    if (device == NULL || host == NULL || flags != 0) {
        return hipErrorInvalidValue;
    }
    const Allocation *found = find(host);
    if (found == NULL || !is_host(found)) {
        return hipErrorInvalidValue;
    }
    *device = host;
    return hipSuccess;
}

static hipError_t pointer_attributes(hipPointerAttribute_t *attributes, const void *pointer) {
    if (attributes == NULL || pointer == NULL) {
        return hipErrorInvalidValue;
    }
    const Allocation *found = find(pointer);
    *attributes = (hipPointerAttribute_t){.type = hipMemoryTypeUnregistered};
    if (found == NULL) {
        return hipErrorInvalidValue;
    }
    attributes->type = is_host(found) ? hipMemoryTypeHost : hipMemoryTypeDevice;
    attributes->device = found->device;
    attributes->devicePointer = (void *)pointer;
    attributes->hostPointer = is_host(found) ? (void *)pointer : NULL;
    attributes->allocationFlags = found->flags;
    return hipSuccess;
}

/* One of them alone; the others of hip_runtime_api.h's are not known here. */
static hipError_t pointer_attribute(void *value, int attribute, const void *pointer) {
    hipPointerAttribute_t all;
    hipError_t error = value == NULL ? hipErrorInvalidValue : pointer_attributes(&all, pointer);
    if (error != hipSuccess) {
        return error;
    }
    switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = all.type; return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(void **)value = all.devicePointer;
        return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = all.hostPointer;
        return all.hostPointer == NULL ? hipErrorInvalidValue : hipSuccess;
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = all.device; return hipSuccess;
    default: return hipErrorNotSupported;
    }
}

static hipError_t address_range(hipDeviceptr_t *base, size_t *size, hipDeviceptr_t pointer) {
    const Allocation *found = find(pointer);
    if (found == NULL) {
        return hipErrorNotFound;
    }
    if (base != NULL) {
        *base = found->base;
    }
    if (size != NULL) {
        *size = found->size;
    }
    return hipSuccess;
}

static bool fits(const Allocation *allocation, const void *pointer, uint64_t size) {
    return allocation == NULL ||
           size <= allocation->size - (uint64_t)((const uint8_t *)pointer - allocation->base);
}

static hipError_t check_copy(const void *target, const void *source, uint64_t size, int kind) {
    if (target == NULL || source == NULL) {
        return hipErrorInvalidValue;
    }
    if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) {
        return hipErrorInvalidMemcpyDirection;
    }
    const Allocation *to = find(target), *from = find(source);
    if (!fits(to, target, size) || !fits(from, source, size)) {
        return hipErrorInvalidValue;
    }
    bool host_to_host = kind == hipMemcpyHostToHost || kind == hipMemcpyDefault;
    return to == NULL && from == NULL && !host_to_host ? hipErrorInvalidValue : hipSuccess;
}

static hipError_t copy_async(void *target, const void *source, size_t size, int kind,
                             hipStream_t stream) {
    StreamUse use;
    hipError_t status = stream_resolve(stream, &use);
    if (status == hipSuccess && size == 0) {
        return hipSuccess;
    }
    if (status == hipSuccess) {
        status = check_copy(target, source, size, kind);
    }
    if (status != hipSuccess) {
        return status;
    }
    Node node = {.kind = NODE_COPY,
                 .as.copy = {.target = target, .source = (uint8_t *)source, .size = size}};
    return stream_submit(&use, &node);
}

static hipError_t copy(void *target, const void *source, size_t size, int kind) {
    hipError_t status = capture_forbid_implicit();
    return status == hipSuccess ? copy_async(target, source, size, kind, NULL) : status;
}

static hipError_t fill_async(void *target, uint32_t value, unsigned width, uint64_t elements,
                             hipStream_t stream) {
    StreamUse use;
    hipError_t status = stream_resolve(stream, &use);
    if (status != hipSuccess || elements == 0) {
        return status;
    }
    const Allocation *to = find(target);
    if (to == NULL || elements > UINT64_MAX / width || !fits(to, target, elements * width)) {
        return hipErrorInvalidValue;
    }
    Node node = {
        .kind = NODE_FILL,
        .as.fill = {.target = target, .value = value, .width = width, .count = elements}};
    return stream_submit(&use, &node);
}

static hipError_t fill(void *target, uint32_t value, unsigned width, uint64_t elements) {
    hipError_t status = capture_forbid_implicit();
    return status == hipSuccess ? fill_async(target, value, width, elements, NULL) : status;
}

HIP_EXPORT hipError_t hipMalloc(void **pointer, size_t size) {
    API_CALL(allocate(ALLOCATION_DEVICE, pointer, size, 0));
}

HIP_EXPORT hipError_t hipFree(void *pointer) { API_CALL(release(ALLOCATION_DEVICE, pointer)); }

HIP_EXPORT hipError_t hipMallocAsync(void **pointer, size_t size, hipStream_t stream) {
    API_CALL(allocate_async(pointer, size, stream));
}

HIP_EXPORT hipError_t hipFreeAsync(void *pointer, hipStream_t stream) {
    API_CALL(release_async(pointer, stream));
}

HIP_EXPORT hipError_t hipHostMalloc(void **pointer, size_t size, unsigned flags) {
    API_CALL(allocate(ALLOCATION_HOST, pointer, size, flags));
}

HIP_EXPORT hipError_t hipHostFree(void *pointer) { API_CALL(release(ALLOCATION_HOST, pointer)); }

HIP_EXPORT hipError_t hipHostRegister(void *pointer, size_t size, unsigned flags) {
    API_CALL(register_host(pointer, size, flags));
}

HIP_EXPORT hipError_t hipHostUnregister(void *pointer) { API_CALL(unregister_host(pointer)); }

HIP_EXPORT hipError_t hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
    API_CALL(host_device_pointer(device, host, flags));
}

HIP_EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes,
                                              const void *pointer) {
    API_CALL(pointer_attributes(attributes, pointer));
}

HIP_EXPORT hipError_t hipPointerGetAttribute(void *value, int attribute, hipDeviceptr_t pointer) {
    API_CALL(pointer_attribute(value, attribute, pointer));
}

HIP_EXPORT hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *size,
                                            hipDeviceptr_t pointer) {
    API_CALL(address_range(base, size, pointer));
}

HIP_EXPORT hipError_t hipMemcpy(void *target, const void *source, size_t size, int kind) {
    API_CALL(copy(target, source, size, kind));
}

HIP_EXPORT hipError_t hipMemcpyAsync(void *target, const void *source, size_t size, int kind,
                                     hipStream_t stream) {
    API_CALL(copy_async(target, source, size, kind, stream));
}

HIP_EXPORT hipError_t hipMemcpyWithStream(void *target, const void *source, size_t size, int kind,
                                          hipStream_t stream) {
    API_CALL(copy_async(target, source, size, kind, stream));
}

HIP_EXPORT hipError_t hipMemcpyHtoD(hipDeviceptr_t target, const void *source, size_t size) {
    API_CALL(copy(target, source, size, hipMemcpyHostToDevice));
}

HIP_EXPORT hipError_t hipMemcpyDtoH(void *target, hipDeviceptr_t source, size_t size) {
    API_CALL(copy(target, source, size, hipMemcpyDeviceToHost));
}

HIP_EXPORT hipError_t hipMemcpyDtoD(hipDeviceptr_t target, hipDeviceptr_t source, size_t size) {
    API_CALL(copy(target, source, size, hipMemcpyDeviceToDevice));
}

HIP_EXPORT hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t target, const void *source, size_t size,
                                         hipStream_t stream) {
    API_CALL(copy_async(target, source, size, hipMemcpyHostToDevice, stream));
}

HIP_EXPORT hipError_t hipMemcpyDtoHAsync(void *target, hipDeviceptr_t source, size_t size,
                                         hipStream_t stream) {
    API_CALL(copy_async(target, source, size, hipMemcpyDeviceToHost, stream));
}

HIP_EXPORT hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t target, hipDeviceptr_t source, size_t size,
                                         hipStream_t stream) {
    API_CALL(copy_async(target, source, size, hipMemcpyDeviceToDevice, stream));
}

HIP_EXPORT hipError_t hipMemset(void *target, int value, size_t size) {
    API_CALL(fill(target, (uint8_t)value, 1, size));
}

HIP_EXPORT hipError_t hipMemsetAsync(void *target, int value, size_t size, hipStream_t stream) {
    API_CALL(fill_async(target, (uint8_t)value, 1, size, stream));
}

HIP_EXPORT hipError_t hipMemsetD8(hipDeviceptr_t target, unsigned char value, size_t elements) {
    API_CALL(fill(target, value, 1, elements));
}

HIP_EXPORT hipError_t hipMemsetD16(hipDeviceptr_t target, unsigned short value, size_t elements) {
    API_CALL(fill(target, value, 2, elements));
}

HIP_EXPORT hipError_t hipMemsetD32(hipDeviceptr_t target, int value, size_t elements) {
    API_CALL(fill(target, (uint32_t)value, 4, elements));
}

HIP_EXPORT hipError_t hipMemsetD8Async(hipDeviceptr_t target, unsigned char value, size_t elements,
                                       hipStream_t stream) {
    API_CALL(fill_async(target, value, 1, elements, stream));
}

HIP_EXPORT hipError_t hipMemsetD16Async(hipDeviceptr_t target, unsigned short value,
                                        size_t elements, hipStream_t stream) {
    API_CALL(fill_async(target, value, 2, elements, stream));
}

HIP_EXPORT hipError_t hipMemsetD32Async(hipDeviceptr_t target, int value, size_t elements,
                                        hipStream_t stream) {
    API_CALL(fill_async(target, (uint32_t)value, 4, elements, stream));
}
