/* step.h: the step function of optimizers that are expressions. */
#ifndef CB_EXEC_EXPRESSION_STEP_H
#define CB_EXEC_EXPRESSION_STEP_H

#include "form.h"

void cb_e_step(const cb_optim_table *table, cb_threads *pool);
size_t cb_e_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                    uint32_t n_rows);

#endif
