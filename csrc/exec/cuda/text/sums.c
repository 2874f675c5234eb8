/* Sums that are not over one row, in the same order as on the CPU:
 *
 *     columns   blocks of rows (cb_row_blocks); within a block the rows in order, in runs of 128
 *               if the op is a sum; then the blocks in order
 *     total     leaves of 1,024 elements, segments of leaves in pairs, then the segments
 *     pieces    a power of two of elements of a row: 64 lanes, folded once
 *
 * Partial sums of columns are in the op's scratch, leaves in extra memory of the executable. */
#include "sums.h"

#include "../../../ir/work.h"
#include "../../../micro/sums.h"

enum {
    COLUMN_THREADS = 64,
    TEAM = 16,
    TEAM_THREADS = 128,
    ACROSS_MOST = 16,         /* 256 bytes of a row in f32 */
    SLOT_THREADS = 256,       /* threads of a column block */
    BLOCKS_ENOUGH = 528,      /* four blocks for each multiprocessor */
    SLOT_THREADS_MOST = 1024, /* threads of a column block if there are fewer blocks */
    SHARED_MOST = 40 << 10
};

bool cb_cu_is_total(const cb_microcode *m, const cb_micro *micro) {
    return micro->op == CB_X_ACC && !micro->is_dead && m->acc_kind[micro->dst] == CB_X_TOTAL_SUM;
}

static bool is_piece(const cb_microcode *m, const cb_micro *micro) {
    return micro->op == CB_X_ACC && !micro->is_dead && m->acc_kind[micro->dst] == CB_X_PIECE_SUM;
}

static bool is_column(const cb_microcode *m, const cb_micro *micro) {
    (void)m;
    return micro->op == CB_X_COLUMN && !micro->is_dead;
}

typedef bool (*kind_fn)(const cb_microcode *m, const cb_micro *micro);

static bool need(cb_cu_micro *x, kind_fn is_kind) {
    bool any = false;
    for (int k = 0; k < x->m->n_micro; k++) {
        if (!is_kind(x->m, &x->m->micro[k])) continue;
        cb_cu_need(x, k);
        any = true;
    }
    return any;
}

void cb_cu_need_sums(cb_cu_micro *x) {
    if (!x->has_leaves) (void)need(x, cb_cu_is_total);
    (void)need(x, is_piece);
    (void)need(x, is_column);
}

static int operand_param(cb_cu_micro *x, uint32_t tensor) {
    return cb_cu_operand(x->code, x->code->program->operand_id[tensor], true);
}

/* ---- columns --------------------------------------------------------------------------------- */

/* Column sums are computed for each block of rows, and the blocks are then added in order. */
typedef struct row_blocks {
    int64_t n, rows;
} row_blocks;

static row_blocks blocks_of(const cb_microcode *m) {
    const int64_t rows = cb_cu_div_up(m->rows, cb_row_blocks(m->rows, m->columns));
    return (row_blocks){.n = cb_cu_div_up(m->rows, rows), .rows = rows};
}

/* Returns the parameter of an op's partial sums: [part][block][columns] of its scratch. */
static int partial_param(cb_cu_micro *x, const cb_x_stream *s, int64_t n_block, bool writes) {
    const cb_program *p = x->code->program;
    const cb_buffer *scratch = &p->buffer[p->instr[s->instr].scratch];
    const uint64_t at = (uint64_t)(s->part * n_block * x->m->columns) * sizeof(float);
    return cb_cu_param_of(x->code, (cb_cu_param){CB_CU_ARENA, 0, scratch->offset + at}, "float",
                          writes);
}

/* A thread block processes 4 * `across` columns of a block of rows, `slots` rows at a time. A
 * thread computes four elements of a row and stores them in shared memory. Then one thread for each
 * column adds them in the order of rows, while the others compute the next rows. */
typedef struct slots {
    int across, slots, width; /* width: columns */
} slots;

