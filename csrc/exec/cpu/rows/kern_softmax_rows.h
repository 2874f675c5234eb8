/* kern_softmax_rows.h: the rows of kern_softmax.c for one compute type (kern_rows.h).
 *
 * A row is processed in tiles, in three passes: they find its largest element, the sum of e^(x -
 * largest), and the result. If the result is stored in the compute type, it holds the exponentials
 * between the last two passes; a 16-bit result cannot, so they are computed again. A row of only
 * -inf is NaN, as is a row with +inf or NaN. */
#include "kern_rows.h"

static CB_REAL CB_TYPED(row_max)(const cb_tensor *x, int64_t at, int64_t columns) {
    CB_REAL tile[CB_TILE];
    ROW_KEY best = CB_TYPED(key)(-(CB_REAL)INFINITY);
    for (int64_t i = 0; i < columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, columns - i);
        best = CB_TYPED(max_key)(CB_TYPED(load)(x, at + i, n, tile), n, best);
    }
    return CB_TYPED(of_key)(best);
}

/* Returns the sum of e^(x - largest), and stores the terms in `kept` if it is not NULL. */
static CB_REAL CB_TYPED(row_exp)(const cb_tensor *x, int64_t at, int64_t columns, CB_REAL largest,
                                 CB_REAL *kept) {
    CB_REAL tile[CB_TILE], terms[CB_TILE];
    CB_TYPED(pairs) sum = {.count = 0};
    for (int64_t i = 0; i < columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, columns - i);
        CB_REAL *y = kept ? kept + i : terms;
        CB_TYPED(exp_row)(CB_TYPED(load)(x, at + i, n, tile), largest, y, n);
        CB_TYPED(push)(&sum, CB_TYPED(leaf_sum)(y, y, 0, n));
    }
    return CB_TYPED(total)(&sum);
}

static void CB_TYPED(softmax_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[0], *y = &r->args->out[0];
    CB_REAL tile[CB_TILE], terms[CB_TILE];
    CB_REAL *kept = is_half(y->dtype) ? NULL : CB_TYPED(target)(y, at, tile);
    CB_REAL largest = CB_TYPED(row_max)(x, at, r->columns);
    CB_REAL scale = (CB_REAL)1 / CB_TYPED(row_exp)(x, at, r->columns, largest, kept);
    if (kept) {
        for (int64_t i = 0; i < r->columns; i++) kept[i] *= scale;
        return;
    }
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        CB_TYPED(exp_row)(CB_TYPED(load)(x, at + i, n, tile), largest, terms, n);
        for (int64_t j = 0; j < n; j++) terms[j] *= scale;
        CB_TYPED(commit)(y, at + i, n, terms);
    }
}

static void CB_TYPED(log_softmax_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[0], *y = &r->args->out[0];
    CB_REAL tile[CB_TILE], results[CB_TILE];
    CB_REAL largest = CB_TYPED(row_max)(x, at, r->columns);
    CB_REAL log_sum = ROW_MATH(log)(CB_TYPED(row_exp)(x, at, r->columns, largest, NULL));
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const CB_REAL *restrict from = CB_TYPED(load)(x, at + i, n, tile);
        CB_REAL *restrict to = CB_TYPED(target)(y, at + i, results);
        for (int64_t j = 0; j < n; j++) to[j] = (from[j] - largest) - log_sum;
        CB_TYPED(commit)(y, at + i, n, to);
    }
}

