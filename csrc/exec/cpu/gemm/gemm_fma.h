/* gemm_fma.h: sum + x * b with one rounding, on the vectors of the instruction set that a kernel
 * file is compiled for; x is a number or, in functions named `each`, a vector. Contraction is off
 * in the whole library (-ffp-contract=off), so multiply-adds are fused only where the code says so.
 * The bits are the same everywhere: baseline x86-64 has no such instruction and calls fma() of the
 * C library for each number. */
#ifndef CB_EXEC_CPU_GEMM_GEMM_FMA_H
#define CB_EXEC_CPU_GEMM_GEMM_FMA_H

#include <math.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define GEMM_VECTOR 64 /* bytes */
#define GEMM_ROWS 12   /* rows of sums, two vectors each: 24 of 32 registers */
#elif defined(__FMA__)
#include <immintrin.h>
#define GEMM_VECTOR 32
#define GEMM_ROWS 6 /* the sums take 12 of 16 registers */
#elif defined(__aarch64__)
#include <arm_neon.h>
#define GEMM_VECTOR 16
#define GEMM_ROWS 12
#else
#define GEMM_VECTOR 16
#define GEMM_ROWS 6
#endif

typedef float gemm_vector_f32 __attribute__((vector_size(GEMM_VECTOR)));
typedef double gemm_vector_f64 __attribute__((vector_size(GEMM_VECTOR)));
typedef float gemm_four_f32 __attribute__((vector_size(4 * sizeof(float))));
typedef double gemm_four_f64 __attribute__((vector_size(4 * sizeof(double))));
#define GEMM_INLINE static inline __attribute__((always_inline))

GEMM_INLINE float gemm_fma_one_f32(float x, float b, float sum) { return fmaf(x, b, sum); }
GEMM_INLINE double gemm_fma_one_f64(double x, double b, double sum) { return fma(x, b, sum); }

#if defined(__FMA__)
GEMM_INLINE gemm_four_f32 gemm_fma_four_f32(float x, gemm_four_f32 b, gemm_four_f32 sum) {
    return _mm_fmadd_ps(_mm_set1_ps(x), b, sum);
}
GEMM_INLINE gemm_four_f64 gemm_fma_four_f64(double x, gemm_four_f64 b, gemm_four_f64 sum) {
    return _mm256_fmadd_pd(_mm256_set1_pd(x), b, sum);
}
#else
GEMM_INLINE gemm_four_f32 gemm_fma_four_f32(float x, gemm_four_f32 b, gemm_four_f32 sum) {
#if defined(__aarch64__)
    return (gemm_four_f32)vfmaq_n_f32((float32x4_t)sum, (float32x4_t)b, x);
#else
    for (int i = 0; i < 4; i++) sum[i] = fmaf(x, b[i], sum[i]);
    return sum;
#endif
}
GEMM_INLINE gemm_four_f64 gemm_fma_four_f64(double x, gemm_four_f64 b, gemm_four_f64 sum) {
    for (int i = 0; i < 4; i++) sum[i] = fma(x, b[i], sum[i]);
    return sum;
}
#endif

#if defined(__AVX512F__)
GEMM_INLINE gemm_vector_f32 gemm_fma_f32(float x, gemm_vector_f32 b, gemm_vector_f32 sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(x), b, sum);
}
GEMM_INLINE gemm_vector_f64 gemm_fma_f64(double x, gemm_vector_f64 b, gemm_vector_f64 sum) {
    return _mm512_fmadd_pd(_mm512_set1_pd(x), b, sum);
}
GEMM_INLINE gemm_vector_f32 gemm_fma_each_f32(gemm_vector_f32 a, gemm_vector_f32 b,
                                              gemm_vector_f32 sum) {
    return _mm512_fmadd_ps(a, b, sum);
}
GEMM_INLINE gemm_vector_f64 gemm_fma_each_f64(gemm_vector_f64 a, gemm_vector_f64 b,
                                              gemm_vector_f64 sum) {
    return _mm512_fmadd_pd(a, b, sum);
}
#elif defined(__FMA__)
GEMM_INLINE gemm_vector_f32 gemm_fma_f32(float x, gemm_vector_f32 b, gemm_vector_f32 sum) {
    return _mm256_fmadd_ps(_mm256_set1_ps(x), b, sum);
}
GEMM_INLINE gemm_vector_f64 gemm_fma_f64(double x, gemm_vector_f64 b, gemm_vector_f64 sum) {
    return _mm256_fmadd_pd(_mm256_set1_pd(x), b, sum);
}
GEMM_INLINE gemm_vector_f32 gemm_fma_each_f32(gemm_vector_f32 a, gemm_vector_f32 b,
                                              gemm_vector_f32 sum) {
    return _mm256_fmadd_ps(a, b, sum);
}
GEMM_INLINE gemm_vector_f64 gemm_fma_each_f64(gemm_vector_f64 a, gemm_vector_f64 b,
                                              gemm_vector_f64 sum) {
    return _mm256_fmadd_pd(a, b, sum);
}
#elif defined(__aarch64__)
GEMM_INLINE gemm_vector_f32 gemm_fma_f32(float x, gemm_vector_f32 b, gemm_vector_f32 sum) {
    return (gemm_vector_f32)vfmaq_f32((float32x4_t)sum, vdupq_n_f32(x), (float32x4_t)b);
}
GEMM_INLINE gemm_vector_f64 gemm_fma_f64(double x, gemm_vector_f64 b, gemm_vector_f64 sum) {
    return (gemm_vector_f64)vfmaq_f64((float64x2_t)sum, vdupq_n_f64(x), (float64x2_t)b);
}
GEMM_INLINE gemm_vector_f32 gemm_fma_each_f32(gemm_vector_f32 a, gemm_vector_f32 b,
                                              gemm_vector_f32 sum) {
    return (gemm_vector_f32)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
}
GEMM_INLINE gemm_vector_f64 gemm_fma_each_f64(gemm_vector_f64 a, gemm_vector_f64 b,
                                              gemm_vector_f64 sum) {
    return (gemm_vector_f64)vfmaq_f64((float64x2_t)sum, (float64x2_t)a, (float64x2_t)b);
}
#else
GEMM_INLINE gemm_vector_f32 gemm_fma_f32(float x, gemm_vector_f32 b, gemm_vector_f32 sum) {
    for (int i = 0; i < 4; i++) sum[i] = fmaf(x, b[i], sum[i]);
    return sum;
}
GEMM_INLINE gemm_vector_f64 gemm_fma_f64(double x, gemm_vector_f64 b, gemm_vector_f64 sum) {
    for (int i = 0; i < 2; i++) sum[i] = fma(x, b[i], sum[i]);
    return sum;
}
GEMM_INLINE gemm_vector_f32 gemm_fma_each_f32(gemm_vector_f32 a, gemm_vector_f32 b,
                                              gemm_vector_f32 sum) {
    for (int i = 0; i < 4; i++) sum[i] = fmaf(a[i], b[i], sum[i]);
    return sum;
}
GEMM_INLINE gemm_vector_f64 gemm_fma_each_f64(gemm_vector_f64 a, gemm_vector_f64 b,
                                              gemm_vector_f64 sum) {
    for (int i = 0; i < 2; i++) sum[i] = fma(a[i], b[i], sum[i]);
    return sum;
}
#endif

#endif
