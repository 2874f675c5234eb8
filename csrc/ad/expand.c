/* expand.c: rewrites ops as primitives when there is no fused gradient: for second derivatives (of
 * the *_bwd ops) and for norms whose statistics have gradients. Each function implements the
 * formula of its row in ops.def. Primitives that no gradient needs are pruned from the joint graph.
 *
 * Norms and the loss compute in the dtype of their statistics (f32 for f16 and bf16), as their
 * kernels do. */
#include "expand_attention.h"

#define INV_SQRT_2 0.70710678118654752
#define INV_SQRT_2PI 0.39894228040143268
#define SQRT_2_OVER_PI 0.79788456080286536
#define GELU_CUBIC 0.044715

/* ---- pointwise: the inputs are (g, x) or (g, y) ------------------------------------------------
 */

static cb_value_id one_minus(cb_emit *e, cb_value_id x) {
    return cb_emit_shift(e, cb_emit1(e, CB_OP_NEG, x), 1.0);
}

static cb_value_id tanh_bwd(cb_emit *e, cb_value_id g, cb_value_id y) {
    return cb_emit2(e, CB_OP_MUL, g, one_minus(e, cb_emit1(e, CB_OP_SQUARE, y)));
}

static cb_value_id sigmoid_bwd(cb_emit *e, cb_value_id g, cb_value_id y) {
    return cb_emit2(e, CB_OP_MUL, g, cb_emit2(e, CB_OP_MUL, y, one_minus(e, y)));
}

static cb_value_id relu_bwd(cb_emit *e, cb_value_id g, cb_value_id y) {
    cb_value_id zero = cb_emit_full_like(e, g, 0.0);
    return cb_emit_where(e, cb_emit2(e, CB_OP_LE, y, zero), zero, g);
}

/* Phi(x) + x phi(x), with Phi(x) = (1 + erf(x / sqrt 2)) / 2 and phi(x) = e^(-x^2 / 2) / sqrt(2 pi)
 */
static cb_value_id gelu_bwd(cb_emit *e, cb_value_id g, cb_value_id x) {
    cb_value_id tail =
        cb_emit_shift(e, cb_emit1(e, CB_OP_ERF, cb_emit_scale(e, x, INV_SQRT_2)), 1.0);
    cb_value_id bell = cb_emit1(e, CB_OP_EXP, cb_emit_scale(e, cb_emit1(e, CB_OP_SQUARE, x), -0.5));
    cb_value_id slope = cb_emit2(e, CB_OP_MUL, x, cb_emit_scale(e, bell, INV_SQRT_2PI));
    return cb_emit2(e, CB_OP_MUL, g, cb_emit2(e, CB_OP_ADD, cb_emit_scale(e, tail, 0.5), slope));
}

/* (1 + t) / 2 + x (1 - t^2) u'(x) / 2, with t = tanh u, u = sqrt(2/pi) (x + 0.044715 x^3) */
static cb_value_id gelu_tanh_bwd(cb_emit *e, cb_value_id g, cb_value_id x) {
    cb_value_id x2 = cb_emit1(e, CB_OP_SQUARE, x);
    cb_value_id bend = cb_emit_shift(e, cb_emit_scale(e, x2, GELU_CUBIC), 1.0);
    cb_value_id t =
        cb_emit1(e, CB_OP_TANH, cb_emit_scale(e, cb_emit2(e, CB_OP_MUL, x, bend), SQRT_2_OVER_PI));
    cb_value_id du = cb_emit_shift(e, cb_emit_scale(e, x2, 3.0 * GELU_CUBIC), 1.0);
    cb_value_id flat = one_minus(e, cb_emit1(e, CB_OP_SQUARE, t));
    cb_value_id slope = cb_emit2(e, CB_OP_MUL, cb_emit2(e, CB_OP_MUL, x, flat),
                                 cb_emit_scale(e, du, SQRT_2_OVER_PI));
    cb_value_id twice = cb_emit2(e, CB_OP_ADD, cb_emit_shift(e, t, 1.0), slope);
    return cb_emit2(e, CB_OP_MUL, g, cb_emit_scale(e, twice, 0.5));
}

