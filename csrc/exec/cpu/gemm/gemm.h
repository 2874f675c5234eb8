/* gemm.h: one single-threaded matrix product, by the given BLAS or by our own kernel. Bits depend
 * only on sizes, strides and transposes, not on threads (there is one) or alignment; those of our
 * own kernel depend only on k.
 *
 *     cb_gemm_region region;
 *     cb_gemm_begin(&region, args->blas, &gemm_own);  on the thread that opens the parallel region
 *         cb_gemm_enter_task(&region);                once in every task
 *         cb_gemm_run(&region, &product);             any number of times
 *     cb_gemm_end(&region); */
#ifndef CB_EXEC_CPU_GEMM_GEMM_H
#define CB_EXEC_CPU_GEMM_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "../../../include/cutback.h"

/* c[m,n] = a[m,k] b[k,n], all row-major; a transposed operand is stored as [k,m] or [n,k]. */
typedef struct cb_gemm {
    cb_dtype dtype; /* F32 or F64 */
    int64_t m, n, k;
    const void *a, *b;
    int64_t lda, ldb, ldc; /* elements between rows as stored */
    bool a_transposed, b_transposed;
    bool add; /* c += ab; otherwise c is written and never read */
    void *c;
} cb_gemm;

/* A product kernel of our own: gemm_own of the caller's instruction set (gemm_own.h). */
typedef struct cb_gemm_kernel {
    void (*multiply)(const cb_gemm *g);
} cb_gemm_kernel;

/* While a region is open the BLAS uses one thread; when the last region has ended, its setting is
 * restored. */
typedef struct cb_gemm_region {
    const cb_blas *blas; /* NULL: there is none, or it does not know this processor */
    const cb_gemm_kernel *own;
    int threads_before;
    bool is_first;
} cb_gemm_region;

void cb_gemm_begin(cb_gemm_region *region, const cb_blas *blas, const cb_gemm_kernel *own);
void cb_gemm_enter_task(const cb_gemm_region *region);
void cb_gemm_run(const cb_gemm_region *region, const cb_gemm *g);
void cb_gemm_end(cb_gemm_region *region);

/* True if our own kernel is faster for c[m,n] = a[m,k] b[k,n], whatever the BLAS. Depends on sizes
 * and the processor; restricting the instruction set does not change bits. */
bool cb_gemm_own_is_faster(cb_dtype dtype, int64_t m, int64_t n, int64_t k);

/* The division of a batch of products into tasks, for our own kernel. */
typedef struct cb_gemm_cut {
    int64_t rows, columns; /* rows and columns of a task */
    int64_t batches;       /* items of the batch in one task */
} cb_gemm_cut;

/* Divides c[batch,m,n] = a[batch,m,k] b[batch,k,n] for this many threads. Bits do not depend on the
 * division. */
cb_gemm_cut cb_gemm_cut_of(int64_t batch, int64_t m, int64_t n, int64_t k, int threads);
/* Returns true if `own` computes the products. */
bool cb_gemm_is_own(const cb_gemm_region *region, cb_dtype dtype);

#endif
