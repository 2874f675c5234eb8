/* kern_direct.h: convolution with a tile of outputs in registers, for one compute type. A template:
 * included with REAL_BITS 32 and 64.
 *
 * Each step of the innermost loop handles one element of the window: it multiplies two vectors of
 * weights, with one lane per output channel, by the elements of a frame (kern_frame.h) that
 * DIRECT_PIXELS neighbouring outputs of a row meet there. Only the frame is copied from x. Weights
 * are packed to a panel [window, channels], which serves all rows of all images of the tile. Sums
 * are kept as [columns, channels] and are transposed once, when they are complete.
 *
 * The window is cut into blocks of whole channels that depend only on the shape (tiles.h). Each
 * block is summed from zero, in the order (row of the window, channel, column of the window), by
 * fused multiply-adds and then added. Rows of the window that meet only padding are left out. So
 * bits depend only on shapes. */
#undef CB_REAL
#undef CB_TYPED
#if REAL_BITS == 32
#define CB_REAL float
#define CB_TYPED(name) name##_f32
#else
#define CB_REAL double
#define CB_TYPED(name) name##_f64
#endif

#ifndef DIRECT_PIXELS
#if defined(__AVX512F__) || defined(__aarch64__)
#define DIRECT_PIXELS 14 /* pixels of two vectors of sums each: 28 of 32 registers */
#else
#define DIRECT_PIXELS 6 /* the sums take 12 of 16 registers */
#endif

#define DIRECT_PIECE \
    32 /* rows of a panel that stay in the first-level cache while they are packed */

/* One element of the window: its offset in the frame and that of its row in the panel, in
 * elements. */
typedef struct direct_step {
    int32_t x, weight;
} direct_step;

typedef struct direct_steps {
    int64_t in_row; /* steps for each row of the window */
    direct_step at[GEMM_INNER];
} direct_steps;

/* Lists the steps for elements k .. k+n of the window, which are whole channels, in the order [row
 * of the window, channel, column]. Rows go from the top of the frame down. */
static void direct_steps_of(const conv *c, const frame *f, int64_t k, int64_t n, int64_t width,
                            direct_steps *out) {
    int64_t place[GEMM_INNER], channels = n / c->area;
    tap_places(c, f, k, n, place);
    out->in_row = channels * c->kw;
    direct_step *at = out->at;
    for (int64_t i = 0; i < c->kh; i++) {
        int64_t row = c->is_flipped ? c->kh - 1 - i : i;
        for (int64_t channel = 0; channel < channels; channel++) {
            for (int64_t j = 0; j < c->kw; j++) {
                int64_t p = (channel * c->kh + row) * c->kw + j;
                *at++ = (direct_step){(int32_t)place[p], (int32_t)(p * width)};
            }
        }
    }
}

/* Rows of the window, counted from the top, that meet rows of x: low .. high. */
typedef struct direct_rows {
    int64_t low, high;
} direct_rows;

static direct_rows direct_rows_of(const conv *c, int64_t row) {
    int64_t top = row * c->stride_h - c->pad_h;
    direct_rows r = {.low = top >= 0 ? 0 : div_up(-top, c->dilation_h),
                     .high = c->h <= top ? 0 : div_up(c->h - top, c->dilation_h)};
    r.low = min_i64(r.low, c->kh);
    r.high = max_i64(min_i64(r.high, c->kh), r.low);
    return r;
}
#endif

/* ---- sums in registers ----------------------------------------------------------------------- */

typedef struct CB_TYPED(direct_sums) {
    const CB_REAL *x; /* the first pixel's element of the frame */
    const CB_REAL *panel;
    const direct_step *step;
    int64_t n_steps;
    CB_REAL *out; /* [pixels, ld] */
    int64_t ld;
    bool add;
} CB_TYPED(direct_sums);

