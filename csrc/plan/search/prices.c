/* Keeping a value from its last forward use to its first use in the backward costs its bytes times
 * the prices of the moments between; running its op again costs the op's time. The cut takes the
 * cheaper of the two for all values at once, chains included. Its schedule is built lazily and
 * measured, and each moment's price moves by the factor exp(eta x excess): multiplicative weights
 * on the dual of the budget.
 *
 * A value is needed where the last schedule needed it: a value at the end of a chain is needed when
 * the chain's first reader runs, not when its own reader does. */
#include "prices.h"
#include "drops.h"
#include "tuning.h"

#include <float.h>
#include <math.h>

/* Notes the uses of the inputs of an op, or of one output of a forward op with an inside. */
static void note_uses(cb_prices *z, uint32_t id, uint32_t k) {
    const cb_facts *f = z->trial->f;
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, id), made = cb_unit_made(f, id), when = k;
    cb_slice slice = cb_slice_of(p, op, made);
    if (k < f->base_backward) { /* a forward op is needed when its first needed output is */
        when = CB_NONE;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (!cb_makes(made, v - p->out_begin[op])) continue;
            if (z->earliest[s] < when) when = z->earliest[s];
            if (f->held[s]) z->unused_forward[id] = false;
        }
    }
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = p->value_storage[p->in_value[j]];
        if (!cb_slice_reads(slice, j - p->in_begin[op])) continue;
        if (when < z->earliest[s]) z->earliest[s] = when;
        if (k >= f->base_backward || (z->unused_forward[id] && !f->once[id])) continue;
        if (f->root[s] == CB_NONE || (p->op_flags[op] & CB_POP_VIEW)) continue;
        if (k > z->last_forward[s]) z->last_forward[s] = k;
        z->unused_forward[f->unit[s]] = false;
    }
}

static void find_uses(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        z->earliest[s] = CB_NONE;
        z->last_forward[s] = f->root[s] == CB_NONE ? 0 : f->position[f->root[s]];
        if (f->held[s]) z->last_forward[s] = f->base_backward;
    }
    for (uint32_t u = 0; u < f->n_unit; u++) z->unused_forward[u] = true;
    for (uint32_t k = f->n_base; k-- > 0;) {
        uint32_t op = f->base[k];
        if (k >= f->base_backward || !cb_has_units(f, op)) {
            note_uses(z, op, k);
            continue;
        }
        for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
            if (f->useful[op] & cb_unit_made(f, u)) note_uses(z, u, k);
    }
}

/* Returns the outputs that the base run of an op makes in every plan. */
static uint32_t surely_made(const cb_prices *z, uint32_t op) {
    const cb_facts *f = z->trial->f;
    uint32_t made = 0;
    if (f->position[op] >= f->base_backward) return cb_unit_made(f, op);
    if (!cb_has_units(f, op)) return z->gaps.sure[op] == CB_NONE ? 0 : CB_ALL_OUTPUTS;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (z->gaps.sure[u] != CB_NONE) made |= cb_unit_made(f, u);
    return made & f->useful[op];
}

/* Finds the first reads of the backward, looking through views. */
static void find_direct(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) z->direct[s] = CB_NONE;
    for (uint32_t k = f->n_base; k-- > f->base_backward;) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (f->root[s] != CB_NONE && cb_slice_reads(slice, j - p->in_begin[op]))
                z->direct[s] = k;
        }
    }
}

/* Finds members that may run only for inlined values; such a member costs as much as the
 * inlining. */
static void find_inlined(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    for (uint32_t u = f->p->n_op; u < f->n_unit; u++) {
        uint32_t op = cb_unit_op(f, u);
        if (f->inlines[u]) z->inlined[op] |= cb_slice_of(f->p, op, cb_unit_made(f, u)).members;
    }
}

