/* One routine narrows an f64 to either 16-bit format. An f32 converts to f64 without loss, so there
 * is a single rounding whichever type the value comes from. */
#include "dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} table[CB_DTYPE_COUNT] = {
    [CB_BOOL] = {"bool", 1}, [CB_U8] = {"u8", 1},     [CB_I32] = {"i32", 4}, [CB_I64] = {"i64", 8},
    [CB_F16] = {"f16", 2},   [CB_BF16] = {"bf16", 2}, [CB_F32] = {"f32", 4}, [CB_F64] = {"f64", 8},
};

static bool is_known(cb_dtype dtype) { return (unsigned)dtype < CB_DTYPE_COUNT; }

size_t cb_dtype_size(cb_dtype dtype) { return is_known(dtype) ? table[dtype].size : 0; }

const char *cb_dtype_name(cb_dtype dtype) {
    return is_known(dtype) ? table[dtype].name : "unknown";
}

bool cb_dtype_parse(const char *name, size_t length, cb_dtype *out) {
    for (int i = 0; i < CB_DTYPE_COUNT; i++) {
        if (strlen(table[i].name) != length || memcmp(table[i].name, name, length) != 0) continue;
        *out = (cb_dtype)i;
        return true;
    }
    return false;
}

bool cb_dtype_is_float(cb_dtype dtype) { return dtype >= CB_F16 && dtype <= CB_F64; }

static float f32_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float cb_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3FFu;
    if (exponent == 31) return f32_of(sign | 0x7F800000u | fraction << 13);
    if (exponent > 0) return f32_of(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f; /* exact: at most ten bits */
    return sign ? -tiny : tiny;
}

float cb_bf16_to_f32(uint16_t h) { return f32_of((uint32_t)h << 16); }

/* Rounds to a format of 1 sign, `n_exponent` and `n_fraction` bits, to nearest, ties to even.
 *
 * The significand with its leading one is shifted right by what the format drops (more for a
 * subnormal result) and rounded on the dropped bits. It is then added to the exponent field, not
 * or-ed: its leading one increments the exponent, and so does a carry from rounding, which turns
 * the largest number into infinity if it rounds up. */
static uint16_t narrow(double x, int n_exponent, int n_fraction) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t sign = bits >> 63 << (n_exponent + n_fraction);
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7FF), top = (1 << n_exponent) - 1, shift = 52 - n_fraction;
    uint64_t infinity = sign | (uint64_t)top << n_fraction;

    if (exponent == 0x7FF) {
        uint64_t quiet = UINT64_C(1) << (n_fraction - 1);
        return (uint16_t)(fraction ? infinity | quiet | fraction >> shift : infinity);
    }
    exponent += top / 2 - 1023;
    if (exponent >= top) return (uint16_t)infinity;
    if (exponent <= 0) {
        shift += 1 - exponent;
        exponent = 1;
    }
    if (shift > 54) return (uint16_t)sign; /* under half of the smallest subnormal */
    uint64_t significand = fraction | UINT64_C(1) << 52;
    uint64_t kept = significand >> shift, half = UINT64_C(1) << (shift - 1);
    uint64_t rest = significand & (2 * half - 1);
    if (rest > half || (rest == half && (kept & 1))) kept++;
    return (uint16_t)(sign | (((uint64_t)(exponent - 1) << n_fraction) + kept));
}

uint16_t cb_f64_to_f16(double x) { return narrow(x, 5, 10); }
uint16_t cb_f64_to_bf16(double x) { return narrow(x, 8, 7); }
uint16_t cb_f32_to_f16(float x) { return narrow((double)x, 5, 10); }

/* bf16 is the upper half of an f32, so here the rounding is one addition. */
uint16_t cb_f32_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
