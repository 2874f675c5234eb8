/* Between steps a table remembers that its rows passed the checks, and which memory a step writes,
 * sorted by address. If a parameter or a state moves, everything is checked again. If only a
 * gradient moves, a bisection checks that it does not overlap written memory. Gradients are only
 * read, so they may overlap each other. */
#include "table.h"

#include <math.h>

#include "../base/sort.h"
#include "extras.h"

/* `array` is 0 for the parameter, 1 + k for state k, and 1 + n_state + AVERAGE, COPY, GRAD or REST
 * for the others. */
typedef cb_written span;

enum {
    AVERAGE,
    COPY,
    GRAD,
    REST,
    N_MORE
}; /* arrays that extras write; REST is that of f16 and
                                               bf16 rows */

struct cb_tensor_table {
    cb_arena arena; /* holds the table itself */
    cb_alloc *alloc;
    cb_threads *const *pool;
    const cb_optimizer *optimizer;
    const cb_optim_products *products;
    uint32_t n_rows;
    uint32_t n_written;
    const double *checked; /* the `hyper` that the next step was checked with; NULL: not checked */
    uint32_t n_checked;    /* number of groups in `checked` */
    bool stale;            /* rows have changed since they were checked */
    bool moved;            /* some gradient must be checked */
    cb_optim_row *row;     /* [n_rows] */
    uint8_t *states;       /* [n_rows] states_of each row when it was checked */
    bool *row_moved;       /* [n_rows] the row's gradient must be checked */
    span *written;         /* [n_rows * (1 + n_state + N_MORE)] */
    void *scratch;         /* scratch of a step */
    size_t n_scratch;
    bool asked;             /* there are extras */
    cb_optim_extras extras; /* `rows` points to `extra` */
    cb_extra_row *extra;    /* [n_rows] */
    cb_optim_outcome outcome;
    void *gradients; /* scratch of cb_gradients_measure */
    size_t n_gradients;
};

cb_status cb_table_new(cb_alloc *alloc, cb_threads *const *pool, const cb_optimizer *o,
                       uint32_t n_rows, cb_tensor_table **out, cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    const size_t n = n_rows;
    cb_tensor_table *x = CB_NEW(&arena, cb_tensor_table, 1);
    cb_optim_row *row = CB_NEW(&arena, cb_optim_row, n);
    uint8_t *states = CB_NEW(&arena, uint8_t, n);
    bool *row_moved = CB_NEW(&arena, bool, n);
    cb_extra_row *extra = CB_NEW(&arena, cb_extra_row, n);
    span *written = CB_NEW(&arena, span, n * (1 + o->n_state + N_MORE));
    if (!x || !row || !states || !row_moved || !extra || !written) {
        cb_arena_free(&arena);
        return cb_no_memory(err);
    }
    if (n) {
        memset(row, 0, n * sizeof *row);
        memset(row_moved, 0, n * sizeof *row_moved);
    }
    *x = (cb_tensor_table){.arena = arena,
                           .alloc = alloc,
                           .pool = pool,
                           .optimizer = o,
                           .n_rows = n_rows,
                           .stale = true,
                           .row = row,
                           .states = states,
                           .row_moved = row_moved,
                           .extra = extra,
                           .written = written};
    *out = x;
    return CB_OK;
}

void cb_table_use(cb_tensor_table *x, const cb_optim_products *products) { x->products = products; }

void cb_tensor_table_free(cb_tensor_table *table) {
    if (!table) return;
    cb_free(table->alloc, table->scratch);
    cb_free(table->alloc, table->gradients);
    cb_arena arena = table->arena; /* a copy, because the table itself is in its arena */
    cb_arena_free(&arena);
}

