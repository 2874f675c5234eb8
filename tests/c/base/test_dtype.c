#include "base/dtype.h"

#include "base/philox.h"
#include "check.h"

typedef struct format {
    int n_exponent, n_fraction;
    uint16_t (*from_f64)(double x);
    uint16_t (*from_f32)(float x);
    float (*to_f32)(uint16_t h);
} format;
static const format formats[] = {
    {5, 10, cb_f64_to_f16, cb_f32_to_f16, cb_f16_to_f32},
    {8, 7, cb_f64_to_bf16, cb_f32_to_bf16, cb_bf16_to_f32},
};

/* Returns the value of the bits of a positive, finite number, by definition. The pattern after the
 * largest finite number gets the value it would have without infinity, because rounding compares
 * distances to it. */
static double value_of(const format *f, uint32_t h) {
    uint32_t exponent = h >> f->n_fraction, fraction = h & ((1u << f->n_fraction) - 1);
    int bias = (1 << (f->n_exponent - 1)) - 1;
    if (exponent == 0) return ldexp(fraction, 1 - bias - f->n_fraction);
    return ldexp(fraction + (1u << f->n_fraction), (int)exponent - bias - f->n_fraction);
}

static uint32_t infinity_of(const format *f) {
    return ((1u << f->n_exponent) - 1) << f->n_fraction;
}

/* Rounds like the core, but slowly: bisects over all numbers and takes the nearer neighbour, the
 * even one in a tie. */
static uint32_t round_slowly(const format *f, double x) {
    uint32_t low = 0, high = infinity_of(f);
    if (x >= value_of(f, high)) return high;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of(f, middle) <= x) low = middle;
        else high = middle;
    }
    double below = x - value_of(f, low),
           above = value_of(f, high) - x; /* exact or far from a tie */
    if (below != above) return below < above ? low : high;
    return low & 1 ? high : low;
}

static void check_rounding(const format *f, double x) {
    uint32_t want = round_slowly(f, x), sign = 0x8000;
    CHECK(f->from_f64(x) == want);
    CHECK(f->from_f64(-x) == (want | sign));
    float narrow = (float)x;
    want = isinf(narrow) ? infinity_of(f) : round_slowly(f, (double)narrow);
    CHECK(f->from_f32(narrow) == want);
    CHECK(f->from_f32(-narrow) == (want | sign));
}

TEST(names_and_sizes) {
    static const size_t sizes[] = {1, 1, 4, 8, 2, 2, 4, 8};
    for (int i = 0; i < CB_DTYPE_COUNT; i++) {
        cb_dtype dtype = (cb_dtype)i, back = CB_DTYPE_COUNT;
        const char *name = cb_dtype_name(dtype);
        CHECK(cb_dtype_size(dtype) == sizes[i]);
        CHECK(cb_dtype_parse(name, strlen(name), &back) && back == dtype);
        CHECK(cb_dtype_is_float(dtype) == (name[0] == 'f' || name[1] == 'f'));
    }
    cb_dtype untouched = CB_I32;
    CHECK(!cb_dtype_parse("f3", 2, &untouched) && !cb_dtype_parse("f321", 4, &untouched));
    CHECK(!cb_dtype_parse("", 0, &untouched) && untouched == CB_I32);
    CHECK(cb_dtype_size((cb_dtype)99) == 0 && strcmp(cb_dtype_name((cb_dtype)99), "unknown") == 0);
}

TEST(every_half_there_and_back) {
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        for (uint32_t h = 0; h <= 0xFFFF; h++) {
            float x = f->to_f32((uint16_t)h);
            uint32_t magnitude = h & 0x7FFF;
            if (magnitude > infinity_of(f)) {
                CHECK(isnan(x) && isnan(f->to_f32(f->from_f32(x))) &&
                      isnan(f->to_f32(f->from_f64((double)x))));
                continue;
            }
            CHECK(f->from_f32(x) == h && f->from_f64((double)x) == h);
            CHECK((signbit(x) != 0) == (h >> 15 != 0));
            if (magnitude == infinity_of(f)) CHECK(isinf(x));
            else CHECK(fabs((double)x) == value_of(f, magnitude));
        }
    }
}

/* Tests every midpoint between neighbours and the doubles next to it, where rounding once and
 * rounding twice differ. */
TEST(ties_go_to_even) {
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        for (uint32_t h = 0; h < infinity_of(f); h++) {
            double middle = (value_of(f, h) + value_of(f, h + 1)) / 2;
            check_rounding(f, middle);
            check_rounding(f, nextafter(middle, 0));
            check_rounding(f, nextafter(middle, INFINITY));
        }
    }
}

TEST(random_doubles_round_to_nearest) {
    cb_philox random = {.seed = 17};
    for (uint64_t i = 0; i < 200000; i++) {
        uint32_t words[4];
        cb_philox_block(&random, i, words);
        double fraction = 1 + (words[0] + words[1] * 0x1p-32) * 0x1p-32;
        check_rounding(&formats[i % 2], ldexp(fraction, (int)(words[2] % 300) - 150));
    }
}

TEST(extremes) {
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        CHECK(f->from_f64(INFINITY) == infinity_of(f) && f->from_f64(1e308) == infinity_of(f));
        CHECK(f->from_f64(0.0) == 0 && f->from_f64(-0.0) == 0x8000);
        CHECK(f->from_f64(5e-324) == 0 && f->from_f64(-5e-324) == 0x8000);
        CHECK(isnan(f->to_f32(f->from_f64(NAN))) && isnan(f->to_f32(f->from_f32(NAN))));
    }
    CHECK(cb_f64_to_f16(65519.999) == 0x7BFF && cb_f64_to_f16(65520) == 0x7C00);
}

int main(void) {
    RUN(names_and_sizes);
    RUN(every_half_there_and_back);
    RUN(ties_go_to_even);
    RUN(random_doubles_round_to_nearest);
    RUN(extremes);
    return check_report();
}
