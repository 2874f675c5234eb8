/* numbers.h: reads an element of an array of any dtype as a double. Integers are truncated as in
 * C. */
#ifndef CB_TEST_NUMBERS_H
#define CB_TEST_NUMBERS_H

#include "base/dtype.h"

static inline void put_number(cb_dtype dtype, void *data, size_t i, double x) {
    switch (dtype) {
        case CB_F64: ((double *)data)[i] = x; break;
        case CB_F32: ((float *)data)[i] = (float)x; break;
        case CB_F16: ((uint16_t *)data)[i] = cb_f64_to_f16(x); break;
        case CB_BF16: ((uint16_t *)data)[i] = cb_f64_to_bf16(x); break;
        case CB_I64: ((int64_t *)data)[i] = (int64_t)x; break;
        case CB_I32: ((int32_t *)data)[i] = (int32_t)x; break;
        default: ((uint8_t *)data)[i] = (uint8_t)x; break;
    }
}

static inline double get_number(cb_dtype dtype, const void *data, size_t i) {
    switch (dtype) {
        case CB_F64: return ((const double *)data)[i];
        case CB_F32: return (double)((const float *)data)[i];
        case CB_F16: return (double)cb_f16_to_f32(((const uint16_t *)data)[i]);
        case CB_BF16: return (double)cb_bf16_to_f32(((const uint16_t *)data)[i]);
        case CB_I64: return (double)((const int64_t *)data)[i];
        case CB_I32: return (double)((const int32_t *)data)[i];
        default: return (double)((const uint8_t *)data)[i];
    }
}

#endif
