#include "attention_tiles.h"

#include "../base/alloc.h"
#include "../base/ints.h"
#include "tiles.h"

#define VECTOR 16     /* elements; a multiple of the vector on every instruction set */
#define SLOTS 8       /* maximum number of threads that work at the same time */
#define MANY_SLOTS 16 /* the same, if their scratch is small compared with the work */
#define MANY_SLOTS_FLOPS 1e9

static int64_t up(int64_t n) { return div_up(n, VECTOR) * VECTOR; }

static void size_parts(cb_attention_tiles *t, bool is_forward, bool is_half, bool has_mask,
                       bool drops) {
    const int64_t tile = t->keys * t->line, by_rows = t->line * up(t->keys);
    t->scores = tile;
    t->columns_e = t->e * t->line;
    t->columns_d = is_forward ? 0 : t->d * t->line;
    t->queries_e = t->line * t->wide_e;
    t->queries_d = t->line * t->wide_d;
    t->keys_e = t->keys * t->wide_e;
    t->keys_d = t->keys * t->wide_d;
    t->slot = t->columns_e + t->columns_d + t->queries_e + t->queries_d + t->keys_e + t->keys_d;
    t->slot += is_forward ? t->keys_d : t->queries_e + t->queries_d + t->keys_e; /* panels */
    t->slot += (is_forward ? 1 : 2) * tile + 4 * t->line;
    if (!is_forward && is_half) t->slot += t->queries_e + t->keys_e + t->keys_d; /* sums */
    t->slot += (has_mask ? tile : 0) + (drops ? tile : 0) + (has_mask || drops ? by_rows : 0);
}

cb_attention_tiles cb_attention_tiles_of(cb_opcode code, const cb_shape *q, const cb_shape *v,
                                         cb_dtype dtype, bool has_mask, bool drops) {
    const int32_t r = q->rank;
    const bool is_forward = code == CB_OP_ATTENTION;
    const size_t real = dtype == CB_F64 ? sizeof(double) : sizeof(float);
    cb_attention_tiles t = {.items = cb_numel_of(q, 0, r - 2),
                            .kv_items = cb_numel_of(v, 0, r - 2),
                            .heads = r < 3 ? 1 : q->dim[r - 3],
                            .kv_heads = r < 3 ? 1 : v->dim[r - 3],
                            .l = q->dim[r - 2],
                            .s = v->dim[r - 2],
                            .e = q->dim[r - 1],
                            .d = v->dim[r - 1]};
    t.queries = max_i64(min_i64(t.l, CB_ATTENTION_QUERIES), 1);
    t.keys = max_i64(min_i64(t.s, CB_ATTENTION_KEYS), 1);
    t.line = up(t.queries);
    t.wide_e = up(t.e);
    t.wide_d = up(t.d);
    size_parts(&t, is_forward, dtype == CB_F16 || dtype == CB_BF16, has_mask, drops);
    const uint64_t slot_bytes = (uint64_t)t.slot * real;
    const double flops = 2.0 * (double)(t.items * t.l) * (double)t.s * (double)(t.e + t.d);
    const int64_t most = min_i64(flops > MANY_SLOTS_FLOPS ? MANY_SLOTS : SLOTS,
                                 (int64_t)(CB_WORKSPACE_MAX / slot_bytes));
    const int64_t units = max_i64(t.items * div_up(t.l, t.queries),
                                  is_forward ? 0 : t.kv_items * div_up(t.s, t.keys));
    t.slots = max_i64(min_i64(units, most), 1);
    t.shared_bytes = is_forward ? 0 : cb_align_up((size_t)(t.items * t.l) * real);
    t.bytes = t.shared_bytes + (uint64_t)t.slots * slot_bytes;
    return t;
}
