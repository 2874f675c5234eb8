/* Runs assembled groups: rows are dealt to threads in blocks whose size follows from the shape,
 * each row is walked once a phase, and what blocks have summed is put together in order. */
#include "executor.h"

#include <math.h>
#include <string.h>

#include "../../../ir/work.h"
#include "../kern_copy.h"
#include "assemble.h"
#include "decompose.h"
#include "scalar.h"

#define CHUNK CB_X_CHUNK
#define TILE_PAD 128 /* elements; random numbers are drawn in such pieces */

#define ANEW INT64_MIN

typedef struct touched { /* a stream that a phase reads or writes, of an array */
    int16_t stream;
    uint8_t size;
    bool is_read, is_written;
} touched;

typedef struct phase {
    cb_record *code; /* not const: how it stores is chosen for each run */
    const cb_record *masked;
    const int16_t *store_stream;
    int n_record;
    int16_t first_sum, n_sum, first_total, n_total;
    touched touched[CB_X_STREAMS];
    int n_touched;
} phase;

typedef struct fused { /* one group, ready to run */
    cb_microcode m;
    phase phase[CB_X_PHASES];
    cb_walk walk[CB_X_STREAMS], load_walk[CB_X_ROW_VALUES];
    float *leaf[CB_X_TOTALS]; /* sums of leaves, in order */
    bool is_whole[CB_X_STREAMS];
    int64_t step[CB_X_STREAMS];      /* bytes from one row to the next; ANEW: found for each row */
    bool one_a_row[CB_X_ROW_VALUES]; /* the number of row r is element r */
    int16_t order[CB_X_NUMBERS];     /* numbers of rows by the phase that they come after */
    int16_t first_number[CB_X_PHASES + 2]; /* [phase + 1] in `order` */
    int64_t n_task, rows_in_task, chunks;  /* chunks: tasks of one row */
} fused;

struct cb_executor {
    cb_executable *x;
    const cb_x_table *table;
    fused **group;         /* [n_group] NULL: left to the kernels */
    cb_x_context *context; /* [n_thread] */
    float *tile;           /* [n_thread][n_tile] of tile_elements */
    size_t tile_elements, n_tile;
    int n_thread; /* that have memory */
    /* of the running group */
    const fused *f;
    cb_philox random;
    cb_x_context *shared; /* numbers that are the same for all rows */
};

/* ---- making ready ---------------------------------------------------------------------------- */

static cb_walk walk_of(const cb_tensor *t) {
    const cb_tensor *one[1] = {t};
    return cb_walk_of(one, 1);
}

static void touch(const cb_microcode *m, phase *ph, int16_t id, bool reads, bool writes) {
    const cb_x_stream *s = &m->stream[id];
    if (s->tile >= 0) return;
    int j = 0;
    while (j < ph->n_touched && ph->touched[j].stream != id) j++;
    if (j == ph->n_touched) ph->touched[ph->n_touched++] = (touched){.stream = id, .size = s->size};
    ph->touched[j].is_read |= reads;
    ph->touched[j].is_written |= writes;
}

static void list_touched(const cb_microcode *m, int at, phase *ph) {
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (micro->is_dead || micro->phase != at) continue;
        for (int j = 0; j < 3; j++) {
            if (micro->in[j].kind == CB_X_IN_STREAM) touch(m, ph, micro->in[j].id, true, false);
        }
        const cb_x_op op = micro->op;
        if (op == CB_X_STORE || op == CB_X_STORE_BOOL) touch(m, ph, micro->dst, false, true);
        if (op == CB_X_COLUMN) touch(m, ph, micro->dst, true, true);
    }
}

