/* There are two kinds of kernels. Without reductions of rows, a thread processes V elements
 * anywhere. With them, rows are divided as on the CPU, into leaves of 1,024 elements with 64 lanes.
 * A team of threads holds the lanes of a leaf: sixteen threads with four each, which read 16 bytes
 * at a time, or, where shared memory limits how many rows a multiprocessor holds, a warp with two
 * each. A row of several leaves has several teams, and leaves are combined in pairs. Values that
 * later phases need stay in shared memory (tiles.h) if they fit, and are recomputed otherwise. */
#include "rows.h"

#include <stdio.h>
#include <string.h>

#include "../../../micro/translation.h"
#include "sums.h"
#include "tiles.h"
#include "turn.h"

enum {
    THREADS = 256,
    TEAM = 16,                         /* threads that share a leaf */
    TEAM_BYTES = 4 << 10,              /* a leaf with tiles this large is shared by a warp */
    TEAMS_MOST = 16,                   /* maximum number of teams of a row */
    LEAVES_ENOUGH = 132 * 4,           /* leaves of several rows that keep the whole device busy */
    SHARED_MOST = 40 << 10,            /* bytes of tiles that a kernel may use without a request */
    TURNED_MOST = 4,                   /* maximum number of arrays that are read through tiles */
    TURNED_ROWS = 4,                   /* with fewer rows, 8 bytes of a line are read at a time */
    TWICE_FROM = 132 * 8 * 2 * THREADS /* from this many vectors on, a thread processes two */
};

typedef struct layout { /* the way a block walks rows */
    int64_t leaves;
    int team;        /* threads per leaf, each with CB_X_LANES / team lanes */
    int teams, rows; /* teams per row, rows per block at a time */
    int each;        /* rows that a team walks, one after another */
    int64_t pitch;   /* elements of a row in a tile */
    int n_tile;
    int n_turned; /* arrays with strided rows, which are read through tiles (turn.h) */
    struct {
        int stream;
        cb_walk walk;
        cb_cu_tile tile;
    } turned[TURNED_MOST];
} layout;

typedef struct row_writer { /* writes one kernel */
    cb_cu_micro *x;
    layout l;
    int threads;
} row_writer;

/* ---- elements -------------------------------------------------------------------------------- */

static void flat_kernel(cb_cu_micro *x) {
    static const char text[] =
        "$(once)"
        "#pragma unroll\n"
        "for (int turn = 0; turn < $turns; turn++) {\n"
        "const I q = blockIdx.x * (I)$block + (turn * $threads + threadIdx.x);\n"
        "$(check)"
        "const I row = $row, col = $col, e = $e;\n"
        "const int n = $n;\n"
        "$(row_numbers)$(body)"
        "}\n";
    const cb_microcode *m = x->m;
    const int vector = cb_cu_vector(m);
    const int64_t per_row = cb_cu_div_up(m->columns, vector), count = per_row * m->rows;
    const int turns = count >= TWICE_FROM ? 2 : 1; /* two vectors share the common work */
    /* Most large arrays divide evenly; then the check, about one instruction in eighty, is omitted.
     */
    const bool is_whole = turns > 1 && count % (turns * THREADS) == 0, is_one = m->rows == 1;
    cb_cu_begin(x->code);
    cb_cu_head(x, vector);
    const char *e = is_one ? "col" : x->is_guarded ? "row * COLUMNS + col" : "q * V";
    cb_cu_template(
        x->code, text,
        CB_CU_HOLES(
            CB_CU_HOLES_OF(x), CB_CU_HOLE(turns, turns), CB_CU_HOLE(threads, THREADS),
            CB_CU_HOLE(block, turns * THREADS), CB_CU_HOLE(per_row, per_row),
            CB_CU_HOLE_TEXT(check, is_whole ? "" : "if (q >= (I)$count) return;\n"),
            CB_CU_HOLE_COUNT(count, count), CB_CU_HOLE_TEXT(row, is_one ? "0" : "q / (I)$per_row"),
            CB_CU_HOLE_TEXT(col, is_one ? "q * V" : "q % (I)$per_row * V"), CB_CU_HOLE_TEXT(e, e)));
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)cb_cu_div_up(count, turns * THREADS), 1, 1}, THREADS);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns the rows per block. Threads without a row return immediately, so no other thread may wait
 * for them. Therefore a row that needs more than a warp, and thus barriers, gets a separate
 * block. */
