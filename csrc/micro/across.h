/* across.h: rows that lie across memory, side by side. What is a number of a row along memory is a
 * vector of them here, and so is an accumulator: operations read and write them as streams. */
#ifndef CB_MICRO_ACROSS_H
#define CB_MICRO_ACROSS_H

#include "translation.h"

enum { CB_X_KEPT_LINES = 4096 }; /* elements */
/* Vectors of a sum: of the running rows, of their block, and of all. */
enum { CB_X_RUN = 0, CB_X_BLOCK, CB_X_ALL, CB_X_SUM_VECTORS };

/* Lines whose sums are kept before they are added up: some of them, where they are short, with room
 * for a whole iteration behind them. */
static inline int64_t cb_x_lines_kept(int64_t inner) { return max_i64(CB_X_KEPT_LINES / inner, 1); }

/* Once phases are known. Where rows lie along memory, only says so. */
void cb_t_lay_across(cb_translation *x);

#endif
