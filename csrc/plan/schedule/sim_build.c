/* Converts pairs to steps with their reads: the first pass of the simulator (sim_measure.c). Most
 * plans recompute nothing in the forward, so its steps are built for the first such plan and copied
 * for the others. */
#include "sim_parts.h"

/* ---- building -------------------------------------------------------------------------------- */

static inline bool hold(cb_sim *sim, uint32_t value_step, uint32_t life, uint32_t made) {
    return CB_PUSH(&sim->arena, sim->hold, (cb_sim_read){value_step, life}) &&
           (cb_sim_is_plain(sim) || CB_PUSH(&sim->arena, sim->hold_made, made));
}

/* Adds the inputs of values inlined into a run. */
static bool read_taken(cb_sim *sim, uint32_t op, uint32_t made, uint64_t taken) {
    cb_reading r = cb_read_run(sim->f->p, op, made, taken);
    if (!CB_RESERVE(&sim->arena, sim->read, cb_count_reads(sim->f->p, op, taken))) return false;
    for (uint32_t v; cb_read_next(&r, &v);)
        sim->read.at[sim->read.len++] = (cb_sim_read){v == CB_NONE ? CB_NONE : sim->value_step[v],
                                                      v == CB_NONE ? CB_NONE : sim->value_life[v]};
    return true;
}

/* Finds the values inlined into the next step. */
static bool note_taken(cb_sim *sim, uint32_t op, uint32_t made, uint64_t *taken) {
    *taken = 0;
    if (!sim->taking.wished) return true;
    *taken = cb_taken_now(&sim->taking, op, made);
    return CB_PUSH(&sim->arena, sim->taken, *taken);
}

