/* worker.h: the state with which one thread searches targets. Internal. */
#ifndef CB_PLAN_WORKER_H
#define CB_PLAN_WORKER_H

#include "local/moves.h"
#include "prices.h"

typedef struct cb_worker {
    cb_trial *t; /* its candidates are `work` while it searches */
    cb_prices prices;
    cb_ledger ledger;
    cb_moves moves;
    cb_candidates *work; /* plans of the current target */
    uint32_t guessed;    /* 1 + the rung for which it has found prices last, and nothing else since;
                              0: none */
    const bool *may_rerun; /* [n_op] */
    uint64_t whole;        /* save-everything's bytes */
} cb_worker;

/* Call after cb_try_pairs of the save-everything plan by `t`. */
CB_MUST_CHECK cb_status cb_worker_init(cb_worker *c, cb_trial *t, cb_cut *cut,
                                       const bool *may_rerun, uint64_t whole, cb_error *err);
/* Does the same for another thread, with a separate trial and cut. The worker gets the first
 * `n_tangent` tangents of the bound and of the guess of `like`. */
CB_MUST_CHECK cb_status cb_worker_init_like(cb_worker *c, const cb_worker *like, size_t n_tangent,
                                            cb_trial *t, cb_cut *cut, cb_error *err);
/* Copies a plan to the worker's arena. */
CB_MUST_CHECK cb_status cb_worker_keep(cb_worker *c, const cb_candidate *found, cb_candidate *out,
                                       cb_error *err);
/* Copies the fastest plan that fits; size 0: none. */
CB_MUST_CHECK cb_status cb_worker_keep_fastest(cb_worker *c, uint64_t target, cb_candidate *out,
                                               cb_error *err);
void cb_worker_free(cb_worker *c);

#endif
