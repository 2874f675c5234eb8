/* vjp_table.c: the table of rules by opcode, and the rules without a formula. */
#include "vjp.h"

static const cb_vjp_fn rules[CB_OP_COUNT] = {
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) \
    [CB_OP_##id] = cb_vjp_##vjp,
#include "../ir/ops.def"
#undef CB_OP
};

cb_vjp_fn cb_vjp_of(cb_opcode code) { return rules[code]; }

/* No gradient passes through the op. */
void cb_vjp_zero(cb_vjp *x) { (void)x; }

/* The walk applies the rule of all outputs of the function together (backward.c). In a joint graph
 * it has been applied, and the op is a view. */
void cb_vjp_custom_vjp(cb_vjp *x) {
    if (x->n_in == 1) x->din[0] = x->dout[0];
}

/* The op is differentiated through its primitives (expand.c). */
void cb_vjp_expand(cb_vjp *x) { x->expand = true; }
