/* Gathers and scatters by index. All of these ops treat their tensors as three axes: `outer` lines,
 * the indexed axis, and `inner` elements. Sums run over i in order:
 *
 *     gather         out[o, i, c] = x[o, index[o, i, c], c]
 *     scatter_add    out[o, r, c] = base[o, r, c] + sum of src[o, i, c] where index[o, i, c] == r
 *     embedding      out[i, c]    = weight[index[i], c]
 *     embedding_bwd  out[r, c]    = sum of g[i, c] where index[i] == r
 *
 * Indices are checked before anything is written. Each task owns a block of the destination and
 * walks all of src for it, so no two tasks add to one element. 16-bit destinations are summed in
 * f32 in scratch, a block at a time, and rounded once. */
#include "../../../base/ints.h"
#include "../../../base/kern_half.h"
#include "../../../micro/vecmath.h"
#include "../kern.h"
#include "indices.h"

#include "../../tiles.h"

#define TASK_ELEMENTS ((int64_t)1 << 15)
#define FILL_BYTES ((size_t)1 << 18) /* bytes of a task that only writes */

/* True if every index is in 0 .. rows. Without branches, so that it vectorizes. */
static bool are_in_range(const cb_tensor *index, int64_t n, int64_t rows) {
    bool are_wrong = false;
    if (index->dtype == CB_I64) {
        const int64_t *at = index->data;
        for (int64_t i = 0; i < n; i++) are_wrong |= (at[i] < 0) | (at[i] >= rows);
    } else {
        const int32_t *at = index->data, last = (int32_t)min_i64(rows - 1, INT32_MAX);
        for (int64_t i = 0; i < n; i++) are_wrong |= (at[i] < 0) | (at[i] > last);
    }
    return !are_wrong;
}

/* Reports the first index out of range, which is the same for any number of threads. */
static cb_status check_indices(const cb_kernel_args *args, const cb_tensor *index, int64_t rows,
                               cb_error *err) {
    if (are_in_range(index, cb_numel(&index->shape), rows)) return CB_OK;
    return cb_check_indices(args->code, args->attrs, index, rows, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    const cb_tensor *x, *index, *out;
    int64_t rows, n, inner;        /* elements of x along the axis, of index along the axis, after
                                      the axis */
    int64_t lines, lines_per_task; /* a line is one (o, i) */
} reading;

static void embedding_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reading *r = user;
    size_t bytes = (size_t)r->inner * cb_dtype_size(r->x->dtype);
    int64_t last = min_i64((task + 1) * r->lines_per_task, r->lines);
    for (int64_t i = task * r->lines_per_task; i < last; i++) {
        memcpy((char *)r->out->data + (size_t)i * bytes,
               (const char *)r->x->data + (size_t)cb_index_at(r->index, i) * bytes, bytes);
    }
}

#define DEFINE_GATHER(name, type)                                                    \
    static void name(const reading *r, int64_t line) {                               \
        const type *x = (const type *)r->x->data + line / r->n * r->rows * r->inner; \
        type *out = (type *)r->out->data + line * r->inner;                          \
        for (int64_t c = 0; c < r->inner; c++) {                                     \
            out[c] = x[cb_index_at(r->index, line * r->inner + c) * r->inner + c];   \
        }                                                                            \
    }

DEFINE_GATHER(gather_1, uint8_t)
DEFINE_GATHER(gather_2, uint16_t)
DEFINE_GATHER(gather_4, uint32_t)
DEFINE_GATHER(gather_8, uint64_t)

/* Handles the last axis: n elements of one row, from the i-th on. */
#define GATHER_ROW(type, index_type)                                                \
    {                                                                               \
        const type *restrict x = (const type *)r->x->data + outer * r->rows;        \
        const index_type *restrict at = (const index_type *)r->index->data + first; \
        type *restrict out = (type *)r->out->data + first;                          \
        for (int64_t i = 0; i < n; i++) out[i] = x[at[i]];                          \
        break;                                                                      \
    }
#define GATHER_ROW_OF(index_type)                 \
    switch (cb_dtype_size(r->x->dtype)) {         \
        case 1: GATHER_ROW(uint8_t, index_type)   \
        case 2: GATHER_ROW(uint16_t, index_type)  \
        case 4: GATHER_ROW(uint32_t, index_type)  \
        default: GATHER_ROW(uint64_t, index_type) \
    }
