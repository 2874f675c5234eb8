/* Data movement: contiguous, concat, pad, tril. Elements are moved as bytes, by their size. Each
 * kernel cuts its longest tensor into tasks of CB_CHUNK elements and copies runs. */
#include "kern_copy.h"

typedef struct move {
    const cb_kernel_args *args;
    const cb_tensor *in, *out;
    cb_walk walk; /* walk over `in` */
    size_t size;
    uint64_t fill;
} move;

static move move_of(const cb_kernel_args *args, const cb_tensor *in, double fill) {
    const cb_tensor *tensors[1] = {in};
    return (move){.args = args,
                  .in = in,
                  .out = &args->out[0],
                  .walk = cb_walk_of(tensors, 1),
                  .size = cb_dtype_size(in->dtype),
                  .fill = cb_element_of(in->dtype, fill)};
}

/* Copies n elements of the input, from its element `from` on, to element `to` of the output. */
static void copy(const move *m, int64_t from, int64_t to, int64_t n) {
    cb_walk_copy(&m->walk, cb_walk_to(&m->walk, from), 0, m->in->data, m->size, cb_at(m->out, to),
                 n);
}

static void fill(const move *m, int64_t to, int64_t n) {
    cb_copy_run(&m->fill, 0, m->size, cb_at(m->out, to), n);
}

/* ---- contiguous ------------------------------------------------------------------------------ */

static void copy_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const move *m = user;
    int64_t at = task * CB_CHUNK;
    copy(m, at, at, min_i64(CB_CHUNK, m->walk.count - at));
}

/* A transposed copy: rows of the output are strided in the input, while another axis `k` is
 * contiguous. Blocks of TURN_EDGE x TURN_EDGE in these axes read whole cache lines and stay in the
 * L1 cache. */
#define TURN_EDGE 32

typedef struct transposed {
    move m;
    int k;          /* the axis along which the input is contiguous; the last axis is the other */
    int64_t across; /* elements of the output from one step of axis k to the next */
    int64_t n_k, n_last; /* blocks along each axis */
} transposed;

#define TURN_BLOCK(type)                                                         \
    for (int64_t i = 0; i < rows; i++) {                                         \
        for (int64_t j = 0; j < columns; j++) {                                  \
            ((type *)to)[i * across + j] = ((const type *)from)[i + j * stride]; \
        }                                                                        \
    }                                                                            \
    break;

static void copy_block(void *user, int64_t task, int thread) {
    (void)thread;
    const transposed *t = user;
    const cb_walk *w = &t->m.walk;
    int last = w->rank - 1;
    int64_t column = task % t->n_last * TURN_EDGE, row = task / t->n_last % t->n_k * TURN_EDGE;
    int64_t rest = task / t->n_last / t->n_k, in = row + column * w->stride[0][last];
    int64_t out = row * t->across + column, step = w->dim[last];
    for (int a = last - 1; a >= 0; a--) { /* the other axes */
        if (a != t->k) {
            in += rest % w->dim[a] * w->stride[0][a];
            out += rest % w->dim[a] * step;
            rest /= w->dim[a];
        }
        step *= w->dim[a];
    }
    int64_t rows = min_i64(TURN_EDGE, w->dim[t->k] - row),
            columns = min_i64(TURN_EDGE, w->dim[last] - column);
    int64_t across = t->across, stride = w->stride[0][last];
    const void *from = cb_at(t->m.in, in);
    void *to = cb_at(t->m.out, out);
    switch (t->m.size) {
        case 1: TURN_BLOCK(uint8_t)
        case 2: TURN_BLOCK(uint16_t)
        case 4: TURN_BLOCK(uint32_t)
        default: TURN_BLOCK(uint64_t)
    }
}

