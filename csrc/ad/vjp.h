/* vjp.h: gradient rules, one for each family of ops (the vjp column of ir/ops.def).
 *
 * A rule reads the gradients of the op's outputs and sets those of its inputs, with the input's
 * shape and dtype. It need not set gradients that are not needed. An input whose gradient stays
 * CB_NONE has a zero gradient. Formulas are written with emit.h. */
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
    const cb_value_id *dout; /* [n_out] CB_NONE: no gradient; at least one is not CB_NONE */
    const bool *needs;       /* [n_in] true if this input's gradient is needed */
    cb_value_id *din;        /* [n_in] the result; initially CB_NONE */
    bool expand;             /* set by a rule: differentiate cb_expand_op's primitives instead */
} cb_vjp;

typedef void (*cb_vjp_fn)(cb_vjp *x);

/* Declares cb_vjp_add, cb_vjp_mul, ... (repeatedly if several rows share a rule, which C allows).
 */
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) \
    void cb_vjp_##vjp(cb_vjp *x);
#include "../ir/ops.def"
#undef CB_OP

cb_vjp_fn cb_vjp_of(cb_opcode code); /* cb_vjp_zero: no gradient passes through this op */

/* Emits the op of `x` as primitives (ops whose rule is not `expand`). outs[n_out] receives values
 * equal to its outputs. Sets x->e.status to CB_UNSUPPORTED if the op has no expansion. */
void cb_expand_op(cb_vjp *x, cb_value_id *outs);

/* Return a copy of one of the op's values, because a growing graph moves its arrays. */
static inline cb_value cb_vjp_in(const cb_vjp *x, uint32_t i) {
    return x->e.graph->values.at[x->in[i]];
}
static inline cb_value cb_vjp_out(const cb_vjp *x, uint32_t i) {
    return x->e.graph->values.at[x->out[i]];
}

#endif
