/* What the parts of the test device share: the lock, the API frame and the object types.
 *
 * Exported functions are one API_CALL around a static function that does the work under the one
 * lock; those static functions never call exported ones.
 */
#ifndef STATE_H
#define STATE_H

#include <stdbool.h>

#include "hip_api.h"
#include "hiptest.h"

enum { MAX_DEVICES = 16, MAX_BLOCK_THREADS = 1024, MAX_CLUSTER = 16 };

/* ---- API frame (api.c) ---- */

typedef struct ApiSite {
    const char *name;
    uint64_t calls;
    struct ApiSite *next;
} ApiSite;

/* Counts the call, initialises lazily, takes the lock; an injected or sticky error is returned
 * with the lock held. */
hipError_t api_enter(ApiSite *site, const char *name);
/* The same for calls that work even when no device is left, such as the error queries. */
void api_enter_always(ApiSite *site, const char *name);
/* Releases the lock and remembers the thread's last error. */
hipError_t api_leave(hipError_t status);

#define API_CALL(expression)                            \
    do {                                                \
        static ApiSite site;                            \
        hipError_t status = api_enter(&site, __func__); \
        if (status == hipSuccess) {                     \
            status = (expression);                      \
        }                                               \
        return api_leave(status);                       \
    } while (0)

/* Whether hipInit was called, as far as HIPTEST_REQUIRE_INIT=1 asks for that. */
void note_explicit_init(void);
bool modules_may_load(void);

void state_lock(void);
void state_unlock(void);
void api_reset(void);
/* A device fault: every later call returns it. */
void set_sticky_error(hipError_t error);
bool is_fault(hipError_t error);
hipError_t peek_last_error(void);
hipError_t take_last_error(void);

/* Per-thread state. Capture ownership compares thread ids. */
typedef struct {
    uint64_t id;
    int device;
    hipStreamCaptureMode mode;
    struct Stream *streams[MAX_DEVICES]; /* behind hipStreamPerThread */
    uint64_t epoch; /* of the configuration that device and stream belong to */
} Thread;

Thread *current_thread(void);
uint64_t state_epoch(void);

/* ---- Handles (handles.c) ---- */

typedef enum {
    HANDLE_STREAM = 1,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_GRAPH,
    HANDLE_GRAPH_EXEC,
} HandleKind;

/* Any bit pattern may be looked up; stale and foreign handles give NULL. */
void *handle_create(HandleKind kind, void *object);
void *handle_lookup(HandleKind kind, const void *handle);
void handle_destroy(const void *handle);
/* The objects of a kind; visit may destroy the handle it is given. */
void handle_for_each(HandleKind kind, void (*visit)(void *object, void *context), void *context);
uint64_t handle_count(HandleKind kind);

/* ---- Devices (devices.c) ---- */

typedef enum { FEATURE_UNSUPPORTED, FEATURE_ANY, FEATURE_OFF, FEATURE_ON } Feature;

typedef struct {
    const char *name;
    const char *product;
    uint32_t mach; /* EF_AMDGPU_MACH */
    bool has_xnack;
    bool has_sramecc;
    bool has_clusters;
    int major, minor;
    uint32_t wave_size;
    uint32_t lds_size;
    uint32_t compute_units;
    uint32_t simds;
    uint32_t waves_per_simd;
    uint32_t vgprs;
    uint32_t vgpr_granule;
} Architecture;

typedef struct {
    const Architecture *arch;
    Feature xnack, sramecc;
    char target[256];
    uint64_t memory_size, memory_used;
    hipError_t lost; /* not hipSuccess once the device is lost */
} Device;

/* Reads HIPTEST_DEVICES once; hipSuccess even with no device. */
hipError_t devices_initialise(void);
hipError_t devices_configure(const char *specification);
void devices_reset(void);
int device_count(void);
Device *device_at(int ordinal);
Device *current_device(void);

/* ---- Memory (memory.c) ---- */

typedef enum { ALLOCATION_DEVICE, ALLOCATION_HOST, ALLOCATION_REGISTERED, ALLOCATION_CODE } AllocationKind;

typedef struct {
    uint8_t *base;
    uint64_t size;
    int device;
    AllocationKind kind;
    unsigned flags;
} Allocation;

hipError_t memory_allocate(AllocationKind kind, int device, uint64_t size, uint64_t alignment, void **pointer);
hipError_t memory_release(AllocationKind kind, void *pointer);
void memory_reset(void);
uint64_t memory_live_allocations(void);
/* The allocation that holds the address; NULL if none does. */
const Allocation *memory_find(const void *address);
void memory_copy(void *target, const void *source, uint64_t size);
void memory_fill(void *target, uint32_t value, unsigned width, uint64_t count);

/* ---- Code objects (code_object.c, msgpack.c, sha256.c) ---- */

typedef struct {
    uint32_t offset, size;
} ExplicitArgument;

typedef enum {
    HIDDEN_NONE,
    HIDDEN_BLOCK_COUNT_X,
    HIDDEN_BLOCK_COUNT_Y,
    HIDDEN_BLOCK_COUNT_Z,
    HIDDEN_GROUP_SIZE_X,
    HIDDEN_GROUP_SIZE_Y,
    HIDDEN_GROUP_SIZE_Z,
    HIDDEN_GRID_DIMS,
    HIDDEN_DYNAMIC_LDS_SIZE,
} HiddenKind;

typedef struct {
    uint32_t offset, size;
    HiddenKind kind;
} HiddenArgument;

