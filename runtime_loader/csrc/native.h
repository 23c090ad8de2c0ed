/* What the parts of the native launch path share: limits, programs, arguments. */
#ifndef FLYC_NATIVE_H
#define FLYC_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Everything a call needs is on the stack, so all of it is bounded. A kernel that needs more is
 * launched by the Python code. */
#define MAX_VALUES 512
#define MAX_INSTRUCTIONS 4096
#define MAX_SITES 16
#define MAX_PENDING 8
#define MAX_KERNARG 4096
#define KERNARG_UNIT 16 /* divides MAX_KERNARG; packed segments begin at multiples of it */
#define MAX_ARGUMENTS 128
#define MAX_RANK 8
#define MAX_ELEMENT_CODES 4
#define MAX_SEEN_DTYPES 4
#define STEP_BUDGET 1000000

/* A step that worked, that cannot tell (the Python code shall do it), or that raised. */
typedef enum { DONE, DECLINED, RAISED } Outcome;

/* --- program.c: a launch plan compiled to instructions on 64-bit values --- */

typedef struct {
    uint8_t op, bits;
    uint16_t result, a, b, c;
} Instruction;

typedef struct {
    uint16_t offset, value;
    uint8_t size;
} Store;

/* One launch of the plan. `kernarg` has what is constant in place; `stores` fill in the rest. */
typedef struct {
    void *function;
    uint32_t kernel, max_workgroup, kernarg_size, store_count;
    uint16_t grid[3], block[3], lds, stream;
    uint8_t *kernarg;
    Store *stores;
} Site;

/* Values are numbered: inputs, then constants, then results. */
typedef struct {
    uint32_t input_count, constant_count, value_count, instruction_count, site_count;
    bool clear_results; /* with branches, a value may be read that no op has written */
    uint64_t *constants;
    Instruction *instructions;
    Site *sites;
} Program;

typedef struct {
    const Site *site;
    uint32_t grid[3], block[3], lds;
    void *stream;
    void *kernarg;
} Pending;

/* Launches of one or several calls, evaluated and packed before the first of them is made. `used`
 * counts bytes of `kernarg`. Both counts are 0 in an empty batch; the rest need not be set. */
typedef struct {
    uint32_t count, used;
    Pending launches[MAX_PENDING];
    _Alignas(KERNARG_UNIT) uint8_t kernarg[MAX_KERNARG];
} Batch;

/* Takes (inputs, constants, values, clear, instructions, sites); false with an exception set when
 * they do not make a sound program. */
bool program_read(Program *program, PyObject *description);
void program_free(Program *program);
/* Puts the constants in their places among `values`, where runs leave them. */
void program_start(const Program *program, uint64_t *values);
/* Adds a call to the batch; `values` holds its inputs and the constants. DECLINED for what is undefined, too long, an
 * unsound launch or more than the batch holds; some of the call may then be in the batch. */
Outcome program_run(const Program *program, uint64_t *values, Batch *batch);

/* --- exchange.c: DLPack's C exchange API --- */

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

#define DLPACK_ROCM 10

typedef int (*TensorReader)(void *object, DLTensor *tensor);

/* The type's own reader, or NULL when it offers none. */
TensorReader exchange_reader(PyTypeObject *type);

/* --- memory.c: arguments that are tensors or pointers --- */

/* Where a tensor is and how it lies; `shape` and `strides` (in elements) are the tensor's own, or
 * in `held`. Its dtype is DLPack's `code` and bits or, unless NULL, an object, to be released. */
typedef struct {
    uint64_t address;
    uint16_t code;
    PyObject *dtype;
    int64_t ordinal;
    int rank;
    const int64_t *shape, *strides;
    int64_t held[2 * MAX_RANK];
} Layout;

/* What was read of the tensors of a call. */
#define MAX_READ 16
typedef struct {
    uint32_t count;
    PyObject *values[MAX_READ];
    Layout layouts[MAX_READ];
} Tensors;

/* By whichever protocol the object has. False, perhaps with an exception set, for what is on no
 * device of ours, or lies as no argument does. */
