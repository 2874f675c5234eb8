/* expand_attention.c: attention as primitives, for second derivatives, for masks that need a
 * gradient, and for backends without a kernel.
 *
 * The forward computes in the dtype of its inputs. The backward computes in the dtype of the
 * log-sum-exps, and takes these and the result as inputs, as its kernels do. */
#include <math.h>

#include "expand_attention.h"

typedef struct attention {
    cb_emit *e;
    const cb_attrs *attrs;
    cb_value_id q, k, v, mask; /* mask: CB_NONE: none */
    cb_dtype wide;             /* dtype of statistics */
    cb_shape scores, kept;     /* [..,h,l,s] and [..,h,l,1] */
} attention;

static cb_value value_of(const cb_emit *e, cb_value_id id) {
    return id == CB_NONE ? (cb_value){0} : e->graph->values.at[id];
}

/* Returns x[..,h/n,s,e] with each head repeated n times: [..,h,s,e]. */
static cb_value_id repeat_heads(cb_emit *e, cb_value_id x, int64_t heads) {
    cb_shape shape = value_of(e, x).shape, apart = shape;
    const int32_t head = shape.rank - 3;
    if (shape.rank < 3 || shape.dim[head] == heads) return x;
    for (int32_t i = apart.rank++; i > head + 1; i--) apart.dim[i] = apart.dim[i - 1];
    apart.dim[head + 1] = 1;
    x = cb_emit_reshape(e, x, &apart);
    apart.dim[head + 1] = heads / shape.dim[head];
    shape.dim[head] = heads;
    return cb_emit_reshape(e, cb_emit_expand(e, x, &apart), &shape);
}

/* The gradient of repeat_heads: sums over the heads that share one of `shape`. */
static cb_value_id sum_heads(cb_emit *e, cb_value_id x, const cb_shape *shape) {
    cb_shape apart = value_of(e, x).shape, kept;
    const int32_t head = shape->rank - 3;
    if (e->status != CB_OK || shape->rank < 3 || apart.dim[head] == shape->dim[head]) return x;
    const int64_t n = apart.dim[head] / shape->dim[head];
    for (int32_t i = apart.rank++; i > head + 1; i--) apart.dim[i] = apart.dim[i - 1];
    apart.dim[head] = shape->dim[head];
    apart.dim[head + 1] = n;
    kept = apart;
    kept.dim[head + 1] = 1;
    x = cb_emit_sum_to(e, cb_emit_reshape(e, x, &apart), &kept);
    return cb_emit_reshape(e, x, shape);
}

/* Inputs q, k and v are ins[0] to ins[2]. */
static attention attention_of(cb_emit *e, const cb_attrs *attrs, const cb_value_id *ins,
                              cb_value_id mask) {
    const cb_value q = value_of(e, ins[0]), k = value_of(e, ins[1]);
    const int32_t r = q.shape.rank;
    const int64_t heads = r < 3 ? 1 : q.shape.dim[r - 3];
    attention a = {.e = e,
                   .attrs = attrs,
                   .q = ins[0],
                   .k = repeat_heads(e, ins[1], heads),
                   .v = repeat_heads(e, ins[2], heads),
                   .mask = mask,
                   .wide = q.dtype == CB_F64 ? CB_F64 : CB_F32,
                   .scores = q.shape,
                   .kept = q.shape};
    a.scores.dim[r - 1] = k.shape.dim[k.shape.rank - 2];
    a.kept.dim[r - 1] = 1;
    return a;
}

/* scale * q k^T, without the mask; -inf above the diagonal with `causal`. */
static cb_value_id raw_scores(const attention *a, cb_value_id q, cb_value_id k) {
    cb_emit *e = a->e;
    cb_value_id x =
        cb_emit2(e, CB_OP_MATMUL, cb_emit_scale(e, q, a->attrs->f[0]), cb_emit_swap_last(e, k));
    if (!a->attrs->i[1]) return x;
    return cb_emit1_with(e, CB_OP_TRIL, x, &(cb_attrs){.f = {-INFINITY}});
}

