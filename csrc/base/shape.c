#include "shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"

#define CB_SHAPE_LARGEST (INT64_C(1) << 62) /* elements, and bytes */

cb_shape cb_shape_make(int32_t rank, const int64_t *dims) {
    cb_shape s = {.rank = rank};
    for (int32_t i = 0; i < rank && i < CB_MAX_RANK; i++) s.dim[i] = dims[i];
    return s;
}

bool cb_shape_equal(const cb_shape *a, const cb_shape *b) {
    if (a->rank != b->rank) return false;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

/* A dimension of 0 counts as 1 towards the limit, because the strides of the other dimensions must
 * not overflow either. */
cb_status cb_shape_numel(const cb_shape *s, int64_t *out, cb_error *err) {
    char text[CB_SHAPE_TEXT];
    if (s->rank < 0 || s->rank > CB_MAX_RANK) {
        return cb_fail(err, CB_INVALID, "shape: rank %d is not in 0..%d", (int)s->rank,
                       CB_MAX_RANK);
    }
    int64_t numel = 1;
    bool empty = false;
    for (int32_t i = 0; i < s->rank; i++) {
        if (s->dim[i] < 0) {
            return cb_fail(err, CB_INVALID, "shape: dimension %d of %s is negative", (int)i,
                           cb_shape_text(s, text));
        }
        empty |= s->dim[i] == 0;
        if (!cb_mul_i64(numel, s->dim[i] ? s->dim[i] : 1, &numel) || numel > CB_SHAPE_LARGEST) {
            return cb_fail(err, CB_INVALID, "shape: %s has more than 2^62 elements",
                           cb_shape_text(s, text));
        }
    }
    *out = empty ? 0 : numel;
    return CB_OK;
}

cb_status cb_shape_bytes(const cb_shape *s, cb_dtype dtype, uint64_t *out, cb_error *err) {
    int64_t numel, bytes, size = (int64_t)cb_dtype_size(dtype);
    if (size == 0) return cb_fail(err, CB_TYPE, "shape: unknown element type %d", (int)dtype);
    CB_TRY(cb_shape_numel(s, &numel, err));
    if (!cb_mul_i64(numel, size, &bytes) || bytes > CB_SHAPE_LARGEST) {
        char text[CB_SHAPE_TEXT];
        return cb_fail(err, CB_INVALID, "shape: %s of %s takes more than 2^62 bytes",
                       cb_shape_text(s, text), cb_dtype_name(dtype));
    }
    *out = (uint64_t)bytes;
    return CB_OK;
}

int64_t cb_numel_of(const cb_shape *s, int64_t begin, int64_t end) {
    int64_t numel = 1;
    for (int64_t k = begin; k < end; k++) numel *= s->dim[k];
    return numel;
}

int64_t cb_numel(const cb_shape *s) { return cb_numel_of(s, 0, s->rank); }

cb_status cb_shape_broadcast(const cb_shape *a, const cb_shape *b, cb_shape *out, cb_error *err) {
    char left[CB_SHAPE_TEXT], right[CB_SHAPE_TEXT];
    cb_shape s = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int32_t i = 1; i <= s.rank; i++) { /* from the last dimension */
        int64_t m = i <= a->rank ? a->dim[a->rank - i] : 1;
        int64_t n = i <= b->rank ? b->dim[b->rank - i] : 1;
        if (m != n && m != 1 && n != 1) {
            return cb_fail(err, CB_INVALID, "cannot broadcast %s with %s", cb_shape_text(a, left),
                           cb_shape_text(b, right));
        }
        s.dim[s.rank - i] = m == 1 ? n : m;
    }
    int64_t numel;
    CB_TRY(cb_shape_numel(&s, &numel, err));
    *out = s;
    return CB_OK;
}

void cb_shape_strides(const cb_shape *s, int64_t strides[CB_MAX_RANK]) {
    int64_t step = 1;
    for (int32_t i = s->rank - 1; i >= 0; i--) {
        strides[i] = step;
        if (s->dim[i] > 1) step *= s->dim[i];
    }
}

bool cb_is_contiguous(const cb_shape *s, const int64_t *strides) {
    int64_t step = 1;
    if (cb_numel(s) == 0) return true;
    for (int32_t i = s->rank - 1; i >= 0; i--) {
        if (s->dim[i] != 1 && strides[i] != step) return false;
        step *= s->dim[i];
    }
    return true;
}

/* Both shapes are cut, from the left, into the shortest runs of dimensions with equal products. A
 * run can be regrouped without a copy if the old dimensions have one common step: each stride is
 * the next stride times the next dimension. Dimensions of size 1 have no effect and are dropped
 * first.
 *
 *     (4, 6, 5) -> (4, 2, 15):  runs 4|4 and 6,5|2,15 */
bool cb_view_strides(const cb_shape *from, const int64_t *strides, const cb_shape *to,
                     int64_t *out) {
    int64_t dim[CB_MAX_RANK] = {0}, step[CB_MAX_RANK] = {0}, fresh[CB_MAX_RANK];
    int32_t rank = 0, i = 0, j = 0;
    if (cb_numel(from) != cb_numel(to)) return false;
    cb_shape_strides(to, fresh);
    for (int32_t k = 0; k < from->rank && cb_numel(from) > 0; k++) {
        if (from->dim[k] == 1) continue;
        dim[rank] = from->dim[k];
        step[rank++] = strides[k];
    }
    while (i < rank) { /* the products are equal, so `to` runs out no earlier than `dim` */
        int64_t old_size = dim[i], new_size = to->dim[j];
        int32_t old_end = i + 1, new_end = j + 1;
        while (old_size != new_size) {
            if (old_size < new_size) old_size *= dim[old_end++];
            else new_size *= to->dim[new_end++];
        }
        for (int32_t k = i; k + 1 < old_end; k++)
            if (step[k] != dim[k + 1] * step[k + 1]) return false;
        int64_t walk = step[old_end - 1];
        for (int32_t k = new_end - 1; k >= j; k--) {
            fresh[k] = walk;
            walk *= to->dim[k];
        }
        i = old_end;
        j = new_end;
    }
    memcpy(out, fresh, (size_t)to->rank * sizeof *out);
    return true;
}

const char *cb_shape_text(const cb_shape *s, char buffer[CB_SHAPE_TEXT]) {
    size_t at = 0;
    int32_t rank = s->rank < 0 ? 0 : s->rank > CB_MAX_RANK ? CB_MAX_RANK : s->rank;
    buffer[at++] = '(';
    for (int32_t i = 0; i < rank; i++) {
        const char *comma = i + 1 < rank || rank == 1 ? "," : "";
        at += (size_t)snprintf(buffer + at, CB_SHAPE_TEXT - at, "%" PRId64 "%s", s->dim[i], comma);
    }
    buffer[at++] = ')';
    buffer[at] = '\0';
    return buffer;
}
