/* table.h: functions on the tensor table of cutback.h, for the layer above. */
#ifndef CB_OPTIM_TABLE_H
#define CB_OPTIM_TABLE_H

#include "../base/arena.h"
#include "optimizer.h"

/* Sets the matrix products. Without them, steps of optimizers that need products are refused.
 * `products` must outlive the table. */
void cb_table_use(cb_tensor_table *x, const cb_optim_products *products);

/* `pool` points to the pool that each step uses; the pool may be replaced between steps. */
CB_MUST_CHECK cb_status cb_table_new(cb_alloc *alloc, cb_threads *const *pool,
                                     const cb_optimizer *o, uint32_t n_rows, cb_tensor_table **out,
                                     cb_error *err);

/* Memory that a step writes; array 0 is the row's parameter, others are its other arrays. */
typedef struct cb_written {
    uintptr_t begin, end;
    uint32_t row, array;
} cb_written;
/* Does all checks of a step with these hyper-parameters; the next call must be that step.
 * *written, sorted by address and without overlaps, stays valid until the table changes. With it, a
 * caller of several tables can check whether two that step concurrently share memory. */
CB_MUST_CHECK cb_status cb_tensor_table_check(cb_tensor_table *table, const double *hyper,
                                              uint32_t n_groups, const cb_written **written,
                                              uint32_t *n_written, cb_error *err);

#endif
