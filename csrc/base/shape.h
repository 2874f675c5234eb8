/* shape.h: shapes and strides with checked arithmetic. Strides count elements; with a stride of 0
 * an element is repeated. */
#ifndef CB_BASE_SHAPE_H
#define CB_BASE_SHAPE_H

#include "dtype.h"

#define CB_SHAPE_TEXT 200 /* room for any shape as text */

cb_shape cb_shape_make(int32_t rank, const int64_t *dims);
bool cb_shape_equal(const cb_shape *a, const cb_shape *b);
/* Number of elements or bytes. CB_INVALID if a dimension is negative, the rank is out of range, or
 * the number exceeds 2^62. */
CB_MUST_CHECK cb_status cb_shape_numel(const cb_shape *s, int64_t *out, cb_error *err);
CB_MUST_CHECK cb_status cb_shape_bytes(const cb_shape *s, cb_dtype dtype, uint64_t *out,
                                       cb_error *err);
/* Number of elements of a shape that has been checked before (any shape inside a graph). */
int64_t cb_numel(const cb_shape *s);
/* Product of the dimensions begin..end, `end` excluded. */
int64_t cb_numel_of(const cb_shape *s, int64_t begin, int64_t end);

CB_MUST_CHECK cb_status cb_shape_broadcast(const cb_shape *a, const cb_shape *b, cb_shape *out,
                                           cb_error *err);
void cb_shape_strides(const cb_shape *s, int64_t strides[CB_MAX_RANK]); /* row-major */
/* Dimensions of size 1 may have any stride. A shape without elements is contiguous. */
bool cb_is_contiguous(const cb_shape *s, const int64_t *strides);
/* Computes strides that view the same elements, in the same order, with the shape `to`. Returns
 * false if that needs a copy. */
bool cb_view_strides(const cb_shape *from, const int64_t *strides, const cb_shape *to,
                     int64_t *out);
const char *cb_shape_text(const cb_shape *s,
                          char buffer[CB_SHAPE_TEXT]); /* "(4,3)", "(4,)", "()" */

#endif
