/* The extension module runtime_loader._native. */
#include "native.h"

/* Before CPython 3.12 a class written in Python does not take over its base's vectorcall flag. */
static PyObject *inherit_vectorcall(PyObject *module, PyObject *type) {
    (void)module;
    PyTypeObject *base = PyType_Check(type) ? ((PyTypeObject *)type)->tp_base : NULL;
    if (base == NULL || !(base->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL) ||
        ((PyTypeObject *)type)->tp_call != PyVectorcall_Call) {
        PyErr_SetString(PyExc_TypeError, "not a plain subclass of a native callable");
        return NULL;
    }
    ((PyTypeObject *)type)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"inherit_vectorcall", inherit_vectorcall, METH_O,
     "Let instances of a subclass of Launcher or Selection be called as fast as theirs."},
    {"tick", launcher_tick, METH_NOARGS, "The number of a call that launches, counted here too."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "runtime_loader._native",
    .m_doc = "Kernel launches without Python code on the way.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    PyObject *limits = Py_BuildValue("{sisisisisi}", "values", MAX_VALUES, "instructions",
                                     MAX_INSTRUCTIONS, "launches", MAX_SITES, "kernarg",
                                     MAX_KERNARG, "arguments", MAX_ARGUMENTS);
    if (limits == NULL || PyModule_AddObject(module, "LIMITS", limits) != 0 ||
        !arguments_setup() || !launcher_setup(module) || !selection_setup(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
