/* The inlinings of an op are sorted by value, and readers of an inlined value come after it. So one
 * pass from the last to the first visits readers before their inputs. */
#include "inlining.h"

#include <math.h>

#include "../../base/sort.h"

#define MOST_BYTES (UINT64_C(1) << 60)
#define MOST_TIME (INT64_C(1) << 43) /* the same limit as for a member of an inside */

static int compare_inlinings(const void *a, const void *b) {
    const cb_inlining *x = a, *y = b;
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

cb_status cb_inlinings_index(cb_problem *p, uint32_t n, cb_error *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (p->inlining[i].op < p->n_op) continue;
        return cb_fail(err, CB_INVALID, "problem: an inlining names op %u, but there are %u ops",
                       p->inlining[i].op, p->n_op);
    }
    if (n == 0) return CB_OK;
    cb_sort(p->inlining, n, sizeof *p->inlining, compare_inlinings);
    for (uint32_t i = 0; i < n; i++) p->inline_begin[p->inlining[i].op + 1]++;
    for (uint32_t op = 0; op < p->n_op; op++) p->inline_begin[op + 1] += p->inline_begin[op];
    return CB_OK;
}

uint32_t cb_find_inlining(const cb_problem *p, uint32_t op, uint32_t value) {
    uint32_t low = p->inline_begin[op], end = p->inline_begin[op + 1], high = end;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->inlining[middle].value < value) low = middle + 1;
        else high = middle;
    }
    return low < end && p->inlining[low].value == value ? low : CB_NONE;
}

uint64_t cb_taken_workspace(const cb_problem *p, uint32_t op, uint64_t taken) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++)
        if (taken >> i & 1) bytes += p->inlining[p->inline_begin[op] + i].workspace;
    return bytes;
}

/* Finds inlinings into `op` of values that `from` reads for these outputs. */
static uint64_t inlined_for(const cb_problem *p, uint32_t op, uint32_t from, uint32_t made) {
    cb_slice slice = cb_slice_of(p, from, made);
    uint64_t found = 0;
    for (uint32_t j = p->in_begin[from]; j < p->in_begin[from + 1]; j++)
        if (cb_slice_reads(slice, j - p->in_begin[from]))
            found |= cb_inlining_bit(p, op, p->in_value[j]);
    return found;
}

uint64_t cb_taken_read(const cb_problem *p, uint32_t op, uint32_t made, uint64_t taken) {
    if (!taken) return 0;
    uint64_t read = taken & inlined_for(p, op, op, made);
    for (uint32_t i = CB_MOST_INLININGS; i-- > 0;) {
        if (!(read >> i & 1)) continue;
        uint32_t value = p->inlining[p->inline_begin[op] + i].value;
        read |= taken & inlined_for(p, op, p->value_op[value], cb_made_value(p, value));
    }
    return read;
}

/* ---- reads ----------------------------------------------------------------------------------- */

cb_reading cb_read_run(const cb_problem *p, uint32_t op, uint32_t made, uint64_t taken) {
    return (cb_reading){.p = p,
                        .op = op,
                        .from = op,
                        .j = p->in_begin[op],
                        .taken = taken,
                        .slice = cb_slice_of(p, op, made)};
}

static bool next_list(cb_reading *r) {
    const cb_problem *p = r->p;
    while (r->at < CB_MOST_INLININGS && !(r->taken >> r->at & 1)) r->at++;
    if (r->at == CB_MOST_INLININGS) return false;
    uint32_t value = p->inlining[p->inline_begin[r->op] + r->at++].value;
    r->from = p->value_op[value];
    r->j = p->in_begin[r->from];
    r->slice = cb_slice_of(p, r->from, cb_made_value(p, value));
    return true;
}

bool cb_read_next(cb_reading *r, uint32_t *value) {
    const cb_problem *p = r->p;
    while (r->j == p->in_begin[r->from + 1]) {
        if (!next_list(r)) return false;
    }
    *value = p->in_value[r->j];
    bool reads = cb_slice_reads(r->slice, r->j - p->in_begin[r->from]);
    if (!reads || (r->taken && (r->taken & cb_inlining_bit(p, r->op, *value)))) *value = CB_NONE;
    r->j++;
    return true;
}

uint32_t cb_count_reads(const cb_problem *p, uint32_t op, uint64_t taken) {
    uint32_t n = p->in_begin[op + 1] - p->in_begin[op];
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
        if (!(taken >> i & 1)) continue;
        uint32_t from = p->value_op[p->inlining[p->inline_begin[op] + i].value];
        n += p->in_begin[from + 1] - p->in_begin[from];
    }
    return n;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Checks that the op can make this value without its other outputs, in memory that holds no other
 * value. */
