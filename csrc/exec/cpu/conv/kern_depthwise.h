/* kern_depthwise.h: convolutions whose groups have one input channel and few outputs, for
 * kern_conv.c. A product of one row would use a fraction of a vector, so these are loops over the
 * rows of a plane, on frames (kern_frame.h) that fit on the stack and need no scratch. A template:
 * included with REAL_BITS 32 and 64.
 *
 *     forward           y[row][x]  = sum over taps of w[tap] frame[row][x + tap], from tap 0 on
 *     data gradient     stride 1 and one output: the same with g as x and the taps flipped;
 *                       else w[tap] g[row][x] is added to a frame of dx, output row by output row
 *     weight gradient   dw[tap] = sum of g x in CB_DEPTHWISE_LANES lanes, folded for each band of
 *                       rows and added up in the order of bands and images
 *
 * Windows of 3 x 3 with stride 1 have faster loops, which add in the same order (kern_window.h).
 * Multiply-adds are fused. The order of sums depends only on shapes. */
#undef CB_REAL
#undef CB_TYPED
#if REAL_BITS == 32
#define CB_REAL float
#define CB_TYPED(name) name##_f32
#else
#define CB_REAL double
#define CB_TYPED(name) name##_f64
#endif

#ifndef CB_DEPTHWISE_LANES
#define CB_DEPTHWISE_LANES 16 /* lanes of the weight gradient's sums, the same on every machine */
#define DEPTHWISE_ROWS 4      /* output rows that are computed at a time */
#define DEPTHWISE_WIDTH 2     /* vectors of each row: with fewer sums, their latency shows */
#if GEMM_VECTOR == 64
#define DEPTHWISE_TAPS 9 /* taps of the weight gradient at a time: their lanes stay in registers */
#else
#define DEPTHWISE_TAPS 3
#endif
#define DEPTHWISE_VECTOR_MOST (GEMM_VECTOR / (int)sizeof(float))

static tile plane_tile(const conv *c, int64_t image, int64_t row, int64_t rows) {
    return (tile){.image = image,
                  .n_images = 1,
                  .pixel = row * c->ow,
                  .n_pixels = rows * c->ow,
                  .columns = rows * c->ow};
}

/* Returns the band of rows that follows; after the last one of an image, the next image's first. */
static tile next_tile(const conv *c, const tile *t) {
    const int64_t next = t->pixel + t->n_pixels;
    return (tile){.image = t->image + (next == c->pixels), .pixel = next == c->pixels ? 0 : next};
}

/* Loads memory of the next plane, which is read or written after this one, into the cache. */
static inline void prefetch_run(const char *from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}
#endif

#undef DEPTHWISE_VECTOR
#define DEPTHWISE_VECTOR ((int64_t)(GEMM_VECTOR / sizeof(CB_REAL)))
#define DEPTHWISE_VECTORS ((int)(CB_DEPTHWISE_LANES * sizeof(CB_REAL) / GEMM_VECTOR))

#if REAL_BITS == 32
typedef int32_t depthwise_bits_f32 __attribute__((vector_size(GEMM_VECTOR)));
#else
typedef int64_t depthwise_bits_f64 __attribute__((vector_size(GEMM_VECTOR)));
#endif

/* The working memory of a task, on its stack. */
typedef struct CB_TYPED(plane) {
    _Alignas(GEMM_VECTOR) CB_REAL frame[CB_DEPTHWISE_BYTES / sizeof(CB_REAL)];
    CB_REAL weight[CB_DEPTHWISE_TAPS];
    int64_t place[CB_DEPTHWISE_TAPS];
    const conv *c;
    frame f;
    int64_t step;   /* elements of the frame between output rows */
    bool is_window; /* kern_window.h applies */
} CB_TYPED(plane);

#include "kern_window.h"

