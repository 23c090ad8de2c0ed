/* The frame of every API call: lock, counting, lazy initialisation, injected and sticky errors. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

typedef struct Failure {
    char *function;
    uint64_t remaining; /* calls until it fires */
    hipError_t error;
    bool repeat;
    struct Failure *next;
} Failure;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ApiSite *sites;
static Failure *failures;
static hipError_t sticky = hipSuccess;
static bool initialised;
static bool explicitly_initialised;
static bool require_init, require_init_read;
static uint64_t epoch = 1;

static atomic_uint_fast64_t next_thread = 1;
static _Thread_local Thread thread;
static _Thread_local hipError_t last_error = hipSuccess;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&lock); }

/* A forked child cannot use the parent's device, as with the real driver. */
static void after_fork_in_child(void) {
    if (initialised) {
        sticky = hipErrorNotInitialized;
    }
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void state_lock(void) { pthread_mutex_lock(&lock); }

void state_unlock(void) { pthread_mutex_unlock(&lock); }

uint64_t state_epoch(void) { return epoch; }

Thread *current_thread(void) {
    if (thread.id == 0) {
        thread.id = atomic_fetch_add(&next_thread, 1);
    }
    if (thread.epoch != epoch) {
        thread.epoch = epoch;
        thread.device = 0;
        thread.mode = hipStreamCaptureModeGlobal;
        memset(thread.streams, 0, sizeof thread.streams);
    }
    return &thread;
}

static bool init_required(void) {
    if (!require_init_read) {
        const char *text = getenv("HIPTEST_REQUIRE_INIT");
        require_init = text != NULL && strcmp(text, "1") == 0;
        require_init_read = true;
    }
    return require_init;
}

void note_explicit_init(void) { explicitly_initialised = true; }

bool modules_may_load(void) { return explicitly_initialised || !init_required(); }

static void count_call(ApiSite *site, const char *name) {
    if (site->name == NULL) {
        site->name = name;
        site->next = sites;
        sites = site;
    }
    site->calls++;
}

static hipError_t injected_error(const char *name) {
    for (Failure *failure = failures; failure != NULL; failure = failure->next) {
        if (strcmp(failure->function, name) != 0 || failure->remaining == 0) {
            continue;
        }
        failure->remaining--;
        if (failure->remaining == 0) {
            if (failure->repeat) {
                failure->remaining = 1;
            }
            return failure->error;
        }
    }
    return hipSuccess;
}

static hipError_t lost_device_error(void) {
    const Device *device = current_device();
    return device == NULL ? hipErrorNoDevice : device->lost;
}

hipError_t api_enter(ApiSite *site, const char *name) {
    pthread_mutex_lock(&lock);
    count_call(site, name);
    if (sticky != hipSuccess) {
        return sticky;
    }
    hipError_t status = failures == NULL ? hipSuccess : injected_error(name);
    if (status != hipSuccess) {
        if (is_fault(status)) {
            set_sticky_error(status);
        }
        return status;
    }
    if (!initialised) {
        status = devices_initialise();
        if (status != hipSuccess) {
            return status;
        }
        initialised = true;
    }
    return lost_device_error();
}

void api_enter_always(ApiSite *site, const char *name) {
    pthread_mutex_lock(&lock);
    count_call(site, name);
}

hipError_t api_leave(hipError_t status) {
    pthread_mutex_unlock(&lock);
    if (status != hipSuccess && status != hipErrorNotReady) {
        last_error = status;
    }
    return status;
}

bool is_fault(hipError_t error) {
    switch (error) {
    case hipErrorECCNotCorrectable:
    case hipErrorIllegalAddress:
    case hipErrorLaunchTimeOut:
    case hipErrorAssert:
    case hipErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

void set_sticky_error(hipError_t error) { sticky = error; }

hipError_t peek_last_error(void) { return last_error; }

hipError_t take_last_error(void) {
    hipError_t error = last_error;
    last_error = hipSuccess;
    return error;
}

static void clear_failures(void) {
    while (failures != NULL) {
        Failure *next = failures->next;
        free(failures->function);
        free(failures);
        failures = next;
    }
    sticky = hipSuccess;
}

void api_reset(void) {
    clear_failures();
    for (ApiSite *site = sites; site != NULL; site = site->next) {
        site->calls = 0;
    }
    initialised = false;
    explicitly_initialised = false;
    require_init_read = false;
    last_error = hipSuccess;
    epoch++;
}

void hiptest_require_init(int required) {
    state_lock();
    require_init = required != 0;
    require_init_read = true;
    state_unlock();
}

void hiptest_fail(const char *function, uint64_t nth, int error, int repeat) {
    Failure *failure = calloc(1, sizeof *failure);
    char *name = strdup(function);
    if (failure == NULL || name == NULL) {
        abort();
    }
    *failure = (Failure){.function = name,
                         .remaining = nth == 0 ? 1 : nth,
                         .error = (hipError_t)error,
                         .repeat = repeat != 0};
    state_lock();
    failure->next = failures;
    failures = failure;
    state_unlock();
}

void hiptest_set_sticky(int error) {
    state_lock();
    sticky = (hipError_t)error;
    state_unlock();
}

void hiptest_clear_failures(void) {
    state_lock();
    clear_failures();
    for (int ordinal = 0; ordinal < device_count(); ordinal++) {
        device_at(ordinal)->lost = hipSuccess;
    }
    state_unlock();
}

static const ApiSite *site_at(uint64_t index) {
    const ApiSite *site = sites;
    while (site != NULL && index > 0) {
        site = site->next;
        index--;
    }
    return site;
}

uint64_t hiptest_function_count(void) {
    state_lock();
    uint64_t count = 0;
    for (const ApiSite *site = sites; site != NULL; site = site->next) {
        count++;
    }
    state_unlock();
    return count;
}

const char *hiptest_function_name(uint64_t index) {
    state_lock();
    const ApiSite *site = site_at(index);
    state_unlock();
    return site == NULL ? NULL : site->name;
}

uint64_t hiptest_function_calls(uint64_t index) {
    state_lock();
    const ApiSite *site = site_at(index);
    uint64_t calls = site == NULL ? 0 : site->calls;
    state_unlock();
    return calls;
}
