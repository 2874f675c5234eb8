/* Runs assembled groups. Rows are divided among threads in blocks whose size depends on the shape,
 * each row takes one pass per phase, and partial sums of blocks are combined in order. */
#include "executor.h"

#include <string.h>

#include "../../../lower/alone.h"
#include "../../../micro/across.h"
#include "../../../micro/decompose.h"
#include "../../../micro/together.h"
#include "../batches/lanes.h"
#include "../batches/streams.h"
#include "../batches/together.h"
#include "numbers.h"
#include "print.h"
#include "scalar.h"

/* ---- preparation ----------------------------------------------------------------------------- */

static cb_status make_group(cb_executor *e, uint32_t group, cb_x_room *room, cb_error *err) {
    cb_x_fused *f = NULL;
    CB_TRY(cb_x_prepare(e->x, group, room, &e->x->memory, &f, err));
    e->group[group] = f;
    if (!f) return CB_OK;
    const size_t bytes = f->n_tile * f->tile_bytes + f->lane_bytes;
    if (bytes > e->thread_bytes) e->thread_bytes = bytes;
    return CB_OK;
}

/* Returns true if a group of this one instruction runs in the executor. Pointwise instructions do,
 * unless they only move elements. */
static bool runs_alone(const cb_program *p, const cb_instr *instr) {
    if (instr->code == CB_OP_CONTIGUOUS || instr->code == CB_OP_FULL ||
        instr->code == CB_OP_UNPACK_BITS)
        return false;
    return cb_alone_of(p, instr, cb_kernels_fuse).part == CB_PART_MAP;
}

static cb_status make_groups(cb_executor *e, cb_error *err) {
    cb_alloc *alloc = e->x->runtime->alloc;
    const cb_program *p = e->x->program;
    cb_x_room *room = cb_malloc(alloc, sizeof *room);
    cb_status status = room ? CB_OK : cb_no_memory(err);
    for (uint32_t g = 0; g < p->n_group && status == CB_OK; g++) {
        if (cb_group_fuses(&p->group[g]) || runs_alone(p, &p->instr[p->group[g].instr_begin]))
            status = make_group(e, g, room, err);
    }
    cb_free(alloc, room);
    return status;
}

/* Allocates the locals of groups that are too large for the executor, which run kernel by kernel.
 * Ordinary models have no such groups. */
static cb_status make_locals(const cb_executor *e, cb_error *err) {
    const cb_program *p = e->x->program;
    for (uint32_t l = 0; l < p->n_local; l++) {
        if (e->group[p->locals[l].group]) continue;
        e->x->local[l] = cb_arena_get(&e->x->memory, (size_t)p->locals[l].bytes, 1);
        if (!e->x->local[l]) return cb_no_memory(err);
    }
    return CB_OK;
}

cb_status cb_executor_new(cb_executable *x, cb_executor **out, cb_error *err) {
    cb_executor *e = CB_NEW(&x->memory, cb_executor, 1);
    if (!e) return cb_no_memory(err);
    *e = (cb_executor){.x = x};
    CB_TRY_NEW(e->group, &x->memory, x->program->n_group, err);
    CB_TRY(make_groups(e, err));
    CB_TRY(make_locals(e, err));
    *out = e;
    return CB_OK;
}

uint64_t cb_executor_bytes(const cb_executor *e) {
    return e->context ? cb_block_bytes(e->context) : 0;
}

void cb_executor_free(cb_executor *e) {
    if (e) cb_free(e->x->runtime->alloc, e->context);
}

/* Allocates contexts and tiles for the current number of threads, and one more context for values
 * shared by all threads. The user may change the number of threads between runs. */
