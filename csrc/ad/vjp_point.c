/* vjp_point.c: gradients of pointwise ops: dx = dy * f'(x), computed from y instead of x where that
 * is cheaper. */
#include "vjp.h"

#define TWO_OVER_SQRT_PI 1.1283791670955126

/* ---- one input ------------------------------------------------------------------------------- */

void cb_vjp_neg(cb_vjp *x) { x->din[0] = cb_emit1(&x->e, CB_OP_NEG, x->dout[0]); }

void cb_vjp_abs(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], cb_emit1(&x->e, CB_OP_SIGN, x->in[0]));
}

void cb_vjp_exp(cb_vjp *x) { x->din[0] = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], x->out[0]); }

void cb_vjp_log(cb_vjp *x) { x->din[0] = cb_emit2(&x->e, CB_OP_DIV, x->dout[0], x->in[0]); }

void cb_vjp_log1p(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_DIV, x->dout[0], cb_emit_shift(&x->e, x->in[0], 1.0));
}

void cb_vjp_sqrt(cb_vjp *x) { /* dy / (2 y) */
    x->din[0] = cb_emit2(&x->e, CB_OP_DIV, cb_emit_scale(&x->e, x->dout[0], 0.5), x->out[0]);
}

void cb_vjp_rsqrt(cb_vjp *x) { /* -dy y / (2 x) */
    cb_value_id gy = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], x->out[0]);
    x->din[0] = cb_emit2(&x->e, CB_OP_DIV, cb_emit_scale(&x->e, gy, -0.5), x->in[0]);
}

void cb_vjp_reciprocal(cb_vjp *x) { /* -dy y^2 */
    cb_value_id y2 = cb_emit1(&x->e, CB_OP_SQUARE, x->out[0]);
    x->din[0] = cb_emit1(&x->e, CB_OP_NEG, cb_emit2(&x->e, CB_OP_MUL, x->dout[0], y2));
}

void cb_vjp_square(cb_vjp *x) { /* 2 dy x */
    x->din[0] = cb_emit2(&x->e, CB_OP_MUL, cb_emit_scale(&x->e, x->dout[0], 2.0), x->in[0]);
}

void cb_vjp_sin(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], cb_emit1(&x->e, CB_OP_COS, x->in[0]));
}

void cb_vjp_cos(cb_vjp *x) {
    cb_value_id s = cb_emit1(&x->e, CB_OP_SIN, x->in[0]);
    x->din[0] = cb_emit1(&x->e, CB_OP_NEG, cb_emit2(&x->e, CB_OP_MUL, x->dout[0], s));
}

void cb_vjp_erf(cb_vjp *x) { /* dy 2/sqrt(pi) e^(-x^2) */
    cb_value_id x2 = cb_emit1(&x->e, CB_OP_SQUARE, x->in[0]);
    cb_value_id bell = cb_emit1(&x->e, CB_OP_EXP, cb_emit1(&x->e, CB_OP_NEG, x2));
    x->din[0] =
        cb_emit2(&x->e, CB_OP_MUL, cb_emit_scale(&x->e, x->dout[0], TWO_OVER_SQRT_PI), bell);
}

void cb_vjp_tanh(cb_vjp *x) { x->din[0] = cb_emit2(&x->e, CB_OP_TANH_BWD, x->dout[0], x->out[0]); }
void cb_vjp_sigmoid(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_SIGMOID_BWD, x->dout[0], x->out[0]);
}
void cb_vjp_relu(cb_vjp *x) { x->din[0] = cb_emit2(&x->e, CB_OP_RELU_BWD, x->dout[0], x->out[0]); }
void cb_vjp_gelu(cb_vjp *x) { x->din[0] = cb_emit2(&x->e, CB_OP_GELU_BWD, x->dout[0], x->in[0]); }
void cb_vjp_gelu_tanh(cb_vjp *x) {
    x->din[0] = cb_emit2(&x->e, CB_OP_GELU_TANH_BWD, x->dout[0], x->in[0]);
}
void cb_vjp_silu(cb_vjp *x) { x->din[0] = cb_emit2(&x->e, CB_OP_SILU_BWD, x->dout[0], x->in[0]); }

void cb_vjp_cast(cb_vjp *x) { x->din[0] = cb_emit_cast(&x->e, x->dout[0], cb_vjp_in(x, 0).dtype); }

void cb_vjp_contiguous(cb_vjp *x) { x->din[0] = x->dout[0]; }

/* Dropout is linear for a given mask, and the mask is a function of (seed, stream, step, element).
 * So the gradient is the same op. */
void cb_vjp_dropout(cb_vjp *x) {
    x->din[0] = cb_emit1_with(&x->e, CB_OP_DROPOUT, x->dout[0], &x->attrs);
}

void cb_vjp_tril(cb_vjp *x) {
    cb_attrs attrs = x->attrs;
    attrs.f[0] = 0.0; /* the filled-in constant has no gradient */
    x->din[0] = cb_emit1_with(&x->e, CB_OP_TRIL, x->dout[0], &attrs);
}

/* ---- two and three inputs -------------------------------------------------------------------- */

void cb_vjp_add(cb_vjp *x) { x->din[0] = x->din[1] = x->dout[0]; }

void cb_vjp_sub(cb_vjp *x) {
    x->din[0] = x->dout[0];
    if (x->needs[1]) x->din[1] = cb_emit1(&x->e, CB_OP_NEG, x->dout[0]);
}

