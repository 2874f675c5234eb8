/* There are three linear passes: build the steps with their reads (sim_build.c); mark needed steps,
 * from the end; sum lives over the steps that are kept. */
#include "../model/over.h"
#include "sim_parts.h"

static uint32_t *list_held(cb_arena *a, const cb_problem *p, uint32_t flag, uint32_t *n) {
    uint32_t *held = CB_NEW(a, uint32_t, p->n_storage);
    for (uint32_t s = 0; held && s < p->n_storage; s++)
        if (p->storage_flags[s] & flag) held[(*n)++] = s;
    return held;
}

static uint32_t *list_updating(cb_arena *a, const cb_problem *p, uint32_t *n) {
    uint32_t *updating = CB_NEW(a, uint32_t, p->updates ? p->n_storage : 0);
    for (uint32_t s = 0; updating && p->updates && s < p->n_storage; s++)
        if (cb_is_updating(p, s)) updating[(*n)++] = s;
    return updating;
}

/* The base order may change later, so these are ops, not positions. */
static uint32_t *list_acting(cb_arena *a, const cb_problem *p, uint32_t *n) {
    uint32_t *acting = CB_NEW(a, uint32_t, p->n_op);
    for (uint32_t op = 0; acting && op < p->n_op; op++)
        if (p->op_flags[op] & CB_POP_ACTS) acting[(*n)++] = op;
    return acting;
}

static bool *mark_readers_of_views(cb_arena *a, const cb_facts *f) {
    const cb_problem *p = f->p;
    bool *reads = CB_NEW(a, bool, p->n_op);
    for (uint32_t op = 0; reads && op < p->n_op; op++) {
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            const uint32_t v = p->in_value[j];
            if (f->root[p->value_storage[v]] != p->value_op[v]) reads[op] = true;
        }
    }
    return reads;
}

cb_status cb_sim_init(cb_sim *sim, const cb_facts *f, cb_alloc *alloc, cb_error *err) {
    const cb_problem *p = f->p;
    *sim = (cb_sim){.f = f};
    cb_arena_init(&sim->arena, alloc);
    sim->value_step = CB_NEW(&sim->arena, uint32_t, p->n_value);
    sim->value_life = CB_NEW(&sim->arena, uint32_t, p->n_value);
    sim->latest = CB_NEW(&sim->arena, uint32_t, p->n_storage);
    sim->base_step = CB_NEW(&sim->arena, uint32_t, f->n_base);
    sim->first_life = CB_NEW(&sim->arena, uint32_t, p->n_storage);
    sim->marked = CB_NEW(&sim->arena, uint32_t, f->n_unit);
    sim->done = CB_NEW(&sim->arena, uint32_t, f->n_unit);
    bool asks = f->unit_begin || f->inlines;
    if (asks) sim->reached = CB_NEW(&sim->arena, uint32_t, f->n_unit);
    sim->moment = CB_NEW(&sim->arena, uint64_t, f->n_base);
    sim->held_forward = list_held(&sim->arena, p, CB_STORE_HOLD_FORWARD, &sim->n_held_forward);
    sim->held_end = list_held(&sim->arena, p, CB_STORE_HOLD_END, &sim->n_held_end);
    sim->updating = list_updating(&sim->arena, p, &sim->n_updating);
    sim->acting = list_acting(&sim->arena, p, &sim->n_acting);
    sim->reads_views = mark_readers_of_views(&sim->arena, f);
    bool takes = cb_taking_init(&sim->taking, f, &sim->arena);
    if (takes && (sim->reached || !asks) && sim->value_step && sim->value_life && sim->latest &&
        sim->base_step && sim->first_life && sim->marked && sim->done && sim->moment &&
        sim->held_forward && sim->held_end && sim->updating && sim->acting && sim->reads_views)
        return CB_OK;
    cb_sim_free(sim);
    return cb_no_memory(err);
}

void cb_sim_free(cb_sim *sim) { cb_arena_free(&sim->arena); }

/* ---- what is needed, and its measures -------------------------------------------------------- */

static void number_kept(cb_sim *sim) {
    uint32_t n = 0;
    for (size_t t = 0; t < sim->step.len; t++) {
        sim->new_index.at[t] = n;
        n += sim->keep.at[t];
    }
    sim->new_index.at[sim->step.len] = n;
    sim->n_step = n;
    sim->backward_starts = sim->new_index.at[sim->crossing];
}

/* Marks first runs that stay even if no later step reads their outputs. */
static void mark_acting(cb_sim *sim) {
    for (size_t t = 0; t < sim->step.len; t++) sim->keep.at[t] = false;
    for (uint32_t i = 0; i < sim->n_acting; i++) {
        const uint32_t k = sim->f->position[sim->acting[i]];
        if (k != CB_NONE) sim->keep.at[sim->base_step[k]] = true;
    }
}

