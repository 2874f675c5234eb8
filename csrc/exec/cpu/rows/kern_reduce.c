/* sum, mean, amax, amin over any axes of a tensor of any strides.
 *
 * The axes are split into three loops by their logical positions, never by strides, so that strides
 * cannot change the order of a sum:
 *
 *     outer    kept axes before the last reduced one     [a, R, b, S, c, d]   reduced: R, S
 *     reduced  R, S                                                           outer: a, b
 *     columns  kept axes after it                                             columns: c, d
 *
 * No columns: each output is a row sum over the reduced elements in their order: leaves of CB_TILE
 * elements added in pairs (kern_rows.h), long rows in up to 64 segments, each a separate task.
 *
 * Columns: reduced positions are rows that are added to a tile of columns, in runs, in blocks
 * (cb_row_blocks); the blocks' sums are added in order, in scratch where the blocks are tasks.
 * Short rows of an inner axis are added in bands of several (micro/sums.h).
 *
 * A table of loops contains everything that depends on op and type. Maxima are taken over integer
 * keys (kern_rows.h); a minimum is the maximum of the negated floats or the complemented
 * integers. */
#include "../move/kern_copy.h"

#include "../../../ir/work.h"

#define REAL_BITS 32
#include "kern_rows.h"
#include "kern_short.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "kern_rows.h"
#include "kern_short.h"

typedef union cell { /* one accumulator */
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
} cell;

typedef struct reducer {
    size_t size; /* bytes of an accumulator */
    /* Reduces up to CB_TILE elements of one output. */
    cell (*leaf)(const void *x, int64_t n);
    void (*start)(void *sums, int64_t n);
    /* Adds rows of n elements, `step` apart, to n accumulators. */
    void (*add)(void *sums, const void *x, int64_t step, int64_t rows, int64_t n);
    void (*merge)(void *sums, const void *others, int64_t n);
} reducer;

/* `lift` converts an element x to an accumulator; `merged` combines two accumulators, a and b. */
#define REDUCE_LOOPS(name, type, sum, identity, lift, merged)                            \
    static void name##_start(void *sums, int64_t n) {                                    \
        for (int64_t i = 0; i < n; i++) ((sum *)sums)[i] = identity;                     \
    }                                                                                    \
    static void name##_merge(void *sums, const void *others, int64_t n) {                \
        sum *restrict to = sums;                                                         \
        const sum *restrict from = others;                                               \
        for (int64_t i = 0; i < n; i++) {                                                \
            sum a = to[i], b = from[i];                                                  \
            to[i] = merged;                                                              \
        }                                                                                \
    }                                                                                    \
    static void name##_add(void *sums, const void *elements, int64_t step, int64_t rows, \
                           int64_t n) {                                                  \
        sum *restrict to = sums;                                                         \
        for (int64_t r = 0; r < rows; r++) {                                             \
            const type *restrict from = (const type *)elements + r * step;               \
            for (int64_t i = 0; i < n; i++) {                                            \
                type x = from[i];                                                        \
                sum a = to[i], b = lift;                                                 \
                to[i] = merged;                                                          \
            }                                                                            \
        }                                                                                \
    }

