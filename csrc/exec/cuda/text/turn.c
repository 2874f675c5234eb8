/* A tile is a square of up to 64 x 64 elements, processed by 64 threads. Each thread transposes
 * squares with the width of one word, and then computes vectors of the result. A block has several
 * tiles, because a block of 64 threads would be too small to keep a multiprocessor busy. */
#include "turn.h"

#include <stdio.h>
#include <string.h>

#include "../../../micro/translation.h"

enum {
    THREADS = 64, /* per tile */
    SLOTS = 4,    /* tiles per block */
    SHARED_MOST = 40 << 10,
    WORTH = 16 /* minimum rows and columns for which a tile is worthwhile */
};

bool cb_cu_turn_of(const cb_walk *w, cb_cu_turn *turn) {
    const int last = w->rank - 1;
    int rows = -1;
    for (int k = 0; k < last; k++) {
        if (w->stride[0][k] == 1) rows = k;
    }
    if (rows < 0 || w->stride[0][last] <= 1) return false;
    if (w->dim[rows] < WORTH || w->dim[last] < WORTH) return false;
    *turn = (cb_cu_turn){.outer = 1, .rows = w->dim[rows], .between = 1, .columns = w->dim[last]};
    for (int k = 0; k < rows; k++) turn->outer *= w->dim[k];
    for (int k = rows + 1; k < last; k++) turn->between *= w->dim[k];
    return true;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

cb_cu_tile cb_cu_tile_of(cb_dtype dtype, int64_t rows, int64_t columns, int most) {
    const int size = (int)cb_dtype_size(dtype), line = 128 / size;
    cb_cu_tile tile = {.size = size, .width = 16 / size, .rows = rows, .columns = columns};
    while (tile.width > most || tile.width > rows) tile.width /= 2;
    tile.pitch = cb_cu_div_up(columns, line) * line;
    return tile;
}

int64_t cb_cu_tile_bytes(const cb_cu_tile *tile) { return tile->rows * tile->pitch * tile->size; }

void cb_cu_tile_declare(cb_cu_code *c, const cb_cu_tile *tile, int name, int slots) {
    cb_cu_include(c, "turn.cuh");
    cb_cu_add(c, "__shared__ __align__(16) turned<%s, %d, %lld, %lld, %lld> turned%d[%d];\n",
              c->type[tile->param], tile->width, (long long)tile->rows, (long long)tile->columns,
              (long long)tile->pitch, name, slots);
}

/* True if all words of the array are aligned when element 0 is. */
static bool is_even_walk(const cb_walk *w, int width) {
    bool even = width > 1;
    for (int k = 0; k < w->rank; k++)
        even = even && (w->stride[0][k] == 1 || w->stride[0][k] % width == 0);
    return even;
}

void cb_cu_tile_fill(cb_cu_code *c, const cb_cu_tile *tile, const cb_walk *w,
                     const cb_cu_fill *fill) {
    const char *even = "true";
    const uint64_t bytes = (uint64_t)(tile->width * tile->size);
    if (!is_even_walk(w, tile->width)) even = "false";
    else if (!cb_cu_is_even(c, tile->param, bytes)) even = cb_cu_looked_at(c, tile->param, bytes);
    cb_cu_add(c, "{\n");
    cb_cu_offset(c, w->rank, w->dim, w->stride[0], "from", fill->first);
    cb_cu_add(c, "%s.fill(p%d + from, (I)%lld, %s, %s, %s, %s, %d);\n}\n", fill->to, tile->param,
              (long long)w->stride[0][w->rank - 1], fill->rows, fill->columns, even, fill->thread,
              fill->threads);
}

/* ---- kernels of squares ---------------------------------------------------------------------- */

static int side_of(int vector) { return vector == 1 ? 32 : 8 * vector; }

/* Writes the declarations of a thread's tile and of its first element in the result. */
static void begin_tile(cb_cu_code *c, const cb_cu_turn *turn, int side, int slots) {
    static const char text[] =
        "const int t = threadIdx.x % $threads, slot = threadIdx.x / $threads;\n"
        "const I tile = blockIdx.x * (I)$slots + slot, line = tile / (I)$across;\n"
        "const I outer = line / (I)$down, j0 = line % (I)$down * $side, "
        "l0 = tile % (I)$across * $side;\n"
        "const bool is_there = outer < (I)$outer;\n"
        "const int rows = $rows - j0 < $side ? $rows - j0 : $side, "
        "columns = $columns - l0 < $side ? $columns - l0 : $side;\n"
        "const I first = ((outer / (I)$between * (I)$rows + j0) * (I)$between + outer % "
        "(I)$between) * (I)$columns + l0;\n";
    cb_cu_template(c, text,
                   CB_CU_HOLES(CB_CU_HOLE(threads, THREADS), CB_CU_HOLE(slots, slots),
                               CB_CU_HOLE(side, side), CB_CU_HOLE(rows, turn->rows),
                               CB_CU_HOLE(columns, turn->columns),
                               CB_CU_HOLE(between, turn->between),
                               CB_CU_HOLE(across, cb_cu_div_up(turn->columns, side)),
                               CB_CU_HOLE(down, cb_cu_div_up(turn->rows, side)),
                               CB_CU_HOLE_COUNT(outer, turn->outer * turn->between)));
}

/* Begins a loop over a tile. Each iteration handles V elements of the result from `e` on, at (tj,
 * tl) of the tile. */
static void begin_vectors(cb_cu_code *c, const cb_cu_turn *turn, int side, int vector,
                          const char *unroll) {
    static const char text[] = "__syncthreads();\n"
                               "if (!is_there) return;\n"
                               "#pragma unroll$unroll\n"
                               "for (int turn = 0; turn < $turns; turn++) {\n"
                               "const int tj = turn * $step + t / $across, tl = t % $across * V;\n"
                               "$(check)"
                               "const I e = first + tj * (I)$row + tl;\n";
    const bool is_whole = turn->rows % side == 0 && turn->columns % side == 0;
    const int across = side / vector, step = THREADS / across;
    const char *check = is_whole ? "" : "if (tj >= rows || tl >= columns) continue;\n";
    cb_cu_template(c, text,
                   CB_CU_HOLES(CB_CU_HOLE_TEXT(unroll, unroll), CB_CU_HOLE(turns, side / step),
                               CB_CU_HOLE(step, step), CB_CU_HOLE(across, across),
                               CB_CU_HOLE(row, turn->between * turn->columns),
                               CB_CU_HOLE_TEXT(check, check)));
}

static void end_tiles(cb_cu_code *c, const cb_cu_turn *turn, int side, int slots) {
    const int64_t n = turn->outer * turn->between * cb_cu_div_up(turn->rows, side) *
                      cb_cu_div_up(turn->columns, side);
    cb_cu_add(c, "}\n");
    cb_cu_end(c, (cb_cu_grid){(uint32_t)cb_cu_div_up(n, slots), 1, 1}, (uint32_t)(slots * THREADS));
}

static void fill(cb_cu_code *c, const cb_cu_tile *tile, const cb_walk *w, int name) {
    char to[32];
    (void)snprintf(to, sizeof to, "turned%d[slot]", name);
    const cb_cu_fill how = {to, "first", "rows", "columns", "t", THREADS};
    cb_cu_add(c, "if (is_there)\n");
    cb_cu_tile_fill(c, tile, w, &how);
}

/* ---- kernels of groups ----------------------------------------------------------------------- */

typedef struct turning { /* arrays that are read through tiles over the same axes */
    cb_cu_turn turn;
    int n, stream[CB_X_STREAMS];
    cb_walk walk[CB_X_STREAMS];
    int64_t shared;
} turning;

static bool same_axes(const cb_cu_turn *a, const cb_cu_turn *b) {
    return a->outer == b->outer && a->rows == b->rows && a->between == b->between &&
           a->columns == b->columns;
}

static const cb_operand *operand_of(const cb_cu_micro *x, int stream) {
    const cb_program *p = x->code->program;
    return &p->operand[p->operand_id[x->m->stream[stream].tensor]];
}

/* Returns the vector width of a flat kernel, reduced until no vector crosses the end of the last
 * axis. */
static int vector_of(const cb_cu_micro *x, const turning *all) {
    const cb_microcode *m = x->m;
    int vector = cb_cu_vector(m);
    for (int k = 0; k < all->n; k++) {
        if (m->stream[all->stream[k]].size == 2) vector = 8;
    }
    while (vector > 1 && (all->turn.columns % vector || (m->rows > 1 && m->columns % vector)))
        vector = vector == 8 ? 4 : 1;
    return vector;
}

static void add_turning(cb_cu_micro *x, turning *all, int stream) {
    const cb_walk w = cb_t_walk_of(operand_of(x, stream));
    cb_cu_turn turn;
    if (x->m->stream[stream].source != CB_X_GATHERED || !cb_cu_turn_of(&w, &turn)) return;
    if (all->n && !same_axes(&turn, &all->turn)) return;
    for (int k = 0; k < all->n; k++) {
        if (all->stream[k] == stream) return;
    }
    all->turn = turn;
    all->walk[all->n] = w;
    all->stream[all->n++] = stream;
}

static turning turning_of(cb_cu_micro *x) {
    turning all = {.n = 0};
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        for (int j = 0; x->needed[k] && !micro->is_dead && j < 3; j++) {
            if (micro->in[j].kind == CB_X_IN_STREAM) add_turning(x, &all, micro->in[j].id);
        }
    }
    return all;
}

