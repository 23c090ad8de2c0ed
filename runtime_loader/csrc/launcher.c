/* Launchers: callables that bind, check, evaluate, pack and launch in one call.
 *
 * The GIL is held while arguments are read, and released around the launches themselves: a launch
 * waits when the device's queue is full, and what empties the queue may be a host callback that
 * needs the GIL. Everything that a launch reads is on this thread's stack. */
#include "native.h"

#include <pthread.h>
#include <stddef.h>
#include <structmember.h>

typedef int (*LaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds,
                            void *stream, void **params, void **extra);
typedef int (*GetDevice)(int *device);
typedef int (*StreamDevice)(void *stream, int *device);
typedef int (*StreamIsCapturing)(void *stream, int *status);
typedef int (*RangePush)(const char *name);
typedef int (*RangePop)(void);

/* hip_runtime_api.h: HIP_LAUNCH_PARAM_*; the special streams belong to no device. */
#define BUFFER_POINTER ((void *)1)
#define BUFFER_SIZE ((void *)2)
#define PARAMS_END ((void *)3)
#define LAST_SPECIAL_STREAM 2

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
    Program program;
} Launcher;

/* Counts the forks between this process and the one that imported the module. */
static unsigned fork_generation;
static void count_fork(void) { fork_generation++; }

/* Counts calls that launched, so that the last of them can be named when a device fails. */
static unsigned long long launch_clock;

PyObject *launcher_tick(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyLong_FromUnsignedLongLong(++launch_clock);
}

static PyTypeObject *launcher_type;
static PyObject *str_in_python;

/* The call in Python: `self._call_in_python(*args, **named)`. */
static PyObject *call_in_python(Launcher *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    PyObject *method = PyObject_GetAttr((PyObject *)self, str_in_python);
    if (method == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)count, names);
    Py_DECREF(method);
    return result;
}

/* Puts named arguments in their places; DECLINED when they are not what the launcher takes. */
static Outcome arrange(const Launcher *self, PyObject *const *args, Py_ssize_t count,
                       PyObject *names, PyObject **values) {
    Py_ssize_t wanted = self->argument_count;
    if (count > wanted) {
        return DECLINED;
    }
    for (Py_ssize_t n = 0; n < wanted; n++) {
        values[n] = n < count ? args[n] : NULL;
    }
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < named; k++) {
        PyObject *name = PyTuple_GET_ITEM(names, k);
        Py_ssize_t place = 0;
        while (place < wanted && self->arguments[place].name != name) {
            place++;
        }
        if (place == wanted) {
            for (place = 0; place < wanted; place++) {
                if (PyUnicode_Compare(self->arguments[place].name, name) == 0) {
                    break;
                }
            }
        }
        if (place == wanted || values[place] != NULL) {
            return DECLINED;
        }
        values[place] = args[count + k];
    }
    for (Py_ssize_t n = 0; n < wanted; n++) {
        if (values[n] == NULL) {
            if (!self->arguments[n].optional) {
                return DECLINED;
            }
            values[n] = Py_None;
        }
    }
    return DONE;
}

/* Is this kernel's device current, and does every stream belong to it? */
static bool right_device(const Launcher *self, const Batch *batch) {
    int device;
    if (self->get_device != NULL &&
        (self->get_device(&device) != 0 || device != self->ordinal)) {
        return false;
    }
    if (self->stream_device == NULL) {
        return true;
    }
    void *checked = NULL;
    for (uint32_t n = 0; n < batch->count; n++) {
        void *stream = batch->launches[n].stream;
        if (stream == checked || (uintptr_t)stream <= LAST_SPECIAL_STREAM) {
            continue;
        }
        if (self->stream_device(stream, &device) != 0 || device != self->ordinal) {
            return false;
        }
        checked = stream;
    }
    return true;
}

/* Does any launch go into a graph, as far as that has to be known? */
static bool captured(const Launcher *self, const Batch *batch) {
    for (uint32_t n = 0; self->is_capturing != NULL && n < batch->count; n++) {
        void *stream = batch->launches[n].stream;
        int status = 0;
        if (stream != NULL && (self->is_capturing(stream, &status) != 0 || status != 0)) {
            return true;
        }
    }
    return false;
}