/* Sums `n` pixels and `width` vectors of channels, which are compile-time constants. */
GEMM_INLINE void CB_TYPED(direct_sum)(const int n, const int width,
                                      const CB_TYPED(direct_sums) * s) {
    const int64_t lanes = GEMM_VECTOR / sizeof(CB_REAL);
    CB_TYPED(gemm_vector) sum[2 * DIRECT_PIXELS], right[2];
    GEMM_UNROLL
    for (int i = 0; i < n * width; i++) sum[i] = (CB_TYPED(gemm_vector)){0};
    const direct_step *end = s->step + s->n_steps;
    for (const direct_step *step = s->step; step < end; step++) {
        const CB_REAL *x = s->x + step->x, *weight = s->panel + step->weight;
        GEMM_UNROLL
        for (int j = 0; j < width; j++) memcpy(&right[j], weight + j * lanes, GEMM_VECTOR);
        GEMM_UNROLL
        for (int i = 0; i < n; i++) {
            GEMM_UNROLL
            for (int j = 0; j < width; j++)
                sum[i * width + j] = CB_TYPED(gemm_fma)(x[i], right[j], sum[i * width + j]);
        }
    }
    GEMM_UNROLL
    for (int i = 0; i < n; i++) {
        GEMM_UNROLL
        for (int j = 0; j < width; j++) CB_TYPED(gemm_store)
        (s->out + i * s->ld + j * lanes, sum[i * width + j], lanes, true, s->add);
    }
}

#define DIRECT_DEFINE(n)                                                                    \
    static void CB_TYPED(direct_sum_##n)(const CB_TYPED(direct_sums) * s, bool is_narrow) { \
        if (is_narrow) CB_TYPED(direct_sum)(n, 1, s);                                       \
        else CB_TYPED(direct_sum)(n, 2, s);                                                 \
    }
DIRECT_DEFINE(1)
DIRECT_DEFINE(2)
DIRECT_DEFINE(3)
DIRECT_DEFINE(4)
DIRECT_DEFINE(5)
DIRECT_DEFINE(6)
#if DIRECT_PIXELS == 14
DIRECT_DEFINE(7)
DIRECT_DEFINE(8)
DIRECT_DEFINE(9)
DIRECT_DEFINE(10)
DIRECT_DEFINE(11)
DIRECT_DEFINE(12)
DIRECT_DEFINE(13)
DIRECT_DEFINE(14)
#endif
#undef DIRECT_DEFINE

