/* gemm_own.h: our own product, for kernel files (kern.h).
 *
 * A panel of b, GEMM_INNER rows by two vectors, is packed on the stack and stays in the first- or
 * second-level cache while GEMM_BLOCK rows of a pass it, GEMM_ROWS at a time, with their sums in
 * registers. The inner axis is cut into blocks of GEMM_INNER from its start; each is summed from
 * zero by fused multiply-adds (gemm_fma.h) and then added to the result. So an element's bits
 * depend only on its row, its column and k: they are the same for any instruction set, any layout
 * of the operands and any division of the product.
 *
 * With few rows, packing would take a large part of the time. Then rows of b are read in place or,
 * if b is transposed, c^T = b^T a^T is computed, in which b is on the left and is not packed. */
#ifndef CB_EXEC_CPU_GEMM_GEMM_OWN_H
#define CB_EXEC_CPU_GEMM_GEMM_OWN_H

#include <string.h>

#include "gemm.h"
#include "gemm_fma.h"

#if GEMM_VECTOR == 64
#define GEMM_DIRECT 48 /* maximum number of rows for which b is read in place */
#define GEMM_FETCHES(rows) true
#else
#define GEMM_DIRECT 16 /* a row of a panel is one cache line, and few of them fit in a cache */
#define GEMM_FETCHES(rows) (rows < GEMM_ROWS) /* the loop over most rows has no time for it */
#endif /* true if rows of b are prefetched: in place, each may be on its own page */
#define GEMM_INNER 256
#define GEMM_BLOCK 384
#define GEMM_TABLE_ROWS \
    6                          /* rows at a time of a left side in any order; each takes one of 16
                              pointer registers */
#define GEMM_TURNED (48 << 10) /* bytes of a block of c^T */
#define GEMM_AHEAD 16          /* rows of b that are prefetched */
#define GEMM_NARROW 16      /* maximum number of columns for which exchanging the sides is faster */
#define GEMM_NARROW_ROWS 8  /* the same if rows of a must then be transposed */
#define GEMM_FLAT_INNER 128 /* minimum length of its inner axis */
#define GEMM_FLAT 32 /* maximum number of rows of a product by a transposed b that is turned */
#define GEMM_NEAR (1 << 20) /* bytes of b that a cache holds */
#define GEMM_LINES 8        /* rows of b that one row of a is multiplied by at a time */
#define GEMM_LINE 4096      /* columns of these rows */
#define GEMM_SHORT 512      /* maximum length of columns of which few are fetched at a time */
#define GEMM_DOTS 8         /* dense columns of b that one row of a is multiplied by at a time */
#define GEMM_SUMS (2 * GEMM_ROWS)
#define GEMM_WIDEST 8                        /* maximum width of a product, in vectors of columns */
#define GEMM_UNROLL _Pragma("GCC unroll 24") /* otherwise -O2 leaves the sums in memory */

typedef struct gemm_view { /* element (i, j) at at[i * row + j * column] */
    const void *at;
    int64_t row, column;
} gemm_view;

static gemm_view gemm_view_of(const void *at, int64_t ld, bool is_transposed) {
    return is_transposed ? (gemm_view){at, 1, ld} : (gemm_view){at, ld, 1};
}

static inline int64_t gemm_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns the number of rows in each block of about equal blocks. */
static inline int64_t gemm_block_rows(int64_t m) {
    const int64_t blocks = (m + GEMM_BLOCK - 1) / GEMM_BLOCK, rows = (m + blocks - 1) / blocks;
    return (rows + GEMM_ROWS - 1) / GEMM_ROWS * GEMM_ROWS;
}

#define REAL_BITS 32
#include "gemm_rows.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "gemm_rows.h"
#undef REAL_BITS

/* Returns true for few columns, which would fill only a part of a vector. */
static bool gemm_is_narrow(const cb_gemm *g) {
    return g->n < g->m && g->n <= (g->a_transposed ? GEMM_NARROW : GEMM_NARROW_ROWS);
}

/* Returns true for few rows that fill vectors, by a transposed b: packing b would take longer than
 * transposing a and c. */
static bool gemm_is_flat(const cb_gemm *g) {
    const int64_t lanes = GEMM_VECTOR / (g->dtype == CB_F64 ? 8 : 4),
                  filled = (g->m + lanes - 1) / lanes * lanes;
    return g->b_transposed && g->m <= g->n && g->m <= GEMM_FLAT && g->k >= GEMM_FLAT_INNER &&
           4 * g->m > 3 * filled;
}

static void gemm_multiply(const cb_gemm *g) {
    const bool is_turned = gemm_is_narrow(g) || gemm_is_flat(g);
    if (g->dtype == CB_F64) is_turned ? gemm_multiply_turned_f64(g) : gemm_multiply_f64(g);
    else is_turned ? gemm_multiply_turned_f32(g) : gemm_multiply_f32(g);
}

static const cb_gemm_kernel gemm_own = {gemm_multiply};

#endif