/* Returns the number of output rows whose frame fits. */
static int64_t CB_TYPED(band_rows)(const conv *c) {
    const tile one = {.n_images = 1, .n_pixels = c->ow};
    const frame f = frame_of(c, &one, 0, c->area);
    const int64_t room =
        (int64_t)(CB_DEPTHWISE_BYTES / sizeof(CB_REAL)) - CB_DEPTHWISE_SLACK - f.rows * f.row;
    return 1 + room / (c->stride_h * f.row);
}

/* Stores the first n elements of a vector, where n is less than its length, with few stores of
 * fixed sizes. */
static inline void CB_TYPED(store_some)(CB_REAL *to, const CB_REAL *from, int64_t n) {
    for (int64_t size = DEPTHWISE_VECTOR / 2; size > 0; size /= 2) {
        if (!(n & size)) continue;
        for (int64_t i = 0; i < size; i++) to[i] = from[i];
        to += size, from += size;
    }
}

static void CB_TYPED(describe_plane)(const conv *c, const tile *t, CB_TYPED(plane) * p) {
    p->c = c;
    p->f = frame_of(c, t, 0, c->area);
    p->step = c->stride_h * p->f.row;
    p->is_window = is_window(c);
    tap_places(c, &p->f, 0, c->area, p->place);
}

