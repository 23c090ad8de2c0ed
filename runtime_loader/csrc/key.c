/* Keys of calls: what tells the kernels apart that a call could mean, as
 * runtime_loader/op_keys.py reads it. */
#include "native.h"

#include <string.h>

/* What the first word of an argument says of the others; 0 where it is left out. */
enum { NUMBER = 1, NOTHING, REAL, EXCHANGED, TORCH };

static bool read_leaf(Leaf *leaf, PyObject *description) {
    int of_strides;
    long long divisor;
    if (!PyArg_ParseTuple(description, "pbL", &of_strides, &leaf->axis, &divisor)) {
        return false;
    }
    if (leaf->axis >= MAX_RANK || divisor < 0) {
        PyErr_SetString(PyExc_ValueError, "native selection: a leaf of no axis");
        return false;
    }
    leaf->of_strides = of_strides;
    leaf->divisor = divisor;
    return true;
}

bool reader_read(Reader *reader, PyObject *description, Py_ssize_t arguments) {
    int kind, whole;
    unsigned long long mask;
    PyObject *leaves;
    if (!PyArg_ParseTuple(description, "iIpKO!", &kind, &reader->place, &whole, &mask,
                          &PyTuple_Type, &leaves)) {
        return false;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(leaves);
    if (kind < READ_TYPE || kind > READ_MEMORY || reader->place >= arguments ||
        count > MAX_LEAVES) {
        PyErr_SetString(PyExc_ValueError, "native selection: a reader is malformed");
        return false;
    }
    reader->kind = (ReaderKind)kind;
    reader->whole = whole;
    reader->mask = mask;
    reader->leaf_count = (uint8_t)count;
    for (Py_ssize_t n = 0; n < count; n++) {
        if (!read_leaf(&reader->leaves[n], PyTuple_GET_ITEM(leaves, n))) {
            return false;
        }
    }
    reader->words = (uint8_t)(kind == READ_MEMORY  ? 1 + 4 * whole + count
                              : kind == READ_VALUE ? 2
                                                   : 1);
    return true;
}

/* A number for a dtype object, the same whenever it is met; 0 when there are too many. */
static uint64_t number_of_dtype(Dtypes *dtypes, PyObject *dtype) {
    for (int n = 0; n < MAX_DTYPES; n++) {
        if (dtypes->objects[n] == NULL) {
            dtypes->objects[n] = Py_NewRef(dtype);
        }
        if (dtypes->objects[n] == dtype) {
            return (uint64_t)n + 1;
        }
    }
    return 0;
}

static bool read_memory(Dtypes *dtypes, const Reader *reader, const Layout *layout, uint64_t *key) {
    uint64_t dtype = layout->code;
    key[0] = EXCHANGED;
    if (layout->dtype != NULL) {
        key[0] = TORCH;
        dtype = number_of_dtype(dtypes, layout->dtype);
        if (dtype == 0) {
            return false;
        }
    }
    uint64_t *word = key + 1;
    if (reader->whole) {
        *word++ = dtype;
        *word++ = (uint64_t)layout->ordinal;
        *word++ = (uint64_t)layout->rank;
        *word++ = layout->address & reader->mask;
    }
    for (int n = 0; n < reader->leaf_count; n++) {
        const Leaf *leaf = &reader->leaves[n];
        int64_t extent = leaf->axis < layout->rank ? layout->shape[leaf->axis] : 0;
        if (!reader->whole && leaf->axis >= layout->rank) {
            return false;
        }
        int64_t number = extent;
        if (leaf->of_strides) {
            /* Nobody looks at the stride of what is no longer than 1, but a tuned table. */
            bool matters = leaf->axis < layout->rank && (extent > 1 || !reader->whole);
            number = matters ? layout->strides[leaf->axis] : 0;
        }
        *word++ = (uint64_t)(leaf->divisor ? number % leaf->divisor : number);
    }
    return true;
}

static bool read_number(PyObject *value, uint64_t *key) {
    int64_t number;
    if (value == Py_None) {
        key[0] = NOTHING;
        return true;
    }
    if (PyFloat_CheckExact(value)) {
        double real = PyFloat_AS_DOUBLE(value);
        key[0] = REAL;
        memcpy(key + 1, &real, 8);
        return real == real;
    }
    key[0] = NUMBER;
    if (!as_int64(value, &number)) {
        return false;
    }
    key[1] = (uint64_t)number;
    return true;
}

/* The layout of a tensor, among those that were read; NULL, perhaps with an exception set, if it
 * cannot be. */
static const Layout *layout_of(Tensors *tensors, PyObject *value) {
    for (uint32_t n = 0; n < tensors->count; n++) {
        if (tensors->values[n] == value) {
            return &tensors->layouts[n];
        }
    }
    Layout *layout = &tensors->layouts[tensors->count];
    if (tensors->count == MAX_READ || !layout_read(layout, value)) {
        return NULL;
    }
    /* What reads the other arguments may be Python code that changes this tensor. */
    size_t size = 8 * (size_t)layout->rank;
    layout->shape = memmove(layout->held, layout->shape, size);
    layout->strides = memmove(layout->held + MAX_RANK, layout->strides, size);
    tensors->values[tensors->count++] = value;
    return layout;
}

/* False, perhaps with an exception set, for what the Python code must read. */
static bool read_argument(Dtypes *dtypes, const Reader *reader, PyObject *value, Tensors *tensors,
                          uint64_t *key) {
    memset(key, 0, 8 * (size_t)reader->words);
    if (value == NULL) {
        return true;
    }
    if (reader->kind == READ_TYPE) {
        key[0] = (uint64_t)(uintptr_t)Py_TYPE(value);
        return true;
    }
    if (reader->kind == READ_VALUE) {
        return read_number(value, key);
    }
    if (!PyLong_CheckExact(value)) {
        const Layout *layout = value == Py_None ? NULL : layout_of(tensors, value);
        return layout != NULL && read_memory(dtypes, reader, layout, key);
    }
    uint64_t address;
    if (!reader->whole || !as_address(value, &address)) {
        return false;
    }
    key[0] = NUMBER;
    key[1] = address == 0;
    key[4] = address & reader->mask;
    return true;
}

bool key_make(const Reader *readers, uint32_t reader_count, PyObject *all, Dtypes *dtypes,
              PyObject *const *args, Py_ssize_t count, PyObject *names, uint64_t *key,
              Tensors *tensors) {
    PyObject *values[MAX_ARGUMENTS];
    if (!call_arrange(all, args, count, names, values)) {
        return false;
    }
    for (uint32_t n = 0; n < reader_count; n++) {
        const Reader *reader = &readers[n];
        if (!read_argument(dtypes, reader, values[reader->place], tensors, key)) {
            return false;
        }
        key += reader->words;
    }
    return true;
}
