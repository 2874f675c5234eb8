/* kern_batch_rows.h: the channels of kern_batch.c for one compute type (kern_rows.h). */
#include "kern_rows.h"

typedef struct F(piece) { /* of each channel of a task */
    int64_t n;
    const REAL *row[GROUP];
    REAL tile[GROUP * SHORT_PIECE];
} F(piece);

/* Long planes: in place, or widened. Short ones: gathered from the planes of several images. */
static void F(load_piece)(const batch *m, const cb_tensor *t, int64_t channel, int64_t p,
                          F(piece) * out) {
    place at = place_of(m, channel, p);
    out->n = at.planes * at.run;
    if (!m->is_short) {
        out->row[0] = F(load)(t, at.first, at.run, out->tile);
        return;
    }
    for (int64_t c = 0; c < at.channels; c++) out->row[c] = out->tile + c * SHORT_PIECE;
    for (int64_t i = 0; i < at.planes; i++) {
        REAL wide[GROUP * SHORT_PLANE];
        const REAL *from = F(load)(t, at.first + i * m->image, at.channels * at.run, wide);
        for (int64_t c = 0; c < at.channels; c++) {
            REAL *to = out->tile + c * SHORT_PIECE + i * at.run;
            for (int64_t j = 0; j < at.run; j++) to[j] = from[c * at.run + j];
        }
    }
}

/* The tile of `from` to where the piece lies. */
static void F(store_piece)(const batch *m, const cb_tensor *t, int64_t channel, int64_t p,
                           const F(piece) * from) {
    place at = place_of(m, channel, p);
    if (!m->is_short) {
#if REAL_BITS == 32
        if (m->is_far) {
            store_far(t, at.first, at.run, from->tile);
            return;
        }
#endif
        F(put_row)(t, at.first, at.run, from->tile);
        return;
    }
    for (int64_t i = 0; i < at.planes; i++) {
        REAL row[GROUP * SHORT_PLANE];
        for (int64_t c = 0; c < at.channels; c++) {
            const REAL *channel_row = from->tile + c * SHORT_PIECE + i * at.run;
            for (int64_t j = 0; j < at.run; j++) row[c * at.run + j] = channel_row[j];
        }
        F(put_row)(t, at.first + i * m->image, at.channels * at.run, row);
    }
}

/* Mean and rstd of some channels, which go to the results as well. */
static void F(batch_stats)(const batch *m, int64_t first, int64_t channels, F(piece) * x,
                           REAL *restrict mean, REAL *restrict rstd) {
    const cb_tensor *from = &m->args->in[0];
    F(pairs) sum[GROUP] = {0}, squares[GROUP] = {0};
    for (int64_t p = 0; p < m->pieces; p++) {
        F(load_piece)(m, from, first, p, x);
        for (int64_t c = 0; c < channels; c++)
            F(push)(&sum[c], F(leaf_sum)(x->row[c], x->row[c], 0, x->n));
    }
    for (int64_t c = 0; c < channels; c++) mean[c] = F(total)(&sum[c]) / (REAL)m->count;
    for (int64_t p = 0; p < m->pieces; p++) {
        F(load_piece)(m, from, first, p, x);
        for (int64_t c = 0; c < channels; c++)
            F(push)(&squares[c], F(leaf_spread)(x->row[c], x->row[c], mean[c], x->n));
    }
    for (int64_t c = 0; c < channels; c++) {
        REAL variance = F(total)(&squares[c]) / (REAL)m->count;
        rstd[c] = (REAL)1 / MATH(sqrt)(variance + (REAL)m->args->attrs->f[0]);
        ((REAL *)m->stats[0].data)[first + c] = mean[c];
        ((REAL *)m->stats[1].data)[first + c] = variance;
        ((REAL *)m->stats[2].data)[first + c] = rstd[c];
    }
}

