/* packing.c: packs bools to bits, and back, between arrays of the caller. */
#include "state.h"

#include "exec/packed_bits.h"

/* Views a one-dimensional array of this dtype; returns -1 with an error set if it is not one. */
static int bytes_of(PyObject *array, const char *name, cb_dtype dtype, cb_py_view *out) {
    if (cb_py_view_of(array, name, out) < 0) return -1;
    if (out->known_dtype && out->dtype == dtype && out->contiguous && out->shape.rank == 1)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be a contiguous array of dtype %s with one axis", name,
                 cb_dtype_name(dtype));
    return -1;
}

/* Checks that the arrays belong together; returns -1 with an error set if they do not. */
static int check(const cb_py_view *bools, const cb_py_view *packed, const cb_py_view *written) {
    if (packed->bytes != cb_packed_bytes(bools->bytes)) {
        PyErr_Format(PyExc_ValueError, "%llu bools take %llu packed bytes, not %llu",
                     (unsigned long long)bools->bytes,
                     (unsigned long long)cb_packed_bytes(bools->bytes),
                     (unsigned long long)packed->bytes);
        return -1;
    }
    if (written->writable) return 0;
    PyErr_SetString(PyExc_ValueError, "the second array must be writable");
    return -1;
}

/* Packs or unpacks bools from the first array to the second. */
static PyObject *convert(PyObject *args, const char *format, bool packs) {
    PyObject *from, *to;
    cb_py_view bools, packed;
    if (!PyArg_ParseTuple(args, format, &from, &to)) return NULL;
    if (bytes_of(packs ? from : to, "bools", CB_BOOL, &bools) < 0) return NULL;
    if (bytes_of(packs ? to : from, "packed", CB_U8, &packed) < 0) return NULL;
    if (check(&bools, &packed, packs ? &packed : &bools) < 0) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    uint8_t *bytes = (uint8_t *)bools.data, *bits = (uint8_t *)packed.data;
    if (packs) cb_pack_bits(bytes, bools.bytes, bits);
    else cb_unpack_bits(bits, bools.bytes, bytes);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

PyObject *cb_py_pack_bits(PyObject *Py_UNUSED(module), PyObject *args) {
    return convert(args, "OO:pack_bits", true);
}

PyObject *cb_py_unpack_bits(PyObject *Py_UNUSED(module), PyObject *args) {
    return convert(args, "OO:unpack_bits", false);
}

/* ---- signs of floats: arrays of their bytes -------------------------------------------------- */

/* Views floats of `width` bytes and their bits; returns -1 with an error set if they do not belong
 * together. */
static int views_of(PyObject *array, PyObject *bits, unsigned width, cb_py_view *floats,
                    cb_py_view *packed) {
    if (bytes_of(array, "floats", CB_U8, floats) < 0) return -1;
    if (bytes_of(bits, "packed", CB_U8, packed) < 0) return -1;
    const bool is_width = width == 2 || width == 4 || width == 8;
    if (is_width && floats->bytes % width == 0 && (uintptr_t)floats->data % width == 0 &&
        packed->bytes == cb_packed_bytes(floats->bytes / width))
        return 0;
    PyErr_Format(PyExc_ValueError, "%zu bytes of floats of %u bytes do not fit %zu packed bytes",
                 floats->bytes, width, packed->bytes);
    return -1;
}

static int check_writable(const cb_py_view *written) {
    if (written->writable) return 0;
    PyErr_SetString(PyExc_ValueError, "the last array must be writable");
    return -1;
}

PyObject *cb_py_pack_signs(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *from, *to;
    unsigned width;
    unsigned long long infinity;
    cb_py_view floats, packed;
    if (!PyArg_ParseTuple(args, "OIKO:pack_signs", &from, &width, &infinity, &to)) return NULL;
    if (views_of(from, to, width, &floats, &packed) < 0 || check_writable(&packed) < 0) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    cb_pack_signs(floats.data, floats.bytes / width, width, infinity, (uint8_t *)packed.data);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

PyObject *cb_py_keep_by_bits(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *from, *bits, *to;
    unsigned width;
    cb_py_view floats, packed, kept;
    if (!PyArg_ParseTuple(args, "OOIO:keep_by_bits", &from, &bits, &width, &to)) return NULL;
    if (views_of(from, bits, width, &floats, &packed) < 0) return NULL;
    if (views_of(to, bits, width, &kept, &packed) < 0 || check_writable(&kept) < 0) return NULL;
    if (kept.bytes != floats.bytes) {
        PyErr_Format(PyExc_ValueError, "%zu bytes of floats do not fit %zu", floats.bytes,
                     kept.bytes);
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    cb_keep_by_bits(floats.data, (uint8_t *)packed.data, floats.bytes / width, width, kept.data);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}
