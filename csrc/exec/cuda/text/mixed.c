/* A block of threads for each block of rows over which columns are summed (cb_row_blocks). It takes
 * a few rows at a time, the next of which are on their way meanwhile:
 *
 *     rows       teams of threads (rows.c) add up each row, from shared memory: its numbers
 *     columns    each thread has columns of its own, computes their elements of one row after
 *                another with these numbers, stores what is stored and adds up what is summed
 *
 * So sums have the order that they have in kernels of their own, which is the CPU's, and arrays are
 * read once where those read them twice. What comes before a sum over a row is computed twice, as
 * it does not stay anywhere: groups in which that is dear are left alone. */
#include "mixed.h"

#include <stdio.h>
#include <string.h>

#include "../../../micro/translation.h"
#include "rows.h"
#include "sums.h"

enum {
    TEAM = 16,
    THREADS_LEAST = 64,
    THREADS_MOST = 512,
    ROWS_MOST = 8,
    CHUNKS_MOST = 2,   /* of columns, for a thread */
    BLOCKS_LEAST = 32, /* fewer keep too little of a device busy */
    STAGED_MOST = 4,
    SHARED_MOST = 40 << 10
};

typedef struct staged {              /* an array that rows and columns read */
    int stream, param, width, count; /* of a word; words for each thread */
    int64_t row_bytes;
} staged;

typedef struct mixed {
    cb_cu_layout rows;
    cb_cu_blocks blocks;
    int threads, chunks, n_staged;
    staged staged[STAGED_MOST];
    bool by_rows[CB_X_MICROS], by_columns[CB_X_MICROS]; /* what both need */
} mixed;

/* ---- what fits ------------------------------------------------------------------------------- */

static bool reads(const cb_micro *micro, int stream) {
    bool any = false;
    for (int j = 0; j < 3; j++)
        any |= micro->in[j].kind == CB_X_IN_STREAM && micro->in[j].id == stream;
    return any;
}

static bool any_reads(const cb_microcode *m, const bool *needed, int stream) {
    bool any = false;
    for (int k = 0; k < m->n_micro; k++)
        any |= needed[k] && !m->micro[k].is_dead && reads(&m->micro[k], stream);
    return any;
}

/* Finds what each side needs. False: there are not both, or others. */
static bool find_needs(cb_cu_micro *x, mixed *g) {
    const cb_microcode *m = x->m;
    bool has_rows = false;
    x->has_tiles = false;
    if (m->n_total || m->n_pieces || m->n_give || m->n_columns == 0) return false;
    cb_cu_forget(x);
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (micro->is_dead) continue;
        if (micro->op == CB_X_TAKE || micro->op == CB_X_ADD_AT) return false;
        if (!cb_cu_is_row_acc(m, micro)) continue;
        cb_cu_need(x, k);
        has_rows = true;
    }
    memcpy(g->by_rows, x->needed, sizeof x->needed);
    cb_cu_forget(x);
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        const bool stores = micro->op == CB_X_STORE && m->stream[micro->dst].source != CB_X_TILE;
        if (!micro->is_dead && (stores || micro->op == CB_X_COLUMN)) cb_cu_need(x, k);
    }
    memcpy(g->by_columns, x->needed, sizeof x->needed);
    return has_rows;
}

/* Whether nothing dear is done twice, and arrays that both sides read can be staged. */
static bool find_staged(const cb_cu_micro *x, mixed *g) {
    const cb_microcode *m = x->m;
    const cb_program *p = x->code->program;
    for (int k = 0; k < m->n_micro; k++)
        if (g->by_rows[k] && g->by_columns[k] && cb_cu_is_dear(m->micro[k].op)) return false;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_stream *s = &m->stream[k];
        const bool by_rows = any_reads(m, g->by_rows, k),
                   by_columns = any_reads(m, g->by_columns, k);
        if ((!by_rows && !by_columns) || s->source == CB_X_TILE) continue;
        if (s->is_written) return false; /* it may not be there yet */
        if (!by_rows || !by_columns) continue;
        const cb_operand *o = &p->operand[p->operand_id[s->tensor]];
        if (s->source == CB_X_ARRAY && cb_numel(&o->shape) == m->columns) continue;
        const bool whole = s->source == CB_X_ARRAY && cb_t_is_whole(o);
        if (!whole || g->n_staged == STAGED_MOST) return false;
        const int most = 16 / s->size;
        g->staged[g->n_staged++] = (staged){
            .stream = k, .width = m->columns % most ? 4 : most, .row_bytes = m->columns * s->size};
    }
    return true;
}

