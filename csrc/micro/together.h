/* together.h: batches of rows. Short rows, and rows that do not consist of whole iterations, run
 * several at a time: a phase walks all elements of a batch as if they were one row.
 *
 *     number of a row           a vector with an element for each row of the batch; where a phase
 *                               reads it, also a tile that repeats it for each element of its row
 *     sum or extreme of a row   its terms are stored in a tile and added after the phase, row by
 *                               row, in the same order as any sum over a row
 *     sums of columns, pieces   likewise
 *     sum over everything       likewise, with leaves that may begin anywhere (lanes.h)
 *
 * A batch of one row keeps its numbers, and the phase sums what it can; only sums whose lanes would
 * be cut by rows or pieces are added up afterwards. */
#ifndef CB_MICRO_TOGETHER_H
#define CB_MICRO_TOGETHER_H

#include "translation.h"

/* The number of rows of a batch is a multiple of this, so that batches begin at cache lines. */
enum { CB_X_BATCH_ROWS = 16 };

/* Must be called after the phases are known. */
void cb_t_lay_together(cb_translation *x);

#endif
