#include "indices.h"

static cb_op_id root_of(const cb_graph *g, cb_value_id value) {
    return g->values.at[g->storages.at[g->values.at[value].storage].root].producer;
}

static bool is_input(const cb_graph *g, cb_op_id id) { return g->ops.at[id].code == CB_OP_INPUT; }

bool cb_copies_indices(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    return op->code == CB_OP_CONTIGUOUS && !cb_dtype_is_float(g->values.at[op->out_begin].dtype) &&
           is_input(g, root_of(g, cb_op_ins(g, id)[0]));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    (void)user;
    const int index = cb_op_index_input(g->ops.at[id].code);
    return index >= 0 && is_input(g, root_of(g, cb_op_ins(g, id)[index]));
}

/* Ops that read the same indices share a copy. The search is linear, because few ops read indices
 * of the caller. */
static cb_status copy_of(cb_graph *to, cb_value_id value, cb_value_id *out, cb_error *err) {
    cb_op_id id;
    for (id = 0; id < to->ops.len; id++) {
        if (!cb_copies_indices(to, id) || cb_op_ins(to, id)[0] != value) continue;
        *out = to->ops.at[id].out_begin;
        return CB_OK;
    }
    CB_TRY(cb_graph_append(to, CB_OP_CONTIGUOUS, 1, &value, NULL, &id, err));
    *out = to->ops.at[id].out_begin;
    return CB_OK;
}

static cb_status replace(cb_graph *to, cb_opcode code, const cb_attrs *attrs, uint32_t n_ins,
                         const cb_value_id *ins, cb_value_id *outs, cb_error *err) {
    cb_value_id own[8];
    cb_op_id id;
    const int index = cb_op_index_input(code);
    for (uint32_t k = 0; k < n_ins; k++) own[k] = ins[k];
    CB_TRY(copy_of(to, ins[index], &own[index], err));
    CB_TRY(cb_graph_append(to, code, n_ins, own, attrs, &id, err));
    for (uint32_t k = 0; k < to->ops.at[id].n_out; k++) outs[k] = to->ops.at[id].out_begin + k;
    return CB_OK;
}

cb_status cb_copy_index_inputs(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    const cb_replacing by = {.wants = wants, .replace = replace};
    bool any = false;
    *out = NULL;
    for (cb_op_id id = 0; id < g->ops.len && !any; id++) any = wants(NULL, g, id);
    return any ? cb_graph_replace(g, &by, alloc, out, err) : CB_OK;
}

/* ---- checks ---------------------------------------------------------------------------------- */

typedef struct bound { /* the check of an op's indices */
    cb_value_id index;
    int64_t rows, ignore; /* number of rows; ignored label, or INT64_MIN */
} bound;

static bound bound_of(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *in = cb_op_ins(g, id);
    const cb_attrs *attrs = cb_op_attrs(g, id);
    const cb_shape *out = &g->values.at[op->out_begin].shape, *first = &g->values.at[in[0]].shape;
    bound b = {.index = in[cb_op_index_input(op->code)], .ignore = INT64_MIN};
    switch (op->code) {
        case CB_OP_GATHER: b.rows = first->dim[attrs->i[0]]; break;
        case CB_OP_SCATTER_ADD: b.rows = out->dim[attrs->i[0]]; break;
        case CB_OP_EMBEDDING: b.rows = first->dim[0]; break;
        case CB_OP_EMBEDDING_BWD: b.rows = out->dim[0]; break;
        default: /* labels: classes are the last axis of the logits */
            if (op->code == CB_OP_CROSS_ENTROPY_BWD) first = &g->values.at[in[1]].shape;
            b.rows = first->dim[first->rank - 1];
            b.ignore = attrs->i[0];
    }
    return b;
}

/* Marks the ops that run before the backward begins in every plan. */
static void mark_needed(const cb_graph *g, bool *needed) {
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_op_id id = g->values.at[g->outputs.at[i].value].producer;
        needed[id] |= g->outputs.at[i].kind != CB_OUTPUT_GRAD && g->ops.at[id].phase == CB_FORWARD;
    }
    for (cb_op_id id = (cb_op_id)g->ops.len; id-- > 0;)
        for (uint32_t k = 0; needed[id] && k < g->ops.at[id].n_in; k++)
            needed[g->values.at[cb_op_ins(g, id)[k]].producer] = true;
}

/* Marks ops whose results are the same each time they run in a step: copies that are made once, and
 * ops on these and on constants. */
static void mark_steady(const cb_graph *g, bool *steady) {
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        steady[id] = !is_input(g, id);
        for (uint32_t k = 0; steady[id] && k < g->ops.at[id].n_in; k++)
            steady[id] = steady[g->values.at[cb_op_ins(g, id)[k]].producer];
        steady[id] |= cb_copies_indices(g, id);
    }
}

/* True if an op of the graph makes these indices as positions of elements, which are below a bound
 * given by the shape of its input. */
static bool are_positions(const cb_graph *g, const bound *own) {
    const cb_op_id root = root_of(g, own->index);
    if (!cb_makes_positions(g->ops.at[root].code)) return false;
    const cb_shape *x = &g->values.at[cb_op_ins(g, root)[0]].shape;
    if (g->ops.at[root].code == CB_OP_UNPACK_INDEX) return cb_op_attrs(g, root)->i[7] <= own->rows;
    if (g->ops.at[root].code == CB_OP_ARGMAX)
        return x->dim[cb_op_attrs(g, root)->i[0]] <= own->rows;
    return x->dim[2] * x->dim[3] <= own->rows;
}

static bool is_checked(const cb_graph *g, const bool *needed, const bool *steady, cb_op_id id) {
    const bound own = bound_of(g, id);
    if (are_positions(g, &own)) return true;
    if (!steady[g->values.at[own.index].producer]) return false;
    bool is = needed[id];
    for (cb_op_id other = 0; other < g->ops.len && !is; other++) {
        if (!needed[other] || cb_op_index_input(g->ops.at[other].code) < 0) continue;
        const bound b = bound_of(g, other);
        is = b.index == own.index && b.rows == own.rows && b.ignore == own.ignore;
    }
    return is;
}

cb_status cb_find_late_check(const cb_graph *joint, cb_op_id *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, joint->arena.alloc);
    bool *needed = CB_NEW(&scratch, bool, joint->ops.len);
    bool *steady = CB_NEW(&scratch, bool, joint->ops.len);
    const bool is_there = needed && steady;
    *out = CB_NONE;
    if (is_there) {
        mark_needed(joint, needed);
        mark_steady(joint, steady);
    }
    for (cb_op_id id = 0; is_there && id < joint->ops.len && *out == CB_NONE; id++)
        if (cb_op_index_input(joint->ops.at[id].code) >= 0 &&
            !is_checked(joint, needed, steady, id))
            *out = id;
    cb_arena_free(&scratch);
    return is_there ? CB_OK : cb_no_memory(err);
}
