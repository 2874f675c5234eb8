#include "products.h"

#include "../../kernel.h"

/* Describes a matrix [batch, n, k], which may be stored as [batch, k, n]. */
static cb_tensor matrix(const void *data, cb_dtype dtype, int64_t batch, int64_t n, int64_t k,
                        bool is_transposed) {
    return (cb_tensor){.data = (void *)(uintptr_t)data,
                       .dtype = dtype,
                       .shape = {.rank = 3, .dim = {batch, n, k}},
                       .stride = {n * k, is_transposed ? 1 : k, is_transposed ? n : 1}};
}

/* Multiplies with the kernel of the op, which cannot fail: f32 and f64 need no scratch. */
void cb_cpu_multiply(const cb_optim_products *products, cb_threads *pool,
                     const cb_optim_product *p) {
    const cb_tensor in[2] = {matrix(p->x, p->dtype, p->batch, p->n, p->k, p->x_transposed),
                             matrix(p->y, p->dtype, p->batch, p->k, p->m, p->y_transposed)};
    const cb_tensor out = matrix(p->out, p->dtype, p->batch, p->n, p->m, false);
    const cb_kernel_args args = {.in = in,
                                 .out = &out,
                                 .n_in = 2,
                                 .n_out = 1,
                                 .code = CB_OP_MATMUL,
                                 .pool = pool,
                                 .blas = products->blas};
    cb_error unused = {0};
    (void)!cb_cpu_kernel(CB_OP_MATMUL, p->dtype)(&args, &unused);
}
