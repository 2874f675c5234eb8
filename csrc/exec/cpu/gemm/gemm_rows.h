/* gemm_rows.h: the product of gemm_own.h for one compute type. A template: included with REAL_BITS
 * 32 and 64. It defines CB_REAL (float, double), CB_TYPED(name) (name_f32, name_f64) and
 *
 *     CB_TYPED(gemm_transpose)         columns of a matrix to lines
 *     CB_TYPED(gemm_add_rows)          c[rows, columns] (+)= a[rows, inner] panel, for convolutions
 *     CB_TYPED(gemm_add_panel)         the same for a matrix a
 *     CB_TYPED(gemm_multiply)          the loops around it
 *     CB_TYPED(gemm_multiply_turned)   the same with the two sides exchanged */
#undef CB_REAL
#undef CB_TYPED
#if REAL_BITS == 32
#define CB_REAL float
#define CB_TYPED(name) name##_f32
#else
#define CB_REAL double
#define CB_TYPED(name) name##_f64
#endif
#define GEMM_WIDTH ((int64_t)(2 * GEMM_VECTOR / sizeof(CB_REAL))) /* columns of a panel */

/* Transposes four rows of four. */
GEMM_INLINE void CB_TYPED(gemm_turn)(CB_TYPED(gemm_four) * a) {
    CB_TYPED(gemm_four) b[4];
    b[0] = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
    b[1] = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
    b[2] = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
    b[3] = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
    a[0] = __builtin_shufflevector(b[0], b[2], 0, 1, 4, 5);
    a[1] = __builtin_shufflevector(b[0], b[2], 2, 3, 6, 7);
    a[2] = __builtin_shufflevector(b[1], b[3], 0, 1, 4, 5);
    a[3] = __builtin_shufflevector(b[1], b[3], 2, 3, 6, 7);
}

/* Sets to[p * ld_to + j] = from[j * ld + p] for j < columns and p < inner, four by four. */
static inline void CB_TYPED(gemm_transpose)(const CB_REAL *from, int64_t ld, int64_t columns,
                                            int64_t inner, CB_REAL *to, int64_t ld_to) {
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4, from += 4 * ld) {
        int64_t p = 0;
        for (; p + 4 <= inner; p += 4) {
            CB_TYPED(gemm_four) a[4];
            GEMM_UNROLL
            for (int i = 0; i < 4; i++) memcpy(&a[i], from + i * ld + p, sizeof a[i]);
            CB_TYPED(gemm_turn)(a);
            GEMM_UNROLL
            for (int i = 0; i < 4; i++) memcpy(to + (p + i) * ld_to + j, &a[i], sizeof a[i]);
        }
        for (; p < inner; p++) {
            for (int i = 0; i < 4; i++) to[p * ld_to + j + i] = from[i * ld + p];
        }
    }
    for (; j < columns; j++, from += ld) {
        for (int64_t p = 0; p < inner; p++) to[p * ld_to + j] = from[p];
    }
}

/* Fills the rest of a panel, right of its columns, with zeros, since leftover subnormal numbers
 * would be slow to multiply. */
static inline void CB_TYPED(gemm_clear_right)(int64_t inner, int64_t columns, CB_REAL *panel) {
    for (int64_t p = 0; p < inner && columns < GEMM_WIDTH; p++) {
        for (int64_t j = columns; j < GEMM_WIDTH; j++) panel[p * GEMM_WIDTH + j] = 0;
    }
}

static void CB_TYPED(gemm_pack)(gemm_view b, int64_t k0, int64_t inner, int64_t j0, int64_t columns,
                                CB_REAL *panel) {
    const CB_REAL *from = (const CB_REAL *)b.at + k0 * b.row + j0 * b.column;
    if (b.row == 1) { /* copy along the contiguous axis */
        CB_TYPED(gemm_transpose)(from, b.column, columns, inner, panel, GEMM_WIDTH);
    } else if (columns == GEMM_WIDTH) {
        for (int64_t p = 0; p < inner; p++)
            memcpy(panel + p * GEMM_WIDTH, from + p * b.row, GEMM_WIDTH * sizeof(CB_REAL));
    } else {
        for (int64_t p = 0; p < inner; p++)
            memcpy(panel + p * GEMM_WIDTH, from + p * b.row, (size_t)columns * sizeof(CB_REAL));
    }
    CB_TYPED(gemm_clear_right)(inner, columns, panel);
}

