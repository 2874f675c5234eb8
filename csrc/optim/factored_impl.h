/* factored_impl.h: the loops of factored.h for one type, `real`. kern_factored.c includes it once
 * per type. */

static double CB_TYPED(squares)(const cb_factored *f, const cb_optim_row *row, int64_t at,
                                int64_t n, double *restrict column, double *restrict weights) {
    const real *restrict p = (const real *)row->param + at;
    const real *restrict grad = (const real *)row->grad + at;
    const real scale = (real)f->scale;
    double sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            const double g = (double)(scale * grad[i + k]), w = (double)p[i + k];
            column[i + k] += g * g;
            sum[k] += g * g;
            weights[k] += w * w;
        }
    }
    for (int k = 0; i < n; i++, k++) {
        const double g = (double)(scale * grad[i]), w = (double)p[i];
        column[i] += g * g;
        sum[k] += g * g;
        weights[k] += w * w;
    }
    return cb_fold_lanes(sum);
}

/* Starts from the nearer end, so that a share of 1 gives exactly the square. */
static void CB_TYPED(move)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                           double *restrict weights) {
    const real *restrict p = (const real *)row->param + at;
    const real *restrict grad = (const real *)row->grad + at;
    real *restrict v = (real *)row->state[2] + at;
    const real scale = (real)f->scale, share = (real)f->share, rest = (real)(1 - f->share);
    const bool is_small = f->share < 0.5;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            const real g = scale * grad[i + k], way = g * g - v[i + k];
            v[i + k] = is_small ? v[i + k] + share * way : g * g - rest * way;
            weights[k] += (double)p[i + k] * (double)p[i + k];
        }
    }
    for (int k = 0; i < n; i++, k++) {
        const real g = scale * grad[i], way = g * g - v[i];
        v[i] = is_small ? v[i] + share * way : g * g - rest * way;
        weights[k] += (double)p[i] * (double)p[i];
    }
}

CB_INLINE real CB_TYPED(update)(real g, real mean, real least) {
    const real spread = mean < least ? least : mean; /* NaN stays */
    return g / square_root(spread);
}

static void CB_TYPED(measure)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                              double line, const void *means, double *restrict sum) {
    const real *restrict grad = (const real *)row->grad + at, *restrict column = means;
    const real scale = (real)f->scale, least = (real)(f->least * f->least), by = (real)line;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            const double u =
                (double)CB_TYPED(update)(scale * grad[i + k], by * column[i + k], least);
            sum[k] += u * u;
        }
    }
    for (int k = 0; i < n; i++, k++) {
        const double u = (double)CB_TYPED(update)(scale * grad[i], by * column[i], least);
        sum[k] += u * u;
    }
}

static void CB_TYPED(apply)(const cb_factored *f, const cb_optim_row *row, int64_t at, int64_t n,
                            double line, const void *means) {
    real *restrict p = (real *)row->param + at;
    const real *restrict grad = (const real *)row->grad + at, *restrict column = means;
    const real scale = (real)f->scale, least = (real)(f->least * f->least), by = (real)line;
    const real keep = (real)f->keep, rate = (real)f->rate;
    for (int64_t i = 0; i < n; i++)
        p[i] = p[i] * keep - rate * CB_TYPED(update)(scale * grad[i], by * column[i], least);
}
