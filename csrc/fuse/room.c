#include "room.h"

cb_status cb_room_init(cb_room *r, const cb_steps *steps, cb_arena *arena, cb_error *err) {
    const uint32_t n_step = steps->plan->schedule.n_step;
    *r = (cb_room){.steps = steps, .limit = steps->plan->live_bytes};
    r->left = CB_NEW(arena, uint32_t, steps->n_place);
    r->group = CB_NEW(arena, uint32_t, n_step);
    if (!r->left || !r->group) return cb_no_memory(err);
    for (uint32_t i = 0; i < steps->n_place; i++) r->left[i] = steps->reads[i];
    for (uint32_t i = 0; i < n_step; i++) r->group[i] = CB_NONE;
    return CB_OK;
}

static bool stays(const cb_room *r, uint32_t place) {
    return r->left[place] > 0 || cb_place_held(r->steps, place);
}

/* Bytes of this kind: of the group at hand, or before it. */
static uint64_t *tally_of(cb_room *r, uint32_t place) {
    const uint32_t maker = r->steps->maker[place];
    return maker != CB_NONE && r->group[maker] == r->current ? &r->made : &r->before;
}

static uint64_t output_bytes(const cb_room *r, uint32_t step) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < cb_step_op(r->steps, step)->n_out; k++)
        bytes += cb_place_bytes(r->steps, cb_place_out(r->steps, step, k));
    return bytes;
}

static void run(cb_room *r, uint32_t step) {
    const cb_op *op = cb_step_op(r->steps, step);
    r->group[step] = r->current;
    for (uint32_t k = 0; k < op->n_out; k++) {
        const uint32_t place = cb_place_out(r->steps, step, k);
        if (stays(r, place)) r->made += cb_place_bytes(r->steps, place);
    }
    for (uint32_t k = 0; k < op->n_in; k++) {
        const uint32_t place = cb_place_in(r->steps, step, k);
        r->left[place]--;
        if (!stays(r, place)) *tally_of(r, place) -= cb_place_bytes(r->steps, place);
    }
}

static void undo(cb_room *r, uint32_t step) {
    const cb_op *op = cb_step_op(r->steps, step);
    for (uint32_t k = op->n_in; k-- > 0;) {
        const uint32_t place = cb_place_in(r->steps, step, k);
        if (!stays(r, place)) *tally_of(r, place) += cb_place_bytes(r->steps, place);
        r->left[place]++;
    }
    for (uint32_t k = 0; k < op->n_out; k++) {
        const uint32_t place = cb_place_out(r->steps, step, k);
        if (stays(r, place)) r->made -= cb_place_bytes(r->steps, place);
    }
    r->group[step] = CB_NONE;
}

/* Whether the steps that have not run fit, one at a time. They are undone again. */
static bool others_fit(cb_room *r, const uint32_t *real, uint32_t n_real) {
    uint32_t n = 0;
    bool fits = true;
    for (; n < n_real && fits; n++) {
        if (r->group[real[n]] != CB_NONE) continue;
        const uint64_t bytes = output_bytes(r, real[n]) + cb_step_scratch(r->steps, real[n]);
        fits = r->before + r->made + bytes <= r->limit;
        if (!fits) break;
        run(r, real[n]);
        r->group[real[n]] = r->current + 1; /* told apart from members */
    }
    while (n-- > 0) {
        if (r->group[real[n]] != r->current + 1) continue;
        r->group[real[n]] = r->current;
        undo(r, real[n]);
    }
    return fits;
}

/* Bytes of the scratch that member i of a group adds to that of those before it. */
static uint64_t own_scratch(const cb_steps *s, const uint32_t *step, uint32_t i) {
    for (uint32_t k = 0; k < i; k++) {
        if (cb_step_shares_scratch(s, step[i], step[k])) return 0;
    }
    return cb_step_scratch(s, step[i]);
}

uint32_t cb_room_for(cb_room *r, const uint32_t *step, uint32_t n, const uint32_t *real,
                     uint32_t n_real) {
    const uint64_t before = r->before;
    uint64_t scratch = 0;
    uint32_t best = 1;
    for (uint32_t i = 0; i < n; i++) {
        run(r, step[i]);
        scratch += own_scratch(r->steps, step, i);
        if (i == 0 || before + r->made + scratch > r->limit) continue;
        if (others_fit(r, real, n_real)) best = i + 1;
    }
    for (uint32_t i = n; i-- > 0;) undo(r, step[i]);
    return best;
}

void cb_room_take(cb_room *r, const uint32_t *step, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) run(r, step[i]);
    r->before += r->made;
    r->made = 0;
    r->current++;
}
