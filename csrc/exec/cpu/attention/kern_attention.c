/* Attention in tiles that fit a cache, and its gradient. The only statistic kept for a query is the
 * log-sum-exp of its scores (Dao, "FlashAttention-2", 2023).
 *
 * A tile holds scores, with a line for each key and a column for each query. The maximum and the
 * sum of a query's scores are therefore computed lane by lane, in the order of the keys. Products
 * use fused multiply-adds (gemm_fma.h): each tile is summed from zero and then added. So bits
 * depend on shapes only, not on the instruction set or on which thread works on which tile.
 *
 * The forward has one unit of work for each block of queries. The backward has one for each head of
 * k and v if that keeps all threads busy; it then computes all gradients in one pass over tiles.
 * Otherwise it makes two passes: over blocks of queries for dq, then over blocks of keys for dk and
 * dv. The sums are the same either way. */
#include <stdatomic.h>

#include "../../../base/ints.h"
#include "../../../base/kern_half.h"
#include "../../../base/kern_random.h"
#include "../../../micro/vecmath.h"
#include "../../attention_tiles.h"
#include "../gemm/gemm_own.h"
#include "../kern.h"

#define CHUNK 12 /* queries or keys that the diagonal cuts off together, on every instruction set */
#define TILE_VECTOR 16    /* lines are multiples of this many elements */
#define ONE_PASS_IDLE 1.4 /* time of two passes divided by that of one */

typedef struct attention {
    const cb_kernel_args *args;
    cb_attention_tiles t;
    const cb_tensor *q, *k, *v, *g, *y, *lse, *mask; /* mask is NULL if there is none */
    cb_dtype dtype;
    bool is_causal, drops;
    char *slots;
    int64_t units;
    atomic_int_fast64_t next; /* next unit of work */
} attention;

/* Returns the offset, in elements, of row `row` of head `item`. */
static int64_t row_offset(const cb_tensor *t, int64_t item, int64_t row) {
    const int32_t r = t->shape.rank;
    int64_t offset = row * t->stride[r - 2];
    for (int32_t k = r - 3; k >= 0; k--) {
        offset += item % t->shape.dim[k] * t->stride[k];
        item /= t->shape.dim[k];
    }
    return offset;
}

static int64_t kv_item(const attention *a, int64_t item) {
    return item / a->t.heads * a->t.kv_heads + item % a->t.heads / (a->t.heads / a->t.kv_heads);
}

static const void *row_at(const cb_tensor *t, int64_t item, int64_t row) {
    return (const char *)t->data + row_offset(t, item, row) * (int64_t)cb_dtype_size(t->dtype);
}

/* Returns the offset, in elements, of the log-sum-exp of a row. */
static int64_t lse_offset(const cb_tensor *t, int64_t item, int64_t row) {
    int64_t offset = row * t->stride[t->shape.rank - 1];
    for (int32_t k = t->shape.rank - 2; k >= 0; k--) {
        offset += item % t->shape.dim[k] * t->stride[k];
        item /= t->shape.dim[k];
    }
    return offset;
}

/* Returns the number of keys of the block at j0 that at least one of the n queries at i0 sees. */
static int64_t keys_seen(const attention *a, int64_t i0, int64_t n, int64_t j0) {
    const int64_t keys = min_i64(a->t.keys, a->t.s - j0);
    return a->is_causal ? max_i64(min_i64(keys, i0 + n - j0), 0) : keys;
}

/* Returns how many columns of a tile's lines are used for the block of queries at i0. */
static int64_t used_columns(const attention *a, int64_t i0) {
    return div_up(min_i64(a->t.queries, a->t.l - i0), TILE_VECTOR) * TILE_VECTOR;
}

#define REAL_BITS 32
#include "attention_rows.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "attention_rows.h"
#undef REAL_BITS

static attention attention_of(const cb_kernel_args *args, uint32_t q, uint32_t mask) {
    attention a = {.args = args,
                   .q = &args->in[q],
                   .k = &args->in[q + 1],
                   .v = &args->in[q + 2],
                   .mask = args->n_in > mask ? &args->in[mask] : NULL,
                   .dtype = args->in[q].dtype,
                   .is_causal = args->attrs->i[1] != 0,
                   .drops = args->attrs->f[1] > 0};
    a.t = cb_attention_tiles_of(args->code, &a.q->shape, &a.v->shape, a.dtype, a.mask != NULL,
                                a.drops);
    a.slots = (char *)args->scratch + a.t.shared_bytes;
    return a;
}

static cb_status check_scratch(const attention *a, cb_error *err) {
    if (a->args->scratch_bytes >= a->t.bytes) return CB_OK;
    return cb_fail(err, CB_INTERNAL, "%s: scratch is too small", cb_op_def_of(a->args->code)->name);
}

/* Runs all units of work: each slot takes the next one until all are done. */
static void run_units(attention *a, int64_t units, cb_task_fn slot) {
    a->units = units;
    atomic_store(&a->next, 0);
    cb_parallel(a->args->pool, min_i64(a->t.slots, units), slot, a);
}

#define DEFINE_SLOT(name)                                                        \
    static void run_##name(void *user, int64_t slot, int thread) {               \
        attention *a = user;                                                     \
        (void)thread;                                                            \
        for (int64_t unit; (unit = atomic_fetch_add(&a->next, 1)) < a->units;) { \
            if (a->dtype == CB_F64) name##_f64(a, unit, slot);                   \
            else name##_f32(a, unit, slot);                                      \
        }                                                                        \
    }

DEFINE_SLOT(attend)
DEFINE_SLOT(backward_head)
DEFINE_SLOT(backward_queries)
DEFINE_SLOT(backward_keys)

static cb_status forward(const cb_kernel_args *args, cb_error *err) {
    attention a = attention_of(args, 0, 3);
    CB_TRY(check_scratch(&a, err));
    run_units(&a, a.t.items * div_up(a.t.l, a.t.queries), run_attend);
    return CB_OK;
}

/* Returns true if one pass, with a thread for each head of k and v, is faster than two. 16-bit
 * gradients always take two: there is scratch to sum one block of them in f32, not a whole head. */
static bool is_one_pass(const attention *a) {
    const int64_t threads = min_i64(cb_threads_count(a->args->pool), a->t.slots);
    const int64_t turns = div_up(a->t.kv_items, threads);
    return !is_half(a->dtype) && (double)(turns * threads) <= ONE_PASS_IDLE * (double)a->t.kv_items;
}

static cb_status backward(const cb_kernel_args *args, cb_error *err) {
    attention a = attention_of(args, 1, 6);
    a.g = &args->in[0];
    a.y = &args->in[4];
    a.lse = &args->in[5];
    CB_TRY(check_scratch(&a, err));
    const int64_t blocks = a.t.items * div_up(a.t.l, a.t.queries);
    if (is_one_pass(&a)) {
        run_units(&a, a.t.kv_items, run_backward_head);
        return CB_OK;
    }
    run_units(&a, blocks,
              run_backward_queries); /* also stores sum(g * y), which the next pass reads */
    run_units(&a, a.t.kv_items * div_up(a.t.s, a.t.keys), run_backward_keys);
    return CB_OK;
}

cb_kernel_fn CB_KERN(attention)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    if (code == CB_OP_ATTENTION) return forward;
    return code == CB_OP_ATTENTION_BWD ? backward : NULL;
}
