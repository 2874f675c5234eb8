/* Assigns ops to sets, sorts the sets so that each follows its inputs, and tries each set as one
 * group with grow.h, over a schedule that runs every op once. */
#include "grouping.h"

#include "../base/sort.h"
#include "../plan/model/inlining.h"
#include "grow.h"

typedef struct making {
    const cb_graph *g;
    const cb_problem *p;
    const cb_group_request *ask;
    cb_grouping *out;
    cb_arena *arena, *scratch;
    cb_error *err;
    uint32_t *set; /* [ops] the requested group, or n_group + op; CB_NONE: a view */
    cb_steps steps;
    cb_joining joining;
    uint8_t *slice; /* [ops] 1: needed by a marked op or an inlined value */
    uint32_t n_marked, marked[CB_GROUP_MOST]; /* rising */
} making;

static uint32_t maker_of(const making *x, uint32_t value) {
    return x->g->values.at[x->out->root[value]].producer;
}

bool cb_is_tangent(const cb_graph *g, uint32_t op) {
    bool any = false;
    for (uint32_t k = 0; k < g->ops.at[op].n_in; k++) {
        const uint32_t storage = g->values.at[cb_op_ins(g, op)[k]].storage,
                       root = g->storages.at[storage].root;
        any |= g->ops.at[g->values.at[root].producer].phase == CB_BACKWARD;
    }
    return g->ops.at[op].phase == CB_BACKWARD && !any;
}

static bool is_view(const making *x, uint32_t op) { return x->p->op_flags[op] & CB_POP_VIEW; }

/* ---- sets ------------------------------------------------------------------------------------ */

static cb_status refuse_phases(const making *x, uint32_t a, uint32_t b, uint32_t group) {
    return cb_fail(x->err, CB_INVALID,
                   "groups: %s and %s are in group %u, but a group cannot have ops of both the "
                   "forward and the backward",
                   x->p->op_name[a], x->p->op_name[b], group);
}

static cb_status check_member(const making *x, uint32_t group, uint32_t at) {
    const cb_group_request *ask = x->ask;
    const uint32_t op = ask->op[at], first = ask->op[ask->begin[group]];
    if (op >= x->g->ops.len)
        return cb_fail(x->err, CB_INVALID, "groups: there is no op %u, only 0 to %zu", op,
                       x->g->ops.len - 1);
    const char *name = x->p->op_name[op];
    if (x->p->op_flags[op] & (CB_POP_VIEW | CB_POP_PLACEHOLDER | CB_POP_ONCE))
        return cb_fail(x->err, CB_INVALID,
                       "groups: %s is in group %u, but a view, an input or an op that runs once "
                       "cannot be in a group",
                       name, group);
    if (x->set[op] < ask->n_group)
        return cb_fail(x->err, CB_INVALID, "groups: %s is in group %u and again in group %u", name,
                       x->set[op], group);
    if (cb_is_tangent(x->g, op))
        return cb_fail(
            x->err, CB_UNSUPPORTED,
            "groups: %s, in group %u, represents the tangent, which must be a separate op", name,
            group);
    const bool late = op >= x->g->backward_starts;
    const bool alike = x->g->ops.at[op].phase == x->g->ops.at[first].phase ||
                       x->g->ops.at[op].n_in == 0 || x->g->ops.at[first].n_in == 0;
    if (!alike || late != (first >= x->g->backward_starts))
        return refuse_phases(x, first, op, group);
    if (x->p->op_region[op] != x->p->op_region[first])
        return cb_fail(x->err, CB_INVALID,
                       "groups: %s and %s are in group %u, but not in the same region",
                       x->p->op_name[first], name, group);
    return CB_OK;
}

