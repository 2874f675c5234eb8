#include "optim/adamw.h"

#include "check.h"

#include <stdlib.h>

#define ROWS 7
#define BIG 40000 /* several tasks */

/* Small rows around a big one, two dtypes, one row empty. */
static const int64_t sizes[ROWS] = {3, 0, 1, BIG, 17, 5, 16384};
static const cb_dtype dtypes[ROWS] = {CB_F32, CB_F32, CB_F64, CB_F32, CB_F64, CB_F32, CB_F64};
static const cb_adamw_group groups[2] = {
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
    {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.0},
};

typedef struct state {
    char *block[4]; /* param, grad, m, v: all rows behind each other, 8 bytes an element */
    size_t bytes;
    cb_adamw_row row[ROWS];
} state;

static double value_at(int array, size_t i) {
    double x = (double)((i * 2654435761u + (size_t)array * 97) % 20001) / 10000.0 - 1.0;
    return array == 3 ? x * x : x;
}

static double get(const cb_adamw_row *row, const void *data, int64_t i) {
    return row->dtype == CB_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void put(const cb_adamw_row *row, void *data, int64_t i, double x) {
    if (row->dtype == CB_F32) {
        ((float *)data)[i] = (float)x;
    } else {
        ((double *)data)[i] = x;
    }
}

static void state_init(state *s) {
    s->bytes = 0;
    for (int r = 0; r < ROWS; r++) s->bytes += 8 * (size_t)sizes[r];
    for (int k = 0; k < 4; k++) s->block[k] = calloc(1, s->bytes);
    size_t at = 0;
    for (int r = 0; r < ROWS; r++) {
        s->row[r] = (cb_adamw_row){.param = s->block[0] + at,
                                   .grad = s->block[1] + at,
                                   .m = s->block[2] + at,
                                   .v = s->block[3] + at,
                                   .n = sizes[r],
                                   .dtype = dtypes[r],
                                   .group = (uint32_t)r % 2};
        for (int64_t i = 0; i < sizes[r]; i++) {
            for (int k = 0; k < 4; k++)
                put(&s->row[r], s->block[k] + at, i, value_at(k, at + (size_t)i));
        }
        at += 8 * (size_t)sizes[r];
    }
}

static void state_free(state *s) {
    for (int k = 0; k < 4; k++) free(s->block[k]);
}

/* The formula of the header, in double. */
static void reference(double *p, double g, double *m, double *v, const cb_adamw_group *x,
                      int64_t t) {
    *p = *p * (1 - x->lr * x->weight_decay);
    *m = x->beta1 * *m + (1 - x->beta1) * g;
    *v = x->beta2 * *v + (1 - x->beta2) * g * g;
    double m_hat = *m / (1 - pow(x->beta1, (double)t)), v_hat = *v / (1 - pow(x->beta2, (double)t));
    *p -= x->lr * m_hat / (sqrt(v_hat) + x->eps);
}

TEST(agrees_with_the_formula) {
    state s, before;
    state_init(&s);
    state_init(&before);
    CHECK_OK(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 3, &err));
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        const cb_adamw_row *old = &before.row[r], *now = &s.row[r];
        double scale =
            now->dtype == CB_F32 ? 1e6 : 1e13; /* errors in units that f32 and f64 share */
        for (int64_t i = 0; i < sizes[r]; i++) {
            double p = get(old, old->param, i), m = get(old, old->m, i), v = get(old, old->v, i);
            reference(&p, get(old, old->grad, i), &m, &v, &groups[old->group], 3);
            worst = fmax(worst, scale * fabs(p - get(now, now->param, i)));
            worst = fmax(worst, scale * fabs(m - get(now, now->m, i)));
            worst = fmax(worst, scale * fabs(v - get(now, now->v, i)));
            CHECK(get(old, old->grad, i) == get(now, now->grad, i));
        }
    }
    CHECK(worst < 1.0);
    state_free(&s);
    state_free(&before);
}

TEST(same_bits_for_any_number_of_threads) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    state inline_state;
    state_init(&inline_state);
    for (int64_t t = 1; t <= 3; t++)
        CHECK_OK(cb_adamw_step(NULL, groups, 2, inline_state.row, ROWS, t, &err));
    for (int threads = 1; threads <= 4; threads++) {
        cb_threads *pool = NULL;
        CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        state s;
        state_init(&s);
        for (int64_t t = 1; t <= 3; t++)
            CHECK_OK(cb_adamw_step(pool, groups, 2, s.row, ROWS, t, &err));
        for (int k = 0; k < 4; k++) CHECK(memcmp(s.block[k], inline_state.block[k], s.bytes) == 0);
        state_free(&s);
        cb_threads_free(pool);
    }
    state_free(&inline_state);
}

