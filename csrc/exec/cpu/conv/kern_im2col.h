/* kern_im2col.h: moves data between tensors and matrices, for kern_conv.c.
 *
 *     col[K, columns]   row (channel, i, j), column (image, pixel): the element of x that weight
 *                       (.., i, j) meets there, 0 where it meets padding
 *     [o, columns]      y or g, whose images are not adjacent in memory
 *
 * Elements are those of the compute type: 16-bit ones are widened on the way in and rounded on the
 * way out. */
#ifndef CB_EXEC_CPU_CONV_KERN_IM2COL_H
#define CB_EXEC_CPU_CONV_KERN_IM2COL_H

#include "../../../base/ints.h"
#include "../../../base/kern_half.h"
#include "../../../micro/vecmath.h"
#include "../../kernel.h"
#include "../../tiles.h"
#include "../gemm/gemm.h"

typedef struct conv {
    const cb_kernel_args *args;
    cb_gemm_region region;
    cb_conv_tiles tiles;
    cb_dtype dtype, compute;      /* dtype of the tensors; of the computation, F32 or F64 */
    size_t element, unit;         /* bytes per element of `dtype` and of `compute` */
    int64_t n, groups, cin, cout; /* channels of a group */
    int64_t h, w, kh, kw, oh, ow;
    int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int64_t area, window, pixels;  /* kh * kw, K, oh * ow */
    int64_t n_sets, n_pixel_tiles; /* tiles along images and along pixels */
    const char *x, *weight, *y;    /* the arguments; in a gradient op y is g */
    bool is_depthwise;             /* has separate kernels (kern_depthwise.h) */
    bool is_framed;                /* products read frames (kern_frame.h) */
    bool is_flipped;               /* a data gradient as a convolution of g: x is g, y is dx,
                                      weights are flipped */
} conv;

/* The columns of one tile. */
typedef struct tile {
    int64_t image, n_images, pixel, n_pixels, columns;
} tile;

/* The scratch of one task. */
typedef struct blocks {
    char *col;    /* [window, columns] */
    char *rows;   /* [channels, columns] of y or g */
    char *weight; /* [channels, window]; 16-bit types */
} blocks;

static tile tile_of(const conv *c, int64_t set, int64_t pixel_tile) {
    tile t = {.image = set * c->tiles.images, .pixel = pixel_tile * c->tiles.pixels};
    t.n_images = min_i64(c->tiles.images, c->n - t.image);
    t.n_pixels = min_i64(c->tiles.pixels, c->pixels - t.pixel);
    t.columns = t.n_images * t.n_pixels;
    return t;
}

/* True if a product may work on y (or g) in place. */
static bool is_in_place(const conv *c, const tile *t) {
    return t->n_images == 1 && !is_half(c->dtype);
}

/* Returns the bytes from the start of y to a channel of a group at the tile's first column. */
static int64_t y_offset(const conv *c, const tile *t, int64_t group, int64_t channel) {
    int64_t plane = (t->image * c->groups + group) * c->cout + channel;
    return (plane * c->pixels + t->pixel) * (int64_t)c->element;
}

static int64_t x_offset(const conv *c, int64_t image, int64_t group, int64_t channel) {
    return ((image * c->groups + group) * c->cin + channel) * c->h * c->w * (int64_t)c->element;
}

static const char *weight_at(const conv *c, int64_t group, int64_t channel, int64_t window) {
    return c->weight + ((group * c->cout + channel) * c->window + window) * (int64_t)c->element;
}

/* ---- moving data ----------------------------------------------------------------------------- */

/* Converts n stored elements, `stride` apart, to n elements of the compute type. */
static inline void load_run(const conv *c, char *to, const char *from, int64_t n, int64_t stride) {
    if (c->dtype == CB_F32) {
        const float *source = (const float *)from;
        for (int64_t i = 0; i < n; i++) ((float *)to)[i] = source[i * stride];
    } else if (c->dtype == CB_F64) {
        const double *source = (const double *)from;
        for (int64_t i = 0; i < n; i++) ((double *)to)[i] = source[i * stride];
    } else if (stride == 1) {
        half_widen(c->dtype, (const uint16_t *)from, (float *)to, n);
    } else {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = half_load(c->dtype, (const uint16_t *)from + i * stride);
    }
}

static inline void store_run(const conv *c, char *to, const char *from, int64_t n) {
    if (is_half(c->dtype)) {
        half_narrow(c->dtype, (const float *)from, (uint16_t *)to, n);
    } else {
        memcpy(to, from, (size_t)n * c->element);
    }
}

static inline void add_run(const conv *c, char *to, const char *from, int64_t n, int64_t stride) {
    if (c->dtype == CB_F64) {
        for (int64_t i = 0; i < n; i++) ((double *)to)[i * stride] += ((const double *)from)[i];
    } else {
        for (int64_t i = 0; i < n; i++) ((float *)to)[i * stride] += ((const float *)from)[i];
    }
}

