/* See facts.h. Constraints of all views of a storage meet at the op that allocates it: MUST beats
 * PREFER, contradicting MUSTs are an error, and among contradicting PREFERs saving wins, because it
 * is always possible, and then offloading. */
#include "facts.h"

#include <stdio.h>

#include "names.h"

const char *cb_op_text(const cb_problem *p, uint32_t op, char buffer[CB_OP_TEXT]) {
    const char *location = p->op_location[op];
    (void)snprintf(buffer, CB_OP_TEXT, location[0] ? "%.80s (%.70s)" : "%.80s", p->op_name[op],
                   location);
    return buffer;
}

void cb_refusal_set_op(cb_refusal *refusal, const cb_problem *p, uint32_t op) {
    if (op == CB_NONE) return;
    (void)snprintf(refusal->op, sizeof refusal->op, "%s", p->op_name[op]);
    const char *location = p->op_location[op]; /* keeps the end of a long location, which contains
                                                  the line */
    const size_t length = strlen(location), most = sizeof refusal->location - 1;
    (void)snprintf(refusal->location, sizeof refusal->location, "%s",
                   length > most ? location + (length - most) : location);
}

static bool is_static(const cb_problem *p, uint32_t storage) {
    return p->storage_flags[storage] & CB_STORE_STATIC;
}

/* ---- needed ops and the base order ----------------------------------------------------------- */

static void find_roots(const cb_problem *p, uint32_t *root) {
    for (uint32_t s = 0; s < p->n_storage; s++) root[s] = CB_NONE;
    for (uint32_t v = p->n_value; v-- > 0;) {
        uint32_t s = p->value_storage[v];
        if (!is_static(p, s)) root[s] = p->value_op[v];
    }
}

static void need(cb_facts *f, uint32_t value, bool *needed) {
    needed[f->p->value_op[value]] = true;
    if (f->useful) f->useful[f->p->value_op[value]] |= cb_value_made(f, value);
}

/* An op is needed if an output of the problem or a needed op reads its result, or if it has an
 * effect. Each output of an op with an inside is needed separately, and needs only the inputs of
 * its slice. */
static void mark_needed(cb_facts *f, bool *needed) {
    const cb_problem *p = f->p;
    for (uint32_t i = 0; i < p->n_forward_output; i++) need(f, p->forward_output[i], needed);
    for (uint32_t i = 0; i < p->n_backward_output; i++) need(f, p->backward_output[i], needed);
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v];
        bool hold = p->storage_flags[s] & (CB_STORE_HOLD_FORWARD | CB_STORE_HOLD_END);
        if ((hold || cb_is_updating(p, s)) && f->root[s] == p->value_op[v]) need(f, v, needed);
    }
    for (uint32_t op = p->n_op; op-- > 0;) {
        if (p->op_flags[op] & CB_POP_ACTS) needed[op] = true;
        if (!needed[op]) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++)
            if (cb_slice_reads(slice, j - p->in_begin[op])) need(f, p->in_value[j], needed);
    }
}

/* ---- units ----------------------------------------------------------------------------------- */

/* If no op has an inside, unit ids are op ids, and storages are made by their roots. */
static bool number_units(cb_facts *f, cb_arena *arena) {
    const cb_problem *p = f->p;
    f->n_unit = p->n_op;
    if (!p->member_begin) return true;
    uint32_t n = 0;
    f->unit_begin = CB_NEW(arena, uint32_t, (size_t)p->n_op + 1);
    f->unit_op = CB_NEW(arena, uint32_t, p->n_value);
    f->useful = CB_NEW(arena, uint32_t, p->n_op);
    if (!f->unit_begin || !f->unit_op || !f->useful) return false;
    for (uint32_t op = 0; op < p->n_op; op++) {
        f->unit_begin[op] = p->n_op + n;
        for (uint32_t v = p->out_begin[op]; cb_has_inside(p, op) && v < p->out_begin[op + 1]; v++)
            f->unit_op[n++] = op;
    }
    f->unit_begin[p->n_op] = f->n_unit = p->n_op + n;
    return true;
}

