/* Sizes aim at the caches: a slot of scratch is at most 512 KiB (second level), and a block for one
 * BLAS call is large enough that packing costs little. An op that is worth several threads is cut
 * into at least MIN_TASKS pieces, even if there are fewer threads, because the cut must not depend
 * on their number. */
#include "tiles.h"

#include "../base/alloc.h"
#include "../base/ints.h"

#define MIN_TASKS 4
#define MAX_SLOTS 8
#define SLOT_BYTES (CB_WORKSPACE_MAX / MAX_SLOTS)
#define WORTH_SPLITTING 2e6 /* flops */

/* Returns the edge that cuts n >= 1 into the fewest pieces of at most `most`, all about equal, in
 * multiples of `grain`. */
static int64_t even_split(int64_t n, int64_t most, int64_t grain) {
    if (n <= most) return n;
    int64_t edge = div_up(n, div_up(n, most));
    return min_i64(div_up(edge, grain) * grain, most);
}

static bool is_half(cb_dtype dtype) { return dtype == CB_F16 || dtype == CB_BF16; }
static size_t compute_size(cb_dtype dtype) {
    return dtype == CB_F64 ? sizeof(double) : sizeof(float);
}

/* ---- matrix product -------------------------------------------------------------------------- */

#define MATMUL_EDGE 1024
#define MATMUL_SMALLEST 128  /* edges are not halved below this */
#define MATMUL_HALF_EDGE 128 /* 16-bit types: three blocks of this edge in f32 are 192 KiB */
#define MATMUL_MANY_SLOTS \
    1e9 /* number of flops above which scratch for MAX_SLOTS is small compared with the operands */

static int64_t count_tiles(const cb_matmul_tiles *t, int64_t batch, int64_t n, int64_t m) {
    return batch * div_up(n, t->rows) * div_up(m, t->columns);
}

cb_matmul_tiles cb_matmul_tiles_of(int64_t batch, int64_t n, int64_t k, int64_t m, cb_dtype dtype) {
    double item_flops = 2.0 * (double)n * (double)m * (double)k;
    if (batch == 0 || n == 0 || m == 0)
        return (cb_matmul_tiles){.rows = 1, .columns = 1, .inner = 1, .batches = 1};
    if (is_half(dtype)) {
        cb_matmul_tiles t = {.rows = even_split(n, MATMUL_HALF_EDGE, 16),
                             .columns = even_split(m, MATMUL_HALF_EDGE, 16),
                             .inner = even_split(max_i64(k, 1), MATMUL_HALF_EDGE, 16),
                             .batches = 1};
        int64_t elements = t.rows * t.inner + t.inner * t.columns + t.rows * t.columns;
        t.slot_bytes = cb_align_up((size_t)elements * sizeof(float));
        bool is_large = (double)batch * item_flops > MATMUL_MANY_SLOTS;
        t.slots = min_i64(count_tiles(&t, batch, n, m), is_large ? MAX_SLOTS : MAX_SLOTS / 2);
        return t;
    }
    cb_matmul_tiles t = {.rows = even_split(n, MATMUL_EDGE, 16),
                         .columns = even_split(m, MATMUL_EDGE, 16),
                         .inner = k,
                         .batches = 1};
    bool is_worth_splitting = (double)batch * item_flops > WORTH_SPLITTING;
    while (is_worth_splitting && count_tiles(&t, batch, n, m) < MIN_TASKS) {
        int64_t *edge = t.rows >= t.columns ? &t.rows : &t.columns;
        if (*edge < 2 * MATMUL_SMALLEST) break;
        *edge = div_up(div_up(*edge, 2), 16) * 16;
    }
    if (t.rows >= n && t.columns >= m && batch > 1) {
        double items = item_flops > 0 ? WORTH_SPLITTING / 2 / item_flops : (double)batch;
        int64_t most = is_worth_splitting ? div_up(batch, MIN_TASKS) : batch;
        t.batches = items >= (double)most ? most : max_i64((int64_t)items, 1);
    }
    return t;
}

uint64_t cb_matmul_scratch(const cb_matmul_tiles *t) { return (uint64_t)t->slots * t->slot_bytes; }

/* ---- convolution ----------------------------------------------------------------------------- */

