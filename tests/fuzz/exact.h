/* exact.h: which values of a graph are integers that every backend must compute exactly.
 *
 * The reference computes in double and the CPU kernels in their dtype, so in general the two round
 * differently. But if every number on the way to a value is an integer small enough for its dtype,
 * nothing is rounded, whatever the order of a sum. `most` is the largest possible magnitude of such
 * a value, and infinity for all others. */
#ifndef CB_FUZZ_EXACT_H
#define CB_FUZZ_EXACT_H

#include <math.h>

#include "base/dtype.h"
#include "ir/graph.h"
#include "target.h"

/* Returns the limit up to which the dtype represents all integers. */
static inline double exact_limit(cb_dtype dtype) {
    switch (dtype) {
        case CB_BOOL: return 1;
        case CB_U8: return 255;
        case CB_I32: return 2147483647.0;
        case CB_F16: return 2048;
        case CB_BF16: return 256;
        case CB_F32: return 16777216;
        default: return 9007199254740992.0;
    }
}

static inline double whole(double x) {
    return x == floor(x) && fabs(x) < 1e15 ? fabs(x) : INFINITY;
}

static inline double numel_of(const cb_graph *g, cb_value_id v) {
    return (double)cb_numel(&g->values.at[v].shape);
}

/* Returns the bound of the sums of a product. */
static inline double product_bound(const cb_graph *g, const cb_op *op, double a, double b) {
    const cb_value_id *in = g->in_value.at + op->in_begin;
    const cb_shape *x = &g->values.at[in[0]].shape;
    const double terms = op->code == CB_OP_MATMUL ? (double)x->dim[x->rank - 1]
                                                  : fmax(numel_of(g, in[0]), numel_of(g, in[1]));
    return a * b * terms;
}

/* Returns the bound of the op's results if they are integers; `a`, `b`, `c` are the bounds of its
 * inputs (0: none). */
static inline double op_bound(const cb_graph *g, const cb_op *op, double a, double b, double c) {
    const cb_attrs *attrs = &g->attrs.at[op->attrs];
    const cb_value_id *in = g->in_value.at + op->in_begin;
    switch (op->code) {
        case CB_OP_FULL: return whole(attrs->f[0]);
        case CB_OP_IOTA: return (double)attrs->dims.dim[attrs->i[0]];
        case CB_OP_NEG:
        case CB_OP_ABS:
        case CB_OP_FLOOR:
        case CB_OP_RELU:
        case CB_OP_CAST:
        case CB_OP_CONTIGUOUS:
        case CB_OP_RESHAPE:
        case CB_OP_TRANSPOSE:
        case CB_OP_EXPAND:
        case CB_OP_SLICE:
        case CB_OP_GATHER:
        case CB_OP_EMBEDDING:
        case CB_OP_RELU_BWD: return a;
        case CB_OP_AMAX: /* between two zeros, the order of the reduction decides */
        case CB_OP_AMIN: return cb_dtype_is_float(g->values.at[in[0]].dtype) ? INFINITY : a;
        case CB_OP_SQUARE: return a * a;
        case CB_OP_ADD:
        case CB_OP_SUB: return a + b;
        case CB_OP_MUL: return a * b;
        case CB_OP_MAXIMUM:
        case CB_OP_MINIMUM: return fmax(a, b);
        case CB_OP_WHERE: return fmax(b, c);
        case CB_OP_SIGN:
        case CB_OP_EQ:
        case CB_OP_NE:
        case CB_OP_LT:
        case CB_OP_LE:
        case CB_OP_GT:
        case CB_OP_GE:
        case CB_OP_LOGICAL_NOT:
        case CB_OP_LOGICAL_AND:
        case CB_OP_LOGICAL_OR:
        case CB_OP_UNPACK_BITS: return 1;
        case CB_OP_PACK_BITS:
        case CB_OP_PACK_INDEX: return 255;
        case CB_OP_UNPACK_INDEX: return (double)attrs->i[7];
        case CB_OP_PAD:
        case CB_OP_TRIL: return fmax(a, whole(attrs->f[0]));
        case CB_OP_SUM:
        case CB_OP_EMBEDDING_BWD: return a * numel_of(g, in[0]);
        case CB_OP_SCATTER_ADD: return a + c * numel_of(g, in[2]);
        case CB_OP_ARGMAX:
        case CB_OP_MAX_POOL2D: return fmax(a, numel_of(g, in[0]));
        case CB_OP_MATMUL:
        case CB_OP_CONV2D:
        case CB_OP_CONV2D_DGRAD:
        case CB_OP_CONV2D_WGRAD: return product_bound(g, op, a, b);
        default: return INFINITY;
    }
}

/* Fills in `most` [n_values]; the caller has set the inputs' entries. */
static inline void find_exact(const cb_graph *g, double *most) {
    for (size_t i = 0; i < g->ops.len; i++) {
        const cb_op *op = &g->ops.at[i];
        double at[3] = {0}, largest = 0;
        if (op->code == CB_OP_INPUT) continue;
        for (uint32_t k = 0; k < op->n_in; k++) {
            const double one = most[g->in_value.at[op->in_begin + k]];
            if (k < 3) at[k] = one;
            largest = fmax(largest, one);
        }
        double bound = op->code == CB_OP_CONCAT ? largest : op_bound(g, op, at[0], at[1], at[2]);
        if (largest == INFINITY) bound = INFINITY;
        for (uint32_t k = 0; k < op->n_out; k++) {
            const cb_value_id v = op->out_begin + k;
            /* Past this limit integers wrap or saturate, and floats round. */
            most[v] = bound <= exact_limit(g->values.at[v].dtype) ? bound : INFINITY;
        }
    }
}

#endif