static void gather_row(const reading *r, int64_t outer, int64_t first, int64_t n) {
    if (r->index->dtype == CB_I64) GATHER_ROW_OF(int64_t) else GATHER_ROW_OF(int32_t)
}

static void gather_rows(const reading *r, int64_t line, int64_t last) {
    while (line < last) {
        const int64_t n = min_i64(last - line, r->n - line % r->n);
        gather_row(r, line / r->n, line, n);
        line += n;
    }
}

static void gather_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reading *r = user;
    size_t size = cb_dtype_size(r->x->dtype);
    int64_t last = min_i64((task + 1) * r->lines_per_task, r->lines);
    if (r->inner == 1) {
        gather_rows(r, task * r->lines_per_task, last);
        return;
    }
    for (int64_t line = task * r->lines_per_task; line < last; line++) {
        switch (size) {
            case 1: gather_1(r, line); break;
            case 2: gather_2(r, line); break;
            case 4: gather_4(r, line); break;
            default: gather_8(r, line); break;
        }
    }
}

static void run_lines(const cb_kernel_args *args, reading *r, cb_task_fn task) {
    if (r->lines == 0 || r->inner == 0) return;
    r->lines_per_task = max_i64(TASK_ELEMENTS / r->inner, 1);
    cb_parallel(args->pool, div_up(r->lines, r->lines_per_task), task, r);
}

static cb_status gather(const cb_kernel_args *args, cb_error *err) {
    reading r = {.x = &args->in[0], .index = &args->in[1], .out = &args->out[0]};
    const cb_shape *s = &r.index->shape;
    const int64_t axis = args->attrs->i[0];
    r.inner = cb_numel_of(s, axis + 1, s->rank);
    r.rows = r.x->shape.dim[axis];
    r.n = r.index->shape.dim[axis];
    r.lines = cb_numel_of(s, 0, axis + 1);
    CB_TRY(check_indices(args, r.index, r.rows, err));
    run_lines(args, &r, gather_task);
    return CB_OK;
}

static cb_status embedding(const cb_kernel_args *args, cb_error *err) {
    reading r = {.x = &args->in[0], .index = &args->in[1], .out = &args->out[0]};
    r.lines = cb_numel(&r.index->shape);
    r.inner = r.x->shape.dim[1];
    CB_TRY(check_indices(args, r.index, r.x->shape.dim[0], err));
    run_lines(args, &r, embedding_task);
    return CB_OK;
}

/* ---- adding ---------------------------------------------------------------------------------- */

typedef struct adding {
    const cb_kernel_args *args;
    const cb_tensor *base; /* NULL: zeros */
    const cb_tensor *index, *src, *out;
    bool is_index_by_row; /* one index for all of `inner` (embedding) */
    int64_t outer, rows, n, inner;
    cb_scatter_tiles tiles;
    int64_t n_row, n_inner; /* blocks */
    int64_t n_units, n_tasks;
} adding;

/* A part of one outer line of the destination. */
typedef struct block {
    int64_t outer, row, column, rows, columns;
} block;

/* Adds along the last axis, where `inner` is 1. */
#define ADD_ROW(index_type, load)                                                    \
    {                                                                                \
        const index_type *at = (const index_type *)a->index->data + b->outer * a->n; \
        for (int64_t i = 0; i < a->n; i++) {                                         \
            const int64_t r = at[i] - b->row;                                        \
            if (r >= 0 && r < b->rows) sum[r] += load(a, src + i);                   \
        }                                                                            \
        return;                                                                      \
    }

/* Adds all elements of src that belong to the block to `sum`, which is [rows, columns] with `ld`
 * elements between rows. */
#define DEFINE_ADD(name, stored, real, load)                                                  \
    static void name(const adding *a, const block *b, void *sum_at, int64_t ld) {             \
        real *sum = sum_at;                                                                   \
        if (a->inner == 1 && !a->is_index_by_row) {                                           \
            const stored *src = (const stored *)a->src->data + b->outer * a->n;               \
            if (a->index->dtype == CB_I64) ADD_ROW(int64_t, load)                             \
            else ADD_ROW(int32_t, load)                                                       \
        }                                                                                     \
        for (int64_t i = 0; i < a->n; i++) {                                                  \
            int64_t line = b->outer * a->n + i, at = line * a->inner + b->column;             \
            const stored *src = (const stored *)a->src->data + at;                            \
            if (a->is_index_by_row) {                                                         \
                int64_t r = cb_index_at(a->index, line) - b->row;                             \
                if (r < 0 || r >= b->rows) continue;                                          \
                for (int64_t c = 0; c < b->columns; c++) sum[r * ld + c] += load(a, src + c); \
                continue;                                                                     \
            }                                                                                 \
            for (int64_t c = 0; c < b->columns; c++) {                                        \
                int64_t r = cb_index_at(a->index, at + c) - b->row;                           \
                if (r >= 0 && r < b->rows) sum[r * ld + c] += load(a, src + c);               \
            }                                                                                 \
        }                                                                                     \
    }

