/* Prepares groups: their records, the steps of streams from row to row, and the division of rows
 * into tasks. */
#include "prepare.h"

#include "../../../ir/work.h"
#include "../../../micro/across.h"
#include "../../../micro/decompose.h"

static cb_walk walk_of(const cb_tensor *t) {
    const cb_tensor *one[1] = {t};
    return cb_walk_of(one, 1);
}

static void order_numbers(cb_x_fused *f) {
    int16_t n = 0;
    for (int after = -1; after < f->m.n_phase; after++) {
        f->first_number[after + 1] = n;
        for (int16_t k = 0; k < f->m.n_number; k++) {
            const cb_x_number *number = &f->m.number[k];
            if (number->when == CB_X_OF_ROW && number->after == after) f->order[n++] = k;
        }
    }
    f->first_number[f->m.n_phase + 1] = n;
}

/* Maximum number of elements of the rows that are gathered together. */
#define BATCH_ELEMENTS ((int64_t)1 << 18)

/* True if rows are strided, as those of a transposed tensor are. Several such rows are gathered at
 * once, each to a separate tile. */
static bool lies_across(const cb_x_fused *f, int k) {
    const cb_walk *w = &f->walk[k];
    const int last = w->rank - 1;
    return f->m.stream[k].source == CB_X_GATHERED && !f->m.inner && f->chunks == 1 && last > 0 &&
           w->stride[0][last] > 1 && w->stride[0][last - 1] == 1 && w->dim[last] == f->m.columns;
}

static void make_tiles(cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    const int64_t row = m->inner ? f->bands * f->pitch : m->columns * max_i64(m->together, 1),
                  elements = f->chunks > 1 ? CB_X_CHUNK : row;
    const size_t bytes = ((size_t)elements + CB_X_TILE_PAD) * (size_t)f->real;
    f->n_tile = (size_t)m->n_tile;
    f->lane_bytes = cb_align_up((size_t)(m->n_lanes * f->pitch * f->real));
    f->tile_bytes = cb_align_up(bytes);
    f->batch = m->together > 1
                   ? 1 /* a tile holds all of them */
                   : min_i64(CB_ACROSS, max_i64(BATCH_ELEMENTS / max_i64(m->columns, 1), 1));
    for (int k = 0; k < m->n_stream; k++) {
        const bool is_across = lies_across(f, k);
        f->across[k] = is_across ? (int32_t)f->n_tile : -1;
        if (is_across) f->n_tile += (size_t)f->batch;
    }
}

#define ROWS_ONCE 4 /* minimum number of rows that share a gathered row */

/* True if all rows of an operand are equal. */
static bool repeats(const cb_x_fused *f, int k) {
    const cb_walk *w = &f->walk[k];
    const cb_x_source source = f->m.stream[k].source;
    if (source != CB_X_ARRAY && source != CB_X_GATHERED) return false;
    if (w->rank < 2 || w->stride[0][0] != 0 || w->stride[0][w->rank - 1] > 1) return false;
    return f->m.columns % (f->m.rows * f->m.columns / w->dim[0]) == 0;
}

/* Elements of a tile of adjacent rows, which should fit the L2 cache. */
#define ACROSS_ELEMENTS ((int64_t)1 << 15)

/* Maximum number of tasks that share leaves. */
#define SHARING_TASKS 64

static void cut_across(cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    const int64_t most = max_i64(ACROSS_ELEMENTS / m->columns / CB_X_LANES, 1) * CB_X_LANES;
    const bool has_lines = m->n_total || m->n_line_sum;
    f->band_lines = cb_band_lines(m->inner);
    f->bands = div_up(m->columns, f->band_lines);
    f->lanes = has_lines || f->band_lines > 1 ? m->inner : min_i64(m->inner, most);
    f->pitch = div_up(f->lanes * f->band_lines, CB_X_LANES) * CB_X_LANES;
    f->strips = div_up(m->inner, f->lanes);
    f->n_unit = m->rows / m->inner * f->strips;
    f->bands_in_block = div_up(f->bands, cb_row_blocks(f->bands, m->rows));
    f->rows_in_task = max_i64(CB_X_CHUNK / (m->columns * f->lanes), 1);
    if (m->n_total && cb_x_cuts_lanes(m))
        f->rows_in_task = max_i64(f->rows_in_task, div_up(f->n_unit, SHARING_TASKS));
    else
        while (m->n_total && f->rows_in_task * m->columns * m->inner % CB_X_LEAF) f->rows_in_task++;
    f->n_task = div_up(f->n_unit, f->rows_in_task);
    f->runs_over = f->strips == 1;
    for (int k = 0; k < m->n_stream; k++) f->runs_over &= m->stream[k].over < 0;
}

