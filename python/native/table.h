/* table.h: shared by the two ways of stepping a table: on arrays (table_type.c) and on tensors of
 * another library (table_tensors.c). */
#ifndef CB_PY_TABLE_H
#define CB_PY_TABLE_H

#include "fields.h"
#include "state.h"

#define CB_PY_COLUMNS (CB_MAX_NUMBERS + 4 + CB_MAX_STATES) /* see table_tensors.c */

#define CB_PY_NO_MEMORY "has less memory than it has elements" /* known to one_pass.py */

typedef struct cb_py_seen { /* addresses to prefetch; they are not dereferenced */
    uintptr_t object, shape;
    uintptr_t data; /* if all three match, the tensor was fully checked before */
} cb_py_seen;

typedef struct cb_py_table {
    PyObject_HEAD cb_py_context *context;
    cb_tensor_table *core;
    const cb_optimizer *optimizer;
    PyObject *names; /* tuple of str, one per row, for errors */
    PyObject *kept;  /* the optimizer's Expression, which must stay alive, or its name */
    PyObject *asked; /* the arrays of extras, or NULL */
    uint32_t n_rows, n_state, n_number;
    cb_axes axes;  /* the way rows are treated as matrices */
    bool has_form; /* uses matrices, or states unlike parameters: tensors must be row-major */
    bool takes_halves;
    cb_half_form half;  /* the form in which half-precision weights are kept */
    uint64_t seed;      /* seed of stochastic rounding */
    uint32_t first_row; /* the noise of row i is that of row first_row + i */
    cb_py_seen *seen;   /* [n_rows][CB_PY_COLUMNS] tensors of the latest step; or NULL */
    cb_py_claim claim;  /* the memory that its step writes */
    cb_py_word busy;    /* held during a step; other threads and signal handlers get an error */
} cb_py_table;

/* Returns the items of a tuple, which keeps them alive while other threads run. */
PyObject *const *cb_py_items(PyObject *tuple, uint32_t n, const char *what);
int cb_py_table_enter(cb_py_table *self); /* returns -1 with an exception set if the table is
                                             busy */
void cb_py_table_leave(cb_py_table *self);
const char *cb_py_table_name(const cb_py_table *self, uint32_t i);
/* True if half-precision rows have an extra state (a master copy or a remainder). */
static inline bool cb_py_table_has_rest(const cb_py_table *self) {
    return self->takes_halves && self->half != CB_HALF_STOCHASTIC;
}
/* Returns the initial values of a row. */
static inline cb_optim_row cb_py_table_row(const cb_py_table *self, uint32_t i, uint32_t group) {
    return (cb_optim_row){.t = 1,
                          .group = group,
                          .half = self->half,
                          .stream = self->first_row + i,
                          .seed = self->seed};
}
/* Runs the step with the GIL released; -1: an exception is set. */
int cb_py_table_run(cb_py_table *self, const cb_py_optimizer *numbers);

PyObject *cb_py_table_step_tensors(cb_py_table *self, PyObject *const *values, Py_ssize_t n_given,
                                   PyObject *names);
PyObject *cb_py_table_ask(cb_py_table *self, PyObject *asked);
PyObject *cb_py_table_outcome(cb_py_table *self, PyObject *none);

#endif