static cb_status make_sets(making *x) {
    const uint32_t n = (uint32_t)x->g->ops.len;
    CB_TRY_NEW(x->set, x->scratch, n, x->err);
    for (uint32_t i = 0; i < n; i++) x->set[i] = is_view(x, i) ? CB_NONE : x->ask->n_group + i;
    for (uint32_t group = 0; group < x->ask->n_group; group++) {
        for (uint32_t k = x->ask->begin[group]; k < x->ask->begin[group + 1]; k++) {
            CB_TRY(check_member(x, group, k));
            x->set[x->ask->op[k]] = group;
        }
    }
    return CB_OK;
}

/* ---- order ----------------------------------------------------------------------------------- */

typedef struct ordering {
    uint32_t n_set;
    uint32_t *begin, *op; /* [n_set + 1] members of each set, rising */
    uint32_t *at, *input; /* [n_set] the member, and its input, to examine next */
    uint8_t *state;       /* [n_set] 1: begun; 2: appended to the order */
    uint32_t *stack, n_stack;
} ordering;

static cb_status list_members(making *x, ordering *o) {
    const uint32_t n = (uint32_t)x->g->ops.len;
    o->n_set = x->ask->n_group + n;
    CB_TRY_NEW(o->begin, x->scratch, o->n_set + (size_t)1, x->err);
    CB_TRY_NEW(o->op, x->scratch, n, x->err);
    CB_TRY_NEW(o->at, x->scratch, o->n_set, x->err);
    CB_TRY_NEW(o->input, x->scratch, o->n_set, x->err);
    CB_TRY_NEW(o->state, x->scratch, o->n_set, x->err);
    CB_TRY_NEW(o->stack, x->scratch, o->n_set, x->err);
    for (uint32_t i = 0; i < n; i++)
        if (x->set[i] != CB_NONE) o->begin[x->set[i] + 1]++;
    for (uint32_t s = 0; s < o->n_set; s++) o->begin[s + 1] += o->begin[s];
    for (uint32_t s = 0; s < o->n_set; s++) o->at[s] = o->begin[s];
    for (uint32_t i = 0; i < n; i++)
        if (x->set[i] != CB_NONE) o->op[o->at[x->set[i]]++] = i;
    for (uint32_t s = 0; s < o->n_set; s++) o->at[s] = o->begin[s];
    return CB_OK;
}

/* Returns the next set that this one reads and that is not in the order yet, or CB_NONE. */
static uint32_t next_needed(const making *x, ordering *o, uint32_t set) {
    for (; o->at[set] < o->begin[set + 1]; o->at[set]++, o->input[set] = 0) {
        const uint32_t op = o->op[o->at[set]];
        while (o->input[set] < x->g->ops.at[op].n_in) {
            const uint32_t value = cb_op_ins(x->g, op)[o->input[set]++],
                           other = x->set[maker_of(x, value)];
            if (other != set && o->state[other] != 2) return other;
        }
    }
    return CB_NONE;
}

static uint32_t kernel_of(const making *x, uint32_t set) {
    return set < x->ask->n_group && x->ask->kernel ? x->ask->kernel[set] : CB_NONE;
}

static void append(making *x, const ordering *o, uint32_t set) {
    cb_grouping *out = x->out;
    for (uint32_t k = o->begin[set]; k < o->begin[set + 1]; k++) {
        out->member[out->begin[out->n_op + 1]++] = o->op[k];
        out->op_of[o->op[k]] = out->n_op;
    }
    out->kernel[out->n_op] = kernel_of(x, set);
    out->n_op++;
    out->begin[out->n_op + 1] = out->begin[out->n_op];
}

/* Appends a set after all sets that it needs. */
static cb_status visit(making *x, ordering *o, uint32_t first) {
    o->stack[o->n_stack++] = first;
    o->state[first] = 1;
    while (o->n_stack > 0) {
        const uint32_t set = o->stack[o->n_stack - 1], needed = next_needed(x, o, set);
        if (needed == CB_NONE) {
            append(x, o, set);
            o->state[set] = 2;
            o->n_stack--;
            continue;
        }
        if (o->state[needed] == 1)
            return cb_fail(x->err, CB_UNSUPPORTED,
                           "groups: %s and %s are in one group, but an op between them is not",
                           x->p->op_name[o->op[o->begin[needed]]],
                           x->p->op_name[o->op[o->begin[needed + 1] - 1]]);
        o->state[needed] = 1;
        o->stack[o->n_stack++] = needed;
    }
    return CB_OK;
}

