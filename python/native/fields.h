/* fields.h: arguments that methods take by name, as fields of a struct of the method. */
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

/* A call as METH_FASTCALL | METH_KEYWORDS has it. */
typedef struct cb_py_call {
    PyObject *const *values;
    Py_ssize_t n_positional;
    PyObject *names; /* NULL: none */
} cb_py_call;

/* Fills the fields of `out`; those that the caller has set are defaults. -1: exception set. */
int cb_py_read_fields(const char *method, cb_py_call call, const cb_py_field *fields, size_t n,
                      void *out);

/* The same, of an array of fields. */
#define CB_PY_READ_FIELDS(method, call, fields, out) \
    cb_py_read_fields(method, call, fields, sizeof(fields) / sizeof *(fields), out)

#endif
