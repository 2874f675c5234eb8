/* products.h: matrix products for optimizers (optim/products.h), by the kernel of the op. */
#ifndef CB_EXEC_CPU_GEMM_PRODUCTS_H
#define CB_EXEC_CPU_GEMM_PRODUCTS_H

#include "../../../optim/products.h"

void cb_cpu_multiply(const cb_optim_products *products, cb_threads *pool,
                     const cb_optim_product *product);

#endif
