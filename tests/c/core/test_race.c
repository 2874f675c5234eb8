/* Indices that another thread overwrites while steps run: a step returns a result or an error, and
 * never accesses memory outside its arrays. The race is intended, so the test is not built with
 * ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/sanitize.h"
#include "include/cutback.h"

#include "check.h"

enum { N = 20000, COLUMNS = 4, ROWS = 50, RUNS = 400 };
#define WILD (INT64_C(1) << 44)

/* Sets entries to wild values and back in a tight loop. */
typedef struct vandal {
    _Atomic(int64_t) *at;
    int64_t n;
    atomic_bool stop;
} vandal;

static void *overwrite(void *user) {
    vandal *v = user;
    while (!atomic_load_explicit(&v->stop, memory_order_relaxed)) {
        _Atomic(int64_t) *at = &v->at[v->n - 1];
        atomic_store_explicit(at, WILD, memory_order_relaxed);
        for (int i = 0; i < 300; i++) atomic_load_explicit(at, memory_order_relaxed);
        atomic_store_explicit(at, 0, memory_order_relaxed);
        for (int i = 0; i < 300; i++) atomic_load_explicit(at, memory_order_relaxed);
    }
    return NULL;
}

/* Compiles mean(op(table, index)), differentiated with respect to the table. */
static cb_status compile(cb_context *ctx, const char *op, const char *backend, cb_step **out) {
    const bool is_gather = strcmp(op, "gather") == 0, is_loss = strcmp(op, "cross_entropy") == 0;
    const cb_attrs attrs = {.i = {is_loss ? -100 : 0}};
    const cb_shape table = {2, {is_loss ? N : ROWS, COLUMNS}};
    const cb_shape index = {is_gather ? 2 : 1, {N, COLUMNS}};
    const cb_compile_options options = {
        .wrt = (const uint32_t[]){0}, .n_wrt = 1, .backend = backend};
    cb_graph *g = NULL;
    cb_value_id ins[2], made[2], mean;
    CB_TRY(cb_graph_new(ctx, &g, &err));
    cb_status status = CB_OK;
    CB_TRY_DONE(cb_graph_add_input(g, "table", CB_ROLE_PARAM, CB_F32, table, &ins[0], &err));
    CB_TRY_DONE(cb_graph_add_input(g, "index", CB_ROLE_DATA, CB_I64, index, &ins[1], &err));
    if (is_loss) {
        CB_TRY_DONE(cb_graph_add_op(g, op, 2, ins, &attrs, 2, made, &err));
    } else {
        CB_TRY_DONE(cb_graph_add_op(g, op, 2, ins, &attrs, 1, made, &err));
    }
    CB_TRY_DONE(cb_graph_add_op(g, "mean", 1, made, NULL, 1, &mean, &err));
    CB_TRY_DONE(cb_graph_add_output(g, mean, "mean", &err));
    CB_TRY_DONE(cb_compile(ctx, g, &options, out, &err));
done:
    cb_graph_free(g);
    return status;
}

static void race(const char *op, const char *backend, int n_runs) {
    const cb_context_options one_thread = {.n_threads = 1};
    cb_context *ctx = NULL;
    cb_step *step = NULL;
    CHECK_OK(cb_context_new(&one_thread, &ctx, &err));
    CHECK_OK(compile(ctx, op, backend, &step));
    if (!step) return;
    const size_t n_table = (size_t)cb_step_input(step, 0).bytes;
    const size_t n_index = (size_t)cb_step_input(step, 1).bytes;
    float *table = calloc(1, n_table), *gradient = calloc(1, n_table), mean = 0;
    _Atomic(int64_t) *index = calloc(1, n_index);
    vandal v = {.at = index, .n = (int64_t)(n_index / sizeof *index)};
    const cb_run run = {.inputs = (void *[]){table, index},
                        .outputs = (void *[]){&mean, gradient},
                        .on_host = true};
    CHECK_OK(cb_step_run(step, &run, NULL, &err));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, overwrite, &v) == 0);
    for (int i = 0; i < n_runs; i++) {
        cb_run_result result = {0};
        const cb_status status = cb_step_run(step, &run, &result, &err);
        CHECK(status == CB_OK || (status == CB_INVALID && strstr(err.text, "17592186044416")));
        CHECK(strcmp(backend, cb_backend_name(0)) != 0 || result.n_alloc == 0);
    }
    atomic_store(&v.stop, true);
    pthread_join(thread, NULL);
    cb_step_free(step);
    cb_context_free(ctx);
    free(table);
    free(gradient);
    free(index);
}

TEST(every_use_of_indices) {
    static const char *const ops[] = {"gather", "embedding", "cross_entropy"};
    for (int i = 0; i < 3; i++) {
        race(ops[i], cb_backend_name(0), RUNS);
        race(ops[i], "debug", RUNS / 3);
    }
    race("cross_entropy", "ref", 20); /* for the other ops, the gradient of `ref` takes time N^2 */
}

int main(void) {
#if !CB_TSAN
    RUN(every_use_of_indices);
#endif
    return check_report();
}