#define POINTWISE_PIXELS 64 /* smaller images are batched even where im2col is only a copy */
#define TILE_COLUMNS 1024
#define CONV_LEAST_SCRATCH ((uint64_t)512 << 10)

typedef struct conv_size {
    int64_t n, groups, channels, window, area,
        pixels; /* channels: output channels of a group; area: kh * kw */
    bool is_pointwise;
    size_t element;
    uint64_t scratch; /* bytes of all scratch: a quarter of the data, within limits, so that scratch
                         does not set the peak */
    int64_t slots;
} conv_size;

static uint64_t clamp_u64(uint64_t x, uint64_t low, uint64_t high) {
    return x < low ? low : x > high ? high : x;
}

static conv_size conv_size_of(const cb_shape *x, const cb_shape *w, const cb_shape *y,
                              const cb_attrs *a, cb_dtype dtype) {
    conv_size s = {.n = x->dim[0],
                   .groups = a->i[6],
                   .channels = w->dim[0] / a->i[6],
                   .area = w->dim[2] * w->dim[3],
                   .pixels = y->dim[2] * y->dim[3],
                   .element = compute_size(dtype)};
    s.window = w->dim[1] * s.area;
    s.is_pointwise = s.area == 1 && a->i[0] == 1 && a->i[1] == 1 && a->i[2] == 0 && a->i[3] == 0 &&
                     s.pixels >= POINTWISE_PIXELS && !is_half(dtype);
    uint64_t data = (uint64_t)(cb_numel(x) + cb_numel(y)) * s.element;
    s.scratch = clamp_u64(data / 4, CONV_LEAST_SCRATCH, CB_WORKSPACE_MAX);
    s.slots = s.scratch >= CB_WORKSPACE_MAX / 2 ? MAX_SLOTS : MAX_SLOTS / 2;
    return s;
}

/* Sets the columns of a tile: a part of an image, or several whole images, few enough that there
 * are MIN_TASKS tiles. */
static void set_columns(cb_conv_tiles *t, const conv_size *s, int64_t columns) {
    columns = min_i64(max_i64(columns, 1), TILE_COLUMNS);
    t->pixels = even_split(s->pixels, columns, columns >= 64 ? 16 : 1);
    int64_t images = min_i64(columns / s->pixels, div_up(s->n * s->groups, MIN_TASKS));
    t->images = s->is_pointwise ? 1 : max_i64(min_i64(images, s->n), 1);
}

/* Sets at most `units` slots, each with scratch for its blocks, whose edges are already set. */
static void set_slots(cb_conv_tiles *t, const conv_size *s, cb_dtype dtype, int64_t units) {
    int64_t columns = t->pixels * t->images;
    int64_t elements =
        (t->window + t->channels) * columns + (is_half(dtype) ? t->window * t->channels : 0);
    t->slots = min_i64(units, s->slots);
    t->slot_bytes = cb_align_up((size_t)elements * s->element);
}

/* Returns the number of columns that fit in a slot, next to the parts whose size does not depend on
 * them. */
static int64_t columns_that_fit(const cb_conv_tiles *t, const conv_size *s, cb_dtype dtype) {
    uint64_t slot = (s->scratch - t->shared_bytes) / (uint64_t)s->slots - CB_ALIGN;
    int64_t elements =
        (int64_t)(slot / s->element) - (is_half(dtype) ? t->window * t->channels : 0);
    return elements / (t->window + t->channels);
}

#define DIRECT_INNER 256         /* elements under a window at a time: a panel of weights */
#define DIRECT_WIDTH 32          /* channels are padded to these: the widest panel */
#define DIRECT_CHANNELS 128      /* output channels that share one frame */
#define DIRECT_LEAST_CHANNELS 12 /* with fewer channels, too much of a vector would be empty */
#define DIRECT_LEAST_ROW \
    4                     /* minimum outputs of a row; with fewer, sums would wait for each
                                    other */
#define DIRECT_SUMS 49152 /* elements of [columns, channels] */
#define DIRECT_SLOT ((uint64_t)320 << 10)
#define DIRECT_SLACK 16 /* elements that may be read beyond a frame */