void cb_vjp_mul(cb_vjp *x) {
    if (x->needs[0]) x->din[0] = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], x->in[1]);
    if (x->needs[1]) x->din[1] = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], x->in[0]);
}

/* y = a/b: da = dy/b, db = -dy (y/b). db is not computed as -da y, because that is inf * 0 where a
 * is 0 and dy/b overflows. */
void cb_vjp_div(cb_vjp *x) {
    if (x->needs[0]) x->din[0] = cb_emit2(&x->e, CB_OP_DIV, x->dout[0], x->in[1]);
    if (!x->needs[1]) return;
    cb_value_id slope = cb_emit2(&x->e, CB_OP_DIV, x->out[0], x->in[1]);
    x->din[1] = cb_emit1(&x->e, CB_OP_NEG, cb_emit2(&x->e, CB_OP_MUL, x->dout[0], slope));
}

/* If `id` is a view of a `full`, sets `out` to the value of its elements and returns true. */
static bool constant_of(const cb_graph *g, cb_value_id id, double *out) {
    const cb_storage *storage = &g->storages.at[g->values.at[id].storage];
    const cb_op_id root = g->values.at[storage->root].producer;
    if (g->ops.at[root].code != CB_OP_FULL) return false;
    *out = cb_op_attrs(g, root)->f[0];
    return true;
}

/* y = a^b: da = dy b a^(b-1), and 0 where b is 0, even at a = 0, where the formula gives 0 * inf.
 */
static cb_value_id pow_base(cb_vjp *x) {
    const cb_value_id a = x->in[0], b = x->in[1];
    double power;
    if (constant_of(x->e.graph, b, &power)) {
        if (power == 0.0) return CB_NONE;
        if (power == 1.0) return x->dout[0];
        cb_value_id gb = cb_emit_scale(&x->e, x->dout[0], power);
        if (power == 2.0) return cb_emit2(&x->e, CB_OP_MUL, gb, a);
        cb_value_id lower = cb_emit2(&x->e, CB_OP_POW, a, cb_emit_full_like(&x->e, b, power - 1.0));
        return cb_emit2(&x->e, CB_OP_MUL, gb, lower);
    }
    cb_value_id lower = cb_emit2(&x->e, CB_OP_POW, a, cb_emit_shift(&x->e, b, -1.0));
    cb_value_id slope =
        cb_emit2(&x->e, CB_OP_MUL, cb_emit2(&x->e, CB_OP_MUL, x->dout[0], b), lower);
    cb_value_id zero = cb_emit_full_like(&x->e, b, 0.0);
    return cb_emit_where(&x->e, cb_emit2(&x->e, CB_OP_EQ, b, zero), zero, slope);
}

/* db = dy y ln a, and 0 where a is 0 and b >= 0, where the formula gives 0 * -inf. */
static cb_value_id pow_exponent(cb_vjp *x) {
    const cb_value_id a = x->in[0], b = x->in[1];
    cb_value_id zero = cb_emit_full_like(&x->e, b, 0.0);
    cb_value_id flat = cb_emit2(&x->e, CB_OP_LOGICAL_AND, cb_emit2(&x->e, CB_OP_EQ, a, zero),
                                cb_emit2(&x->e, CB_OP_GE, b, zero));
    cb_value_id gy = cb_emit2(&x->e, CB_OP_MUL, x->dout[0], x->out[0]);
    cb_value_id slope = cb_emit2(&x->e, CB_OP_MUL, gy, cb_emit1(&x->e, CB_OP_LOG, a));
    return cb_emit_where(&x->e, flat, zero, slope);
}

void cb_vjp_pow(cb_vjp *x) {
    if (x->needs[0]) x->din[0] = pow_base(x);
    if (x->needs[1]) x->din[1] = pow_exponent(x);
}

/* The gradient goes to the input that was chosen. If both are equal, each gets half. If one is NaN,
 * both get the full gradient, as in PyTorch. `wins` is the comparison that is true if input 0 is
 * chosen. */
static void choose(cb_vjp *x, cb_opcode wins, cb_opcode loses) {
    const cb_value_id a = x->in[0], b = x->in[1], g = x->dout[0];
    cb_value_id zero = cb_emit_full_like(&x->e, g, 0.0);
    cb_value_id shared =
        cb_emit_where(&x->e, cb_emit2(&x->e, CB_OP_EQ, a, b), cb_emit_scale(&x->e, g, 0.5), g);
    if (x->needs[0]) x->din[0] = cb_emit_where(&x->e, cb_emit2(&x->e, loses, a, b), zero, shared);
    if (x->needs[1]) x->din[1] = cb_emit_where(&x->e, cb_emit2(&x->e, wins, a, b), zero, shared);
}

void cb_vjp_maximum(cb_vjp *x) { choose(x, CB_OP_GT, CB_OP_LT); }
void cb_vjp_minimum(cb_vjp *x) { choose(x, CB_OP_LT, CB_OP_GT); }

void cb_vjp_where(cb_vjp *x) {
    cb_value_id zero = cb_emit_full_like(&x->e, x->dout[0], 0.0);
    if (x->needs[1]) x->din[1] = cb_emit_where(&x->e, x->in[0], x->dout[0], zero);
    if (x->needs[2]) x->din[2] = cb_emit_where(&x->e, x->in[0], zero, x->dout[0]);
}
