/* Bools as bits: element 8 i + k is bit k of byte i; the bits after the last element are 0. A task
 * packs or unpacks a run of whole bytes. A product with GATHER moves byte k of a word, 0 or 1, to
 * bit 56 + k; no two terms of it meet in one bit.
 *
 * Indices are packed by packed_index.c, which is compiled once for all instruction sets. */
#include "../../packed_index.h"
#include "kern_copy.h"

#define GATHER 0x0102040810204080u
#define EACH 0x0101010101010101u    /* 1 in every byte */
#define OWN_BIT 0x8040201008040201u /* bit k of byte k */
#define BYTES 2048                  /* packed bytes of a task */

typedef struct bits {
    const cb_tensor *in, *out;
    int64_t n; /* elements */
} bits;

/* Eight bools, of which element k is byte k of the word on every machine. */
static uint64_t word_of(const uint8_t *bools) {
    uint64_t word = 0;
    for (int k = 0; k < 8; k++) word |= (uint64_t)bools[k] << 8 * k;
    return word;
}

static void put_word(uint64_t word, uint8_t *bools) {
    for (int k = 0; k < 8; k++) bools[k] = (uint8_t)(word >> 8 * k);
}

static void pack_tile(const uint8_t *restrict bools, uint8_t *restrict out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = (uint8_t)(word_of(bools + 8 * i) * GATHER >> 56);
}

static void unpack_tile(const uint8_t *restrict in, uint8_t *restrict bools, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint64_t own = in[i] * EACH & OWN_BIT; /* byte k is 0 or 1 << k */
        put_word((own + 0x7F * EACH) >> 7 & EACH, bools + 8 * i);
    }
}

#define IS_SET(name, type)                                                      \
    static void name(const type *restrict x, uint8_t *restrict is, int64_t n) { \
        for (int64_t i = 0; i < n; i++) is[i] = (uint8_t)!(x[i] <= 0);          \
    }
IS_SET(is_set_u8, uint8_t)
IS_SET(is_set_f32, float)
IS_SET(is_set_f64, double)

static void is_set(const cb_tensor *in, int64_t at, uint8_t *is, int64_t n) {
    float wide[CB_TILE];
    switch (in->dtype) {
        case CB_F32: is_set_f32(cb_at(in, at), is, n); break;
        case CB_F64: is_set_f64(cb_at(in, at), is, n); break;
        case CB_BOOL: is_set_u8(cb_at(in, at), is, n); break;
        default: half_widen(in->dtype, cb_at(in, at), wide, n); is_set_f32(wide, is, n);
    }
}

static void pack_task(void *user, int64_t task, int thread) {
    (void)thread;
    const bits *b = user;
    uint8_t is[CB_TILE];
    const int64_t end = min_i64((task + 1) * BYTES * 8, b->n);
    for (int64_t at = task * BYTES * 8; at < end; at += CB_TILE) {
        const int64_t n = min_i64(CB_TILE, end - at), bytes = div_up(n, 8);
        for (int64_t i = n; i < 8 * bytes; i++) is[i] = 0;
        is_set(b->in, at, is, n);
        pack_tile(is, (uint8_t *)b->out->data + at / 8, bytes);
    }
}

static void unpack_task(void *user, int64_t task, int thread) {
    (void)thread;
    const bits *b = user;
    uint8_t last[8];
    const uint8_t *in = b->in->data;
    uint8_t *out = b->out->data;
    const int64_t at = task * BYTES, n = min_i64(BYTES * 8, b->n - 8 * at);
    unpack_tile(in + at, out + 8 * at, n / 8);
    if (n % 8 == 0) return;
    unpack_tile(in + at + n / 8, last, 1);
    memcpy(out + 8 * at + n / 8 * 8, last, (size_t)(n % 8));
}

static cb_status run_pack(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    bits b = {.in = &args->in[0], .out = &args->out[0], .n = cb_numel(&args->in[0].shape)};
    cb_parallel(args->pool, div_up(b.n, BYTES * 8), pack_task, &b);
    return CB_OK;
}

static cb_status run_unpack(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    bits b = {.in = &args->in[0], .out = &args->out[0], .n = cb_numel(&args->out[0].shape)};
    cb_parallel(args->pool, div_up(b.n, BYTES * 8), unpack_task, &b);
    return CB_OK;
}

/* ---- indices --------------------------------------------------------------------------------- */

#define INDICES 16384 /* of a task */

typedef struct indices {
    cb_packed_index kind;
    void *wide;
    uint8_t *bytes;
    int64_t n;
    bool packs;
} indices;

static void index_task(void *user, int64_t task, int thread) {
    (void)thread;
    const indices *x = user;
    const int64_t first = task * INDICES, last = min_i64(first + INDICES, x->n);
    if (x->packs) cb_pack_index(&x->kind, x->wide, first, last, x->bytes);
    else cb_unpack_index(&x->kind, x->bytes, first, last, x->wide);
}

static cb_status run_indices(const cb_kernel_args *args, const cb_tensor *wide,
                             const cb_tensor *bytes, bool packs) {
    const int64_t *a = args->attrs->i;
    indices x = {.wide = wide->data,
                 .bytes = bytes->data,
                 .n = cb_numel(&wide->shape),
                 .packs = packs,
                 .kind = {.is_wide = wide->dtype == CB_I64,
                          .bytes = cb_packed_index_bytes(args->attrs),
                          .has_windows = a[0] != 0}};
    for (int k = 0; k < 2 && x.kind.has_windows; k++) {
        x.kind.windows[1 + k] = wide->shape.dim[2 + k];
        x.kind.plane[1 + k] = k ? a[6] : a[7] / a[6];
        x.kind.kernel[1 + k] = a[k];
        x.kind.stride[1 + k] = a[2 + k];
        x.kind.pad[1 + k] = a[4 + k];
        x.kind.dilation[1 + k] = 1;
    }
    x.kind.windows[0] = x.kind.plane[0] = x.kind.kernel[0] = 1;
    x.kind.stride[0] = x.kind.dilation[0] = 1;
    cb_parallel(args->pool, div_up(x.n, INDICES), index_task, &x);
    return CB_OK;
}

static cb_status run_pack_index(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    return run_indices(args, &args->in[0], &args->out[0], true);
}

static cb_status run_unpack_index(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    return run_indices(args, &args->out[0], &args->in[0], false);
}

cb_kernel_fn CB_KERN(bits)(cb_opcode code, cb_dtype dtype) {
    (void)dtype;
    switch (code) {
        case CB_OP_PACK_BITS: return run_pack;
        case CB_OP_UNPACK_BITS: return run_unpack;
        case CB_OP_PACK_INDEX: return run_pack_index;
        case CB_OP_UNPACK_INDEX: return run_unpack_index;
        default: return NULL;
    }
}
