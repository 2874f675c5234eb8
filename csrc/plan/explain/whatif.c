#include "whatif.h"

#include "../schedule/decisions.h"

/* ---- the plan as it is ----------------------------------------------------------------------- */

static bool same_schedule(const cb_sim *sim, const cb_schedule *s) {
    uint32_t n = 0;
    if (sim->n_step != s->n_step || sim->backward_starts != s->backward_starts) return false;
    for (size_t t = 0; t < sim->step.len; t++) {
        const cb_sim_step *step = &sim->step.at[t];
        if (!sim->keep.at[t]) continue;
        bool inner = cb_has_inside(sim->f->p, step->op);
        if (step->op != s->step[n]) return false;
        if (inner && step->made != cb_made_at(sim->f->p, s, n)) return false;
        if ((sim->taken.len > 0 ? sim->taken.at[t] : 0) != cb_taken_at(s, n)) return false;
        n++;
    }
    return true;
}

static void note_steps(cb_whatif *w) {
    const cb_sim *sim = &w->sim;
    for (size_t t = sim->step.len; t-- > 0;) {
        const cb_sim_step *step = &sim->step.at[t];
        if (!sim->keep.at[t]) continue;
        uint32_t at = sim->new_index.at[t];
        w->start[step->anchor] = at;
        if (at < sim->backward_starts) continue;
        size_t end = t + 1 < sim->step.len ? sim->step.at[t + 1].reads : sim->read.len;
        for (size_t j = step->reads; j < end; j++) {
            uint32_t life = sim->read.at[j].life;
            if (life != CB_NONE) w->need[sim->life.at[life].storage] = step->anchor;
        }
    }
}

static void note_run(cb_whatif *w, uint32_t unit, bool late, bool *ran) {
    w->again[unit] |= ran[unit] || late;
    ran[unit] = true;
}

/* Notes the runs of each op, or of each output, and the inlined values. */
static void note_reruns(cb_whatif *w, const cb_schedule *s, bool *ran) {
    const cb_facts *f = w->f;
    const cb_problem *p = f->p;
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t], made = cb_made_at(p, s, t);
        uint64_t taken = cb_taken_at(s, t);
        bool late = t >= s->backward_starts;
        if (!cb_has_units(f, op)) note_run(w, op, late, ran);
        for (uint32_t v = p->out_begin[op]; cb_has_units(f, op) && v < p->out_begin[op + 1]; v++) {
            uint32_t at = v - p->out_begin[op];
            if (cb_makes(made, at)) note_run(w, f->unit_begin[op] + at, late, ran);
        }
        for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
            if (!(taken >> i & 1)) continue;
            uint32_t v = p->inlining[p->inline_begin[op] + i].value;
            uint32_t unit = f->unit[p->value_storage[v]];
            if (unit != CB_NONE) note_run(w, unit, late, ran);
        }
    }
}

static bool copy_lives(cb_whatif *w) {
    const cb_sim *sim = &w->sim;
    uint32_t n_storage = w->f->p->n_storage;
    w->life = CB_NEW(&w->arena, cb_sim_life, sim->life.len);
    if (!w->life) return false;
    for (size_t i = 0; i < sim->life.len; i++) w->life_begin[sim->life.at[i].storage + 1]++;
    for (uint32_t s = 0; s < n_storage; s++) w->life_begin[s + 1] += w->life_begin[s];
    /* Fill each list backwards: its life_begin moves from the list's end to its beginning. */
    for (size_t i = sim->life.len; i-- > 0;)
        w->life[--w->life_begin[sim->life.at[i].storage + 1]] = sim->life.at[i];
    for (uint32_t s = 0; s < n_storage; s++) w->life_begin[s] = w->life_begin[s + 1];
    w->life_begin[n_storage] = (uint32_t)sim->life.len;
    return true;
}

