/* Checks a grouping independently of how it was made. Lowering checks that a group with everything
 * that may be inlined into it runs as one. */
#include "grouping.h"

typedef struct checking {
    const cb_grouping *x;
    const cb_graph *g;
    const cb_problem *p; /* op by op */
    cb_error *err;
} checking;

static cb_status fail(const checking *c, uint32_t op, const char *what) {
    return cb_fail(c->err, CB_INTERNAL, "groups: op %u, with %s, %s", op,
                   c->p->op_name[c->x->member[c->x->begin[op]]], what);
}

/* Checks that each op of the graph, except views, is a member once, of the op that op_of names. */
static cb_status check_members(const checking *c) {
    const cb_grouping *x = c->x;
    uint32_t n_work = 0;
    for (uint32_t i = 0; i < c->g->ops.len; i++) {
        const bool is_view = c->p->op_flags[i] & CB_POP_VIEW;
        if (is_view != (x->op_of[i] == CB_NONE))
            return cb_fail(c->err, CB_INTERNAL, "groups: %s must be either a view or in a group",
                           c->p->op_name[i]);
        n_work += !is_view;
    }
    if (x->begin[0] != 0 || x->begin[x->n_op] != n_work)
        return cb_fail(c->err, CB_INTERNAL, "groups: there are %u members for %u ops",
                       x->begin[x->n_op], n_work);
    for (uint32_t op = 0; op < x->n_op; op++) {
        if (x->begin[op + 1] <= x->begin[op])
            return cb_fail(c->err, CB_INTERNAL, "groups: op %u has no members", op);
        for (uint32_t k = x->begin[op]; k < x->begin[op + 1]; k++) {
            if (x->member[k] >= c->g->ops.len || x->op_of[x->member[k]] != op)
                return fail(c, op, "has a member that belongs to another op");
            if (k > x->begin[op] && x->member[k - 1] >= x->member[k])
                return fail(c, op, "has members out of order");
        }
    }
    return CB_OK;
}

/* Checks the properties that several ops must share so that a plan may treat them as one. */
static cb_status check_alike(const checking *c, uint32_t op) {
    const cb_grouping *x = c->x;
    const uint32_t first = x->member[x->begin[op]], late = c->g->backward_starts;
    if (cb_group_size(x, op) == 1) return CB_OK;
    for (uint32_t k = x->begin[op]; k < x->begin[op + 1]; k++) {
        const uint32_t i = x->member[k];
        if (c->p->op_flags[i] & (CB_POP_PLACEHOLDER | CB_POP_ONCE))
            return fail(c, op, "has a member that cannot be in a group");
        if ((i >= late) != (first >= late))
            return fail(c, op, "has members of the forward and of the backward");
        if (c->p->op_region[i] != c->p->op_region[first])
            return fail(c, op, "has members of two regions");
    }
    return CB_OK;
}

/* Checks that values read from other ops are outputs of these and made earlier. */
static cb_status check_reads(const checking *c, uint32_t op) {
    const cb_grouping *x = c->x;
    for (uint32_t k = x->begin[op]; k < x->begin[op + 1]; k++) {
        const uint32_t i = x->member[k];
        for (uint32_t j = 0; j < c->g->ops.at[i].n_in; j++) {
            const uint32_t value = cb_op_ins(c->g, i)[j], root = x->root[value],
                           maker = c->g->values.at[root].producer;
            if (c->g->storages.at[c->g->values.at[value].storage].root != root || maker >= i)
                return fail(c, op, "reads a value that no earlier op makes");
            if (x->op_of[maker] == op) continue;
            if (x->op_of[maker] == CB_NONE || x->op_of[maker] > op)
                return fail(c, op, "comes before an op that it reads from");
            if (!x->is_given[root])
                return fail(c, op, "reads a value that is not an output of its group");
        }
    }
    return CB_OK;
}

static cb_status check_inlinings(const checking *c) {
    const cb_grouping *x = c->x;
    for (uint32_t k = 0; k < x->n_inlining; k++) {
        const cb_grouped_inlining *at = &x->inlining[k], *before = k > 0 ? at - 1 : NULL;
        if (at->op >= x->n_op || at->value >= c->g->values.len)
            return cb_fail(c->err, CB_INTERNAL,
                           "groups: inlining %u names op %u or value %u, which does not exist", k,
                           at->op, at->value);
        if (before && (before->op > at->op || (before->op == at->op && before->value >= at->value)))
            return fail(c, at->op, "has inlinings out of order");
        if (x->root[at->value] != at->value || !x->is_given[at->value] ||
            x->op_of[c->g->values.at[at->value].producer] >= at->op)
            return fail(c, at->op, "may inline a value that is not an output of an earlier op");
        if (x->domain[at->op].count == 0)
            return fail(c, at->op, "may inline values but is not fused");
    }
    return CB_OK;
}

cb_status cb_grouping_verify(const cb_grouping *x, const cb_graph *joint, const cb_problem *single,
                             cb_error *err) {
    const checking c = {.x = x, .g = joint, .p = single, .err = err};
    CB_TRY(check_members(&c));
    for (uint32_t op = 0; op < x->n_op; op++) {
        CB_TRY(check_alike(&c, op));
        CB_TRY(check_reads(&c, op));
    }
    return check_inlinings(&c);
}
