/* ref_move.c: joining, padding and indexing. */
#include "ref_ops.h"

#include <inttypes.h>

/* Copies an element exactly, as an integer or as a float according to its dtype. */
static void move(const cb_tensor *to, int64_t i, const cb_tensor *from, int64_t k) {
    if (cb_dtype_is_float(from->dtype)) cb_ref_put(to, i, cb_ref_get(from, k));
    else cb_ref_put_int(to, i, cb_ref_get_int(from, k));
}

void cb_ref_concat(const cb_ref_call *c) {
    const int64_t axis = c->attrs->i[0];
    int64_t start = 0;
    for (uint32_t k = 0; k < c->n_in; k++) {
        const cb_tensor *in = &c->in[k];
        const int64_t n = cb_numel(&in->shape);
        for (int64_t i = 0; i < n; i++) {
            int64_t index[CB_MAX_RANK];
            cb_ref_index(&in->shape, i, index);
            index[axis] += start;
            move(&c->out[0], cb_ref_number(&c->out[0].shape, index), in, i);
        }
        start += in->shape.dim[axis];
    }
}

void cb_ref_pad(const cb_ref_call *c) {
    const int64_t axis = c->attrs->i[0], low = c->attrs->i[1], step = c->attrs->i[3] + 1;
    const int64_t n_out = cb_numel(&c->out[0].shape), n_in = cb_numel(&c->in[0].shape);
    for (int64_t i = 0; i < n_out; i++) cb_ref_put(&c->out[0], i, c->attrs->f[0]);
    for (int64_t i = 0; i < n_in; i++) {
        int64_t index[CB_MAX_RANK];
        cb_ref_index(&c->in[0].shape, i, index);
        index[axis] = low + index[axis] * step;
        move(&c->out[0], cb_ref_number(&c->out[0].shape, index), &c->in[0], i);
    }
}

/* Reads and checks entry i of an index tensor that selects from an axis of `size`. */
static cb_status selected(const cb_ref_call *c, const cb_tensor *index, int64_t i, int64_t axis,
                          int64_t size, int64_t *out, cb_error *err) {
    *out = cb_ref_get_int(index, i);
    if (*out >= 0 && *out < size) return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "%s: index %" PRId64 " out of range for axis %" PRId64 " of size %" PRId64,
                   cb_op_def_of(c->code)->name, *out, axis, size);
}

/* Finds the element of `table` that entry i of `index` selects: the entry's own position, with its
 * coordinate along `axis` replaced by its value. */
static cb_status place_of(const cb_ref_call *c, const cb_tensor *index, int64_t i,
                          const cb_tensor *table, int64_t *element, cb_error *err) {
    const int64_t axis = c->attrs->i[0];
    int64_t at[CB_MAX_RANK], entry;
    CB_TRY(selected(c, index, i, axis, table->shape.dim[axis], &entry, err));
    cb_ref_index(&index->shape, i, at);
    at[axis] = entry;
    *element = cb_ref_number(&table->shape, at);
    return CB_OK;
}

/* Checks all indices before anything is written. */
static cb_status check_all(const cb_ref_call *c, int64_t axis, int64_t size, cb_error *err) {
    const cb_tensor *index = &c->in[1];
    const int64_t n = cb_numel(&index->shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t entry;
        CB_TRY(selected(c, index, i, axis, size, &entry, err));
    }
    return CB_OK;
}

cb_status cb_ref_gather(const cb_ref_call *c, cb_error *err) {
    const int64_t n = cb_numel(&c->out[0].shape), axis = c->attrs->i[0];
    CB_TRY(check_all(c, axis, c->in[0].shape.dim[axis], err));
    for (int64_t i = 0; i < n; i++) {
        int64_t from;
        CB_TRY(place_of(c, &c->in[1], i, &c->in[0], &from, err));
        move(&c->out[0], i, &c->in[0], from);
    }
    return CB_OK;
}

/* Computes output element `i`: the base plus the entries of its line along the axis that select it,
 * in order. The sum is rounded once. */
static void scatter_one(const cb_ref_call *c, int64_t i) {
    const cb_tensor *base = &c->in[0], *index = &c->in[1], *src = &c->in[2];
    const int64_t axis = c->attrs->i[0];
    const bool is_float = cb_dtype_is_float(base->dtype);
    int64_t at[CB_MAX_RANK];
    double sum = cb_ref_get(base, i);
    uint64_t sum_int = is_float ? 0 : (uint64_t)cb_ref_get_int(base, i);
    cb_ref_index(&base->shape, i, at);
    const int64_t me = at[axis];
    for (int64_t k = 0; k < index->shape.dim[axis]; k++) {
        at[axis] = k;
        const int64_t from = cb_ref_number(&index->shape, at);
        if (cb_ref_get_int(index, from) != me) continue;
        if (is_float) sum += cb_ref_get(src, from);
        else sum_int += (uint64_t)cb_ref_get_int(src, from);
    }
    if (is_float) cb_ref_put(&c->out[0], i, sum);
    else cb_ref_put_int(&c->out[0], i, (int64_t)sum_int);
}

