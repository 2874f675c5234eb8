/* kern_conv_rows.h: convolution on frames (kern_frame.h) for one compute type. A template: included
 * with REAL_BITS 32 and 64. Sums are in the same order as those of gemm_own.h on an im2col
 * matrix. */
#undef CB_REAL
#undef CB_TYPED
#if REAL_BITS == 32
#define CB_REAL float
#define CB_TYPED(name) name##_f32
#else
#define CB_REAL double
#define CB_TYPED(name) name##_f64
#endif

/* ---- forward --------------------------------------------------------------------------------- */

/* The weights that a block of products reads: element (channel, p) is at[channel * ld +
 * column[p]]. */
typedef struct CB_TYPED(weights) {
    const CB_REAL *at;
    int64_t ld;
    int64_t column[GEMM_INNER];
} CB_TYPED(weights);

/* Reads a block of weights. Weight (o, k) is at o * window + k. If flipped, o is an input channel
 * of the convolution being differentiated, k = (output channel, tap), and k's channel selects the
 * window that holds the weight. */
static void CB_TYPED(read_block)(const conv *c, int64_t group, int64_t o, int64_t n_channels,
                                 int64_t k, int64_t inner, CB_REAL *wide, CB_TYPED(weights) * out) {
    int64_t area = c->area, first = (group * c->cout + o) * c->window + k;
    out->ld = c->window;
    for (int64_t p = 0; p < inner; p++) out->column[p] = p;
    if (c->is_flipped) {
        first = (group * c->cin * c->cout + o) * area;
        out->ld = area;
        for (int64_t p = 0, at = k % area, channel = k / area; p < inner; p++) {
            out->column[p] = channel * c->cout * area + at;
            if (++at == area) at = 0, channel++;
        }
    }
    out->at = (const CB_REAL *)c->weight + first;
#if REAL_BITS == 32
    if (!is_half(c->dtype)) return;
    const uint16_t *from = (const uint16_t *)c->weight + first;
    for (int64_t i = 0; i < n_channels; i++) {
        for (int64_t p = 0; p < inner; p++)
            wide[i * inner + p] = half_load(c->dtype, from + i * out->ld + out->column[p]);
    }
    for (int64_t p = 0; p < inner; p++) out->column[p] = p;
    out->at = wide, out->ld = inner;
#else
    (void)n_channels, (void)wide;
#endif
}

/* The columns of a panel, in pieces of FRAME_PIECE. Values that a piece writes past its run are
 * overwritten by the next one. */
typedef struct CB_TYPED(pieces) {
    int64_t n, to[MOST_PIECES], from[MOST_PIECES];
} CB_TYPED(pieces);

static void CB_TYPED(cut_pieces)(const conv *c, const tile *t, const frame *f, int64_t first,
                                 int64_t columns, CB_TYPED(pieces) * out) {
    out->n = 0;
    for (int64_t at = 0; at < columns;) {
        run r = run_of(c, t, f, first + at, first + columns);
        for (int64_t i = 0; i < r.n; i += FRAME_PIECE) {
            out->to[out->n] = at + i;
            out->from[out->n++] = r.place + i;
        }
        at += r.n;
    }
}

/* `n` is the number of pieces if it is known at compile time; 0: pieces->n is used. */
static inline __attribute__((always_inline)) void
CB_TYPED(pack_some)(int64_t n, const CB_TYPED(pieces) * pieces, const CB_REAL *at,
                    const int64_t *place, int64_t inner, CB_REAL *panel) {
    int64_t count = n > 0 ? n : pieces->n;
    for (int64_t p = 0; p < inner; p++, panel += GEMM_WIDTH) {
        const CB_REAL *from = at + place[p];
        for (int64_t i = 0; i < count; i++)
            memcpy(panel + pieces->to[i], from + pieces->from[i], FRAME_PIECE * sizeof(CB_REAL));
    }
}

static void CB_TYPED(pack_frame)(const CB_REAL *at, const int64_t *place, int64_t inner,
                                 const CB_TYPED(pieces) * pieces, int64_t columns, CB_REAL *panel) {
    switch (pieces->n) {
        case 4: CB_TYPED(pack_some)(4, pieces, at, place, inner, panel); break;
        case 5: CB_TYPED(pack_some)(5, pieces, at, place, inner, panel); break;
        case 8: CB_TYPED(pack_some)(8, pieces, at, place, inner, panel); break;
        default: CB_TYPED(pack_some)(0, pieces, at, place, inner, panel);
    }
    CB_TYPED(gemm_clear_right)(inner, columns, panel);
}

