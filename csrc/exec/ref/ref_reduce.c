/* ref_reduce.c: reductions, one output element at a time. Each output reads, in row-major order,
 * the input elements whose indices agree with its own except in the reduced axes. */
#include "ref_ops.h"

#include <math.h>

typedef struct cell {           /* the input elements of one output element */
    cb_shape in;                /* shape of the input */
    bool reduced[CB_MAX_RANK];  /* [in.rank] */
    int64_t index[CB_MAX_RANK]; /* index of the current input element */
} cell;

static cell cell_of(const cb_ref_call *c) {
    cell r = {.in = c->in[0].shape};
    if (c->code == CB_OP_ARGMAX) r.reduced[c->attrs->i[0]] = true;
    else
        for (int32_t k = 0; k < c->attrs->dims.rank; k++) r.reduced[c->attrs->dims.dim[k]] = true;
    return r;
}

/* Starts at the first input element of output element `i`, at 0 in the reduced axes. */
static void first(cell *r, int64_t i) {
    for (int32_t k = r->in.rank; k-- > 0;) {
        r->index[k] = r->reduced[k] ? 0 : i % r->in.dim[k];
        if (!r->reduced[k]) i /= r->in.dim[k];
    }
}

/* Moves to the next input element; returns false at the end. */
static bool next(cell *r) {
    for (int32_t k = r->in.rank; k-- > 0;) {
        if (!r->reduced[k]) continue;
        if (++r->index[k] < r->in.dim[k]) return true;
        r->index[k] = 0;
    }
    return false;
}

static int64_t cell_size(const cell *r) {
    int64_t n = 1;
    for (int32_t k = 0; k < r->in.rank; k++) n *= r->reduced[k] ? r->in.dim[k] : 1;
    return n;
}

static double fold(cb_opcode code, double so_far, double x) {
    switch (code) {
        case CB_OP_AMAX: return isnan(so_far) || so_far > x ? so_far : x;
        case CB_OP_AMIN: return isnan(so_far) || so_far < x ? so_far : x;
        default: return so_far + x; /* sum, mean */
    }
}

static int64_t fold_int(cb_opcode code, int64_t so_far, int64_t x) {
    switch (code) {
        case CB_OP_AMAX: return so_far > x ? so_far : x;
        case CB_OP_AMIN: return so_far < x ? so_far : x;
        default: return (int64_t)((uint64_t)so_far + (uint64_t)x); /* sum */
    }
}

/* A sum starts from +0, so no sum is -0. A maximum or minimum starts from the first element. */
static bool starts_from_zero(cb_opcode code) { return code != CB_OP_AMAX && code != CB_OP_AMIN; }

static void reduce_float(const cb_ref_call *c, cell *r, int64_t i) {
    const int64_t size = cell_size(r);
    const bool from_zero = starts_from_zero(c->code);
    double result = 0.0;
    first(r, i);
    for (int64_t k = 0; k < size; k++, next(r)) {
        const double x = cb_ref_get(&c->in[0], cb_ref_number(&r->in, r->index));
        result = k == 0 && !from_zero ? x : fold(c->code, result, x);
    }
    if (c->code == CB_OP_MEAN) result /= (double)size;
    cb_ref_put(&c->out[0], i, result);
}

static void reduce_int(const cb_ref_call *c, cell *r, int64_t i) {
    const int64_t size = cell_size(r);
    int64_t result = 0;
    first(r, i);
    for (int64_t k = 0; k < size; k++, next(r)) {
        const int64_t x = cb_ref_get_int(&c->in[0], cb_ref_number(&r->in, r->index));
        result = k == 0 ? x : fold_int(c->code, result, x);
    }
    cb_ref_put_int(&c->out[0], i, result);
}

void cb_ref_reduce(const cb_ref_call *c) {
    const bool is_float = cb_dtype_is_float(c->in[0].dtype);
    const int64_t n = cb_numel(&c->out[0].shape);
    cell r = cell_of(c);
    for (int64_t i = 0; i < n; i++) {
        if (is_float) reduce_float(c, &r, i);
        else reduce_int(c, &r, i);
    }
}

/* Integers are compared as integers, because as doubles large neighbours would be equal. */
static bool is_larger(const cb_tensor *t, int64_t a, int64_t b) {
    if (!cb_dtype_is_float(t->dtype)) return cb_ref_get_int(t, a) > cb_ref_get_int(t, b);
    const double x = cb_ref_get(t, a), y = cb_ref_get(t, b);
    return x > y || (isnan(x) && !isnan(y));
}

void cb_ref_argmax(const cb_ref_call *c) {
    const int64_t n = cb_numel(&c->out[0].shape);
    cell r = cell_of(c);
    for (int64_t i = 0; i < n; i++) {
        int64_t best = -1, best_at = 0, k = 0;
        first(&r, i);
        do {
            const int64_t at = cb_ref_number(&r.in, r.index);
            if (best < 0 || is_larger(&c->in[0], at, best_at)) {
                best = k;
                best_at = at;
            }
            k++;
        } while (next(&r));
        cb_ref_put_int(&c->out[0], i, best);
    }
}
