#include "search_saved.h"

#include "frontier.h"

/* Returns the point for a goal on saved bytes, or CB_NONE if no point fits. */
static uint32_t pick(const cb_tradeoffs *t, const cb_goal *goal) {
    double once = (double)t->cut->f->once_ps;
    if (!goal->smallest) return cb_tradeoffs_at(t, goal->bytes);
    for (uint32_t i = 0; i < t->n_point; i++)
        if ((double)t->point[i].time_ps <= once * (1 + goal->share)) return i;
    return CB_NONE;
}

/* Names the largest value that the smallest point saves, because a user can act on it. */
static cb_status fail_budget(const cb_tradeoffs *t, const bool *recompute, const cb_goal *goal,
                             cb_error *err) {
    const cb_facts *f = t->cut->f;
    uint32_t largest = CB_NONE;
    cb_refusal refusal = {.budget_bytes = UINT64_MAX, .smallest_bytes = t->point->saved_bytes};
    if (goal->smallest) {
        refusal.reason = CB_REFUSED_TIME;
        refusal.max_extra = goal->share;
        refusal.least_extra = (double)t->point[t->n_point - 1].time_ps / (double)f->once_ps - 1;
        return cb_refuse(err, &refusal);
    }
    refusal.reason = CB_REFUSED_BUDGET;
    refusal.budget_bytes = goal->bytes;
    for (uint32_t i = 0; i < t->cut->n_save; i++) {
        uint32_t s = t->cut->save_storage[i];
        if (recompute[f->unit[s]]) continue;
        if (largest == CB_NONE || f->p->storage_bytes[s] > f->p->storage_bytes[largest])
            largest = s;
    }
    if (largest != CB_NONE) cb_refusal_set_op(&refusal, f->p, f->root[largest]);
    return cb_refuse(err, &refusal);
}

/* Computes the lower bound at the budget, not at the answer's bytes: plans within the budget may
 * save more than the answer and take less time. */
static cb_status bound_answer(const cb_tradeoffs *t, const cb_goal *goal, uint32_t point,
                              double *least_ps, cb_error *err) {
    int64_t extra = t->point[point].bound_ps - t->cut->f->once_ps;
    int64_t budget = (int64_t)(goal->bytes < INT64_MAX ? goal->bytes : INT64_MAX);
    *least_ps = -1;
    if (!t->has_bound) return CB_OK;
    if (!goal->smallest)
        CB_TRY(cb_frontier_bound(&t->frontier, budget - (int64_t)t->sure_bytes, &extra, err));
    *least_ps = (double)extra;
    return CB_OK;
}

static cb_status answer(const cb_tradeoffs *t, const cb_goal *goal, cb_arena *scratch,
                        cb_found *out, cb_error *err) {
    const cb_facts *f = t->cut->f;
    uint32_t i = pick(t, goal);
    bool *recompute = CB_NEW(scratch, bool, f->n_unit);
    if (!recompute) return cb_no_memory(err);
    cb_tradeoffs_recompute(t, i == CB_NONE ? 0 : i, recompute);
    if (i == CB_NONE) return fail_budget(t, recompute, goal, err);
    CB_TRY(bound_answer(t, goal, i, &out->least_extra_ps, err));
    return cb_recompute_lazily(f, recompute, NULL, &out->pairs, err);
}

cb_status cb_search_saved(const cb_facts *f, const cb_cut *cut, cb_preset preset,
                          const cb_goal *goal, cb_found *out, cb_error *err) {
    cb_tradeoffs t;
    cb_arena scratch;
    if (cb_poll_cancels(goal->poll)) return cb_fail(err, CB_CANCELLED, "plan: cancelled");
    cb_arena_init(&scratch, f->alloc);
    if (preset == CB_PRESET_AUTOGRAD) preset = CB_PRESET_RECOMPUTE_ALL;
    cb_status status = cb_tradeoffs_make(&t, cut, preset, &scratch, err);
    if (status == CB_OK) status = answer(&t, goal, &scratch, out, err);
    cb_arena_free(&scratch);
    return status;
}