static void mark_kept(cb_sim *sim) {
    mark_acting(sim);
    for (size_t i = 0; i < sim->hold.len; i++)
        if (sim->hold.at[i].step != CB_NONE) sim->keep.at[sim->hold.at[i].step] = true;
    for (size_t t = sim->step.len; t-- > 0;) {
        if (!sim->keep.at[t]) continue;
        size_t end = t + 1 < sim->step.len ? sim->step.at[t + 1].reads : sim->read.len;
        for (size_t j = sim->step.at[t].reads; j < end; j++)
            if (sim->read.at[j].step != CB_NONE) sim->keep.at[sim->read.at[j].step] = true;
    }
    number_kept(sim);
}

static void keep_maker(cb_sim *sim, const cb_sim_read *read, uint32_t value) {
    if (read->step == CB_NONE) return;
    sim->keep.at[read->step] = true;
    sim->step.at[read->step].made |= cb_value_made(sim->f, value);
}

/* For a step with inlined values, finds those that its needed outputs use, and their inputs. Its
 * reads are in the order in which they were built. */
static void keep_taken_reads(cb_sim *sim, size_t t) {
    const cb_problem *p = sim->f->p;
    uint32_t op = sim->step.at[t].op, made = sim->step.at[t].made;
    uint64_t built = sim->taken.at[t], taken = cb_taken_read(p, op, made, built);
    cb_reading r = cb_read_run(p, op, made, built);
    cb_sim_read *read = sim->read.at + sim->step.at[t].reads;
    for (uint32_t v; cb_read_next(&r, &v); read++) {
        bool own = r.at == 0, gone = !own && !(taken >> (r.at - 1) & 1);
        if (v == CB_NONE || gone) *read = (cb_sim_read){CB_NONE, CB_NONE};
        else keep_maker(sim, read, v);
    }
    sim->taken.at[t] = taken;
}

/* Does the same if ops have insides: makes only outputs that are read, and reads only their
 * inputs. */
static void mark_kept_outputs(cb_sim *sim) {
    const cb_facts *f = sim->f;
    const cb_problem *p = f->p;
    mark_acting(sim);
    for (size_t t = 0; t < sim->step.len; t++) {
        uint32_t op = sim->step.at[t].op;
        if (cb_has_units(f, op)) sim->step.at[t].made = 0;
    }
    for (size_t i = 0; i < sim->hold.len; i++) {
        uint32_t step = sim->hold.at[i].step;
        if (step == CB_NONE) continue;
        sim->keep.at[step] = true;
        sim->step.at[step].made |= sim->hold_made.at[i];
    }
    for (size_t t = sim->step.len; t-- > 0;) {
        if (!sim->keep.at[t]) continue;
        uint32_t op = sim->step.at[t].op;
        if (sim->taken.len > 0 && sim->taken.at[t]) {
            keep_taken_reads(sim, t);
            continue;
        }
        cb_slice slice = cb_slice_of(p, op, sim->step.at[t].made);
        cb_sim_read *read = sim->read.at + sim->step.at[t].reads;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++, read++) {
            if (!cb_slice_reads(slice, j - p->in_begin[op]))
                *read = (cb_sim_read){CB_NONE, CB_NONE};
            keep_maker(sim, read, p->in_value[j]);
        }
    }
    number_kept(sim);
}

/* True if the life is that of an output that its step still makes. */
static bool is_made(const cb_sim *sim, uint32_t life, uint32_t made) {
    uint32_t own = cb_sim_made_of_life(sim, life);
    return own == 0 || (own & made);
}

/* Keeps the gradients of parameters that the op reads alive while it runs. */
static void hold_gradients(cb_sim *sim, uint32_t op, uint32_t step) {
    const cb_follows *x = &sim->f->follows;
    for (uint32_t j = cb_follows_begin(x, op); j < cb_follows_end(x, op); j++) {
        const uint32_t first = sim->first_life[x->gradient[j]];
        cb_sim_life *life = first == CB_NONE ? NULL : &sim->life.at[first];
        if (life && life->made != CB_NONE && life->made <= step && life->last < step)
            life->last = step;
    }
}

/* Does the same for a run and the values inlined into it. */
static void hold_gradients_of_run(cb_sim *sim, size_t t) {
    const cb_problem *p = sim->f->p;
    const uint32_t op = sim->step.at[t].op, step = sim->new_index.at[t];
    const uint64_t taken = sim->taken.len > 0 ? sim->taken.at[t] : 0;
    hold_gradients(sim, op, step);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++)
        if (taken >> i & 1)
            hold_gradients(sim, p->value_op[p->inlining[p->inline_begin[op] + i].value], step);
}