void cb_tensor_table_set(cb_tensor_table *x, uint32_t i, const cb_optim_row *row) {
    if (i >= x->n_rows) return;
    x->checked = NULL;
    cb_optim_row *old = &x->row[i];
    bool same = old->param == row->param && old->n == row->n && old->dtype == row->dtype &&
                old->group == row->group && old->half == row->half && old->rest == row->rest &&
                old->height == row->height && old->width == row->width;
    for (uint32_t k = 0; k < x->optimizer->n_state; k++) same &= old->state[k] == row->state[k];
    x->stale |= !same;
    if (old->grad != row->grad) {
        x->moved = x->row_moved[i] = true;
        x->stale |= x->asked && x->extras.zeroes;
    }
    *old = *row;
}

/* Spans with equal addresses are ordered by row and array, so that an error always names the same
 * pair. */
static int by_address(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->array < y->array ? -1 : x->array > y->array;
}

static const char *name_of(const cb_tensor_table *x, const span *s) {
    const char *const more[N_MORE] = {"average", "copy", "grad",
                                      cb_optim_rest_name(&x->row[s->row])};
    const uint32_t n_state = x->optimizer->n_state;
    if (s->array > n_state) return more[s->array - 1 - n_state];
    return s->array == 0 ? "param" : x->optimizer->state[s->array - 1];
}

static void add_span(cb_tensor_table *x, uint32_t row, uint32_t array, const void *data,
                     uint64_t bytes) {
    const uintptr_t begin = (uintptr_t)data;
    x->written[x->n_written++] =
        (span){.begin = begin, .end = begin + bytes, .row = row, .array = array};
}

static cb_status add_extra(cb_tensor_table *x, uint32_t row, uint32_t which, const void *data,
                           cb_dtype dtype, cb_error *err) {
    const span named = {.row = row, .array = 1 + x->optimizer->n_state + which};
    if (!data) return CB_OK;
    if ((uintptr_t)data % cb_dtype_size(dtype)) {
        return cb_fail(err, CB_INVALID, "%s: row %u: %s is not aligned to %zu bytes",
                       x->optimizer->name, row, name_of(x, &named), cb_dtype_size(dtype));
    }
    add_span(x, row, named.array, data, (uint64_t)x->row[row].n * cb_dtype_size(dtype));
    return CB_OK;
}

static cb_status add_extras(cb_tensor_table *x, uint32_t i, cb_error *err) {
    const cb_optim_row *row = &x->row[i];
    const cb_extra_row *extra = &x->extra[i];
    CB_TRY(add_extra(x, i, AVERAGE, extra->average, cb_optim_dtype(row), err));
    CB_TRY(add_extra(x, i, COPY, extra->copy, extra->copy_dtype, err));
    return add_extra(x, i, GRAD, x->extras.zeroes ? row->grad : NULL, row->dtype, err);
}

/* Makes *block, which has *n bytes, at least `wanted` bytes large. Its contents are lost. */
static cb_status make_room(cb_tensor_table *x, void **block, size_t *n, size_t wanted,
                           cb_error *err) {
    if (wanted <= *n) return CB_OK;
    void *made = cb_malloc(x->alloc, wanted);
    if (!made) return cb_no_memory(err);
    cb_free(x->alloc, *block);
    *block = made;
    *n = wanted;
    return CB_OK;
}

/* Identifies the states that a row has: a bit mask if states have kinds, else their number. */
static uint8_t states_of(const cb_optimizer *o, const double *hyper, const cb_optim_row *row) {
    const uint32_t n_used = cb_optimizer_n_used(o, hyper);
    uint32_t bits = 0;
    if (!o->kind) return (uint8_t)n_used;
    for (uint32_t k = 0; k < n_used; k++)
        bits |= (uint32_t)(cb_optimizer_state_size(o, k, hyper, row) > 0) << k;
    return (uint8_t)bits;
}