static cb_status run_contiguous(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    transposed t = {.m = move_of(args, &args->in[0], 0), .k = -1, .across = 1};
    const cb_walk *w = &t.m.walk;
    int last = w->rank - 1;
    for (int a = 0; a < last; a++)
        if (w->stride[0][a] == 1 && w->stride[0][last] != 0 && w->dim[a] >= 4) t.k = a;
    if (t.k < 0 || w->count == 0) {
        cb_parallel(args->pool, div_up(w->count, CB_CHUNK), copy_chunk, &t.m);
        return CB_OK;
    }
    for (int a = last; a > t.k; a--) t.across *= w->dim[a];
    t.n_k = div_up(w->dim[t.k], TURN_EDGE);
    t.n_last = div_up(w->dim[last], TURN_EDGE);
    int64_t rest = w->count / w->dim[t.k] / w->dim[last];
    cb_parallel(args->pool, rest * t.n_k * t.n_last, copy_block, &t);
    return CB_OK;
}

/* ---- placing an input in the output ---------------------------------------------------------- */

/* Pairs the input with a view of the output of the same shape. Runs may be single elements. */
typedef struct spread {
    cb_walk walk; /* a walk over the input and the view */
    const void *in;
    void *out;
    size_t size;
} spread;

#define SPREAD_ITEMS(type)                                                  \
    for (int64_t i = 0; i < n; i++) {                                       \
        ((type *)out)[i * to_stride] = ((const type *)in)[i * from_stride]; \
    }                                                                       \
    break;

static void spread_run(const void *in, int64_t from_stride, void *out, int64_t to_stride,
                       size_t size, int64_t n) {
    if (to_stride == 1) {
        cb_copy_run(in, from_stride, size, out, n);
        return;
    }
    switch (size) {
        case 1: SPREAD_ITEMS(uint8_t)
        case 2: SPREAD_ITEMS(uint16_t)
        case 4: SPREAD_ITEMS(uint32_t)
        default: SPREAD_ITEMS(uint64_t)
    }
}

static void spread_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const spread *s = user;
    const cb_walk *w = &s->walk;
    const int last = w->rank - 1;
    int64_t n = min_i64(CB_CHUNK, w->count - task * CB_CHUNK);
    cb_position p = cb_walk_to(w, task * CB_CHUNK);
    while (n > 0) {
        const int64_t run = min_i64(n, cb_walk_left(w, &p));
        spread_run((const char *)s->in + p.offset[0] * (int64_t)s->size, w->stride[0][last],
                   (char *)s->out + p.offset[1] * (int64_t)s->size, w->stride[1][last], s->size,
                   run);
        n -= run;
        if (n > 0) cb_walk_step(w, &p, run);
    }
}

/* Copies the input to its place in the output: `at` elements along the axis, with a step of `every`
 * elements. */
static void put_along(const cb_kernel_args *args, const cb_tensor *in, int64_t axis, int64_t at,
                      int64_t every) {
    const cb_tensor *out = &args->out[0];
    spread s = {.walk = cb_walk_start(2), .in = in->data, .size = cb_dtype_size(in->dtype)};
    int64_t step[CB_MAX_RANK] = {0}, next = 1;
    for (int32_t k = out->shape.rank - 1; k >= 0; k--) {
        step[k] = next;
        next *= out->shape.dim[k];
    }
    s.out = cb_at(out, at * step[axis]);
    for (int32_t k = 0; k < in->shape.rank; k++) {
        const int64_t stride[CB_WALKERS] = {in->stride[k], step[k] * (k == axis ? every : 1)};
        cb_walk_add(&s.walk, in->shape.dim[k], stride);
    }
    cb_walk_finish(&s.walk);
    cb_parallel(args->pool, div_up(s.walk.count, CB_CHUNK), spread_chunk, &s);
}

static cb_status run_concat(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    int64_t axis = args->attrs->i[0], start = 0;
    for (uint32_t i = 0; i < args->n_in; i++) {
        put_along(args, &args->in[i], axis, start, 1);
        start += args->in[i].shape.dim[axis];
    }
    return CB_OK;
}

/* ---- pad ------------------------------------------------------------------------------------- */

/* A row of the output (the axis and those inside it), in elements:
 *
 *     |<-- low -->|<-- body: item, gap, item, gap, item -->|<-- high -->|      item + gap = period
 *
 * Without gaps the body is one item. */
typedef struct pad {
    move m;
    int64_t row, low, body, item, period, in_row;
} pad;

