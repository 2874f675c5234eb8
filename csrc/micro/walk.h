/* walk.h: walks over the axes of strided tensors. */
#ifndef CB_MICRO_WALK_H
#define CB_MICRO_WALK_H

#include "../base/ints.h"
#include "../ir/op.h"

/* Axes in row-major order, with the strides of up to CB_WALKERS tensors that share them. Axes of
 * size 1 are removed, and adjacent axes that are contiguous with each other in every tensor are
 * merged. rank >= 1 after cb_walk_finish. */
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

/* Gives a walk without axes one axis, so that there is always a last axis. */
static inline void cb_walk_finish(cb_walk *w) {
    if (w->rank > 0) return;
    w->rank = 1;
    w->dim[0] = w->count;
    for (int t = 0; t < w->n_tensors; t++) w->stride[t][0] = 1;
}

/* A position in a walk: the index on each axis, and the offset in each tensor, in elements. */
typedef struct cb_position {
    int64_t index[CB_MAX_RANK];
    int64_t offset[CB_WALKERS];
} cb_position;

static inline cb_position cb_walk_to(const cb_walk *w, int64_t position) {
    cb_position p = {0};
    for (int k = w->rank - 1; k >= 0; k--) {
        p.index[k] = k > 0 ? position % w->dim[k] : position; /* axis 0 may end at dim[0] */
        if (k > 0) position /= w->dim[k];
        for (int t = 0; t < w->n_tensors; t++) p.offset[t] += p.index[k] * w->stride[t][k];
    }
    return p;
}

/* Advances by n elements, at most to the end of the current row (the last axis). */
static inline void cb_walk_step(const cb_walk *w, cb_position *p, int64_t n) {
    int k = w->rank - 1;
    p->index[k] += n;
    for (int t = 0; t < w->n_tensors; t++) p->offset[t] += n * w->stride[t][k];
    while (k > 0 && p->index[k] == w->dim[k]) {
        for (int t = 0; t < w->n_tensors; t++)
            p->offset[t] += w->stride[t][k - 1] - w->dim[k] * w->stride[t][k];
        p->index[k--] = 0;
        p->index[k]++;
    }
}

static inline int64_t cb_walk_left(const cb_walk *w, const cb_position *p) {
    return w->dim[w->rank - 1] - p->index[w->rank - 1];
}

#endif
