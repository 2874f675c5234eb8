/* ref_attention.c: attention, one (query, key) pair at a time. */
#include "ref_ops.h"

#include <math.h>

#define LARGEST_HEAD 256 /* ir/infer_nn.c */

typedef struct attention {
    const cb_ref_call *c;
    const cb_tensor *q, *k, *v, *mask; /* mask may be NULL */
    int64_t items, heads, kv_heads;    /* items: the heads of q in the whole batch */
    int64_t l, s, e, d;
} attention;

static attention attention_of(const cb_ref_call *c, uint32_t q, uint32_t mask) {
    attention a = {.c = c, .q = &c->in[q], .k = &c->in[q + 1], .v = &c->in[q + 2]};
    const cb_shape *queries = &a.q->shape, *values = &a.v->shape;
    const int32_t r = queries->rank;
    if (c->n_in > mask) a.mask = &c->in[mask];
    a.items = cb_numel_of(queries, 0, r - 2);
    a.heads = r < 3 ? 1 : queries->dim[r - 3];
    a.kv_heads = r < 3 ? 1 : values->dim[r - 3];
    a.l = queries->dim[r - 2];
    a.e = queries->dim[r - 1];
    a.s = values->dim[r - 2];
    a.d = values->dim[r - 1];
    return a;
}

/* Returns the head of k and v that belongs to a head of q. */
static int64_t kv_item(const attention *a, int64_t item) {
    return item / a->heads * a->kv_heads + item % a->heads / (a->heads / a->kv_heads);
}

static double dot(const cb_tensor *x, int64_t i, const cb_tensor *y, int64_t j, int64_t n) {
    double sum = 0.0;
    for (int64_t p = 0; p < n; p++) sum += cb_ref_get(x, i * n + p) * cb_ref_get(y, j * n + p);
    return sum;
}

static double score(const attention *a, int64_t item, int64_t i, int64_t j) {
    const cb_attrs *attrs = a->c->attrs;
    if (attrs->i[1] && j > i) return -INFINITY;
    const double x =
        attrs->f[0] * dot(a->q, item * a->l + i, a->k, kv_item(a, item) * a->s + j, a->e);
    if (!a->mask) return x;
    const double m = cb_ref_get(a->mask, (item * a->l + i) * a->s + j);
    if (a->mask->dtype == CB_BOOL) return m != 0.0 ? x : -INFINITY;
    return x + m;
}

/* Returns the factor by which dropout multiplies the weight. */
static double kept(const attention *a, int64_t item, int64_t i, int64_t j) {
    const double p = a->c->attrs->f[1];
    const uint64_t element = (uint64_t)((item * a->l + i) * a->s + j);
    if (p == 0.0) return 1.0;
    return cb_philox_u16(&a->c->random, element) >= cb_dropout_threshold(p) ? cb_dropout_scale(p)
                                                                            : 0.0;
}

static void attention_row(const attention *a, int64_t item, int64_t i) {
    const int64_t row = item * a->l + i;
    double most = -INFINITY, sum = 0.0, y[LARGEST_HEAD] = {0.0};
    for (int64_t j = 0; j < a->s; j++) {
        const double x = score(a, item, i, j);
        if (x > most || isnan(x)) most = x;
        if (isnan(most)) break;
    }
    const double shift = most == -INFINITY ? 0.0 : most;
    for (int64_t j = 0; j < a->s; j++) {
        const double weight = exp(score(a, item, i, j) - shift);
        const double by = weight * kept(a, item, i, j);
        sum += weight;
        for (int64_t p = 0; p < a->d; p++)
            y[p] += by * cb_ref_get(a->v, (kv_item(a, item) * a->s + j) * a->d + p);
    }
    const bool is_closed = sum == 0.0 && (a->mask || a->s == 0);
    for (int64_t p = 0; p < a->d; p++)
        cb_ref_put(&a->c->out[0], row * a->d + p, is_closed ? 0.0 : y[p] / sum);
    cb_ref_put(&a->c->out[1], row, shift + log(sum));
}

void cb_ref_attention(const cb_ref_call *c) {
    const attention a = attention_of(c, 0, 3);
    for (int64_t item = 0; item < a.items; item++)
        for (int64_t i = 0; i < a.l; i++) attention_row(&a, item, i);
}

/* ---- backward: inputs g, q, k, v, y, lse ----------------------------------------------------- */

/* Computes the weight of a pair and the gradient of its score. */
typedef struct pair {
    double weight, score;
} pair;

static pair pair_of(const attention *a, int64_t item, int64_t i, int64_t j) {
    const cb_tensor *g = &a->c->in[0], *y = &a->c->in[4];
    const int64_t row = item * a->l + i;
    const double lse = cb_ref_get(&a->c->in[5], row), by = kept(a, item, i, j);
    const double weight = lse == -INFINITY ? 0.0 : exp(score(a, item, i, j) - lse);
    const double slope = dot(g, row, a->v, kv_item(a, item) * a->s + j, a->d) * by;
    return (pair){weight * by, weight * (slope - dot(g, row, y, row, a->d))};
}

static void queries_grad(const attention *a, int64_t item, int64_t i) {
    double sum[LARGEST_HEAD] = {0.0};
    for (int64_t j = 0; j < a->s; j++) {
        const pair p = pair_of(a, item, i, j);
        for (int64_t x = 0; x < a->e; x++)
            sum[x] += p.score * cb_ref_get(a->k, (kv_item(a, item) * a->s + j) * a->e + x);
    }
    for (int64_t x = 0; x < a->e; x++)
        cb_ref_put(&a->c->out[0], (item * a->l + i) * a->e + x, a->c->attrs->f[0] * sum[x]);
}

/* Computes the gradients of key j and of its value in head `kv`, a head of k in the whole batch. */
static void keys_grad(const attention *a, int64_t kv, int64_t j) {
    double keys[LARGEST_HEAD] = {0.0}, values[LARGEST_HEAD] = {0.0};
    for (int64_t item = 0; item < a->items; item++) {
        if (kv_item(a, item) != kv) continue;
        for (int64_t i = 0; i < a->l; i++) {
            const pair p = pair_of(a, item, i, j);
            const int64_t row = item * a->l + i;
            for (int64_t x = 0; x < a->e; x++)
                keys[x] += p.score * cb_ref_get(a->q, row * a->e + x);
            for (int64_t x = 0; x < a->d; x++)
                values[x] += p.weight * cb_ref_get(&a->c->in[0], row * a->d + x);
        }
    }
    for (int64_t x = 0; x < a->e; x++)
        cb_ref_put(&a->c->out[1], (kv * a->s + j) * a->e + x, a->c->attrs->f[0] * keys[x]);
    for (int64_t x = 0; x < a->d; x++)
        cb_ref_put(&a->c->out[2], (kv * a->s + j) * a->d + x, values[x]);
}

void cb_ref_attention_bwd(const cb_ref_call *c) {
    const attention a = attention_of(c, 1, 6);
    const int64_t n_kv = cb_numel_of(&a.k->shape, 0, a.k->shape.rank - 2);
    for (int64_t item = 0; item < a.items; item++)
        for (int64_t i = 0; i < a.l; i++) queries_grad(&a, item, i);
    for (int64_t kv = 0; kv < n_kv; kv++)
        for (int64_t j = 0; j < a.s; j++) keys_grad(&a, kv, j);
}
