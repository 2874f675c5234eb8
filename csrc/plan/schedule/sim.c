/* Three passes, each linear: build the steps with what each reads; mark from the ends what anybody
 * needs; sum up lives over the steps that are kept. Most plans run nothing again in the forward: it
 * is built for the first of them and copied for the others. */
#include "sim.h"

static void fill_none(uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

static uint32_t *list_held(cb_arena *a, const cb_problem *p, uint32_t flag, uint32_t *n) {
    uint32_t *held = CB_NEW(a, uint32_t, p->n_storage);
    for (uint32_t s = 0; held && s < p->n_storage; s++) {
        if (p->storage_flags[s] & flag) held[(*n)++] = s;
    }
    return held;
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
    sim->marked = CB_NEW(&sim->arena, uint32_t, p->n_op);
    sim->done = CB_NEW(&sim->arena, uint32_t, p->n_op);
    sim->moment = CB_NEW(&sim->arena, uint64_t, f->n_base);
    sim->held_forward = list_held(&sim->arena, p, CB_STORE_HOLD_FORWARD, &sim->n_held_forward);
    sim->held_end = list_held(&sim->arena, p, CB_STORE_HOLD_END, &sim->n_held_end);
    if (sim->value_step && sim->value_life && sim->latest && sim->base_step && sim->first_life &&
        sim->marked && sim->done && sim->moment && sim->held_forward && sim->held_end)
        return CB_OK;
    cb_sim_free(sim);
    return cb_no_memory(err);
}

void cb_sim_free(cb_sim *sim) { cb_arena_free(&sim->arena); }

/* ---- building -------------------------------------------------------------------------------- */

static bool hold(cb_sim *sim, uint32_t value_step, uint32_t life) {
    return CB_PUSH(&sim->arena, sim->hold, (cb_sim_read){value_step, life});
}

static bool run_op(cb_sim *sim, uint32_t op, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    uint32_t step = (uint32_t)sim->step.len;
    uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op],
             n_out = p->out_begin[op + 1] - p->out_begin[op];
    if (!CB_PUSH(&sim->arena, sim->step, (cb_sim_step){op, anchor, (uint32_t)sim->read.len}) ||
        !CB_RESERVE(&sim->arena, sim->read, n_in) || !CB_RESERVE(&sim->arena, sim->life, n_out)) {
        return false;
    }
    const uint32_t *in = p->in_value + p->in_begin[op];
    for (uint32_t j = 0; j < n_in; j++) {
        sim->read.at[sim->read.len++] =
            (cb_sim_read){sim->value_step[in[j]], sim->value_life[in[j]]};
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        sim->value_step[v] = step;
        if (sim->f->root[s] != op) continue;
        if (sim->latest[s] == CB_NONE || sim->life.at[sim->latest[s]].made != step) {
            if (sim->latest[s] == CB_NONE) sim->first_life[s] = (uint32_t)sim->life.len;
            sim->latest[s] = (uint32_t)sim->life.len;
            sim->life.at[sim->life.len++] = (cb_sim_life){s, step, step};
        }
    }
    /* A view sees its storage's latest run: its inputs have just been brought up to that. */
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        sim->value_life[v] = sim->latest[p->value_storage[v]];
    sim->done[op] = anchor;
    return true;
}

/* Must the op that makes `value` run again before `anchor` may read it? */
static bool is_due(const cb_sim *sim, uint32_t value, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    uint32_t op = p->value_op[value], s = p->value_storage[value], root = sim->f->root[s];
    if (root == CB_NONE || (p->op_flags[op] & CB_POP_PLACEHOLDER)) return false;
    if (sim->marked[root] == anchor && sim->done[root] != anchor) return true;
    return op != root && sim->value_life[value] != sim->latest[s];
}

static bool any_input_due(const cb_sim *sim, uint32_t op, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    bool due = false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && !due; j++) {
        due = is_due(sim, p->in_value[j], anchor);
    }
    return due;
}

/* Runs what is due for the inputs of `top`, then `top` itself; depth first with an own stack, two
 * entries a level: op and next input. */
