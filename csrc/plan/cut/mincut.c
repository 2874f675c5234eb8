/* The network of mincut.h, and the costs that presets give it. By bytes, run_cost is 0 or infinite
 * and the cut minimises saved bytes; otherwise it also counts what recomputed reductions read. The
 * cut is sink-minimal, so an op is recomputed only if that lowers the cost. */
#include <math.h>
#include <stdio.h>

#include "mincut.h"

#include "../torch/aten.h"
#include "../torch/torch_compat.h"

/* ---- network --------------------------------------------------------------------------------- */

typedef struct arcs {
    cb_arena *arena;
    CB_VEC(uint32_t) from;
    CB_VEC(uint32_t) to;
} arcs;

static bool add_arc(arcs *a, uint32_t from, uint32_t to) {
    return CB_PUSH(a->arena, a->from, from) && CB_PUSH(a->arena, a->to, to);
}

enum { SOURCE = 0, SINK = 1, FIRST_NODE = 2 };

/* Tables that are used while the network is built. */
typedef struct numbers {
    uint32_t *run_of;   /* [n_unit] CB_NONE: none */
    uint32_t *save_of;  /* [n_storage] CB_NONE: none */
    uint32_t *inner_of; /* [n_op] for an op with an inside: its node, then its members' */
} numbers;

/* Makes an R node for each forward unit that allocates, and an N node for each storage it makes. */
static bool number_nodes(cb_cut *cut, cb_arena *arena, numbers *n) {
    const cb_facts *f = cut->f;
    const cb_problem *p = f->p;
    uint32_t n_unit = f->base_backward + (f->n_unit - p->n_op);
    cut->run_op = CB_NEW(arena, uint32_t, n_unit);
    cut->save_storage = CB_NEW(arena, uint32_t, p->n_storage);
    cut->save_run = CB_NEW(arena, uint32_t, p->n_storage);
    if (!cut->run_op || !cut->save_storage || !cut->save_run) return false;
    for (uint32_t u = 0; u < f->n_unit; u++) n->run_of[u] = CB_NONE;
    for (uint32_t s = 0; s < p->n_storage; s++) n->save_of[s] = CB_NONE;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op || n->save_of[s] != CB_NONE) continue;
            uint32_t unit = f->unit[s];
            if (n->run_of[unit] == CB_NONE) {
                n->run_of[unit] = cut->n_run;
                cut->run_op[cut->n_run++] = unit;
            }
            n->save_of[s] = cut->n_save;
            cut->save_storage[cut->n_save] = s;
            cut->save_run[cut->n_save++] = n->run_of[unit];
        }
    }
    return true;
}

static bool number_members(cb_cut *cut, cb_arena *arena, numbers *n) {
    const cb_facts *f = cut->f;
    const cb_problem *p = f->p;
    if (!p->member_begin) return true;
    cut->inner_op = CB_NEW(arena, uint32_t, p->member_begin[p->n_op] + p->n_op);
    cut->inner_member = CB_NEW(arena, uint32_t, p->member_begin[p->n_op] + p->n_op);
    if (!cut->inner_op || !cut->inner_member) return false;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (!cb_has_units(f, op)) continue;
        n->inner_of[op] = cut->n_inner;
        for (uint32_t m = 0; m <= p->member_begin[op + 1] - p->member_begin[op]; m++) {
            cut->inner_op[cut->n_inner] = op;
            cut->inner_member[cut->n_inner++] = m == 0 ? CB_NONE : m - 1;
        }
    }
    return true;
}

/* Adds infinite arcs: recomputed ops need inputs, as do the backward and the end of the step. */
static bool add_needs(const cb_cut *cut, arcs *a, const numbers *n) {
    const cb_facts *f = cut->f;
    const cb_problem *p = f->p;
    uint32_t first_run = FIRST_NODE, first_save = FIRST_NODE + cut->n_run;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k], reader = k >= f->base_backward ? SINK : CB_NONE;
        if (reader == CB_NONE && cb_has_units(f, op)) continue; /* its members read */
        if (reader == CB_NONE && n->run_of[op] != CB_NONE) reader = first_run + n->run_of[op];
        if (reader == CB_NONE) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t node = n->save_of[p->value_storage[p->in_value[j]]];
            if (!cb_slice_reads(slice, j - p->in_begin[op])) continue;
            if (node != CB_NONE && !add_arc(a, first_save + node, reader)) return false;
        }
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], node = n->save_of[p->value_storage[v]];
        if (cb_may_remake_at_end(f, v) && !add_arc(a, first_save + node, SINK)) return false;
    }
    return true;
}

