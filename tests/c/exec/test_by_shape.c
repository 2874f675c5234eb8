/* Adafactor and SOAP, whose state sizes depend on the shapes of rows: Adafactor against its
 * formula, SOAP by the properties of its bases, both with any number of threads. The rest is
 * compared with NumPy. */
#include "exec/cpu/gemm/products.h"
#include "optim/optimizers.h"
#include "optim/table.h"

#include "check.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 7, STEPS = 4 };
typedef struct kind {
    int64_t n, height, width;
    cb_dtype dtype;
} kind;
/* No axes, empty axes, several matrices, small ones, bands of lines, wide and tall. */
static const kind kinds[ROWS] = {{1, 0, 0, CB_F32},
                                 {40, 0, 0, CB_F64},
                                 {24, 4, 3, CB_F64},
                                 {90000, 2, 3, CB_F32},
                                 {70 * 1200, 70, 1200, CB_F32},
                                 {70000, 70000, 1, CB_F64},
                                 {33 * 40, 33, 40, CB_F64}};
static const double adafactor[7] = {0.05, -0.7, -1, 1e-3, 1.5, 0.1, 1};
static const double soap[8] = {0.02, 0.9, 0.95, 0.9, 1e-8, 0.1, 2, 50};
static const cb_optim_products products = {cb_cpu_multiply, NULL};
static cb_alloc alloc;

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

/* Allocates arrays of exactly the size needed, so that a sanitizer checks their bounds. */
static void rows_init(const cb_optimizer *o, const double *hyper, cb_optim_row *rows) {
    for (int r = 0; r < ROWS; r++) {
        const kind *k = &kinds[r];
        cb_optim_row *row = &rows[r];
        *row = (cb_optim_row){.n = k->n, .height = k->height, .width = k->width, .dtype = k->dtype};
        /* the first axis by the product of the others */
        if (o->axes == CB_AXES_FIRST && k->height) row->width = k->n / k->height;
        row->param = calloc((size_t)k->n, cb_dtype_size(k->dtype));
        row->grad = calloc((size_t)k->n, cb_dtype_size(k->dtype));
        for (int64_t i = 0; i < k->n; i++) put(row, row->param, i, value_at(9, r, i));
        for (uint32_t s = 0; s < o->n_state; s++) {
            const uint64_t bytes = cb_optim_state_bytes(o, s, hyper, row);
            row->state[s] = bytes ? calloc(1, bytes) : NULL;
        }
    }
}

static void rows_free(cb_optim_row *rows) {
    for (int r = 0; r < ROWS; r++) {
        free(rows[r].param);
        free((void *)(uintptr_t)rows[r].grad);
        for (int s = 0; s < CB_MAX_STATES; s++) free(rows[r].state[s]);
    }
}

static void draw(cb_optim_row *rows, int t) {
    for (int r = 0; r < ROWS; r++) {
        rows[r].t = t;
        for (int64_t i = 0; i < rows[r].n; i++) put(&rows[r], rows[r].grad, i, value_at(t, r, i));
    }
}

/* ---- the paper ------------------------------------------------------------------------------- */

typedef struct twin {
    double *p, *v; /* [n] */
    double *row, *column;
} twin;

static void twin_init(twin *x, const cb_optim_row *row) {
    double **all[] = {&x->p, &x->v, &x->row, &x->column};
    for (int k = 0; k < 4; k++) *all[k] = calloc((size_t)row->n, sizeof(double));
    for (int64_t i = 0; i < row->n; i++) x->p[i] = get(row, row->param, i);
}

static void twin_free(twin *x) {
    free(x->p);
    free(x->v);
    free(x->row);
    free(x->column);
}

static void matrix_means(twin *x, const cb_optim_row *row, int64_t at, double share, double least) {
    const int64_t h = row->height, w = row->width, m = at / (h * w);
    double *r = x->row + m * h, *c = x->column + m * w, mean = 0;
    for (int64_t i = 0; i < h; i++) r[i] *= 1 - share;
    for (int64_t j = 0; j < w; j++) c[j] *= 1 - share;
    for (int64_t i = 0; i < h * w; i++) {
        const double g = get(row, row->grad, at + i);
        r[i / w] += share * g * g / (double)w;
        c[i % w] += share * g * g / (double)h;
    }
    for (int64_t i = 0; i < h; i++) mean += r[i] / (double)h;
    for (int64_t i = 0; i < h * w; i++) x->v[at + i] = r[i / w] * c[i % w] / fmax(mean, least);
}

static void twin_step(twin *x, const cb_optim_row *row, const double *h) {
    const double least = row->dtype == CB_F32 ? 0x1p-23 : 0x1p-52, t = (double)row->t;
    const double share = pow(t, h[1]), n = (double)row->n;
    double weights = 0, size = 0;
    for (int64_t i = 0; i < row->n; i++) {
        const double g = get(row, row->grad, i);
        weights += x->p[i] * x->p[i];
        if (row->height == 0) x->v[i] += share * (g * g - x->v[i]);
    }
    for (int64_t at = 0; row->height && at < row->n; at += row->height * row->width)
        matrix_means(x, row, at, share, least);
    for (int64_t i = 0; i < row->n; i++)
        size += pow(get(row, row->grad, i), 2) / fmax(x->v[i], least * least);
    const double alpha = fmax(h[3], sqrt(weights / n)) * fmin(h[0], 1 / sqrt(t));
    const double rate = alpha / fmax(1, sqrt(size / n) / h[4]);
    for (int64_t i = 0; i < row->n; i++) { /* it maximizes */
        const double u = -get(row, row->grad, i) / sqrt(fmax(x->v[i], least * least));
        x->p[i] = x->p[i] * (1 - h[0] * h[5]) - rate * u;
    }
}

