#include "scalar.h"

#include "../../../base/kern_half.h"
#include "../../../micro/vecmath.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define CB_SELECT(condition, a, b) ((condition) ? (a) : (b))
/* clang-format off */
#define SCALAR_CASE(id, expression) case CB_X_##id: return expression;
#define CASE_ROUND(id, name) case CB_X_##id: return CB_MATH(name)(x);
/* clang-format on */

#define ONE_WHERE(condition) ((condition) ? 1.0f : 0.0f)
#define CB_ZERO 0.0f
#define CB_ONE 1.0f
#define CB_MATH(name) cb_##name##_f32
#define cb_round_bf16_f32(x) half_load_bf16(half_store_bf16(x))
#define cb_round_f16_f32(x) half_load_f16(half_store_f16(x))

float cb_x_scalar(cb_x_op op, float x, float y, float z) {
    switch ((int)op) {
        CB_X_BINARY(SCALAR_CASE)
        CB_X_UNARY(SCALAR_CASE)
        CB_X_MATH(SCALAR_CASE)
        CB_X_HALF(SCALAR_CASE)
        CB_X_ROUND(CASE_ROUND)
        case CB_X_NORMAL: return cb_normal_f32(x, &y);
        case CB_X_SELECT: return x != 0.0f ? y : z;
        default: return x;
    }
}

#undef ONE_WHERE
#undef CB_ZERO
#undef CB_ONE
#undef CB_MATH
#define ONE_WHERE(condition) ((condition) ? 1.0 : 0.0)
#define CB_ZERO 0.0
#define CB_ONE 1.0
#define CB_MATH(name) cb_##name##_f64

double cb_x_scalar64(cb_x_op op, double x, double y, double z) {
    switch ((int)op) {
        CB_X_BINARY(SCALAR_CASE)
        CB_X_UNARY(SCALAR_CASE)
        CB_X_MATH(SCALAR_CASE)
        CB_X_ROUND(CASE_ROUND)
        case CB_X_NORMAL: return cb_normal_f64(x, &y);
        case CB_X_SELECT: return x != 0.0 ? y : z;
        default: return x;
    }
}

void cb_x_push(cb_x_pairs *p, float leaf) {
    int digit = 0;
    for (uint64_t count = p->count++; count & 1; count >>= 1) leaf = p->level[digit++] + leaf;
    p->level[digit] = leaf;
}

void cb_x_push64(cb_x_pairs *p, double leaf) {
    int digit = 0;
    for (uint64_t count = p->count++; count & 1; count >>= 1) leaf = p->level64[digit++] + leaf;
    p->level64[digit] = leaf;
}

void cb_x_fence(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