/* A convolution in direct form. The data gradient of stride 1 is a convolution of y's gradient. */
typedef struct direct_shape {
    int64_t inputs, oh, ow, kh, kw, stride_h, stride_w, dilation_h, dilation_w;
} direct_shape;

static direct_shape direct_shape_of(const cb_shape *w, const cb_shape *y, const cb_attrs *a) {
    return (direct_shape){.inputs = w->dim[1],
                          .oh = y->dim[2],
                          .ow = y->dim[3],
                          .kh = w->dim[2],
                          .kw = w->dim[3],
                          .stride_h = a->i[0],
                          .stride_w = a->i[1],
                          .dilation_h = a->i[4],
                          .dilation_w = a->i[5]};
}

/* Returns the elements of a frame for `rows` rows of outputs of one image and channel
 * (kern_frame.h: frame_of). */
static int64_t direct_plane(const direct_shape *d, int64_t rows) {
    int64_t height = (rows - 1) * d->stride_h + (d->kh - 1) * d->dilation_h + 1,
            width = (d->ow - 1) * d->stride_w + (d->kw - 1) * d->dilation_w + 1;
    return height * div_up(width, d->stride_w) * d->stride_w;
}

static uint64_t direct_bytes(const cb_conv_tiles *t, const conv_size *s, const direct_shape *d) {
    int64_t channels = div_up(t->channels, DIRECT_WIDTH) * DIRECT_WIDTH;
    int64_t plane = direct_plane(d, t->pixels / d->ow);
    int64_t frame = t->window / s->area * t->images * plane + DIRECT_SLACK;
    return (uint64_t)(frame + t->images * t->pixels * channels) * s->element;
}

static int64_t direct_units(const cb_conv_tiles *t, const conv_size *s) {
    return s->groups * div_up(s->channels, t->channels) * div_up(s->n, t->images) *
           div_up(s->pixels, t->pixels);
}

static bool suits_direct(const conv_size *s, const direct_shape *d) {
    if (s->is_pointwise || s->area > DIRECT_INNER || d->ow < DIRECT_LEAST_ROW) return false;
    return s->channels >= DIRECT_LEAST_CHANNELS &&
           8 * s->channels >= 5 * (div_up(s->channels, 16) * 16);
}

/* Cuts a direct convolution. Returns false if the form does not suit it. */
static bool cut_direct(cb_conv_tiles *t, const conv_size *s, const direct_shape *d) {
    if (!suits_direct(s, d)) return false;
    uint64_t room = s->scratch / (uint64_t)s->slots - CB_ALIGN;
    if (room > DIRECT_SLOT) room = DIRECT_SLOT;
    cb_conv_tiles cut = *t;
    cut.window = even_split(d->inputs, max_i64(DIRECT_INNER / s->area, 1), 1) * s->area;
    cut.channels = even_split(s->channels, DIRECT_CHANNELS, DIRECT_WIDTH);
    int64_t columns = DIRECT_SUMS / (div_up(cut.channels, DIRECT_WIDTH) * DIRECT_WIDTH);
    columns = min_i64(columns, TILE_COLUMNS);
    int64_t rows = even_split(d->oh, max_i64(columns / d->ow, 1), 1);
    int64_t images = min_i64(columns / s->pixels, s->n * s->groups / MAX_SLOTS);
    cut.images = max_i64(min_i64(images, s->n), 1);
    cut.pixels = rows * d->ow;
    while (direct_units(&cut, s) < MAX_SLOTS && cut.channels > DIRECT_WIDTH)
        cut.channels = max_i64(cut.channels / 2 / DIRECT_WIDTH, 1) * DIRECT_WIDTH;
    while (direct_bytes(&cut, s, d) > room) {
        if (cut.images > 1) cut.images = cut.images / 2;
        else if (rows > 1) rows = div_up(rows, 2), cut.pixels = rows * d->ow;
        else if (cut.channels > DIRECT_WIDTH) cut.channels = DIRECT_WIDTH;
        else if (cut.window > s->area) cut.window = div_up(cut.window / s->area, 2) * s->area;
        else return false;
    }
    cut.is_direct = true;
    cut.frame = cut.window / s->area * cut.images * direct_plane(d, rows) + DIRECT_SLACK;
    cut.slots = min_i64(direct_units(&cut, s), s->slots);
    cut.slot_bytes = cb_align_up((size_t)direct_bytes(&cut, s, d));
    *t = cut;
    return true;
}