/* Adds, for an op with an inside, the outputs in `made` and the inputs of their slice. */
static bool run_some(cb_sim *sim, uint32_t op, uint32_t anchor, uint32_t made) {
    const cb_facts *f = sim->f;
    const cb_problem *p = f->p;
    uint32_t step = (uint32_t)sim->step.len, n_in = p->in_begin[op + 1] - p->in_begin[op];
    cb_slice slice = cb_slice_of(p, op, made);
    uint64_t taken;
    if (!CB_PUSH(&sim->arena, sim->step,
                 (cb_sim_step){op, anchor, (uint32_t)sim->read.len, made}) ||
        !note_taken(sim, op, made, &taken) || (taken && !read_taken(sim, op, made, taken)) ||
        !CB_RESERVE(&sim->arena, sim->read, n_in) ||
        !CB_RESERVE(&sim->arena, sim->life, CB_MOST_INNER_OUTPUTS))
        return false;
    const uint32_t *in = p->in_value + p->in_begin[op];
    for (uint32_t j = 0; !taken && j < n_in; j++) {
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

/* Finds the inlined values of a step, and adds their inputs to its reads. */
static bool begin_taking(cb_sim *sim, uint32_t op, uint64_t *taken) {
    return note_taken(sim, op, CB_ALL_OUTPUTS, taken) &&
           (!*taken || read_taken(sim, op, CB_ALL_OUTPUTS, *taken));
}

CB_SIM_INLINE bool run_op(cb_sim *sim, uint32_t op, uint32_t anchor, bool plain) {
    const cb_problem *p = sim->f->p;
    if (!plain && cb_has_units(sim->f, op)) {
        bool base = sim->f->base[anchor] == op;
        return run_some(sim, op, anchor, base ? sim->f->useful[op] : reached_made(sim, op));
    }
    uint32_t step = (uint32_t)sim->step.len;
    uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op],
             n_out = p->out_begin[op + 1] - p->out_begin[op];
    uint64_t taken = 0;
    if (!CB_PUSH(&sim->arena, sim->step,
                 (cb_sim_step){op, anchor, (uint32_t)sim->read.len, CB_ALL_OUTPUTS}) ||
        (!plain && !begin_taking(sim, op, &taken)) || !CB_RESERVE(&sim->arena, sim->read, n_in) ||
        !CB_RESERVE(&sim->arena, sim->life, n_out)) {
        return false;
    }
    const uint32_t *in = p->in_value + p->in_begin[op];
    for (uint32_t j = 0; !taken && j < n_in; j++) {
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
    /* A view sees its storage's latest run: its inputs have just been updated. */
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        sim->value_life[v] = sim->latest[p->value_storage[v]];
    sim->done[op] = anchor;
    return true;
}

/* True if the op that makes `value` must run again before `anchor` can read it: a pair asks for it,
 * or the value is a view whose storage has been computed again. */
CB_SIM_INLINE bool is_due(const cb_sim *sim, uint32_t value, uint32_t anchor, bool plain) {
    const cb_problem *p = sim->f->p;
    uint32_t op = p->value_op[value], s = p->value_storage[value], root = sim->f->root[s];
    uint32_t unit = plain ? root : sim->f->unit[s];
    if (unit == CB_NONE || (p->op_flags[op] & CB_POP_PLACEHOLDER)) return false;
    if (sim->marked[unit] == anchor && sim->done[unit] != anchor) return true;
    return op != root && sim->value_life[value] != sim->latest[s];
}

CB_SIM_INLINE bool any_input_due(const cb_sim *sim, uint32_t op, uint32_t anchor, bool plain) {
    const cb_problem *p = sim->f->p;
    bool due = false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && !due; j++)
        due = is_due(sim, p->in_value[j], anchor, plain);
    return due;
}

/* ---- which outputs an anchor needs ----------------------------------------------------------- */

/* Returns the outputs of an op that were visited since the last query. */
static uint32_t reached_made(const cb_sim *sim, uint32_t op) {
    const cb_facts *f = sim->f;
    uint32_t made = 0;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (sim->reached[u] == sim->reach && !cb_is_taken(&sim->taking, u))
            made |= cb_unit_made(f, u);
    return made;
}

/* Returns the inputs of a step of this op, or of an inlined unit: its slice, if it has one. */
static cb_slice slice_now(const cb_sim *sim, uint32_t op, uint32_t anchor) {
    const cb_facts *f = sim->f;
    if (op >= f->p->n_op) return cb_slice_of(f->p, cb_unit_op(f, op), cb_unit_made(f, op));
    if (!cb_has_units(f, op)) return (cb_slice){0, UINT64_MAX};
    bool base = f->base[anchor] == op;
    return cb_slice_of(f->p, op, base ? f->useful[op] : reached_made(sim, op));
}

/* Visits a unit. */
static bool push_reached(cb_sim *sim, uint32_t id, uint32_t top) {
    sim->reached[id] = sim->reach;
    if (sim->records &&
        !CB_PUSH(&sim->arena, sim->taking.list, (cb_reached){cb_unit_op(sim->f, id), id, top}))
        return false;
    return CB_PUSH(&sim->arena, sim->stack, id);
}

/* Visits the units that must run for the ops and units on the stack, then the units that must run
 * for those, and so on. The initial entries have been visited already. */
static bool spread_reach(cb_sim *sim, uint32_t anchor, uint32_t top) {
    const cb_facts *f = sim->f;
    const cb_problem *p = f->p;
    while (sim->stack.len > 0) {
        uint32_t id = sim->stack.at[--sim->stack.len], op = cb_unit_op(f, id);
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, id));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t v = p->in_value[j], maker = p->value_op[v];
            if (!cb_slice_reads(slice, j - p->in_begin[op]) || !is_due(sim, v, anchor, false))
                continue;
            uint32_t next = cb_has_units(f, maker) ? f->unit[p->value_storage[v]] : maker;
            if (sim->reached[next] == sim->reach) continue;
            if (!push_reached(sim, next, top)) return false;
        }
    }
    return true;
}

/* Begins a new query for the needs of these units. Used if ops have insides, because one run makes
 * all needed outputs. */
static bool ask_reach(cb_sim *sim, const uint32_t *id, uint32_t n, uint32_t anchor) {
    if (!sim->reached) return true;
    sim->reach++;
    sim->stack.len = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!push_reached(sim, id[i], 0)) return false;
    return spread_reach(sim, anchor, 0);
}

/* Runs the ops that the inputs of `top` need, then `top`: depth first, with an explicit stack of
 * two entries per level, op and next input. An inlined unit also has a level, but is finished
 * without a run. */
