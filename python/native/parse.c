/* parse.c: converts Python values to the core's small structs, and back. */
#include "state.h"

#include <inttypes.h>

#include "base/dtype.h"
#include "ir/op.h"
#include "plan/model/device.h"
#include "planning.h"

int cb_py_parse_dtype(PyObject *name, cb_dtype *out) {
    Py_ssize_t length = 0;
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;
    if (text && cb_dtype_parse(text, (size_t)length, out)) return 0;
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError,
                     "%R is not a dtype; use bool, u8, i32, i64, f16, bf16, f32 or f64", name);
    }
    return -1;
}

int cb_py_parse_shape(PyObject *sequence, const char *what, cb_shape *out) {
    PyObject *items = PySequence_Tuple(sequence);
    if (!items) return -1;
    cb_shape shape = {0};
    Py_ssize_t rank = PyTuple_GET_SIZE(items);
    if (rank > CB_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%s: %zd dimensions, at most %d are supported", what, rank,
                     CB_MAX_RANK);
    }
    for (Py_ssize_t i = 0; i < rank && !PyErr_Occurred(); i++) {
        PyObject *index = PyNumber_Index(PyTuple_GET_ITEM(items, i));
        if (!index) break;
        shape.dim[i] = PyLong_AsLongLong(index);
        Py_DECREF(index);
    }
    Py_DECREF(items);
    if (PyErr_Occurred()) return -1;
    shape.rank = (int32_t)rank;
    *out = shape;
    return 0;
}

static int set_attr(const char *what, const cb_attr_slot *slot, PyObject *value, cb_attrs *out) {
    switch (slot->kind) {
        case CB_ATTR_F:
            out->f[slot->index] = PyFloat_AsDouble(value);
            return PyErr_Occurred() ? -1 : 0;
        case CB_ATTR_I:
            out->i[slot->index] = PyLong_AsLongLong(value);
            return PyErr_Occurred() ? -1 : 0;
        case CB_ATTR_DIMS: return cb_py_parse_shape(value, what, &out->dims);
        case CB_ATTR_DTYPE: return cb_py_parse_dtype(value, &out->dtype);
    }
    return -1;
}

/* Finds the attribute `key` of an op; false if the op does not have it. */
static bool find_slot(cb_opcode code, const char *key, cb_attr_slot *out) {
    for (int i = 0; cb_op_attr(code, i, out); i++) {
        if (out->name_length == strlen(key) && memcmp(out->name, key, out->name_length) == 0)
            return true;
    }
    return false;
}

int cb_py_parse_attrs(const char *op, PyObject *dict, cb_attrs *out) {
    memset(out, 0, sizeof *out);
    if (!dict || dict == Py_None) return 0;
    if (!PyDict_Check(dict)) {
        PyErr_Format(PyExc_TypeError, "%s: attributes must be a dict, not %R", op, dict);
        return -1;
    }
    cb_opcode code;
    if (!cb_op_find(op, strlen(op), &code)) return 0; /* the core reports the unknown op */
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
        const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
        cb_attr_slot slot;
        if (!name || !find_slot(code, name, &slot)) {
            if (!PyErr_Occurred()) {
                const char *has = cb_op_def_of(code)->attrs;
                PyErr_Format(PyExc_TypeError, "%s has no attribute %R; it has: %s", op, key,
                             *has ? has : "none");
            }
            return -1;
        }
        if (set_attr(op, &slot, value, out) < 0) return -1;
    }
    return 0;
}

int cb_py_parse_ids(PyObject *sequence, uint32_t **out, uint32_t *n) {
    PyObject *items = PySequence_Tuple(sequence);
    if (!items) return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    uint32_t *ids = PyMem_New(uint32_t, (size_t)count + 1);
    if (!ids) PyErr_NoMemory();
    for (Py_ssize_t i = 0; ids && i < count; i++) {
        unsigned long id = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(items, i));
        if (PyErr_Occurred()) break;
        ids[i] = id < CB_NONE ? (uint32_t)id : CB_NONE;
    }
    Py_DECREF(items);
    if (PyErr_Occurred()) {
        PyMem_Free(ids);
        return -1;
    }
    *out = ids;
    *n = (uint32_t)count;
    return 0;
}

PyObject *cb_py_give_ids(const uint32_t *ids, uint32_t n) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *id = PyLong_FromUnsignedLong(ids[i]);
        if (id) PyList_SET_ITEM(list, (Py_ssize_t)i, id);
        else Py_CLEAR(list);
    }
    return list;
}

PyObject *cb_py_give_bits(uint64_t bits) {
    PyObject *list = PyList_New(0);
    for (unsigned long i = 0; list && i < 64; i++) {
        if (!(bits >> i & 1)) continue;
        PyObject *place = PyLong_FromUnsignedLong(i);
        if (!place || PyList_Append(list, place) < 0) Py_CLEAR(list);
        Py_XDECREF(place);
    }
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

PyObject *cb_py_give_fingerprint(uint64_t fingerprint) {
    char text[17];
    (void)snprintf(text, sizeof text, "%016" PRIx64, fingerprint);
    return PyUnicode_FromString(text);
}

PyObject *cb_py_shape_tuple(const cb_shape *shape) {
    PyObject *tuple = PyTuple_New(shape->rank);
    for (int32_t i = 0; tuple && i < shape->rank; i++) {
        PyObject *dim = PyLong_FromLongLong(shape->dim[i]);
        if (!dim) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, dim);
    }
    return tuple;
}

/* Parses (kind, bytes, share, measure[, offload, pinned, exact]), the fields of cb_budget. */
int cb_py_parse_budget(PyObject *item, cb_budget *out) {
    memset(out, 0, sizeof *out);
    int kind, measure, offload = CB_OFFLOAD_ASKED, exact = 0;
    double share;
    unsigned long long bytes, pinned = 0;
    if (item == Py_None) return 0;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError,
                        "a budget must be a tuple (kind, bytes, share, measure[, offload, pinned, "
                        "exact])");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iKdi|iKp:budget", &kind, &bytes, &share, &measure, &offload,
                          &pinned, &exact))
        return -1;
    if (kind < CB_BUDGET_NONE || kind >= CB_BUDGET_KIND_COUNT || measure < 0 ||
        measure >= CB_MEASURE_COUNT || offload < 0 || offload >= CB_OFFLOAD_COUNT) {
        PyErr_SetString(PyExc_ValueError, "unknown kind, measure or offload of a budget");
        return -1;
    }
    out->kind = (cb_budget_kind)kind;
    out->bytes = bytes;
    out->share = share;
    out->measure = (cb_measure)measure;
    out->offload = (cb_offload)offload;
    out->pinned_bytes = pinned;
    out->exact = exact;
    return 0;
}

int cb_py_parse_preset(int number, cb_preset *out) {
    if (number < 0 || number >= CB_PRESET_COUNT) {
        PyErr_Format(PyExc_ValueError, "there is no preset %d", number);
        return -1;
    }
    *out = (cb_preset)number;
    return 0;
}

PyObject *cb_py_check_device(PyObject *module, PyObject *name) {
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    const char *text = context ? PyUnicode_AsUTF8(name) : NULL;
    if (!text) return NULL;
    cb_error error = {0};
    const cb_device *row;
    cb_arena scratch;
    cb_arena_init(&scratch, cb_planning_alloc(context->core));
    const cb_status status = cb_device_parse(text, &scratch, &row, &error);
    cb_arena_free(&scratch);
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    Py_RETURN_NONE;
}