/* Makes the launches; the error of the first that fails, whose number `failed` then holds. */
static int launch_all(LaunchKernel launch_kernel, Batch *batch, uint32_t *failed) {
    for (uint32_t n = 0; n < batch->count; n++) {
        const Pending *p = &batch->launches[n];
        size_t size = p->site->kernarg_size;
        void *extra[] = {BUFFER_POINTER, p->kernarg, BUFFER_SIZE, &size, PARAMS_END};
        int code = launch_kernel(p->site->function, p->grid[0], p->grid[1], p->grid[2],
                                 p->block[0], p->block[1], p->block[2], p->lds, p->stream, NULL,
                                 extra);
        if (code != 0) {
            *failed = n;
            return code;
        }
    }
    return 0;
}

static Outcome launch(Launcher *self, PyObject *const *values) {
    uint64_t slots[MAX_VALUES];
    Batch batch;
    for (uint32_t n = 0; n < self->argument_count; n++) {
        Outcome bound = argument_bind(&self->arguments[n], values[n], slots);
        if (bound != DONE) {
            return bound;
        }
    }
    if (fork_generation != self->generation ||
        program_run(&self->program, slots, &batch) != DONE || !right_device(self, &batch) ||
        captured(self, &batch)) {
        return DECLINED;
    }
    uint32_t failed = 0;
    int code;
    const char *range = self->range_name == NULL ? NULL : PyUnicode_AsUTF8(self->range_name);
    Py_BEGIN_ALLOW_THREADS
    if (range != NULL) {
        self->range_push(range);
    }
    code = launch_all(self->launch_kernel, &batch, &failed);
    if (range != NULL) {
        self->range_pop();
    }
    Py_END_ALLOW_THREADS
    Launcher *counter = self->kernel == NULL ? self : (Launcher *)self->kernel;
    if (code == 0) {
        counter->launch_count += batch.count;
        self->last_launch = ++launch_clock;
        return DONE;
    }
    counter->launch_count += failed;
    PyObject *result = PyObject_CallMethod((PyObject *)self, "_launch_failed", "Ii",
                                           batch.launches[failed].site->kernel, code);
    if (result != NULL) {
        PyErr_SetString(PyExc_SystemError, "a failed launch raised nothing");
        Py_DECREF(result);
    }
    return RAISED;
}

static PyObject *launcher_call(PyObject *object, PyObject *const *args, size_t flagged,
                               PyObject *names) {
    Launcher *self = (Launcher *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    PyObject *arranged[MAX_ARGUMENTS];
    PyObject *const *values = args;
    Outcome outcome = self->ready ? DONE : DECLINED;
    if (outcome == DONE && (names != NULL || count != self->argument_count)) {
        outcome = arrange(self, args, count, names, arranged);
        values = arranged;
    }
    if (outcome == DONE) {
        outcome = launch(self, values);
    }
    if (outcome == DONE) {
        Py_RETURN_NONE;
    }
    return outcome == RAISED ? NULL : call_in_python(self, args, count, names);
}

PyDoc_STRVAR(each_doc,
             "each(calls) -> int\n\n"
             "Launch once for each item of an iterable: a tuple of arguments, or one argument.\n"
             "Returns how many calls were made. The first that fails raises, and ends it.");

static PyObject *launcher_each(PyObject *self, PyObject *calls) {
    PyObject *iterator = PyObject_GetIter(calls);
    if (iterator == NULL) {
        return NULL;
    }
    Py_ssize_t made = 0;
    PyObject *item;
    while ((item = PyIter_Next(iterator)) != NULL) {
        PyObject *result = PyTuple_Check(item)
                               ? launcher_call(self, &PyTuple_GET_ITEM(item, 0),
                                               (size_t)PyTuple_GET_SIZE(item), NULL)
                               : launcher_call(self, &item, 1, NULL);
        Py_DECREF(item);
        if (result == NULL) {
            break;
        }
        Py_DECREF(result);
        made++;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(made);
}

static void forget(Launcher *self) {
    self->ready = false;
    for (uint32_t n = 0; n < self->argument_count; n++) {
        argument_clear(&self->arguments[n]);
    }
    PyMem_Free(self->arguments);
    self->arguments = NULL;
    self->argument_count = 0;
    Py_CLEAR(self->kernel);
    Py_CLEAR(self->range_name);
    program_free(&self->program);
}

static bool read_arguments(Launcher *self, PyObject *arguments) {
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (count > MAX_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "native launcher: too many arguments");
        return false;
    }
    self->arguments = PyMem_Calloc((size_t)count + 1, sizeof *self->arguments);
    if (self->arguments == NULL) {
        PyErr_NoMemory();
        return false;
    }
    uint32_t slots = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        Argument *a = &self->arguments[n];
        self->argument_count++;
        if (!argument_read(a, PyTuple_GET_ITEM(arguments, n))) {
            return false;
        }
        if (a->slot != slots) {
            PyErr_SetString(PyExc_ValueError, "native launcher: slots are out of order");
            return false;
        }
        slots += a->slot_count;
    }
    if (slots != self->program.input_count) {
        PyErr_SetString(PyExc_ValueError, "native launcher: its program takes other inputs");
        return false;
    }
    return true;
}