/* Appends the sets that the groups of a kernel need, and then these groups. */
static cb_status visit_kernel(making *x, ordering *o, uint32_t first) {
    const uint32_t kernel = kernel_of(x, first);
    uint32_t begin = first, end = first + 1;
    while (begin > 0 && kernel_of(x, begin - 1) == kernel) begin--;
    while (end < x->ask->n_group && kernel_of(x, end) == kernel) end++;
    for (uint32_t i = o->begin[begin]; i < o->begin[end]; i++) {
        for (uint32_t k = 0; k < x->g->ops.at[o->op[i]].n_in; k++) {
            const uint32_t other = x->set[maker_of(x, cb_op_ins(x->g, o->op[i])[k])];
            if (kernel_of(x, other) != kernel && o->state[other] == 0) CB_TRY(visit(x, o, other));
        }
    }
    for (uint32_t set = begin; set < end; set++)
        if (o->state[set] == 0) CB_TRY(visit(x, o, set));
    return CB_OK;
}

static cb_status make_order(making *x) {
    const uint32_t n = (uint32_t)x->g->ops.len;
    cb_grouping *out = x->out;
    ordering o = {0};
    CB_TRY(list_members(x, &o));
    CB_TRY_NEW(out->begin, x->arena, n + (size_t)2, x->err);
    CB_TRY_NEW(out->member, x->arena, n, x->err);
    CB_TRY_NEW(out->op_of, x->arena, n, x->err);
    CB_TRY_NEW(out->kernel, x->arena, n, x->err);
    for (uint32_t i = 0; i < n; i++) out->op_of[i] = CB_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t set = x->set[i];
        if (set == CB_NONE || o.state[set] != 0) continue;
        CB_TRY(kernel_of(x, set) == CB_NONE ? visit(x, &o, set) : visit_kernel(x, &o, set));
    }
    return CB_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static cb_status find_roots(making *x) {
    const cb_graph *g = x->g;
    cb_grouping *out = x->out;
    CB_TRY_NEW(out->root, x->arena, g->values.len, x->err);
    CB_TRY_NEW(out->is_read, x->arena, g->values.len, x->err);
    CB_TRY_NEW(out->is_given, x->arena, g->values.len, x->err);
    for (uint32_t v = 0; v < g->values.len; v++)
        out->root[v] = g->storages.at[g->values.at[v].storage].root;
    return CB_OK;
}

/* Finds the outputs: for a group, values that others read, results, and values that the user names;
 * for a single op, all its values. A member's first output represents its work, so it leads to the
 * others. A value that nothing reads is an output, because nothing else would make its op run. */
static void find_given(making *x) {
    const cb_graph *g = x->g;
    cb_grouping *out = x->out;
    for (uint32_t i = 0; i < g->ops.len; i++) {
        for (uint32_t k = 0; k < g->ops.at[i].n_in && out->op_of[i] != CB_NONE; k++) {
            const uint32_t root = out->root[cb_op_ins(g, i)[k]];
            out->is_read[root] = 1;
            if (out->op_of[g->values.at[root].producer] != out->op_of[i]) out->is_given[root] = 1;
        }
    }
    for (uint32_t k = 0; k < g->outputs.len; k++)
        out->is_given[out->root[g->outputs.at[k].value]] = 1;
    for (uint32_t i = 0; i < g->ops.len; i++) {
        const cb_op *op = &g->ops.at[i];
        if (out->op_of[i] == CB_NONE) continue;
        const bool alone = cb_group_size(out, out->op_of[i]) == 1;
        bool any = false;
        for (uint32_t v = op->out_begin; v < op->out_begin + op->n_out; v++) {
            const bool spoken_of = x->p->value_constraint[v] != CB_FREE || op->name != CB_NONE;
            if (alone || spoken_of) out->is_given[v] = 1;
            any |= out->is_read[v] || out->is_given[v];
        }
        if (!any) out->is_given[op->out_begin] = 1;
    }
}