static int rows_of(int threads) { return threads > 32 ? 1 : THREADS / threads; }

static void set_team(layout *l, int team) {
    l->team = team;
    l->teams = 1;
    while (l->teams < l->leaves && l->teams < TEAMS_MOST) l->teams *= 2;
    l->rows = rows_of(team * l->teams);
}

static bool is_read(const cb_microcode *m, int stream) {
    bool any = false;
    for (int k = 0; k < m->n_micro; k++) {
        for (int j = 0; !m->micro[k].is_dead && j < 3; j++)
            any |= m->micro[k].in[j].kind == CB_X_IN_STREAM && m->micro[k].in[j].id == stream;
    }
    return any;
}

/* Finds arrays in which rows are strided and adjacent rows are adjacent in memory. */
static void find_turned(const cb_cu_micro *x, layout *l) {
    const cb_microcode *m = x->m;
    const cb_program *p = x->code->program;
    for (int k = 0; k < m->n_stream && l->n_turned < TURNED_MOST; k++) {
        cb_cu_turn turn;
        if (m->stream[k].source != CB_X_GATHERED || !is_read(m, k)) continue;
        const cb_operand *o = &p->operand[p->operand_id[m->stream[k].tensor]];
        const cb_walk w = cb_t_walk_of(o);
        if (!cb_cu_turn_of(&w, &turn) || turn.columns != m->columns || turn.between > 1) continue;
        if (turn.outer > 1 && turn.rows % rows_of(TEAM)) continue; /* a block would span matrices */
        l->turned[l->n_turned].stream = k;
        l->turned[l->n_turned].walk = w;
        l->turned[l->n_turned++].tile = cb_cu_tile_of(o->dtype, l->rows, l->pitch, TURNED_ROWS);
    }
}

/* Returns the bytes of shared memory that a row needs. */
static int64_t shared_of(const layout *l, bool turns) {
    int64_t bytes = l->pitch * (int64_t)sizeof(float) * l->n_tile;
    for (int k = 0; turns && k < l->n_turned; k++)
        bytes += cb_cu_tile_bytes(&l->turned[k].tile) / l->turned[k].tile.rows;
    return bytes;
}

/* Returns the number of rows per block whose data fit in `most` bytes of shared memory, at least
 * `fewest`; 0 if not even these fit. */
static int rows_that_fit(const layout *l, int64_t row_bytes, int fewest, int64_t most) {
    int rows = l->rows;
    while (rows > fewest && rows * row_bytes > most) rows /= 2;
    return rows * row_bytes <= most ? rows : 0;
}

/* Returns the bytes of shared memory that a block may request, minus 4 KiB for sums. */
static int64_t shared_most(int capability) {
    switch (capability) {
        case 80:
        case 87: return 159 << 10;
        case 90:
        case 100:
        case 103:
        case 110: return 223 << 10;
        default: return capability > 80 ? 95 << 10 : SHARED_MOST;
    }
}

static bool draws(const cb_microcode *m) {
    bool any = false;
    for (int k = 0; k < m->n_stream; k++) any |= m->stream[k].source == CB_X_KEPT;
    return any;
}

/* Finds tiles for arrays with strided rows. Returns the rows per block, or 0 if they do not fit. */
static int turned_rows(cb_cu_micro *x, layout *l) {
    if (l->leaves == 1) find_turned(x, l);
    if (l->n_turned == 0) return 0;
    l->n_tile = cb_cu_find_tiles(x, false);
    return rows_that_fit(l, shared_of(l, true), TURNED_ROWS, SHARED_MOST);
}

/* Does the same without arrays with strided rows. If random numbers are drawn, four lanes per
 * thread are better: they come from one block of numbers. */
static int tiled_rows(cb_cu_micro *x, layout *l, bool holds) {
    l->n_turned = 0;
    l->n_tile = cb_cu_find_tiles(x, holds);
    const int64_t bytes = shared_of(l, false);
    set_team(l, bytes >= TEAM_BYTES * l->leaves && !draws(x->m) ? 2 * TEAM : TEAM);
    const int fewest = l->team * l->teams < 32 ? 2 : 1; /* a whole warp */
    const int rows = rows_that_fit(l, bytes, fewest, SHARED_MOST);
    if (rows > 0) return rows;
    return rows_that_fit(l, bytes, fewest, shared_most(x->code->capability));
}