/* Adds infinite arcs inside an op: the needs of each member, and of each output. */
static bool add_inner_needs(const cb_cut *cut, arcs *a, const numbers *n, uint32_t op) {
    const cb_facts *f = cut->f;
    const cb_problem *p = f->p;
    uint32_t first_save = FIRST_NODE + cut->n_run, own = first_save + cut->n_save + n->inner_of[op];
    for (uint32_t i = p->member_begin[op]; i < p->member_begin[op + 1]; i++) {
        const cb_member *m = &p->member[i];
        uint32_t node = own + 1 + (i - p->member_begin[op]);
        if (!add_arc(a, own, node)) return false;
        for (uint32_t at = 0; at < CB_MOST_MEMBERS; at++)
            if (m->uses >> at & 1 && !add_arc(a, own + 1 + at, node)) return false;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t save = n->save_of[p->value_storage[p->in_value[j]]];
            bool reads = m->reads >> (j - p->in_begin[op]) & 1;
            if (reads && save != CB_NONE && !add_arc(a, first_save + save, node)) return false;
        }
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t run = n->run_of[f->unit_begin[op] + (v - p->out_begin[op])];
        if (run != CB_NONE && !add_arc(a, own + 1 + p->value_member[v], FIRST_NODE + run))
            return false;
    }
    return true;
}

static bool add_arcs(const cb_cut *cut, arcs *a, const numbers *n) {
    const cb_facts *f = cut->f;
    uint32_t first_save = FIRST_NODE + cut->n_run, first_inner = first_save + cut->n_save;
    for (uint32_t i = 0; i < cut->n_run; i++)
        if (!add_arc(a, SOURCE, FIRST_NODE + i)) return false;
    for (uint32_t i = 0; i < cut->n_save; i++)
        if (!add_arc(a, FIRST_NODE + cut->save_run[i], first_save + i)) return false;
    for (uint32_t i = 0; i < cut->n_inner; i++)
        if (!add_arc(a, SOURCE, first_inner + i)) return false;
    if (!add_needs(cut, a, n)) return false;
    for (uint32_t k = 0; k < f->base_backward; k++)
        if (cb_has_units(f, f->base[k]) && !add_inner_needs(cut, a, n, f->base[k])) return false;
    return true;
}

static cb_status build_network(cb_cut *cut, cb_arena *arena, cb_arena *scratch, cb_error *err) {
    const cb_problem *p = cut->f->p;
    arcs a = {.arena = scratch};
    numbers n = {.run_of = CB_NEW(scratch, uint32_t, cut->f->n_unit),
                 .save_of = CB_NEW(scratch, uint32_t, p->n_storage),
                 .inner_of = CB_NEW(scratch, uint32_t, p->n_op)};
    if (!n.run_of || !n.save_of || !n.inner_of || !number_nodes(cut, arena, &n) ||
        !number_members(cut, arena, &n) || !add_arcs(cut, &a, &n))
        return cb_no_memory(err);
    uint32_t n_arc = (uint32_t)a.from.len, n_cost = cut->n_run + cut->n_save + cut->n_inner;
    CB_TRY_NEW(cut->capacity, arena, n_arc, err);
    CB_TRY_NEW(cut->recompute, arena, cut->f->n_unit, err);
    CB_TRY_NEW(cut->saved, arena, p->n_storage, err);
    CB_TRY_NEW(cut->hoist, arena, p->n_op, err);
    cut->run_cost = cut->capacity;
    cut->save_cost = cut->capacity + cut->n_run;
    cut->inner_cost = cut->save_cost + cut->n_save;
    for (uint32_t i = n_cost; i < n_arc; i++) cut->capacity[i] = CB_FLOW_INF;
    return cb_flow_build(&cut->flow, arena, FIRST_NODE + n_cost, n_arc, a.from.at, a.to.at, err);
}

cb_status cb_cut_init(cb_cut *cut, const cb_facts *f, cb_arena *arena, cb_error *err) {
    *cut = (cb_cut){.f = f};
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    cb_status status = build_network(cut, arena, &scratch, err);
    cb_arena_free(&scratch);
    return status;
}