/* Checks ops without inputs: in a group of the backward, such an op may run only for that group. */
static cb_status check_sources(const making *x) {
    const cb_grouping *out = x->out;
    for (uint32_t op = 0; op < out->n_op; op++) {
        uint32_t late = CB_NONE, source = CB_NONE;
        for (uint32_t k = out->begin[op]; k < out->begin[op + 1]; k++) {
            const uint32_t id = out->member[k];
            const bool backward = x->g->ops.at[id].phase == CB_BACKWARD;
            if (backward) late = id;
            else if (out->is_given[x->g->ops.at[id].out_begin]) source = id;
        }
        if (late != CB_NONE && source != CB_NONE)
            return refuse_phases(x, source, late, x->set[late]);
    }
    return CB_OK;
}

void cb_mark_slice(const cb_grouping *x, const cb_graph *g, uint32_t value, uint8_t *slice) {
    const uint32_t last = g->values.at[value].producer, op = x->op_of[last];
    if (!slice[last]) slice[last] = 1;
    for (uint32_t i = x->begin[op + 1]; i-- > x->begin[op];) {
        const uint32_t member = x->member[i];
        if (member > last || !slice[member]) continue;
        for (uint32_t k = 0; k < g->ops.at[member].n_in; k++) {
            const uint32_t producer = g->values.at[x->root[cb_op_ins(g, member)[k]]].producer;
            if (x->op_of[producer] == op && !slice[producer]) slice[producer] = 1;
        }
    }
}

/* ---- what runs as one ------------------------------------------------------------------------ */

static const char *reason_of(cb_group_end end) {
    switch (end) {
        case CB_END_DOMAIN: return "it iterates over other elements than the ops before it";
        case CB_END_CUT: return "a row would hold part of what is summed or drawn together";
        case CB_END_DTYPE: return "it computes in f64 and the others do not, or the reverse";
        case CB_END_READ:
            return "it reads a result in a different order than it is made in, or before it "
                   "is complete";
        case CB_END_LIMIT: return "the group would have too many ops";
        default: return "it runs separately";
    }
}

static cb_group_end join_marked(making *x, uint32_t *op) {
    for (uint32_t i = 0; i < x->n_marked; i++) {
        *op = x->marked[i];
        const cb_group_end end = cb_join(&x->joining, *op);
        if (end != CB_END_NONE) return end;
    }
    return CB_END_NONE;
}

/* Tries to run the marked ops, those of an op and those inlined into it, as one group. Returns
 * CB_END_NONE if they fit; otherwise *op is the one that does not. Ops of a kernel may need the
 * kernel's rows, which no single op determines. */
static cb_group_end try_marked(making *x, uint32_t host, uint32_t *op) {
    const uint32_t set = x->set[x->out->member[x->out->begin[host]]];
    cb_joining_start(&x->joining, (cb_domain){0});
    cb_sort_ids(x->marked, x->n_marked);
    cb_group_end end = join_marked(x, op);
    for (cb_domain longer; end == CB_END_DOMAIN; end = join_marked(x, op)) {
        longer = cb_longer_rows(&x->joining, *op);
        if (longer.count == 0) break;
        cb_joining_start(&x->joining, longer);
    }
    if (end != CB_END_DOMAIN || set >= x->ask->n_group || !x->ask->domain) return end;
    cb_joining_start(&x->joining, x->ask->domain[set]);
    return join_marked(x, op);
}

static void unmark(making *x) {
    for (uint32_t i = 0; i < x->n_marked; i++) x->slice[x->marked[i]] = 0;
    x->n_marked = 0;
}