static cb_status assemble(cb_executor *e, fused *f, cb_arena *memory, cb_error *err) {
    cb_record record[4 * CB_X_MICROS];
    int16_t stream[4 * CB_X_MICROS];
    for (int k = 0; k < f->m.n_phase; k++) {
        for (int masked = 0; masked < 2; masked++) {
            cb_x_code code = {.room = 4 * CB_X_MICROS, .record = record, .stream = stream};
            cb_assemble_phase(&f->m, k, masked, e->table, &code);
            if (code.is_full)
                return cb_fail(err, CB_UNSUPPORTED, "executor: a phase needs too many slots");
            cb_record *kept = CB_NEW(memory, cb_record, (size_t)code.n);
            int16_t *kept_stream = CB_NEW(memory, int16_t, (size_t)code.n);
            if (!kept || !kept_stream) return cb_no_memory(err);
            memcpy(kept, record, (size_t)code.n * sizeof *kept);
            memcpy(kept_stream, stream, (size_t)code.n * sizeof *kept_stream);
            if (masked) {
                f->phase[k].masked = kept;
                continue;
            }
            phase *ph = &f->phase[k];
            *ph = (phase){.code = kept, .store_stream = kept_stream, .n_record = code.n};
            list_touched(&f->m, k, ph);
            cb_sums_of(&f->m, k, CB_X_ROW_SUM, &ph->first_sum, &ph->n_sum);
            cb_sums_of(&f->m, k, CB_X_TOTAL_SUM, &ph->first_total, &ph->n_total);
        }
    }
    return CB_OK;
}

static void order_numbers(fused *f) {
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

/* Tasks are cut by shape alone. */
static void cut(fused *f) {
    const cb_microcode *m = &f->m;
    f->chunks = 1;
    f->rows_in_task = 1;
    if (m->n_columns) {
        int64_t blocks = cb_row_blocks(m->rows, m->columns);
        f->rows_in_task = div_up(m->rows, blocks);
    } else if (m->columns <= CHUNK || m->has_rows) {
        f->rows_in_task = max_i64(CHUNK / max_i64(m->columns, 1), 1);
        while (m->n_total && f->rows_in_task * m->columns % CB_X_LEAF) f->rows_in_task++;
    } else {
        f->chunks = div_up(m->columns, CHUNK);
    }
    f->n_task = div_up(m->rows, f->rows_in_task) * f->chunks;
}

static cb_status make_walks(const cb_executable *x, fused *f, cb_arena *memory, cb_error *err) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_tensor *t = &x->tensor[m->stream[k].tensor];
        if (m->stream[k].source == CB_X_TILE) continue;
        f->walk[k] = walk_of(t);
        f->is_whole[k] = cb_is_contiguous(&t->shape, t->stride);
        /* A vector of one element a column is the same in every row. */
        if (cb_numel(&t->shape) != m->rows * m->columns) f->walk[k] = (cb_walk){.rank = 0};
    }
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_source source = m->stream[k].source;
        bool is_array = source == CB_X_ARRAY;
        bool moves = is_array && f->walk[k].rank > 0;
        bool is_found =
            moves ? f->is_whole[k] : is_array || source == CB_X_TILE || source == CB_X_SUMS;
        f->step[k] = !is_found ? ANEW : (moves ? m->columns * m->stream[k].size : 0);
    }
    for (int k = 0; k < m->n_pieces; k++) {
        const int16_t id = m->pieces[k].stream;
        f->step[id] = (m->columns >> m->pieces[k].log_length) * m->stream[id].size;
    }
    for (int k = 0; k < m->n_load; k++) {
        const cb_tensor *t = &x->tensor[m->load[k].tensor];
        f->load_walk[k] = walk_of(t);
        f->one_a_row[k] =
            f->load_walk[k].count == m->rows && cb_is_contiguous(&t->shape, t->stride);
    }
    for (int k = 0; k < m->n_total; k++) {
        f->leaf[k] = CB_NEW(memory, float, (size_t)div_up(m->rows * m->columns, CB_X_LEAF));
        if (!f->leaf[k]) return cb_no_memory(err);
    }
    return CB_OK;
}

