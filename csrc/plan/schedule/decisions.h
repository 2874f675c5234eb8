/* decisions.h: from a schedule back to the decisions that make it (sim.h). Internal. */
#ifndef CB_PLAN_DECISIONS_H
#define CB_PLAN_DECISIONS_H

#include "sim.h"

typedef struct cb_decisions {
    uint32_t *anchor; /* [n_step] position of the base op that the step is run for, CB_NONE: nobody
                         reads what it makes */
    bool *base;       /* [n_step] the step is the base op at its anchor, not a rerun */
    cb_pairs pairs;   /* sorted */
} cb_decisions;

/* Any valid schedule that moves nothing to the host; cb_sim_run of the pairs makes it again if it
 * is one that decisions can make.
 */
CB_MUST_CHECK cb_status cb_decisions_of(const cb_facts *f, const cb_schedule *s, cb_arena *arena,
                                        cb_decisions *out, cb_error *err);

/* Is the schedule in the class of the search and its lower bound (docs/planner.md, section 3)? Base
 * ops run in order. Ops that may run again (cb_may_rerun) may do so anywhere behind their place in
 * the order, and their first run may be there too; all others run at their place.
 * What must be recomputed is not kept from the forward to the backward. */
CB_MUST_CHECK cb_status cb_in_bound_class(const cb_facts *f, const cb_schedule *s,
                                          const cb_lives *lives, bool *out, cb_error *err);

/* The base order becomes the one that a schedule from elsewhere follows: ops of the given backward
 * that it runs in the forward are hoisted. */
CB_MUST_CHECK cb_status cb_follow_schedule(cb_facts *f, const cb_schedule *s, cb_error *err);

#endif
