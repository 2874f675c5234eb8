/* split_norms.c: batch_norm is one op for the user and for its gradient rule. In a joint graph one
 * op would be too coarse: recomputing y would recompute the statistics, and y would have to be
 * written and read although the next op could compute it on the fly. So
 *
 *     y, mean, var, rstd = batch_norm(x, weight, bias)
 *
 * becomes
 *
 *     mean, var, rstd = batch_norm_stats(x)
 *     y = batch_norm_apply(x, mean, rstd, weight, bias)      all but x are expanded per channel
 *
 * if an op can fuse with y. Otherwise the single kernel stays: it reads each channel from memory
 * once for both. */
#include "split_norms.h"

#include "../../base/bitset.h"
#include "../../ir/builder.h"

/* Marks the values that a pointwise op reads, directly or through views. One pass backwards is
 * enough, because readers have larger ids. */
static void mark_fused(const cb_graph *g, cb_bitset *fused) {
    for (size_t i = g->ops.len; i-- > 0;) {
        const cb_op *op = &g->ops.at[i];
        const uint32_t flags = cb_op_flags(g, (cb_op_id)i);
        const bool passes = (flags & CB_OPF_VIEW) && cb_bitset_has(fused, op->out_begin);
        if (!(flags & CB_OPF_POINTWISE) && !passes) continue;
        for (uint32_t k = 0; k < op->n_in; k++) cb_bitset_add(fused, cb_op_ins(g, (cb_op_id)i)[k]);
    }
}

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    return op->code == CB_OP_BATCH_NORM && cb_bitset_has(user, op->out_begin);
}

/* Reshapes [c] to [1, c, 1, ..] and expands it to `full`. */
static cb_status along_channels(cb_graph *g, cb_value_id of, const cb_shape *full, cb_value_id *out,
                                cb_error *err) {
    cb_shape column = *full;
    for (int32_t k = 0; k < full->rank; k++)
        if (k != 1) column.dim[k] = 1;
    CB_TRY(cb_build_reshape(g, of, &column, out, err));
    return cb_build_expand(g, *out, full, out, err);
}

static cb_status split(cb_graph *to, cb_opcode code, const cb_attrs *attrs, uint32_t n_ins,
                       const cb_value_id *ins, cb_value_id *outs, cb_error *err) {
    (void)code, (void)n_ins;
    const cb_shape full = to->values.at[ins[0]].shape;
    cb_value_id in[5] = {ins[0]};
    CB_TRY(cb_build(to, CB_OP_BATCH_NORM_STATS, 1, ins, attrs, outs + 1, err));
    CB_TRY(along_channels(to, outs[1], &full, &in[1], err));
    CB_TRY(along_channels(to, outs[3], &full, &in[2], err));
    CB_TRY(along_channels(to, ins[1], &full, &in[3], err));
    CB_TRY(along_channels(to, ins[2], &full, &in[4], err));
    return cb_build(to, CB_OP_BATCH_NORM_APPLY, 5, in, NULL, outs, err);
}

cb_status cb_split_norms(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    cb_arena scratch;
    cb_bitset fused;
    cb_status status = CB_OK;
    const cb_replacing by = {.user = &fused, .wants = wants, .replace = split};
    bool any = false;
    *out = NULL;
    cb_arena_init(&scratch, alloc);
    if (!cb_bitset_init(&fused, &scratch, g->values.len)) status = cb_no_memory(err);
    if (status == CB_OK) mark_fused(g, &fused);
    for (cb_op_id i = 0; status == CB_OK && i < g->ops.len && !any; i++) any = wants(&fused, g, i);
    if (any) status = cb_graph_replace(g, &by, alloc, out, err);
    cb_arena_free(&scratch);
    return status;
}
