#include "room.h"

cb_status cb_room_init(cb_room *r, const cb_steps *steps, const cb_groups *units, cb_arena *arena,
                       cb_error *err) {
    const uint32_t n_step = steps->plan->schedule.n_step;
    *r = (cb_room){.steps = steps, .units = units, .limit = steps->plan->live_bytes};
    CB_TRY_NEW(r->unit_of, arena, n_step, err);
    CB_TRY_NEW(r->left, arena, steps->n_place, err);
    CB_TRY_NEW(r->group, arena, units->n_group, err);
    for (uint32_t step = 0; step < n_step; step++) r->unit_of[step] = CB_NONE;
    for (uint32_t u = 0; u < units->n_group; u++)
        for (uint32_t i = units->begin[u]; i < units->begin[u + 1]; i++)
            r->unit_of[units->step[i]] = u;
    cb_room_reset(r);
    return CB_OK;
}

void cb_room_reset(cb_room *r) {
    r->before = r->made = r->current = 0;
    for (uint32_t i = 0; i < r->steps->n_place; i++) r->left[i] = r->steps->reads[i];
    for (uint32_t u = 0; u < r->units->n_group; u++) r->group[u] = CB_NONE;
}

/* False for a storage that the plan does not place, such as an argument's (steps.h). */
static bool is_placed(const cb_room *r, uint32_t place) {
    return place < r->steps->plan->lives.n_instance;
}

static uint64_t bytes_of(const cb_room *r, uint32_t place) {
    if (!is_placed(r, place) || r->units->life[place].is_local) return 0;
    return r->steps->plan->lives.instance[place].bytes;
}

/* True if the value still has readers or is held to the end. */
static bool stays(const cb_room *r, uint32_t place) {
    return r->left[place] > 0 || !is_placed(r, place) ||
           r->units->life[place].last == r->units->n_group;
}

/* Returns the counter that this place belongs to: bytes made in the current group, or before it. */
static uint64_t *tally_of(cb_room *r, uint32_t place) {
    const uint32_t maker = r->steps->maker[place];
    const bool is_own = maker != CB_NONE && r->group[r->unit_of[maker]] == r->current;
    return is_own ? &r->made : &r->before;
}

/* True if the gradient exists after the step. */
static bool is_made(const cb_room *r, uint32_t gradient, uint32_t step) {
    const uint32_t maker = r->steps->maker[gradient], unit = r->unit_of[maker];
    return r->group[unit] != CB_NONE && (unit != r->unit_of[step] || maker <= step);
}

static void run_step(cb_room *r, uint32_t step) {
    const cb_op *op = cb_step_op(r->steps, step);
    for (uint32_t k = 0; k < op->n_out; k++) {
        const uint32_t place = cb_place_out(r->steps, step, k);
        if (stays(r, place)) r->made += bytes_of(r, place);
    }
    for (uint32_t k = 0; k < op->n_in; k++) {
        const uint32_t place = cb_place_in(r->steps, step, k);
        r->left[place]--;
        if (!stays(r, place)) *tally_of(r, place) -= bytes_of(r, place);
        const uint32_t gradient = cb_gradient_of(r->steps, place);
        if (gradient == CB_NONE) continue;
        r->left[gradient]--;
        if (is_made(r, gradient, step) && !stays(r, gradient))
            *tally_of(r, gradient) -= bytes_of(r, gradient);
    }
}

static void undo_step(cb_room *r, uint32_t step) {
    const cb_op *op = cb_step_op(r->steps, step);
    for (uint32_t k = op->n_in; k-- > 0;) {
        const uint32_t place = cb_place_in(r->steps, step, k),
                       gradient = cb_gradient_of(r->steps, place);
        if (gradient != CB_NONE) {
            if (is_made(r, gradient, step) && !stays(r, gradient))
                *tally_of(r, gradient) += bytes_of(r, gradient);
            r->left[gradient]++;
        }
        if (!stays(r, place)) *tally_of(r, place) += bytes_of(r, place);
        r->left[place]++;
    }
    for (uint32_t k = 0; k < op->n_out; k++) {
        const uint32_t place = cb_place_out(r->steps, step, k);
        if (stays(r, place)) r->made -= bytes_of(r, place);
    }
}

static void run(cb_room *r, uint32_t unit) {
    const cb_groups *u = r->units;
    r->group[unit] = r->current;
    for (uint32_t i = u->begin[unit]; i < u->begin[unit + 1]; i++) run_step(r, u->step[i]);
}

static void undo(cb_room *r, uint32_t unit) {
    const cb_groups *u = r->units;
    for (uint32_t i = u->begin[unit + 1]; i-- > u->begin[unit];) undo_step(r, u->step[i]);
    r->group[unit] = CB_NONE;
}

/* Returns the bytes that a unit of one step takes over as planned. Another unit that reads that
 * memory may have been passed over. */