static void CB_TYPED(direct_pixels)(const CB_TYPED(direct_sums) * s, int64_t n, bool is_narrow) {
#define DIRECT_CASE(n) \
    case n: CB_TYPED(direct_sum_##n)(s, is_narrow); break;
    switch (n) {
        DIRECT_CASE(1)
        DIRECT_CASE(2)
        DIRECT_CASE(3)
        DIRECT_CASE(4)
        DIRECT_CASE(5)
#if DIRECT_PIXELS == 14
        DIRECT_CASE(6)
        DIRECT_CASE(7)
        DIRECT_CASE(8)
        DIRECT_CASE(9)
        DIRECT_CASE(10)
        DIRECT_CASE(11)
        DIRECT_CASE(12)
        DIRECT_CASE(13)
        default: CB_TYPED(direct_sum_14)(s, is_narrow);
#else
        default: CB_TYPED(direct_sum_6)(s, is_narrow);
#endif
    }
#undef DIRECT_CASE
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Packs elements k .. k+n of the windows of `channels` output channels from o on as [n,
 * GEMM_WIDTH]. */
static void CB_TYPED(pack_weights)(const conv *c, int64_t group, int64_t o, int64_t channels,
                                   int64_t k, int64_t n, CB_REAL *panel) {
    const int64_t ld = c->is_flipped ? c->area : c->window;
    int64_t rows;
    for (int64_t at = 0; at < n; at += rows) {
        int64_t first = (group * c->cout + o) * c->window + k + at;
        if (c->is_flipped) first = ((group * c->cin + (k + at) / c->area) * c->cout + o) * c->area;
        rows = min_i64(c->is_flipped ? c->area : DIRECT_PIECE, n - at);
        CB_REAL *to = panel + at * GEMM_WIDTH;
#if REAL_BITS == 32
        if (is_half(c->dtype)) {
            float wide[GEMM_INNER];
            for (int64_t j = 0; j < channels; j++) {
                half_widen(c->dtype, (const uint16_t *)c->weight + first + j * ld, wide, rows);
                for (int64_t p = 0; p < rows; p++) to[p * GEMM_WIDTH + j] = wide[p];
            }
            continue;
        }
#endif
        CB_TYPED(gemm_transpose)
        ((const CB_REAL *)c->weight + first, ld, channels, rows, to, GEMM_WIDTH);
    }
    CB_TYPED(gemm_clear_right)(n, channels, panel);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Applies one panel of weights to all rows of the tile. `s.out` is the sum of its first channel at
 * the first column. */
static void CB_TYPED(direct_block)(const conv *c, const tile *t, const frame *f,
                                   const direct_steps *steps, const CB_REAL *at,
                                   CB_TYPED(direct_sums) s, bool is_narrow) {
    const int64_t parts = div_up(c->ow, DIRECT_PIXELS), rows = t->n_pixels / c->ow;
    for (int64_t image = 0; image < t->n_images; image++) {
        for (int64_t row = 0; row < rows; row++) {
            direct_rows r = direct_rows_of(c, t->pixel / c->ow + row);
            const CB_REAL *x = at + image * f->plane + row * c->stride_h * f->row;
            s.step = steps->at + r.low * steps->in_row;
            s.n_steps = (r.high - r.low) * steps->in_row;
            for (int64_t part = 0; part < parts; part++) {
                int64_t begin = part * c->ow / parts, end = (part + 1) * c->ow / parts;
                s.x = x + begin;
                CB_TYPED(direct_pixels)(&s, end - begin, is_narrow);
                s.out += (end - begin) * s.ld;
            }
        }
    }
}

#if REAL_BITS == 32
/* Rounds sums to 16 bits and writes them to y in pieces. */
static void direct_write_half(const conv *c, const float *sums, int64_t ld, int64_t n_pixels,
                              int64_t n_channels, uint16_t *y) {
    float piece[16 * 64];
    for (int64_t o = 0; o < n_channels; o += 16) {
        for (int64_t p = 0; p < n_pixels; p += 64) {
            int64_t channels = min_i64(n_channels - o, 16), n = min_i64(n_pixels - p, 64);
            gemm_transpose_f32(sums + p * ld + o, ld, n, channels, piece, 64);
            for (int64_t i = 0; i < channels; i++)
                half_narrow(c->dtype, piece + i * 64, y + (o + i) * c->pixels + p, n);
        }
    }
}
#endif

/* Transposes sums [columns, ld] to channels o .. o+n of y. */
static void CB_TYPED(direct_write)(const conv *c, const tile *t, int64_t group, int64_t o,
                                   int64_t n, const CB_REAL *sums, int64_t ld) {
    for (int64_t image = 0; image < t->n_images; image++, sums += t->n_pixels * ld) {
        tile at = {.image = t->image + image, .pixel = t->pixel};
        char *y = (char *)c->args->out[0].data + y_offset(c, &at, group, o);
#if REAL_BITS == 32
        if (is_half(c->dtype)) {
            direct_write_half(c, sums, ld, t->n_pixels, n, (uint16_t *)y);
            continue;
        }
#endif
        CB_TYPED(gemm_transpose)(sums, ld, t->n_pixels, n, (CB_REAL *)y, c->pixels);
    }
}

/* Computes a block of channels of one tile of one group's outputs. */
static void CB_TYPED(direct_unit)(const conv *c, int64_t unit, const blocks *scratch) {
    _Alignas(GEMM_VECTOR) CB_REAL panel[GEMM_INNER * GEMM_WIDTH];
    direct_steps steps;
    int64_t pixel_tile = unit % c->n_pixel_tiles, set = unit / c->n_pixel_tiles % c->n_sets;
    int64_t block = unit / c->n_pixel_tiles / c->n_sets;
    int64_t n_blocks = div_up(c->cout, c->tiles.channels), group = block / n_blocks;
    int64_t o = block % n_blocks * c->tiles.channels,
            n_channels = min_i64(c->tiles.channels, c->cout - o);
    tile t = tile_of(c, set, pixel_tile);
    CB_REAL *sums = (CB_REAL *)scratch->rows;
    const int64_t ld = div_up(n_channels, GEMM_WIDTH) * GEMM_WIDTH;
    for (int64_t k = 0; k < c->window; k += c->tiles.window) {
        int64_t n = min_i64(c->tiles.window, c->window - k);
        frame f = frame_of(c, &t, k, n);
        fill_frame(c, &t, group, &f, scratch->col);
        direct_steps_of(c, &f, k, n, GEMM_WIDTH, &steps);
        for (int64_t j = 0; j < n_channels; j += GEMM_WIDTH) {
            int64_t channels = min_i64(GEMM_WIDTH, n_channels - j);
            CB_TYPED(pack_weights)(c, group, o + j, channels, k, n, panel);
            CB_TYPED(direct_sums) s = {.panel = panel, .out = sums + j, .ld = ld, .add = k > 0};
            CB_TYPED(direct_block)
            (c, &t, &f, &steps, (const CB_REAL *)scratch->col, s, channels <= GEMM_WIDTH / 2);
        }
    }
    CB_TYPED(direct_write)(c, &t, group, o, n_channels, sums, ld);
}
