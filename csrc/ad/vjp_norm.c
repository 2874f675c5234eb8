/* vjp_norm.c: gradients of softmax, norms and the loss. Each is one fused op that uses the
 * statistics of the forward.
 *
 * The fused ops take only the gradient of y. If a statistic (mean, rstd, ...) has a gradient,
 * because the program uses it, the op is differentiated through its primitives instead, which is
 * slower but exact. */
#include "vjp.h"

void cb_vjp_softmax(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_SOFTMAX_BWD, x->dout[0], x->out[0]);
}
void cb_vjp_log_softmax(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_LOG_SOFTMAX_BWD, x->dout[0], x->out[0]);
}

static bool statistics_have_gradients(const cb_vjp *x) {
    for (uint32_t i = 1; i < x->n_out; i++)
        if (x->dout[i] != CB_NONE) return true;
    return false;
}

/* Emits code(g, x, weight, statistics...), which gives a gradient for each input of the norm. */
static void norm(cb_vjp *x, cb_opcode code, uint32_t n_stats, const cb_value_id *stats) {
    if (statistics_have_gradients(x)) {
        x->expand = true;
        return;
    }
    cb_value_id ins[5] = {x->dout[0], x->in[0], x->in[1]};
    for (uint32_t i = 0; i < n_stats; i++) ins[3 + i] = stats[i];
    cb_emit_op(&x->e, code, 3 + n_stats, ins, NULL, x->din);
}

void cb_vjp_layer_norm(cb_vjp *x) { norm(x, CB_OP_LAYER_NORM_BWD, 2, x->out + 1); }
void cb_vjp_rms_norm(cb_vjp *x) { norm(x, CB_OP_RMS_NORM_BWD, 1, x->out + 1); }

void cb_vjp_batch_norm(cb_vjp *x) {
    const cb_value_id stats[] = {x->out[1], x->out[3]}; /* mean, rstd; not var */
    norm(x, CB_OP_BATCH_NORM_BWD, 2, stats);
}

/* The gradient through nll is g (softmax - onehot), a fused op. The gradient through logsumexp,
 * whose derivative is softmax, is g exp(logits - logsumexp). */
void cb_vjp_cross_entropy(cb_vjp *x) {
    const cb_value logits = cb_vjp_in(x, 0);
    if (x->dout[0] != CB_NONE) {
        const cb_value_id ins[] = {x->dout[0], x->in[0], x->in[1]};
        cb_emit_op(&x->e, CB_OP_CROSS_ENTROPY_BWD, 3, ins, &x->attrs, x->din);
    }
    if (x->dout[1] == CB_NONE) return;
    cb_value_id wide = cb_emit_cast(&x->e, x->in[0], cb_vjp_out(x, 1).dtype);
    cb_value_id below =
        cb_emit2(&x->e, CB_OP_SUB, wide, cb_emit_spread_last(&x->e, x->out[1], &logits.shape));
    cb_value_id g =
        cb_emit2(&x->e, CB_OP_MUL, cb_emit_spread_last(&x->e, x->dout[1], &logits.shape),
                 cb_emit1(&x->e, CB_OP_EXP, below));
    g = cb_emit_cast(&x->e, g, logits.dtype);
    x->din[0] = x->dout[0] == CB_NONE ? g : cb_emit2(&x->e, CB_OP_ADD, x->din[0], g);
}
