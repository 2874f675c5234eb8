/* kern_batch_rows.h: the channels of kern_batch.c for one compute type (kern_rows.h). */
#include "kern_rows.h"

typedef struct CB_TYPED(piece) { /* a piece of each channel of a task */
    int64_t n;
    const CB_REAL *row[BATCH_GROUP];
    CB_REAL tile[BATCH_GROUP * SHORT_PIECE];
} CB_TYPED(piece);

/* Loads a piece. Long planes are read in place or widened; short ones are gathered from several
 * images. */
static void CB_TYPED(load_piece)(const batch *m, const cb_tensor *t, int64_t channel, int64_t p,
                                 CB_TYPED(piece) * out) {
    place at = place_of(m, channel, p);
    out->n = at.planes * at.run;
    if (!m->is_short) {
        out->row[0] = CB_TYPED(load)(t, at.first, at.run, out->tile);
        return;
    }
    for (int64_t c = 0; c < at.channels; c++) out->row[c] = out->tile + c * SHORT_PIECE;
    for (int64_t i = 0; i < at.planes; i++) {
        CB_REAL wide[BATCH_GROUP * SHORT_PLANE];
        const CB_REAL *from =
            CB_TYPED(load)(t, at.first + i * m->image, at.channels * at.run, wide);
        for (int64_t c = 0; c < at.channels; c++) {
            CB_REAL *to = out->tile + c * SHORT_PIECE + i * at.run;
            for (int64_t j = 0; j < at.run; j++) to[j] = from[c * at.run + j];
        }
    }
}

/* Copies the tile `from` to the place of the piece. */
static void CB_TYPED(store_piece)(const batch *m, const cb_tensor *t, int64_t channel, int64_t p,
                                  const CB_TYPED(piece) * from) {
    place at = place_of(m, channel, p);
    if (!m->is_short) {
#if REAL_BITS == 32
        if (m->is_far) {
            store_far(t, at.first, at.run, from->tile);
            return;
        }
#endif
        CB_TYPED(put_row)(t, at.first, at.run, from->tile);
        return;
    }
    for (int64_t i = 0; i < at.planes; i++) {
        CB_REAL row[BATCH_GROUP * SHORT_PLANE];
        for (int64_t c = 0; c < at.channels; c++) {
            const CB_REAL *channel_row = from->tile + c * SHORT_PIECE + i * at.run;
            for (int64_t j = 0; j < at.run; j++) row[c * at.run + j] = channel_row[j];
        }
        CB_TYPED(put_row)(t, at.first + i * m->image, at.channels * at.run, row);
    }
}

/* Computes mean and rstd of some channels, and writes them to the results. */
static void CB_TYPED(batch_stats)(const batch *m, int64_t first, int64_t channels,
                                  CB_TYPED(piece) * x, CB_REAL *restrict mean,
                                  CB_REAL *restrict rstd) {
    const cb_tensor *from = &m->args->in[0];
    CB_TYPED(pairs) sum[BATCH_GROUP] = {0}, squares[BATCH_GROUP] = {0};
    for (int64_t p = 0; p < m->pieces; p++) {
        CB_TYPED(load_piece)(m, from, first, p, x);
        for (int64_t c = 0; c < channels; c++)
            CB_TYPED(push)(&sum[c], CB_TYPED(leaf_sum)(x->row[c], x->row[c], 0, x->n));
    }
    for (int64_t c = 0; c < channels; c++) mean[c] = CB_TYPED(total)(&sum[c]) / (CB_REAL)m->count;
    for (int64_t p = 0; p < m->pieces; p++) {
        CB_TYPED(load_piece)(m, from, first, p, x);
        for (int64_t c = 0; c < channels; c++)
            CB_TYPED(push)(&squares[c], CB_TYPED(leaf_spread)(x->row[c], x->row[c], mean[c], x->n));
    }
    for (int64_t c = 0; c < channels; c++) {
        CB_REAL variance = CB_TYPED(total)(&squares[c]) / (CB_REAL)m->count;
        rstd[c] = (CB_REAL)1 / ROW_MATH(sqrt)(variance + (CB_REAL)m->args->attrs->f[0]);
        ((CB_REAL *)m->stats[0].data)[first + c] = mean[c];
        ((CB_REAL *)m->stats[1].data)[first + c] = variance;
        ((CB_REAL *)m->stats[2].data)[first + c] = rstd[c];
    }
}

