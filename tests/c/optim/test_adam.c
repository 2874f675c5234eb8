#include "rows.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, AMSGRAD, MAXIMIZE, N_HYPER };

static const double groups[][N_HYPER] = {
    {1e-2, 0.9, 0.999, 1e-8, 0.1, 0, 0}, {3e-3, 0.8, 0.95, 1e-6, 0.0, 0, 0},
    {1e-2, 0.9, 0.99, 1e-8, 0.0, 1, 0},  {1e-2, 0.9, 0.99, 1e-8, 0.1, 1, 1},
    {2e-2, 0.0, 0.9, 1e-3, 0.01, 0, 1},
};
#define GROUPS (sizeof groups / sizeof groups[0])
static const cb_optimizer *const adamw = &cb_optimizer_adamw;

typedef struct element {
    double p, g, m, v, w;
} element;

/* Computes the formula of adam.c, in double. */
static element reference(element e, const double *x, int64_t t, bool decoupled) {
    if (x[MAXIMIZE] != 0) e.g = -e.g;
    if (decoupled) e.p = e.p * (1 - x[LR] * x[WEIGHT_DECAY]);
    else e.g += x[WEIGHT_DECAY] * e.p;
    e.m = x[BETA1] * e.m + (1 - x[BETA1]) * e.g;
    e.v = x[BETA2] * e.v + (1 - x[BETA2]) * e.g * e.g;
    if (x[AMSGRAD] != 0) e.w = fmax(e.w, e.v);
    double m_hat = e.m / (1 - pow(x[BETA1], (double)t));
    double v_hat = (x[AMSGRAD] != 0 ? e.w : e.v) / (1 - pow(x[BETA2], (double)t));
    e.p -= x[LR] * m_hat / (sqrt(v_hat) + x[EPS]);
    return e;
}

static element element_of(const cb_optim_row *row, int64_t i) {
    return (element){.p = get(row, row->param, i),
                     .g = get(row, row->grad, i),
                     .m = get(row, row->state[0], i),
                     .v = get(row, row->state[1], i),
                     .w = get(row, row->state[2], i)};
}

static double distance(element x, element y) {
    return fmax(fmax(fabs(x.p - y.p), fabs(x.m - y.m)), fmax(fabs(x.v - y.v), fabs(x.w - y.w)));
}

static void check_formula(const cb_optimizer *o, const double *hyper) {
    table s, before;
    table_init(&s);
    table_init(&before);
    CHECK_OK(step_table(o, NULL, hyper, 2, s.row, ROWS, &err));
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        const cb_optim_row *old = &before.row[r], *now = &s.row[r];
        double scale = now->dtype == CB_F32 ? 1e6 : 1e13; /* error units that f32 and f64 share */
        for (int64_t i = 0; i < sizes[r]; i++) {
            element want =
                reference(element_of(old, i), hyper + old->group * N_HYPER, STEPPED, o == adamw);
            worst = fmax(worst, scale * distance(want, element_of(now, i)));
            CHECK(get(old, old->grad, i) == get(now, now->grad, i));
        }
    }
    CHECK(worst < 1.0);
    table_free(&s);
    table_free(&before);
}

TEST(agrees_with_the_formula) {
    for (size_t g = 0; g + 1 < GROUPS; g++) {
        check_formula(adamw, groups[g]);
        check_formula(&cb_optimizer_adam, groups[g]);
    }
}

TEST(same_bits_for_any_number_of_threads) {
    for (size_t g = 0; g + 1 < GROUPS; g++) {
        check_threads(adamw, groups[g], 2);
        check_threads(&cb_optimizer_adam, groups[g], 2);
    }
}

TEST(many_small_rows) {
    check_many_rows(adamw, groups[0], 2);
    check_many_rows(&cb_optimizer_adam, groups[3], 3);
}

