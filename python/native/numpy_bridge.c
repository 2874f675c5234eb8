/* numpy_bridge.c: views of NumPy arrays for the core, and arrays over the core's memory. */
#include "state.h"

#define CB_PY_NUMPY_TABLE
#include "numpy_table.h"

#include "base/dtype.h"
#include "base/shape.h"

static int load_table(void) {
    import_array1(-1);
    return 0;
}

int cb_py_numpy_init(void) { return load_table(); }

/* Recognizes bfloat16 by the name of its scalar type, because ml_dtypes registers it at run time,
 * without a fixed type number. */
static bool is_bfloat16(const PyArray_Descr *descr) {
    const char *name = descr->typeobj->tp_name;
    const char *dot = strrchr(name, '.');
    return strcmp(dot ? dot + 1 : name, "bfloat16") == 0;
}

static bool dtype_of(PyArray_Descr *descr, cb_dtype *out) {
    if (!PyArray_ISNBO(descr->byteorder)) return false;
    switch (descr->type_num) {
        case NPY_BOOL: *out = CB_BOOL; return true;
        case NPY_UINT8: *out = CB_U8; return true;
        case NPY_FLOAT16: *out = CB_F16; return true;
        case NPY_FLOAT32: *out = CB_F32; return true;
        case NPY_FLOAT64: *out = CB_F64; return true;
        default: break;
    }
    bool is_signed = descr->kind == 'i';
    if (is_signed && PyDataType_ELSIZE(descr) == 4) *out = CB_I32;
    else if (is_signed && PyDataType_ELSIZE(descr) == 8) *out = CB_I64;
    else if (PyDataType_ELSIZE(descr) == 2 && is_bfloat16(descr)) *out = CB_BF16;
    else return false;
    return true;
}

static cb_shape shape_of(PyArrayObject *array) {
    cb_shape shape = {.rank = PyArray_NDIM(array)};
    for (int i = 0; i < PyArray_NDIM(array); i++) shape.dim[i] = PyArray_DIM(array, i);
    return shape;
}

int cb_py_view_of(PyObject *object, const char *name, cb_py_view *out) {
    if (!PyArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a NumPy array, got %s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    if (!PyArray_CheckExact(object) && PyObject_HasAttrString(object, "_mask")) {
        PyErr_Format(PyExc_TypeError,
                     "%s: masked arrays are not supported; pass x.filled() or x.data", name);
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)object;
    if (PyArray_NDIM(array) > CB_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%s: %d dimensions, at most %d are supported", name,
                     PyArray_NDIM(array), CB_MAX_RANK);
        return -1;
    }
    memset(out, 0, sizeof *out);
    out->data = PyArray_BYTES(array);
    out->shape = shape_of(array);
    out->bytes = (size_t)PyArray_NBYTES(array);
    out->known_dtype = dtype_of(PyArray_DESCR(array), &out->dtype);
    out->is_bits16 = PyArray_TYPE(array) == NPY_UINT16;
    out->contiguous = PyArray_IS_C_CONTIGUOUS(array);
    out->aligned = PyArray_ISALIGNED(array);
    out->writable = PyArray_ISWRITEABLE(array);
    return 0;
}

bool cb_py_plain_kind(PyObject *object, cb_dtype *dtype, cb_shape *shape) {
    PyArrayObject *array = (PyArrayObject *)object;
    if (!PyArray_CheckExact(object) || PyArray_NDIM(array) > CB_MAX_RANK) return false;
    *shape = shape_of(array);
    return dtype_of(PyArray_DESCR(array), dtype);
}

bool cb_py_array_fits(PyObject *object, cb_dtype dtype, const cb_shape *shape, bool written,
                      void **data) {
    PyArrayObject *array = (PyArrayObject *)object;
    cb_dtype given;
    if (!PyArray_Check(object) || PyArray_NDIM(array) > CB_MAX_RANK) return false;
    const int wanted =
        NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, wanted)) return false;
    const bool is_bits = dtype == CB_BF16 && PyArray_TYPE(array) == NPY_UINT16;
    if (!is_bits && !(dtype_of(PyArray_DESCR(array), &given) && given == dtype)) return false;
    const cb_shape found = shape_of(array);
    *data = PyArray_DATA(array);
    return cb_shape_equal(&found, shape);
}

