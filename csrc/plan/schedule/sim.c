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
    sim->marked = CB_NEW(&sim->arena, uint32_t, f->n_unit);
    sim->done = CB_NEW(&sim->arena, uint32_t, f->n_unit);
    if (f->unit_begin) sim->reached = CB_NEW(&sim->arena, uint32_t, f->n_unit);
    sim->moment = CB_NEW(&sim->arena, uint64_t, f->n_base);
    sim->held_forward = list_held(&sim->arena, p, CB_STORE_HOLD_FORWARD, &sim->n_held_forward);
    sim->held_end = list_held(&sim->arena, p, CB_STORE_HOLD_END, &sim->n_held_end);
    bool reaches = sim->reached || !f->unit_begin;
    if (reaches && sim->value_step && sim->value_life && sim->latest && sim->base_step &&
        sim->first_life && sim->marked && sim->done && sim->moment && sim->held_forward &&
        sim->held_end)
        return CB_OK;
    cb_sim_free(sim);
    return cb_no_memory(err);
}

void cb_sim_free(cb_sim *sim) { cb_arena_free(&sim->arena); }

/* ---- building -------------------------------------------------------------------------------- */

static bool hold(cb_sim *sim, uint32_t value_step, uint32_t life, uint32_t made) {
    return CB_PUSH(&sim->arena, sim->hold, (cb_sim_read){value_step, life}) &&
           CB_PUSH(&sim->arena, sim->hold_made, made);
}

static uint32_t made_of_life(const cb_sim *sim, uint32_t life) {
    uint32_t unit = sim->f->unit[sim->life.at[life].storage];
    return unit >= sim->f->p->n_op ? cb_unit_made(sim->f, unit) : 0;
}

/* Of an op with an inside: the outputs in `made`, and the inputs of their slice. */
static bool run_some(cb_sim *sim, uint32_t op, uint32_t anchor, uint32_t made) {
    const cb_facts *f = sim->f;
    const cb_problem *p = f->p;
    uint32_t step = (uint32_t)sim->step.len, n_in = p->in_begin[op + 1] - p->in_begin[op];
    cb_slice slice = cb_slice_of(p, op, made);
    if (!CB_PUSH(&sim->arena, sim->step,
                 (cb_sim_step){op, anchor, (uint32_t)sim->read.len, made}) ||
        !CB_RESERVE(&sim->arena, sim->read, n_in) ||
        !CB_RESERVE(&sim->arena, sim->life, CB_MOST_INNER_OUTPUTS))
        return false;
    const uint32_t *in = p->in_value + p->in_begin[op];
    for (uint32_t j = 0; j < n_in; j++) {
        bool reads = cb_slice_reads(slice, j);
        sim->read.at[sim->read.len++] = (cb_sim_read){reads ? sim->value_step[in[j]] : CB_NONE,
                                                      reads ? sim->value_life[in[j]] : CB_NONE};
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v], at = v - p->out_begin[op];
        if (!cb_makes(made, at)) continue;
        sim->value_step[v] = step;
        sim->done[f->unit_begin[op] + at] = anchor;
        if (f->root[s] != op) continue;
        if (sim->latest[s] == CB_NONE) sim->first_life[s] = (uint32_t)sim->life.len;
        sim->value_life[v] = sim->latest[s] = (uint32_t)sim->life.len;
        sim->life.at[sim->life.len++] = (cb_sim_life){s, step, step};
    }
    return true;
}

static uint32_t reached_made(const cb_sim *sim, uint32_t op);

static bool run_op(cb_sim *sim, uint32_t op, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    if (cb_has_units(sim->f, op)) {
        bool base = sim->f->base[anchor] == op;
        return run_some(sim, op, anchor, base ? sim->f->useful[op] : reached_made(sim, op));
    }
    uint32_t step = (uint32_t)sim->step.len;
    uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op],
             n_out = p->out_begin[op + 1] - p->out_begin[op];
    if (!CB_PUSH(&sim->arena, sim->step,
                 (cb_sim_step){op, anchor, (uint32_t)sim->read.len, CB_ALL_OUTPUTS}) ||
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
    uint32_t op = p->value_op[value], s = p->value_storage[value], unit = sim->f->unit[s];
    if (unit == CB_NONE || (p->op_flags[op] & CB_POP_PLACEHOLDER)) return false;
    if (sim->marked[unit] == anchor && sim->done[unit] != anchor) return true;
    return op != sim->f->root[s] && sim->value_life[value] != sim->latest[s];
}

static bool any_input_due(const cb_sim *sim, uint32_t op, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    bool due = false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && !due; j++) {
        due = is_due(sim, p->in_value[j], anchor);
    }
    return due;
}

/* ---- which outputs an anchor needs ----------------------------------------------------------- */

/* Outputs of an op that have come up since the last question. */
static uint32_t reached_made(const cb_sim *sim, uint32_t op) {
    const cb_facts *f = sim->f;
    uint32_t made = 0;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (sim->reached[u] == sim->reach) made |= cb_unit_made(f, u);
    return made;
}

