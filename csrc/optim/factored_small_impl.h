/* factored_small_impl.h: the loops of factored.h over matrices and lines of a few elements, for one
 * type, `real`. kern_factored.c includes it once per type. A loop processes WIDE matrices or lines
 * at once: a vector holds one element of each, which spreads the overhead. `lanes` is WIDE, or less
 * for the last ones. `lanes` and the usual sizes are constants in the inlined copies. */

typedef real CB_TYPED(lanes)[WIDE];

/* Transposes [lanes][n] in memory to vectors in `room`. With n = 1 the data are already a vector
 * and are not copied, because loads from the copy would wait for narrower stores. */
CB_INLINE CB_TYPED(lanes) *
    CB_TYPED(turn)(real *data, int64_t n, int lanes, CB_TYPED(lanes) *restrict room) {
    if (n == 1) return (CB_TYPED(lanes) *)data;
    for (int64_t j = 0; j < n; j++) {
        for (int k = 0; k < lanes; k++) room[j][k] = data[k * n + j];
    }
    return room;
}

/* Transposes vectors back to [lanes][n] in `to`. */
CB_INLINE real *CB_TYPED(turn_back)(CB_TYPED(lanes) * x, int64_t n, int lanes, real *restrict to) {
    if (n == 1) return x[0];
    for (int64_t j = 0; j < n; j++) {
        for (int k = 0; k < lanes; k++) to[k * n + j] = x[j][k];
    }
    return to;
}

/* Moves means towards sum / of, writes them to `state`, and returns them as vectors. */
CB_INLINE CB_TYPED(lanes) *
    CB_TYPED(move_means)(const cb_factored *f, real *state, int64_t n, int64_t of, int lanes,
                         double (*restrict sum)[WIDE], CB_TYPED(lanes) *restrict room) {
    CB_TYPED(lanes) *mean = CB_TYPED(turn)(state, n, lanes, room);
    for (int64_t j = 0; j < n; j++) {
        for (int k = 0; k < lanes; k++) {
            const double to = sum[j][k] / (double)of;
            mean[j][k] = (real)cb_moved_mean((double)mean[j][k], to, f->share);
        }
    }
    CB_TYPED(turn_back)(mean, n, lanes, state);
    return mean;
}

/* Computes the factor of the column means for each row. */
CB_INLINE void CB_TYPED(shares)(const cb_factored *f, int64_t height, int lanes,
                                CB_TYPED(lanes) * mean, CB_TYPED(lanes) *restrict by) {
    double all[WIDE] = {0};
    for (int64_t i = 0; i < height; i++) {
        for (int k = 0; k < lanes; k++) all[k] += (double)mean[i][k];
    }
    for (int k = 0; k < lanes; k++) {
        all[k] /= (double)height;
        all[k] = all[k] < f->least ? f->least : all[k]; /* NaN stays */
    }
    for (int64_t i = 0; i < height; i++) {
        for (int k = 0; k < lanes; k++) by[i][k] = (real)((double)mean[i][k] / all[k]);
    }
}

CB_INLINE void CB_TYPED(begin_few)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                   int64_t height, int64_t width, int lanes,
                                   double *restrict weights, double *restrict size) {
    const int64_t each = height * width;
    const real *restrict p = (const real *)row->param + at * each;
    const real scale = (real)f->scale, least = (real)(f->least * f->least);
    real *grad = (real *)row->grad + at * each;
    real gradients[SMALL][WIDE], rows[SMALL][WIDE], columns[SMALL][WIDE], by[SMALL][WIDE];
    double line[SMALL][WIDE], column[SMALL][WIDE];
    CB_TYPED(lanes) *const g = CB_TYPED(turn)(grad, each, lanes, gradients);
    memset(line, 0, (size_t)height * sizeof *line);
    memset(column, 0, (size_t)width * sizeof *column);
    for (int64_t e = 0; e < each; e++) {
        for (int k = 0; k < lanes; k++) {
            const double x = (double)(scale * g[e][k]), w = (double)p[e * lanes + k];
            line[e / width][k] += x * x;
            column[e % width][k] += x * x;
            weights[k] += w * w;
        }
    }
    CB_TYPED(lanes) *const r = CB_TYPED(move_means)(f, (real *)row->state[0] + at * height, height,
                                                    width, lanes, line, rows);
    CB_TYPED(lanes) *const c = CB_TYPED(move_means)(f, (real *)row->state[1] + at * width, width,
                                                    height, lanes, column, columns);
    CB_TYPED(shares)(f, height, lanes, r, by);
    for (int64_t e = 0; e < each; e++) {
        for (int k = 0; k < lanes; k++) {
            const real mean = by[e / width][k] * c[e % width][k];
            const double u = (double)CB_TYPED(update)(scale * g[e][k], mean, least);
            size[k] += u * u;
        }
    }
}

CB_INLINE void CB_TYPED(apply_few)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                   int64_t height, int64_t width, int lanes) {
    const int64_t each = height * width;
    real rows[SMALL][WIDE], columns[SMALL][WIDE], by[SMALL][WIDE], means[SMALL][WIDE];
    real room[SMALL * WIDE];
    CB_TYPED(lanes) *r = CB_TYPED(turn)((real *)row->state[0] + at * height, height, lanes, rows);
    CB_TYPED(lanes) *c = CB_TYPED(turn)((real *)row->state[1] + at * width, width, lanes, columns);
    CB_TYPED(shares)(f, height, lanes, r, by);
    for (int64_t e = 0; e < each; e++) {
        for (int k = 0; k < lanes; k++) means[e][k] = by[e / width][k] * c[e % width][k];
    }
    CB_TYPED(apply)(f, row, at * each, each * lanes, 1,
                    CB_TYPED(turn_back)(means, each, lanes, room));
}

