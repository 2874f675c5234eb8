/* dtype.h: element types. f16 and bf16 are storage formats: arithmetic is f32, rounded at every
 * op. */
#ifndef CB_BASE_DTYPE_H
#define CB_BASE_DTYPE_H

#include "status.h"

size_t cb_dtype_size(cb_dtype dtype);      /* bytes of one element */
const char *cb_dtype_name(cb_dtype dtype); /* "bool" "u8" "i32" "i64" "f16" "bf16" "f32" "f64" */
bool cb_dtype_parse(const char *name, size_t length, cb_dtype *out);
bool cb_dtype_is_float(cb_dtype dtype);

/* Round to nearest even; NaN stays NaN, overflow becomes infinity. */
float cb_f16_to_f32(uint16_t h);
uint16_t cb_f32_to_f16(float x);
float cb_bf16_to_f32(uint16_t h);
uint16_t cb_f32_to_bf16(float x);
/* Convert from f64 with a single rounding (going through f32 would round twice). */
uint16_t cb_f64_to_f16(double x);
uint16_t cb_f64_to_bf16(double x);

#endif
