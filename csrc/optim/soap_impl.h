/* soap_impl.h: the loops of soap.c for one type, `real`; included once per type. */

/* Copies the scaled gradient to `to` and updates m, except in the first step. */
static void CB_TYPED(begin)(const cb_soap *o, const cb_optim_row *row, double scale, int64_t at,
                            int64_t n, void *to) {
    const real *restrict grad = (const real *)row->grad + at;
    real *restrict m = (real *)row->state[0] + at, *restrict g = (real *)to + at;
    const real factor = (real)scale, b = (real)o->beta1, a = (real)(1 - o->beta1);
    const bool is_first = row->t == 1;
    for (int64_t i = 0; i < n; i++) {
        g[i] = factor * grad[i];
        m[i] = is_first ? m[i] : b * m[i] + a * g[i];
    }
}

/* Updates v, and computes Adam's update m / (sqrt(v) + eps), all in the rotated basis. */
static void CB_TYPED(divide)(const cb_soap *o, const cb_optim_row *row, int64_t at, int64_t n,
                             const void *gradient, const void *momentum, void *to) {
    const real *g = (const real *)gradient + at, *m = (const real *)momentum + at;
    real *restrict v = (real *)row->state[1] + at, *u = (real *)to + at;
    const real b = (real)o->beta2, a = (real)(1 - o->beta2), eps = (real)o->eps;
    for (int64_t i = 0; i < n; i++) {
        v[i] = b * v[i] + a * g[i] * g[i];
        u[i] = m[i] / (square_root(v[i]) + eps);
    }
}

static void CB_TYPED(apply)(const cb_soap *o, const cb_optim_row *row, int64_t at, int64_t n,
                            const void *update) {
    const real *restrict u = (const real *)update + at;
    real *restrict p = (real *)row->param + at;
    const real keep = (real)o->keep, rate = (real)o->rate;
    for (int64_t i = 0; i < n; i++) p[i] = (p[i] - rate * u[i]) * keep;
}

/* Moves a mean towards `product`. */
static void CB_TYPED(mix)(double keep, void *mean, const void *product, int64_t at, int64_t n) {
    real *restrict x = (real *)mean + at;
    const real *restrict y = (const real *)product + at;
    const real b = (real)keep, a = (real)(1 - keep);
    for (int64_t i = 0; i < n; i++) x[i] = b * x[i] + a * y[i];
}

/* Returns the dot product of x and y. */
static double CB_TYPED(share)(const void *x, const void *y, int64_t n) {
    const real *a = x, *b = y;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}
