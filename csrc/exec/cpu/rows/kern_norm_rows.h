/* kern_norm_rows.h: the rows of kern_norm.c for one compute type (kern_rows.h). */
#include "kern_rows.h"

/* Statistics in two passes: the mean, then the mean of squares around it (0 for rms_norm). */
static void F(norm_row)(const norm *m, int64_t row) {
    const cb_tensor *x = &m->args->in[0], *weight = &m->args->in[1], *bias = &m->args->in[2],
                    *y = &m->args->out[0];
    int64_t c = m->columns, at = row * c;
    REAL x_tile[CB_TILE], w_tile[CB_TILE], b_tile[CB_TILE], results[CB_TILE];
    REAL mean = 0;
    if (m->is_centred) {
        F(pairs) sum = {.count = 0};
        for (int64_t i = 0; i < c; i += CB_TILE) {
            int64_t n = min_i64(CB_TILE, c - i);
            const REAL *xs = F(load)(x, at + i, n, x_tile);
            F(push)(&sum, F(leaf_sum)(xs, xs, 0, n));
        }
        mean = F(total)(&sum) / (REAL)c;
    }
    F(pairs) squares = {.count = 0};
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const REAL *xs = F(load)(x, at + i, n, x_tile);
        F(push)(&squares, F(leaf_spread)(xs, xs, mean, n));
    }
    REAL rstd = (REAL)1 / MATH(sqrt)(F(total)(&squares) / (REAL)c + (REAL)m->args->attrs->f[0]);
    if (m->is_centred) ((REAL *)m->args->out[1].data)[row] = mean;
    ((REAL *)m->args->out[m->is_centred ? 2 : 1].data)[row] = rstd;
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const REAL *restrict xs = F(load)(x, at + i, n, x_tile), *restrict ws =
                                                                     F(load)(weight, i, n, w_tile);
        REAL *restrict to = F(target)(y, at + i, results);
        if (m->is_centred) {
            const REAL *restrict bs = F(load)(bias, i, n, b_tile);
            for (int64_t j = 0; j < n; j++) to[j] = (xs[j] - mean) * rstd * ws[j] + bs[j];
        } else {
            for (int64_t j = 0; j < n; j++) to[j] = xs[j] * rstd * ws[j];
        }
        F(commit)(y, at + i, n, to);
    }
}

/* With h = (x - mean) rstd and v = g weight, over a row of c elements:
 *
 *     dx = rstd (v - sum(v) / c - h sum(v h) / c)         without the first sum for rms_norm
 *     dweight += g h,  dbias += g                         where dweight is not NULL (dbias may be)
 */
static void F(norm_bwd_row)(const norm *m, int64_t row, void *dweight, void *dbias) {
    const cb_tensor *g = &m->args->in[0], *x = &m->args->in[1], *weight = &m->args->in[2],
                    *dx = &m->args->out[0];
    int64_t c = m->columns, at = row * c;
    REAL mean = m->is_centred ? ((const REAL *)m->args->in[3].data)[row] : 0;
    REAL rstd = ((const REAL *)m->args->in[m->is_centred ? 4 : 3].data)[row];
    REAL g_tile[CB_TILE], x_tile[CB_TILE], w_tile[CB_TILE], results[CB_TILE];
    F(pairs) sum_v = {.count = 0}, sum_vh = {.count = 0};
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const REAL *restrict gs = F(load)(g, at + i, n, g_tile), *restrict ws =
                                                                     F(load)(weight, i, n, w_tile);
        for (int64_t j = 0; j < n; j++) results[j] = gs[j] * ws[j];
        F(push)(&sum_v, F(leaf_sum)(results, results, 0, n));
        F(push)(&sum_vh, F(leaf_dot_from)(F(load)(x, at + i, n, x_tile), results, mean, n));
    }
    REAL mean_v = m->is_centred ? F(total)(&sum_v) / (REAL)c : 0;
    REAL mean_vh = F(total)(&sum_vh) * rstd / (REAL)c;
    for (int64_t i = 0; i < c; i += CB_TILE) {
        int64_t n = min_i64(CB_TILE, c - i);
        const REAL *restrict gs = F(load)(g, at + i, n, g_tile), *restrict ws =
                                                                     F(load)(weight, i, n, w_tile);
        const REAL *restrict xs = F(load)(x, at + i, n, x_tile);
        REAL *restrict to = F(target)(dx, at + i, results);
        for (int64_t j = 0; j < n; j++) {
            REAL h = (xs[j] - mean) * rstd;
            to[j] = rstd * (gs[j] * ws[j] - mean_v - h * mean_vh);
        }
        F(commit)(dx, at + i, n, to);
        REAL *restrict dw = dweight ? (REAL *)dweight + i : NULL, *restrict db =
                                                                      dbias ? (REAL *)dbias + i
                                                                            : NULL;
        if (dw) {
            for (int64_t j = 0; j < n; j++) dw[j] += gs[j] * ((xs[j] - mean) * rstd);
        }
        if (db) {
            for (int64_t j = 0; j < n; j++) db[j] += gs[j];
        }
    }
}

/* The sums over rows for a tile of columns, when there is one block and so no scratch. */
static void F(norm_bwd_columns)(const norm *m, int64_t first) {
    const cb_tensor *g = &m->args->in[0], *x = &m->args->in[1];
    const REAL *means = m->args->in[3].data, *rstds = m->args->in[m->is_centred ? 4 : 3].data;
    int64_t n = min_i64(CB_TILE, m->columns - first);
    REAL g_tile[CB_TILE], x_tile[CB_TILE], dw[CB_TILE], db[CB_TILE];
    for (int64_t j = 0; j < n; j++) dw[j] = db[j] = 0;
    for (int64_t row = 0; row < m->n_rows; row++) {
        int64_t at = row * m->columns + first;
        const REAL *restrict gs = F(load)(g, at, n, g_tile), *restrict xs =
                                                                 F(load)(x, at, n, x_tile);
        REAL mean = m->is_centred ? means[row] : 0, rstd = rstds[row];
        for (int64_t j = 0; j < n; j++) {
            dw[j] += gs[j] * ((xs[j] - mean) * rstd);
            db[j] += gs[j];
        }
    }
    F(put_row)(&m->args->out[1], first, n, dw);
    if (m->is_centred) F(put_row)(&m->args->out[2], first, n, db);
}

/* The blocks' sums of a tile of columns, in order. */
static void F(norm_bwd_combine)(const norm *m, int64_t first) {
    int64_t n = min_i64(CB_TILE, m->columns - first);
    for (int64_t k = 0; k < m->partials; k++) {
        REAL total[CB_TILE];
        for (int64_t j = 0; j < n; j++) total[j] = 0;
        for (int64_t block = 0; block < m->blocks; block++) {
            const REAL *restrict part =
                (const REAL *)m->args->scratch + (block * m->partials + k) * m->columns + first;
            for (int64_t j = 0; j < n; j++) total[j] += part[j];
        }
        F(put_row)(&m->args->out[1 + k], first, n, total);
    }
}
