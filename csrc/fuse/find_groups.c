/* Groups grow as those of lowering do (fuse.c), over the given order with every op once: a group
 * opens with the first op that has not run and takes the next ops that belong to it; a few others
 * may be deferred. All inputs of a group exist when it opens, so groups run in the order in which
 * they open. No group crosses the border of the backward or of a region. Sources, such as
 * constants, read nothing and can be made at any time. They join their only reader; the others form
 * groups of equal size.
 *
 * A run may inline every input that could run with it, and its inputs in turn, back to ops that do
 * not fuse. These are requests, of which cb_grouping_make keeps those that fit together. */
#include "find_groups.h"

#include "../base/sort.h"
#include "../plan/model/inlining.h"
#include "grow.h"

#define DEFERRED_MOST 8
#define READ_MOST 20
#define MADE_MOST \
    (CB_MOST_MEMBERS - READ_MOST)     /* maximum number of values of a group; reads take
                                                   members as well */
#define WISHES_MOST CB_MOST_INLININGS /* maximum number of wishes of one op */

typedef struct finding {
    const cb_graph *g;
    const cb_problem *p;
    cb_steps steps;
    cb_joining joining;
    cb_arena *arena;
    uint32_t *begin, *op, *kernel; /* groups so far, as in the request */
    cb_domain *domain;
    uint32_t n_group, n_op, n_kernel;
    uint32_t *set;   /* [ops] its group; CB_NONE: it has run separately or has not run yet */
    bool *ran;       /* [ops] */
    bool *fuses;     /* [ops] true if it could be in some group */
    bool *slice;     /* [ops] */
    uint32_t *reads; /* [values] reads by ops, plus 1 if the caller needs it */
    uint32_t *only;  /* [ops] the only reader of its output; CB_NONE: none */
    uint32_t first;  /* op of the current group */
    uint32_t n_made, n_read, read[READ_MOST]; /* values of the current group; roots of its inputs */
    CB_VEC(uint32_t) value;                   /* requested inlinings */
    CB_VEC(uint32_t) reader;
} finding;

static uint32_t root_of(const finding *x, uint32_t value) {
    return x->g->storages.at[x->g->values.at[value].storage].root;
}

