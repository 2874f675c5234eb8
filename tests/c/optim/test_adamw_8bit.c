#include "base/cpu.h"
#include "optim/optimizers.h"

#include "check.h"

#include <stdlib.h>

enum { N_ROWS = 5, MOST = 40000, N_HYPER = 6 };
static const int64_t sizes[N_ROWS] = {3, MOST, 0, 257, 511};
static const double hyper[N_HYPER] = {1e-2, 0.9, 0.99, 1e-8, 0.1, 0};

typedef struct arrays { /* of one row */
    float p[MOST], g[MOST];
    float m_scale[MOST / CB_STATE_BLOCK + 1][2], v_scale[MOST / CB_STATE_BLOCK + 1][2];
    uint8_t m[MOST], v[MOST];
} arrays;

static void fill(arrays *x, cb_optim_row *rows) {
    memset(x, 0, N_ROWS * sizeof *x);
    for (int r = 0; r < N_ROWS; r++) {
        for (int i = 0; i < MOST; i++) {
            x[r].p[i] = (float)(((int64_t)i * 7919 + r) % 2003) / 1000.0f - 1;
            x[r].g[i] = (float)(((int64_t)i * 104729 + r) % 2011) / 1000.0f - 1;
            if (i / 1000 % 3 == 1) x[r].g[i] *= i % 3 ? 1e-9f : 0; /* clamped codes, and zeros */
            if (i == 7777) x[r].g[i] = NAN;
        }
        rows[r] = (cb_optim_row){.param = x[r].p,
                                 .grad = x[r].g,
                                 .state = {x[r].m, x[r].v, x[r].m_scale[0], x[r].v_scale[0]},
                                 .n = sizes[r],
                                 .dtype = CB_F32};
    }
}

/* Three steps with 0 to 4 threads, each with another build of the formulas. */
TEST(same_bits_for_any_threads_and_any_build) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    arrays *alone = calloc(N_ROWS, sizeof *alone), *x = calloc(N_ROWS, sizeof *x);
    cb_optim_row rows[N_ROWS];
    for (int threads = 0; threads <= 4; threads++) {
        cb_threads *pool = NULL;
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)(threads % CB_ISA_COUNT)), 1);
        if (threads) CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        fill(threads ? x : alone, rows);
        for (int64_t t = 1; t <= 3; t++) {
            for (int r = 0; r < N_ROWS; r++) rows[r].t = t;
            CHECK_OK(
                cb_optimizer_step(&cb_optimizer_adamw_8bit, pool, hyper, 1, rows, N_ROWS, &err));
        }
        if (threads) CHECK(memcmp(x, alone, N_ROWS * sizeof *x) == 0);
        cb_threads_free(pool);
    }
    unsetenv("CUTBACK_ISA");
    CHECK(alone[1].m_scale[0][0] > 0 && alone[1].v[5] > 0 && alone[3].m_scale[1][0] > 0);
    CHECK(alone[3].m_scale[2][0] == 0.0f && alone[3].v[257] == 0); /* past its end */
    free(alone);
    free(x);
}

/* Arrays are as long, and aligned as far, as their kind says. */
TEST(arrays_by_their_kind) {
    const cb_optimizer *o = &cb_optimizer_adamw_8bit;
    float p[300] = {0}, g[300] = {0}, scales[8];
    uint8_t codes[601];
    cb_optim_row row = {.param = p,
                        .grad = g,
                        .state = {codes + 1, codes + 301, scales, scales + 4},
                        .n = 300,
                        .t = 1,
                        .dtype = CB_F32};
    memset(codes, 0, sizeof codes);
    memset(scales, 0, sizeof scales);
    CHECK(cb_optim_state_bytes(o, 0, NULL, &row) == 300);
    CHECK(cb_optim_state_bytes(o, 2, NULL, &row) == 16);
    CHECK_OK(cb_optimizer_step(o, NULL, hyper, 1, &row, 1, &err));
    row.state[1] = codes + 300;
    CHECK_FAIL(cb_optimizer_step(o, NULL, hyper, 1, &row, 1, &err), CB_INVALID,
               "m and v share memory");
    row.state[1] = codes + 301;
    row.state[3] = scales + 3;
    CHECK_FAIL(cb_optimizer_step(o, NULL, hyper, 1, &row, 1, &err), CB_INVALID,
               "m_scale and v_scale share memory");
    row.state[3] = (char *)(scales + 4) + 1;
    CHECK_FAIL(cb_optimizer_step(o, NULL, hyper, 1, &row, 1, &err), CB_INVALID,
               "v_scale is not aligned to 4 bytes");
}

/* What is not a number stays in its block. */
TEST(nan_stays_in_its_block) {
    static float p[600], g[600], m_scale[6], v_scale[6];
    static uint8_t m[600], v[600];
    cb_optim_row row = {
        .param = p, .grad = g, .state = {m, v, m_scale, v_scale}, .n = 600, .dtype = CB_F32};
    for (int i = 0; i < 600; i++) g[i] = i == 300 ? NAN : i == 301 ? INFINITY : 0.5f;
    for (row.t = 1; row.t <= 2; row.t++)
        CHECK_OK(cb_optimizer_step(&cb_optimizer_adamw_8bit, NULL, hyper, 1, &row, 1, &err));
    for (int i = 0; i < 600; i++) CHECK(isfinite(p[i]) == (i < 256 || i >= 512));
}

int main(void) {
    RUN(same_bits_for_any_threads_and_any_build);
    RUN(arrays_by_their_kind);
    RUN(nan_stays_in_its_block);
    return check_report();
}