/* An infinite path is a bug, because contradicting constraints were refused before. */
static cb_status fail_path(const cb_cut *cut, cb_error *err) {
    char first[CB_OP_TEXT], last[CB_OP_TEXT];
    const cb_flow *flow = &cut->flow;
    uint32_t begin = cb_unit_op(cut->f, cut->run_op[flow->path[1] - FIRST_NODE]),
             end = flow->path[flow->n_path - 2] - FIRST_NODE - cut->n_run;
    return cb_fail(
        err, CB_INTERNAL,
        "cannot satisfy the constraints: %s must not be recomputed, and the result of %s can "
        "neither be saved nor recomputed without it",
        cb_op_text(cut->f->p, begin, first),
        cb_op_text(cut->f->p, cut->f->root[cut->save_storage[end]], last));
}

cb_status cb_cut_poll(const cb_cut *cut, cb_error *err) {
    if (!cb_poll_cancels(cut->poll)) return CB_OK;
    return cb_fail(err, CB_CANCELLED, "plan: cancelled");
}

cb_status cb_cut_solve(cb_cut *cut, cb_error *err) {
    const bool *side = cut->flow.sink_side;
    cb_status status = cb_flow_solve(&cut->flow, SOURCE, SINK, cut->capacity, err);
    if (status == CB_INFEASIBLE) return fail_path(cut, err);
    if (status != CB_OK) return status;
    for (uint32_t i = 0; i < cut->n_run; i++) cut->recompute[cut->run_op[i]] = side[FIRST_NODE + i];
    for (uint32_t i = 0; i < cut->n_save; i++) {
        bool needed = side[FIRST_NODE + cut->n_run + i];
        cut->saved[cut->save_storage[i]] = needed && !side[FIRST_NODE + cut->save_run[i]];
    }
    return CB_OK;
}

/* ---- presets --------------------------------------------------------------------------------- */

#define MOST_WORK 1e15 /* bytes; caps the cost of members that would take hours */
#define SMALL_PART 4   /* a result is small if it has less than 1/4 of the bytes of an input */

/* A product is brief if it takes at most this many operations per byte of its result: in f32, an
 * inner dimension of 128, as for attention scores. With a static input (a weight) a quarter of that
 * admits depthwise and first convolutions and low-rank updates, but no other layers. */
#define BRIEF_OPS 64
#define BRIEF_LAYER_OPS 16

/* The ops that a preset may recompute, among those that may run twice. */
typedef struct preset_rules {
    bool any;            /* false: recomputes nothing */
    uint32_t only;       /* an op must have one of these flags; 0: no condition */
    uint32_t never;      /* ops with one of these flags are saved */
    uint32_t most_small; /* n: saves reductions whose result has less than 1/n of the bytes of their
                            largest input; 0: no such rule */
    bool brief;          /* a brief product is recomputed in spite of `never` */
    bool slim;           /* a memory-bound product is recomputed in spite of `never` */
    bool balanced;       /* counts arithmetic, which ends fused chains and is charged for members */
} preset_rules;

static const preset_rules rules_of[CB_PRESET_COUNT] = {
    [CB_PRESET_RECOMPUTE_ALL] = {.any = true},
    [CB_PRESET_CONSERVATIVE] = {.any = true, .only = CB_POP_FUSIBLE, .most_small = SMALL_PART},
    [CB_PRESET_AGGRESSIVE] = {.any = true, .never = CB_POP_COMPUTE, .brief = true},
    [CB_PRESET_SHAPE_AWARE] = {.any = true,
                               .never = CB_POP_COMPUTE,
                               .slim = true,
                               .balanced = true},
};

static uint64_t bytes_made(const cb_problem *p, uint32_t op) {
    uint64_t made = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        made += p->storage_bytes[p->value_storage[v]];
    return made;
}

