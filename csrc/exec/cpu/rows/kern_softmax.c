/* Softmax, log-softmax and cross-entropy over the last axis, with their gradients. Each task
 * processes several whole rows. */
#include "../executor/vector.h"
#include "../index/indices.h"
#include "../move/kern_copy.h"
#include "kern_few.h"

typedef struct rows {
    const cb_kernel_args *args;
    int64_t n_rows, columns, rows_in_task;
    void (*run_row)(const struct rows *r, int64_t row);
    void (*run_block)(const struct rows *r, int64_t row); /* runs CB_SHORT_ROWS short rows */
} rows;

/* Computes e^(x - from), with the bits of cb_exp_f32. */
static void exp_row_f32(const float *restrict x, float from, float *restrict y, int64_t n) {
    int64_t i = 0;
    for (; i + CB_VW <= n; i += CB_VW) vm_store(y + i, vm_exp(vm_load(x + i) - from));
    if (i < n) put_few_float(y + i, vm_exp(few_float(x + i, n - i) - from), n - i);
}
static void exp_row_f64(const double *restrict x, double from, double *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = cb_exp_f64(x[i] - from);
}

#define REAL_BITS 32
#include "kern_softmax_rows.h"
#include "kern_softmax_short.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "kern_softmax_rows.h"
#include "kern_softmax_short.h"

typedef void (*row_fn)(const rows *r, int64_t row);

static void run_rows(void *user, int64_t task, int thread) {
    (void)thread;
    const rows *r = user;
    int64_t row = task * r->rows_in_task, end = min_i64(row + r->rows_in_task, r->n_rows);
    const bool is_short = short_fits(r->columns);
    for (; is_short && row + CB_SHORT_ROWS <= end; row += CB_SHORT_ROWS) r->run_block(r, row);
    for (; row < end; row++) r->run_row(r, row);
}

static cb_status run(const cb_kernel_args *args, uint32_t like, row_fn run_row, row_fn run_block) {
    const cb_shape *s = &args->in[like].shape;
    rows r = {
        .args = args, .columns = s->dim[s->rank - 1], .run_row = run_row, .run_block = run_block};
    r.n_rows = cb_numel_of(s, 0, s->rank - 1);
    r.rows_in_task = max_i64(CB_CHUNK / max_i64(r.columns, 1), 1);
    cb_parallel(args->pool, div_up(r.n_rows, r.rows_in_task), run_rows, &r);
    return CB_OK;
}

#define SOFTMAX_RUN_AS(name, like)                                                      \
    (args->in[like].dtype == CB_F64 ? run(args, like, name##_row_f64, name##_block_f64) \
                                    : run(args, like, name##_row_f32, name##_block_f32))
#define SOFTMAX_RUN(name)                                                    \
    static cb_status run_##name(const cb_kernel_args *args, cb_error *err) { \
        (void)err;                                                           \
        return SOFTMAX_RUN_AS(name, 0);                                      \
    }
SOFTMAX_RUN(softmax)
SOFTMAX_RUN(softmax_bwd)
SOFTMAX_RUN(log_softmax)
SOFTMAX_RUN(log_softmax_bwd)

static cb_status check_labels(const cb_kernel_args *args, const cb_tensor *labels,
                              const cb_tensor *x, cb_error *err) {
    return cb_check_indices(args->code, args->attrs, labels, x->shape.dim[x->shape.rank - 1], err);
}

static cb_status run_cross_entropy(const cb_kernel_args *args, cb_error *err) {
    const cb_tensor *x = &args->in[0];
    CB_TRY(check_labels(args, &args->in[1], x, err));
    return SOFTMAX_RUN_AS(cross_entropy, 0);
}

static cb_status run_cross_entropy_bwd(const cb_kernel_args *args, cb_error *err) {
    const cb_tensor *x = &args->in[1];
    CB_TRY(check_labels(args, &args->in[2], x, err));
    return SOFTMAX_RUN_AS(cross_entropy_bwd, 1);
}

cb_kernel_fn CB_KERN(softmax)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    switch (code) {
        case CB_OP_SOFTMAX: return run_softmax;
        case CB_OP_SOFTMAX_BWD: return run_softmax_bwd;
        case CB_OP_LOG_SOFTMAX: return run_log_softmax;
        case CB_OP_LOG_SOFTMAX_BWD: return run_log_softmax_bwd;
        case CB_OP_CROSS_ENTROPY: return run_cross_entropy;
        case CB_OP_CROSS_ENTROPY_BWD: return run_cross_entropy_bwd;
        default: return NULL;
    }
}
