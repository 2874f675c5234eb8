/* kern_few.h: functions for the end of a row, which does not fill a vector. Nothing is read or
 * written past its last element.
 *
 *     few(x, n)       x[0..n), and 0 in the other lanes; whole vectors for n up to 255
 *     keep_few(v, n)  lanes 0..n of v, and 0 in the others
 *     put_few(y, v, n) stores lanes 0..n */
#ifndef CB_EXEC_CPU_ROWS_KERN_FEW_H
#define CB_EXEC_CPU_ROWS_KERN_FEW_H

#include <string.h>

#include "../../../base/kern_vector.h"

#if defined(__AVX512F__)

/* clang-format off */
#define CB_FEW(type, vector, raw, suffix, mask)                                                \
    VFN mask few_mask_##type(int64_t n) {                                                      \
        return (mask)_bzhi_u32((1u << (sizeof(vector) / sizeof(type))) - 1, (unsigned)n);      \
    }                                                                                          \
    VFN vector few_##type(const type *x, int64_t n) {                                          \
        return (vector)_mm512_maskz_loadu_##suffix(few_mask_##type(n), x);                     \
    }                                                                                          \
    VFN vector keep_few_##type(vector v, int64_t n) {                                          \
        return (vector)_mm512_maskz_mov_##suffix(few_mask_##type(n), (raw)v);                  \
    }                                                                                          \
    VFN void put_few_##type(type *y, vector v, int64_t n) {                                    \
        _mm512_mask_storeu_##suffix(y, few_mask_##type(n), (raw)v);                            \
    }
/* clang-format on */
CB_FEW(float, V, __m512, ps, __mmask16)
CB_FEW(double, VD, __m512d, pd, __mmask8)

#elif defined(__AVX2__)

VFN __m256i few_mask_float(int64_t n) {
    const int few = n < 8 ? (int)n : 8;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(few), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VFN __m256i few_mask_double(int64_t n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
#define CB_FEW(type, vector, raw, suffix)                               \
    VFN vector few_##type(const type *x, int64_t n) {                   \
        return (vector)_mm256_maskload_##suffix(x, few_mask_##type(n)); \
    }                                                                   \
    VFN vector keep_few_##type(vector v, int64_t n) {                   \
        return (vector)((__m256i)v & few_mask_##type(n));               \
    }                                                                   \
    VFN void put_few_##type(type *y, vector v, int64_t n) {             \
        _mm256_maskstore_##suffix(y, few_mask_##type(n), (raw)v);       \
    }
CB_FEW(float, V, __m256, ps)
CB_FEW(double, VD, __m256d, pd)

#else

#define CB_FEW(type, vector)                                           \
    VFN int64_t few_of_##type(int64_t n) {                             \
        const int64_t most = (int64_t)(sizeof(vector) / sizeof(type)); \
        return n < most ? n : most;                                    \
    }                                                                  \
    VFN vector few_##type(const type *x, int64_t n) {                  \
        vector v = {0};                                                \
        for (int64_t k = 0; k < few_of_##type(n); k++) v[k] = x[k];    \
        return v;                                                      \
    }                                                                  \
    VFN vector keep_few_##type(vector v, int64_t n) {                  \
        const int64_t most = (int64_t)(sizeof(vector) / sizeof(type)); \
        for (int64_t k = few_of_##type(n); k < most; k++) v[k] = 0;    \
        return v;                                                      \
    }                                                                  \
    VFN void put_few_##type(type *y, vector v, int64_t n) {            \
        for (int64_t k = 0; k < few_of_##type(n); k++) y[k] = v[k];    \
    }
CB_FEW(float, V)
CB_FEW(double, VD)

#endif
#undef CB_FEW

#endif
