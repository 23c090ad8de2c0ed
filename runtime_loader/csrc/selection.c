/* The type of operators: callables that find the kernel for a call by what they read of its
 * arguments (runtime_loader/op_keys.py), and call it. What they do not recognise or have not met
 * goes to the Python code, which chooses. */
#include "native.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

#define MAX_DEVICES 64
#define MAX_WORDS 128
#define FIRST_CAPACITY 16
#define MAX_CAPACITY (1 << 15)

/* The kernels of one device, by key. Open addressing; a NULL kernel is a free entry. */
typedef struct {
    uint32_t reader_count, width, capacity, used;
    Reader *readers;
    uint64_t *keys;
    PyObject **kernels;
} Table;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    unsigned generation;
    int fixed;            /* the ordinal of the only device; -1 for whichever is current */
    GetDevice get_device; /* not NULL where `fixed` is -1 */
    PyObject *names;      /* of the arguments, in order */
    Dtypes dtypes;
    Table *tables[MAX_DEVICES];
} Selection;

static PyObject *str_call_in_python, *str_kernel;

static void forget(Table *table) {
    for (uint32_t n = 0; n < table->capacity; n++) {
        Py_CLEAR(table->kernels[n]);
    }
    table->used = 0;
}

static void table_free(Table *table) {
    if (table != NULL) {
        forget(table);
        PyMem_Free(table->readers);
        PyMem_Free(table->keys);
        PyMem_Free(table->kernels);
        PyMem_Free(table);
    }
}

static bool table_reserve(Table *table, uint32_t capacity) {
    uint64_t *keys = PyMem_Calloc((size_t)capacity * table->width + 1, sizeof *keys);
    PyObject **kernels = PyMem_Calloc(capacity, sizeof *kernels);
    if (keys == NULL || kernels == NULL) {
        PyMem_Free(keys);
        PyMem_Free(kernels);
        PyErr_NoMemory();
        return false;
    }
    table->keys = keys;
    table->kernels = kernels;
    table->capacity = capacity;
    table->used = 0;
    return true;
}

