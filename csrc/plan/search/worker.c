#include "worker.h"

cb_status cb_worker_init(cb_worker *c, cb_trial *t, cb_cut *cut, const bool *may_rerun,
                         uint64_t whole, cb_error *err) {
    cb_arena *a = t->scratch;
    *c = (cb_worker){.t = t, .may_rerun = may_rerun, .whole = whole};
    CB_TRY_NEW(c->work, a, 1, err);
    c->work->alloc = a->alloc;
    CB_TRY(cb_prices_init(&c->prices, t, cut, err));
    CB_TRY(cb_ledger_init(&c->ledger, t->f, may_rerun, a->alloc, err));
    return cb_moves_init(&c->moves, t, &c->ledger, a, whole, err);
}

cb_status cb_worker_init_like(cb_worker *c, const cb_worker *like, size_t n_tangent, cb_trial *t,
                              cb_cut *cut, cb_error *err) {
    CB_TRY(cb_worker_init(c, t, cut, like->may_rerun, like->whole, err));
    c->moves.pace = like->moves.pace;
    for (size_t i = 0; i < n_tangent; i++) {
        if (!CB_PUSH(t->scratch, c->prices.tangent, like->prices.tangent.at[i]) ||
            !CB_PUSH(t->scratch, c->prices.guess, like->prices.guess.at[i]))
            return cb_no_memory(err);
    }
    return CB_OK;
}

void cb_worker_free(cb_worker *c) {
    cb_ledger_free(&c->ledger);
    if (c->work) cb_candidates_free(c->work);
}

cb_status cb_worker_keep(cb_worker *c, const cb_candidate *found, cb_candidate *out,
                         cb_error *err) {
    *out = *found;
    CB_TRY_NEW(out->pair, c->t->scratch, found->n_pair, err);
    if (found->n_pair > 0) memcpy(out->pair, found->pair, found->n_pair * sizeof *found->pair);
    return CB_OK;
}

cb_status cb_worker_keep_fastest(cb_worker *c, uint64_t target, cb_candidate *out, cb_error *err) {
    uint32_t at = cb_candidates_fitting(c->work, target);
    *out = (cb_candidate){0};
    return at == CB_NONE ? CB_OK : cb_worker_keep(c, &c->work->at[at], out, err);
}