static slots slots_of(const cb_microcode *m, const row_blocks *b) {
    const int64_t quads = cb_cu_div_up(m->columns, 4);
    slots s = {.across = 1};
    while (s.across < ACROSS_MOST && s.across < quads) s.across *= 2;
    const int64_t blocks = cb_cu_div_up(quads, s.across) * b->n;
    const int threads = blocks < BLOCKS_ENOUGH ? SLOT_THREADS_MOST : SLOT_THREADS;
    s.width = 4 * s.across;
    s.slots = CB_RUN_ROWS;
    const int row_bytes = 2 * (int)sizeof(float) * m->n_columns * s.width;
    while (s.slots > 1 && (s.slots * s.across > threads || s.slots * row_bytes > SHARED_MOST))
        s.slots /= 2;
    return s;
}

typedef struct column_writer { /* writes one kernel */
    cb_cu_micro *x;
    const row_blocks *b;
    slots s;
} column_writer;

static void declare_columns(void *with) {
    const column_writer *w = with;
    const cb_microcode *m = w->x->m;
    for (int k = 0; k < m->n_columns; k++)
        cb_cu_add(w->x->code, "float c%d[V] = {};\n", m->column[k].stream);
}

static void store_columns(void *with) {
    const column_writer *w = with;
    const cb_microcode *m = w->x->m;
    for (int k = 0; k < m->n_columns; k++)
        cb_cu_add(w->x->code, "store(slots[turn][%d] + (slot * %d + quad) * V, c%d, true, V);\n", k,
                  w->s.across, m->column[k].stream);
}

static void end_runs(void *with) {
    const column_writer *w = with;
    const cb_microcode *m = w->x->m;
    for (int k = 0; k < m->n_columns; k++) {
        if (m->stream[m->column[k].stream].tile < 0) continue;
        cb_cu_add(w->x->code, "if (at / %d == %d) b[i] += sum, c[i] = 0;\n", w->s.width, k);
    }
}

/* Writes code that stores the block's sums, as partial sums or as results. */
static void give_columns(void *with) {
    const column_writer *w = with;
    cb_cu_micro *x = w->x;
    cb_cu_code *c = x->code;
    for (int k = 0; k < x->m->n_columns; k++) {
        const cb_x_columns *column = &x->m->column[k];
        const cb_x_stream *stream = &x->m->stream[column->stream];
        const char *sum = stream->tile >= 0 ? "b[i]" : "c[i]";
        cb_cu_add(c, "if (at / %d == %d) ", w->s.width, k);
        if (w->b->n > 1) {
            cb_cu_add(c, "p%d[block * COLUMNS + column] = %s;\n",
                      partial_param(x, stream, w->b->n, true), sum);
        } else {
            cb_cu_add(c, "narrow(&p%d[column], %s%s);\n", operand_param(x, column->tensor), sum,
                      column->is_mean ? " / (float)ROWS" : "");
        }
    }
}

static void block_bounds(void *with) {
    const column_writer *w = with;
    const int rows = cb_cu_count(w->x->code, w->b->rows);
    cb_cu_template(w->x->code,
                   "const I begin = block * (I)p$rows, wanted = begin + (I)p$rows;\n"
                   "const I end = wanted < ROWS ? wanted : ROWS;\n",
                   CB_CU_HOLES(CB_CU_HOLE(rows, rows)));
}

/* Shared memory is double-buffered, so one barrier per iteration is enough. A thread adds up
 * columns threadIdx.x, threadIdx.x + threads, ... of all sums. */