/* s (1 + x (1 - s)), with s = sigmoid x */
static cb_value_id silu_bwd(cb_emit *e, cb_value_id g, cb_value_id x) {
    cb_value_id s = cb_emit1(e, CB_OP_SIGMOID, x);
    cb_value_id slope = cb_emit_shift(e, cb_emit2(e, CB_OP_MUL, x, one_minus(e, s)), 1.0);
    return cb_emit2(e, CB_OP_MUL, g, cb_emit2(e, CB_OP_MUL, s, slope));
}

/* ---- statistics: one number for several elements ----------------------------------------------
 */

/* The shapes of a statistic. `stat` has one number for all elements of `full` along the axes where
 * `kept` is 1. */
typedef struct spread {
    cb_shape full, kept, stat;
} spread;

static spread spread_rows(const cb_shape *full) { /* [..] for [.., c] */
    spread s = {*full, *full, *full};
    s.kept.dim[full->rank - 1] = 1;
    s.stat.dim[--s.stat.rank] = 0;
    return s;
}

static spread spread_axis(const cb_shape *full, int32_t axis) { /* [c] for [.., c, ..] */
    spread s = {.full = *full, .kept = *full, .stat = {.rank = 1, .dim = {full->dim[axis]}}};
    for (int32_t i = 0; i < full->rank; i++)
        if (i != axis) s.kept.dim[i] = 1;
    return s;
}

static cb_value_id repeat(cb_emit *e, const spread *s, cb_value_id x) {
    return cb_emit_expand(e, cb_emit_reshape(e, x, &s->kept), &s->full);
}

static cb_value_id total(cb_emit *e, const spread *s, cb_value_id x) {
    return cb_emit_reshape(e, cb_emit_sum_to(e, x, &s->kept), &s->stat);
}

static cb_value_id average(cb_emit *e, const spread *s, cb_value_id x) {
    const double count = (double)cb_numel(&s->full) / (double)cb_numel(&s->stat);
    return cb_emit_scale(e, total(e, s, x), 1.0 / count);
}

/* y * (g - sum(g * y)) */
static cb_value_id softmax_bwd(cb_emit *e, const cb_shape *shape, cb_value_id g, cb_value_id y) {
    const spread rows = spread_rows(shape);
    cb_value_id mixed = repeat(e, &rows, total(e, &rows, cb_emit2(e, CB_OP_MUL, g, y)));
    return cb_emit2(e, CB_OP_MUL, y, cb_emit2(e, CB_OP_SUB, g, mixed));
}

/* g - exp(y) * sum(g) */
static cb_value_id log_softmax_bwd(cb_emit *e, const cb_shape *shape, cb_value_id g,
                                   cb_value_id y) {
    const spread rows = spread_rows(shape);
    cb_value_id sums = repeat(e, &rows, total(e, &rows, g));
    return cb_emit2(e, CB_OP_SUB, g, cb_emit2(e, CB_OP_MUL, cb_emit1(e, CB_OP_EXP, y), sums));
}

/* ---- norms ------------------------------------------------------------------------------------
 */

/* The axes that a norm averages over and those of its parameters. For batch norm the statistics and
 * the parameters both have one number per channel. */
typedef struct norm {
    spread stats, params;
    cb_dtype dtype, wide; /* dtype of x, dtype of the statistics */
} norm;

static norm norm_of(const cb_vjp *x, uint32_t input, cb_dtype wide) {
    const cb_value v = cb_vjp_in(x, input);
    const bool batch = x->code == CB_OP_BATCH_NORM || x->code == CB_OP_BATCH_NORM_BWD ||
                       x->code == CB_OP_BATCH_NORM_STATS;
    return (norm){.stats = batch ? spread_axis(&v.shape, 1) : spread_rows(&v.shape),
                  .params = spread_axis(&v.shape, batch ? 1 : v.shape.rank - 1),
                  .dtype = v.dtype,
                  .wide = wide};
}

typedef struct normed {
    cb_value_id x, mean, var, rstd; /* x - mean, except for rms norm, which has no mean */
} normed;

