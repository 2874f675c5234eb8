/* kern_frame.h: convolution without an im2col matrix, for kern_conv.c. A *frame* is the part of x
 * that a tile of outputs reads, with its padding. Element (k, column) of im2col is an element of
 * the frame:
 *
 *     col[k][column] = frame[place of row k + place of the column]
 *
 * A frame is [channels, images, rows, stride_w, phase]: its columns are grouped by their remainder
 * modulo stride_w, so that adjacent outputs read adjacent elements whatever the stride. It is about
 * kh * kw times smaller than the matrix, and uses the memory that the matrix would use. */
#ifndef CB_EXEC_CPU_CONV_KERN_FRAME_H
#define CB_EXEC_CPU_CONV_KERN_FRAME_H

#include "kern_im2col.h"

#define FRAME_PIECE \
    8                  /* elements copied at a time; up to this many elements beyond a frame may be
                          read */
#define MOST_PIECES 32 /* maximum number of runs of adjacent columns in a panel */

typedef struct frame {
    int64_t first_channel, channels; /* channels of the group */
    int64_t images, top;             /* images; the row of x or of its padding that is row 0 of the
                                        frame */
    int64_t rows, phase, row;        /* rows; elements of a phase; elements of a row */
    int64_t plane;                   /* elements of one image of one channel */
} frame;

/* Returns the frame for rows k0 .. k0+n of the im2col matrix of a tile. */
static frame frame_of(const conv *c, const tile *t, int64_t k0, int64_t n) {
    int64_t first = t->pixel / c->ow, last = (t->pixel + t->n_pixels - 1) / c->ow;
    frame f = {.first_channel = k0 / c->area,
               .images = t->n_images,
               .top = first * c->stride_h - c->pad_h,
               .rows = (last - first) * c->stride_h + (c->kh - 1) * c->dilation_h + 1};
    f.channels = (k0 + n - 1) / c->area - f.first_channel + 1;
    f.phase = div_up((c->ow - 1) * c->stride_w + (c->kw - 1) * c->dilation_w + 1, c->stride_w);
    f.row = f.phase * c->stride_w;
    f.plane = f.rows * f.row;
    return f;
}

static int64_t frame_size(const frame *f) {
    return f->channels * f->images * f->plane + FRAME_PIECE;
}

/* Returns the elements of the largest frame of any tile and block of the window. */
static int64_t largest_frame(const conv *c) {
    int64_t most_rows = min_i64((c->tiles.pixels + c->ow - 2) / c->ow + 1, c->oh);
    tile t = {.n_images = c->tiles.images, .n_pixels = most_rows * c->ow};
    bool is_whole = c->tiles.window % c->area == 0; /* channels */
    return frame_size(&(frame){
        .channels = min_i64(div_up(c->tiles.window, c->area) + (is_whole ? 0 : 1), c->cin),
        .images = t.n_images,
        .plane = frame_of(c, &t, 0, 1).plane,
    });
}

/* True if a frame fits in the memory of the im2col matrix, and the slot also holds the elements
 * that are read beyond it. */