/* Runs after the order is set. Outputs of an inside that nothing needs are never made. */
static bool find_units(cb_facts *f, cb_arena *arena) {
    const cb_problem *p = f->p;
    f->unit = f->root;
    if (!f->unit_begin) return true;
    f->unit = CB_NEW(arena, uint32_t, p->n_storage);
    if (!f->unit) return false;
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v], op = p->value_op[v];
        if (f->root[s] == op && cb_has_units(f, op) && !(f->useful[op] & cb_value_made(f, v)))
            f->root[s] = CB_NONE;
    }
    if (p->n_storage > 0) memcpy(f->unit, f->root, p->n_storage * sizeof *f->unit);
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v], op = p->value_op[v];
        if (f->root[s] == op && cb_has_units(f, op))
            f->unit[s] = f->unit_begin[op] + (v - p->out_begin[op]);
    }
    for (uint32_t u = p->n_op; u < f->n_unit; u++) {
        uint32_t op = cb_unit_op(f, u);
        f->position[u] = f->position[op];
        f->time_ps[u] = cb_run_time_ps(p, op, cb_unit_made(f, u), f->device);
    }
    return true;
}

static void set_order(cb_facts *f, const bool *needed) {
    const cb_problem *p = f->p;
    for (uint32_t op = 0; op < p->n_op; op++) {
        if (op == p->backward_starts) f->base_backward = f->n_base;
        f->position[op] = CB_NONE;
        if (!needed[op] || (p->op_flags[op] & CB_POP_PLACEHOLDER)) continue;
        f->position[op] = f->n_base;
        f->base[f->n_base++] = op;
        f->time_ps[op] = cb_run_time_ps(p, op, cb_unit_made(f, op), f->device);
        f->once_ps += f->time_ps[op];
    }
    if (p->backward_starts == p->n_op) f->base_backward = f->n_base;
    for (uint32_t s = 0; s < p->n_storage; s++)
        if (f->root[s] != CB_NONE && f->position[f->root[s]] == CB_NONE) f->root[s] = CB_NONE;
}

/* ---- what may run twice ---------------------------------------------------------------------- */

/* An op may not run twice if it reads memory that is overwritten later, allocates memory that
 * another op writes into, or makes a gradient that an update consumes. `mutator` [n_storage]: the
 * last op that writes into the storage. */
static void mark_once(cb_facts *f, uint32_t *mutator) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) mutator[s] = CB_NONE;
    for (uint32_t op = 0; op < p->n_op; op++) {
        if (!(p->op_flags[op] & CB_POP_MUTATES)) continue;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
            if (f->root[p->value_storage[v]] != op) mutator[p->value_storage[v]] = op;
    }
    for (uint32_t id = 0; id < f->n_unit; id++) {
        uint32_t op = cb_unit_op(f, id), made = cb_unit_made(f, id);
        cb_slice slice = cb_slice_of(p, op, made);
        f->once[id] = cb_once_flags(p, op) || (p->op_flags[op] & CB_POP_PLACEHOLDER);
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && !f->once[id]; j++) {
            uint32_t writer = mutator[p->value_storage[p->in_value[j]]];
            bool reads = cb_slice_reads(slice, j - p->in_begin[op]);
            f->once[id] = reads && writer != CB_NONE && writer > op;
        }
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1] && !f->once[id]; v++) {
            bool makes = cb_makes(made, v - p->out_begin[op]);
            uint32_t s = p->value_storage[v];
            f->once[id] = makes && (mutator[s] != CB_NONE || cb_is_updating(p, s));
        }
    }
}

/* True if the storage is an output that belongs to the caller and is not the memory of an input. */
static bool is_given(const cb_facts *f, uint32_t op, uint32_t value) {
    const cb_problem *p = f->p;
    uint32_t s = p->value_storage[value];
    bool given = is_static(p, s);
    for (uint32_t v = p->out_begin[op]; v < value && given; v++) given = p->value_storage[v] != s;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && given; j++)
        given = p->value_storage[p->in_value[j]] != s;
    return given;
}

static void sum_given(cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t op = 0; op < p->n_op; op++) {
        if (p->op_flags[op] & (CB_POP_PLACEHOLDER | CB_POP_VIEW)) continue;
        if (cb_has_units(f, op)) continue; /* no rerun makes this output */
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            if (!is_given(f, op, v)) continue;
            f->stays[op] = true;
            f->again_bytes[op] += p->storage_bytes[p->value_storage[v]];
        }
        f->has_again |= f->again_bytes[op] > 0;
    }
}