bool cb_cu_turned_elements(cb_cu_micro *x) {
    cb_cu_code *c = x->code;
    const cb_microcode *m = x->m;
    const turning all = turning_of(x);
    if (all.n == 0) return false;
    const int vector = vector_of(x, &all), side = side_of(vector);
    cb_cu_tile tile[CB_X_STREAMS];
    int64_t bytes = 0;
    int n = 0, n_micro = 0, slots = SLOTS;
    for (; n < all.n; n++) {
        tile[n] = cb_cu_tile_of(operand_of(x, all.stream[n])->dtype, side, side, vector);
        if (bytes + cb_cu_tile_bytes(&tile[n]) > SHARED_MOST) break;
        bytes += cb_cu_tile_bytes(&tile[n]);
    }
    while (slots > 1 && slots * bytes > SHARED_MOST) slots /= 2;
    for (int k = 0; k < m->n_micro; k++) n_micro += x->needed[k];
    cb_cu_begin(c);
    cb_cu_head(x, vector);
    x->is_guarded = false; /* rows of the tile are whole vectors */
    begin_tile(c, &all.turn, side, slots);
    for (int k = 0; k < n; k++) {
        const uint32_t tensor = m->stream[all.stream[k]].tensor;
        tile[k].param = cb_cu_operand(c, c->program->operand_id[tensor], false);
        cb_cu_tile_declare(c, &tile[k], all.stream[k], slots);
        fill(c, &tile[k], &all.walk[k], all.stream[k]);
        x->is_turned[all.stream[k]] = true;
    }
    cb_cu_once(x);
    begin_vectors(c, &all.turn, side, vector, n_micro > 8 ? " 2" : "");
    cb_cu_add(c, m->rows == 1 ? "const I row = 0, col = e;\n"
                              : "const I row = e / COLUMNS, col = e - row * COLUMNS;\n");
    cb_cu_add(c, "const int n = V;\n");
    cb_cu_row_numbers(x);
    x->turned_tile = "[slot]", x->turned_at = "tj, tl";
    cb_cu_body(x);
    memset(x->is_turned, 0, sizeof x->is_turned);
    end_tiles(c, &all.turn, side, slots);
    return true;
}