/* Checks every row, and that no two written arrays overlap. */
static cb_status refresh(cb_tensor_table *x, const cb_optim_table *view, cb_error *err) {
    const cb_optimizer *o = x->optimizer;
    x->stale = true;
    x->n_written = 0;
    CB_TRY(cb_optim_check_sizes(o, view, err));
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const cb_optim_row *row = &x->row[i];
        CB_TRY(cb_optim_check_row(o, view, i, err));
        x->row_moved[i] = true;
        const double *hyper = view->hyper + (size_t)row->group * o->n_hyper;
        x->states[i] = states_of(o, hyper, row);
        if (row->n == 0) continue;
        add_span(x, i, 0, row->param, (uint64_t)row->n * cb_dtype_size(row->dtype));
        for (uint32_t k = 0; k < cb_optimizer_n_used(o, hyper); k++) {
            const uint64_t bytes = cb_optim_state_bytes(o, k, hyper, row);
            if (bytes) add_span(x, i, 1 + k, row->state[k], bytes);
        }
        if (cb_optim_rest_size(row))
            add_span(x, i, 1 + o->n_state + REST, row->rest,
                     (uint64_t)row->n * cb_optim_rest_size(row));
        if (x->asked) CB_TRY(add_extras(x, i, err));
    }
    cb_sort(x->written, x->n_written, sizeof *x->written, by_address);
    for (uint32_t s = 1; s < x->n_written; s++) {
        const span *a = &x->written[s - 1], *b = &x->written[s];
        if (a->end <= b->begin) continue;
        const uint32_t grad = 1 + o->n_state + GRAD;
        return cb_fail(err, CB_INVALID,
                       "%s: %s of row %u and %s of row %u share memory; arrays that are written%s "
                       "must not overlap",
                       o->name, name_of(x, a), a->row, name_of(x, b), b->row,
                       a->array == grad || b->array == grad ? ", as are gradients that get zeros,"
                                                            : "");
    }
    const size_t wanted = cb_optim_scratch(o, view->hyper, x->row, x->n_rows);
    CB_TRY(make_room(x, &x->scratch, &x->n_scratch, wanted, err));
    x->stale = false;
    x->moved = true;
    return CB_OK;
}

/* Returns the last span that begins before `end`, or NULL. Spans do not overlap, so no other span
 * that begins before `end` extends further. */
static const span *last_before(const cb_tensor_table *x, uintptr_t end) {
    uint32_t low = 0, high = x->n_written;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (x->written[middle].begin < end) low = middle + 1;
        else high = middle;
    }
    return low ? &x->written[low - 1] : NULL;
}

/* Checks the gradients that have moved, including that they do not overlap written memory. */
static cb_status check_gradients(cb_tensor_table *x, const cb_optim_table *view, cb_error *err) {
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const cb_optim_row *row = &x->row[i];
        if (!x->row_moved[i]) continue;
        if (row->n) {
            CB_TRY(cb_optim_check_row(x->optimizer, view, i, err));
            uintptr_t begin = (uintptr_t)row->grad;
            uintptr_t end = begin + (size_t)row->n * cb_dtype_size(row->dtype);
            const span *s = last_before(x, end);
            if (s && s->end > begin) {
                return cb_fail(err, CB_INVALID, "%s: grad of row %u overlaps %s of row %u",
                               x->optimizer->name, i, name_of(x, s), s->row);
            }
        }
        x->row_moved[i] = false;
    }
    x->moved = false;
    return CB_OK;
}

/* Checks the properties that can change while pointers stay: step numbers, and the states that a
 * group uses. */
static cb_status check_numbers(cb_tensor_table *x, const cb_optim_table *view, cb_error *err) {
    const cb_optimizer *o = x->optimizer;
    for (uint32_t i = 0; i < x->n_rows && !x->stale; i++) {
        const cb_optim_row *row = &x->row[i];
        if (row->group >= view->n_groups || row->t < 1) {
            x->stale = true; /* refresh() reports the error */
        } else {
            const double *hyper = view->hyper + (size_t)row->group * o->n_hyper;
            x->stale = x->states[i] != states_of(o, hyper, row);
        }
    }
    return x->stale ? refresh(x, view, err) : CB_OK;
}