/* Weight (i, j) of a channel, and the outputs along a row for which it meets an element rather than
 * padding. */
typedef struct tap {
    int64_t channel, dy, dx; /* input row = output row * stride_h + dy */
    int64_t low, high;       /* low <= output column < high */
} tap;

static tap tap_of(const conv *c, int64_t k) {
    int64_t place = k % c->area;
    tap t = {.channel = k / c->area,
             .dy = place / c->kw * c->dilation_h - c->pad_h,
             .dx = place % c->kw * c->dilation_w - c->pad_w};
    t.low = t.dx >= 0 ? 0 : min_i64(div_up(-t.dx, c->stride_w), c->ow);
    t.high = t.dx >= c->w ? 0 : min_i64(div_up(c->w - t.dx, c->stride_w), c->ow);
    t.high = max_i64(t.high, t.low);
    return t;
}

/* For stride 1, with rows of x and y of the same width, weight (dy, dx) meets element p + shift of
 * the plane at output pixel p, except in rows and columns of padding. So a tile is copied in one
 * piece, and its padding columns are cleared. Pixels low..high are in rows that meet x; of these,
 * from..to have p + shift inside the plane. */
typedef struct shifted {
    int64_t low, high, from, to, shift;
} shifted;

static bool is_shifted(const conv *c) {
    return c->stride_h == 1 && c->stride_w == 1 && c->ow == c->w;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return min_i64(max_i64(x, low), high);
}

static shifted shifted_of(const conv *c, const tap *at, const tile *t) {
    int64_t end = t->pixel + t->n_pixels;
    shifted s = {.shift = at->dy * c->w + at->dx};
    s.low = clamp(-at->dy * c->w, t->pixel, end);
    s.high = clamp((c->h - at->dy) * c->w, s.low, end);
    s.from = clamp(-s.shift, s.low, s.high);
    s.to = clamp(c->h * c->w - s.shift, s.from, s.high);
    return s;
}

static inline void clear(const conv *c, char *row, int64_t first, int64_t last, int64_t step) {
    if (c->compute == CB_F64) {
        for (int64_t i = first; i < last; i += step) ((double *)row)[i] = 0;
    } else {
        for (int64_t i = first; i < last; i += step) ((float *)row)[i] = 0;
    }
}

/* Clears the elements of padding columns; `row` is the tile's part of one image, so pixel p is its
 * element p - pixel. */
static void clear_columns(const conv *c, const tap *at, const shifted *s, const tile *t,
                          char *row) {
    int64_t column = s->low % c->w;
    for (int64_t x = 0; x < c->w; x++) {
        if (x == at->low) x = at->high;
        if (x == c->w) break;
        int64_t first = s->low + (x >= column ? x - column : x - column + c->w);
        clear(c, row, first - t->pixel, s->high - t->pixel, c->w);
    }
}

static char *copy_shifted(const conv *c, const tap *at, const tile *t, const char *plane,
                          char *row) {
    shifted s = shifted_of(c, at, t);
    int64_t p0 = t->pixel, unit = (int64_t)c->unit;
    clear(c, row, 0, s.low - p0, 1);
    clear(c, row, s.high - p0, t->n_pixels, 1);
    load_run(c, row + (s.from - p0) * unit, plane + (s.from + s.shift) * (int64_t)c->element,
             s.to - s.from, 1);
    clear_columns(c, at, &s, t, row);
    return row + t->n_pixels * unit;
}

/* Clears padding columns in `row`, which is scratch, so that the rest can be added in one piece. */
static char *add_shifted(const conv *c, const tap *at, const tile *t, char *plane, char *row) {
    shifted s = shifted_of(c, at, t);
    int64_t unit = (int64_t)c->unit;
    clear_columns(c, at, &s, t, row);
    add_run(c, plane + (s.from + s.shift) * unit, row + (s.from - t->pixel) * unit, s.to - s.from,
            1);
    return row + t->n_pixels * unit;
}

/* The part of one output row that is among pixels pixel..end of an image: columns first..last. Of
 * these, columns low..high read the input plane, from element `from` on. */
typedef struct stretch {
    int64_t first, last, low, high, from;
} stretch;

static inline stretch stretch_of(const conv *c, const tap *t, int64_t pixel, int64_t end) {
    int64_t row = pixel / c->ow, iy = row * c->stride_h + t->dy;
    stretch s = {.first = pixel - row * c->ow, .last = min_i64(end - row * c->ow, c->ow)};
    bool is_padding = iy < 0 || iy >= c->h;
    s.low = is_padding ? s.last : clamp(t->low, s.first, s.last);
    s.high = is_padding ? s.last : clamp(t->high, s.low, s.last);
    s.from = iy * c->w + s.low * c->stride_w + t->dx;
    return s;
}

