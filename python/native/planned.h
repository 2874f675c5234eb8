/* planned.h: wraps problems and plans as Python objects. */
#ifndef CB_PY_PLANNED_H
#define CB_PY_PLANNED_H

#include "state.h"

#include "planning.h"

typedef struct cb_py_problem { /* immutable */
    PyObject_HEAD cb_py_context *context;
    const cb_problem *core;
    PyObject *owner; /* object that owns `core`; NULL: this object owns it */
} cb_py_problem;

typedef struct cb_py_plan { /* immutable */
    PyObject_HEAD cb_py_problem *problem;
    const cb_plan *core;
    PyObject *owner;
    cb_plan *again; /* allocated by PyMem: `core`, if it is a copy of `owner`'s plan for another
                       budget */
} cb_py_plan;

/* ---- problem_type.c, plan_type.c ------------------------------------------------------------- */

/* Each wraps `core`. If `owner` is NULL, it takes ownership of `core`, even on failure. */
PyObject *cb_py_problem_wrap(cb_py_state *state, cb_py_context *context, const cb_problem *core,
                             PyObject *owner);
PyObject *cb_py_plan_wrap(cb_py_state *state, cb_py_problem *problem, const cb_plan *core,
                          PyObject *owner);

/* ---- problem_give.c, problem_take.c ---------------------------------------------------------- */

/* Converts to a cutback.problem.Problem. */
PyObject *cb_py_give_problem(const cb_problem *p);
/* Converts from a cutback.problem.Problem, and checks it. Returns NULL with an exception set on
 * failure. */
cb_problem *cb_py_take_problem(cb_py_state *state, cb_context *ctx, PyObject *source);

/* ---- plan_parts.c ---------------------------------------------------------------------------- */

PyObject *cb_py_give_steps(const cb_problem *p, const cb_schedule *s); /* [cutback.schedule.Step] */
/* Returns the modelled picoseconds of each step; 0 for steps that copy or wait. */
PyObject *cb_py_give_times(const cb_problem *p, const cb_schedule *s, const cb_device *device);
PyObject *cb_py_give_lives(const cb_lives *lives); /* [cutback.schedule.Life] */
PyObject *cb_py_give_decisions(const cb_problem *p, const cb_plan *plan);
PyObject *cb_py_give_numbers(const cb_plan *plan);
PyObject *cb_py_give_evaluated(const cb_schedule *s, const cb_lives *lives, uint64_t arena_bytes);
/* Converts (steps, backward_starts), in `arena`; -1: an exception is set. The core checks whether
 * the schedule is valid. */
int cb_py_take_schedule(const cb_problem *p, PyObject *pair, cb_arena *arena, cb_schedule *out);

/* ---- searches.c ------------------------------------------------------------------------------ */

/* Work that a time limit or a Python callback may end early. Finish with
 * cb_py_work_end(&search.work). */
typedef struct cb_py_search {
    cb_py_work work;
    PyObject *progress;            /* borrowed callback, or None */
    int64_t start_ns, deadline_ns; /* 0: no limit */
    int64_t next_report_ns;
    bool finish;      /* end the search with its best plan so far */
    cb_progress best; /* filled in by the core */
} cb_py_search;
/* `time_limit` in seconds; 0: no limit. */
void cb_py_search_begin(cb_py_search *s, cb_py_context *context, double time_limit,
                        PyObject *progress);
int cb_py_search_poll(void *user); /* the cb_poll_fn of a search */

PyObject *cb_py_search_one(cb_py_problem *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_search_many(cb_py_problem *self, PyObject *args, PyObject *kwargs);

#endif