static void CB_TYPED(read_taps)(const conv *c, int64_t group, int64_t o, CB_REAL *to) {
    load_run(c, (char *)to, weight_at(c, group, o, 0), c->area, 1);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Computes `width` vectors of each of `rows` output rows for any window; both are compile-time
 * constants. */
GEMM_INLINE void CB_TYPED(any_rows)(int rows, int width, const CB_TYPED(plane) * p, int64_t at,
                                    CB_TYPED(gemm_vector) * sum) {
    for (int64_t k = 0; k < p->c->area; k++) {
        const CB_REAL *from = p->frame + at + p->place[k];
        GEMM_UNROLL for (int i = 0; i < rows * width; i++) {
            CB_TYPED(gemm_vector) x;
            memcpy(&x, from + i / width * p->step + i % width * DEPTHWISE_VECTOR, sizeof x);
            sum[i] = CB_TYPED(gemm_fma)(p->weight[k], x, sum[i]);
        }
    }
}

/* Computes `width` vectors of each of `rows` output rows, and stores `n` elements of each row.
 * `rows` and `width` are compile-time constants. */
GEMM_INLINE void CB_TYPED(depthwise_rows)(int rows, int width, const CB_TYPED(plane) * p,
                                          int64_t at, char *out, int64_t n) {
    const conv *c = p->c;
    /* The taps of a flipped window go up: its rows are computed from the last one on. */
    const bool is_up = p->is_window && p->place[WINDOW] < p->place[0];
    const int64_t line = (is_up ? -c->ow : c->ow) * (int64_t)c->element;
    CB_TYPED(gemm_vector) sum[DEPTHWISE_ROWS * DEPTHWISE_WIDTH];
    GEMM_UNROLL for (int i = 0; i < rows * width; i++) sum[i] = (CB_TYPED(gemm_vector)){0};
    if (is_up) at += (rows - 1) * p->step, out -= (rows - 1) * line;
    if (p->is_window) CB_TYPED(window_rows)(rows, width, p, at, sum);
    else CB_TYPED(any_rows)(rows, width, p, at, sum);
    GEMM_UNROLL for (int i = 0; i < rows * width; i++) {
        CB_REAL element[DEPTHWISE_VECTOR_MOST];
        const int64_t x = i % width * DEPTHWISE_VECTOR, left = min_i64(n - x, DEPTHWISE_VECTOR);
        memcpy(element, &sum[i], sizeof sum[i]);
        char *to = out + i / width * line + x * (int64_t)c->element;
        if (is_half(c->dtype)) store_run(c, to, (const char *)element, left);
        else if (left == DEPTHWISE_VECTOR) memcpy(to, &sum[i], sizeof sum[i]);
        else CB_TYPED(store_some)((CB_REAL *)to, element, left);
    }
}

/* Computes one output row, or DEPTHWISE_ROWS of them, from row `r` of the frame on. */
GEMM_INLINE void CB_TYPED(depthwise_lines)(int rows, const CB_TYPED(plane) * p, int64_t r,
                                           char *out) {
    const int64_t ow = p->c->ow, wide = DEPTHWISE_WIDTH * DEPTHWISE_VECTOR;
    const int64_t width = ow >= wide ? wide : DEPTHWISE_VECTOR;
    for (int64_t next = 0; next < ow; next += width) {
        /* The last vectors overlap those before them. */
        const int64_t x = max_i64(min_i64(next, ow - width), 0), n = min_i64(width, ow - x);
        char *to = out + (r * ow + x) * (int64_t)p->c->element;
        if (width == wide)
            CB_TYPED(depthwise_rows)(rows, DEPTHWISE_WIDTH, p, r * p->step + x, to, n);
        else CB_TYPED(depthwise_rows)(rows, 1, p, r * p->step + x, to, n);
    }
}

/* Computes output rows row .. row+rows of an image and a group. */
static void CB_TYPED(depthwise_band)(const conv *c, int64_t image, int64_t group, int64_t row,
                                     int64_t rows, CB_TYPED(plane) * p) {
    const tile t = plane_tile(c, image, row, rows);
    CB_TYPED(describe_plane)(c, &t, p);
    fill_frame(c, &t, group, &p->f, (char *)p->frame);
    const int64_t element = (int64_t)c->element, step = c->ow * element,
                  line = c->stride_h * c->w * element; /* of y and of the rows of x that it reads */
    const char *ahead = c->x + x_offset(c, image, group, 0) + (row + rows) * line;
    for (int64_t o = 0; o < c->cout; o++) {
        char *out = (char *)c->args->out[0].data + y_offset(c, &t, group, o);
        CB_TYPED(read_taps)(c, group, o, p->weight);
        int64_t r = 0;
        for (; r + DEPTHWISE_ROWS <= rows; r += DEPTHWISE_ROWS) {
            if (o == 0) prefetch_run(ahead + r * line, DEPTHWISE_ROWS * line);
            prefetch_run(out + (rows + r) * step, DEPTHWISE_ROWS * step);
            CB_TYPED(depthwise_lines)(DEPTHWISE_ROWS, p, r, out);
        }
        for (; r < rows; r++) CB_TYPED(depthwise_lines)(1, p, r, out);
    }
}

static void CB_TYPED(depthwise_forward)(const conv *c, int64_t unit) {
    CB_TYPED(plane) p;
    const int64_t band = min_i64(CB_TYPED(band_rows)(c), c->oh);
    for (int64_t row = 0; row < c->oh; row += band) CB_TYPED(depthwise_band)
    (c, unit / c->groups, unit % c->groups, row, min_i64(band, c->oh - row), &p);
}

/* ---- data gradient --------------------------------------------------------------------------- */

/* Adds n elements of a row of w[tap] g to the frame. */
static void CB_TYPED(scatter_row)(const CB_TYPED(plane) * p, CB_REAL *sums, int64_t area,
                                  const CB_REAL *g, int64_t n) {
    for (int64_t k = 0; k < area; k++) {
        CB_REAL *to = sums + p->place[k];
        for (int64_t x = 0; x < n; x += DEPTHWISE_VECTOR) {
            CB_TYPED(gemm_vector) sum, add;
            memcpy(&sum, to + x, sizeof sum);
            memcpy(&add, g + x, sizeof add);
            sum = CB_TYPED(gemm_fma)(p->weight[k], add, sum);
            if (n - x >= DEPTHWISE_VECTOR) {
                memcpy(to + x, &sum, sizeof sum);
            } else {
                CB_REAL element[DEPTHWISE_VECTOR_MOST];
                memcpy(element, &sum, sizeof sum);
                CB_TYPED(store_some)(to + x, element, n - x);
            }
        }
    }
}

/* Copies row iy of dx from the frame, or clears it if no output row reads it. */
static void CB_TYPED(gather_row)(const conv *c, const CB_TYPED(plane) * p, int64_t iy,
                                 CB_REAL *row) {
    const int64_t at = iy - p->f.top;
    memset(row, 0, (size_t)c->w * sizeof *row);
    if (at < 0 || at >= p->f.rows) return;
    for (int64_t rest = 0; rest < c->stride_w; rest++) {
        const phase ph = phase_of(c, &p->f, rest);
        const CB_REAL *from = p->frame + at * p->f.row + rest * p->f.phase;
        for (int64_t i = ph.first; i < ph.last; i++)
            row[ph.from + (i - ph.first) * c->stride_w] = from[i];
    }
}

/* Computes rows first .. last of dx: adds the contributions of all output rows that meet one of
 * them to one frame. */
static void CB_TYPED(scatter_band)(const conv *c, int64_t image, int64_t group, int64_t first,
                                   int64_t last, CB_TYPED(plane) * p, CB_REAL *row) {
    const int64_t reach = (c->kh - 1) * c->dilation_h;
    const int64_t low = max_i64(first + c->pad_h - reach, 0),
                  begin = min_i64(div_up(low, c->stride_h), c->oh),
                  end = clamp((last - 1 + c->pad_h) / c->stride_h + 1, begin, c->oh);
    const tile t = plane_tile(c, image, begin, end - begin);
    p->f.rows = 0;
    if (end > begin) {
        CB_TYPED(describe_plane)(c, &t, p);
        memset(p->frame, 0, (size_t)(p->f.plane + CB_DEPTHWISE_SLACK) * sizeof *p->frame);
    }
    for (int64_t o = 0; o < c->cout && end > begin; o++) {
        const char *g = c->y + y_offset(c, &t, group, o);
        CB_TYPED(read_taps)(c, group, o, p->weight);
        for (int64_t r = 0; r < end - begin; r++) {
            load_run(c, (char *)row, g + r * c->ow * (int64_t)c->element, c->ow, 1);
            CB_TYPED(scatter_row)(p, p->frame + r * p->step, c->area, row, c->ow);
        }
    }
    for (int64_t iy = first; iy < last; iy++) {
        const int64_t at = iy * c->w * (int64_t)c->element;
        CB_TYPED(gather_row)(c, p, iy, row);
        store_run(c, (char *)c->args->out[0].data + x_offset(c, image, group, 0) + at,
                  (const char *)row, c->w);
    }
}

static void CB_TYPED(depthwise_scatter)(const conv *c, int64_t unit) {
    CB_TYPED(plane) p;
    CB_REAL row[CB_DEPTHWISE_ROW + CB_DEPTHWISE_SLACK] = {0};
    const int64_t reach = (c->kh - 1) * c->dilation_h + c->stride_h, rows = CB_TYPED(band_rows)(c),
                  band = rows >= c->oh ? c->h : max_i64(rows * c->stride_h - 2 * reach, 1);
    for (int64_t first = 0; first < c->h; first += band) CB_TYPED(scatter_band)
    (c, unit / c->groups, unit % c->groups, first, min_i64(first + band, c->h), &p, row);
}

/* ---- weight gradient ------------------------------------------------------------------------- */

typedef struct CB_TYPED(sums) {
    CB_TYPED(gemm_vector) lane[DEPTHWISE_VECTORS];
} CB_TYPED(sums);

/* The rows of g in a band, padded with zeros to whole lanes, and a mask of the last lanes. Elements
 * of the frame beyond a row may be infinite, so they must not be multiplied by those zeros. */
typedef struct CB_TYPED(gradients) {
    _Alignas(GEMM_VECTOR) CB_REAL at[CB_DEPTHWISE_BYTES / 2 / sizeof(CB_REAL)];
    int64_t step;
    CB_TYPED(depthwise_bits) mask[DEPTHWISE_VECTORS];
} CB_TYPED(gradients);

static void CB_TYPED(read_gradients)(const conv *c, const char *from, int64_t rows,
                                     CB_TYPED(gradients) * g) {
    for (int64_t r = 0; r < rows; r++) {
        CB_REAL *to = g->at + r * g->step;
        memset(to + g->step - CB_DEPTHWISE_LANES, 0, CB_DEPTHWISE_LANES * sizeof *to);
        copy_row(c, (char *)to, from + r * c->ow * (int64_t)c->element, c->ow);
    }
}

/* Adds one vector of lanes at x for `taps` taps from k on; `taps` is a compile-time constant. */
static inline __attribute__((always_inline)) void
CB_TYPED(correlate_lanes)(int taps, bool is_last, const CB_REAL *x, const int64_t *place,
                          const CB_REAL *g, const CB_TYPED(depthwise_bits) * mask,
                          CB_TYPED(sums) * sum) {
    GEMM_UNROLL for (int v = 0; v < DEPTHWISE_VECTORS; v++) {
        CB_TYPED(gemm_vector) a, b;
        memcpy(&a, g + v * DEPTHWISE_VECTOR, sizeof a);
        GEMM_UNROLL for (int i = 0; i < taps; i++) {
            memcpy(&b, x + place[i] + v * DEPTHWISE_VECTOR, sizeof b);
            if (is_last) b = (CB_TYPED(gemm_vector))((CB_TYPED(depthwise_bits))b & mask[v]);
            sum[i].lane[v] = CB_TYPED(gemm_fma_each)(a, b, sum[i].lane[v]);
        }
    }
}

/* Returns the sum of all lanes: halves are added until one lane is left. */
static inline __attribute__((always_inline)) CB_REAL CB_TYPED(fold_lanes)(const CB_TYPED(sums) *
                                                                          sum) {
    CB_TYPED(gemm_four) a[CB_DEPTHWISE_LANES / 4];
    memcpy(a, sum, sizeof a);
    a[0] = (a[0] + a[2]) + (a[1] + a[3]);
    a[0] += __builtin_shufflevector(a[0], a[0], 2, 3, 2, 3);
    return a[0][0] + a[0][1];
}

/* Adds the sums of g x over `rows` rows for `taps` taps from k on; `taps` is a compile-time
 * constant. */
static inline __attribute__((always_inline)) void
CB_TYPED(correlate)(int taps, const CB_TYPED(plane) * p, int64_t k, const CB_TYPED(gradients) * g,
                    int64_t rows, CB_REAL *out) {
    CB_TYPED(sums) sum[DEPTHWISE_TAPS] = {0};
    const int64_t last = g->step - CB_DEPTHWISE_LANES;
    for (int64_t r = 0; r < rows; r++) {
        const CB_REAL *b = p->frame + r * p->step, *a = g->at + r * g->step;
        for (int64_t x = 0; x < last; x += CB_DEPTHWISE_LANES)
            CB_TYPED(correlate_lanes)(taps, false, b + x, p->place + k, a + x, g->mask, sum);
        CB_TYPED(correlate_lanes)
        (taps, true, b + last, p->place + k, a + last, g->mask, sum);
    }
    GEMM_UNROLL for (int i = 0; i < taps; i++) out[i] += CB_TYPED(fold_lanes)(&sum[i]);
}

/* Adds the sums of g x over `rows` rows for all taps of a window of 3 x 3. One vector of lanes at a
 * time keeps the sums of all taps in registers. */
static void CB_TYPED(correlate_window)(const CB_TYPED(plane) * p, const CB_TYPED(gradients) * g,
                                       int64_t rows, const char *const ahead[2], CB_REAL *out) {
    const int64_t element = (int64_t)p->c->element;
    CB_TYPED(sums) sum[WINDOW_TAPS];
    for (int v = 0; v < DEPTHWISE_VECTORS; v++) {
        CB_TYPED(gemm_vector) lane[WINDOW_TAPS] = {0};
        const CB_TYPED(window)
            w = {.x = p->frame + v * DEPTHWISE_VECTOR,
                 .g = g->at + v * DEPTHWISE_VECTOR,
                 .row = p->f.row,
                 .step = g->step,
                 .right = p->place[1],
                 .last = g->step - CB_DEPTHWISE_LANES,
                 .mask = g->mask[v],
                 .ahead = {ahead[0], ahead[1]},
                 .bytes = {v == 0 ? p->c->w * element : 0, v == 0 ? p->c->ow * element : 0}};
        CB_TYPED(window_sums)(&w, rows, lane);
        for (int k = 0; k < WINDOW_TAPS; k++) sum[k].lane[v] = lane[k];
    }
    for (int k = 0; k < WINDOW_TAPS; k++) out[k] += CB_TYPED(fold_lanes)(&sum[k]);
}

/* Adds one band of an image to the sums [cout, area]. */
static void CB_TYPED(correlate_band)(const conv *c, int64_t group, const tile *t,
                                     CB_TYPED(plane) * p, CB_TYPED(gradients) * g, CB_REAL *sums) {
    const int64_t rows = t->n_pixels / c->ow, element = (int64_t)c->element;
    CB_TYPED(describe_plane)(c, t, p);
    fill_frame(c, t, group, &p->f, (char *)p->frame);
    for (int64_t o = 0; o < c->cout; o++) {
        CB_REAL *to = sums + o * c->area;
        int64_t k = 0;
        CB_TYPED(read_gradients)(c, c->y + y_offset(c, t, group, o), rows, g);
        if (p->is_window) {
            const tile after = next_tile(c, t);
            const char *const ahead[2] = {c->x + x_offset(c, after.image, group, 0) +
                                              after.pixel / c->ow * c->w * element,
                                          c->y + y_offset(c, &after, group, o)};
            CB_TYPED(correlate_window)(p, g, rows, ahead, to);
            continue;
        }
        for (; k + DEPTHWISE_TAPS <= c->area; k += DEPTHWISE_TAPS)
            CB_TYPED(correlate)(DEPTHWISE_TAPS, p, k, g, rows, to + k);
        for (; k < c->area; k++) CB_TYPED(correlate)(1, p, k, g, rows, to + k);
    }
}

static void CB_TYPED(depthwise_weights)(const conv *c, int64_t group) {
    CB_TYPED(plane) p;
    CB_TYPED(gradients) g;
    CB_REAL sums[CB_DEPTHWISE_OUTPUTS * CB_DEPTHWISE_TAPS] = {0};
    g.step = div_up(c->ow, CB_DEPTHWISE_LANES) * CB_DEPTHWISE_LANES;
    const int64_t room = (int64_t)(sizeof g.at / sizeof *g.at) / g.step,
                  band = min_i64(CB_TYPED(band_rows)(c), min_i64(room, c->oh)),
                  n = c->ow - (g.step - CB_DEPTHWISE_LANES);
    memset(g.mask, 0, sizeof g.mask);
    memset(g.mask, 0xFF, (size_t)n * sizeof(CB_REAL));
    for (int64_t image = 0; image < c->n; image++) {
        for (int64_t row = 0; row < c->oh; row += band) {
            const tile t = plane_tile(c, image, row, min_i64(band, c->oh - row));
            CB_TYPED(correlate_band)(c, group, &t, &p, &g, sums);
        }
    }
    char *out = (char *)c->args->out[0].data;
    store_run(c, out + group * c->cout * c->area * (int64_t)c->element, (const char *)sums,
              c->cout * c->area);
}