static cb_status take_stock(cb_whatif *w, const cb_schedule *s, cb_error *err) {
    const cb_facts *f = w->f;
    cb_decisions found;
    CB_TRY(cb_decisions_of(f, s, &w->arena, &found, err));
    w->schedule = *s;
    w->base = found.base;
    w->pairs = found.pairs;
    w->other.arena = &w->arena;
    CB_TRY(cb_sim_run(&w->sim, w->pairs.list.at, w->pairs.list.len, err));
    w->exact = same_schedule(&w->sim, s);
    w->peak_bytes = w->sim.peak;
    w->saved_bytes = w->sim.saved;
    w->time_ps = w->sim.time_ps;
    CB_TRY_NEW(w->start, &w->arena, f->n_base, err);
    CB_TRY_NEW(w->need, &w->arena, f->p->n_storage, err);
    CB_TRY_NEW(w->life_begin, &w->arena, (size_t)f->p->n_storage + 1, err);
    CB_TRY_NEW(w->asked_in, &w->arena, f->n_unit, err);
    CB_TRY_NEW(w->again, &w->arena, f->n_unit, err);
    bool *ran = CB_NEW(&w->arena, bool, f->n_unit);
    if (!ran) return cb_no_memory(err);
    note_reruns(w, s, ran);
    for (uint32_t k = 0; k < f->n_base; k++) w->start[k] = CB_NONE;
    for (uint32_t i = 0; i < f->p->n_storage; i++) w->need[i] = CB_NONE;
    note_steps(w);
    return copy_lives(w) ? CB_OK : cb_no_memory(err);
}

cb_status cb_whatif_init(cb_whatif *w, const cb_facts *f, const cb_schedule *s, cb_alloc *alloc,
                         cb_error *err) {
    *w = (cb_whatif){.f = f};
    CB_TRY(cb_sim_init(&w->sim, f, alloc, err));
    cb_arena_init(&w->arena, alloc);
    cb_status status = take_stock(w, s, err);
    if (status != CB_OK) cb_whatif_free(w);
    return status;
}

void cb_whatif_free(cb_whatif *w) {
    cb_sim_free(&w->sim);
    cb_arena_free(&w->arena);
}

/* ---- the alternative ------------------------------------------------------------------------- */

static bool has_pair(const cb_whatif *w, cb_pair pair) {
    size_t low = 0, high = w->pairs.list.len;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (w->pairs.list.at[middle] < pair) low = middle + 1;
        else high = middle;
    }
    return low < w->pairs.list.len && w->pairs.list.at[low] == pair;
}

static bool is_alive(const cb_whatif *w, uint32_t storage, uint32_t anchor) {
    uint32_t step = w->start[anchor];
    for (uint32_t i = w->life_begin[storage]; i < w->life_begin[storage + 1]; i++) {
        const cb_sim_life *life = &w->life[i];
        if (life->made != CB_NONE && life->made < step && life->last >= step) return true;
    }
    return false;
}

/* Adds `top` at `anchor`, and the inputs that are not in memory. */
static bool add_chain(cb_whatif *w, uint32_t top, uint32_t anchor) {
    const cb_facts *f = w->f;
    const cb_problem *p = f->p;
    w->asks++;
    w->stack.len = 0;
    w->asked_in[top] = w->asks;
    if (!CB_PUSH(&w->arena, w->stack, top)) return false;
    while (w->stack.len > 0) {
        uint32_t id = w->stack.at[--w->stack.len], op = cb_unit_op(f, id);
        bool view = cb_is_view(f, op); /* updated at no cost */
        if (!view && !CB_PUSH(&w->arena, w->other.list, cb_pair_make(anchor, id))) return false;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, id));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t v = p->in_value[j], s = p->value_storage[v], unit = f->unit[s];
            if (!cb_slice_reads(slice, j - p->in_begin[op])) continue;
            if (unit == CB_NONE || f->position[unit] >= f->base_backward) continue;
            uint32_t maker = cb_is_view(f, p->value_op[v]) ? p->value_op[v] : unit;
            if (w->asked_in[maker] == w->asks || !cb_may_rerun(f, unit) || is_alive(w, s, anchor) ||
                has_pair(w, cb_pair_make(anchor, unit)) ||
                has_pair(w, cb_pair_make(anchor, unit | CB_INLINE)))
                continue;
            w->asked_in[maker] = w->asks;
            if (!CB_PUSH(&w->arena, w->stack, maker)) return false;
        }
    }
    return true;
}

typedef struct steps { /* the steps of a schedule that is being built */
    uint32_t n, *step, *made;
    uint64_t *taken;
} steps;

static void add_step(steps *out, uint32_t op, uint32_t made, uint64_t taken) {
    out->step[out->n] = op;
    out->made[out->n] = made;
    out->taken[out->n++] = taken;
}

