/* product.h: the shapes of a matrix product, and products by cuBLASLt. */
#ifndef CB_EXEC_CUDA_OPS_PRODUCT_H
#define CB_EXEC_CUDA_OPS_PRODUCT_H

#include "../text/op.h"

typedef struct cb_cu_shapes { /* n x m = (n x k) (k x m), `batch` times */
    int64_t batch, n, k, m;
    int64_t row[3], column[3]; /* strides of x, y and the result */
    int in[2], out;            /* kernel parameters of x, y and the result */
} cb_cu_shapes;
cb_cu_shapes cb_cu_shapes_of(const cb_cu_op *x);

/* Returns the bytes of workspace for cuBLASLt, which depend only on the graph. */
uint64_t cb_cu_product_room(const cb_graph *g, cb_op_id op);
/* Adds a cuBLASLt call for the instruction. Returns false if the instruction needs a kernel
 * instead.
 * */
bool cb_cu_takes_product(const cb_cu_op *x, const cb_cu_shapes *s);

#endif