static void cut_forward(cb_conv_tiles *t, const conv_size *s, cb_dtype dtype) {
    t->window = even_split(s->window, is_half(dtype) ? 128 : 1152, 1);
    t->channels = even_split(s->channels, is_half(dtype) ? 64 : 512, 16);
    set_columns(t, s, columns_that_fit(t, s, dtype));
    set_slots(t, s, dtype, s->groups * div_up(s->n, t->images) * div_up(s->pixels, t->pixels));
}

/* Cuts input channels so that a task owns all windows of its channels. Thus no two tasks add to the
 * same elements. */
static void cut_data_gradient(cb_conv_tiles *t, const conv_size *s, cb_dtype dtype) {
    int64_t inputs = s->window / s->area, most = max_i64(1152 / s->area, 1);
    t->channels = even_split(s->channels, 512, 16);
    int64_t block = even_split(inputs, most, 1);
    int64_t images = s->n * s->groups;
    if (images < MIN_TASKS) block = min_i64(block, max_i64(inputs * images / MIN_TASKS, 1));
    t->window = min_i64(block * s->area, 1152);
    set_columns(t, s, columns_that_fit(t, s, dtype));
    set_slots(t, s, dtype, s->groups * div_up(s->n, t->images) * div_up(inputs, block));
}

/* Cuts the gradient into blocks. A task owns a block and walks all tiles; a small gradient is
 * summed in `splits` runs of tiles. */
static void cut_weight_gradient(cb_conv_tiles *t, const conv_size *s, cb_dtype dtype) {
    t->channels = even_split(s->channels, is_half(dtype) ? 64 : 256, 16);
    t->window = even_split(s->window, is_half(dtype) ? 128 : 256, 1);
    int64_t rest = s->groups * div_up(s->channels, t->channels);
    if (rest * div_up(s->window, t->window) < MIN_TASKS && t->window >= 64)
        t->window = div_up(s->window, div_up(MIN_TASKS, rest));
    int64_t units = rest * div_up(s->window, t->window);
    uint64_t bytes = (uint64_t)(s->groups * s->channels * s->window) * s->element;
    int64_t splits = min_i64(max_i64(s->slots / units, 1), s->n);
    if (bytes > s->scratch / 4 / (uint64_t)splits) splits = 1;
    t->splits = splits;
    t->shared_bytes = splits > 1 ? cb_align_up((size_t)bytes * (size_t)splits) : 0;
    set_columns(t, s, columns_that_fit(t, s, dtype));
    set_slots(t, s, dtype, units * splits);
}

/* Frames of any of the three directions have at most these rows and columns. */
bool cb_conv2d_is_depthwise(const cb_shape *x, const cb_shape *w, const cb_shape *y,
                            const cb_attrs *attrs, cb_dtype dtype) {
    const int64_t *a = attrs->i, stride_h = a[0], stride_w = a[1], kh = w->dim[2], kw = w->dim[3];
    /* A weight gradient has a task for each group. */
    if (w->dim[1] != 1 || a[6] < MIN_TASKS || w->dim[0] > CB_DEPTHWISE_OUTPUTS * a[6]) return false;
    if (kh > CB_DEPTHWISE_TAPS || kw > CB_DEPTHWISE_TAPS || kh * kw > CB_DEPTHWISE_TAPS)
        return false;
    if (stride_h > CB_DEPTHWISE_ROW || stride_w > CB_DEPTHWISE_ROW) return false;
    if (a[4] > CB_DEPTHWISE_ROW || a[5] > CB_DEPTHWISE_ROW) return false;
    if (x->dim[3] > CB_DEPTHWISE_ROW || y->dim[3] > CB_DEPTHWISE_ROW) return false;
    const int64_t row = max_i64(x->dim[3], y->dim[3] * stride_w) + (kw - 1) * a[5] + stride_w,
                  rows = 3 * ((kh - 1) * a[4] + stride_h) + 1,
                  room = (int64_t)(CB_DEPTHWISE_BYTES / compute_size(dtype));
    return rows * row + CB_DEPTHWISE_SLACK <= room;
}

