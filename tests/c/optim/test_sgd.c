#include "rows.h"

enum { LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE, N_HYPER };

static const cb_optimizer *const sgd = &cb_optimizer_sgd;
/* Every branch of the formula; the rows of a table use two adjacent groups. */
static const double groups[][N_HYPER] = {
    {0.1, 0.0, 0.0, 0.0, 0, 0},  {0.1, 0.0, 0.5, 0.01, 0, 1}, {0.05, 0.9, 0.0, 0.0, 0, 0},
    {0.1, 0.9, 0.3, 0.01, 0, 1}, {0.2, 0.8, 0.0, 0.0, 1, 0},  {0.2, 0.8, 0.0, 0.1, 1, 1},
    {0.0, 0.5, -1.0, 0.2, 0, 0},
};
#define GROUPS (sizeof groups / sizeof groups[0])

/* Computes the formula of sgd.c for one element, with each product and sum rounded to the row's
 * type. */
static void reference_f32(float *p, float g, float *b, const double *x, int64_t t) {
    float d = x[MAXIMIZE] != 0 ? -g : g;
    if (x[WEIGHT_DECAY] != 0) {
        float decay = (float)x[WEIGHT_DECAY] * *p;
        d = d + decay;
    }
    if (x[MOMENTUM] != 0) {
        float kept = (float)x[MOMENTUM] * *b, added = (float)(1 - x[DAMPENING]) * d;
        *b = t == 1 ? d : kept + added;
        float ahead = (float)x[MOMENTUM] * *b;
        d = x[NESTEROV] != 0 ? d + ahead : *b;
    }
    float move = (float)-x[LR] * d;
    *p = *p + move;
}

static void reference_f64(double *p, double g, double *b, const double *x, int64_t t) {
    double d = x[MAXIMIZE] != 0 ? -g : g;
    if (x[WEIGHT_DECAY] != 0) {
        double decay = x[WEIGHT_DECAY] * *p;
        d = d + decay;
    }
    if (x[MOMENTUM] != 0) {
        double kept = x[MOMENTUM] * *b, added = (1 - x[DAMPENING]) * d;
        *b = t == 1 ? d : kept + added;
        double ahead = x[MOMENTUM] * *b;
        d = x[NESTEROV] != 0 ? d + ahead : *b;
    }
    double move = -x[LR] * d;
    *p = *p + move;
}

static void reference(table *s, const double *hyper) {
    for (int r = 0; r < ROWS; r++) {
        const cb_optim_row *row = &s->row[r];
        const double *x = hyper + (size_t)row->group * N_HYPER;
        for (int64_t i = 0; i < row->n; i++) {
            if (row->dtype == CB_F32) {
                reference_f32((float *)row->param + i, ((const float *)row->grad)[i],
                              (float *)row->state[0] + i, x, row->t);
            } else {
                reference_f64((double *)row->param + i, ((const double *)row->grad)[i],
                              (double *)row->state[0] + i, x, row->t);
            }
        }
    }
}

TEST(has_the_bits_of_the_formula) {
    for (size_t g = 0; g + 1 < GROUPS; g++) {
        table s, expect;
        table_init(&s);
        table_init(&expect);
        for (int64_t t = 1; t <= 4; t++) {
            for (int r = 0; r < ROWS; r++) s.row[r].t = expect.row[r].t = t;
            CHECK_OK(step_table(sgd, NULL, groups[g], 2, s.row, ROWS, &err));
            reference(&expect, groups[g]);
        }
        CHECK(same_bits(&s, &expect));
        table_free(&s);
        table_free(&expect);
    }
}

TEST(same_bits_for_any_number_of_threads) {
    for (size_t g = 0; g + 1 < GROUPS; g++) check_threads(sgd, groups[g], 2);
}

TEST(many_small_rows) { check_many_rows(sgd, groups[3], 1); }

TEST(without_momentum_there_is_no_state) {
    float p[2] = {1, 2}, g[2] = {0.5f, 0.25f};
    const cb_optim_row row = {.param = p, .grad = g, .n = 2, .t = 1, .dtype = CB_F32};
    CHECK(cb_optimizer_n_used(sgd, groups[0]) == 0 && cb_optimizer_n_used(sgd, groups[2]) == 1);
    CHECK_OK(step_table(sgd, NULL, groups[0], 1, &row, 1, &err));
    CHECK(p[0] == 1.0f - 0.1f * 0.5f && p[1] == 2.0f - 0.1f * 0.25f);
    CHECK_FAIL(step_table(sgd, NULL, groups[2], 1, &row, 1, &err), CB_INVALID,
               "row 0 has no momentum_buffer");
}

TEST(no_decay_reads_no_parameter) {
    float p = INFINITY, g = 0.5f;
    const cb_optim_row row = {.param = &p, .grad = &g, .n = 1, .t = 1, .dtype = CB_F32};
    CHECK_OK(step_table(sgd, NULL, groups[0], 1, &row, 1, &err));
    CHECK(isinf(p));
}

TEST(relations_are_checked) {
    double bad[2][N_HYPER] = {{0.1, 0.0, 0.0, 0.0, 1, 0}, {0.1, 0.9, 0.1, 0.0, 1, 0}};
    for (int i = 0; i < 2; i++) {
        CHECK_FAIL(step_table(sgd, NULL, bad[i], 1, NULL, 0, &err), CB_INVALID,
                   "nesterov needs a momentum and no dampening");
    }
    bad[0][NESTEROV] = 0;
    bad[0][MOMENTUM] = -0.5;
    CHECK_FAIL(step_table(sgd, NULL, bad[0], 1, NULL, 0, &err), CB_INVALID, "momentum=-0.5");
    bad[0][MOMENTUM] = 0;
    bad[0][DAMPENING] = NAN;
    CHECK_FAIL(step_table(sgd, NULL, bad[0], 1, NULL, 0, &err), CB_INVALID, "dampening=nan");
}

TEST(optimizers_by_name) {
    CHECK(cb_optimizer_find("sgd") == sgd && cb_optimizer_find("adamw") == &cb_optimizer_adamw);
    CHECK(!cb_optimizer_find("poem") && !cb_optimizer_find(NULL));
    for (uint32_t i = 0; cb_optimizer_at(i); i++) {
        const cb_optimizer *o = cb_optimizer_at(i);
        CHECK(cb_optimizer_find(cb_optimizer_name(o)) == o);
        CHECK(o->n_state <= CB_MAX_STATES);
        CHECK(!cb_optimizer_state_name(o, o->n_state) && !cb_optimizer_hyper_name(o, o->n_hyper));
    }
    CHECK(strcmp(cb_optimizer_state_name(sgd, 0), "momentum_buffer") == 0);
    CHECK(strcmp(cb_optimizer_hyper_name(sgd, MAXIMIZE), "maximize") == 0);
}

int main(void) {
    RUN(has_the_bits_of_the_formula);
    RUN(same_bits_for_any_number_of_threads);
    RUN(many_small_rows);
    RUN(without_momentum_there_is_no_state);
    RUN(no_decay_reads_no_parameter);
    RUN(relations_are_checked);
    RUN(optimizers_by_name);
    return check_report();
}
