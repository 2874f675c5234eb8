/* joint.c: reverse-mode differentiation on a copy of the forward graph (backward.h).
 *
 *   forward ops (copied) | copies for results | seeds | gradient ops | copies for gradients
 *                                             ^ backward_starts
 *
 * A gradient op runs in the backward if it depends on a tangent. One pass over the appended ops
 * sets the phases at the end. A mask, or another helper that depends only on forward values, stays
 * FORWARD. With slices, the gradients of a loss in pieces may become part of the forward
 * (strips/early.h). */
#include "joint.h"

#include <inttypes.h>
#include <stdio.h>

#include "../base/bitset.h"
#include "../ir/verify.h"
#include "backward.h"
#include "rewrites/join_sums.h"
#include "rewrites/packs.h"
#include "rewrites/split_norms.h"
#include "strips/cut.h"
#include "strips/early.h"

#define NAME_MAX 256 /* bytes of a tangent's name; longer names are truncated */

static cb_value_id input_value(const cb_graph *g, uint32_t position) {
    return g->ops.at[g->inputs.at[position]].out_begin;
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static cb_status seed_loss(cb_backward *j, cb_error *err) {
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
    CB_TRY(cb_backward_cover(j, err));
    return cb_backward_add(j, loss->value, g->ops.at[op].out_begin, err);
}

/* Adds a tangent input for each floating result, in order. */
static cb_status seed_tangents(cb_backward *j, cb_error *err) {
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
        CB_TRY(cb_backward_cover(j, err));
        CB_TRY(cb_backward_add(j, output.value, tangent, err));
    }
    return CB_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A value owns its storage if it fills it and no input or other output uses it. Sets `out` to
 * `value` if it owns its storage, else to a copy. */
static cb_status own(cb_backward *j, cb_bitset *taken, cb_value_id value, cb_value_id *out,
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
static cb_status own_results(cb_backward *j, cb_error *err) {
    cb_graph *g = j->g;
    cb_bitset taken;
    if (!cb_bitset_init(&taken, &j->scratch, g->storages.len)) return cb_no_memory(err);
    for (size_t i = 0; i < g->outputs.len; i++)
        CB_TRY(own(j, &taken, g->outputs.at[i].value, &g->outputs.at[i].value, err));
    return CB_OK;
}

static cb_status append_gradients(cb_backward *j, const cb_joint_options *options, cb_error *err) {
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
static void set_phases(cb_backward *j) {
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
                           "gradient requested for input %" PRIu32 ", but the graph has %zu inputs",
                           position, g->inputs.len);
        }
        const cb_value *v = &g->values.at[input_value(g, position)];
        if (cb_dtype_is_float(v->dtype)) continue;
        return cb_fail(
            err, CB_TYPE,
            "gradient requested for input '%s' of dtype %s; only floating inputs have gradients",
            cb_graph_name(g, g->ops.at[g->inputs.at[position]].name), cb_dtype_name(v->dtype));
    }
    return CB_OK;
}

