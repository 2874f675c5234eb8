/* Convolution. Forward and data gradients of stride 1 (a convolution of g with the weights flipped)
 * keep a tile of outputs in registers (kern_direct.h) if that form suits the shape (cut_direct in
 * tiles.c). It needs no BLAS, and a shape always uses the same form. All others are matrix
 * products. With K = c/groups * kh * kw, the elements under a window, and a column for each output
 * pixel, im2col copies a tile of x to col[K, columns] (kern_im2col.h), and
 *
 *     forward           y   [o, columns] = w[o, K] col
 *     data gradient     col [K, columns] = w[o, K]^T g[o, columns], added back into dx (col2im)
 *     weight gradient   dw  [o, K]       = g[o, columns] col^T, summed over tiles
 *
 * Tiles depend only on the shape (tiles.h). Several small images share a tile, so that the products
 * stay large; y and g, whose images are not adjacent in memory, then go through scratch. Each task
 * owns its output (a tile of y; all of an image's dx for some channels; a block of dw), so the
 * order of sums does not depend on the number of threads. 1x1 convolutions of large images are
 * products on x itself.
 *
 * The above applies if there is a BLAS. Our own product packs its right side anyway, so it packs
 * directly from the image (kern_frame.h), which does not change the sums. Weight gradients are
 * computed this way if their sums and a frame fit in a scratch slot, and so are 16-bit data
 * gradients of stride 1, even with a BLAS.
 *
 * Groups of one input channel and few outputs have separate loops (kern_depthwise.h).
 *
 * 16-bit tensors are widened to f32 on the way into scratch and rounded once on the way out. */
#include "../gemm/gemm_own.h"
#include "../kern.h"
#include "kern_frame.h"

#define REAL_BITS 32
#include "kern_conv_rows.h"
#include "kern_depthwise.h"
#include "kern_direct.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "kern_conv_rows.h"
#include "kern_depthwise.h"
#include "kern_direct.h"
#undef REAL_BITS

/* ---- work by units --------------------------------------------------------------------------- */

typedef void (*unit_fn)(const conv *c, int64_t unit, const blocks *scratch);

typedef struct work {
    const conv *c;
    unit_fn fn;
    int64_t n_units, n_tasks;
} work;

static void run_task(void *user, int64_t task, int thread) {
    (void)thread;
    const work *w = user;
    const cb_conv_tiles *t = &w->c->tiles;
    int64_t columns = t->images * t->pixels, unit = (int64_t)w->c->unit;
    blocks scratch = {0};
    if (t->slots > 0) {
        scratch.col = (char *)w->c->args->scratch + (uint64_t)task * t->slot_bytes;
        scratch.rows = scratch.col + (t->is_direct ? t->frame : t->window * columns) * unit;
        scratch.weight = scratch.rows + t->channels * columns * unit;
    }
    cb_gemm_enter_task(&w->c->region);
    for (int64_t i = task; i < w->n_units; i += w->n_tasks) w->fn(w->c, i, &scratch);
}

