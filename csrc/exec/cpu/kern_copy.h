/* kern_copy.h: moving elements: strided runs of one size, and walks over the axes of strided
 * tensors. */
#ifndef CB_EXEC_CPU_KERN_COPY_H
#define CB_EXEC_CPU_KERN_COPY_H

#include "../../base/ints.h"
#include "../../base/kern_half.h"
#include "kern.h"
#include "vecmath.h"

/* Elements in a tile: what a kernel holds on its stack at a time. Also the leaf of every sum
 * (kern_sum.h). */
#define CB_TILE 1024
/* Elements in a task of a parallel region. Both are part of how results are defined: never a
 * setting. */
#define CB_CHUNK 16384
/* Sums: rows that are added up before they join the sums of their block (the shorter the chain, the
 * smaller the error); and elements of a segment of a long row, a power of two so that there are at
 * most CB_SEGMENTS. */
#define CB_RUN_ROWS 128
#define CB_SEGMENT ((int64_t)1 << 16)
#define CB_SEGMENTS 64

static inline int64_t cb_segment_of(int64_t count) {
    int64_t segment = CB_SEGMENT;
    while (div_up(count, segment) > CB_SEGMENTS) segment *= 2;
    return segment;
}

/* Results of so many bytes are stored around the caches: they are gone before they are read. */
#define CB_FAR_BYTES ((size_t)8 << 20)

static inline void *cb_at(const cb_tensor *t, int64_t element) {
    return (char *)t->data + element * (int64_t)cb_dtype_size(t->dtype);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Copies of one element, a vector of them at a time. */
#define CB_REPEAT(type)                                                                  \
    {                                                                                    \
        typedef type lanes __attribute__((vector_size(64)));                             \
        const lanes value = (lanes){0} + *from;                                          \
        int64_t i = 0;                                                                   \
        for (const int64_t step = sizeof value / sizeof(type); i + step <= n; i += step) \
            memcpy(to + i, &value, sizeof value);                                        \
        for (; i < n; i++) to[i] = *from;                                                \
    }
#define CB_RUN(type)                                                                \
    {                                                                               \
        typedef type moved __attribute__((may_alias)); /* of whatever type it is */ \
        const moved *from = in;                                                     \
        moved *to = out;                                                            \
        if (stride == 0) CB_REPEAT(type)                                            \
        else                                                                        \
            for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];               \
        return;                                                                     \
    }

/* n >= 1 elements of `size` bytes, `stride` elements apart, to `out` one after another. */
static inline void cb_copy_run(const void *in, int64_t stride, size_t size, void *restrict out,
                               int64_t n) {
    if (stride == 1 || n == 1) {
        memcpy(out, in, (size_t)n * size);
        return;
    }
    switch (size) {
        case 1: CB_RUN(uint8_t)
        case 2: CB_RUN(uint16_t)
        case 4: CB_RUN(uint32_t)
        default: CB_RUN(uint64_t)
    }
}
#undef CB_RUN
#undef CB_REPEAT

/* Rows that lie across: element i of row r is in[r + i * stride], and goes to out[r * pitch + i].
 * CB_ACROSS rows at a time use whole cache lines. */
#define CB_ACROSS 16
#define CB_ACROSS_ROWS(rows)                                                          \
    for (int64_t i = 0; i < n; i++) {                                                 \
        const moved *from = (const moved *)in + i * stride;                           \
        __builtin_prefetch(from + 24 * stride);                                       \
        for (int64_t r = 0; r < (rows); r++) ((moved *)out)[r * pitch + i] = from[r]; \
    }
#define CB_ACROSS_OF(type)                                                          \
    {                                                                               \
        typedef type moved __attribute__((may_alias)); /* of whatever type it is */ \
        if (rows == CB_ACROSS) {                                                    \
            CB_ACROSS_ROWS(CB_ACROSS)                                               \
        } else {                                                                    \
            CB_ACROSS_ROWS(rows)                                                    \
        }                                                                           \
        return;                                                                     \
    }
static inline void cb_copy_across(const void *in, int64_t stride, size_t size, void *restrict out,
                                  int64_t pitch, int64_t rows, int64_t n) {
    switch (size) {
        case 1: CB_ACROSS_OF(uint8_t)
        case 2: CB_ACROSS_OF(uint16_t)
        case 4: CB_ACROSS_OF(uint32_t)
        default: CB_ACROSS_OF(uint64_t)
    }
}
#undef CB_ACROSS_OF
#undef CB_ACROSS_ROWS

/* `value` as one element of the dtype, as cb_copy_run reads it; integers truncate and saturate, NaN
 * is 0. */
