/* Matrices are stepped one at a time. Each pass and each product is divided over all threads by
 * shape only. m is stored in the original basis, so it need not be rotated when a basis changes. v
 * is stored in the rotated basis, so its rows and columns are reordered when the basis vectors are.
 *
 * Scratch holds four arrays of the size of the matrix (the gradient, two rotated arrays, and the
 * result between two products), and the scratch of the bases. */
#include "soap.h"

#include <math.h>
#include <string.h>

#include "extras.h"
#include "spectral.h"

#define CB_PIECE ((int64_t)1 << 14)
enum { M, V, LEFT, RIGHT };

#define CB_IMPL "soap_impl.h"
#include "both_reals.h"

typedef struct side { /* a side of the matrix; n is 0 if the side has no basis */
    int64_t n;
    char *mean, *basis; /* [n][n] */
    bool is_right;
} side;

typedef struct job {
    const cb_optim_table *table;
    cb_threads *pool;
    const cb_optim_row *row;
    uint32_t at_row;
    cb_soap o;
    cb_dtype dtype;
    size_t size;
    int64_t height, width;
    side side[2];
    char *gradient, *a, *b, *between; /* [height][width] */
    char *product, *moved;            /* [n][n] matrices of the longer side */
    char *work;                       /* scratch of the bases */
    const void *first;                /* operands of divide_task and apply_task */
    const void *second;
    void *to;
    const side *of; /* the side whose mean mix_task moves */
} job;

typedef struct layout { /* bytes */
    size_t matrix, square, work;
} layout;

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static layout layout_of(const cb_optim_row *row, int64_t left, int64_t right) {
    const size_t size = cb_dtype_size(row->dtype), n = (size_t)(left > right ? left : right);
    const size_t eigen = cb_eigenvectors_scratch((int64_t)n);
    return (layout){.matrix = whole_lines((size_t)row->n * size),
                    .square = whole_lines(n * n * size),
                    .work = whole_lines(larger(eigen * sizeof(double),
                                               cb_orthonormal_scratch((int64_t)n) * size +
                                                   n * (sizeof(double) + sizeof(int64_t))))};
}

/* Returns the length of a side if it has a basis, otherwise 0. */
static int64_t side_of(const cb_optimizer *o, uint32_t state, const double *hyper,
                       const cb_optim_row *row) {
    if (cb_optimizer_state_size(o, state, hyper, row) == 0) return 0;
    return state == LEFT ? row->height : row->width;
}

size_t cb_soap_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                       uint32_t n_rows) {
    size_t wanted = 64;
    for (uint32_t i = 0; i < n_rows; i++) {
        const double *numbers = hyper + (size_t)rows[i].group * o->n_hyper;
        if (rows[i].n == 0) continue;
        const layout l = layout_of(&rows[i], side_of(o, LEFT, numbers, &rows[i]),
                                   side_of(o, RIGHT, numbers, &rows[i]));
        wanted = larger(wanted, 4 * l.matrix + 2 * l.square + l.work);
    }
    return wanted;
}

/* ---- passes over elements -------------------------------------------------------------------- */

static int64_t piece_at(int64_t task, int64_t n, int64_t *at) {
    *at = task * CB_PIECE;
    return n - *at < CB_PIECE ? n - *at : CB_PIECE;
}

static void begin_task(void *user, int64_t task, int thread) {
    const job *j = user;
    int64_t at, n = piece_at(task, j->row->n, &at);
    (void)thread;
    CB_OF_TYPE(j->dtype, begin, &j->o, j->row, j->table->grad_factor, at, n, j->gradient);
}

static void divide_task(void *user, int64_t task, int thread) {
    const job *j = user;
    int64_t at, n = piece_at(task, j->row->n, &at);
    (void)thread;
    CB_OF_TYPE(j->dtype, divide, &j->o, j->row, at, n, j->first, j->second, j->to);
}

/* The first step applies no update, but does the extras. */
static void apply_task(void *user, int64_t task, int thread) {
    const job *j = user;
    int64_t at, n = piece_at(task, j->row->n, &at);
    (void)thread;
    if (j->row->t > 1) CB_OF_TYPE(j->dtype, apply, &j->o, j->row, at, n, j->first);
    if (j->table->extras) cb_extras_of(cb_extras_functions(), j->table, j->at_row, j->row, at, n);
}

static void mix_task(void *user, int64_t task, int thread) {
    const job *j = user;
    int64_t at, n = piece_at(task, j->of->n * j->of->n, &at);
    (void)thread;
    CB_OF_TYPE(j->dtype, mix, j->o.beta, j->of->mean, j->product, at, n);
}

static void over(job *j, int64_t n, cb_task_fn task) {
    cb_parallel(j->pool, (n + CB_PIECE - 1) / CB_PIECE, task, j);
}

/* ---- bases ----------------------------------------------------------------------------------- */

static void multiply(const job *j, const cb_optim_product *product) {
    j->table->products->multiply(j->table->products, j->pool, product);
}

/* Rotates x into the bases, or back, and writes the result to `to`. Returns false and does nothing
 * if neither side has a basis. */