cb_status cb_prices_init(cb_prices *z, cb_trial *trial, cb_cut *cut, cb_error *err) {
    const cb_facts *f = trial->f;
    cb_arena *a = trial->scratch;
    *z = (cb_prices){.cut = cut, .trial = trial, .pairs = {.arena = a}, .dropped = {.arena = a}};
    CB_TRY_NEW(z->price, a, f->n_base, err);
    CB_TRY_NEW(z->sum, a, (size_t)f->n_base + 1, err);
    CB_TRY_NEW(z->last_forward, a, f->p->n_storage, err);
    CB_TRY_NEW(z->best, a, f->n_base, err);
    CB_TRY_NEW(z->relaxed, a, (size_t)f->n_base + 1, err);
    CB_TRY_NEW(z->direction, a, f->n_base, err);
    CB_TRY_NEW(z->guess_least, a, f->n_base, err);
    CB_TRY_NEW(z->direct, a, f->p->n_storage, err);
    CB_TRY_NEW(z->earliest, a, f->p->n_storage, err);
    CB_TRY_NEW(z->need, a, f->p->n_storage, err);
    CB_TRY_NEW(z->unused_forward, a, f->n_unit, err);
    CB_TRY_NEW(z->first_moment, a, f->n_base, err);
    if (f->inlines) {
        CB_TRY_NEW(z->inlined, a, f->p->n_op, err);
        find_inlined(z);
    }
    find_uses(z);
    find_direct(z);
    CB_TRY(cb_gaps_find(f, z->earliest, z->direct, a, &z->gaps, err));
    const cb_guess_uses uses = {z->last_forward, z->direct, z->unused_forward};
    CB_TRY(cb_guess_least(f, &uses, z->guess_least, err));
    memcpy(z->first_moment, trial->sim->moment, f->n_base * sizeof *z->first_moment);
    /* With the initial prices, holding the whole save-everything peak during the whole step costs 2
     * % of the step's time. */
    double once = (double)f->once_ps + 1, bytes = (double)trial->size + 1;
    z->start = 0.02 * once / bytes / (double)(f->n_base + 1);
    z->lowest = z->start * 1e-6;
    z->highest = z->start * 1e7;
    z->scale = CB_CUT_UNITS / once;
    return CB_OK;
}

/* Only moments that exceed the target when everything is saved have an initial price. Every target
 * starts from these, because prices carried over from the previous target lead to worse
 * schedules. */
static void reset_prices(cb_prices *z, uint64_t target) {
    const cb_facts *f = z->trial->f;
    bool saved = z->trial->goal->measure == CB_MEASURE_SAVED;
    for (uint32_t k = 0; k < f->n_base; k++)
        z->price[k] = saved || z->first_moment[k] > target ? z->start : z->start * 1e-3;
    memcpy(z->need, z->earliest, f->p->n_storage * sizeof *z->need);
}

/* Finds the positions [from, to) at which keeping the storage takes memory. */
static void find_gap(const cb_prices *z, uint32_t storage, uint32_t *from, uint32_t *to) {
    uint32_t end = z->rule == CB_PRICE_NEED ? z->need[storage] : z->direct[storage];
    *from = z->rule == CB_PRICE_BOUND ? z->gaps.start[storage] : z->last_forward[storage] + 1;
    if (z->rule == CB_PRICE_GUESS && z->trial->f->held[storage]) --*from;
    *to = end == CB_NONE ? z->earliest[storage] : end;
    if (z->rule == CB_PRICE_BOUND) *to = z->gaps.end[storage];
    if (*to == CB_NONE || *to < *from) *to = *from;
}

static double price_between(const cb_prices *z, uint32_t from, uint32_t to) {
    return to > from ? z->sum[to] - z->sum[from] : 0;
}

/* Returns picoseconds for holding the storage between its last forward read and its main gap. */
static double price_before(const cb_prices *z, uint32_t storage) {
    return (double)z->trial->f->p->storage_bytes[storage] *
           price_between(z, z->gaps.early[storage], z->gaps.start[storage]);
}

/* Returns picoseconds for saving the storage. */
static double save_price(const cb_prices *z, uint32_t storage) {
    const cb_facts *f = z->trial->f;
    double bytes = (double)f->p->storage_bytes[storage];
    uint32_t from, to;
    if (z->trial->goal->measure == CB_MEASURE_SAVED)
        return f->held[storage] ? 0 : bytes * z->price[f->base_backward];
    find_gap(z, storage, &from, &to);
    double main = bytes * price_between(z, from, to);
    if (z->rule != CB_PRICE_BOUND) return main;
    return main + fmin(z->gaps.again_ps[storage], price_before(z, storage));
}

/* Sets the costs of members. A member that may be skipped in the forward costs nothing to run in
 * the backward. */
static void set_inner_costs(cb_prices *z) {
    cb_cut *cut = z->cut;
    const cb_facts *f = z->trial->f;
    for (uint32_t i = 0; i < cut->n_inner; i++) {
        uint32_t op = cut->inner_op[i], m = cut->inner_member[i], made = surely_made(z, op);
        bool surely = m == CB_NONE ? made != 0 : cb_slice_of(f->p, op, made).members >> m & 1;
        if (z->inlined && (m == CB_NONE ? z->inlined[op] != 0 : z->inlined[op] >> m & 1))
            surely = false;
        int64_t time_ps = m == CB_NONE ? cb_own_time_ps(f->p, op, f->device)
                                       : cb_member_time_ps(f->p, op, m, f->device);
        cut->inner_cost[i] = surely ? (int64_t)fmin((double)time_ps * z->scale, CB_CUT_UNITS) : 0;
    }
}