CB_SIM_INLINE bool run_with_inputs(cb_sim *sim, uint32_t top, uint32_t anchor, bool plain) {
    const cb_problem *p = sim->f->p;
    if (!any_input_due(sim, top, anchor, plain)) /* nearly always true */
        return run_op(sim, top, anchor, plain);
    sim->stack.len = 0;
    if (!CB_PUSH(&sim->arena, sim->stack, top) ||
        !CB_PUSH(&sim->arena, sim->stack, p->in_begin[top]))
        return false;
    while (sim->stack.len > 0) {
        uint32_t id = sim->stack.at[sim->stack.len - 2], j = sim->stack.at[sim->stack.len - 1]++;
        uint32_t op = plain ? id : cb_unit_op(sim->f, id);
        if (j < p->in_begin[op + 1]) {
            if (!plain && !cb_slice_reads(slice_now(sim, id, anchor), j - p->in_begin[op]))
                continue;
            if (!is_due(sim, p->in_value[j], anchor, plain)) continue;
            uint32_t maker = p->value_op[p->in_value[j]];
            uint32_t unit = sim->f->unit[p->value_storage[p->in_value[j]]];
            const bool goes_in = !plain && cb_is_taken(&sim->taking, unit);
            sim->stack.at[sim->stack.len - 1] = j; /* look again when the maker has run */
            if (!CB_PUSH(&sim->arena, sim->stack, goes_in ? unit : maker) ||
                !CB_PUSH(&sim->arena, sim->stack, p->in_begin[maker]))
                return false;
        } else {
            sim->stack.len -= 2;
            if (!plain && cb_is_taken(&sim->taking, id)) sim->done[id] = anchor;
            else if (!run_op(sim, op, anchor, plain)) return false;
        }
    }
    return true;
}

typedef struct early_run { /* one run of early pairs: an op, or outputs of an op */
    const cb_pair *pair;
    size_t n, at; /* the next pair */
    uint32_t top, n_id, id[CB_MOST_INNER_OUTPUTS];
} early_run;

static size_t first_early(const cb_pair *pair, size_t n) {
    while (n > 0 && cb_pair_is_early(pair[n - 1])) n--;
    return n;
}

/* Skips visited units, which have `stamp` in `seen` [n_unit]. */
static bool next_early(const cb_sim *sim, early_run *run, uint32_t anchor, const uint32_t *seen,
                       uint32_t stamp) {
    const cb_facts *f = sim->f;
    run->n_id = 0;
    while (run->n_id == 0 && run->at < run->n) {
        uint32_t op = cb_pair_op(run->pair[run->at]);
        bool may = cb_pair_anchor(run->pair[run->at++]) == anchor && f->position[op] < anchor;
        if (!may || cb_has_units(f, op) || seen[op] == stamp) continue;
        run->top = cb_unit_op(f, op);
        run->id[run->n_id++] = op;
        for (; op >= f->p->n_op && run->at < run->n; run->at++) {
            uint32_t next = cb_pair_op(run->pair[run->at]);
            if (next < op || cb_unit_op(f, next) != run->top) break;
            op = next;
            if (seen[op] != stamp) run->id[run->n_id++] = op;
        }
    }
    return run->n_id > 0;
}

/* Early pairs are the last of their anchor, in the order of their ops. Those before the spare op
 * that begins the backward run even if nothing reads them, because memory held until then can be
 * freed; outputs of an inside are the exception. */
static bool run_early(cb_sim *sim, const cb_pair *pair, size_t n, uint32_t anchor) {
    bool opens = sim->f->spared && anchor == sim->f->base_backward;
    early_run run = {.pair = pair, .n = n, .at = first_early(pair, n)};
    while (next_early(sim, &run, anchor, sim->done, anchor)) {
        bool inner = run.id[0] >= sim->f->p->n_op;
        if (!ask_reach(sim, run.id, run.n_id, anchor) ||
            !run_with_inputs(sim, run.top, anchor, false))
            return false;
        if (opens && !inner && !hold(sim, (uint32_t)sim->step.len - 1, CB_NONE, 0)) return false;
    }
    return true;
}