PyDoc_STRVAR(prepare_doc,
             "_prepare(arguments, program, ordinal, launch, get_device, stream_device,\n"
             "         is_capturing)\n\n"
             "Make it ready. The last four are addresses of HIP's functions, or 0 for a check\n"
             "that is not needed. Raises ValueError for what is out of the native code's bounds.");

static PyObject *launcher_prepare(PyObject *object, PyObject *args) {
    Launcher *self = (Launcher *)object;
    PyObject *arguments, *program;
    unsigned long long launch_kernel, get_device, stream_device, is_capturing;
    if (self->ready) {
        PyErr_SetString(PyExc_ValueError, "native launcher: it is already prepared");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!iKKKK", &PyTuple_Type, &arguments, &PyTuple_Type, &program,
                          &self->ordinal, &launch_kernel, &get_device, &stream_device,
                          &is_capturing)) {
        return NULL;
    }
    if (launch_kernel == 0) {
        PyErr_SetString(PyExc_ValueError, "native launcher: it has nothing to launch with");
        return NULL;
    }
    self->launch_kernel = (LaunchKernel)(uintptr_t)launch_kernel;
    self->get_device = (GetDevice)(uintptr_t)get_device;
    self->stream_device = (StreamDevice)(uintptr_t)stream_device;
    self->is_capturing = (StreamIsCapturing)(uintptr_t)is_capturing;
    self->generation = fork_generation;
    if (!program_read(&self->program, program) || !read_arguments(self, arguments)) {
        forget(self);
        return NULL;
    }
    self->ready = true;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(part_doc,
             "_become_part(kernel)\n\n"
             "From now on count launches as those of another launcher.");

