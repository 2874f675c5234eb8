/* kern_softmax_short.h: kern_softmax_rows.h for blocks of short rows (kern_short.h). */
#include "kern_short.h"

/* Replaces x by x - largest; computes its exponentials and their sum. */
static inline void CB_TYPED(exp_block)(CB_TYPED(block) x, int64_t n, CB_TYPED(block) terms,
                                       CB_REAL *largest, CB_REAL *sum) {
    CB_TYPED(max_block)(x, n, largest);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) x[j][r] -= largest[r];
    CB_TYPED(exp_row)(&x[0][0], 0, &terms[0][0], n * CB_SHORT_ROWS);
    CB_TYPED(sum_block)(terms, n, sum);
}

static void CB_TYPED(softmax_block)(const rows *r, int64_t row) {
    const int64_t n = r->columns, at = row * n;
    CB_TYPED(block) x, terms;
    CB_REAL largest[CB_SHORT_ROWS], sum[CB_SHORT_ROWS];
    CB_TYPED(load_block)(&r->args->in[0], at, n, x);
    CB_TYPED(exp_block)(x, n, terms, largest, sum);
    EACH_SHORT(k) sum[k] = 1 / sum[k];
    for (int64_t j = 0; j < n; j++) EACH_SHORT(k) terms[j][k] *= sum[k];
    CB_TYPED(store_block)(&r->args->out[0], at, n, terms);
}

static void CB_TYPED(log_softmax_block)(const rows *r, int64_t row) {
    const int64_t n = r->columns, at = row * n;
    CB_TYPED(block) x, terms;
    CB_REAL largest[CB_SHORT_ROWS], sum[CB_SHORT_ROWS];
    CB_TYPED(load_block)(&r->args->in[0], at, n, x);
    CB_TYPED(exp_block)(x, n, terms, largest, sum);
    EACH_SHORT(k) sum[k] = ROW_MATH(log)(sum[k]);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(k) x[j][k] -= sum[k];
    CB_TYPED(store_block)(&r->args->out[0], at, n, x);
}

static void CB_TYPED(softmax_bwd_block)(const rows *r, int64_t row) {
    const int64_t n = r->columns, at = row * n;
    CB_TYPED(block) g, y, terms;
    CB_REAL dot[CB_SHORT_ROWS];
    CB_TYPED(load_block)(&r->args->in[0], at, n, g);
    CB_TYPED(load_block)(&r->args->in[1], at, n, y);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(k) terms[j][k] = g[j][k] * y[j][k];
    CB_TYPED(sum_block)(terms, n, dot);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(k) terms[j][k] = y[j][k] * (g[j][k] - dot[k]);
    CB_TYPED(store_block)(&r->args->out[0], at, n, terms);
}

static void CB_TYPED(log_softmax_bwd_block)(const rows *r, int64_t row) {
    const int64_t n = r->columns, at = row * n;
    CB_TYPED(block) g, y, terms;
    CB_REAL total[CB_SHORT_ROWS];
    CB_TYPED(load_block)(&r->args->in[0], at, n, g);
    CB_TYPED(load_block)(&r->args->in[1], at, n, y);
    CB_TYPED(sum_block)(g, n, total);
    CB_TYPED(exp_row)(&y[0][0], 0, &terms[0][0], n * CB_SHORT_ROWS);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(k) g[j][k] -= terms[j][k] * total[k];
    CB_TYPED(store_block)(&r->args->out[0], at, n, g);
}

static void CB_TYPED(cross_entropy_block)(const rows *r, int64_t row) {
    const int64_t n = r->columns;
    CB_TYPED(block) x, terms;
    CB_REAL largest[CB_SHORT_ROWS], sum[CB_SHORT_ROWS], tile[1];
    CB_REAL *nll = r->args->out[0].data, *logsumexp = r->args->out[1].data;
    CB_TYPED(load_block)(&r->args->in[0], row * n, n, x);
    CB_TYPED(exp_block)(x, n, terms, largest, sum);
    EACH_SHORT(k) logsumexp[row + k] = largest[k] + ROW_MATH(log)(sum[k]);
    EACH_SHORT(k) {
        const int64_t label = cb_index_at(&r->args->in[1], row + k), at = (row + k) * n + label;
        const bool counts = label != r->args->attrs->i[0];
        nll[row + k] =
            counts ? logsumexp[row + k] - CB_TYPED(load)(&r->args->in[0], at, 1, tile)[0] : 0;
    }
}

static void CB_TYPED(cross_entropy_bwd_block)(const rows *r, int64_t row) {
    const int64_t n = r->columns, at = row * n;
    CB_TYPED(block) x, terms;
    CB_REAL largest[CB_SHORT_ROWS], sum[CB_SHORT_ROWS];
    const CB_REAL *g = (const CB_REAL *)r->args->in[0].data + row;
    CB_TYPED(load_block)(&r->args->in[1], at, n, x);
    CB_TYPED(exp_block)(x, n, terms, largest, sum);
    EACH_SHORT(k) sum[k] = g[k] / sum[k];
    for (int64_t j = 0; j < n; j++) EACH_SHORT(k) terms[j][k] *= sum[k];
    EACH_SHORT(k) {
        const int64_t label = cb_index_at(&r->args->in[2], row + k);
        const bool counts = label != r->args->attrs->i[0];
        for (int64_t j = 0; j < n && !counts; j++) terms[j][k] = 0;
        if (counts) terms[label][k] -= g[k];
    }
    CB_TYPED(store_block)(&r->args->out[0], at, n, terms);
}
