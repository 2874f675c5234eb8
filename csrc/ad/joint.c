/* joint.c: reverse-mode differentiation on a copy of the forward graph.
 *
 *   forward ops (copied) | copies for results | seeds | gradient ops | copies for gradients
 *                                             ^ backward_starts
 *
 * Ops are visited in reverse order of their ids. An op is differentiated if one of its outputs has
 * a gradient and one of its inputs is active. A value is active if it depends on an input of `wrt`
 * through floating values and ops with a gradient. So appended ops are on paths from `wrt` to the
 * loss. If several ops read a value, its gradients are added in the order of the visit. Ops with
 * the rule `expand` are rewritten into primitives, appended at the end. These are visited in
 * reverse immediately and add their gradients to the op's inputs.
 *
 * A gradient op runs in the backward if it depends on a tangent. One pass over the appended ops
 * sets the phases at the end. A mask, or another helper that depends only on forward values, stays
 * FORWARD. */
#include "joint.h"

#include <inttypes.h>
#include <stdio.h>

#include "../base/bitset.h"
#include "../ir/verify.h"
#include "split_norms.h"
#include "vjp.h"

#define NAME_MAX 256 /* bytes of a tangent's name; longer names are truncated */

typedef struct joint {
    cb_graph *g;
    cb_arena scratch;
    CB_VEC(cb_value_id) grad; /* [value] its gradient so far; CB_NONE: none */
    CB_VEC(uint8_t) active;   /* [value] 1 if its gradient may be needed */
    cb_op_id starts;          /* first op after the forward */
} joint;

static cb_value_id input_value(const cb_graph *g, uint32_t position) {
    return g->ops.at[g->inputs.at[position]].out_begin;
}

/* ---- what matters ---------------------------------------------------------------------------- */

/* Extends both tables to all values of the graph. */
static cb_status cover_values(joint *j, cb_error *err) {
    const size_t have = j->grad.len, want = j->g->values.len;
    if (!CB_RESERVE(&j->scratch, j->grad, want - have) ||
        !CB_RESERVE(&j->scratch, j->active, want - have)) {
        return cb_no_memory(err);
    }
    for (size_t i = have; i < want; i++) {
        j->grad.at[i] = CB_NONE;
        j->active.at[i] = 0;
    }
    j->grad.len = j->active.len = want;
    return CB_OK;
}

static void mark_active(joint *j, cb_op_id begin, cb_op_id end) {
    for (cb_op_id i = begin; i < end; i++) {
        const cb_op *op = &j->g->ops.at[i];
        bool any = false;
        if (cb_vjp_of(op->code) == cb_vjp_zero) continue;
        for (uint32_t k = 0; k < op->n_in && !any; k++) any = j->active.at[cb_op_ins(j->g, i)[k]];
        for (uint32_t k = 0; k < op->n_out; k++) {
            const cb_value_id out = op->out_begin + k;
            j->active.at[out] = any && cb_dtype_is_float(j->g->values.at[out].dtype);
        }
    }
}

/* ---- one op ---------------------------------------------------------------------------------- */

static cb_status add_gradient(joint *j, cb_value_id value, cb_value_id gradient, cb_error *err) {
    const cb_graph *g = j->g;
    const cb_value *v = &g->values.at[value], *dv = &g->values.at[gradient];
    if (v->dtype != dv->dtype || !cb_shape_equal(&v->shape, &dv->shape)) {
        char want[CB_SHAPE_TEXT], got[CB_SHAPE_TEXT];
        return cb_fail(err, CB_INTERNAL, "gradient of %s's output is %s %s, not %s %s",
                       cb_op_def_of(g->ops.at[v->producer].code)->name, cb_dtype_name(dv->dtype),
                       cb_shape_text(&dv->shape, got), cb_dtype_name(v->dtype),
                       cb_shape_text(&v->shape, want));
    }
    cb_value_id *sum = &j->grad.at[value];
    if (*sum == CB_NONE) {
        *sum = gradient;
        return CB_OK;
    }
    return cb_build2(j->g, CB_OP_ADD, *sum, gradient, sum, err);
}

/* Fills in the op's description for its rule. Everything is copied, because the graph's arrays move
 * when it grows. */
