/* Householder QR decomposition by panels of PANEL rows. The reflections of a panel, the rows of V,
 * are together I - V^T T V, so all work outside of the panels is matrix products. A reflection is
 * stored in place of the row that it reduces, at full length, with zeros before the diagonal.
 * Reflections are orthonormal for any input, so linearly dependent rows, such as those of the first
 * gradients, need no special case. */
#include <math.h>
#include <string.h>

#include "spectral.h"

#define CB_PIECE ((int64_t)1 << 14)
enum { PANEL = 32 };

#define CB_IMPL "orthonormal_impl.h"
#include "both_reals.h"

typedef struct work {
    const cb_optim_products *products;
    cb_threads *pool;
    cb_dtype dtype;
    size_t size;
    int64_t n;
    char *along, *turned; /* [n][PANEL] */
    char *change;         /* [n][n] */
    char *t;              /* [n][PANEL] the matrices T of all panels */
} work;

typedef struct difference {
    const work *w;
    void *x;
    int64_t n;
} difference;

size_t cb_orthonormal_scratch(int64_t n) {
    return (size_t)(n * n) + 3 * (size_t)n * PANEL + (size_t)PANEL * PANEL;
}

static void difference_task(void *user, int64_t task, int thread) {
    const difference *d = user;
    const int64_t at = task * CB_PIECE, n = d->n - at < CB_PIECE ? d->n - at : CB_PIECE;
    (void)thread;
    CB_OF_TYPE(d->w->dtype, take_off, d->x, d->w->change, at, n);
}

/* x <- x - x V^T T V for rows x [m, n]; uses T^T if `transposed`. */
static void reflect(const work *w, void *x, int64_t m, const void *v, int64_t b, const void *t,
                    bool transposed) {
    const cb_optim_product all[] = {
        {x, v, w->along, 1, m, w->n, b, w->dtype, false, true},
        {w->along, t, w->turned, 1, m, b, b, w->dtype, false, transposed},
        {w->turned, v, w->change, 1, m, b, w->n, w->dtype, false, false}};
    difference d = {w, x, m * w->n};
    if (m == 0) return;
    for (int k = 0; k < 3; k++) w->products->multiply(w->products, w->pool, &all[k]);
    cb_parallel(w->pool, (d.n + CB_PIECE - 1) / CB_PIECE, difference_task, &d);
}

void cb_orthonormal_rows(const cb_optim_products *products, cb_threads *pool, cb_dtype dtype,
                         int64_t n, void *x, void *out, void *scratch) {
    const size_t size = cb_dtype_size(dtype), line = (size_t)n * size;
    work w = {.products = products, .pool = pool, .dtype = dtype, .size = size, .n = n};
    w.change = scratch;
    w.along = w.change + (size_t)n * line;
    w.turned = w.along + line * PANEL;
    w.t = w.turned + line * PANEL;
    for (int64_t from = 0; from < n; from += PANEL) {
        const int64_t to = from + PANEL < n ? from + PANEL : n;
        char *v = (char *)x + (size_t)from * line, *t = w.t + (size_t)from * PANEL * size;
        CB_OF_TYPE(dtype, panel, x, n, from, to, (void *)t);
        reflect(&w, (char *)x + (size_t)to * line, n - to, v, to - from, t, false);
    }
    CB_OF_TYPE(dtype, identity, out, n);
    for (int64_t from = (n - 1) / PANEL * PANEL; from >= 0; from -= PANEL) {
        const int64_t to = from + PANEL < n ? from + PANEL : n;
        char *v = (char *)x + (size_t)from * line, *t = w.t + (size_t)from * PANEL * size;
        reflect(&w, (char *)out + (size_t)from * line, n - from, v, to - from, t, true);
    }
}
