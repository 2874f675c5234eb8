/* ref_op.c: maps opcodes to the functions of their families. */
#include "ref_op.h"

#include "ref_ops.h"

/* Families that cannot fail. */
typedef void (*family_fn)(const cb_ref_call *c);

static family_fn family_of(cb_opcode code) {
    switch (code) {
        case CB_OP_FULL:
        case CB_OP_IOTA:
        case CB_OP_UNIFORM: return cb_ref_source;
        case CB_OP_NEG:
        case CB_OP_ABS:
        case CB_OP_SIGN:
        case CB_OP_FLOOR:
        case CB_OP_EXP:
        case CB_OP_LOG:
        case CB_OP_LOG1P:
        case CB_OP_SQRT:
        case CB_OP_RSQRT:
        case CB_OP_RECIPROCAL:
        case CB_OP_SQUARE:
        case CB_OP_SIN:
        case CB_OP_COS:
        case CB_OP_TANH:
        case CB_OP_SIGMOID:
        case CB_OP_ERF:
        case CB_OP_RELU:
        case CB_OP_GELU:
        case CB_OP_GELU_TANH:
        case CB_OP_SILU:
        case CB_OP_LOGICAL_NOT: return cb_ref_unary;
        case CB_OP_CAST:
        case CB_OP_CONTIGUOUS: return cb_ref_copy;
        case CB_OP_DROPOUT: return cb_ref_dropout;
        case CB_OP_TANH_BWD:
        case CB_OP_SIGMOID_BWD:
        case CB_OP_RELU_BWD:
        case CB_OP_GELU_BWD:
        case CB_OP_GELU_TANH_BWD:
        case CB_OP_SILU_BWD: return cb_ref_point_bwd;
        case CB_OP_ADD:
        case CB_OP_SUB:
        case CB_OP_MUL:
        case CB_OP_DIV:
        case CB_OP_POW:
        case CB_OP_MAXIMUM:
        case CB_OP_MINIMUM: return cb_ref_binary;
        case CB_OP_EQ:
        case CB_OP_NE:
        case CB_OP_LT:
        case CB_OP_LE:
        case CB_OP_GT:
        case CB_OP_GE: return cb_ref_compare;
        case CB_OP_LOGICAL_AND:
        case CB_OP_LOGICAL_OR: return cb_ref_logical;
        case CB_OP_WHERE: return cb_ref_where;
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN: return cb_ref_reduce;
        case CB_OP_ARGMAX: return cb_ref_argmax;
        case CB_OP_CONCAT: return cb_ref_concat;
        case CB_OP_PAD: return cb_ref_pad;
        case CB_OP_TRIL: return cb_ref_tril;
        case CB_OP_PACK_BITS: return cb_ref_pack_bits;
        case CB_OP_UNPACK_BITS: return cb_ref_unpack_bits;
        case CB_OP_PACK_INDEX: return cb_ref_pack_index;
        case CB_OP_UNPACK_INDEX: return cb_ref_unpack_index;
        case CB_OP_MATMUL:
        case CB_OP_MATMUL_ADD: return cb_ref_matmul;
        case CB_OP_CONV2D:
        case CB_OP_CONV2D_DGRAD:
        case CB_OP_CONV2D_WGRAD: return cb_ref_conv2d;
        case CB_OP_MAX_POOL2D: return cb_ref_max_pool2d;
        case CB_OP_AVG_POOL2D: return cb_ref_avg_pool2d;
        case CB_OP_AVG_POOL2D_BWD: return cb_ref_avg_pool2d_bwd;
        case CB_OP_ATTENTION: return cb_ref_attention;
        case CB_OP_ATTENTION_BWD: return cb_ref_attention_bwd;
        case CB_OP_SOFTMAX:
        case CB_OP_LOG_SOFTMAX: return cb_ref_softmax;
        case CB_OP_SOFTMAX_BWD:
        case CB_OP_LOG_SOFTMAX_BWD: return cb_ref_softmax_bwd;
        case CB_OP_LAYER_NORM:
        case CB_OP_RMS_NORM:
        case CB_OP_BATCH_NORM: return cb_ref_norm;
        case CB_OP_BATCH_NORM_STATS: return cb_ref_batch_stats;
        case CB_OP_BATCH_NORM_APPLY: return cb_ref_batch_apply;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD:
        case CB_OP_BATCH_NORM_BWD: return cb_ref_norm_bwd;
        default: return NULL;
    }
}

cb_status cb_ref_op(cb_opcode code, const cb_attrs *attrs, uint32_t n_in, const cb_tensor *in,
                    uint32_t n_out, const cb_tensor *out, const cb_philox *random, cb_error *err) {
    cb_ref_call c = {.code = code,
                     .attrs = attrs,
                     .n_in = n_in,
                     .n_out = n_out,
                     .in = in,
                     .out = out,
                     .random = *random};
    if (cb_op_def_of(code)->flags & CB_OPF_RANDOM) c.random.stream = (uint32_t)attrs->i[0];
    switch (code) {
        case CB_OP_GATHER: return cb_ref_gather(&c, err);
        case CB_OP_SCATTER_ADD: return cb_ref_scatter_add(&c, err);
        case CB_OP_EMBEDDING: return cb_ref_embedding(&c, err);
        case CB_OP_EMBEDDING_BWD: return cb_ref_embedding_bwd(&c, err);
        case CB_OP_CROSS_ENTROPY: return cb_ref_cross_entropy(&c, err);
        case CB_OP_CROSS_ENTROPY_BWD: return cb_ref_cross_entropy_bwd(&c, err);
        default: break;
    }
    const family_fn run = family_of(code);
    if (!run)
        return cb_fail(err, CB_INTERNAL, "%s: has nothing to compute", cb_op_def_of(code)->name);
    run(&c);
    return CB_OK;
}