cb_conv_tiles cb_conv2d_tiles(cb_opcode code, const cb_shape *x, const cb_shape *w,
                              const cb_shape *y, const cb_attrs *attrs, cb_dtype dtype) {
    cb_conv_tiles t = {.pixels = 1, .images = 1, .window = 1, .channels = 1, .splits = 1};
    if (cb_numel(x) == 0 || cb_numel(w) == 0 || cb_numel(y) == 0) return t;
    if (cb_conv2d_is_depthwise(x, w, y, attrs, dtype)) return t;
    conv_size s = conv_size_of(x, w, y, attrs, dtype);
    t.is_pointwise = s.is_pointwise;
    if (code == CB_OP_CONV2D) {
        const direct_shape d = direct_shape_of(w, y, attrs);
        if (cut_direct(&t, &s, &d)) return t;
        cut_forward(&t, &s, dtype);
    }
    if (code == CB_OP_CONV2D_DGRAD) cut_data_gradient(&t, &s, dtype);
    if (code == CB_OP_CONV2D_WGRAD) cut_weight_gradient(&t, &s, dtype);
    bool is_by_element =
        code == CB_OP_CONV2D_DGRAD && is_half(dtype); /* this op sums each element in a register */
    if (s.is_pointwise || is_by_element) t.slots = 0, t.slot_bytes = 0;
    return t;
}

cb_conv_tiles cb_conv2d_flipped_tiles(const cb_shape *x, const cb_shape *w, const cb_shape *y,
                                      const cb_attrs *attrs, cb_dtype dtype) {
    cb_conv_tiles t = {.pixels = 1, .images = 1, .window = 1, .channels = 1, .splits = 1};
    if (cb_numel(x) == 0 || cb_numel(w) == 0 || cb_numel(y) == 0) return t;
    if (cb_conv2d_is_depthwise(x, w, y, attrs, dtype)) return t;
    conv_size s = conv_size_of(x, w, y, attrs, dtype);
    if (s.is_pointwise || attrs->i[0] != 1 || attrs->i[1] != 1) return t;
    s.window = s.channels * s.area;
    s.channels = w->dim[1];
    s.pixels = x->dim[2] * x->dim[3];
    direct_shape d = direct_shape_of(w, x, attrs);
    d.inputs = w->dim[0] / attrs->i[6];
    if (!cut_direct(&t, &s, &d)) cut_forward(&t, &s, dtype);
    return t;
}

uint64_t cb_conv2d_scratch(const cb_conv_tiles *t) {
    return (uint64_t)t->slots * t->slot_bytes + t->shared_bytes;
}

/* ---- scatter --------------------------------------------------------------------------------- */

#define SCATTER_BLOCK ((int64_t)1 << 14) /* elements of the destination worth a task */

cb_scatter_tiles cb_scatter_tiles_of(int64_t outer, int64_t rows, int64_t inner, cb_dtype dtype) {
    if (outer == 0 || rows == 0 || inner == 0)
        return (cb_scatter_tiles){.outer = 1, .rows = 1, .inner = 1};
    /* A block is whole cache lines of the inner axis, which has at most 16 tasks. */
    cb_scatter_tiles t = {.rows = rows,
                          .inner = min_i64(div_up(div_up(inner, 16), 16) * 16, inner)};
    if (is_half(dtype)) {
        int64_t room = (int64_t)(SLOT_BYTES / sizeof(float));
        t.inner = min_i64(t.inner, room);
        t.rows = even_split(t.rows, room / t.inner, 1);
    }
    int64_t lines = SCATTER_BLOCK / t.inner / t.rows;
    t.outer = max_i64(min_i64(lines, outer), 1);
    if (is_half(dtype)) {
        int64_t units = div_up(outer, t.outer) * div_up(rows, t.rows) * div_up(inner, t.inner);
        t.slots = min_i64(units, MAX_SLOTS);
        t.slot_bytes = cb_align_up((size_t)(t.rows * t.inner) * sizeof(float));
    }
    return t;
}

uint64_t cb_scatter_scratch(const cb_scatter_tiles *t) {
    return (uint64_t)t->slots * t->slot_bytes;
}
