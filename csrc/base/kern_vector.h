/* kern_vector.h: vector types for the instruction set that a kernel file is compiled for. They use
 * the vector extension of gcc and clang, so arithmetic is written as for scalars. */
#ifndef CB_BASE_KERN_VECTOR_H
#define CB_BASE_KERN_VECTOR_H

#include <stdint.h>

#if defined(__AVX512F__)
#define CB_VW 16
#elif defined(__AVX2__)
#define CB_VW 8
#else
#define CB_VW 4
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CB_VECTOR(type, bytes) type __attribute__((vector_size(bytes), may_alias))
typedef CB_VECTOR(float, 4 * CB_VW) V;
typedef CB_VECTOR(int32_t, 4 * CB_VW) VI;
typedef CB_VECTOR(uint32_t, 4 * CB_VW) VU;
typedef CB_VECTOR(float, 2 * CB_VW) VH;  /* half of a V */
typedef CB_VECTOR(double, 4 * CB_VW) VD; /* half as many numbers: vector_wide.h */
typedef CB_VECTOR(uint16_t, 2 * CB_VW) VS;
typedef CB_VECTOR(uint8_t, CB_VW) VB;

#define VFN static inline __attribute__((always_inline))

#endif
