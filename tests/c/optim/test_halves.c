/* Rows of f16 and bf16 against the same step in f32, rounded one by one. */
#include "optim/table.h"

#include "base/philox.h"
#include "rows.h"

#include <math.h>

enum { N = 70001, STEPS = 4, STREAM = 5 };
static const uint64_t seed = UINT64_C(0x123456789ABCDEF);
static const double adamw[1][7] = {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0, 0}};
static cb_alloc alloc;

typedef struct halves {
    uint16_t *param, *grad;
    float *state[2];
    void *rest;
    cb_optim_row row;
} halves;

typedef struct twin { /* the row in f32 */
    float *param, *grad, *state[2];
    cb_optim_row row;
} twin;

static uint16_t to_half(cb_dtype dtype, float x) {
    return dtype == CB_BF16 ? cb_f32_to_bf16(x) : cb_f32_to_f16(x);
}

static float of_half(cb_dtype dtype, uint16_t x) {
    return dtype == CB_BF16 ? cb_bf16_to_f32(x) : cb_f16_to_f32(x);
}

static void halves_init(halves *x, cb_dtype dtype, cb_half_form form) {
    x->param = calloc(N, 2);
    x->grad = calloc(N, 2);
    x->rest = calloc(N, 4);
    for (int k = 0; k < 2; k++) x->state[k] = calloc(N, 4);
    for (size_t i = 0; i < N; i++) x->param[i] = to_half(dtype, (float)value_at(0, i));
    x->row = (cb_optim_row){.param = x->param,
                            .grad = x->grad,
                            .state = {x->state[0], x->state[1]},
                            .rest = form == CB_HALF_STOCHASTIC ? NULL : x->rest,
                            .n = N,
                            .dtype = dtype,
                            .half = form,
                            .seed = seed,
                            .stream = STREAM};
}

static void halves_free(halves *x) {
    free(x->param);
    free(x->grad);
    free(x->rest);
    for (int k = 0; k < 2; k++) free(x->state[k]);
}

static void twin_init(twin *y, const halves *x) {
    y->param = calloc(N, 4);
    y->grad = calloc(N, 4);
    for (int k = 0; k < 2; k++) y->state[k] = calloc(N, 4);
    for (size_t i = 0; i < N; i++) y->param[i] = of_half(x->row.dtype, x->param[i]);
    y->row = (cb_optim_row){.param = y->param,
                            .grad = y->grad,
                            .state = {y->state[0], y->state[1]},
                            .n = N,
                            .dtype = CB_F32};
}

static void twin_free(twin *y) {
    free(y->param);
    free(y->grad);
    for (int k = 0; k < 2; k++) free(y->state[k]);
}

static void draw_gradients(halves *x, twin *y, int64_t t) {
    for (size_t i = 0; i < N; i++) {
        x->grad[i] = to_half(x->row.dtype, (float)value_at((int)t, i * 3));
        y->grad[i] = of_half(x->row.dtype, x->grad[i]);
    }
    x->row.t = y->row.t = t;
}

/* Returns the expected weight, computed by division and with integers. */
static uint16_t rounded(const halves *x, float weight, size_t i) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    if (x->row.half == CB_HALF_MASTER) return to_half(x->row.dtype, weight);
    if (x->row.half == CB_HALF_REMAINDER) /* ties go away from 0 */
        return (uint16_t)(bits / 65536 + (bits % 65536 >= 32768));
    const cb_philox noise = {.seed = seed, .stream = STREAM, .step = (uint32_t)x->row.t};
    return (uint16_t)(bits / 65536 + (bits % 65536 + cb_philox_u16(&noise, i) >= 65536));
}

static bool is_twin(const halves *x, const twin *y) {
    bool same = true;
    for (int k = 0; k < 2; k++) same &= memcmp(x->state[k], y->state[k], N * sizeof(float)) == 0;
    for (size_t i = 0; i < N; i++) same &= x->param[i] == rounded(x, y->param[i], i);
    return same;
}