static PyObject *launcher_become_part(PyObject *object, PyObject *kernel) {
    if (!PyObject_TypeCheck(kernel, launcher_type)) {
        PyErr_SetString(PyExc_TypeError, "native launcher: a part of something that is none");
        return NULL;
    }
    Py_XSETREF(((Launcher *)object)->kernel, Py_NewRef(kernel));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(ranges_doc,
             "_mark_ranges(name, push, pop)\n\n"
             "From now on put each call into a range of a profiler: its name, and the addresses of\n"
             "roctxRangePushA and roctxRangePop.");

static PyObject *launcher_mark_ranges(PyObject *object, PyObject *args) {
    Launcher *self = (Launcher *)object;
    PyObject *name;
    unsigned long long push, pop;
    if (!PyArg_ParseTuple(args, "UKK", &name, &push, &pop)) {
        return NULL;
    }
    self->range_push = (RangePush)(uintptr_t)push;
    self->range_pop = (RangePop)(uintptr_t)pop;
    Py_XSETREF(self->range_name, Py_NewRef(name));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(evaluate_doc,
             "_run_program(slots) -> list | None\n\n"
             "What the program launches for these inputs, for tests: tuples of (kernel, grid,\n"
             "block, lds, stream, kernarg). None where it would ask the Python code.");

static PyObject *launcher_evaluate(PyObject *object, PyObject *inputs) {
    Launcher *self = (Launcher *)object;
    uint64_t values[MAX_VALUES];
    Batch batch;
    if (!PyTuple_Check(inputs) || !self->ready ||
        PyTuple_GET_SIZE(inputs) != self->program.input_count) {
        PyErr_SetString(PyExc_ValueError, "native launcher: wrong inputs");
        return NULL;
    }
    for (uint32_t n = 0; n < self->program.input_count; n++) {
        values[n] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(inputs, n));
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    if (program_run(&self->program, values, &batch) != DONE) {
        Py_RETURN_NONE;
    }
    PyObject *launches = PyList_New(0);
    for (uint32_t n = 0; launches != NULL && n < batch.count; n++) {
        const Pending *p = &batch.launches[n];
        PyObject *item = Py_BuildValue(
            "I(III)(III)IKy#", p->site->kernel, p->grid[0], p->grid[1], p->grid[2], p->block[0],
            p->block[1], p->block[2], p->lds, (unsigned long long)(uintptr_t)p->stream,
            p->kernarg, (Py_ssize_t)p->site->kernarg_size);
        if (item == NULL || PyList_Append(launches, item) != 0) {
            Py_CLEAR(launches);
        }
        Py_XDECREF(item);
    }
    return launches;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)args, (void)named;
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = launcher_call;
    }
    return (PyObject *)self;
}

static int launcher_traverse(PyObject *object, visitproc visit, void *arg) {
    Launcher *self = (Launcher *)object;
    for (uint32_t n = 0; n < self->argument_count; n++) {
        int stop = argument_visit(&self->arguments[n], visit, arg);
        if (stop != 0) {
            return stop;
        }
    }
    Py_VISIT(self->kernel);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int launcher_clear(PyObject *object) {
    forget((Launcher *)object);
    return 0;
}

static void launcher_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    forget((Launcher *)object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef launcher_methods[] = {
    {"_prepare", launcher_prepare, METH_VARARGS, prepare_doc},
    {"_become_part", launcher_become_part, METH_O, part_doc},
    {"_mark_ranges", launcher_mark_ranges, METH_VARARGS, ranges_doc},
    {"_run_program", launcher_evaluate, METH_O, evaluate_doc},
    {"each", launcher_each, METH_O, each_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef launcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launcher, vectorcall), READONLY, NULL},
    {"native_launches", T_ULONGLONG, offsetof(Launcher, launch_count), READONLY,
     "How many kernels it and its parts have launched without Python code."},
    {"last_launch", T_ULONGLONG, offsetof(Launcher, last_launch), 0,
     "When it last launched: the number of the call among all; 0 for never."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot launcher_slots[] = {
    {Py_tp_doc, "The native part of a kernel: a call that needs no Python code when all is well."},
    {Py_tp_new, launcher_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_dealloc, launcher_dealloc},
    {Py_tp_traverse, launcher_traverse},
    {Py_tp_clear, launcher_clear},
    {Py_tp_methods, launcher_methods},
    {Py_tp_members, launcher_members},
    {0, NULL},
};

static PyType_Spec launcher_spec = {
    .name = "runtime_loader._native.Launcher",
    .basicsize = sizeof(Launcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = launcher_slots,
};

bool launcher_setup(PyObject *module) {
    str_in_python = PyUnicode_InternFromString("_call_in_python");
    PyObject *type = PyType_FromSpec(&launcher_spec);
    if (str_in_python == NULL || type == NULL || pthread_atfork(NULL, NULL, count_fork) != 0) {
        return false;
    }
    launcher_type = (PyTypeObject *)Py_NewRef(type);
    return PyModule_AddObject(module, "Launcher", type) == 0;
}
