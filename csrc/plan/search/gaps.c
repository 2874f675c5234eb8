/* Takes three passes over the base order. The first, from the end, finds pinned ops and the latest
 * position of each first run. The other two find reads, and the gaps between them, in the forward
 * and in the backward. If ops of the backward may be late (facts.h: `all`), they are treated like
 * those of the forward. */
#include "gaps.h"

#include "../model/over.h"

#include <math.h>

typedef struct finder {
    const cb_facts *f;
    const uint32_t *earliest, *direct;
    cb_gaps *out;
    cb_arena *arena;
    bool *pinned;    /* [n_unit] */
    bool *pinned_op; /* [n_op] true if some unit of it is pinned */
    uint32_t *lead;  /* [n_unit] the storage that represents all outputs of the unit: one run makes
                          all of them and is paid for once. CB_NONE: none */
    uint32_t *read_at; /* [n_storage] position of the last read seen; CB_NONE: none */
    double *change;    /* [n_base + 1] differences of `least` */
    bool *endless;     /* [n_unit] see find_siblings */
    uint32_t *until;   /* [n_unit] likewise */
    uint32_t *reach;   /* [n_unit] of the backward: its first run comes after all moments before
                          this one */
} finder;

int64_t cb_again_alone_ps(const cb_facts *f, uint32_t unit) {
    if (unit < f->p->n_op) return f->least_cost_ps[unit];
    uint32_t op = cb_unit_op(f, unit), value = f->p->out_begin[op] + (unit - f->unit_begin[op]);
    int64_t bent = cb_write_time_ps(f->p, value, f->device) + f->cost_ps[unit] - f->time_ps[unit];
    if (f->least_cost_ps[unit] < bent) bent = f->least_cost_ps[unit]; /* inlined */
    return bent < 0 ? 0 : bent;
}

/* Sets [*from, *to) to the units of an op, or to the op itself. */
static void units_of(const cb_facts *f, uint32_t op, uint32_t *from, uint32_t *to) {
    bool several = cb_has_units(f, op);
    *from = several ? f->unit_begin[op] : op;
    *to = several ? f->unit_begin[op + 1] : op + 1;
}

static bool is_useful(const cb_facts *f, uint32_t unit) {
    uint32_t op = cb_unit_op(f, unit);
    return unit < f->p->n_op || (f->useful[op] & cb_unit_made(f, unit));
}

static cb_slice slice_of(const cb_facts *f, uint32_t unit) {
    return cb_slice_of(f->p, cb_unit_op(f, unit), cb_unit_made(f, unit));
}

/* Returns the storage of input `j`, an index into in_value; CB_NONE: memory of the caller. */
static uint32_t read_storage(const cb_facts *f, uint32_t j) {
    uint32_t s = f->p->value_storage[f->p->in_value[j]];
    return f->root[s] == CB_NONE ? CB_NONE : s;
}

/* True if the op reads and makes nothing, like the spare ops (spare.h). */
static bool is_idle(const cb_facts *f, uint32_t op) {
    const cb_problem *p = f->p;
    return (p->op_flags[op] & CB_POP_VIEW) ||
           (p->in_begin[op] == p->in_begin[op + 1] && p->out_begin[op] == p->out_begin[op + 1] &&
            p->op_workspace[op] == 0);
}

static bool is_needed_later(const finder *z, uint32_t storage) {
    return z->earliest[storage] != CB_NONE && !cb_stays_to_end(z->f, storage);
}

/* ---- when each op of the forward must have run ----------------------------------------------- */

static void take_least(uint32_t *least, uint32_t position) {
    if (position < *least) *least = position;
}

static void set_held_due(finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t u = 0; u < f->n_unit; u++) z->out->due[u] = z->out->sure[u] = CB_NONE;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit == CB_NONE || !f->held[s] || f->position[unit] >= f->base_backward) continue;
        z->out->due[unit] = z->out->sure[unit] = f->base_backward;
    }
}

