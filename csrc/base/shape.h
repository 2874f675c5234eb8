/* shape.h: shapes and strides with checked arithmetic. Strides count elements; a stride of 0
 * repeats. */
#ifndef CB_BASE_SHAPE_H
#define CB_BASE_SHAPE_H

#include "dtype.h"

#define CB_SHAPE_TEXT 200 /* room for any shape as text */

cb_shape cb_shape_make(int32_t rank, const int64_t *dims);
bool cb_shape_equal(const cb_shape *a, const cb_shape *b);
/* Elements / bytes; CB_INVALID when a dim is negative, the rank is off or the size passes 2^62
 * bytes. */
CB_MUST_CHECK cb_status cb_shape_numel(const cb_shape *s, int64_t *out, cb_error *err);
CB_MUST_CHECK cb_status cb_shape_bytes(const cb_shape *s, cb_dtype dtype, uint64_t *out,
                                       cb_error *err);
/* The same for a shape that has been checked before (any shape inside a graph). */
int64_t cb_numel(const cb_shape *s);
/* Of axes begin..end, `end` not among them: how many elements lie before or after an axis. */
int64_t cb_numel_of(const cb_shape *s, int64_t begin, int64_t end);

CB_MUST_CHECK cb_status cb_shape_broadcast(const cb_shape *a, const cb_shape *b, cb_shape *out,
                                           cb_error *err);
void cb_shape_strides(const cb_shape *s, int64_t strides[CB_MAX_RANK]); /* row-major */
/* Dims of size 1 may have any stride; an empty shape is contiguous. */
bool cb_is_contiguous(const cb_shape *s, const int64_t *strides);
/* Strides that show the same elements, in the same order, under the shape `to`; false: needs a
 * copy. */
bool cb_view_strides(const cb_shape *from, const int64_t *strides, const cb_shape *to,
                     int64_t *out);
const char *cb_shape_text(const cb_shape *s,
                          char buffer[CB_SHAPE_TEXT]); /* "(4,3)", "(4,)", "()" */

#endif
