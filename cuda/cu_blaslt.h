/* cu_blaslt.h: matrix products with cuBLASLt.
 *
 *     void *handle;
 *     cb_cu_product product;
 *     bool found;
 *     CB_TRY(cb_cu_blaslt_open(&lt, &handle, err));
 *     CB_TRY(cb_cu_product_make(&lt, handle, &form, &product, &found, err));
 *     if (found) CB_TRY(cb_cu_product_put(&lt, handle, &product, x, y, out, room, stream, err));
 *     cb_cu_product_release(&lt, &product);
 *     cb_cu_blaslt_close(&lt, handle);
 *
 * All functions must be called in the device's context. How a product is computed depends only on
 * its form and on whether all addresses are multiples of 16 bytes, so equal products give bitwise
 * equal results. */
#ifndef CB_CUDA_CU_BLASLT_H
#define CB_CUDA_CU_BLASLT_H

#include "cu_api.h"

/* CudaDataType. */
typedef enum cb_cu_scalar {
    CB_CU_F32 = 0,
    CB_CU_F64 = 1,
    CB_CU_F16 = 2,
    CB_CU_BF16 = 14
} cb_cu_scalar;

typedef struct cb_cu_matrix {
    int64_t step;       /* elements from line to line; a line is contiguous */
    int64_t batch_step; /* elements from matrix to matrix; 0: the batch shares one matrix */
    bool turned;        /* lines are columns: the matrix is column-major */
} cb_cu_matrix;

typedef struct cb_cu_form { /* n x m = (n x k) (k x m), `batch` times; the result is row-major */
    cb_cu_scalar type;
    int64_t n, k, m, batch;
    cb_cu_matrix x, y;
    uint64_t room; /* bytes of workspace that it may use */
} cb_cu_form;

typedef struct cb_cu_product {
    bool is_f64;
    size_t element; /* bytes */
    void *operation, *x, *y, *out;
    struct {
        uint64_t data[8]; /* cublasLtMatmulAlgo_t */
        size_t room;      /* bytes of workspace that it uses */
    } algorithm[2];       /* [0]: all addresses are multiples of 16 bytes; [1]: they are not */
} cb_cu_product;

CB_MUST_CHECK cb_status cb_cu_blaslt_open(const cb_cu_blaslt *lt, void **handle, cb_error *err);
void cb_cu_blaslt_close(const cb_cu_blaslt *lt, void *handle); /* NULL is fine */
/* Prepares a product. `found` is false if the library does not support the form; then there is
 * nothing to release. */
CB_MUST_CHECK cb_status cb_cu_product_make(const cb_cu_blaslt *lt, void *handle,
                                           const cb_cu_form *form, cb_cu_product *out, bool *found,
                                           cb_error *err);
void cb_cu_product_release(const cb_cu_blaslt *lt, const cb_cu_product *product);
/* Launches a product. Addresses are on the device. `room` is the workspace, aligned to 256 bytes
 * and of the size in the form. */
CB_MUST_CHECK cb_status cb_cu_product_put(const cb_cu_blaslt *lt, void *handle,
                                          const cb_cu_product *product, uint64_t x, uint64_t y,
                                          uint64_t out, uint64_t room, void *stream, cb_error *err);

#endif
