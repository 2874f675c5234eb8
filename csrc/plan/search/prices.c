/* Keeping a value from its last forward use to its first use in the backward costs its bytes times
 * the prices of the moments between; running its op again costs the op's time. The cut takes the
 * cheaper of the two for all values at once, chains included. Its schedule is built lazily and
 * measured, and each moment's price moves by the factor exp(eta x excess): multiplicative weights
 * on the dual of the budget.
 *
 * The need of a value is where the last schedule needed it, as a value at the end of a chain is
 * needed when the chain's first reader is, not when its own is. */
#include "prices.h"
#include "tuning.h"

#include <math.h>

/* A read by what surely runs, of memory. */
static void note_sure_use(cb_prices *z, uint32_t reader, uint32_t storage, uint32_t k) {
    const cb_facts *f = z->trial->f;
    if (z->unsure[reader] && !f->once[reader]) return;
    if (cb_may_take_in(f, cb_unit_op(f, reader), storage)) return;
    if (k > z->sure_forward[storage]) z->sure_forward[storage] = k;
    z->unsure[f->unit[storage]] = false;
}

/* Of an op, or of one output of an op of the forward with an inside. */
static void note_uses(cb_prices *z, uint32_t id, uint32_t k) {
    const cb_facts *f = z->trial->f;
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, id), made = cb_unit_made(f, id), when = k;
    cb_slice slice = cb_slice_of(p, op, made);
    if (k < f->base_backward) { /* a forward op is needed when the first of its outputs is */
        when = CB_NONE;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (!cb_makes(made, v - p->out_begin[op])) continue;
            if (z->earliest[s] < when) when = z->earliest[s];
            if (f->held[s]) z->unused_forward[id] = z->unsure[id] = false;
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
        if (f->inlines) note_sure_use(z, id, s, k);
    }
}

static void find_uses(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        z->earliest[s] = CB_NONE;
        z->last_forward[s] = f->root[s] == CB_NONE ? 0 : f->position[f->root[s]];
        if (f->held[s]) z->last_forward[s] = f->base_backward;
        z->sure_forward[s] = z->last_forward[s];
    }
    for (uint32_t u = 0; u < f->n_unit; u++) z->unused_forward[u] = z->unsure[u] = true;
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

/* What the base run of an op makes whatever the plan. */
static uint32_t surely_made(const cb_prices *z, uint32_t op) {
    const cb_facts *f = z->trial->f;
    uint32_t made = 0;
    if (f->position[op] >= f->base_backward) return cb_unit_made(f, op);
    if (!cb_has_units(f, op)) return z->unsure[op] ? 0 : CB_ALL_OUTPUTS;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (!z->unsure[u]) made |= cb_unit_made(f, u);
    return made & f->useful[op];
}

/* What lives whatever a plan of the bound's class does: values of the backward all their life,
 * those of the forward while the forward uses them (if it does: others may be made in the backward,
 * for the first time) and from the first to the last read of the backward. What the forward returns
 * may go when the backward begins with a rerun, before the first op in base order. Views are seen
 * through. */
static void find_least(cb_prices *z, uint32_t *last) {
    const cb_facts *f = z->trial->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        z->direct[s] = z->sure_direct[s] = CB_NONE;
        last[s] = f->root[s] != CB_NONE && cb_stays_to_end(f, s) ? f->n_base : 0;
    }
    for (uint32_t k = f->n_base; k-- > f->base_backward;) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (f->root[s] == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
            z->direct[s] = k;
            if (f->inlines && cb_may_take_in(f, op, s)) continue;
            z->sure_direct[s] = k;
            if (k > last[s]) last[s] = k;
        }
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        last[p->value_storage[p->backward_output[i]]] = f->n_base;
    double *change = z->relaxed, now = 0;
    memset(change, 0, ((size_t)f->n_base + 1) * sizeof *change);
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (f->root[s] == CB_NONE) continue;
        double bytes = (double)p->storage_bytes[s];
        uint32_t made = f->position[f->root[s]], end = z->sure_forward[s], from = z->sure_direct[s];
        bool forward = made < f->base_backward;
        if (!forward || !z->unsure[f->unit[s]]) {
            if (!forward) end = last[s] > made ? last[s] : made;
            else if (cb_stays_to_end(f, s)) end = f->n_base;
            else if (f->held[s]) end = f->base_backward - 1;
            change[made] += bytes;
            if (end < f->n_base) change[end + 1] -= bytes;
            if (!forward || last[s] <= end) continue;
            if (from <= end) from = end + 1;
        }
        if (from == CB_NONE) continue;
        change[from] += bytes;
        if (last[s] < f->n_base) change[last[s] + 1] -= bytes;
    }
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k], made = surely_made(z, op);
        now += change[k];
        z->least[k] = now + (made == 0 ? 0.0 : (double)cb_run_workspace(p, op, made));
    }
}

