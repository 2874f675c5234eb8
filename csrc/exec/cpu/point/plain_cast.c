/* Cast: one loop for each pair of machine types. 16-bit floats are read through f32 (kern_map.h)
 * and written here, from the widest form of the source, so that each cast rounds once. */
#include "kern_map.h"

/* Truncates and saturates; NaN is 0. The limits are exact: the first value too large is a power of
 * two. */
static inline int32_t f32_to_i32(float x) {
    if (x != x) return 0;
    return x >= 0x1p31f ? INT32_MAX : (x < -0x1p31f ? INT32_MIN : (int32_t)x);
}
static inline int32_t f64_to_i32(double x) {
    if (x != x) return 0;
    return x >= 0x1p31 ? INT32_MAX : (x <= -0x1p31 ? INT32_MIN : (int32_t)x);
}
static inline int64_t f32_to_i64(float x) {
    if (x != x) return 0;
    return x >= 0x1p63f ? INT64_MAX : (x < -0x1p63f ? INT64_MIN : (int64_t)x);
}
static inline int64_t f64_to_i64(double x) {
    if (x != x) return 0;
    return x >= 0x1p63 ? INT64_MAX : (x < -0x1p63 ? INT64_MIN : (int64_t)x);
}
static inline uint8_t f32_to_u8(float x) { return x >= 255.0f ? 255 : (x > 0.0f ? (uint8_t)x : 0); }
static inline uint8_t f64_to_u8(double x) { return x >= 255.0 ? 255 : (x > 0.0 ? (uint8_t)x : 0); }

#define CAST_LOOP(name, from, to, expression)                       \
    static void name(const void *const *in, void *out, int64_t n) { \
        const from *restrict a = in[0];                             \
        to *restrict o = out;                                       \
        for (int64_t i = 0; i < n; i++) {                           \
            from x = a[i];                                          \
            o[i] = expression;                                      \
        }                                                           \
    }

/* Casts from the machine type `from` to every dtype; integers wrap. */
#define FROM_INT(from, type)                                          \
    CAST_LOOP(from##_bool, type, uint8_t, x != 0)                     \
    CAST_LOOP(from##_u8, type, uint8_t, (uint8_t)x)                   \
    CAST_LOOP(from##_i32, type, int32_t, (int32_t)x)                  \
    CAST_LOOP(from##_i64, type, int64_t, (int64_t)x)                  \
    CAST_LOOP(from##_f16, type, uint16_t, cb_f64_to_f16((double)x))   \
    CAST_LOOP(from##_bf16, type, uint16_t, cb_f64_to_bf16((double)x)) \
    CAST_LOOP(from##_f32, type, float, (float)x)                      \
    CAST_LOOP(from##_f64, type, double, (double)x)
#define FROM_FLOAT(from, type, to_f16, to_bf16)            \
    CAST_LOOP(from##_bool, type, uint8_t, x != 0)          \
    CAST_LOOP(from##_u8, type, uint8_t, from##_to_u8(x))   \
    CAST_LOOP(from##_i32, type, int32_t, from##_to_i32(x)) \
    CAST_LOOP(from##_i64, type, int64_t, from##_to_i64(x)) \
    CAST_LOOP(from##_f16, type, uint16_t, to_f16(x))       \
    CAST_LOOP(from##_bf16, type, uint16_t, to_bf16(x))     \
    CAST_LOOP(from##_f32, type, float, (float)x)           \
    CAST_LOOP(from##_f64, type, double, (double)x)

FROM_INT(u8, uint8_t)
FROM_INT(i32, int32_t)
FROM_INT(i64, int64_t)
FROM_FLOAT(f32, float, half_store_f16, half_store_bf16)
FROM_FLOAT(f64, double, cb_f64_to_f16, cb_f64_to_bf16)

#define CAST_ROW(from)                                                           \
    {                                                                            \
        [CB_BOOL] = from##_bool, [CB_U8] = from##_u8,   [CB_I32] = from##_i32,   \
        [CB_I64] = from##_i64,   [CB_F16] = from##_f16, [CB_BF16] = from##_bf16, \
        [CB_F32] = from##_f32,   [CB_F64] = from##_f64}
static const cb_loop_fn loops[CB_DTYPE_COUNT][CB_DTYPE_COUNT] = {
    [CB_BOOL] = CAST_ROW(u8), [CB_U8] = CAST_ROW(u8),   [CB_I32] = CAST_ROW(i32),
    [CB_I64] = CAST_ROW(i64), [CB_F16] = CAST_ROW(f32), [CB_BF16] = CAST_ROW(f32),
    [CB_F32] = CAST_ROW(f32), [CB_F64] = CAST_ROW(f64),
};

static cb_status run_cast(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    return cb_map_run(args, loops[args->in[0].dtype][args->out[0].dtype], false, true);
}

cb_kernel_fn CB_KERN(cast)(cb_opcode code, cb_dtype dtype) {
    (void)dtype;
    return code == CB_OP_CAST ? run_cast : NULL;
}
