/* product.h: a product of matrices, as an instruction has it, and products by cuBLASLt. */
#ifndef CB_EXEC_CUDA_OPS_PRODUCT_H
#define CB_EXEC_CUDA_OPS_PRODUCT_H

#include "../text/op.h"

typedef struct cb_cu_shapes { /* n x m = (n x k) (k x m), `batch` times */
    int64_t batch, n, k, m;
    int64_t row[3], column[3]; /* strides of x, y and the result */
    int in[2], out;            /* parameters of a kernel */
} cb_cu_shapes;
cb_cu_shapes cb_cu_shapes_of(const cb_cu_op *x);

/* Memory that the library may use beside the matrices: a function of the graph. */
uint64_t cb_cu_product_room(const cb_graph *g, cb_op_id op);
/* Whether cuBLASLt has taken the instruction, so that it needs no kernel. */
bool cb_cu_takes_product(const cb_cu_op *x, const cb_cu_shapes *s);

#endif
