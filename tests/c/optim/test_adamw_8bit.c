#include "base/cpu.h"
#include "optim/optimizers.h"

#include "check.h"
#include "step.h"

#include <stdlib.h>

enum { N_ROWS = 5, MOST = 40000, N_HYPER = 6 };
static const int64_t sizes[N_ROWS] = {3, MOST, 0, 257, 511};
static const double hyper[N_HYPER] = {1e-2, 0.9, 0.99, 1e-8, 0.1, 0};

typedef struct arrays { /* arrays of one row */
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

/* Makes three steps with 0 to 4 threads, each with a different build of the formulas. */
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
            CHECK_OK(step_table(&cb_optimizer_adamw_8bit, pool, hyper, 1, rows, N_ROWS, &err));
        }
        if (threads) CHECK(memcmp(x, alone, N_ROWS * sizeof *x) == 0);
        cb_threads_free(pool);
    }
    unsetenv("CUTBACK_ISA");
    CHECK(alone[1].m_scale[0][0] > 0 && alone[1].v[5] > 0 && alone[3].m_scale[1][0] > 0);
    CHECK(alone[3].m_scale[2][0] == 0.0f && alone[3].v[257] == 0); /* past the end of the row */
    free(alone);
    free(x);
}

/* The length and alignment of each array are those of its kind. */
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
    CHECK_OK(step_table(o, NULL, hyper, 1, &row, 1, &err));
    row.state[1] = codes + 300;
    CHECK_FAIL(step_table(o, NULL, hyper, 1, &row, 1, &err), CB_INVALID, "m and v share memory");
    row.state[1] = codes + 301;
    row.state[3] = scales + 3;
    CHECK_FAIL(step_table(o, NULL, hyper, 1, &row, 1, &err), CB_INVALID,
               "m_scale and v_scale share memory");
    row.state[3] = (char *)(scales + 4) + 1;
    CHECK_FAIL(step_table(o, NULL, hyper, 1, &row, 1, &err), CB_INVALID,
               "v_scale is not aligned to 4 bytes");
}

/* Gradients that are not finite, or whose squares are not, do not affect their neighbours. */
TEST(outliers_do_not_change_their_block) {
    enum { N = 600 };
    static float p[2][N], g[N], m_scale[2][6], v_scale[2][6];
    static uint8_t m[2][N], v[2][N];
    const double no_decay[N_HYPER] = {1e-2, 0.9, 0.99, 1e-8, 0, 0};
    for (int spoilt = 0; spoilt < 2; spoilt++) {
        cb_optim_row row = {.param = p[spoilt],
                            .grad = g,
                            .state = {m[spoilt], v[spoilt], m_scale[spoilt], v_scale[spoilt]},
                            .n = N,
                            .dtype = CB_F32};
        for (row.t = 1; row.t <= 4; row.t++) {
            for (int i = 0; i < N; i++) g[i] = (float)(i % 7 + 1);
            if (spoilt && row.t == 2) g[300] = NAN, g[301] = INFINITY, g[302] = 3e38f;
            const float before = p[spoilt][302];
            CHECK_OK(step_table(&cb_optimizer_adamw_8bit, NULL, no_decay, 1, &row, 1, &err));
            if (spoilt && row.t == 2) CHECK(p[spoilt][302] == before && v[spoilt][302] >= 253);
        }
    }
    for (int i = 0; i < N; i++) {
        if (i == 300 || i == 301) CHECK(isnan(p[1][i]));
        else if (i == 302) CHECK(isfinite(p[1][i]));
        else CHECK(p[0][i] == p[1][i] && m[0][i] == m[1][i] && v[0][i] == v[1][i]);
    }
}

int main(void) {
    RUN(same_bits_for_any_threads_and_any_build);
    RUN(arrays_by_their_kind);
    RUN(outliers_do_not_change_their_block);
    return check_report();
}