/* Lives of dropped steps get no bytes: made == CB_NONE. */
CB_SIM_INLINE void set_lives(cb_sim *sim, size_t n_forward_hold, bool plain) {
    const cb_problem *p = sim->f->p;
    for (size_t i = 0; i < sim->life.len; i++) {
        cb_sim_life *life = &sim->life.at[i];
        bool kept = sim->keep.at[life->made] &&
                    (plain || is_made(sim, (uint32_t)i, sim->step.at[life->made].made));
        life->made = life->last = kept ? sim->new_index.at[life->made] : CB_NONE;
    }
    for (size_t t = 0; t < sim->step.len; t++) {
        if (!sim->keep.at[t]) continue;
        size_t end = t + 1 < sim->step.len ? sim->step.at[t + 1].reads : sim->read.len;
        for (size_t j = sim->step.at[t].reads; j < end; j++) {
            if (sim->read.at[j].life != CB_NONE)
                sim->life.at[sim->read.at[j].life].last = sim->new_index.at[t];
        }
        if (p->updates) hold_gradients_of_run(sim, t);
    }
    for (size_t i = 0; i < sim->hold.len; i++) {
        if (sim->hold.at[i].life == CB_NONE) continue;
        cb_sim_life *life = &sim->life.at[sim->hold.at[i].life];
        bool end = i >= n_forward_hold || (p->storage_flags[life->storage] & CB_STORE_HOLD_END);
        if (cb_is_updating(p, life->storage)) end = false;
        uint32_t until = end ? sim->n_step : sim->backward_starts;
        if (life->last < until) life->last = until;
    }
}

static int64_t run_time(const cb_sim *sim, const cb_sim_step *step) {
    const cb_facts *f = sim->f;
    return cb_has_units(f, step->op) ? cb_run_time_ps(f->p, step->op, step->made, f->device)
                                     : f->time_ps[step->op];
}

static inline uint64_t taken_at(const cb_sim *sim, size_t step) {
    return sim->taken.len > 0 ? sim->taken.at[step] : 0;
}

/* Adds the cost of inlined values. For a single op the first run costs its own time (bent_time). */
static int64_t taken_cost(cb_sim *sim, size_t step) {
    const cb_facts *f = sim->f;
    uint64_t taken = taken_at(sim, step);
    int64_t cost_ps = 0;
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
        if (!(taken >> i & 1)) continue;
        uint32_t at = f->p->inline_begin[sim->step.at[step].op] + i;
        uint32_t unit = f->unit[f->p->value_storage[f->p->inlining[at].value]];
        bool first = unit < f->p->n_op && sim->marked[unit] == CB_NONE;
        cost_ps += f->inline_cost_ps[at] + (first ? f->time_ps[unit] - f->cost_ps[unit] : 0);
        sim->marked[unit] = 0;
    }
    return cost_ps;
}

/* `marked` is reused: it distinguishes first runs from others. For outputs of an op with an inside,
 * every run except the base run is a further run. */
CB_SIM_INLINE int64_t bent_time(cb_sim *sim, bool plain) {
    const cb_facts *f = sim->f;
    int64_t cost_ps = 0;
    cb_sim_fill_none(sim->marked, f->n_unit);
    for (size_t t = 0; t < sim->step.len; t++) {
        uint32_t op = sim->step.at[t].op;
        if (!sim->keep.at[t]) continue;
        if (!plain) cost_ps += taken_cost(sim, t);
        if (!plain && cb_has_units(f, op)) {
            cost_ps += f->position[op] == sim->step.at[t].anchor
                           ? run_time(sim, &sim->step.at[t])
                           : cb_again_cost_ps(f, op, sim->step.at[t].made);
            continue;
        }
        cost_ps += sim->marked[op] == CB_NONE ? f->time_ps[op] : f->cost_ps[op];
        sim->marked[op] = 0;
    }
    return cost_ps;
}

/* Returns the copies that a further run makes in addition to its lives; `marked` is reused. */
static uint64_t bytes_again(cb_sim *sim, uint32_t op) {
    bool first = sim->marked[op] == CB_NONE;
    sim->marked[op] = 0;
    return first ? 0 : sim->f->again_bytes[op];
}

/* Returns the bytes that a step saves because its output takes over an input's memory. */
static uint64_t bytes_over(const cb_sim *sim, size_t t) {
    const cb_problem *p = sim->f->p;
    const cb_sim_step *step = &sim->step.at[t];
    uint32_t n = cb_count_over(p, step->op);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t life = sim->read.at[step->reads + cb_over_of(p, step->op)[i]].life;
        if (life == CB_NONE || sim->life.at[life].last != sim->new_index.at[t]) continue;
        if (p->keep_saved && cb_is_saved(&sim->life.at[life], sim->backward_starts)) continue;
        return cb_over_bytes(p, step->op);
    }
    return 0;
}