/* The first run of a collective that may run again stays in its place, because other processes wait
 * there. */
static void keep_collectives(cb_facts *f) {
    for (uint32_t op = 0; f->p->collective_again && op < f->p->n_op; op++)
        f->stays[op] |= (f->p->op_flags[op] & CB_POP_COLLECTIVE) && !cb_has_units(f, op);
}

/* Recomputing a storage recomputes its views. If a view may run only once, because it also reads
   other memory that is mutated, the op of its storage may not run twice either. Runs after
   set_order. */
static void mark_viewed_once(cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        if (!f->once[op] || !(p->op_flags[op] & CB_POP_VIEW)) continue;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t unit = f->unit[p->value_storage[v]];
            if (unit != CB_NONE) f->once[unit] = true;
        }
    }
}

static void mark_held(cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++)
        f->held[s] = p->storage_flags[s] & (CB_STORE_HOLD_FORWARD | CB_STORE_HOLD_END) ||
                     (cb_is_updating(p, s) && f->root[s] < p->backward_starts);
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        f->held[p->value_storage[p->forward_output[i]]] = true;
}

/* ---- the user's constraints ------------------------------------------------------------------ */

static bool is_must(uint8_t wish) {
    return wish == CB_MUST_SAVE || wish == CB_MUST_RECOMPUTE || wish == CB_MUST_OFFLOAD;
}

/* Returns the rank of a wish, which decides if nothing else does. */
static int rank_of(uint8_t wish) {
    if (wish == CB_MUST_SAVE || wish == CB_PREFER_SAVE) return 2;
    return wish == CB_MUST_OFFLOAD || wish == CB_PREFER_OFFLOAD ? 1 : 0;
}

static const char *must_name(uint8_t wish) {
    return wish == CB_MUST_SAVE        ? "MUST_SAVE"
           : wish == CB_MUST_RECOMPUTE ? "MUST_RECOMPUTE"
                                       : "MUST_OFFLOAD";
}

static cb_status add_wish(cb_facts *f, uint32_t unit, uint32_t value, cb_error *err) {
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit);
    uint8_t wish = p->value_constraint[value], before = f->wish[unit];
    char a[CB_OP_TEXT], b[CB_OP_TEXT];
    if (is_must(wish) && is_must(before) && wish != before) {
        uint32_t other = f->wish_value[unit];
        return cb_fail(err, CB_INVALID,
                       "%s of %s and %s of %s contradict each other: both values are in memory "
                       "that %s allocates",
                       must_name(before), cb_op_text(p, p->value_op[other], a), must_name(wish),
                       cb_op_text(p, p->value_op[value], b), p->op_name[op]);
    }
    if (f->once[unit] && wish == CB_MUST_RECOMPUTE) {
        return cb_fail(
            err, CB_INVALID,
            "MUST_RECOMPUTE of %s contradicts %s, which may run only once (%s): save it instead",
            cb_op_text(p, p->value_op[value], a), cb_op_text(p, op, b),
            cb_why_once(p->op_flags[op]));
    }
    if (f->once[unit] && wish == CB_PREFER_RECOMPUTE) return CB_OK;
    bool wins = before == CB_FREE || (is_must(wish) && !is_must(before)) ||
                (is_must(wish) == is_must(before) && rank_of(wish) > rank_of(before));
    if (!wins) return CB_OK;
    f->wish[unit] = wish;
    f->wish_value[unit] = value;
    return CB_OK;
}

static cb_status gather_wishes(cb_facts *f, cb_error *err) {
    const cb_problem *p = f->p;
    f->offloads = false;
    for (uint32_t u = 0; u < f->n_unit; u++) f->wish_value[u] = CB_NONE;
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t unit = f->unit[p->value_storage[v]];
        if (p->value_constraint[v] == CB_FREE || unit == CB_NONE ||
            f->position[unit] >= f->base_backward)
            continue;
        CB_TRY(add_wish(f, unit, v, err));
    }
    for (uint32_t u = 0; u < f->n_unit; u++)
        f->offloads |= f->wish[u] == CB_MUST_OFFLOAD || f->wish[u] == CB_PREFER_OFFLOAD;
    return CB_OK;
}

/* Saving takes no time, so the cost of recomputation expresses both preferences: PREFER_RECOMPUTE
 * divides it by four instead of multiplying the cost of saving. */