static cb_status make_group(cb_executor *e, uint32_t group, cb_arena *memory, cb_error *err) {
    fused *f = CB_NEW(memory, fused, 1);
    if (!f) return cb_no_memory(err);
    cb_status status = cb_microcode_of(e->x->program, group, &f->m, err);
    if (status == CB_OK) status = assemble(e, f, memory, err);
    if (status == CB_UNSUPPORTED) return CB_OK;
    if (status != CB_OK) return status;
    CB_TRY(make_walks(e->x, f, memory, err));
    order_numbers(f);
    cut(f);
    e->group[group] = f;
    int64_t elements = f->chunks > 1 ? CHUNK : f->m.columns;
    if ((size_t)elements > e->tile_elements) e->tile_elements = (size_t)elements;
    if ((size_t)f->m.n_tile > e->n_tile) e->n_tile = (size_t)f->m.n_tile;
    return CB_OK;
}

/* Groups that are too large for the executor run kernel by kernel, with locals in memory of their
 * own: there are no such groups among ordinary models. */
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
    cb_arena *memory = &x->memory;
    cb_executor *e = CB_NEW(memory, cb_executor, 1);
    if (!e) return cb_no_memory(err);
    *e = (cb_executor){.x = x, .table = cb_x_table_of()};
    e->group = CB_NEW(memory, fused *, x->program->n_group);
    if (!e->group) return cb_no_memory(err);
    for (uint32_t g = 0; g < x->program->n_group; g++) {
        if (x->program->group[g].n_instr > 1) CB_TRY(make_group(e, g, memory, err));
    }
    CB_TRY(make_locals(e, err));
    e->tile_elements = cb_align_up((e->tile_elements + TILE_PAD) * sizeof(float)) / sizeof(float);
    *out = e;
    return CB_OK;
}

void cb_executor_free(cb_executor *e) {
    if (e) cb_free(e->x->runtime->alloc, e->context);
}

/* Contexts and tiles for as many threads as there are now, one context more for what is shared. The
 * number of threads is the user's to change between runs. */
static cb_status make_memory(cb_executor *e, cb_error *err) {
    cb_alloc *alloc = e->x->runtime->alloc;
    const int threads = e->x->runtime->pool ? cb_threads_count(e->x->runtime->pool) : 1;
    if (threads <= e->n_thread) return CB_OK;
    size_t n = (size_t)threads, tiles, bytes;
    cb_free(alloc, e->context);
    e->context = NULL;
    e->n_thread = 0;
    if (!cb_mul_size(n * e->n_tile, e->tile_elements * sizeof(float), &tiles) ||
        !cb_add_size(tiles, (n + 1) * sizeof *e->context, &bytes))
        return cb_no_memory(err);
    e->context = cb_malloc(alloc, bytes);
    if (!e->context) return cb_no_memory(err);
    memset(e->context, 0, (n + 1) * sizeof *e->context);
    e->tile = (float *)(void *)(e->context + n + 1);
    e->shared = &e->context[n];
    e->n_thread = threads;
    return CB_OK;
}

bool cb_executor_has(const cb_executor *e, uint32_t group) { return e->group[group] != NULL; }

/* ---- numbers --------------------------------------------------------------------------------- */

static float sum_of(cb_x_pairs *p) {
    float total = 0;
    int k = 0;
    for (uint64_t c = p->count; c; c >>= 1, k++) {
        if (c & 1) total = p->level[k] + total;
    }
    p->count = 0;
    return total;
}

static float largest_of(cb_x_context *c, int acc, bool is_min) {
    int32_t key[CB_X_LANES], best = INT32_MIN;
    memcpy(key, c->acc[acc], sizeof key);
    for (int k = 0; k < CB_X_LANES; k++) {
        best = key[k] > best ? key[k] : best;
        key[k] = INT32_MIN;
    }
    memcpy(c->acc[acc], key, sizeof key);
    int32_t bits = best ^ ((best >> 31) & INT32_MAX);
    float x;
    memcpy(&x, &bits, sizeof x);
    return is_min ? -x : x;
}