bool layout_read(Layout *layout, PyObject *value);

/* --- arguments.c: one launch argument to its slots --- */

typedef enum {
    BY_PYTHON,
    TENSOR,
    POINTER,
    SIGNED,
    UNSIGNED,
    BOOL,
    FLOAT32,
    FLOAT64,
    STREAM,
} ArgumentKind;

typedef struct {
    ArgumentKind kind;
    uint8_t bits;  /* of an integer */
    bool optional; /* may be left out, which means None */
    uint32_t slot, slot_count;
    PyObject *bind; /* the Python binder of this argument: bind(value, slots) */
    PyObject *name;
    /* tensors and pointers */
    bool is_static, empty_when_raw;
    uint8_t rank, stride_bits, code_count;
    int32_t ordinal;
    uint64_t align;
    uint16_t codes[MAX_ELEMENT_CODES]; /* DLPack type code and bits */
    int64_t shape[MAX_RANK], strides[MAX_RANK];
    PyObject *dtype_names;                /* names of accepted dtypes, as Python's binder has them */
    PyObject *seen_dtypes[MAX_SEEN_DTYPES]; /* dtype objects that were found among them */
} Argument;

bool arguments_setup(void);
/* Takes (kind, slot, slots, bind, name, optional, details); false with an exception set. */
bool argument_read(Argument *argument, PyObject *description);
void argument_clear(Argument *argument);
int argument_visit(Argument *argument, visitproc visit, void *arg);
/* Writes the argument's slots into `values`: DONE, or RAISED by the Python binder. `known` tensors
 * (or NULL) are not read again. */
Outcome argument_bind(Argument *argument, PyObject *value, const Tensors *known,
                      uint64_t *values);
/* The same for a C integer, without the GIL. False for what the Python code must judge. */
bool argument_takes_int64(const Argument *argument);
bool argument_bind_int64(const Argument *argument, int64_t value, uint64_t *values);

/* What most arguments take, here so that it needs no call: values of exact ints, of 64 bits with a
 * sign or without one, and bare addresses. */
