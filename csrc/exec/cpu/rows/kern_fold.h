/* kern_fold.h: folds the 64 lanes of a sum to one number, in halves: lane i and lane i + 32, then i
 * and i + 16, ... For float and double, with the same bits on every instruction set. */
#ifndef CB_EXEC_CPU_ROWS_KERN_FOLD_H
#define CB_EXEC_CPU_ROWS_KERN_FOLD_H

#include <stdint.h>
#include <string.h>

#include "../../../base/kern_vector.h"

#define CB_SUM_LANES 64
/* Bytes of a vector of lanes, which is a register, because gcc passes longer ones through
 * memory. */
#define CB_LANE_BYTES (4 * CB_VW)

/* Adds the N vectors of `at` in pairs: k and k + N / 2, then the sums that are N / 4 apart, and so
 * on. There is no loop, because gcc would keep its vectors in memory. */
#define CB_SUM_2(k, N) (at[k] + at[(k) + (N) / 2])
#define CB_SUM_4(k, N) (CB_SUM_2(k, N) + CB_SUM_2((k) + (N) / 4, N))
#define CB_SUM_8(k, N) (CB_SUM_4(k, N) + CB_SUM_4((k) + (N) / 8, N))
#define CB_SUM_16(k, N) (CB_SUM_8(k, N) + CB_SUM_8((k) + (N) / 16, N))
#define CB_SUM_32(k, N) (CB_SUM_16(k, N) + CB_SUM_16((k) + (N) / 32, N))

/* Stores the lower half of `from` in `to`, and the upper half in `upper`. */
#define CB_HALVE(to, upper, from)                                            \
    do {                                                                     \
        memcpy(&(to), &(from), sizeof(to));                                  \
        memcpy(&(upper), (const char *)&(from) + sizeof(to), sizeof(upper)); \
        (to) += (upper);                                                     \
    } while (0)

/* clang-format off */
#define CB_FOLD(real, name)                                                                      \
    typedef real name##_lane __attribute__((vector_size(CB_LANE_BYTES), aligned(4), may_alias)); \
    typedef real name##_full __attribute__((vector_size(CB_LANE_BYTES)));                        \
    typedef real name##_half __attribute__((vector_size(32)));                                   \
    typedef real name##_quarter __attribute__((vector_size(16)));                                \
    static inline real name(const void *lanes) {                                                 \
        enum { N = CB_SUM_LANES * sizeof(real) / CB_LANE_BYTES };                                \
        const name##_lane *at = lanes;                                                           \
        const name##_full full = N == 4    ? CB_SUM_4(0, N)                                      \
                                 : N == 8  ? CB_SUM_8(0, N)                                      \
                                 : N == 16 ? CB_SUM_16(0, N)                                     \
                                           : CB_SUM_32(0, N);                                    \
        name##_half half, high_half;                                                             \
        name##_quarter quarter, high_quarter;                                                    \
        real last[16 / sizeof(real)];                                                            \
        if (sizeof full == 64) CB_HALVE(half, high_half, full);                                  \
        else memcpy(&half, &full, sizeof half < sizeof full ? sizeof half : sizeof full);        \
        if (sizeof full > 16) CB_HALVE(quarter, high_quarter, half);                             \
        else memcpy(&quarter, &full, sizeof quarter);                                            \
        memcpy(last, &quarter, sizeof last);                                                     \
        for (int n = (int)(8 / sizeof(real)); n > 0; n /= 2)                                     \
            for (int k = 0; k < n; k++) last[k] += last[k + n];                                  \
        return last[0];                                                                          \
    }
/* clang-format on */
CB_FOLD(float, cb_fold_f32)
CB_FOLD(double, cb_fold_f64)
#undef CB_FOLD
#undef CB_HALVE
#undef CB_SUM_2
#undef CB_SUM_4
#undef CB_SUM_8
#undef CB_SUM_16
#undef CB_SUM_32

#endif