static cb_value_id dropped(const attention *a, cb_value_id x) {
    const cb_attrs attrs = {.f = {a->attrs->f[1]}, .i = {a->attrs->i[0]}};
    return a->attrs->f[1] > 0 ? cb_emit1_with(a->e, CB_OP_DROPOUT, x, &attrs) : x;
}

/* Returns the largest element of each row, [..,h,l,1]. */
static cb_value_id largest(cb_emit *e, cb_value_id x) {
    const cb_value v = value_of(e, x);
    return cb_emit1_with(e, CB_OP_AMAX, x,
                         &(cb_attrs){.i = {1}, .dims = {.rank = 1, .dim = {v.shape.rank - 1}}});
}

/* Scores with the mask. `open` [..,h,l,1] is true for rows that attend to at least one key; scores
 * of other rows are finite, so that softmax has no NaN. CB_NONE: all rows are open. */
static cb_value_id open_scores(const attention *a, cb_value_id scores, cb_value_id *open) {
    cb_emit *e = a->e;
    const cb_dtype dtype = value_of(e, scores).dtype;
    *open = CB_NONE;
    if (a->mask == CB_NONE || a->scores.dim[a->scores.rank - 1] == 0) return scores;
    const cb_value_id zero = cb_emit_full(e, &a->kept, dtype, 0);
    const cb_value_id low = cb_emit_full(e, &a->kept, dtype, -INFINITY);
    const cb_value_id most = largest(e, cb_emit_cast(e, a->mask, dtype));
    if (value_of(e, a->mask).dtype == CB_BOOL) {
        *open = cb_emit2(e, CB_OP_GT, most, zero);
        return cb_emit_where(e, a->mask, scores, cb_emit_where(e, *open, low, zero));
    }
    *open = cb_emit2(e, CB_OP_NE, most, low);
    return cb_emit_where(e, *open, cb_emit2(e, CB_OP_ADD, scores, a->mask), zero);
}

/* Returns log(sum(exp(scores))) of each row, [..,h,l]; -inf where the row is closed or there are no
 * keys. */
static cb_value_id log_sum_exp(const attention *a, cb_value_id scores, cb_value_id open) {
    cb_emit *e = a->e;
    cb_shape rows = a->kept;
    rows.dim[--rows.rank] = 0;
    const cb_value_id low = cb_emit_full(e, &a->kept, a->wide, -INFINITY);
    if (a->scores.dim[a->scores.rank - 1] == 0) return cb_emit_full(e, &rows, a->wide, -INFINITY);
    scores = cb_emit_cast(e, scores, a->wide);
    const cb_value_id most = largest(e, scores);
    cb_value_id sum = cb_emit1(e, CB_OP_EXP, cb_emit2(e, CB_OP_SUB, scores, most));
    sum = cb_emit_sum_to(e, sum, &a->kept);
    cb_value_id lse = cb_emit2(e, CB_OP_ADD, most, cb_emit1(e, CB_OP_LOG, sum));
    if (open != CB_NONE) lse = cb_emit_where(e, open, lse, low);
    return cb_emit_reshape(e, lse, &rows);
}

static void forward(const attention *a, cb_value_id *outs) {
    cb_emit *e = a->e;
    cb_value_id open, scores = open_scores(a, raw_scores(a, a->q, a->k), &open);
    cb_value_id weights = cb_emit1(e, CB_OP_SOFTMAX, scores);
    if (open != CB_NONE)
        weights = cb_emit_where(e, open, weights, cb_emit_full_like(e, weights, 0));
    outs[0] = cb_emit2(e, CB_OP_MATMUL, dropped(a, weights), a->v);
    outs[1] = log_sum_exp(a, scores, open);
}

