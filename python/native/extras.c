/* extras.c: what a table's steps do beside the update: OptimizerTable.ask. */
#include "base/shape.h"
#include "table.h"

/* A writable array of one element for each of the parameter, or None. The core knows no parameters
 * yet: that counts fit, the caller sees to. */
static int take(const cb_py_table *self, uint32_t i, PyObject *array, const char *what, void **data,
                cb_dtype *dtype) {
    cb_py_view view;
    if (array == Py_None) return 0;
    if (cb_py_view_of(array, cb_py_table_name(self, i), &view) < 0) return -1;
    const bool is_bits = view.is_bits16;
    if ((view.known_dtype || is_bits) && view.contiguous && view.aligned && view.writable) {
        *data = view.data;
        *dtype = is_bits ? CB_BF16 : view.dtype;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s: the %s is not contiguous, aligned and writable",
                 cb_py_table_name(self, i), what);
    return -1;
}

static int take_rows(const cb_py_table *self, PyObject *averages, PyObject *copies,
                     cb_extra_row *out) {
    PyObject *const *average = cb_py_items(averages, self->n_rows, "averages");
    PyObject *const *copy = average ? cb_py_items(copies, self->n_rows, "copies") : NULL;
    for (uint32_t i = 0; copy && i < self->n_rows; i++) {
        cb_dtype unused;
        out[i] = (cb_extra_row){.copy_dtype = CB_BF16};
        if (take(self, i, average[i], "average", &out[i].average, &unused) < 0) return -1;
        if (take(self, i, copy[i], "copy", &out[i].copy, &out[i].copy_dtype) < 0) return -1;
    }
    return copy ? 0 : -1;
}

/* ask(grad_factor, max_norm, average_keep, skips, zeroes, averages, copies), or ask() */
PyObject *cb_py_table_ask(cb_py_table *self, PyObject *args) {
    cb_optim_extras extras = {0};
    PyObject *averages = NULL, *copies = NULL;
    int skips = 0, zeroes = 0;
    if (!PyArg_ParseTuple(args, "|dddppOO:ask", &extras.grad_factor, &extras.max_norm,
                          &extras.average_keep, &skips, &zeroes, &averages, &copies))
        return NULL;
    if (cb_py_table_enter(self) < 0) return NULL;
    cb_error error = {0};
    cb_extra_row *rows = copies ? PyMem_New(cb_extra_row, (size_t)self->n_rows + 1) : NULL;
    bool done = false;
    extras.skips = skips;
    extras.zeroes = zeroes;
    extras.rows = rows;
    if (copies && !rows) PyErr_NoMemory();
    else if (!copies || take_rows(self, averages, copies, rows) == 0) {
        done = cb_tensor_table_ask(self->core, copies ? &extras : NULL, &error) == CB_OK;
        if (!done) cb_py_raise(PyType_GetModuleState(Py_TYPE(self)), &error, NULL);
    }
    if (done) Py_XSETREF(self->asked, copies ? PyTuple_Pack(2, averages, copies) : NULL);
    PyMem_Free(rows);
    cb_py_table_leave(self);
    return done && !PyErr_Occurred() ? Py_NewRef(Py_None) : NULL;
}

/* outcome() -> (norm, skipped) of the last step */
PyObject *cb_py_table_outcome(cb_py_table *self, PyObject *Py_UNUSED(none)) {
    const cb_optim_outcome outcome = cb_tensor_table_outcome(self->core);
    return Py_BuildValue("(dO)", outcome.norm, outcome.skipped ? Py_True : Py_False);
}