#define LOAD_PLAIN(a, at) (*(at))
#define LOAD_HALF(a, at) half_load((a)->src->dtype, (at))

DEFINE_ADD(add_f32, float, float, LOAD_PLAIN)
DEFINE_ADD(add_f64, double, double, LOAD_PLAIN)
DEFINE_ADD(add_half, uint16_t, float, LOAD_HALF)
DEFINE_ADD(add_u64, uint64_t, uint64_t, LOAD_PLAIN) /* integers wrap */
DEFINE_ADD(add_u32, uint32_t, uint32_t, LOAD_PLAIN)

static void add_u8(const adding *a, const block *b, void *sum_at, int64_t ld) {
    uint8_t *sum = sum_at;
    for (int64_t i = 0; i < a->n; i++) {
        int64_t at = (b->outer * a->n + i) * a->inner + b->column;
        for (int64_t c = 0; c < b->columns; c++) {
            int64_t r = cb_index_at(a->index, at + c) - b->row;
            uint8_t *to = &sum[r * ld + c];
            if (r >= 0 && r < b->rows)
                *to = (uint8_t)(*to + ((const uint8_t *)a->src->data)[at + c]);
        }
    }
}

static void add_block(const adding *a, const block *b, void *sum, int64_t ld) {
    switch (a->out->dtype) {
        case CB_F32: add_f32(a, b, sum, ld); break;
        case CB_F64: add_f64(a, b, sum, ld); break;
        case CB_F16:
        case CB_BF16: add_half(a, b, sum, ld); break;
        case CB_I64: add_u64(a, b, sum, ld); break;
        case CB_I32: add_u32(a, b, sum, ld); break;
        default: add_u8(a, b, sum, ld); break;
    }
}

/* Fills part of the destination: `bytes` from byte `at` on. */
static void fill(const adding *a, size_t at, size_t bytes) {
    char *to = (char *)a->out->data + at;
    if (a->base) {
        memcpy(to, (const char *)a->base->data + at, bytes);
    } else {
        memset(to, 0, bytes);
    }
}

/* Returns true if the whole destination is filled before anything is added. This is done if blocks
 * hold pieces of rows, because a processor reads a partly written cache line first. It pays off for
 * every size: on two threads, tables from [200, 33] to [50000, 128] took no longer than with each
 * piece filled by its own task, and small ones with few indices took a third to half as long. */
static bool is_filled_first(const adding *a) { return a->tiles.slots == 0 && a->n_inner > 1; }

static void filling_task(void *user, int64_t task, int thread) {
    (void)thread;
    const adding *a = user;
    const size_t all = (size_t)cb_numel(&a->out->shape) * cb_dtype_size(a->out->dtype),
                 at = (size_t)task * FILL_BYTES;
    fill(a, at, all - at < FILL_BYTES ? all - at : FILL_BYTES);
}

static void fill_in_place(const adding *a, const block *b) {
    const size_t size = cb_dtype_size(a->out->dtype),
                 first = (size_t)((b->outer * a->rows + b->row) * a->inner + b->column) * size;
    if (!is_filled_first(a)) fill(a, first, (size_t)(b->columns * b->rows) * size);
    add_block(a, b, (char *)a->out->data + first, a->inner);
}

static void fill_through_scratch(const adding *a, const block *b, float *sum) {
    cb_dtype dtype = a->out->dtype;
    int64_t first = (b->outer * a->rows + b->row) * a->inner + b->column;
    for (int64_t r = 0; r < b->rows; r++) {
        float *to = sum + r * b->columns;
        if (a->base) {
            half_widen(dtype, (const uint16_t *)a->base->data + first + r * a->inner, to,
                       b->columns);
        } else {
            memset(to, 0, (size_t)b->columns * sizeof *to);
        }
    }
    add_block(a, b, sum, b->columns);
    for (int64_t r = 0; r < b->rows; r++) {
        half_narrow(dtype, sum + r * b->columns, (uint16_t *)a->out->data + first + r * a->inner,
                    b->columns);
    }
}