static cb_status verify_value(const cb_problem *p, const cb_inlining *x, const uint32_t *root,
                              const uint32_t *shared, cb_error *err) {
    uint32_t s = p->value_storage[x->value], from = p->value_op[x->value];
    uint32_t n_out = p->out_begin[from + 1] - p->out_begin[from];
    if (p->op_flags[from] & (CB_POP_ONCE | CB_POP_PLACEHOLDER | CB_POP_VIEW)) {
        return cb_fail(err, CB_INVALID,
                       "inlining of value %u into %s: %s runs once, is a view or a placeholder",
                       x->value, p->op_name[x->op], p->op_name[from]);
    }
    if (n_out != 1 && !cb_has_inside(p, from)) {
        return cb_fail(err, CB_INVALID,
                       "inlining of value %u into %s: %s makes %u outputs in every run", x->value,
                       p->op_name[x->op], p->op_name[from], n_out);
    }
    if ((p->storage_flags[s] & CB_STORE_STATIC) || root[s] != from || shared[s] > 1) {
        return cb_fail(err, CB_INVALID,
                       "inlining of value %u into %s: its memory is the caller's, or holds other "
                       "values",
                       x->value, p->op_name[x->op]);
    }
    return CB_OK;
}

/* Checks that the op, or an op inlined into it, reads the value. */
static cb_status verify_reader(const cb_problem *p, uint32_t at, cb_error *err) {
    const cb_inlining *x = &p->inlining[at];
    bool read = false;
    for (uint32_t j = p->in_begin[x->op]; j < p->in_begin[x->op + 1] && !read; j++)
        read = p->in_value[j] == x->value;
    for (uint32_t i = at + 1; i < p->inline_begin[x->op + 1] && !read; i++) {
        uint32_t from = p->value_op[p->inlining[i].value];
        for (uint32_t j = p->in_begin[from]; j < p->in_begin[from + 1] && !read; j++)
            read = p->in_value[j] == x->value;
    }
    if (read) return CB_OK;
    return cb_fail(
        err, CB_INVALID,
        "inlining of value %u into %s: neither it nor the values inlined into it read the value",
        x->value, p->op_name[x->op]);
}

static cb_status verify_work(const cb_problem *p, const cb_inlining *x, cb_error *err) {
    if (isfinite(x->flops) && x->flops >= 0 && x->bytes <= MOST_BYTES &&
        x->work_class < CB_WORK_CLASS_COUNT && x->time_ps >= -1 && x->time_ps <= MOST_TIME)
        return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "inlining of value %u into %s: its work is out of range (bytes to 2^60, "
                   "picoseconds to 2^43)",
                   x->value, p->op_name[x->op]);
}

static cb_status verify_op(const cb_problem *p, uint32_t op, const uint32_t *root,
                           const uint32_t *shared, cb_error *err) {
    uint32_t begin = p->inline_begin[op], end = p->inline_begin[op + 1];
    if (end - begin > CB_MOST_INLININGS) {
        return cb_fail(err, CB_INVALID, "op %u (%s): %u inlinings; the limit is %d", op,
                       p->op_name[op], end - begin, CB_MOST_INLININGS);
    }
    if (begin < end && (p->op_flags[op] & (CB_POP_PLACEHOLDER | CB_POP_VIEW))) {
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): nothing can be inlined into a view or a placeholder", op,
                       p->op_name[op]);
    }
    for (uint32_t i = begin; i < end; i++) {
        const cb_inlining *x = &p->inlining[i];
        if (x->op != op || x->value >= p->out_begin[op] ||
            (i > begin && x->value <= p->inlining[i - 1].value)) {
            return cb_fail(err, CB_INVALID,
                           "inlining of value %u into op %u (%s): inlinings must be sorted by op, "
                           "then by value, each once, and a value must be made before the op",
                           x->value, op, p->op_name[op]);
        }
        CB_TRY(verify_value(p, x, root, shared, err));
        CB_TRY(verify_work(p, x, err));
    }
    for (uint32_t i = begin; i < end; i++) CB_TRY(verify_reader(p, i, err));
    return CB_OK;
}

cb_status cb_verify_inlinings(const cb_problem *p, const uint32_t *root, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, p->arena.alloc);
    uint32_t *shared = CB_NEW(&scratch, uint32_t, p->n_storage);
    cb_status status = shared ? CB_OK : cb_no_memory(err);
    for (uint32_t v = 0; status == CB_OK && v < p->n_value; v++) shared[p->value_storage[v]]++;
    for (uint32_t op = 0; status == CB_OK && op < p->n_op; op++)
        status = verify_op(p, op, root, shared, err);
    cb_arena_free(&scratch);
    return status;
}
