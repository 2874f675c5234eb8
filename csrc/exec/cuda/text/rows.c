/* There are two kinds of kernels. Without reductions of rows, a thread processes V elements
 * anywhere. With them, rows are divided as on the CPU, into leaves of 1,024 elements with 64 lanes.
 * A team of sixteen threads holds the lanes of a leaf, four each, so each thread reads 16 bytes at
 * a time. A row of several leaves has several teams, and leaves are combined in pairs. Values of
 * the row that a later phase needs stay in shared memory if they fit, and are recomputed otherwise.
 */
#include "rows.h"

#include <stdio.h>
#include <string.h>

#include "../../../micro/translation.h"
#include "sums.h"
#include "turn.h"

enum {
    THREADS = 256,
    TEAM = 16,       /* threads that share a leaf */
    TEAMS_MOST = 16, /* most teams of a row */
    SHARED_MOST = 40 << 10,
    TURNED_MOST = 4,                   /* most arrays that are read through tiles */
    TURNED_ROWS = 4,                   /* with fewer rows, 8 bytes of a line are read at a time */
    TWICE_FROM = 132 * 8 * 2 * THREADS /* from this many vectors on, a thread processes two */
};

typedef struct layout { /* how a block walks rows */
    int64_t leaves;
    int teams, rows; /* teams per row, rows per block */
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

/* Rows per block. Threads without a row return immediately, so no other thread may wait for them.
 * Therefore a row that needs more than a warp, and thus barriers, gets a separate block. */
static int rows_of(int teams) { return TEAM * teams > 32 ? 1 : THREADS / (TEAM * teams); }

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
        if (turn.outer > 1 && turn.rows % rows_of(1)) continue; /* a block would span matrices */
        l->turned[l->n_turned].stream = k;
        l->turned[l->n_turned].walk = w;
        l->turned[l->n_turned++].tile = cb_cu_tile_of(o->dtype, l->rows, l->pitch, TURNED_ROWS);
    }
}

/* Bytes of shared memory that a row needs. */
static int64_t shared_of(const layout *l, bool turns) {
    int64_t bytes = l->pitch * (int64_t)sizeof(float) * l->n_tile;
    for (int k = 0; turns && k < l->n_turned; k++)
        bytes += cb_cu_tile_bytes(&l->turned[k].tile) / l->turned[k].tile.rows;
    return bytes;
}

/* The number of rows per block whose data fit in shared memory, at least `fewest`; 0: not even
 * these fit. */
static int rows_that_fit(const layout *l, int64_t row_bytes, int fewest) {
    int rows = l->rows;
    while (rows > fewest && rows * row_bytes > SHARED_MOST) rows /= 2;
    return rows * row_bytes <= SHARED_MOST ? rows : 0;
}

static layout layout_of(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    layout l = {.leaves = cb_cu_div_up(m->columns, CB_X_LEAF), .teams = 1};
    while (l.teams < l.leaves && l.teams < TEAMS_MOST) l.teams *= 2;
    l.rows = rows_of(l.teams);
    l.pitch = cb_cu_div_up(m->columns, 4) * 4;
    cb_cu_find_cheap(x);
    for (int k = 0; k < m->n_stream; k++) l.n_tile += x->in_tile[k] >= 0 && !x->is_cheap[k];
    if (l.leaves == 1) find_turned(x, &l);
    int rows = l.n_turned ? rows_that_fit(&l, shared_of(&l, true), TURNED_ROWS) : 0;
    if (rows == 0) {
        l.n_turned = 0;
        rows = rows_that_fit(&l, shared_of(&l, false), l.teams > 1 ? 1 : 2); /* a whole warp */
    }
    x->has_tiles = l.n_tile > 0 && rows > 0;
    if (rows > 0) l.rows = rows;
    for (int k = 0; k < l.n_turned; k++) l.turned[k].tile.rows = l.rows;
    return l;
}

static bool is_acc(cb_x_op op) { return op == CB_X_ACC || op == CB_X_AMAX || op == CB_X_AMIN; }

