/* Amounts of work, computed from shapes only.
 *
 * Flops: 2nmk for a product, likewise for convolution; otherwise a weight per element, the cost of
 * the operation in a fused kernel relative to an exponential, which is 10. Weights were measured on
 * the CPU's executor with AVX2, as the time that one more operation adds to a chain in the cache;
 * the device gives flops per second (plan/model/cost.h).
 *
 * Bytes: each input is read once (an element that a stride of 0 repeats counts once, an input named
 * twice counts once) and each output is written once. Indexed reads count what is picked. */
#include "work.h"

enum { ROW_BLOCKS_MAX = 64, ROWS_AT_LEAST = 16 };

/* Partial sums at one time: two per column and block (weight and bias), 8 bytes each, in 4 MiB. */
#define PARTIALS_MAX ((int64_t)1 << 18)

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t cb_row_blocks(int64_t rows, int64_t columns) {
    if (columns == 0) return 1; /* no partial sums, and no memory for them */
    int64_t blocks = smaller(rows / ROWS_AT_LEAST, ROW_BLOCKS_MAX);
    return larger(1, smaller(blocks, PARTIALS_MAX / columns));
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Returns the flops per element of input 0 or output 0, whichever is larger. */
static double weight_of(cb_opcode code) {
    switch (code) {
        case CB_OP_DIV:
        case CB_OP_RECIPROCAL: return 1;
        case CB_OP_TANH_BWD:
        case CB_OP_SIGMOID_BWD: return 1.5;
        case CB_OP_SQRT: return 2;
        case CB_OP_RSQRT: return 4;
        case CB_OP_UNIFORM: return 8;
        case CB_OP_EXP:
        case CB_OP_DROPOUT: return 10;
        case CB_OP_SIGMOID: return 13;
        case CB_OP_SILU: return 14;
        case CB_OP_LOG:
        case CB_OP_SIN:
        case CB_OP_COS:
        case CB_OP_SILU_BWD: return 15;
        case CB_OP_GELU_TANH: return 17;
        case CB_OP_TANH:
        case CB_OP_LOG1P: return 18;
        case CB_OP_GELU_TANH_BWD: return 21;
        case CB_OP_POW: return 25;
        case CB_OP_ERF:
        case CB_OP_GELU:
        case CB_OP_GELU_BWD: return 29;
        case CB_OP_SOFTMAX:
        case CB_OP_LOG_SOFTMAX: return 17;
        case CB_OP_SOFTMAX_BWD: return 6;
        case CB_OP_LOG_SOFTMAX_BWD: return 13;
        case CB_OP_CROSS_ENTROPY:
        case CB_OP_CROSS_ENTROPY_BWD: return 15;
        case CB_OP_BATCH_NORM_APPLY: return 2;
        case CB_OP_BATCH_NORM_STATS:
        case CB_OP_RMS_NORM: return 5;
        case CB_OP_RMS_NORM_BWD: return 8;
        case CB_OP_LAYER_NORM:
        case CB_OP_BATCH_NORM: return 10;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_BATCH_NORM_BWD: return 12;
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN: return 2;
        default: return 0.5;
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t size_of(const cb_value *v) {
    return (uint64_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype);
}

/* Returns the bytes of the distinct elements that the value shows. */
static uint64_t read_bytes(const cb_value *v) {
    uint64_t bytes = cb_dtype_size(v->dtype);
    for (int32_t k = 0; k < v->shape.rank; k++)
        if (v->stride[k] != 0 || v->shape.dim[k] == 0) bytes *= (uint64_t)v->shape.dim[k];
    return bytes;
}

/* True for an input read by index: the op reads as many of its elements as it returns. */
static bool picks_from(cb_opcode code, uint32_t input) {
    return (code == CB_OP_GATHER || code == CB_OP_EMBEDDING) && input == 0;
}

static uint64_t moved_bytes(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
        bool again =
            false; /* compared with the last 4 only: ops with many inputs join different values */
        for (uint32_t k = i > 4 ? i - 4 : 0; k < i; k++) again |= ins[k] == ins[i];
        if (again) continue;
        bytes += picks_from(op->code, i) ? size_of(&g->values.at[op->out_begin])
                                         : read_bytes(&g->values.at[ins[i]]);
    }
    for (uint32_t k = 0; k < op->n_out; k++) bytes += size_of(&g->values.at[op->out_begin + k]);
    return bytes;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static double product_flops(const cb_graph *g, cb_op_id id) {
    const cb_shape *x = &g->values.at[cb_op_ins(g, id)[0]].shape,
                   *y = &g->values.at[g->ops.at[id].out_begin].shape;
    return 2.0 * (double)cb_numel(y) * (double)x->dim[x->rank - 1];
}

static double conv_flops(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_value_id *ins = cb_op_ins(g, id);
    const cb_shape *first = &g->values.at[ins[0]].shape, *second = &g->values.at[ins[1]].shape;
    const cb_shape *out = &g->values.at[op->out_begin].shape;
    /* Which tensors are w and y depends on the direction. */
    const cb_shape *w = op->code == CB_OP_CONV2D_WGRAD ? out : second;
    const cb_shape *y = op->code == CB_OP_CONV2D ? out : first;
    return 2.0 * (double)cb_numel(y) * (double)(w->dim[1] * w->dim[2] * w->dim[3]);
}

/* Counts the two products of the forward, or the five of the backward, and the exponentials. With
 * `causal`, only pairs up to the diagonal count. */
static double attention_flops(const cb_graph *g, cb_op_id id) {
    const bool is_forward = g->ops.at[id].code == CB_OP_ATTENTION;
    const cb_value_id *ins = cb_op_ins(g, id) + (is_forward ? 0 : 1);
    const cb_shape *q = &g->values.at[ins[0]].shape, *v = &g->values.at[ins[2]].shape;
    const int32_t r = q->rank;
    const double e = (double)q->dim[r - 1], d = (double)v->dim[r - 1];
    const double l = (double)q->dim[r - 2], s = (double)v->dim[r - 2];
    double pairs = (double)cb_numel_of(q, 0, r - 2) * l * s;
    if (cb_op_attrs(g, id)->i[1]) pairs *= s <= l ? 1 - 0.5 * s / (l > 0 ? l : 1) : 0.5 * l / s;
    const double exponentials = weight_of(CB_OP_SOFTMAX), random = weight_of(CB_OP_DROPOUT);
    double each = is_forward ? 2 * e + 2 * d : 6 * e + 4 * d;
    each += exponentials + (cb_op_attrs(g, id)->f[1] > 0 ? random : 0);
    return pairs * each;
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
        case CB_OP_MATMUL:
        case CB_OP_MATMUL_ADD: work.flops = product_flops(g, id); break;
        case CB_OP_CONV2D:
        case CB_OP_CONV2D_DGRAD:
        case CB_OP_CONV2D_WGRAD: work.flops = conv_flops(g, id); break;
        case CB_OP_ATTENTION:
        case CB_OP_ATTENTION_BWD: work.flops = attention_flops(g, id); break;
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
    return work;
}