/* True if the value must be recomputed in every plan because the user wants it. (Plans that keep a
 * region's limit may differ from `forced`.) */
static bool must_rerun(const cb_prices *z, uint32_t storage) {
    uint32_t unit = z->trial->f->unit[storage];
    return z->trial->f->wish[unit] == CB_MUST_RECOMPUTE && !z->unused_forward[unit];
}

static void set_costs(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    cb_cut *cut = z->cut;
    z->sum[0] = 0;
    for (uint32_t k = 0; k < f->n_base; k++) z->sum[k + 1] = z->sum[k] + z->price[k];
    set_inner_costs(z);
    for (uint32_t i = 0; i < cut->n_run; i++) {
        uint32_t op = cut->run_op[i];
        double cost = z->unused_forward[op] ? 0 : (double)cb_again_alone_ps(f, op) * z->scale;
        bool never = f->once[op] || f->wish[op] == CB_MUST_SAVE;
        cut->run_cost[i] = never ? CB_FLOW_INF : (int64_t)fmin(cost, CB_CUT_UNITS);
    }
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i], op = f->unit[s];
        double cost = save_price(z, s);
        bool stays = f->p->storage_flags[s] & CB_STORE_HOLD_END;
        /* Only the end of the backward needs the value, and the gaps handle that. */
        if (z->earliest[s] == CB_NONE && z->trial->goal->measure != CB_MEASURE_SAVED) stays = true;
        bool forced = z->trial->forced[op] && !f->held[s];
        if (forced && z->rule == CB_PRICE_BOUND) {
            if (must_rerun(z, s)) cost += z->gaps.again_ps[s];
            forced = false;
        }
        cut->save_cost[i] = stays    ? 0
                            : forced ? CB_FLOW_INF
                                     : (int64_t)fmin(cost * z->scale, CB_CUT_UNITS);
    }
}

static void move_prices(cb_prices *z, double target, double eta) {
    const cb_trial *t = z->trial;
    const cb_facts *f = t->f;
    if (t->goal->measure == CB_MEASURE_SAVED) {
        double *price = &z->price[f->base_backward];
        double excess = fmax(-1, fmin(1, ((double)t->sim->saved - target) / target));
        *price = fmax(z->lowest, fmin(z->highest * f->n_base, *price * exp(eta * excess)));
        return;
    }
    for (uint32_t k = 0; k < f->n_base; k++) {
        double excess = fmax(-1, fmin(1, ((double)t->sim->moment[k] - target) / target));
        z->price[k] = fmax(z->lowest, fmin(z->highest, z->price[k] * exp(eta * excess)));
    }
}

/* Recomputes the values that the user wants recomputed, even if the bound's cut saves them. */
static void force(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    for (uint32_t i = 0; z->trial->has_demands && i < z->cut->n_save; i++) {
        uint32_t s = z->cut->save_storage[i];
        if (z->trial->forced[f->unit[s]] && !f->held[s]) z->cut->recompute[f->unit[s]] = true;
    }
}

static cb_status try_drops(cb_prices *z, cb_error *err) {
    const cb_drops drops = {z->cut, &z->gaps, z->sum};
    force(z);
    CB_TRY(cb_drop_gaps(&drops, &z->dropped, err));
    if (z->dropped.list.len == 0) return cb_trial_poll(z->trial, err);
    CB_TRY(cb_recompute_lazily(z->trial->f, z->cut->recompute, z->need, &z->pairs, err));
    CB_TRY(cb_add_pairs(&z->pairs, &z->dropped, err));
    return cb_try_pairs(z->trial, z->dropped.list.at, z->dropped.list.len, err);
}

static cb_status solve(cb_prices *z, cb_error *err) {
    set_costs(z);
    CB_TRY(cb_cut_solve(z->cut, err));
    if (z->rule == CB_PRICE_BOUND)
        return z->tries_drops ? try_drops(z, err) : cb_trial_poll(z->trial, err);
    CB_TRY(cb_recompute_lazily(z->trial->f, z->cut->recompute, z->need, &z->pairs, err));
    return cb_try_pairs(z->trial, z->pairs.list.at, z->pairs.list.len, err);
}

