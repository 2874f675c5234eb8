/* The elementary functions against long double over the whole range, in units of the last place,
 * and the 16-bit conversions against base/dtype.c for every bit pattern. The bounds are those of
 * vecmath.h. */
#include "check.h"

#include <float.h>

#include "base/kern_half.h"
#include "micro/vecmath.h"

/* Returns the error in units of the last place of the exact result; the unit is never below the
 * spacing of subnormals. */
static double error_of(float got, long double want) {
    int exponent;
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isinf((float)want))
        return (float)want == got
                   ? 0
                   : (fabsl(want) < (long double)FLT_MAX * 1.0000001L ? 1 : INFINITY);
    frexpl(want, &exponent);
    return (double)(fabsl((long double)got - want) /
                    ldexpl(1, exponent < -125 ? -149 : exponent - 24));
}

typedef long double (*exact_fn)(long double x);
typedef float (*fast_fn)(float x);

/* Tests every STEP-th float of either sign in [low, high], and the special values in that range. */
#define STEP 9973
static double worst_of(fast_fn fast, exact_fn exact, float low, float high) {
    static const float special[] = {0.0f,     -0.0f,    1e-45f,    -1e-45f, FLT_MIN, FLT_MAX,
                                    -FLT_MAX, INFINITY, -INFINITY, 1.0f,    -1.0f};
    double worst = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STEP) {
        float x = cb_f32_of_bits((uint32_t)bits);
        if (!(x >= low && x <= high)) continue;
        worst = fmax(worst, error_of(fast(x), exact((long double)x)));
    }
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        if (special[i] >= low && special[i] <= high)
            worst = fmax(worst, error_of(fast(special[i]), exact(special[i])));
    }
    CHECK(isnan(fast(NAN)));
    return worst;
}

static long double sigmoid(long double x) { return 1 / (1 + expl(-x)); }
static long double silu(long double x) { return x * sigmoid(x); }
static long double gelu(long double x) {
    return x / 2 * erfcl(-x * 0.70710678118654752440084436210485L);
}
static long double gelu_tanh(long double x) {
    return x * sigmoid(2 * 0.79788456080286535587989211986876L * (x + 0.044715L * x * x * x));
}

TEST(whole_range) {
    CHECK(worst_of(cb_exp_f32, expl, -INFINITY, INFINITY) <= 1.5);
    CHECK(worst_of(cb_log_f32, logl, -INFINITY, INFINITY) <= 1.5);
    CHECK(worst_of(cb_log1p_f32, log1pl, -INFINITY, INFINITY) <= 2.5);
    CHECK(worst_of(cb_tanh_f32, tanhl, -INFINITY, INFINITY) <= 2.0);
    CHECK(worst_of(cb_sigmoid_f32, sigmoid, -INFINITY, INFINITY) <= 2.5);
    CHECK(worst_of(cb_erf_f32, erfl, -INFINITY, INFINITY) <= 1.5);
    CHECK(worst_of(cb_sin_f32, sinl, -FLT_MAX, FLT_MAX) <= 1.5);
    CHECK(worst_of(cb_cos_f32, cosl, -FLT_MAX, FLT_MAX) <= 1.5);
}

TEST(activations) {
    CHECK(worst_of(cb_silu_f32, silu, -87, FLT_MAX) <= 3);
    CHECK(worst_of(cb_gelu_f32, gelu, -13, FLT_MAX) <= 6);
    CHECK(worst_of(cb_gelu_tanh_f32, gelu_tanh, -1, FLT_MAX) <= 5);
}

TEST(zero_keeps_its_sign) {
    CHECK(signbit(cb_tanh_f32(-0.0f)) && signbit(cb_erf_f32(-0.0f)) && signbit(cb_sin_f32(-0.0f)));
    CHECK(signbit(cb_log1p_f32(-0.0f)) && signbit(cb_gelu_f32(-0.0f)) &&
          !signbit(cb_exp_f32(-INFINITY)));
}

TEST(half) {
    int64_t wrong = 0;
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t h = (uint16_t)bits;
        wrong += cb_bits_of_f32(half_load_f16(h)) != cb_bits_of_f32(cb_f16_to_f32(h));
        wrong += cb_bits_of_f32(half_load_bf16(h)) != cb_bits_of_f32(cb_bf16_to_f32(h));
    }
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 499) {
        float x = cb_f32_of_bits((uint32_t)bits);
        wrong += half_store_f16(x) != cb_f32_to_f16(x);
        wrong += half_store_bf16(x) != cb_f32_to_bf16(x);
    }
    CHECK(wrong == 0);
}

int main(void) {
    RUN(whole_range);
    RUN(activations);
    RUN(zero_keeps_its_sign);
    RUN(half);
    return check_report();
}
