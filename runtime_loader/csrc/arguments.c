/* Arguments: a Python value to host slots, by the checks of runtime_loader/binding.py. This code
 * only ever says yes; whatever it does not recognise goes to the Python binder, whose word and
 * message are final. */
#include "native.h"

#include <math.h>
#include <string.h>

static PyObject *str_cuda_stream;

bool arguments_setup(void) {
    str_cuda_stream = PyUnicode_InternFromString("cuda_stream");
    return str_cuda_stream != NULL && memory_setup();
}

bool argument_read(Argument *a, PyObject *description) {
    int kind, optional;
    PyObject *bind, *name, *details;
    if (!PyArg_ParseTuple(description, "iIIOUpO!", &kind, &a->slot, &a->slot_count, &bind, &name,
                          &optional, &PyTuple_Type, &details)) {
        return false;
    }
    if (kind < BY_PYTHON || kind > STREAM || a->slot > MAX_VALUES || a->slot_count > MAX_VALUES ||
        (kind != BY_PYTHON && a->slot_count == 0)) {
        PyErr_SetString(PyExc_ValueError, "native argument: it is malformed");
        return false;
    }
    a->kind = (ArgumentKind)kind;
    a->optional = optional;
    a->bind = Py_NewRef(bind);
    a->name = Py_NewRef(name);
    if (kind == TENSOR || kind == POINTER) {
        return memory_read(a, details);
    }
    if (kind == SIGNED || kind == UNSIGNED) {
        if (!PyArg_ParseTuple(details, "b", &a->bits)) {
            return false;
        }
        if (a->bits < 1 || a->bits > 64) {
            PyErr_SetString(PyExc_ValueError, "native argument: an integer of no width");
            return false;
        }
    }
    return true;
}

void argument_clear(Argument *a) {
    Py_CLEAR(a->bind);
    Py_CLEAR(a->name);
    Py_CLEAR(a->dtype_names);
    for (int n = 0; n < MAX_SEEN_DTYPES; n++) {
        Py_CLEAR(a->seen_dtypes[n]);
    }
}

int argument_visit(Argument *a, visitproc visit, void *arg) {
    Py_VISIT(a->bind);
    Py_VISIT(a->dtype_names);
    for (int n = 0; n < MAX_SEEN_DTYPES; n++) {
        Py_VISIT(a->seen_dtypes[n]);
    }
    return 0;
}

static bool bind_unsigned(const Argument *a, uint64_t number, uint64_t *slot) {
    *slot = number;
    return a->bits == 64 || number >> a->bits == 0;
}

static bool bind_signed(const Argument *a, int64_t number, uint64_t *slot) {
    if (a->bits < 64) {
        int64_t limit = (int64_t)1 << (a->bits - 1);
        if (number < -limit || number >= limit) {
            return false;
        }
    }
    *slot = (uint64_t)number & (UINT64_MAX >> (64 - a->bits));
    return true;
}

static bool bind_integer(const Argument *a, PyObject *value, uint64_t *slot) {
    uint64_t natural;
    int64_t number;
    return a->kind == UNSIGNED ? as_address(value, &natural) && bind_unsigned(a, natural, slot)
                               : as_int64(value, &number) && bind_signed(a, number, slot);
}

static bool bind_float(const Argument *a, PyObject *value, uint64_t *slot) {
    double number;
    if (PyFloat_CheckExact(value)) {
        number = PyFloat_AS_DOUBLE(value);
    } else if (PyLong_CheckExact(value)) {
        number = PyLong_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
    } else {
        return false;
    }
    if (isnan(number)) {
        return false; /* its bits are Python's business */
    }
    if (a->kind == FLOAT64) {
        memcpy(slot, &number, 8);
        return true;
    }
    /* The largest float, and half a unit in its last place: from there on it rounds to infinity. */
    if (!isinf(number) && fabs(number) >= 0x1.ffffffp127) {
        return false;
    }
    float narrow = (float)number;
    uint32_t pattern;
    memcpy(&pattern, &narrow, 4);
    *slot = pattern;
    return true;
}

static bool bind_stream(PyObject *value, uint64_t *slot) {
    if (value == Py_None) {
        *slot = 0;
        return true;
    }
    if (PyLong_CheckExact(value)) {
        return as_address(value, slot);
    }
    if (PyFloat_Check(value) || PyUnicode_Check(value) || PyBool_Check(value)) {
        return false;
    }
    PyObject *handle = PyObject_GetAttr(value, str_cuda_stream);
    bool good = handle != NULL && as_address(handle, slot);
    Py_XDECREF(handle);
    return good;
}

static bool bind_fast(Argument *a, PyObject *value, const Tensors *known, uint64_t *slots) {
    switch (a->kind) {
    case TENSOR: case POINTER: {
        uint64_t address;
        return PyLong_CheckExact(value)
                   ? as_address(value, &address) && bind_address(a, address, slots)
                   : memory_bind(a, value, known, slots);
    }
    case SIGNED: case UNSIGNED: return bind_integer(a, value, slots);
    case BOOL: *slots = value == Py_True; return PyBool_Check(value);
    case FLOAT32: case FLOAT64: return bind_float(a, value, slots);
    case STREAM: return bind_stream(value, slots);
    default: return false;
    }
}

static Outcome bind_by_python(const Argument *a, PyObject *value, uint64_t *slots) {
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return RAISED;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(a->bind, value, list, NULL);
    Outcome outcome = done == NULL ? RAISED : DONE;
    Py_XDECREF(done);
    if (outcome == DONE && PyList_GET_SIZE(list) != a->slot_count) {
        PyErr_Format(PyExc_SystemError, "argument %R gave %zd slots, not %u", a->name,
                     PyList_GET_SIZE(list), a->slot_count);
        outcome = RAISED;
    }
    for (uint32_t n = 0; outcome == DONE && n < a->slot_count; n++) {
        slots[n] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, n));
        if (slots[n] == UINT64_MAX && PyErr_Occurred()) {
            outcome = RAISED;
        }
    }
    Py_DECREF(list);
    return outcome;
}

Outcome argument_bind(Argument *a, PyObject *value, const Tensors *known, uint64_t *values) {
    uint64_t *slots = values + a->slot;
    if (bind_fast(a, value, known, slots)) {
        return DONE;
    }
    PyErr_Clear();
    return bind_by_python(a, value, slots);
}

bool argument_takes_int64(const Argument *a) {
    return a->kind == SIGNED || a->kind == UNSIGNED || a->kind == POINTER || a->kind == STREAM ||
           (a->kind == TENSOR && a->is_static);
}

bool argument_bind_int64(const Argument *a, int64_t value, uint64_t *values) {
    uint64_t *slot = values + a->slot;
    if (a->kind == SIGNED) {
        return bind_signed(a, value, slot);
    }
    if (value < 0) {
        return false;
    }
    switch (a->kind) {
    case UNSIGNED: return bind_unsigned(a, (uint64_t)value, slot);
    case STREAM: *slot = (uint64_t)value; return true;
    default: return bind_address(a, (uint64_t)value, slot);
    }
}