/* True for sums and extremes over the row. */
static bool is_row_acc(const cb_microcode *m, const cb_micro *micro) {
    if (!is_acc(micro->op) || micro->is_dead) return false;
    const cb_x_acc_kind kind = m->acc_kind[micro->dst];
    return kind == CB_X_ROW_SUM || kind == CB_X_LARGEST;
}

static bool is_take(const cb_micro *micro) { return micro->op == CB_X_TAKE && !micro->is_dead; }

/* True if the operation is a total whose leaves this kernel computes, because no row ends within a
 * leaf. */
static bool is_leaf(const cb_cu_micro *x, const cb_micro *micro) {
    return x->has_leaves && cb_cu_is_total(x->m, micro);
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
        cb_cu_add(c, "const float s%d = __shfl_sync(half_warp(), taken%d, (int)(i%d / 4), %d);\n",
                  id, id, at, TEAM);
    else
        cb_cu_add(c, "const float s%d = i%d >= 0 && i%d < COLUMNS ? taken%d : 0.0f;\n", id, at, at,
                  id);
}

/* Writes the declarations of shared memory for leaves of rows. */
static void declare_parts(const cb_cu_micro *x, const layout *l) {
    const cb_microcode *m = x->m;
    for (int k = 0; k < m->n_micro; k++) {
        if (!is_row_acc(m, &m->micro[k]) || l->leaves == 1) continue;
        cb_cu_add(x->code, "__shared__ %s part%d[%d][%lld];\n",
                  m->micro[k].op == CB_X_ACC ? "float" : "int", m->micro[k].dst, l->rows,
                  (long long)l->leaves);
    }
}

static void declare_shared(void *with) {
    const row_writer *w = with;
    const cb_cu_micro *x = w->x;
    const layout *l = &w->l;
    const cb_microcode *m = x->m;
    cb_cu_code *c = x->code;
    for (int k = 0; x->has_tiles && k < m->n_stream; k++) {
        if (x->in_tile[k] < 0 || x->is_cheap[k]) continue;
        cb_cu_add(c, "__shared__ __align__(16) float tiles%d[%d][%lld];\n", k, l->rows,
                  (long long)l->pitch);
        cb_cu_add(c, "float *const tile%d = tiles%d[slot];\n", k, k);
    }
    for (int k = 0; k < m->n_micro; k++) {
        if (is_take(&m->micro[k])) declare_taken(c, l, m->micro[k].dst);
    }
    declare_parts(x, l);
}

static void for_accs(cb_cu_micro *x, int phase, const char *sum, const char *largest) {
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->phase != phase || !is_row_acc(x->m, micro)) continue;
        cb_cu_template(x->code, micro->op == CB_X_ACC ? sum : largest,
                       CB_CU_HOLES(CB_CU_HOLE(a, micro->dst)));
    }
}

/* Writes the lanes of a leaf of totals or, if `ends`, the sum of a finished leaf. */
static void for_leaves(cb_cu_micro *x, int phase, bool ends) {
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->phase != phase || !is_leaf(x, micro)) continue;
        if (ends)
            cb_cu_add(
                x->code,
                "{ const float sum = fold(a%d);\nif (t == 0) p%d[row * (COLUMNS / %d) + leaf] "
                "= sum; }\n",
                micro->dst, cb_cu_leaves_param(x, micro->dst), CB_X_LEAF);
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
        any |= micro->phase == phase && (is_take(micro) || is_row_acc(x->m, micro));
    }
    if (!any) return;
    if (l->leaves > 1) cb_cu_add(c, l->teams > 2 ? "__syncthreads();\n" : "__syncwarp();\n");
    for (int k = 0; k < x->m->n_micro; k++) {
        const cb_micro *micro = &x->m->micro[k];
        if (micro->phase == phase && is_take(micro)) add_taken(c, l, micro);
        if (micro->phase != phase || !is_row_acc(x->m, micro) || l->leaves == 1) continue;
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
    const char *unrolled = "#pragma unroll 2\n";
    if (l->leaves == 1 && m->columns % CB_X_LANES == 0) {
        cb_cu_add(c, "%sfor (I turn = 0; turn < %lld; turn++) {\n", unrolled,
                  (long long)m->columns / CB_X_LANES);
        cb_cu_add(c, "const I col = turn * %d + t * V;\n", CB_X_LANES);
        return;
    }
    cb_cu_add(c, "const I first = leaf * %d + t * V;\n%s", CB_X_LEAF, unrolled);
    cb_cu_add(c, "for (I col = first; col < COLUMNS && col < first + %d; col += %d) {\n", CB_X_LEAF,
              CB_X_LANES);
}