static bool run_with_inputs(cb_sim *sim, uint32_t top, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    if (!any_input_due(sim, top, anchor)) return run_op(sim, top, anchor); /* nearly always */
    sim->stack.len = 0;
    if (!CB_PUSH(&sim->arena, sim->stack, top) ||
        !CB_PUSH(&sim->arena, sim->stack, p->in_begin[top]))
        return false;
    while (sim->stack.len > 0) {
        uint32_t op = sim->stack.at[sim->stack.len - 2], j = sim->stack.at[sim->stack.len - 1]++;
        if (j < p->in_begin[op + 1]) {
            if (!is_due(sim, p->in_value[j], anchor)) continue;
            uint32_t maker = p->value_op[p->in_value[j]];
            sim->stack.at[sim->stack.len - 1] = j; /* look again when the maker has run */
            if (!CB_PUSH(&sim->arena, sim->stack, maker) ||
                !CB_PUSH(&sim->arena, sim->stack, p->in_begin[maker]))
                return false;
        } else {
            sim->stack.len -= 2;
            if (!run_op(sim, op, anchor)) return false;
        }
    }
    return true;
}

/* Early pairs are the last of their anchor, in the order of their ops. Those before the spare op
 * that begins the backward run even for nobody: what is held until then may go. */
static bool run_early(cb_sim *sim, const cb_pair *pair, size_t n, uint32_t anchor) {
    bool opens = sim->f->spared && anchor == sim->f->base_backward;
    size_t i = n;
    while (i > 0 && cb_pair_is_early(pair[i - 1])) i--;
    for (; i < n; i++) {
        uint32_t op = cb_pair_op(pair[i]);
        bool may = cb_pair_anchor(pair[i]) == anchor && sim->f->position[op] < anchor;
        if (!may || sim->done[op] == anchor) continue;
        if (!run_with_inputs(sim, op, anchor)) return false;
        if (opens && !hold(sim, (uint32_t)sim->step.len - 1, CB_NONE)) return false;
    }
    return true;
}

/* What is held belongs to its op's first run, which is the base run. */
static bool hold_first(cb_sim *sim, const uint32_t *storage, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t life = sim->first_life[storage[i]];
        if (life != CB_NONE && !hold(sim, sim->life.at[life].made, life)) return false;
    }
    return true;
}

static bool hold_first_value(cb_sim *sim, uint32_t value) {
    const cb_facts *f = sim->f;
    uint32_t position = f->position[f->p->value_op[value]];
    uint32_t life = sim->first_life[f->p->value_storage[value]]; /* of a view, another op's */
    if (life != CB_NONE && !hold(sim, sim->life.at[life].made, life)) return false;
    return position == CB_NONE || hold(sim, sim->base_step[position], CB_NONE);
}

static bool cross_to_backward(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    sim->crossing = (uint32_t)sim->step.len;
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        if (!hold_first_value(sim, p->forward_output[i])) return false;
    }
    return hold_first(sim, sim->held_forward, sim->n_held_forward);
}

static bool reach_end(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        bool kept = sim->f->root[s] == CB_NONE || cb_stays_to_end(sim->f, s);
        if (kept ? !hold_first_value(sim, v) : !hold(sim, sim->value_step[v], sim->value_life[v]))
            return false;
    }
    return hold_first(sim, sim->held_end, sim->n_held_end);
}

#define COPY(to, from, n) ((n) > 0 ? memcpy(to, from, (n) * sizeof *(to)) : (to))