cb_status cb_ref_scatter_add(const cb_ref_call *c, cb_error *err) {
    const int64_t n_out = cb_numel(&c->out[0].shape), axis = c->attrs->i[0];
    CB_TRY(check_all(c, axis, c->out[0].shape.dim[axis], err));
    for (int64_t i = 0; i < n_out; i++) scatter_one(c, i);
    return CB_OK;
}

cb_status cb_ref_embedding(const cb_ref_call *c, cb_error *err) {
    const int64_t n = cb_numel(&c->out[0].shape), columns = c->in[0].shape.dim[1];
    CB_TRY(check_all(c, 0, c->in[0].shape.dim[0], err));
    for (int64_t i = 0; i < n; i++) {
        int64_t row;
        CB_TRY(selected(c, &c->in[1], i / columns, 0, c->in[0].shape.dim[0], &row, err));
        move(&c->out[0], i, &c->in[0], row * columns + i % columns);
    }
    return CB_OK;
}

cb_status cb_ref_embedding_bwd(const cb_ref_call *c, cb_error *err) {
    const int64_t rows = c->out[0].shape.dim[0], columns = c->out[0].shape.dim[1];
    const int64_t n = cb_numel(&c->in[1].shape);
    CB_TRY(check_all(c, 0, rows, err));
    for (int64_t i = 0; i < rows * columns; i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < n; k++) {
            if (cb_ref_get_int(&c->in[1], k) == i / columns)
                sum += cb_ref_get(&c->in[0], k * columns + i % columns);
        }
        cb_ref_put(&c->out[0], i, sum);
    }
    return CB_OK;
}

void cb_ref_pack_bits(const cb_ref_call *c) {
    const int64_t n = cb_numel(&c->in[0].shape);
    for (int64_t i = 0; i < cb_numel(&c->out[0].shape); i++) {
        int64_t byte = 0;
        for (int64_t k = 0; k < 8 && 8 * i + k < n; k++) {
            const int64_t at = 8 * i + k;
            const bool is_set = c->in[0].dtype == CB_BOOL ? cb_ref_get_int(&c->in[0], at) != 0
                                                          : !(cb_ref_get(&c->in[0], at) <= 0);
            byte |= (int64_t)is_set << k;
        }
        cb_ref_put_int(&c->out[0], i, byte);
    }
}

void cb_ref_unpack_bits(const cb_ref_call *c) {
    for (int64_t i = 0; i < cb_numel(&c->out[0].shape); i++)
        cb_ref_put_int(&c->out[0], i, cb_ref_get_int(&c->in[0], i / 8) >> i % 8 & 1);
}

/* Returns the element of a plane where the window of index `element` begins, as a row and a column,
 * either of which may be negative. */
static void window_of(const cb_ref_call *c, const cb_shape *shape, int64_t element, int64_t *row,
                      int64_t *column) {
    const int64_t *a = c->attrs->i;
    int64_t at[CB_MAX_RANK];
    cb_ref_index(shape, element, at);
    *row = at[2] * a[2] - a[4];
    *column = at[3] * a[3] - a[5];
}

void cb_ref_pack_index(const cb_ref_call *c) {
    const int64_t *a = c->attrs->i, bytes = cb_packed_index_bytes(c->attrs);
    for (int64_t i = 0; i < cb_numel(&c->in[0].shape); i++) {
        int64_t number = cb_ref_get_int(&c->in[0], i), row, column;
        if (a[0]) {
            window_of(c, &c->in[0].shape, i, &row, &column);
            number = (number / a[6] - row) * a[1] + number % a[6] - column;
        }
        for (int64_t k = 0; k < bytes; k++)
            cb_ref_put_int(&c->out[0], i * bytes + k, number >> 8 * k & 255);
    }
}

void cb_ref_unpack_index(const cb_ref_call *c) {
    const int64_t *a = c->attrs->i, bytes = cb_packed_index_bytes(c->attrs);
    for (int64_t i = 0; i < cb_numel(&c->out[0].shape); i++) {
        int64_t number = 0, row, column;
        for (int64_t k = 0; k < bytes; k++)
            number |= cb_ref_get_int(&c->in[0], i * bytes + k) << 8 * k;
        if (a[0]) {
            window_of(c, &c->out[0].shape, i, &row, &column);
            number = (row + number / a[1]) * a[6] + column + number % a[1];
        }
        cb_ref_put_int(&c->out[0], i, number);
    }
}
