/* gemm_own.h: the product without a BLAS, for kernel files (kern.h).
 *
 * A panel of b, GEMM_INNER rows by two vectors, is packed on the stack and stays in the first-level
 * cache while GEMM_BLOCK rows of a, from the second, pass it, GEMM_ROWS at a time, with their sums
 * in registers. The inner axis is cut into blocks of GEMM_INNER from its start, so an element's
 * order of additions is fixed by k alone: the bits are the same for any instruction set, and for
 * any part of a product. */
#ifndef CB_EXEC_CPU_GEMM_OWN_H
#define CB_EXEC_CPU_GEMM_OWN_H

#include <string.h>

#include "gemm.h"

#if defined(__AVX512F__)
#define GEMM_VECTOR 64 /* bytes */
#elif defined(__AVX__)
#define GEMM_VECTOR 32
#else
#define GEMM_VECTOR 16
#endif
#define GEMM_INNER 256
#define GEMM_BLOCK 384
#define GEMM_ROWS 6 /* 12 sums, two vectors of b, one of a: what 16 registers hold */

typedef struct gemm_view { /* element (i, j) at at[i * row + j * column] */
    const void *at;
    int64_t row, column;
} gemm_view;

static gemm_view gemm_view_of(const void *at, int64_t ld, bool is_transposed) {
    return is_transposed ? (gemm_view){at, 1, ld} : (gemm_view){at, ld, 1};
}

static inline int64_t gemm_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* For each of f32 and f64:
 *   pack      b[k0 .. k0+inner, j0 .. j0+columns] to lines of two vectors, zeros on the right
 *   store     c[columns] (+)= two vectors
 *   add_rows  c[GEMM_ROWS, columns] (+)= a[GEMM_ROWS, inner] panel; rows past the last are computed
 *             again and not stored
 *   multiply  the loops around them */
#define GEMM_DEFINE(real, vector, width, pack, store, add_rows, multiply)                          \
    typedef real vector __attribute__((vector_size(GEMM_VECTOR)));                                 \
    enum { width = 2 * GEMM_VECTOR / sizeof(real) };                                               \
                                                                                                   \
    static void pack(gemm_view b, int64_t k0, int64_t inner, int64_t j0, int64_t columns,          \
                     real *panel) {                                                                \
        const real *from = (const real *)b.at + k0 * b.row + j0 * b.column;                        \
        if (b.row == 1) { /* along what is contiguous */                                           \
            for (int64_t j = 0; j < columns; j++) {                                                \
                for (int64_t p = 0; p < inner; p++) panel[p * width + j] = from[j * b.column + p]; \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t p = 0; p < inner; p++) {                                                  \
                memcpy(panel + p * width, from + p * b.row, (size_t)columns * sizeof(real));       \
            }                                                                                      \
        }                                                                                          \
        for (int64_t p = 0; p < inner && columns < width; p++) {                                   \
            memset(panel + p * width + columns, 0, (size_t)(width - columns) * sizeof(real));      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static inline void store(real *c, const vector *left, const vector *right, int64_t columns,    \
                             bool add) {                                                           \
        real line[width];                                                                          \
        vector old[2] = {{0}}, sum[2] = {*left, *right};                                           \
        if (add) {                                                                                 \
            memcpy(line, c, (size_t)columns * sizeof(real));                                       \
            memset(line + columns, 0, (size_t)(width - columns) * sizeof(real));                   \
            memcpy(old, line, sizeof line);                                                        \
            sum[0] = old[0] + sum[0];                                                              \
            sum[1] = old[1] + sum[1];                                                              \
        }                                                                                          \
        memcpy(line, sum, sizeof line);                                                            \
        memcpy(c, line, (size_t)columns * sizeof(real));                                           \
    }                                                                                              \
                                                                                                   \
    static void add_rows(gemm_view a, int64_t rows, int64_t inner, const real *panel, real *c,     \
                         int64_t ldc, int64_t columns, bool add) {                                 \
        const real *at[GEMM_ROWS];                                                                 \
        vector left[GEMM_ROWS] = {{0}}, right[GEMM_ROWS] = {{0}};                                  \
        for (int64_t i = 0; i < GEMM_ROWS; i++) {                                                  \
            at[i] = (const real *)a.at + gemm_least(i, rows - 1) * a.row;                          \
        }                                                                                          \
        for (int64_t p = 0; p < inner; p++, panel += width) {                                      \
            vector b0, b1;                                                                         \
            memcpy(&b0, panel, GEMM_VECTOR);                                                       \
            memcpy(&b1, panel + width / 2, GEMM_VECTOR);                                           \
            for (int i = 0; i < GEMM_ROWS; i++) {                                                  \
                real x = at[i][p * a.column];                                                      \
                left[i] += x * b0;                                                                 \
                right[i] += x * b1;                                                                \
            }                                                                                      \
        }                                                                                          \
        for (int64_t i = 0; i < GEMM_ROWS && i < rows; i++, c += ldc) {                            \
            if (columns == width) {                                                                \
                store(c, &left[i], &right[i], width, add);                                         \
            } else {                                                                               \
                store(c, &left[i], &right[i], columns, add);                                       \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void multiply(const cb_gemm *g) {                                                       \
        gemm_view a = gemm_view_of(g->a, g->lda, g->a_transposed);                                 \
        gemm_view b = gemm_view_of(g->b, g->ldb, g->b_transposed);                                 \
        _Alignas(GEMM_VECTOR) real panel[GEMM_INNER * width];                                      \
        for (int64_t k0 = 0; k0 < g->k; k0 += GEMM_INNER) {                                        \
            int64_t inner = gemm_least(GEMM_INNER, g->k - k0);                                     \
            for (int64_t i0 = 0; i0 < g->m; i0 += GEMM_BLOCK) {                                    \
                int64_t end = gemm_least(i0 + GEMM_BLOCK, g->m);                                   \
                for (int64_t j = 0; j < g->n; j += width) {                                        \
                    int64_t columns = gemm_least(width, g->n - j);                                 \
                    pack(b, k0, inner, j, columns, panel);                                         \
                    for (int64_t i = i0; i < end; i += GEMM_ROWS) {                                \
                        const real *first = (const real *)a.at + i * a.row + k0 * a.column;        \
                        add_rows((gemm_view){first, a.row, a.column}, end - i, inner, panel,       \
                                 (real *)g->c + i * g->ldc + j, g->ldc, columns,                   \
                                 g->add || k0 > 0);                                                \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

GEMM_DEFINE(float, gemm_f32x, GEMM_WIDTH_F32, gemm_pack_f32, gemm_store_f32, gemm_add_rows_f32,
            gemm_multiply_f32)
GEMM_DEFINE(double, gemm_f64x, GEMM_WIDTH_F64, gemm_pack_f64, gemm_store_f64, gemm_add_rows_f64,
            gemm_multiply_f64)

static void gemm_multiply(const cb_gemm *g) {
    if (g->dtype == CB_F64) {
        gemm_multiply_f64(g);
    } else {
        gemm_multiply_f32(g);
    }
}

static const cb_gemm_kernel gemm_own = {gemm_multiply};

#endif
