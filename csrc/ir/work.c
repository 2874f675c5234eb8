/* Amounts of work, from shapes alone.
 *
 * Flops: 2nmk for a product, likewise for convolution; else a weight for each element. The weights
 * are what the operation costs next to one addition: 1 for arithmetic, 4 for a division or root, 10
 * for a transcendental, more for the compound ones. They need to be right within a factor of two:
 * such ops are bound by memory on every device.
 *
 * Bytes: each input is read once (an element that a stride of 0 repeats counts once, an input named
 * twice counts once) and each output is written once. Indexed reads count what is picked. */
#include "work.h"

enum { ROW_BLOCKS_MAX = 64, ROWS_AT_LEAST = 16 };

/* A column reduction keeps at most two partial sums (weight and bias) of 8 bytes a column and
 * block. */
#define PARTIALS_MAX ((int64_t)(CB_WORKSPACE_MAX / 16))

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t cb_row_blocks(int64_t rows, int64_t columns) {
    if (columns == 0) return 1; /* no partial sums, and no memory for them */
    int64_t blocks = smaller(rows / ROWS_AT_LEAST, ROW_BLOCKS_MAX);
    return larger(1, smaller(blocks, PARTIALS_MAX / columns));
}

/* One block needs no partial sums: it adds up in the output itself or in registers. */
static uint64_t column_workspace(int64_t rows, int64_t columns, size_t accumulator, int partials) {
    int64_t blocks = cb_row_blocks(rows, columns);
    if (blocks == 1) return 0;
    return (uint64_t)blocks * (uint64_t)columns * accumulator * (uint64_t)partials;
}

