/* The extras of a step (besides the update) against plain loops, for any number of threads and any
 * instruction set, and with failing allocations. */
#include "optim/extras.h"

#include <math.h>

#include "optim/table.h"

#include "rows.h"

static cb_alloc alloc;
static cb_threads *pool;
static const double adamw[2][7] = {{1e-2, 0.9, 0.999, 1e-8, 0.1, 0, 0},
                                   {1e-3, 0.8, 0.99, 1e-6, 0.0, 0, 0}};

typedef struct stepped {
    table t;
    double average[ROWS][BIG]; /* floats or doubles */
    uint16_t copy[ROWS][BIG];
    cb_extra_row extra[ROWS];
    cb_optim_outcome outcome;
} stepped;

static stepped first, second;

static cb_status step(stepped *x, const cb_optim_extras *wanted, cb_error *error) {
    cb_optim_extras extras = *wanted;
    cb_tensor_table *t = NULL;
    table_init(&x->t);
    memset(x->average, 0, sizeof x->average);
    memset(x->copy, 0, sizeof x->copy);
    for (int r = 0; r < ROWS; r++) {
        x->extra[r] = (cb_extra_row){.average = r % 3 ? x->average[r] : NULL,
                                     .copy = r % 2 ? x->copy[r] : NULL,
                                     .copy_dtype = r % 4 == 1 ? CB_BF16 : CB_F16};
    }
    extras.rows = x->extra;
    cb_status status = cb_table_new(&alloc, &pool, &cb_optimizer_adamw, ROWS, &t, error);
    for (uint32_t r = 0; r < ROWS && status == CB_OK; r++) cb_tensor_table_set(t, r, &x->t.row[r]);
    if (status == CB_OK) status = cb_tensor_table_ask(t, &extras, error);
    if (status == CB_OK) status = cb_tensor_table_step(t, adamw[0], 2, error);
    if (status == CB_OK) x->outcome = cb_tensor_table_outcome(t);
    cb_tensor_table_free(t);
    return status;
}

static double norm_of(const table *t, double factor) {
    double sum = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int64_t i = 0; i < sizes[r]; i++) {
            double g = get(&t->row[r], t->row[r].grad, i);
            sum += g * g;
        }
    }
    return sqrt(sum) * factor;
}

static const cb_optim_extras all = {
    .grad_factor = 0.5, .max_norm = 3, .average_keep = 0.75, .skips = true, .zeroes = true};

TEST(extras_are_plain_loops_after_a_step_of_shorter_gradients) {
    table expect;
    table_init(&expect);
    CHECK_OK(step(&first, &all, &err));
    const double norm = norm_of(&expect, 0.5), factor = 0.5 * 3 / (norm + 1e-6);
    CHECK(fabs(first.outcome.norm - norm) < 1e-9 * norm && !first.outcome.skipped && norm > 3);
    for (int r = 0; r < ROWS; r++) {
        for (int64_t i = 0; i < sizes[r]; i++)
            put(&expect.row[r], (void *)(uintptr_t)expect.row[r].grad, i,
                factor * get(&expect.row[r], expect.row[r].grad, i));
    }
    CHECK_OK(step_table(&cb_optimizer_adamw, NULL, adamw[0], 2, expect.row, ROWS, &err));
    for (int r = 0; r < ROWS; r++) {
        const cb_optim_row *row = &first.t.row[r];
        for (int64_t i = 0; i < sizes[r]; i++) {
            double p = get(row, row->param, i);
            CHECK(fabs(p - get(&expect.row[r], expect.row[r].param, i)) < 1e-6);
            CHECK(get(row, row->grad, i) == 0);
            if (r % 3) CHECK(fabs(get(row, first.average[r], i) - 0.25 * p) < 1e-7);
            if (r % 2 == 0) continue;
            uint16_t half = r % 4 == 1 ? cb_f64_to_bf16(p) : cb_f64_to_f16(p);
            CHECK(first.copy[r][i] == half);
        }
    }
    table_free(&expect);
}

TEST(the_bits_do_not_depend_on_threads) {
    for (int threads = 1; threads <= 4; threads++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)(threads % CB_ISA_COUNT)), 1);
        CHECK_OK(cb_threads_new(&alloc, threads, &pool, &err));
        CHECK_OK(step(&second, &all, &err));
        CHECK(same_bits(&first.t, &second.t));
        CHECK(memcmp(first.average, second.average, sizeof first.average) == 0);
        CHECK(memcmp(first.copy, second.copy, sizeof first.copy) == 0);
        CHECK(first.outcome.norm == second.outcome.norm);
        table_free(&second.t);
        cb_threads_free(pool);
        pool = NULL;
    }
    unsetenv("CUTBACK_ISA");
}

TEST(numbers_outside_their_ranges_are_refused) {
    cb_optim_extras wrong = all;
    wrong.max_norm = NAN;
    CHECK_FAIL(step(&second, &wrong, &err), CB_INVALID, "max_norm is nan");
    table_free(&second.t);
    wrong = all, wrong.average_keep = 1.5;
    CHECK_FAIL(step(&second, &wrong, &err), CB_INVALID, "average_keep is 1.5");
    table_free(&second.t);
}

TEST(any_allocation_may_fail) {
    table untouched;
    table_init(&untouched);
    int failed = 0;
    for (uint64_t nth = 1;; nth++, failed++) {
        cb_alloc_fail(&alloc, nth);
        cb_status status = step(&second, &all, &err);
        cb_alloc_fail(&alloc, 0);
        bool same = same_bits(&untouched, &second.t);
        table_free(&second.t);
        if (status == CB_OK) break;
        CHECK(status == CB_NOMEM && same);
    }
    CHECK(failed >= 2);
    CHECK(atomic_load(&alloc.live_bytes) == 0);
    table_free(&untouched);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(extras_are_plain_loops_after_a_step_of_shorter_gradients);
    RUN(the_bits_do_not_depend_on_threads);
    RUN(numbers_outside_their_ranges_are_refused);
    RUN(any_allocation_may_fail);
    table_free(&first.t);
    return check_report();
}