static uint32_t maker_of(const finding *x, uint32_t value) {
    return x->g->values.at[root_of(x, value)].producer;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static bool is_source(const finding *x, uint32_t op) {
    return x->g->ops.at[op].n_in == 0 && !(x->p->op_flags[op] & CB_POP_PLACEHOLDER);
}

#define NOBODY (CB_NONE - 1) /* value of `only` while no reader has been found yet */

static void mark_ops(finding *x) {
    const cb_graph *g = x->g;
    for (uint32_t v = 0; v < g->values.len; v++)
        x->reads[v] = x->p->value_constraint[v] != CB_FREE ||
                      g->ops.at[g->values.at[v].producer].name != CB_NONE;
    for (uint32_t i = 0; i < g->ops.len; i++) {
        const bool out = x->p->op_flags[i] & (CB_POP_VIEW | CB_POP_PLACEHOLDER | CB_POP_ONCE);
        x->fuses[i] = !out && !cb_is_tangent(g, i) && cb_can_join(&x->joining, i);
        x->ran[i] = x->p->op_flags[i] & (CB_POP_VIEW | CB_POP_PLACEHOLDER);
        x->set[i] = CB_NONE;
        x->only[i] = NOBODY;
    }
    for (uint32_t i = 0; i < g->ops.len; i++) {
        for (uint32_t k = 0; k < g->ops.at[i].n_in; k++) {
            const uint32_t root = root_of(x, cb_op_ins(g, i)[k]);
            uint32_t *only = &x->only[g->values.at[root].producer];
            if (x->p->op_flags[i] & CB_POP_VIEW) continue;
            x->reads[root]++;
            *only = *only == NOBODY || *only == i ? i : CB_NONE;
        }
    }
    for (size_t k = 0; k < g->outputs.len; k++) {
        x->reads[root_of(x, g->outputs.at[k].value)]++;
        x->only[maker_of(x, g->outputs.at[k].value)] = CB_NONE;
    }
}

/* True if two ops have the same phase and region, as members of one group must. */
static bool same_place(const finding *x, uint32_t a, uint32_t b) {
    const uint32_t late = x->g->backward_starts;
    return (a >= late) == (b >= late) && x->p->op_region[a] == x->p->op_region[b];
}

static bool same_kind(const finding *x, uint32_t a, uint32_t b) {
    return same_place(x, a, b) && x->g->ops.at[a].phase == x->g->ops.at[b].phase &&
           is_source(x, a) == is_source(x, b);
}

static bool is_member(const finding *x, uint32_t op) {
    for (uint32_t i = 0; i < x->joining.n; i++)
        if (x->joining.step[i] == op) return true;
    return false;
}

static bool is_there(const finding *x, uint32_t op) {
    for (uint32_t k = 0; k < x->g->ops.at[op].n_in; k++) {
        const uint32_t maker = maker_of(x, cb_op_ins(x->g, op)[k]);
        if (!x->ran[maker] && !is_source(x, maker) && !is_member(x, maker)) return false;
    }
    return true;
}

/* Notes the op's reads from outside the group; returns false if there are too many. */
static bool note_reads(finding *x, uint32_t op) {
    for (uint32_t k = 0; k < x->g->ops.at[op].n_in; k++) {
        const uint32_t root = root_of(x, cb_op_ins(x->g, op)[k]);
        bool known = is_member(x, x->g->values.at[root].producer);
        for (uint32_t i = 0; i < x->n_read && !known; i++) known = x->read[i] == root;
        if (known) continue;
        if (x->n_read == READ_MOST) return false;
        x->read[x->n_read++] = root;
    }
    return true;
}

static cb_group_end join(finding *x, uint32_t op, cb_domain *longer) {
    const uint32_t n_out = x->g->ops.at[op].n_out;
    if (x->n_made + n_out > MADE_MOST) return CB_END_LIMIT;
    const cb_group_end end = cb_join(&x->joining, op);
    if (end == CB_END_DOMAIN && longer->count == 0) *longer = cb_longer_rows(&x->joining, op);
    if (end == CB_END_NONE) x->n_made += n_out;
    return end;
}

/* Adds an op, and the sources that only it reads. */
static cb_group_end join_with_sources(finding *x, uint32_t op, cb_domain *longer) {
    for (uint32_t k = 0; k < x->g->ops.at[op].n_in; k++) {
        const uint32_t maker = maker_of(x, cb_op_ins(x->g, op)[k]);
        const bool takes = is_source(x, maker) && x->fuses[maker] && x->only[maker] == op &&
                           same_place(x, maker, op) && !is_member(x, maker);
        if (takes) (void)join(x, maker, longer);
    }
    const cb_group_end end = join(x, op, longer);
    return end == CB_END_NONE && !note_reads(x, op) ? CB_END_LIMIT : end;
}

static cb_group_end take_op(void *user, uint32_t op, cb_domain *longer) {
    finding *x = user;
    const uint32_t n = x->joining.n, n_made = x->n_made, n_read = x->n_read;
    if (!x->fuses[op] || !same_kind(x, x->first, op)) return CB_END_OP;
    if (!is_there(x, op)) return CB_END_WAIT;
    const cb_group_end end = join_with_sources(x, op, longer);
    if (end == CB_END_NONE) return end;
    if (x->joining.n > n) cb_joining_cut(&x->joining, n);
    x->n_made = n_made;
    x->n_read = n_read;
    return end;
}

static void begin_group(void *user) {
    finding *x = user;
    x->n_made = x->n_read = 0;
}

/* Sources open separate groups, and join others through their readers. */
static bool passes(void *user, uint32_t op) {
    const finding *x = user;
    return x->ran[op] || is_member(x, op) || is_source(x, x->first) != is_source(x, op);
}

/* Returns how often these ops read the value. */
static uint32_t reads_by(const finding *x, const uint32_t *op, uint32_t n, uint32_t value) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < x->g->ops.at[op[i]].n_in; k++)
            count += root_of(x, cb_op_ins(x->g, op[i])[k]) == value;
    return count;
}

/* Returns the number of values of the group that other ops, or the caller, read. */
static uint32_t count_given(const finding *x) {
    const cb_joining *group = &x->joining;
    uint32_t n = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        const cb_op *op = &x->g->ops.at[group->step[i]];
        for (uint32_t v = op->out_begin; v < op->out_begin + op->n_out; v++)
            n += reads_by(x, group->step, group->n, v) < x->reads[v];
    }
    return n;
}

/* True if an op outside the kernel, or the caller, reads the output of the op. */
static bool gives(const finding *x, const uint32_t *op, uint32_t n, uint32_t at) {
    const cb_op *o = &x->g->ops.at[op[at]];
    bool any = false;
    for (uint32_t v = o->out_begin; v < o->out_begin + o->n_out; v++)
        any |= reads_by(x, op + at + 1, n - at - 1, v) < x->reads[v];
    return any;
}

/* Finds, for each op of a kernel, the last op of its group. An op ends a group if ops outside read
 * it, if several groups do, or if it reduces to a small value, so that the plan may save it. Ops of
 * the backward never run again, and stay together. */