/* Adds the members that are in the slice and not marked; returns false if there are too many. */
static bool mark(making *x, uint32_t op) {
    const cb_grouping *out = x->out;
    for (uint32_t k = out->begin[op]; k < out->begin[op + 1]; k++) {
        bool known = !x->slice[out->member[k]];
        for (uint32_t i = 0; i < x->n_marked && !known; i++) known = x->marked[i] == out->member[k];
        if (known) continue;
        if (x->n_marked == CB_GROUP_MOST) return false;
        x->marked[x->n_marked++] = out->member[k];
    }
    return true;
}

static bool mark_members(making *x, uint32_t op) {
    const cb_grouping *out = x->out;
    for (uint32_t k = out->begin[op]; k < out->begin[op + 1]; k++) x->slice[out->member[k]] = 1;
    return mark(x, op);
}

static cb_status find_domains(making *x) {
    cb_grouping *out = x->out;
    CB_TRY_NEW(out->domain, x->arena, out->n_op, x->err);
    for (uint32_t op = 0; op < out->n_op; op++) {
        const uint32_t n = cb_group_size(out, op), *member = out->member + out->begin[op];
        uint32_t at = member[n - 1];
        if (n == 1) continue;
        const cb_group_end end = mark_members(x, op) ? try_marked(x, op, &at) : CB_END_LIMIT;
        unmark(x);
        if (end != CB_END_NONE)
            return cb_fail(x->err, CB_UNSUPPORTED,
                           "groups: %s does not run in one group with %s: %s", x->p->op_name[at],
                           x->p->op_name[member[at == member[0]]], reason_of(end));
        out->domain[op] = x->joining.domain;
    }
    return CB_OK;
}

/* ---- inlinings ------------------------------------------------------------------------------- */