static void run_units(const conv *c, int64_t n_units, unit_fn fn) {
    work w = {.c = c,
              .fn = fn,
              .n_units = n_units,
              .n_tasks = c->tiles.slots > 0 ? c->tiles.slots : n_units};
    cb_parallel(c->args->pool, w.n_tasks, run_task, &w);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Computes one tile of one group's outputs. */
static void forward_unit(const conv *c, int64_t unit, const blocks *scratch) {
    int64_t pixel_tile = unit % c->n_pixel_tiles, set = unit / c->n_pixel_tiles % c->n_sets;
    int64_t group = unit / c->n_pixel_tiles / c->n_sets;
    tile t = tile_of(c, set, pixel_tile);
    bool is_direct = is_in_place(c, &t);
    for (int64_t o = 0; o < c->cout; o += c->tiles.channels) {
        int64_t n_channels = min_i64(c->tiles.channels, c->cout - o);
        cb_gemm g = {.dtype = c->compute, .m = n_channels, .n = t.columns};
        g.c = is_direct ? (char *)c->args->out[0].data + y_offset(c, &t, group, o) : scratch->rows;
        g.ldc = is_direct ? c->pixels : t.columns;
        for (int64_t k = 0; k < c->window; k += c->tiles.window) {
            g.k = min_i64(c->tiles.window, c->window - k);
            g.a = read_weights(c, group, o, n_channels, k, g.k, scratch->weight, &g.lda);
            g.b = read_columns(c, &t, group, k, g.k, scratch->col, &g.ldb);
            g.add = k > 0;
            cb_gemm_run(&c->region, &g);
        }
        if (!is_direct) write_rows(c, &t, group, o, n_channels, scratch->rows);
    }
}

/* ---- data gradient --------------------------------------------------------------------------- */

static int64_t input_block(const conv *c) { return max_i64(c->tiles.window / c->area, 1); }

/* Writes rows k0 .. k0+n of w^T g for a tile to scratch or, for a pointwise convolution, to dx. */
static void multiply_gradient(const conv *c, const tile *t, int64_t group, int64_t k0, int64_t n,
                              const blocks *scratch) {
    cb_gemm g = {.dtype = c->compute,
                 .m = n,
                 .n = t->columns,
                 .c = scratch->col,
                 .ldc = t->columns,
                 .a_transposed = true};
    if (c->tiles.is_pointwise) {
        g.c = (char *)c->args->out[0].data + x_offset(c, t->image, group, k0) +
              t->pixel * (int64_t)c->element;
        g.ldc = c->pixels;
    }
    for (int64_t o = 0; o < c->cout; o += c->tiles.channels) {
        g.k = min_i64(c->tiles.channels, c->cout - o);
        g.a = read_weights(c, group, o, g.k, k0, n, scratch->weight, &g.lda);
        g.b = read_rows(c, t, group, o, g.k, scratch->rows, &g.ldb);
        g.add = o > 0;
        cb_gemm_run(&c->region, &g);
    }
}

/* Computes all of dx for some channels of some images. */
static void data_gradient_unit(const conv *c, int64_t unit, const blocks *scratch) {
    int64_t n_blocks = div_up(c->cin, input_block(c)), set = unit / n_blocks % c->n_sets;
    int64_t group = unit / n_blocks / c->n_sets, first = unit % n_blocks * input_block(c);
    int64_t n_channels = min_i64(input_block(c), c->cin - first),
            end = (first + n_channels) * c->area;
    tile images = tile_of(c, set, 0);
    for (int64_t i = 0; i < images.n_images && !c->tiles.is_pointwise; i++) {
        char *dx = (char *)c->args->out[0].data + x_offset(c, images.image + i, group, first);
        memset(dx, 0, (size_t)(n_channels * c->h * c->w) * c->element);
    }
    for (int64_t pixel_tile = 0; pixel_tile < c->n_pixel_tiles; pixel_tile++) {
        tile t = tile_of(c, set, pixel_tile);
        for (int64_t k = first * c->area; k < end; k += c->tiles.window) {
            int64_t n = min_i64(c->tiles.window, end - k);
            multiply_gradient(c, &t, group, k, n, scratch);
            if (!c->tiles.is_pointwise) col2im(c, &t, group, k, n, scratch->col);
        }
    }
}

/* Computes 16-bit dx. It cannot hold the sums, and a plane of f32 sums may not fit in scratch, so
 * each element is summed directly over its windows. This is slower; 16-bit types save memory here,
 * not time. */
static void half_data_gradient_unit(const conv *c, int64_t unit, const blocks *scratch) {
    (void)scratch;
    int64_t channel = unit % c->cin, group = unit / c->cin % c->groups,
            image = unit / c->cin / c->groups;
    uint16_t *dx = (uint16_t *)((char *)c->args->out[0].data + x_offset(c, image, group, channel));
    for (int64_t at = 0; at < c->h * c->w; at++) {
        int64_t iy = at / c->w + c->pad_h, ix = at % c->w + c->pad_w;
        float sum = 0;
        for (int64_t i = 0; i < c->kh; i++) {
            int64_t oy = iy - i * c->dilation_h;
            if (oy < 0 || oy % c->stride_h != 0 || oy / c->stride_h >= c->oh) continue;
            for (int64_t j = 0; j < c->kw; j++) {
                int64_t ox = ix - j * c->dilation_w;
                if (ox < 0 || ox % c->stride_w != 0 || ox / c->stride_w >= c->ow) continue;
                int64_t pixel = oy / c->stride_h * c->ow + ox / c->stride_w;
                tile t = {.image = image, .pixel = pixel};
                const uint16_t *g = (const uint16_t *)(c->y + y_offset(c, &t, group, 0));
                const uint16_t *w =
                    (const uint16_t *)weight_at(c, group, 0, channel * c->area + i * c->kw + j);
                for (int64_t o = 0; o < c->cout; o++) {
                    sum += half_load(c->dtype, w + o * c->window) *
                           half_load(c->dtype, g + o * c->pixels);
                }
            }
        }
        half_store(c->dtype, &dx[at], sum);
    }
}

/* ---- weight gradient ------------------------------------------------------------------------- */

static char *partial_sums(const conv *c) {
    return (char *)c->args->scratch + (uint64_t)c->tiles.slots * c->tiles.slot_bytes;
}

/* Computes one block of dw, over all tiles or a run of them. */
static void weight_gradient_unit(const conv *c, int64_t unit, const blocks *scratch) {
    int64_t n_k = div_up(c->window, c->tiles.window), n_o = div_up(c->cout, c->tiles.channels);
    int64_t k = unit % n_k * c->tiles.window, o = unit / n_k % n_o * c->tiles.channels;
    int64_t group = unit / n_k / n_o % c->groups, split = unit / n_k / n_o / c->groups;
    int64_t at = (group * c->cout + o) * c->window + k, all = c->groups * c->cout * c->window;
    bool is_rounded = is_half(c->dtype) && c->tiles.splits == 1;

    cb_gemm g = {.dtype = c->compute, .b_transposed = true, .ldc = c->window};
    g.m = min_i64(c->tiles.channels, c->cout - o);
    g.n = min_i64(c->tiles.window, c->window - k);
    g.c = (char *)c->args->out[0].data + at * (int64_t)c->element;
    if (c->tiles.splits > 1) g.c = partial_sums(c) + (split * all + at) * (int64_t)c->unit;
    if (is_rounded) g.c = scratch->weight, g.ldc = g.n;

    int64_t n_tiles = c->n_sets * c->n_pixel_tiles;
    int64_t begin = split * n_tiles / c->tiles.splits,
            end = (split + 1) * n_tiles / c->tiles.splits;
    if (begin == end) { /* there are fewer tiles than splits: with k = 0 the product writes zeros */
        g.lda = g.ldb = 1;
        cb_gemm_run(&c->region, &g);
    }
    if (begin < end && c->is_framed) {
        (c->compute == CB_F64 ? frame_sums_f64 : frame_sums_f32)(c, group, o, k, begin, end,
                                                                 scratch, &g);
    }
    for (int64_t i = begin; i < end && !c->is_framed; i++) {
        tile t = tile_of(c, i / c->n_pixel_tiles, i % c->n_pixel_tiles);
        g.k = t.columns;
        g.a = read_rows(c, &t, group, o, g.m, scratch->rows, &g.lda);
        g.b = read_columns(c, &t, group, k, g.n, scratch->col, &g.ldb);
        g.add = i > begin;
        cb_gemm_run(&c->region, &g);
    }
    for (int64_t i = 0; i < g.m && is_rounded; i++) {
        store_run(c, (char *)c->args->out[0].data + (at + i * c->window) * (int64_t)c->element,
                  scratch->weight + i * g.n * (int64_t)c->unit, g.n);
    }
}

#define COMBINE_ELEMENTS 4096 /* elements per task */

/* Adds up the partial sums of dw in a fixed order. */
static void combine_task(void *user, int64_t task, int thread) {
    (void)thread;
    const conv *c = user;
    int64_t all = c->groups * c->cout * c->window, begin = task * COMBINE_ELEMENTS,
            n = min_i64(COMBINE_ELEMENTS, all - begin);
    char *sum = partial_sums(c) + begin * (int64_t)c->unit;
    for (int64_t s = 1; s < c->tiles.splits; s++)
        add_run(c, sum, sum + s * all * (int64_t)c->unit, n, 1);
    store_run(c, (char *)c->args->out[0].data + begin * (int64_t)c->element, sum, n);
}

/* ---- entry ----------------------------------------------------------------------------------- */

/* Fills in `c`. Returns false if a tensor is empty: every sum is then empty, and the output has
 * been written. */
static bool describe(conv *c, const cb_kernel_args *args, const cb_tensor *x, const cb_tensor *w,
                     const cb_tensor *y) {
    const int64_t *a = args->attrs->i;
    if (cb_numel(&x->shape) == 0 || cb_numel(&w->shape) == 0 || cb_numel(&y->shape) == 0) {
        const cb_tensor *out = &args->out[0];
        size_t bytes = (size_t)cb_numel(&out->shape) * cb_dtype_size(out->dtype);
        if (bytes > 0) memset(out->data, 0, bytes);
        return false;
    }
    const cb_conv_tiles tiles =
        cb_conv2d_tiles(args->code, &x->shape, &w->shape, &y->shape, args->attrs, y->dtype);
    *c = (conv){
        .args = args,
        .tiles = tiles,
        .dtype = y->dtype,
        .compute = y->dtype == CB_F64 ? CB_F64 : CB_F32,
        .n = x->shape.dim[0],
        .groups = a[6],
        .cin = w->shape.dim[1],
        .cout = w->shape.dim[0] / a[6],
        .h = x->shape.dim[2],
        .w = x->shape.dim[3],
        .kh = w->shape.dim[2],
        .kw = w->shape.dim[3],
        .oh = y->shape.dim[2],
        .ow = y->shape.dim[3],
        .stride_h = a[0],
        .stride_w = a[1],
        .pad_h = a[2],
        .pad_w = a[3],
        .dilation_h = a[4],
        .dilation_w = a[5],
        .x = x->data,
        .weight = w->data,
        .y = y->data,
    };
    c->element = cb_dtype_size(c->dtype);
    c->unit = cb_dtype_size(c->compute);
    c->area = c->kh * c->kw;
    c->window = c->cin * c->area;
    c->pixels = c->oh * c->ow;
    c->n_sets = div_up(c->n, tiles.images);
    c->n_pixel_tiles = div_up(c->pixels, tiles.pixels);
    c->is_depthwise =
        cb_conv2d_is_depthwise(&x->shape, &w->shape, &y->shape, args->attrs, c->dtype);
    return true;
}

/* ---- depthwise ------------------------------------------------------------------------------- */

typedef struct planes {
    const conv *c;
    void (*fn)(const conv *c, int64_t unit);
    int64_t n_units, units_in_task;
} planes;

static void planes_task(void *user, int64_t task, int thread) {
    (void)thread;
    const planes *p = user;
    const int64_t end = min_i64((task + 1) * p->units_in_task, p->n_units);
    for (int64_t i = task * p->units_in_task; i < end; i++) p->fn(p->c, i);
}

#define PLANES_TASK 65536 /* multiply-adds that justify a task */

static void run_planes(const conv *c, int64_t n_units, int64_t images,
                       void (*fn)(const conv *c, int64_t unit)) {
    planes p = {.c = c, .fn = fn, .n_units = n_units};
    const double flops = (double)(images * c->cout * c->area) * (double)c->pixels;
    p.units_in_task = flops >= PLANES_TASK ? 1 : div_up(PLANES_TASK, max_i64((int64_t)flops, 1));
    cb_parallel(c->args->pool, div_up(n_units, p.units_in_task), planes_task, &p);
}

static void run_direct(const conv *c) {
    const int64_t n_blocks = div_up(c->cout, c->tiles.channels);
    run_units(c, c->groups * n_blocks * c->n_sets * c->n_pixel_tiles,
              c->compute == CB_F64 ? direct_unit_f64 : direct_unit_f32);
}

static void run_frames(const conv *c) {
    run_units(c, c->groups * c->n_sets * c->n_pixel_tiles,
              c->compute == CB_F64 ? frame_unit_f64 : frame_unit_f32);
}

static cb_status conv2d(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    conv c;
    if (!describe(&c, args, &args->in[0], &args->in[1], &args->out[0])) return CB_OK;
    if (c.is_depthwise) {
        run_planes(&c, c.n * c.groups, 1,
                   c.compute == CB_F64 ? depthwise_forward_f64 : depthwise_forward_f32);
        return CB_OK;
    }
    if (c.tiles.is_direct) {
        run_direct(&c);
        return CB_OK;
    }
    cb_gemm_begin(&c.region, args->blas, &gemm_own);
    if (cb_gemm_is_own(&c.region, c.compute) && !c.tiles.is_pointwise && frames_fit(&c)) {
        run_frames(&c);
    } else {
        run_units(&c, c.groups * c.n_sets * c.n_pixel_tiles, forward_unit);
    }
    cb_gemm_end(&c.region);
    return CB_OK;
}

/* Describes the data gradient of a convolution of stride 1 as a convolution: dx is the sum over
 * output channels and taps of the weight times g at the pixel that the tap meets. */
static void flip_shape(const conv *c, conv *out) {
    *out = *c;
    out->is_flipped = true;
    out->cin = c->cout, out->cout = c->cin;
    out->h = c->oh, out->w = c->ow, out->oh = c->h, out->ow = c->w;
    out->pad_h = (c->kh - 1) * c->dilation_h - c->pad_h;
    out->pad_w = (c->kw - 1) * c->dilation_w - c->pad_w;
    out->x = c->y;
    out->window = out->cin * c->area;
    out->pixels = out->oh * out->ow;
}

/* Makes the flipped convolution and its tiles. Returns false if this form does not apply. */
static bool flip(const conv *c, conv *out) {
    const cb_kernel_args *args = c->args;
    const cb_tensor *x = &args->out[0], *w = &args->in[1], *y = &args->in[0];
    flip_shape(c, out);
    out->tiles = cb_conv2d_flipped_tiles(&x->shape, &w->shape, &y->shape, args->attrs, c->dtype);
    if (out->tiles.slots == 0) return false;
    out->n_sets = div_up(c->n, out->tiles.images);
    out->n_pixel_tiles = div_up(out->pixels, out->tiles.pixels);
    return out->tiles.is_direct || frames_fit(out);
}

static void depthwise_dgrad(const conv *c) {
    const bool is_wide = c->compute == CB_F64;
    conv flipped;
    if (c->stride_h == 1 && c->stride_w == 1 && c->cout == 1) {
        flip_shape(c, &flipped);
        run_planes(&flipped, c->n * c->groups, 1,
                   is_wide ? depthwise_forward_f64 : depthwise_forward_f32);
    } else {
        run_planes(c, c->n * c->groups, 1, is_wide ? depthwise_scatter_f64 : depthwise_scatter_f32);
    }
}

static cb_status conv2d_dgrad(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    conv c, flipped;
    if (!describe(&c, args, &args->out[0], &args->in[1], &args->in[0])) return CB_OK;
    if (c.is_depthwise) {
        depthwise_dgrad(&c);
        return CB_OK;
    }
    const bool can_flip = flip(&c, &flipped);
    if (can_flip && flipped.tiles.is_direct) {
        run_direct(&flipped);
        return CB_OK;
    }
    cb_gemm_begin(&c.region, args->blas, &gemm_own);
    if (can_flip && (is_half(c.dtype) || cb_gemm_is_own(&c.region, c.compute))) {
        run_frames(&flipped);
    } else if (is_half(c.dtype)) {
        run_units(&c, c.n * c.groups * c.cin, half_data_gradient_unit);
    } else {
        run_units(&c, c.groups * c.n_sets * div_up(c.cin, input_block(&c)), data_gradient_unit);
    }
    cb_gemm_end(&c.region);
    return CB_OK;
}

static cb_status conv2d_wgrad(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    conv c;
    if (!describe(&c, args, &args->in[1], &args->out[0], &args->in[0])) return CB_OK;
    if (c.is_depthwise) {
        run_planes(&c, c.groups, c.n,
                   c.compute == CB_F64 ? depthwise_weights_f64 : depthwise_weights_f32);
        return CB_OK;
    }
    int64_t n_blocks = div_up(c.window, c.tiles.window) * div_up(c.cout, c.tiles.channels);
    cb_gemm_begin(&c.region, args->blas, &gemm_own);
    c.is_framed = !c.tiles.is_pointwise && (c.compute == CB_F64 ? sums_fit_f64 : sums_fit_f32)(&c);
    run_units(&c, c.tiles.splits * c.groups * n_blocks, weight_gradient_unit);
    cb_gemm_end(&c.region);
    if (c.tiles.splits > 1) {
        cb_parallel(args->pool, div_up(c.groups * c.cout * c.window, COMBINE_ELEMENTS),
                    combine_task, &c);
    }
    return CB_OK;
}

cb_kernel_fn CB_KERN(conv)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    if (code == CB_OP_CONV2D) return conv2d;
    if (code == CB_OP_CONV2D_DGRAD) return conv2d_dgrad;
    if (code == CB_OP_CONV2D_WGRAD) return conv2d_wgrad;
    return NULL;
}