/* Sets the demands of the end of the step: the values that the backward returns. */
static void set_end_due(finder *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit == CB_NONE || !cb_stays_to_end(f, s) || f->position[unit] < f->base_backward)
            continue;
        z->out->due[unit] = z->out->sure[unit] = f->n_base;
    }
    for (uint32_t s = 0; p->updates && s < p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit != CB_NONE && cb_is_updating(p, s) && f->position[unit] >= f->base_backward)
            z->out->due[unit] = z->out->sure[unit] = f->n_base;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t unit = f->unit[p->value_storage[p->backward_output[i]]];
        if (unit != CB_NONE && f->position[unit] >= f->base_backward)
            z->out->due[unit] = z->out->sure[unit] = f->n_base;
    }
}

/* `next` is the position of the next pinned op. */
static void pin_unit(finder *z, uint32_t unit, uint32_t next) {
    const cb_facts *f = z->f;
    const cb_gaps *g = z->out;
    bool first_stays = f->once[unit] || (unit < f->p->n_op && f->stays[unit]) ||
                       (!cb_may_rerun(f, unit) && g->sure[unit] != CB_NONE);
    z->pinned[unit] = first_stays || (g->sure[unit] != CB_NONE && g->sure[unit] <= next);
    if (f->position[unit] < f->base_backward) return;
    z->pinned[unit] |= !cb_may_rerun(f, unit) || cb_makes_only_held(f, cb_unit_op(f, unit));
}

/* Propagates the demands of the unit at position `k` to its inputs. Ops of the backward demand
 * nothing in the forward, which has ended by then. */
static void hand_on(finder *z, uint32_t unit, uint32_t k) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    cb_gaps *g = z->out;
    uint32_t op = cb_unit_op(f, unit), due = z->pinned[unit] ? k : g->due[unit];
    uint32_t sure = z->pinned[unit] ? k : g->sure[unit];
    cb_slice slice = slice_of(f, unit);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = read_storage(f, j);
        if (s == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
        bool crosses = k >= f->base_backward && f->position[f->unit[s]] < f->base_backward;
        if (crosses) continue;
        take_least(&g->due[f->unit[s]], due);
        if (!cb_may_take_in(f, op, s)) take_least(&g->sure[f->unit[s]], sure);
    }
}

/* Handles ops at positions [begin, end); the demands at their end are known. */
static void find_due(finder *z, uint32_t begin, uint32_t end) {
    const cb_facts *f = z->f;
    uint32_t next = end;
    for (uint32_t k = end; k-- > begin;) {
        uint32_t op = f->base[k], from, to;
        if (is_idle(f, op)) continue;
        units_of(f, op, &from, &to);
        for (uint32_t u = from; u < to; u++) {
            if (!is_useful(f, u)) continue;
            pin_unit(z, u, next);
            z->pinned_op[op] |= z->pinned[u];
            if (z->pinned[u] || z->out->due[u] != CB_NONE) hand_on(z, u, k);
        }
        if (z->pinned_op[op]) next = k;
    }
}

/* ---- where the main gaps end ----------------------------------------------------------------- */

static uint32_t later(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* The first run of a late unit of the backward comes after the earlier ops that may not be late,
   and after the makers of its inputs. This does not hold for an op of several units, whose moment
   is that of its last run. */
static void find_reach(finder *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t follows = f->base_backward;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        uint32_t op = f->base[k], from, to;
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        units_of(f, op, &from, &to);
        for (uint32_t u = from; u < to; u++) {
            cb_slice slice = slice_of(f, u);
            z->reach[u] = follows;
            for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
                uint32_t s = read_storage(f, j), maker = s == CB_NONE ? CB_NONE : f->unit[s];
                if (s == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
                if (f->position[maker] < f->base_backward) continue;
                bool pinned = maker < p->n_op && z->pinned[maker];
                z->reach[u] = later(z->reach[u], pinned ? f->position[maker] + 1 : z->reach[maker]);
            }
        }
        if (!cb_may_delay(f, op)) follows = k + 1;
    }
}

static bool reads(const cb_facts *f, uint32_t unit, uint32_t storage) {
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit);
    cb_slice slice = slice_of(f, unit);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        if (p->value_storage[p->in_value[j]] == storage &&
            cb_slice_reads(slice, j - p->in_begin[op]))
            return true;
    }
    return false;
}

/* True if all pinned units of the op read it. If several runs make the pinned units, the moment is
 * the last of these runs, and the plan chooses which units that run makes. */