/* Processes every n_tasks-th unit: a run of outer lines by a block of rows by a block of the inner
 * axis. */
static void adding_task(void *user, int64_t task, int thread) {
    (void)thread;
    const adding *a = user;
    const cb_scatter_tiles *t = &a->tiles;
    for (int64_t unit = task; unit < a->n_units; unit += a->n_tasks) {
        block b = {.row = unit / a->n_inner % a->n_row * t->rows,
                   .column = unit % a->n_inner * t->inner};
        b.rows = min_i64(t->rows, a->rows - b.row);
        b.columns = min_i64(t->inner, a->inner - b.column);
        int64_t first = unit / a->n_inner / a->n_row * t->outer,
                last = min_i64(first + t->outer, a->outer);
        for (b.outer = first; b.outer < last; b.outer++) {
            if (t->slots > 0) {
                fill_through_scratch(
                    a, &b, (float *)((char *)a->args->scratch + (uint64_t)task * t->slot_bytes));
            } else {
                fill_in_place(a, &b);
            }
        }
    }
}

/* Widens blocks of the inner axis, for longer runs of memory, while there are two tasks for each
 * thread. Each element still adds its terms in their order. */
static int64_t wider_inner(const adding *a) {
    const cb_scatter_tiles *t = &a->tiles;
    const int64_t threads = a->args->pool ? cb_threads_count(a->args->pool) : 1,
                  wanted = threads == 1 ? 1 : div_up(2 * threads, div_up(a->outer, t->outer)),
                  inner = div_up(div_up(a->inner, wanted), 16) * 16;
    return t->slots > 0 ? t->inner : min_i64(max_i64(t->inner, inner), a->inner);
}

static void run_blocks(adding *a) {
    if (a->outer == 0 || a->rows == 0 || a->inner == 0) return;
    a->tiles = cb_scatter_tiles_of(a->outer, a->rows, a->inner, a->out->dtype);
    a->tiles.inner = wider_inner(a);
    a->n_row = div_up(a->rows, a->tiles.rows);
    a->n_inner = div_up(a->inner, a->tiles.inner);
    a->n_units = div_up(a->outer, a->tiles.outer) * a->n_row * a->n_inner;
    a->n_tasks = a->tiles.slots > 0 ? a->tiles.slots : a->n_units;
    if (is_filled_first(a)) {
        const int64_t bytes = cb_numel(&a->out->shape) * (int64_t)cb_dtype_size(a->out->dtype);
        cb_parallel(a->args->pool, div_up(bytes, (int64_t)FILL_BYTES), filling_task, a);
    }
    cb_parallel(a->args->pool, a->n_tasks, adding_task, a);
}

static cb_status scatter_add(const cb_kernel_args *args, cb_error *err) {
    adding a = {.args = args,
                .base = &args->in[0],
                .index = &args->in[1],
                .src = &args->in[2],
                .out = &args->out[0]};
    const cb_shape *s = &a.out->shape;
    const int64_t axis = args->attrs->i[0];
    a.outer = cb_numel_of(s, 0, axis), a.inner = cb_numel_of(s, axis + 1, s->rank);
    a.rows = a.out->shape.dim[axis];
    a.n = a.index->shape.dim[axis];
    CB_TRY(check_indices(args, a.index, a.rows, err));
    run_blocks(&a);
    return CB_OK;
}

static cb_status embedding_bwd(const cb_kernel_args *args, cb_error *err) {
    adding a = {.args = args,
                .src = &args->in[0],
                .index = &args->in[1],
                .out = &args->out[0],
                .is_index_by_row = true,
                .outer = 1};
    a.rows = a.out->shape.dim[0];
    a.inner = a.out->shape.dim[1];
    a.n = cb_numel(&a.index->shape);
    CB_TRY(check_indices(args, a.index, a.rows, err));
    run_blocks(&a);
    return CB_OK;
}

cb_kernel_fn CB_KERN(index)(cb_opcode code, cb_dtype dtype) {
    if (code == CB_OP_GATHER) return gather;
    if (code == CB_OP_EMBEDDING) return embedding;
    if (code == CB_OP_SCATTER_ADD && dtype != CB_BOOL) return scatter_add;
    if (code == CB_OP_EMBEDDING_BWD && cb_dtype_is_float(dtype)) return embedding_bwd;
    return NULL;
}
