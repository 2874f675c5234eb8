#include "exact.h"

#include "../tuning.h"
#include "exact_parts.h"

/* True if the problem has only features that the states represent. */
static bool is_plain(const cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t r = 0; r < p->n_region; r++) {
        if (p->region_limit[r] != UINT64_MAX) return false;
    }
    for (uint32_t op = 0; op < f->n_unit; op++) {
        if (f->wish[op] != CB_FREE && f->wish[op] != CB_MUST_SAVE) return false;
        if (cb_is_view(f, op) && (p->op_workspace[op] > 0 || f->stays[op]))
            return false; /* states do not represent views */
    }
    return true;
}

cb_status cb_exact_suits(const cb_facts *f, bool *suits, cb_error *err) {
    uint32_t n;
    /* states represent only reruns of the forward, and do not tell which values were saved */
    *suits = f->n_base > 0 && f->n_base <= CB_EXACT_STATES >> 1 && is_plain(f) &&
             !cb_may_delay_any(f) && !f->p->updates && !f->p->keep_saved;
    if (!*suits) return CB_OK;
    *suits = false;
    CB_TRY(cb_exact_count_bits(f, &n, err));
    *suits = n <= CB_EXACT_BITS && f->n_base + 2 <= CB_EXACT_STATES >> n;
    return CB_OK;
}

cb_status cb_exact_fastest(const cb_facts *f, const cb_goal *goal, uint64_t bytes, cb_arena *arena,
                           cb_schedule *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    solver z;
    label best;
    cb_status status;
    *out = (cb_schedule){0};
    CB_TRY_DONE(cb_exact_set_up(&z, f, &scratch, err));
    CB_TRY_DONE(cb_exact_solve(&z, goal, bytes, &best, err));
    if (best.time_ps >= 0 && !cb_exact_write(&z, best.set, arena, out)) status = cb_no_memory(err);
done:
    cb_arena_free(&scratch);
    return status;
}

/* Returns bytes that are enough for every event in every state. */
static uint64_t most_bytes(const solver *z) {
    uint64_t fixed = 0, room = 0;
    for (uint32_t stage = 0; stage <= z->n_stage; stage++)
        if (z->fixed[stage] > fixed) fixed = z->fixed[stage];
    for (uint32_t i = 0; i < z->base_begin[z->f->n_base]; i++)
        if (z->base[i].room > room) room = z->base[i].room;
    for (uint32_t i = 0; i < z->n_rerun; i++)
        if (z->rerun[i].room > room) room = z->rerun[i].room;
    return fixed + room + z->set_bytes[((size_t)1 << z->n_bit) - 1];
}

/* Probes are in the lower part of the range, because those that find no plan take less time. */
cb_status cb_exact_smallest(const cb_facts *f, const cb_goal *goal, int64_t most_ps,
                            cb_arena *arena, cb_schedule *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    solver z;
    label best;
    uint64_t low = 0, high; /* no plan at `low`; one of `high` bytes, if there is any */
    cb_status status;
    *out = (cb_schedule){0};
    CB_TRY_DONE(cb_exact_set_up(&z, f, &scratch, err));
    z.most_ps = most_ps;
    high = most_bytes(&z) + 2;
    for (int i = 0; i < CB_EXACT_PROBES && low + 1 < high; i++) {
        uint64_t middle = low + 1 + (high - low - 2) / (i < CB_EXACT_LOW_PROBES ? 4 : 2);
        CB_TRY_DONE(cb_exact_solve(&z, goal, middle, &best, err));
        if (best.time_ps < 0) {
            low = z.refused - 1; /* with fewer bytes no further op can run */
            continue;
        }
        high = best.peak; /* this plan is also the fastest within its own peak */
        if (!cb_exact_write(&z, best.set, arena, out)) CB_TRY_DONE(cb_no_memory(err));
    }
done:
    cb_arena_free(&scratch);
    return status;
}