/* These results are exact in any order, so the compiler may vectorise the leaf in any way. */
#define REDUCE_EXACT(name, type, sum, field, identity, lift, merged) \
    REDUCE_LOOPS(name, type, sum, identity, lift, merged)            \
    static cell name##_leaf(const void *elements, int64_t n) {       \
        const type *from = elements;                                 \
        sum a = identity;                                            \
        for (int64_t i = 0; i < n; i++) {                            \
            type x = from[i];                                        \
            sum b = lift;                                            \
            a = merged;                                              \
        }                                                            \
        return (cell){.field = a};                                   \
    }                                                                \
    static const reducer name = {sizeof(sum), name##_leaf, name##_start, name##_add, name##_merge};

#define WRAPPED_SUM (int64_t)((uint64_t)a + (uint64_t)b)
#define LARGER_OF a > b ? a : b

REDUCE_LOOPS(sum_f32, float, float, 0, x, a + b)
REDUCE_LOOPS(sum_f64, double, double, 0, x, a + b)
static cell sum_f32_leaf(const void *x, int64_t n) {
    return (cell){.f32 = leaf_sum_f32(x, x, 0, n)};
}
static cell sum_f64_leaf(const void *x, int64_t n) {
    return (cell){.f64 = leaf_sum_f64(x, x, 0, n)};
}
static const reducer sum_f32 = {sizeof(float), sum_f32_leaf, sum_f32_start, sum_f32_add,
                                sum_f32_merge};
static const reducer sum_f64 = {sizeof(double), sum_f64_leaf, sum_f64_start, sum_f64_add,
                                sum_f64_merge};
REDUCE_EXACT(sum_u8, uint8_t, int64_t, i64, 0, x, WRAPPED_SUM)
REDUCE_EXACT(sum_i32, int32_t, int64_t, i64, 0, x, WRAPPED_SUM)
REDUCE_EXACT(sum_i64, int64_t, int64_t, i64, 0, x, WRAPPED_SUM)
REDUCE_EXACT(amax_f32, float, int32_t, i32, INT32_MIN, key_f32(x), LARGER_OF)
REDUCE_EXACT(amax_f64, double, int64_t, i64, INT64_MIN, key_f64(x), LARGER_OF)
REDUCE_EXACT(amax_u8, uint8_t, int64_t, i64, INT64_MIN, x, LARGER_OF)
REDUCE_EXACT(amax_i32, int32_t, int64_t, i64, INT64_MIN, x, LARGER_OF)
REDUCE_EXACT(amax_i64, int64_t, int64_t, i64, INT64_MIN, x, LARGER_OF)
REDUCE_EXACT(amin_f32, float, int32_t, i32, INT32_MIN, key_f32(-x), LARGER_OF)
REDUCE_EXACT(amin_f64, double, int64_t, i64, INT64_MIN, key_f64(-x), LARGER_OF)
REDUCE_EXACT(amin_u8, uint8_t, int64_t, i64, INT64_MIN, ~(int64_t)x, LARGER_OF)
REDUCE_EXACT(amin_i32, int32_t, int64_t, i64, INT64_MIN, ~(int64_t)x, LARGER_OF)
REDUCE_EXACT(amin_i64, int64_t, int64_t, i64, INT64_MIN, ~x, LARGER_OF)

static const reducer *reducer_of(cb_opcode code, cb_dtype dtype) {
    bool max = code == CB_OP_AMAX, min = code == CB_OP_AMIN;
    switch (dtype) {
        case CB_BOOL:
        case CB_U8: return max ? &amax_u8 : (min ? &amin_u8 : &sum_u8);
        case CB_I32: return max ? &amax_i32 : (min ? &amin_i32 : &sum_i32);
        case CB_I64: return max ? &amax_i64 : (min ? &amin_i64 : &sum_i64);
        case CB_F64: return max ? &amax_f64 : (min ? &amin_f64 : &sum_f64);
        default: return max ? &amax_f32 : (min ? &amin_f32 : &sum_f32);
    }
}

typedef struct reduction {
    const cb_kernel_args *args;
    const reducer *op;
    const cb_tensor *in, *out;
    cb_walk outer, reduced, columns;
    size_t size;     /* bytes of an element of `in` */
    bool whole_rows; /* rows of columns are contiguous in the input */
    int64_t blocks, tiles, units, units_in_task;
    int64_t band_lines;      /* for short rows of columns (micro/sums.h) */
    int64_t output, segment; /* for row sums in segments: the current output, the elements of a
                                segment */
    char *partials;
} reduction;

/* ---- results --------------------------------------------------------------------------------- */

static float result_f32(const reduction *r, const void *sums, int64_t i) {
    switch (r->args->code) {
        case CB_OP_SUM: return ((const float *)sums)[i];
        case CB_OP_MEAN: return ((const float *)sums)[i] / (float)r->reduced.count;
        case CB_OP_AMAX: return of_key_f32(((const int32_t *)sums)[i]);
        default: return -of_key_f32(((const int32_t *)sums)[i]);
    }
}

static double result_f64(const reduction *r, const void *sums, int64_t i) {
    switch (r->args->code) {
        case CB_OP_SUM: return ((const double *)sums)[i];
        case CB_OP_MEAN: return ((const double *)sums)[i] / (double)r->reduced.count;
        case CB_OP_AMAX: return of_key_f64(((const int64_t *)sums)[i]);
        default: return -of_key_f64(((const int64_t *)sums)[i]);
    }
}

static int64_t result_int(const reduction *r, const void *sums, int64_t i) {
    int64_t sum = ((const int64_t *)sums)[i];
    return r->args->code == CB_OP_AMIN ? ~sum : sum;
}

static void put_results(const reduction *r, int64_t at, const void *sums, int64_t n) {
    if (r->args->code == CB_OP_SUM &&
        !is_half(r->out->dtype)) { /* the accumulators are the results */
        memcpy(cb_at(r->out, at), sums, (size_t)n * r->op->size);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        void *to = cb_at(r->out, at + i);
        switch (r->out->dtype) {
            case CB_F16:
            case CB_BF16: half_store(r->out->dtype, to, result_f32(r, sums, i)); break;
            case CB_F32: *(float *)to = result_f32(r, sums, i); break;
            case CB_F64: *(double *)to = result_f64(r, sums, i); break;
            case CB_I64: *(int64_t *)to = result_int(r, sums, i); break;
            case CB_I32: *(int32_t *)to = (int32_t)result_int(r, sums, i); break;
            default: *(uint8_t *)to = (uint8_t)result_int(r, sums, i);
        }
    }
}

/* ---- row sums -------------------------------------------------------------------------------- */

/* Memory for the gathered elements of a leaf, and for the widened ones. */
typedef struct leaf_tiles {
    uint64_t raw[CB_TILE];
    float wide[CB_TILE];
} leaf_tiles;

/* Returns elements first..first+n of those reduced to one output: in place, or gathered and
 * widened. */
static const void *leaf_at(const reduction *r, int64_t base, int64_t first, int64_t n,
                           leaf_tiles *tiles) {
    const cb_walk *w = &r->reduced;
    const void *x;
    if (w->rank == 1 && w->stride[0][0] == 1) {
        x = cb_at(r->in, base + first);
    } else {
        cb_walk_copy(w, cb_walk_to(w, first), 0, cb_at(r->in, base), r->size, tiles->raw, n);
        x = tiles->raw;
    }
    if (!is_half(r->in->dtype)) return x;
    half_widen(r->in->dtype, x, tiles->wide, n);
    return tiles->wide;
}

/* Adds partial results in pairs, as in kern_rows.h. */
typedef struct cells {
    uint64_t count;
    cell level[56];
} cells;

static void push(cells *c, const reducer *op, cell x) {
    int k = 0;
    for (uint64_t count = c->count++; count & 1; count >>= 1) {
        cell sum = c->level[k++];
        op->merge(&sum, &x, 1);
        x = sum;
    }
    c->level[k] = x;
}

static cell total(const cells *c, const reducer *op) {
    cell sum;
    op->start(&sum, 1);
    int k = 0;
    for (uint64_t count = c->count; count; count >>= 1, k++) {
        cell level = c->level[k];
        if (!(count & 1)) continue;
        op->merge(&level, &sum, 1);
        sum = level;
    }
    return sum;
}

static cell sum_run(const reduction *r, int64_t base, int64_t first, int64_t end) {
    leaf_tiles tiles;
    cells sums = {.count = 0};
    for (int64_t at = first; at < end; at += CB_TILE) {
        int64_t n = min_i64(CB_TILE, end - at);
        push(&sums, r->op, r->op->leaf(leaf_at(r, base, at, n, &tiles), n));
    }
    return total(&sums, r->op);
}

/* True for sums of short, contiguous rows of floats (kern_short.h). */
static bool is_in_blocks(const reduction *r) {
    const cb_walk *outer = &r->outer, *row = &r->reduced;
    const bool is_sum = r->args->code == CB_OP_SUM || r->args->code == CB_OP_MEAN;
    const bool is_along = row->rank == 1 && row->stride[0][0] == 1;
    return is_sum && cb_dtype_is_float(r->in->dtype) && is_along && short_fits(row->count) &&
           outer->rank == 1 && outer->stride[0][0] == row->count;
}

/* Sums sixteen rows. */
static void reduce_block(const reduction *r, int64_t unit) {
    const int64_t n = r->reduced.count;
    union {
        float f32[CB_SHORT_ROWS];
        double f64[CB_SHORT_ROWS];
    } to;
    if (r->in->dtype == CB_F64) {
        block_f64 x;
        load_block_f64(r->in, unit * n, n, x);
        sum_block_f64(x, n, to.f64);
    } else {
        block_f32 x;
        load_block_f32(r->in, unit * n, n, x);
        sum_block_f32(x, n, to.f32);
    }
    put_results(r, unit, &to, CB_SHORT_ROWS);
}

static void rows_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reduction *r = user;
    int64_t unit = task * r->units_in_task, end = min_i64(unit + r->units_in_task, r->units);
    if (is_in_blocks(r))
        for (; unit + CB_SHORT_ROWS <= end; unit += CB_SHORT_ROWS) reduce_block(r, unit);
    for (; unit < end; unit++) {
        cell sum = sum_run(r, cb_walk_to(&r->outer, unit).offset[0], 0, r->reduced.count);
        put_results(r, unit, &sum, 1);
    }
}