cb_status cb_tensor_table_ask(cb_tensor_table *x, const cb_optim_extras *extras, cb_error *err) {
    static const cb_extra_row none;
    if (extras) CB_TRY(cb_extras_check(x->optimizer, extras, x->n_rows, err));
    const bool zeroed = x->asked && x->extras.zeroes;
    x->checked = NULL;
    x->asked = extras != NULL;
    if (extras) x->extras = *extras;
    x->stale |= zeroed != (extras && extras->zeroes);
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const cb_extra_row *new = extras && extras->rows ? &extras->rows[i] : &none;
        cb_extra_row *old = &x->extra[i];
        x->stale |= new->average != old->average || new->copy != old->copy ||
                    (new->copy && new->copy_dtype != old->copy_dtype);
        *old = *new;
    }
    x->extras.rows = x->extra;
    return CB_OK;
}

cb_optim_outcome cb_tensor_table_outcome(const cb_tensor_table *x) { return x->outcome; }

/* Computes the norm of all gradients before the step, if the extras need it. */
static cb_status measure(cb_tensor_table *x, cb_optim_table *view, cb_error *err) {
    const size_t wanted = cb_gradients_scratch(view, &x->extras);
    CB_TRY(make_room(x, &x->gradients, &x->n_gradients, wanted, err));
    x->outcome = cb_gradients_measure(view, &x->extras, *x->pool, x->gradients);
    return CB_OK;
}

static cb_optim_table view_of(const cb_tensor_table *x, const double *hyper, uint32_t n_groups) {
    return (cb_optim_table){.optimizer = x->optimizer,
                            .rows = x->row,
                            .hyper = hyper,
                            .grad_factor = 1,
                            .n_rows = x->n_rows,
                            .n_groups = n_groups,
                            .n_hyper = x->optimizer->n_hyper};
}

static cb_status check(cb_tensor_table *x, const double *hyper, uint32_t n_groups, cb_error *err) {
    const cb_optim_table view = view_of(x, hyper, n_groups);
    CB_TRY(cb_optimizer_check(x->optimizer, hyper, n_groups, err));
    CB_TRY(check_numbers(x, &view, err));
    const bool zeroes = x->asked && x->extras.zeroes; /* then refresh() has checked gradients */
    if (x->moved && !zeroes) CB_TRY(check_gradients(x, &view, err));
    if (x->optimizer->multiplies && !x->products)
        return cb_fail(err, CB_INTERNAL, "%s: the table has no matrix products",
                       x->optimizer->name);
    return CB_OK;
}

cb_status cb_tensor_table_check(cb_tensor_table *x, const double *hyper, uint32_t n_groups,
                                const cb_written **written, uint32_t *n_written, cb_error *err) {
    x->checked = NULL;
    CB_TRY(check(x, hyper, n_groups, err));
    x->checked = hyper;
    x->n_checked = n_groups;
    *written = x->written;
    *n_written = x->n_written;
    return CB_OK;
}

cb_status cb_tensor_table_step(cb_tensor_table *x, const double *hyper, uint32_t n_groups,
                               cb_error *err) {
    const bool is_checked = x->checked == hyper && x->n_checked == n_groups;
    x->checked = NULL;
    if (!is_checked) CB_TRY(check(x, hyper, n_groups, err));
    cb_optim_table view = view_of(x, hyper, n_groups);
    view.products = x->products;
    view.scratch = x->scratch;
    x->outcome = (cb_optim_outcome){.norm = -1};
    if (x->asked) CB_TRY(measure(x, &view, err));
    if (!x->outcome.skipped) x->optimizer->step(&view, *x->pool);
    else if (x->extras.zeroes) cb_gradients_clear(&view, *x->pool);
    return CB_OK;
}