static layout layout_of(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    layout l = {.leaves = cb_cu_div_up(m->columns, CB_X_LEAF), .each = cb_cu_rows_of_leaf(m)};
    if (!x->has_leaves || l.each == 0) l.each = 1;
    l.pitch = cb_cu_div_up(m->columns, 4) * 4;
    set_team(&l, TEAM);
    x->has_tiles = true;
    int rows = turned_rows(x, &l);
    if (rows == 0) rows = tiled_rows(x, &l, true);
    if (rows == 0) rows = tiled_rows(x, &l, false);
    x->has_tiles = l.n_tile > 0 && rows > 0;
    if (rows > 0) l.rows = rows;
    else set_team(&l, TEAM);
    for (int k = 0; k < l.n_turned; k++) l.turned[k].tile.rows = l.rows;
    return l;
}

/* Declares a taken element. If rows have one leaf, it is in a register of the thread that found it,
 * else in shared memory. */
static void declare_taken(cb_cu_code *c, const layout *l, int id) {
    if (l->leaves == 1) {
        cb_cu_add(c, "float taken%d = 0;\n", id);
    } else {
        cb_cu_add(c, "__shared__ float takens%d[%d];\n", id, l->rows);
        cb_cu_add(c, "float &taken%d = takens%d[slot];\n", id, id);
    }
}

static void add_taken(cb_cu_code *c, const layout *l, const cb_micro *take) {
    const int id = take->dst, at = take->in[1].id;
    if (l->leaves == 1)
        cb_cu_add(c,
                  "const float s%d = __shfl_sync(team_mask<V>(), taken%d, (int)(i%d / V), %d);\n",
                  id, id, at, l->team);
    else
        cb_cu_add(c, "const float s%d = i%d >= 0 && i%d < COLUMNS ? taken%d : 0.0f;\n", id, at, at,
                  id);
}

/* Writes the declarations of shared memory for leaves of rows. */
static void declare_parts(const cb_cu_micro *x, const layout *l) {
    const cb_microcode *m = x->m;
    for (int k = 0; k < m->n_micro; k++) {
        if (!cb_cu_is_row_acc(m, &m->micro[k]) || l->leaves == 1) continue;
        cb_cu_add(x->code, "__shared__ %s part%d[%d][%lld];\n",
                  m->micro[k].op == CB_X_ACC ? "float" : "int", m->micro[k].dst, l->rows,
                  (long long)l->leaves);
    }
}

/* Writes the declarations of tiles. More than SHARED_MOST bytes are requested at the launch. */
static void declare_tiles(const cb_cu_micro *x, const layout *l) {
    cb_cu_code *c = x->code;
    const int64_t floats = l->n_tile * l->rows * l->pitch, bytes = floats * (int64_t)sizeof(float);
    if (bytes > SHARED_MOST) {
        cb_cu_add(c, "extern __shared__ __align__(16) float tiles[]; /* %lld bytes */\n",
                  (long long)bytes);
        c->shared = (uint32_t)bytes;
    } else {
        cb_cu_add(c, "__shared__ __align__(16) float tiles[%lld];\n", (long long)floats);
    }
    for (int k = 0; k < x->m->n_stream; k++) {
        if (!x->is_held[k] && (x->in_tile[k] < 0 || x->is_cheap[k])) continue;
        cb_cu_add(c, "float *const tile%d = tiles + (%d + slot) * %lld;\n", k,
                  x->tile_of[k] * l->rows, (long long)l->pitch);
    }
}

static void declare_shared(void *with) {
    const row_writer *w = with;
    const cb_cu_micro *x = w->x;
    const layout *l = &w->l;
    const cb_microcode *m = x->m;
    cb_cu_code *c = x->code;
    if (x->has_tiles) declare_tiles(x, l);
    for (int k = 0; k < m->n_micro; k++) {
        if (cb_cu_is_take(&m->micro[k])) declare_taken(c, l, m->micro[k].dst);
    }
    declare_parts(x, l);
}

static void for_accs(cb_cu_micro *x, int phase, const char *sum, const char *largest) {
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->phase != phase || !cb_cu_is_row_acc(x->m, micro)) continue;
        cb_cu_template(x->code, micro->op == CB_X_ACC ? sum : largest,
                       CB_CU_HOLES(CB_CU_HOLE(a, micro->dst)));
    }
}

