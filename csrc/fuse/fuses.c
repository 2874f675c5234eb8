#include "fuses.h"

/* Named one by one: an op that is new in ops.def runs by itself until it is added here. */
static bool is_known_op(cb_opcode code) {
    switch (code) {
        case CB_OP_FULL:
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
        case CB_OP_CONTIGUOUS:
        case CB_OP_DROPOUT:
        case CB_OP_TANH_BWD:
        case CB_OP_SIGMOID_BWD:
        case CB_OP_RELU_BWD:
        case CB_OP_GELU_BWD:
        case CB_OP_GELU_TANH_BWD:
        case CB_OP_SILU_BWD:
        case CB_OP_ADD:
        case CB_OP_SUB:
        case CB_OP_MUL:
        case CB_OP_DIV:
        case CB_OP_MAXIMUM:
        case CB_OP_MINIMUM:
        case CB_OP_BATCH_NORM_APPLY:
        case CB_OP_TRIL: return true;
        default: return false;
    }
}

/* Bool goes in or out of these. */
static bool takes_bool(cb_opcode code) {
    switch (code) {
        case CB_OP_LOGICAL_NOT:
        case CB_OP_LOGICAL_AND:
        case CB_OP_LOGICAL_OR:
        case CB_OP_EQ:
        case CB_OP_NE:
        case CB_OP_LT:
        case CB_OP_LE:
        case CB_OP_GT:
        case CB_OP_GE:
        case CB_OP_WHERE:
        case CB_OP_CAST: return true;
        default: return false;
    }
}

/* `index`: which of them are indices, of integers; -1: none. */
static bool are_known(bool with_bool, const cb_dtype *dtype, uint32_t n, int index) {
    for (uint32_t k = 0; k < n; k++) {
        if ((int)k == index) continue;
        if (!cb_dtype_is_float(dtype[k]) && !(with_bool && dtype[k] == CB_BOOL)) return false;
    }
    return true;
}

/* Not on single numbers. */
static bool is_only_full(cb_opcode code) {
    return code == CB_OP_TRIL || code == CB_OP_DROPOUT || code == CB_OP_GELU ||
           code == CB_OP_GELU_BWD;
}

bool cb_kernels_fuse(cb_opcode code, cb_part part, const cb_dtype *in, uint32_t n_in,
                     const cb_dtype *out, uint32_t n_out) {
    const bool is_small = part == CB_PART_ROW_MAP || part == CB_PART_ONE;
    const bool with_bool = takes_bool(code);
    if (part == CB_PART_NONE) return false;
    if (!are_known(with_bool, in, n_in, cb_op_index_input(code))) return false;
    if (!are_known(with_bool, out, n_out, -1)) return false;
    if (is_small && is_only_full(code)) return false;
    /* Which ops have the other parts, domain.c names one by one. */
    const bool is_pointwise = part == CB_PART_MAP || is_small;
    return !is_pointwise || is_known_op(code) || takes_bool(code);
}
