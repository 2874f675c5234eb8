/* orthogonal_impl.h: the loops of orthogonal.c for one type, `real`; included once per type. */

/* Updates the momentum of elements at .. at + n and sets x, where the iteration starts. Returns the
 * sum of squares of x. */
static double CB_TYPED(begin)(const cb_orthogonal *o, const cb_optim_row *row, double scale,
                              int64_t at, int64_t n, void *to) {
    const real *restrict grad = (const real *)row->grad + at;
    real *restrict m = (real *)row->state[0] + at, *restrict x = (real *)to + at;
    const real rest = (real)o->rest, factor = (real)scale;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const real g = factor * grad[i];
        m[i] += rest * (g - m[i]);
        x[i] = o->ahead ? m[i] + rest * (g - m[i]) : m[i];
    }
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static void CB_TYPED(scale)(void *data, int64_t at, int64_t n, double by) {
    real *restrict x = (real *)data + at;
    const real factor = (real)by;
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

/* s = a I + b g + c s for rows from .. to of matrices [side, side]. */
static void CB_TYPED(mix)(const cb_orthogonal *o, const void *gram, void *square, int64_t side,
                          int64_t from, int64_t to) {
    const real *restrict g = gram;
    real *restrict s = square;
    const real a = (real)o->a, b = (real)o->b, c = (real)o->c;
    for (int64_t r = from; r < to; r++) {
        for (int64_t i = r * side; i < (r + 1) * side; i++) s[i] = b * g[i] + c * s[i];
        s[r * side + r] += a;
    }
}

/* Divides rows from .. to by sqrt(v) + eps. Returns the sum of squares of the result. */
static double CB_TYPED(rows)(const cb_orthogonal *o, const cb_optim_row *row, void *data,
                             int64_t from, int64_t to) {
    real *restrict v = row->state[1];
    const int64_t width = row->width;
    double all = 0;
    for (int64_t r = from; r < to; r++) {
        real *restrict x = (real *)data + r * width;
        double sum = 0, left = 0;
        for (int64_t i = 0; i < width; i++) sum += (double)x[i] * (double)x[i];
        v[r] = (real)(o->beta * (double)v[r] + (1 - o->beta) * sum / (double)width);
        const real by = (real)(1 / (sqrt((double)v[r]) + o->eps));
        for (int64_t i = 0; i < width; i++) x[i] *= by;
        for (int64_t i = 0; i < width; i++) left += (double)x[i] * (double)x[i];
        all += left;
    }
    return all;
}

static void CB_TYPED(apply)(const cb_orthogonal *o, const cb_optim_row *row, double rate,
                            int64_t at, int64_t n, const void *data) {
    const real *restrict x = (const real *)data + at;
    real *restrict p = (real *)row->param + at;
    const real keep = (real)o->keep, by = (real)rate;
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * keep - by * x[i];
}