static normed statistics(cb_vjp *x, const norm *n) {
    cb_emit *e = &x->e;
    normed s = {.x = cb_emit_cast(e, x->in[0], n->wide), .mean = CB_NONE};
    if (x->code != CB_OP_RMS_NORM) {
        s.mean = average(e, &n->stats, s.x);
        s.x = cb_emit2(e, CB_OP_SUB, s.x, repeat(e, &n->stats, s.mean));
    }
    s.var = average(e, &n->stats, cb_emit1(e, CB_OP_SQUARE, s.x));
    s.rstd = cb_emit1(e, CB_OP_RSQRT, cb_emit_shift(e, s.var, x->attrs.f[0]));
    return s;
}

/* Outputs are (y, mean, rstd), for batch norm (y, mean, var, rstd), for rms norm (y, rstd). Rms
 * norm has neither a mean nor a bias. */
static void norm_forward(cb_vjp *x, cb_value_id *outs) {
    cb_emit *e = &x->e;
    const norm n = norm_of(x, 0, cb_vjp_out(x, 1).dtype);
    const bool centred = x->code != CB_OP_RMS_NORM;
    const normed s = statistics(x, &n);
    cb_value_id y = cb_emit2(e, CB_OP_MUL, s.x, repeat(e, &n.stats, s.rstd));
    y = cb_emit2(e, CB_OP_MUL, y, repeat(e, &n.params, cb_emit_cast(e, x->in[1], n.wide)));
    if (centred)
        y = cb_emit2(e, CB_OP_ADD, y, repeat(e, &n.params, cb_emit_cast(e, x->in[2], n.wide)));
    outs[0] = cb_emit_cast(e, y, n.dtype);
    outs[x->n_out - 1] = s.rstd;
    if (centred) outs[1] = s.mean;
    if (x->code == CB_OP_BATCH_NORM) outs[2] = s.var;
}

static void batch_norm_stats(cb_vjp *x, cb_value_id *outs) {
    const norm n = norm_of(x, 0, cb_vjp_out(x, 0).dtype);
    const normed s = statistics(x, &n);
    outs[0] = s.mean;
    outs[1] = s.var;
    outs[2] = s.rstd;
}

/* The inputs x, mean, rstd, weight and bias have the same shape. */
static cb_value_id batch_norm_apply(cb_vjp *x) {
    cb_emit *e = &x->e;
    const cb_dtype dtype = cb_vjp_in(x, 0).dtype, wide = cb_vjp_in(x, 1).dtype;
    cb_value_id y = cb_emit2(e, CB_OP_SUB, cb_emit_cast(e, x->in[0], wide), x->in[1]);
    y = cb_emit2(e, CB_OP_MUL, y, x->in[2]);
    y = cb_emit2(e, CB_OP_MUL, y, cb_emit_cast(e, x->in[3], wide));
    y = cb_emit2(e, CB_OP_ADD, y, cb_emit_cast(e, x->in[4], wide));
    return cb_emit_cast(e, y, dtype);
}

/* With h = (x - mean) rstd and k = g weight:  dx = rstd (k - average(k) - h average(k h)),
 * dweight = total(g h), dbias = total(g). Rms norm has no mean and no bias, hence no average(k) and
 * no dbias. */
static void norm_backward(cb_vjp *x, cb_value_id *outs) {
    cb_emit *e = &x->e;
    const bool centred = x->code != CB_OP_RMS_NORM_BWD;
    const cb_value_id rstd = x->in[x->n_in - 1];
    const norm n = norm_of(x, 1, cb_vjp_in(x, x->n_in - 1).dtype);
    cb_value_id g = cb_emit_cast(e, x->in[0], n.wide), h = cb_emit_cast(e, x->in[1], n.wide);
    if (centred) h = cb_emit2(e, CB_OP_SUB, h, repeat(e, &n.stats, x->in[3]));
    h = cb_emit2(e, CB_OP_MUL, h, repeat(e, &n.stats, rstd));
    cb_value_id k =
        cb_emit2(e, CB_OP_MUL, g, repeat(e, &n.params, cb_emit_cast(e, x->in[2], n.wide)));
    cb_value_id along = average(e, &n.stats, cb_emit2(e, CB_OP_MUL, k, h));
    cb_value_id dx =
        cb_emit2(e, CB_OP_SUB, k, cb_emit2(e, CB_OP_MUL, h, repeat(e, &n.stats, along)));
    if (centred) dx = cb_emit2(e, CB_OP_SUB, dx, repeat(e, &n.stats, average(e, &n.stats, k)));
    outs[0] = cb_emit_cast(e, cb_emit2(e, CB_OP_MUL, dx, repeat(e, &n.stats, rstd)), n.dtype);
    outs[1] = cb_emit_cast(e, total(e, &n.params, cb_emit2(e, CB_OP_MUL, g, h)), n.dtype);
    if (centred) outs[2] = cb_emit_cast(e, total(e, &n.params, g), n.dtype);
}