cb_status cb_prices_aim(cb_prices *z, uint64_t target, cb_price_rule rule, int steps,
                        cb_error *err) {
    double aim = rule == CB_PRICE_DIRECT ? CB_AIM_DIRECT : CB_AIM;
    z->rule = rule;
    reset_prices(z, target);
    for (int i = 0; i < steps; i++) {
        CB_TRY(solve(z, err));
        move_prices(z, aim * (double)target + 1, CB_FIRST_ETA / (1 + CB_ETA_DECAY * i));
    }
    return CB_OK;
}

/* ---- the bound ------------------------------------------------------------------------------- */

static const double *least_of(const cb_prices *z) {
    return z->rule == CB_PRICE_BOUND ? z->gaps.least : z->guess_least;
}

/* Computes the bytes of the relaxed plan at each position: what every plan holds, plus the gaps
 * over which keeping a value is cheaper. */
static void relax(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    const cb_gaps *g = &z->gaps;
    double *change = z->relaxed, now = 0;
    bool proves = z->rule == CB_PRICE_BOUND;
    memset(change, 0, ((size_t)f->n_base + 1) * sizeof *change);
    for (uint32_t i = 0; i < z->cut->n_save; i++) {
        uint32_t s = z->cut->save_storage[i], from, to;
        double bytes = (double)f->p->storage_bytes[s];
        if (!z->cut->saved[s] || (f->p->storage_flags[s] & CB_STORE_HOLD_END)) continue;
        find_gap(z, s, &from, &to);
        if (proves && price_before(z, s) < g->again_ps[s]) from = g->early[s];
        change[from < f->n_base ? from : f->n_base] += bytes;
        change[to < f->n_base ? to : f->n_base] -= bytes;
    }
    for (size_t i = 0; proves && i < g->list.len; i++) {
        const cb_gap *gap = &g->list.at[i];
        if (gap->bytes * price_between(z, gap->from, gap->to) >= gap->cost_ps) continue;
        change[gap->from] += gap->bytes;
        change[gap->to] -= gap->bytes;
    }
    for (uint32_t k = 0; k < f->n_base; k++) {
        now += change[k];
        change[k] = now + least_of(z)[k];
    }
}

/* Returns the tangent at these prices. Its constant is lowered by more than rounding errors can
 * add. */
static cb_tangent tangent_here(const cb_prices *z) {
    const cb_facts *f = z->trial->f;
    cb_tangent line = {(double)z->cut->flow.value / z->scale, 0, 0};
    double before = 0, once = (double)(f->once_ps + f->inlining_ps);
    for (uint32_t k = 0; k < f->n_base; k++) {
        double time = (double)f->time_ps[f->base[k]];
        line.constant += z->price[k] * least_of(z)[k];
        line.slope += z->price[k];
        line.reach += z->price[k] * fmin(before + time, once - before);
        before += time;
    }
    for (size_t i = 0; z->rule == CB_PRICE_BOUND && i < z->gaps.list.len; i++) {
        const cb_gap *gap = &z->gaps.list.at[i];
        line.constant += fmin(gap->cost_ps, gap->bytes * price_between(z, gap->from, gap->to));
    }
    line.constant *= 1 - DBL_EPSILON * (4.0 * f->n_base + 64);
    return line;
}

/* Sets the direction of the next step: the excess of the relaxed plan over the target at each
 * moment. If that points away from the last direction, part of the last one is added, so that steps
 * do not zigzag (Camerini, Fratta and Maffioli 1975). Returns the squared length. */
static double find_direction(cb_prices *z, double target, bool deflects) {
    uint32_t n = z->trial->f->n_base;
    double product = 0, last = 0, norm = 0;
    for (uint32_t k = 0; k < n; k++) {
        double over = z->relaxed[k] - target;
        z->relaxed[k] = over > 0 || z->price[k] > 0 ? over : 0;
        product += z->relaxed[k] * z->direction[k];
        last += z->direction[k] * z->direction[k];
    }
    double share = deflects && product < 0 ? -CB_DEFLECTION * product / last : 0;
    for (uint32_t k = 0; k < n; k++) {
        double to = z->relaxed[k] + share * z->direction[k];
        z->direction[k] = to < 0 && z->price[k] <= 0 ? 0 : to;
        norm += z->direction[k] * z->direction[k];
    }
    return norm;
}

/* Takes one step. Returns false if the relaxed plan does not exceed the target anywhere. */
static bool step_up(cb_prices *z, double target, double gap, double theta, bool deflects) {
    double norm = find_direction(z, target, deflects);
    if (norm <= 0) return false;
    for (uint32_t k = 0; k < z->trial->f->n_base; k++)
        z->price[k] = fmax(0, z->price[k] + theta * gap / norm * z->direction[k]);
    return true;
}