static cb_status describe(joint *j, cb_op_id id, cb_vjp *x, cb_error *err) {
    const cb_op op = j->g->ops.at[id];
    cb_value_id *ids = CB_NEW(&j->scratch, cb_value_id, 2 * (size_t)op.n_in + 2 * (size_t)op.n_out);
    bool *needs = CB_NEW(&j->scratch, bool, op.n_in);
    if (!ids || !needs) return cb_no_memory(err);
    cb_value_id *in = ids, *din = in + op.n_in, *out = din + op.n_in, *dout = out + op.n_out;
    for (uint32_t i = 0; i < op.n_in; i++) {
        in[i] = cb_op_ins(j->g, id)[i];
        din[i] = CB_NONE;
        needs[i] = j->active.at[in[i]];
    }
    for (uint32_t i = 0; i < op.n_out; i++) {
        out[i] = op.out_begin + i;
        dout[i] = j->grad.at[out[i]];
    }
    *x = (cb_vjp){.e = {.graph = j->g, .err = err},
                  .code = op.code,
                  .attrs = *cb_op_attrs(j->g, id),
                  .n_in = op.n_in,
                  .n_out = op.n_out,
                  .in = in,
                  .out = out,
                  .dout = dout,
                  .needs = needs,
                  .din = din};
    return CB_OK;
}

static bool is_on_path(const joint *j, cb_op_id id) {
    const cb_op *op = &j->g->ops.at[id];
    bool reached = false, wanted = false;
    for (uint32_t i = 0; i < op->n_out; i++)
        reached = reached || j->grad.at[op->out_begin + i] != CB_NONE;
    for (uint32_t i = 0; i < op->n_in; i++) wanted = wanted || j->active.at[cb_op_ins(j->g, id)[i]];
    return reached && wanted;
}

/* Runs the op's rule and adds the results to the gradients of its inputs, unless the rule has set
 * x->expand. */
static cb_status apply_rule(joint *j, cb_op_id id, cb_vjp *x, cb_error *err) {
    CB_TRY(describe(j, id, x, err));
    cb_vjp_of(x->code)(x);
    if (x->e.status != CB_OK) return x->e.status;
    for (uint32_t i = 0; i < x->n_in && !x->expand; i++)
        if (x->needs[i] && x->din[i] != CB_NONE) CB_TRY(add_gradient(j, x->in[i], x->din[i], err));
    return CB_OK;
}

/* Differentiates primitives that compute the same values as the op. Their rules are never `expand`,
 * so this does not nest. */
static cb_status apply_expansion(joint *j, cb_vjp *x, cb_error *err) {
    const cb_op_id begin = (cb_op_id)j->g->ops.len;
    cb_value_id *outs = CB_NEW(&j->scratch, cb_value_id, x->n_out);
    if (!outs) return cb_no_memory(err);
    cb_expand_op(x, outs);
    if (x->e.status != CB_OK) return x->e.status;
    const cb_op_id end = (cb_op_id)j->g->ops.len;
    CB_TRY(cover_values(j, err));
    mark_active(j, begin, end);
    for (uint32_t i = 0; i < x->n_out; i++)
        if (x->dout[i] != CB_NONE) CB_TRY(add_gradient(j, outs[i], x->dout[i], err));
    for (cb_op_id i = end; i-- > begin;) {
        cb_vjp primitive;
        if (!is_on_path(j, i)) continue;
        CB_TRY(apply_rule(j, i, &primitive, err));
        if (!primitive.expand) continue;
        return cb_fail(err, CB_INTERNAL, "expansion of %s contains %s, which is not a primitive",
                       cb_op_def_of(x->code)->name, cb_op_def_of(primitive.code)->name);
    }
    return CB_OK;
}

