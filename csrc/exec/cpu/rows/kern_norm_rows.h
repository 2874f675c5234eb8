/* kern_norm_rows.h: the rows of kern_norm.c for one compute type (kern_rows.h). */
#include "kern_rows.h"

/* Computes statistics in two passes: the mean (0 for rms_norm), then the mean of squared deviations
 * from it. */
static void CB_TYPED(norm_row)(const norm *m, int64_t row) {
    const cb_tensor *x = &m->args->in[0], *weight = &m->args->in[1], *bias = &m->args->in[2],
                    *y = &m->args->out[0];
    int64_t c = m->columns, at = row * c;
    CB_REAL x_tile[CB_TILE], w_tile[CB_TILE], b_tile[CB_TILE], results[CB_TILE];
    CB_REAL mean = 0;
    if (m->is_centred) {
        CB_TYPED(pairs) sum = {.count = 0};
        for (int64_t i = 0; i < c; i += CB_TILE) {
            int64_t n = min_i64(CB_TILE, c - i);
            const CB_REAL *xs = CB_TYPED(load)(x, at + i, n, x_tile);
            CB_TYPED(push)(&sum, CB_TYPED(leaf_sum)(xs, xs, 0, n));
        }
        mean = CB_TYPED(total)(&sum) / (CB_REAL)c;
    }
    CB_TYPED(pairs) squares = {.count = 0};
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const CB_REAL *xs = CB_TYPED(load)(x, at + i, n, x_tile);
        CB_TYPED(push)(&squares, CB_TYPED(leaf_spread)(xs, xs, mean, n));
    }
    CB_REAL rstd = (CB_REAL)1 / ROW_MATH(sqrt)(CB_TYPED(total)(&squares) / (CB_REAL)c +
                                               (CB_REAL)m->args->attrs->f[0]);
    if (m->is_centred) ((CB_REAL *)m->args->out[1].data)[row] = mean;
    ((CB_REAL *)m->args->out[m->is_centred ? 2 : 1].data)[row] = rstd;
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const CB_REAL *restrict xs = CB_TYPED(load)(x, at + i, n, x_tile), *restrict ws = CB_TYPED(
                                                                               load)(weight, i, n,
                                                                                     w_tile);
        CB_REAL *restrict to = CB_TYPED(target)(y, at + i, results);
        if (m->is_centred) {
            const CB_REAL *restrict bs = CB_TYPED(load)(bias, i, n, b_tile);
            for (int64_t j = 0; j < n; j++) to[j] = (xs[j] - mean) * rstd * ws[j] + bs[j];
        } else {
            for (int64_t j = 0; j < n; j++) to[j] = xs[j] * rstd * ws[j];
        }
        CB_TYPED(commit)(y, at + i, n, to);
    }
}

/* With h = (x - mean) rstd and v = g weight, over a row of c elements:
 *
 *     dx = rstd (v - sum(v) / c - h sum(v h) / c)         without the first sum for rms_norm
 *     dweight += g h,  dbias += g                         where dweight is not NULL (dbias may be)
 */
