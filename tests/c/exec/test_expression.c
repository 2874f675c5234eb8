/* Optimizers written by the caller: AdamW against the built-in one, another against sums in double,
 * and refusals. */
#include "exec/cpu/expression/expression.h"

#include <math.h>

#include "base/cpu.h"
#include "optim/optimizers.h"
#include "optim/step.h"

#include "check.h"

enum { ROWS = 9, MOST = 70000, ARRAYS = 4 };

static const int64_t sizes[ROWS] = {3, 0, 64, 1, MOST, 100, 16384, 16385, 1000};
static cb_alloc alloc;
static cb_threads *pool;

/* ---- writing an optimizer -------------------------------------------------------------------- */

typedef struct text {
    cb_expression_node node[128];
    uint32_t n, out[1 + CB_MAX_STATES];
} text;

static uint32_t put(text *t, const char *op, uint32_t a, uint32_t b, uint32_t c) {
    t->node[t->n] = (cb_expression_node){.op = op, .in = {a, b, c}};
    return t->n++;
}
static uint32_t constant(text *t, double x) {
    t->node[t->n] = (cb_expression_node){.op = "constant", .value = x};
    return t->n++;
}
static uint32_t two(text *t, const char *op, uint32_t a, uint32_t b) { return put(t, op, a, b, 0); }
static uint32_t one(text *t, const char *op, uint32_t a) { return put(t, op, a, 0, 0); }

static const char *const state_names[] = {"m", "v", "a", "b", "c"};
static const char *const hyper_names[] = {"lr", "beta1", "beta2", "eps", "weight_decay"};

static cb_status make(const text *t, uint32_t n_states, cb_expression **out, cb_error *error) {
    const cb_expression_spec spec = {.name = "mine",
                                     .states = state_names,
                                     .hyper = hyper_names,
                                     .nodes = t->node,
                                     .out = t->out,
                                     .n_states = n_states,
                                     .n_hyper = 5,
                                     .n_nodes = t->n};
    return cb_expression_make(&alloc, &spec, out, error);
}

/* Writes AdamW in the order of adam_loop (formulas_impl.h), with its factors (adam.c). */
static void write_adamw(text *t) {
    uint32_t p = put(t, "param", 0, 0, 0), g = put(t, "grad", 0, 0, 0);
    uint32_t m = put(t, "state", 0, 0, 0), v = put(t, "state", 1, 0, 0), h[5];
    for (uint32_t k = 0; k < 5; k++) h[k] = put(t, "hyper", k, 0, 0);
    uint32_t step = put(t, "t", 0, 0, 0), c1 = constant(t, 1);
    uint32_t bias1 = two(t, "sub", c1, two(t, "pow", h[1], step));
    uint32_t bias2 = two(t, "sub", c1, two(t, "pow", h[2], step));
    uint32_t a1 = two(t, "sub", c1, h[1]), a2 = two(t, "sub", c1, h[2]);
    uint32_t m_new = two(t, "add", m, two(t, "mul", a1, two(t, "sub", g, m)));
    uint32_t square = two(t, "mul", two(t, "mul", a2, g), g);
    uint32_t v_new = two(t, "add", two(t, "mul", h[2], v), square);
    uint32_t root = two(t, "div", c1, one(t, "sqrt", bias2));
    uint32_t below = two(t, "add", two(t, "mul", one(t, "sqrt", v_new), root), h[3]);
    uint32_t rate = two(t, "div", h[0], bias1);
    uint32_t keep = two(t, "sub", c1, two(t, "mul", h[0], h[4]));
    uint32_t moved = two(t, "div", two(t, "mul", rate, m_new), below);
    t->out[0] = two(t, "sub", two(t, "mul", p, keep), moved);
    t->out[1] = m_new;
    t->out[2] = v_new;
}

/* Writes u = p + g, unit = u / |u|; p <- p - lr mean(unit p) u, m <- unit. One sum depends on
 * another, and one is divided by the size. */
static void write_scaled(text *t) {
    uint32_t p = put(t, "param", 0, 0, 0), g = put(t, "grad", 0, 0, 0),
             lr = put(t, "hyper", 0, 0, 0);
    uint32_t u = two(t, "add", p, g), n = put(t, "size", 0, 0, 0);
    uint32_t norm = one(t, "sqrt", one(t, "sum", two(t, "mul", u, u)));
    uint32_t unit = two(t, "div", u, norm);
    uint32_t mean = two(t, "div", one(t, "sum", two(t, "mul", unit, p)), n);
    t->out[0] = two(t, "sub", p, two(t, "mul", two(t, "mul", lr, mean), u));
    t->out[1] = unit;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct rows {
    float array[ARRAYS][ROWS][MOST + 3];
    cb_optim_row row[ROWS];
} rows;

static float value_at(int array, size_t i) {
    double x = (double)((i * 2654435761u + (size_t)array * 97) % 20001) / 10000.0 - 1.0;
    return (float)(array == 3 ? x * x : x);
}

static void fill(rows *x) {
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < ARRAYS; k++) {
            for (size_t i = 0; i < MOST + 3; i++)
                x->array[k][r][i] = value_at(k, i + (size_t)r * 7);
        }
        x->row[r] = (cb_optim_row){.param = x->array[0][r] + r % 3, /* every alignment */
                                   .grad = x->array[1][r] + r % 2,
                                   .state = {x->array[2][r], x->array[3][r] + r % 3},
                                   .n = sizes[r],
                                   .t = 1 + r % 2,
                                   .dtype = CB_F32,
                                   .group = (uint32_t)r % 2};
    }
}

