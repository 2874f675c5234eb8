/* fields.c: parses keyword arguments of a method into fields of a struct. */
#include "fields.h"

static size_t find(PyObject *name, const cb_py_field *fields, size_t n, size_t guess) {
    size_t at = guess < n ? guess : 0; /* callers usually pass them in this order */
    for (size_t k = 0; k < n; k++, at = at + 1 < n ? at + 1 : 0) {
        if (PyUnicode_CompareWithASCIIString(name, fields[at].name) == 0) return at;
    }
    return n;
}

int cb_py_read_fields(const char *method, cb_py_call call, const cb_py_field *fields, size_t n,
                      void *out) {
    if (call.n_positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes its arguments by name", method);
        return -1;
    }
    const size_t n_names = call.names ? (size_t)PyTuple_GET_SIZE(call.names) : 0;
    for (size_t i = 0; i < n_names; i++) {
        PyObject *name = PyTuple_GET_ITEM(call.names, (Py_ssize_t)i);
        const size_t at = find(name, fields, n, i);
        if (at == n) {
            PyErr_Format(PyExc_TypeError, "%s() has no argument %R", method, name);
            return -1;
        }
        *(PyObject **)(void *)((char *)out + fields[at].offset) = call.values[i];
    }
    for (size_t at = 0; at < n; at++) {
        if (*(PyObject **)(void *)((char *)out + fields[at].offset)) continue;
        PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", method, fields[at].name);
        return -1;
    }
    return 0;
}
