/* gemm_own.h: the product without a BLAS, for kernel files (kern.h).
 *
 * A panel of b, GEMM_INNER rows by two vectors, is packed on the stack and stays in the first-level
 * cache while GEMM_BLOCK rows of a, from the second, pass it, GEMM_ROWS at a time, with their sums
 * in registers. The inner axis is cut into blocks of GEMM_INNER from its start, so an element's
 * order of additions is fixed by k alone: the bits are the same for any instruction set, and for
 * any part of a product. */
#ifndef CB_EXEC_CPU_GEMM_GEMM_OWN_H
#define CB_EXEC_CPU_GEMM_GEMM_OWN_H

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
#define GEMM_UNROLL _Pragma("GCC unroll 6") /* else -O2 leaves the sums in memory */

typedef struct gemm_view { /* element (i, j) at at[i * row + j * column] */
    const void *at;
    int64_t row, column;
} gemm_view;

static gemm_view gemm_view_of(const void *at, int64_t ld, bool is_transposed) {
    return is_transposed ? (gemm_view){at, 1, ld} : (gemm_view){at, ld, 1};
}

static inline int64_t gemm_least(int64_t a, int64_t b) { return a < b ? a : b; }

#define REAL_BITS 32
#include "gemm_rows.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "gemm_rows.h"
#undef REAL_BITS

static void gemm_multiply(const cb_gemm *g) {
    if (g->dtype == CB_F64) {
        gemm_multiply_f64(g);
    } else {
        gemm_multiply_f32(g);
    }
}

static const cb_gemm_kernel gemm_own = {gemm_multiply};

#endif