static cb_status differentiate(cb_backward *j, const cb_joint_options *options, cb_error *err) {
    cb_graph *g = j->g;
    g->location = g->region = CB_NONE;
    g->phase = CB_FORWARD;
    g->constraint = CB_FREE;
    j->accumulates = options->slices;
    CB_TRY(own_results(j, err));
    j->starts = (cb_op_id)g->ops.len;
    if (options->n_wrt > 0) {
        CB_TRY(cb_backward_cover(j, err));
        for (uint32_t i = 0; i < options->n_wrt; i++)
            j->active.at[input_value(g, options->wrt[i])] = 1;
        CB_TRY(options->tangent_inputs ? seed_tangents(j, err) : seed_loss(j, err));
        CB_TRY(cb_backward_walk(j, err));
        CB_TRY(append_gradients(j, options, err));
    }
    for (size_t i = 0; i < g->ops.len; i++) /* the rule has been applied, so its inputs may be
                                               dropped */
        if (g->ops.at[i].code == CB_OP_CUSTOM_VJP) g->ops.at[i].n_in = 1;
    set_phases(j);
    g->backward_starts = j->starts;
    return CB_OK;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Returns the strip whose gradients may follow its pieces: the last one, if it computes the loss.
 */
static const cb_strip *loss_of(const cb_strips *strips, const cb_graph *forward,
                               const cb_joint_options *options) {
    const size_t n = strips->strips.len;
    if (n == 0 || options->tangent_inputs || options->n_wrt == 0) return NULL;
    const cb_strip *last = &strips->strips.at[n - 1];
    return forward->ops.at[last->end].code == CB_OP_CROSS_ENTROPY ? last : NULL;
}

/* Moves the gradients of the loss into the forward, if possible. */
static cb_status move_gradients(cb_backward *j, const cb_strip *loss, bool *moved, cb_alloc *alloc,
                                cb_error *err) {
    const cb_early early = {loss->first, loss->n_pieces, j->starts, j->made_begin, j->made_end};
    cb_graph *moving = NULL;
    *moved = false;
    if (j->made_end == j->made_begin) return CB_OK; /* no gradient passes through the loss */
    CB_TRY(cb_gradients_early(j->g, &early, alloc, &moving, err));
    *moved = moving != NULL;
    if (!moving) return CB_OK;
    cb_graph_free(j->g);
    j->g = moving;
    return CB_OK;
}

/* Makes the joint graph of a forward graph with its strips cut. */
static cb_status build_in_pieces(cb_backward *j, const cb_graph *forward,
                                 const cb_joint_options *options, cb_alloc *alloc, cb_error *err) {
    cb_strips strips;
    bool moved = false;
    CB_TRY(cb_strips_find(forward, &j->scratch, &strips, err));
    CB_TRY(cb_strips_cut(forward, &strips, alloc, &j->g, err));
    const cb_strip *loss = loss_of(&strips, forward, options);
    if (loss) {
        j->seen_begin = loss->first[0];
        j->seen_end = loss->first[loss->n_pieces];
    }
    CB_TRY(differentiate(j, options, err));
    if (loss) CB_TRY(move_gradients(j, loss, &moved, alloc, err));
    if (options->sliced) cb_strips_print(forward, &strips, moved ? loss : NULL, options->sliced);
    return CB_OK;
}

/* Replaces *g by the ops of `from` that outputs need, and frees both. */
static cb_status prune(cb_graph *from, cb_alloc *alloc, cb_graph **g, cb_error *err) {
    cb_graph *pruned = NULL;
    const cb_status status = cb_graph_prune(from, alloc, &pruned, err);
    cb_graph_free(from);
    CB_TRY(status);
    cb_graph_free(*g);
    *g = pruned;
    return CB_OK;
}

static cb_status build_whole(cb_backward *j, const cb_graph *forward,
                             const cb_joint_options *options, cb_alloc *alloc, cb_error *err) {
    CB_TRY(cb_graph_copy(forward, alloc, &j->g, err));
    return differentiate(j, options, err);
}

/* Replaces a graph by one with joined sums, if there are any. */
static cb_status join(cb_alloc *alloc, cb_graph **g, cb_error *err) {
    cb_graph *joined = NULL;
    CB_TRY(cb_join_sums(*g, alloc, &joined, err));
    return joined ? prune(joined, alloc, g, err) : CB_OK;
}

/* Replaces a graph by one with packed values, if there are any. */
static cb_status pack(const cb_joint_options *options, cb_alloc *alloc, cb_graph **g,
                      cb_error *err) {
    cb_graph *packed = NULL;
    if (!options->packed) return CB_OK;
    CB_TRY(cb_pack_saves(*g, alloc, &packed, err));
    return packed ? prune(packed, alloc, g, err) : CB_OK;
}

cb_status cb_joint_build(const cb_graph *forward, const cb_joint_options *options, cb_alloc *alloc,
                         cb_graph **out, cb_error *err) {
    cb_backward j = {0};
    cb_graph *pruned = NULL, *split = NULL;
    cb_status status;
    CB_TRY(check_wrt(forward, options, err));
    cb_arena_init(&j.scratch, alloc);
    CB_TRY_DONE(options->slices ? build_in_pieces(&j, forward, options, alloc, err)
                                : build_whole(&j, forward, options, alloc, err));
    CB_TRY_DONE(cb_graph_prune(j.g, alloc, &pruned, err));
    CB_TRY_DONE(cb_split_norms(pruned, alloc, &split, err));
    if (!split) {
        split = pruned;
        pruned = NULL;
    }
    if (!options->slices) CB_TRY_DONE(join(alloc, &split, err));
    CB_TRY_DONE(pack(options, alloc, &split, err));
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
