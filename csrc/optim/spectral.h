/* spectral.h: eigenvectors of symmetric matrices, and orthonormalization of rows, for f32 and f64.
 */
#ifndef CB_OPTIM_SPECTRAL_H
#define CB_OPTIM_SPECTRAL_H

#include "products.h"

/* Computes the eigenvectors of a symmetric matrix [n, n] as the rows of `vectors`, sorted by
 * decreasing eigenvalue. If an element is not finite, they are the identity. Results do not depend
 * on the number of threads. `scratch` has cb_eigenvectors_scratch(n) doubles. */
size_t cb_eigenvectors_scratch(int64_t n);
void cb_eigenvectors(cb_threads *pool, cb_dtype dtype, int64_t n, const void *matrix, void *vectors,
                     double *scratch);

/* Computes orthonormal rows `out` such that, for each k, the first k rows of `out` span the first k
 * rows of x [n, n]: Q^T of the QR decomposition of x^T. x is overwritten. `scratch` has
 * cb_orthonormal_scratch(n) elements. Results do not depend on the number of threads. */
size_t cb_orthonormal_scratch(int64_t n);
void cb_orthonormal_rows(const cb_optim_products *products, cb_threads *pool, cb_dtype dtype,
                         int64_t n, void *x, void *out, void *scratch);

#endif