/* Stores the first columns of a vector. Not inlined: otherwise gcc 12 keeps all sums in memory on
 * AVX2, and products take three times as long. */
__attribute__((noinline)) static void
CB_TYPED(gemm_store_few)(CB_REAL *c, CB_TYPED(gemm_vector) sum, int64_t columns, bool add) {
    CB_REAL line[GEMM_VECTOR / sizeof(CB_REAL)];
    memcpy(line, &sum, sizeof sum);
    columns = gemm_least(columns, GEMM_VECTOR / sizeof(CB_REAL));
    for (int64_t j = 0; j < columns; j++) c[j] = add ? c[j] + line[j] : line[j];
}

/* Stores columns j .. j+columns of a row of sums, one vector at a time. */
GEMM_INLINE void CB_TYPED(gemm_store)(CB_REAL *c, CB_TYPED(gemm_vector) sum, int64_t columns,
                                      bool is_whole, bool add) {
    if (is_whole) {
        CB_TYPED(gemm_vector) old;
        if (add) {
            memcpy(&old, c, sizeof old);
            sum = old + sum;
        }
        memcpy(c, &sum, sizeof sum);
        return;
    }
    CB_TYPED(gemm_store_few)(c, sum, columns, add);
}

/* ---- sums in registers ----------------------------------------------------------------------- */

/* The left operand of a product: element (i, p) is at[i * row + p * column]. */
typedef struct CB_TYPED(gemm_left) {
    const CB_REAL *at;
    int64_t row, column;
} CB_TYPED(gemm_left);

/* The right operand of a product: row p begins at at[p * row] and is read in vectors. */
typedef struct CB_TYPED(gemm_right) {
    const CB_REAL *at;
    int64_t row;
} CB_TYPED(gemm_right);

/* The destination of sums: `columns` elements of each row c[i * ld] are written or, with `add`,
 * added to. */
typedef struct CB_TYPED(gemm_out) {
    CB_REAL *c;
    int64_t ld, columns;
    bool add;
} CB_TYPED(gemm_out);

/* Sums `rows` rows and `width` vectors of columns. Both are compile-time constants, and rows *
 * width is at most GEMM_SUMS. */
GEMM_INLINE void CB_TYPED(gemm_sum)(const int rows, const int width, CB_TYPED(gemm_left) a,
                                    CB_TYPED(gemm_right) b, int64_t inner,
                                    const CB_TYPED(gemm_out) * out) {
    const int64_t lanes = GEMM_VECTOR / sizeof(CB_REAL);
    CB_TYPED(gemm_vector) sum[GEMM_SUMS], right[GEMM_WIDEST];
    GEMM_UNROLL
    for (int i = 0; i < rows * width; i++) sum[i] = (CB_TYPED(gemm_vector)){0};
    for (int64_t p = 0; p < inner; p++, a.at += a.column, b.at += b.row) {
        GEMM_UNROLL
        for (int j = 0; j < width; j++) memcpy(&right[j], b.at + j * lanes, GEMM_VECTOR);
        if (GEMM_FETCHES(rows)) {
            GEMM_UNROLL
            for (int j = 0; j < width; j++)
                __builtin_prefetch(b.at + GEMM_AHEAD * b.row + j * lanes);
        }
        GEMM_UNROLL
        for (int i = 0; i < rows; i++) {
            GEMM_UNROLL
            for (int j = 0; j < width; j++) {
                sum[i * width + j] =
                    CB_TYPED(gemm_fma)(a.at[i * a.row], right[j], sum[i * width + j]);
            }
        }
    }
    const bool is_whole = out->columns >= width * lanes;
    GEMM_UNROLL
    for (int i = 0; i < rows; i++) {
        GEMM_UNROLL
        for (int j = 0; j < width; j++) {
            CB_TYPED(gemm_store)
            (out->c + i * out->ld + j * lanes, sum[i * width + j], out->columns - j * lanes,
             is_whole, out->add);
        }
    }
}