TEST(many_small_rows) {
    enum { N = 3000 }; /* more rows than anchors */
    static float array[4][2 * N], expect[4][2 * N];
    static cb_adamw_row rows[N];
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < 2 * N; i++) array[k][i] = expect[k][i] = (float)value_at(k, i);
    }
    size_t at = 0;
    for (int r = 0; r < N; r++) {
        int64_t n = r % 3; /* 0, 1 or 2 elements */
        rows[r] = (cb_adamw_row){
            array[0] + at, array[1] + at, array[2] + at, array[3] + at, n, CB_F32, 0};
        at += (size_t)n;
    }
    CHECK_OK(cb_adamw_step(NULL, groups, 1, rows, N, 1, &err));
    const cb_adamw_row whole = {expect[0], expect[1], expect[2], expect[3], (int64_t)at, CB_F32, 0};
    CHECK_OK(cb_adamw_step(NULL, groups, 1, &whole, 1, 1, &err));
    CHECK(memcmp(array, expect, sizeof array) == 0);
}

TEST(mistakes_touch_nothing) {
    state s, before;
    state_init(&s);
    state_init(&before);
    cb_adamw_group bad = groups[0];
    CHECK_FAIL(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 0, &err), CB_INVALID, "counts from 1");
    bad.lr = NAN;
    CHECK_FAIL(cb_adamw_step(NULL, &bad, 1, s.row, 1, 1, &err), CB_INVALID, "lr=nan");
    bad = groups[0];
    bad.beta1 = 1.0;
    CHECK_FAIL(cb_adamw_step(NULL, &bad, 1, s.row, 1, 1, &err), CB_INVALID, "beta1=1");
    bad = groups[0];
    bad.eps = -1.0;
    CHECK_FAIL(cb_adamw_step(NULL, &bad, 1, s.row, 1, 1, &err), CB_INVALID, "eps=-1");
    CHECK_FAIL(cb_adamw_step(NULL, groups, 1, s.row, ROWS, 1, &err), CB_INVALID,
               "row 1 is in group 1");

    cb_adamw_row *last = &s.row[ROWS - 1], kept = *last;
    last->dtype = CB_BF16;
    CHECK_FAIL(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 1, &err), CB_UNSUPPORTED,
               "row 6 is bf16");
    *last = kept;
    last->grad = NULL;
    CHECK_FAIL(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 1, &err), CB_INVALID, "has no grad");
    *last = kept;
    last->v = (char *)last->param + 8;
    CHECK_FAIL(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 1, &err), CB_INVALID,
               "param and v share memory");
    *last = kept;
    last->m = (char *)last->m + 1;
    CHECK_FAIL(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 1, &err), CB_INVALID, "not aligned");
    *last = kept;
    last->n = -1;
    CHECK_FAIL(cb_adamw_step(NULL, groups, 2, s.row, ROWS, 1, &err), CB_INVALID, "-1 elements");
    for (int k = 0; k < 4; k++) CHECK(memcmp(s.block[k], before.block[k], s.bytes) == 0);
    state_free(&s);
    state_free(&before);
    CHECK_OK(cb_adamw_step(NULL, NULL, 0, NULL, 0, 1, &err));
}

TEST(nan_spreads_to_its_own_element_alone) {
    float p[4] = {1, 2, 3, 4}, g[4] = {0, NAN, 1, INFINITY}, m[4] = {0}, v[4] = {0};
    const cb_adamw_row row = {p, g, m, v, 4, CB_F32, 0};
    CHECK_OK(cb_adamw_step(NULL, groups, 1, &row, 1, 1, &err));
    CHECK(isfinite(p[0]) && isnan(p[1]) && isfinite(p[2]) && isnan(p[3]));
    CHECK(p[0] == 1.0f * (float)(1 - 1e-2 * 0.1)); /* zero gradient: decay alone */
}

int main(void) {
    RUN(agrees_with_the_formula);
    RUN(same_bits_for_any_number_of_threads);
    RUN(many_small_rows);
    RUN(mistakes_touch_nothing);
    RUN(nan_spreads_to_its_own_element_alone);
    return check_report();
}
