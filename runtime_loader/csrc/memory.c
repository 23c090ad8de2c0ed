/* Tensors and pointers: where their memory is and how it lies, by the checks of
 * runtime_loader/binding.py. */
#include "native.h"

static PyObject *str_data_ptr, *str_shape, *str_stride, *str_dtype, *str_device, *str_type,
    *str_index;

bool memory_setup(void) {
    struct {
        PyObject **to;
        const char *text;
    } names[] = {
        {&str_data_ptr, "data_ptr"}, {&str_shape, "shape"},   {&str_stride, "stride"},
        {&str_dtype, "dtype"},       {&str_device, "device"}, {&str_type, "type"},
        {&str_index, "index"},
    };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        *names[n].to = PyUnicode_InternFromString(names[n].text);
        if (*names[n].to == NULL) {
            return false;
        }
    }
    return true;
}

static bool read_leaves(PyObject *leaves, int64_t *to, uint8_t *rank) {
    Py_ssize_t count = PyTuple_GET_SIZE(leaves);
    if (count > MAX_RANK) {
        PyErr_SetString(PyExc_ValueError, "native argument: its rank is too large");
        return false;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        to[n] = PyLong_AsLongLong(PyTuple_GET_ITEM(leaves, n));
        if (PyErr_Occurred()) {
            return false;
        }
    }
    *rank = (uint8_t)count;
    return true;
}

bool memory_read(Argument *a, PyObject *details) {
    PyObject *codes, *names, *shape, *strides;
    unsigned long long align;
    uint8_t rank;
    if (!PyArg_ParseTuple(details, "iKO!O!O!O!b", &a->ordinal, &align, &PyTuple_Type, &codes,
                          &PyFrozenSet_Type, &names, &PyTuple_Type, &shape, &PyTuple_Type,
                          &strides, &a->stride_bits)) {
        return false;
    }
    if (align == 0 || PyTuple_GET_SIZE(codes) > MAX_ELEMENT_CODES ||
        (a->stride_bits != 32 && a->stride_bits != 64)) {
        PyErr_SetString(PyExc_ValueError, "native argument: it is malformed");
        return false;
    }
    a->align = align;
    a->code_count = (uint8_t)PyTuple_GET_SIZE(codes);
    for (int n = 0; n < a->code_count; n++) {
        a->codes[n] = (uint16_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(codes, n));
        if (PyErr_Occurred()) {
            return false;
        }
    }
    if (!read_leaves(shape, a->shape, &a->rank) || !read_leaves(strides, a->strides, &rank)) {
        return false;
    }
    a->dtype_names = Py_NewRef(names);
    a->is_static = true;
    uint32_t slots = 1;
    for (int n = 0; n < a->rank; n++) {
        slots += (a->shape[n] < 0) + (a->strides[n] < 0);
        a->empty_when_raw |= a->shape[n] == 0;
    }
    a->is_static = slots == 1;
    if (rank != a->rank || slots != a->slot_count) {
        PyErr_SetString(PyExc_ValueError, "native argument: its slots do not fit its layout");
        return false;
    }
    return true;
}

/* Checks extents and strides (in elements) and writes the dynamic ones. */
static bool good_layout(const Argument *a, uint64_t address, const int64_t *shape,
                        const int64_t *strides, uint64_t *slots) {
    bool empty = false;
    for (int n = 0; n < a->rank; n++) {
        empty |= shape[n] == 0;
    }
    uint64_t *slot = slots + 1;
    for (int n = 0; n < a->rank; n++) {
        int64_t extent = shape[n], wanted = a->shape[n];
        if (wanted >= 0) {
            if (extent != wanted) {
                return false;
            }
            continue;
        }
        if (extent < 0 || extent > INT32_MAX || (wanted != -1 && extent % -wanted != 0)) {
            return false;
        }
        *slot++ = (uint64_t)extent;
    }
    for (int n = 0; n < a->rank; n++) {
        int64_t stride = strides[n], wanted = a->strides[n];
        if (!empty && shape[n] > 1) {
            if (wanted >= 0 ? stride != wanted
                            : (wanted != -1 && stride % -wanted != 0) ||
                                  (a->stride_bits == 32 && stride != (int32_t)stride)) {
                return false;
            }
        }
        if (wanted < 0) {
            *slot++ = a->stride_bits == 32 ? (uint32_t)stride : (uint64_t)stride;
        }
    }
    slots[0] = address;
    return good_address(a, address, empty);
}

static bool read_exchanged(Layout *layout, TensorReader read, PyObject *value) {
    DLTensor t;
    if (read(value, &t) != 0 || t.device_type != DLPACK_ROCM || t.lanes != 1 || t.ndim < 0 ||
        t.ndim > MAX_RANK || (t.strides == NULL && t.ndim > 0)) {
        return false;
    }
    layout->address = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    layout->code = (uint16_t)(t.code << 8 | t.bits);
    layout->dtype = NULL;
    layout->ordinal = t.device_id;
    layout->rank = t.ndim;
    layout->shape = t.shape;
    layout->strides = t.strides;
    return true;
}

