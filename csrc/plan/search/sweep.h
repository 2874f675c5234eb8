/* sweep.h: the smallest plan of few ops, looked for op by op. Internal.
 *
 * A search among sets of pairs goes from plan to plan, and does not always reach the smallest:
 * what leads there may be many changes at once, or one op run again three times before another.
 * So below the smallest plan that it has found, schedules are built from their beginning, step by
 * step, many at once: of those that have come as far, whoever holds no more than another and has
 * taken no less time is given up, and of too many the slowest are. */
#ifndef CB_PLAN_SWEEP_H
#define CB_PLAN_SWEEP_H

#include "candidates/trial.h"
#include "local/ledger.h"

typedef struct cb_swept {
    cb_schedule schedule; /* no steps: none was found */
    uint64_t size;
    int64_t time_ps; /* as of a candidate */
} cb_swept;

/* The smallest plan found of less than `below` bytes and no less than `floor`, into `arena`: the
 * same whatever the goal is. `f` is about the problem itself, `l` and `t` about it with spare ops.
 */
CB_MUST_CHECK cb_status cb_sweep(const cb_facts *f, const cb_ledger *l, const cb_trial *t,
                                 uint64_t below, uint64_t floor, cb_arena *arena, cb_swept *out,
                                 cb_error *err);
#endif
