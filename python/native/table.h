/* table.h: what the two ways of stepping a table share: arrays (table_type.c) and tensors of
 * another library (table_tensors.c). */
#ifndef CB_PY_TABLE_H
#define CB_PY_TABLE_H

#include "fields.h"
#include "state.h"

#define CB_PY_COLUMNS (CB_MAX_NUMBERS + 4 + CB_MAX_STATES) /* of tensors: see table_tensors.c */

#define CB_PY_NO_MEMORY "has less memory than it has elements" /* known to one_pass.py */

typedef struct cb_py_seen { /* addresses to be brought near; nothing is read by them */
    uintptr_t object, shape;
    uintptr_t data; /* together they tell that a tensor was looked at as a whole before */
} cb_py_seen;

typedef struct cb_py_table {
    PyObject_HEAD cb_py_context *context;
    cb_tensor_table *core;
    const cb_optimizer *optimizer;
    PyObject *names; /* tuple of str, one a row, for errors */
    PyObject *kept;  /* the Expression whose optimizer it is, or a name */
    PyObject *asked; /* the arrays of extras, or NULL */
    uint32_t n_rows, n_state, n_number;
    cb_axes axes;  /* the matrices that it sees in rows */
    bool has_form; /* or states in a form of their own: elements have to lie in order */
    bool takes_halves;
    cb_half_form half; /* of their weights */
    uint64_t seed;     /* of the noise that rounds them */
    cb_py_seen *seen;  /* [n_rows][CB_PY_COLUMNS] where tensors lay at the latest step; or NULL */
    cb_py_claim claim; /* what its step writes */
    cb_py_word busy;   /* a step is under way: a second thread, or a signal handler, is refused */
} cb_py_table;

/* The items of a tuple, which keeps them alive while other threads run. */
PyObject *const *cb_py_items(PyObject *tuple, uint32_t n, const char *what);
int cb_py_table_enter(cb_py_table *self); /* -1: it is busy */
void cb_py_table_leave(cb_py_table *self);
const char *cb_py_table_name(const cb_py_table *self, uint32_t i);
/* Whether rows of halves keep something beside their weights. */
static inline bool cb_py_table_has_rest(const cb_py_table *self) {
    return self->takes_halves && self->half != CB_HALF_STOCHASTIC;
}
/* What all rows begin with. */
static inline cb_optim_row cb_py_table_row(const cb_py_table *self, uint32_t i, uint32_t group) {
    return (cb_optim_row){
        .t = 1, .group = group, .half = self->half, .stream = i, .seed = self->seed};
}
/* Tells the row of its matrices; false: it is none, where others are refused. */
static inline bool cb_py_table_see(const cb_py_table *self, int rank, const int64_t *dim,
                                   cb_optim_row *row) {
    if (self->axes == CB_AXES_NONE) return true;
    if (self->axes == CB_AXES_TWO && rank != 2) return false;
    if (rank < 2) return true;
    row->height = self->axes == CB_AXES_FIRST ? dim[0] : dim[rank - 2];
    row->width = dim[rank - 1];
    for (int k = 1; self->axes == CB_AXES_FIRST && k < rank - 1; k++) row->width *= dim[k];
    return true;
}
/* The step with the GIL released; -1: an exception is set. */
int cb_py_table_run(cb_py_table *self, const cb_py_optimizer *numbers);

PyObject *cb_py_table_step_tensors(cb_py_table *self, PyObject *const *values, Py_ssize_t n_given,
                                   PyObject *names);
PyObject *cb_py_table_ask(cb_py_table *self, PyObject *asked);
PyObject *cb_py_table_outcome(cb_py_table *self, PyObject *none);

#endif