/* Returns exp(scores - lse), with 0 where a row attends to nothing. */
static cb_value_id weights_of(const attention *a, cb_value_id q, cb_value_id k, cb_value_id lse) {
    cb_emit *e = a->e;
    cb_value_id scores = raw_scores(a, q, k);
    if (a->mask != CB_NONE && value_of(e, a->mask).dtype == CB_BOOL) {
        scores = cb_emit_where(e, a->mask, scores, cb_emit_full_like(e, scores, -INFINITY));
    } else if (a->mask != CB_NONE) {
        scores = cb_emit2(e, CB_OP_ADD, scores, cb_emit_cast(e, a->mask, a->wide));
    }
    const cb_value_id low = cb_emit_full_like(e, lse, -INFINITY);
    lse = cb_emit_where(e, cb_emit2(e, CB_OP_EQ, lse, low), cb_emit_full_like(e, lse, 0), lse);
    lse = cb_emit_expand(e, cb_emit_reshape(e, lse, &a->kept), &a->scores);
    return cb_emit1(e, CB_OP_EXP, cb_emit2(e, CB_OP_SUB, scores, lse));
}

/* With p = weights and m the mask of dropout: dv = (m p)^T g, ds = p (m (g v^T) - sum(g y)),
 * dq = scale ds k, dk = scale ds^T q. `ins` are g, q, k, v, y, lse. */
static void backward(const attention *a, const cb_value_id *ins, cb_value_id *outs) {
    cb_emit *e = a->e;
    const cb_value q = value_of(e, ins[1]);
    cb_value_id wide[4], given[] = {ins[0], a->q, a->k, a->v};
    for (int i = 0; i < 4; i++) wide[i] = cb_emit_cast(e, given[i], a->wide);
    const cb_value_id p = weights_of(a, wide[1], wide[2], ins[5]);
    cb_value_id by = cb_emit2(e, CB_OP_MUL, wide[0], cb_emit_cast(e, ins[4], a->wide));
    by = cb_emit_expand(e, cb_emit_sum_to(e, by, &a->kept), &a->scores);
    cb_value_id ds = cb_emit2(e, CB_OP_MATMUL, wide[0], cb_emit_swap_last(e, wide[3]));
    ds = cb_emit2(e, CB_OP_MUL, p, cb_emit2(e, CB_OP_SUB, dropped(a, ds), by));
    ds = cb_emit_scale(e, ds, a->attrs->f[0]);
    outs[0] = cb_emit2(e, CB_OP_MATMUL, ds, wide[2]);
    outs[1] = cb_emit2(e, CB_OP_MATMUL, cb_emit_swap_last(e, ds), wide[1]);
    outs[2] = cb_emit2(e, CB_OP_MATMUL, cb_emit_swap_last(e, dropped(a, p)), wide[0]);
    for (int i = 1; i < 3; i++) {
        const cb_shape shape = value_of(e, ins[i + 1]).shape;
        outs[i] = sum_heads(e, outs[i], &shape);
    }
    for (int i = 0; i < 3; i++) outs[i] = cb_emit_cast(e, outs[i], q.dtype);
}

void cb_expand_attention(cb_emit *e, cb_opcode code, const cb_attrs *attrs, uint32_t n_ins,
                         const cb_value_id *ins, cb_value_id *outs) {
    const bool is_forward = code == CB_OP_ATTENTION;
    const uint32_t mask = is_forward ? 3 : 6;
    const attention a =
        attention_of(e, attrs, is_forward ? ins : ins + 1, n_ins > mask ? ins[mask] : CB_NONE);
    if (is_forward) forward(&a, outs);
    else backward(&a, ins, outs);
}

/* If the mask needs a gradient, or the log-sum-exps have one, primitives are differentiated. */
void cb_vjp_attention(cb_vjp *x) {
    if (x->dout[1] != CB_NONE || (x->n_in > 3 && x->needs[3])) {
        x->expand = true;
        return;
    }
    cb_value_id ins[7] = {x->dout[0], x->in[0], x->in[1], x->in[2], x->out[0], x->out[1]};
    if (x->n_in > 3) ins[6] = x->in[3];
    cb_emit_op(&x->e, CB_OP_ATTENTION_BWD, x->n_in + 3, ins, &x->attrs, x->din);
}
