#include "requests.h"

#include "model/inside.h"
#include "model/updates.h"

cb_budget cb_lowest_of(const cb_budget *b) {
    const bool saved = b->measure == CB_MEASURE_SAVED;
    return (cb_budget){.kind = saved ? CB_BUDGET_SMALLEST : CB_BUDGET_MIN,
                       .measure = b->measure,
                       .pinned_bytes = b->pinned_bytes};
}

void cb_refusal_add_request(const cb_facts *f, const cb_reference *save_all, const cb_budget *b,
                            cb_refusal *out) {
    const bool has_peak = b->measure != CB_MEASURE_SAVED;
    if (out->reason == CB_REFUSED_REGION) return; /* this refusal is not about the budget */
    out->measure = b->measure;
    if (out->reason != CB_REFUSED_BUDGET && out->reason != CB_REFUSED_STOPPED) return;
    if (b->kind == CB_BUDGET_SHARE) out->share = b->share;
    out->save_all_bytes = cb_reference_bytes(save_all, f->p, b->measure);
    if (has_peak)
        out->held_bytes =
            cb_held_bytes(f) + (b->measure == CB_MEASURE_TOTAL ? f->p->static_bytes : 0);
}

cb_status cb_refuse_saved(cb_error *err) {
    return cb_fail(err, CB_UNSUPPORTED,
                   "plan: offload needs a budget on live, arena or total, not on saved");
}

/* Offload moves all outputs of an op, and PyTorch has no ops with insides. */
cb_status cb_check_insides(const cb_problem *p, cb_preset preset, const cb_facts *f,
                           const cb_budget *b, cb_error *err) {
    if (b->offload != CB_OFFLOAD_ASKED || f->offloads)
        CB_TRY(cb_refuse_updates(p, "plan: offload", err));
    if (b->offload != CB_OFFLOAD_ASKED || f->offloads)
        return cb_refuse_insides(p, "plan: offload", err);
    if (b->kind == CB_BUDGET_NONE && preset == CB_PRESET_TORCH_COMPAT)
        return cb_refuse_insides(p, "torch-compat", err);
    return CB_OK;
}

static cb_status check_budget(const cb_budget *b, cb_error *err) {
    if ((unsigned)b->kind >= CB_BUDGET_KIND_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown kind of budget %d", (int)b->kind);
    if ((unsigned)b->measure >= CB_MEASURE_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown measure %d", (int)b->measure);
    if ((unsigned)b->offload >= CB_OFFLOAD_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown kind of offload %d", (int)b->offload);
    if (b->offload != CB_OFFLOAD_ASKED && b->kind == CB_BUDGET_NONE)
        return cb_fail(err, CB_INVALID, "plan: offload requires a budget");
    if (b->offload != CB_OFFLOAD_ASKED && b->measure == CB_MEASURE_SAVED)
        return cb_refuse_saved(err);
    if (b->kind == CB_BUDGET_SHARE && !(b->share > 0 && b->share <= 1)) {
        return cb_fail(err, CB_INVALID, "budget: the share is %g; it must be above 0 and at most 1",
                       b->share);
    }
    if (b->kind == CB_BUDGET_POSITION && !(b->share >= 0 && b->share <= 1))
        return cb_fail(err, CB_INVALID, "budget: position %g is not in [0, 1]", b->share);
    if (b->kind == CB_BUDGET_MIN && !(b->share >= 0 && b->share <= CB_MOST_EXTRA)) {
        return cb_fail(err, CB_INVALID,
                       "budget: the extra time is %g; it must be a share from 0 to %d", b->share,
                       CB_MOST_EXTRA);
    }
    return CB_OK;
}

/* PyTorch's partitioner does not support such limits. */
cb_status cb_check_regions(const cb_problem *p, cb_preset preset, const cb_budget *b,
                           cb_error *err) {
    bool torch = preset == CB_PRESET_TORCH_COMPAT && b->kind == CB_BUDGET_NONE;
    for (uint32_t r = 0; torch && r < p->n_region; r++) {
        if (p->region_limit[r] == UINT64_MAX) continue;
        return cb_fail(
            err, CB_UNSUPPORTED,
            "torch-compat: region %s has a limit, which PyTorch does not support; choose "
            "another preset or a budget",
            p->region_name[r]);
    }
    return CB_OK;
}

cb_status cb_check_request(cb_preset preset, const cb_budget *budget, uint32_t n, cb_error *err) {
    if ((unsigned)preset >= CB_PRESET_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown preset %d", (int)preset);
    for (uint32_t i = 0; i < n; i++) CB_TRY(check_budget(&budget[i], err));
    return CB_OK;
}