static void check_form(cb_dtype dtype, cb_half_form form, int threads) {
    cb_threads *pool = NULL;
    halves x;
    twin y;
    if (threads) CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
    halves_init(&x, dtype, form);
    twin_init(&y, &x);
    for (int64_t t = 1; t <= STEPS; t++) {
        draw_gradients(&x, &y, t);
        CHECK_OK(step_table(&cb_optimizer_adamw, pool, adamw[0], 1, &x.row, 1, &err));
        CHECK_OK(step_table(&cb_optimizer_adamw, NULL, adamw[0], 1, &y.row, 1, &err));
        CHECK(is_twin(&x, &y));
        if (form == CB_HALF_STOCHASTIC) { /* the remainder that was cut off is lost */
            for (size_t i = 0; i < N; i++) y.param[i] = of_half(dtype, x.param[i]);
        }
    }
    halves_free(&x);
    twin_free(&y);
    cb_threads_free(pool);
}

TEST(each_form_is_a_step_of_f32_rounded) {
    for (int k = 0; k < CB_ISA_COUNT; k++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)k), 1);
        check_form(CB_BF16, CB_HALF_MASTER, k);
        check_form(CB_F16, CB_HALF_MASTER, k + 1);
        check_form(CB_BF16, CB_HALF_REMAINDER, k + 2);
        check_form(CB_BF16, CB_HALF_STOCHASTIC, k + 1);
    }
    unsetenv("CUTBACK_ISA");
}

/* Tests weights that no step changes: every 16-bit value, and weights written between steps. */
TEST(what_is_not_stepped_stays) {
    static const double still[1][6] = {{0, 0, 0, 0, 0, 0}};
    enum { ALL = 65536 };
    static uint16_t p[ALL], g[ALL];
    static float rest[ALL];
    for (int form = 0; form < CB_HALF_FORM_COUNT; form++) {
        cb_optim_row row = {.param = p, .grad = g, .rest = rest, .n = ALL, .dtype = CB_BF16};
        row.half = (cb_half_form)form;
        memset(rest, 0, sizeof rest);
        for (int turn = 1; turn < 4; turn++) {
            row.t = turn;
            for (uint32_t i = 0; i < ALL; i++) p[i] = (uint16_t)(i * (uint32_t)turn);
            CHECK_OK(step_table(&cb_optimizer_sgd, NULL, still[0], 1, &row, 1, &err));
            for (uint32_t i = 0; i < ALL; i++) {
                const float was = cb_bf16_to_f32((uint16_t)(i * (uint32_t)turn));
                const float is = cb_bf16_to_f32(p[i]);
                CHECK(is == was || (isnan(is) && isnan(was)));
            }
        }
    }
}

/* Infinities and NaN made by a step reach the weights, whatever the bits of the NaN. */
TEST(what_is_not_finite_is_seen) {
    static const double plain[1][6] = {{1, 0, 0, 0, 0, 0}};
    const uint16_t bad[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0x7FFF, 0xFFFF};
    enum { BAD = sizeof bad / sizeof *bad };
    for (int form = 0; form < CB_HALF_FORM_COUNT; form++) {
        uint16_t p[BAD], g[BAD];
        float rest[BAD] = {0};
        cb_optim_row row = {.param = p, .grad = g, .rest = rest, .n = BAD, .t = 1};
        row.dtype = CB_BF16;
        row.half = (cb_half_form)form;
        for (int i = 0; i < BAD; i++) p[i] = cb_f32_to_bf16(1), g[i] = bad[i];
        CHECK_OK(step_table(&cb_optimizer_sgd, NULL, plain[0], 1, &row, 1, &err));
        for (int i = 0; i < BAD; i++) {
            const float is = cb_bf16_to_f32(p[i]), wanted = 1 - cb_bf16_to_f32(bad[i]);
            CHECK(is == wanted || (isnan(is) && isnan(wanted)));
        }
    }
}

/* A weight between two bf16 values is rounded to either, with the right mean; the noise differs for
 * each step, row and seed. */
TEST(noise_is_right_in_the_mean) {
    static const double step[1][6] = {{1, 0, 0, 0, 0, 0}};
    enum { MANY = 100000 };
    static uint16_t p[MANY], g[MANY], first[MANY];
    cb_optim_row row = {.param = p, .grad = g, .n = MANY, .dtype = CB_BF16};
    row.half = CB_HALF_STOCHASTIC;
    for (int turn = 0; turn < 4; turn++) {
        row.t = 1 + (turn == 1);
        row.stream = turn == 2;
        row.seed = turn == 3;
        double sum = 0;
        int same = 0;
        for (int i = 0; i < MANY; i++) {
            p[i] = cb_f32_to_bf16(1);
            g[i] = cb_f32_to_bf16(-0x1p-10f); /* an eighth of a unit */
        }
        CHECK_OK(step_table(&cb_optimizer_sgd, NULL, step[0], 1, &row, 1, &err));
        for (int i = 0; i < MANY; i++) {
            sum += (double)cb_bf16_to_f32(p[i]) - 1;
            same += turn && p[i] == first[i];
        }
        /* 0x1p-7 with probability 1/8: five deviations of the mean are 0.0052 units */
        CHECK(fabs(sum / MANY - 0x1p-10) < 0.0053 * 0x1p-7);
        CHECK(turn == 0 || abs(same - MANY * 50 / 64) < 700); /* 49/64 + 1/64, five deviations */
        if (!turn) memcpy(first, p, sizeof p);
    }
}

