#include "together.h"

#include <string.h>

#include "../executor/numbers.h"
#include "../executor/scalar.h"

cb_x_lines cb_x_lines_of(cb_executor *e, int64_t begin, int64_t end, int thread) {
    const cb_x_fused *f = e->f;
    return (cb_x_lines){.lanes = {.f = f,
                                  .c = &e->context[thread],
                                  .vector = cb_x_tile(e, thread, (int32_t)f->n_tile)},
                        .tensor = e->x->tensor,
                        .begin = begin * f->m.columns,
                        .end = end * f->m.columns};
}

/* ---- sums ------------------------------------------------------------------------------------ */

#define PIECES_ONCE 64

/* Adds the sums of n adjacent pieces, from piece `at` on. */
static void add_pieces(const cb_x_lines *l, const cb_x_pieces *p, const char *terms, int64_t at,
                       int64_t n) {
    const cb_x_fused *f = l->lanes.f;
    const cb_tensor *out = &l->tensor[f->m.stream[p->stream].tensor];
    const bool is_long = p->length > CB_X_LEAF;
    union {
        float f32[PIECES_ONCE];
        double f64[PIECES_ONCE];
    } sums;
    for (int64_t done = 0, some; done < n; done += some) {
        const char *from = terms + done * p->length * f->real;
        some = is_long ? 1 : min_i64(n - done, PIECES_ONCE);
        if (is_long) cb_x_sum_long(f, l->lanes.c, p->acc, from, p->length, &sums);
        else f->table->row_sums(&sums, from, some, p->length);
        cb_x_put_sums(f, out, at + done, some, &sums, p->is_mean ? p->length : 0);
    }
}

void cb_x_add_terms(const cb_x_lines *l, int64_t row, int64_t n, int phase) {
    const cb_x_fused *f = l->lanes.f;
    const cb_microcode *m = &f->m;
    char *const *p = l->lanes.c->p;
    for (int k = 0; k < m->n_line_sum; k++) {
        const cb_x_line_sum *s = &m->line_sum[k];
        if (s->phase == phase)
            cb_x_lines_total(l, s, row * m->columns, n * m->columns, p[m->acc_lanes[s->acc]]);
    }
    for (int k = 0; k < m->n_pieces; k++) {
        const cb_x_pieces *s = &m->pieces[k];
        const int64_t each = m->columns / s->length;
        if (s->phase == phase && m->acc_lanes[s->acc] >= 0)
            add_pieces(l, s, p[m->acc_lanes[s->acc]], row * each, n * each);
    }
    for (int k = 0; k < m->n_columns; k++) {
        const cb_x_columns *s = &m->column[k];
        if (s->phase == phase && s->terms >= 0)
            f->table->add_rows(p[s->stream], p[s->terms], n, m->columns);
    }
}

/* ---- a batch --------------------------------------------------------------------------------- */

typedef struct batch {
    cb_x_lines lines;
    int64_t row, block;
    int thread;
    int16_t n_move, n_spread;
    int16_t
        moves[CB_R_STREAMS]; /* streams whose address differs for each batch, or that are filled */
    int16_t spreads[CB_R_STREAMS]; /* streams of numbers of rows */
    int16_t
        direct; /* phase whose numbers are spread directly in its array, without records; or -1 */
} batch;

static void repeat_row(const cb_executor *e, const cb_x_stream *s, char *to) {
    const int64_t bytes = e->f->m.columns * s->size, all = bytes * e->f->m.together;
    memcpy(to, e->x->tensor[s->tensor].data, (size_t)bytes);
    for (int64_t done = bytes; done < all; done *= 2)
        memcpy(to + done, to, (size_t)min_i64(done, all - done));
}

/* Returns element 0 of the batch in stream k. */
static char *find_stream(cb_executor *e, int k, const batch *b) {
    const cb_x_fused *f = e->f;
    const cb_x_stream *s = &f->m.stream[k];
    const int64_t at = b->row * f->m.columns, n = b->lines.lanes.n;
    if (s->source == CB_X_ARRAY) return cb_at(&e->x->tensor[s->tensor], at);
    if (s->source == CB_X_SUMS && s->tile < 0) return cb_x_sums_of_block(e, s, b->block);
    if (s->tile < 0) return NULL;
    if (f->across[k] >= 0) {
        char *rows = cb_x_tile(e, b->thread, f->across[k]);
        cb_x_gather_across(e, k, b->row, n, rows, f->m.columns);
        return rows;
    }
    char *tile = cb_x_tile(e, b->thread, s->tile);
    cb_x_fill(e, s, k, at, n * f->m.columns, tile);
    return tile;
}

/* Finds a phase whose per-row numbers can be spread, in whole vectors, directly in the array that
 * it stores them to. Large arrays are left to records, whose stores may bypass the caches. */
static void find_direct(const cb_x_fused *f, batch *b) {
    const cb_microcode *m = &f->m;
    const int64_t row = m->columns * f->real, vector = f->table->register_bytes / 4;
    const bool is_small = (size_t)(m->rows * row) < CB_FAR_BYTES;
    b->direct = -1;
    for (int16_t k = 0; k < m->n_phase && row % vector == 0 && is_small; k++) {
        const cb_x_copied copied = f->phase[k].copied;
        const cb_x_stream *from = &m->stream[copied.from], *to = &m->stream[copied.to];
        if (copied.is_all && from->source == CB_X_SPREAD && to->source == CB_X_ARRAY) b->direct = k;
    }
}

