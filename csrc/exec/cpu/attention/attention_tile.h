/* attention_tile.h: operations on one tile for the forward and backward pass of kern_attention.c,
 * for one compute type. A template: included with REAL_BITS 32 and 64, by attention_rows.h. */
#undef CB_REAL
#undef CB_TYPED
#undef TILE_EXP
#if REAL_BITS == 32
#define CB_REAL float
#define CB_TYPED(name) name##_f32
#else
#define CB_REAL double
#define CB_TYPED(name) name##_f64
#endif
#define LOWEST ((CB_REAL) - INFINITY)

/* The parts of a slot (attention_tiles.h). */
typedef struct CB_TYPED(slot) {
    CB_REAL *columns_e, *columns_d, *queries_e, *queries_d, *keys_e, *keys_d;
    CB_REAL *panels_q, *panels_g, *panels_k; /* in the forward, panels_k is for v */
    CB_REAL *scores, *slopes; /* tiles; scores become weights, slopes gradients of scores */
    CB_REAL *sum_q, *sum_k,
        *sum_v; /* sums of 16-bit gradients; the forward sums the result in sum_q */
    CB_REAL *mask, *kept, *by_rows;      /* tiles; by_rows has a line for each query */
    CB_REAL *most, *total, *factor, *by; /* one number for each query */
} CB_TYPED(slot);

static CB_REAL *CB_TYPED(take)(CB_REAL **from, bool is_there, int64_t n) {
    CB_REAL *at = *from;
    if (is_there) *from += n;
    return at;
}

