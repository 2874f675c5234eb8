/* Runs one step of an expression. One thread computes everything for a row of at most CB_X_CHUNK
 * elements: sums, numbers and new values. Longer rows are cut into pieces of CB_X_CHUNK elements,
 * and take one pass for each level of sums before the pass that updates. The sums of pieces are
 * combined in order, so bits do not depend on threads. */
#include "step.h"

#include <math.h>

#include "../../../optim/extras.h"
#include "../../../optim/split.h"

#define EXPECTED_BYTES 512 /* bytes to prefetch of each array of the next row */

typedef struct scratch {
    int64_t *first_piece; /* [n_rows] */
    double *total;        /* [n_rows][CB_R_ACCS]: sums of the previous phase */
    double *piece;        /* [pieces][CB_R_ACCS] */
} scratch;

typedef struct region {
    cb_split split;
    const cb_expression *x;
    const cb_e_phase *phase; /* [n_phase] */
    const cb_extra_fns *extras;
    int level; /* the current phase of long rows */
    scratch s;
} region;

typedef struct worker { /* the state of a task */
    cb_x_context c;
    double value[CB_E_NODES + 1]; /* values of nodes that are numbers */
    const cb_optim_row *known;    /* the row whose group and step these numbers belong to */
} worker;

#define NUMBER_OP(id, name, n_in, op, expression) \
    case CB_E_##id: return expression;

static double number_of(const cb_e_node *node, const double *value) {
    const double x = node->n_in > 0 ? value[node->in[0]] : 0;
    const double y = node->n_in > 1 ? value[node->in[1]] : 0;
    const double z = node->n_in > 2 ? value[node->in[2]] : 0;
    switch ((int)node->op) {
        CB_E_OPS(NUMBER_OP)
        default: return node->value;
    }
}

/* ---- numbers of a row ------------------------------------------------------------------------ */

static void compute_numbers(const cb_expression *x, const cb_optim_table *table,
                            const cb_optim_row *row, int level, double *value) {
    const double *hyper = table->hyper + (size_t)row->group * table->n_hyper;
    for (int k = 0; k < x->n_number; k++) {
        const uint16_t at = x->number[k];
        const cb_e_node *n = &x->node[at];
        if (n->level != level || n->op == CB_E_SUM) continue;
        switch ((int)n->op) {
            case CB_E_HYPER: value[at] = hyper[n->in[0]]; break;
            case CB_E_T: value[at] = (double)row->t; break;
            case CB_E_SIZE: value[at] = (double)row->n; break;
            default: value[at] = number_of(n, value);
        }
    }
}

static void give_numbers(const cb_e_phase *phase, worker *w) {
    for (int k = 0; k < phase->n_give; k++)
        w->c.s[phase->give[k].slot] = (float)w->value[phase->give[k].node];
}

/* ---- phases ---------------------------------------------------------------------------------- */

static void point_to(const cb_e_phase *phase, const cb_optim_row *row, cb_x_context *c) {
    char *array[CB_E_ARRAYS] = {row->param, (char *)(uintptr_t)row->grad};
    for (int k = 0; k < CB_MAX_STATES; k++) array[2 + k] = row->state[k];
    for (int k = 0; k < phase->n_stream; k++) c->p[k] = array[phase->array[k]];
}

/* Prefetches the beginning of the next row, which no record has prefetched yet. */
static void expect_row(const cb_e_phase *phase, const cb_optim_table *table, uint32_t at) {
    if (at >= table->n_rows) return;
    const cb_optim_row *row = &table->rows[at];
    const char *array[CB_E_ARRAYS] = {row->param, row->grad};
    for (int k = 0; k < CB_MAX_STATES; k++) array[2 + k] = row->state[k];
    int64_t bytes = row->n * (int64_t)sizeof(float);
    if (bytes > EXPECTED_BYTES) bytes = EXPECTED_BYTES;
    for (int k = 0; k < phase->code.n_touched; k++) {
        const cb_x_touched *t = &phase->code.touched[k];
        for (int64_t b = 0; b < bytes && t->is_read; b += 64)
            __builtin_prefetch(array[phase->array[t->stream]] + b);
    }
}

