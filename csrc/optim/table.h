/* table.h: the table of tensors of cutback.h, made by the layer above. */
#ifndef CB_OPTIM_TABLE_H
#define CB_OPTIM_TABLE_H

#include "../base/arena.h"
#include "optimizer.h"

/* What optimizers of matrices multiply by; without it their steps are refused. It outlives the
 * table. */
void cb_table_use(cb_tensor_table *table, const cb_optim_products *products);

/* `pool` is where the pool of each step is found; it may be exchanged between steps. */
CB_MUST_CHECK cb_status cb_table_new(cb_alloc *alloc, cb_threads *const *pool,
                                     const cb_optimizer *o, uint32_t n_rows, cb_tensor_table **out,
                                     cb_error *err);

#endif
