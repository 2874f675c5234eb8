/* kern_softmax_rows.h: the rows of kern_softmax.c for one compute type (kern_rows.h).
 *
 * A row is walked in tiles: its largest element, the sum of e^(x - largest), the result. Where the
 * result is stored in the compute type, it holds the exponentials between the last two passes; a
 * 16-bit result cannot, and they are computed again. A row of only -inf is NaN, as is a row with
 * +inf or NaN. */
#include "kern_rows.h"

static REAL F(row_max)(const cb_tensor *x, int64_t at, int64_t columns) {
    REAL tile[CB_TILE];
    KEY best = F(key)(-(REAL)INFINITY);
    for (int64_t i = 0; i < columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, columns - i);
        best = F(max_key)(F(load)(x, at + i, n, tile), n, best);
    }
    return F(of_key)(best);
}

/* The sum of e^(x - largest); `kept` gets the terms when it is not NULL. */
static REAL F(row_exp)(const cb_tensor *x, int64_t at, int64_t columns, REAL largest, REAL *kept) {
    REAL tile[CB_TILE], terms[CB_TILE];
    F(pairs) sum = {.count = 0};
    for (int64_t i = 0; i < columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, columns - i);
        REAL *y = kept ? kept + i : terms;
        F(exp_row)(F(load)(x, at + i, n, tile), largest, y, n);
        F(push)(&sum, F(leaf_sum)(y, y, 0, n));
    }
    return F(total)(&sum);
}

static void F(softmax_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[0], *y = &r->args->out[0];
    REAL tile[CB_TILE], terms[CB_TILE];
    REAL *kept = is_half(y->dtype) ? NULL : F(target)(y, at, tile);
    REAL largest = F(row_max)(x, at, r->columns);
    REAL scale = (REAL)1 / F(row_exp)(x, at, r->columns, largest, kept);
    if (kept) {
        for (int64_t i = 0; i < r->columns; i++) kept[i] *= scale;
        return;
    }
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        F(exp_row)(F(load)(x, at + i, n, tile), largest, terms, n);
        for (int64_t j = 0; j < n; j++) terms[j] *= scale;
        F(commit)(y, at + i, n, terms);
    }
}

static void F(log_softmax_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[0], *y = &r->args->out[0];
    REAL tile[CB_TILE], results[CB_TILE];
    REAL largest = F(row_max)(x, at, r->columns);
    REAL log_sum = MATH(log)(F(row_exp)(x, at, r->columns, largest, NULL));
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const REAL *restrict from = F(load)(x, at + i, n, tile);
        REAL *restrict to = F(target)(y, at + i, results);
        for (int64_t j = 0; j < n; j++) to[j] = (from[j] - largest) - log_sum;
        F(commit)(y, at + i, n, to);
    }
}

/* y (g - sum(g y)) */
static void F(softmax_bwd_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *g = &r->args->in[0], *y = &r->args->in[1], *dx = &r->args->out[0];
    REAL g_tile[CB_TILE], y_tile[CB_TILE], results[CB_TILE];
    F(pairs) sum = {.count = 0};
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        F(push)
        (&sum, F(leaf_dot)(F(load)(g, at + i, n, g_tile), F(load)(y, at + i, n, y_tile), 0, n));
    }
    REAL dot = F(total)(&sum);
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const REAL *restrict gs = F(load)(g, at + i, n, g_tile);
        const REAL *restrict ys = F(load)(y, at + i, n, y_tile);
        REAL *restrict to = F(target)(dx, at + i, results);
        for (int64_t j = 0; j < n; j++) to[j] = ys[j] * (gs[j] - dot);
        F(commit)(dx, at + i, n, to);
    }
}

/* g - e^y sum(g) */
static void F(log_softmax_bwd_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *g = &r->args->in[0], *y = &r->args->in[1], *dx = &r->args->out[0];
    REAL g_tile[CB_TILE], y_tile[CB_TILE], results[CB_TILE];
    F(pairs) sum = {.count = 0};
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const REAL *gs = F(load)(g, at + i, n, g_tile);
        F(push)(&sum, F(leaf_sum)(gs, gs, 0, n));
    }
    REAL total = F(total)(&sum);
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const REAL *restrict gs = F(load)(g, at + i, n, g_tile);
        const REAL *restrict ys = F(load)(y, at + i, n, y_tile);
        REAL *restrict to = F(target)(dx, at + i, results);
        for (int64_t j = 0; j < n; j++) to[j] = gs[j] - MATH(exp)(ys[j]) * total;
        F(commit)(dx, at + i, n, to);
    }
}

/* nll = logsumexp - x[label] */
static void F(cross_entropy_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[0];
    REAL *nll = r->args->out[0].data, *logsumexp = r->args->out[1].data, tile[1];
    int64_t label = cb_index_at(&r->args->in[1], row);
    REAL largest = F(row_max)(x, at, r->columns);
    logsumexp[row] = largest + MATH(log)(F(row_exp)(x, at, r->columns, largest, NULL));
    bool counts = label != r->args->attrs->i[0];
    nll[row] = counts ? logsumexp[row] - F(load)(x, at + label, 1, tile)[0] : 0;
}

/* g (softmax(x) - onehot(label)): e^(x - largest) g / sum, and g less at the label */
static void F(cross_entropy_bwd_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[1], *dx = &r->args->out[0];
    int64_t label = cb_index_at(&r->args->in[2], row);
    REAL g = ((const REAL *)r->args->in[0].data)[row];
    REAL tile[CB_TILE], terms[CB_TILE];
    if (label == r->args->attrs->i[0]) {
        memset(cb_at(dx, at), 0, (size_t)r->columns * cb_dtype_size(dx->dtype));
        return;
    }
    REAL *kept = is_half(dx->dtype) ? NULL : F(target)(dx, at, tile);
    REAL largest = F(row_max)(x, at, r->columns);
    REAL scale = g / F(row_exp)(x, at, r->columns, largest, kept);
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        REAL *restrict to = kept ? kept + i : terms;
        if (!kept) F(exp_row)(F(load)(x, at + i, n, tile), largest, to, n);
        for (int64_t j = 0; j < n; j++) to[j] *= scale;
        if (label >= i && label < i + n) to[label - i] -= g;
        if (!kept) F(commit)(dx, at + i, n, terms);
    }
}