static void split_kernel(const finding *x, const uint32_t *op, uint32_t n, uint32_t *last) {
    for (uint32_t at = n; at-- > 0;) {
        uint32_t only = CB_NONE;
        const bool again = x->g->ops.at[op[n - 1]].phase == CB_FORWARD;
        bool own = again && (gives(x, op, n, at) || (x->p->op_flags[op[at]] & CB_POP_REDUCTION));
        last[at] = n - 1;
        if (!again) continue;
        for (uint32_t i = at + 1; i < n && !own; i++) {
            for (uint32_t k = 0; k < x->g->ops.at[op[i]].n_in; k++) {
                if (maker_of(x, cb_op_ins(x->g, op[i])[k]) != op[at]) continue;
                own |= only != CB_NONE && only != last[i];
                only = last[i];
            }
        }
        last[at] = own || only == CB_NONE ? at : only;
    }
}

/* Adds the groups of a kernel, in the order of their last ops. */
static void add_groups(finding *x, uint32_t *op, uint32_t n) {
    uint32_t last[CB_GROUP_MOST];
    split_kernel(x, op, n, last);
    for (uint32_t group = 0; group < n; group++) {
        if (last[group] != group) continue;
        for (uint32_t i = 0; i <= group; i++) {
            if (last[i] != group) continue;
            x->set[op[i]] = x->n_group;
            x->op[x->n_op++] = op[i];
        }
        x->kernel[x->n_group] = x->n_kernel;
        x->domain[x->n_group] = x->joining.domain;
        x->begin[++x->n_group] = x->n_op;
    }
    x->n_kernel++;
}

/* Forms one kernel from `first` on, if possible. */
static void make_kernel(finding *x, uint32_t first) {
    uint32_t op[CB_GROUP_MOST];
    cb_growing g = {.joining = &x->joining,
                    .n_unit = (uint32_t)x->g->ops.len,
                    .user = x,
                    .deferred = DEFERRED_MOST,
                    .members = CB_GROUP_MOST,
                    .begin = begin_group,
                    .passes = passes,
                    .take = take_op};
    x->ran[first] = true;
    x->first = first;
    (void)cb_grow(&g, first);
    while (x->joining.n > 1 && count_given(x) > CB_MOST_INNER_OUTPUTS)
        cb_joining_cut(&x->joining, x->joining.n - 1);
    if (x->joining.n < 2) return;
    for (uint32_t i = 0; i < x->joining.n; i++) {
        op[i] = x->joining.step[i];
        x->ran[op[i]] = true;
    }
    cb_sort_ids(op, x->joining.n);
    add_groups(x, op, x->joining.n);
}

/* Makes all kernels. Sources come last, since most have joined others by then. */
static cb_status make_kernels(finding *x, cb_error *err) {
    const uint32_t n = (uint32_t)x->g->ops.len;
    CB_TRY_NEW(x->kernel, x->arena, n, err);
    CB_TRY_NEW(x->domain, x->arena, n, err);
    CB_TRY_NEW(x->begin, x->arena, n + (size_t)1, err);
    CB_TRY_NEW(x->op, x->arena, n, err);
    for (int sources = 0; sources < 2; sources++)
        for (uint32_t i = 0; i < n; i++)
            if (!x->ran[i] && is_source(x, i) == sources) make_kernel(x, i);
    return CB_OK;
}

/* ---- requested inlinings --------------------------------------------------------------------- */

/* Values that may be inlined into one op or group. Those that have not been examined come first, in
 * ascending order, so that readers are examined before their inputs. */
typedef struct wishes {
    uint32_t reader; /* one of its ops */
    uint32_t n_open, open[WISHES_MOST];
    uint32_t n_taken;
} wishes;

static bool in_set(const finding *x, uint32_t op, uint32_t reader) {
    return op == reader || (x->set[op] != CB_NONE && x->set[op] == x->set[reader]);
}

/* True if this input may be requested for inlining. */
static bool may_wish(const finding *x, uint32_t value, uint32_t reader) {
    const uint32_t maker = x->g->values.at[value].producer;
    return x->fuses[maker] && !in_set(x, maker, reader) &&
           !(x->p->storage_flags[x->p->value_storage[value]] & CB_STORE_STATIC) &&
           x->p->op_region[maker] == x->p->op_region[reader];
}

static void open_value(const finding *x, wishes *w, uint32_t value) {
    if (!may_wish(x, value, w->reader)) return;
    for (uint32_t i = 0; i < w->n_open; i++)
        if (w->open[i] == value) return;
    if (w->n_open + w->n_taken >= WISHES_MOST) return;
    uint32_t at = w->n_open++;
    for (; at > 0 && w->open[at - 1] > value; at--) w->open[at] = w->open[at - 1];
    w->open[at] = value;
}