/* The destination of a tile's products: column `pixel` of an image of the tile is at[image *
 * image_step + pixel], with ld elements between channels. */
typedef struct CB_TYPED(target) {
    CB_REAL *at;
    int64_t ld, image_step;
} CB_TYPED(target);

/* Multiplies rows k .. k+inner of the window by the weights of n_channels channels, for a whole
 * tile. */
static void CB_TYPED(multiply_block)(const conv *c, const tile *t, const frame *f,
                                     const CB_REAL *at, int64_t k, int64_t inner,
                                     const CB_TYPED(weights) * w, int64_t n_channels,
                                     const CB_TYPED(target) * to) {
    _Alignas(GEMM_VECTOR) CB_REAL panel[GEMM_INNER * GEMM_WIDTH + FRAME_PIECE];
    int64_t place[GEMM_INNER], row[GEMM_TABLE_ROWS];
    CB_TYPED(pieces) pieces;
    tap_places(c, f, k, inner, place);
    for (int64_t i = 0; i < GEMM_TABLE_ROWS; i++) row[i] = i * w->ld;
    for (int64_t j = 0; j < t->columns; j += GEMM_WIDTH) {
        int64_t columns = min_i64(GEMM_WIDTH, t->columns - j), image = j / t->n_pixels;
        CB_REAL *out = to->at + image * to->image_step + (j - image * t->n_pixels);
        CB_TYPED(cut_pieces)(c, t, f, j, columns, &pieces);
        CB_TYPED(pack_frame)(at, place, inner, &pieces, columns, panel);
        for (int64_t i = 0; i < n_channels; i += GEMM_TABLE_ROWS) {
            CB_TYPED(gemm_add_rows)
            ((CB_TYPED(gemm_table)){w->at + i * w->ld, row, w->column}, n_channels - i, inner,
             panel, out + i * to->ld, to->ld, columns, k > 0);
        }
    }
}

/* Computes one tile of one group's outputs. */
static void CB_TYPED(frame_unit)(const conv *c, int64_t unit, const blocks *scratch) {
    int64_t pixel_tile = unit % c->n_pixel_tiles, set = unit / c->n_pixel_tiles % c->n_sets;
    int64_t group = unit / c->n_pixel_tiles / c->n_sets;
    tile t = tile_of(c, set, pixel_tile);
    bool is_direct = !is_half(c->dtype) && (t.n_images == 1 || c->pixels % GEMM_WIDTH == 0);
    CB_TYPED(weights) w;
    for (int64_t o = 0; o < c->cout; o += c->tiles.channels) {
        int64_t n_channels = min_i64(c->tiles.channels, c->cout - o);
        CB_TYPED(target) to = {(CB_REAL *)scratch->rows, t.columns, t.n_pixels};
        if (is_direct) {
            to = (CB_TYPED(target)){
                (CB_REAL *)((char *)c->args->out[0].data + y_offset(c, &t, group, o)), c->pixels,
                c->groups * c->cout * c->pixels};
        }
        for (int64_t k = 0; k < c->window; k += c->tiles.window) {
            int64_t n = min_i64(c->tiles.window, c->window - k);
            frame f = frame_of(c, &t, k, n);
            fill_frame(c, &t, group, &f, scratch->col);
            for (int64_t at = k; at < k + n; at += GEMM_INNER) {
                int64_t inner = min_i64(GEMM_INNER, k + n - at);
                CB_TYPED(read_block)
                (c, group, o, n_channels, at, inner, (CB_REAL *)scratch->weight, &w);
                CB_TYPED(multiply_block)
                (c, &t, &f, (const CB_REAL *)scratch->col, at, inner, &w, n_channels, &to);
            }
        }
        if (!is_direct) write_rows(c, &t, group, o, n_channels, scratch->rows);
    }
}

/* ---- weight gradient ------------------------------------------------------------------------- */

/* The products of a tile are dw^T [window, o] += frame [window, columns] g^T [columns, o]: a frame
 * needs no copy as the left side, and g^T is small. */
typedef struct CB_TYPED(gradient) {
    const conv *c;
    const tile *t;
    const frame *f;
    const CB_REAL *frame, *rows; /* rows: the tile's g in f32, for 16-bit types */
    int64_t group, o, k, m, n;
    int64_t ld;
    CB_REAL *sums; /* [n, ld], m of them used */
} CB_TYPED(gradient);

/* Packs columns first .. first+inner of the tile of g, channels j .. j+columns of the block, to a
 * panel. */
