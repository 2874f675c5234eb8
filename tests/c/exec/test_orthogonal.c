/* Muon and NorMuon against their formulas in double, with element-by-element products. */
#include "exec/cpu/gemm/products.h"
#include "optim/optimizers.h"
#include "optim/step.h"

#include "check.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 9, STEPS = 3, MOST = 70 * 300 };
typedef struct matrix {
    int64_t height, width;
    cb_dtype dtype;
    uint32_t group;
} matrix;
/* Wide and tall, single rows and columns, equal shapes that are not adjacent, several pieces, no
 * elements. */
static const matrix matrices[ROWS] = {{5, 7, CB_F32, 0}, {7, 5, CB_F32, 0},  {70, 300, CB_F32, 0},
                                      {5, 7, CB_F32, 0}, {5, 7, CB_F64, 0},  {1, 9, CB_F64, 1},
                                      {0, 9, CB_F32, 1}, {33, 1, CB_F32, 1}, {300, 70, CB_F64, 1}};
static const double muon[2][10] = {{0.02, 0.1, 0.95, 1, 3.4445, -4.7750, 2.0315, 1e-7, 5, 0},
                                   {0.02, 0.0, 0.5, 0, 2, -1.5, 0.5, 1e-7, 3, 1}};
static const double normuon[2][11] = {
    {0.02, 0.1, 0.95, 0, 3.4445, -4.7750, 2.0315, 1e-7, 5, 0.9, 1e-8},
    {0.02, 0.0, 0.5, 1, 2, -1.5, 0.5, 1e-7, 3, 0.5, 1e-3}};
static const cb_optim_products products = {cb_cpu_multiply, NULL};
static cb_alloc alloc;

typedef struct arrays { /* arrays of all rows, each in its own block */
    double *p, *g, *m, *v;
    cb_optim_row row;
} arrays;

static double get(const cb_optim_row *row, const void *data, int64_t i) {
    return row->dtype == CB_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void put(const cb_optim_row *row, const void *data, int64_t i, double x) {
    if (row->dtype == CB_F32) ((float *)(uintptr_t)data)[i] = (float)x;
    else ((double *)(uintptr_t)data)[i] = x;
}

static double value_at(int array, int64_t r, int64_t i) {
    const uint32_t x = (uint32_t)(i * 40503 + r * 977 + array * 131) * 2654435761u;
    return (double)(x >> 8) / (1 << 23) - 1;
}

static void arrays_init(arrays *all) {
    for (int r = 0; r < ROWS; r++) {
        const matrix *m = &matrices[r];
        arrays *x = &all[r];
        x->row = (cb_optim_row){.param = calloc(MOST, 8),
                                .grad = calloc(MOST, 8),
                                .state = {calloc(MOST, 8), calloc(MOST, 8)},
                                .n = m->height * m->width,
                                .height = m->height,
                                .width = m->width,
                                .dtype = m->dtype,
                                .group = m->group};
        double **twins[] = {&x->p, &x->g, &x->m, &x->v};
        for (int k = 0; k < 4; k++) *twins[k] = calloc(MOST, sizeof(double));
        for (int64_t i = 0; i < x->row.n; i++) {
            put(&x->row, x->row.param, i, value_at(9, r, i));
            x->p[i] = get(&x->row, x->row.param, i);
        }
    }
}

static void arrays_free(arrays *all) {
    for (int r = 0; r < ROWS; r++) {
        cb_optim_row *row = &all[r].row;
        void *const blocks[] = {row->param,    (void *)(uintptr_t)row->grad,
                                row->state[0], row->state[1],
                                all[r].p,      all[r].g,
                                all[r].m,      all[r].v};
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) free(blocks[k]);
    }
}

static void draw(arrays *all, int t) {
    for (int r = 0; r < ROWS; r++) {
        cb_optim_row *row = &all[r].row;
        row->t = t;
        row->n = r == 3 && t == 2 ? 0 : row->height * row->width; /* one row has no gradient yet */
        for (int64_t i = 0; i < row->n; i++) {
            put(row, row->grad, i, r == 3 && t == 1 ? 0 : value_at(t, r, i));
            all[r].g[i] = get(row, row->grad, i);
        }
    }
}

/* ---- the papers ------------------------------------------------------------------------------ */

/* Makes one iteration on x [h, w], by columns of x x^T and of its square. */
static void twin_turn(const double *c, double *x, int64_t h, int64_t w) {
    double *gram = calloc((size_t)(h * h), sizeof *gram), *y = calloc((size_t)(h * w), sizeof *y);
    double *line = calloc((size_t)h, sizeof *line);
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < h; j++)
            for (int64_t k = 0; k < w; k++) gram[i * h + j] += x[i * w + k] * x[j * w + k];
    for (int64_t i = 0; i < h; i++) {
        for (int64_t j = 0; j < h; j++) {
            double square = 0;
            for (int64_t k = 0; k < h; k++) square += gram[i * h + k] * gram[k * h + j];
            line[j] = c[1] * gram[i * h + j] + c[2] * square;
        }
        for (int64_t k = 0; k < w; k++) {
            y[i * w + k] = c[0] * x[i * w + k];
            for (int64_t j = 0; j < h; j++) y[i * w + k] += line[j] * x[j * w + k];
        }
    }
    memcpy(x, y, (size_t)(h * w) * sizeof *x);
    free(gram);
    free(y);
    free(line);
}