/* What a step of this op reads: its slice, if it has one. */
static cb_slice slice_now(const cb_sim *sim, uint32_t op, uint32_t anchor) {
    const cb_facts *f = sim->f;
    if (!cb_has_units(f, op)) return (cb_slice){0, UINT64_MAX};
    bool base = f->base[anchor] == op;
    return cb_slice_of(f->p, op, base ? f->useful[op] : reached_made(sim, op));
}

/* Goes from what is on the stack, ids of ops and units, to what is due for them, and so on. What is
 * asked about first has come up already. */
static bool spread_reach(cb_sim *sim, uint32_t anchor) {
    const cb_facts *f = sim->f;
    const cb_problem *p = f->p;
    while (sim->stack.len > 0) {
        uint32_t id = sim->stack.at[--sim->stack.len], op = cb_unit_op(f, id);
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, id));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t v = p->in_value[j], maker = p->value_op[v];
            if (!cb_slice_reads(slice, j - p->in_begin[op]) || !is_due(sim, v, anchor)) continue;
            uint32_t next = cb_has_units(f, maker) ? f->unit[p->value_storage[v]] : maker;
            if (sim->reached[next] == sim->reach) continue;
            sim->reached[next] = sim->reach;
            if (!CB_PUSH(&sim->arena, sim->stack, next)) return false;
        }
    }
    return true;
}

/* A new question: what do these need? Where ops have insides, as their runs make all of it. */
static bool ask_reach(cb_sim *sim, const uint32_t *id, uint32_t n, uint32_t anchor) {
    if (!sim->reached) return true;
    sim->reach++;
    sim->stack.len = 0;
    for (uint32_t i = 0; i < n; i++) {
        sim->reached[id[i]] = sim->reach;
        if (!CB_PUSH(&sim->arena, sim->stack, id[i])) return false;
    }
    return spread_reach(sim, anchor);
}

/* Runs what is due for the inputs of `top`, then `top` itself; depth first with an own stack, two
 * entries a level: op and next input. */
