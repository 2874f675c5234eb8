#include "rows.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, N_HYPER };

static const double groups[2][N_HYPER] = {{1e-2, 0.9, 0.999, 1e-8, 0.1},
                                          {3e-3, 0.8, 0.95, 1e-6, 0.0}};
static const cb_optimizer *const adamw = &cb_optimizer_adamw;

/* The formula of adamw.c, in double. */
static void reference(double *p, double g, double *m, double *v, const double *x, int64_t t) {
    *p = *p * (1 - x[LR] * x[WEIGHT_DECAY]);
    *m = x[BETA1] * *m + (1 - x[BETA1]) * g;
    *v = x[BETA2] * *v + (1 - x[BETA2]) * g * g;
    double m_hat = *m / (1 - pow(x[BETA1], (double)t)), v_hat = *v / (1 - pow(x[BETA2], (double)t));
    *p -= x[LR] * m_hat / (sqrt(v_hat) + x[EPS]);
}

TEST(agrees_with_the_formula) {
    table s, before;
    table_init(&s);
    table_init(&before);
    CHECK_OK(cb_optimizer_step(adamw, NULL, groups[0], 2, s.row, ROWS, &err));
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        const cb_optim_row *old = &before.row[r], *now = &s.row[r];
        double scale =
            now->dtype == CB_F32 ? 1e6 : 1e13; /* errors in units that f32 and f64 share */
        for (int64_t i = 0; i < sizes[r]; i++) {
            double p = get(old, old->param, i), m = get(old, old->state[0], i),
                   v = get(old, old->state[1], i);
            reference(&p, get(old, old->grad, i), &m, &v, groups[old->group], STEPPED);
            worst = fmax(worst, scale * fabs(p - get(now, now->param, i)));
            worst = fmax(worst, scale * fabs(m - get(now, now->state[0], i)));
            worst = fmax(worst, scale * fabs(v - get(now, now->state[1], i)));
            CHECK(get(old, old->grad, i) == get(now, now->grad, i));
        }
    }
    CHECK(worst < 1.0);
    table_free(&s);
    table_free(&before);
}

TEST(same_bits_for_any_number_of_threads) { check_threads(adamw, groups[0], 2); }

TEST(many_small_rows) { check_many_rows(adamw, groups[0], 2); }

TEST(rows_have_steps_of_their_own) {
    float p[2] = {1, 1}, g[2] = {0.5f, 0.5f}, m[2] = {0}, v[2] = {0};
    cb_optim_row rows[2];
    for (int r = 0; r < 2; r++) {
        rows[r] = (cb_optim_row){
            .param = p + r, .grad = g + r, .state = {m + r, v + r}, .n = 1, .t = 1 + 9 * r};
        rows[r].dtype = CB_F32;
    }
    CHECK_OK(cb_optimizer_step(adamw, NULL, groups[0], 1, rows, 2, &err));
    double expect[2] = {1, 1};
    for (int r = 0; r < 2; r++) {
        double first = 0, second = 0;
        reference(&expect[r], 0.5, &first, &second, groups[0], rows[r].t);
        CHECK(fabs(expect[r] - (double)p[r]) < 1e-7);
    }
    CHECK(fabs(expect[0] - expect[1]) > 1e-3);
}

static void refuse(const table *s, cb_status status, const char *text) {
    CHECK_FAIL(cb_optimizer_step(adamw, NULL, groups[0], 2, s->row, ROWS, &err), status, text);
}

static void refuse_number(const table *s, int at, double x, const char *text) {
    double bad[N_HYPER];
    memcpy(bad, groups[0], sizeof bad);
    bad[at] = x;
    CHECK_FAIL(cb_optimizer_step(adamw, NULL, bad, 1, s->row, 1, &err), CB_INVALID, text);
}

TEST(mistakes_touch_nothing) {
    table s, before;
    table_init(&s);
    table_init(&before);
    refuse_number(&s, LR, NAN, "group 0 has lr=nan");
    refuse_number(&s, LR, INFINITY, "lr=inf");
    refuse_number(&s, BETA1, 1.0, "beta1=1; it must be in [0, 1)");
    refuse_number(&s, EPS, -1.0, "eps=-1; it must be finite and >= 0");
    CHECK_FAIL(cb_optimizer_step(adamw, NULL, groups[0], 1, s.row, ROWS, &err), CB_INVALID,
               "row 1 is in group 1");

    cb_optim_row *last = &s.row[ROWS - 1], kept = *last;
    last->t = 0;
    refuse(&s, CB_INVALID, "counts from 1");
    *last = kept;
    last->dtype = CB_BF16;
    refuse(&s, CB_UNSUPPORTED, "row 6 is bf16");
    *last = kept;
    last->grad = NULL;
    refuse(&s, CB_INVALID, "has no grad");
    *last = kept;
    last->state[1] = NULL;
    refuse(&s, CB_INVALID, "has no v");
    *last = kept;
    last->state[1] = (char *)last->param + 8;
    refuse(&s, CB_INVALID, "param and v share memory");
    *last = kept;
    last->state[0] = (char *)last->state[0] + 1;
    refuse(&s, CB_INVALID, "m is not aligned");
    *last = kept;
    last->n = -1;
    refuse(&s, CB_INVALID, "-1 elements");
    *last = kept;
    CHECK(same_bits(&s, &before));
    table_free(&s);
    table_free(&before);
    CHECK_OK(cb_optimizer_step(adamw, NULL, NULL, 0, NULL, 0, &err));
}

TEST(nan_spreads_to_its_own_element_alone) {
    float p[4] = {1, 2, 3, 4}, g[4] = {0, NAN, 1, INFINITY}, m[4] = {0}, v[4] = {0};
    const cb_optim_row row = {
        .param = p, .grad = g, .state = {m, v}, .n = 4, .t = 1, .dtype = CB_F32};
    CHECK_OK(cb_optimizer_step(adamw, NULL, groups[0], 1, &row, 1, &err));
    CHECK(isfinite(p[0]) && isnan(p[1]) && isfinite(p[2]) && isnan(p[3]));
    CHECK(p[0] == 1.0f * (float)(1 - 1e-2 * 0.1)); /* zero gradient: decay alone */
}

int main(void) {
    RUN(agrees_with_the_formula);
    RUN(same_bits_for_any_number_of_threads);
    RUN(many_small_rows);
    RUN(rows_have_steps_of_their_own);
    RUN(mistakes_touch_nothing);
    RUN(nan_spreads_to_its_own_element_alone);
    return check_report();
}
