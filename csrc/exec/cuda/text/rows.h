/* rows.h: writes the kernel of a group that walks rows or elements. It does everything except sums
 * that are not over one row. */
#ifndef CB_EXEC_CUDA_TEXT_ROWS_H
#define CB_EXEC_CUDA_TEXT_ROWS_H

#include "micro.h"

/* Returns the number of short rows that make up a leaf of totals, if the kernel that walks rows
 * computes such leaves; otherwise 0. */
int cb_cu_rows_of_leaf(const cb_microcode *m);
/* True if a result or a reduction belongs to a row, so that the kernel walks rows. */
bool cb_cu_walks_rows(const cb_microcode *m);
void cb_cu_rows(cb_cu_micro *x);

#endif
