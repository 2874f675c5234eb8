/* Pointwise ops of one input: a list of expressions, made into one loop for each type. The
 * expressions see the element `x` and the name `real` of its type; F(exp) is the exp of that type.
 * Integers wrap. */
#include "kern_map.h"

/* clang-format off */
#define UNARY_FLOAT(X)                                                              \
    X(NEG, -x)                                                                      \
    X(ABS, F(abs)(x))                                                               \
    X(SIGN, x > 0 ? (real)1 : (x < 0 ? (real)-1 : (x == 0 ? (real)0 : x)))          \
    X(FLOOR, F(floor)(x))                                                           \
    X(EXP, F(exp)(x))                                                               \
    X(LOG, F(log)(x))                                                               \
    X(LOG1P, F(log1p)(x))                                                           \
    X(SQRT, F(sqrt)(x))                                                             \
    X(RSQRT, (real)1 / F(sqrt)(x))                                                  \
    X(RECIPROCAL, (real)1 / x)                                                      \
    X(SQUARE, x * x)                                                                \
    X(TANH, F(tanh)(x))                                                             \
    X(SIGMOID, F(sigmoid)(x))                                                       \
    X(ERF, F(erf)(x))                                                               \
    X(RELU, x < 0 ? (real)0 : x)                                                    \
    X(GELU, F(gelu)(x))                                                             \
    X(GELU_TANH, F(gelu_tanh)(x))                                                   \
    X(SILU, F(silu)(x))

#define UNARY_INT(X)                                                                \
    X(NEG, (real)(0 - (uint64_t)x))                                                 \
    X(ABS, (real)(x > 0 ? (uint64_t)x : 0 - (uint64_t)x))                           \
    X(SIGN, x > 0 ? (real)1 : (x == 0 ? (real)0 : (real)-1))                        \
    X(SQUARE, (real)((uint64_t)x * (uint64_t)x))                                    \
    X(RELU, x > 0 ? x : (real)0)
/* clang-format on */

#define LOOP(name, type, expression)                                \
    static void name(const void *const *in, void *out, int64_t n) { \
        typedef type real;                                          \
        const real *restrict a = in[0];                             \
        real *restrict o = out;                                     \
        for (int64_t i = 0; i < n; i++) {                           \
            real x = a[i];                                          \
            o[i] = expression;                                      \
        }                                                           \
    }
#define LOOP_F32(id, expression) LOOP(id##_f32, float, expression)
#define LOOP_F64(id, expression) LOOP(id##_f64, double, expression)
#define LOOP_U8(id, expression) LOOP(id##_u8, uint8_t, expression)
#define LOOP_I32(id, expression) LOOP(id##_i32, int32_t, expression)
#define LOOP_I64(id, expression) LOOP(id##_i64, int64_t, expression)

#define F(function) cb_##function##_f32
UNARY_FLOAT(LOOP_F32)
#undef F
#define F(function) cb_##function##_f64
UNARY_FLOAT(LOOP_F64)
LOOP_F64(SIN, F(sin)(x))
LOOP_F64(COS, F(cos)(x))
#undef F
UNARY_INT(LOOP_U8)
UNARY_INT(LOOP_I32)
UNARY_INT(LOOP_I64)
LOOP_U8(LOGICAL_NOT, !x)

/* Sine and cosine of huge arguments need the math library, which does not vectorise. Which of the
 * two an element takes depends on its value alone. */
static bool has_far(const float *x, int64_t n) {
    int far = 0;
    for (int64_t i = 0; i < n; i++) far |= fabsf(x[i]) > CB_SIN_MAX_F32;
    return far;
}

LOOP(sin_near_f32, float, cb_sin_near_f32(x))
LOOP(cos_near_f32, float, cb_cos_near_f32(x))
LOOP(sin_any_f32, float, cb_sin_f32(x))
LOOP(cos_any_f32, float, cb_cos_f32(x))

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
            UNARY_FLOAT(CASE_FLOAT)
            CASE_FLOAT(SIN, )
            CASE_FLOAT(COS, )
            default: return NULL;
        }
    }
    switch (code) {
        UNARY_INT(CASE_INT)
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