/* Computes new values of elements first..last, and runs the extras of a step. */
static void update(const region *r, worker *w, const cb_e_phase *phase, uint32_t row, int64_t first,
                   int64_t last) {
    const cb_optim_table *table = r->split.table;
    if (!table->extras) {
        cb_x_phase_run_over(r->x->table, &w->c, &phase->code, first, last);
        return;
    }
    for (int64_t at = first; at < last; at += CB_EXTRAS_BLOCK) {
        const int64_t end = last - at < CB_EXTRAS_BLOCK ? last : at + CB_EXTRAS_BLOCK;
        cb_x_phase_run_over(r->x->table, &w->c, &phase->code, at, end);
        cb_extras_of(r->extras, table, row, &table->rows[row], at, end - at);
    }
}

/* Writes the sums of elements first..last to the numbers of the row, or to `out`. */
static void run_sums(const cb_expression *x, const cb_e_phase *phase, worker *w, int64_t first,
                     int64_t last, double *out) {
    cb_x_phase_run(x->table, &w->c, &phase->code, first, last, false);
    for (int k = 0; k < phase->n_sum; k++)
        out[k] = (double)cb_x_sum_of(&w->c.sum[phase->sum[k].acc]);
}

static void take_sums(const cb_e_phase *phase, const double *sum, worker *w) {
    for (int k = 0; k < phase->n_sum; k++) w->value[phase->sum[k].node] = sum[k];
}

/* Runs a row that is not cut: every phase, one after another. */
static void run_row(const region *r, worker *w, uint32_t at) {
    const cb_optim_row *row = &r->split.table->rows[at];
    const cb_expression *x = r->x;
    for (int level = 0; level < x->n_phase; level++) {
        const cb_e_phase *phase = &r->phase[level];
        compute_numbers(x, r->split.table, row, level, w->value);
        give_numbers(phase, w);
        point_to(phase, row, &w->c);
        if (level + 1 == x->n_phase) {
            update(r, w, phase, at, 0, row->n);
            continue;
        }
        double sum[CB_R_ACCS];
        run_sums(x, phase, w, 0, row->n, sum);
        take_sums(phase, sum, w);
    }
}

/* ---- rows that are cut ----------------------------------------------------------------------- */

static bool is_long(const cb_optim_row *row) { return row->n > CB_X_CHUNK; }

static int64_t pieces_of(int64_t n) { return (n + CB_X_CHUNK - 1) / CB_X_CHUNK; }

/* Computes the numbers of a long row up to this level, from the sums of earlier phases. */
static void recall_numbers(const region *r, worker *w, uint32_t at) {
    const cb_optim_row *row = &r->split.table->rows[at];
    const cb_expression *x = r->x;
    compute_numbers(x, r->split.table, row, 0, w->value);
    for (int level = 1; level <= r->level; level++) {
        const double *total = r->s.total + ((size_t)at * CB_E_PHASES + (size_t)level) * CB_R_ACCS;
        take_sums(&r->phase[level - 1], total, w);
        compute_numbers(x, r->split.table, row, level, w->value);
    }
    give_numbers(&r->phase[r->level], w);
}

static void run_part(const region *r, worker *w, const cb_stretch *part) {
    const cb_optim_row *row = &r->split.table->rows[part->row];
    const cb_e_phase *phase = &r->phase[r->level];
    const int64_t last = part->from + part->n;
    recall_numbers(r, w, part->row);
    point_to(phase, row, &w->c);
    if (r->level + 1 == r->x->n_phase) {
        update(r, w, phase, part->row, part->from, last);
        return;
    }
    for (int64_t at = part->from; at < last; at += CB_X_CHUNK) {
        const int64_t end = at + CB_X_CHUNK < last ? at + CB_X_CHUNK : last;
        const int64_t piece = r->s.first_piece[part->row] + at / CB_X_CHUNK;
        run_sums(r->x, phase, w, at, end, r->s.piece + piece * CB_R_ACCS);
    }
}