static const char column_text[] =
    "__shared__ __align__(16) float slots[2][$sums][$area];\n"
    "const unsigned quad = threadIdx.x % $across, slot = threadIdx.x / $across;\n"
    "const I col = (blockIdx.x * (I)$across + quad) * V, block = blockIdx.y;\n"
    "const int n = $there;\n"
    "$(once)"
    "float c[$each] = {}, b[$each] = {};\n"
    "int turn = 0;\n"
    "$(bounds)"
    "#pragma unroll 1\n"
    "for (I first = begin; first < end; first += $slots, turn ^= 1) {\n"
    "const I row = first + slot, e = row * COLUMNS + col;\n"
    "if (row < end && col < COLUMNS) {\n"
    "$(declare)$(row_numbers)$(kept_numbers)$(body)$(store)"
    "}\n"
    "__syncthreads();\n"
    "const bool ends = first + $slots >= end;\n"
    "const int left = ends ? end - first : $slots;\n"
    "#pragma unroll\n"
    "for (int i = 0; i < $each; i++) {\n"
    "const int at = i * $threads + threadIdx.x;\n"
    "$(check)$(check_column)"
    "const float *const from = &slots[turn][0][0] + at / $width * $area + at % $width;\n"
    "float sum = c[i];\n"
    "#pragma unroll 8\n"
    "for (int r = 0; r < left; r++) sum += from[r * $width];\n"
    "c[i] = sum;\n"
    "if (ends || (first + $slots - begin) % $run == 0) {\n"
    "$(end_runs)"
    "}\n"
    "}\n"
    "}\n"
    "#pragma unroll\n"
    "for (int i = 0; i < $each; i++) {\n"
    "const int at = i * $threads + threadIdx.x;\n"
    "$(check)"
    "const I column = blockIdx.x * (I)$width + at % $width;\n"
    "if (column >= COLUMNS) continue;\n"
    "$(give)"
    "}\n";

static void column_kernel(cb_cu_micro *x, const row_blocks *b) {
    const cb_microcode *m = x->m;
    column_writer w = {.x = x, .b = b, .s = slots_of(m, b)};
    const slots *s = &w.s;
    const int threads = s->across * s->slots, all = m->n_columns * s->width;
    const char *check = all % threads ? "if (at >= $all) continue;\n" : "",
               *check_column = "if (blockIdx.x * (I)$width + at % $width >= COLUMNS) continue;\n";
    cb_cu_begin(x->code);
    cb_cu_head(x, 4); /* sets is_guarded */
    const char *there = x->is_guarded ? "COLUMNS < col + V ? (int)(COLUMNS - col) : V" : "V";
    cb_cu_template(
        x->code, column_text,
        CB_CU_HOLES(
            CB_CU_HOLES_OF(x), CB_CU_HOLE(sums, m->n_columns), CB_CU_HOLE(all, all),
            CB_CU_HOLE(area, s->slots * s->width), CB_CU_HOLE(across, s->across),
            CB_CU_HOLE(width, s->width), CB_CU_HOLE(slots, s->slots), CB_CU_HOLE(threads, threads),
            CB_CU_HOLE(each, cb_cu_div_up(all, threads)), CB_CU_HOLE(run, CB_RUN_ROWS),
            CB_CU_HOLE_TEXT(there, there), CB_CU_HOLE_TEXT(check, check),
            CB_CU_HOLE_TEXT(check_column, m->columns % s->width ? check_column : ""),
            CB_CU_HOLE_PART(bounds, block_bounds, &w),
            CB_CU_HOLE_PART(declare, declare_columns, &w),
            CB_CU_HOLE_PART(store, store_columns, &w), CB_CU_HOLE_PART(end_runs, end_runs, &w),
            CB_CU_HOLE_PART(give, give_columns, &w)));
    const int64_t quads = cb_cu_div_up(m->columns, 4);
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)cb_cu_div_up(quads, s->across), (uint32_t)b->n, 1},
              (uint32_t)threads);
}

/* Writes code that adds the blocks of one sum in order. */
static void finish_column(cb_cu_micro *x, const cb_x_columns *column, const row_blocks *b) {
    cb_cu_code *c = x->code;
    const int from = partial_param(x, &x->m->stream[column->stream], b->n, false),
              to = operand_param(x, column->tensor), n_block = cb_cu_count(c, b->n);
    cb_cu_add(c, "float sum = 0;\n#pragma unroll 16\n");
    cb_cu_add(c,
              "for (unsigned block = 0; block < (unsigned)p%d; block++) sum += p%d[block * n + "
              "col];\n",
              n_block, from);
    cb_cu_add(c, "narrow(&p%d[col], sum", to);
    if (column->is_mean) cb_cu_add(c, " / (float)p%d", cb_cu_count(c, x->m->rows));
    cb_cu_add(c, ");\n");
}

