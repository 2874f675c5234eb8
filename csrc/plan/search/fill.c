#include "fill.h"

#include "improve.h"
#include "prices.h"
#include "tuning.h"

cb_status cb_force_recompute(const cb_facts *f, cb_cut *cut, bool *forced, cb_error *err) {
    bool limited = false;
    for (uint32_t r = 0; r < f->p->n_region; r++) limited |= f->p->region_limit[r] != UINT64_MAX;
    for (uint32_t u = 0; u < f->n_unit; u++) forced[u] = f->wish[u] == CB_MUST_RECOMPUTE;
    if (!limited) return CB_OK;
    CB_TRY(cb_cut_preset(cut, CB_PRESET_AUTOGRAD, err));
    for (uint32_t u = 0; u < f->n_unit; u++) forced[u] |= cut->recompute[u];
    return CB_OK;
}

cb_status cb_try_presets(cb_trial *t, cb_cut *cut, cb_error *err) {
    cb_pairs pairs = {.arena = t->scratch};
    for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
        /* PyTorch's preset does not support insides. The search minimizes time, so these start from
         * bytes. */
        if (t->f->unit_begin && preset == CB_PRESET_TORCH_COMPAT) continue;
        CB_TRY(cb_cut_preset_by_bytes(cut, preset, err));
        CB_TRY(cb_recompute_lazily(t->f, cut->recompute, NULL, &pairs, err));
        CB_TRY(cb_try_pairs(t, pairs.list.at, pairs.list.len, err));
    }
    return CB_OK;
}

cb_status cb_try_for_saved(cb_trial *t, cb_cut *cut, cb_error *err) {
    cb_prices prices;
    uint64_t whole = t->size;
    CB_TRY(cb_prices_init(&prices, t, cut, err));
    for (int rung = 1; rung <= CB_SAVED_TARGETS; rung++) {
        uint64_t target = (uint64_t)((double)whole * (1 - rung / (CB_SAVED_TARGETS + 1.0)));
        CB_TRY(cb_prices_aim(&prices, target, CB_PRICE_NEED, CB_SAVED_STEPS, err));
    }
    for (int rung = 1; rung <= CB_SAVED_TARGETS; rung++) {
        uint64_t target = (uint64_t)((double)whole * (1 - rung / (CB_SAVED_TARGETS + 1.0)));
        CB_TRY(cb_improve_by_mixing(t, target, 1, err));
        CB_TRY(cb_improve_by_removal(t, target, err));
    }
    return CB_OK;
}