/* Determines which values are inlined at the anchor: visits every unit that will run there once. */
static bool choose_taken(cb_sim *sim, const cb_pair *pair, size_t n, uint32_t anchor) {
    cb_taking *t = &sim->taking;
    uint32_t base = sim->f->base[anchor], top = 0;
    for (int inlines = 1; inlines >= 0; inlines--) {
        for (size_t i = 0; i < n; i++) {
            bool wish = cb_pair_inlines(pair[i]) && !cb_pair_is_early(pair[i]);
            if (cb_pair_anchor(pair[i]) == anchor && wish == inlines)
                cb_taking_wish(t, cb_pair_op(pair[i]), wish);
        }
        if (t->n_wish == 0) return true;
    }
    early_run run = {.pair = pair, .n = n, .at = first_early(pair, n)};
    sim->reach++;
    sim->records = true;
    sim->stack.len = 0;
    bool ok = true;
    for (; ok && next_early(sim, &run, anchor, sim->reached, sim->reach); top++) {
        for (uint32_t i = 0; ok && i < run.n_id; i++) ok = push_reached(sim, run.id[i], top);
        ok = ok && spread_reach(sim, anchor, top);
    }
    ok = ok && push_reached(sim, base, top) && spread_reach(sim, anchor, top);
    sim->records = false;
    if (ok) cb_taking_choose(t);
    return ok;
}

/* Held values belong to their op's first run, which is the base run. */
static bool hold_first(cb_sim *sim, const uint32_t *storage, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t life = sim->first_life[storage[i]];
        if (life != CB_NONE &&
            !hold(sim, sim->life.at[life].made, life, cb_sim_made_of_life(sim, life)))
            return false;
    }
    return true;
}

static bool hold_first_value(cb_sim *sim, uint32_t value) {
    const cb_facts *f = sim->f;
    uint32_t position = f->position[f->p->value_op[value]];
    uint32_t life = sim->first_life[f->p->value_storage[value]]; /* for a view, the life of another
                                                                    op's storage */
    if (life != CB_NONE &&
        !hold(sim, sim->life.at[life].made, life, cb_sim_made_of_life(sim, life)))
        return false;
    return position == CB_NONE ||
           hold(sim, sim->base_step[position], CB_NONE, cb_value_made(f, value));
}

static bool cross_to_backward(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    sim->crossing = (uint32_t)sim->step.len;
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        if (!hold_first_value(sim, p->forward_output[i])) return false;
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
    return hold_first(sim, sim->held_end, sim->n_held_end) &&
           hold_first(sim, sim->updating, sim->n_updating);
}

#define COPY_ARRAY(to, from, n) ((n) > 0 ? memcpy(to, from, (n) * sizeof *(to)) : (to))

static bool keep_forward(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    cb_sim_forward *w = &sim->forward;
    *w =
        (cb_sim_forward){.n_step = sim->step.len, .n_read = sim->read.len, .n_life = sim->life.len};
    w->step = CB_NEW(&sim->arena, cb_sim_step, w->n_step);
    w->read = CB_NEW(&sim->arena, cb_sim_read, w->n_read);
    w->life = CB_NEW(&sim->arena, cb_sim_life, w->n_life);
    w->value_step = CB_NEW(&sim->arena, uint32_t, p->n_value);
    w->value_life = CB_NEW(&sim->arena, uint32_t, p->n_value);
    w->latest = CB_NEW(&sim->arena, uint32_t, p->n_storage);
    w->first_life = CB_NEW(&sim->arena, uint32_t, p->n_storage);
    w->base_step = CB_NEW(&sim->arena, uint32_t, sim->f->base_backward);
    if (!w->step || !w->read || !w->life || !w->value_step || !w->value_life || !w->latest ||
        !w->first_life || !w->base_step)
        return false;
    COPY_ARRAY(w->step, sim->step.at, w->n_step);
    COPY_ARRAY(w->read, sim->read.at, w->n_read);
    COPY_ARRAY(w->life, sim->life.at, w->n_life);
    COPY_ARRAY(w->value_step, sim->value_step, p->n_value);
    COPY_ARRAY(w->value_life, sim->value_life, p->n_value);
    COPY_ARRAY(w->latest, sim->latest, p->n_storage);
    COPY_ARRAY(w->first_life, sim->first_life, p->n_storage);
    COPY_ARRAY(w->base_step, sim->base_step, sim->f->base_backward);
    w->known = true;
    return true;
}

