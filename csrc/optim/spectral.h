/* spectral.h: eigenvectors of symmetric matrices, and rows made orthonormal, of f32 or f64. */
#ifndef CB_OPTIM_SPECTRAL_H
#define CB_OPTIM_SPECTRAL_H

#include "products.h"

/* The eigenvectors of a symmetric [n, n] as the rows of `vectors`, those of large eigenvalues
 * first; the identity where an element is not finite. The same bits for any threads; `scratch` has
 * so many doubles. */
size_t cb_eigenvectors_scratch(int64_t n);
void cb_eigenvectors(cb_threads *pool, cb_dtype dtype, int64_t n, const void *matrix, void *vectors,
                     double *scratch);

/* `out` becomes rows that are orthonormal, of which the first k span what the first k of x [n, n]
 * do, for each k: Q^T of the QR decomposition of x^T. x is overwritten; `scratch` has so many
 * elements. Bits depend on n alone. */
size_t cb_orthonormal_scratch(int64_t n);
void cb_orthonormal_rows(const cb_optim_products *products, cb_threads *pool, cb_dtype dtype,
                         int64_t n, void *x, void *out, void *scratch);

#endif
