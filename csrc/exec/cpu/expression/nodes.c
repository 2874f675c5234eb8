/* Converts the caller's list to validated nodes: every operand precedes its reader, and values with
 * a number per element are distinguished from those with a number per row. */
#include "nodes.h"

typedef struct op_row {
    const char *name;
    uint8_t n_in;
    cb_e_op op;
} op_row;

#define LEAF_ROW(id, name) {#name, 0, CB_E_##id},
#define OP_ROW(id, name, n_in, ...) {#name, n_in, CB_E_##id},
static const op_row op_rows[] = {CB_E_LEAVES(LEAF_ROW) CB_E_OPS(OP_ROW)};

static const op_row *find_op(const char *name) {
    for (size_t k = 0; name && k < sizeof op_rows / sizeof op_rows[0]; k++)
        if (strcmp(op_rows[k].name, name) == 0) return &op_rows[k];
    return NULL;
}

static cb_status fail(const cb_expression_spec *s, uint32_t node, const char *why, cb_error *err) {
    return cb_fail(err, CB_INVALID, "%s: node %u, %s, %s", s->name, node,
                   s->nodes[node].op ? s->nodes[node].op : "(null)", why);
}

/* Determines the kind of a node from its operands. */
static cb_status classify(cb_expression *x, const cb_expression_spec *s, uint32_t i,
                          cb_error *err) {
    cb_e_node *n = &x->node[i];
    n->is_vector = n->op == CB_E_PARAM || n->op == CB_E_GRAD || n->op == CB_E_STATE;
    for (int k = 0; k < n->n_in; k++) {
        const cb_e_node *in = &x->node[n->in[k]];
        n->is_vector |= in->is_vector;
        if (in->level > n->level) n->level = in->level;
    }
    if (n->op == CB_E_SUM) {
        if (!n->is_vector) return fail(s, i, "sums a value that is already a single number", err);
        n->is_vector = false;
        n->level++;
    }
    if (n->op == CB_E_POW && n->is_vector) return fail(s, i, "takes numbers, not arrays", err);
    if (n->level >= CB_E_PHASES) return fail(s, i, "needs sums nested more than three deep", err);
    return CB_OK;
}

static cb_status read_node(cb_expression *x, const cb_expression_spec *s, uint32_t i,
                           cb_error *err) {
    const cb_expression_node *from = &s->nodes[i];
    const op_row *row = find_op(from->op);
    if (!row) return fail(s, i, "is not a known operation", err);
    cb_e_node *n = &x->node[i];
    *n = (cb_e_node){.op = row->op, .n_in = row->n_in, .value = from->value};
    for (int k = 0; k < row->n_in; k++) {
        if (from->in[k] >= i) return fail(s, i, "reads a node that does not precede it", err);
        n->in[k] = (uint16_t)from->in[k];
    }
    const bool is_state = row->op == CB_E_STATE, is_hyper = row->op == CB_E_HYPER;
    if (is_state && from->in[0] >= s->n_states) return fail(s, i, "is not one of the states", err);
    if (is_hyper && from->in[0] >= s->n_hyper) return fail(s, i, "is not one of the numbers", err);
    if (is_state || is_hyper) n->in[0] = (uint16_t)from->in[0];
    return classify(x, s, i, err);
}

/* Marks the nodes that the results need, and lists those that are numbers. */
static void mark_needed(cb_expression *x) {
    for (uint32_t k = 0; k <= x->base.n_state; k++) x->node[x->out[k]].is_needed = true;
    for (int i = x->n_node - 1; i >= 0; i--) {
        const cb_e_node *n = &x->node[i];
        for (int k = 0; k < n->n_in && n->is_needed; k++) x->node[n->in[k]].is_needed = true;
    }
    x->n_phase = 1;
    for (int i = 0; i < x->n_node; i++) {
        const cb_e_node *n = &x->node[i];
        if (!n->is_needed) continue;
        if (!n->is_vector) x->number[x->n_number++] = (uint16_t)i;
        if (n->level >= x->n_phase) x->n_phase = n->level + 1;
        x->reads_size |= n->op == CB_E_SIZE;
    }
}

cb_status cb_e_read(cb_expression *x, const cb_expression_spec *s, cb_error *err) {
    if (s->n_states > CB_MAX_STATES) {
        return cb_fail(err, CB_UNSUPPORTED, "%s has %u states; at most %d are supported", s->name,
                       s->n_states, CB_MAX_STATES);
    }
    if (s->n_nodes > CB_E_NODES) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s has %u operations and numbers; at most %d are supported", s->name,
                       s->n_nodes, CB_E_NODES);
    }
    x->n_node = (int)s->n_nodes;
    CB_TRY_NEW(x->node, &x->arena, s->n_nodes, err);
    CB_TRY_NEW(x->number, &x->arena, s->n_nodes, err);
    for (uint32_t i = 0; i < s->n_nodes; i++) CB_TRY(read_node(x, s, i, err));
    for (uint32_t k = 0; k <= s->n_states; k++) {
        if (s->out[k] >= s->n_nodes)
            return cb_fail(err, CB_INVALID, "%s: result %u is not a node", s->name, k);
        x->out[k] = (uint16_t)s->out[k];
    }
    mark_needed(x);
    return CB_OK;
}
