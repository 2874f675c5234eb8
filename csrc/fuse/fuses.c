#include "fuses.h"

#include "reads.h"

/* `index` is the operand with integer indices or packed bits; -1: none. */
static bool are_known(bool with_bool, const cb_dtype *dtype, uint32_t n, int index) {
    for (uint32_t k = 0; k < n; k++) {
        if ((int)k == index) continue;
        if (!cb_dtype_is_float(dtype[k]) && !(with_bool && dtype[k] == CB_BOOL)) return false;
    }
    return true;
}

/* True for ops that fuse as arrays, but not as single numbers. */
static bool is_only_full(cb_opcode code) {
    return code == CB_OP_TRIL || code == CB_OP_DROPOUT || code == CB_OP_GELU ||
           code == CB_OP_GELU_BWD || code == CB_OP_UNPACK_BITS;
}

bool cb_kernels_fuse(cb_opcode code, cb_part part, const cb_domain *domain, const cb_dtype *in,
                     uint32_t n_in, const cb_dtype *out, uint32_t n_out) {
    (void)domain;
    const bool is_small = part == CB_PART_ROW_MAP || part == CB_PART_ONE;
    const uint32_t flags = cb_op_def_of(code)->flags;
    const bool with_bool = flags & CB_OPF_BOOLS;
    if (part == CB_PART_NONE) return false;
    const int input = code == CB_OP_UNPACK_BITS ? 0 : cb_op_index_input(code);
    if (!are_known(with_bool, in, n_in, input)) return false;
    if (!are_known(with_bool, out, n_out, part == CB_PART_BITS ? 0 : -1)) return false;
    if (is_small && is_only_full(code)) return false;
    /* domain.c lists the ops with other parts. */
    const bool is_pointwise = part == CB_PART_MAP || is_small;
    return !is_pointwise || flags & CB_OPF_FUSES;
}

bool cb_part_fuses(cb_fuses_fn fuses, cb_opcode code, cb_part part, const cb_domain *domain,
                   const cb_dtype *dtype, uint32_t n_in, uint32_t n_out) {
    cb_parts own = {0};
    /* Callers list the dtypes of at most CB_PART_OPERANDS operands. */
    if (part == CB_PART_NONE || n_in + n_out > CB_PART_OPERANDS) return false;
    for (uint32_t k = 0; k < n_in + n_out; k++) cb_parts_add_dtype(&own, dtype[k]);
    return cb_parts_agree(&own) && fuses(code, part, domain, dtype, n_in, dtype + n_in, n_out);
}
