/* numbers.h: per-row and per-group numbers and their sums, in the group's compute type (f32 or
 * f64). */
#ifndef CB_EXEC_NUMBERS_H
#define CB_EXEC_NUMBERS_H

#include "prepare.h"

/* Copies and checks a group's indices that the caller could change, before any row is computed. */
CB_MUST_CHECK cb_status cb_x_take_indices(const cb_executable *x, const cb_microcode *m,
                                          cb_error *err);
/* Reads number `v` from an element of its tensor; an index becomes a position. */
void cb_x_load_number(const cb_microcode *m, cb_x_context *c, const cb_x_row_value *v,
                      const cb_tensor *t, int64_t element);
/* Writes a number to an element, rounded to its dtype. */
void cb_x_store_number(const cb_microcode *m, const cb_x_context *c, int id, const cb_tensor *t,
                       int64_t element);
void cb_x_set_constants(const cb_microcode *m, cb_x_context *c);
/* Initializes a context with the numbers that are the same for all rows and with empty sums. */
void cb_x_start(const cb_microcode *m, cb_x_context *c, const cb_x_context *shared);
/* Computes the numbers after a phase of a row, or before or after all rows. */
void cb_x_numbers_after(const cb_x_fused *f, cb_x_context *c, int after);
void cb_x_shared_numbers(const cb_x_fused *f, cb_x_context *c, int when);
/* Combines sums of leaves to a sum over `count` elements, as kern_reduce.c adds a long row:
 * segments of leaves in pairs, then the segments. */
void cb_x_sum_up(const cb_microcode *m, cb_x_context *c, const cb_x_total *total, const void *leaf,
                 int64_t count, cb_dtype dtype);
/* Sets n elements of `out` from `at` on to the sums of all blocks, in order; `from` is the first
 * block's. */
void cb_x_combine(const cb_x_fused *f, const cb_tensor *out, int64_t at, int64_t n,
                  const char *from, bool is_mean);
/* Sets n elements of `out` from `at` on to sums, or to means if `divisor` is not 0. */
void cb_x_put_sums(const cb_x_fused *f, const cb_tensor *out, int64_t at, int64_t n, void *sums,
                   int64_t divisor);
/* Stores the sum of n elements, of any number of leaves, in *sum. Accumulator `acc` must be empty,
 * and is empty again afterwards. */
void cb_x_sum_long(const cb_x_fused *f, cb_x_context *c, int acc, const void *elements, int64_t n,
                   void *sum);

#endif