TEST(extras_are_of_the_weights_in_f32) {
    cb_threads *pool = NULL;
    halves x;
    twin y;
    CHECK_OK(cb_threads_new(&alloc, 2, &pool, &err));
    halves_init(&x, CB_BF16, CB_HALF_REMAINDER);
    twin_init(&y, &x);
    float *average[2] = {calloc(N, 4), calloc(N, 4)};
    uint16_t *copy[2] = {calloc(N, 2), calloc(N, 2)};
    cb_tensor_table *t[2];
    draw_gradients(&x, &y, 1);
    for (int k = 0; k < 2; k++) {
        const cb_extra_row beside = {average[k], copy[k], CB_F16};
        const cb_optim_extras extras = {.grad_factor = 0.5,
                                        .max_norm = 3,
                                        .average_keep = 0.75,
                                        .zeroes = true,
                                        .rows = &beside};
        CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_adamw, 1, &t[k], &err));
        cb_tensor_table_set(t[k], 0, k ? &y.row : &x.row);
        CHECK_OK(cb_tensor_table_ask(t[k], &extras, &err));
        CHECK_OK(cb_tensor_table_step(t[k], adamw[0], 1, &err));
    }
    CHECK(is_twin(&x, &y));
    CHECK(cb_tensor_table_outcome(t[0]).norm == cb_tensor_table_outcome(t[1]).norm);
    CHECK(memcmp(average[0], average[1], N * sizeof(float)) == 0);
    CHECK(memcmp(copy[0], copy[1], N * sizeof(uint16_t)) == 0);
    for (int i = 0; i < N; i++) CHECK(x.grad[i] == 0);
    for (int k = 0; k < 2; k++) {
        cb_tensor_table_free(t[k]);
        free(average[k]);
        free(copy[k]);
    }
    halves_free(&x);
    twin_free(&y);
    cb_threads_free(pool);
}

TEST(what_a_row_of_halves_lacks_is_named) {
    uint16_t p[4] = {0}, g[4] = {0};
    float m[4] = {0}, v[4] = {0}, rest[4] = {0};
    const cb_optim_row good = {
        .param = p, .grad = g, .rest = rest, .state = {m, v}, .n = 4, .t = 1, .dtype = CB_BF16};
    cb_threads *pool = NULL;
    cb_tensor_table *t = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_adamw, 1, &t, &err));
    cb_optim_row row = good;
    row.rest = NULL;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 1, &err), CB_INVALID, "has no master (NULL)");
    row.half = CB_HALF_REMAINDER;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 1, &err), CB_INVALID, "has no remainder (NULL)");
    row.rest = v;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 1, &err), CB_INVALID,
               "v and remainder share memory");
    row = good;
    row.dtype = CB_F16;
    row.half = CB_HALF_STOCHASTIC;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 1, &err), CB_UNSUPPORTED, "noise are for bf16");
    row.half = CB_HALF_FORM_COUNT;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 1, &err), CB_INVALID,
               "has half=3; it must be below 3");
    row.dtype = CB_I64;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adamw[0], 1, &err), CB_UNSUPPORTED, "row 0 is i64");
    cb_tensor_table_set(t, 0, &good);
    CHECK_OK(cb_tensor_table_step(t, adamw[0], 1, &err));
    cb_tensor_table_free(t);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(each_form_is_a_step_of_f32_rounded);
    RUN(what_is_not_stepped_stays);
    RUN(what_is_not_finite_is_seen);
    RUN(noise_is_right_in_the_mean);
    RUN(extras_are_of_the_weights_in_f32);
    RUN(what_a_row_of_halves_lacks_is_named);
    return check_report();
}