/* Finds the streams whose address is the same for all batches of a task, and lists the others. */
static void find_fixed(cb_executor *e, batch *b) {
    const cb_microcode *m = &e->f->m;
    for (int16_t k = 0; k < m->n_stream; k++) {
        const cb_x_stream *s = &m->stream[k];
        const bool is_tile = s->tile >= 0 && (s->source == CB_X_TILE || s->source == CB_X_SPREAD ||
                                              s->source == CB_X_SUMS || s->source == CB_X_REPEATED);
        if (s->source == CB_X_SPREAD) b->spreads[b->n_spread++] = k;
        if (!is_tile) b->moves[b->n_move++] = k;
        else b->lines.lanes.c->p[k] = cb_x_tile(e, b->thread, s->tile);
        if (s->source == CB_X_REPEATED) repeat_row(e, s, b->lines.lanes.c->p[k]);
    }
    find_direct(e->f, b);
}

/* Loads per-row numbers that are not all adjacent in memory, one adjacent run at a time. */
static void load_apart(cb_executor *e, const batch *b, int k) {
    const cb_walk *w = &e->f->load_walk[k];
    const cb_x_row_value *v = &e->f->m.load[k];
    const bool is_adjacent = w->stride[0][w->rank - 1] == 1;
    cb_x_lanes lane = b->lines.lanes;
    cb_position at = cb_walk_to(w, b->row);
    for (int64_t left = lane.n; left > 0; left -= lane.n, lane.vector += lane.n * e->f->real) {
        lane.n = is_adjacent ? min_i64(left, cb_walk_left(w, &at)) : 1;
        cb_x_lanes_load(&lane, v->number, v, &e->x->tensor[v->tensor], at.offset[0]);
        cb_walk_step(w, &at, lane.n);
    }
}

static void spread(const batch *b, int phase) {
    const cb_x_lanes *l = &b->lines.lanes;
    const cb_microcode *m = &l->f->m;
    for (int k = 0; k < b->n_spread; k++) {
        const cb_x_stream *s = &m->stream[b->spreads[k]];
        if (s->first_phase == phase)
            l->f->table->spread(l->c->p[b->spreads[k]],
                                cb_x_lane_vector(l, m->number_lanes[s->part]), l->n, m->columns);
    }
}

/* Returns the number of elements to compute, rounded up to whole iterations if the next batch of
 * the task overwrites the excess. */
static int64_t elements_of(const batch *b) {
    const cb_x_fused *f = b->lines.lanes.f;
    const int64_t n = b->lines.lanes.n * f->m.columns, whole = div_up(n, CB_X_LANES) * CB_X_LANES;
    return f->runs_over && b->row * f->m.columns + whole <= b->lines.end ? whole : n;
}

static void run_batch(cb_executor *e, const batch *b) {
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    const cb_x_lanes *lanes = &b->lines.lanes;
    cb_x_context *c = lanes->c;
    const bool is_last = b->row + lanes->n == m->rows;
    const int64_t n = elements_of(b);
    for (int k = 0; k < b->n_move; k++) c->p[b->moves[k]] = find_stream(e, b->moves[k], b);
    if (b->direct >= 0) c->p[f->phase[b->direct].copied.from] = c->p[f->phase[b->direct].copied.to];
    for (int k = 0; k < m->n_load; k++) {
        const cb_x_row_value *v = &m->load[k];
        if (f->one_a_row[k]) cb_x_lanes_load(lanes, v->number, v, &e->x->tensor[v->tensor], b->row);
        else load_apart(e, b, k);
    }
    cb_x_lanes_after(lanes, -1);
    for (int k = 0; k < m->n_phase; k++) {
        spread(b, k);
        if (f->phase[k].has_work && k != b->direct)
            cb_x_phase_run(f->table, c, &f->phase[k], 0, n, is_last);
        cb_x_add_terms(&b->lines, b->row, lanes->n, k);
        cb_x_lanes_after(lanes, k);
    }
    cb_x_pack(e, c, b->row * m->columns, 0, lanes->n * m->columns);
    for (int k = 0; k < m->n_store; k++)
        cb_x_lanes_store(lanes, m->store[k].number, &e->x->tensor[m->store[k].tensor], b->row);
}

void cb_x_task_together(void *user, int64_t index, int thread) {
    cb_executor *e = user;
    const cb_x_fused *f = e->f;
    const cb_microcode *m = &f->m;
    const int64_t begin = index * f->rows_in_task, end = min_i64(begin + f->rows_in_task, m->rows);
    batch b = {.lines = cb_x_lines_of(e, begin, end, thread), .block = index, .thread = thread};
    cb_x_start(m, b.lines.lanes.c, e->shared);
    for (int k = 0; k < m->n_total; k++)
        b.lines.lanes.c->sum[m->total[k].acc].leaves =
            (char *)f->leaf[k] + div_up(b.lines.begin, CB_X_LEAF) * f->real;
    if (m->n_columns) cb_x_clear_sums(e, index, thread);
    find_fixed(e, &b);
    for (b.row = begin; b.row < end; b.row += b.lines.lanes.n) {
        const int64_t in_run = (b.row - begin) % CB_RUN_ROWS;
        b.lines.lanes.n = min_i64(m->together, end - b.row);
        if (m->n_columns) b.lines.lanes.n = min_i64(b.lines.lanes.n, CB_RUN_ROWS - in_run);
        run_batch(e, &b);
        const bool ends_run =
            in_run + b.lines.lanes.n == CB_RUN_ROWS || b.row + b.lines.lanes.n == end;
        if (m->n_columns && ends_run) cb_x_end_run(e, index, thread);
    }
    cb_x_lines_end(&b.lines);
    cb_x_fence();
}
