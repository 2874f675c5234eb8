/* backward.c: visits ops in reverse order and applies their gradient rules.
 *
 * An op is differentiated if one of its outputs has a gradient and one of its inputs is active. A
 * value is active if it depends on a wanted value through floating values and ops with a gradient.
 * So appended ops are on paths from the wanted values to the results. If several ops read a value,
 * its gradients are added in the order of the visit, those of slices last (slices.h). Ops with the
 * rule `expand` are rewritten into primitives, appended at the end. These are visited in reverse
 * immediately and add their gradients to the op's inputs. */
#include "backward.h"

#include <inttypes.h>

#include "replay.h"
#include "vjp.h"

/* ---- active values --------------------------------------------------------------------------- */

cb_status cb_backward_cover(cb_backward *b, cb_error *err) {
    const size_t have = b->grad.len, want = b->g->values.len;
    if (!CB_RESERVE(&b->scratch, b->grad, want - have) ||
        !CB_RESERVE(&b->scratch, b->active, want - have)) {
        return cb_no_memory(err);
    }
    for (size_t i = have; i < want; i++) {
        b->grad.at[i] = CB_NONE;
        b->active.at[i] = 0;
    }
    b->grad.len = b->active.len = want;
    return CB_OK;
}

static void mark_active(cb_backward *b, cb_op_id begin, cb_op_id end) {
    for (cb_op_id i = begin; i < end; i++) {
        const cb_op *op = &b->g->ops.at[i];
        bool any = false;
        if (cb_vjp_of(op->code) == cb_vjp_zero) continue;
        for (uint32_t k = 0; k < op->n_in && !any; k++) any = b->active.at[cb_op_ins(b->g, i)[k]];
        for (uint32_t k = 0; k < op->n_out; k++) {
            const cb_value_id out = op->out_begin + k;
            if (any && cb_dtype_is_float(b->g->values.at[out].dtype)) b->active.at[out] = 1;
        }
    }
}

/* ---- one op ---------------------------------------------------------------------------------- */

/* Returns the matrix product that makes a gradient, looking through transposes of its last two
 * axes; CB_NONE if another op makes it, or if the product comes before op `begin`. */
static cb_op_id product_of(const cb_backward *b, cb_value_id value, cb_op_id begin,
                           bool *is_turned) {
    const cb_graph *g = b->g;
    const int32_t rank = g->values.at[value].shape.rank;
    cb_op_id id = g->values.at[value].producer;
    *is_turned = false;
    while (g->ops.at[id].code == CB_OP_TRANSPOSE) {
        const cb_shape *axes = &cb_op_attrs(g, id)->dims;
        for (int32_t k = 0; k < rank - 2; k++)
            if (axes->dim[k] != k) return CB_NONE;
        if (axes->dim[rank - 1] == rank - 2) *is_turned = !*is_turned;
        id = g->values.at[cb_op_ins(g, id)[0]].producer;
    }
    const cb_opcode code = g->ops.at[id].code;
    const bool is_product = code == CB_OP_MATMUL || code == CB_OP_MATMUL_ADD;
    return is_product && id >= begin ? id : CB_NONE;
}

/* If both the sum so far and the new gradient are matrix products, replaces the sum by one
 * `matmul_add`. The new product must come from the current rule: then nothing else reads it, and it
 * is removed at the end. A gradient that a rule passes on, like that of `add`, may have other
 * readers. */
static cb_status accumulate(cb_backward *b, cb_value_id *sum, cb_value_id gradient, bool *done,
                            cb_error *err) {
    const cb_dtype dtype = b->g->values.at[gradient].dtype;
    bool turned, also_turned;
    *done = false;
    /* With 16-bit types each product is rounded; a single op that also adds would skip this
     * rounding. */
    if (!b->accumulates || (dtype != CB_F32 && dtype != CB_F64)) return CB_OK;
    const cb_op_id base = product_of(b, *sum, b->starts, &turned),
                   product = product_of(b, gradient, b->rule_starts, &also_turned);
    if (base == CB_NONE || product == CB_NONE || turned != also_turned) return CB_OK;
    if (b->g->ops.at[product].code != CB_OP_MATMUL) return CB_OK;
    const cb_value_id *ins = cb_op_ins(b->g, product);
    cb_emit e = {.graph = b->g, .err = err};
    cb_value_id out;
    cb_emit_op(&e, CB_OP_MATMUL_ADD, 3,
               (cb_value_id[]){ins[0], ins[1], b->g->ops.at[base].out_begin}, NULL, &out);
    *sum = turned ? cb_emit_swap_last(&e, out) : out;
    *done = true;
    return e.status;
}

