/* together.h: batches of rows. Short rows, and rows that do not consist of whole iterations, run
 * several at a time: a phase goes over all elements of a batch as if they were one row.
 *
 *     number of a row           a vector with an element for each row of the batch, and, where a
 *                               phase reads it, a tile with an element for each of the row's
 *     sum or extreme of a row   its terms are in a tile when the phase has run, and are added then,
 *                               row by row, in the order of any sum over a row
 *     sums of columns, pieces   likewise
 *     sum over everything       likewise, with leaves that may begin anywhere (lanes.h)
 *
 * A batch of one row keeps its numbers and sums, but adds up what rows or pieces would cut. */
#ifndef CB_MICRO_TOGETHER_H
#define CB_MICRO_TOGETHER_H

#include "translation.h"

/* Rows of a batch are a multiple of this number, so that it begins with a line of the cache. */
enum { CB_X_BATCH_ROWS = 16 };

/* Once phases are known. */
void cb_t_lay_together(cb_translation *x);

#endif
