/* vjp.h: one gradient rule a family of ops (the vjp column of ir/ops.def).
 *
 * A rule reads the gradients of the op's outputs and leaves those of its inputs: of the input's
 * shape and dtype, only where needed. What it does not set stays CB_NONE, which means zero.
 * Formulas are written with emit.h. */
#ifndef CB_AD_VJP_H
#define CB_AD_VJP_H

#include "emit.h"

typedef struct cb_vjp {
    cb_emit e;
    cb_opcode code;
    cb_attrs attrs;
    uint32_t n_in, n_out;
    const cb_value_id *in;   /* [n_in] */
    const cb_value_id *out;  /* [n_out] */
    const cb_value_id *dout; /* [n_out] CB_NONE: no gradient; at least one is there */
    const bool *needs;       /* [n_in] does anybody want this input's gradient? */
    cb_value_id *din;        /* [n_in] result, CB_NONE before */
    bool expand;             /* set by a rule: differentiate cb_expand_op's primitives instead */
} cb_vjp;

typedef void (*cb_vjp_fn)(cb_vjp *x);

/* Declares cb_vjp_add, cb_vjp_mul, ...: repeated where rows share a rule, which C allows. */
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) \
    void cb_vjp_##vjp(cb_vjp *x);
#include "../ir/ops.def"
#undef CB_OP

cb_vjp_fn cb_vjp_of(cb_opcode code); /* cb_vjp_zero: no gradient passes this op */

/* The op of `x` as primitives (ops whose rule is not `expand`); `outs` [n_out] get values equal to
 * its outputs. Sets x->e.status to CB_UNSUPPORTED for an op that has no expansion. */
void cb_expand_op(cb_vjp *x, cb_value_id *outs);

/* A copy of the description of one of the op's values; copied, since a growing graph moves its
 * arrays. */
static inline cb_value cb_vjp_in(const cb_vjp *x, uint32_t i) {
    return x->e.graph->values.at[x->in[i]];
}
static inline cb_value cb_vjp_out(const cb_vjp *x, uint32_t i) {
    return x->e.graph->values.at[x->out[i]];
}

#endif