static void F(stats_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const int64_t first = task * m->group;
    F(piece) x;
    REAL mean[GROUP], rstd[GROUP];
    F(batch_stats)(m, first, min_i64(m->group, m->channels - first), &x, mean, rstd);
}

static void F(batch_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    int64_t first = task * m->group, channels = min_i64(m->group, m->channels - first);
    F(piece) x, y;
    REAL mean[GROUP], rstd[GROUP], weight[GROUP], bias[GROUP];
    F(batch_stats)(m, first, channels, &x, mean, rstd);
    for (int64_t c = 0; c < channels; c++) {
        REAL one[1];
        weight[c] = F(load)(&args->in[1], first + c, 1, one)[0];
        bias[c] = F(load)(&args->in[2], first + c, 1, one)[0];
    }
    for (int64_t p = 0; p < m->pieces; p++) {
        F(load_piece)(m, &args->in[0], first, p, &x);
        for (int64_t c = 0; c < channels; c++) {
            const REAL *restrict from = x.row[c];
            REAL *restrict to = y.tile + c * SHORT_PIECE;
            for (int64_t j = 0; j < x.n; j++)
                to[j] = (from[j] - mean[c]) * rstd[c] * weight[c] + bias[c];
        }
        F(store_piece)(m, &args->out[0], first, p, &y);
    }
    if (m->is_far) cb_x_fence();
}

/* With h = (x - mean) rstd over the count elements of the channel:
 *
 *     dx = weight rstd (g - sum(g) / count - h sum(g h) / count),  dweight = sum(g h),  dbias =
 * sum(g)
 */
static void F(batch_bwd_task)(void *user, int64_t task, int thread) {
    (void)thread;
    const batch *m = user;
    const cb_kernel_args *args = m->args;
    int64_t first = task * m->group, channels = min_i64(m->group, m->channels - first);
    const REAL *mean = (const REAL *)args->in[3].data + first,
               *rstd = (const REAL *)args->in[4].data + first;
    F(piece) g, x, dx;
    F(pairs) sum_g[GROUP] = {0}, sum_gh[GROUP] = {0};
    REAL scale[GROUP], mean_g[GROUP], mean_gh[GROUP];
    for (int64_t p = 0; p < m->pieces; p++) {
        F(load_piece)(m, &args->in[0], first, p, &g);
        F(load_piece)(m, &args->in[1], first, p, &x);
        for (int64_t c = 0; c < channels; c++) {
            F(push)(&sum_g[c], F(leaf_sum)(g.row[c], g.row[c], 0, g.n));
            F(push)(&sum_gh[c], F(leaf_dot_from)(x.row[c], g.row[c], mean[c], g.n));
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        REAL dbias = F(total)(&sum_g[c]), dweight = F(total)(&sum_gh[c]) * rstd[c], one[1];
        F(put_row)(&args->out[1], first + c, 1, &dweight);
        F(put_row)(&args->out[2], first + c, 1, &dbias);
        scale[c] = F(load)(&args->in[2], first + c, 1, one)[0] * rstd[c];
        mean_g[c] = dbias / (REAL)m->count;
        mean_gh[c] = dweight / (REAL)m->count;
    }
    for (int64_t p = m->pieces - 1; p >= 0; p--) { /* what was read last is still near */
        F(load_piece)(m, &args->in[0], first, p, &g);
        F(load_piece)(m, &args->in[1], first, p, &x);
        for (int64_t c = 0; c < channels; c++) {
            const REAL *restrict gs = g.row[c], *restrict xs = x.row[c];
            REAL *restrict to = dx.tile + c * SHORT_PIECE;
            for (int64_t j = 0; j < g.n; j++) {
                REAL h = (xs[j] - mean[c]) * rstd[c];
                to[j] = scale[c] * (gs[j] - mean_g[c] - h * mean_gh[c]);
            }
        }
        F(store_piece)(m, &args->out[0], first, p, &dx);
    }
    if (m->is_far) cb_x_fence();
}