/* Divides rows that run together, or whose total sums are cut by rows (micro/together.h). */
static void cut_together(cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    const int64_t rows = m->together;
    f->band_lines = 1;
    f->runs_over = true;
    for (int k = 0; k < m->n_stream; k++) f->runs_over &= m->stream[k].over < 0;
    f->pitch = div_up(rows, CB_X_LANES) * CB_X_LANES;
    if (m->n_columns) return;
    if (m->n_line_sum) f->rows_in_task = max_i64(f->rows_in_task, div_up(m->rows, SHARING_TASKS));
    f->rows_in_task = div_up(f->rows_in_task, rows) * rows;
}

/* Divides rows into tasks, by shape only. */
static void cut(cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    f->chunks = 1;
    f->rows_in_task = 1;
    if (m->inner) {
        cut_across(f);
        return;
    }
    if (m->n_columns) {
        int64_t blocks = cb_row_blocks(m->rows, m->columns);
        f->rows_in_task = div_up(m->rows, blocks);
    } else if (m->columns <= CB_X_CHUNK || m->has_rows) {
        f->rows_in_task = max_i64(CB_X_CHUNK / max_i64(m->columns, 1), 1);
        for (int k = 0; k < m->n_stream; k++) { /* rows may be strided, or gathered once */
            if (m->stream[k].source == CB_X_GATHERED)
                f->rows_in_task = max_i64(f->rows_in_task, repeats(f, k) ? ROWS_ONCE : CB_ACROSS);
        }
        while (m->n_total && !m->n_line_sum && f->rows_in_task * m->columns % CB_X_LEAF)
            f->rows_in_task++;
    } else {
        f->chunks = div_up(m->columns, CB_X_CHUNK);
    }
    if (m->together) cut_together(f);
    f->n_task = div_up(m->rows, f->rows_in_task) * f->chunks;
}

/* Converts a walk over numbers that are repeated for each element of a row into a walk over
 * rows. */
static void step_by_rows(cb_walk *w, int64_t columns) {
    const int last = w->rank - 1;
    w->count /= columns;
    w->dim[last] /= columns;
    if (w->dim[last] == 1 && last > 0) w->rank--;
}

static void make_walks(const cb_executable *x, cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_tensor *t = &x->tensor[m->stream[k].tensor];
        if (m->stream[k].source == CB_X_TILE) continue;
        f->walk[k] = walk_of(t);
        f->is_whole[k] = cb_is_contiguous(&t->shape, t->stride);
        /* A vector with one element per column is the same in every row. */
        if (cb_numel(&t->shape) != m->rows * m->columns) f->walk[k] = (cb_walk){.rank = 0};
    }
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_source source = m->stream[k].source;
        bool is_array = source == CB_X_ARRAY;
        bool moves = is_array && f->walk[k].rank > 0;
        bool is_found =
            moves ? f->is_whole[k] : is_array || source == CB_X_TILE || source == CB_X_SUMS;
        f->step[k] = repeats(f, k) ? 0
                     : !is_found   ? CB_X_RELOCATE
                                   : (moves ? m->columns * m->stream[k].size : 0);
    }
    for (int k = 0; k < m->n_pieces; k++) {
        const int16_t id = m->pieces[k].stream;
        f->step[id] = m->columns / m->pieces[k].length * m->stream[id].size;
    }
    for (int k = 0; k < m->n_line; k++) f->line_walk[k] = walk_of(&x->tensor[m->line[k].tensor]);
    for (int k = 0; k < m->n_load; k++) {
        const cb_tensor *t = &x->tensor[m->load[k].tensor];
        f->load_walk[k] = walk_of(t);
        f->one_a_row[k] =
            f->load_walk[k].count == m->rows && cb_is_contiguous(&t->shape, t->stride);
        if (m->together > 1 && f->load_walk[k].count != m->rows)
            step_by_rows(&f->load_walk[k], m->columns);
    }
}

