/* sums.h: sums over columns, pieces of rows and all elements, in kernels that come after the one
 * that walks rows. */
#ifndef CB_EXEC_CUDA_SUMS_H
#define CB_EXEC_CUDA_SUMS_H

#include "micro.h"

/* Marks what the sums read, so that numbers of rows among it are kept. */
void cb_cu_need_sums(cb_cu_micro *x);
void cb_cu_sums(cb_cu_micro *x);

#endif