static bool all_read(const finder *z, uint32_t op, uint32_t storage) {
    uint32_t from, to;
    units_of(z->f, op, &from, &to);
    for (uint32_t u = from; u < to; u++)
        if (z->pinned[u] && !reads(z->f, u, storage)) return false;
    return true;
}

/* True if this unit of the backward reads the storage at the moment of its position. */
static bool reads_at_moment(const finder *z, uint32_t unit, uint32_t storage) {
    uint32_t op = cb_unit_op(z->f, unit);
    if (!cb_may_delay(z->f, op)) return true;
    return z->pinned[unit] && (unit < z->f->p->n_op || all_read(z, op, storage));
}

/* Handles a read of the backward, from the last to the first. The gap ends at the first read that
 * has a moment. If no read has one, any read is valid, so the read after the most moments is
 * used. */
static void note_end(finder *z, uint32_t unit, uint32_t k, bool *sure) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit), *end = z->out->end;
    cb_slice slice = slice_of(f, unit);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = read_storage(f, j);
        if (s == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
        bool at_moment = reads_at_moment(z, unit, s);
        if (at_moment) end[s] = k;
        else if (!sure[s] && (end[s] == CB_NONE || end[s] < z->reach[unit]))
            end[s] = z->reach[unit];
        sure[s] |= at_moment;
    }
}

/* A value that only reruns read is needed when the first of their outputs is. `need` [n_storage] */
static void hand_end_on(const finder *z, uint32_t unit, uint32_t *need) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit), made = cb_unit_made(f, unit), when = CB_NONE;
    cb_slice slice = slice_of(f, unit);
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        if (cb_makes(made, v - p->out_begin[op])) take_least(&when, need[p->value_storage[v]]);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        if (cb_slice_reads(slice, j - p->in_begin[op]))
            take_least(&need[p->value_storage[p->in_value[j]]], when);
    }
}

/* Handles problems whose backward ops may be late. */
static bool find_late_ends(finder *z) {
    const cb_facts *f = z->f;
    uint32_t n = f->p->n_storage, from, to;
    bool *sure = CB_NEW(z->arena, bool, n);
    uint32_t *need = CB_NEW(z->arena, uint32_t, n);
    z->reach = CB_NEW(z->arena, uint32_t, f->n_unit);
    if (!sure || !need || !z->reach) return false;
    for (uint32_t s = 0; s < n; s++) z->out->end[s] = CB_NONE;
    find_reach(z);
    for (uint32_t k = f->n_base; k-- > f->base_backward;) {
        if (f->p->op_flags[f->base[k]] & CB_POP_VIEW) continue;
        units_of(f, f->base[k], &from, &to);
        for (uint32_t u = from; u < to; u++)
            if (is_useful(f, u)) note_end(z, u, k, sure);
    }
    if (n > 0) memcpy(need, z->out->end, n * sizeof *need);
    for (uint32_t k = f->base_backward; k-- > 0;) {
        units_of(f, f->base[k], &from, &to);
        for (uint32_t u = from; u < to; u++)
            if (is_useful(f, u)) hand_end_on(z, u, need);
    }
    for (uint32_t s = 0; s < n; s++)
        if (z->direct[s] == CB_NONE) z->out->end[s] = need[s];
    return true;
}

static bool find_ends(finder *z) {
    if (z->f->all) return find_late_ends(z);
    for (uint32_t s = 0; s < z->f->p->n_storage; s++)
        z->out->end[s] = z->direct[s] == CB_NONE ? z->earliest[s] : z->direct[s];
    return true;
}

/* ---- charges --------------------------------------------------------------------------------- */

static void charge(finder *z, uint32_t from, uint32_t to, double bytes) {
    if (from >= to) return;
    z->change[from] += bytes;
    z->change[to] -= bytes;
}

/* Adds a gap between two reads: the value is kept or recomputed. */
static bool add_gap(finder *z, uint32_t s, uint32_t from, uint32_t to) {
    const cb_facts *f = z->f;
    double bytes = (double)f->p->storage_bytes[s];
    uint32_t unit = f->unit[s];
    if (from >= to || bytes <= 0) return true;
    if (!cb_may_rerun(f, unit)) {
        charge(z, from, to, bytes);
        return true;
    }
    if (z->lead[unit] != s) return true;
    cb_gap gap = {s, from, to, bytes, (double)cb_again_alone_ps(f, unit)};
    return CB_PUSH(z->arena, z->out->list, gap);
}