/* Returns the values inlined into a step if every step may read `value` in memory. */
static uint64_t taken_beside(const cb_whatif *w, uint32_t step, uint32_t made, uint32_t value) {
    const cb_problem *p = w->f->p;
    uint32_t op = w->schedule.step[step];
    uint64_t taken = cb_taken_at(&w->schedule, step);
    return taken ? cb_taken_read(p, op, made, taken & ~cb_inlining_bit(p, op, value)) : 0;
}

/* Makes the schedule in which the unit `top` runs only in the forward. */
static void drop_reruns(const cb_whatif *w, uint32_t top, steps *to, cb_schedule *out) {
    const cb_schedule *s = &w->schedule;
    const cb_facts *f = w->f;
    uint32_t op = cb_unit_op(f, top), own = cb_unit_made(f, top), value = cb_unit_value(f, top);
    bool placed = false;
    for (uint32_t t = 0; t <= s->n_step; t++) {
        bool base = t < s->n_step && w->base[t];
        bool behind = base && f->position[s->step[t]] >= f->position[top];
        bool joins = !placed && behind && s->step[t] == op && t < s->backward_starts;
        if (!placed && (behind || t == s->backward_starts)) {
            placed = true;
            if (!joins) add_step(to, op, own, 0);
        }
        if (t == s->backward_starts) out->backward_starts = to->n;
        if (t == s->n_step) break;
        uint32_t made = cb_made_at(f->p, s, t);
        if (s->step[t] == op) made = joins ? made | own : made & ~own;
        if (made) add_step(to, s->step[t], made, taken_beside(w, t, made, value));
    }
    out->n_step = to->n;
    out->step = to->step;
    out->made = to->made;
    out->taken = f->inlines ? to->taken : NULL;
}

/* Reruns that served the dropped reruns and others now serve only the others, so decisions are
 * derived from the schedule again. */
static cb_status save_instead(cb_whatif *w, uint32_t op, cb_error *err) {
    cb_arena scratch;
    cb_schedule other = {0};
    cb_decisions found;
    cb_arena_init(&scratch, w->f->alloc);
    cb_status status = CB_OK;
    size_t most = (size_t)w->schedule.n_step + 1;
    steps to = {.step = CB_NEW(&scratch, uint32_t, most),
                .made = CB_NEW(&scratch, uint32_t, most),
                .taken = CB_NEW(&scratch, uint64_t, most)};
    if (!to.step || !to.made || !to.taken) status = cb_no_memory(err);
    if (status == CB_OK) {
        drop_reruns(w, op, &to, &other);
        status = cb_decisions_of(w->f, &other, &scratch, &found, err);
    }
    if (status == CB_OK)
        status = cb_sim_run(&w->sim, found.pairs.list.at, found.pairs.list.len, err);
    cb_arena_free(&scratch);
    return status;
}

static cb_status recompute_instead(cb_whatif *w, uint32_t op, uint32_t anchor, cb_error *err) {
    size_t n = w->pairs.list.len;
    w->other.list.len = 0;
    if (!CB_RESERVE(&w->arena, w->other.list, n)) return cb_no_memory(err);
    for (size_t i = 0; i < n; i++) w->other.list.at[w->other.list.len++] = w->pairs.list.at[i];
    if (!add_chain(w, op, anchor)) return cb_no_memory(err);
    cb_sort_pairs(w->other.list.at, w->other.list.len);
    return cb_sim_run(&w->sim, w->other.list.at, w->other.list.len, err);
}

cb_status cb_whatif_flip(cb_whatif *w, uint32_t storage, cb_change *out, cb_error *err) {
    const cb_facts *f = w->f;
    uint32_t op = f->unit[storage], anchor = w->need[storage];
    *out = (cb_change){0};
    if (!w->exact || op == CB_NONE || f->position[op] >= f->base_backward ||
        cb_stays_to_end(f, storage))
        return CB_OK;
    bool saved = !w->again[op];
    if (saved && (!cb_may_rerun(f, op) || anchor == CB_NONE)) return CB_OK;
    CB_TRY(saved ? recompute_instead(w, op, anchor, err) : save_instead(w, op, err));
    *out = (cb_change){.known = true,
                       .peak_bytes = (int64_t)(w->sim.peak - w->peak_bytes),
                       .saved_bytes = (int64_t)(w->sim.saved - w->saved_bytes),
                       .time_ps = w->sim.time_ps - w->time_ps};
    return CB_OK;
}
