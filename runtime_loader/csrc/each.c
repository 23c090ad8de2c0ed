/* Loops: one release of the GIL for several calls, where no Python code can run in between. */
#include "native.h"

#include <string.h>

const char each_doc[] =
    "each(calls) -> int\n\n"
    "Launch once for each item of an iterable: a tuple of arguments, or one argument; or once for\n"
    "each row of a C-contiguous buffer of int64, of one or two dimensions.\n"
    "Returns how many calls were made. The first that fails raises, and ends it.";

/* Rows between two looks for signals, and for other threads that want the GIL. */
#define ROWS_AT_ONCE 1024

typedef struct {
    const char *data; /* int64, perhaps unaligned */
    Py_ssize_t width, left;
} Rows;

static bool call(Launcher *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *result = launcher_call((PyObject *)self, args, (size_t)count, NULL);
    Py_XDECREF(result);
    return result != NULL;
}

/* Can rows of so many integers be launched without the GIL? */
static bool takes_rows(const Launcher *self, Py_ssize_t width) {
    if (!self->ready || self->range_name != NULL || width > self->argument_count) {
        return false;
    }
    for (uint32_t n = 0; n < self->argument_count; n++) {
        const Argument *a = &self->arguments[n];
        if (n < width ? !argument_takes_int64(a) : !(a->optional && a->kind == STREAM)) {
            return false;
        }
    }
    return true;
}

static bool bind_row(const Launcher *self, const Rows *rows, uint64_t *slots) {
    for (uint32_t n = 0; n < self->argument_count; n++) {
        int64_t value = 0;
        if (n < rows->width) {
            memcpy(&value, rows->data + n * sizeof value, sizeof value);
        }
        if (!argument_bind_int64(&self->arguments[n], value, slots)) {
            return false;
        }
    }
    return true;
}

/* Launches rows until one fails or is for the Python code to judge. */
static Outcome launch_rows(Launcher *self, Rows *rows) {
    uint64_t slots[MAX_VALUES];
    Batch batch;
    Outcome outcome = DONE;
    unsigned long long made = 0;
    uint32_t failed = 0;
    int code = 0;
    program_start(&self->program, slots);
    Py_BEGIN_ALLOW_THREADS
    for (int n = 0; n < ROWS_AT_ONCE && rows->left > 0 && code == 0; n++) {
        batch.count = batch.used = 0;
        if (!bind_row(self, rows, slots) || plan_slots(self, slots, &batch) != DONE) {
            outcome = DECLINED;
            break;
        }
        code = launch_batch(self, &batch, &failed);
        made += code == 0 ? batch.count : failed;
        rows->data += rows->width * (Py_ssize_t)sizeof(int64_t);
        rows->left--;
    }
    Py_END_ALLOW_THREADS
    return launched(self, made, &batch.launches[failed], code) == DONE ? outcome : RAISED;
}

static bool call_row(Launcher *self, Rows *rows) {
    PyObject *args = PyTuple_New(rows->width);
    bool good = args != NULL;
    for (Py_ssize_t n = 0; good && n < rows->width; n++, rows->data += sizeof(int64_t)) {
        int64_t value;
        memcpy(&value, rows->data, sizeof value);
        PyObject *number = PyLong_FromLongLong(value);
        good = number != NULL;
        PyTuple_SET_ITEM(args, n, number);
    }
    good = good && call(self, &PyTuple_GET_ITEM(args, 0), rows->width);
    rows->left--;
    Py_XDECREF(args);
    return good;
}

static bool each_row(Launcher *self, Rows *rows) {
    bool packed = takes_rows(self, rows->width);
    while (rows->left > 0) {
        Outcome outcome = packed ? launch_rows(self, rows) : DECLINED;
        if (outcome == RAISED || (outcome == DECLINED && !call_row(self, rows)) ||
            PyErr_CheckSignals() != 0) {
            return false;
        }
    }
    return true;
}

/* Is it a buffer of rows? Leaves no exception if not. */
static bool get_rows(PyObject *calls, Py_buffer *view, Rows *rows) {
    if (!PyObject_CheckBuffer(calls)) {
        return false;
    }
    if (PyObject_GetBuffer(calls, view, PyBUF_ND | PyBUF_FORMAT) != 0) {
        PyErr_Clear();
        return false;
    }
    const char *format = view->format;
    if (view->itemsize != sizeof(int64_t) || format == NULL || view->ndim < 1 || view->ndim > 2 ||
        (strcmp(format, "q") != 0 && strcmp(format, "l") != 0)) {
        PyBuffer_Release(view);
        return false;
    }
    *rows = (Rows){view->buf, view->ndim == 2 ? view->shape[1] : 1, view->shape[0]};
    return true;
}

/* Launches what is planned, and keeps an exception that is set. */
static bool flush(Launcher *self, Batch *batch) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (batch->count > 0 && launch(self, batch) != DONE) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return false;
    }
    PyErr_Restore(type, value, traceback);
    return type == NULL;
}

/* Between the items of these, no code of the caller runs that could count on order. */
static bool may_plan_ahead(const Launcher *self, PyObject *calls) {
    return self->ready && self->range_name == NULL &&
           (PyList_CheckExact(calls) || PyTuple_CheckExact(calls) || PyRange_Check(calls));
}

static bool each_item(Launcher *self, PyObject *calls, Py_ssize_t *made) {
    PyObject *iterator = PyObject_GetIter(calls);
    if (iterator == NULL) {
        return false;
    }
    bool ahead = may_plan_ahead(self, calls), good = true;
    Batch batch;
    batch.count = batch.used = 0;
    PyObject *item;
    while (good && (item = PyIter_Next(iterator)) != NULL) {
        PyObject *const *args = PyTuple_Check(item) ? &PyTuple_GET_ITEM(item, 0) : &item;
        Py_ssize_t count = PyTuple_Check(item) ? PyTuple_GET_SIZE(item) : 1;
        Outcome outcome = DECLINED;
        if (ahead && count == self->argument_count) {
            outcome = plan_call(self, args, NULL, &batch);
        }
        if (outcome == DECLINED) { /* or the batch is full */
            good = flush(self, &batch) && call(self, args, count);
        }
        good = good && outcome != RAISED;
        *made += good;
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    return flush(self, &batch);
}

PyObject *launcher_each(PyObject *self, PyObject *calls) {
    Py_buffer view;
    Rows rows;
    Py_ssize_t made = 0;
    bool good;
    if (get_rows(calls, &view, &rows)) {
        made = rows.left;
        good = each_row((Launcher *)self, &rows);
        PyBuffer_Release(&view);
    } else {
        good = each_item((Launcher *)self, calls, &made);
    }
    return good ? PyLong_FromSsize_t(made) : NULL;
}