static void CB_TYPED(norm_bwd_row)(const norm *m, int64_t row, void *dweight, void *dbias) {
    const cb_tensor *g = &m->args->in[0], *x = &m->args->in[1], *weight = &m->args->in[2],
                    *dx = &m->args->out[0];
    int64_t c = m->columns, at = row * c;
    CB_REAL mean = m->is_centred ? ((const CB_REAL *)m->args->in[3].data)[row] : 0;
    CB_REAL rstd = ((const CB_REAL *)m->args->in[m->is_centred ? 4 : 3].data)[row];
    CB_REAL g_tile[CB_TILE], x_tile[CB_TILE], w_tile[CB_TILE], results[CB_TILE];
    CB_TYPED(pairs) sum_v = {.count = 0}, sum_vh = {.count = 0};
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const CB_REAL *restrict gs = CB_TYPED(load)(g, at + i, n, g_tile), *restrict ws = CB_TYPED(
                                                                               load)(weight, i, n,
                                                                                     w_tile);
        for (int64_t j = 0; j < n; j++) results[j] = gs[j] * ws[j];
        CB_TYPED(push)(&sum_v, CB_TYPED(leaf_sum)(results, results, 0, n));
        CB_TYPED(push)
        (&sum_vh, CB_TYPED(leaf_dot_from)(CB_TYPED(load)(x, at + i, n, x_tile), results, mean, n));
    }
    CB_REAL mean_v = m->is_centred ? CB_TYPED(total)(&sum_v) / (CB_REAL)c : 0;
    CB_REAL mean_vh = CB_TYPED(total)(&sum_vh) * rstd / (CB_REAL)c;
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const CB_REAL *restrict gs = CB_TYPED(load)(g, at + i, n, g_tile), *restrict ws = CB_TYPED(
                                                                               load)(weight, i, n,
                                                                                     w_tile);
        const CB_REAL *restrict xs = CB_TYPED(load)(x, at + i, n, x_tile);
        CB_REAL *restrict to = CB_TYPED(target)(dx, at + i, results);
        for (int64_t j = 0; j < n; j++) {
            CB_REAL h = (xs[j] - mean) * rstd;
            to[j] = rstd * (gs[j] * ws[j] - mean_v - h * mean_vh);
        }
        CB_TYPED(commit)(dx, at + i, n, to);
        CB_REAL *restrict dw = dweight ? (CB_REAL *)dweight + i : NULL, *restrict db =
                                                                            dbias
                                                                                ? (CB_REAL *)dbias +
                                                                                      i
                                                                                : NULL;
        if (dw) {
            for (int64_t j = 0; j < n; j++) dw[j] += gs[j] * ((xs[j] - mean) * rstd);
        }
        if (db) {
            for (int64_t j = 0; j < n; j++) db[j] += gs[j];
        }
    }
}

/* Sums over rows for a tile of columns, if there is only one block and therefore no scratch. */
static void CB_TYPED(norm_bwd_columns)(const norm *m, int64_t first) {
    const cb_tensor *g = &m->args->in[0], *x = &m->args->in[1];
    const CB_REAL *means = m->args->in[3].data, *rstds = m->args->in[m->is_centred ? 4 : 3].data;
    int64_t n = min_i64(CB_TILE, m->columns - first);
    CB_REAL g_tile[CB_TILE], x_tile[CB_TILE], dw[CB_TILE], db[CB_TILE];
    for (int64_t j = 0; j < n; j++) dw[j] = db[j] = 0;
    for (int64_t row = 0; row < m->n_rows; row++) {
        int64_t at = row * m->columns + first;
        const CB_REAL *restrict gs = CB_TYPED(load)(g, at, n, g_tile), *restrict xs = CB_TYPED(
                                                                           load)(x, at, n, x_tile);
        CB_REAL mean = m->is_centred ? means[row] : 0, rstd = rstds[row];
        for (int64_t j = 0; j < n; j++) {
            dw[j] += gs[j] * ((xs[j] - mean) * rstd);
            db[j] += gs[j];
        }
    }
    CB_TYPED(put_row)(&m->args->out[1], first, n, dw);
    if (m->is_centred) CB_TYPED(put_row)(&m->args->out[2], first, n, db);
}

/* Adds the blocks' sums of a tile of columns, in order. */
static void CB_TYPED(norm_bwd_combine)(const norm *m, int64_t first) {
    int64_t n = min_i64(CB_TILE, m->columns - first);
    for (int64_t k = 0; k < m->partials; k++) {
        CB_REAL total[CB_TILE];
        for (int64_t j = 0; j < n; j++) total[j] = 0;
        for (int64_t block = 0; block < m->blocks; block++) {
            const CB_REAL *restrict part =
                (const CB_REAL *)m->args->scratch + (block * m->partials + k) * m->columns + first;
            for (int64_t j = 0; j < n; j++) total[j] += part[j];
        }
        CB_TYPED(put_row)(&m->args->out[1 + k], first, n, total);
    }
}
