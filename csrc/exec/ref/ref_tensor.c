/* ref_tensor.c: reads and writes one element, given its number in row-major order. */
#include "ref_ops.h"

#include <math.h>

void cb_ref_index(const cb_shape *s, int64_t element, int64_t *index) {
    for (int32_t i = s->rank; i-- > 0;) {
        index[i] = element % s->dim[i];
        element /= s->dim[i];
    }
}

int64_t cb_ref_number(const cb_shape *s, const int64_t *index) {
    int64_t element = 0;
    for (int32_t i = 0; i < s->rank; i++) element = element * s->dim[i] + index[i];
    return element;
}

static void *address_of(const cb_tensor *t, int64_t element) {
    int64_t index[CB_MAX_RANK], offset = 0;
    cb_ref_index(&t->shape, element, index);
    for (int32_t i = 0; i < t->shape.rank; i++) offset += index[i] * t->stride[i];
    return (char *)t->data + offset * (int64_t)cb_dtype_size(t->dtype);
}

int64_t cb_ref_get_int(const cb_tensor *t, int64_t element) {
    const void *p = address_of(t, element);
    switch (t->dtype) {
        case CB_BOOL: return *(const uint8_t *)p != 0;
        case CB_U8: return *(const uint8_t *)p;
        case CB_I32: return *(const int32_t *)p;
        default: return *(const int64_t *)p;
    }
}

double cb_ref_get(const cb_tensor *t, int64_t element) {
    const void *p = address_of(t, element);
    switch (t->dtype) {
        case CB_F64: return *(const double *)p;
        case CB_F32: return *(const float *)p;
        case CB_F16: return cb_f16_to_f32(*(const uint16_t *)p);
        case CB_BF16: return cb_bf16_to_f32(*(const uint16_t *)p);
        default: return (double)cb_ref_get_int(t, element);
    }
}

void cb_ref_put_int(const cb_tensor *t, int64_t element, int64_t x) {
    void *p = address_of(t, element);
    switch (t->dtype) {
        case CB_BOOL: *(uint8_t *)p = x != 0; break;
        case CB_U8: *(uint8_t *)p = (uint8_t)((uint64_t)x & 0xFF); break;
        case CB_I32: *(int32_t *)p = (int32_t)((uint64_t)x & 0xFFFFFFFFu); break;
        case CB_I64: *(int64_t *)p = x; break;
        default: cb_ref_put(t, element, (double)x);
    }
}

/* Truncates towards zero and clamps to [low, high]; NaN gives 0. */
static int64_t saturate(double x, int64_t low, int64_t high) {
    if (isnan(x)) return 0;
    if (x <= (double)low) return low;
    if (x >= (double)high) return high;
    return (int64_t)x;
}

void cb_ref_put(const cb_tensor *t, int64_t element, double x) {
    void *p = address_of(t, element);
    switch (t->dtype) {
        case CB_F64: *(double *)p = x; break;
        case CB_F32: *(float *)p = (float)x; break;
        case CB_F16: *(uint16_t *)p = cb_f64_to_f16(x); break;
        case CB_BF16: *(uint16_t *)p = cb_f64_to_bf16(x); break;
        case CB_BOOL: *(uint8_t *)p = x != 0.0; break;
        case CB_U8: *(uint8_t *)p = (uint8_t)saturate(x, 0, UINT8_MAX); break;
        case CB_I32: *(int32_t *)p = (int32_t)saturate(x, INT32_MIN, INT32_MAX); break;
        default: *(int64_t *)p = saturate(x, INT64_MIN, INT64_MAX);
    }
}
