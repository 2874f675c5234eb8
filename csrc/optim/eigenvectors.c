/* Householder's reduction to tridiagonal form, then the QL algorithm with implicit shifts, in
 * double. Work is divided over threads by size only.
 *
 * The update of the matrix by a reflection is delayed until the matrix is multiplied by the next
 * reflection, so each reflection reads the matrix once. Eigenvectors are rows, so every loop is
 * contiguous. A task applies all reflections to a few of them. QL rotations of the eigenvectors are
 * recorded, and those of many sweeps are applied at once to CB_ROTATED columns of all vectors,
 * which stay in a close cache. Each sweep over whole vectors would read them from memory. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "../base/cpu.h"
#include "../base/dtype.h"
#include "../base/ints.h"
#include "eigen_loops.h"
#include "spectral.h"

/* maximum number of sweeps for one eigenvalue; two or three are usual */
enum { MOST_TURNS = 60 };
enum { SWEEPS = 16, VECTORS = 8 };  /* sweeps that are recorded; vectors of a task */
#define CB_SHARE ((int64_t)1 << 15) /* minimum number of elements of the matrix in one task */

extern const cb_eigen_fns cb_eigen_fns_baseline;
#if defined(__x86_64__)
extern const cb_eigen_fns cb_eigen_fns_avx2, cb_eigen_fns_avx512;
static const cb_eigen_fns *const tables[CB_ISA_COUNT] = {&cb_eigen_fns_baseline, &cb_eigen_fns_avx2,
                                                         &cb_eigen_fns_avx512};
#else
static const cb_eigen_fns *const tables[CB_ISA_COUNT] = {&cb_eigen_fns_baseline};
#endif

typedef struct work {
    const cb_eigen_fns *f;
    cb_threads *pool;
    int64_t n, stride;
    int64_t k;     /* the row of the current reflection */
    double *a;     /* [n][stride] the matrix; later reflections, right of its diagonal */
    double *z;     /* [n][stride] the eigenvectors, as rows */
    double *d, *e; /* [n] the diagonal and the off-diagonal */
    double *tau, *w,
        *left;          /* [n] left: w of the previous reflection, whose v w^T + w v^T has not yet
                               been subtracted */
    cb_rotation *noted; /* [SWEEPS n] recorded rotations */
    int64_t n_noted;
} work;

/* An odd number of cache lines. With a power of two, the elements of a column would map to few
 * cache sets. */
static int64_t stride_of(int64_t n) { return ((n + 7) / 8 | 1) * 8; }

size_t cb_eigenvectors_scratch(int64_t n) {
    const size_t of_rotations = SWEEPS * (sizeof(cb_rotation) / sizeof(double));
    return 2 * (size_t)(n * stride_of(n)) + (5 + of_rotations) * (size_t)n;
}

static int64_t rows_of_task(int64_t width) { return width < CB_SHARE ? CB_SHARE / width : 1; }

/* Subtracts the previous reflection's update from row i, from column `at` on. Returns the dot
 * product with row k there. */
static double take_off(const work *x, int64_t i, int64_t at) {
    /* zeros in the first step */
    const double *old = x->k ? x->a + (x->k - 1) * x->stride : x->left;
    return x->f->reduce(x->a + i * x->stride + at, old[i], x->left + at, x->left[i], old + at,
                        x->a + x->k * x->stride + at, x->n - at);
}

static void reduce_task(void *user, int64_t task, int thread) {
    const work *x = user;
    const int64_t at = x->k + 1, rows = rows_of_task(x->n - at), from = at + task * rows;
    (void)thread;
    for (int64_t i = from; i < min_i64(from + rows, x->n); i++)
        x->w[i] = x->tau[x->k] * take_off(x, i, at);
}

/* Applies the reflection of row k from both sides, which zeroes the row beyond its off-diagonal. */
static void reduce(work *x, int64_t k) {
    const int64_t n = x->n, width = n - k - 1;
    double *row = x->a + k * x->stride, *v = row + k + 1;
    x->k = k;
    take_off(x, k, k);
    x->d[k] = row[k];
    x->e[k] = x->tau[k] = 0;
    if (width == 0) return;
    const double norm = sqrt(x->f->dot(v, v, width)), alpha = v[0] > 0 ? -norm : norm;
    x->e[k] = alpha;
    v[0] -= alpha;
    if (norm != 0) x->tau[k] = 2 / x->f->dot(v, v, width);
    cb_parallel(x->pool, div_up(width, rows_of_task(width)), reduce_task, x);
    double *w = x->w;
    x->f->add(w + k + 1, -x->tau[k] / 2 * x->f->dot(w + k + 1, v, width), v, width);
    x->w = x->left;
    x->left = w;
}