/* What a value of this dtype is summed in. */
static size_t accumulator_size(cb_dtype dtype) {
    return dtype == CB_F16 || dtype == CB_BF16 || dtype == CB_F32 ? sizeof(float) : sizeof(double);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Flops for each element of the larger of input 0 and output 0. */
static double weight_of(cb_opcode code) {
    switch (code) {
        case CB_OP_DIV:
        case CB_OP_SQRT:
        case CB_OP_RSQRT:
        case CB_OP_RECIPROCAL: return 4;
        case CB_OP_EXP:
        case CB_OP_LOG:
        case CB_OP_LOG1P:
        case CB_OP_SIN:
        case CB_OP_COS:
        case CB_OP_TANH:
        case CB_OP_SIGMOID:
        case CB_OP_ERF: return 10;
        case CB_OP_SILU:
        case CB_OP_GELU:
        case CB_OP_GELU_TANH: return 15;
        case CB_OP_SILU_BWD:
        case CB_OP_GELU_TANH_BWD: return 20;
        case CB_OP_GELU_BWD: return 25;
        case CB_OP_POW: return 25;
        case CB_OP_TANH_BWD:
        case CB_OP_SIGMOID_BWD: return 3;
        case CB_OP_UNIFORM:
        case CB_OP_DROPOUT: return 8;
        case CB_OP_SOFTMAX: return 15;
        case CB_OP_LOG_SOFTMAX:
        case CB_OP_CROSS_ENTROPY: return 13;
        case CB_OP_SOFTMAX_BWD: return 4;
        case CB_OP_LOG_SOFTMAX_BWD:
        case CB_OP_CROSS_ENTROPY_BWD: return 13;
        case CB_OP_LAYER_NORM:
        case CB_OP_BATCH_NORM: return 8;
        case CB_OP_RMS_NORM: return 4;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_BATCH_NORM_BWD: return 12;
        case CB_OP_RMS_NORM_BWD: return 10;
        default: return 1;
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t size_of(const cb_value *v) {
    return (uint64_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype);
}

/* Bytes of the distinct elements that the value shows. */
static uint64_t read_bytes(const cb_value *v) {
    uint64_t bytes = cb_dtype_size(v->dtype);
    for (int32_t k = 0; k < v->shape.rank; k++) {
        if (v->stride[k] != 0 || v->shape.dim[k] == 0) bytes *= (uint64_t)v->shape.dim[k];
    }
    return bytes;
}

/* Inputs whose elements are picked by index: what is read of them is what comes out. */
static bool picks_from(cb_opcode code, uint32_t input) {
    return (code == CB_OP_GATHER || code == CB_OP_EMBEDDING) && input == 0;
}

static uint64_t moved_bytes(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
        bool again =
            false; /* a short look back: ops with many inputs are joins of different values */
        for (uint32_t k = i > 4 ? i - 4 : 0; k < i; k++) again |= ins[k] == ins[i];
        if (again) continue;
        bytes += picks_from(op->code, i) ? size_of(&g->values.at[op->out_begin])
                                         : read_bytes(&g->values.at[ins[i]]);
    }
    for (uint32_t k = 0; k < op->n_out; k++) bytes += size_of(&g->values.at[op->out_begin + k]);
    return bytes;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void product_work(const cb_graph *g, cb_op_id id, cb_work *work) {
    const cb_value *x = &g->values.at[cb_op_ins(g, id)[0]],
                   *y = &g->values.at[g->ops.at[id].out_begin];
    int32_t rank = y->shape.rank;
    int64_t n = y->shape.dim[rank - 2], m = y->shape.dim[rank - 1], k = x->shape.dim[rank - 1],
            batch = 1;
    for (int32_t i = 0; i < rank - 2; i++) batch *= y->shape.dim[i];
    cb_matmul_tiles tiles = cb_matmul_tiles_of(batch, n, k, m, y->dtype);
    work->flops = 2.0 * (double)cb_numel(&y->shape) * (double)k;
    work->workspace = cb_matmul_scratch(&tiles);
}

static void conv_work(const cb_graph *g, cb_op_id id, cb_work *work) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    const cb_value *first = &g->values.at[ins[0]], *second = &g->values.at[ins[1]];
    const cb_value *out = &g->values.at[op->out_begin];
    /* Who is x, w and y depends on the direction. */
    const cb_shape *x = &first->shape, *w = &second->shape, *y = &out->shape;
    if (op->code == CB_OP_CONV2D_DGRAD) x = &out->shape, y = &first->shape;
    if (op->code == CB_OP_CONV2D_WGRAD) x = &second->shape, w = &out->shape, y = &first->shape;
    cb_conv_tiles tiles = cb_conv2d_tiles(op->code, x, w, y, cb_op_attrs(g, id), out->dtype);
    work->flops = 2.0 * (double)cb_numel(y) * (double)(w->dim[1] * w->dim[2] * w->dim[3]);
    work->workspace = cb_conv2d_scratch(&tiles);
}

/* The destination as [outer, rows, inner], added to along `axis`. */
static uint64_t scatter_workspace(const cb_value *out, int64_t axis) {
    int64_t outer = 1, inner = 1;
    for (int32_t k = 0; k < out->shape.rank; k++) {
        if (k < axis) outer *= out->shape.dim[k];
        if (k > axis) inner *= out->shape.dim[k];
    }
    cb_scatter_tiles tiles = cb_scatter_tiles_of(outer, out->shape.dim[axis], inner, out->dtype);
    return cb_scatter_scratch(&tiles);
}

/* With no kept axis behind the last reduced one (longer than 1) sums run along rows, and need no
 * scratch; others add up columns, in blocks of rows. */
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

uint64_t cb_index_copy_bytes(cb_dtype dtype, const cb_shape *shape) {
    return cb_align_up((size_t)cb_numel(shape) * cb_dtype_size(dtype));
}

static bool is_callers(const cb_graph *g, cb_storage_id storage) {
    const cb_op_id root = g->values.at[g->storages.at[storage].root].producer;
    if (g->ops.at[root].code == CB_OP_INPUT) return true;
    for (size_t i = 0; i < g->outputs.len; i++) {
        if (g->values.at[g->outputs.at[i].value].storage == storage) return true;
    }
    return false;
}

uint64_t cb_op_index_copy(const cb_graph *g, cb_op_id id) {
    const int input = cb_op_index_input(g->ops.at[id].code);
    if (input < 0) return 0;
    const cb_value *index = &g->values.at[cb_op_ins(g, id)[input]];
    return is_callers(g, index->storage) ? cb_index_copy_bytes(index->dtype, &index->shape) : 0;
}

cb_work cb_op_work(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const uint32_t flags = cb_op_def_of(op->code)->flags;
    cb_work work = {0};
    if (flags & (CB_OPF_SOURCE | CB_OPF_VIEW)) return work;
    const cb_value_id *ins = cb_op_ins(g, id);
    const cb_value *out = &g->values.at[op->out_begin];
    int64_t most = cb_numel(&out->shape);
    if (op->n_in > 0) most = larger(most, cb_numel(&g->values.at[ins[0]].shape));
    work.flops = weight_of(op->code) * (double)most;
    work.bytes = moved_bytes(g, id);
    switch (op->code) {
        case CB_OP_MATMUL: product_work(g, id, &work); break;
        case CB_OP_CONV2D:
        case CB_OP_CONV2D_DGRAD:
        case CB_OP_CONV2D_WGRAD: conv_work(g, id, &work); break;
        case CB_OP_SCATTER_ADD:
            work.workspace = scatter_workspace(out, cb_op_attrs(g, id)->i[0]);
            break;
        case CB_OP_EMBEDDING_BWD: work.workspace = scatter_workspace(out, 0); break;
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN:
            work.workspace = reduce_workspace(&g->values.at[ins[0]], out, cb_op_attrs(g, id));
            break;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD: {
            const cb_value *x = &g->values.at[ins[1]];
            int partials = op->code == CB_OP_LAYER_NORM_BWD ? 2 : 1;
            work.workspace = norm_workspace(x, x->shape.dim[x->shape.rank - 1], partials);
            break;
        }
        case CB_OP_MAX_POOL2D:
        case CB_OP_AVG_POOL2D:
        case CB_OP_AVG_POOL2D_BWD: {
            const int64_t *a = cb_op_attrs(g, id)->i;
            const cb_value *windows =
                op->code == CB_OP_AVG_POOL2D_BWD ? &g->values.at[ins[0]] : out;
            work.flops = (double)cb_numel(&windows->shape) * (double)a[0] * (double)a[1];
            break;
        }
        default: break;
    }
    work.workspace += cb_op_index_copy(g, id);
    return work;
}