static int64_t bend(int64_t time_ps, bool saves, bool recomputes) {
    if (saves) return time_ps * CB_AGAINST_PREFERENCE;
    if (recomputes && time_ps > 0)
        return (time_ps + CB_AGAINST_PREFERENCE - 1) / CB_AGAINST_PREFERENCE;
    return time_ps;
}

static void bend_costs(cb_facts *f) {
    for (uint32_t u = 0; u < f->n_unit; u++) {
        f->cost_ps[u] =
            bend(f->time_ps[u], f->wish[u] == CB_PREFER_SAVE, f->wish[u] == CB_PREFER_RECOMPUTE);
        f->bent |= f->cost_ps[u] != f->time_ps[u];
    }
}

/* If a run makes several outputs, one PREFER_SAVE outweighs all PREFER_RECOMPUTE. */
int64_t cb_again_cost_ps(const cb_facts *f, uint32_t op, uint32_t made) {
    bool saves = false, recomputes = true;
    if (!cb_has_units(f, op)) return f->cost_ps[op];
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++) {
        if (!(made & cb_unit_made(f, u))) continue;
        saves |= f->wish[u] == CB_PREFER_SAVE;
        recomputes &= f->wish[u] == CB_PREFER_RECOMPUTE;
    }
    return bend(cb_run_time_ps(f->p, op, made, f->device), saves, recomputes);
}

/* ---- inlining -------------------------------------------------------------------------------- */

/* Computes the cost of inlinings. The cost of violating a preference is that of a separate run. */
static void cost_inlinings(cb_facts *f, int64_t *least_ps) {
    const cb_problem *p = f->p;
    for (uint32_t u = 0; u < f->n_unit; u++) {
        f->least_cost_ps[u] = f->cost_ps[u];
        least_ps[u] = INT64_MAX;
    }
    for (uint32_t i = 0; i < p->inline_begin[p->n_op]; i++) {
        const cb_inlining *x = &p->inlining[i];
        uint32_t unit = f->unit[p->value_storage[x->value]];
        if (unit == CB_NONE || f->once[unit]) continue;
        int64_t time_ps = cb_inline_time_ps(p, i, f->device);
        int64_t cost = time_ps + f->cost_ps[unit] - f->time_ps[unit];
        f->inlines[unit] = true;
        if (time_ps < least_ps[unit]) least_ps[unit] = time_ps;
        f->inline_cost_ps[i] = cost > 0 ? cost : 0;
        if (f->inline_cost_ps[i] < f->least_cost_ps[unit])
            f->least_cost_ps[unit] = f->inline_cost_ps[i];
    }
}

/* Finds the units that every plan makes in memory: results, held values, and values read without
 * inlining by a run that makes any of these. `sure` [n_unit], `ends` [n_storage], both false. */
static void mark_sure(const cb_facts *f, bool *sure, bool *ends) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++)
        ends[s] = (p->storage_flags[s] & ~CB_STORE_STATIC) || cb_is_updating(p, s);
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        ends[p->value_storage[p->forward_output[i]]] = true;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        ends[p->value_storage[p->backward_output[i]]] = true;
    for (uint32_t k = f->n_base; k-- > 0;) {
        uint32_t op = f->base[k], made = 0;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v], unit = f->unit[s];
            if (ends[s] || (unit != CB_NONE && cb_unit_op(f, unit) == op && sure[unit]))
                made |= cb_made_value(p, v);
        }
        if (made == 0) continue;
        cb_slice slice = cb_slice_of(p, op, made);
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t v = p->in_value[j], unit = f->unit[p->value_storage[v]];
            if (unit == CB_NONE || !cb_slice_reads(slice, j - p->in_begin[op])) continue;
            if (cb_find_inlining(p, op, v) == CB_NONE) sure[unit] = true;
        }
    }
    for (uint32_t s = 0; s < p->n_storage; s++)
        if (ends[s] && f->unit[s] != CB_NONE) sure[f->unit[s]] = true;
}

/* Computes how much less time an op of the base order takes if some of its outputs are always
 * inlined. Units in `sure` [n_unit] are always made. `least_ps` [n_unit] is the minimum time for
 * inlining each. */