static void segment_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reduction *r = user;
    int64_t first = task * r->segment, end = min_i64(first + r->segment, r->reduced.count);
    ((cell *)(void *)r->partials)[task] =
        sum_run(r, cb_walk_to(&r->outer, r->output).offset[0], first, end);
}

static void reduce_rows(reduction *r) {
    r->units = r->outer.count;
    if (r->reduced.count <= CB_SEGMENT) {
        r->units_in_task = max_i64(CB_CHUNK / max_i64(r->reduced.count, 1), 1);
        cb_parallel(r->args->pool, div_up(r->units, r->units_in_task), rows_task, r);
        return;
    }
    cell partials[CB_SEGMENTS];
    r->partials = (char *)partials;
    r->segment = cb_segment_of(r->reduced.count);
    int64_t n_segments = div_up(r->reduced.count, r->segment);
    for (r->output = 0; r->output < r->units; r->output++) {
        cells sums = {.count = 0};
        cb_parallel(r->args->pool, n_segments, segment_task, r);
        for (int64_t i = 0; i < n_segments; i++) push(&sums, r->op, partials[i]);
        cell sum = total(&sums, r->op);
        put_results(r, r->output, &sum, 1);
    }
}

/* ---- column sums ----------------------------------------------------------------------------- */

typedef struct column_tiles {
    uint64_t run[CB_TILE], block[CB_TILE], all[CB_TILE]; /* accumulators */
    leaf_tiles row;
} column_tiles;