static inline bool as_int64(PyObject *value, int64_t *number) {
    int overflow;
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

/* The signed conversion is tried first: it is much cheaper. */
static inline bool as_address(PyObject *value, uint64_t *address) {
    int64_t number;
    if (as_int64(value, &number)) {
        *address = (uint64_t)number;
        return number >= 0;
    }
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    *address = PyLong_AsUnsignedLongLong(value);
    if (*address == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

static inline bool good_address(const Argument *a, uint64_t address, bool may_be_null) {
    bool aligned = (a->align & (a->align - 1)) == 0 ? (address & (a->align - 1)) == 0
                                                    : address % a->align == 0;
    return aligned && (address != 0 || may_be_null);
}

static inline bool bind_address(const Argument *a, uint64_t address, uint64_t *slot) {
    *slot = address;
    return (a->kind == POINTER || a->is_static) &&
           good_address(a, address, a->kind == POINTER || a->empty_when_raw);
}

/* --- memory.c: such arguments to slots --- */

bool memory_setup(void);
/* Takes the details of an argument; false with an exception set. */
bool memory_read(Argument *argument, PyObject *details);
/* A value that is no int. False, perhaps with an exception set, for what the Python binder must
 * judge. */
bool memory_bind(Argument *argument, PyObject *value, const Tensors *known, uint64_t *slots);

/* --- key.c: what is read of a call to find its kernel --- */

#define MAX_LEAVES (2 * MAX_RANK)
#define MAX_DTYPES 16

typedef enum { READ_TYPE, READ_VALUE, READ_MEMORY } ReaderKind;

typedef struct {
    bool of_strides;
    uint8_t axis;
    int64_t divisor; /* 0: all of it matters */
} Leaf;

/* Reads one argument. `whole` adds what only candidates differ in: dtype, place, rank, alignment. */
typedef struct {
    ReaderKind kind;
    bool whole;
    uint8_t leaf_count, words;
    uint32_t place;
    uint64_t mask;
    Leaf leaves[MAX_LEAVES];
} Reader;

/* Dtype objects that were met; their places are their numbers. */
typedef struct {
    PyObject *objects[MAX_DTYPES];
} Dtypes;

/* Takes (kind, place, whole, mask, leaves) for a call with so many arguments; false with an
 * exception set. */
bool reader_read(Reader *reader, PyObject *description, Py_ssize_t arguments);
/* Writes the words of all readers, and the tensors that it reads; `all` has the names of the
 * arguments in order. False, perhaps with an exception set, for what the Python code must read. */
bool key_make(const Reader *readers, uint32_t reader_count, PyObject *all, Dtypes *dtypes,
              PyObject *const *args, Py_ssize_t count, PyObject *names, uint64_t *key,
              Tensors *tensors);

/* --- selection.c: the type of operators --- */

bool selection_setup(PyObject *module);

/* --- launch.c: calls --- */

typedef int (*LaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds,
                            void *stream, void **params, void **extra);
typedef int (*GetDevice)(int *device);
typedef int (*StreamDevice)(void *stream, int *device);
typedef int (*StreamIsCapturing)(void *stream, int *status);
typedef int (*RangePush)(const char *name);
typedef int (*RangePop)(void);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    uint32_t argument_count;
    bool ready;
    int ordinal;
    unsigned generation;
    unsigned long long launch_count, last_launch; /* how many; when, by launch_clock */
    LaunchKernel launch_kernel;
    GetDevice get_device;       /* NULL where there is only one device */
    StreamDevice stream_device; /* likewise, and where HIP cannot tell */
    StreamIsCapturing is_capturing; /* NULL unless the Python code must know of captures */
    PyObject *kernel;     /* the launcher that this one is a part of, and that counts for it */
    PyObject *range_name; /* of a profiler's range around each call; NULL without */
    RangePush range_push;
    RangePop range_pop;
    Argument *arguments;
    PyObject *names; /* of the arguments, in order */
    Program program;
} Launcher;

/* Counts the forks between this process and the one that imported the module. */
extern unsigned fork_generation;

bool launch_setup(void);
/* Puts a call's arguments in the order of the names in `all` (MAX_ARGUMENTS at most), NULL for what
 * is left out. False for too many, and for a name that is unknown or given twice. */
bool call_arrange(PyObject *all, PyObject *const *args, Py_ssize_t count, PyObject *names,
                  PyObject **values);
PyObject *launcher_call(PyObject *launcher, PyObject *const *args, size_t flagged,
                        PyObject *names);
/* The same of any kernel, for a call some of whose tensors are `known`. */
PyObject *kernel_call(PyObject *kernel, PyObject *const *args, Py_ssize_t count, PyObject *names,
                      const Tensors *known);
/* Adds a call to the batch, by its slots (in values that the program has started with) or by all
 * of its arguments; what is not DONE adds nothing. The first needs no GIL. */
Outcome plan_slots(const Launcher *launcher, uint64_t *slots, Batch *batch);
Outcome plan_call(Launcher *launcher, PyObject *const *values, const Tensors *known,
                  Batch *batch);
/* Makes the launches; HIP's error for the first that fails, whose number `failed` then holds.
 * Needs no GIL. */
int launch_batch(const Launcher *launcher, const Batch *batch, uint32_t *failed);
/* Accounts for launches that were made; raises for a `code` that is not 0, of launch `failed`. */
Outcome launched(Launcher *launcher, unsigned long long count, const Pending *failed, int code);
/* The three together, for a planned batch, which is then empty. */
Outcome launch(Launcher *launcher, Batch *batch);
/* The number of the next call that launches. */
PyObject *launcher_tick(PyObject *module, PyObject *none);

/* --- each.c: loops of calls --- */

extern const char each_doc[];
PyObject *launcher_each(PyObject *launcher, PyObject *calls);

/* --- launcher.c: the type --- */

bool launcher_setup(PyObject *module);

#endif
