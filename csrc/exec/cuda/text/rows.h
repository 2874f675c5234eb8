/* rows.h: the kernel of a group that walks rows, or elements: all of it but sums that end outside
 * of a row. */
#ifndef CB_EXEC_CUDA_TEXT_ROWS_H
#define CB_EXEC_CUDA_TEXT_ROWS_H

#include "micro.h"

/* Whether something ends at a row, so that a block walks rows. */
bool cb_cu_walks_rows(const cb_microcode *m);
void cb_cu_rows(cb_cu_micro *x);

#endif