cb_status cb_backward_add(cb_backward *b, cb_value_id value, cb_value_id gradient, cb_error *err) {
    const cb_graph *g = b->g;
    const cb_value *v = &g->values.at[value], *dv = &g->values.at[gradient];
    if (v->dtype != dv->dtype || !cb_shape_equal(&v->shape, &dv->shape)) {
        char want[CB_SHAPE_TEXT], got[CB_SHAPE_TEXT];
        return cb_fail(err, CB_INTERNAL, "gradient of %s's output is %s %s, not %s %s",
                       cb_op_def_of(g->ops.at[v->producer].code)->name, cb_dtype_name(dv->dtype),
                       cb_shape_text(&dv->shape, got), cb_dtype_name(v->dtype),
                       cb_shape_text(&v->shape, want));
    }
    cb_value_id *sum = &b->grad.at[value];
    if (*sum == CB_NONE) {
        *sum = gradient;
        return CB_OK;
    }
    bool done;
    CB_TRY(accumulate(b, sum, gradient, &done, err));
    return done ? CB_OK : cb_build2(b->g, CB_OP_ADD, *sum, gradient, sum, err);
}

/* Fills in the op's description for its rule. Everything is copied, because the graph's arrays move
 * when it grows. */
static cb_status describe(cb_backward *b, cb_op_id id, cb_vjp *x, cb_error *err) {
    const cb_op op = b->g->ops.at[id];
    cb_value_id *ids = CB_NEW(&b->scratch, cb_value_id, 2 * (size_t)op.n_in + 2 * (size_t)op.n_out);
    bool *needs = CB_NEW(&b->scratch, bool, op.n_in);
    if (!ids || !needs) return cb_no_memory(err);
    cb_value_id *in = ids, *din = in + op.n_in, *out = din + op.n_in, *dout = out + op.n_out;
    for (uint32_t i = 0; i < op.n_in; i++) {
        in[i] = cb_op_ins(b->g, id)[i];
        din[i] = CB_NONE;
        needs[i] = b->active.at[in[i]];
    }
    for (uint32_t i = 0; i < op.n_out; i++) {
        out[i] = op.out_begin + i;
        dout[i] = b->grad.at[out[i]];
    }
    *x = (cb_vjp){.e = {.graph = b->g, .err = err},
                  .code = op.code,
                  .attrs = *cb_op_attrs(b->g, id),
                  .n_in = op.n_in,
                  .n_out = op.n_out,
                  .in = in,
                  .out = out,
                  .dout = dout,
                  .needs = needs,
                  .din = din};
    return CB_OK;
}

static bool is_on_path(const cb_backward *b, cb_op_id id) {
    const cb_op *op = &b->g->ops.at[id];
    bool reached = false, wanted = false;
    for (uint32_t i = 0; i < op->n_out; i++)
        reached = reached || b->grad.at[op->out_begin + i] != CB_NONE;
    for (uint32_t i = 0; i < op->n_in; i++) wanted = wanted || b->active.at[cb_op_ins(b->g, id)[i]];
    return reached && wanted;
}

/* Adds the gradients of slices of the op's outputs. All readers have been visited. */
static cb_status settle_slices(cb_backward *b, cb_op_id id, cb_error *err) {
    const cb_op op = b->g->ops.at[id];
    for (cb_value_id value = op.out_begin; value < op.out_begin + op.n_out; value++) {
        cb_value_id some;
        do {
            CB_TRY(cb_slices_take(&b->slices, &b->scratch, b->g, value, &some, err));
            if (some != CB_NONE) CB_TRY(cb_backward_add(b, value, some, err));
        } while (some != CB_NONE);
    }
    return CB_OK;
}

static bool is_plain_slice(const cb_vjp *x) {
    return x->code == CB_OP_SLICE && x->attrs.i[3] == 1 && x->attrs.i[1] < x->attrs.i[2];
}

/* Stores the gradient of a slice until the other slices of the same value have theirs. */
static cb_status keep_slice(cb_backward *b, const cb_vjp *x, cb_error *err) {
    const cb_slice_gradient part = {.of = x->in[0],
                                    .axis = x->attrs.i[0],
                                    .start = x->attrs.i[1],
                                    .stop = x->attrs.i[2],
                                    .gradient = x->dout[0]};
    return cb_slices_add(&b->slices, &b->scratch, part, err);
}

/* Runs the op's rule and adds the results to the gradients of its inputs, unless the rule has set
 * x->expand. */
static cb_status apply_rule(cb_backward *b, cb_op_id id, cb_vjp *x, cb_error *err) {
    b->rule_starts = (cb_op_id)b->g->ops.len;
    CB_TRY(describe(b, id, x, err));
    if (is_plain_slice(x)) return keep_slice(b, x, err);
    cb_vjp_of(x->code)(x);
    if (x->e.status != CB_OK) return x->e.status;
    for (uint32_t i = 0; i < x->n_in && !x->expand; i++)
        if (x->needs[i] && x->din[i] != CB_NONE)
            CB_TRY(cb_backward_add(b, x->in[i], x->din[i], err));
    return CB_OK;
}