/* Adds the kernel that combines blocks, if there are several. */
static void finish_columns(cb_cu_micro *x, const row_blocks *b) {
    cb_cu_code *c = x->code;
    const int n = x->m->n_columns;
    if (b->n == 1) return;
    cb_cu_begin(c);
    cb_cu_add(c, "const unsigned col = blockIdx.x * %d + threadIdx.x, n = (unsigned)p%d;\n",
              COLUMN_THREADS, cb_cu_count(c, x->m->columns));
    cb_cu_add(c, "if (col >= n) return;\n");
    for (int k = 0; k < n; k++) {
        if (n > 1) cb_cu_add(c, "if (blockIdx.y == %d) {\n", k);
        finish_column(x, &x->m->column[k], b);
        if (n > 1) cb_cu_add(c, "}\n");
    }
    const uint32_t across = (uint32_t)cb_cu_div_up(x->m->columns, COLUMN_THREADS);
    cb_cu_end(c, (cb_cu_grid){across, (uint32_t)n, 1}, COLUMN_THREADS);
}

static void sum_columns(cb_cu_micro *x) {
    const row_blocks b = blocks_of(x->m);
    cb_cu_forget(x);
    if (!need(x, is_column)) return;
    column_kernel(x, &b);
    finish_columns(x, &b);
}

/* ---- teams of sixteen threads over runs of elements ------------------------------------------ */

typedef struct team_writer {
    cb_cu_micro *x;
    kind_fn is_kind;
} team_writer;

static void declare_lanes(void *with) {
    const team_writer *w = with;
    const cb_microcode *m = w->x->m;
    for (int k = 0; k < m->n_micro; k++) {
        if (w->is_kind(m, &m->micro[k]))
            cb_cu_add(w->x->code, "float a%d[V] = {};\n", m->micro[k].dst);
    }
}

/* Begins a kernel in which each team loops over a run of `length` elements; a%d are its lanes. */
static void team_kernel(cb_cu_micro *x, kind_fn is_kind, int64_t runs, int64_t length) {
    static const char text[] =
        "const unsigned t = threadIdx.x % $team;\n"
        "const I run = blockIdx.x * (I)$teams + threadIdx.x / $team;\n"
        "if (run >= (I)$runs) return;\n"
        "$(once)$(lanes)"
        "const I first = run * (I)$length + t * V, last = run * (I)$length + (I)$length;\n"
        "#pragma unroll 4\n"
        "for (I e = first; e < last && e < ROWS * COLUMNS; e += $step) {\n"
        "const I row = e / COLUMNS, col = e - row * COLUMNS;\n"
        "const int n = $n;\n"
        "$(row_numbers)$(kept_numbers)$(body)"
        "}\n";
    team_writer w = {x, is_kind};
    cb_cu_begin(x->code);
    cb_cu_head(x, 4);
    cb_cu_template(x->code, text,
                   CB_CU_HOLES(CB_CU_HOLES_OF(x), CB_CU_HOLE(team, TEAM),
                               CB_CU_HOLE(length, length), CB_CU_HOLE(teams, TEAM_THREADS / TEAM),
                               CB_CU_HOLE_COUNT(runs, runs), CB_CU_HOLE(step, CB_X_LANES),
                               CB_CU_HOLE_PART(lanes, declare_lanes, &w)));
}

static void end_teams(cb_cu_micro *x, int64_t runs) {
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)cb_cu_div_up(runs, TEAM_THREADS / TEAM), 1, 1},
              TEAM_THREADS);
}

/* Marks the operations that the sums of pieces of one length need. Returns false if there are no
 * such sums. */
static bool need_pieces(cb_cu_micro *x, int log_length) {
    bool any = false;
    cb_cu_forget(x);
    for (int k = 0; k < x->m->n_pieces; k++) {
        if (x->m->pieces[k].log_length != log_length) continue;
        for (int i = 0; i < x->m->n_micro; i++) {
            if (is_piece(x->m, &x->m->micro[i]) && x->m->micro[i].dst == x->m->pieces[k].acc)
                cb_cu_need(x, i);
        }
        any = true;
    }
    return any;
}