TEST(rows_have_steps_of_their_own) {
    float p[2] = {1, 1}, g[2] = {0.5f, 0.5f}, m[2] = {0}, v[2] = {0};
    cb_optim_row rows[2];
    for (int r = 0; r < 2; r++) {
        rows[r] = (cb_optim_row){
            .param = p + r, .grad = g + r, .state = {m + r, v + r}, .n = 1, .t = 1 + 9 * r};
        rows[r].dtype = CB_F32;
    }
    CHECK_OK(step_table(adamw, NULL, groups[0], 1, rows, 2, &err));
    for (int r = 0; r < 2; r++) {
        element want = reference((element){.p = 1, .g = 0.5}, groups[0], rows[r].t, true);
        CHECK(fabs(want.p - (double)p[r]) < 1e-7);
    }
    CHECK(fabsf(p[0] - p[1]) > 1e-3f);
}

static void refuse(const table *s, cb_status status, const char *text) {
    CHECK_FAIL(step_table(adamw, NULL, groups[0], 2, s->row, ROWS, &err), status, text);
}

static void refuse_number(const table *s, int at, double x, const char *text) {
    double bad[N_HYPER];
    memcpy(bad, groups[0], sizeof bad);
    bad[at] = x;
    CHECK_FAIL(step_table(adamw, NULL, bad, 1, s->row, 1, &err), CB_INVALID, text);
}

TEST(mistakes_touch_nothing) {
    table s, before;
    table_init(&s);
    table_init(&before);
    refuse_number(&s, LR, NAN, "group 0 has lr=nan");
    refuse_number(&s, LR, INFINITY, "lr=inf");
    refuse_number(&s, BETA1, 1.0, "beta1=1; it must be in [0, 1)");
    refuse_number(&s, EPS, -1.0, "eps=-1; it must be finite and >= 0");
    CHECK_FAIL(step_table(adamw, NULL, groups[0], 1, s.row, ROWS, &err), CB_INVALID,
               "row 1 is in group 1");

    cb_optim_row *last = &s.row[ROWS - 1], kept = *last;
    last->t = 0;
    refuse(&s, CB_INVALID, "counts from 1");
    *last = kept;
    last->dtype = CB_I32;
    refuse(&s, CB_UNSUPPORTED, "row 6 is i32");
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
    CHECK_OK(step_table(adamw, NULL, NULL, 0, NULL, 0, &err));
}

TEST(nan_spreads_to_its_own_element_alone) {
    float p[4] = {1, 2, 3, 4}, g[4] = {0, NAN, 1, INFINITY}, m[4] = {0}, v[4] = {0};
    const cb_optim_row row = {
        .param = p, .grad = g, .state = {m, v}, .n = 4, .t = 1, .dtype = CB_F32};
    CHECK_OK(step_table(adamw, NULL, groups[0], 1, &row, 1, &err));
    CHECK(isfinite(p[0]) && isnan(p[1]) && isfinite(p[2]) && isnan(p[3]));
    CHECK(p[0] == 1.0f * (float)(1 - 1e-2 * 0.1)); /* zero gradient: only decay */
}

TEST(amsgrad_keeps_nan) {
    float p[2] = {1, 1}, g[2] = {NAN, 1}, m[2] = {0}, v[2] = {0}, w[2] = {0, NAN};
    cb_optim_row row = {.param = p, .grad = g, .state = {m, v}, .n = 2, .t = 1, .dtype = CB_F32};
    CHECK_FAIL(step_table(adamw, NULL, groups[2], 1, &row, 1, &err), CB_INVALID, "has no v_max");
    row.state[2] = w;
    CHECK_OK(step_table(adamw, NULL, groups[2], 1, &row, 1, &err));
    CHECK(isnan(w[0]) && isnan(w[1]) && isnan(p[0]) && isnan(p[1]));
}

int main(void) {
    RUN(agrees_with_the_formula);
    RUN(same_bits_for_any_number_of_threads);
    RUN(many_small_rows);
    RUN(rows_have_steps_of_their_own);
    RUN(mistakes_touch_nothing);
    RUN(nan_spreads_to_its_own_element_alone);
    RUN(amsgrad_keeps_nan);
    return check_report();
}
