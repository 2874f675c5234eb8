/* kern_lanes.h: adds elements to the lanes of a sum: element i to lane i mod CB_SUM_LANES. For
 * float and double. */
#ifndef CB_EXEC_CPU_ROWS_KERN_LANES_H
#define CB_EXEC_CPU_ROWS_KERN_LANES_H

#include "kern_few.h"
#include "kern_fold.h"

/* Adds elements at..at+n of a sum until its lanes must be folded, after each `leaf` elements.
 * Returns the number of added elements. */
#define CB_ADD_TO_LANES(real, name)                                                        \
    static inline void name##_few(real *lanes, const real *from, int64_t n) {              \
        for (int64_t i = 0; i < n; i++) lanes[i] += from[i];                               \
    }                                                                                      \
    /* Adds to the first lanes as whole vectors, because the fold reads vectors. */        \
    static inline void name##_first(real *lanes, const real *from, int64_t n) {            \
        enum { WIDE = CB_LANE_BYTES / sizeof(real) };                                      \
        for (int64_t i = 0; i < n; i += WIDE)                                              \
            *(name##_lane *)(lanes + i) += (name##_full)few_##real(from + i, n - i);       \
    }                                                                                      \
    static inline void name##_turns(real *lanes, const real *from, int64_t n) {            \
        enum { WIDE = CB_LANE_BYTES / sizeof(real) };                                      \
        for (int k = 0; k < CB_SUM_LANES; k += 4 * WIDE) {                                 \
            name##_lane *to = (name##_lane *)(lanes + k);                                  \
            name##_full sum0 = to[0], sum1 = to[1], sum2 = to[2], sum3 = to[3];            \
            for (int64_t i = 0; i < n; i += CB_SUM_LANES) {                                \
                const name##_lane *x = (const name##_lane *)(from + i + k);                \
                sum0 += x[0], sum1 += x[1], sum2 += x[2], sum3 += x[3];                    \
            }                                                                              \
            to[0] = sum0, to[1] = sum1, to[2] = sum2, to[3] = sum3;                        \
        }                                                                                  \
    }                                                                                      \
    static inline int64_t name##_add(real *lanes, int64_t at, const real *from, int64_t n, \
                                     int64_t leaf) {                                       \
        const int64_t lane = at % CB_SUM_LANES, rest = leaf - at % leaf,                   \
                      some = n < rest ? n : rest;                                          \
        if (lane == 0 && some >= CB_SUM_LANES) {                                           \
            name##_turns(lanes, from, some - some % CB_SUM_LANES);                         \
            return some - some % CB_SUM_LANES;                                             \
        }                                                                                  \
        const int64_t few = some < CB_SUM_LANES - lane ? some : CB_SUM_LANES - lane;       \
        if (lane == 0) name##_first(lanes, from, few);                                     \
        else name##_few(lanes + lane, from, few);                                          \
        return few;                                                                        \
    }
CB_ADD_TO_LANES(float, cb_fold_f32)
CB_ADD_TO_LANES(double, cb_fold_f64)
#undef CB_ADD_TO_LANES

#endif
