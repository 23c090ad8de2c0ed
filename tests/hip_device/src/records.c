/* Records of accepted launches, and the hook through which something can execute them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

static HiptestLaunch *records;
static uint64_t count, capacity, next_sequence;
static bool recording = true;
static HiptestHook hook;
static void *hook_context;
static atomic_bool wanted = true;

bool records_wanted(void) { return atomic_load_explicit(&wanted, memory_order_relaxed); }

HiptestHook records_hook(void **context) {
    *context = hook_context;
    return hook;
}

/* A record outlives its module and its arguments, so it owns copies of them. */
hipError_t records_add(HiptestLaunch *launch) {
    launch->sequence = next_sequence++;
    if (!recording) {
        return hipSuccess;
    }
    if (count == capacity) {
        uint64_t grown_capacity = capacity == 0 ? 64 : capacity * 2;
        HiptestLaunch *grown = realloc(records, grown_capacity * sizeof *grown);
        if (grown == NULL) {
            return hipErrorOutOfMemory;
        }
        records = grown;
        capacity = grown_capacity;
    }
    HiptestLaunch *record = &records[count];
    *record = *launch;
    char *name = strdup(launch->kernel);
    uint8_t *kernarg = malloc((size_t)launch->kernarg_size + 1);
    if (name == NULL || kernarg == NULL) {
        free(name);
        free(kernarg);
        return hipErrorOutOfMemory;
    }
    memcpy(kernarg, launch->kernarg, launch->kernarg_size);
    record->kernel = name;
    record->kernarg = kernarg;
    record->code_object = NULL;
    record->load_base = NULL;
    count++;
    return hipSuccess;
}

static void clear(void) {
    for (uint64_t i = 0; i < count; i++) {
        free((void *)records[i].kernel);
        free((void *)records[i].kernarg);
    }
    count = 0;
}

static void update_wanted(void) { atomic_store(&wanted, recording || hook != NULL); }

void records_reset(void) {
    clear();
    next_sequence = 0;
    recording = true;
    hook = NULL;
    hook_context = NULL;
    update_wanted();
}

void hiptest_set_recording(int enabled) {
    state_lock();
    recording = enabled != 0;
    update_wanted();
    state_unlock();
}

void hiptest_set_hook(HiptestHook new_hook, void *context) {
    state_lock();
    hook = new_hook;
    hook_context = context;
    update_wanted();
    state_unlock();
}

uint64_t hiptest_launch_count(void) {
    state_lock();
    uint64_t result = count;
    state_unlock();
    return result;
}

hipError_t hiptest_get_launch(uint64_t index, HiptestLaunch *launch) {
    state_lock();
    hipError_t status = index < count && launch != NULL ? hipSuccess : hipErrorInvalidValue;
    if (status == hipSuccess) {
        *launch = records[index];
    }
    state_unlock();
    return status;
}

void hiptest_clear_launches(void) {
    state_lock();
    clear();
    state_unlock();
}