static int by_op_and_value(const void *a, const void *b) {
    const cb_grouped_inlining *x = a, *y = b;
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Checks the requirements of inlining.h on the value and the two ops. */
static bool may_be(const making *x, uint32_t value, uint32_t reader) {
    const cb_graph *g = x->g;
    const cb_grouping *out = x->out;
    if (out->op_of[reader] == CB_NONE) return false;
    const uint32_t maker = g->values.at[value].producer;
    const bool alone = out->op_of[maker] != CB_NONE && cb_group_size(out, out->op_of[maker]) == 1;
    if (out->root[value] != value || !out->is_given[value]) return false;
    if (x->p->op_flags[maker] & (CB_POP_PLACEHOLDER | CB_POP_ONCE)) return false;
    if (alone && g->ops.at[maker].n_out > 1) return false;
    if (x->p->storage_flags[x->p->value_storage[value]] & CB_STORE_STATIC) return false;
    return out->op_of[maker] < out->op_of[reader] &&
           x->p->op_region[maker] == x->p->op_region[reader];
}

/* True if a marked op, other than the maker, reads the value. */
static bool is_wanted(const making *x, uint32_t value) {
    const uint32_t maker = x->out->op_of[x->g->values.at[value].producer];
    for (uint32_t i = 0; i < x->n_marked; i++) {
        const uint32_t op = x->marked[i];
        if (x->out->op_of[op] == maker) continue;
        for (uint32_t k = 0; k < x->g->ops.at[op].n_in; k++)
            if (x->out->root[cb_op_ins(x->g, op)[k]] == value) return true;
    }
    return false;
}

/* Inlines a value if all possible runs still fit, and returns true; otherwise changes nothing. */
static bool take_in(making *x, uint32_t host, uint32_t value) {
    uint32_t before[CB_GROUP_MOST], n = x->n_marked, at = 0;
    memcpy(before, x->marked, n * sizeof *before);
    cb_mark_slice(x->out, x->g, value, x->slice);
    const bool fits = mark(x, x->out->op_of[x->g->values.at[value].producer]);
    if (fits && try_marked(x, host, &at) == CB_END_NONE) return true;
    const uint32_t op = x->out->op_of[x->g->values.at[value].producer];
    for (uint32_t k = x->out->begin[op]; k < x->out->begin[op + 1]; k++)
        x->slice[x->out->member[k]] = 0;
    memcpy(x->marked, before, n * sizeof *before);
    x->n_marked = n;
    for (uint32_t i = 0; i < n; i++) x->slice[x->marked[i]] = 1;
    return false;
}

/* Keeps the requested inlinings of one op that fit together, trying them from the last value to the
 * first. Moves them to the front and returns their number. */
static uint32_t keep_fitting(making *x, cb_grouped_inlining *wish, uint32_t n) {
    const uint32_t op = wish->op;
    uint32_t kept = 0;
    (void)mark_members(x, op); /* find_domains has allocated them */
    for (uint32_t k = n; k-- > 0 && kept < CB_MOST_INLININGS;) {
        if (!is_wanted(x, wish[k].value) || !take_in(x, op, wish[k].value)) continue;
        x->out->domain[op] = x->joining.domain;
        wish[n - ++kept] = wish[k];
    }
    unmark(x);
    memmove(wish, wish + (n - kept), kept * sizeof *wish);
    return kept;
}

static cb_status find_inlinings(making *x) {
    cb_grouping *out = x->out;
    const uint32_t n = x->ask->n_inlining;
    cb_grouped_inlining *list = CB_NEW(x->arena, cb_grouped_inlining, n);
    uint32_t n_wish = 0;
    if (!list) return cb_no_memory(x->err);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t value = x->ask->value[k], reader = x->ask->reader[k];
        if (value >= x->g->values.len || reader >= x->g->ops.len)
            return cb_fail(x->err, CB_INVALID,
                           "groups: cannot inline value %u into op %u: the graph has only values 0 "
                           "to %zu and ops 0 to %zu",
                           value, reader, x->g->values.len - 1, x->g->ops.len - 1);
        if (!may_be(x, value, reader)) continue;
        list[n_wish++] = (cb_grouped_inlining){value, out->op_of[reader]};
    }
    cb_sort(list, n_wish, sizeof *list, by_op_and_value);
    out->inlining = list;
    for (uint32_t k = 0, end; k < n_wish; k = end) {
        uint32_t unique = 1;
        for (end = k + 1; end < n_wish && list[end].op == list[k].op; end++)
            if (list[end].value != list[end - 1].value) list[k + unique++] = list[end];
        const uint32_t kept = keep_fitting(x, list + k, unique);
        memmove(list + out->n_inlining, list + k, kept * sizeof *list);
        out->n_inlining += kept;
    }
    return CB_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static cb_status make_all(making *x, cb_fuses_fn fuses) {
    cb_plan once = {0};
    if (!fuses && x->ask->n_group > 0)
        return cb_fail(x->err, CB_UNSUPPORTED,
                       "groups: this backend cannot run several ops as one");
    CB_TRY(find_roots(x));
    CB_TRY(make_sets(x));
    CB_TRY(make_order(x));
    find_given(x);
    CB_TRY(check_sources(x));
    CB_TRY_NEW(x->slice, x->scratch, x->g->ops.len, x->err);
    CB_TRY(cb_steps_once(&x->steps, &once, x->g, x->p, x->scratch, x->err));
    CB_TRY(cb_joining_init(&x->joining, &x->steps, fuses, x->scratch, x->err));
    CB_TRY(find_domains(x));
    return fuses ? find_inlinings(x) : CB_OK;
}

cb_status cb_grouping_make(const cb_graph *joint, const cb_problem *single,
                           const cb_group_request *request, cb_fuses_fn fuses, cb_arena *arena,
                           cb_grouping *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    *out = (cb_grouping){0};
    making x = {.g = joint,
                .p = single,
                .ask = request,
                .out = out,
                .arena = arena,
                .scratch = &scratch,
                .err = err};
    const cb_status status = make_all(&x, fuses);
    cb_arena_free(&scratch);
    return status;
}