#define GEMM_DEFINE_SUM(rows, width)                                                               \
    static void CB_TYPED(gemm_sum_##rows##_##width)(CB_TYPED(gemm_left) a, CB_TYPED(gemm_right) b, \
                                                    int64_t inner,                                 \
                                                    const CB_TYPED(gemm_out) * out) {              \
        CB_TYPED(gemm_sum)(rows, width, a, b, inner, out);                                         \
    }
#if GEMM_ROWS == 12
GEMM_DEFINE_SUM(12, 1)
GEMM_DEFINE_SUM(12, 2)
GEMM_DEFINE_SUM(8, 1)
GEMM_DEFINE_SUM(8, 2)
#else
GEMM_DEFINE_SUM(6, 1)
GEMM_DEFINE_SUM(6, 2)
#endif
GEMM_DEFINE_SUM(4, 1)
GEMM_DEFINE_SUM(4, 2)
GEMM_DEFINE_SUM(2, 1)
GEMM_DEFINE_SUM(2, 2)
GEMM_DEFINE_SUM(2, 4)
GEMM_DEFINE_SUM(1, 1)
GEMM_DEFINE_SUM(1, 2)
GEMM_DEFINE_SUM(1, 8)
#undef GEMM_DEFINE_SUM

/* Computes c[rows, columns] (+)= a[rows, inner] b[inner, columns], for up to two vectors of
 * columns. */