static cb_status make_memory(cb_executor *e, cb_error *err) {
    cb_alloc *alloc = e->x->runtime->alloc;
    const int threads = e->x->runtime->pool ? cb_threads_count(e->x->runtime->pool) : 1;
    if (threads <= e->n_thread) return CB_OK;
    size_t n = (size_t)threads, tiles, bytes;
    cb_free(alloc, e->context);
    e->context = NULL;
    e->n_thread = 0;
    if (!cb_mul_size(n, e->thread_bytes, &tiles) ||
        !cb_add_size(tiles, (n + 1) * sizeof *e->context, &bytes))
        return cb_no_memory(err);
    e->context = cb_malloc(alloc, bytes);
    if (!e->context) return cb_no_memory(err);
    memset(e->context, 0, (n + 1) * sizeof *e->context);
    e->tile = (char *)(e->context + n + 1);
    e->shared = &e->context[n];
    e->n_thread = threads;
    return CB_OK;
}

bool cb_executor_has(const cb_executor *e, uint32_t group) { return e->group[group] != NULL; }

void cb_executor_print(const cb_executor *e, uint32_t group, cb_str *out) {
    cb_x_print(e->group[group], e->x->program, out);
}

/* ---- one row --------------------------------------------------------------------------------- */

typedef struct piece { /* elements first..last of one row, and its addresses */
    int64_t row, first, last, block;
    int64_t begin, end; /* rows of the task */
    cb_x_lines lines;   /* the whole task, for sums whose leaves do not end with rows */
    int thread;
} piece;

/* Returns a row of a tensor with strided rows: the first row of a batch gathers all of them. */
static char *row_across(cb_executor *e, int k, const piece *p) {
    const cb_x_fused *f = e->f;
    const int32_t in_batch = (int32_t)((p->row - p->begin) % f->batch);
    if (in_batch == 0)
        cb_x_gather_across(e, k, p->row, min_i64(f->batch, p->end - p->row),
                           cb_x_tile(e, p->thread, f->across[k]),
                           (int64_t)(f->tile_bytes / f->m.stream[k].size));
    return cb_x_tile(e, p->thread, f->across[k] + in_batch);
}

/* Returns element 0 of the piece's row in stream k; a filled stream holds only the piece. */
static char *row_of_stream(cb_executor *e, int k, const piece *p) {
    const cb_x_stream *s = &e->f->m.stream[k];
    int64_t at = p->row * e->f->m.columns + p->first;
    if (s->source == CB_X_PIECES)
        return (char *)e->x->tensor[s->tensor].data + p->row * e->f->step[k];
    if (s->source == CB_X_SUMS)
        return s->tile >= 0 ? cb_x_tile(e, p->thread, s->tile) : cb_x_sums_of_block(e, s, p->block);
    if (e->f->across[k] >= 0) return row_across(e, k, p);
    if (s->source != CB_X_ARRAY) {
        char *tile = cb_x_tile(e, p->thread, s->tile);
        cb_x_fill(e, s, k, at, p->last - p->first, tile);
        return tile - p->first * s->size;
    }
    const cb_walk *w = &e->f->walk[k];
    char *data = e->x->tensor[s->tensor].data;
    if (w->rank == 0) return data;
    int64_t offset = e->f->is_whole[k] ? at : cb_walk_to(w, at).offset[0];
    return data + (offset - p->first) * s->size;
}

