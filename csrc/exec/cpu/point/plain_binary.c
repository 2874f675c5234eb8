/* Pointwise ops of two or more inputs; see plain_unary.c. */
#include "../../../micro/point_ops.h"
#include "kern_map.h"

#define BINARY_LOOP(name, type, out_type, expression)               \
    static void name(const void *const *in, void *out, int64_t n) { \
        typedef type real;                                          \
        const real *a = in[0];                                      \
        const real *b = in[1];                                      \
        out_type *o = out;                                          \
        CB_IN_PLACE                                                 \
        for (int64_t i = 0; i < n; i++) {                           \
            real x = a[i], y = b[i];                                \
            o[i] = expression;                                      \
        }                                                           \
    }
#define LOOP_F32(id, expression) BINARY_LOOP(id##_f32, float, real, expression)
#define LOOP_F64(id, expression) BINARY_LOOP(id##_f64, double, real, expression)
#define LOOP_U8(id, expression) BINARY_LOOP(id##_u8, uint8_t, real, expression)
#define LOOP_I32(id, expression) BINARY_LOOP(id##_i32, int32_t, real, expression)
#define LOOP_I64(id, expression) BINARY_LOOP(id##_i64, int64_t, real, expression)
#define LOOP_COMPARE(id, expression)                    \
    BINARY_LOOP(id##_f32, float, uint8_t, expression)   \
    BINARY_LOOP(id##_f64, double, uint8_t, expression)  \
    BINARY_LOOP(id##_u8, uint8_t, uint8_t, expression)  \
    BINARY_LOOP(id##_i32, int32_t, uint8_t, expression) \
    BINARY_LOOP(id##_i64, int64_t, uint8_t, expression)

#define CB_MATH(function) cb_##function##_f32
CB_BINARY_FLOAT(LOOP_F32)
#undef CB_MATH
#define CB_MATH(function) cb_##function##_f64
CB_BINARY_FLOAT(LOOP_F64)
#undef CB_MATH
CB_BINARY_INT(LOOP_U8)
CB_BINARY_INT(LOOP_I32)
CB_BINARY_INT(LOOP_I64)
CB_COMPARE(LOOP_COMPARE)
CB_LOGICAL(LOOP_U8)

/* `where` moves elements without interpreting them: one loop for each size. */
#define LOOP_WHERE(name, type)                                      \
    static void name(const void *const *in, void *out, int64_t n) { \
        const uint8_t *c = in[0];                                   \
        const type *a = in[1];                                      \
        const type *b = in[2];                                      \
        type *o = out;                                              \
        CB_IN_PLACE                                                 \
        for (int64_t i = 0; i < n; i++) o[i] = c[i] ? a[i] : b[i];  \
    }
LOOP_WHERE(where_1, uint8_t)
LOOP_WHERE(where_2, uint16_t)
LOOP_WHERE(where_4, uint32_t)
LOOP_WHERE(where_8, uint64_t)

#define LOOP_APPLY(name, type)                                                                   \
    static void name(const void *const *in, void *out, int64_t n) {                              \
        const type *x = in[0];                                                                   \
        const type *mean = in[1];                                                                \
        const type *rstd = in[2];                                                                \
        const type *weight = in[3];                                                              \
        const type *bias = in[4];                                                                \
        type *o = out;                                                                           \
        CB_IN_PLACE                                                                              \
        for (int64_t i = 0; i < n; i++) o[i] = (x[i] - mean[i]) * rstd[i] * weight[i] + bias[i]; \
    }
LOOP_APPLY(apply_f32, float)
LOOP_APPLY(apply_f64, double)

/* clang-format off */
#define CASE_FLOAT(id, expression) case CB_OP_##id: return dtype == CB_F64 ? id##_f64 : id##_f32;
#define CASE_U8(id, expression) case CB_OP_##id: return id##_u8;
#define CASE_I32(id, expression) case CB_OP_##id: return id##_i32;
#define CASE_I64(id, expression) case CB_OP_##id: return id##_i64;
/* clang-format on */

static cb_loop_fn loop_of(cb_opcode code, cb_dtype dtype) {
    switch (dtype) {
        case CB_F16:
        case CB_BF16:
        case CB_F32:
        case CB_F64:
            switch (code) {
                CB_BINARY_FLOAT(CASE_FLOAT)
                CB_COMPARE(CASE_FLOAT)
                default: return NULL;
            }
        case CB_BOOL:
        case CB_U8: /* a bool is 0 or 1, so it compares correctly as a number */
            switch (code) {
                CB_BINARY_INT(CASE_U8)
                CB_COMPARE(CASE_U8)
                CB_LOGICAL(CASE_U8)
                default: return NULL;
            }
        case CB_I32:
            switch (code) {
                CB_BINARY_INT(CASE_I32)
                CB_COMPARE(CASE_I32)
                default: return NULL;
            }
        case CB_I64:
            switch (code) {
                CB_BINARY_INT(CASE_I64)
                CB_COMPARE(CASE_I64)
                default: return NULL;
            }
        case CB_DTYPE_COUNT: break;
    }
    return NULL;
}

static cb_status run_binary(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    return cb_map_run(args, loop_of(args->code, args->in[0].dtype), false, false);
}

static cb_status run_where(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    switch (cb_dtype_size(args->out[0].dtype)) {
        case 1: return cb_map_run(args, where_1, true, true);
        case 2: return cb_map_run(args, where_2, true, true);
        case 4: return cb_map_run(args, where_4, true, true);
        default: return cb_map_run(args, where_8, true, true);
    }
}

static cb_status run_apply(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    return cb_map_run(args, args->out[0].dtype == CB_F64 ? apply_f64 : apply_f32, false, false);
}

cb_kernel_fn CB_KERN(binary)(cb_opcode code, cb_dtype dtype) {
    if (code == CB_OP_WHERE) return run_where;
    if (code == CB_OP_BATCH_NORM_APPLY) return cb_dtype_is_float(dtype) ? run_apply : NULL;
    bool compares = code >= CB_OP_EQ && code <= CB_OP_LOGICAL_OR;
    if (compares && dtype == CB_BOOL)
        return run_binary; /* `dtype` is that of the result, whatever the inputs are */
    return loop_of(code, dtype) ? run_binary : NULL;
}
