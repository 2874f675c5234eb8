/* decisions.h: derives the decisions (sim.h) that produce a given schedule. Internal. */
#ifndef CB_PLAN_DECISIONS_H
#define CB_PLAN_DECISIONS_H

#include "sim.h"

typedef struct cb_decisions {
    uint32_t *anchor; /* [n_step] position of the base op for which the step runs; CB_NONE: nothing
                         reads its outputs */
    bool *base;       /* [n_step] true if the step is the base op at its anchor, not a rerun */
    cb_pairs pairs;   /* sorted */
} cb_decisions;

/* Accepts any valid schedule that moves nothing to the host; cb_sim_run of the pairs reproduces it
   if decisions can produce it. */
CB_MUST_CHECK cb_status cb_decisions_of(const cb_facts *f, const cb_schedule *s, cb_arena *arena,
                                        cb_decisions *out, cb_error *err);

/* Sets `out` to true if the schedule is in the class of the search and its lower bound
 * (docs/planner.md, section 3): base ops run in order. Ops that may run again (cb_may_rerun) may do
 * so, or have their first run, anywhere after their position in the order; all others run at their
 * position. Values that must be recomputed are not kept from the forward to the backward. */
CB_MUST_CHECK cb_status cb_in_bound_class(const cb_facts *f, const cb_schedule *s,
                                          const cb_lives *lives, bool *out, cb_error *err);

/* Makes a copy of the facts whose base order is that of the schedule: ops of the given backward
 * that it runs in the forward are hoisted (cb_facts_hoist). */
CB_MUST_CHECK cb_status cb_follow_schedule(const cb_facts *f, const cb_schedule *s, cb_arena *arena,
                                           cb_facts *out, cb_error *err);

#endif
