/* element.h: converts a number to one element of a dtype. */
#ifndef CB_EXEC_ELEMENT_H
#define CB_EXEC_ELEMENT_H

#include <string.h>

#include "../base/kern_half.h"
#include "../include/cutback.h"

/* Writes `value` as one element of the dtype, as cb_copy_run reads it; integers truncate and
 * saturate, NaN becomes 0. */
static inline uint64_t cb_element_of(cb_dtype dtype, double value) {
    uint64_t element = 0;
    float single = (float)value;
    uint16_t half = dtype == CB_F16 ? cb_f64_to_f16(value) : cb_f64_to_bf16(value);
    int64_t whole = 0;
    if (value == value)
        whole = value >= 0x1p63 ? INT64_MAX : (value < -0x1p63 ? INT64_MIN : (int64_t)value);
    int32_t narrow =
        (int32_t)(whole > INT32_MAX ? INT32_MAX : (whole < INT32_MIN ? INT32_MIN : whole));
    uint8_t byte = (uint8_t)(whole > UINT8_MAX ? UINT8_MAX : (whole < 0 ? 0 : whole));
    if (dtype == CB_BOOL) byte = value != 0.0;
    switch (dtype) {
        case CB_BOOL:
        case CB_U8: memcpy(&element, &byte, sizeof byte); break;
        case CB_I32: memcpy(&element, &narrow, sizeof narrow); break;
        case CB_I64: memcpy(&element, &whole, sizeof whole); break;
        case CB_F16:
        case CB_BF16: memcpy(&element, &half, sizeof half); break;
        case CB_F32: memcpy(&element, &single, sizeof single); break;
        case CB_F64: memcpy(&element, &value, sizeof value); break;
        case CB_DTYPE_COUNT: break;
    }
    return element;
}

#endif