/* Applies the reflections, last one first, to VECTORS rows of the identity. */
static void turn_task(void *user, int64_t task, int thread) {
    const work *x = user;
    const int64_t n = x->n, from = task * VECTORS, to = min_i64(from + VECTORS, n);
    (void)thread;
    for (int64_t i = from; i < to; i++) {
        memset(x->z + i * x->stride, 0, (size_t)n * sizeof *x->z);
        x->z[i * x->stride + i] = 1;
    }
    for (int64_t k = to - 2; k >= 0; k--) {
        const double *v = x->a + k * x->stride + k + 1;
        for (int64_t i = from > k ? from : k + 1; x->tau[k] != 0 && i < to; i++) {
            double *row = x->z + i * x->stride + k + 1;
            x->f->add(row, -x->tau[k] * x->f->dot(row, v, n - k - 1), v, n - k - 1);
        }
    }
}

static void tridiagonal(work *x) {
    memset(x->left, 0, (size_t)x->n * sizeof *x->left);
    for (int64_t k = 0; k < x->n; k++) reduce(x, k);
    cb_parallel(x->pool, div_up(x->n, VECTORS), turn_task, x);
}

static void rotate_task(void *user, int64_t task, int thread) {
    const work *x = user;
    const int64_t at = task * CB_ROTATED;
    (void)thread;
    x->f->rotate(x->noted, x->n_noted, x->z + at, x->stride, min_i64(x->n - at, CB_ROTATED));
}

static void rotate_noted(work *x) {
    cb_parallel(x->pool, div_up(x->n, CB_ROTATED), rotate_task, x);
    x->n_noted = 0;
}

/* Returns the last row of the block that begins at row l: its off-diagonal is negligible. */
static int64_t end_of_block(const work *x, int64_t l) {
    int64_t m = l;
    while (m < x->n - 1 && fabs(x->e[m]) > DBL_EPSILON * (fabs(x->d[m]) + fabs(x->d[m + 1]))) m++;
    return m;
}

/* Makes one QL sweep, from row m up to row l. */
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
        x->noted[x->n_noted++] = (cb_rotation){c, s, i};
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

/* Copies the matrix, divided by its largest magnitude; zeros if an element is not finite. */
static void take(work *x, cb_dtype dtype, const void *matrix) {
    const int64_t n = x->n;
    double most = 0, all = 0;
    for (int64_t i = 0; i < n * n; i++) {
        const double v =
            dtype == CB_F32 ? (double)((const float *)matrix)[i] : ((const double *)matrix)[i];
        x->a[i / n * x->stride + i % n] = v;
        most = fmax(most, fabs(v));
        all += v - v; /* becomes NaN if an element is not finite */
    }
    const bool fits = most > 0 && !isnan(all);
    for (int64_t i = 0; i < n; i++) {
        double *row = x->a + i * x->stride;
        for (int64_t k = 0; k < n; k++) row[k] = fits ? row[k] / most : 0;
    }
}

static void give(const work *x, cb_dtype dtype, int64_t from, int64_t to, void *vectors) {
    for (int64_t i = 0; i < x->n; i++) {
        const double v = x->z[from * x->stride + i];
        if (dtype == CB_F32) ((float *)vectors)[to * x->n + i] = (float)v;
        else ((double *)vectors)[to * x->n + i] = v;
    }
}

void cb_eigenvectors(cb_threads *pool, cb_dtype dtype, int64_t n, const void *matrix, void *vectors,
                     double *scratch) {
    work x = {.f = tables[cb_cpu_kernel_isa()],
              .pool = pool,
              .n = n,
              .stride = stride_of(n),
              .a = scratch};
    x.z = x.a + n * x.stride;
    x.d = x.z + n * x.stride;
    x.e = x.d + n;
    x.tau = x.e + n;
    x.w = x.tau + n;
    x.left = x.w + n;
    x.noted = (cb_rotation *)(void *)(x.left + n);
    take(&x, dtype, matrix);
    tridiagonal(&x);
    diagonal(&x);
    for (int64_t i = 0; i < n; i++) { /* selects the largest remaining eigenvalue */
        int64_t best = 0;
        for (int64_t k = 1; k < n; k++) best = x.d[k] > x.d[best] ? k : best;
        give(&x, dtype, best, i, vectors);
        x.d[best] = -INFINITY;
    }
}