static void compute_number(const cb_x_number *n, cb_x_context *c) {
    switch ((int)n->op) {
        case CB_X_ACC: c->s[n->dst] = sum_of(&c->sum[n->a]); break;
        case CB_X_AMAX: c->s[n->dst] = largest_of(c, n->a, false); break;
        case CB_X_AMIN: c->s[n->dst] = largest_of(c, n->a, true); break;
        default: c->s[n->dst] = cb_x_scalar(n->op, c->s[n->a], c->s[n->b], c->s[n->c]);
    }
}

/* Those that are not of a row. */
static void compute_shared(const cb_microcode *m, cb_x_context *c, int when) {
    for (int k = 0; k < m->n_number; k++) {
        if ((int)m->number[k].when == when) compute_number(&m->number[k], c);
    }
}

static void compute_after(const fused *f, cb_x_context *c, int after) {
    for (int k = f->first_number[after + 1]; k < f->first_number[after + 2]; k++)
        compute_number(&f->m.number[f->order[k]], c);
}

static float number_at(const cb_x_row_value *v, const cb_tensor *t, int64_t element) {
    if (v->is_bool) return (float)((const uint8_t *)t->data)[element];
    return ((const float *)t->data)[element];
}

/* ---- one row --------------------------------------------------------------------------------- */

typedef struct piece { /* elements first..last of one row, and where things are for it */
    int64_t row, first, last, block;
    int thread;
} piece;

static float *tile_of(const cb_executor *e, int thread, int32_t tile) {
    return e->tile + ((size_t)thread * e->n_tile + (size_t)tile) * e->tile_elements;
}

static void fill_triangle(const cb_instr *instr, const cb_tensor *t, int64_t at, int64_t n,
                          float *out) {
    int64_t columns = t->shape.dim[t->shape.rank - 1], rows = t->shape.dim[t->shape.rank - 2];
    for (int64_t i = 0; i < n; i++) {
        int64_t column = (at + i) % columns, row = (at + i) / columns % rows;
        out[i] = column <= row + instr->attrs.i[0] ? 1.0f : 0.0f;
    }
}

static void fill(cb_executor *e, const cb_x_stream *s, int k, int64_t at, int64_t n, void *out) {
    const cb_tensor *t = &e->x->tensor[s->tensor];
    const cb_instr *instr = &e->x->program->instr[s->instr];
    if (s->source == CB_X_GATHERED) {
        const cb_walk *w = &e->f->walk[k];
        cb_walk_copy(w, cb_walk_to(w, at), 0, t->data, s->size, out, n);
    } else if (s->source == CB_X_KEPT) {
        cb_philox philox = e->random;
        philox.stream = (uint32_t)instr->attrs.i[0];
        e->table->keep(&philox, (uint64_t)at, cb_dropout_threshold(instr->attrs.f[0]), out, n);
    } else if (s->source == CB_X_TRIANGLE) {
        fill_triangle(instr, t, at, n, out);
    }
}

/* Where the sums of columns of a block lie: in the scratch, or in the result where there is one
 * block. */
static char *sums_of_block(const cb_executor *e, const cb_x_stream *s, int64_t block) {
    const fused *f = e->f;
    const cb_instr *instr = &e->x->program->instr[s->instr];
    int64_t blocks = f->n_task;
    if (blocks == 1) return e->x->tensor[s->tensor].data;
    int64_t at = ((int64_t)s->part * blocks + block) * f->m.columns;
    return e->x->address[instr->scratch] + at * (int64_t)sizeof(float);
}