static cb_status walk_back(joint *j, cb_error *err) {
    for (cb_op_id i = j->starts; i-- > 0;) {
        cb_vjp x;
        if (!is_on_path(j, i)) continue;
        j->g->location = j->g->ops.at[i].location;
        CB_TRY(apply_rule(j, i, &x, err));
        if (x.expand) CB_TRY(apply_expansion(j, &x, err));
    }
    return CB_OK;
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static cb_status seed_loss(joint *j, cb_error *err) {
    cb_graph *g = j->g;
    char text[CB_SHAPE_TEXT];
    const cb_output *loss = NULL; /* the first result; states may come before it */
    for (size_t i = g->outputs.len; i-- > 0;)
        if (g->outputs.at[i].kind == CB_OUTPUT_RESULT) loss = &g->outputs.at[i];
    if (!loss)
        return cb_fail(err, CB_INVALID,
                       "gradient: the graph has no result; add the loss as its first result");
    const cb_value v = g->values.at[loss->value];
    if (!cb_dtype_is_float(v.dtype)) {
        return cb_fail(err, CB_TYPE, "gradient: the loss '%s' has dtype %s; it must be floating",
                       cb_graph_name(g, loss->name), cb_dtype_name(v.dtype));
    }
    if (cb_numel(&v.shape) != 1) {
        return cb_fail(err, CB_INVALID,
                       "gradient: the loss '%s' has shape %s; reduce it to one number (sum, mean)",
                       cb_graph_name(g, loss->name), cb_shape_text(&v.shape, text));
    }
    cb_op_id op;
    const cb_attrs one = {.f = {1.0}, .dims = v.shape, .dtype = v.dtype};
    CB_TRY(cb_graph_append(g, CB_OP_FULL, 0, NULL, &one, &op, err));
    g->ops.at[op].phase = CB_BACKWARD;
    CB_TRY(cover_values(j, err));
    return add_gradient(j, loss->value, g->ops.at[op].out_begin, err);
}

/* Adds a tangent input for each floating result, in order. */
static cb_status seed_tangents(joint *j, cb_error *err) {
    cb_graph *g = j->g;
    for (size_t i = 0; i < g->outputs.len; i++) {
        const cb_output output = g->outputs.at[i];
        const cb_value v = g->values.at[output.value];
        char name[NAME_MAX];
        cb_value_id tangent;
        if (output.kind != CB_OUTPUT_RESULT || !cb_dtype_is_float(v.dtype)) continue;
        snprintf(name, sizeof name, "tangent.%s", cb_graph_name(g, output.name));
        CB_TRY(cb_graph_append_input(g, name, CB_ROLE_TANGENT, v.dtype, &v.shape, &tangent, err));
        g->ops.at[g->values.at[tangent].producer].phase = CB_BACKWARD;
        CB_TRY(cover_values(j, err));
        CB_TRY(add_gradient(j, output.value, tangent, err));
    }
    return CB_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Sets `out` to a value that owns its storage: it fills it, and neither an input nor another output
 * uses it. That is `value` itself if it owns its storage, else a copy. */
static cb_status own(joint *j, cb_bitset *taken, cb_value_id value, cb_value_id *out,
                     cb_error *err) {
    cb_graph *g = j->g;
    const cb_value v = g->values.at[value];
    const cb_storage *storage = &g->storages.at[v.storage];
    const bool fills = cb_is_contiguous(&v.shape, v.stride) &&
                       (uint64_t)cb_numel(&v.shape) * cb_dtype_size(v.dtype) == storage->bytes;
    const bool is_input = g->ops.at[g->values.at[storage->root].producer].code == CB_OP_INPUT;
    *out = value;
    if (fills && !is_input && !cb_bitset_has(taken, v.storage)) {
        cb_bitset_add(taken, v.storage);
        return CB_OK;
    }
    cb_op_id copy;
    g->location = g->ops.at[v.producer].location;
    CB_TRY(cb_graph_append(g, CB_OP_CONTIGUOUS, 1, &value, NULL, &copy, err));
    *out = g->ops.at[copy].out_begin;
    return CB_OK;
}

/* Makes every output own its storage. The copies come before the seeds, so that a result never
 * keeps its source alive during the backward. */
static cb_status own_results(joint *j, cb_error *err) {
    cb_graph *g = j->g;
    cb_bitset taken;
    if (!cb_bitset_init(&taken, &j->scratch, g->storages.len)) return cb_no_memory(err);
    for (size_t i = 0; i < g->outputs.len; i++)
        CB_TRY(own(j, &taken, g->outputs.at[i].value, &g->outputs.at[i].value, err));
    return CB_OK;
}

static cb_status append_gradients(joint *j, const cb_joint_options *options, cb_error *err) {
    cb_graph *g = j->g;
    cb_bitset taken;
    for (uint32_t i = 0; i < options->n_wrt;
         i++) { /* zeros first, so that `taken` covers every storage */
        const cb_value v = g->values.at[input_value(g, options->wrt[i])];
        cb_op_id op;
        if (j->grad.at[input_value(g, options->wrt[i])] != CB_NONE) continue;
        const cb_attrs zero = {.dims = v.shape, .dtype = v.dtype};
        g->location = CB_NONE;
        CB_TRY(cb_graph_append(g, CB_OP_FULL, 0, NULL, &zero, &op, err));
        j->grad.at[input_value(g, options->wrt[i])] = g->ops.at[op].out_begin;
    }
    if (!cb_bitset_init(&taken, &j->scratch, g->storages.len)) return cb_no_memory(err);
    for (size_t i = 0; i < g->outputs.len; i++)
        cb_bitset_add(&taken, g->values.at[g->outputs.at[i].value].storage);
    for (uint32_t i = 0; i < options->n_wrt; i++) {
        const cb_op input = g->ops.at[g->inputs.at[options->wrt[i]]];
        const char *name = input.name == CB_NONE ? NULL : cb_graph_name(g, input.name);
        cb_value_id gradient;
        CB_TRY(own(j, &taken, j->grad.at[input.out_begin], &gradient, err));
        CB_TRY(cb_graph_append_output(g, gradient, name, CB_OUTPUT_GRAD, options->wrt[i], err));
    }
    return CB_OK;
}

/* An appended op runs in the backward if the producer of one of its inputs does. Seeds are already
 * marked. */
static void set_phases(joint *j) {
    cb_graph *g = j->g;
    for (cb_op_id i = j->starts; i < g->ops.len; i++) {
        cb_op *op = &g->ops.at[i];
        for (uint32_t k = 0; k < op->n_in; k++) {
            if (g->ops.at[g->values.at[cb_op_ins(g, i)[k]].producer].phase == CB_BACKWARD)
                op->phase = CB_BACKWARD;
        }
    }
}

/* ---- the joint graph ------------------------------------------------------------------------- */

static cb_status check_wrt(const cb_graph *g, const cb_joint_options *options, cb_error *err) {
    for (uint32_t i = 0; i < options->n_wrt; i++) {
        const uint32_t position = options->wrt[i];
        if (position >= g->inputs.len) {
            return cb_fail(err, CB_INVALID,
                           "gradient asked for input %" PRIu32 ", but the graph has %zu inputs",
                           position, g->inputs.len);
        }
        const cb_value *v = &g->values.at[input_value(g, position)];
        if (cb_dtype_is_float(v->dtype)) continue;
        return cb_fail(err, CB_TYPE,
                       "gradient asked for input '%s' of dtype %s; only floating inputs have one",
                       cb_graph_name(g, g->ops.at[g->inputs.at[position]].name),
                       cb_dtype_name(v->dtype));
    }
    return CB_OK;
}

static cb_status differentiate(joint *j, const cb_joint_options *options, cb_error *err) {
    cb_graph *g = j->g;
    CB_TRY(own_results(j, err));
    j->starts = (cb_op_id)g->ops.len;
    if (options->n_wrt > 0) {
        CB_TRY(cover_values(j, err));
        for (uint32_t i = 0; i < options->n_wrt; i++)
            j->active.at[input_value(g, options->wrt[i])] = 1;
        mark_active(j, 0, j->starts);
        CB_TRY(options->tangent_inputs ? seed_tangents(j, err) : seed_loss(j, err));
        CB_TRY(walk_back(j, err));
        CB_TRY(append_gradients(j, options, err));
    }
    set_phases(j);
    g->backward_starts = j->starts;
    return CB_OK;
}

cb_status cb_joint_build(const cb_graph *forward, const cb_joint_options *options, cb_alloc *alloc,
                         cb_graph **out, cb_error *err) {
    joint j = {0};
    cb_graph *pruned = NULL, *split = NULL;
    cb_status status;
    CB_TRY(check_wrt(forward, options, err));
    cb_arena_init(&j.scratch, alloc);
    CB_TRY_DONE(cb_graph_copy(forward, alloc, &j.g, err));
    j.g->location = j.g->region = CB_NONE;
    j.g->phase = CB_FORWARD;
    j.g->constraint = CB_FREE;
    CB_TRY_DONE(differentiate(&j, options, err));
    CB_TRY_DONE(cb_graph_prune(j.g, alloc, &pruned, err));
    CB_TRY_DONE(cb_split_norms(pruned, alloc, &split, err));
    if (!split) {
        split = pruned;
        pruned = NULL;
    }
    CB_TRY_DONE(cb_graph_verify(split, CB_SPEC_JOINT, err));
    *out = split;
    split = NULL;
done:
    cb_graph_free(split);
    cb_graph_free(pruned);
    cb_graph_free(j.g);
    cb_arena_free(&j.scratch);
    return status;
}