CB_INLINE void CB_TYPED(begin_wide)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                    int64_t end, int64_t height, int64_t width, double *weights,
                                    double *size) {
    for (; at < end; at += WIDE)
        CB_TYPED(begin_few)(f, row, at, height, width, WIDE, weights, size);
}

CB_INLINE void CB_TYPED(apply_wide)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                    int64_t end, int64_t height, int64_t width) {
    for (; at < end; at += WIDE) CB_TYPED(apply_few)(f, row, at, height, width, WIDE);
}

static void CB_TYPED(begin_small)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                  int64_t n, double *weights, double *size) {
    const int64_t h = row->height, w = row->width, rest = n % WIDE, end = at + n - rest;
    if (h == 1 && w == 1) CB_TYPED(begin_wide)(f, row, at, end, 1, 1, weights, size);
    else if (h == 3 && w == 3) CB_TYPED(begin_wide)(f, row, at, end, 3, 3, weights, size);
    else CB_TYPED(begin_wide)(f, row, at, end, h, w, weights, size);
    if (rest) CB_TYPED(begin_few)(f, row, end, h, w, (int)rest, weights, size);
}

static void CB_TYPED(apply_small)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                  int64_t n) {
    const int64_t h = row->height, w = row->width, rest = n % WIDE, end = at + n - rest;
    if (h == 1 && w == 1) CB_TYPED(apply_wide)(f, row, at, end, 1, 1);
    else if (h == 3 && w == 3) CB_TYPED(apply_wide)(f, row, at, end, 3, 3);
    else CB_TYPED(apply_wide)(f, row, at, end, h, w);
    if (rest) CB_TYPED(apply_few)(f, row, end, h, w, (int)rest);
}

/* ---- short lines of one matrix --------------------------------------------------------------- */

CB_INLINE void CB_TYPED(sum_few)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                 int lanes, double *restrict line, double (*restrict column)[WIDE],
                                 double *restrict weights) {
    const int64_t width = row->width;
    const real *restrict p = (const real *)row->param + at;
    const real scale = (real)f->scale;
    real room[SMALL][WIDE];
    double sum[WIDE] = {0};
    CB_TYPED(lanes) *const g = CB_TYPED(turn)((real *)row->grad + at, width, lanes, room);
    for (int64_t e = 0; e < width; e++) {
        for (int k = 0; k < lanes; k++) {
            const double x = (double)(scale * g[e][k]), w = (double)p[e * lanes + k];
            sum[k] += x * x;
            column[e][k] += x * x;
            weights[k] += w * w;
        }
    }
    for (int k = 0; k < lanes; k++) line[k] += sum[k];
}

static void CB_TYPED(sum_lines)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                int64_t n, double *line, double *column, double *weights) {
    const int64_t width = row->width, few = WIDE * width, rest = n % few / width;
    const int64_t end = at + n / few * few;
    double sums[SMALL][WIDE];
    memset(sums, 0, (size_t)width * sizeof *sums);
    for (; at < end; at += few, line += WIDE)
        CB_TYPED(sum_few)(f, row, at, WIDE, line, sums, weights);
    if (rest) CB_TYPED(sum_few)(f, row, at, (int)rest, line, sums, weights);
    for (int64_t e = 0; e < width; e++) {
        for (int k = 0; k < WIDE; k++) column[e] += sums[e][k];
    }
}

CB_INLINE void CB_TYPED(measure_few)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                     int lanes, const double *restrict line,
                                     const real *restrict column, double *restrict size) {
    const real scale = (real)f->scale, least = (real)(f->least * f->least);
    real room[SMALL][WIDE];
    CB_TYPED(lanes) *const g = CB_TYPED(turn)((real *)row->grad + at, row->width, lanes, room);
    for (int64_t e = 0; e < row->width; e++) {
        for (int k = 0; k < lanes; k++) {
            const real mean = (real)line[k] * column[e];
            const double u = (double)CB_TYPED(update)(scale * g[e][k], mean, least);
            size[k] += u * u;
        }
    }
}

static void CB_TYPED(measure_lines)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                    int64_t n, const double *line, const void *column,
                                    double *size) {
    const int64_t few = WIDE * row->width, rest = n % few / row->width, end = at + n / few * few;
    for (; at < end; at += few, line += WIDE)
        CB_TYPED(measure_few)(f, row, at, WIDE, line, column, size);
    if (rest) CB_TYPED(measure_few)(f, row, at, (int)rest, line, column, size);
}

CB_INLINE void CB_TYPED(apply_to_few)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                      int lanes, const double *restrict line,
                                      const real *restrict column) {
    real means[SMALL][WIDE], room[SMALL * WIDE];
    for (int64_t e = 0; e < row->width; e++) {
        for (int k = 0; k < lanes; k++) means[e][k] = (real)line[k] * column[e];
    }
    real *const mean = CB_TYPED(turn_back)(means, row->width, lanes, room);
    CB_TYPED(apply)(f, row, at, row->width * lanes, 1, mean);
}

static void CB_TYPED(apply_lines)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                  int64_t n, const double *line, const void *column) {
    const int64_t few = WIDE * row->width, rest = n % few / row->width, end = at + n / few * few;
    for (; at < end; at += few, line += WIDE)
        CB_TYPED(apply_to_few)(f, row, at, WIDE, line, column);
    if (rest) CB_TYPED(apply_to_few)(f, row, at, (int)rest, line, column);
}