/* Element 0 of the piece's row in stream k; what is filled holds only the piece. */
static char *row_of_stream(cb_executor *e, int k, const piece *p) {
    const cb_x_stream *s = &e->f->m.stream[k];
    int64_t at = p->row * e->f->m.columns + p->first;
    if (s->source == CB_X_PIECES)
        return (char *)e->x->tensor[s->tensor].data + p->row * e->f->step[k];
    if (s->source == CB_X_SUMS)
        return s->tile >= 0 ? (char *)tile_of(e, p->thread, s->tile)
                            : sums_of_block(e, s, p->block);
    if (s->source != CB_X_ARRAY) {
        char *tile = (char *)tile_of(e, p->thread, s->tile);
        fill(e, s, k, at, p->last - p->first, tile);
        return tile - p->first * s->size;
    }
    const cb_walk *w = &e->f->walk[k];
    char *data = e->x->tensor[s->tensor].data;
    if (w->rank == 0) return data;
    int64_t offset = e->f->is_whole[k] ? at : cb_walk_to(w, at).offset[0];
    return data + (offset - p->first) * s->size;
}

/* The last elements of a row, fewer than 64: through padded copies of the arrays that the phase
 * touches. Tiles have room behind their end, so the elements that are too many do no harm there. */
static void run_rest(cb_executor *e, cb_x_context *c, const phase *ph, int64_t first, int64_t n) {
    _Alignas(64) char copy[CB_X_STREAMS][CB_X_LANES * sizeof(float)];
    char *kept[CB_X_STREAMS];
    const size_t lanes = CB_X_LANES;
    for (int j = 0; j < ph->n_touched; j++) {
        const touched *t = &ph->touched[j];
        const int64_t at = first * (int64_t)t->size;
        const size_t bytes = (size_t)n * t->size;
        kept[j] = c->p[t->stream];
        c->p[t->stream] = copy[j] - at;
        if (!t->is_read) continue;
        memcpy(copy[j], kept[j] + at, bytes);
        memset(copy[j] + bytes, 0, lanes * t->size - bytes);
    }
    if (c->n_mask != n) {
        memset(c->mask, 0, sizeof c->mask);
        memset(c->mask, 0xFF, (size_t)n * sizeof(float));
        c->n_mask = n;
    }
    c->end = first + CB_X_LANES;
    e->table->run(c, ph->masked, first);
    for (int j = 0; j < ph->n_touched; j++) {
        const touched *t = &ph->touched[j];
        const int64_t at = first * (int64_t)t->size;
        if (t->is_written) memcpy(kept[j] + at, copy[j], (size_t)n * t->size);
        c->p[t->stream] = kept[j];
    }
}

static void run_phase(cb_executor *e, cb_x_context *c, const phase *ph, const piece *p) {
    int64_t whole = p->first + ((p->last - p->first) & ~(int64_t)(CB_X_LANES - 1));
    c->end = whole;
    if (whole > p->first) e->table->run(c, ph->code, p->first);
    if (whole < p->last) run_rest(e, c, ph, whole, p->last - whole);
    int64_t end = whole < p->last ? whole + CB_X_LANES : whole;
    if (ph->n_sum && (end & (CB_X_LEAF - 1))) e->table->fold(c, ph->first_sum, ph->n_sum);
    bool is_last = p->row + 1 == e->f->m.rows && p->last == e->f->m.columns;
    if (ph->n_total && is_last && ((end + c->leaf) & (CB_X_LEAF - 1)))
        e->table->fold(c, ph->first_total, ph->n_total);
}

