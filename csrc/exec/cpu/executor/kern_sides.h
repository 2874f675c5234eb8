/* kern_sides.h: folds n vectors of n lanes to one vector: lane k of the result is the fold of
 * vector k. Halves are combined until one lane is left: lanes k and k + n / 2, then k and k + n / 4
 * and so on, as in kern_fold.h. Each step puts halves of two vectors next to each other. Part of
 * kern_executor.c.
 *
 *     sums_of_sides      adds
 *     largest_of_sides   takes the larger of keys */
#ifndef CB_EXEC_CPU_EXECUTOR_KERN_SIDES_H
#define CB_EXEC_CPU_EXECUTOR_KERN_SIDES_H

#define EX_SIDES EX_LANES /* rows that are folded at once */

/* Without unrolling, gcc at -O2 keeps the vectors in memory. */
#if defined(__clang__)
#define EX_UNROLL
#else
#define EX_UNROLL _Pragma("GCC unroll 16")
#endif

#if EX_LANES == 16
#define CB_HALVES(shuffle, low, high, n, apply)                                            \
    EX_UNROLL for (int k = 0; k < (n); k++) {                                              \
        const __m512 a = (__m512)v[2 * k], b = (__m512)v[2 * k + 1];                       \
        v[k] = apply((VEC)_mm512_##shuffle(a, b, low), (VEC)_mm512_##shuffle(a, b, high)); \
    }
#define CB_FOLD_SIDES(apply)                                                                       \
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); \
    CB_HALVES(shuffle_f32x4, 0x44, 0xEE, 8, apply)                                                 \
    CB_HALVES(shuffle_f32x4, 0x88, 0xDD, 4, apply)                                                 \
    CB_HALVES(shuffle_ps, 0x44, 0xEE, 2, apply)                                                    \
    CB_HALVES(shuffle_ps, 0x88, 0xDD, 1, apply)                                                    \
    return (VEC)_mm512_permutexvar_ps(order, (__m512)v[0])
#else

#define CB_LOW_8_4 0, 1, 2, 3, 8, 9, 10, 11
#define CB_HIGH_8_4 4, 5, 6, 7, 12, 13, 14, 15
/* These shuffle within the halves of AVX2 registers, which is faster. */
#define CB_LOW_8_2 0, 1, 8, 9, 4, 5, 12, 13
#define CB_HIGH_8_2 2, 3, 10, 11, 6, 7, 14, 15
#define CB_LOW_8_1 0, 2, 8, 10, 4, 6, 12, 14
#define CB_HIGH_8_1 1, 3, 9, 11, 5, 7, 13, 15
#define CB_LOW_4_2 0, 1, 4, 5
#define CB_HIGH_4_2 2, 3, 6, 7
#define CB_LOW_4_1 0, 2, 4, 6
#define CB_HIGH_4_1 1, 3, 5, 7
#define CB_LOW_2_1 0, 2
#define CB_HIGH_2_1 1, 3

#define CB_HALVES(lanes, half, n, apply)                                                \
    EX_UNROLL for (int k = 0; k < (n); k++) v[k] =                                      \
        apply(__builtin_shufflevector(v[2 * k], v[2 * k + 1], CB_LOW_##lanes##_##half), \
              __builtin_shufflevector(v[2 * k], v[2 * k + 1], CB_HIGH_##lanes##_##half));
#if EX_LANES == 8
#define CB_FOLD_SIDES(apply)  \
    CB_HALVES(8, 4, 4, apply) \
    CB_HALVES(8, 2, 2, apply) \
    CB_HALVES(8, 1, 1, apply) \
    return __builtin_shufflevector(v[0], v[0], 0, 4, 1, 5, 2, 6, 3, 7)
#elif EX_LANES == 4
#define CB_FOLD_SIDES(apply)  \
    CB_HALVES(4, 2, 2, apply) \
    CB_HALVES(4, 1, 1, apply) \
    return v[0]
#else
#define CB_FOLD_SIDES(apply)  \
    CB_HALVES(2, 1, 1, apply) \
    return v[0]
#endif
#endif

#define CB_ADDED(x, y) ((x) + (y))
#define CB_LARGER(x, y) ((VEC)EX_VM(larger_int)((INT)(x), (INT)(y)))
VFN VEC sums_of_sides(VEC v[EX_SIDES]) { CB_FOLD_SIDES(CB_ADDED); }
VFN VEC largest_of_sides(VEC v[EX_SIDES]) { CB_FOLD_SIDES(CB_LARGER); }

#endif
