/* kern_norm_short.h: kern_norm_rows.h for blocks of short rows (kern_short.h). */
#include "kern_short.h"

static void CB_TYPED(norm_block)(const norm *m, int64_t row) {
    const int64_t n = m->columns, at = row * n;
    const CB_REAL c = (CB_REAL)n, eps = (CB_REAL)m->args->attrs->f[0];
    CB_TYPED(block) x, terms;
    CB_REAL mean[CB_SHORT_ROWS] = {0}, rstd[CB_SHORT_ROWS], w_tile[CB_TILE], b_tile[CB_TILE];
    CB_TYPED(load_block)(&m->args->in[0], at, n, x);
    if (m->is_centred) {
        CB_TYPED(sum_block)(x, n, mean);
        EACH_SHORT(r) mean[r] /= c;
    }
    for (int64_t j = 0; j < n; j++)
        EACH_SHORT(r) terms[j][r] = (x[j][r] - mean[r]) * (x[j][r] - mean[r]);
    CB_TYPED(sum_block)(terms, n, rstd);
    EACH_SHORT(r) rstd[r] = 1 / ROW_MATH(sqrt)(rstd[r] / c + eps);
    if (m->is_centred) memcpy((CB_REAL *)m->args->out[1].data + row, mean, sizeof mean);
    memcpy((CB_REAL *)m->args->out[m->is_centred ? 2 : 1].data + row, rstd, sizeof rstd);
    const CB_REAL *w = CB_TYPED(load)(&m->args->in[1], 0, n, w_tile);
    const CB_REAL *b = m->is_centred ? CB_TYPED(load)(&m->args->in[2], 0, n, b_tile) : NULL;
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) x[j][r] = (x[j][r] - mean[r]) * rstd[r] * w[j];
    for (int64_t j = 0; j < n && b; j++) EACH_SHORT(r) x[j][r] += b[j];
    CB_TYPED(store_block)(&m->args->out[0], at, n, x);
}

/* Adds sixteen rows to sums of columns, in order. */
static void CB_TYPED(add_short)(CB_REAL *sums, const CB_REAL *from, int64_t n) {
    for (int64_t j = 0; j < n; j += ROW_LANES) {
        CB_TYPED(full) sum = ROW_FEW(few)(sums + j, n - j);
        EACH_SHORT(r) sum += ROW_FEW(few)(from + r * n + j, n - j);
        ROW_FEW(put_few)(sums + j, sum, n - j);
    }
}

static void CB_TYPED(norm_bwd_block)(const norm *m, int64_t row, void *dweight, void *dbias) {
    const cb_tensor *grad = &m->args->in[0];
    const int64_t n = m->columns, at = row * n;
    const CB_REAL c = (CB_REAL)n;
    CB_TYPED(block) g, x, v, terms;
    CB_REAL mean[CB_SHORT_ROWS] = {0}, mean_v[CB_SHORT_ROWS] = {0}, mean_vh[CB_SHORT_ROWS];
    CB_REAL rstd[CB_SHORT_ROWS], tile[CB_TILE], w_tile[CB_TILE];
    if (m->is_centred) memcpy(mean, (const CB_REAL *)m->args->in[3].data + row, sizeof mean);
    memcpy(rstd, (const CB_REAL *)m->args->in[m->is_centred ? 4 : 3].data + row, sizeof rstd);
    CB_TYPED(load_block)(grad, at, n, g);
    CB_TYPED(load_block)(&m->args->in[1], at, n, x);
    const CB_REAL *w = CB_TYPED(load)(&m->args->in[2], 0, n, w_tile);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) {
            x[j][r] -= mean[r];
            v[j][r] = g[j][r] * w[j];
            terms[j][r] = x[j][r] * v[j][r];
        }
    if (m->is_centred) CB_TYPED(sum_block)(v, n, mean_v);
    CB_TYPED(sum_block)(terms, n, mean_vh);
    EACH_SHORT(r) {
        mean_v[r] /= c;
        mean_vh[r] = mean_vh[r] * rstd[r] / c;
    }
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) {
            const CB_REAL h = x[j][r] * rstd[r];
            g[j][r] *= h;
            v[j][r] = rstd[r] * (v[j][r] - mean_v[r] - h * mean_vh[r]);
        }
    CB_TYPED(store_block)(&m->args->out[0], at, n, v);
    if (dbias) CB_TYPED(add_short)(dbias, CB_TYPED(load)(grad, at, n * CB_SHORT_ROWS, tile), n);
    if (!dweight) return;
    CB_TYPED(put_block)(tile, n, g);
    CB_TYPED(add_short)(dweight, tile, n);
}
