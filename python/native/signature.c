/* signature.c: the type _native.Signature, which checks whether the leaves of a call match those
 * that a step was compiled for. It checks every leaf of every call, so it compares shapes without
 * making Python tuples. */
#include "state.h"

#include "base/shape.h"

typedef struct leaf {
    PyObject *constant; /* NULL: the leaf is an array of this dtype and shape */
    cb_dtype dtype;
    cb_shape shape;
} leaf;

typedef struct signature {
    PyObject_HEAD Py_ssize_t n, n_arrays;
    leaf *leaf; /* [n] */
} signature;

static int parse_leaf(PyObject *row, leaf *out) {
    if (PyTuple_Check(row) && PyTuple_GET_SIZE(row) == 1) {
        out->constant = Py_NewRef(PyTuple_GET_ITEM(row, 0));
        return 0;
    }
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 2) {
        PyErr_SetString(PyExc_TypeError, "Signature: a leaf must be (constant,) or (dtype, shape)");
        return -1;
    }
    if (cb_py_parse_dtype(PyTuple_GET_ITEM(row, 0), &out->dtype) < 0) return -1;
    return cb_py_parse_shape(PyTuple_GET_ITEM(row, 1), "Signature", &out->shape);
}

/* Signature(rows): one row per leaf, (dtype, shape) or (constant,). */
static PyObject *signature_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *rows;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Signature takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!:Signature", &PyTuple_Type, &rows)) return NULL;
    signature *self = (signature *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    const Py_ssize_t n = PyTuple_GET_SIZE(rows);
    self->leaf = PyMem_Calloc((size_t)n + 1, sizeof *self->leaf);
    if (!self->leaf) PyErr_NoMemory();
    while (!PyErr_Occurred() && self->n < n) {
        leaf *made = &self->leaf[self->n];
        if (parse_leaf(PyTuple_GET_ITEM(rows, self->n), made) < 0) break;
        self->n_arrays += !made->constant;
        self->n++;
    }
    if (PyErr_Occurred()) Py_CLEAR(self);
    return (PyObject *)self;
}

static int signature_traverse(signature *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < self->n; i++) Py_VISIT(self->leaf[i].constant);
    return 0;
}

static int signature_clear(signature *self) {
    const Py_ssize_t n = self->n;
    self->n = 0; /* a finalizer may call this type again */
    for (Py_ssize_t i = 0; i < n; i++) Py_CLEAR(self->leaf[i].constant);
    return 0;
}

static void signature_dealloc(signature *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)signature_clear(self);
    PyMem_Free(self->leaf);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- matching -------------------------------------------------------------------------------- */

typedef enum fit { FITS, DIFFERS, UNREAD } fit;

/* Returns UNREAD if the leaf is neither a plain NumPy array nor a DeviceMemory. */
static fit compare(const leaf *wanted, PyObject *given, PyTypeObject *memory_type) {
    cb_dtype dtype;
    cb_shape shape;
    if (wanted->constant) return given == wanted->constant ? FITS : DIFFERS;
    if (PyObject_TypeCheck(given, memory_type)) {
        const cb_py_device_memory *memory = (cb_py_device_memory *)given;
        dtype = memory->dtype;
        shape = memory->shape;
    } else if (!cb_py_plain_kind(given, &dtype, &shape)) {
        return UNREAD;
    }
    return dtype == wanted->dtype && cb_shape_equal(&shape, &wanted->shape) ? FITS : DIFFERS;
}

static int note_unread(PyObject *unread, Py_ssize_t i, Py_ssize_t at) {
    PyObject *pair = Py_BuildValue("(nn)", i, at);
    const int result = pair ? PyList_Append(unread, pair) : -1;
    Py_XDECREF(pair);
    return result;
}

/* Returns 1 if all leaves fit, 0 if a leaf differs, -1 if an exception is set. */
static int match(const signature *self, PyObject *leaves, PyObject *arrays, PyObject *unread,
                 PyTypeObject *memory_type) {
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < self->n; i++) {
        PyObject *given = PyList_GET_ITEM(leaves, i);
        const fit found = compare(&self->leaf[i], given, memory_type);
        if (found == DIFFERS) return 0;
        if (self->leaf[i].constant) continue;
        if (found == UNREAD && note_unread(unread, i, at) < 0) return -1;
        PyList_SET_ITEM(arrays, at, Py_NewRef(given));
        at++;
    }
    return 1;
}

/* match(leaves) -> (arrays, [(leaf, index among the arrays), ...] of unread leaves), or None if a
 * leaf differs. Constants are compared by identity, so None may also mean an equal constant. */
static PyObject *signature_match(signature *self, PyObject *leaves) {
    if (!PyList_CheckExact(leaves)) {
        PyErr_SetString(PyExc_TypeError, "match: the leaves must be a list");
        return NULL;
    }
    if (PyList_GET_SIZE(leaves) != self->n) Py_RETURN_NONE;
    cb_py_state *state = cb_py_state_of_object((PyObject *)self);
    PyObject *arrays = PyList_New(self->n_arrays), *unread = arrays ? PyList_New(0) : NULL;
    const int fits = unread ? match(self, leaves, arrays, unread, state->memory_type) : -1;
    PyObject *result = NULL;
    if (fits > 0) result = PyTuple_Pack(2, arrays, unread);
    if (fits == 0) result = Py_NewRef(Py_None);
    Py_XDECREF(arrays);
    Py_XDECREF(unread);
    return result;
}

static PyMethodDef signature_methods[] = {
    {"match", (PyCFunction)signature_match, METH_O,
     "match(leaves, /) -> (arrays in the order of their leaves, [(leaf, index among the arrays), "
     "...] of those that are neither plain NumPy arrays nor DeviceMemory), or None if a leaf "
     "differs"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot signature_slots[] = {
    {Py_tp_doc, "Signature(rows, /): the expected leaves of a call."},
    {Py_tp_new, signature_new},
    {Py_tp_dealloc, signature_dealloc},
    {Py_tp_traverse, signature_traverse},
    {Py_tp_clear, signature_clear},
    {Py_tp_methods, signature_methods},
    {0, NULL},
};

PyType_Spec cb_py_signature_spec = {
    .name = "cutback._native.Signature",
    .basicsize = sizeof(signature),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = signature_slots,
};

/* ---- device arrays --------------------------------------------------------------------------- */

/* on_device(arrays) -> bytes: 1 for each DeviceMemory. */
PyObject *cb_py_on_device(PyObject *module, PyObject *arrays) {
    if (!PyList_CheckExact(arrays)) {
        PyErr_SetString(PyExc_TypeError, "on_device: the arrays must be a list");
        return NULL;
    }
    PyTypeObject *type = cb_py_state_of(module)->memory_type;
    const Py_ssize_t n = PyList_GET_SIZE(arrays);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, n);
    char *at = bytes ? PyBytes_AS_STRING(bytes) : NULL;
    for (Py_ssize_t i = 0; at && i < n; i++)
        at[i] = (char)PyObject_TypeCheck(PyList_GET_ITEM(arrays, i), type);
    return bytes;
}