/* ---- kernels of single ops ------------------------------------------------------------------- */

bool cb_cu_turned_copy(const cb_cu_op *x) {
    cb_cu_code *c = x->code;
    const cb_operand *in = cb_cu_in(x, 0);
    const cb_walk w = cb_t_walk_of(in);
    cb_cu_turn turn;
    if (x->instr->code != CB_OP_CONTIGUOUS || !cb_cu_turn_of(&w, &turn)) return false;
    int vector = cb_dtype_size(in->dtype) > 2 ? 16 / (int)cb_dtype_size(in->dtype) : 8;
    while (turn.columns % vector) vector /= 2;
    const int side = side_of(vector);
    cb_cu_tile tile = cb_cu_tile_of(in->dtype, side, side, vector);
    const uint64_t bytes = (uint64_t)(vector * tile.size);
    cb_cu_begin_op(x);
    cb_cu_add(c, "enum { V = %d };\n", vector);
    begin_tile(c, &turn, side, SLOTS);
    tile.param = cb_cu_in_param(x, 0);
    cb_cu_tile_declare(c, &tile, 0, SLOTS);
    fill(c, &tile, &w, 0);
    begin_vectors(c, &turn, side, vector, "");
    const int out = cb_cu_out_param(x, 0);
    cb_cu_add(c, "%s x[V];\nturned0[slot].read(x, tj, tl);\n", c->type[out]);
    const char *even = cb_cu_is_even(c, out, bytes) ? "true" : cb_cu_looked_at(c, out, bytes);
    cb_cu_add(c, "put(p%d + e, x, %s);\n", out, even);
    end_tiles(c, &turn, side, SLOTS);
    return true;
}
