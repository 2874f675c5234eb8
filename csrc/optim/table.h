/* table.h: the table of tensors of cutback.h, made by the layer above. */
#ifndef CB_OPTIM_TABLE_H
#define CB_OPTIM_TABLE_H

#include "../base/arena.h"
#include "optimizer.h"

/* What optimizers of matrices multiply by; without it their steps are refused. It outlives the
 * table. */
void cb_table_use(cb_tensor_table *x, const cb_optim_products *products);

/* `pool` is where the pool of each step is found; it may be exchanged between steps. */
CB_MUST_CHECK cb_status cb_table_new(cb_alloc *alloc, cb_threads *const *pool,
                                     const cb_optimizer *o, uint32_t n_rows, cb_tensor_table **out,
                                     cb_error *err);

/* Memory that a step writes: array 0 is the row's parameter, others belong to it. */
typedef struct cb_written {
    uintptr_t begin, end;
    uint32_t row, array;
} cb_written;
/* All checks of a step with these numbers, which must be next. *written, sorted by address and
 * without overlaps, stays valid until the table changes: a caller with several tables can find out
 * whether two that step at the same time share memory. */
CB_MUST_CHECK cb_status cb_tensor_table_check(cb_tensor_table *table, const double *hyper,
                                              uint32_t n_groups, const cb_written **written,
                                              uint32_t *n_written, cb_error *err);

#endif
