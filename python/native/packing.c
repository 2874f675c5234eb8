/* packing.c: bools as bits, between arrays of the caller. */
#include "state.h"

#include "exec/packed_bits.h"

/* A one-dimensional array of this dtype; -1 with an error set otherwise. */
static int bytes_of(PyObject *array, const char *name, cb_dtype dtype, cb_py_view *out) {
    if (cb_py_view_of(array, name, out) < 0) return -1;
    if (out->known_dtype && out->dtype == dtype && out->contiguous && out->shape.rank == 1)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be a contiguous array of dtype %s with one axis", name,
                 cb_dtype_name(dtype));
    return -1;
}

/* The arrays of both directions; -1 with an error set if they do not belong together. */
static int take(PyObject *args, const char *format, bool packs, cb_py_view *bools,
                cb_py_view *packed) {
    PyObject *first, *second;
    if (!PyArg_ParseTuple(args, format, &first, &second)) return -1;
    if (bytes_of(packs ? first : second, "bools", CB_BOOL, bools) < 0) return -1;
    if (bytes_of(packs ? second : first, "packed", CB_U8, packed) < 0) return -1;
    if (packed->bytes != cb_packed_bytes(bools->bytes)) {
        PyErr_Format(PyExc_ValueError, "%llu bools take %llu packed bytes, not %llu",
                     (unsigned long long)bools->bytes,
                     (unsigned long long)cb_packed_bytes(bools->bytes),
                     (unsigned long long)packed->bytes);
        return -1;
    }
    if ((packs ? packed : bools)->writable) return 0;
    PyErr_SetString(PyExc_ValueError, "the second array must be writable");
    return -1;
}

PyObject *cb_py_pack_bits(PyObject *Py_UNUSED(module), PyObject *args) {
    cb_py_view bools, packed;
    if (take(args, "OO:pack_bits", true, &bools, &packed) < 0) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    cb_pack_bits((const uint8_t *)bools.data, bools.bytes, (uint8_t *)packed.data);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

PyObject *cb_py_unpack_bits(PyObject *Py_UNUSED(module), PyObject *args) {
    cb_py_view bools, packed;
    if (take(args, "OO:unpack_bits", false, &bools, &packed) < 0) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    cb_unpack_bits((const uint8_t *)packed.data, bools.bytes, (uint8_t *)bools.data);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}
