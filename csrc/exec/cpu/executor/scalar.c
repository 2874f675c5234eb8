#include "scalar.h"

#include <stdbool.h>

#include "../kern_half.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define SEL(condition, a, b) ((condition) ? (a) : (b))
#define ONE_WHERE(condition) ((condition) ? 1.0f : 0.0f)
#define ZERO 0.0f
#define ONE 1.0f
#define F(name) cb_##name##_f32
#define cb_round_bf16_f32(x) half_load_bf16(half_store_bf16(x))
#define cb_round_f16_f32(x) half_load_f16(half_store_f16(x))
/* clang-format off */
#define CASE(id, expression) case CB_X_##id: return expression;
#define CASE_ROUND(id, expression, slow) case CB_X_##id: return slow(x);
/* clang-format on */

float cb_x_scalar(cb_x_op op, float x, float y, float z) {
    switch ((int)op) {
        CB_X_BINARY(CASE)
        CB_X_UNARY(CASE)
        CB_X_ROUND(CASE_ROUND)
        case CB_X_NORMAL: return cb_normal_f32(x, &y);
        case CB_X_SELECT: return x != 0.0f ? y : z;
        default: return x;
    }
}

void cb_x_push(cb_x_pairs *p, float leaf) {
    int digit = 0;
    for (uint64_t count = p->count++; count & 1; count >>= 1) leaf = p->level[digit++] + leaf;
    p->level[digit] = leaf;
}

void cb_x_fence(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