static double norm_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static void twin_step(arrays *a, const double *h, bool has_rows) {
    const int64_t n = a->row.n, height = a->row.height, width = a->row.width;
    double *x = calloc(MOST, sizeof *x), size;
    if (n == 0) {
        free(x);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        a->m[i] = h[2] * a->m[i] + (1 - h[2]) * a->g[i];
        x[i] = h[3] != 0 ? h[2] * a->m[i] + (1 - h[2]) * a->g[i] : a->m[i];
    }
    const double norm = fmax(norm_of(x, n), h[7]);
    for (int64_t i = 0; i < n; i++) x[i] /= norm;
    for (int t = 0; t < (int)h[8]; t++) twin_turn(h + 4, x, height, width);
    size = h[0] * sqrt(fmax(1, (double)height / (double)width));
    if (!has_rows && h[9] != 0) size = h[0] * 0.2 * sqrt(fmax((double)height, (double)width));
    for (int64_t r = 0; has_rows && r < height; r++) {
        const double length = norm_of(x + r * width, width);
        a->v[r] = h[9] * a->v[r] + (1 - h[9]) * length * length / (double)width;
        for (int64_t i = 0; i < width; i++) x[r * width + i] /= sqrt(a->v[r]) + h[10];
    }
    const double length = norm_of(x, n);
    if (has_rows) size = length > 0 ? h[0] * 0.2 * sqrt((double)n) / length : 0;
    for (int64_t i = 0; i < n; i++) a->p[i] = a->p[i] * (1 - h[0] * h[1]) - size * x[i];
    free(x);
}

/* Checks that f32 is within 300 * 2^-24 of the largest magnitude (at least 1), and f64 within 300 *
 * 2^-53, after three steps with products of length 300. */
static void check_twin(const arrays *a, bool has_rows) {
    const double most = a->row.dtype == CB_F32 ? 300 * 0x1p-24 : 300 * 0x1p-53;
    double worst = 0;
    for (int64_t i = 0; i < a->row.n; i++) {
        worst = fmax(worst, fabs(get(&a->row, a->row.param, i) - a->p[i]));
        worst = fmax(worst, fabs(get(&a->row, a->row.state[0], i) - a->m[i]));
    }
    for (int64_t i = 0; has_rows && i < a->row.height && a->row.n; i++)
        worst = fmax(worst, fabs(get(&a->row, a->row.state[1], i) - a->v[i]));
    CHECK(worst <= most);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_optimizer(const cb_optimizer *o, const double *hyper, bool has_rows) {
    arrays first[ROWS];
    for (int threads = 1; threads <= 3; threads++) {
        arrays all[ROWS];
        cb_threads *pool = NULL;
        cb_tensor_table *t = NULL;
        CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        CHECK_OK(cb_table_new(&alloc, &pool, o, ROWS, &t, &err));
        cb_table_use(t, &products);
        arrays_init(all);
        for (int step = 1; step <= STEPS; step++) {
            draw(all, step);
            for (uint32_t r = 0; r < ROWS; r++) cb_tensor_table_set(t, r, &all[r].row);
            CHECK_OK(cb_tensor_table_step(t, hyper, 2, &err));
            for (int r = 0; threads == 1 && r < ROWS; r++)
                twin_step(&all[r], hyper + all[r].row.group * o->n_hyper, has_rows);
        }
        for (int r = 0; r < ROWS; r++) {
            if (threads == 1) check_twin(&all[r], has_rows);
            else CHECK(memcmp(all[r].row.param, first[r].row.param, MOST * 8) == 0);
        }
        cb_tensor_table_free(t);
        cb_threads_free(pool);
        if (threads == 1) memcpy(first, all, sizeof all);
        else arrays_free(all);
    }
    arrays_free(first);
}

TEST(muon_is_its_formula) { check_optimizer(&cb_optimizer_muon, muon[0], false); }
TEST(normuon_is_its_formula) { check_optimizer(&cb_optimizer_normuon, normuon[0], true); }

TEST(what_is_no_matrix_is_refused) {
    float p[6] = {0}, g[6] = {0}, m[6] = {0};
    cb_threads *pool = NULL;
    cb_tensor_table *t = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_muon, 1, &t, &err));
    cb_optim_row row = {.param = p, .grad = g, .state = {m}, .n = 6, .t = 1, .dtype = CB_F32};
    row.height = 2;
    row.width = 3;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, muon[0], 1, &err), CB_INTERNAL, "has no matrix products");
    cb_table_use(t, &products);
    CHECK_OK(cb_tensor_table_step(t, muon[0], 1, &err));
    row.height = 4;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, muon[0], 1, &err), CB_INVALID, "matrices of 4 x 3");
    row.width = 0;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, muon[0], 1, &err), CB_INVALID, "matrices of 4 x 0");
    row.dtype = CB_BF16;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, muon[0], 1, &err), CB_UNSUPPORTED, "f32 and f64 parameters");
    double turns[10];
    memcpy(turns, muon[0], sizeof turns);
    turns[8] = 2.5;
    CHECK_FAIL(cb_tensor_table_step(t, turns, 1, &err), CB_INVALID, "ns_steps=2.5");
    CHECK_FAIL(step_rows(&cb_optimizer_muon, NULL, muon[0], 1, &row, 0, &err), CB_UNSUPPORTED,
               "needs scratch memory");
    cb_tensor_table_free(t);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(muon_is_its_formula);
    RUN(normuon_is_its_formula);
    RUN(what_is_no_matrix_is_refused);
    return check_report();
}