static void CB_TYPED(gemm_add_panel)(CB_TYPED(gemm_left) a, int64_t rows, CB_TYPED(gemm_right) b,
                                     int64_t inner, CB_TYPED(gemm_out) out) {
    const bool is_narrow = out.columns <= GEMM_WIDTH / 2;
#define GEMM_TAKE(n)                                                               \
    for (; rows >= (n); rows -= (n), a.at += (n) * a.row, out.c += (n) * out.ld) { \
        if (is_narrow) CB_TYPED(gemm_sum_##n##_1)(a, b, inner, &out);              \
        else CB_TYPED(gemm_sum_##n##_2)(a, b, inner, &out);                        \
    }
#if GEMM_ROWS == 12
    if (rows != 16) GEMM_TAKE(12)
    GEMM_TAKE(8)
#else
    if (rows != 8) GEMM_TAKE(6)
#endif
    GEMM_TAKE(4)
    GEMM_TAKE(2)
    GEMM_TAKE(1)
#undef GEMM_TAKE
}

/* ---- left sides of any order ----------------------------------------------------------------- */

/* Element (i, p) of a is at[row[i] + column[p]]. */
typedef struct CB_TYPED(gemm_table) {
    const CB_REAL *at;
    const int64_t *row, *column;
} CB_TYPED(gemm_table);

/* Sums `n` rows, a compile-time constant, and stores the first `rows` of them. */
GEMM_INLINE void CB_TYPED(gemm_add_some)(const int n, CB_TYPED(gemm_table) a, int64_t rows,
                                         int64_t inner, const CB_REAL *panel, CB_REAL *c,
                                         int64_t ldc, int64_t columns, bool add) {
    const int64_t lanes = GEMM_VECTOR / sizeof(CB_REAL);
    CB_TYPED(gemm_vector) left[GEMM_TABLE_ROWS], right[GEMM_TABLE_ROWS];
    const CB_REAL *row[GEMM_TABLE_ROWS];
    GEMM_UNROLL
    for (int i = 0; i < n; i++) {
        row[i] = a.at + a.row[gemm_least(i, rows - 1)];
        left[i] = right[i] = (CB_TYPED(gemm_vector)){0};
    }
    for (int64_t p = 0; p < inner; p++, panel += GEMM_WIDTH) {
        CB_TYPED(gemm_vector) b0, b1;
        int64_t at = a.column[p];
        memcpy(&b0, panel, GEMM_VECTOR);
        memcpy(&b1, panel + lanes, GEMM_VECTOR);
        GEMM_UNROLL
        for (int i = 0; i < n; i++) {
            left[i] = CB_TYPED(gemm_fma)(row[i][at], b0, left[i]);
            right[i] = CB_TYPED(gemm_fma)(row[i][at], b1, right[i]);
        }
    }
    GEMM_UNROLL
    for (int i = 0; i < n; i++) {
        if (i >= rows) break;
        const bool is_whole = columns == GEMM_WIDTH;
        CB_TYPED(gemm_store)(c + i * ldc, left[i], columns, is_whole, add);
        CB_TYPED(gemm_store)(c + i * ldc + lanes, right[i], columns - lanes, is_whole, add);
    }
}

/* Computes c[rows, columns] (+)= a[rows, inner] panel, for up to GEMM_TABLE_ROWS rows, with ldc
 * elements between rows of c. */
static inline void CB_TYPED(gemm_add_rows)(CB_TYPED(gemm_table) a, int64_t rows, int64_t inner,
                                           const CB_REAL *panel, CB_REAL *c, int64_t ldc,
                                           int64_t columns, bool add) {
    const int most = GEMM_TABLE_ROWS;
    if (rows >= most) CB_TYPED(gemm_add_some)(most, a, most, inner, panel, c, ldc, columns, add);
    else if (rows > 4) CB_TYPED(gemm_add_some)(most, a, rows, inner, panel, c, ldc, columns, add);
    else if (rows > 2) CB_TYPED(gemm_add_some)(4, a, rows, inner, panel, c, ldc, columns, add);
    else if (rows > 1) CB_TYPED(gemm_add_some)(2, a, rows, inner, panel, c, ldc, columns, add);
    else CB_TYPED(gemm_add_some)(1, a, rows, inner, panel, c, ldc, columns, add);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns the next columns of b, at most two vectors of them: in place if their rows can be read
 * there, otherwise as a copy. */
static CB_TYPED(gemm_right) CB_TYPED(gemm_panel)(gemm_view b, int64_t k0, int64_t inner, int64_t j,
                                                 int64_t columns, bool is_direct, CB_REAL *panel) {
    if (is_direct && columns == GEMM_WIDTH)
        return (CB_TYPED(gemm_right)){(const CB_REAL *)b.at + k0 * b.row + j, b.row};
    CB_TYPED(gemm_pack)(b, k0, inner, j, columns, panel);
    return (CB_TYPED(gemm_right)){panel, GEMM_WIDTH};
}

/* Multiplies one or two rows of a by wide pieces of b, read in place. Returns the number of
 * finished columns. */
static int64_t CB_TYPED(gemm_add_wide)(CB_TYPED(gemm_left) a, int64_t rows, gemm_view b, int64_t k0,
                                       int64_t inner, int64_t n, CB_TYPED(gemm_out) out) {
    int64_t j = 0, width = GEMM_WIDTH * (rows == 1 ? 4 : 2);
    CB_TYPED(gemm_right) right = {(const CB_REAL *)b.at + k0 * b.row, b.row};
    for (out.columns = width; j + width <= n; j += width, right.at += width, out.c += width) {
        if (rows == 1) CB_TYPED(gemm_sum_1_8)(a, right, inner, &out);
        else CB_TYPED(gemm_sum_2_4)(a, right, inner, &out);
    }
    return j;
}

/* Adds `rows` rows of b, each times its number of a, to sums of n columns. If b is far, fetches the
 * next rows. `rows` and `is_far` are compile-time constants. */
GEMM_INLINE void CB_TYPED(gemm_add_lines)(const int rows, const bool is_far, CB_TYPED(gemm_left) a,
                                          CB_TYPED(gemm_right) b, int64_t n, CB_REAL *sum) {
    const int64_t lanes = GEMM_VECTOR / sizeof(CB_REAL);
    CB_TYPED(gemm_vector) x[GEMM_LINES], v, right;
    GEMM_UNROLL
    for (int p = 0; p < rows; p++) x[p] = a.at[p * a.column] - (CB_TYPED(gemm_vector)){0};
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) {
        memcpy(&v, sum + j, sizeof v);
        if (is_far) { /* each line once */
            const int vectors = 64 / GEMM_VECTOR;
            const CB_REAL *next = b.at + (rows + j / lanes % vectors) * b.row + j;
            GEMM_UNROLL
            for (int p = 0; p < rows; p += vectors) __builtin_prefetch(next + p * b.row, 0, 2);
        }
        GEMM_UNROLL
        for (int p = 0; p < rows; p++) {
            memcpy(&right, b.at + p * b.row + j, sizeof right);
            v = CB_TYPED(gemm_fma_each)(x[p], right, v);
        }
        memcpy(sum + j, &v, sizeof v);
    }
    for (; j < n; j++) {
        for (int p = 0; p < rows; p++)
            sum[j] = CB_TYPED(gemm_fma_one)(a.at[p * a.column], b.at[p * b.row + j], sum[j]);
    }
}

/* Multiplies one row of a by a dense b, which is read row by row: with so little to do, reading b
 * in the order of its memory decides. */
static void CB_TYPED(gemm_multiply_line)(const cb_gemm *g, gemm_view a, gemm_view b) {
    _Alignas(GEMM_VECTOR) CB_REAL sum[GEMM_LINE];
    const bool is_far = g->k * g->n > GEMM_NEAR / (int64_t)sizeof(CB_REAL);
    for (int64_t j = 0; j < g->n; j += GEMM_LINE) {
        const int64_t n = gemm_least(GEMM_LINE, g->n - j);
        for (int64_t k0 = 0; k0 < g->k; k0 += GEMM_INNER) {
            const int64_t end = gemm_least(k0 + GEMM_INNER, g->k);
            int64_t p = k0;
            memset(sum, 0, (size_t)n * sizeof sum[0]);
#define GEMM_TAKE_LINES(n_lines, is_far)                                                \
    for (; p + (n_lines) <= end; p += (n_lines)) {                                      \
        CB_TYPED(gemm_add_lines)                                                        \
        ((n_lines), (is_far),                                                           \
         (CB_TYPED(gemm_left)){(const CB_REAL *)a.at + p * a.column, 0, a.column},      \
         (CB_TYPED(gemm_right)){(const CB_REAL *)b.at + p * b.row + j, b.row}, n, sum); \
    }
            if (is_far) GEMM_TAKE_LINES(GEMM_LINES, true)
            GEMM_TAKE_LINES(GEMM_LINES, false)
            GEMM_TAKE_LINES(1, false)
#undef GEMM_TAKE_LINES
            CB_REAL *c = (CB_REAL *)g->c + j;
            const bool add = g->add || k0 > 0;
            for (int64_t i = 0; i < n; i++) c[i] = add ? c[i] + sum[i] : sum[i];
        }
    }
}

/* Dense columns of b: column j is at at + j * ld, and the block that is read next at next. */
typedef struct CB_TYPED(gemm_columns) {
    const CB_REAL *at, *next;
    int64_t ld;
} CB_TYPED(gemm_columns);

/* Returns the columns from j on, from row k0 on. Next come more rows of them or, if columns are
 * short, the same rows of the columns behind them. */
static CB_TYPED(gemm_columns)
    CB_TYPED(gemm_columns_at)(gemm_view b, int64_t k, int64_t k0, int64_t j) {
    const CB_REAL *column = (const CB_REAL *)b.at + j * b.column, *at = column + k0;
    const CB_REAL *behind = (k <= GEMM_SHORT ? at : column) + GEMM_DOTS * b.column;
    const bool is_long = k > GEMM_SHORT && k0 + GEMM_INNER < k;
    return (CB_TYPED(gemm_columns)){at, is_long ? at + GEMM_INNER : behind, b.column};
}

/* Adds x[p] * b[p][j] to the sums of GEMM_DOTS columns. Fetches as many lines of the next block. */
GEMM_INLINE void CB_TYPED(gemm_add_dots)(CB_TYPED(gemm_left) x, CB_TYPED(gemm_columns) columns,
                                         int64_t inner, CB_TYPED(gemm_four) * sum) {
    const int64_t ld = columns.ld, line = 64 / sizeof(CB_REAL);
    const CB_REAL *b = columns.at;
    int64_t p = 0;
    for (; p + 4 <= inner; p += 4, b += 4, x.at += 4 * x.column) {
        const int64_t past = p % line;
        GEMM_UNROLL
        for (int i = 0; i < 4 * GEMM_DOTS / line; i++) {
            const CB_REAL *next = columns.next + p - past;
            __builtin_prefetch(next + (past * GEMM_DOTS / line + i) * ld, 0, 2);
        }
        GEMM_UNROLL
        for (int i = 0; i < GEMM_DOTS / 4; i++) {
            CB_TYPED(gemm_four) a[4];
            GEMM_UNROLL
            for (int j = 0; j < 4; j++) memcpy(&a[j], b + (4 * i + j) * ld, sizeof a[j]);
            CB_TYPED(gemm_turn)(a);
            GEMM_UNROLL
            for (int j = 0; j < 4; j++)
                sum[i] = CB_TYPED(gemm_fma_four)(x.at[j * x.column], a[j], sum[i]);
        }
    }
    for (; p < inner; p++, b++, x.at += x.column) {
        GEMM_UNROLL
        for (int i = 0; i < GEMM_DOTS / 4; i++) {
            const CB_REAL *at = b + 4 * i * ld;
            const CB_TYPED(gemm_four) a = {at[0], at[ld], at[2 * ld], at[3 * ld]};
            sum[i] = CB_TYPED(gemm_fma_four)(x.at[0], a, sum[i]);
        }
    }
}

/* Multiplies one row of a by a b whose columns are dense. */
static void CB_TYPED(gemm_multiply_dots)(const cb_gemm *g, gemm_view a, gemm_view b) {
    for (int64_t j = 0; j < g->n;) {
        const int64_t n = g->n - j >= GEMM_DOTS ? GEMM_DOTS : 1;
        CB_REAL *c = (CB_REAL *)g->c + j;
        for (int64_t k0 = 0; k0 < g->k; k0 += GEMM_INNER) {
            const int64_t inner = gemm_least(GEMM_INNER, g->k - k0);
            const CB_TYPED(gemm_columns) columns = CB_TYPED(gemm_columns_at)(b, g->k, k0, j);
            const bool add = g->add || k0 > 0;
            CB_TYPED(gemm_left) x = {(const CB_REAL *)a.at + k0 * a.column, 0, a.column};
            CB_TYPED(gemm_four) sum[GEMM_DOTS / 4] = {{0}};
            CB_REAL line[GEMM_DOTS];
            if (n > 1) CB_TYPED(gemm_add_dots)(x, columns, inner, sum);
            else
                for (int64_t p = 0; p < inner; p++, x.at += x.column)
                    sum[0][0] = CB_TYPED(gemm_fma_one)(x.at[0], columns.at[p], sum[0][0]);
            memcpy(line, sum, sizeof line);
            for (int64_t i = 0; i < n; i++) c[i] = add ? c[i] + line[i] : line[i];
        }
        j += n;
    }
}

/* Multiplies a block of rows of a at a time, along the whole inner axis. So a is read once, in
 * order, and sums are still in a cache when the next part of the inner axis is added. */
static void CB_TYPED(gemm_multiply)(const cb_gemm *g) {
    gemm_view a = gemm_view_of(g->a, g->lda, g->a_transposed);
    gemm_view b = gemm_view_of(g->b, g->ldb, g->b_transposed);
    _Alignas(GEMM_VECTOR) CB_REAL panel[GEMM_INNER * GEMM_WIDTH];
    const bool is_direct = b.column == 1 && g->m <= GEMM_DIRECT;
    if (g->m == 1) {
        is_direct ? CB_TYPED(gemm_multiply_line)(g, a, b) : CB_TYPED(gemm_multiply_dots)(g, a, b);
        return;
    }
    const int64_t block = gemm_block_rows(g->m);
    for (int64_t i = 0; i < g->m; i += block) {
        int64_t rows = gemm_least(block, g->m - i);
        for (int64_t k0 = 0; k0 < g->k; k0 += GEMM_INNER) {
            int64_t inner = gemm_least(GEMM_INNER, g->k - k0), j = 0;
            CB_TYPED(gemm_left)
            left = {(const CB_REAL *)a.at + i * a.row + k0 * a.column, a.row, a.column};
            CB_TYPED(gemm_out)
            out = {(CB_REAL *)g->c + i * g->ldc, g->ldc, 0, g->add || k0 > 0};
            if (is_direct && rows <= 2)
                j = CB_TYPED(gemm_add_wide)(left, rows, b, k0, inner, g->n, out);
            for (; j < g->n; j += GEMM_WIDTH) {
                out.columns = gemm_least(GEMM_WIDTH, g->n - j);
                out.c = (CB_REAL *)g->c + i * g->ldc + j;
                CB_TYPED(gemm_right)
                right = CB_TYPED(gemm_panel)(b, k0, inner, j, out.columns, is_direct, panel);
                CB_TYPED(gemm_add_panel)(left, rows, right, inner, out);
            }
        }
    }
}

/* Returns the product c^T = b^T a^T into a dense `c`. */
static cb_gemm CB_TYPED(gemm_turned)(const cb_gemm *g, CB_REAL *c) {
    return (cb_gemm){.dtype = g->dtype,
                     .m = g->n,
                     .n = g->m,
                     .k = g->k,
                     .a = g->b,
                     .b = g->a,
                     .lda = g->ldb,
                     .ldb = g->lda,
                     .ldc = g->m,
                     .a_transposed = !g->b_transposed,
                     .b_transposed = !g->a_transposed,
                     .add = g->add,
                     .c = c};
}

/* Multiplies by few columns, which would fill only a part of a vector, or few rows by a b that is
 * transposed, as c^T = b^T a^T, in blocks. The order of each sum does not change. */
static void CB_TYPED(gemm_multiply_turned)(const cb_gemm *g) {
    _Alignas(GEMM_VECTOR) CB_REAL block[GEMM_TURNED / sizeof(CB_REAL)];
    const int64_t room = GEMM_TURNED / sizeof(CB_REAL);
    const int64_t rows = g->n < g->m ? gemm_least(room / g->n, GEMM_BLOCK) : g->m,
                  columns = g->n < g->m ? g->n : room / g->m;
    if (g->n == 1 && g->ldc == 1) { /* c is a row as well */
        const cb_gemm turned = CB_TYPED(gemm_turned)(g, g->c);
        CB_TYPED(gemm_multiply)(&turned);
        return;
    }
    const gemm_view a = gemm_view_of(g->a, g->lda, g->a_transposed),
                    b = gemm_view_of(g->b, g->ldb, g->b_transposed);
    for (int64_t i = 0; i < g->m; i += rows) {
        for (int64_t j = 0; j < g->n; j += columns) {
            CB_REAL *c = (CB_REAL *)g->c + i * g->ldc + j;
            cb_gemm piece = *g;
            piece.m = gemm_least(rows, g->m - i);
            piece.n = gemm_least(columns, g->n - j);
            piece.a = (const CB_REAL *)a.at + i * a.row;
            piece.b = (const CB_REAL *)b.at + j * b.column;
            if (g->add) CB_TYPED(gemm_transpose)(c, g->ldc, piece.m, piece.n, block, piece.m);
            const cb_gemm turned = CB_TYPED(gemm_turned)(&piece, block);
            CB_TYPED(gemm_multiply)(&turned);
            CB_TYPED(gemm_transpose)(block, piece.m, piece.n, piece.m, c, g->ldc);
        }
    }
}
