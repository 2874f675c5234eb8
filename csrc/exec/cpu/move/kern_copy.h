/* kern_copy.h: copies elements: strided runs of one size, and iteration over the axes of strided
 * tensors. */
#ifndef CB_EXEC_CPU_MOVE_KERN_COPY_H
#define CB_EXEC_CPU_MOVE_KERN_COPY_H

#include "../../../base/ints.h"
#include "../../../base/kern_half.h"
#include "../../../micro/sums.h"
#include "../../../micro/vecmath.h"
#include "../../../micro/walk.h"
#include "../../element.h"
#include "../kern.h"

/* Declares that the iterations of a loop are independent, although its output may be the same
 * memory as one of its inputs. clang checks overlap at run time. */
#ifdef __clang__
#define CB_IN_PLACE
#else
#define CB_IN_PLACE _Pragma("GCC ivdep")
#endif

/* Number of elements of a tile, which a kernel holds on its stack. */
#define CB_TILE CB_X_LEAF
/* Number of elements of a task of a parallel region. */
#define CB_CHUNK CB_X_CHUNK

/* Results of at least this size bypass the caches, because they would be evicted before they are
 * read. */
#define CB_FAR_BYTES ((size_t)8 << 20)

static inline void *cb_at(const cb_tensor *t, int64_t element) {
    return (char *)t->data + element * (int64_t)cb_dtype_size(t->dtype);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Writes copies of one element, a vector at a time. */
#define CB_REPEAT(type)                                                                  \
    {                                                                                    \
        typedef type lanes __attribute__((vector_size(64)));                             \
        const lanes value = (lanes){0} + *from;                                          \
        int64_t i = 0;                                                                   \
        for (const int64_t step = sizeof value / sizeof(type); i + step <= n; i += step) \
            memcpy(to + i, &value, sizeof value);                                        \
        for (; i < n; i++) to[i] = *from;                                                \
    }
#define CB_RUN(type)                                                          \
    {                                                                         \
        typedef type moved __attribute__((may_alias)); /* data of any type */ \
        const moved *from = in;                                               \
        moved *to = out;                                                      \
        if (stride == 0) CB_REPEAT(type)                                      \
        else                                                                  \
            for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];         \
        return;                                                               \
    }

/* Copies n >= 1 elements of `size` bytes, `stride` elements apart, to `out` contiguously. */
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

/* Gathers strided rows: element i of row r is in[r + i * stride], and goes to out[r * pitch + i].
 * CB_ACROSS rows at a time use whole cache lines. */
#define CB_ACROSS 16
#define CB_ACROSS_ROWS(rows)                                                          \
    for (int64_t i = 0; i < n; i++) {                                                 \
        const moved *from = (const moved *)in + i * stride;                           \
        __builtin_prefetch(from + 24 * stride);                                       \
        for (int64_t r = 0; r < (rows); r++) ((moved *)out)[r * pitch + i] = from[r]; \
    }
#define CB_ACROSS_OF(type)                                                    \
    {                                                                         \
        typedef type moved __attribute__((may_alias)); /* data of any type */ \
        if (rows == CB_ACROSS) {                                              \
            CB_ACROSS_ROWS(CB_ACROSS)                                         \
        } else {                                                              \
            CB_ACROSS_ROWS(rows)                                              \
        }                                                                     \
        return;                                                               \
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

/* ---- walks ----------------------------------------------------------------------------------- */

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

/* Copies n elements of tensor t from place p on, row by row, to `out`. */
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
