/* Calls: bind, check, evaluate, pack and launch.
 *
 * The GIL is held while arguments are read, and released around the launches themselves: a launch
 * waits when the device's queue is full, and what empties the queue may be a host callback that
 * needs the GIL. Everything that a launch reads is on this thread's stack. */
#include "native.h"

#include <pthread.h>

/* hip_runtime_api.h: HIP_LAUNCH_PARAM_*; the special streams belong to no device. */
#define BUFFER_POINTER ((void *)1)
#define BUFFER_SIZE ((void *)2)
#define PARAMS_END ((void *)3)
#define LAST_SPECIAL_STREAM 2

unsigned fork_generation;
static void count_fork(void) { fork_generation++; }

/* Counts calls that launched, so that the last of them can be named when a device fails. */
static unsigned long long launch_clock;

PyObject *launcher_tick(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyLong_FromUnsignedLongLong(++launch_clock);
}

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

/* The place of a name among others; their number for none. */
static Py_ssize_t place_of(PyObject *all, PyObject *name) {
    Py_ssize_t count = PyTuple_GET_SIZE(all);
    for (Py_ssize_t n = 0; n < count; n++) {
        if (PyTuple_GET_ITEM(all, n) == name) {
            return n;
        }
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(all, n), name) == 0) {
            return n;
        }
    }
    return count;
}

bool call_arrange(PyObject *all, PyObject *const *args, Py_ssize_t count, PyObject *names,
                  PyObject **values) {
    Py_ssize_t wanted = PyTuple_GET_SIZE(all);
    if (count > wanted) {
        return false;
    }
    for (Py_ssize_t n = 0; n < wanted; n++) {
        values[n] = n < count ? args[n] : NULL;
    }
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < named; k++) {
        Py_ssize_t place = place_of(all, PyTuple_GET_ITEM(names, k));
        if (place == wanted || values[place] != NULL) {
            return false;
        }
        values[place] = args[count + k];
    }
    return true;
}

/* Puts arguments in their places; DECLINED when they are not what the launcher takes. */
static Outcome arrange(const Launcher *self, PyObject *const *args, Py_ssize_t count,
                       PyObject *names, PyObject **values) {
    if (!call_arrange(self->names, args, count, names, values)) {
        return DECLINED;
    }
    for (uint32_t n = 0; n < self->argument_count; n++) {
        if (values[n] == NULL) {
            if (!self->arguments[n].optional) {
                return DECLINED;
            }
            values[n] = Py_None;
        }
    }
    return DONE;
}