static CB_TYPED(slot) CB_TYPED(slot_of)(const attention *a, int64_t slot) {
    const cb_attention_tiles *t = &a->t;
    const bool is_forward = a->args->code == CB_OP_ATTENTION;
    const bool sums = !is_forward && is_half(a->dtype);
    CB_REAL *at = (CB_REAL *)a->slots + slot * t->slot;
    CB_TYPED(slot) s;
    s.columns_e = CB_TYPED(take)(&at, true, t->columns_e);
    s.columns_d = CB_TYPED(take)(&at, true, t->columns_d);
    s.queries_e = CB_TYPED(take)(&at, true, t->queries_e);
    s.queries_d = CB_TYPED(take)(&at, true, t->queries_d);
    s.keys_e = CB_TYPED(take)(&at, true, t->keys_e);
    s.keys_d = CB_TYPED(take)(&at, true, t->keys_d);
    s.panels_q = CB_TYPED(take)(&at, !is_forward, t->queries_e);
    s.panels_g = CB_TYPED(take)(&at, !is_forward, t->queries_d);
    s.panels_k = CB_TYPED(take)(&at, true, is_forward ? t->keys_d : t->keys_e);
    s.scores = CB_TYPED(take)(&at, true, t->scores);
    s.slopes = CB_TYPED(take)(&at, !is_forward, t->scores);
    s.sum_q = is_forward ? s.queries_d : CB_TYPED(take)(&at, sums, t->queries_e);
    s.sum_k = CB_TYPED(take)(&at, sums, t->keys_e);
    s.sum_v = CB_TYPED(take)(&at, sums, t->keys_d);
    s.mask = CB_TYPED(take)(&at, a->mask != NULL, t->scores);
    s.kept = CB_TYPED(take)(&at, a->drops, t->scores);
    s.most = CB_TYPED(take)(&at, true, t->line);
    s.total = CB_TYPED(take)(&at, true, t->line);
    s.factor = CB_TYPED(take)(&at, true, t->line);
    s.by = CB_TYPED(take)(&at, true, t->line);
    s.by_rows = at;
    return s;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of a matrix: row i at at[i * ld]. */
typedef struct CB_TYPED(block) {
    const CB_REAL *at;
    int64_t ld;
} CB_TYPED(block);

static void CB_TYPED(load_row)(const cb_tensor *t, const void *at, int64_t n, int64_t stride,
                               CB_REAL *to) {
#if REAL_BITS == 32
    if (is_half(t->dtype)) {
        const uint16_t *from = at;
        if (stride == 1) half_widen(t->dtype, from, to, n);
        else
            for (int64_t p = 0; p < n; p++) to[p] = half_load(t->dtype, from + p * stride);
        return;
    }
#else
    (void)t;
#endif
    const CB_REAL *from = at;
    for (int64_t p = 0; p < n; p++) to[p] = from[p * stride];
}

static void CB_TYPED(store_row)(cb_dtype dtype, const CB_REAL *from, int64_t n, void *to) {
#if REAL_BITS == 32
    if (is_half(dtype)) {
        half_narrow(dtype, from, to, n);
        return;
    }
#else
    (void)dtype;
#endif
    memcpy(to, from, (size_t)n * sizeof *from);
}

/* Returns rows row..row+n of a head: in place if a row is dense, otherwise as a copy. */
static CB_TYPED(block)
    CB_TYPED(rows_of)(const cb_tensor *t, int64_t item, int64_t row, int64_t n, CB_REAL *copy) {
    const int32_t r = t->shape.rank;
    const int64_t columns = t->shape.dim[r - 1], stride = t->stride[r - 1];
    if (!is_half(t->dtype) && stride == 1)
        return (CB_TYPED(block)){row_at(t, item, row), t->stride[r - 2]};
    for (int64_t i = 0; i < n; i++)
        CB_TYPED(load_row)(t, row_at(t, item, row + i), columns, stride, copy + i * columns);
    return (CB_TYPED(block)){copy, columns};
}

/* The right operand of a product: `rows` rows in panels of GEMM_WIDTH columns, one after another,
 * so that a panel stays in the first-level cache. The last panel may have fewer columns. */
typedef struct CB_TYPED(panels) {
    const CB_REAL *at;
    int64_t rows, columns;
} CB_TYPED(panels);

static CB_TYPED(panels)
    CB_TYPED(pack_panels)(CB_TYPED(block) x, int64_t rows, int64_t columns, CB_REAL *to) {
    const CB_TYPED(panels) packed = {to, rows, columns};
    const int64_t wide = div_up(columns, TILE_VECTOR) * TILE_VECTOR;
    for (int64_t j = 0; j < wide; j += GEMM_WIDTH) {
        const int64_t width = gemm_least(GEMM_WIDTH, wide - j), n = gemm_least(width, columns - j);
        const CB_REAL *from = x.at + j;
        for (int64_t i = 0; i < rows; i++, from += x.ld, to += width) {
            if (n == GEMM_WIDTH) {
                memcpy(to, from, GEMM_WIDTH * sizeof *to);
                continue;
            }
            for (int64_t p = 0; p < width; p++) to[p] = p < n ? from[p] : 0;
        }
    }
    return packed;
}

/* Returns columns j.. of rows `row`.. as the right operand of a kernel. */
static CB_TYPED(gemm_right) CB_TYPED(panel_at)(CB_TYPED(panels) x, int64_t j, int64_t row) {
    const int64_t wide = div_up(x.columns, TILE_VECTOR) * TILE_VECTOR;
    const int64_t width = gemm_least(GEMM_WIDTH, wide - j);
    return (CB_TYPED(gemm_right)){x.at + j * x.rows + row * width, width};
}

/* Transposes and scales rows: to[p * line + i] = x[i, p] * by. */
static void CB_TYPED(pack_columns)(CB_TYPED(block) x, int64_t n, int64_t columns, CB_REAL by,
                                   CB_REAL *to, int64_t line) {
    CB_TYPED(gemm_transpose)(x.at, x.ld, n, columns, to, line);
    for (int64_t p = 0; p < columns; p++, to += line) {
        for (int64_t i = 0; i < n; i++) to[i] *= by;
        for (int64_t i = n; i < line; i++) to[i] = 0;
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* The destination of a product: row i is at at[i * ld]. */
typedef struct CB_TYPED(sums) {
    CB_REAL *at;
    int64_t ld, columns;
    bool add;
} CB_TYPED(sums);

/* Returns the rows at `row` and the columns at `j` of a destination. */
static CB_TYPED(gemm_out) CB_TYPED(part_of)(CB_TYPED(sums) out, int64_t row, int64_t j) {
    return (CB_TYPED(gemm_out)){out.at + row * out.ld + j, out.ld,
                                gemm_least(GEMM_WIDTH, out.columns - j), out.add};
}

/* Computes tile[j, i] = rows[j] . columns[i] for the keys at j0 and the queries at i0. Skips panels
 * of queries that do not see a key. */
static void CB_TYPED(multiply_tile)(const attention *a, CB_TYPED(block) rows, int64_t keys,
                                    int64_t inner, const CB_REAL *columns, int64_t i0, int64_t j0,
                                    CB_REAL *tile) {
    const int64_t line = a->t.line, used = used_columns(a, i0);
    for (int64_t c = 0; c < used; c += GEMM_WIDTH) {
        const int64_t width = gemm_least(GEMM_WIDTH, used - c);
        CB_TYPED(gemm_add_panel)
        ((CB_TYPED(gemm_left)){rows.at, rows.ld, 1}, min_i64(keys, keys_seen(a, i0 + c, width, j0)),
         (CB_TYPED(gemm_right)){columns + c, line}, inner,
         (CB_TYPED(gemm_out)){tile + c, line, width, false});
    }
}

/* Computes out[i] (+)= sum over keys j of tile[j, i] * keys[j], for n queries. */
static void CB_TYPED(multiply_queries)(const attention *a, const CB_REAL *tile,
                                       CB_TYPED(panels) keys, int64_t i0, int64_t n, int64_t j0,
                                       CB_TYPED(sums) out) {
    const int64_t line = a->t.line;
    for (int64_t p = 0; p < out.columns; p += GEMM_WIDTH) {
        const CB_TYPED(gemm_right) right = CB_TYPED(panel_at)(keys, p, 0);
        for (int64_t i = 0; i < n; i += CHUNK) {
            const int64_t rows = min_i64(CHUNK, n - i);
            CB_TYPED(gemm_add_panel)
            ((CB_TYPED(gemm_left)){tile + i, 1, line}, rows, right, keys_seen(a, i0 + i, rows, j0),
             CB_TYPED(part_of)(out, i, p));
        }
    }
}

/* Computes out[j] (+)= sum over n queries i of tile[j, i] * queries[i], for the keys of a block. */
static void CB_TYPED(multiply_keys)(const attention *a, const CB_REAL *tile,
                                    CB_TYPED(panels) queries, int64_t i0, int64_t n, int64_t j0,
                                    CB_TYPED(sums) out) {
    const int64_t line = a->t.line, keys = min_i64(a->t.keys, a->t.s - j0);
    for (int64_t p = 0; p < out.columns; p += GEMM_WIDTH) {
        for (int64_t j = 0; j < keys; j += CHUNK) {
            const int64_t first = a->is_causal ? max_i64(min_i64(j0 + j - i0, n), 0) : 0;
            CB_TYPED(gemm_add_panel)
            ((CB_TYPED(gemm_left)){tile + j * line + first, line, 1}, min_i64(CHUNK, keys - j),
             CB_TYPED(panel_at)(queries, p, first), n - first, CB_TYPED(part_of)(out, j, p));
        }
    }
}

/* ---- masks and dropout ----------------------------------------------------------------------- */

static void CB_TYPED(load_mask_row)(const cb_tensor *t, const void *at, int64_t n, CB_REAL *to) {
    const int64_t stride = t->stride[t->shape.rank - 1];
    if (t->dtype != CB_BOOL) {
        CB_TYPED(load_row)(t, at, n, stride, to);
        return;
    }
    const uint8_t *from = at;
    for (int64_t j = 0; j < n; j++) to[j] = from[j * stride] ? (CB_REAL)0 : LOWEST;
}

/* Fills s->mask, which is added to the scores of a tile. */
static void CB_TYPED(fill_mask)(const attention *a, const CB_TYPED(slot) * s, int64_t item,
                                int64_t i0, int64_t n, int64_t j0, int64_t keys) {
    const int32_t r = a->mask->shape.rank;
    const int64_t size = (int64_t)cb_dtype_size(a->mask->dtype), line = a->t.line;
    for (int64_t i = 0; i < n; i++) {
        const char *row = row_at(a->mask, item, i0 + i);
        CB_TYPED(load_mask_row)
        (a->mask, row + j0 * a->mask->stride[r - 1] * size, keys, s->by_rows + i * a->t.keys);
    }
    CB_TYPED(gemm_transpose)(s->by_rows, a->t.keys, n, keys, s->mask, line);
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = n; i < line; i++) s->mask[j * line + i] = 0;
}

/* Fills s->kept, the factors of dropout. Elements are numbered as in the whole matrix of scores, so
 * the mask is the one that the op `dropout` would draw for it. */
static void CB_TYPED(fill_kept)(const attention *a, const CB_TYPED(slot) * s, int64_t item,
                                int64_t i0, int64_t n, int64_t j0, int64_t keys) {
    const double p = a->args->attrs->f[1];
    const uint32_t threshold = cb_dropout_threshold(p);
    const CB_REAL scale = (CB_REAL)cb_dropout_scale(p);
    const int64_t line = a->t.line;
    uint16_t drawn[CB_DRAWN];
    for (int64_t i = 0; i < n; i++) {
        const int64_t first = (item * a->t.l + i0 + i) * a->t.s + j0;
        const int64_t skipped = first % CB_PHILOX_BLOCK;
        CB_REAL *to = s->by_rows + i * a->t.keys;
        cb_draw(&a->args->random, (uint64_t)first / CB_PHILOX_BLOCK, drawn);
        for (int64_t j = 0; j < keys; j++)
            to[j] = drawn[skipped + j] >= threshold ? scale : (CB_REAL)0;
    }
    CB_TYPED(gemm_transpose)(s->by_rows, a->t.keys, n, keys, s->kept, line);
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = n; i < line; i++) s->kept[j * line + i] = 0;
}

static void CB_TYPED(fill_tiles)(const attention *a, const CB_TYPED(slot) * s, int64_t item,
                                 int64_t i0, int64_t n, int64_t j0, int64_t keys) {
    if (a->mask) CB_TYPED(fill_mask)(a, s, item, i0, n, j0, keys);
    if (a->drops) CB_TYPED(fill_kept)(a, s, item, i0, n, j0, keys);
}

/* ---- lines ----------------------------------------------------------------------------------- */

#if REAL_BITS == 32
/* Returns e^x for x <= 0 within two units in the last place, 0 below -87.7, and NaN for NaN. Like
 * cb_exp_f32, but with fused multiply-adds. */
static inline float tile_exp_f32(float x) {
    x = x < -88.0f ? -88.0f : x; /* its exponent field is 0, so the result is 0 */
    float shifted = fmaf(x, 0x1.715476p+0f, CB_ROUND_F32);
    float n = shifted - CB_ROUND_F32;
    float r = fmaf(n, 0x1.bd0106p-13f, fmaf(n, -0x1.63p-1f, x));
    float p = fmaf(0x1.6a21acp-10f, r, 0x1.123b6ap-7f);
    p = fmaf(p, r, 0x1.5558fap-5f);
    p = fmaf(p, r, 0x1.555490p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r * r, r) + 1.0f;
    return p * cb_f32_of_bits((cb_bits_of_f32(shifted) + 127u) << 23);
}
#define TILE_EXP tile_exp_f32
#else
#define TILE_EXP cb_exp_f64
#endif

/* Returns the first column to process in a key's line, a multiple of TILE_VECTOR. Columns from
 * there on whose queries do not see the key are set to `unseen`. */
static int64_t CB_TYPED(begin_line)(const attention *a, int64_t i0, int64_t key, CB_REAL unseen,
                                    CB_REAL *line) {
    const int64_t first = a->is_causal ? max_i64(key - i0, 0) : 0;
    const int64_t begin = first / TILE_VECTOR * TILE_VECTOR;
    for (int64_t i = begin; i < first; i++) line[i] = unseen;
    return begin;
}

/* Products of CHUNK queries or keys read up to one vector before the first column of a line, and up
 * to CHUNK - 1 lines after the last key that the queries see. The next two functions set these
 * elements to 0. */
static void CB_TYPED(clear_before)(CB_REAL *line, int64_t begin) {
    for (int64_t i = max_i64(begin - TILE_VECTOR, 0); i < begin; i++) line[i] = 0;
}

static void CB_TYPED(clear_behind)(const attention *a, CB_REAL *tile, int64_t keys) {
    const int64_t end = min_i64(div_up(keys, CHUNK) * CHUNK, a->t.keys);
    memset(tile + keys * a->t.line, 0, (size_t)((end - keys) * a->t.line) * sizeof *tile);
}

static void CB_TYPED(add_to)(const CB_REAL *restrict x, CB_REAL *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += x[i];
}