static bool turn(const job *j, const void *x, void *to, bool back) {
    const int64_t h = j->height, w = j->width;
    const side *left = &j->side[0], *right = &j->side[1];
    void *first = right->n ? j->between : to;
    const cb_optim_product along_left = {left->basis, x, first, 1, h, h, w, j->dtype, back, false};
    const cb_optim_product along_right = {
        left->n ? first : x, right->basis, to, 1, h, w, w, j->dtype, false, !back};
    if (left->n) multiply(j, &along_left);
    if (right->n) multiply(j, &along_right);
    return left->n || right->n;
}

static void move_mean(job *j, const side *s) {
    const int64_t h = j->height, w = j->width;
    const cb_optim_product left = {j->gradient, j->gradient, j->product, 1,     h,
                                   w,           h,           j->dtype,   false, true};
    const cb_optim_product right = {j->gradient, j->gradient, j->product, 1,    w,
                                    h,           w,           j->dtype,   true, false};
    if (s->n == 0) return;
    multiply(j, s->is_right ? &right : &left);
    j->of = s;
    over(j, s->n * s->n, mix_task);
}

static void begin_basis(const job *j, const side *s) {
    double *work = (double *)(void *)j->work;
    if (s->n) cb_eigenvectors(j->pool, j->dtype, s->n, s->mean, s->basis, work);
}

/* Reorders the rows, or columns, of v like the basis. */
static void reorder(const job *j, const side *s, const int64_t *order) {
    const char *v = memcpy(j->a, j->row->state[V], (size_t)j->row->n * j->size);
    char *to = j->row->state[V];
    const size_t line = (size_t)j->width * j->size;
    for (int64_t i = 0; i < j->height; i++) {
        if (!s->is_right) {
            memcpy(to + (size_t)i * line, v + (size_t)order[i] * line, line);
            continue;
        }
        for (int64_t k = 0; k < j->width; k++)
            memcpy(to + (size_t)i * line + (size_t)k * j->size,
                   v + (size_t)i * line + (size_t)order[k] * j->size, j->size);
    }
}

/* Makes one step of power iteration. Vectors are sorted by their Rayleigh quotients, which serve as
 * estimates of the eigenvalues. A NaN estimate does not move. */
static void refresh(const job *j, const side *s) {
    const size_t line = (size_t)s->n * j->size;
    const cb_optim_product power = {s->basis, s->mean, j->product, 1,     s->n,
                                    s->n,     s->n,    j->dtype,   false, false};
    double *value = (double *)(void *)j->work;
    int64_t *order = (int64_t *)(void *)(value + s->n);
    bool is_sorted = true;
    if (s->n == 0) return;
    multiply(j, &power);
    for (int64_t i = 0; i < s->n; i++) {
        const size_t at = (size_t)i * line;
        value[i] = CB_OF_TYPE(j->dtype, share, s->basis + at, j->product + at, s->n);
        int64_t k = i;
        for (; k > 0 && value[order[k - 1]] < value[i]; k--) order[k] = order[k - 1];
        order[k] = i;
        is_sorted &= k == i;
    }
    for (int64_t i = 0; i < s->n; i++)
        memcpy(j->moved + (size_t)i * line, j->product + (size_t)order[i] * line, line);
    if (!is_sorted) reorder(j, s, order);
    cb_orthonormal_rows(j->table->products, j->pool, j->dtype, s->n, j->moved, s->basis,
                        order + s->n);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void step_row(job *j) {
    const int64_t n = j->row->n;
    over(j, n, begin_task);
    if (j->row->t > 1) {
        j->first = turn(j, j->gradient, j->a, false) ? j->a : j->gradient;
        j->second = turn(j, j->row->state[M], j->b, false) ? j->b : j->row->state[M];
        j->to = j->b;
        over(j, n, divide_task);
        j->first = turn(j, j->b, j->a, true) ? j->a : j->b;
    }
    over(j, n, apply_task);
    for (int k = 0; k < 2; k++) move_mean(j, &j->side[k]);
    for (int k = 0; k < 2; k++) {
        if (j->row->t == 1) begin_basis(j, &j->side[k]);
        else if (j->o.refreshes) refresh(j, &j->side[k]);
    }
}

static side side_in(const cb_optim_table *table, const cb_optim_row *row, uint32_t state) {
    const double *hyper = table->hyper + (size_t)row->group * table->n_hyper;
    side s = {.n = side_of(table->optimizer, state, hyper, row), .is_right = state == RIGHT};
    if (s.n == 0) return s;
    s.mean = row->state[state];
    s.basis = s.mean + (size_t)(s.n * s.n) * cb_dtype_size(row->dtype);
    return s;
}

void cb_step_soap(const cb_optim_table *table, cb_threads *pool, cb_soap_fn of) {
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *row = &table->rows[i];
        if (row->n == 0) continue;
        job j = {.table = table,
                 .pool = pool,
                 .row = row,
                 .at_row = i,
                 .o = of(table->hyper + (size_t)row->group * table->n_hyper, row),
                 .dtype = row->dtype,
                 .size = cb_dtype_size(row->dtype),
                 .height = row->height,
                 .width = row->width,
                 .side = {side_in(table, row, LEFT), side_in(table, row, RIGHT)}};
        const layout l = layout_of(row, j.side[0].n, j.side[1].n);
        j.gradient = table->scratch;
        j.a = j.gradient + l.matrix;
        j.b = j.a + l.matrix;
        j.between = j.b + l.matrix;
        j.product = j.between + l.matrix;
        j.moved = j.product + l.square;
        j.work = j.moved + l.square;
        step_row(&j);
    }
}
