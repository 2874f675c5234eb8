/* kern_window.h: depthwise convolutions with a window of 3 x 3 and stride 1, for kern_depthwise.h.
 * A row of the frame is loaded once for the three rows of outputs that read it, where the loops for
 * any window load it once for each. The sums are the same, in the same order. A template: included
 * with REAL_BITS 32 and 64. */
#ifndef WINDOW
#define WINDOW 3
#define WINDOW_TAPS (WINDOW * WINDOW)

static bool is_window(const conv *c) {
    return c->kh == WINDOW && c->kw == WINDOW && c->stride_h == 1 && c->stride_w == 1 &&
           c->dilation_h == 1;
}
#endif

/* Computes `width` vectors of each of `rows` rows of sums, both compile-time constants. Row i reads
 * rows i to i+2 of the frame, counted from the first tap's in the direction of the taps. */
GEMM_INLINE void CB_TYPED(window_rows)(int rows, int width, const CB_TYPED(plane) * p, int64_t at,
                                       CB_TYPED(gemm_vector) * sum) {
    const CB_REAL *from = p->frame + at + p->place[0], *weight = p->weight;
    const int64_t right = p->place[1] - p->place[0], down = p->place[WINDOW] - p->place[0];
    GEMM_UNROLL for (int row = 0; row < rows + WINDOW - 1; row++) {
        GEMM_UNROLL for (int k = 0; k < WINDOW * width; k++) {
            const int column = k / width, v = k % width;
            CB_TYPED(gemm_vector) x;
            memcpy(&x, from + row * down + column * right + v * DEPTHWISE_VECTOR, sizeof x);
            GEMM_UNROLL for (int i = 0; i < WINDOW; i++) {
                const int to = row - i;
                if (to < 0 || to >= rows) continue;
                sum[to * width + v] =
                    CB_TYPED(gemm_fma)(weight[i * WINDOW + column], x, sum[to * width + v]);
            }
        }
    }
}

/* ---- weight gradient ------------------------------------------------------------------------- */

/* The operands of a weight gradient, for one vector of its lanes. */
typedef struct CB_TYPED(window) {
    const CB_REAL *x, *g;          /* the frame; the rows of g */
    int64_t row, step, right;      /* elements between rows of x and of g; between taps */
    int64_t last;                  /* the element of a row of g where its last lanes begin */
    CB_TYPED(depthwise_bits) mask; /* the lanes that exist there */
    const char *ahead[2];          /* rows of x and g that come next, to be loaded into the cache */
    int64_t bytes[2];
} CB_TYPED(window);

/* Adds the products of a row of the frame with the rows of g that meet it at the taps of rows low
 * .. high of the window, which are compile-time constants. */
GEMM_INLINE void CB_TYPED(window_products)(int low, int high, const CB_TYPED(window) * w,
                                           int64_t row, CB_TYPED(gemm_vector) * sum) {
    const CB_REAL *from = w->x + row * w->row, *g = w->g + row * w->step;
    for (int64_t at = 0; at <= w->last; at += CB_DEPTHWISE_LANES) {
        GEMM_UNROLL for (int column = 0; column < WINDOW; column++) {
            CB_TYPED(gemm_vector) a, b;
            memcpy(&b, from + at + column * w->right, sizeof b);
            if (at == w->last) b = (CB_TYPED(gemm_vector))((CB_TYPED(depthwise_bits))b & w->mask);
            GEMM_UNROLL for (int i = low; i <= high; i++) {
                memcpy(&a, g + at - i * w->step, sizeof a);
                sum[i * WINDOW + column] = CB_TYPED(gemm_fma_each)(a, b, sum[i * WINDOW + column]);
            }
        }
    }
}

/* Does the same for a row of the frame that some rows of the window do not meet. */
static __attribute__((noinline)) void CB_TYPED(window_edge)(const CB_TYPED(window) * w, int64_t row,
                                                            int64_t rows,
                                                            CB_TYPED(gemm_vector) * sum) {
    const int low = row < rows ? 0 : (int)(row - rows + 1), high = row < WINDOW ? (int)row : 2;
    if (low == 0 && high == 0) CB_TYPED(window_products)(0, 0, w, row, sum);
    else if (low == 0) CB_TYPED(window_products)(0, 1, w, row, sum);
    else if (low == 1 && high == 1) CB_TYPED(window_products)(1, 1, w, row, sum);
    else if (low == 1) CB_TYPED(window_products)(1, 2, w, row, sum);
    else CB_TYPED(window_products)(2, 2, w, row, sum);
}

/* Sums the products of `rows` rows of g and the frame for each column. */
static void CB_TYPED(window_sums)(const CB_TYPED(window) * w, int64_t rows,
                                  CB_TYPED(gemm_vector) * out) {
    CB_TYPED(gemm_vector) sum[WINDOW_TAPS] = {0};
    int64_t row = 0;
    for (; row < WINDOW - 1; row++) CB_TYPED(window_edge)(w, row, rows, out);
    memcpy(sum, out, sizeof sum);
    for (; row < rows; row++) {
        for (int k = 0; k < 2; k++) prefetch_run(w->ahead[k] + row * w->bytes[k], w->bytes[k]);
        CB_TYPED(window_products)(0, WINDOW - 1, w, row, sum);
    }
    memcpy(out, sum, sizeof sum);
    for (; row < rows + WINDOW - 1; row++) CB_TYPED(window_edge)(w, row, rows, out);
}
