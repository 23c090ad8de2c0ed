/* The control interface: how a test configures the device and reads back what happened.
 *
 * Strings and byte ranges that these calls hand out stay valid until hiptest_clear_launches or
 * hiptest_reset.
 */
#ifndef HIPTEST_H
#define HIPTEST_H

#include "hip_api.h"

/* One accepted kernel launch. Sizes are in bytes, grid in workgroups, block in work-items. */
typedef struct {
    uint64_t sequence;
    uint64_t module_id;           /* counts module loads from 1 */
    uint64_t stream;              /* handle as the caller passed it; 0 is the null stream */
    uint64_t graph_exec;          /* handle of the graph that replayed it, or 0 */
    const char *kernel;           /* kernel name as in the metadata's .name */
    const void *kernarg;          /* segment: explicit bytes, then hidden arguments */
    const void *code_object;
    uint64_t code_object_size;
    const void *load_base;        /* address at which the code object's segments are loaded */
    uint64_t load_size;
    uint8_t code_sha256[32];
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t cluster[3];          /* 1,1,1 without clusters */
    uint32_t dynamic_lds;
    uint32_t static_lds;
    uint32_t kernarg_size;        /* whole segment */
    uint32_t explicit_size;       /* end of the last explicit argument */
    int32_t device;
    int32_t cooperative;
} HiptestLaunch;

/* Called for every accepted launch, outside the device's lock; its code object is valid only
 * during the call. A non-zero result becomes the result of the launch. */
typedef hipError_t (*HiptestHook)(const HiptestLaunch *launch, void *context);

HIP_EXPORT hipError_t hiptest_configure(const char *devices);
HIP_EXPORT hipError_t hiptest_set_memory(int device, uint64_t bytes);
HIP_EXPORT void hiptest_reset(void);
HIP_EXPORT void hiptest_require_init(int required);
HIP_EXPORT void hiptest_set_recording(int enabled);
HIP_EXPORT void hiptest_set_hook(HiptestHook hook, void *context);

/* The allocation that holds an address; hipErrorInvalidDevicePointer if none does. */
HIP_EXPORT hipError_t hiptest_find_allocation(const void *address, void **base, uint64_t *size);

HIP_EXPORT void hiptest_fail(const char *function, uint64_t nth, int error, int repeat);
HIP_EXPORT void hiptest_set_sticky(int error);
HIP_EXPORT hipError_t hiptest_lose_device(int device, int error);
HIP_EXPORT void hiptest_clear_failures(void);

HIP_EXPORT uint64_t hiptest_launch_count(void);
HIP_EXPORT hipError_t hiptest_get_launch(uint64_t index, HiptestLaunch *launch);
HIP_EXPORT void hiptest_clear_launches(void);

HIP_EXPORT uint64_t hiptest_function_count(void);
HIP_EXPORT const char *hiptest_function_name(uint64_t index);
HIP_EXPORT uint64_t hiptest_function_calls(uint64_t index);

HIP_EXPORT uint64_t hiptest_live_modules(void);
HIP_EXPORT uint64_t hiptest_live_allocations(void);
HIP_EXPORT uint64_t hiptest_live_streams(void);

#endif
