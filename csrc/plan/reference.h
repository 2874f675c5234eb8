/* reference.h: the save-everything plan, with which budgets and reports are compared. Internal. */
#ifndef CB_PLAN_REFERENCE_H
#define CB_PLAN_REFERENCE_H

#include "schedule/plan.h"
#include "schedule/sim.h"

typedef struct cb_reference {
    uint64_t live_bytes, saved_bytes, arena_bytes;
    bool *at_peak; /* [n_storage] alive at its peak */
} cb_reference;

/* Makes the plan. No output in it takes over memory. */
CB_MUST_CHECK cb_status cb_reference_make(cb_sim *sim, cb_poll poll, cb_arena *arena,
                                          cb_reference *out, cb_error *err);
uint64_t cb_reference_bytes(const cb_reference *r, const cb_problem *p, cb_measure measure);

#endif