/* `is_next`: the row before was run just now, by this thread. */
static void run_piece(cb_executor *e, const piece *p, bool is_next) {
    const fused *f = e->f;
    const cb_microcode *m = &f->m;
    cb_x_context *c = &e->context[p->thread];
    int64_t at = p->row * m->columns;
    for (int k = 0; k < m->n_stream; k++) {
        if (is_next && f->step[k] != ANEW) c->p[k] += f->step[k];
        else c->p[k] = row_of_stream(e, k, p);
    }
    for (int k = 0; k < m->n_load; k++) {
        const cb_tensor *t = &e->x->tensor[m->load[k].tensor];
        const cb_walk *w = &f->load_walk[k];
        int64_t element = p->row;
        if (!f->one_a_row[k]) element = cb_walk_to(w, w->count == m->rows ? p->row : at).offset[0];
        c->s[m->load[k].number] = number_at(&m->load[k], t, element);
    }
    c->leaf = at & (CB_X_LEAF - 1);
    compute_after(f, c, -1);
    for (int k = 0; k < m->n_phase; k++) {
        run_phase(e, c, &f->phase[k], p);
        compute_after(f, c, k);
    }
    for (int k = 0; k < m->n_store; k++)
        ((float *)e->x->tensor[m->store[k].tensor].data)[p->row] = c->s[m->store[k].number];
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void clear_sums(cb_executor *e, int64_t block, int thread) {
    const cb_microcode *m = &e->f->m;
    size_t bytes = (size_t)m->columns * sizeof(float);
    for (int k = 0; k < m->n_columns; k++) {
        const cb_x_stream *s = &m->stream[m->column[k].stream];
        memset(sums_of_block(e, s, block), 0, bytes);
        if (s->tile >= 0) memset(tile_of(e, thread, s->tile), 0, bytes);
    }
}

/* The sums of a run of rows join those of their block. */
static void end_run(cb_executor *e, int64_t block, int thread) {
    const cb_microcode *m = &e->f->m;
    for (int k = 0; k < m->n_columns; k++) {
        const cb_x_stream *s = &m->stream[m->column[k].stream];
        if (s->tile < 0) continue;
        float *to = (float *)(void *)sums_of_block(e, s, block),
              *from = tile_of(e, thread, s->tile);
        for (int64_t i = 0; i < m->columns; i++) to[i] += from[i];
        memset(from, 0, (size_t)m->columns * sizeof(float));
    }
}

static void start_thread(cb_executor *e, int thread) {
    const cb_microcode *m = &e->f->m;
    cb_x_context *c = &e->context[thread];
    memcpy(c->s, e->shared->s, sizeof c->s);
    for (int k = 0; k < m->n_acc; k++) {
        int32_t empty = m->acc_kind[k] == CB_X_LARGEST ? INT32_MIN : 0;
        for (int lane = 0; lane < CB_X_LANES; lane++)
            memcpy(&c->acc[k][lane], &empty, sizeof empty);
        c->sum[k].count = 0;
        c->sum[k].leaves = NULL;
    }
}

static void task(void *user, int64_t index, int thread) {
    cb_executor *e = user;
    const fused *f = e->f;
    const cb_microcode *m = &f->m;
    start_thread(e, thread);
    int64_t block = index / f->chunks, chunk = index % f->chunks;
    piece p = {.block = block, .thread = thread};
    p.first = f->chunks > 1 ? chunk * CHUNK : 0;
    p.last = f->chunks > 1 ? min_i64(p.first + CHUNK, m->columns) : m->columns;
    int64_t begin = block * f->rows_in_task, end = min_i64(begin + f->rows_in_task, m->rows);
    if (m->n_columns) clear_sums(e, block, thread);
    for (int k = 0; k < m->n_total; k++) {
        e->context[thread].sum[m->total[k].acc].leaves =
            f->leaf[k] + (begin * m->columns + p.first) / CB_X_LEAF;
    }
    for (p.row = begin; p.row < end; p.row++) {
        run_piece(e, &p, p.row > begin);
        bool ends_run = (p.row - begin + 1) % CB_RUN_ROWS == 0 || p.row + 1 == end;
        if (m->n_columns && ends_run) end_run(e, block, thread);
    }
    cb_x_fence();
}

/* ---- before and after ------------------------------------------------------------------------ */

static void before_all(cb_executor *e) {
    const cb_microcode *m = &e->f->m;
    memcpy(e->shared->s, m->constant, sizeof e->shared->s);
    for (int k = 0; k < m->n_once; k++) {
        const cb_x_row_value *v = &m->once[k];
        e->shared->s[v->number] = number_at(v, &e->x->tensor[v->tensor], 0);
    }
    compute_shared(m, e->shared, CB_X_BEFORE_ALL);
}

/* As kern_reduce.c adds up a long row: segments of leaves in pairs, then the segments. */
static float total_of(const float *leaf, int64_t count) {
    const int64_t segment = cb_segment_of(count);
    cb_x_pairs all = {.count = 0};
    for (int64_t first = 0; first < count; first += segment) {
        cb_x_pairs part = {.count = 0};
        for (int64_t at = first; at < min_i64(first + segment, count); at += CB_X_LEAF)
            cb_x_push(&part, leaf[at / CB_X_LEAF]);
        if (count <= segment) return sum_of(&part);
        cb_x_push(&all, sum_of(&part));
    }
    return sum_of(&all);
}

/* Blocks of columns in order, in pieces of CB_TILE columns. */
static void combine_task(void *user, int64_t index, int thread) {
    (void)thread;
    const cb_executor *e = user;
    const fused *f = e->f;
    const cb_microcode *m = &f->m;
    int64_t tiles = div_up(m->columns, CB_TILE), at = index % tiles * CB_TILE,
            n = min_i64(CB_TILE, m->columns - at);
    const cb_x_columns *column = &m->column[index / tiles];
    const cb_x_stream *s = &m->stream[column->stream];
    float sum[CB_TILE] = {0}, *to = (float *)e->x->tensor[column->tensor].data + at;
    for (int64_t block = 0; block < f->n_task; block++) {
        const float *from = (const float *)(const void *)sums_of_block(e, s, block) + at;
        for (int64_t i = 0; i < n; i++) sum[i] += from[i];
    }
    for (int64_t i = 0; i < n; i++) to[i] = column->is_mean ? sum[i] / (float)m->rows : sum[i];
}

static void after_all(cb_executor *e) {
    const cb_microcode *m = &e->f->m;
    int64_t count = m->rows * m->columns;
    for (int k = 0; k < m->n_total; k++) {
        const cb_x_total *t = &m->total[k];
        float total = total_of(e->f->leaf[k], count);
        if (t->is_mean) total /= (float)count;
        e->shared->s[t->number] = total;
        if (t->tensor != UINT32_MAX) *(float *)e->x->tensor[t->tensor].data = total;
    }
    compute_shared(m, e->shared, CB_X_AFTER_ALL);
    for (int k = 0; k < m->n_give; k++)
        *(float *)e->x->tensor[m->give[k].tensor].data = e->shared->s[m->give[k].number];
    if (m->n_columns)
        cb_parallel(e->x->runtime->pool, m->n_columns * div_up(m->columns, CB_TILE), combine_task,
                    e);
}

/* Large results that no later phase reads are stored around the caches, where every row is
 * aligned. */
static void choose_stores(cb_executor *e, const fused *f) {
    const cb_microcode *m = &f->m;
    for (int k = 0; k < m->n_phase; k++) {
        const phase *ph = &f->phase[k];
        for (int r = 0; r < ph->n_record; r++) {
            int16_t id = ph->store_stream[r];
            if (id < 0 || m->stream[id].source != CB_X_ARRAY) continue;
            cb_x_fn *fn = &ph->code[r].fn;
            int reg = *fn == e->table->store[0] || *fn == e->table->store_far[0] ? 0 : 1;
            uintptr_t address = (uintptr_t)e->x->tensor[m->stream[id].tensor].data;
            uint64_t bytes = (uint64_t)(m->rows * m->columns) * sizeof(float);
            bool is_far = bytes >= CB_FAR_BYTES && !m->stream[id].is_read_later &&
                          address % 64 == 0 && (m->columns % 16 == 0 || m->rows == 1);
            *fn = is_far ? e->table->store_far[reg] : e->table->store[reg];
        }
    }
}

cb_status cb_executor_run(cb_executor *e, uint32_t group, const cb_bindings *bindings,
                          cb_error *err) {
    const fused *f = e->group[group];
    CB_TRY(make_memory(e, err));
    e->f = f;
    e->random = (cb_philox){.seed = bindings->seed, .step = bindings->step};
    choose_stores(e, f);
    before_all(e);
    cb_parallel(e->x->runtime->pool, f->n_task, task, e);
    after_all(e);
    return CB_OK;
}