/* Writes a phase: its reductions, stores and takes, and the numbers that are available after it. */
static void row_phase(cb_cu_micro *x, const layout *l, int phase) {
    cb_cu_code *c = x->code;
    const cb_microcode *m = x->m;
    bool any = false;
    cb_cu_forget(x);
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        const bool ends =
            is_row_acc(m, micro) || is_leaf(x, micro) || cb_cu_is_store(x, micro) || is_take(micro);
        if (micro->phase != phase || !ends) continue;
        cb_cu_need(x, k);
        any = true;
    }
    if (any) {
        for_accs(x, phase, "float r$a = 0;\n", "int r$a = INT32_MIN;\n");
        cb_cu_add(c, "for (I leaf = team; leaf < (I)%lld; leaf += %d) {\n", (long long)l->leaves,
                  l->teams);
        for_accs(x, phase, "float a$a[V] = {};\n", "int k$a = INT32_MIN;\n");
        for_leaves(x, phase, false);
        add_turns(c, m, l);
        cb_cu_add(c, "const I e = row * COLUMNS + col;\nconst int n = %s;\n",
                  x->is_guarded ? "COLUMNS - col < V ? COLUMNS - col : V" : "V");
        cb_cu_body(x);
        cb_cu_add(c, "}\n");
        for_leaves(x, phase, true);
        if (l->leaves == 1) for_accs(x, phase, "r$a = fold(a$a);\n", "r$a = fold_largest(k$a);\n");
        else
            for_accs(x, phase, "r$a = fold(a$a);\nif (t == 0) part$a[slot][leaf] = r$a;\n",
                     "r$a = fold_largest(k$a);\nif (t == 0) part$a[slot][leaf] = r$a;\n");
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

static void row_kernel(cb_cu_micro *x) {
    static const char text[] =
        "const unsigned t = threadIdx.x % $team, team = threadIdx.x / $team % $teams, "
        "slot = threadIdx.x / $row_threads;\n"
        "const I row = blockIdx.x * (I)$rows + slot;\n"
        "$(turned)"
        "if (row >= ROWS) return;\n"
        "$(shared)$(once)$(row_numbers)$(phases)$(stores)";
    row_writer w = {.x = x, .l = layout_of(x)};
    w.threads = TEAM * w.l.teams * w.l.rows;
    cb_cu_begin(x->code);
    cb_cu_head(x, 4);
    cb_cu_template(
        x->code, text,
        CB_CU_HOLES(
            CB_CU_HOLES_OF(x), CB_CU_HOLE(team, TEAM), CB_CU_HOLE(teams, w.l.teams),
            CB_CU_HOLE(rows, w.l.rows), CB_CU_HOLE(row_threads, TEAM * w.l.teams),
            CB_CU_HOLE_PART(turned, fill_turned, &w), CB_CU_HOLE_PART(shared, declare_shared, &w),
            CB_CU_HOLE_PART(phases, add_phases, &w), CB_CU_HOLE_PART(stores, store_numbers, x)));
    memset(x->is_turned, 0, sizeof x->is_turned);
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)cb_cu_div_up(x->m->rows, w.l.rows), 1, 1},
              (uint32_t)w.threads);
}

bool cb_cu_walks_rows(const cb_microcode *m) {
    bool any = m->n_store > 0;
    for (int k = 0; k < m->n_micro; k++)
        any |= is_row_acc(m, &m->micro[k]) || is_take(&m->micro[k]);
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
