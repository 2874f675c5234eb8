/* step.h: one step of an optimizer over rows, in each of the two ways that the core offers: as a
 * table of tensors, and as the update of a compiled step. */
#ifndef CB_TESTS_OPTIM_STEP_H
#define CB_TESTS_OPTIM_STEP_H

#include "optim/table.h"

static inline cb_status step_table(const cb_optimizer *o, cb_threads *pool, const double *hyper,
                                   uint32_t n_groups, const cb_optim_row *rows, uint32_t n_rows,
                                   cb_error *error) {
    cb_alloc alloc;
    cb_tensor_table *table = NULL;
    cb_alloc_init(&alloc);
    CB_TRY(cb_table_new(&alloc, &pool, o, n_rows, &table, error));
    for (uint32_t i = 0; i < n_rows; i++) cb_tensor_table_set(table, i, &rows[i]);
    const cb_status status = cb_tensor_table_step(table, hyper, n_groups, error);
    cb_tensor_table_free(table);
    return status;
}

static inline cb_status step_rows(const cb_optimizer *o, cb_threads *pool, const double *hyper,
                                  uint32_t n_groups, const cb_optim_row *rows, uint32_t n_rows,
                                  cb_error *error) {
    const cb_optim_table table = {.optimizer = o,
                                  .grad_factor = 1,
                                  .rows = rows,
                                  .hyper = hyper,
                                  .n_rows = n_rows,
                                  .n_groups = n_groups,
                                  .n_hyper = o->n_hyper};
    return cb_optim_step(&table, pool, error);
}

#endif
