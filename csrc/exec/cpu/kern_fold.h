/* kern_fold.h: the 64 lanes of a sum become one number, in halves: lane i and lane i + 32, then
 * i and i + 16, ... For float and double, with the same bits on every instruction set. */
#ifndef CB_EXEC_CPU_KERN_FOLD_H
#define CB_EXEC_CPU_KERN_FOLD_H

#include <stdint.h>
#include <string.h>

#define CB_SUM_LANES 64

/* clang-format off */
#define CB_FOLD(real, name)                                                                  \
    typedef real name##_64 __attribute__((vector_size(64)));                                 \
    typedef real name##_32 __attribute__((vector_size(32)));                                 \
    typedef real name##_16 __attribute__((vector_size(16)));                                 \
    static inline real name(const void *lanes) {                                             \
        enum { VECTORS = CB_SUM_LANES * sizeof(real) / 64 };                                 \
        name##_64 v[VECTORS];                                                                \
        name##_32 half, high_half;                                                           \
        name##_16 quarter, high_quarter;                                                     \
        real last[16 / sizeof(real)];                                                        \
        memcpy(v, lanes, sizeof v);                                                          \
        for (int n = VECTORS / 2; n > 0; n /= 2)                                             \
            for (int k = 0; k < n; k++) v[k] += v[k + n];                                    \
        memcpy(&half, v, sizeof half);                                                       \
        memcpy(&high_half, (const char *)v + sizeof half, sizeof half);                      \
        half += high_half;                                                                   \
        memcpy(&quarter, &half, sizeof quarter);                                             \
        memcpy(&high_quarter, (const char *)&half + sizeof quarter, sizeof quarter);         \
        quarter += high_quarter;                                                             \
        memcpy(last, &quarter, sizeof last);                                                 \
        for (int n = (int)(8 / sizeof(real)); n > 0; n /= 2)                                 \
            for (int k = 0; k < n; k++) last[k] += last[k + n];                              \
        return last[0];                                                                      \
    }
/* clang-format on */
CB_FOLD(float, cb_fold_f32)
CB_FOLD(double, cb_fold_f64)
#undef CB_FOLD

#endif
