/* extras.c: parses the extras of a step, for tables (OptimizerTable.ask) and compiled steps. */
#include "base/shape.h"
#include "table.h"

/* Takes a writable array, or None. The caller checks its size, because the parameters are not known
 * here. */
static int take(const char *name, PyObject *array, const char *what, void **data, cb_dtype *dtype) {
    cb_py_view view;
    if (array == Py_None) return 0;
    if (cb_py_view_of(array, name, &view) < 0) return -1;
    const bool is_bits = view.is_bits16;
    if ((view.known_dtype || is_bits) && view.contiguous && view.aligned && view.writable) {
        *data = view.data;
        *dtype = is_bits ? CB_BF16 : view.dtype;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s: the %s must be contiguous, aligned and writable", name,
                 what);
    return -1;
}

static int take_rows(PyObject *averages, PyObject *copies, const cb_py_rows *rows,
                     cb_extra_row *out) {
    PyObject *const *average = cb_py_items(averages, rows->n, "averages");
    PyObject *const *copy = average ? cb_py_items(copies, rows->n, "copies") : NULL;
    for (uint32_t i = 0; copy && i < rows->n; i++) {
        cb_dtype unused;
        const char *name = rows->name(rows->owner, i);
        out[i] = (cb_extra_row){.copy_dtype = CB_BF16};
        if (take(name, average[i], "average", &out[i].average, &unused) < 0) return -1;
        if (take(name, copy[i], "copy", &out[i].copy, &out[i].copy_dtype) < 0) return -1;
    }
    return copy ? 0 : -1;
}

static int read_number(PyObject *asked, const char *name, double *out) {
    PyObject *value = PyObject_GetAttrString(asked, name);
    *out = value ? PyFloat_AsDouble(value) : 0;
    Py_XDECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_flag(PyObject *asked, const char *name, bool *out) {
    PyObject *value = PyObject_GetAttrString(asked, name);
    const int is = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    *out = is > 0;
    return is < 0 ? -1 : 0;
}

static int read_asked(PyObject *asked, cb_py_extras *out) {
    cb_optim_extras *core = &out->core;
    if (read_number(asked, "grad_factor", &core->grad_factor) < 0 ||
        read_number(asked, "max_norm", &core->max_norm) < 0 ||
        read_number(asked, "average_keep", &core->average_keep) < 0 ||
        read_flag(asked, "skips", &core->skips) < 0 ||
        read_flag(asked, "zeroes", &core->zeroes) < 0)
        return -1;
    out->averages = PyObject_GetAttrString(asked, "averages");
    out->copies = out->averages ? PyObject_GetAttrString(asked, "copies") : NULL;
    return out->copies ? 0 : -1;
}

int cb_py_extras_parse(PyObject *asked, const cb_py_rows *rows, cb_py_extras *out) {
    *out = (cb_py_extras){.averages = NULL};
    if (asked == Py_None) return 0;
    if (read_asked(asked, out) == 0) {
        out->rows = PyMem_New(cb_extra_row, (size_t)rows->n + 1);
        if (!out->rows) PyErr_NoMemory();
    }
    out->core.rows = out->rows;
    if (out->rows && take_rows(out->averages, out->copies, rows, out->rows) == 0) return 1;
    cb_py_extras_drop(out);
    return -1;
}

void cb_py_extras_drop(cb_py_extras *extras) {
    PyMem_Free(extras->rows);
    Py_CLEAR(extras->averages);
    Py_CLEAR(extras->copies);
}

PyObject *cb_py_outcome(cb_optim_outcome outcome) {
    return Py_BuildValue("(dO)", outcome.norm, outcome.skipped ? Py_True : Py_False);
}

static const char *row_name(const void *owner, uint32_t i) { return cb_py_table_name(owner, i); }

/* ask(asked): an object with the fields of _native.Asked, or None */
PyObject *cb_py_table_ask(cb_py_table *self, PyObject *asked) {
    const cb_py_rows rows = {.owner = self, .name = row_name, .n = self->n_rows};
    cb_py_extras extras;
    cb_error error = {0};
    if (cb_py_table_enter(self) < 0) return NULL;
    const int some = cb_py_extras_parse(asked, &rows, &extras);
    bool done =
        some >= 0 && cb_tensor_table_ask(self->core, some ? &extras.core : NULL, &error) == CB_OK;
    if (some >= 0 && !done) cb_py_raise(PyType_GetModuleState(Py_TYPE(self)), &error, NULL);
    if (done)
        Py_XSETREF(self->asked, some ? PyTuple_Pack(2, extras.averages, extras.copies) : NULL);
    if (some > 0) cb_py_extras_drop(&extras);
    cb_py_table_leave(self);
    return done && !PyErr_Occurred() ? Py_NewRef(Py_None) : NULL;
}

/* outcome() -> (norm, skipped) of the last step */
PyObject *cb_py_table_outcome(cb_py_table *self, PyObject *Py_UNUSED(none)) {
    return cb_py_outcome(cb_tensor_table_outcome(self->core));
}