static int64_t spare_time(const cb_facts *f, const int64_t *least_ps, const bool *sure,
                          uint32_t op) {
    const cb_problem *p = f->p;
    uint32_t made = cb_unit_made(f, op);
    int64_t least = INT64_MAX;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v], unit = f->unit[s];
        bool inlines = unit != CB_NONE && p->value_op[v] == cb_unit_op(f, unit) &&
                       f->inlines[unit] && !f->held[s] && !sure[unit];
        if (!inlines) continue;
        if (least_ps[unit] < least) least = least_ps[unit];
        made = cb_has_units(f, op) ? made & ~cb_unit_made(f, unit) : 0;
    }
    if (least == INT64_MAX) return 0;
    int64_t rest = made == 0 ? 0 : cb_run_time_ps(p, op, made, f->device);
    int64_t spare = f->time_ps[op] - rest - least;
    return spare > 0 ? spare : 0;
}

static bool find_inlinings(cb_facts *f, cb_arena *arena) {
    const cb_problem *p = f->p;
    f->least_cost_ps = f->cost_ps;
    if (!p->inline_begin) return true;
    f->inlines = CB_NEW(arena, bool, f->n_unit);
    f->inline_cost_ps = CB_NEW(arena, int64_t, p->inline_begin[p->n_op]);
    f->least_cost_ps = CB_NEW(arena, int64_t, f->n_unit);
    int64_t *least_ps = CB_NEW(arena, int64_t, f->n_unit);
    bool *sure = CB_NEW(arena, bool, f->n_unit), *ends = CB_NEW(arena, bool, p->n_storage);
    if (!f->inlines || !f->inline_cost_ps || !f->least_cost_ps || !least_ps || !sure || !ends)
        return false;
    cost_inlinings(f, least_ps);
    mark_sure(f, sure, ends);
    for (uint32_t k = 0; k < f->n_base; k++)
        f->inlining_ps += spare_time(f, least_ps, sure, f->base[k]);
    f->once_ps -= f->inlining_ps;
    return true;
}

/* ---- regions --------------------------------------------------------------------------------- */

/* Returns the innermost region that contains both. A parent's id is smaller than its children's. */
static uint32_t common_region(const cb_problem *p, uint32_t a, uint32_t b) {
    while (a != b) {
        if (a == CB_NONE || b == CB_NONE) return CB_NONE;
        if (a > b) a = p->region_parent[a];
        else b = p->region_parent[b];
    }
    return a;
}

/* A storage counts in the regions that contain its op and all its forward readers. */
static void find_scopes(cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        bool counts = f->root[s] != CB_NONE && !f->held[s];
        f->scope[s] = counts ? p->op_region[f->root[s]] : CB_NONE;
    }
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            f->scope[s] = common_region(p, f->scope[s], p->op_region[op]);
        }
    }
}

bool cb_inside_region(const cb_facts *f, uint32_t storage, uint32_t region) {
    uint32_t r = f->scope[storage];
    while (r != CB_NONE && r > region) r = f->p->region_parent[r];
    return r == region;
}

cb_status cb_facts_make(const cb_problem *p, const cb_device *device, cb_arena *arena,
                        cb_facts *out, cb_error *err) {
    cb_facts f = {
        .p = p, .device = device, .alloc = arena->alloc, .all = p->reruns == CB_RERUNS_ALL};
    if (!number_units(&f, arena)) return cb_no_memory(err);
    CB_TRY_NEW(f.time_ps, arena, f.n_unit, err);
    CB_TRY_NEW(f.cost_ps, arena, f.n_unit, err);
    CB_TRY_NEW(f.again_bytes, arena, f.n_unit, err);
    CB_TRY_NEW(f.stays, arena, f.n_unit, err);
    CB_TRY_NEW(f.root, arena, p->n_storage, err);
    CB_TRY_NEW(f.once, arena, f.n_unit, err);
    CB_TRY_NEW(f.held, arena, p->n_storage, err);
    CB_TRY_NEW(f.scope, arena, p->n_storage, err);
    CB_TRY_NEW(f.wish, arena, f.n_unit, err);
    CB_TRY_NEW(f.wish_value, arena, f.n_unit, err);
    CB_TRY_NEW(f.base, arena, p->n_op, err);
    CB_TRY_NEW(f.position, arena, f.n_unit, err);
    bool *needed = CB_NEW(arena, bool, p->n_op);
    uint32_t *mutator = CB_NEW(arena, uint32_t, p->n_storage);
    if (!needed || !mutator) return cb_no_memory(err);
    for (uint32_t op = 0; op < p->n_op; op++) f.time_ps[op] = cb_op_time_ps(p, op, device);
    find_roots(p, f.root);
    mark_needed(&f, needed);
    set_order(&f, needed);
    if (!find_units(&f, arena)) return cb_no_memory(err);
    mark_once(&f, mutator);
    mark_viewed_once(&f);
    mark_held(&f);
    sum_given(&f);
    keep_collectives(&f);
    find_scopes(&f);
    CB_TRY(cb_list_follows(p, arena, &f.follows, err));
    CB_TRY(gather_wishes(&f, err));
    bend_costs(&f);
    if (!find_inlinings(&f, arena)) return cb_no_memory(err);
    *out = f;
    return CB_OK;
}

