/* Pointwise ops of one input: one loop for each type, generated from the list of expressions
 * (point_ops.h). */
#include "../../../micro/point_ops.h"
#include "kern_map.h"

#define UNARY_LOOP(name, type, expression)                          \
    static void name(const void *const *in, void *out, int64_t n) { \
        typedef type real;                                          \
        const real *a = in[0];                                      \
        real *o = out;                                              \
        CB_IN_PLACE                                                 \
        for (int64_t i = 0; i < n; i++) {                           \
            real x = a[i];                                          \
            o[i] = expression;                                      \
        }                                                           \
    }
#define LOOP_F32(id, expression) UNARY_LOOP(id##_f32, float, expression)
#define LOOP_F64(id, expression) UNARY_LOOP(id##_f64, double, expression)
#define LOOP_U8(id, expression) UNARY_LOOP(id##_u8, uint8_t, expression)
#define LOOP_I32(id, expression) UNARY_LOOP(id##_i32, int32_t, expression)
#define LOOP_I64(id, expression) UNARY_LOOP(id##_i64, int64_t, expression)

#define CB_MATH(function) cb_##function##_f32
CB_UNARY_FLOAT(LOOP_F32)
#undef CB_MATH
#define CB_MATH(function) cb_##function##_f64
CB_UNARY_FLOAT(LOOP_F64)
LOOP_F64(SIN, CB_MATH(sin)(x))
LOOP_F64(COS, CB_MATH(cos)(x))
#undef CB_MATH
CB_UNARY_INT(LOOP_U8)
CB_UNARY_INT(LOOP_I32)
CB_UNARY_INT(LOOP_I64)
LOOP_U8(LOGICAL_NOT, !x)

/* True if an argument is huge: its sine and cosine need the math library, which does not vectorise.
 * Which path an element takes depends only on its value. */
static bool has_far(const float *x, int64_t n) {
    int far = 0;
    for (int64_t i = 0; i < n; i++) far |= fabsf(x[i]) > CB_SIN_MAX_F32;
    return far;
}

UNARY_LOOP(sin_near_f32, float, cb_sin_near_f32(x))
UNARY_LOOP(cos_near_f32, float, cb_cos_near_f32(x))
UNARY_LOOP(sin_any_f32, float, cb_sin_f32(x))
UNARY_LOOP(cos_any_f32, float, cb_cos_f32(x))

static void SIN_f32(const void *const *in, void *out, int64_t n) {
    (has_far(in[0], n) ? sin_any_f32 : sin_near_f32)(in, out, n);
}

static void COS_f32(const void *const *in, void *out, int64_t n) {
    (has_far(in[0], n) ? cos_any_f32 : cos_near_f32)(in, out, n);
}

/* clang-format off */
#define CASE_FLOAT(id, expression) case CB_OP_##id: return dtype == CB_F64 ? id##_f64 : id##_f32;
#define CASE_INT(id, expression) \
    case CB_OP_##id: return dtype == CB_U8 ? id##_u8 : (dtype == CB_I32 ? id##_i32 : id##_i64);
/* clang-format on */

static cb_loop_fn loop_of(cb_opcode code, cb_dtype dtype) {
    if (code == CB_OP_LOGICAL_NOT) return LOGICAL_NOT_u8;
    if (cb_dtype_is_float(dtype)) {
        switch (code) {
            CB_UNARY_FLOAT(CASE_FLOAT)
            CASE_FLOAT(SIN, )
            CASE_FLOAT(COS, )
            default: return NULL;
        }
    }
    switch (code) {
        CB_UNARY_INT(CASE_INT)
        default: return NULL;
    }
}

static cb_status run_unary(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    return cb_map_run(args, loop_of(args->code, args->in[0].dtype), false, false);
}

cb_kernel_fn CB_KERN(unary)(cb_opcode code, cb_dtype dtype) {
    return loop_of(code, dtype) ? run_unary : NULL;
}
