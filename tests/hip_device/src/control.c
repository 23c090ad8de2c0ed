/* Control calls that concern the device as a whole: configuration, reset, loss, totals. */
#include "state.h"

static void reset_everything(void) {
    streams_reset(); /* ends captures, which own their graphs until then */
    graphs_reset();
    events_reset();
    modules_reset();
    memory_reset();
    records_reset();
    devices_reset();
    api_reset();
}

/* Back to the state after loading the library; every handle and allocation becomes invalid. */
void hiptest_reset(void) {
    state_lock();
    reset_everything();
    state_unlock();
}

/* Resets, then models the given devices instead of those of HIPTEST_DEVICES. */
hipError_t hiptest_configure(const char *specification) {
    state_lock();
    reset_everything();
    hipError_t status = devices_configure(specification);
    state_unlock();
    return status;
}

hipError_t hiptest_set_memory(int ordinal, uint64_t bytes) {
    state_lock();
    hipError_t status = devices_initialise();
    Device *device = device_at(ordinal);
    if (status == hipSuccess && (device == NULL || bytes < device->memory_used)) {
        status = hipErrorInvalidValue;
    }
    if (status == hipSuccess) {
        device->memory_size = bytes;
    }
    state_unlock();
    return status;
}

hipError_t hiptest_lose_device(int ordinal, int error) {
    state_lock();
    hipError_t status = devices_initialise();
    Device *device = device_at(ordinal);
    if (status == hipSuccess && device == NULL) {
        status = hipErrorInvalidValue;
    }
    if (status == hipSuccess) {
        device->lost = (hipError_t)error;
    }
    state_unlock();
    return status;
}

uint64_t hiptest_live_allocations(void) {
    state_lock();
    uint64_t count = memory_live_allocations();
    state_unlock();
    return count;
}

/* Code objects count, too: a kernel may read the constants that are loaded with it. */
hipError_t hiptest_find_allocation(const void *address, void **base, uint64_t *size) {
    state_lock();
    const Allocation *found = memory_find(address);
    if (found != NULL) {
        *base = found->base;
        *size = found->size;
    }
    state_unlock();
    return found == NULL ? hipErrorInvalidDevicePointer : hipSuccess;
}