/* Writes the lanes of a leaf of totals or, if `at` names the leaf, the sum of a finished one. Phase
 * -1 stands for all phases. */
static void for_leaves(cb_cu_micro *x, int phase, const char *at) {
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if ((phase >= 0 && micro->phase != phase) || !cb_cu_is_leaf(x, micro)) continue;
        if (at)
            cb_cu_add(x->code, "{ const float sum = fold(a%d);\nif (t == 0) p%d[%s] = sum; }\n",
                      micro->dst, cb_cu_leaves_param(x, micro->dst), at);
        else cb_cu_add(x->code, "float a%d[V] = {};\n", micro->dst);
    }
}

/* Combines the leaves of a row into a sum r<a> or the largest key r<a>, and makes taken elements
 * available to all threads of the row. */
static void close_accs(cb_cu_micro *x, const layout *l, int phase) {
    cb_cu_code *c = x->code;
    bool any = false;
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        any |= micro->phase == phase && (cb_cu_is_take(micro) || cb_cu_is_row_acc(x->m, micro));
    }
    if (!any) return;
    if (l->leaves > 1)
        cb_cu_add(c, l->team * l->teams > 32 ? "__syncthreads();\n" : "__syncwarp();\n");
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->phase == phase && cb_cu_is_take(micro)) add_taken(c, l, micro);
        if (micro->phase != phase || !cb_cu_is_row_acc(x->m, micro) || l->leaves == 1) continue;
        const bool sums = micro->op == CB_X_ACC;
        cb_cu_add(c, "r%d = %s<%lld>(part%d[slot]);\n", micro->dst,
                  sums ? "pairs_of" : "largest_of", (long long)l->leaves, micro->dst);
    }
}

/* Writes the numbers that are available after a phase. */
static void numbers_after(cb_cu_micro *x, int phase) {
    for (int k = 0; k < x->m->n_number; k++) {
        const cb_x_number *number = &x->m->number[k];
        if (number->when != CB_X_OF_ROW || number->after != phase) continue;
        const bool is_largest = number->op == CB_X_AMAX || number->op == CB_X_AMIN;
        if (number->op == CB_X_ACC)
            cb_cu_add(x->code, "const float s%d = r%d;\n", number->dst, number->a);
        else if (is_largest)
            cb_cu_add(x->code, "const float s%d = %sof_key(r%d);\n", number->dst,
                      number->op == CB_X_AMIN ? "-" : "", number->a);
        else cb_cu_number(x, number);
    }
}

/* Writes the loop over one leaf, V elements per iteration. A compile-time trip count removes the
 * bounds checks and cuts compile time by about 25 %. */
static void add_turns(cb_cu_code *c, const cb_microcode *m, const layout *l) {
    const char *unrolled = l->team == TEAM ? "#pragma unroll 2\n" : "#pragma unroll 4\n";
    if (l->leaves == 1 && m->columns % CB_X_LANES == 0) {
        cb_cu_add(c, "%sfor (I turn = 0; turn < %lld; turn++) {\n", unrolled,
                  (long long)m->columns / CB_X_LANES);
        cb_cu_add(c, "const I col = turn * %d + t * V;\n", CB_X_LANES);
        return;
    }
    cb_cu_add(c, "const I first = leaf * %d + t * V;\n%s", CB_X_LEAF, unrolled);
    if (m->columns % CB_X_LEAF == 0) {
        cb_cu_add(c, "for (I turn = 0; turn < %d; turn++) {\nconst I col = first + turn * %d;\n",
                  CB_X_LEAF / CB_X_LANES, CB_X_LANES);
        return;
    }
    cb_cu_add(c, "for (I col = first; col < COLUMNS && col < first + %d; col += %d) {\n", CB_X_LEAF,
              CB_X_LANES);
}

