/* sums.h: writes the kernels of sums over columns, pieces of rows and all elements, which run after
 * the kernel that walks rows. */
#ifndef CB_EXEC_CUDA_TEXT_SUMS_H
#define CB_EXEC_CUDA_TEXT_SUMS_H

#include "micro.h"

/* Marks the operations that the sums need, so that the row statistics among them are kept. */
void cb_cu_need_sums(cb_cu_micro *x);
void cb_cu_sums(cb_cu_micro *x);

/* Reserves memory for the leaves of totals. */
void cb_cu_place_leaves(cb_cu_micro *x);
bool cb_cu_is_total(const cb_microcode *m, const cb_micro *micro);
/* Returns the parameter of the leaves of accumulator `acc`. */
int cb_cu_leaves_param(cb_cu_micro *x, int acc);

#endif
