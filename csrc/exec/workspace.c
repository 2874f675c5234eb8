/* Computes the scratch of each op only from shapes, so that plans do not depend on the machine. */
#include "workspace.h"

#include "../ir/work.h"
#include "attention_tiles.h"
#include "tiles.h"

/* Returns the bytes of partial sums. A single block needs none: it adds in the output or in
 * registers. */
static uint64_t column_workspace(int64_t rows, int64_t columns, size_t accumulator, int partials) {
    int64_t blocks = cb_row_blocks(rows, columns);
    if (blocks == 1) return 0;
    return (uint64_t)blocks * (uint64_t)columns * accumulator * (uint64_t)partials;
}

/* Returns the dtype in which values of this dtype are summed. */
static size_t accumulator_size(cb_dtype dtype) {
    return dtype == CB_F16 || dtype == CB_BF16 || dtype == CB_F32 ? sizeof(float) : sizeof(double);
}

static uint64_t product_workspace(const cb_graph *g, cb_op_id id) {
    const cb_value *x = &g->values.at[cb_op_ins(g, id)[0]],
                   *y = &g->values.at[g->ops.at[id].out_begin];
    int32_t rank = y->shape.rank;
    int64_t n = y->shape.dim[rank - 2], m = y->shape.dim[rank - 1], k = x->shape.dim[rank - 1];
    cb_matmul_tiles tiles =
        cb_matmul_tiles_of(cb_numel_of(&y->shape, 0, rank - 2), n, k, m, y->dtype);
    return cb_matmul_scratch(&tiles);
}

static uint64_t conv_workspace(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    const cb_shape *first = &g->values.at[ins[0]].shape, *second = &g->values.at[ins[1]].shape;
    const cb_value *out = &g->values.at[op->out_begin];
    /* Which tensors are x, w and y depends on the direction. */
    const cb_shape *x = first, *w = second, *y = &out->shape;
    if (op->code == CB_OP_CONV2D_DGRAD) x = &out->shape, y = first;
    if (op->code == CB_OP_CONV2D_WGRAD) x = second, w = &out->shape, y = first;
    cb_conv_tiles tiles = cb_conv2d_tiles(op->code, x, w, y, cb_op_attrs(g, id), out->dtype);
    const uint64_t direct = cb_conv2d_scratch(&tiles);
    if (op->code != CB_OP_CONV2D_DGRAD) return direct;
    tiles = cb_conv2d_flipped_tiles(x, w, y, cb_op_attrs(g, id), out->dtype);
    const uint64_t flipped = cb_conv2d_scratch(&tiles);
    if (tiles.is_direct) return flipped;
    return flipped > direct ? flipped : direct;
}

/* Views the destination as [outer, rows, inner], indexed along `axis`. */
static uint64_t scatter_workspace(const cb_value *out, int64_t axis) {
    const cb_shape *s = &out->shape;
    const int64_t outer = cb_numel_of(s, 0, axis), inner = cb_numel_of(s, axis + 1, s->rank);
    cb_scatter_tiles tiles = cb_scatter_tiles_of(outer, out->shape.dim[axis], inner, out->dtype);
    return cb_scatter_scratch(&tiles);
}

/* If no kept axis longer than 1 follows the last reduced one, sums run along rows and need no
 * scratch. Otherwise columns are added in blocks of rows. */
static uint64_t reduce_workspace(const cb_value *in, const cb_value *out, const cb_attrs *attrs) {
    const cb_shape *axes = &attrs->dims;
    int32_t next = axes->rank - 1;
    bool kept = false, columns_behind = false;
    for (int32_t k = in->shape.rank - 1; k >= 0; k--) {
        const bool reduces = axes->rank == 0 || (next >= 0 && axes->dim[next] == k);
        if (reduces) next--;
        if (in->shape.dim[k] == 1) continue;
        columns_behind |= reduces && kept;
        kept |= !reduces;
    }
    if (!columns_behind) return 0;
    int64_t columns = cb_numel(&out->shape);
    int64_t rows = columns ? cb_numel(&in->shape) / columns : 0;
    return column_workspace(rows, columns, accumulator_size(in->dtype), 1);
}

static uint64_t norm_workspace(const cb_value *x, int64_t columns, int partials) {
    int64_t rows = columns ? cb_numel(&x->shape) / columns : 0;
    return column_workspace(rows, columns, accumulator_size(x->dtype), partials);
}

static uint64_t attention_workspace(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const bool is_forward = op->code == CB_OP_ATTENTION;
    const cb_value_id *ins = cb_op_ins(g, id) + (is_forward ? 0 : 1);
    const cb_value *q = &g->values.at[ins[0]], *v = &g->values.at[ins[2]];
    return cb_attention_tiles_of(op->code, &q->shape, &v->shape, q->dtype,
                                 op->n_in > (is_forward ? 3 : 6), cb_op_attrs(g, id)->f[1] > 0)
        .bytes;
}

static uint64_t kernel_workspace(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    const cb_value *out = &g->values.at[op->out_begin];
    switch (op->code) {
        case CB_OP_MATMUL:
        case CB_OP_MATMUL_ADD: return product_workspace(g, id);
        case CB_OP_CONV2D:
        case CB_OP_CONV2D_DGRAD:
        case CB_OP_CONV2D_WGRAD: return conv_workspace(g, id);
        case CB_OP_ATTENTION:
        case CB_OP_ATTENTION_BWD: return attention_workspace(g, id);
        case CB_OP_SCATTER_ADD: return scatter_workspace(out, cb_op_attrs(g, id)->i[0]);
        case CB_OP_EMBEDDING_BWD: return scatter_workspace(out, 0);
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN: return reduce_workspace(&g->values.at[ins[0]], out, cb_op_attrs(g, id));
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD: {
            const cb_value *x = &g->values.at[ins[1]];
            int partials = op->code == CB_OP_LAYER_NORM_BWD ? 2 : 1;
            return norm_workspace(x, x->shape.dim[x->shape.rank - 1], partials);
        }
        default: return 0;
    }
}

uint64_t cb_index_copy_bytes(cb_dtype dtype, const cb_shape *shape) {
    return cb_align_up((size_t)cb_numel(shape) * cb_dtype_size(dtype));
}

static bool is_callers(const cb_graph *g, cb_storage_id storage) {
    const cb_op_id root = g->values.at[g->storages.at[storage].root].producer;
    if (g->ops.at[root].code == CB_OP_INPUT) return true;
    for (size_t i = 0; i < g->outputs.len; i++)
        if (g->values.at[g->outputs.at[i].value].storage == storage) return true;
    return false;
}

uint64_t cb_op_index_copy(const cb_graph *g, cb_op_id id) {
    const int input = cb_op_index_input(g->ops.at[id].code);
    if (input < 0) return 0;
    const cb_value *index = &g->values.at[cb_op_ins(g, id)[input]];
    return is_callers(g, index->storage) ? cb_index_copy_bytes(index->dtype, &index->shape) : 0;
}

uint64_t cb_op_workspace(const cb_graph *g, cb_op_id id) {
    return kernel_workspace(g, id) + cb_op_index_copy(g, id);
}