/* Differentiates primitives that compute the same values as the op. Their rules are never `expand`,
 * so this does not nest. */
static cb_status apply_expansion(cb_backward *b, cb_vjp *x, cb_error *err) {
    const cb_op_id begin = (cb_op_id)b->g->ops.len;
    cb_value_id *outs = CB_NEW(&b->scratch, cb_value_id, x->n_out);
    if (!outs) return cb_no_memory(err);
    cb_expand_op(x, outs);
    if (x->e.status != CB_OK) return x->e.status;
    const cb_op_id end = (cb_op_id)b->g->ops.len;
    CB_TRY(cb_backward_cover(b, err));
    mark_active(b, begin, end);
    for (uint32_t i = 0; i < x->n_out; i++)
        if (x->dout[i] != CB_NONE) CB_TRY(cb_backward_add(b, outs[i], x->dout[i], err));
    for (cb_op_id i = end; i-- > begin;) {
        cb_vjp primitive;
        CB_TRY(settle_slices(b, i, err));
        if (!is_on_path(b, i)) continue;
        CB_TRY(apply_rule(b, i, &primitive, err));
        if (!primitive.expand) continue;
        return cb_fail(err, CB_INTERNAL, "expansion of %s contains %s, which is not a primitive",
                       cb_op_def_of(x->code)->name, cb_op_def_of(primitive.code)->name);
    }
    return CB_OK;
}

/* The outputs of a function with its own gradient have consecutive markers. The first one, which is
 * visited last, applies the rule for all of them: it appends the ops that lead from the
 * placeholders to the gradients again, with the gradients of the outputs in place of the
 * placeholders. */
static cb_status apply_custom(cb_backward *b, cb_op_id id, cb_error *err) {
    const cb_attrs attrs = *cb_op_attrs(b->g, id);
    const cb_op op = b->g->ops.at[id];
    const uint32_t n_outs = (uint32_t)attrs.i[1], n = (op.n_in - 1 - n_outs) / 2;
    if (attrs.i[0] != 0 || op.n_in == 1) return CB_OK;
    cb_value_id *ids = CB_NEW(&b->scratch, cb_value_id, (size_t)op.n_in + n_outs);
    if (!ids) return cb_no_memory(err);
    for (uint32_t i = 0; i < op.n_in; i++) ids[i] = cb_op_ins(b->g, id)[i];
    cb_value_id *placeholder = ids + 1, *x = placeholder + n_outs, *dx = x + n, *dout = dx + n;
    bool reached = false, wanted = false;
    for (uint32_t i = 0; i < n_outs; i++) {
        const bool is_marker = (uint64_t)id + i < b->g->ops.len &&
                               b->g->ops.at[id + i].code == CB_OP_CUSTOM_VJP &&
                               cb_op_attrs(b->g, id + i)->i[0] == i;
        if (!is_marker)
            return cb_fail(err, CB_INVALID,
                           "custom_vjp: output %" PRIu32 " of %" PRIu32
                           " does not follow the ones before it",
                           i, n_outs);
        dout[i] = b->grad.at[b->g->ops.at[id + i].out_begin];
        reached = reached || dout[i] != CB_NONE;
        if (dout[i] == CB_NONE) dout[i] = placeholder[i]; /* placeholders are zeros */
    }
    for (uint32_t i = 0; i < n; i++) wanted = wanted || b->active.at[x[i]];
    if (!reached || !wanted) return CB_OK;
    b->g->location = op.location;
    const cb_replay replay = {placeholder, dout, n_outs, id};
    CB_TRY(cb_replay_ops(b->g, &replay, dx, n, &b->scratch, err));
    CB_TRY(cb_backward_cover(b, err));
    for (uint32_t i = 0; i < n; i++)
        if (b->active.at[x[i]]) CB_TRY(cb_backward_add(b, x[i], dx[i], err));
    return CB_OK;
}

cb_status cb_backward_walk(cb_backward *b, cb_error *err) {
    mark_active(b, 0, b->starts);
    for (cb_op_id i = b->starts; i-- > 0;) {
        cb_vjp x;
        b->g->location = b->g->ops.at[i].location;
        b->rule_starts = (cb_op_id)b->g->ops.len;
        if (i + 1 == b->seen_end) b->made_begin = (cb_op_id)b->g->ops.len;
        if (i + 1 == b->seen_begin) b->made_end = (cb_op_id)b->g->ops.len;
        CB_TRY(settle_slices(b, i, err));
        if (b->g->ops.at[i].code == CB_OP_CUSTOM_VJP) CB_TRY(apply_custom(b, i, err));
        if (!is_on_path(b, i)) continue;
        b->g->location = b->g->ops.at[i].location; /* replaying a rule changes it */
        CB_TRY(apply_rule(b, i, &x, err));
        if (x.expand) CB_TRY(apply_expansion(b, &x, err));
    }
    return CB_OK;
}