static void CB_TYPED(pack_gradient)(const CB_TYPED(gradient) * g, int64_t first, int64_t inner,
                                    int64_t j, int64_t columns, CB_REAL *panel) {
    const conv *c = g->c;
    const tile *t = g->t;
    if (g->rows) {
        CB_TYPED(gemm_transpose)
        (g->rows + j * t->columns + first, t->columns, columns, inner, panel, GEMM_WIDTH);
    }
    for (int64_t p = 0; p < inner && !g->rows;) {
        int64_t image = (first + p) / t->n_pixels, pixel = first + p - image * t->n_pixels;
        int64_t n = min_i64(t->n_pixels - pixel, inner - p);
        tile at = {.image = t->image + image, .pixel = t->pixel + pixel};
        CB_TYPED(gemm_transpose)
        ((const CB_REAL *)(c->y + y_offset(c, &at, g->group, g->o + j)), c->pixels, columns, n,
         panel + p * GEMM_WIDTH, GEMM_WIDTH);
        p += n;
    }
    CB_TYPED(gemm_clear_right)(inner, columns, panel);
}

static void CB_TYPED(add_tile)(const CB_TYPED(gradient) * g, bool add) {
    _Alignas(GEMM_VECTOR) CB_REAL panel[GEMM_INNER * GEMM_WIDTH];
    int64_t column[GEMM_INNER], place[GEMM_INNER];
    tap_places(g->c, g->f, g->k, g->n, place);
    for (int64_t first = 0; first < g->t->columns; first += GEMM_INNER) {
        int64_t inner = min_i64(GEMM_INNER, g->t->columns - first);
        for (int64_t p = 0; p < inner;) {
            run r = run_of(g->c, g->t, g->f, first + p, first + inner);
            for (int64_t i = 0; i < r.n; i++) column[p + i] = r.place + i;
            p += r.n;
        }
        for (int64_t j = 0; j < g->m; j += GEMM_WIDTH) {
            CB_TYPED(pack_gradient)(g, first, inner, j, min_i64(GEMM_WIDTH, g->m - j), panel);
            for (int64_t i = 0; i < g->n; i += GEMM_TABLE_ROWS) {
                CB_TYPED(gemm_add_rows)
                ((CB_TYPED(gemm_table)){g->frame, place + i, column}, g->n - i, inner, panel,
                 g->sums + i * g->ld + j, g->ld, GEMM_WIDTH, add || first > 0);
            }
        }
    }
}

/* Returns a multiple of every panel width, so that the fit does not depend on the instruction
 * set. */
static int64_t CB_TYPED(sums_ld)(int64_t channels) { return div_up(channels, 32) * 32; }

/* Returns true if the accumulators, the padded frame and the widened 16-bit gradient fit in one
 * scratch slot. */
static bool CB_TYPED(sums_fit)(const conv *c) {
    const cb_conv_tiles *t = &c->tiles;
    int64_t columns = t->images * t->pixels,
            room = (t->window + (is_half(c->dtype) ? 0 : t->channels)) * columns;
    return t->window * CB_TYPED(sums_ld)(t->channels) + largest_frame(c) <= room;
}

/* Sums the products of tiles begin .. end into out[m, n], with ld elements between rows. */
static void CB_TYPED(frame_sums)(const conv *c, int64_t group, int64_t o, int64_t k, int64_t begin,
                                 int64_t end, const blocks *scratch, const cb_gemm *out) {
    CB_TYPED(gradient)
    g = {.c = c,
         .group = group,
         .o = o,
         .k = k,
         .m = out->m,
         .n = out->n,
         .ld = CB_TYPED(sums_ld)(out->m),
         .sums = (CB_REAL *)scratch->col,
         .frame = (CB_REAL *)scratch->col + out->n * CB_TYPED(sums_ld)(out->m)};
    for (int64_t i = begin; i < end; i++) {
        int64_t ld;
        tile t = tile_of(c, i / c->n_pixel_tiles, i % c->n_pixel_tiles);
        frame f = frame_of(c, &t, k, g.n);
        g.t = &t, g.f = &f;
        if (is_half(c->dtype)) g.rows = read_rows(c, &t, group, o, g.m, scratch->rows, &ld);
        fill_frame(c, &t, group, &f, (char *)(g.sums + g.n * g.ld));
        CB_TYPED(add_tile)(&g, i > begin);
    }
    CB_TYPED(gemm_transpose)(g.sums, g.ld, g.n, g.m, out->c, out->ldc);
}