/* At its moment, an op may take over the memory of an input, which then counts once (over.h). */
static void forgive_over(finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t k = 0; f->p->over_begin && k < f->n_base; k++)
        if (cb_count_over(f->p, f->base[k]) > 0)
            charge(z, k, k + 1, -(double)cb_over_bytes(f->p, f->base[k]));
}

/* ---- the forward ----------------------------------------------------------------------------- */

static void choose_leads(finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t u = 0; u < f->n_unit; u++) z->lead[u] = CB_NONE;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit == CB_NONE || cb_stays_to_end(f, s)) continue;
        uint32_t *lead = &z->lead[unit];
        bool better = *lead == CB_NONE || (f->held[*lead] && !f->held[s]);
        bool larger = *lead != CB_NONE && f->held[*lead] == f->held[s] &&
                      f->p->storage_bytes[s] > f->p->storage_bytes[*lead];
        if (better || larger) *lead = s;
    }
}

static bool note_forward_reads(finder *z, uint32_t unit, uint32_t k) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit);
    cb_slice slice = slice_of(f, unit);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = read_storage(f, j);
        if (s == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
        if (f->held[s] || cb_may_take_in(f, op, s) || z->read_at[s] == k) continue;
        if (z->read_at[s] != CB_NONE && !add_gap(z, s, z->read_at[s] + 1, k)) return false;
        z->read_at[s] = k;
        if (unit < p->n_op || all_read(z, op, s)) charge(z, k, k + 1, (double)p->storage_bytes[s]);
    }
    return true;
}

/* Charges the bytes that the run of a pinned op makes, plus its scratch; with several units, those
 * of the smallest unit. Held values are charged elsewhere. */
static void charge_run(finder *z, uint32_t op, uint32_t k) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    double least = INFINITY;
    uint32_t from, to;
    units_of(f, op, &from, &to);
    for (uint32_t u = from; u < to; u++) {
        if (!z->pinned[u]) continue;
        uint32_t made = cb_unit_made(f, u);
        double bytes = (double)cb_run_workspace(p, op, made);
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            bool makes = cb_makes(made, v - p->out_begin[op]) && f->root[s] == op;
            if (!makes || f->held[s] || z->read_at[s] == k) continue;
            bytes += (double)p->storage_bytes[s];
            z->read_at[s] = k;
        }
        least = fmin(least, bytes);
    }
    charge(z, k, k + 1, least);
}

static bool walk_forward(finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k], from, to;
        if (!z->pinned_op[op]) continue;
        units_of(f, op, &from, &to);
        for (uint32_t u = from; u < to; u++)
            if (z->pinned[u] && !note_forward_reads(z, u, k)) return false;
        charge_run(z, op, k);
    }
    return true;
}

/* Adds held values, which are alive from their op's first run on. In the backward this covers only
 * ops that may be late: all others are counted when they run. */
static void charge_held(finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit == CB_NONE || !f->held[s]) continue;
        bool backward = f->position[unit] >= f->base_backward;
        if (backward && !cb_may_delay(f, cb_unit_op(f, unit))) continue;
        uint32_t from = z->pinned[unit] ? f->position[unit] : z->out->sure[unit];
        uint32_t to = cb_stays_to_end(f, s) ? f->n_base : f->base_backward;
        charge(z, from, to, (double)f->p->storage_bytes[s]);
    }
}

/* ---- where the main gaps start --------------------------------------------------------------- */

/* Returns the moment after which a run of the unit is neither its first run nor one between its
 * forward reads. */
static uint32_t settled(const finder *z, uint32_t unit) {
    const cb_facts *f = z->f;
    uint32_t at = f->position[unit] + 1;
    if (z->pinned[unit]) return at;
    if (z->out->sure[unit] != CB_NONE) return z->out->sure[unit];
    return z->out->due[unit] != CB_NONE ? z->out->due[unit] : at;
}