static void sum_pieces(cb_cu_micro *x) {
    enum { LENGTHS = 63 };
    cb_cu_code *c = x->code;
    for (int log_length = 0; log_length < LENGTHS; log_length++) {
        if (!need_pieces(x, log_length)) continue;
        const int64_t length = (int64_t)1 << log_length, runs = x->m->rows * x->m->columns / length;
        team_kernel(x, is_piece, runs, length);
        for (int k = 0; k < x->m->n_pieces; k++) {
            const cb_x_pieces *pieces = &x->m->pieces[k];
            if (pieces->log_length != log_length) continue;
            const int p = operand_param(x, x->m->stream[pieces->stream].tensor);
            cb_cu_add(c, "{ const float sum = fold(a%d);\n", pieces->acc);
            cb_cu_add(c, "if (t == 0) narrow(&p%d[run], sum", p);
            if (pieces->is_mean) cb_cu_add(c, " / %lld.0f", (long long)length);
            cb_cu_add(c, "); }\n");
        }
        end_teams(x, runs);
    }
}

/* Returns the function that rounds a total to its dtype for its readers; NULL if there is no
 * rounding. */
static const char *rounding_of(const cb_cu_micro *x, uint32_t tensor) {
    const cb_program *p = x->code->program;
    const cb_dtype dtype = p->operand[p->operand_id[tensor]].dtype;
    return dtype == CB_BF16 ? "x_ROUND_BF16" : dtype == CB_F16 ? "x_ROUND_F16" : NULL;
}

/* ---- totals ---------------------------------------------------------------------------------- */

/* The division of a total's leaves into segments. */
typedef struct segments {
    int64_t leaves, each, n; /* number of leaves; leaves of a segment; number of segments */
} segments;

static segments segments_of(const cb_microcode *m) {
    const int64_t count = m->rows * m->columns, length = cb_segment_of(count);
    return (segments){cb_cu_div_up(count, CB_X_LEAF), length / CB_X_LEAF,
                      cb_cu_div_up(count, length)};
}

static int floats_at(cb_cu_micro *x, uint64_t offset, bool writes) {
    return cb_cu_param_of(x->code, (cb_cu_param){CB_CU_EXTRA, 0, offset}, "float", writes);
}

/* Adds a kernel in which a warp for each segment and total adds up the segment's leaves. */
static void sum_segments(cb_cu_micro *x, const segments *s, const uint64_t *parts_at) {
    static const char text[] =
        "if (blockIdx.y == $k) {\n"
        "const uint64_t first = blockIdx.x * p$each, last = first + p$each;\n"
        "const float sum = pairs_of_warp(p$from, first, last < p$leaves ? last : p$leaves);\n"
        "if (threadIdx.x == 0) p$to[blockIdx.x] = sum;\n"
        "}\n";
    cb_cu_code *c = x->code;
    cb_cu_begin(c);
    const int each = cb_cu_count(c, s->each), leaves = cb_cu_count(c, s->leaves);
    for (int k = 0; k < x->m->n_total; k++)
        cb_cu_template(c, text,
                       CB_CU_HOLES(CB_CU_HOLE(k, k), CB_CU_HOLE(each, each),
                                   CB_CU_HOLE(leaves, leaves),
                                   CB_CU_HOLE(from, floats_at(x, x->leaves_at[k], false)),
                                   CB_CU_HOLE(to, floats_at(x, parts_at[k], true))));
    cb_cu_end(c, (cb_cu_grid){(uint32_t)s->n, (uint32_t)x->m->n_total, 1}, 32);
}