static uint64_t largest_read(const cb_problem *p, uint32_t op) {
    uint64_t largest = 0;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint64_t bytes = p->storage_bytes[p->value_storage[p->in_value[j]]];
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static double arithmetic_s(const cb_facts *f, uint32_t op) {
    return cb_arithmetic_s(f->device, f->p->op_flags[op], f->p->op_class[op], f->p->op_flops[op]);
}

/* True if a product is brief. `reads` has one bit for each input of the op that counts. A product
 * with unknown arithmetic is neither brief nor slim. */
static bool is_brief(const cb_problem *p, uint32_t op, uint64_t reads, double flops,
                     uint64_t made) {
    bool layer = false;
    for (uint32_t j = 0; j < p->in_begin[op + 1] - p->in_begin[op]; j++) {
        uint32_t s = p->value_storage[p->in_value[p->in_begin[op] + j]];
        layer |= (j >= 64 || reads >> j & 1) && (p->storage_flags[s] & CB_STORE_STATIC);
    }
    return flops > 0 && flops <= (double)made * (layer ? BRIEF_LAYER_OPS : BRIEF_OPS);
}

static bool is_slim(const cb_facts *f, uint32_t op) {
    double traffic = (double)f->p->op_bytes[op] / f->device->bytes_per_s;
    return f->p->op_flops[op] > 0 && arithmetic_s(f, op) < traffic;
}

static bool member_shrinks(const cb_problem *p, uint32_t op, const cb_member *m, uint32_t part) {
    const cb_member *members = p->member + p->member_begin[op];
    uint64_t largest = 0;
    for (uint32_t j = 0; j < p->in_begin[op + 1] - p->in_begin[op]; j++) {
        uint64_t bytes = p->storage_bytes[p->value_storage[p->in_value[p->in_begin[op] + j]]];
        if (m->reads >> j & 1 && bytes > largest) largest = bytes;
    }
    for (uint32_t i = 0; i < p->member_begin[op + 1] - p->member_begin[op]; i++)
        if (m->uses >> i & 1 && members[i].size > largest) largest = members[i].size;
    return m->size < largest / part;
}

static bool member_is_slim(const cb_facts *f, const cb_member *m) {
    double work = cb_arithmetic_s(f->device, m->flags, m->work_class, m->flops);
    return m->flops > 0 && work < (double)m->bytes / f->device->bytes_per_s;
}

static bool allows_member(const cb_facts *f, const preset_rules *rules, uint32_t op,
                          const cb_member *m) {
    if (rules->only && !(m->flags & rules->only)) return false;
    bool brief = rules->brief && is_brief(f->p, op, m->reads, m->flops, m->size);
    return !(m->flags & rules->never) || brief || (rules->slim && member_is_slim(f, m));
}

/* Applies the rules to all members that an output needs. The rule about reductions applies only to
 * the last member, because the others fuse with their readers. */
static bool allows_unit(const cb_facts *f, const preset_rules *rules, uint32_t unit) {
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit), n = p->member_begin[op + 1] - p->member_begin[op];
    uint64_t members = cb_slice_of(p, op, cb_unit_made(f, unit)).members;
    const cb_member *member = p->member + p->member_begin[op],
                    *last = &member[p->value_member[cb_unit_value(f, unit)]];
    bool allowed = rules->any;
    for (uint32_t m = 0; m < n && allowed; m++)
        if (members >> m & 1) allowed = allows_member(f, rules, op, &member[m]);
    bool reduction = rules->most_small > 0 && (last->flags & CB_POP_REDUCTION);
    return allowed && !(reduction && member_shrinks(p, op, last, rules->most_small));
}

bool cb_preset_allows(const cb_facts *f, cb_preset preset, uint32_t op) {
    const preset_rules *rules = &rules_of[preset];
    if (op >= f->p->n_op) return !f->once[op] && allows_unit(f, rules, op);
    uint32_t flags = f->p->op_flags[op];
    if (f->once[op]) return false;
    if (preset == CB_PRESET_TORCH_COMPAT) return cb_aten_class(f->p, op) & CB_ATEN_RECOMPUTE;
    if (!rules->any || (rules->only && !(flags & rules->only))) return false;
    bool brief =
        rules->brief && is_brief(f->p, op, UINT64_MAX, f->p->op_flops[op], bytes_made(f->p, op));
    bool excused = brief || (rules->slim && is_slim(f, op));
    if ((flags & rules->never) && !excused) return false;
    bool reduction = rules->most_small > 0 && (flags & CB_POP_REDUCTION);
    return !(reduction && bytes_made(f->p, op) < largest_read(f->p, op) / rules->most_small);
}

/* ---- chains that take more arithmetic than traffic ------------------------------------------- */