/* The entry of a key, or the free one where it belongs. */
static uint32_t table_entry(const Table *table, const uint64_t *key) {
    uint64_t hash = 0;
    for (uint32_t n = 0; n < table->width; n++) {
        hash = (hash ^ key[n]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    uint32_t entry = (uint32_t)hash & (table->capacity - 1);
    while (table->kernels[entry] != NULL &&
           memcmp(table->keys + (size_t)entry * table->width, key, 8 * table->width) != 0) {
        entry = (entry + 1) & (table->capacity - 1);
    }
    return entry;
}

static void table_put(Table *table, const uint64_t *key, PyObject *kernel) {
    uint32_t entry = table_entry(table, key);
    if (table->width > 0) {
        memcpy(table->keys + (size_t)entry * table->width, key, 8 * table->width);
    }
    table->used += table->kernels[entry] == NULL;
    Py_XSETREF(table->kernels[entry], Py_NewRef(kernel));
}

static bool table_add(Table *table, const uint64_t *key, PyObject *kernel) {
    if (2 * (table->used + 1) > table->capacity) {
        if (table->capacity >= MAX_CAPACITY) { /* shapes vary, but not without end */
            forget(table);
        } else {
            Table old = *table;
            if (!table_reserve(table, 2 * old.capacity)) {
                return false;
            }
            for (uint32_t n = 0; n < old.capacity; n++) {
                if (old.kernels[n] != NULL) {
                    table_put(table, old.keys + (size_t)n * old.width, old.kernels[n]);
                    Py_DECREF(old.kernels[n]);
                }
            }
            PyMem_Free(old.keys);
            PyMem_Free(old.kernels);
        }
    }
    table_put(table, key, kernel);
    return true;
}

PyDoc_STRVAR(prepare_doc,
             "_prepare(names, fixed, get_device)\n\n"
             "Tell the names of the arguments, the ordinal of the only device or -1, and where\n"
             "hipGetDevice is.");

static PyObject *selection_prepare(PyObject *object, PyObject *args) {
    Selection *self = (Selection *)object;
    PyObject *names;
    unsigned long long get_device;
    int fixed;
    if (!PyArg_ParseTuple(args, "O!iK", &PyTuple_Type, &names, &fixed, &get_device)) {
        return NULL;
    }
    if (self->names != NULL) { /* by a thread that was first */
        Py_RETURN_NONE;
    }
    if (fixed < 0 && get_device == 0) {
        PyErr_SetString(PyExc_ValueError, "native selection: of which device?");
        return NULL;
    }
    if (PyTuple_GET_SIZE(names) > MAX_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "native selection: too many arguments");
        return NULL;
    }
    self->fixed = fixed;
    self->get_device = (GetDevice)(uintptr_t)get_device;
    self->generation = fork_generation;
    self->names = Py_NewRef(names);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(add_table_doc,
             "_add_table(ordinal, readers)\n\n"
             "From now on remember kernels of a device by what these read. Raises ValueError for\n"
             "what is out of the native code's bounds.");

static PyObject *selection_add_table(PyObject *object, PyObject *args) {
    Selection *self = (Selection *)object;
    PyObject *readers;
    int ordinal;
    if (!PyArg_ParseTuple(args, "iO!", &ordinal, &PyTuple_Type, &readers)) {
        return NULL;
    }
    if (self->names == NULL || ordinal < 0 || ordinal >= MAX_DEVICES ||
        self->tables[ordinal] != NULL) {
        PyErr_SetString(PyExc_ValueError, "native selection: a table out of place");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(readers);
    Table *table = PyMem_Calloc(1, sizeof *table);
    if (table == NULL || count > MAX_ARGUMENTS ||
        (table->readers = PyMem_Calloc((size_t)count + 1, sizeof *table->readers)) == NULL) {
        PyMem_Free(table);
        return PyErr_Format(PyExc_ValueError, "native selection: %zd arguments", count);
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        if (!reader_read(&table->readers[n], PyTuple_GET_ITEM(readers, n),
                         PyTuple_GET_SIZE(self->names))) {
            table_free(table);
            return NULL;
        }
        table->reader_count++;
        table->width += table->readers[n].words;
    }
    if (table->width > MAX_WORDS) {
        table_free(table);
        return PyErr_Format(PyExc_ValueError, "native selection: keys are too wide");
    }
    if (!table_reserve(table, FIRST_CAPACITY)) {
        table_free(table);
        return NULL;
    }
    self->tables[ordinal] = table;
    Py_RETURN_NONE;
}

static Table *table_of_call(const Selection *self) {
    int ordinal = self->fixed;
    if (self->names == NULL || fork_generation != self->generation ||
        (ordinal < 0 && self->get_device(&ordinal) != 0) || ordinal < 0 ||
        ordinal >= MAX_DEVICES) {
        return NULL;
    }
    return self->tables[ordinal];
}

/* Call a method of this operator with the arguments of a call. */
static PyObject *ask_python(PyObject *self, PyObject *method, PyObject *const *args,
                            Py_ssize_t count, PyObject *names) {
    PyObject *bound = PyObject_GetAttr(self, method);
    if (bound == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(bound, args, (size_t)count, names);
    Py_DECREF(bound);
    return result;
}

/* Chooses, and remembers the choice. */
static PyObject *choose(PyObject *self, Table *table, const uint64_t *key, PyObject *const *args,
                        Py_ssize_t count, PyObject *names) {
    PyObject *kernel = ask_python(self, str_kernel, args, count, names);
    if (kernel == NULL || !table_add(table, key, kernel)) {
        Py_XDECREF(kernel);
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(kernel, args, (size_t)count, names);
    Py_DECREF(kernel);
    return result;
}

static PyObject *selection_call(PyObject *object, PyObject *const *args, size_t flagged,
                                PyObject *names) {
    Selection *self = (Selection *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    uint64_t key[MAX_WORDS];
    Tensors tensors;
    tensors.count = 0;
    Table *table = table_of_call(self);
    PyObject *result;
    if (table == NULL || !key_make(table->readers, table->reader_count, self->names,
                                   &self->dtypes, args, count, names, key, &tensors)) {
        PyErr_Clear();
        result = ask_python(object, str_call_in_python, args, count, names);
    } else {
        PyObject *kernel = table->kernels[table_entry(table, key)];
        if (kernel == NULL) {
            result = choose(object, table, key, args, count, names);
        } else {
            Py_INCREF(kernel);
            result = kernel_call(kernel, args, count, names, &tensors);
            Py_DECREF(kernel);
        }
    }
    for (uint32_t n = 0; n < tensors.count; n++) {
        Py_XDECREF(tensors.layouts[n].dtype);
    }
    return result;
}

static PyObject *selection_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    (void)args, (void)named;
    Selection *self = (Selection *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = selection_call;
    }
    return (PyObject *)self;
}

static int selection_traverse(PyObject *object, visitproc visit, void *arg) {
    Selection *self = (Selection *)object;
    for (int d = 0; d < MAX_DEVICES; d++) {
        const Table *table = self->tables[d];
        for (uint32_t n = 0; table != NULL && n < table->capacity; n++) {
            Py_VISIT(table->kernels[n]);
        }
    }
    for (int n = 0; n < MAX_DTYPES; n++) {
        Py_VISIT(self->dtypes.objects[n]);
    }
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int selection_clear(PyObject *object) {
    Selection *self = (Selection *)object;
    for (int d = 0; d < MAX_DEVICES; d++) {
        if (self->tables[d] != NULL) {
            forget(self->tables[d]);
        }
    }
    for (int n = 0; n < MAX_DTYPES; n++) {
        Py_CLEAR(self->dtypes.objects[n]);
    }
    return 0;
}

static void selection_dealloc(PyObject *object) {
    Selection *self = (Selection *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    selection_clear(object);
    for (int d = 0; d < MAX_DEVICES; d++) {
        table_free(self->tables[d]);
    }
    Py_CLEAR(self->names);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef selection_methods[] = {
    {"_prepare", selection_prepare, METH_VARARGS, prepare_doc},
    {"_add_table", selection_add_table, METH_VARARGS, add_table_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef selection_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Selection, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot selection_slots[] = {
    {Py_tp_doc, "The native part of an operator: remembers which kernel a call gets."},
    {Py_tp_new, selection_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_dealloc, selection_dealloc},
    {Py_tp_traverse, selection_traverse},
    {Py_tp_clear, selection_clear},
    {Py_tp_methods, selection_methods},
    {Py_tp_members, selection_members},
    {0, NULL},
};

static PyType_Spec selection_spec = {
    .name = "runtime_loader._native.Selection",
    .basicsize = sizeof(Selection),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = selection_slots,
};

bool selection_setup(PyObject *module) {
    str_call_in_python = PyUnicode_InternFromString("_call_in_python");
    str_kernel = PyUnicode_InternFromString("kernel");
    PyObject *type = PyType_FromSpec(&selection_spec);
    return type != NULL && str_call_in_python != NULL && str_kernel != NULL &&
           PyModule_AddObject(module, "Selection", type) == 0;
}