/* Combines pieces to sums, row by row. */
static void add_pieces(const region *r) {
    const cb_e_phase *phase = &r->phase[r->level];
    for (uint32_t i = 0; i < r->split.table->n_rows; i++) {
        const cb_optim_row *row = &r->split.table->rows[i];
        if (!is_long(row)) continue;
        double *total = r->s.total + ((size_t)i * CB_E_PHASES + (size_t)r->level + 1) * CB_R_ACCS;
        const double *piece = r->s.piece + r->s.first_piece[i] * CB_R_ACCS;
        for (int k = 0; k < phase->n_sum; k++) {
            total[k] = 0;
            for (int64_t p = 0; p < pieces_of(row->n); p++) total[k] += piece[p * CB_R_ACCS + k];
        }
    }
}

size_t cb_e_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                    uint32_t n_rows) {
    const cb_expression *x = (const cb_expression *)(const void *)o;
    (void)hyper;
    size_t pieces = 0;
    for (uint32_t i = 0; i < n_rows && x->n_phase > 1; i++)
        if (is_long(&rows[i])) pieces += (size_t)pieces_of(rows[i].n);
    if (pieces == 0) return 0;
    return n_rows * sizeof(int64_t) +
           ((size_t)n_rows * CB_E_PHASES + pieces) * CB_R_ACCS * sizeof(double);
}

static void lay_out(scratch *s, const cb_optim_table *table) {
    s->first_piece = table->scratch;
    s->total = (double *)(void *)(s->first_piece + table->n_rows);
    s->piece = s->total + (size_t)table->n_rows * CB_E_PHASES * CB_R_ACCS;
    int64_t pieces = 0;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        s->first_piece[i] = pieces;
        if (is_long(&table->rows[i])) pieces += pieces_of(table->rows[i].n);
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void start(const region *r, worker *w) {
    w->known = NULL;
    w->value[r->x->n_node] = r->split.table->grad_factor;
    w->c.n_mask = 0;
    w->c.leaf = 0;
    memset(w->c.acc, 0, sizeof w->c.acc);
    for (int k = 0; k < CB_R_ACCS; k++) w->c.sum[k].count = 0, w->c.sum[k].leaves = NULL;
}

/* Steps a part of a row of an expression without sums. Parts are independent, and rows of one group
 * and step have the same numbers. */
static void run_plain(const region *r, worker *w, const cb_stretch *part) {
    const cb_expression *x = r->x;
    const cb_optim_row *row = &r->split.table->rows[part->row];
    const cb_optim_row *known = w->known;
    if (!known || known->group != row->group || known->t != row->t ||
        (x->reads_size && known->n != row->n)) {
        compute_numbers(x, r->split.table, row, 0, w->value);
        give_numbers(&r->phase[0], w);
        w->known = row;
    }
    point_to(&r->phase[0], row, &w->c);
    expect_row(&r->phase[0], r->split.table, part->row + 1);
    update(r, w, &r->phase[0], part->row, part->from, part->from + part->n);
}

static void run_task(void *user, int64_t task, int thread) {
    const region *r = user;
    cb_stretches parts = cb_stretches_of(&r->split, task);
    worker w;
    (void)thread;
    start(r, &w);
    for (cb_stretch part; cb_next_stretch(&parts, &part);) {
        const cb_optim_row *row = &r->split.table->rows[part.row];
        if (r->x->n_phase == 1) run_plain(r, &w, &part);
        else if (is_long(row)) run_part(r, &w, &part);
        else if (r->level == 0) run_row(r, &w, part.row);
    }
}

void cb_e_step(const cb_optim_table *table, cb_threads *pool) {
    const cb_expression *x = (const cb_expression *)(const void *)table->optimizer;
    const int64_t grain = x->n_phase == 1 ? CB_X_LANES : CB_X_CHUNK;
    region r = {.split = cb_split_of(table, pool, grain),
                .x = x,
                .phase = x->phase[table->grad_factor != 1],
                .extras = cb_extras_functions()};
    const bool has_long =
        cb_e_scratch(table->optimizer, table->hyper, table->rows, table->n_rows) > 0;
    if (has_long) lay_out(&r.s, table);
    const int n_region = has_long ? x->n_phase : 1;
    for (r.level = 0; r.level < n_region; r.level++) {
        cb_parallel(pool, r.split.n_tasks, run_task, &r);
        if (r.level + 1 < n_region) add_pieces(&r);
    }
}