typedef struct chain {
    double work_s;  /* seconds of arithmetic of its ops, along the most expensive path */
    uint64_t bytes; /* size of the largest storage that it reads from outside */
} chain;

/* Returns the chain that ends with `op`: ops that fuse and may rerun, back to saved values. */
static chain chain_of(const cb_facts *f, const chain *ends, const bool *may, uint32_t op) {
    const cb_problem *p = f->p;
    chain c = {0};
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = p->value_storage[p->in_value[j]], from = f->root[s];
        bool inside = from != CB_NONE && may[from] && (p->op_flags[from] & CB_POP_FUSIBLE);
        uint64_t bytes = inside ? ends[from].bytes : p->storage_bytes[s];
        if (inside) c.work_s = fmax(c.work_s, ends[from].work_s);
        if (bytes > c.bytes) c.bytes = bytes;
    }
    c.work_s += arithmetic_s(f, op);
    return c;
}

/* A fused chain moves only its inputs and its result. If its arithmetic takes longer than that
 * traffic, its last op is saved and the next chain starts there, so no chain's arithmetic intensity
 * exceeds the device's balance point. `ends` [n_op] is scratch; `may` [n_op]. */
static void end_costly_chains(const cb_facts *f, chain *ends, bool *may) {
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (!may[op] || !(p->op_flags[op] & CB_POP_FUSIBLE)) continue;
        ends[op] = chain_of(f, ends, may, op);
        double moved = (double)(ends[op].bytes + bytes_made(p, op));
        if (ends[op].work_s > moved / f->device->bytes_per_s) may[op] = false;
    }
}

/* Sets `may` [n_unit]: true if the preset may recompute the unit, by its own rules and those on
 * chains. */
static cb_status find_allowed(const cb_facts *f, cb_preset preset, bool *may, cb_arena *scratch,
                              cb_error *err) {
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        uint32_t n_out = cb_has_units(f, op) ? f->p->out_begin[op + 1] - f->p->out_begin[op] : 0;
        may[op] = n_out == 0 && cb_preset_allows(f, preset, op);
        for (uint32_t i = 0; i < n_out; i++)
            may[f->unit_begin[op] + i] = cb_preset_allows(f, preset, f->unit_begin[op] + i);
    }
    if (!rules_of[preset].balanced) return CB_OK;
    chain *ends = CB_NEW(scratch, chain, f->p->n_op);
    if (!ends) return cb_no_memory(err);
    end_costly_chains(f, ends, may);
    return CB_OK;
}

/* ---- costs ----------------------------------------------------------------------------------- */

/* Returns the fusion group of an op: that of a fused device, otherwise that of the problem. */
static uint32_t group_of(const cb_facts *f, uint32_t op) {
    bool fused = f->device->fused && f->p->fused_group;
    return fused ? f->p->fused_group[op] : f->p->op_group[op];
}

/* Sets `outside` [n_storage]: true if a forward op of another fusion group reads it, also by views.
 * If so, it is written to memory anyway; otherwise saving it costs a write as well as a read. */
static void mark_read_outside(const cb_facts *f, bool *outside) {
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]], root = f->root[s];
            if (root == CB_NONE) continue;
            bool apart = cb_has_units(f, root) ? root != op : group_of(f, root) != group_of(f, op);
            if (apart) outside[s] = true;
        }
    }
}

static bool wants_recompute(uint8_t wish) {
    return wish == CB_MUST_RECOMPUTE || wish == CB_PREFER_RECOMPUTE;
}

/* Returns the bytes of traffic that recomputing a unit takes. A unit that fuses with its reader
 * moves nothing more; a reduction to a small result reads its input again. */
static int64_t traffic_again(const cb_facts *f, uint32_t unit) {
    const cb_problem *p = f->p;
    const uint32_t op = cb_unit_op(f, unit);
    const uint64_t largest = largest_read(p, op);
    const uint64_t made = p->storage_bytes[p->value_storage[cb_unit_value(f, unit)]];
    return made < largest / SMALL_PART ? (int64_t)largest : 0;
}

/* Returns the cost of recomputing a member: the bytes that could be moved while it runs. The kernel
 * itself moves nothing for it. */
static int64_t work_as_bytes(const cb_cut *cut, uint32_t inner) {
    const cb_facts *f = cut->f;
    const uint32_t member = cut->inner_member[inner];
    if (member == CB_NONE) return 0;
    double ps = (double)cb_member_time_ps(f->p, cut->inner_op[inner], member, f->device);
    return (int64_t)fmin(ps * 1e-12 * f->device->bytes_per_s, MOST_WORK);
}

