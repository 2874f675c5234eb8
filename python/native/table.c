/* table.c: code shared by both ways of stepping a table. */
#include "table.h"

int cb_py_table_enter(cb_py_table *self) { return cb_py_word_take(&self->busy) ? 0 : -1; }

void cb_py_table_leave(cb_py_table *self) { cb_py_word_drop(&self->busy); }

const char *cb_py_table_name(const cb_py_table *self, uint32_t i) {
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(self->names, (Py_ssize_t)i));
    if (!name) PyErr_Clear();
    return name ? name : "a parameter";
}

PyObject *const *cb_py_items(PyObject *tuple, uint32_t n, const char *what) {
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple", what);
        return NULL;
    }
    if (cb_py_check_count(tuple, n, what) < 0) return NULL;
    return PySequence_Fast_ITEMS(tuple);
}

static const char *row_name(const void *owner, uint32_t i) { return cb_py_table_name(owner, i); }

/* Checks the step, claims the memory that it writes, and runs it with the GIL released. Returns -1
 * if an exception is set; nothing was written then. */
int cb_py_table_run(cb_py_table *self, const cb_py_optimizer *numbers) {
    const cb_py_rows rows = {.owner = self, .name = row_name, .n = self->n_rows};
    cb_py_claim *claim = &self->claim;
    cb_error error = {0};
    cb_status status = cb_tensor_table_check(self->core, numbers->hyper, numbers->n_groups,
                                             &claim->written, &claim->n, &error);
    claim->is_sorted = true;
    if (status == CB_OK && cb_py_claim_take(self->context, claim, &rows) < 0) return -1;
    if (status == CB_OK) {
        cb_py_work work;
        cb_py_work_begin(&work, self->context);
        status = cb_tensor_table_step(self->core, numbers->hyper, numbers->n_groups, &error);
        cb_py_work_end(&work);
        cb_py_claim_drop(self->context, claim);
    }
    if (status == CB_OK) return 0;
    cb_py_raise(PyType_GetModuleState(Py_TYPE(self)), &error, NULL);
    return -1;
}