typedef struct {
    char *name;
    char *symbol;
    ExplicitArgument *arguments;
    uint32_t argument_count;
    HiddenArgument *hidden;
    uint32_t hidden_count;
    uint32_t explicit_size;
    uint32_t kernarg_size;
    uint32_t static_lds;
    uint32_t private_size;
    uint32_t max_block_threads;
    uint32_t wave_size;
    uint32_t vgprs;
} Kernel;

typedef struct {
    char *name;
    uint64_t address, size;
} Global;

typedef struct {
    uint8_t *image;
    uint64_t image_size;
    uint8_t sha256[32];
    Kernel *kernels;
    uint32_t kernel_count;
    Global *globals;
    uint32_t global_count;
    uint64_t load_size; /* span of the loadable segments */
} CodeObject;

/* Parses and checks an image against a device. Its size follows from its headers and may not
 * exceed the available bytes. */
hipError_t code_object_read(const void *image, uint64_t available, const Device *device,
                            CodeObject *object);
/* Copies the loadable segments to base, which spans load_size bytes. */
void code_object_load(const CodeObject *object, uint8_t *base);
void code_object_free(CodeObject *object);

hipError_t metadata_read(const uint8_t *note, uint64_t size, CodeObject *object);

void sha256(const void *data, uint64_t size, uint8_t digest[32]);

/* ---- Modules (modules.c) ---- */

typedef struct Function Function;

typedef struct {
    uint64_t id;
    hipModule_t handle;
    int device;
    CodeObject code;
    uint8_t *load_base;
    Function *functions; /* one for each kernel */
    uint32_t users;      /* holders besides the handle: graphs and running hooks */
    bool unloaded;
} Module;

struct Function {
    Module *module;
    const Kernel *kernel;
    hipFunction_t handle;
};

void module_hold(Module *module);
void module_drop(Module *module);
void modules_reset(void);
int function_occupancy(const Function *function, uint64_t block_threads, uint64_t dynamic_lds);

/* ---- Streams, capture and graphs (streams.c, capture.c, events.c, graphs.c) ---- */

typedef enum { NODE_LAUNCH, NODE_COPY, NODE_FILL } NodeKind;

/* A launch whose arguments have been packed. */
typedef struct {
    Function *function;
    uint8_t *kernarg;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dynamic_lds;
    int device;
    bool cooperative;
} Launch;

typedef struct {
    NodeKind kind;
    union {
        Launch launch;
        struct {
            void *target;
            const void *source;
            uint64_t size;
        } copy;
        struct {
            void *target;
            uint32_t value;
            unsigned width;
            uint64_t count;
        } fill;
    } as;
} Node;

typedef struct {
    hipGraph_t handle;
    Node *nodes;
    uint32_t count, capacity;
} Graph;

typedef struct Stream Stream;

typedef struct Capture {
    uint64_t id;
    hipStreamCaptureMode mode;
    uint64_t thread;
    Stream *origin;
    bool invalid;
    Graph *graph;
    struct Capture *next;
} Capture;

struct Stream {
    hipStream_t handle;
    int device;
    unsigned flags;
    int priority;
    Capture *capture;
    bool unjoined; /* forked into a capture and not yet waited for */
    uint64_t work; /* counts what was submitted */
};

typedef struct {
    hipStream_t handle; /* as the caller passed it */
    Stream *stream;     /* NULL for the null stream of the device */
    int device;
} StreamUse;

/* hipErrorContextIsDestroyed for a handle that is no stream. */
hipError_t stream_resolve(hipStream_t handle, StreamUse *use);
void streams_reset(void);

/* For calls that no capture allows: invalidates the captures that forbid it, gives 900. */
hipError_t capture_forbid(void);
/* For synchronous copies and fills, which no capture at all allows: 906. */
hipError_t capture_forbid_implicit(void);
/* For waiting on a device, which no capture of any mode or thread allows: 900. */
hipError_t capture_forbid_device_wait(void);
/* For work on a stream: 901 on an invalidated capture; 906 if the null stream would wait for a
 * capturing stream. */
hipError_t capture_check_work(const StreamUse *use);
/* For waiting on a stream, by the rules of hipStreamSynchronize. */
hipError_t capture_check_wait(const StreamUse *use);
bool capture_is_active(const StreamUse *use);
void capture_invalidate(Capture *capture);
/* A stream that ends: its capture ends with it if it began there. */
void capture_leave(Stream *stream);
bool capture_owns(const Graph *graph);

Graph *graph_create(void);
hipError_t graph_append(Graph *graph, const Node *node);
void graph_free(Graph *graph);
void graphs_reset(void);
void events_reset(void);
void event_forget_capture(const Capture *capture);

/* Runs a node now, or appends it to the capture of the stream. Takes ownership of the node. */
hipError_t stream_submit(const StreamUse *use, Node *node);
hipError_t node_run(const Node *node, hipStream_t stream, hipGraphExec_t graph);
hipError_t node_copy(const Node *node, Node *copy);
void node_free(Node *node);

/* ---- Launches (launches.c, records.c) ---- */

/* Records the launch and calls the hook, with the lock released meanwhile. */
hipError_t launch_execute(const Launch *launch, hipStream_t stream, hipGraphExec_t graph);
/* False only when nothing looks at launches, so that a benchmark measures its own side. */
bool records_wanted(void);
hipError_t records_add(HiptestLaunch *launch);
HiptestHook records_hook(void **context);
void records_reset(void);

#endif
