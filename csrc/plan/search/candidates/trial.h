/* trial.h: tries one schedule: simulates and evaluates it and offers it to the candidates.
 * Internal. */
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
    cb_offload_sim *offload_sim; /* evaluates instead of `sim`, under `target`; NULL: nothing moves
                                    */
    uint64_t target;
    cb_candidates *candidates;
    cb_arena *scratch;
    const bool *forced; /* [n_unit] the user or a region's limit requires it to be recomputed */
    bool has_demands;   /* a schedule may violate some constraint */
    double least_ps;    /* plans faster than this cannot be the answer to a goal */
    uint32_t count;
    const cb_tangents *proven; /* the tangents whose bound is reported; NULL: none so far */
    /* size of the last trial's schedule */
    uint64_t size;
    int64_t time_ps; /* in f->cost_ps, stalls included */
    bool lawful;     /* MUST_RECOMPUTE and limits of regions and the host hold */
} cb_trial;

/* Fills the goal's progress and polls. Returns CB_CANCELLED if the caller's poll function says
 * so. */
CB_MUST_CHECK cb_status cb_trial_poll(const cb_trial *t, cb_error *err);
/* Tries a schedule. Returns CB_CANCELLED like cb_trial_poll. */
CB_MUST_CHECK cb_status cb_try_pairs(cb_trial *t, const cb_pair *pair, size_t n_pair,
                                     cb_error *err);

#endif