static bool keep_forward(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    cb_sim_forward *w = &sim->forward;
    *w = (cb_sim_forward){.n_base = sim->f->base_backward,
                          .n_step = sim->step.len,
                          .n_read = sim->read.len,
                          .n_life = sim->life.len};
    w->step = CB_NEW(&sim->arena, cb_sim_step, w->n_step);
    w->read = CB_NEW(&sim->arena, cb_sim_read, w->n_read);
    w->life = CB_NEW(&sim->arena, cb_sim_life, w->n_life);
    w->value_step = CB_NEW(&sim->arena, uint32_t, p->n_value);
    w->value_life = CB_NEW(&sim->arena, uint32_t, p->n_value);
    w->latest = CB_NEW(&sim->arena, uint32_t, p->n_storage);
    w->first_life = CB_NEW(&sim->arena, uint32_t, p->n_storage);
    w->base_step = CB_NEW(&sim->arena, uint32_t, w->n_base);
    if (!w->step || !w->read || !w->life || !w->value_step || !w->value_life || !w->latest ||
        !w->first_life || !w->base_step)
        return false;
    COPY(w->step, sim->step.at, w->n_step);
    COPY(w->read, sim->read.at, w->n_read);
    COPY(w->life, sim->life.at, w->n_life);
    COPY(w->value_step, sim->value_step, p->n_value);
    COPY(w->value_life, sim->value_life, p->n_value);
    COPY(w->latest, sim->latest, p->n_storage);
    COPY(w->first_life, sim->first_life, p->n_storage);
    COPY(w->base_step, sim->base_step, w->n_base);
    w->known = true;
    return true;
}

/* The vectors have had room for it before. */
static void copy_forward(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    const cb_sim_forward *w = &sim->forward;
    COPY(sim->step.at, w->step, w->n_step);
    COPY(sim->read.at, w->read, w->n_read);
    COPY(sim->life.at, w->life, w->n_life);
    COPY(sim->value_step, w->value_step, p->n_value);
    COPY(sim->value_life, w->value_life, p->n_value);
    COPY(sim->latest, w->latest, p->n_storage);
    COPY(sim->first_life, w->first_life, p->n_storage);
    COPY(sim->base_step, w->base_step, w->n_base);
    sim->step.len = w->n_step;
    sim->read.len = w->n_read;
    sim->life.len = w->n_life;
}

/* `done` is not copied: it is asked about the anchor at hand alone. */
static void begin(cb_sim *sim, bool copied) {
    const cb_problem *p = sim->f->p;
    sim->step.len = sim->read.len = sim->life.len = sim->hold.len = 0;
    fill_none(sim->marked, p->n_op);
    fill_none(sim->done, p->n_op);
    if (copied) {
        copy_forward(sim);
        return;
    }
    fill_none(sim->value_step, p->n_value);
    fill_none(sim->value_life, p->n_value);
    fill_none(sim->latest, p->n_storage);
    fill_none(sim->first_life, p->n_storage);
}

static bool build(cb_sim *sim, const cb_pair *pair, size_t n_pair, size_t *n_forward_hold) {
    const cb_facts *f = sim->f;
    size_t next = 0;
    /* Hoisting adds to the forward, so that what was built before still begins it. */
    bool plain = n_pair == 0 || cb_pair_anchor(pair[0]) >= f->base_backward;
    bool copied = plain && sim->forward.known;
    begin(sim, copied);
    for (uint32_t k = copied ? sim->forward.n_base : 0; k < f->n_base; k++) {
        if (k == f->base_backward) {
            if (plain && !copied && !keep_forward(sim)) return false;
            if (!cross_to_backward(sim)) return false;
            *n_forward_hold = sim->hold.len;
        }
        size_t first = next;
        for (; next < n_pair && cb_pair_anchor(pair[next]) <= k; next++) {
            if (cb_pair_anchor(pair[next]) == k) sim->marked[cb_pair_op(pair[next])] = k;
        }
        if (next > first && !run_early(sim, pair + first, next - first, k)) return false;
        bool ran = next == 0 ? run_op(sim, f->base[k], k) : run_with_inputs(sim, f->base[k], k);
        if (!ran) return false;
        sim->base_step[k] = (uint32_t)sim->step.len - 1;
    }
    if (f->base_backward == f->n_base) {
        if (!cross_to_backward(sim)) return false;
        *n_forward_hold = sim->hold.len;
    }
    return reach_end(sim);
}

/* ---- what is needed, and its measures -------------------------------------------------------- */

