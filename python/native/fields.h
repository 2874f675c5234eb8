/* fields.h: parses keyword arguments of a method into fields of a struct. */
#ifndef CB_PY_FIELDS_H
#define CB_PY_FIELDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>

/* One field: a borrowed PyObject * at `offset` of the method's struct. */
typedef struct cb_py_field {
    const char *name;
    size_t offset;
} cb_py_field;

#define CB_PY_FIELD(type, member) {#member, offsetof(type, member)}

/* The arguments of a METH_FASTCALL | METH_KEYWORDS call. */
typedef struct cb_py_call {
    PyObject *const *values;
    Py_ssize_t n_positional;
    PyObject *names; /* NULL: none */
} cb_py_call;

/* Fills the fields of `out`. Fields that are not NULL before are defaults, the others are required.
 * Returns -1 with an exception set on failure. */
int cb_py_read_fields(const char *method, cb_py_call call, const cb_py_field *fields, size_t n,
                      void *out);

/* Like cb_py_read_fields, with the size of the array `fields`. */
#define CB_PY_READ_FIELDS(method, call, fields, out) \
    cb_py_read_fields(method, call, fields, sizeof(fields) / sizeof *(fields), out)

#endif