_Static_assert(CB_BAND_MAX <= CB_TILE, "accumulators of a band fit a tile");

/* Adds rows of n columns, `step` apart, to the groups of a band. `at` is the index of the first row
 * in its block. */
static void add_rows(const reduction *r, void *sums, const void *x, int64_t step, int64_t at,
                     int64_t rows, int64_t n) {
    const int64_t lines = r->band_lines, band = lines * n;
    const bool is_whole = lines == 1 || (step == n && at % lines == 0);
    const int64_t bands = is_whole ? rows / lines : 0;
    r->op->add(sums, x, lines * step, bands, band);
    for (int64_t k = bands * lines; k < rows; k++) {
        const int64_t group = (at + k) % lines;
        r->op->add((char *)sums + group * n * (int64_t)r->op->size,
                   (const char *)x + k * step * (int64_t)r->size, 0, 1, n);
    }
}

/* Sums the rows of a block, for tile `t` of the columns of one outer index. `sums` has room for a
 * band. */
static void sum_block(const reduction *r, int64_t base, int64_t t, int64_t block, void *sums,
                      column_tiles *tiles) {
    const cb_walk *w = &r->reduced;
    int64_t column = t * CB_TILE, n = min_i64(CB_TILE, r->columns.count - column);
    const int64_t lines = r->band_lines, rows = div_up(div_up(w->count, lines), r->blocks) * lines,
                  first = block * rows, end = min_i64(first + rows, w->count);
    int64_t row = first;
    cb_position columns = cb_walk_to(&r->columns, column);
    r->op->start(sums, n * lines);
    if (row >= end) return;
    bool direct = r->whole_rows && !is_half(r->in->dtype);
    cb_position p = cb_walk_to(w, row);
    while (row < end) {
        int64_t run_end = min_i64(row + CB_RUN_ROWS * lines, end);
        r->op->start(tiles->run, n * lines);
        while (row < run_end) {
            int64_t count = direct ? min_i64(run_end - row, cb_walk_left(w, &p)) : 1;
            const void *x = cb_at(r->in, base + p.offset[0] + columns.offset[0]);
            if (!r->whole_rows) {
                cb_walk_copy(&r->columns, columns, 0, cb_at(r->in, base + p.offset[0]), r->size,
                             tiles->row.raw, n);
                x = tiles->row.raw;
            }
            if (is_half(r->in->dtype)) {
                half_widen(r->in->dtype, x, tiles->row.wide, n);
                x = tiles->row.wide;
            }
            add_rows(r, tiles->run, x, w->stride[0][w->rank - 1], row - first, count, n);
            row += count;
            if (row < w->count) cb_walk_step(w, &p, count);
        }
        r->op->merge(sums, tiles->run, n * lines);
    }
    for (int64_t k = 1; k < lines; k++)
        r->op->merge(sums, (char *)sums + k * n * (int64_t)r->op->size, n);
}