static bool good_code(const Argument *a, uint16_t code) {
    bool accepted = false;
    for (int n = 0; n < a->code_count; n++) {
        accepted |= a->codes[n] == code;
    }
    return accepted;
}

/* Is this dtype object accepted? Asks the Python code once for each. */
static bool good_dtype(Argument *a, PyObject *dtype) {
    int n = 0;
    for (; n < MAX_SEEN_DTYPES && a->seen_dtypes[n] != NULL; n++) {
        if (a->seen_dtypes[n] == dtype) {
            return true;
        }
    }
    PyObject *text = PyObject_Str(dtype);
    bool good = false;
    if (text != NULL) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(text);
        Py_ssize_t dot = PyUnicode_FindChar(text, '.', 0, length, -1);
        PyObject *name = dot == -2 ? NULL : PyUnicode_Substring(text, dot + 1, length);
        good = name != NULL && PySet_Contains(a->dtype_names, name) == 1;
        Py_XDECREF(name);
        Py_DECREF(text);
    }
    if (good && n < MAX_SEEN_DTYPES) {
        a->seen_dtypes[n] = Py_NewRef(dtype);
    }
    return good;
}

/* The ordinal of `value.device`, where that is a GPU. */
static bool read_ordinal(PyObject *value, int64_t *ordinal) {
    PyObject *device = PyObject_GetAttr(value, str_device);
    if (device == NULL) {
        return false;
    }
    PyObject *type = PyObject_GetAttr(device, str_type);
    bool good = type != NULL && PyUnicode_Check(type) &&
                (PyUnicode_CompareWithASCIIString(type, "cuda") == 0 ||
                 PyUnicode_CompareWithASCIIString(type, "hip") == 0);
    Py_XDECREF(type);
    if (good) {
        PyObject *index = PyObject_GetAttr(device, str_index);
        good = index != NULL && as_int64(index, ordinal);
        Py_XDECREF(index);
    }
    Py_DECREF(device);
    return good;
}

static bool read_address(PyObject *value, uint64_t *address) {
    PyObject *pointer = PyObject_CallMethodNoArgs(value, str_data_ptr);
    bool good = pointer != NULL && as_address(pointer, address);
    Py_XDECREF(pointer);
    return good;
}

/* Takes a reference to a tuple of integers, or NULL; their number, -1 for what is none. */
static int read_tuple(PyObject *tuple, int64_t *to) {
    bool good = tuple != NULL && PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) <= MAX_RANK;
    int rank = good ? (int)PyTuple_GET_SIZE(tuple) : -1;
    for (int n = 0; n < rank; n++) {
        if (!as_int64(PyTuple_GET_ITEM(tuple, n), &to[n])) {
            rank = -1;
        }
    }
    Py_XDECREF(tuple);
    return rank;
}

/* An object of torch's manner: data_ptr(), shape, stride(), dtype, device. */
static bool read_torch(Layout *layout, PyObject *value) {
    layout->shape = layout->held;
    layout->strides = layout->held + MAX_RANK;
    if (!read_ordinal(value, &layout->ordinal) || !read_address(value, &layout->address)) {
        return false;
    }
    layout->rank = read_tuple(PyObject_GetAttr(value, str_shape), layout->held);
    if (layout->rank < 0 || read_tuple(PyObject_CallMethodNoArgs(value, str_stride),
                                       layout->held + MAX_RANK) != layout->rank) {
        return false;
    }
    layout->dtype = PyObject_GetAttr(value, str_dtype);
    return layout->dtype != NULL;
}

bool layout_read(Layout *layout, PyObject *value) {
    TensorReader read = exchange_reader(Py_TYPE(value));
    return read == NULL ? read_torch(layout, value) : read_exchanged(layout, read, value);
}

static bool bind_layout(Argument *a, const Layout *layout, uint64_t *slots) {
    if (layout->ordinal != a->ordinal || !(layout->dtype == NULL ? good_code(a, layout->code)
                                                                 : good_dtype(a, layout->dtype))) {
        return false;
    }
    if (a->kind == POINTER) {
        slots[0] = layout->address;
        return good_address(a, layout->address, true);
    }
    return layout->rank == a->rank &&
           good_layout(a, layout->address, layout->shape, layout->strides, slots);
}

bool memory_bind(Argument *a, PyObject *value, const Tensors *known, uint64_t *slots) {
    if (value == Py_None) {
        slots[0] = 0;
        return a->kind == POINTER;
    }
    for (uint32_t n = 0; known != NULL && n < known->count; n++) {
        if (known->values[n] == value) {
            return bind_layout(a, &known->layouts[n], slots);
        }
    }
    Layout layout;
    if (!layout_read(&layout, value)) {
        return false;
    }
    bool good = bind_layout(a, &layout, slots);
    Py_XDECREF(layout.dtype);
    return good;
}
