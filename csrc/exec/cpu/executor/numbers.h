/* numbers.h: numbers of a row, or of the whole group. */
#ifndef CB_EXEC_NUMBERS_H
#define CB_EXEC_NUMBERS_H

#include "prepare.h"

/* Copies the indices of a group that the caller could change, and checks them: before any row is
 * computed. */
CB_MUST_CHECK cb_status cb_x_take_indices(const cb_executable *x, const cb_microcode *m,
                                          cb_error *err);
/* That of the list; an index is a position. */
float cb_x_load_number(const cb_x_row_value *v, const cb_tensor *t, int64_t element);
float cb_x_number_at(const cb_tensor *t, int64_t element);
void cb_x_put_number(const cb_tensor *t, int64_t element, float x); /* rounded to its dtype */
/* Those that come after a phase of a row, or belong before or after all rows. */
void cb_x_numbers_after(const cb_x_fused *f, cb_x_context *c, int phase);
void cb_x_shared_numbers(const cb_microcode *m, cb_x_context *c, int when);
/* As kern_reduce.c adds up a long row: segments of leaves in pairs, then the segments. */
float cb_x_total_of(const float *leaf, int64_t count);

#endif
