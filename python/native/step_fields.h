/* step_fields.h: the arguments of a step's methods run, train and capture. */
#ifndef CB_PY_STEP_FIELDS_H
#define CB_PY_STEP_FIELDS_H

#include "fields.h"
#include "state.h"

/* The step number for random operations. Like the optimizer's step count, it is updated here, so
 * that a signal cannot come between a step and its count. */
typedef struct cb_py_draw_count {
    int64_t *at; /* NULL: not counted */
    int64_t next;
} cb_py_draw_count;

/* The keyword arguments of run. */
typedef struct cb_py_run_fields {
    PyObject *inputs, *outputs, *seed, *random_step, *count, *next, *stream;
} cb_py_run_fields;

#define CB_PY_RUN_FIELDS(type, run)                                                           \
    {"inputs", offsetof(type, run inputs)}, {"outputs", offsetof(type, run outputs)},         \
        {"seed", offsetof(type, run seed)}, {"random_step", offsetof(type, run random_step)}, \
        {"count", offsetof(type, run count)}, {"next", offsetof(type, run next)}, {           \
        "stream", offsetof(type, run stream)                                                  \
    }

/* The keyword arguments of train. */
typedef struct cb_py_train_fields {
    cb_py_run_fields run;
    PyObject *optimizer, *states, *group_of, *groups, *t, *numbers, *extras;
} cb_py_train_fields;

/* Reads the optimizer's step count; fails if it cannot be incremented. If `opt` is NULL, the count
 * is 0. */
int cb_py_steps_taken(const cb_py_optimizer *opt, int64_t *taken);
void cb_py_drop_arrays(cb_py_run_arrays *run);
/* Parses all arguments of a run except its arrays. `seed` has 64 bits, `random_step` 32. */
int cb_py_parse_settings(const cb_py_run_fields *given, cb_run *settings, cb_py_draw_count *draws);
int cb_py_take_arrays(const cb_py_run_fields *given, cb_py_run_arrays *run);
/* Parses a sequence of arrays (or None) for each state. */
int cb_py_parse_states(PyObject *states, const cb_optimizer *core, cb_py_run_arrays *out);
/* Parses a writable array of one i64. */
int cb_py_parse_count(PyObject *array, const char *name, int64_t **out);
int cb_py_parse_update(cb_py_step *self, const cb_py_train_fields *given, cb_py_optimizer *out);

#endif