static uint32_t after_last_read(const finder *z, uint32_t storage) {
    const cb_facts *f = z->f;
    uint32_t at = settled(z, f->unit[storage]), read = z->read_at[storage];
    if (f->held[storage] && f->base_backward > at) at = f->base_backward;
    return read != CB_NONE && read + 1 > at ? read + 1 : at;
}

/* Sets one moment for all outputs of an op. */
static void set_start(finder *z, uint32_t op) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    cb_gaps *g = z->out;
    uint32_t start = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (f->root[s] != op) continue;
        g->early[s] = after_last_read(z, s);
        start = later(start, is_needed_later(z, s) ? g->early[s] : settled(z, f->unit[s]));
    }
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = read_storage(f, j);
        if (s == CB_NONE || !is_needed_later(z, s) || z->direct[s] != CB_NONE) continue;
        start = later(start, g->start[s]);
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v], unit = f->unit[s];
        if (f->root[s] != op) continue;
        bool again = cb_may_rerun(f, unit);
        bool free = !z->pinned[unit] && g->due[unit] == CB_NONE; /* its first run may be later */
        g->start[s] = again ? start : g->early[s];
        if (again && (free || z->lead[unit] != s)) g->early[s] = g->start[s];
        g->again_ps[s] = (double)cb_again_alone_ps(f, unit);
    }
}

/* ---- the backward ---------------------------------------------------------------------------- */

/* Finds runs in the backward that have been paid for: a run of a unit may be the rerun for another
 * of its op's outputs, in that output's main gap, up to the moment until[unit]. Returns the units
 * for which this holds without end; NULL: out of memory. */
static bool *find_siblings(const finder *z, uint32_t *until) {
    const cb_facts *f = z->f;
    bool *endless = CB_NEW(z->arena, bool, f->n_unit);
    if (!endless) return NULL;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit == CB_NONE || z->lead[unit] == s || !is_needed_later(z, s)) continue;
        endless[unit] |= z->direct[s] == CB_NONE;
        if (z->direct[s] != CB_NONE) until[unit] = later(until[unit], z->out->end[s]);
    }
    return endless;
}

/* Handles a read at moment `k`. The first read of a late op's output has no gap before it, because
 * the op may run just then. */
static bool note_backward_read(finder *z, uint32_t s, uint32_t k) {
    const cb_facts *f = z->f;
    uint32_t unit = f->unit[s], before = z->read_at[s];
    bool forward = f->position[unit] < f->base_backward;
    if (before == k) return true;
    z->read_at[s] = k;
    if (forward && cb_stays_to_end(f, s)) return true;
    charge(z, k, k < f->n_base ? k + 1 : k, (double)f->p->storage_bytes[s]);
    if (before == CB_NONE) return true; /* the main gap, or a late first run */
    bool paid = forward && cb_may_rerun(f, unit) && (z->endless[unit] || before < z->until[unit]);
    return paid || add_gap(z, s, before + 1, k);
}

/* Handles a read without a moment, after all moments before `k`: until then, values that cannot be
 * recomputed are alive. */
static void note_late_read(finder *z, uint32_t s, uint32_t k) {
    const cb_facts *f = z->f;
    uint32_t before = z->read_at[s];
    if (cb_may_rerun(f, f->unit[s]) || k == 0) return;
    if (before != CB_NONE && before >= k - 1) return;
    if (before != CB_NONE) charge(z, before + 1, k, (double)f->p->storage_bytes[s]);
    z->read_at[s] = k - 1; /* otherwise its main gap ends here */
}

/* Handles a unit of an op that may be late. */
static bool note_delayed_reads(finder *z, uint32_t unit, uint32_t k) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit);
    cb_slice slice = slice_of(f, unit);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = read_storage(f, j);
        if (s == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
        if (cb_stays_to_end(f, s) || cb_may_take_in(f, op, s)) continue;
        if (!reads_at_moment(z, unit, s)) note_late_read(z, s, z->reach[unit]);
        else if (!note_backward_read(z, s, k)) return false;
    }
    return true;
}

