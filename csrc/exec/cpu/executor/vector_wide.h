/* vector_wide.h: the f64 counterpart of vector.h. A VD is a register of CB_WW doubles. The
 * elementary functions are the math library's, number by number (vecmath.h). */
#ifndef CB_EXEC_VECTOR_WIDE_H
#define CB_EXEC_VECTOR_WIDE_H

#include "vector.h"

#define CB_WW (CB_VW / 2)

typedef CB_VECTOR(int64_t, 4 * CB_VW) VDI;
typedef CB_VECTOR(uint64_t, 4 * CB_VW) VDU;
typedef CB_VECTOR(uint8_t, CB_WW) VDB;

VFN VD vd_of(double x) { return x - (VD){0}; }
VFN VD vd_load(const void *p) {
    VD x;
    memcpy(&x, p, sizeof x);
    return x;
}
VFN void vd_store(void *p, VD x) { memcpy(p, &x, sizeof x); }
VFN void vd_store_far(void *p, VD x) { vm_store_far(p, (V)x); }

VFN VD vd_select(VDI mask, VD a, VD b) {
#if defined(__AVX512F__)
    return (VD)_mm512_mask_blend_pd(_mm512_movepi64_mask((__m512i)mask), (__m512d)b, (__m512d)a);
#elif defined(__AVX2__)
    return (VD)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)mask);
#else
    return (VD)(((VDI)a & mask) | ((VDI)b & ~mask));
#endif
}

VFN VDI vd_larger_int(VDI a, VDI b) {
#if defined(__AVX512F__)
    return (VDI)_mm512_max_epi64((__m512i)a, (__m512i)b);
#else
    VDI more = a > b;
    return (a & more) | (b & ~more);
#endif
}

VFN VD vd_sqrt(VD x) {
#if defined(__AVX512F__)
    return (VD)_mm512_sqrt_pd((__m512d)x);
#elif defined(__AVX2__)
    return (VD)_mm256_sqrt_pd((__m256d)x);
#elif defined(__SSE2__)
    return (VD)_mm_sqrt_pd((__m128d)x);
#else
    for (int k = 0; k < CB_WW; k++) x[k] = sqrt(x[k]);
    return x;
#endif
}

VFN VD vd_floor(VD x) {
#if defined(__AVX512F__)
    return (VD)_mm512_floor_pd((__m512d)x);
#elif defined(__AVX2__)
    return (VD)_mm256_floor_pd((__m256d)x);
#elif defined(__SSE4_1__)
    return (VD)_mm_floor_pd((__m128d)x);
#else
    for (int k = 0; k < CB_WW; k++) x[k] = floor(x[k]);
    return x;
#endif
}

VFN VD vd_abs(VD x) { return (VD)((VDU)x & 0x7FFFFFFFFFFFFFFFu); }
VFN VD vd_one_where(VDI mask) { return (VD)((VDI)vd_of(1.0) & mask); }

VFN VD vd_gelu_tanh_slope_of(VD s, VD x) {
    x = vd_select(x > 32.0, vd_of(32.0), x);
    x = vd_select(x < -32.0, vd_of(-32.0), x);
    return s + x * (s * (1.0 - s)) * (0x1.9884533d43651p+0 * (1.0 + 0.134145 * (x * x)));
}

#endif