static bool frames_fit(const conv *c) {
    int64_t columns = c->tiles.images * c->tiles.pixels, size = largest_frame(c);
    return size - FRAME_PIECE <= c->tiles.window * columns &&
           size <= (c->tiles.window + c->tiles.channels) * columns;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Finds the places of rows k .. k+n of the im2col matrix in the frame. */
static void tap_places(const conv *c, const frame *f, int64_t k, int64_t n, int64_t *place) {
    int64_t channel = k / c->area, i = k % c->area / c->kw, j = k % c->kw;
    for (int64_t p = 0; p < n; p++) {
        int64_t y = (c->is_flipped ? c->kh - 1 - i : i) * c->dilation_h,
                x = (c->is_flipped ? c->kw - 1 - j : j) * c->dilation_w;
        int64_t start = (channel - f->first_channel) * f->images * f->plane + y * f->row;
        if (c->stride_w == 1) place[p] = start + x;
        else place[p] = start + x % c->stride_w * f->phase + x / c->stride_w;
        if (++j < c->kw) continue;
        j = 0;
        if (++i < c->kh) continue;
        i = 0, channel++;
    }
}

/* A run of columns of a tile that are in one row of an image. */
typedef struct run {
    int64_t image, pixel; /* image of the tile; pixel of the image */
    int64_t n, place;     /* number of elements; place of the first one in the frame */
} run;

/* Returns the run that starts at `column` and ends at `end` at the latest. */
static inline run run_of(const conv *c, const tile *t, const frame *f, int64_t column,
                         int64_t end) {
    run r = {.image = column / t->n_pixels};
    r.pixel = t->pixel + column - r.image * t->n_pixels;
    int64_t row = r.pixel / c->ow, left = t->pixel + t->n_pixels - r.pixel, x = r.pixel % c->ow;
    r.n = min_i64(min_i64(c->ow - x, left), end - column);
    r.place = r.image * f->plane + (row - t->pixel / c->ow) * c->stride_h * f->row + x;
    return r;
}

/* ---- filling --------------------------------------------------------------------------------- */

/* Copies n elements in pieces; the last piece overlaps the one before it. */
#define COPY_PIECES(to, from, n, size)                                               \
    for (int64_t at = 0; at < (n); at += (size)) {                                   \
        int64_t from_here = min_i64(at, (n) - (size));                               \
        memcpy((to) + from_here, (from) + from_here, (size_t)(size) * sizeof *(to)); \
    }

/* Copies n adjacent elements. */
static inline void copy_row(const conv *c, char *to, const char *from, int64_t n) {
    if (c->dtype == CB_F32 && n >= 4) {
        float *out = (float *)to;
        const float *in = (const float *)from;
        if (n >= 16) {
            COPY_PIECES(out, in, n, 16)
        } else if (n >= 8) {
            COPY_PIECES(out, in, n, 8)
        } else {
            COPY_PIECES(out, in, n, 4)
        }
        return;
    }
    load_run(c, to, from, n, 1);
}

/* The elements of one phase. Elements first .. last are in x. */
typedef struct phase {
    int64_t first, last, from; /* `from` is the column of x of element `first` */
} phase;

static phase phase_of(const conv *c, const frame *f, int64_t rest) {
    int64_t before = max_i64(c->pad_w - rest, 0);
    phase p = {.first = min_i64(div_up(before, c->stride_w), f->phase)};
    int64_t end = c->w + c->pad_w - rest;
    p.last = end <= 0 ? 0 : min_i64(div_up(end, c->stride_w), f->phase);
    p.last = max_i64(p.last, p.first);
    p.from = p.first * c->stride_w + rest - c->pad_w;
    return p;
}

/* Fills one image of one channel of a frame of stride_w 1, in the order of memory. Zeros are stored
 * in pieces that reach into the next row, which is copied later; so a row has FRAME_PIECE elements
 * or more. `in`: the first element of x that is copied. */
static void fill_rows(const conv *c, const frame *f, phase p, const char *in, char *to) {
    const int64_t unit = (int64_t)c->unit, n = p.last - p.first, gap = f->row - n;
    const int64_t first = clamp(-f->top, 0, f->rows), last = clamp(c->h - f->top, first, f->rows);
    char *row = to + (first * f->row + p.first) * unit;
    memset(to, 0, (size_t)(row - to));
    for (int64_t r = first; r < last; r++, in += c->w * (int64_t)c->element) {
        copy_row(c, row, in, n);
        row += f->row * unit;
        if (r + 1 == last) break;
        for (int64_t i = 0; i < gap; i += FRAME_PIECE) {
            char *zeros = row + (i - gap) * unit;
            if (c->unit == sizeof(float)) memset(zeros, 0, FRAME_PIECE * sizeof(float));
            else memset(zeros, 0, FRAME_PIECE * sizeof(double));
        }
    }
    if (last > first) row -= gap * unit;
    memset(row, 0, (size_t)(to + f->plane * unit - row));
}

/* Fills one phase of the rows of one image of one channel that are in x. */
static void fill_phase(const conv *c, const frame *f, phase p, const char *in, char *out) {
    const int64_t first = clamp(-f->top, 0, f->rows), last = clamp(c->h - f->top, first, f->rows);
    char *row = out + (first * f->row + p.first) * (int64_t)c->unit;
    for (int64_t r = first; r < last; r++) {
        load_run(c, row, in, p.last - p.first, c->stride_w);
        row += f->row * (int64_t)c->unit;
        in += c->w * (int64_t)c->element;
    }
}

static void fill_frame(const conv *c, const tile *t, int64_t group, const frame *f, char *to) {
    const int64_t unit = (int64_t)c->unit, element = (int64_t)c->element;
    const int64_t planes = f->channels * f->images, top = max_i64(f->top, 0);
    const phase whole = phase_of(c, f, 0);
    const bool is_one = c->stride_w == 1 && whole.last - whole.first >= FRAME_PIECE;
    if (!is_one) memset(to, 0, (size_t)(planes * f->plane * unit));
    for (int64_t rest = 0; rest < c->stride_w; rest++) {
        const phase p = rest == 0 ? whole : phase_of(c, f, rest);
        if (p.last == p.first) continue;
        for (int64_t i = 0; i < planes; i++) {
            const int64_t image = t->image + i % f->images, channel = i / f->images;
            const char *in = c->x + x_offset(c, image, group, f->first_channel + channel) +
                             (top * c->w + p.from) * element;
            char *out = to + i * f->plane * unit;
            if (is_one) fill_rows(c, f, p, in, out);
            else fill_phase(c, f, p, in, out + rest * f->phase * unit);
        }
    }
}

#endif
