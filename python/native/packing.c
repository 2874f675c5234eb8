/* packing.c: packs bools to bits and indices to bytes, and back, between arrays of the caller. */
#include "state.h"

#include "exec/packed_bits.h"
#include "exec/packed_index.h"

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

/* ---- indices of max poolings ----------------------------------------------------------------- */

static bool all_within(const int64_t *sizes, int64_t least) {
    for (int k = 0; k < 3; k++)
        if (sizes[k] < least || sizes[k] > INT32_MAX) return false;
    return true;
}

/* Checks the sizes of windows and arrays, and sets the bytes of a packed index; returns -1 with an
 * error set if they do not belong together. */
static int check_windows(cb_packed_index *x, const cb_py_view *wide, const cb_py_view *packed) {
    const int64_t n = (int64_t)(wide->bytes / sizeof(int64_t)), *w = x->windows;
    const bool are_sizes = all_within(w, 1) && all_within(x->plane, 1) &&
                           all_within(x->kernel, 1) && all_within(x->stride, 1) &&
                           all_within(x->pad, 0) && all_within(x->dilation, 1);
    const bool fits = are_sizes && (n == 0 || (w[0] * w[1] <= n && n % (w[0] * w[1] * w[2]) == 0));
    x->bytes = n ? (int64_t)packed->bytes / n : 1;
    const bool has_room =
        (x->bytes == 1 || x->bytes == 2 || x->bytes == 4) && (int64_t)packed->bytes == n * x->bytes;
    if (fits && has_room) return 0;
    PyErr_Format(PyExc_ValueError, "%lld indices of these windows do not fit %zu packed bytes",
                 (long long)n, packed->bytes);
    return -1;
}

/* Parses "(from, to, windows, plane, kernel, stride, pad, dilation)", the latter three sizes each.
 */
static PyObject *convert_windows(PyObject *args, const char *format, bool packs) {
    PyObject *from, *to;
    cb_py_view wide, packed;
    long long v[18];
    cb_packed_index x = {.is_wide = true, .has_windows = true};
    if (!PyArg_ParseTuple(args, format, &from, &to, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6],
                          &v[7], &v[8], &v[9], &v[10], &v[11], &v[12], &v[13], &v[14], &v[15],
                          &v[16], &v[17]))
        return NULL;
    int64_t *const lists[] = {x.windows, x.plane, x.kernel, x.stride, x.pad, x.dilation};
    for (int k = 0; k < 18; k++) lists[k / 3][k % 3] = v[k];
    if (bytes_of(packs ? from : to, "indices", CB_I64, &wide) < 0) return NULL;
    if (bytes_of(packs ? to : from, "packed", CB_U8, &packed) < 0) return NULL;
    if (check_windows(&x, &wide, &packed) < 0) return NULL;
    if (check_writable(packs ? &packed : &wide) < 0) return NULL;
    const int64_t n = (int64_t)(wide.bytes / sizeof(int64_t));
    PyThreadState *thread = PyEval_SaveThread();
    if (packs) cb_pack_index(&x, wide.data, 0, n, (uint8_t *)packed.data);
    else cb_unpack_index(&x, (uint8_t *)packed.data, 0, n, wide.data);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

PyObject *cb_py_pack_windows(PyObject *Py_UNUSED(module), PyObject *args) {
    return convert_windows(args, "OO(LLL)(LLL)(LLL)(LLL)(LLL)(LLL):pack_windows", true);
}

PyObject *cb_py_unpack_windows(PyObject *Py_UNUSED(module), PyObject *args) {
    return convert_windows(args, "OO(LLL)(LLL)(LLL)(LLL)(LLL)(LLL):unpack_windows", false);
}