static cb_status make_sums(const cb_executable *x, cb_x_fused *f, cb_arena *memory, cb_error *err) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_total; k++) {
        const size_t n = (size_t)div_up(m->rows * m->columns, CB_X_LEAF);
        f->leaf[k] = cb_arena_get(memory, n, (size_t)f->real);
        if (!f->leaf[k]) return cb_no_memory(err);
    }
    for (int k = 0; k < m->n_columns; k++) {
        if (f->n_task > 1 || !is_half(x->tensor[m->column[k].tensor].dtype)) continue;
        char **sums = &f->column[m->column[k].stream];
        *sums = cb_arena_get(memory, (size_t)m->columns, sizeof(float));
        if (!*sums) return cb_no_memory(err);
    }
    return CB_OK;
}

/* Allocates memory for leaves that tasks share (lanes.h). */
static cb_status make_shared(cb_x_fused *f, cb_arena *memory, cb_error *err) {
    for (int k = 0; k < f->m.n_line_sum; k++) {
        const int total = f->m.line_sum[k].total;
        if (total < 0 || f->n_task == 1) continue;
        f->shared[total] =
            cb_arena_get(memory, (size_t)((f->n_task - 1) * CB_X_LEAF), (size_t)f->real);
        if (!f->shared[total]) return cb_no_memory(err);
    }
    return CB_OK;
}

static cb_status make_phases(cb_x_fused *f, cb_arena *memory, cb_error *err) {
    CB_TRY_NEW(f->phase, memory, (size_t)f->m.n_phase, err);
    for (int k = 0; k < f->m.n_phase; k++)
        CB_TRY(cb_x_phase_make(&f->m, k, f->table, memory, &f->phase[k], err));
    return cb_microcode_keep(&f->m, memory, err);
}

static cb_status make_lists(cb_x_fused *f, cb_arena *memory, cb_error *err) {
    const size_t n_stream = (size_t)f->m.n_stream, n_load = (size_t)f->m.n_load;
    f->walk = CB_NEW(memory, cb_walk, n_stream);
    f->load_walk = CB_NEW(memory, cb_walk, n_load);
    f->line_walk = CB_NEW(memory, cb_walk, (size_t)f->m.n_line);
    f->column = CB_NEW(memory, char *, n_stream);
    f->is_whole = CB_NEW(memory, bool, n_stream);
    f->step = CB_NEW(memory, int64_t, n_stream);
    f->across = CB_NEW(memory, int32_t, n_stream);
    f->one_a_row = CB_NEW(memory, bool, n_load);
    f->order = CB_NEW(memory, int16_t, (size_t)f->m.n_number);
    const bool all = f->walk && f->load_walk && f->line_walk && f->column && f->is_whole &&
                     f->step && f->across && f->one_a_row && f->order;
    return all ? CB_OK : cb_no_memory(err);
}

cb_status cb_x_prepare(const cb_executable *x, uint32_t group, cb_x_room *room, cb_arena *memory,
                       cb_x_fused **out, cb_error *err) {
    cb_x_fused *f = CB_NEW(memory, cb_x_fused, 1);
    *out = NULL;
    if (!f) return cb_no_memory(err);
    cb_status status = cb_microcode_of(x->program, group, &cb_x_record_limits, room, &f->m, err);
    f->table = cb_x_table_of(f->m.is_wide);
    f->real = f->m.is_wide ? sizeof(double) : sizeof(float);
    if (status == CB_OK) status = make_phases(f, memory, err);
    if (status == CB_UNSUPPORTED) return CB_OK;
    if (status != CB_OK) return status;
    CB_TRY(make_lists(f, memory, err));
    make_walks(x, f);
    order_numbers(f);
    cut(f);
    make_tiles(f);
    CB_TRY(make_sums(x, f, memory, err));
    CB_TRY(make_shared(f, memory, err));
    *out = f;
    return CB_OK;
}