/* Writes a phase: its reductions, stores and takes, and the numbers that are available after it. */
static void row_phase(cb_cu_micro *x, const layout *l, int phase) {
    static const char leaf[] = "row * (COLUMNS / 1024) + leaf"; /* CB_X_LEAF */
    cb_cu_code *c = x->code;
    const cb_microcode *m = x->m;
    if (cb_cu_need_phase(x, phase)) {
        for_accs(x, phase, "float r$a = 0;\n", "int r$a = INT32_MIN;\n");
        cb_cu_add(c, "for (I leaf = team; leaf < (I)%lld; leaf += %d) {\n", (long long)l->leaves,
                  l->teams);
        for_accs(x, phase, "float a$a[V] = {};\n", "int k$a = INT32_MIN;\n");
        if (l->each == 1) for_leaves(x, phase, NULL);
        add_turns(c, m, l);
        cb_cu_add(c, "const I e = row * COLUMNS + col;\nconst int n = %s;\n",
                  x->is_guarded ? "COLUMNS - col < V ? COLUMNS - col : V" : "V");
        cb_cu_body(x);
        for (int k = 0; k < m->n_stream; k++) x->is_filled[k] |= x->is_held[k] && x->is_loaded[k];
        cb_cu_add(c, "}\n");
        if (l->each == 1) for_leaves(x, phase, leaf);
        if (l->leaves == 1)
            for_accs(x, phase, "r$a = fold(a$a);\n", "r$a = fold_largest<V>(k$a);\n");
        else
            for_accs(x, phase, "r$a = fold(a$a);\nif (t == 0) part$a[slot][leaf] = r$a;\n",
                     "r$a = fold_largest<V>(k$a);\nif (t == 0) part$a[slot][leaf] = r$a;\n");
        cb_cu_add(c, "}\n");
        close_accs(x, l, phase);
    }
    numbers_after(x, phase);
}

/* Writes code that stores the row's numbers that are results or that later kernels read. */
static void store_numbers(void *with) {
    cb_cu_micro *x = with;
    cb_cu_code *c = x->code;
    const cb_microcode *m = x->m;
    bool any = m->n_store > 0;
    for (int id = 0; id < CB_X_SCALARS; id++) any |= x->is_kept[id];
    if (!any) return;
    cb_cu_add(c, "if (team == 0 && t == 0) {\n");
    for (int k = 0; k < m->n_store; k++) {
        const int p = cb_cu_operand(c, c->program->operand_id[m->store[k].tensor], true);
        cb_cu_narrow_number(x, p, "row", m->store[k].number);
    }
    for (int id = 0; id < CB_X_SCALARS; id++) {
        if (!x->is_kept[id]) continue;
        const cb_cu_param at = {CB_CU_EXTRA, 0, x->kept_at[id]};
        cb_cu_add(c, "p%d[row] = s%d;\n", cb_cu_param_of(c, at, "float", true), id);
    }
    cb_cu_add(c, "}\n");
}

/* Writes code that fills the tiles for the rows of the block. No thread may return before it, as it
 * has a barrier. */
static void fill_turned(void *with) {
    row_writer *w = with;
    cb_cu_micro *x = w->x;
    layout *l = &w->l;
    cb_cu_code *c = x->code;
    if (l->n_turned == 0) return;
    for (int k = 0; k < l->n_turned; k++) {
        cb_cu_tile *tile = &l->turned[k].tile;
        const uint32_t tensor = x->m->stream[l->turned[k].stream].tensor;
        tile->param = cb_cu_operand(c, c->program->operand_id[tensor], false);
        cb_cu_tile_declare(c, tile, l->turned[k].stream, 1);
    }
    cb_cu_add(c, "{\nconst I top = blockIdx.x * (I)%d, first = top * COLUMNS;\n", l->rows);
    cb_cu_add(c, "const int rows = ROWS - top < %d ? ROWS - top : %d;\n", l->rows, l->rows);
    for (int k = 0; k < l->n_turned; k++) {
        const int stream = l->turned[k].stream;
        char to[32];
        (void)snprintf(to, sizeof to, "turned%d[0]", stream);
        const cb_cu_fill fill = {to, "first", "rows", "(int)COLUMNS", "threadIdx.x", w->threads};
        cb_cu_tile_fill(c, &l->turned[k].tile, &l->turned[k].walk, &fill);
        x->is_turned[stream] = true;
    }
    cb_cu_add(c, "}\n__syncthreads();\n");
    x->turned_tile = "[0]", x->turned_at = "slot, col";
}

static void add_phases(void *with) {
    const row_writer *w = with;
    for (int phase = 0; phase < w->x->m->n_phase; phase++) row_phase(w->x, &w->l, phase);
}

/* These write the lanes of totals before the rows of a leaf, and the sums after them, if leaves
 * span several rows. */