static inline uint64_t cb_element_of(cb_dtype dtype, double value) {
    uint64_t element = 0;
    float single = (float)value;
    uint16_t half = dtype == CB_F16 ? cb_f64_to_f16(value) : cb_f64_to_bf16(value);
    int64_t whole = 0;
    if (value == value)
        whole = value >= 0x1p63 ? INT64_MAX : (value < -0x1p63 ? INT64_MIN : (int64_t)value);
    int32_t narrow =
        (int32_t)(whole > INT32_MAX ? INT32_MAX : (whole < INT32_MIN ? INT32_MIN : whole));
    uint8_t byte = (uint8_t)(whole > UINT8_MAX ? UINT8_MAX : (whole < 0 ? 0 : whole));
    if (dtype == CB_BOOL) byte = value != 0.0;
    switch (dtype) {
        case CB_BOOL:
        case CB_U8: memcpy(&element, &byte, sizeof byte); break;
        case CB_I32: memcpy(&element, &narrow, sizeof narrow); break;
        case CB_I64: memcpy(&element, &whole, sizeof whole); break;
        case CB_F16:
        case CB_BF16: memcpy(&element, &half, sizeof half); break;
        case CB_F32: memcpy(&element, &single, sizeof single); break;
        case CB_F64: memcpy(&element, &value, sizeof value); break;
        case CB_DTYPE_COUNT: break;
    }
    return element;
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* Axes of a tensor in row-major order, with the strides of up to CB_WALKERS tensors that share
 * them. Axes of size 1 are gone and neighbours that every tensor steps through evenly are one. rank
 * >= 1. */
#define CB_WALKERS 5
typedef struct cb_walk {
    int rank, n_tensors;
    int64_t count; /* product of dim */
    int64_t dim[CB_MAX_RANK], stride[CB_WALKERS][CB_MAX_RANK];
} cb_walk;

static inline cb_walk cb_walk_start(int n_tensors) {
    return (cb_walk){.n_tensors = n_tensors, .count = 1};
}

/* Adds an inner axis; `stride[t]` is that of tensor t. */
static inline void cb_walk_add(cb_walk *w, int64_t dim, const int64_t *stride) {
    w->count *= dim;
    if (dim == 1) return;
    bool joins = w->rank > 0;
    for (int t = 0; joins && t < w->n_tensors; t++)
        joins = w->stride[t][w->rank - 1] == stride[t] * dim;
    int k = joins ? w->rank - 1 : w->rank++;
    w->dim[k] = joins ? w->dim[k] * dim : dim;
    for (int t = 0; t < w->n_tensors; t++) w->stride[t][k] = stride[t];
}

/* A walk without axes gets one of size 1, so that "the last axis" exists. */
static inline void cb_walk_finish(cb_walk *w) {
    if (w->rank > 0) return;
    w->rank = 1;
    w->dim[0] = w->count;
    for (int t = 0; t < w->n_tensors; t++) w->stride[t][0] = 1;
}

static inline cb_walk cb_walk_of(const cb_tensor *const *tensors, int n_tensors) {
    cb_walk w = cb_walk_start(n_tensors);
    const cb_shape *shape = &tensors[0]->shape;
    for (int32_t k = 0; k < shape->rank; k++) {
        int64_t stride[CB_WALKERS];
        for (int t = 0; t < n_tensors; t++) stride[t] = tensors[t]->stride[k];
        cb_walk_add(&w, shape->dim[k], stride);
    }
    cb_walk_finish(&w);
    return w;
}

/* A place in a walk. */
typedef struct cb_position {
    int64_t index[CB_MAX_RANK];
    int64_t offset[CB_WALKERS];
} cb_position;

static inline cb_position cb_walk_to(const cb_walk *w, int64_t position) {
    cb_position p = {0};
    for (int k = w->rank - 1; k >= 0; k--) {
        p.index[k] = k > 0 ? position % w->dim[k] : position;
        if (k > 0) position /= w->dim[k];
        for (int t = 0; t < w->n_tensors; t++) p.offset[t] += p.index[k] * w->stride[t][k];
    }
    return p;
}

/* n elements on; the step must not leave the row (the last axis) by more than its end. */
static inline void cb_walk_step(const cb_walk *w, cb_position *p, int64_t n) {
    int k = w->rank - 1;
    p->index[k] += n;
    for (int t = 0; t < w->n_tensors; t++) p->offset[t] += n * w->stride[t][k];
    while (k > 0 && p->index[k] == w->dim[k]) {
        for (int t = 0; t < w->n_tensors; t++) {
            p->offset[t] += w->stride[t][k - 1] - w->dim[k] * w->stride[t][k];
        }
        p->index[k--] = 0;
        p->index[k]++;
    }
}

static inline int64_t cb_walk_left(const cb_walk *w, const cb_position *p) {
    return w->dim[w->rank - 1] - p->index[w->rank - 1];
}

/* n elements of tensor t from place p on, row after row, to `out`. */
static inline void cb_walk_copy(const cb_walk *w, cb_position p, int t, const void *data,
                                size_t size, void *out, int64_t n) {
    int64_t stride = w->stride[t][w->rank - 1];
    char *to = out;
    while (n > 0) {
        int64_t run = min_i64(n, cb_walk_left(w, &p));
        cb_copy_run((const char *)data + p.offset[t] * (int64_t)size, stride, size, to, run);
        to += run * (int64_t)size;
        n -= run;
        if (n > 0) cb_walk_step(w, &p, run);
    }
}

#endif
