/* Random draws compared with the generator, element by element, and their moments. */
#include "check.h"

#include "base/draw.h"

#include <math.h>
#include <string.h>

static const cb_philox random_of = {.seed = UINT64_C(0x0123456789ABCDEF), .stream = 3};

static uint32_t word_of(uint64_t i) {
    uint32_t out[4];
    cb_philox_block(&random_of, i / 4, out);
    return out[i % 4];
}

/* An element depends only on its position, and nothing is written past the end. */
TEST(elements_stand_alone) {
    enum { N = 23 };
    for (uint64_t n = 0; n <= N; n++) {
        uint8_t keep[N + 1];
        float f32[N + 1], z32[N + 1];
        double f64[N + 1], z64[N + 1];
        keep[n] = 77, f32[n] = z32[n] = 77, f64[n] = z64[n] = 77;
        cb_draw_keep(&random_of, 0.25, n, keep);
        cb_draw_uniform_f32(&random_of, n, f32);
        cb_draw_uniform_f64(&random_of, n, f64);
        cb_draw_normal_f32(&random_of, n, z32);
        cb_draw_normal_f64(&random_of, n, z64);
        for (uint64_t i = 0; i < n; i++) {
            CHECK(keep[i] == (cb_philox_u16(&random_of, i) >= 0x4000));
            CHECK((double)f32[i] == floor((double)word_of(i) / 256) / 16777216);
            double high = word_of(2 * i), low = floor((double)word_of(2 * i + 1) / 2048);
            CHECK(f64[i] == (high * 2097152 + low) / 9007199254740992);
            CHECK(fabsf(z32[i]) < 6.8f && fabs(z64[i]) < 8.7);
        }
        CHECK(keep[n] == 77 && f32[n] == 77 && f64[n] == 77 && z32[n] == 77 && z64[n] == 77);
    }
}

TEST(rates_at_the_ends) {
    uint8_t keep[64];
    cb_draw_keep(&random_of, 0, 64, keep);
    for (int i = 0; i < 64; i++) CHECK(keep[i] == 1);
    cb_draw_keep(&random_of, 1, 64, keep);
    for (int i = 0; i < 64; i++) CHECK(keep[i] == 0);
}

static double f32[1 << 16], f64[1 << 16];

/* Checks that mean and variance are within five standard errors of 0 and 1, and that pairs are not
 * correlated. */
static void check_normal(const double *z, int n) {
    double sum = 0, squares = 0, pairs = 0;
    for (int i = 0; i < n; i++) sum += z[i], squares += z[i] * z[i];
    for (int i = 0; i < n; i += 2) pairs += z[i] * z[i + 1];
    const double root = sqrt(n);
    CHECK(fabs(sum) < 5 * root && fabs(squares - n) < 5 * sqrt(2) * root);
    CHECK(fabs(pairs) < 5 * sqrt(n / 2.0));
}

TEST(normal_moments) {
    static float narrow[1 << 16];
    cb_draw_normal_f32(&random_of, 1 << 16, narrow);
    for (int i = 0; i < 1 << 16; i++) f32[i] = (double)narrow[i];
    cb_draw_normal_f64(&random_of, 1 << 16, f64);
    check_normal(f32, 1 << 16);
    check_normal(f64, 1 << 16);
}

int main(void) {
    RUN(elements_stand_alone);
    RUN(rates_at_the_ends);
    RUN(normal_moments);
    return check_report();
}
