/* sweep.h: searches for the smallest plan of a problem with few ops, op by op. Internal.
 *
 * A search among sets of pairs goes from plan to plan and does not always reach the smallest plan,
 * which may need many changes at once, or one op run again three times before another. So below the
 * smallest plan found, schedules are built from their beginning, step by step, many at once. Of
 * schedules that have advanced equally far, one is dropped if another holds all its values and took
 * no more time; if there are too many, the slowest are dropped. */
#ifndef CB_PLAN_SWEEP_H
#define CB_PLAN_SWEEP_H

#include "candidates/trial.h"
#include "local/ledger.h"

typedef struct cb_swept {
    cb_schedule schedule; /* has no steps if no plan was found */
    uint64_t size;
    int64_t time_ps; /* defined as for a candidate */
} cb_swept;

/* Finds the smallest plan of less than `below` bytes and at least `floor`, in `arena`,
   independently of the goal. `f` describes the original problem, `l` and `t` the one with spare
   ops. */
CB_MUST_CHECK cb_status cb_sweep(const cb_facts *f, const cb_ledger *l, const cb_trial *t,
                                 uint64_t below, uint64_t floor, cb_arena *arena, cb_swept *out,
                                 cb_error *err);
#endif