/* Copies output row by output row; works for any strides and widths. */
static char *copy_rows(const conv *c, const tap *at, const tile *t, const char *plane, char *row) {
    int64_t unit = (int64_t)c->unit, end = t->pixel + t->n_pixels;
    for (int64_t p = t->pixel; p < end;) {
        stretch s = stretch_of(c, at, p, end);
        clear(c, row, 0, s.low - s.first, 1);
        clear(c, row, s.high - s.first, s.last - s.first, 1);
        if (s.high > s.low) {
            load_run(c, row + (s.low - s.first) * unit, plane + s.from * (int64_t)c->element,
                     s.high - s.low, c->stride_w);
        }
        row += (s.last - s.first) * unit;
        p += s.last - s.first;
    }
    return row;
}

static char *add_rows(const conv *c, const tap *at, const tile *t, char *plane, char *row) {
    int64_t unit = (int64_t)c->unit, end = t->pixel + t->n_pixels;
    for (int64_t p = t->pixel; p < end;) {
        stretch s = stretch_of(c, at, p, end);
        if (s.high > s.low) {
            add_run(c, plane + s.from * unit, row + (s.low - s.first) * unit, s.high - s.low,
                    c->stride_w);
        }
        row += (s.last - s.first) * unit;
        p += s.last - s.first;
    }
    return row;
}

/* Writes rows k0 .. k0+n_rows of the im2col matrix of a tile. */
static void im2col(const conv *c, const tile *t, int64_t group, int64_t k0, int64_t n_rows,
                   char *col) {
    for (int64_t k = k0; k < k0 + n_rows; k++) {
        tap at = tap_of(c, k);
        for (int64_t image = 0; image < t->n_images; image++) {
            const char *plane = c->x + x_offset(c, t->image + image, group, at.channel);
            col = is_shifted(c) ? copy_shifted(c, &at, t, plane, col)
                                : copy_rows(c, &at, t, plane, col);
        }
    }
}

/* Transposes im2col: adds each element to the one that it was copied from. Works on f32 and f64. */
static void col2im(const conv *c, const tile *t, int64_t group, int64_t k0, int64_t n_rows,
                   char *col) {
    for (int64_t k = k0; k < k0 + n_rows; k++) {
        tap at = tap_of(c, k);
        for (int64_t image = 0; image < t->n_images; image++) {
            char *plane =
                (char *)c->args->out[0].data + x_offset(c, t->image + image, group, at.channel);
            col = is_shifted(c) ? add_shifted(c, &at, t, plane, col)
                                : add_rows(c, &at, t, plane, col);
        }
    }
}

/* Returns channels first.. of g for a tile as [n, columns], in place or gathered into `to`. */
static const void *read_rows(const conv *c, const tile *t, int64_t group, int64_t first, int64_t n,
                             char *to, int64_t *ld) {
    if (is_in_place(c, t)) {
        *ld = c->pixels;
        return c->y + y_offset(c, t, group, first);
    }
    int64_t image_bytes = c->groups * c->cout * c->pixels * (int64_t)c->element;
    char *at = to;
    for (int64_t channel = 0; channel < n; channel++) {
        const char *from = c->y + y_offset(c, t, group, first + channel);
        for (int64_t image = 0; image < t->n_images; image++) {
            load_run(c, at, from + image * image_bytes, t->n_pixels, 1);
            at += t->n_pixels * (int64_t)c->unit;
        }
    }
    *ld = t->columns;
    return to;
}

static void write_rows(const conv *c, const tile *t, int64_t group, int64_t first, int64_t n,
                       const char *from) {
    int64_t image_bytes = c->groups * c->cout * c->pixels * (int64_t)c->element;
    for (int64_t channel = 0; channel < n; channel++) {
        char *to = (char *)c->args->out[0].data + y_offset(c, t, group, first + channel);
        for (int64_t image = 0; image < t->n_images; image++) {
            store_run(c, to + image * image_bytes, from, t->n_pixels);
            from += t->n_pixels * (int64_t)c->unit;
        }
    }
}

/* Returns block [channels, window] of the weights of a group, in place or widened into `to`. */
static const void *read_weights(const conv *c, int64_t group, int64_t channel, int64_t n_channels,
                                int64_t k0, int64_t n_window, char *to, int64_t *ld) {
    *ld = c->window;
    if (!is_half(c->dtype)) return weight_at(c, group, channel, k0);
    for (int64_t i = 0; i < n_channels; i++) {
        load_run(c, to + i * n_window * (int64_t)c->unit, weight_at(c, group, channel + i, k0),
                 n_window, 1);
    }
    *ld = n_window;
    return to;
}

/* Returns rows k0.. of the im2col matrix: x itself for a pointwise convolution, otherwise a matrix
 * built in `to`. */
static const void *read_columns(const conv *c, const tile *t, int64_t group, int64_t k0, int64_t n,
                                char *to, int64_t *ld) {
    if (c->tiles.is_pointwise) {
        *ld = c->pixels;
        return c->x + x_offset(c, t->image, group, k0) + t->pixel * (int64_t)c->element;
    }
    im2col(c, t, group, k0, n, to);
    *ld = t->columns;
    return to;
}

#endif
