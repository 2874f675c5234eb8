/* What a table remembers between steps: that its rows are whole, and the memory that a step writes,
 * sorted by address. A parameter or a state that moves makes all of it stale; a gradient that moves
 * is looked up among what is written, by bisection, since gradients are only read and may share
 * memory with each other. */
#include "table.h"

#include "../base/sort.h"

typedef struct span { /* memory that the step writes */
    uintptr_t begin, end;
    uint32_t row;
    uint32_t array; /* 0: the parameter, 1 + k: state k */
} span;

struct cb_tensor_table {
    cb_arena arena; /* the table lies in it */
    cb_alloc *alloc;
    cb_threads *const *pool;
    const cb_optimizer *optimizer;
    uint32_t n_rows;
    uint32_t n_written;
    bool stale;        /* spans and row checks are not those of the rows as they are */
    bool moved;        /* some gradient is to be looked at */
    cb_optim_row *row; /* [n_rows] */
    uint8_t *n_used;   /* [n_rows] states that a row had when it was checked */
    bool *row_moved;   /* [n_rows] its gradient is to be looked at */
    span *written;     /* [n_rows * (1 + n_state)] */
    void *scratch;     /* of a step */
    size_t n_scratch;
};

cb_status cb_table_new(cb_alloc *alloc, cb_threads *const *pool, const cb_optimizer *o,
                       uint32_t n_rows, cb_tensor_table **out, cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    const size_t n = n_rows;
    cb_tensor_table *x = CB_NEW(&arena, cb_tensor_table, 1);
    cb_optim_row *row = CB_NEW(&arena, cb_optim_row, n);
    uint8_t *n_used = CB_NEW(&arena, uint8_t, n);
    bool *row_moved = CB_NEW(&arena, bool, n);
    span *written = CB_NEW(&arena, span, n * (1 + o->n_state));
    if (!x || !row || !n_used || !row_moved || !written) {
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
                           .n_used = n_used,
                           .row_moved = row_moved,
                           .written = written};
    *out = x;
    return CB_OK;
}

void cb_tensor_table_free(cb_tensor_table *table) {
    if (!table) return;
    cb_free(table->alloc, table->scratch);
    cb_arena arena = table->arena;
    cb_arena_free(&arena);
}

void cb_tensor_table_set(cb_tensor_table *x, uint32_t i, const cb_optim_row *row) {
    if (i >= x->n_rows) return;
    cb_optim_row *old = &x->row[i];
    bool same = old->param == row->param && old->n == row->n && old->dtype == row->dtype &&
                old->group == row->group;
    for (uint32_t k = 0; k < x->optimizer->n_state; k++) same &= old->state[k] == row->state[k];
    x->stale |= !same;
    if (old->grad != row->grad) x->moved = x->row_moved[i] = true;
    *old = *row;
}

static int by_address(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->array < y->array ? -1 : x->array > y->array;
}

static const char *name_of(const cb_tensor_table *x, const span *s) {
    return s->array == 0 ? "param" : x->optimizer->state[s->array - 1];
}

static void add_span(cb_tensor_table *x, uint32_t row, uint32_t array, const void *data,
                     uint64_t bytes) {
    const uintptr_t begin = (uintptr_t)data;
    x->written[x->n_written++] =
        (span){.begin = begin, .end = begin + bytes, .row = row, .array = array};
}

static cb_status make_scratch(cb_tensor_table *x, cb_error *err) {
    const size_t wanted = cb_optim_scratch(x->optimizer, x->row, x->n_rows);
    if (wanted <= x->n_scratch) return CB_OK;
    void *made = cb_malloc(x->alloc, wanted);
    if (!made) return cb_no_memory(err);
    cb_free(x->alloc, x->scratch);
    x->scratch = made;
    x->n_scratch = wanted;
    return CB_OK;
}

/* Checks every row, and that no two share memory that is written. */
static cb_status refresh(cb_tensor_table *x, const cb_optim_table *view, cb_error *err) {
    const cb_optimizer *o = x->optimizer;
    x->stale = true;
    x->n_written = 0;
    CB_TRY(cb_optim_check_sizes(o, view, err));
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const cb_optim_row *row = &x->row[i];
        CB_TRY(cb_optim_check_row(o, view, i, err));
        x->row_moved[i] = true;
        x->n_used[i] =
            (uint8_t)cb_optimizer_n_used(o, view->hyper + (size_t)row->group * o->n_hyper);
        if (row->n == 0) continue;
        add_span(x, i, 0, row->param, (uint64_t)row->n * cb_dtype_size(row->dtype));
        for (uint32_t k = 0; k < x->n_used[i]; k++)
            add_span(x, i, 1 + k, row->state[k], cb_optim_state_bytes(o, k, row));
    }
    cb_sort(x->written, x->n_written, sizeof *x->written, by_address);
    for (uint32_t s = 1; s < x->n_written; s++) {
        const span *a = &x->written[s - 1], *b = &x->written[s];
        if (a->end <= b->begin) continue;
        return cb_fail(err, CB_INVALID,
                       "%s: %s of row %u and %s of row %u share memory; what is written needs "
                       "memory of its own",
                       o->name, name_of(x, a), a->row, name_of(x, b), b->row);
    }
    CB_TRY(make_scratch(x, err));
    x->stale = false;
    x->moved = true;
    return CB_OK;
}

/* The last span that begins before `end`, which is the one that reaches furthest of those: spans do
 * not overlap. NULL: there is none. */
static const span *last_before(const cb_tensor_table *x, uintptr_t end) {
    uint32_t low = 0, high = x->n_written;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (x->written[middle].begin < end) low = middle + 1;
        else high = middle;
    }
    return low ? &x->written[low - 1] : NULL;
}

/* Gradients that have moved: there, aligned, and in no memory that is written. */
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
                return cb_fail(err, CB_INVALID,
                               "%s: grad of row %u lies in the memory of %s of row %u",
                               x->optimizer->name, i, name_of(x, s), s->row);
            }
        }
        x->row_moved[i] = false;
    }
    x->moved = false;
    return CB_OK;
}

/* What changes without a pointer: the number of a step, and a group that has other states now. */
static cb_status check_numbers(cb_tensor_table *x, const cb_optim_table *view, cb_error *err) {
    const cb_optimizer *o = x->optimizer;
    for (uint32_t i = 0; i < x->n_rows && !x->stale; i++) {
        const cb_optim_row *row = &x->row[i];
        if (row->group >= view->n_groups || row->t < 1) {
            x->stale = true; /* which says what is wrong */
        } else {
            x->stale = x->n_used[i] !=
                       cb_optimizer_n_used(o, view->hyper + (size_t)row->group * o->n_hyper);
        }
    }
    return x->stale ? refresh(x, view, err) : CB_OK;
}

cb_status cb_tensor_table_step(cb_tensor_table *x, const double *hyper, uint32_t n_groups,
                               cb_error *err) {
    cb_optim_table view = {.optimizer = x->optimizer,
                           .rows = x->row,
                           .hyper = hyper,
                           .n_rows = x->n_rows,
                           .n_groups = n_groups,
                           .n_hyper = x->optimizer->n_hyper};
    CB_TRY(cb_optimizer_check(x->optimizer, hyper, n_groups, err));
    CB_TRY(check_numbers(x, &view, err));
    if (x->moved) CB_TRY(check_gradients(x, &view, err));
    view.scratch = x->scratch;
    x->optimizer->step(&view, *x->pool);
    return CB_OK;
}
