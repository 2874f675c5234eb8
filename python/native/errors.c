/* errors.c: from cb_status to a Python exception. */
#include "state.h"

static PyObject *exception_of(const cb_py_state *state, cb_status status) {
    switch (status) {
        case CB_TYPE: return PyExc_TypeError;
        case CB_NOMEM: return PyExc_MemoryError;
        case CB_INFEASIBLE: return state->budget_error;
        case CB_UNSUPPORTED: return PyExc_NotImplementedError;
        case CB_CANCELLED: return PyExc_KeyboardInterrupt;
        case CB_INTERNAL: return PyExc_RuntimeError;
        case CB_OK:
        case CB_INVALID: break;
    }
    return PyExc_ValueError;
}

PyObject *cb_py_raise(const cb_py_state *state, const cb_error *error, const char *location) {
    if (PyErr_Occurred()) return NULL; /* a signal handler or a dump function raised first */
    PyObject *type = exception_of(state, error->status);
    if (location) {
        PyErr_Format(type, "%s [%s]", error->text, location);
    } else {
        PyErr_SetString(type, error->text);
    }
    return NULL;
}
