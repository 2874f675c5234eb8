/* layer_norm and rms_norm over the last axis, with their gradients.
 *
 * The weight's gradient is a sum over all rows. Rows are cut into blocks by shape (cb_row_blocks);
 * a task sums its block's rows in scratch while it computes dx, and the blocks are added in order
 * at the end. With one block there is no scratch, and the sums are a second pass over tiles of
 * columns.
 *
 *     scratch:  | block 0: dweight[c] (dbias[c]) | block 1: ... |     in the compute type */
#include "../move/kern_copy.h"

#include "../../../ir/work.h"

typedef struct norm {
    const cb_kernel_args *args;
    bool is_centred; /* layer_norm */
    bool is_f64;
    int64_t n_rows, columns, rows_in_task;
    int64_t blocks, partials; /* backward */
} norm;

#define REAL_BITS 32
#include "kern_norm_rows.h"
#include "kern_norm_short.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "kern_norm_rows.h"
#include "kern_norm_short.h"

static norm norm_of(const cb_kernel_args *args, const cb_tensor *x, bool is_centred) {
    const cb_shape *s = &x->shape;
    norm m = {.args = args, .is_centred = is_centred, .is_f64 = x->dtype == CB_F64};
    m.columns = s->dim[s->rank - 1];
    m.n_rows = cb_numel_of(s, 0, s->rank - 1);
    m.rows_in_task = max_i64(CB_CHUNK / max_i64(m.columns, 1), 1);
    return m;
}

static void norm_task(void *user, int64_t task, int thread) {
    (void)thread;
    const norm *m = user;
    int64_t row = task * m->rows_in_task, end = min_i64(row + m->rows_in_task, m->n_rows);
    for (; short_fits(m->columns) && row + CB_SHORT_ROWS <= end; row += CB_SHORT_ROWS)
        (m->is_f64 ? norm_block_f64 : norm_block_f32)(m, row);
    for (; row < end; row++) (m->is_f64 ? norm_row_f64 : norm_row_f32)(m, row);
}

static cb_status run_norm(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    norm m = norm_of(args, &args->in[0], args->code == CB_OP_LAYER_NORM);
    cb_parallel(args->pool, div_up(m.n_rows, m.rows_in_task), norm_task, &m);
    return CB_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Processes rows row..end; `dweight` and `dbias` may be NULL. */
static void bwd_rows(const norm *m, int64_t row, int64_t end, void *dweight, void *dbias) {
    for (; short_fits(m->columns) && row + CB_SHORT_ROWS <= end; row += CB_SHORT_ROWS)
        (m->is_f64 ? norm_bwd_block_f64 : norm_bwd_block_f32)(m, row, dweight, dbias);
    for (; row < end; row++)
        (m->is_f64 ? norm_bwd_row_f64 : norm_bwd_row_f32)(m, row, dweight, dbias);
}

static void bwd_rows_task(void *user, int64_t task, int thread) {
    (void)thread;
    const norm *m = user;
    const int64_t first = task * m->rows_in_task;
    bwd_rows(m, first, min_i64(first + m->rows_in_task, m->n_rows), NULL, NULL);
}

static void bwd_columns_task(void *user, int64_t task, int thread) {
    (void)thread;
    const norm *m = user;
    (m->is_f64 ? norm_bwd_columns_f64 : norm_bwd_columns_f32)(m, task * CB_TILE);
}

static void bwd_block_task(void *user, int64_t block, int thread) {
    (void)thread;
    const norm *m = user;
    size_t row_bytes = (size_t)m->columns * (m->is_f64 ? sizeof(double) : sizeof(float));
    char *dweight = (char *)m->args->scratch + (size_t)(block * m->partials) * row_bytes;
    char *dbias = m->is_centred ? dweight + row_bytes : NULL;
    memset(dweight, 0, (size_t)m->partials * row_bytes); /* all bits 0 is 0.0 */
    const int64_t rows = div_up(m->n_rows, m->blocks);
    bwd_rows(m, block * rows, min_i64((block + 1) * rows, m->n_rows), dweight, dbias);
}

static void bwd_combine_task(void *user, int64_t task, int thread) {
    (void)thread;
    const norm *m = user;
    (m->is_f64 ? norm_bwd_combine_f64 : norm_bwd_combine_f32)(m, task * CB_TILE);
}

static cb_status run_norm_bwd(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    norm m = norm_of(args, &args->in[1], args->code == CB_OP_LAYER_NORM_BWD);
    m.partials = m.is_centred ? 2 : 1;
    m.blocks = cb_row_blocks(m.n_rows, m.columns);
    int64_t tiles = div_up(m.columns, CB_TILE);
    if (m.blocks == 1) {
        cb_parallel(args->pool, div_up(m.n_rows, m.rows_in_task), bwd_rows_task, &m);
        cb_parallel(args->pool, tiles, bwd_columns_task, &m);
    } else {
        cb_parallel(args->pool, m.blocks, bwd_block_task, &m);
        cb_parallel(args->pool, tiles, bwd_combine_task, &m);
    }
    return CB_OK;
}

cb_kernel_fn CB_KERN(norm)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    switch (code) {
        case CB_OP_LAYER_NORM:
        case CB_OP_RMS_NORM: return run_norm;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD: return run_norm_bwd;
        default: return NULL;
    }
}
