/* Householder's reduction to three diagonals, then the QL algorithm with implicit shifts, in
 * double. Eigenvectors are rows, so that each loop runs along memory. Their rotations, which
 * nothing waits for, are noted, and many sweeps of them done at once to COLUMNS of all vectors:
 * these stay in a near cache, where a sweep over whole vectors would read all of them from
 * memory. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "spectral.h"

enum { MOST_TURNS = 60 }; /* for one eigenvalue; two or three are usual */
enum { COLUMNS = 32, SWEEPS = 16 };

typedef struct rotation { /* of vectors i and i + 1 */
    double c, s;
    int64_t i;
} rotation;

typedef struct work {
    int64_t n;
    double *a;       /* [n][n] the matrix, then Householder's vectors, each right of its diagonal */
    double *z;       /* [n][n] rows: vectors */
    double *d, *e;   /* [n] the diagonal, and the one beside it */
    double *tau, *w; /* [n] */
    rotation *noted; /* [SWEEPS n] */
    int64_t n_noted;
} work;

size_t cb_eigenvectors_scratch(int64_t n) {
    const size_t of_rotations = SWEEPS * (sizeof(rotation) / sizeof(double));
    return 2 * (size_t)(n * n) + (4 + of_rotations) * (size_t)n;
}

static double dot(const double *x, const double *y, int64_t n) {
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int k = 0; k < 4; k++) sum[k] += x[i + k] * y[i + k];
    }
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void add(double *restrict x, double by, const double *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += by * y[i];
}

/* Makes row k of what is left end right of its diagonal, from both sides. */
static void reduce(work *x, int64_t k) {
    const int64_t n = x->n, left = n - k - 1;
    double *v = x->a + k * n + k + 1, *w = x->w;
    const double norm = sqrt(dot(v, v, left)), alpha = v[0] > 0 ? -norm : norm;
    x->d[k] = x->a[k * n + k];
    x->e[k] = alpha;
    x->tau[k] = 0;
    if (norm == 0) return;
    v[0] -= alpha;
    const double tau = x->tau[k] = 2 / dot(v, v, left);
    for (int64_t i = 0; i < left; i++) w[i] = tau * dot(x->a + (k + 1 + i) * n + k + 1, v, left);
    add(w, -tau / 2 * dot(w, v, left), v, left);
    for (int64_t i = 0; i < left; i++) {
        double *row = x->a + (k + 1 + i) * n + k + 1;
        add(row, -v[i], w, left);
        add(row, -w[i], v, left);
    }
}

static void tridiagonal(work *x) {
    const int64_t n = x->n;
    for (int64_t k = 0; k < n - 1; k++) reduce(x, k);
    x->d[n - 1] = x->a[n * n - 1];
    x->e[n - 1] = 0;
    memset(x->z, 0, (size_t)(n * n) * sizeof *x->z);
    for (int64_t i = 0; i < n; i++) x->z[i * n + i] = 1;
    for (int64_t k = n - 2; k >= 0; k--) {
        const double *v = x->a + k * n + k + 1;
        for (int64_t i = k + 1; x->tau[k] != 0 && i < n; i++) {
            double *row = x->z + i * n + k + 1;
            add(row, -x->tau[k] * dot(row, v, n - k - 1), v, n - k - 1);
        }
    }
}

static void rotate(double *restrict low, double *restrict high, double c, double s, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const double h = high[i];
        high[i] = s * low[i] + c * h;
        low[i] = c * low[i] - s * h;
    }
}

static void rotate_noted(work *x) {
    for (int64_t at = 0; at < x->n; at += COLUMNS) {
        const int64_t n = x->n - at < COLUMNS ? x->n - at : COLUMNS;
        for (int64_t k = 0; k < x->n_noted; k++) {
            const rotation *r = &x->noted[k];
            double *low = x->z + r->i * x->n + at;
            rotate(low, low + x->n, r->c, r->s, n);
        }
    }
    x->n_noted = 0;
}

/* Where the block that begins at l ends: the number beside the diagonal is nothing there. */
static int64_t end_of_block(const work *x, int64_t l) {
    int64_t m = l;
    while (m < x->n - 1 && fabs(x->e[m]) > DBL_EPSILON * (fabs(x->d[m]) + fabs(x->d[m + 1]))) m++;
    return m;
}

/* One sweep from m up to l. */
static void sweep(work *x, int64_t l, int64_t m) {
    double *d = x->d, *e = x->e, s = 1, c = 1, p = 0;
    const double half = (d[l + 1] - d[l]) / (2 * e[l]), root = sqrt(half * half + 1);
    double g = d[m] - d[l] + e[l] / (half + copysign(root, half));
    for (int64_t i = m - 1; i >= l; i--) {
        const double f = s * e[i], b = c * e[i], r = sqrt(f * f + g * g);
        e[i + 1] = r;
        if (r == 0) {
            d[i + 1] -= p;
            e[m] = 0;
            return;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        const double t = (d[i] - g) * s + 2 * c * b;
        p = s * t;
        d[i + 1] = g + p;
        g = c * t - b;
        x->noted[x->n_noted++] = (rotation){c, s, i};
    }
    d[l] -= p;
    e[l] = g;
    e[m] = 0;
}

static void diagonal(work *x) {
    for (int64_t l = 0; l < x->n; l++) {
        for (int turn = 0; turn < MOST_TURNS; turn++) {
            const int64_t m = end_of_block(x, l);
            if (m == l) break;
            if (x->n_noted > (SWEEPS - 1) * x->n) rotate_noted(x);
            sweep(x, l, m);
        }
    }
    rotate_noted(x);
}

/* The matrix over its largest element; false: that is 0 or not finite. */
static bool take(work *x, cb_dtype dtype, const void *matrix) {
    const int64_t n = x->n * x->n;
    double most = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        x->a[i] =
            dtype == CB_F32 ? (double)((const float *)matrix)[i] : ((const double *)matrix)[i];
        most = fmax(most, fabs(x->a[i]));
        all += x->a[i] - x->a[i]; /* NaN where one is not finite */
    }
    if (most == 0 || isnan(all)) return false;
    for (int64_t i = 0; i < n; i++) x->a[i] /= most;
    return true;
}

static void give(const work *x, cb_dtype dtype, int64_t from, int64_t to, void *vectors) {
    for (int64_t i = 0; i < x->n; i++) {
        const double v = x->z[from * x->n + i];
        if (dtype == CB_F32) ((float *)vectors)[to * x->n + i] = (float)v;
        else ((double *)vectors)[to * x->n + i] = v;
    }
}

void cb_eigenvectors(cb_dtype dtype, int64_t n, const void *matrix, void *vectors,
                     double *scratch) {
    work x = {.n = n, .a = scratch, .z = scratch + n * n};
    x.d = x.z + n * n;
    x.e = x.d + n;
    x.tau = x.e + n;
    x.w = x.tau + n;
    x.noted = (rotation *)(void *)(x.w + n);
    if (!take(&x, dtype, matrix)) memset(x.a, 0, (size_t)(n * n) * sizeof *x.a);
    tridiagonal(&x);
    diagonal(&x);
    for (int64_t i = 0; i < n; i++) { /* the largest of those that are left; d counts them off */
        int64_t best = 0;
        for (int64_t k = 1; k < n; k++) best = x.d[k] > x.d[best] ? k : best;
        give(&x, dtype, best, i, vectors);
        x.d[best] = -INFINITY;
    }
}
