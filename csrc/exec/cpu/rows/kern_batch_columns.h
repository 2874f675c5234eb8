/* kern_batch_columns.h: batch norm of a matrix whose columns are the channels, for one compute type
 * (kern_rows.h). BATCH_COLUMNS channels are processed in vectors, row by row. Sums are in the same
 * order as in kern_batch_rows.h: for each channel, leaves of SHORT_PIECE rows in CB_SUM_LANES lanes
 * (row mod lanes), added in pairs. */

typedef struct CB_TYPED(column_sums) {
    CB_TYPED(pairs) of[BATCH_COLUMNS];
} CB_TYPED(column_sums);

/* Runs a statement for one row of some channels, with vectors if the row is complete. */
#define EACH_COLUMN(statement)                                 \
    if (n == BATCH_COLUMNS) {                                  \
        for (int64_t c = 0; c < BATCH_COLUMNS; c++) statement; \
    } else {                                                   \
        for (int64_t c = 0; c < n; c++) statement;             \
    }

#define ADD_ROW(name, expression)                                                              \
    static void CB_TYPED(name)(const CB_REAL *restrict x, const CB_REAL *restrict y,           \
                               const CB_REAL *restrict m, int64_t n, CB_REAL *restrict lane) { \
        (void)y, (void)m;                                                                      \
        EACH_COLUMN(lane[c] += expression)                                                     \
    }
ADD_ROW(add_row, x[c])
ADD_ROW(add_spread, (x[c] - m[c]) * (x[c] - m[c]))
ADD_ROW(add_dot_from, (x[c] - m[c]) * y[c])
#undef ADD_ROW

/* Folds the lanes of a leaf in halves, adds them to the sums, and clears them. */
static void CB_TYPED(end_leaf)(CB_REAL lane[CB_SUM_LANES][BATCH_COLUMNS], int64_t n,
                               CB_TYPED(column_sums) * sums) {
    for (int width = CB_SUM_LANES / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; k++) {
            for (int64_t c = 0; c < BATCH_COLUMNS; c++) lane[k][c] += lane[k + width][c];
        }
    }
    for (int64_t c = 0; c < n; c++) CB_TYPED(push)(&sums->of[c], lane[0][c]);
    memset(lane, 0, sizeof(CB_REAL) * CB_SUM_LANES * BATCH_COLUMNS);
}

/* Computes mean and rstd of n channels, and writes them to the results. */
static void CB_TYPED(columns_stats)(const batch *m, int64_t first, int64_t n,
                                    CB_REAL *restrict mean, CB_REAL *restrict rstd) {
    const cb_tensor *x = &m->args->in[0];
    CB_REAL lane[CB_SUM_LANES][BATCH_COLUMNS] = {{0}}, tile[BATCH_COLUMNS];
    for (int pass = 0; pass < 2; pass++) {
        CB_TYPED(column_sums) sums = {0};
        for (int64_t r = 0; r < m->images; r++) {
            const CB_REAL *row = CB_TYPED(load)(x, r * m->image + first, n, tile);
            if (pass == 0) CB_TYPED(add_row)(row, row, row, n, lane[r % CB_SUM_LANES]);
            else CB_TYPED(add_spread)(row, row, mean, n, lane[r % CB_SUM_LANES]);
            if ((r + 1) % SHORT_PIECE == 0 || r + 1 == m->images)
                CB_TYPED(end_leaf)(lane, n, &sums);
        }
        for (int64_t c = 0; c < n; c++) {
            const CB_REAL average = CB_TYPED(total)(&sums.of[c]) / (CB_REAL)m->count;
            ((CB_REAL *)m->stats[pass].data)[first + c] = average;
            if (pass == 0) mean[c] = average;
            else rstd[c] = (CB_REAL)1 / ROW_MATH(sqrt)(average + (CB_REAL)m->args->attrs->f[0]);
        }
    }
    for (int64_t c = 0; c < n; c++) ((CB_REAL *)m->stats[2].data)[first + c] = rstd[c];
}

static void CB_TYPED(columns_stats_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const int64_t first = task * BATCH_COLUMNS;
    CB_REAL mean[BATCH_COLUMNS], rstd[BATCH_COLUMNS];
    CB_TYPED(columns_stats)(m, first, min_i64(BATCH_COLUMNS, m->channels - first), mean, rstd);
}