/* Adds the inputs of the ops that make a value, except those made in the same group. */
static void open_slice(finding *x, wishes *w, uint32_t maker) {
    const uint32_t set = x->set[maker], alone[] = {maker};
    const uint32_t *op = set == CB_NONE ? alone : x->op + x->begin[set];
    x->slice[maker] = true;
    for (uint32_t i = set == CB_NONE ? 1 : x->begin[set + 1] - x->begin[set]; i-- > 0;) {
        if (!x->slice[op[i]]) continue;
        x->slice[op[i]] = false;
        for (uint32_t k = 0; k < x->g->ops.at[op[i]].n_in; k++) {
            const uint32_t value = root_of(x, cb_op_ins(x->g, op[i])[k]),
                           from = x->g->values.at[value].producer;
            if (in_set(x, from, maker)) x->slice[from] = true;
            else open_value(x, w, value);
        }
    }
}

/* Requests inlinings for one op, or for a group that contains `op`. */
static cb_status add_wishes(finding *x, const uint32_t *op, uint32_t n, cb_error *err) {
    wishes w = {.reader = op[0]};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < x->g->ops.at[op[i]].n_in; k++)
            open_value(x, &w, root_of(x, cb_op_ins(x->g, op[i])[k]));
    while (w.n_open > 0) {
        const uint32_t value = w.open[--w.n_open];
        w.n_taken++;
        if (!CB_PUSH(x->arena, x->value, value) || !CB_PUSH(x->arena, x->reader, w.reader))
            return cb_no_memory(err);
        open_slice(x, &w, x->g->values.at[value].producer);
    }
    return CB_OK;
}

static cb_status make_wishes(finding *x, cb_error *err) {
    for (uint32_t group = 0; group < x->n_group; group++)
        CB_TRY(add_wishes(x, x->op + x->begin[group], x->begin[group + 1] - x->begin[group], err));
    for (uint32_t i = 0; i < x->g->ops.len; i++)
        if (x->fuses[i] && x->set[i] == CB_NONE) CB_TRY(add_wishes(x, &i, 1, err));
    return CB_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static cb_status find_all(finding *x, cb_fuses_fn fuses, cb_arena *scratch, cb_error *err) {
    const size_t n = x->g->ops.len;
    cb_plan once = {0};
    CB_TRY_NEW(x->set, scratch, n, err);
    CB_TRY_NEW(x->ran, scratch, n, err);
    CB_TRY_NEW(x->fuses, scratch, n, err);
    CB_TRY_NEW(x->slice, scratch, n, err);
    CB_TRY_NEW(x->only, scratch, n, err);
    CB_TRY_NEW(x->reads, scratch, x->g->values.len, err);
    CB_TRY(cb_steps_once(&x->steps, &once, x->g, x->p, scratch, err));
    CB_TRY(cb_joining_init(&x->joining, &x->steps, fuses, scratch, err));
    mark_ops(x);
    CB_TRY(make_kernels(x, err));
    return make_wishes(x, err);
}

cb_status cb_find_groups(const cb_graph *joint, const cb_problem *single, cb_fuses_fn fuses,
                         cb_arena *arena, cb_group_request *out, cb_error *err) {
    cb_arena scratch;
    finding x = {.g = joint, .p = single, .arena = arena};
    *out = (cb_group_request){0};
    if (!fuses) return CB_OK;
    cb_arena_init(&scratch, arena->alloc);
    const cb_status status = find_all(&x, fuses, &scratch, err);
    cb_arena_free(&scratch);
    if (status == CB_OK)
        *out = (cb_group_request){.n_group = x.n_group,
                                  .begin = x.begin,
                                  .op = x.op,
                                  .kernel = x.kernel,
                                  .domain = x.domain,
                                  .n_inlining = (uint32_t)x.value.len,
                                  .value = x.value.at,
                                  .reader = x.reader.at};
    return status;
}

void cb_mark_separate(const cb_graph *g, const cb_grouping *x, uint32_t n_op, bool *out) {
    for (uint32_t op = 0; op < n_op; op++) {
        out[op] = false;
        const bool is_one = !x || cb_group_size(x, op) == 1;
        if (!is_one) continue;
        const cb_opcode code = g->ops.at[x ? x->member[x->begin[op]] : op].code;
        out[op] = code == CB_OP_CONCAT || cb_op_def_of(code)->flags & CB_OPF_COMPUTE;
    }
}