static void mark_kept(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    for (size_t t = 0; t < sim->step.len; t++) {
        sim->keep.at[t] = p->op_flags[sim->step.at[t].op] & (CB_POP_ONCE & ~CB_POP_UNKNOWN);
    }
    for (size_t i = 0; i < sim->hold.len; i++) {
        if (sim->hold.at[i].step != CB_NONE) sim->keep.at[sim->hold.at[i].step] = true;
    }
    for (size_t t = sim->step.len; t-- > 0;) {
        if (!sim->keep.at[t]) continue;
        size_t end = t + 1 < sim->step.len ? sim->step.at[t + 1].reads : sim->read.len;
        for (size_t j = sim->step.at[t].reads; j < end; j++) {
            if (sim->read.at[j].step != CB_NONE) sim->keep.at[sim->read.at[j].step] = true;
        }
    }
    uint32_t n = 0;
    for (size_t t = 0; t < sim->step.len; t++) {
        sim->new_index.at[t] = n;
        n += sim->keep.at[t];
    }
    sim->new_index.at[sim->step.len] = n;
    sim->n_step = n;
    sim->backward_starts = sim->new_index.at[sim->crossing];
}

/* Lives of dropped steps end up with no bytes: made == CB_NONE. */
static void set_lives(cb_sim *sim, size_t n_forward_hold) {
    const cb_problem *p = sim->f->p;
    for (size_t i = 0; i < sim->life.len; i++) {
        cb_sim_life *life = &sim->life.at[i];
        bool kept = sim->keep.at[life->made];
        life->made = life->last = kept ? sim->new_index.at[life->made] : CB_NONE;
    }
    for (size_t t = 0; t < sim->step.len; t++) {
        if (!sim->keep.at[t]) continue;
        size_t end = t + 1 < sim->step.len ? sim->step.at[t + 1].reads : sim->read.len;
        for (size_t j = sim->step.at[t].reads; j < end; j++) {
            if (sim->read.at[j].life != CB_NONE)
                sim->life.at[sim->read.at[j].life].last = sim->new_index.at[t];
        }
    }
    for (size_t i = 0; i < sim->hold.len; i++) {
        if (sim->hold.at[i].life == CB_NONE) continue;
        cb_sim_life *life = &sim->life.at[sim->hold.at[i].life];
        bool end = i >= n_forward_hold || (p->storage_flags[life->storage] & CB_STORE_HOLD_END);
        uint32_t until = end ? sim->n_step : sim->backward_starts;
        if (life->last < until) life->last = until;
    }
}

/* `marked` is free by now: it tells first runs from others. */
static int64_t bent_time(cb_sim *sim) {
    const cb_facts *f = sim->f;
    int64_t cost_ps = 0;
    fill_none(sim->marked, f->p->n_op);
    for (size_t t = 0; t < sim->step.len; t++) {
        uint32_t op = sim->step.at[t].op;
        if (!sim->keep.at[t]) continue;
        cost_ps += sim->marked[op] == CB_NONE ? f->time_ps[op] : f->cost_ps[op];
        sim->marked[op] = 0;
    }
    return cost_ps;
}

/* What a run after the first makes beside its lives; `marked` is free by now. */
static uint64_t bytes_again(cb_sim *sim, uint32_t op) {
    bool first = sim->marked[op] == CB_NONE;
    sim->marked[op] = 0;
    return first ? 0 : sim->f->again_bytes[op];
}

static void measure(cb_sim *sim) {
    const cb_facts *f = sim->f;
    if (f->has_again) fill_none(sim->marked, f->p->n_op);
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
        if (life->made < sim->backward_starts && life->last >= sim->backward_starts)
            sim->saved += bytes;
    }
    for (size_t t = 0; t < sim->step.len; t++) {
        if (!sim->keep.at[t]) continue;
        const cb_sim_step *step = &sim->step.at[t];
        now += live[sim->new_index.at[t]];
        uint64_t bytes = now + f->p->op_workspace[step->op];
        if (f->has_again) bytes += bytes_again(sim, step->op);
        if (bytes > sim->moment[step->anchor]) sim->moment[step->anchor] = bytes;
        if (bytes > sim->peak) sim->peak = bytes;
        sim->time_ps += f->time_ps[step->op];
    }
    sim->cost_ps = f->bent ? bent_time(sim) : sim->time_ps;
}

