/* orthonormal_impl.h: the loops of orthonormal.c for one type, `real`; included once per type. */

static double CB_TYPED(dot)(const real *x, const real *y, int64_t n) {
    double sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; k++) sum[k] += (double)x[i + k] * (double)y[i + k];
    }
    for (; i < n; i++) sum[0] += (double)x[i] * (double)y[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void CB_TYPED(add)(real *restrict x, double by, const real *restrict y, int64_t n) {
    const real factor = (real)by;
    for (int64_t i = 0; i < n; i++) x[i] += factor * y[i];
}

/* Normalizes a row to length one, so that its factor 2 / |x|^2 is in the range of the type for any
 * row; for a row of 1e-20 it would be 1e40. Returns the factor, 0 for a row of zeros. */
static double CB_TYPED(normalize)(real *x, int64_t n) {
    const double square = CB_TYPED(dot)(x, x, n);
    if (square <= 0) return 0;
    for (int64_t i = 0; i < n; i++) x[i] = (real)((double)x[i] / sqrt(square));
    return 2 / CB_TYPED(dot)(x, x, n);
}

/* Replaces rows from .. to of x by Householder vectors that zero the rows right of the diagonal.
 * Computes T of I - V^T T V into `t`, a contiguous square matrix of to - from rows. */
static void CB_TYPED(panel)(real *x, int64_t n, int64_t from, int64_t to, real *t) {
    const int64_t b = to - from;
    for (int64_t j = from; j < to; j++) {
        real *v = x + j * n;
        const double norm = sqrt(CB_TYPED(dot)(v + j, v + j, n - j));
        memset(v, 0, (size_t)j * sizeof *v);
        v[j] += (real)(v[j] > 0 ? norm : -norm);
        const double tau = CB_TYPED(normalize)(v + j, n - j);
        for (int64_t k = j + 1; k < to; k++)
            CB_TYPED(add)(x + k * n + j, -tau * CB_TYPED(dot)(x + k * n + j, v + j, n - j), v + j,
                          n - j);
        double along[PANEL];
        for (int64_t i = 0; i < j - from; i++)
            along[i] = CB_TYPED(dot)(x + (from + i) * n + j, v + j, n - j);
        for (int64_t i = 0; i < j - from; i++) {
            double sum = 0;
            for (int64_t k = i; k < j - from; k++) sum += (double)t[i * b + k] * along[k];
            t[i * b + j - from] = (real)(-tau * sum);
            t[(j - from) * b + i] = 0;
        }
        t[(j - from) * b + j - from] = (real)tau;
    }
}

static void CB_TYPED(take_off)(void *data, const void *other, int64_t at, int64_t n) {
    real *restrict x = (real *)data + at;
    const real *restrict y = (const real *)other + at;
    for (int64_t i = 0; i < n; i++) x[i] -= y[i];
}

static void CB_TYPED(identity)(void *data, int64_t n) {
    real *x = data;
    memset(x, 0, (size_t)(n * n) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i * n + i] = 1;
}