/* Without a budget, PREFER_* acts like MUST_*. */
static void set_preset_costs(cb_cut *cut, cb_preset preset, bool by_bytes, const bool *allowed,
                             const bool *read_outside) {
    const cb_facts *f = cut->f;
    const bool traffic_free = by_bytes || preset == CB_PRESET_RECOMPUTE_ALL;
    const bool by_time = rules_of[preset].balanced && !by_bytes;
    for (uint32_t i = 0; i < cut->n_inner; i++)
        cut->inner_cost[i] = by_time ? work_as_bytes(cut, i) : 0;
    for (uint32_t i = 0; i < cut->n_run; i++) {
        uint32_t op = cut->run_op[i];
        bool may = f->wish[op] == CB_FREE ? allowed[op] : wants_recompute(f->wish[op]);
        cut->run_cost[i] = !may ? CB_FLOW_INF : traffic_free ? 0 : traffic_again(f, op);
    }
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i], op = f->root[s];
        bool never =
            wants_recompute(f->wish[f->unit[s]]) ||
            (preset == CB_PRESET_RECOMPUTE_ALL && cut->run_cost[cut->save_run[i]] != CB_FLOW_INF);
        int64_t bytes = (int64_t)f->p->storage_bytes[s];
        bool known = group_of(f, op) != CB_NONE || (by_time && cb_has_units(f, op));
        bool written = !known || read_outside[s];
        cut->save_cost[i] = f->held[s] ? 0 : never ? CB_FLOW_INF : written ? bytes : 2 * bytes;
    }
}

/* ---- limits of regions ----------------------------------------------------------------------- */

#define LAST_PRICE 48 /* prices of a byte are powers of two, 2^(i - 24) picoseconds */

/* Returns the bytes saved inside the region. Values that must be offloaded do not count, because
 * they are not in memory when the backward starts. */
static uint64_t saved_inside(const cb_cut *cut, uint32_t region) {
    const cb_facts *f = cut->f;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i];
        bool leaves = f->wish[f->unit[s]] == CB_MUST_OFFLOAD;
        if (cut->saved[s] && !leaves && cb_inside_region(f, s, region))
            bytes += cut->f->p->storage_bytes[s];
    }
    return bytes;
}

/* Inside a region with a limit, every op that may run twice can be recomputed, at the cost of its
 * time. No price falls below its floor, so that one region does not undo the result of another. */
static void set_region_price(cb_cut *cut, const int64_t *floor, uint32_t region, int price) {
    const cb_facts *f = cut->f;
    double most_ps = (double)f->once_ps + 1;
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t s = cut->save_storage[i], run = cut->save_run[i], op = cut->run_op[run];
        bool stays = f->wish[op] == CB_MUST_SAVE || f->wish[op] == CB_MUST_OFFLOAD;
        if (!cb_inside_region(f, s, region) || f->once[op] || stays) continue;
        cut->run_cost[run] =
            f->time_ps[op] * (f->wish[op] == CB_PREFER_SAVE ? CB_AGAINST_PREFERENCE : 1);
        if (wants_recompute(f->wish[op])) continue;
        double cost = (double)f->p->storage_bytes[s] * ldexp(1, price - LAST_PRICE / 2);
        cut->save_cost[i] =
            floor[i] > (int64_t)fmin(cost, most_ps) ? floor[i] : (int64_t)fmin(cost, most_ps);
    }
}

static cb_status try_region_price(cb_cut *cut, const int64_t *floor, uint32_t region, int price,
                                  uint64_t *bytes, cb_error *err) {
    set_region_price(cut, floor, region, price);
    CB_TRY(cb_cut_poll(cut, err));
    CB_TRY(cb_cut_solve(cut, err));
    *bytes = saved_inside(cut, region);
    return CB_OK;
}

