/* products.h: matrix products for optimizers. The layer above provides the implementation. */
#ifndef CB_OPTIM_PRODUCTS_H
#define CB_OPTIM_PRODUCTS_H

#include "../base/dtype.h"
#include "../base/threads.h"

/* out[batch,n,m] = x[batch,n,k] y[batch,k,m], contiguous and row-major. A transposed operand is
 * stored as [batch,k,n] or [batch,m,k]. Rounding depends only on the sizes. */
typedef struct cb_optim_product {
    const void *x, *y;
    void *out;
    int64_t batch, n, k, m;
    cb_dtype dtype; /* f32 or f64 */
    bool x_transposed, y_transposed;
} cb_optim_product;

typedef struct cb_optim_products {
    void (*multiply)(const struct cb_optim_products *products, cb_threads *pool,
                     const cb_optim_product *product);
    const cb_blas *blas; /* may be NULL */
} cb_optim_products;

#endif