/* Returns the length of the piece of the output at `at`, and its source (-1: the fill). */
static int64_t piece_at(const pad *p, int64_t at, int64_t *from) {
    int64_t column = at % p->row, place = column - p->low;
    *from = -1;
    if (place < 0) return -place;
    if (place >= p->body) return p->row - column;
    int64_t inside = place % p->period;
    if (inside >= p->item) return p->period - inside;
    *from = at / p->row * p->in_row + place / p->period * p->item + inside;
    return p->item - inside;
}

static void pad_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const pad *p = user;
    int64_t at = task * CB_CHUNK, end = min_i64(at + CB_CHUNK, cb_numel(&p->m.out->shape));
    while (at < end) {
        int64_t from, n = min_i64(end - at, piece_at(p, at, &from));
        if (from < 0) fill(&p->m, at, n);
        else copy(&p->m, from, at, n);
        at += n;
    }
}

static void fill_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const pad *p = user;
    const int64_t at = task * CB_CHUNK;
    fill(&p->m, at, min_i64(CB_CHUNK, cb_numel(&p->m.out->shape) - at));
}

#define SHORT_ITEM 16 /* in elements; for shorter items, the whole output is filled first */

static cb_status run_pad(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_attrs *a = args->attrs;
    const cb_shape *in = &args->in[0].shape, *out = &args->out[0].shape;
    int64_t inner = cb_numel_of(in, a->i[0] + 1, in->rank), n = in->dim[a->i[0]];
    bool gaps = a->i[3] > 0 && n > 1;
    pad p = {.m = move_of(args, &args->in[0], a->f[0]),
             .row = out->dim[a->i[0]] * inner,
             .low = a->i[1] * inner,
             .body = (out->dim[a->i[0]] - a->i[1] - a->i[2]) * inner,
             .item = gaps ? inner : n * inner,
             .period = gaps ? (1 + a->i[3]) * inner : n * inner,
             .in_row = n * inner};
    const bool is_short = p.item < SHORT_ITEM && cb_numel(in) > 0;
    cb_parallel(args->pool, div_up(cb_numel(out), CB_CHUNK), is_short ? fill_chunk : pad_chunk, &p);
    if (is_short) put_along(args, &args->in[0], a->i[0], a->i[1], gaps ? 1 + a->i[3] : 1);
    return CB_OK;
}

/* ---- tril ------------------------------------------------------------------------------------ */

typedef struct tril {
    move m;
    int64_t rows, columns, k, rows_in_task; /* rows of one matrix; columns; the diagonal; rows of a
                                               task */
} tril;

static void tril_rows(void *user, int64_t task, int thread) {
    (void)thread;
    const tril *t = user;
    int64_t first = task * t->rows_in_task;
    int64_t end = min_i64(first + t->rows_in_task, t->m.walk.count / t->columns);
    for (int64_t r = first; r < end; r++) {
        int64_t kept = r % t->rows + t->k + 1;
        kept = kept < 0 ? 0 : min_i64(kept, t->columns);
        if (kept > 0) copy(&t->m, r * t->columns, r * t->columns, kept);
        if (kept < t->columns) fill(&t->m, r * t->columns + kept, t->columns - kept);
    }
}

static cb_status run_tril(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_shape *s = &args->in[0].shape;
    tril t = {.m = move_of(args, &args->in[0], args->attrs->f[0]),
              .rows = s->dim[s->rank - 2],
              .columns = s->dim[s->rank - 1],
              .k = args->attrs->i[0]};
    if (t.m.walk.count == 0) return CB_OK;
    t.rows_in_task = div_up(CB_CHUNK, t.columns);
    cb_parallel(args->pool, div_up(t.m.walk.count / t.columns, t.rows_in_task), tril_rows, &t);
    return CB_OK;
}

cb_kernel_fn CB_KERN(move)(cb_opcode code, cb_dtype dtype) {
    (void)dtype;
    switch (code) {
        case CB_OP_CONTIGUOUS: return run_contiguous;
        case CB_OP_CONCAT: return run_concat;
        case CB_OP_PAD: return run_pad;
        case CB_OP_TRIL: return run_tril;
        default: return NULL;
    }
}