/* Finds the lowest price at which the region keeps its limit. `floor` [n_save] is scratch. */
static cb_status meet_region(cb_cut *cut, int64_t *floor, uint32_t region, cb_error *err) {
    const cb_problem *p = cut->f->p;
    uint64_t limit = p->region_limit[region], bytes;
    int low = 0, high = LAST_PRICE;
    memcpy(floor, cut->save_cost, cut->n_save * sizeof *floor);
    CB_TRY(try_region_price(cut, floor, region, high, &bytes, err));
    if (bytes > limit) {
        cb_refusal refusal = {.reason = CB_REFUSED_REGION,
                              .measure = CB_MEASURE_SAVED,
                              .budget_bytes = limit,
                              .smallest_bytes = bytes};
        (void)snprintf(refusal.region, sizeof refusal.region, "%s", p->region_name[region]);
        return cb_refuse(err, &refusal);
    }
    while (low < high) {
        int middle = (low + high) / 2;
        CB_TRY(try_region_price(cut, floor, region, middle, &bytes, err));
        if (bytes <= limit) high = middle;
        else low = middle + 1;
    }
    return try_region_price(cut, floor, region, high, &bytes, err);
}

/* Inner regions have larger ids; meeting them first leaves less work for outer ones. Meeting one
 * limit may break another, so this repeats until all are met. It ends because prices only rise. */
static cb_status meet_regions(cb_cut *cut, int64_t *floor, cb_error *err) {
    const cb_problem *p = cut->f->p;
    for (bool met = false; !met;) {
        met = true;
        for (uint32_t r = p->n_region; r-- > 0;) {
            if (saved_inside(cut, r) <= p->region_limit[r]) continue;
            met = false;
            CB_TRY(meet_region(cut, floor, r, err));
        }
    }
    return CB_OK;
}

/* PyTorch saves tensors, Cutback saves allocations: if a saved view keeps the memory of an op
 * alive, the op is not recomputed. Limits of regions are ignored, because PyTorch has none. */
static cb_status solve_torch(cb_cut *cut, cb_error *err) {
    const cb_facts *f = cut->f;
    const cb_problem *p = f->p;
    cb_torch_cut torch;
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    cb_status status = cb_torch_cut_solve(f, &scratch, &torch, err);
    if (status == CB_OK) {
        memset(cut->saved, 0, p->n_storage * sizeof *cut->saved);
        for (uint32_t i = 0; i < torch.n_saved; i++) {
            uint32_t op = torch.saved[i];
            cut->hoist[op] = f->position[op] != CB_NONE && f->position[op] >= f->base_backward;
            for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
                cut->saved[p->value_storage[v]] = true;
        }
        for (uint32_t k = 0; k < f->n_base; k++) {
            uint32_t op = f->base[k];
            cut->recompute[op] = torch.again[op] && !f->once[op];
        }
        for (uint32_t i = 0; i < cut->n_save; i++) {
            uint32_t op = cut->run_op[cut->save_run[i]];
            if (!cut->saved[cut->save_storage[i]]) continue;
            if (wants_recompute(f->wish[op])) cut->saved[cut->save_storage[i]] = false;
            else cut->recompute[op] = false;
        }
    }
    cb_arena_free(&scratch);
    return status;
}

static cb_status solve_preset(cb_cut *cut, cb_preset preset, bool by_bytes, cb_error *err) {
    if (cut->f->p->n_op > 0) memset(cut->hoist, 0, cut->f->p->n_op * sizeof *cut->hoist);
    if (preset == CB_PRESET_TORCH_COMPAT) return solve_torch(cut, err);
    cb_arena scratch;
    cb_arena_init(&scratch, cut->f->alloc);
    bool *read_outside = CB_NEW(&scratch, bool, cut->f->p->n_storage);
    bool *allowed = CB_NEW(&scratch, bool, cut->f->n_unit);
    int64_t *floor = CB_NEW(&scratch, int64_t, cut->n_save);
    cb_status status = read_outside && allowed && floor ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) status = find_allowed(cut->f, preset, allowed, &scratch, err);
    if (status == CB_OK) {
        mark_read_outside(cut->f, read_outside);
        set_preset_costs(cut, preset, by_bytes, allowed, read_outside);
        status = cb_cut_solve(cut, err);
    }
    if (status == CB_OK) status = meet_regions(cut, floor, err);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_cut_preset(cb_cut *cut, cb_preset preset, cb_error *err) {
    return solve_preset(cut, preset, false, err);
}

cb_status cb_cut_preset_by_bytes(cb_cut *cut, cb_preset preset, cb_error *err) {
    return solve_preset(cut, preset, true, err);
}