static bool run_with_inputs(cb_sim *sim, uint32_t top, uint32_t anchor) {
    const cb_problem *p = sim->f->p;
    if (!any_input_due(sim, top, anchor)) return run_op(sim, top, anchor); /* nearly always */
    cb_slice slice = slice_now(sim, top, anchor);
    sim->stack.len = 0;
    if (!CB_PUSH(&sim->arena, sim->stack, top) ||
        !CB_PUSH(&sim->arena, sim->stack, p->in_begin[top]))
        return false;
    while (sim->stack.len > 0) {
        uint32_t op = sim->stack.at[sim->stack.len - 2], j = sim->stack.at[sim->stack.len - 1]++;
        if (j < p->in_begin[op + 1]) {
            if (sim->reached) slice = slice_now(sim, op, anchor);
            if (!cb_slice_reads(slice, j - p->in_begin[op])) continue;
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
 * that begins the backward run even for nobody: what is held until then may go. But for outputs of
 * an inside, which are not made in vain. */
static bool run_early(cb_sim *sim, const cb_pair *pair, size_t n, uint32_t anchor) {
    bool opens = sim->f->spared && anchor == sim->f->base_backward;
    size_t i = n;
    while (i > 0 && cb_pair_is_early(pair[i - 1])) i--;
    for (; i < n; i++) {
        uint32_t op = cb_pair_op(pair[i]), ids[CB_MOST_INNER_OUTPUTS], n_id = 0, made = 0;
        bool may = cb_pair_anchor(pair[i]) == anchor && sim->f->position[op] < anchor;
        if (!may || cb_has_units(sim->f, op) || sim->done[op] == anchor) continue;
        uint32_t top = cb_unit_op(sim->f, op);
        ids[n_id++] = op;
        made |= op < sim->f->p->n_op ? 0 : cb_unit_made(sim->f, op);
        while (op >= sim->f->p->n_op && i + 1 < n && cb_pair_op(pair[i + 1]) >= op &&
               cb_unit_op(sim->f, cb_pair_op(pair[i + 1])) == top) {
            op = cb_pair_op(pair[++i]);
            if (sim->done[op] == anchor) continue;
            ids[n_id++] = op;
            made |= cb_unit_made(sim->f, op);
        }
        if (!ask_reach(sim, ids, n_id, anchor) || !run_with_inputs(sim, top, anchor)) return false;
        if (opens && made == 0 && !hold(sim, (uint32_t)sim->step.len - 1, CB_NONE, 0)) return false;
    }
    return true;
}

/* What is held belongs to its op's first run, which is the base run. */
static bool hold_first(cb_sim *sim, const uint32_t *storage, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t life = sim->first_life[storage[i]];
        if (life != CB_NONE && !hold(sim, sim->life.at[life].made, life, made_of_life(sim, life)))
            return false;
    }
    return true;
}

static bool hold_first_value(cb_sim *sim, uint32_t value) {
    const cb_facts *f = sim->f;
    uint32_t position = f->position[f->p->value_op[value]];
    uint32_t life = sim->first_life[f->p->value_storage[value]]; /* of a view, another op's */
    if (life != CB_NONE && !hold(sim, sim->life.at[life].made, life, made_of_life(sim, life)))
        return false;
    return position == CB_NONE ||
           hold(sim, sim->base_step[position], CB_NONE, cb_value_made(f, value));
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
        if (kept ? !hold_first_value(sim, v)
                 : !hold(sim, sim->value_step[v], sim->value_life[v], cb_value_made(sim->f, v)))
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
    sim->step.len = sim->read.len = sim->life.len = sim->hold.len = sim->hold_made.len = 0;
    fill_none(sim->marked, sim->f->n_unit);
    fill_none(sim->done, sim->f->n_unit);
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
        bool ran = next == 0
                       ? run_op(sim, f->base[k], k)
                       : ask_reach(sim, &f->base[k], 1, k) && run_with_inputs(sim, f->base[k], k);
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
    number_kept(sim);
}

/* The same where ops have insides: of their outputs those that somebody reads are made, and only
 * what these need is read. */
static void mark_kept_outputs(cb_sim *sim) {
    const cb_facts *f = sim->f;
    const cb_problem *p = f->p;
    for (size_t t = 0; t < sim->step.len; t++) {
        uint32_t op = sim->step.at[t].op;
        sim->keep.at[t] = p->op_flags[op] & (CB_POP_ONCE & ~CB_POP_UNKNOWN);
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
        cb_slice slice = cb_slice_of(p, op, sim->step.at[t].made);
        cb_sim_read *read = sim->read.at + sim->step.at[t].reads;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++, read++) {
            if (!cb_slice_reads(slice, j - p->in_begin[op]))
                *read = (cb_sim_read){CB_NONE, CB_NONE};
            if (read->step == CB_NONE) continue;
            sim->keep.at[read->step] = true;
            sim->step.at[read->step].made |= cb_value_made(f, p->in_value[j]);
        }
    }
    number_kept(sim);
}

/* Is the life that of an output that its step makes in the end? */
static bool is_made(const cb_sim *sim, uint32_t life, uint32_t made) {
    uint32_t own = made_of_life(sim, life);
    return own == 0 || (own & made);
}

/* Lives of dropped steps end up with no bytes: made == CB_NONE. */
static void set_lives(cb_sim *sim, size_t n_forward_hold) {
    const cb_problem *p = sim->f->p;
    for (size_t i = 0; i < sim->life.len; i++) {
        cb_sim_life *life = &sim->life.at[i];
        bool kept = sim->keep.at[life->made] &&
                    (!sim->reached || is_made(sim, (uint32_t)i, sim->step.at[life->made].made));
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

static int64_t run_time(const cb_sim *sim, const cb_sim_step *step) {
    const cb_facts *f = sim->f;
    return cb_has_units(f, step->op) ? cb_run_time_ps(f->p, step->op, step->made, f->device)
                                     : f->time_ps[step->op];
}

/* `marked` is free by now: it tells first runs from others. Of what an op with an inside makes
 * every run but its base run is another. */
static int64_t bent_time(cb_sim *sim) {
    const cb_facts *f = sim->f;
    int64_t cost_ps = 0;
    fill_none(sim->marked, f->n_unit);
    for (size_t t = 0; t < sim->step.len; t++) {
        uint32_t op = sim->step.at[t].op;
        if (!sim->keep.at[t]) continue;
        if (cb_has_units(f, op)) {
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

/* What a run after the first makes beside its lives; `marked` is free by now. */
static uint64_t bytes_again(cb_sim *sim, uint32_t op) {
    bool first = sim->marked[op] == CB_NONE;
    sim->marked[op] = 0;
    return first ? 0 : sim->f->again_bytes[op];
}

static void measure(cb_sim *sim) {
    const cb_facts *f = sim->f;
    if (f->has_again) fill_none(sim->marked, f->n_unit);
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
        uint64_t bytes = now + (sim->reached ? cb_run_workspace(f->p, step->op, step->made)
                                             : f->p->op_workspace[step->op]);
        if (f->has_again) bytes += bytes_again(sim, step->op);
        if (bytes > sim->moment[step->anchor]) sim->moment[step->anchor] = bytes;
        if (bytes > sim->peak) sim->peak = bytes;
        sim->time_ps += sim->reached ? run_time(sim, step) : f->time_ps[step->op];
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
    if (sim->reached) mark_kept_outputs(sim);
    else mark_kept(sim);
    set_lives(sim, n_forward_hold);
    measure(sim);
    return CB_OK;
}

cb_status cb_sim_schedule(const cb_sim *sim, cb_arena *arena, cb_schedule *out, cb_error *err) {
    uint32_t *step = CB_NEW(arena, uint32_t, sim->n_step), n = 0;
    uint32_t *made = sim->reached ? CB_NEW(arena, uint32_t, sim->n_step) : NULL;
    if (!step || (sim->reached && !made)) return cb_no_memory(err);
    for (size_t t = 0; t < sim->step.len; t++) {
        if (!sim->keep.at[t]) continue;
        if (made) made[n] = sim->step.at[t].made;
        step[n++] = sim->step.at[t].op;
    }
    *out = (cb_schedule){
        .n_step = n, .step = step, .made = made, .backward_starts = sim->backward_starts};
    return CB_OK;
}