static bool is_plain(PyObject *object, bool written) {
    if (!PyArray_CheckExact(object)) return false; /* subclasses are checked elsewhere */
    PyArrayObject *array = (PyArrayObject *)object;
    const int wanted =
        NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    return PyArray_CHKFLAGS(array, wanted) && PyArray_ISNBO(PyArray_DESCR(array)->byteorder);
}

bool cb_py_plain_array(PyObject *object, bool written, void **data, cb_dtype *dtype, int64_t *n) {
    if (!is_plain(object, written)) return false;
    PyArrayObject *array = (PyArrayObject *)object;
    int type = PyArray_TYPE(array);
    if (type != NPY_FLOAT32 && type != NPY_FLOAT64) return false;
    *dtype = type == NPY_FLOAT32 ? CB_F32 : CB_F64;
    *data = PyArray_DATA(array);
    *n = PyArray_SIZE(array);
    return PyArray_NDIM(array) <= CB_MAX_RANK;
}

bool cb_py_array_like(PyObject *object, PyObject *like, bool written, const void **data) {
    if (!is_plain(object, written)) return false;
    PyArrayObject *array = (PyArrayObject *)object, *other = (PyArrayObject *)like;
    *data = PyArray_DATA(array);
    return PyArray_TYPE(array) == PyArray_TYPE(other) && PyArray_SAMESHAPE(array, other);
}

PyObject *cb_py_strides_text(PyObject *array) {
    PyObject *strides = PyObject_GetAttrString(array, "strides");
    PyObject *text = strides ? PyObject_Str(strides) : NULL;
    Py_XDECREF(strides);
    return text;
}

static PyArray_Descr *bfloat16_descr(void) {
    PyObject *module = PyImport_ImportModule("ml_dtypes");
    PyObject *type = module ? PyObject_GetAttrString(module, "bfloat16") : NULL;
    PyArray_Descr *descr = NULL;
    if (type && !PyArray_DescrConverter(type, &descr)) descr = NULL;
    Py_XDECREF(type);
    Py_XDECREF(module);
    if (descr) return descr;
    PyErr_Clear();
    return PyArray_DescrFromType(NPY_UINT16); /* the bits */
}

static PyArray_Descr *descr_of(cb_dtype dtype) {
    static const int numbers[CB_DTYPE_COUNT] = {
        [CB_BOOL] = NPY_BOOL,   [CB_U8] = NPY_UINT8,    [CB_I32] = NPY_INT32,
        [CB_I64] = NPY_INT64,   [CB_F16] = NPY_FLOAT16, [CB_BF16] = NPY_UINT16,
        [CB_F32] = NPY_FLOAT32, [CB_F64] = NPY_FLOAT64,
    };
    return dtype == CB_BF16 ? bfloat16_descr() : PyArray_DescrFromType(numbers[dtype]);
}

PyObject *cb_py_descr_of(cb_dtype dtype) { return (PyObject *)descr_of(dtype); }

PyObject *cb_py_array_over(cb_dtype dtype, const cb_shape *shape, const int64_t *byte_strides,
                           void *data, bool writable, PyObject *owner) {
    npy_intp dims[CB_MAX_RANK], strides[CB_MAX_RANK];
    for (int32_t i = 0; i < shape->rank; i++) {
        dims[i] = shape->dim[i];
        if (byte_strides) strides[i] = byte_strides[i];
    }
    PyArray_Descr *descr = descr_of(dtype);
    PyObject *array = descr ? PyArray_NewFromDescr(&PyArray_Type, descr, shape->rank, dims,
                                                   byte_strides ? strides : NULL, data,
                                                   writable ? NPY_ARRAY_WRITEABLE : 0, NULL)
                            : NULL;
    if (!array) {
        Py_DECREF(owner);
        return NULL;
    }
    PyArray_UpdateFlags((PyArrayObject *)array,
                        NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS | NPY_ARRAY_ALIGNED);
    if (PyArray_SetBaseObject((PyArrayObject *)array, owner) < 0)
        Py_CLEAR(array); /* steals owner either way */
    return array;
}