static void step(rows *x, const cb_optimizer *o, const double *hyper) {
    cb_tensor_table *table = NULL;
    CHECK_OK(cb_table_new(&alloc, &pool, o, ROWS, &table, &err));
    for (uint32_t r = 0; r < ROWS; r++) cb_tensor_table_set(table, r, &x->row[r]);
    uint64_t n_alloc = 0;
    for (int k = 0; k < 2; k++) {
        if (k == 1) n_alloc = atomic_load(&alloc.n_alloc);
        CHECK_OK(cb_tensor_table_step(table, hyper, 2, &err));
        CHECK(k == 0 || atomic_load(&alloc.n_alloc) == n_alloc);
        for (uint32_t r = 0; r < ROWS; r++) {
            x->row[r].t++;
            cb_tensor_table_set(table, r, &x->row[r]);
        }
    }
    cb_tensor_table_free(table);
}

static rows first, second;
static const double numbers[2][5] = {{1e-2, 0.9, 0.999, 1e-8, 0.1}, {1e-3, 0.8, 0.99, 1e-6, 0.0}};

TEST(an_optimizer_that_is_written_has_the_bits_of_the_one_that_is_there) {
    static const double adamw[2][7] = {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0, 0},
                                       {1e-3, 0.8, 0.99, 1e-6, 0.0, 0, 0}};
    fill(&first);
    step(&first, &cb_optimizer_adamw, adamw[0]);
    for (int threads = 0; threads <= 3; threads++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)(threads % CB_ISA_COUNT)), 1);
        if (threads) CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        text t = {0};
        cb_expression *x = NULL;
        write_adamw(&t);
        CHECK_OK(make(&t, 2, &x, &err));
        fill(&second);
        step(&second, cb_expression_optimizer(x), numbers[0]);
        CHECK(memcmp(first.array, second.array, sizeof first.array) == 0);
        cb_expression_free(x);
        cb_threads_free(pool);
        pool = NULL;
    }
    unsetenv("CUTBACK_ISA");
}

static void check_scaled(const cb_optim_row *row, const float *p, const float *g, int r) {
    double square = 0, sum = 0;
    for (int64_t i = 0; i < row->n; i++) square += ((double)p[i] + g[i]) * ((double)p[i] + g[i]);
    for (int64_t i = 0; i < row->n; i++) sum += ((double)p[i] + g[i]) / sqrt(square) * p[i];
    for (int64_t i = 0; i < row->n; i++) {
        double u = (double)p[i] + g[i];
        double expect = p[i] - numbers[r % 2][0] * (sum / (double)row->n) * u;
        CHECK(fabs(((float *)row->param)[i] - expect) <= 1e-6);
        CHECK(fabs(((float *)row->state[0])[i] - u / sqrt(square)) <= 1e-6);
    }
}

TEST(sums_over_a_tensor_are_those_in_double_and_the_same_for_any_threads) {
    for (int threads = 0; threads <= 3; threads++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)(threads % CB_ISA_COUNT)), 1);
        if (threads) CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        text t = {0};
        cb_expression *x = NULL;
        write_scaled(&t);
        CHECK_OK(make(&t, 1, &x, &err));
        rows *now = threads ? &second : &first;
        fill(now);
        cb_tensor_table *table = NULL;
        CHECK_OK(cb_table_new(&alloc, &pool, cb_expression_optimizer(x), ROWS, &table, &err));
        for (uint32_t r = 0; r < ROWS; r++) cb_tensor_table_set(table, r, &now->row[r]);
        CHECK_OK(cb_tensor_table_step(table, numbers[0], 2, &err));
        cb_tensor_table_free(table);
        if (!threads) {
            fill(&second);
            for (int r = 0; r < ROWS; r++)
                check_scaled(&first.row[r], second.row[r].param, second.row[r].grad, r);
        }
        if (threads) CHECK(memcmp(first.array, second.array, sizeof first.array) == 0);
        cb_expression_free(x);
        cb_threads_free(pool);
        pool = NULL;
    }
    unsetenv("CUTBACK_ISA");
}

