/* trial.h: one schedule tried: simulated, judged and offered to the candidates. Internal. */
#ifndef CB_PLAN_TRIAL_H
#define CB_PLAN_TRIAL_H

#include "../../schedule/goal.h"
#include "../../schedule/offload_sim.h"
#include "bound.h"
#include "candidates.h"

typedef struct cb_trial {
    const cb_facts *f;
    const cb_goal *goal;
    cb_sim *sim;
    cb_offload_sim *offload_sim; /* judges instead of `sim`, under `target`; NULL: nothing moves */
    uint64_t target;
    cb_candidates *candidates;
    cb_arena *scratch;
    const bool *forced; /* [n_unit] the user, or a region's limit, wants it recomputed */
    bool has_demands;   /* some constraint can be broken by a schedule */
    double least_ps;    /* faster plans are no answers to a goal */
    uint32_t count;
    const cb_tangents *proven; /* whose bound is told; NULL: none so far */
    /* of the last trial */
    uint64_t size;
    int64_t time_ps; /* in f->cost_ps, stalls included */
    bool lawful;     /* MUST_RECOMPUTE and limits of regions and the host hold */
} cb_trial;

/* Fills the goal's progress and polls. CB_CANCELLED when the caller's poll function says so. */
CB_MUST_CHECK cb_status cb_trial_poll(const cb_trial *t, cb_error *err);
/* CB_CANCELLED likewise. */
CB_MUST_CHECK cb_status cb_try_pairs(cb_trial *t, const cb_pair *pair, size_t n_pair,
                                     cb_error *err);

#endif