static void begin_leaves(void *with) {
    row_writer *w = with;
    if (w->l.each > 1) for_leaves(w->x, -1, NULL);
}

static void end_leaves(void *with) {
    row_writer *w = with;
    if (w->l.each > 1) for_leaves(w->x, -1, "group");
}

static void row_kernel(cb_cu_micro *x) {
    static const char text[] =
        "const unsigned t = threadIdx.x % $team, team = threadIdx.x / $team % $teams, "
        "slot = threadIdx.x / $row_threads;\n"
        "$(walk)"
        "$(row_numbers)$(phases)$(stores)"
        "$(ends)";
    static const char one_row[] = "const I row = blockIdx.x * (I)$rows + slot;\n"
                                  "$(turned)"
                                  "if (row >= ROWS) return;\n"
                                  "$(shared)$(once)";
    static const char rows_of_a_leaf[] =
        "const I group = blockIdx.x * (I)$rows + slot;\n"
        "if (group * $each >= ROWS) return;\n"
        "$(shared)$(once)$(lanes)"
        "#pragma unroll 1\n"
        "for (I row = group * $each; row < ROWS && row < group * $each + $each; row++) {\n";
    row_writer w = {.x = x, .l = layout_of(x)};
    const int64_t rows = (int64_t)w.l.rows * w.l.each;
    w.threads = w.l.team * w.l.teams * w.l.rows;
    cb_cu_begin(x->code);
    cb_cu_head(x, CB_X_LANES / w.l.team);
    memset(x->is_filled, 0, sizeof x->is_filled);
    cb_cu_template(
        x->code, text,
        CB_CU_HOLES(
            CB_CU_HOLES_OF(x), CB_CU_HOLE(team, w.l.team), CB_CU_HOLE(teams, w.l.teams),
            CB_CU_HOLE(rows, w.l.rows), CB_CU_HOLE(row_threads, w.l.team * w.l.teams),
            CB_CU_HOLE(each, w.l.each),
            CB_CU_HOLE_TEXT(walk, w.l.each > 1 ? rows_of_a_leaf : one_row),
            CB_CU_HOLE_TEXT(ends, w.l.each > 1 ? "}\n$(leaves)" : ""),
            CB_CU_HOLE_PART(lanes, begin_leaves, &w), CB_CU_HOLE_PART(leaves, end_leaves, &w),
            CB_CU_HOLE_PART(turned, fill_turned, &w), CB_CU_HOLE_PART(shared, declare_shared, &w),
            CB_CU_HOLE_PART(phases, add_phases, &w), CB_CU_HOLE_PART(stores, store_numbers, x)));
    memset(x->is_turned, 0, sizeof x->is_turned);
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)cb_cu_div_up(x->m->rows, rows), 1, 1},
              (uint32_t)w.threads);
}

/* Lets leaves span rows of 64, 128, 256 or 512 elements if there are enough rows to keep the whole
 * device busy. */
int cb_cu_rows_of_leaf(const cb_microcode *m) {
    bool fits = m->n_total > 0 && m->columns % CB_X_LANES == 0 && m->columns < CB_X_LEAF &&
                CB_X_LEAF % m->columns == 0 && m->rows * m->columns / CB_X_LEAF >= LEAVES_ENOUGH;
    for (int k = 0; k < m->n_stream; k++) fits &= m->stream[k].source != CB_X_GATHERED;
    for (int k = 0; k < m->n_micro; k++) fits &= !cb_cu_is_take(&m->micro[k]);
    return fits ? (int)(CB_X_LEAF / m->columns) : 0;
}

bool cb_cu_walks_rows(const cb_microcode *m) {
    bool any = m->n_store > 0;
    for (int k = 0; k < m->n_micro; k++)
        any |= cb_cu_is_row_acc(m, &m->micro[k]) || cb_cu_is_take(&m->micro[k]);
    return any;
}

void cb_cu_rows(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    bool stores = false;
    if (cb_cu_walks_rows(m)) {
        row_kernel(x);
        return;
    }
    for (int k = 0; k < m->n_micro; k++) {
        if (!cb_cu_is_store(x, &m->micro[k])) continue;
        cb_cu_need(x, k);
        stores = true;
    }
    if (!stores || cb_cu_turned_elements(x)) return;
    x->stores_with_leaves = m->n_total > 0;
    if (!x->stores_with_leaves) flat_kernel(x);
}