/* Runs a piece. `is_next` is true if this thread has just run the previous row. */
static void run_piece(cb_executor *e, const piece *p, bool is_next) {
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    cb_x_context *c = &e->context[p->thread];
    int64_t at = p->row * m->columns;
    for (int k = 0; k < m->n_stream; k++) {
        if (is_next && f->step[k] != CB_X_RELOCATE) c->p[k] += f->step[k];
        else c->p[k] = row_of_stream(e, k, p);
    }
    for (int k = 0; k < m->n_load; k++) {
        const cb_tensor *t = &e->x->tensor[m->load[k].tensor];
        const cb_walk *w = &f->load_walk[k];
        int64_t element = p->row;
        if (!f->one_a_row[k]) element = cb_walk_to(w, w->count == m->rows ? p->row : at).offset[0];
        cb_x_load_number(m, c, &m->load[k], t, element);
    }
    c->leaf = at & (CB_X_LEAF - 1);
    cb_x_numbers_after(f, c, -1);
    for (int k = 0; k < m->n_phase; k++) {
        bool is_last = p->row + 1 == m->rows && p->last == m->columns;
        cb_x_phase_run(f->table, c, &f->phase[k], p->first, p->last, is_last);
        if (m->together) cb_x_add_terms(&p->lines, p->row, 1, k);
        cb_x_numbers_after(f, c, k);
    }
    cb_x_pack(e, c, at + p->first, p->first, p->last - p->first);
    for (int k = 0; k < m->n_store; k++)
        cb_x_store_number(m, c, m->store[k].number, &e->x->tensor[m->store[k].tensor], p->row);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void task(void *user, int64_t index, int thread) {
    cb_executor *e = user;
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    cb_x_start(m, &e->context[thread], e->shared);
    int64_t block = index / f->chunks, chunk = index % f->chunks;
    piece p = {.block = block, .thread = thread};
    p.first = f->chunks > 1 ? chunk * CB_X_CHUNK : 0;
    p.last = f->chunks > 1 ? min_i64(p.first + CB_X_CHUNK, m->columns) : m->columns;
    int64_t begin = block * f->rows_in_task, end = min_i64(begin + f->rows_in_task, m->rows);
    if (m->n_columns) cb_x_clear_sums(e, block, thread);
    for (int k = 0; k < m->n_total; k++) {
        e->context[thread].sum[m->total[k].acc].leaves =
            (char *)f->leaf[k] + div_up(begin * m->columns + p.first, CB_X_LEAF) * f->real;
    }
    p.begin = begin;
    p.end = end;
    p.lines = cb_x_lines_of(e, begin, end, thread);
    for (p.row = begin; p.row < end; p.row++) {
        run_piece(e, &p, p.row > begin);
        bool ends_run = (p.row - begin + 1) % CB_RUN_ROWS == 0 || p.row + 1 == end;
        if (m->n_columns && ends_run) cb_x_end_run(e, block, thread);
    }
    if (m->together) cb_x_lines_end(&p.lines);
    cb_x_fence();
}

/* ---- rows side by side ----------------------------------------------------------------------- */

typedef struct sides { /* adjacent strided rows, and their addresses */
    cb_x_lines lines;
    int64_t row, at; /* the first of them, and its first element */
    char *from[CB_R_STREAMS];
    int64_t step[CB_R_STREAMS];          /* bytes from one element of a row to the next */
    int16_t moves[CB_R_STREAMS], n_move; /* streams with such a step */
    /* addresses of per-line numbers, and the elements from one line to the next */
    int64_t number[CB_X_ROW_VALUES], number_step[CB_X_ROW_VALUES];
    int thread;
} sides;

/* Returns the lines of a band; the last band of a unit may have fewer. */
static int64_t lines_of_band(const cb_x_fused *f, int64_t band) {
    return min_i64(f->band_lines, f->m.columns - band * f->band_lines);
}

static void find_stream(cb_executor *e, int k, sides *at) {
    const cb_x_fused *f = e->f;
    const cb_x_stream *s = &f->m.stream[k];
    const int64_t band = f->m.inner * f->band_lines;
    if (s->source == CB_X_VECTORS) {
        at->from[k] = cb_x_lane_vector(&at->lines.lanes, s->part);
        at->step[k] = s->is_line ? band * s->size : 0;
    } else if (s->source == CB_X_ARRAY) {
        at->from[k] = cb_at(&e->x->tensor[s->tensor], at->at);
        at->step[k] = band * s->size;
    } else {
        at->from[k] = cb_x_tile(e, at->thread, s->tile);
        at->step[k] = f->pitch * s->size;
        if (s->source == CB_X_TILE) return;
        for (int64_t i = 0; i < f->bands; i++)
            cb_x_fill(e, s, k, at->at + i * band, lines_of_band(f, i) * at->lines.lanes.n,
                      at->from[k] + i * at->step[k]);
    }
}

static void load_lanes(cb_executor *e, const sides *at, int k) {
    const cb_x_fused *f = e->f;
    const cb_x_row_value *v = &f->m.load[k];
    const cb_tensor *t = &e->x->tensor[v->tensor];
    const cb_walk *w = &f->load_walk[k];
    cb_x_lanes lane = at->lines.lanes;
    if (f->one_a_row[k]) {
        cb_x_lanes_load(&lane, v->number, v, t, at->row);
    } else if (w->count != f->m.rows) { /* constant along a row, adjacent for adjacent rows */
        cb_x_lanes_load(&lane, v->number, v, t, cb_walk_to(w, at->at).offset[0]);
    } else {
        lane.n = 1;
        for (int64_t i = 0; i < at->lines.lanes.n; i++, lane.vector += f->real)
            cb_x_lanes_load(&lane, v->number, v, t, cb_walk_to(w, at->row + i).offset[0]);
    }
    cb_x_lanes_repeat(&at->lines.lanes, v->number);
}

/* Finds the addresses of numbers with one element per line. */
static void find_numbers(const cb_executor *e, sides *at) {
    const cb_x_fused *f = e->f;
    for (int k = 0; k < f->m.n_line; k++) {
        const cb_walk *w = &f->line_walk[k];
        at->number[k] = cb_walk_to(w, at->at).offset[0];
        at->number_step[k] = cb_walk_to(w, at->at + f->m.inner).offset[0] - at->number[k];
    }
}

static void load_numbers(const cb_executor *e, const sides *at, int64_t line) {
    const cb_microcode *m = &e->f->m;
    cb_x_context *c = at->lines.lanes.c;
    for (int k = 0; k < m->n_line; k++) {
        const cb_tensor *t = &e->x->tensor[m->line[k].tensor];
        const int64_t element = at->number[k] + line * at->number_step[k];
        if (t->dtype == CB_F32) c->s[m->line[k].number] = ((const float *)t->data)[element];
        else cb_x_load_number(m, c, &m->line[k], t, element);
    }
}

static void run_phase_across(cb_executor *e, const sides *at, int phase) {
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    cb_x_context *c = at->lines.lanes.c;
    const int64_t end = at->at + m->columns * m->inner, band = m->inner * f->band_lines,
                  kept = cb_x_bands_kept(m->inner);
    int64_t fold = cb_x_lanes_fold(&at->lines.lanes, phase, 0);
    cb_x_lanes_rest rest;
    for (int k = 0; k < m->n_stream; k++) c->p[k] = at->from[k];
    for (int64_t i = 0, in_kept = 1, first = at->at; i < f->bands; i++, first += band) {
        const int64_t lines = lines_of_band(f, i), n = lines * at->lines.lanes.n,
                      whole = div_up(n, CB_X_LANES) * CB_X_LANES;
        const bool is_short = lines < f->band_lines; /* lanes of other groups follow this band */
        load_numbers(e, at, i);
        c->leaf = first & (CB_X_LEAF - 1);
        if (is_short) cb_x_lanes_copy_rest(&at->lines.lanes, n, &rest, false);
        cb_x_phase_run(f->table, c, &f->phase[phase], 0,
                       f->runs_over && first + whole <= end ? whole : n,
                       first + n == m->rows * m->columns);
        if (is_short) cb_x_lanes_copy_rest(&at->lines.lanes, n, &rest, true);
        if (i + 1 == fold) fold = cb_x_lanes_fold(&at->lines.lanes, phase, i + 1);
        for (int k = 0; k < at->n_move; k++) c->p[at->moves[k]] += at->step[at->moves[k]];
        if (m->n_line_sum && (in_kept++ == kept || i + 1 == f->bands)) {
            const int64_t before = (in_kept - 2) * f->band_lines;
            cb_x_lines_add(&at->lines, phase, first - before * m->inner, before + lines);
            for (int k = 0; k < m->n_stream; k++)
                if (m->stream[k].is_line) c->p[k] = at->from[k];
            in_kept = 1;
        }
    }
}

/* Runs as many rows as there are lanes: one element of each row at a time. */
static void run_sides(cb_executor *e, int64_t unit, const cb_x_lines *task, int thread) {
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    const int64_t outer = unit / f->strips, first = unit % f->strips * f->lanes;
    sides at = {.thread = thread, .lines = *task, .row = outer * m->inner + first};
    at.at = outer * m->columns * m->inner + first;
    at.lines.lanes.n = min_i64(f->lanes, m->inner - first);
    const cb_x_lanes *lanes = &at.lines.lanes;
    for (int16_t k = 0; k < m->n_stream; k++) {
        find_stream(e, k, &at);
        if (at.step[k]) at.moves[at.n_move++] = k;
    }
    for (int k = 0; k < m->n_load; k++) load_lanes(e, &at, k);
    find_numbers(e, &at);
    cb_x_lanes_clear(lanes);
    cb_x_lanes_after(lanes, -1);
    for (int k = 0; k < m->n_phase; k++) {
        run_phase_across(e, &at, k);
        cb_x_lanes_after(lanes, k);
    }
    for (int k = 0; k < m->n_store; k++)
        cb_x_lanes_store(lanes, m->store[k].number, &e->x->tensor[m->store[k].tensor], at.row);
}

static void task_across(void *user, int64_t index, int thread) {
    cb_executor *e = user;
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    const int64_t begin = index * f->rows_in_task,
                  end = min_i64(begin + f->rows_in_task, f->n_unit);
    cb_x_start(m, &e->context[thread], e->shared);
    for (int k = 0; k < m->n_total; k++) { /* a unit is then all rows at one outer index */
        e->context[thread].sum[m->total[k].acc].leaves =
            (char *)f->leaf[k] + div_up(begin * m->columns * m->inner, CB_X_LEAF) * f->real;
    }
    const cb_x_lines lines = cb_x_lines_of(e, begin * m->inner, end * m->inner, thread);
    for (int64_t unit = begin; unit < end; unit++) run_sides(e, unit, &lines, thread);
    cb_x_lines_end(&lines);
    cb_x_fence();
}

/* ---- before and after ------------------------------------------------------------------------ */

static void before_all(cb_executor *e) {
    const cb_microcode *m = &e->f->m;
    cb_x_set_constants(m, e->shared);
    for (int k = 0; k < m->n_once; k++) {
        const cb_x_row_value *v = &m->once[k];
        cb_x_load_number(m, e->shared, v, &e->x->tensor[v->tensor], 0);
    }
    cb_x_shared_numbers(e->f, e->shared, CB_X_BEFORE_ALL);
}

/* Combines the column sums of all blocks, in order, for a piece of CB_TILE columns. */
static void combine_task(void *user, int64_t index, int thread) {
    (void)thread;
    const cb_executor *e = user;
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    int64_t tiles = div_up(m->columns, CB_TILE), at = index % tiles * CB_TILE,
            n = min_i64(CB_TILE, m->columns - at);
    const cb_x_columns *column = &m->column[index / tiles];
    const cb_x_stream *s = &m->stream[column->stream];
    /* The sums of several blocks are stored one after another. */
    cb_x_combine(f, &e->x->tensor[column->tensor], at, n,
                 cb_x_sums_of_block(e, s, 0) + at * f->real, column->is_mean);
}

static void after_all(cb_executor *e) {
    const cb_microcode *m = &e->f->m;
    int64_t count = m->rows * m->columns;
    cb_x_lines_join(e->f, e->shared);
    for (int k = 0; k < m->n_total; k++) {
        const cb_x_total *t = &m->total[k];
        const cb_tensor *out = &e->x->tensor[t->tensor];
        cb_x_sum_up(m, e->shared, t, e->f->leaf[k], count, out->dtype);
        if (!t->is_local) cb_x_store_number(m, e->shared, t->number, out, 0);
    }
    cb_x_shared_numbers(e->f, e->shared, CB_X_AFTER_ALL);
    for (int k = 0; k < m->n_give; k++)
        cb_x_store_number(m, e->shared, m->give[k].number, &e->x->tensor[m->give[k].tensor], 0);
    if (m->n_columns)
        cb_parallel(e->x->runtime->pool, m->n_columns * div_up(m->columns, CB_TILE), combine_task,
                    e);
}

/* True if streaming stores to this address would conflict with those to another array. A store that
 * bypasses the caches fills a line in a buffer of the core. If stores of 128 bytes alternate
 * between two arrays at about the same offset within a page, they evict each other's unfinished
 * lines, and writing takes two to ten times as long (measured on Zen 3; stores of 256 bytes, as
 * with AVX-512, do not). */
static bool gets_in_the_way(const cb_x_table *table, const uintptr_t *far, int n,
                            uintptr_t address) {
    enum { PAGE = 4096, NEAR = 256, WIDE = 256 };
    for (int k = 0; k < n && table->register_bytes < WIDE; k++) {
        const uintptr_t apart = (address - far[k]) % PAGE;
        if (apart < NEAR || apart > PAGE - NEAR) return true;
    }
    return false;
}

/* Returns the number of elements between the starts of parts that run at the same time. */
static int64_t elements_at_once(const cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    if (m->inner) return m->inner * f->band_lines;
    const bool has_batches = m->together > 1 && f->rows_in_task % CB_X_BATCH_ROWS == 0;
    return m->columns * (has_batches ? CB_X_BATCH_ROWS : 1);
}

/* Lets large results that no later phase reads bypass the caches if every row is aligned. */
static void choose_stores(cb_executor *e, const cb_x_fused *f) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_phase; k++) {
        const cb_x_phase *ph = &f->phase[k];
        uintptr_t around[CB_R_STREAMS];
        int n_around = 0;
        for (int r = 0; r < ph->n_record; r++) {
            const cb_x_store at = ph->store[r];
            if (at.stream < 0 || m->stream[at.stream].source != CB_X_ARRAY) continue;
            const cb_x_stream *s = &m->stream[at.stream];
            const cb_x_fn near = e->f->table->store[s->format][at.reg],
                          far = e->f->table->store_far[s->format][at.reg];
            uintptr_t address = (uintptr_t)e->x->tensor[s->tensor].data;
            const uint64_t bytes = (uint64_t)(m->rows * m->columns) * s->size;
            bool is_far = bytes >= CB_FAR_BYTES && far && !s->is_read_later && address % 64 == 0 &&
                          (elements_at_once(f) * s->size % 64 == 0 || m->rows == 1) &&
                          !gets_in_the_way(e->f->table, around, n_around, address);
            ph->code[r].fn = is_far ? far : near;
            if (is_far) around[n_around++] = address;
        }
    }
}

cb_status cb_executor_run(cb_executor *e, uint32_t group, const cb_bindings *bindings,
                          cb_error *err) {
    const cb_x_fused *f = e->group[group];
    CB_TRY(make_memory(e, err));
    e->f = f;
    CB_TRY(cb_x_take_indices(e->x, &f->m, err));
    e->random = (cb_philox){.seed = bindings->seed, .step = bindings->step};
    choose_stores(e, f);
    before_all(e);
    cb_parallel(e->x->runtime->pool, f->n_task,
                f->m.inner          ? task_across
                : f->m.together > 1 ? cb_x_task_together
                                    : task,
                e);
    after_all(e);
    return CB_OK;
}