static void CB_TYPED(columns_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    const int64_t first = task * BATCH_COLUMNS, n = min_i64(BATCH_COLUMNS, m->channels - first);
    const cb_tensor *x = &args->in[0], *y = &args->out[0];
    CB_REAL tile[BATCH_COLUMNS], result[BATCH_COLUMNS];
    CB_REAL mean[BATCH_COLUMNS], rstd[BATCH_COLUMNS], weight[BATCH_COLUMNS], bias[BATCH_COLUMNS];
    CB_TYPED(columns_stats)(m, first, n, mean, rstd);
    for (int64_t c = 0; c < n; c++) {
        CB_REAL one[1];
        weight[c] = CB_TYPED(load)(&args->in[1], first + c, 1, one)[0];
        bias[c] = CB_TYPED(load)(&args->in[2], first + c, 1, one)[0];
    }
    for (int64_t r = m->images - 1; r >= 0; r--) { /* the data read last are still in the cache */
        const CB_REAL *restrict row = CB_TYPED(load)(x, r * m->image + first, n, tile);
        EACH_COLUMN(result[c] = (row[c] - mean[c]) * rstd[c] * weight[c] + bias[c])
        CB_TYPED(put_row)(y, r * m->image + first, n, result);
    }
}

static void CB_TYPED(columns_bwd_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    const int64_t first = task * BATCH_COLUMNS, n = min_i64(BATCH_COLUMNS, m->channels - first);
    const cb_tensor *g = &args->in[0], *x = &args->in[1];
    const CB_REAL *mean = (const CB_REAL *)args->in[3].data + first,
                  *rstd = (const CB_REAL *)args->in[4].data + first;
    CB_REAL lane_g[CB_SUM_LANES][BATCH_COLUMNS] = {{0}},
            lane_gh[CB_SUM_LANES][BATCH_COLUMNS] = {{0}};
    CB_REAL g_tile[BATCH_COLUMNS], x_tile[BATCH_COLUMNS], result[BATCH_COLUMNS];
    CB_REAL scale[BATCH_COLUMNS], mean_g[BATCH_COLUMNS], mean_gh[BATCH_COLUMNS];
    CB_TYPED(column_sums) sum_g = {0}, sum_gh = {0};
    for (int64_t r = 0; r < m->images; r++) {
        const CB_REAL *gs = CB_TYPED(load)(g, r * m->image + first, n, g_tile),
                      *xs = CB_TYPED(load)(x, r * m->image + first, n, x_tile);
        CB_TYPED(add_row)(gs, gs, gs, n, lane_g[r % CB_SUM_LANES]);
        CB_TYPED(add_dot_from)(xs, gs, mean, n, lane_gh[r % CB_SUM_LANES]);
        if ((r + 1) % SHORT_PIECE && r + 1 < m->images) continue;
        CB_TYPED(end_leaf)(lane_g, n, &sum_g);
        CB_TYPED(end_leaf)(lane_gh, n, &sum_gh);
    }
    for (int64_t c = 0; c < n; c++) {
        CB_REAL dbias = CB_TYPED(total)(&sum_g.of[c]),
                dweight = CB_TYPED(total)(&sum_gh.of[c]) * rstd[c], one[1];
        CB_TYPED(put_row)(&args->out[1], first + c, 1, &dweight);
        CB_TYPED(put_row)(&args->out[2], first + c, 1, &dbias);
        scale[c] = CB_TYPED(load)(&args->in[2], first + c, 1, one)[0] * rstd[c];
        mean_g[c] = dbias / (CB_REAL)m->count;
        mean_gh[c] = dweight / (CB_REAL)m->count;
    }
    for (int64_t r = m->images - 1; r >= 0; r--) {
        const CB_REAL *restrict gs = CB_TYPED(load)(g, r * m->image + first, n, g_tile);
        const CB_REAL *restrict xs = CB_TYPED(load)(x, r * m->image + first, n, x_tile);
        EACH_COLUMN({
            CB_REAL h = (xs[c] - mean[c]) * rstd[c];
            result[c] = scale[c] * (gs[c] - mean_g[c] - h * mean_gh[c]);
        })
        CB_TYPED(put_row)(&args->out[0], r * m->image + first, n, result);
    }
}
#undef EACH_COLUMN