/* Is this kernel's device current, and does every stream from the `first` launch on belong to it? */
static bool right_device(const Launcher *self, const Batch *batch, uint32_t first) {
    int device;
    if (self->get_device != NULL &&
        (self->get_device(&device) != 0 || device != self->ordinal)) {
        return false;
    }
    if (self->stream_device == NULL) {
        return true;
    }
    void *checked = NULL;
    for (uint32_t n = first; n < batch->count; n++) {
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

/* Does any launch from the `first` on go into a graph, as far as that has to be known? */
static bool captured(const Launcher *self, const Batch *batch, uint32_t first) {
    for (uint32_t n = first; self->is_capturing != NULL && n < batch->count; n++) {
        void *stream = batch->launches[n].stream;
        int status = 0;
        if (stream != NULL && (self->is_capturing(stream, &status) != 0 || status != 0)) {
            return true;
        }
    }
    return false;
}

int launch_batch(const Launcher *self, const Batch *batch, uint32_t *failed) {
    for (uint32_t n = 0; n < batch->count; n++) {
        const Pending *p = &batch->launches[n];
        size_t size = p->site->kernarg_size;
        void *extra[] = {BUFFER_POINTER, p->kernarg, BUFFER_SIZE, &size, PARAMS_END};
        int code = self->launch_kernel(p->site->function, p->grid[0], p->grid[1], p->grid[2],
                                 p->block[0], p->block[1], p->block[2], p->lds, p->stream, NULL,
                                 extra);
        if (code != 0) {
            *failed = n;
            return code;
        }
    }
    return 0;
}

Outcome plan_slots(const Launcher *self, uint64_t *slots, Batch *batch) {
    uint32_t count = batch->count, used = batch->used;
    if (fork_generation == self->generation &&
        program_run(&self->program, slots, batch) == DONE && right_device(self, batch, count) &&
        !captured(self, batch, count)) {
        return DONE;
    }
    batch->count = count;
    batch->used = used;
    return DECLINED;
}

Outcome plan_call(Launcher *self, PyObject *const *values, const Tensors *known,
                  Batch *batch) {
    uint64_t slots[MAX_VALUES];
    for (uint32_t n = 0; n < self->argument_count; n++) {
        Outcome bound = argument_bind(&self->arguments[n], values[n], known, slots);
        if (bound != DONE) {
            return bound;
        }
    }
    program_start(&self->program, slots);
    return plan_slots(self, slots, batch);
}

Outcome launched(Launcher *self, unsigned long long count, const Pending *failed, int code) {
    Launcher *counter = self->kernel == NULL ? self : (Launcher *)self->kernel;
    counter->launch_count += count;
    if (count > 0) {
        self->last_launch = ++launch_clock;
    }
    if (code == 0) {
        return DONE;
    }
    PyObject *result = PyObject_CallMethod((PyObject *)self, "_launch_failed", "Ii",
                                           failed->site->kernel, code);
    if (result != NULL) {
        PyErr_SetString(PyExc_SystemError, "a failed launch raised nothing");
        Py_DECREF(result);
    }
    return RAISED;
}

Outcome launch(Launcher *self, Batch *batch) {
    uint32_t failed = 0;
    int code;
    const char *range = self->range_name == NULL ? NULL : PyUnicode_AsUTF8(self->range_name);
    Py_BEGIN_ALLOW_THREADS
    if (range != NULL) {
        self->range_push(range);
    }
    code = launch_batch(self, batch, &failed);
    if (range != NULL) {
        self->range_pop();
    }
    Py_END_ALLOW_THREADS
    uint32_t made = code == 0 ? batch->count : failed;
    batch->count = batch->used = 0;
    return launched(self, made, &batch->launches[failed], code);
}

static PyObject *call(Launcher *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                      const Tensors *known) {
    PyObject *arranged[MAX_ARGUMENTS];
    PyObject *const *values = args;
    Outcome outcome = self->ready ? DONE : DECLINED;
    if (outcome == DONE && (names != NULL || count != self->argument_count)) {
        outcome = arrange(self, args, count, names, arranged);
        values = arranged;
    }
    Batch batch;
    batch.count = batch.used = 0;
    if (outcome == DONE) {
        outcome = plan_call(self, values, known, &batch);
    }
    if (outcome == DONE) {
        outcome = launch(self, &batch);
    }
    if (outcome == DONE) {
        Py_RETURN_NONE;
    }
    return outcome == RAISED ? NULL : call_in_python(self, args, count, names);
}

PyObject *launcher_call(PyObject *object, PyObject *const *args, size_t flagged,
                        PyObject *names) {
    return call((Launcher *)object, args, PyVectorcall_NARGS(flagged), names, NULL);
}

PyObject *kernel_call(PyObject *kernel, PyObject *const *args, Py_ssize_t count, PyObject *names,
                      const Tensors *known) {
    return PyVectorcall_Function(kernel) == launcher_call
               ? call((Launcher *)kernel, args, count, names, known)
               : PyObject_Vectorcall(kernel, args, (size_t)count, names);
}

bool launch_setup(void) {
    str_in_python = PyUnicode_InternFromString("_call_in_python");
    return str_in_python != NULL && pthread_atfork(NULL, NULL, count_fork) == 0;
}
