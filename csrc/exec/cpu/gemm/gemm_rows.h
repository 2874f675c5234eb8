/* gemm_rows.h: the product of gemm_own.h for one compute type. A template: included with REAL_BITS
 * 32 and 64. It defines CB_REAL (float, double), CB_TYPED(name) (name_f32, name_f64) and
 *
 *     CB_TYPED(gemm_transpose)   columns of a matrix to lines
 *     CB_TYPED(gemm_add_rows)    c[rows, columns] (+)= a[rows, inner] panel
 *     CB_TYPED(gemm_multiply)    the loops around them */
#undef CB_REAL
#undef CB_TYPED
#if REAL_BITS == 32
#define CB_REAL float
#define CB_TYPED(name) name##_f32
#else
#define CB_REAL double
#define CB_TYPED(name) name##_f64
#endif
#define GEMM_WIDTH ((int64_t)(2 * GEMM_VECTOR / sizeof(CB_REAL))) /* of a panel */

typedef CB_REAL CB_TYPED(gemm_vector) __attribute__((vector_size(GEMM_VECTOR)));
typedef CB_REAL CB_TYPED(gemm_four) __attribute__((vector_size(4 * sizeof(CB_REAL))));

/* to[p * ld_to + j] = from[j * ld + p] for j < columns and p < inner, four by four. */
static inline void CB_TYPED(gemm_transpose)(const CB_REAL *from, int64_t ld, int64_t columns,
                                            int64_t inner, CB_REAL *to, int64_t ld_to) {
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4, from += 4 * ld) {
        int64_t p = 0;
        for (; p + 4 <= inner; p += 4) {
            CB_TYPED(gemm_four) a[4], b[4];
            for (int i = 0; i < 4; i++) memcpy(&a[i], from + i * ld + p, sizeof a[i]);
            b[0] = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
            b[1] = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
            b[2] = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
            b[3] = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
            a[0] = __builtin_shufflevector(b[0], b[2], 0, 1, 4, 5);
            a[1] = __builtin_shufflevector(b[0], b[2], 2, 3, 6, 7);
            a[2] = __builtin_shufflevector(b[1], b[3], 0, 1, 4, 5);
            a[3] = __builtin_shufflevector(b[1], b[3], 2, 3, 6, 7);
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

/* What lies right of the columns of a panel: zeros, which are never slow to multiply. */
static inline void CB_TYPED(gemm_clear_right)(int64_t inner, int64_t columns, CB_REAL *panel) {
    for (int64_t p = 0; p < inner && columns < GEMM_WIDTH; p++) {
        for (int64_t j = columns; j < GEMM_WIDTH; j++) panel[p * GEMM_WIDTH + j] = 0;
    }
}

static void CB_TYPED(gemm_pack)(gemm_view b, int64_t k0, int64_t inner, int64_t j0, int64_t columns,
                                CB_REAL *panel) {
    const CB_REAL *from = (const CB_REAL *)b.at + k0 * b.row + j0 * b.column;
    if (b.row == 1) { /* along what is contiguous */
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

static inline void CB_TYPED(gemm_store)(CB_REAL *c, CB_TYPED(gemm_vector) left,
                                        CB_TYPED(gemm_vector) right, bool add) {
    CB_TYPED(gemm_vector)
    old; /* one, not an array, which gcc would copy through memory in pieces */
    if (add) {
        memcpy(&old, c, sizeof old);
        left = old + left;
        memcpy(&old, c + GEMM_WIDTH / 2, sizeof old);
        right = old + right;
    }
    memcpy(c, &left, sizeof left);
    memcpy(c + GEMM_WIDTH / 2, &right, sizeof right);
}

/* Of fewer columns than a panel has. */
static void CB_TYPED(gemm_store_some)(CB_REAL *c, CB_TYPED(gemm_vector) left,
                                      CB_TYPED(gemm_vector) right, int64_t columns, bool add) {
    CB_REAL line[GEMM_WIDTH];
    memcpy(line, &left, sizeof left);
    memcpy(line + GEMM_WIDTH / 2, &right, sizeof right);
    for (int64_t j = 0; j < columns; j++) c[j] = add ? c[j] + line[j] : line[j];
}

/* Element (i, p) of a is at[row[i] + column[p]]. */
typedef struct CB_TYPED(gemm_table) {
    const CB_REAL *at;
    const int64_t *row, *column;
} CB_TYPED(gemm_table);

/* `n`, a constant, is rows or more: rows past the last are computed again and not stored. */
static inline __attribute__((always_inline)) void
CB_TYPED(gemm_add_some)(const int n, CB_TYPED(gemm_table) a, int64_t rows, int64_t inner,
                        const CB_REAL *panel, CB_REAL *c, int64_t ldc, int64_t columns, bool add) {
    CB_TYPED(gemm_vector) left[GEMM_ROWS], right[GEMM_ROWS];
    const CB_REAL *row[GEMM_ROWS];
    GEMM_UNROLL
    for (int i = 0; i < n; i++) {
        row[i] = a.at + a.row[gemm_least(i, rows - 1)];
        left[i] = right[i] = (CB_TYPED(gemm_vector)){0};
    }
    for (int64_t p = 0; p < inner; p++, panel += GEMM_WIDTH) {
        CB_TYPED(gemm_vector) b0, b1;
        int64_t at = a.column[p];
        memcpy(&b0, panel, GEMM_VECTOR);
        memcpy(&b1, panel + GEMM_WIDTH / 2, GEMM_VECTOR);
        GEMM_UNROLL
        for (int i = 0; i < n; i++) {
            CB_REAL x = row[i][at];
            left[i] += x * b0;
            right[i] += x * b1;
        }
    }
    GEMM_UNROLL
    for (int i = 0; i < n; i++) {
        if (i >= rows) break;
        if (columns == GEMM_WIDTH) CB_TYPED(gemm_store)(c + i * ldc, left[i], right[i], add);
        else CB_TYPED(gemm_store_some)(c + i * ldc, left[i], right[i], columns, add);
    }
}

/* c[rows, columns] (+)= a[rows, inner] panel, of up to GEMM_ROWS rows; ldc elements between rows of
 * c. */
static void CB_TYPED(gemm_add_rows)(CB_TYPED(gemm_table) a, int64_t rows, int64_t inner,
                                    const CB_REAL *panel, CB_REAL *c, int64_t ldc, int64_t columns,
                                    bool add) {
    if (rows >= GEMM_ROWS)
        CB_TYPED(gemm_add_some)(GEMM_ROWS, a, GEMM_ROWS, inner, panel, c, ldc, columns, add);
    else if (rows > 4)
        CB_TYPED(gemm_add_some)(GEMM_ROWS, a, rows, inner, panel, c, ldc, columns, add);
    else if (rows > 2) CB_TYPED(gemm_add_some)(4, a, rows, inner, panel, c, ldc, columns, add);
    else if (rows > 1) CB_TYPED(gemm_add_some)(2, a, rows, inner, panel, c, ldc, columns, add);
    else CB_TYPED(gemm_add_some)(1, a, rows, inner, panel, c, ldc, columns, add);
}

static void CB_TYPED(gemm_multiply)(const cb_gemm *g) {
    gemm_view a = gemm_view_of(g->a, g->lda, g->a_transposed);
    gemm_view b = gemm_view_of(g->b, g->ldb, g->b_transposed);
    _Alignas(GEMM_VECTOR) CB_REAL panel[GEMM_INNER * GEMM_WIDTH];
    int64_t row[GEMM_ROWS], column[GEMM_INNER];
    for (int64_t i = 0; i < GEMM_ROWS; i++) row[i] = i * a.row;
    for (int64_t p = 0; p < GEMM_INNER; p++) column[p] = p * a.column;
    for (int64_t k0 = 0; k0 < g->k; k0 += GEMM_INNER) {
        int64_t inner = gemm_least(GEMM_INNER, g->k - k0);
        for (int64_t i0 = 0; i0 < g->m; i0 += GEMM_BLOCK) {
            int64_t end = gemm_least(i0 + GEMM_BLOCK, g->m);
            for (int64_t j = 0; j < g->n; j += GEMM_WIDTH) {
                int64_t columns = gemm_least(GEMM_WIDTH, g->n - j);
                CB_TYPED(gemm_pack)(b, k0, inner, j, columns, panel);
                for (int64_t i = i0; i < end; i += GEMM_ROWS) {
                    const CB_REAL *first = (const CB_REAL *)a.at + i * a.row + k0 * a.column;
                    CB_TYPED(gemm_add_rows)
                    ((CB_TYPED(gemm_table)){first, row, column}, end - i, inner, panel,
                     (CB_REAL *)g->c + i * g->ldc + j, g->ldc, columns, g->add || k0 > 0);
                }
            }
        }
    }
}
