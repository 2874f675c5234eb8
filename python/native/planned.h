/* planned.h: problems and plans as objects of Python. */
#ifndef CB_PY_PLANNED_H
#define CB_PY_PLANNED_H

#include "state.h"

#include "planning.h"

typedef struct cb_py_problem { /* never changes once it is made */
    PyObject_HEAD cb_py_context *context;
    const cb_problem *core;
    PyObject *owner; /* whose memory `core` is; NULL: it is freed with this object */
} cb_py_problem;

typedef struct cb_py_plan { /* likewise */
    PyObject_HEAD cb_py_problem *problem;
    const cb_plan *core;
    PyObject *owner;
    cb_plan *again; /* PyMem: `core`, if that is `owner`'s as the answer to another question */
} cb_py_plan;

/* ---- problem_type.c, plan_type.c ------------------------------------------------------------- */

/* Each takes what it wraps, also on failure; `owner` NULL: as its own. */
PyObject *cb_py_problem_wrap(cb_py_state *state, cb_py_context *context, const cb_problem *core,
                             PyObject *owner);
PyObject *cb_py_plan_wrap(cb_py_state *state, cb_py_problem *problem, const cb_plan *core,
                          PyObject *owner);

/* ---- problem_give.c, problem_take.c ---------------------------------------------------------- */

/* A cutback.problem.Problem. */
PyObject *cb_py_give_problem(const cb_problem *p);
/* Of one, checked. NULL: an exception is set. */
cb_problem *cb_py_take_problem(cb_py_state *state, cb_context *ctx, PyObject *source);

/* ---- plan_parts.c ---------------------------------------------------------------------------- */

PyObject *cb_py_give_steps(const cb_problem *p, const cb_schedule *s); /* [cutback.schedule.Step] */
PyObject *cb_py_give_lives(const cb_lives *lives);                     /* [cutback.schedule.Life] */
PyObject *cb_py_give_decisions(const cb_problem *p, const cb_plan *plan);
PyObject *cb_py_give_numbers(const cb_plan *plan);
PyObject *cb_py_give_evaluated(const cb_schedule *s, const cb_lives *lives, uint64_t arena_bytes);
/* Of (steps, backward_starts), in `arena`; -1: an exception is set. Whether the schedule keeps the
 * rules is for the core to say. */
int cb_py_take_schedule(const cb_problem *p, PyObject *pair, cb_arena *arena, cb_schedule *out);

/* ---- searches.c ------------------------------------------------------------------------------ */

/* Work that a clock or a function of Python may end early. cb_py_work_end(&search.work) ends it. */
typedef struct cb_py_search {
    cb_py_work work;
    PyObject *progress;            /* borrowed; None: nobody is told */
    int64_t start_ns, deadline_ns; /* 0: no limit */
    int64_t next_report_ns;
    bool finish;      /* the search is to end with what it has */
    cb_progress best; /* for the core to fill */
} cb_py_search;
/* `time_limit` in seconds; 0: none. */
void cb_py_search_begin(cb_py_search *s, cb_py_context *context, double time_limit,
                        PyObject *progress);
int cb_py_search_poll(void *user); /* a cb_poll_fn of the search */

PyObject *cb_py_search_one(cb_py_problem *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_search_many(cb_py_problem *self, PyObject *args, PyObject *kwargs);

#endif