/* A member that only runs for what is taken in costs what the inlining costs. */
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
    *z = (cb_prices){.cut = cut, .trial = trial, .pairs = {.arena = a}};
    z->price = CB_NEW(a, double, f->n_base);
    z->sum = CB_NEW(a, double, (size_t)f->n_base + 1);
    z->last_forward = CB_NEW(a, uint32_t, f->p->n_storage);
    z->best = CB_NEW(a, double, f->n_base);
    z->least = CB_NEW(a, double, f->n_base);
    z->relaxed = CB_NEW(a, double, (size_t)f->n_base + 1);
    z->direct = CB_NEW(a, uint32_t, f->p->n_storage);
    z->earliest = CB_NEW(a, uint32_t, f->p->n_storage);
    z->need = CB_NEW(a, uint32_t, f->p->n_storage);
    z->unused_forward = CB_NEW(a, bool, f->n_unit);
    z->first_moment = CB_NEW(a, uint64_t, f->n_base);
    z->sure_forward = z->last_forward;
    z->sure_direct = z->direct;
    z->unsure = z->unused_forward;
    if (f->inlines) {
        z->sure_forward = CB_NEW(a, uint32_t, f->p->n_storage);
        z->sure_direct = CB_NEW(a, uint32_t, f->p->n_storage);
        z->unsure = CB_NEW(a, bool, f->n_unit);
        z->inlined = CB_NEW(a, uint64_t, f->p->n_op);
        if (!z->sure_forward || !z->sure_direct || !z->unsure || !z->inlined)
            return cb_no_memory(err);
        find_inlined(z);
    }
    if (!z->first_moment || !z->price || !z->sum || !z->last_forward || !z->earliest || !z->need ||
        !z->unused_forward || !z->best || !z->least || !z->relaxed || !z->direct)
        return cb_no_memory(err);
    find_uses(z);
    find_least(z, z->need);
    memcpy(z->first_moment, trial->sim->moment, f->n_base * sizeof *z->first_moment);
    /* A start at which holding all of save-everything's peak for the whole step costs 2 % of the
     * step. */
    double once = (double)f->once_ps + 1, bytes = (double)trial->size + 1;
    z->start = 0.02 * once / bytes / (double)(f->n_base + 1);
    z->lowest = z->start * 1e-6;
    z->highest = z->start * 1e7;
    z->scale = CB_CUT_UNITS / once;
    return CB_OK;
}

/* Only moments that are over the target when everything is saved have a price at first. Every
 * target starts afresh: prices carried over from the one before lead to worse schedules. */
static void reset_prices(cb_prices *z, uint64_t target) {
    const cb_facts *f = z->trial->f;
    bool saved = z->trial->goal->measure == CB_MEASURE_SAVED;
    for (uint32_t k = 0; k < f->n_base; k++) {
        z->price[k] = saved || z->first_moment[k] > target ? z->start : z->start * 1e-3;
    }
    memcpy(z->need, z->earliest, f->p->n_storage * sizeof *z->need);
}

/* The positions [from, to) at which keeping the storage costs room. */
static void find_gap(const cb_prices *z, uint32_t storage, uint32_t *from, uint32_t *to) {
    uint32_t end = z->rule == CB_PRICE_NEED ? z->need[storage] : z->direct[storage];
    *from = z->last_forward[storage] + 1;
    if (z->rule == CB_PRICE_BOUND && z->trial->f->held[storage]) --*from;
    *to = end == CB_NONE ? z->earliest[storage] : end;
    if (*to == CB_NONE || *to < *from) *to = *from;
}

/* Picoseconds for holding a byte of `storage` over its gap. */
static double gap_price(const cb_prices *z, uint32_t storage) {
    const cb_facts *f = z->trial->f;
    uint32_t from, to;
    if (z->trial->goal->measure == CB_MEASURE_SAVED)
        return f->held[storage] ? 0 : z->price[f->base_backward];
    find_gap(z, storage, &from, &to);
    return to > from ? z->sum[to] - z->sum[from] : 0;
}

/* What a run after the first costs beside the members that it takes: all of it, or writing. */
static int64_t again_alone(const cb_prices *z, uint32_t unit) {
    const cb_facts *f = z->trial->f;
    if (unit < f->p->n_op) return f->least_cost_ps[unit];
    uint32_t op = cb_unit_op(f, unit), value = f->p->out_begin[op] + (unit - f->unit_begin[op]);
    int64_t bent = cb_write_time_ps(f->p, value, f->device) + f->cost_ps[unit] - f->time_ps[unit];
    if (f->least_cost_ps[unit] < bent) bent = f->least_cost_ps[unit]; /* taken in */
    return bent < 0 ? 0 : bent;
}