static void check_twin(const twin *x, const cb_optim_row *row) {
    double worst = 0;
    for (int64_t i = 0; i < row->n; i++)
        worst = fmax(worst, fabs(get(row, row->param, i) - x->p[i]));
    CHECK(worst <= (row->dtype == CB_F32 ? 64 * 0x1p-24 : 64 * 0x1p-50));
}

/* Checks that the rows of the bases are orthonormal. */
static void check_bases(const cb_optim_row *row) {
    const int64_t sides[2] = {row->height, row->width};
    double worst = 0;
    for (int k = 0; k < 2; k++) {
        const int64_t n = sides[k];
        for (int64_t i = 0; row->state[2 + k] && i < n * n; i++) {
            double sum = i / n == i % n ? -1 : 0;
            for (int64_t j = 0; j < n; j++)
                sum += get(row, row->state[2 + k], n * n + i / n * n + j) *
                       get(row, row->state[2 + k], n * n + i % n * n + j);
            worst = fmax(worst, fabs(sum));
        }
    }
    CHECK(worst <= (row->dtype == CB_F32 ? 64 * 0x1p-23 : 64 * 0x1p-52));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_optimizer(const cb_optimizer *o, const double *hyper, bool is_soap) {
    cb_optim_row first[ROWS];
    for (int threads = 1; threads <= 3; threads++) {
        cb_optim_row rows[ROWS];
        twin twins[ROWS];
        cb_threads *pool = NULL;
        cb_tensor_table *t = NULL;
        CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        CHECK_OK(cb_table_new(&alloc, &pool, o, ROWS, &t, &err));
        cb_table_use(t, &products);
        rows_init(o, hyper, rows);
        for (int r = 0; r < ROWS; r++) twin_init(&twins[r], &rows[r]);
        for (int step = 1; step <= STEPS; step++) {
            draw(rows, step);
            for (uint32_t r = 0; r < ROWS; r++) cb_tensor_table_set(t, r, &rows[r]);
            for (int r = 0; r < ROWS && !is_soap; r++) twin_step(&twins[r], &rows[r], hyper);
            CHECK_OK(cb_tensor_table_step(t, hyper, 1, &err));
        }
        for (int r = 0; r < ROWS; r++) {
            const size_t bytes = (size_t)rows[r].n * cb_dtype_size(rows[r].dtype);
            if (is_soap) check_bases(&rows[r]);
            else check_twin(&twins[r], &rows[r]);
            if (threads > 1) CHECK(memcmp(rows[r].param, first[r].param, bytes) == 0);
            twin_free(&twins[r]);
        }
        cb_tensor_table_free(t);
        cb_threads_free(pool);
        if (threads == 1) memcpy(first, rows, sizeof rows);
        else rows_free(rows);
    }
    rows_free(first);
}

TEST(adafactor_is_its_formula) { check_optimizer(&cb_optimizer_adafactor, adafactor, false); }
TEST(soap_s_bases_are_orthonormal) { check_optimizer(&cb_optimizer_soap, soap, true); }

TEST(longer_sides_need_states) {
    float p[6] = {0}, g[6] = {0}, m[6] = {0}, v[6] = {0}, left[8] = {0};
    cb_threads *pool = NULL;
    cb_tensor_table *t = NULL;
    double hyper[8];
    cb_optim_row row = {.param = p,
                        .grad = g,
                        .state = {m, v, left},
                        .n = 6,
                        .height = 2,
                        .width = 3,
                        .t = 1,
                        .dtype = CB_F32};
    memcpy(hyper, soap, sizeof hyper);
    hyper[7] = 2;
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_soap, 1, &t, &err));
    cb_table_use(t, &products);
    cb_tensor_table_set(t, 0, &row);
    CHECK_OK(cb_tensor_table_step(t, hyper, 1, &err));
    hyper[7] = 3;
    CHECK_FAIL(cb_tensor_table_step(t, hyper, 1, &err), CB_INVALID, "row 0 has no right");
    cb_tensor_table_free(t);
}

TEST(what_does_not_fit_is_refused) {
    float p[6] = {0}, g[6] = {0}, r[2] = {0}, c[3] = {0};
    double hyper[7];
    cb_threads *pool = NULL;
    cb_tensor_table *t = NULL;
    cb_optim_row row = {.param = p,
                        .grad = g,
                        .state = {r, c},
                        .n = 6,
                        .height = 2,
                        .width = 3,
                        .t = 1,
                        .dtype = CB_F32};
    CHECK_OK(cb_table_new(&alloc, &pool, &cb_optimizer_adafactor, 1, &t, &err));
    cb_tensor_table_set(t, 0, &row);
    CHECK_OK(cb_tensor_table_step(t, adafactor, 1, &err));
    memcpy(hyper, adafactor, sizeof hyper);
    hyper[2] = -0.5;
    CHECK_FAIL(cb_tensor_table_step(t, hyper, 1, &err), CB_INVALID, "eps1=-0.5; it must be >= 0");
    row.state[1] = p + 3;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adafactor, 1, &err), CB_INVALID, "share memory");
    row.state[1] = c;
    row.height = 4;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adafactor, 1, &err), CB_INVALID, "matrices of 4 x 3");
    row.height = row.width = 0;
    cb_tensor_table_set(t, 0, &row);
    CHECK_FAIL(cb_tensor_table_step(t, adafactor, 1, &err), CB_INVALID, "row 0 has no variance");
    cb_tensor_table_free(t);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(adafactor_is_its_formula);
    RUN(soap_s_bases_are_orthonormal);
    RUN(longer_sides_need_states);
    RUN(what_does_not_fit_is_refused);
    return check_report();
}