/* The vectors have held as much before, so there is room. */
static void copy_forward(cb_sim *sim) {
    const cb_problem *p = sim->f->p;
    const cb_sim_forward *w = &sim->forward;
    COPY_ARRAY(sim->step.at, w->step, w->n_step);
    COPY_ARRAY(sim->read.at, w->read, w->n_read);
    COPY_ARRAY(sim->life.at, w->life, w->n_life);
    COPY_ARRAY(sim->value_step, w->value_step, p->n_value);
    COPY_ARRAY(sim->value_life, w->value_life, p->n_value);
    COPY_ARRAY(sim->latest, w->latest, p->n_storage);
    COPY_ARRAY(sim->first_life, w->first_life, p->n_storage);
    COPY_ARRAY(sim->base_step, w->base_step, sim->f->base_backward);
    for (sim->taken.len = 0; sim->taking.wished && sim->taken.len < w->n_step;)
        sim->taken.at[sim->taken.len++] = 0; /* nothing is recomputed there */
    sim->step.len = w->n_step;
    sim->read.len = w->n_read;
    sim->life.len = w->n_life;
}

/* `done` is not copied, because it is used only for the current anchor. */
static void begin(cb_sim *sim, bool copied) {
    const cb_problem *p = sim->f->p;
    sim->step.len = sim->read.len = sim->life.len = sim->hold.len = sim->hold_made.len = 0;
    sim->taken.len = 0;
    cb_sim_fill_none(sim->marked, sim->f->n_unit);
    cb_sim_fill_none(sim->done, sim->f->n_unit);
    if (copied) {
        copy_forward(sim);
        return;
    }
    cb_sim_fill_none(sim->value_step, p->n_value);
    cb_sim_fill_none(sim->value_life, p->n_value);
    cb_sim_fill_none(sim->latest, p->n_storage);
    cb_sim_fill_none(sim->first_life, p->n_storage);
}

CB_SIM_INLINE bool build(cb_sim *sim, const cb_pair *pair, size_t n_pair, size_t *n_forward_hold,
                         bool plain) {
    const cb_facts *f = sim->f;
    const uint32_t arrived = cb_arrived(f);
    size_t next = 0;
    /* Hoisting adds to the end of the forward, so the copied part still begins it. */
    bool lasts = n_pair == 0 || cb_pair_anchor(pair[0]) >= f->base_backward;
    bool copied = lasts && sim->forward.known;
    begin(sim, copied);
    for (uint32_t k = copied ? f->base_backward : 0; k < f->n_base; k++) {
        if (k == f->base_backward) {
            if (lasts && !copied && !keep_forward(sim)) return false;
            if (!cross_to_backward(sim)) return false;
            *n_forward_hold = sim->hold.len;
        }
        size_t first = next;
        for (; next < n_pair && cb_pair_anchor(pair[next]) <= k; next++)
            if (cb_pair_anchor(pair[next]) == k) sim->marked[cb_pair_op(pair[next])] = k;
        if (!plain && sim->taking.wished) {
            cb_taking_begin(&sim->taking);
            if (next > first && !choose_taken(sim, pair + first, next - first, k)) return false;
        }
        bool may_run = k < f->base_backward || k >= arrived;
        if (may_run && next > first && !run_early(sim, pair + first, next - first, k)) return false;
        const uint32_t op = f->base[k];
        const bool alone = next == 0 || (plain && next == first && !sim->reads_views[op]);
        bool ran = alone ? run_op(sim, op, k, plain)
                         : (plain || ask_reach(sim, &f->base[k], 1, k)) &&
                               run_with_inputs(sim, op, k, plain);
        if (!ran) return false;
        sim->base_step[k] = (uint32_t)sim->step.len - 1;
    }
    if (f->base_backward == f->n_base) {
        if (!cross_to_backward(sim)) return false;
        *n_forward_hold = sim->hold.len;
    }
    return reach_end(sim);
}

bool cb_sim_build(cb_sim *sim, const cb_pair *pair, size_t n_pair, size_t *n_forward_hold) {
    return cb_sim_is_plain(sim) ? build(sim, pair, n_pair, n_forward_hold, true)
                                : build(sim, pair, n_pair, n_forward_hold, false);
}