/* g * (softmax(logits) - onehot(label)), where g is zero in ignored rows. The inputs are g, logits
 * and label. */
static cb_value_id cross_entropy_bwd(cb_vjp *x) {
    cb_emit *e = &x->e;
    const cb_value logits = cb_vjp_in(x, 1), label = cb_vjp_in(x, 2), g = cb_vjp_in(x, 0);
    const spread rows = spread_rows(&logits.shape);
    const cb_attrs column = {
        .i = {logits.shape.rank - 1}, .dims = logits.shape, .dtype = label.dtype};
    cb_value_id columns = CB_NONE;
    cb_emit_op(e, CB_OP_IOTA, 0, NULL, &column, &columns);
    cb_value_id hit = cb_emit2(e, CB_OP_EQ, columns, repeat(e, &rows, x->in[2]));
    cb_value_id p = cb_emit1(e, CB_OP_SOFTMAX, cb_emit_cast(e, x->in[1], g.dtype));
    p = cb_emit2(e, CB_OP_SUB, p, cb_emit_cast(e, hit, g.dtype));
    cb_value_id ignored =
        cb_emit2(e, CB_OP_EQ, x->in[2], cb_emit_full_like(e, x->in[2], (double)x->attrs.i[0]));
    cb_value_id kept = cb_emit_where(e, ignored, cb_emit_full_like(e, x->in[0], 0.0), x->in[0]);
    return cb_emit_cast(e, cb_emit2(e, CB_OP_MUL, repeat(e, &rows, kept), p), logits.dtype);
}

void cb_expand_op(cb_vjp *x, cb_value_id *outs) {
    cb_emit *e = &x->e;
    const cb_value_id *in = x->in;
    const cb_shape shape = cb_vjp_in(x, 0).shape;
    for (uint32_t i = 0; i < x->n_out; i++) outs[i] = CB_NONE;
    switch (x->code) {
        case CB_OP_TANH_BWD: outs[0] = tanh_bwd(e, in[0], in[1]); break;
        case CB_OP_SIGMOID_BWD: outs[0] = sigmoid_bwd(e, in[0], in[1]); break;
        case CB_OP_RELU_BWD: outs[0] = relu_bwd(e, in[0], in[1]); break;
        case CB_OP_GELU_BWD: outs[0] = gelu_bwd(e, in[0], in[1]); break;
        case CB_OP_GELU_TANH_BWD: outs[0] = gelu_tanh_bwd(e, in[0], in[1]); break;
        case CB_OP_SILU_BWD: outs[0] = silu_bwd(e, in[0], in[1]); break;
        case CB_OP_SOFTMAX_BWD: outs[0] = softmax_bwd(e, &shape, in[0], in[1]); break;
        case CB_OP_LOG_SOFTMAX_BWD: outs[0] = log_softmax_bwd(e, &shape, in[0], in[1]); break;
        case CB_OP_CROSS_ENTROPY_BWD: outs[0] = cross_entropy_bwd(x); break;
        case CB_OP_ATTENTION:
        case CB_OP_ATTENTION_BWD:
            cb_expand_attention(e, x->code, &x->attrs, x->n_in, in, outs);
            break;
        case CB_OP_LAYER_NORM:
        case CB_OP_RMS_NORM:
        case CB_OP_BATCH_NORM: norm_forward(x, outs); break;
        case CB_OP_BATCH_NORM_STATS: batch_norm_stats(x, outs); break;
        case CB_OP_BATCH_NORM_APPLY: outs[0] = batch_norm_apply(x); break;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD:
        case CB_OP_BATCH_NORM_BWD: norm_backward(x, outs); break;
        default:
            e->status = cb_fail(e->err, CB_UNSUPPORTED, "%s: its gradient is not supported",
                                cb_op_def_of(x->code)->name);
    }
}
