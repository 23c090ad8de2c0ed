/* The type of launchers: callables that bind, check, evaluate, pack and launch in one call. */
#include "native.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *launcher_type;

static void forget(Launcher *self) {
    self->ready = false;
    for (uint32_t n = 0; n < self->argument_count; n++) {
        argument_clear(&self->arguments[n]);
    }
    PyMem_Free(self->arguments);
    self->arguments = NULL;
    self->argument_count = 0;
    Py_CLEAR(self->names);
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
    self->names = PyTuple_New(count);
    if (self->arguments == NULL || self->names == NULL) {
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
        PyTuple_SET_ITEM(self->names, n, Py_NewRef(a->name));
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
    batch.count = batch.used = 0;
    program_start(&self->program, values);
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
    PyObject *type = PyType_FromSpec(&launcher_spec);
    if (type == NULL || !launch_setup()) {
        return false;
    }
    launcher_type = (PyTypeObject *)Py_NewRef(type);
    return PyModule_AddObject(module, "Launcher", type) == 0;
}