/* Computes dx = y (g - sum(g y)). */
static void CB_TYPED(softmax_bwd_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *g = &r->args->in[0], *y = &r->args->in[1], *dx = &r->args->out[0];
    CB_REAL g_tile[CB_TILE], y_tile[CB_TILE], results[CB_TILE];
    CB_TYPED(pairs) sum = {.count = 0};
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        CB_TYPED(push)
        (&sum, CB_TYPED(leaf_dot)(CB_TYPED(load)(g, at + i, n, g_tile),
                                  CB_TYPED(load)(y, at + i, n, y_tile), 0, n));
    }
    CB_REAL dot = CB_TYPED(total)(&sum);
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const CB_REAL *restrict gs = CB_TYPED(load)(g, at + i, n, g_tile);
        const CB_REAL *restrict ys = CB_TYPED(load)(y, at + i, n, y_tile);
        CB_REAL *restrict to = CB_TYPED(target)(dx, at + i, results);
        for (int64_t j = 0; j < n; j++) to[j] = ys[j] * (gs[j] - dot);
        CB_TYPED(commit)(dx, at + i, n, to);
    }
}

/* Computes dx = g - e^y sum(g). */
static void CB_TYPED(log_softmax_bwd_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *g = &r->args->in[0], *y = &r->args->in[1], *dx = &r->args->out[0];
    CB_REAL g_tile[CB_TILE], y_tile[CB_TILE], results[CB_TILE];
    CB_TYPED(pairs) sum = {.count = 0};
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const CB_REAL *gs = CB_TYPED(load)(g, at + i, n, g_tile);
        CB_TYPED(push)(&sum, CB_TYPED(leaf_sum)(gs, gs, 0, n));
    }
    CB_REAL total = CB_TYPED(total)(&sum);
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        const CB_REAL *restrict gs = CB_TYPED(load)(g, at + i, n, g_tile);
        const CB_REAL *restrict ys = CB_TYPED(load)(y, at + i, n, y_tile);
        CB_REAL *restrict to = CB_TYPED(target)(dx, at + i, results);
        for (int64_t j = 0; j < n; j++) to[j] = gs[j] - ROW_MATH(exp)(ys[j]) * total;
        CB_TYPED(commit)(dx, at + i, n, to);
    }
}

/* Computes nll = logsumexp - x[label]. */
static void CB_TYPED(cross_entropy_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[0];
    CB_REAL *nll = r->args->out[0].data, *logsumexp = r->args->out[1].data, tile[1];
    int64_t label = cb_index_at(&r->args->in[1], row);
    CB_REAL largest = CB_TYPED(row_max)(x, at, r->columns);
    logsumexp[row] = largest + ROW_MATH(log)(CB_TYPED(row_exp)(x, at, r->columns, largest, NULL));
    bool counts = label != r->args->attrs->i[0];
    nll[row] = counts ? logsumexp[row] - CB_TYPED(load)(x, at + label, 1, tile)[0] : 0;
}

/* Computes dx = g (softmax(x) - onehot(label)) as e^(x - largest) g / sum, minus g at the label. */
static void CB_TYPED(cross_entropy_bwd_row)(const rows *r, int64_t row) {
    int64_t at = row * r->columns;
    const cb_tensor *x = &r->args->in[1], *dx = &r->args->out[0];
    int64_t label = cb_index_at(&r->args->in[2], row);
    CB_REAL g = ((const CB_REAL *)r->args->in[0].data)[row];
    CB_REAL tile[CB_TILE], terms[CB_TILE];
    if (label == r->args->attrs->i[0]) {
        memset(cb_at(dx, at), 0, (size_t)r->columns * cb_dtype_size(dx->dtype));
        return;
    }
    CB_REAL *kept = is_half(dx->dtype) ? NULL : CB_TYPED(target)(dx, at, tile);
    CB_REAL largest = CB_TYPED(row_max)(x, at, r->columns);
    CB_REAL scale = g / CB_TYPED(row_exp)(x, at, r->columns, largest, kept);
    for (int64_t i = 0; i < r->columns; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, r->columns - i);
        CB_REAL *restrict to = kept ? kept + i : terms;
        if (!kept) CB_TYPED(exp_row)(CB_TYPED(load)(x, at + i, n, tile), largest, to, n);
        for (int64_t j = 0; j < n; j++) to[j] *= scale;
        if (label >= i && label < i + n) to[label - i] -= g;
        if (!kept) CB_TYPED(commit)(dx, at + i, n, terms);
    }
}
