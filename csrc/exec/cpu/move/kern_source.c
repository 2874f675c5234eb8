/* Ops without inputs: full, iota, uniform; and dropout, which draws like uniform. */
#include "../../../base/draw.h"
#include "../../../base/kern_random.h"
#include "kern_copy.h"

/* ---- full, iota ------------------------------------------------------------------------------ */

typedef struct source {
    const cb_tensor *out;
    int64_t count, inner, n; /* iota: element i is i / inner % n */
    uint64_t element;
} source;

static void fill_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const source *s = user;
    int64_t at = task * CB_CHUNK, n = min_i64(CB_CHUNK, s->count - at);
    cb_copy_run(&s->element, 0, cb_dtype_size(s->out->dtype), cb_at(s->out, at), n);
}

static cb_status run_full(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_tensor *out = &args->out[0];
    source s = {.out = out,
                .count = cb_numel(&out->shape),
                .element = cb_element_of(out->dtype, args->attrs->f[0])};
    cb_parallel(args->pool, div_up(s.count, CB_CHUNK), fill_chunk, &s);
    return CB_OK;
}

/* Converts an index to one element; narrow integers wrap. */
static uint64_t element_of_index(cb_dtype dtype, int64_t index) {
    switch (dtype) {
        case CB_BOOL: return cb_element_of(dtype, (double)(index != 0));
        case CB_U8: return cb_element_of(dtype, (double)(index & 0xFF));
        case CB_I32: return cb_element_of(dtype, (double)(int32_t)(uint32_t)index);
        case CB_I64: return (uint64_t)index;
        default: return cb_element_of(dtype, (double)index);
    }
}

static void count_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const source *s = user;
    size_t size = cb_dtype_size(s->out->dtype);
    int64_t at = task * CB_CHUNK, end = min_i64(at + CB_CHUNK, s->count);
    while (at < end) {
        int64_t run = min_i64(end - at, s->inner - at % s->inner);
        uint64_t element = element_of_index(s->out->dtype, at / s->inner % s->n);
        cb_copy_run(&element, 0, size, cb_at(s->out, at), run);
        at += run;
    }
}

static cb_status run_iota(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_shape *shape = &args->out[0].shape;
    int64_t axis = args->attrs->i[0];
    source s = {.out = &args->out[0], .count = cb_numel(shape), .n = shape->dim[axis]};
    s.inner = cb_numel_of(shape, axis + 1, shape->rank);
    cb_parallel(args->pool, div_up(s.count, CB_CHUNK), count_chunk, &s);
    return CB_OK;
}

/* ---- random ---------------------------------------------------------------------------------- */

typedef struct random {
    const cb_kernel_args *args;
    cb_philox philox;
    uint32_t threshold;
    double scale;
    int64_t count;
} random_job;

/* Processes one tile: bits[i] is drawn for element i of the output. x and y are in the compute type
 * and may be the same memory. */
static void drop_f32(const uint16_t *bits, uint32_t threshold, float scale, const float *x,
                     float *y, int64_t n) {
    CB_IN_PLACE
    for (int64_t i = 0; i < n; i++) {
        float kept = x[i] * scale;
        y[i] = bits[i] >= threshold ? kept : 0.0f;
    }
}

static void drop_f64(const uint16_t *bits, uint32_t threshold, double scale, const double *x,
                     double *y, int64_t n) {
    CB_IN_PLACE
    for (int64_t i = 0; i < n; i++) {
        double kept = x[i] * scale;
        y[i] = bits[i] >= threshold ? kept : 0.0;
    }
}

static void drop(const random_job *r, const uint16_t *bits, int64_t at, int64_t n) {
    const cb_tensor *in = &r->args->in[0], *out = &r->args->out[0];
    float x[CB_TILE], y[CB_TILE];
    if (in->dtype == CB_F64) {
        drop_f64(bits, r->threshold, r->scale, cb_at(in, at), cb_at(out, at), n);
    } else if (in->dtype == CB_F32) {
        drop_f32(bits, r->threshold, (float)r->scale, cb_at(in, at), cb_at(out, at), n);
    } else {
        half_widen(in->dtype, cb_at(in, at), x, n);
        drop_f32(bits, r->threshold, (float)r->scale, x, y, n);
        half_narrow(out->dtype, y, cb_at(out, at), n);
    }
}

static void spread(const random_job *r, const uint16_t *bits, int64_t at, int64_t n) {
    const cb_tensor *out = &r->args->out[0];
    float x[CB_TILE];
    if (out->dtype == CB_F64) {
        double *y = cb_at(out, at);
        for (int64_t i = 0; i < n; i++) y[i] = (double)bits[i] * 0x1p-16;
        return;
    }
    float *y = out->dtype == CB_F32 ? (float *)cb_at(out, at) : x;
    const int mask = (int)cb_uniform_mask(out->dtype);
    for (int64_t i = 0; i < n; i++) y[i] = (float)(bits[i] & mask) * 0x1p-16f;
    if (out->dtype != CB_F32) half_narrow(out->dtype, x, cb_at(out, at), n);
}

static void random_chunk(void *user, int64_t task, int thread) {
    (void)thread;
    const random_job *r = user;
    uint16_t bits[CB_TILE];
    int64_t end = min_i64((task + 1) * CB_CHUNK, r->count);
    for (int64_t at = task * CB_CHUNK; at < end; at += CB_TILE) {
        int64_t n = min_i64(CB_TILE, end - at);
        for (int64_t i = 0; i < n; i += CB_DRAWN)
            cb_draw(&r->philox, (uint64_t)(at + i) / CB_PHILOX_BLOCK, bits + i);
        if (r->args->code == CB_OP_DROPOUT) drop(r, bits, at, n);
        else spread(r, bits, at, n);
    }
}

static cb_status run_random(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    double p = args->code == CB_OP_DROPOUT ? args->attrs->f[0] : 0;
    random_job r = {.args = args,
                    .philox = args->random,
                    .threshold = cb_dropout_threshold(p),
                    .scale = cb_dropout_scale(p),
                    .count = cb_numel(&args->out[0].shape)};
    r.philox.stream = (uint32_t)args->attrs->i[0];
    cb_parallel(args->pool, div_up(r.count, CB_CHUNK), random_chunk, &r);
    return CB_OK;
}

cb_kernel_fn CB_KERN(source)(cb_opcode code, cb_dtype dtype) {
    bool is_float = cb_dtype_is_float(dtype);
    switch (code) {
        case CB_OP_FULL: return run_full;
        case CB_OP_IOTA: return run_iota;
        case CB_OP_UNIFORM:
        case CB_OP_DROPOUT: return is_float ? run_random : NULL;
        default: return NULL;
    }
}