/* A member that no plan runs in the forward for sure costs nothing to run in the backward. */
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

static void set_costs(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    cb_cut *cut = z->cut;
    z->sum[0] = 0;
    for (uint32_t k = 0; k < f->n_base; k++) z->sum[k + 1] = z->sum[k] + z->price[k];
    set_inner_costs(z);
    for (uint32_t i = 0; i < cut->n_run; i++) {
        uint32_t op = cut->run_op[i];
        double cost = z->unused_forward[op] ? 0 : (double)again_alone(z, op) * z->scale;
        bool never = f->once[op] || f->wish[op] == CB_MUST_SAVE;
        cut->run_cost[i] = never ? CB_FLOW_INF : (int64_t)fmin(cost, CB_CUT_UNITS);
    }
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i], op = f->unit[s];
        double cost = (double)f->p->storage_bytes[s] * gap_price(z, s) * z->scale;
        bool stays = f->p->storage_flags[s] & CB_STORE_HOLD_END;
        cut->save_cost[i] = stays ? 0
                            : z->trial->forced[op] && !f->held[s]
                                ? CB_FLOW_INF
                                : (int64_t)fmin(cost, CB_CUT_UNITS);
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

static cb_status solve(cb_prices *z, cb_error *err) {
    set_costs(z);
    CB_TRY(cb_cut_solve(z->cut, err));
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

/* Bytes of the relaxed plan at each position: least, and the gaps of what the cut keeps. */
static void relax(cb_prices *z) {
    const cb_facts *f = z->trial->f;
    double *change = z->relaxed, now = 0;
    memset(change, 0, ((size_t)f->n_base + 1) * sizeof *change);
    for (uint32_t i = 0; i < z->cut->n_save; i++) {
        uint32_t s = z->cut->save_storage[i], from, to;
        if (!z->cut->saved[s] || (f->p->storage_flags[s] & CB_STORE_HOLD_END)) continue;
        find_gap(z, s, &from, &to);
        change[from < f->n_base ? from : f->n_base] += (double)f->p->storage_bytes[s];
        change[to < f->n_base ? to : f->n_base] -= (double)f->p->storage_bytes[s];
    }
    for (uint32_t k = 0; k < f->n_base; k++) {
        now += change[k];
        change[k] = now + z->least[k];
    }
}

static cb_tangent tangent_here(const cb_prices *z) {
    const cb_facts *f = z->trial->f;
    cb_tangent line = {(double)z->cut->flow.value / z->scale, 0, 0};
    double before = 0, once = (double)(f->once_ps + f->inlining_ps);
    for (uint32_t k = 0; k < f->n_base; k++) {
        double time = (double)f->time_ps[f->base[k]];
        line.constant += z->price[k] * z->least[k];
        line.slope += z->price[k];
        line.reach += z->price[k] * fmin(before + time, once - before);
        before += time;
    }
    return line;
}

/* One step along what the relaxed plan holds over the target. False: it holds nothing over it. */
static bool step_up(cb_prices *z, double target, double gap, double theta) {
    double norm = 0;
    for (uint32_t k = 0; k < z->trial->f->n_base; k++) {
        double over = z->relaxed[k] - target;
        if (over > 0 || z->price[k] > 0) norm += over * over;
    }
    if (norm <= 0) return false;
    for (uint32_t k = 0; k < z->trial->f->n_base; k++)
        z->price[k] = fmax(0, z->price[k] + theta * gap / norm * (z->relaxed[k] - target));
    return true;
}

cb_status cb_prices_polyak(cb_prices *z, uint64_t target, const double *from, double extra_ps,
                           int steps, cb_error *err) {
    const cb_trial *t = z->trial;
    const cb_facts *f = t->f;
    double bytes = (double)target, best = -INFINITY, theta = 1, once = (double)f->once_ps;
    double whole = z->start * 0x1p-40;
    int stale = 0;
    cb_tangent top = {0, 0, 0};
    z->rule = CB_PRICE_BOUND;
    for (uint32_t k = 0; k < f->n_base; k++) {
        double over = (double)z->first_moment[k] - bytes;
        z->price[k] = from ? from[k] : over > 0 ? z->start * over / (bytes + 1) : 0;
        if (z->price[k] < whole) z->price[k] = 0;
    }
    memcpy(z->best, z->price, f->n_base * sizeof *z->best);
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
            continue;
        }
        relax(z);
        if (!step_up(z, bytes, fmax(1e-9 * once, extra_ps - bound), theta)) break;
    }
    return CB_PUSH(t->scratch, z->tangent, top) ? CB_OK : cb_no_memory(err);
}

double cb_prices_bound(const cb_prices *z, double bytes) {
    return cb_tangents_bound(&z->tangent, z->tangent.len, bytes);
}