static void CB_TYPED(stats_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const int64_t first = task * m->group;
    CB_TYPED(piece) x;
    CB_REAL mean[BATCH_GROUP], rstd[BATCH_GROUP];
    CB_TYPED(batch_stats)(m, first, min_i64(m->group, m->channels - first), &x, mean, rstd);
}

static void CB_TYPED(batch_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    int64_t first = task * m->group, channels = min_i64(m->group, m->channels - first);
    CB_TYPED(piece) x, y;
    CB_REAL mean[BATCH_GROUP], rstd[BATCH_GROUP], weight[BATCH_GROUP], bias[BATCH_GROUP];
    CB_TYPED(batch_stats)(m, first, channels, &x, mean, rstd);
    for (int64_t c = 0; c < channels; c++) {
        CB_REAL one[1];
        weight[c] = CB_TYPED(load)(&args->in[1], first + c, 1, one)[0];
        bias[c] = CB_TYPED(load)(&args->in[2], first + c, 1, one)[0];
    }
    for (int64_t p = 0; p < m->pieces; p++) {
        CB_TYPED(load_piece)(m, &args->in[0], first, p, &x);
        for (int64_t c = 0; c < channels; c++) {
            const CB_REAL *restrict from = x.row[c];
            CB_REAL *restrict to = y.tile + c * SHORT_PIECE;
            for (int64_t j = 0; j < x.n; j++)
                to[j] = (from[j] - mean[c]) * rstd[c] * weight[c] + bias[c];
        }
        CB_TYPED(store_piece)(m, &args->out[0], first, p, &y);
    }
    if (m->is_far) cb_x_fence();
}

/* With h = (x - mean) rstd over the count elements of the channel:
 *
 *     dx = weight rstd (g - sum(g) / count - h sum(g h) / count),  dweight = sum(g h),  dbias =
 * sum(g)
 */
static void CB_TYPED(batch_bwd_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    int64_t first = task * m->group, channels = min_i64(m->group, m->channels - first);
    const CB_REAL *mean = (const CB_REAL *)args->in[3].data + first,
                  *rstd = (const CB_REAL *)args->in[4].data + first;
    CB_TYPED(piece) g, x, dx;
    CB_TYPED(pairs) sum_g[BATCH_GROUP] = {0}, sum_gh[BATCH_GROUP] = {0};
    CB_REAL scale[BATCH_GROUP], mean_g[BATCH_GROUP], mean_gh[BATCH_GROUP];
    for (int64_t p = 0; p < m->pieces; p++) {
        CB_TYPED(load_piece)(m, &args->in[0], first, p, &g);
        CB_TYPED(load_piece)(m, &args->in[1], first, p, &x);
        for (int64_t c = 0; c < channels; c++) {
            CB_TYPED(push)(&sum_g[c], CB_TYPED(leaf_sum)(g.row[c], g.row[c], 0, g.n));
            CB_TYPED(push)(&sum_gh[c], CB_TYPED(leaf_dot_from)(x.row[c], g.row[c], mean[c], g.n));
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        CB_REAL dbias = CB_TYPED(total)(&sum_g[c]), dweight = CB_TYPED(total)(&sum_gh[c]) * rstd[c],
                one[1];
        CB_TYPED(put_row)(&args->out[1], first + c, 1, &dweight);
        CB_TYPED(put_row)(&args->out[2], first + c, 1, &dbias);
        scale[c] = CB_TYPED(load)(&args->in[2], first + c, 1, one)[0] * rstd[c];
        mean_g[c] = dbias / (CB_REAL)m->count;
        mean_gh[c] = dweight / (CB_REAL)m->count;
    }
    for (int64_t p = m->pieces - 1; p >= 0; p--) { /* the data read last are still in the cache */
        CB_TYPED(load_piece)(m, &args->in[0], first, p, &g);
        CB_TYPED(load_piece)(m, &args->in[1], first, p, &x);
        for (int64_t c = 0; c < channels; c++) {
            const CB_REAL *restrict gs = g.row[c], *restrict xs = x.row[c];
            CB_REAL *restrict to = dx.tile + c * SHORT_PIECE;
            for (int64_t j = 0; j < g.n; j++) {
                CB_REAL h = (xs[j] - mean[c]) * rstd[c];
                to[j] = scale[c] * (gs[j] - mean_g[c] - h * mean_gh[c]);
            }
        }
        CB_TYPED(store_piece)(m, &args->out[0], first, p, &dx);
    }
    if (m->is_far) cb_x_fence();
}
