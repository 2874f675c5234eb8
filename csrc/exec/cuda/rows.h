/* rows.h: the kernel of a group that walks rows, or elements: all of it but sums that end outside
 * of a row. */
#ifndef CB_EXEC_CUDA_ROWS_H
#define CB_EXEC_CUDA_ROWS_H

#include "micro.h"

void cb_cu_rows(cb_cu_micro *x);

#endif