CB_SIM_INLINE void measure(cb_sim *sim, bool plain) {
    const cb_facts *f = sim->f;
    if (f->has_again) cb_sim_fill_none(sim->marked, f->n_unit);
    uint64_t *live = sim->live.at, now = 0;
    sim->peak = sim->saved = 0;
    sim->time_ps = 0;
    memset(sim->moment, 0, f->n_base * sizeof *sim->moment);
    memset(live, 0, ((size_t)sim->n_step + 1) * sizeof *live);
    for (size_t i = 0; i < sim->life.len; i++) {
        const cb_sim_life *life = &sim->life.at[i];
        if (life->made == CB_NONE) continue;
        uint64_t bytes = f->p->storage_bytes[life->storage];
        live[life->made] += bytes;
        if (life->last < sim->n_step) live[life->last + 1] -= bytes;
        if (cb_is_saved(life, sim->backward_starts)) sim->saved += bytes;
    }
    for (size_t t = 0; t < sim->step.len; t++) {
        if (!sim->keep.at[t]) continue;
        const cb_sim_step *step = &sim->step.at[t];
        now += live[sim->new_index.at[t]];
        uint64_t bytes = now + (plain ? f->p->op_workspace[step->op]
                                      : cb_run_workspace(f->p, step->op, step->made));
        uint64_t taken = plain ? 0 : taken_at(sim, t);
        if (taken) bytes += cb_taken_workspace(f->p, step->op, taken);
        if (f->has_again) bytes += bytes_again(sim, step->op);
        const bool counts = bytes > sim->moment[step->anchor]; /* includes memory that is not taken
                                                                  over */
        if (counts && f->p->over_begin && !taken) bytes -= bytes_over(sim, t);
        if (bytes > sim->moment[step->anchor]) sim->moment[step->anchor] = bytes;
        if (bytes > sim->peak) sim->peak = bytes;
        sim->time_ps += plain ? f->time_ps[step->op] : run_time(sim, step);
        if (taken) sim->time_ps += cb_taken_time_ps(f->p, step->op, taken, f->device);
    }
    sim->cost_ps = f->bent ? bent_time(sim, plain) : sim->time_ps;
}

bool cb_within_region_limits(const cb_facts *f, const cb_sim_life *life, size_t n,
                             uint32_t backward_starts) {
    for (uint32_t r = 0; r < f->p->n_region; r++) {
        uint64_t bytes = 0;
        if (f->p->region_limit[r] == UINT64_MAX) continue;
        for (size_t i = 0; i < n; i++) {
            if (cb_is_saved(&life[i], backward_starts) && cb_inside_region(f, life[i].storage, r))
                bytes += f->p->storage_bytes[life[i].storage];
        }
        if (bytes > f->p->region_limit[r]) return false;
    }
    return true;
}

cb_status cb_sim_run(cb_sim *sim, const cb_pair *pair, size_t n_pair, cb_error *err) {
    size_t n_forward_hold = 0;
    if (!cb_sim_build(sim, pair, n_pair, &n_forward_hold)) return cb_no_memory(err);
    sim->new_index.len = sim->keep.len = sim->live.len = 0;
    size_t n = sim->step.len + 1;
    if (!CB_RESERVE(&sim->arena, sim->new_index, n) || !CB_RESERVE(&sim->arena, sim->keep, n) ||
        !CB_RESERVE(&sim->arena, sim->live, n + 1)) {
        return cb_no_memory(err);
    }
    if (cb_sim_is_plain(sim)) {
        mark_kept(sim);
        set_lives(sim, n_forward_hold, true);
        measure(sim, true);
    } else {
        mark_kept_outputs(sim);
        set_lives(sim, n_forward_hold, false);
        measure(sim, false);
    }
    return CB_OK;
}

cb_status cb_sim_schedule(const cb_sim *sim, cb_arena *arena, cb_schedule *out, cb_error *err) {
    uint32_t *step = CB_NEW(arena, uint32_t, sim->n_step), n = 0;
    uint32_t *made = sim->reached ? CB_NEW(arena, uint32_t, sim->n_step) : NULL;
    uint64_t *taken = sim->taken.len > 0 ? CB_NEW(arena, uint64_t, sim->n_step) : NULL;
    if (!step || (sim->reached && !made) || (sim->taken.len > 0 && !taken))
        return cb_no_memory(err);
    for (size_t t = 0; t < sim->step.len; t++) {
        if (!sim->keep.at[t]) continue;
        if (made) made[n] = sim->step.at[t].made;
        if (taken) taken[n] = sim->taken.at[t];
        step[n++] = sim->step.at[t].op;
    }
    uint32_t starts = sim->backward_starts;
    *out = (cb_schedule){
        .n_step = n, .step = step, .made = made, .taken = taken, .backward_starts = starts};
    return CB_OK;
}