/* True if the unit is in a phase whose ops may run again. The first op of the backward stays in its
 * place: values held until the backward begins are alive while it runs. */
static bool is_in_reach(const cb_facts *f, uint32_t unit) {
    uint32_t position = f->position[unit];
    if (position < f->base_backward) return true;
    return f->all && position != CB_NONE && position > f->base_backward &&
           !(f->p->op_flags[cb_unit_op(f, unit)] & CB_POP_COLLECTIVE);
}

bool cb_may_rerun(const cb_facts *f, uint32_t unit) {
    if (cb_has_units(f, unit)) {
        bool may = false;
        for (uint32_t u = f->unit_begin[unit]; u < f->unit_begin[unit + 1] && !may; u++)
            may = cb_may_rerun(f, u);
        return may;
    }
    if (unit >= f->p->n_op && !(f->useful[cb_unit_op(f, unit)] & cb_unit_made(f, unit)))
        return false;
    return !cb_is_view(f, unit) && !f->once[unit] && f->wish[unit] != CB_MUST_SAVE &&
           is_in_reach(f, unit);
}

static bool arrives(const cb_problem *p, uint32_t op) {
    return (p->op_flags[op] & CB_POP_EFFECT) && p->in_begin[op] == p->in_begin[op + 1] &&
           p->out_begin[op] < p->out_begin[op + 1];
}

uint32_t cb_arrived(const cb_facts *f) {
    uint32_t after = f->base_backward;
    for (uint32_t k = after; k < f->n_base; k++) {
        bool spare = f->spared && f->base[k] >= f->first_spare;
        if (!spare && !arrives(f->p, f->base[k])) break;
        if (!spare) after = k + 1;
    }
    return after;
}

bool cb_makes_only_held(const cb_facts *f, uint32_t op) {
    const uint32_t begin = f->p->out_begin[op], end = f->p->out_begin[op + 1];
    for (uint32_t v = begin; v < end; v++)
        if (!cb_stays_to_end(f, f->p->value_storage[v])) return false;
    return begin < end;
}

bool cb_may_take_in(const cb_facts *f, uint32_t op, uint32_t storage) {
    uint32_t unit = f->unit[storage];
    if (unit == CB_NONE || !cb_unit_inlines(f, unit) || !cb_may_rerun(f, unit)) return false;
    return cb_find_inlining(f->p, op, cb_unit_value(f, unit)) != CB_NONE;
}

bool cb_may_remake_at_end(const cb_facts *f, uint32_t value) {
    uint32_t s = f->p->value_storage[value], op = f->p->value_op[value];
    if (f->unit_begin || f->inlines || f->root[s] != op || f->held[s]) return false;
    return f->position[op] < f->base_backward && f->base_backward < f->n_base;
}

void cb_facts_mark_free(const cb_facts *f, bool *out) {
    const cb_problem *p = f->p;
    for (uint32_t u = 0; u < f->n_unit; u++) {
        uint32_t op = cb_unit_op(f, u), made = cb_unit_made(f, u);
        bool makes = false, frees = false;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (!cb_makes(made, v - p->out_begin[op])) continue;
            makes |= f->root[s] == op;
            frees |= f->root[s] == op && !cb_stays_to_end(f, s);
        }
        out[u] = cb_may_rerun(f, u) && !cb_has_units(f, u) && (frees || (!makes && u < p->n_op));
    }
}