static uint64_t taken_bytes(const cb_room *r, uint32_t unit) {
    const cb_groups *u = r->units;
    const cb_lives *lives = &r->steps->plan->lives;
    if (!lives->over || u->begin[unit + 1] - u->begin[unit] != 1) return 0;
    const uint32_t to = cb_place_out(r->steps, u->step[u->begin[unit]], 0);
    if (!is_placed(r, to) || lives->over[to] == CB_NONE || r->left[lives->over[to]] != 1) return 0;
    return bytes_of(r, to);
}

/* Returns the bytes that a unit takes in addition to what is alive when it runs. */
static uint64_t own_bytes(const cb_room *r, uint32_t unit) {
    const cb_groups *u = r->units;
    uint64_t bytes = 0;
    for (uint32_t i = u->begin[unit]; i < u->begin[unit + 1]; i++) {
        const uint32_t step = u->step[i];
        bytes += cb_step_scratch(r->steps, step);
        for (uint32_t k = 0; k < cb_step_op(r->steps, step)->n_out; k++)
            bytes += bytes_of(r, cb_place_out(r->steps, step, k));
    }
    return bytes - taken_bytes(r, unit);
}

/* True if the remaining units fit, run one at a time. The trial is undone. */
static bool others_fit(cb_room *r, uint32_t first, uint32_t end) {
    uint32_t at = first;
    bool fits = true;
    for (; at < end && fits; at++) {
        if (r->group[at] != CB_NONE) continue;
        fits = r->before + r->made + own_bytes(r, at) <= r->limit;
        if (!fits) break;
        run(r, at);
        r->group[at] = r->current + 1; /* differs from the mark of members */
    }
    while (at-- > first) {
        if (r->group[at] != r->current + 1) continue;
        r->group[at] = r->current;
        undo(r, at);
    }
    return fits;
}

/* Returns the scratch that a unit adds to that of earlier units in a group. */
static uint64_t own_scratch(const cb_room *r, const uint32_t *unit, uint32_t i) {
    const cb_groups *u = r->units;
    uint64_t bytes = 0;
    for (uint32_t k = u->begin[unit[i]]; k < u->begin[unit[i] + 1]; k++) {
        bool is_shared = false;
        for (uint32_t j = 0; j < i && !is_shared; j++)
            for (uint32_t m = u->begin[unit[j]]; m < u->begin[unit[j] + 1] && !is_shared; m++)
                is_shared = cb_step_shares_scratch(r->steps, u->step[k], u->step[m]);
        if (!is_shared) bytes += cb_step_scratch(r->steps, u->step[k]);
    }
    return bytes;
}

static bool ends(const void *user, uint32_t instance) { return !stays(user, instance); }

static uint32_t count_steps(const cb_groups *u, const uint32_t *unit, uint32_t n) {
    uint32_t n_step = 0;
    for (uint32_t i = 0; i < n; i++) n_step += u->begin[unit[i] + 1] - u->begin[unit[i]];
    return n_step;
}

/* Returns the bytes taken over by units that have just run as one group. */
static uint64_t taken_together(const cb_room *r, const cb_joining *joining, const uint32_t *unit,
                               uint32_t n) {
    const cb_taking x = {.steps = r->steps,
                         .step = joining->step,
                         .n = count_steps(r->units, unit, n),
                         .ends = ends,
                         .user = r};
    uint64_t bytes = 0;
    bool is_pointwise = r->steps->plan->lives.over;
    for (uint32_t i = 0; i < x.n && is_pointwise; i++)
        is_pointwise = cb_part_may_take(joining->part[i]);
    for (uint32_t i = 0; i < x.n && is_pointwise; i++) {
        const uint32_t to = cb_place_out(r->steps, x.step[i], 0);
        if (stays(r, to) && cb_taken(&x, i) != CB_NONE) bytes += bytes_of(r, to);
    }
    return bytes;
}

uint32_t cb_room_for(cb_room *r, const cb_joining *joining, const uint32_t *unit, uint32_t n,
                     uint32_t first, uint32_t end) {
    const uint64_t before = r->before;
    uint64_t scratch = 0;
    uint32_t best = 1;
    for (uint32_t i = 0; i < n; i++) {
        run(r, unit[i]);
        scratch += own_scratch(r, unit, i);
        const uint64_t bytes = before + r->made + scratch;
        if (i == 0) continue;
        if (bytes > r->limit && bytes - taken_together(r, joining, unit, i + 1) > r->limit)
            continue;
        if (others_fit(r, first, end)) best = i + 1;
    }
    for (uint32_t i = n; i-- > 0;) undo(r, unit[i]);
    return best;
}

void cb_room_take(cb_room *r, const uint32_t *unit, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) run(r, unit[i]);
    r->before += r->made;
    r->made = 0;
    r->current++;
}