cb_status cb_prices_keep(const cb_prices *z, cb_price_span *out, cb_error *err) {
    const uint32_t n = z->trial->f->n_base;
    uint32_t from = 0, to = n;
    while (to > 0 && z->best[to - 1] == 0) to--;
    while (from < to && z->best[from] == 0) from++;
    *out = (cb_price_span){.from = from, .to = to};
    CB_TRY_NEW(out->at, z->trial->scratch, to - from, err);
    if (to > from) memcpy(out->at, z->best + from, (to - from) * sizeof *out->at);
    return CB_OK;
}

static double price_from(const cb_price_span *span, uint32_t k) {
    return k >= span->from && k < span->to ? span->at[k - span->from] : 0;
}

cb_status cb_prices_polyak(cb_prices *z, cb_price_rule rule, uint64_t target,
                           const cb_price_span *from, double extra_ps, int steps, cb_error *err) {
    const cb_trial *t = z->trial;
    const cb_facts *f = t->f;
    double bytes = (double)target, best = -INFINITY, theta = 1, once = (double)f->once_ps;
    double whole = z->start * 0x1p-40;
    int stale = 0;
    bool deflects = rule == CB_PRICE_BOUND && !z->tries_drops; /* pays off after about 50 steps */
    cb_tangent top = {0, 0, 0};
    cb_tangents *known = rule == CB_PRICE_BOUND ? &z->tangent : &z->guess;
    z->rule = rule;
    for (uint32_t k = 0; k < f->n_base; k++) {
        double over = (double)z->first_moment[k] - bytes;
        z->price[k] = from ? price_from(from, k) : over > 0 ? z->start * over / (bytes + 1) : 0;
        if (z->price[k] < whole) z->price[k] = 0;
    }
    memcpy(z->best, z->price, f->n_base * sizeof *z->best);
    memset(z->direction, 0, f->n_base * sizeof *z->direction);
    for (int i = 0; i < steps; i++) {
        CB_TRY(solve(z, err));
        cb_tangent line = tangent_here(z);
        double bound = cb_tangent_at(line, bytes);
        if (bound > best + 1e-9 * once) {
            best = bound;
            top = line;
            stale = 0;
            memcpy(z->best, z->price, f->n_base * sizeof *z->best);
        } else if (++stale > CB_POLYAK_PATIENCE) {
            theta *= 0.6;
            stale = 0;
            memcpy(z->price, z->best, f->n_base * sizeof *z->best);
            memset(z->direction, 0, f->n_base * sizeof *z->direction);
            continue;
        }
        if (rule == CB_PRICE_BOUND && extra_ps - best <= CB_PROVED * once) break;
        relax(z);
        if (!step_up(z, bytes, fmax(1e-9 * once, extra_ps - bound), theta, deflects)) break;
    }
    return CB_PUSH(t->scratch, *known, top) ? CB_OK : cb_no_memory(err);
}

/* The extra time satisfies x >= constant - slope (bytes + link (once + x) / 2). */
double cb_prices_bound_moves(const cb_prices *z, double bytes, double link) {
    const double half = link / 2, once = (double)z->trial->f->once_ps;
    double best = 0;
    for (size_t i = 0; i < z->tangent.len; i++) {
        const cb_tangent *line = &z->tangent.at[i];
        const double x = line->constant - line->slope * (bytes + half * once);
        best = fmax(best, x / (1 + half * line->slope));
    }
    return best;
}

double cb_prices_bound(const cb_prices *z, double bytes) {
    return cb_tangents_bound(&z->tangent, z->tangent.len, bytes);
}

double cb_prices_guess(const cb_prices *z, double bytes, double known_ps) {
    if (z->ignores_guess) return cb_prices_bound(z, bytes);
    double guess = cb_tangents_bound(&z->guess, z->guess.len, bytes);
    return known_ps < CB_SLACK * guess ? cb_prices_bound(z, bytes) : guess;
}

bool cb_prices_misjudge(const cb_prices *z, const cb_candidates *all) {
    for (uint32_t i = 0; i < all->n; i++) {
        const double known = (double)(all->at[i].time_ps - z->trial->f->once_ps);
        const double bytes = (double)all->at[i].size;
        if (known < CB_SLACK * cb_tangents_bound(&z->guess, z->guess.len, bytes)) return true;
    }
    return false;
}