/* Writes s<number>, the sum of `n` leaves or segments in memory. */
static void finish_total(cb_cu_micro *x, const cb_x_total *total, uint64_t at, int64_t n) {
    static const char text[] = "float s$total;\n"
                               "s$total = pairs_of_warp(p$from, 0, p$n)$mean;\n";
    cb_cu_code *c = x->code;
    cb_cu_template(c, text,
                   CB_CU_HOLES(CB_CU_HOLE(total, total->number),
                               CB_CU_HOLE(from, floats_at(x, at, false)),
                               CB_CU_HOLE(n, cb_cu_count(c, n)),
                               CB_CU_HOLE_COUNT(count, x->m->rows * x->m->columns),
                               CB_CU_HOLE_TEXT(mean, total->is_mean ? " / (float)$count" : "")));
}

/* Writes the results of totals, and the numbers that depend on them. */
static void give_totals(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    cb_cu_code *c = x->code;
    for (int k = 0; k < m->n_total; k++) {
        const char *rounding = rounding_of(x, m->total[k].tensor);
        if (!m->total[k].is_local)
            cb_cu_add(c, "narrow(&p%d[0], s%d);\n", operand_param(x, m->total[k].tensor),
                      m->total[k].number);
        if (rounding)
            cb_cu_add(c, "s%d = %s(s%d);\n", m->total[k].number, rounding, m->total[k].number);
    }
    for (int k = 0; k < m->n_number; k++) {
        if (m->number[k].when == CB_X_AFTER_ALL) cb_cu_number(x, &m->number[k]);
    }
    for (int k = 0; k < m->n_give; k++) {
        cb_cu_narrow_number(x, operand_param(x, m->give[k].tensor), "0", m->give[k].number);
    }
}

/* Adds a kernel of one warp that finishes the totals. If there are several segments, a kernel
 * before it adds up each of them. */
static void finish_totals(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    cb_cu_code *c = x->code;
    const segments s = segments_of(m);
    const bool has_parts = m->n_total > 0 && s.n > 1;
    uint64_t at[CB_X_TOTALS];
    for (int k = 0; k < m->n_total; k++)
        at[k] = has_parts ? cb_cu_extra(c, (uint64_t)s.n * sizeof(float)) : x->leaves_at[k];
    if (has_parts) sum_segments(x, &s, at);
    cb_cu_begin(c);
    cb_cu_once(x);
    for (int k = 0; k < m->n_total; k++)
        finish_total(x, &m->total[k], at[k], has_parts ? s.n : s.leaves);
    cb_cu_add(c, "if (threadIdx.x) return;\n");
    give_totals(x);
    cb_cu_end(c, (cb_cu_grid){1, 1, 1}, 32);
}

void cb_cu_place_leaves(cb_cu_micro *x) {
    const int64_t leaves = cb_cu_div_up(x->m->rows * x->m->columns, CB_X_LEAF);
    for (int k = 0; k < x->m->n_total; k++)
        x->leaves_at[k] = cb_cu_extra(x->code, (uint64_t)leaves * sizeof(float));
}

int cb_cu_leaves_param(cb_cu_micro *x, int acc) {
    int k = 0;
    while (x->m->total[k].acc != acc) k++;
    return cb_cu_param_of(x->code, (cb_cu_param){CB_CU_EXTRA, 0, x->leaves_at[k]}, "float", true);
}

static void sum_leaves(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    const int64_t leaves = cb_cu_div_up(m->rows * m->columns, CB_X_LEAF);
    cb_cu_forget(x);
    for (int k = 0; k < m->n_micro && x->stores_with_leaves; k++)
        if (cb_cu_is_store(x, &m->micro[k])) cb_cu_need(x, k);
    if (!need(x, cb_cu_is_total)) return;
    team_kernel(x, cb_cu_is_total, leaves, CB_X_LEAF);
    for (int k = 0; k < m->n_total; k++)
        cb_cu_add(x->code, "{ const float sum = fold(a%d);\nif (t == 0) p%d[run] = sum; }\n",
                  m->total[k].acc, cb_cu_leaves_param(x, m->total[k].acc));
    end_teams(x, leaves);
}

void cb_cu_sums(cb_cu_micro *x) {
    x->has_tiles = false;
    sum_columns(x);
    sum_pieces(x);
    if (!x->has_leaves) sum_leaves(x);
    if (x->m->n_total || x->m->n_give) finish_totals(x);
}
