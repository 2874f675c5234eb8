/* kern_batch_columns.h: the channels of a matrix, for one compute type (kern_rows.h): COLUMNS of
 * them side by side in vectors, walked row by row. The sums have the order of kern_batch_rows.h:
 * for each channel a leaf of SHORT_PIECE rows in CB_SUM_LANES lanes (row mod lanes), leaves in
 * pairs. */

typedef struct F(column_sums) {
    F(pairs) of[COLUMNS];
} F(column_sums);

/* One row of some channels, in vectors where it is a whole one. */
#define EACH_COLUMN(statement)                           \
    if (n == COLUMNS) {                                  \
        for (int64_t c = 0; c < COLUMNS; c++) statement; \
    } else {                                             \
        for (int64_t c = 0; c < n; c++) statement;       \
    }

#define ADD_ROW(name, expression)                                                               \
    static void F(name)(const REAL *restrict x, const REAL *restrict y, const REAL *restrict m, \
                        int64_t n, REAL *restrict lane) {                                       \
        (void)y, (void)m;                                                                       \
        EACH_COLUMN(lane[c] += expression)                                                      \
    }
ADD_ROW(add_row, x[c])
ADD_ROW(add_spread, (x[c] - m[c]) * (x[c] - m[c]))
ADD_ROW(add_dot_from, (x[c] - m[c]) * y[c])
#undef ADD_ROW

/* The lanes of a leaf, folded in halves, go to the sums, and are cleared. */
static void F(end_leaf)(REAL lane[CB_SUM_LANES][COLUMNS], int64_t n, F(column_sums) * sums) {
    for (int width = CB_SUM_LANES / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; k++) {
            for (int64_t c = 0; c < COLUMNS; c++) lane[k][c] += lane[k + width][c];
        }
    }
    for (int64_t c = 0; c < n; c++) F(push)(&sums->of[c], lane[0][c]);
    memset(lane, 0, sizeof(REAL) * CB_SUM_LANES * COLUMNS);
}

/* Mean and rstd of n channels, which go to the results as well. */
static void F(columns_stats)(const batch *m, int64_t first, int64_t n, REAL *restrict mean,
                             REAL *restrict rstd) {
    const cb_tensor *x = &m->args->in[0];
    REAL lane[CB_SUM_LANES][COLUMNS] = {{0}}, tile[COLUMNS];
    for (int pass = 0; pass < 2; pass++) {
        F(column_sums) sums = {0};
        for (int64_t r = 0; r < m->images; r++) {
            const REAL *row = F(load)(x, r * m->image + first, n, tile);
            if (pass == 0) F(add_row)(row, row, row, n, lane[r % CB_SUM_LANES]);
            else F(add_spread)(row, row, mean, n, lane[r % CB_SUM_LANES]);
            if ((r + 1) % SHORT_PIECE == 0 || r + 1 == m->images) F(end_leaf)(lane, n, &sums);
        }
        for (int64_t c = 0; c < n; c++) {
            const REAL average = F(total)(&sums.of[c]) / (REAL)m->count;
            ((REAL *)m->stats[pass].data)[first + c] = average;
            if (pass == 0) mean[c] = average;
            else rstd[c] = (REAL)1 / MATH(sqrt)(average + (REAL)m->args->attrs->f[0]);
        }
    }
    for (int64_t c = 0; c < n; c++) ((REAL *)m->stats[2].data)[first + c] = rstd[c];
}

static void F(columns_stats_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const int64_t first = task * COLUMNS;
    REAL mean[COLUMNS], rstd[COLUMNS];
    F(columns_stats)(m, first, min_i64(COLUMNS, m->channels - first), mean, rstd);
}

static void F(columns_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    const int64_t first = task * COLUMNS, n = min_i64(COLUMNS, m->channels - first);
    const cb_tensor *x = &args->in[0], *y = &args->out[0];
    REAL tile[COLUMNS], result[COLUMNS];
    REAL mean[COLUMNS], rstd[COLUMNS], weight[COLUMNS], bias[COLUMNS];
    F(columns_stats)(m, first, n, mean, rstd);
    for (int64_t c = 0; c < n; c++) {
        REAL one[1];
        weight[c] = F(load)(&args->in[1], first + c, 1, one)[0];
        bias[c] = F(load)(&args->in[2], first + c, 1, one)[0];
    }
    for (int64_t r = m->images - 1; r >= 0; r--) { /* what was read last is still near */
        const REAL *restrict row = F(load)(x, r * m->image + first, n, tile);
        EACH_COLUMN(result[c] = (row[c] - mean[c]) * rstd[c] * weight[c] + bias[c])
        F(put_row)(y, r * m->image + first, n, result);
    }
}

static void F(columns_bwd_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    const int64_t first = task * COLUMNS, n = min_i64(COLUMNS, m->channels - first);
    const cb_tensor *g = &args->in[0], *x = &args->in[1];
    const REAL *mean = (const REAL *)args->in[3].data + first,
               *rstd = (const REAL *)args->in[4].data + first;
    REAL lane_g[CB_SUM_LANES][COLUMNS] = {{0}}, lane_gh[CB_SUM_LANES][COLUMNS] = {{0}};
    REAL g_tile[COLUMNS], x_tile[COLUMNS], result[COLUMNS];
    REAL scale[COLUMNS], mean_g[COLUMNS], mean_gh[COLUMNS];
    F(column_sums) sum_g = {0}, sum_gh = {0};
    for (int64_t r = 0; r < m->images; r++) {
        const REAL *gs = F(load)(g, r * m->image + first, n, g_tile),
                   *xs = F(load)(x, r * m->image + first, n, x_tile);
        F(add_row)(gs, gs, gs, n, lane_g[r % CB_SUM_LANES]);
        F(add_dot_from)(xs, gs, mean, n, lane_gh[r % CB_SUM_LANES]);
        if ((r + 1) % SHORT_PIECE && r + 1 < m->images) continue;
        F(end_leaf)(lane_g, n, &sum_g);
        F(end_leaf)(lane_gh, n, &sum_gh);
    }
    for (int64_t c = 0; c < n; c++) {
        REAL dbias = F(total)(&sum_g.of[c]), dweight = F(total)(&sum_gh.of[c]) * rstd[c], one[1];
        F(put_row)(&args->out[1], first + c, 1, &dweight);
        F(put_row)(&args->out[2], first + c, 1, &dbias);
        scale[c] = F(load)(&args->in[2], first + c, 1, one)[0] * rstd[c];
        mean_g[c] = dbias / (REAL)m->count;
        mean_gh[c] = dweight / (REAL)m->count;
    }
    for (int64_t r = m->images - 1; r >= 0; r--) {
        const REAL *restrict gs = F(load)(g, r * m->image + first, n, g_tile);
        const REAL *restrict xs = F(load)(x, r * m->image + first, n, x_tile);
        EACH_COLUMN({
            REAL h = (xs[c] - mean[c]) * rstd[c];
            result[c] = scale[c] * (gs[c] - mean_g[c] - h * mean_gh[c]);
        })
        F(put_row)(&args->out[0], r * m->image + first, n, result);
    }
}
#undef EACH_COLUMN