/* Handles an op that may be late. */
static bool walk_delayed(finder *z, uint32_t op, uint32_t k) {
    uint32_t from, to;
    units_of(z->f, op, &from, &to);
    for (uint32_t u = from; u < to; u++)
        if (is_useful(z->f, u) && !note_delayed_reads(z, u, k)) return false;
    if (z->pinned_op[op]) charge_run(z, op, k);
    return true;
}

/* Handles an op that runs once, in its place. */
static bool walk_fixed(finder *z, uint32_t op, uint32_t k) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t made = cb_unit_made(f, op);
    cb_slice slice = cb_slice_of(p, op, made);
    charge(z, k, k + 1, (double)cb_run_workspace(p, op, made));
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (f->root[s] != op || z->read_at[s] == k) continue;
        z->read_at[s] = k;
        charge(z, k, cb_stays_to_end(f, s) ? f->n_base : k + 1, (double)p->storage_bytes[s]);
    }
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = read_storage(f, j);
        if (s == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
        if (cb_stays_to_end(f, s) || cb_may_take_in(f, op, s)) continue;
        if (!note_backward_read(z, s, k)) return false;
    }
    return true;
}

static bool walk_backward(finder *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    z->until = CB_NEW(z->arena, uint32_t, f->n_unit);
    z->endless = z->until ? find_siblings(z, z->until) : NULL;
    if (!z->endless) return false;
    for (uint32_t s = 0; s < p->n_storage; s++) z->read_at[s] = CB_NONE;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        if (!(cb_may_delay(f, op) ? walk_delayed(z, op, k) : walk_fixed(z, op, k))) return false;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t s = p->value_storage[p->backward_output[i]];
        bool ends = f->root[s] != CB_NONE && !cb_stays_to_end(f, s);
        if (ends && !note_backward_read(z, s, f->n_base)) return false;
    }
    return true;
}

/* ---- all passes ------------------------------------------------------------------------------ */

static bool allocate(finder *z, cb_arena *kept) {
    const cb_facts *f = z->f;
    cb_gaps *g = z->out;
    uint32_t n_storage = f->p->n_storage;
    *g = (cb_gaps){.least = CB_NEW(kept, double, f->n_base),
                   .early = CB_NEW(kept, uint32_t, n_storage),
                   .start = CB_NEW(kept, uint32_t, n_storage),
                   .end = CB_NEW(kept, uint32_t, n_storage),
                   .again_ps = CB_NEW(kept, double, n_storage),
                   .due = CB_NEW(kept, uint32_t, f->n_unit),
                   .sure = CB_NEW(kept, uint32_t, f->n_unit)};
    z->pinned = CB_NEW(kept, bool, f->n_unit);
    z->pinned_op = CB_NEW(kept, bool, f->p->n_op);
    z->lead = CB_NEW(kept, uint32_t, f->n_unit);
    z->read_at = CB_NEW(kept, uint32_t, n_storage);
    z->change = CB_NEW(kept, double, (size_t)f->n_base + 1);
    return g->least && g->early && g->start && g->end && g->again_ps && g->due && g->sure &&
           z->pinned && z->pinned_op && z->lead && z->read_at && z->change;
}

cb_status cb_gaps_find(const cb_facts *f, const uint32_t *earliest, const uint32_t *direct,
                       cb_arena *arena, cb_gaps *out, cb_error *err) {
    finder z = {.f = f, .earliest = earliest, .direct = direct, .out = out, .arena = arena};
    if (!allocate(&z, arena)) return cb_no_memory(err);
    for (uint32_t s = 0; s < f->p->n_storage; s++) z.read_at[s] = CB_NONE;
    set_held_due(&z);
    set_end_due(&z);
    if (f->all) find_due(&z, f->base_backward, f->n_base);
    find_due(&z, 0, f->base_backward);
    choose_leads(&z);
    if (!find_ends(&z)) return cb_no_memory(err);
    if (!walk_forward(&z)) return cb_no_memory(err);
    charge_held(&z);
    for (uint32_t k = 0; k < f->base_backward; k++) set_start(&z, f->base[k]);
    if (!walk_backward(&z)) return cb_no_memory(err);
    forgive_over(&z);
    double now = 0;
    for (uint32_t k = 0; k < f->n_base; k++) {
        now += z.change[k];
        out->least[k] = now;
    }
    return CB_OK;
}