cb_status cb_sim_run(cb_sim *sim, const cb_pair *pair, size_t n_pair, cb_error *err) {
    size_t n_forward_hold = 0;
    if (!build(sim, pair, n_pair, &n_forward_hold)) return cb_no_memory(err);
    sim->new_index.len = sim->keep.len = sim->live.len = 0;
    size_t n = sim->step.len + 1;
    if (!CB_RESERVE(&sim->arena, sim->new_index, n) || !CB_RESERVE(&sim->arena, sim->keep, n) ||
        !CB_RESERVE(&sim->arena, sim->live, n + 1)) {
        return cb_no_memory(err);
    }
    mark_kept(sim);
    set_lives(sim, n_forward_hold);
    measure(sim);
    return CB_OK;
}

cb_status cb_sim_schedule(const cb_sim *sim, cb_arena *arena, cb_schedule *out, cb_error *err) {
    uint32_t *step = CB_NEW(arena, uint32_t, sim->n_step), n = 0;
    if (!step) return cb_no_memory(err);
    for (size_t t = 0; t < sim->step.len; t++) {
        if (sim->keep.at[t]) step[n++] = sim->step.at[t].op;
    }
    *out = (cb_schedule){.n_step = n, .step = step, .backward_starts = sim->backward_starts};
    return CB_OK;
}

/* ---- the lazy backward ----------------------------------------------------------------------- */

typedef struct lazy {
    const cb_facts *f;
    const bool *recompute;
    uint32_t *need; /* [n_storage] */
    cb_arena *scratch;
    CB_VEC(uint32_t) stack; /* ops whose inputs are needed */
    cb_pairs *out;
} lazy;

/* A view of what runs again does so as well, where somebody reads through it. */
static bool is_view_again(const lazy *z, uint32_t op, uint32_t root) {
    return op != root && z->recompute[root] && z->f->position[op] < z->f->base_backward;
}

/* Notes the inputs of the ops on the stack as needed at `anchor`, and of those that run again for
 * it. */
static bool spread_need(lazy *z, bool *again, uint32_t anchor) {
    const cb_problem *p = z->f->p;
    while (z->stack.len > 0) {
        uint32_t reader = z->stack.at[--z->stack.len];
        for (uint32_t j = p->in_begin[reader]; j < p->in_begin[reader + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]], op = z->f->root[s];
            if (op == CB_NONE || z->f->position[op] >= z->f->base_backward) continue;
            if (z->need[s] == CB_NONE) z->need[s] = anchor;
            uint32_t maker = p->value_op[p->in_value[j]];
            if (is_view_again(z, maker, op) && !again[maker]) {
                again[maker] = true;
                if (!CB_PUSH(z->scratch, z->stack, maker)) return false;
            }
            if (!z->recompute[op] || again[op]) continue;
            again[op] = true;
            if (!CB_PUSH(z->out->arena, z->out->list, cb_pair_make(anchor, op)) ||
                !CB_PUSH(z->scratch, z->stack, op))
                return false;
        }
    }
    return true;
}

static bool find_pairs(lazy *z, bool *again) {
    const cb_facts *f = z->f;
    fill_none(z->need, f->p->n_storage);
    z->out->list.len = 0;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        size_t begin = z->out->list.len;
        if (!CB_PUSH(z->scratch, z->stack, f->base[k]) || !spread_need(z, again, k)) return false;
        if (z->out->list.len > begin)
            cb_sort_pairs(z->out->list.at + begin, z->out->list.len - begin);
    }
    return true;
}

cb_status cb_recompute_lazily(const cb_facts *f, const bool *recompute, uint32_t *need,
                              cb_pairs *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *again = CB_NEW(&scratch, bool, f->p->n_op);
    lazy z = {.f = f, .recompute = recompute, .scratch = &scratch, .out = out};
    z.need = need ? need : CB_NEW(&scratch, uint32_t, f->p->n_storage);
    bool ok = again && z.need && find_pairs(&z, again);
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}