static bool find_sizes(const cb_microcode *m, mixed *g) {
    const int64_t quads = m->columns / 4;
    int64_t row_bytes = 0;
    g->threads = THREADS_LEAST;
    while (g->threads < quads && g->threads < THREADS_MOST) g->threads *= 2;
    g->chunks = (int)cb_cu_div_up(quads, g->threads);
    g->rows = (cb_cu_layout){.leaves = cb_cu_div_up(m->columns, CB_X_LEAF), .teams = 1};
    while (g->rows.teams < g->rows.leaves) g->rows.teams *= 2;
    for (int k = 0; k < g->n_staged; k++) row_bytes += g->staged[k].row_bytes;
    g->rows.rows = ROWS_MOST;
    while (g->rows.rows > 0 && (g->rows.rows * TEAM * g->rows.teams > g->threads ||
                                g->rows.rows * row_bytes > SHARED_MOST))
        g->rows.rows /= 2;
    for (int k = 0; k < g->n_staged; k++) {
        staged *s = &g->staged[k];
        const int64_t elements = g->rows.rows * m->columns;
        s->count = (int)cb_cu_div_up(elements, (int64_t)s->width * g->threads);
    }
    return g->chunks <= CHUNKS_MOST && g->rows.rows > 0;
}

static bool find(cb_cu_micro *x, mixed *g) {
    const cb_microcode *m = x->m;
    g->blocks = cb_cu_blocks_of(m);
    return g->blocks.n >= BLOCKS_LEAST && m->columns % 4 == 0 && find_needs(x, g) &&
           find_staged(x, g) && find_sizes(m, g);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static void declare(cb_cu_micro *x, mixed *g) {
    cb_cu_code *c = x->code;
    const long long elements = (long long)(g->rows.rows * x->m->columns);
    cb_cu_include(c, "mixed.cuh");
    for (int k = 0; k < g->n_staged; k++) {
        staged *s = &g->staged[k];
        const uint32_t tensor = x->m->stream[s->stream].tensor;
        s->param = cb_cu_operand(c, c->program->operand_id[tensor], false);
        const char *type = c->type[s->param];
        cb_cu_add(c, "__shared__ __align__(16) %s staged%d[%lld];\n", type, s->stream, elements);
        cb_cu_add(c, "ahead<%s, %d, %d, %d> ahead%d;\n", type, s->width, s->count, g->threads,
                  s->stream);
    }
    for (int id = 0; id < CB_X_SCALARS; id++) {
        if (x->is_kept[id]) cb_cu_add(c, "__shared__ float kept%d[%d];\n", id, g->rows.rows);
    }
    cb_cu_declare_parts(x, &g->rows);
    for (int k = 0; k < x->m->n_columns; k++) {
        const int s = x->m->column[k].stream;
        cb_cu_add(c, "float sums%d[%d][V] = {}, runs%d[%d][V] = {};\n", s, g->chunks, s, g->chunks);
    }
}

/* Text: staged arrays from row `at` on begin to come. */
static void fetch(cb_cu_micro *x, const mixed *g, const char *at) {
    cb_cu_code *c = x->code;
    cb_cu_add(c, "if (%s < end) {\nconst I from = %s * COLUMNS;\n", at, at);
    cb_cu_add(c, "const int left = end - %s < %d ? end - %s : %d;\n", at, g->rows.rows, at,
              g->rows.rows);
    for (int k = 0; k < g->n_staged; k++) {
        const staged *s = &g->staged[k];
        const uint64_t bytes = (uint64_t)(s->width * x->m->stream[s->stream].size);
        const char *even =
            cb_cu_is_even(c, s->param, bytes) ? "true" : cb_cu_looked_at(c, s->param, bytes);
        cb_cu_add(c, "ahead%d.fetch(p%d + from, left * (int)(COLUMNS / %d), %s);\n", s->stream,
                  s->param, s->width, even);
    }
    cb_cu_add(c, "}\n");
}

/* Threads that have no row do as if they had the last, of which they have no leaf. */
static void add_rows(cb_cu_micro *x, const mixed *g) {
    cb_cu_code *c = x->code;
    const cb_microcode *m = x->m;
    cb_cu_add(c, "{\nconst int place = threadIdx.x / %d;\nconst bool works = place < left;\n",
              TEAM * g->rows.teams);
    cb_cu_add(c,
              "const int slot = works ? place : left - 1;\nconst unsigned t = threadIdx.x %% %d, ",
              TEAM);
    cb_cu_add(c, "team = works ? threadIdx.x / %d %% %d : %lld;\nconst I row = first + slot;\n",
              TEAM, g->rows.teams, (long long)g->rows.leaves);
    for (int k = 0; k < g->n_staged; k++) x->is_staged[g->staged[k].stream] = true;
    x->staged_row = "slot";
    cb_cu_row_numbers(x);
    for (int phase = 0; phase < m->n_phase; phase++) cb_cu_row_phase(x, &g->rows, phase);
    cb_cu_add(c, "if (team == 0 && t == 0) {\n");
    cb_cu_store_numbers(x);
    for (int id = 0; id < CB_X_SCALARS; id++) {
        if (x->is_kept[id]) cb_cu_add(c, "kept%d[slot] = s%d;\n", id, id);
    }
    cb_cu_add(c, "}\n}\n__syncthreads();\n");
}

static void add_columns(cb_cu_micro *x, const mixed *g) {
    cb_cu_code *c = x->code;
    const cb_microcode *m = x->m;
    cb_cu_add(c, "#pragma unroll\nfor (int chunk = 0; chunk < %d; chunk++) {\n", g->chunks);
    cb_cu_add(c, "const I col = (chunk * %d + threadIdx.x) * V;\nif (col >= COLUMNS) continue;\n",
              g->threads);
    for (int k = 0; k < m->n_columns; k++) {
        const int s = m->column[k].stream;
        cb_cu_add(c, "float (&c%d)[V] = sums%d[chunk], (&b%d)[V] = runs%d[chunk];\n", s, s, s, s);
    }
    cb_cu_add(c, "#pragma unroll 2\nfor (int r = 0; r < left; r++) {\n");
    cb_cu_add(c, "const I row = first + r, e = row * COLUMNS + col;\nconst int n = V;\n");
    x->staged_row = "r";
    memcpy(x->needed, g->by_columns, sizeof x->needed);
    cb_cu_row_numbers(x);
    for (int id = 0; id < CB_X_SCALARS; id++) {
        if (x->is_kept[id]) cb_cu_add(c, "const float s%d = kept%d[r];\n", id, id);
    }
    cb_cu_body(x);
    cb_cu_close_runs(x);
    cb_cu_add(c, "}\n}\n");
}

static void close_columns(cb_cu_micro *x, const mixed *g) {
    cb_cu_code *c = x->code;
    cb_cu_add(c, "#pragma unroll\nfor (int chunk = 0; chunk < %d; chunk++) {\n", g->chunks);
    cb_cu_add(c, "const I col = (chunk * %d + threadIdx.x) * V;\nconst int n = V;\n", g->threads);
    cb_cu_add(c, "if (col >= COLUMNS) continue;\n");
    for (int k = 0; k < x->m->n_columns; k++) {
        const int s = x->m->column[k].stream;
        cb_cu_add(c, "float (&c%d)[V] = sums%d[chunk], (&b%d)[V] = runs%d[chunk];\n", s, s, s, s);
        cb_cu_close_column(x, &x->m->column[k], &g->blocks);
    }
    cb_cu_add(c, "}\n");
}

static void write_kernel(cb_cu_micro *x, mixed *g) {
    cb_cu_code *c = x->code;
    cb_cu_begin(c);
    cb_cu_head(x, 4);
    declare(x, g);
    cb_cu_once(x);
    cb_cu_add(c, "const I block = blockIdx.x;\n");
    cb_cu_block_bounds(x, &g->blocks);
    fetch(x, g, "begin");
    cb_cu_add(c, "for (I first = begin; first < end; first += %d) {\n", g->rows.rows);
    cb_cu_add(c, "const int left = end - first < %d ? end - first : %d;\n__syncthreads();\n",
              g->rows.rows, g->rows.rows);
    for (int k = 0; k < g->n_staged; k++)
        cb_cu_add(c, "ahead%d.put(staged%d, left * (int)(COLUMNS / %d));\n", g->staged[k].stream,
                  g->staged[k].stream, g->staged[k].width);
    cb_cu_add(c, "__syncthreads();\nconst I next = first + %d;\n", g->rows.rows);
    fetch(x, g, "next");
    add_rows(x, g);
    add_columns(x, g);
    cb_cu_add(c, "}\n");
    close_columns(x, g);
    cb_cu_end(c, (cb_cu_grid){(uint32_t)g->blocks.n, 1, 1}, (uint32_t)g->threads);
}

bool cb_cu_mixed(cb_cu_micro *x) {
    mixed g = {.threads = 0};
    if (!find(x, &g)) return false;
    memcpy(x->needed, g.by_columns, sizeof x->needed);
    cb_cu_note_kept(x);
    x->stores_later = true;
    write_kernel(x, &g);
    cb_cu_finish_columns(x, &g.blocks);
    return true;
}