/* Sums units, each of which is a tile of columns of one outer index, with all blocks. */
static void columns_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reduction *r = user;
    column_tiles tiles;
    int64_t end = min_i64((task + 1) * r->units_in_task, r->units);
    for (int64_t unit = task * r->units_in_task; unit < end; unit++) {
        int64_t place = unit / r->tiles, t = unit % r->tiles,
                n = min_i64(CB_TILE, r->columns.count - t * CB_TILE);
        int64_t base = cb_walk_to(&r->outer, place).offset[0];
        r->op->start(tiles.all, n);
        for (int64_t block = 0; block < r->blocks; block++) {
            sum_block(r, base, t, block, tiles.block, &tiles);
            r->op->merge(tiles.all, tiles.block, n);
        }
        put_results(r, place * r->columns.count + t * CB_TILE, tiles.all, n);
    }
}

/* Does the same with a task for each block, and the blocks' sums in scratch: [block][output]. */
static void block_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reduction *r = user;
    column_tiles tiles;
    int64_t unit = task / r->blocks, block = task % r->blocks, place = unit / r->tiles,
            t = unit % r->tiles;
    int64_t at = block * r->outer.count * r->columns.count + place * r->columns.count + t * CB_TILE;
    const int64_t n = min_i64(CB_TILE, r->columns.count - t * CB_TILE);
    sum_block(r, cb_walk_to(&r->outer, place).offset[0], t, block, tiles.block, &tiles);
    memcpy(r->partials + at * (int64_t)r->op->size, tiles.block, (size_t)n * r->op->size);
}

static void combine_task(void *user, int64_t task, int thread) {
    (void)thread;
    const reduction *r = user;
    uint64_t all[CB_TILE];
    int64_t outputs = r->outer.count * r->columns.count, at = task * CB_TILE,
            n = min_i64(CB_TILE, outputs - at);
    r->op->start(all, n);
    for (int64_t block = 0; block < r->blocks; block++)
        r->op->merge(all, r->partials + (block * outputs + at) * (int64_t)r->op->size, n);
    put_results(r, at, all, n);
}

static void reduce_columns(reduction *r) {
    int64_t outputs = r->outer.count * r->columns.count, wide = min_i64(r->columns.count, CB_TILE);
    r->whole_rows = r->columns.rank == 1 && r->columns.stride[0][0] == 1;
    r->tiles = div_up(r->columns.count, CB_TILE);
    r->units = r->outer.count * r->tiles;
    r->partials = r->args->scratch;
    r->band_lines = r->outer.count > 1 ? cb_band_lines(r->columns.count) : 1;
    r->blocks = cb_row_blocks(div_up(r->reduced.count, r->band_lines), outputs);
    bool few =
        r->units < 16 && r->blocks > 1; /* otherwise there are enough tasks without cutting rows */
    if (few && r->args->scratch_bytes >= (size_t)(r->blocks * outputs) * r->op->size) {
        cb_parallel(r->args->pool, r->units * r->blocks, block_task, r);
        cb_parallel(r->args->pool, div_up(outputs, CB_TILE), combine_task, r);
        return;
    }
    r->units_in_task = max_i64(CB_CHUNK / max_i64(wide * r->reduced.count, 1), 1);
    cb_parallel(r->args->pool, div_up(r->units, r->units_in_task), columns_task, r);
}

static cb_status run_reduce(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_tensor *in = &args->in[0];
    const cb_shape *axes = &args->attrs->dims;
    reduction r = {
        .args = args, .op = reducer_of(args->code, in->dtype), .in = in, .out = &args->out[0]};
    r.size = cb_dtype_size(in->dtype);
    r.outer = r.reduced = r.columns = cb_walk_start(1);
    int32_t next = 0,
            last = axes->rank > 0 ? (int32_t)axes->dim[axes->rank - 1] : in->shape.rank - 1;
    while (last >= 0 && in->shape.dim[last] == 1)
        last--; /* the last reduced axis that is longer than 1 */
    for (int32_t k = 0; k < in->shape.rank; k++) {
        bool reduces = axes->rank == 0 || (next < axes->rank && axes->dim[next] == k);
        next += reduces;
        cb_walk_add(reduces ? &r.reduced : (k < last ? &r.outer : &r.columns), in->shape.dim[k],
                    &in->stride[k]);
    }
    cb_walk_finish(&r.outer);
    cb_walk_finish(&r.reduced);
    cb_walk_finish(&r.columns);
    if (cb_numel(&args->out[0].shape) == 0) return CB_OK;
    if (r.columns.count == 1) reduce_rows(&r);
    else reduce_columns(&r);
    return CB_OK;
}

cb_kernel_fn CB_KERN(reduce)(cb_opcode code, cb_dtype dtype) {
    (void)dtype;
    switch (code) {
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN: return run_reduce;
        default: return NULL;
    }
}