TEST(arrays_change_places) {
    text t = {0};
    cb_expression *x = NULL;
    uint32_t p = put(&t, "param", 0, 0, 0), m = put(&t, "state", 0, 0, 0);
    t.out[0] = m, t.out[1] = p;
    CHECK_OK(make(&t, 1, &x, &err));
    float a[70], b[70], g[70] = {0};
    for (int i = 0; i < 70; i++) a[i] = (float)i, b[i] = (float)-i;
    const cb_optim_row row = {
        .param = a, .grad = g, .state = {b}, .n = 70, .t = 1, .dtype = CB_F32};
    CHECK_OK(step_rows(cb_expression_optimizer(x), NULL, numbers[0], 1, &row, 1, &err));
    for (int i = 0; i < 70; i++) CHECK(a[i] == (float)-i && b[i] == (float)i);
    cb_expression_free(x);
}

TEST(what_is_no_formula_is_refused) {
    cb_expression *x = NULL;
    text t = {0};
    uint32_t p = put(&t, "param", 0, 0, 0), c = constant(&t, 2);
    t.out[0] = p;
    text again = t;
    put(&t, "cube", p, 0, 0);
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "mine: node 2, cube, is not a known operation");
    t = again, put(&t, "add", p, 2, 0);
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID,
               "node 2, add, reads a node that does not precede it");
    t = again, two(&t, "pow", p, c);
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "pow, takes numbers, not arrays");
    t = again, one(&t, "sum", c);
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "sums a value that is already a single number");
    t = again, put(&t, "state", 0, 0, 0);
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "state, is not one of the states");
    t = again, put(&t, "hyper", 5, 0, 0);
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "hyper, is not one of the numbers");
    t = again, t.out[0] = 7;
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "result 0 is not a node");
    t = again;
    for (int k = 0; k < 4; k++) p = two(&t, "mul", t.out[0], one(&t, "sum", p));
    CHECK_FAIL(make(&t, 0, &x, &err), CB_INVALID, "needs sums nested more than three deep");
    CHECK_FAIL(make(&again, 5, &x, &err), CB_UNSUPPORTED, "mine has 5 states");
    CHECK(x == NULL);
}

TEST(other_types_and_sums_in_compiled_steps_are_refused) {
    text t = {0};
    cb_expression *x = NULL;
    write_scaled(&t);
    CHECK_OK(make(&t, 1, &x, &err));
    fill(&first);
    cb_optim_row row = first.row[4];
    CHECK_FAIL(step_rows(cb_expression_optimizer(x), NULL, numbers[0], 1, &row, 1, &err),
               CB_UNSUPPORTED, "needs scratch memory");
    row.dtype = CB_F64, row.n = 3;
    CHECK_FAIL(step_rows(cb_expression_optimizer(x), NULL, numbers[0], 1, &row, 1, &err),
               CB_UNSUPPORTED, "row 0 is f64");
    cb_expression_free(x);
}

static cb_status made_and_stepped(cb_error *error) {
    text t = {0};
    cb_expression *x = NULL;
    cb_tensor_table *table = NULL;
    write_scaled(&t);
    cb_status status = make(&t, 1, &x, error);
    if (status == CB_OK)
        status = cb_table_new(&alloc, &pool, cb_expression_optimizer(x), ROWS, &table, error);
    for (uint32_t r = 0; r < ROWS && table; r++) cb_tensor_table_set(table, r, &first.row[r]);
    if (status == CB_OK) status = cb_tensor_table_step(table, numbers[0], 2, error);
    cb_tensor_table_free(table);
    cb_expression_free(x);
    return status;
}

TEST(any_allocation_may_fail) {
    int failed = 0;
    for (uint64_t nth = 1;; nth++, failed++) {
        fill(&first);
        cb_alloc_fail(&alloc, nth);
        cb_status status = made_and_stepped(&err);
        cb_alloc_fail(&alloc, 0);
        if (status == CB_OK) break;
        CHECK(status == CB_NOMEM);
        CHECK(atomic_load(&alloc.live_bytes) == 0u);
        fill(&second);
        CHECK(memcmp(first.array, second.array, sizeof first.array) == 0);
    }
    CHECK(failed >= 4);
    CHECK(atomic_load(&alloc.live_bytes) == 0u);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(an_optimizer_that_is_written_has_the_bits_of_the_one_that_is_there);
    RUN(sums_over_a_tensor_are_those_in_double_and_the_same_for_any_threads);
    RUN(arrays_change_places);
    RUN(what_is_no_formula_is_refused);
    RUN(other_types_and_sums_in_compiled_steps_are_refused);
    RUN(any_allocation_may_fail);
    return check_report();
}
