/* kernel_twin.h: compares a kernel with its slow twin (exec/ref), and with itself on every
 * instruction set and with 1, 2 and 3 threads, which must give the same bits. Inputs have many
 * layouts. */
#ifndef CB_TESTS_KERNEL_TWIN_H
#define CB_TESTS_KERNEL_TWIN_H

#include "kernel_test.h"

#include "base/cpu.h"
#include "exec/ref/ref_op.h"

static const cb_dtype floats[] = {CB_F32, CB_F64, CB_F16, CB_BF16};
static const cb_dtype numbers[] = {CB_F32, CB_F64, CB_F16, CB_BF16, CB_U8, CB_I32, CB_I64};
static const cb_dtype everything[] = {CB_F32, CB_F64, CB_F16, CB_BF16,
                                      CB_U8,  CB_I32, CB_I64, CB_BOOL};
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))
#define SHAPE(...)                                                               \
    cb_shape_make((int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                  (int64_t[]){__VA_ARGS__})

/* ---- inputs ---------------------------------------------------------------------------------- */

typedef enum layout {
    PLAIN,
    REVERSED,
    SLICED,
    FIRST_REPEATED,
    LAST_REPEATED,
    SCALAR,
    N_LAYOUTS
} layout;

/* Returns a tensor of this shape in its own storage, with the given layout. */
static inline cb_tensor laid_out(cb_dtype dtype, cb_shape shape, layout how) {
    cb_shape storage = shape;
    int32_t last = shape.rank - 1;
    if (last < 0) how = PLAIN;
    if (how == REVERSED) {
        for (int32_t k = 0; k <= last; k++) storage.dim[k] = shape.dim[last - k];
    }
    if (how == SLICED) storage.dim[last] = 2 * shape.dim[last] + 1;
    if (how == FIRST_REPEATED) storage.dim[0] = 1;
    if (how == LAST_REPEATED) storage.dim[last] = 1;
    if (how == SCALAR) storage = SHAPE(1);
    cb_tensor t = new_tensor(dtype, storage);
    memset(t.data, 0, (size_t)cb_numel(&storage) * cb_dtype_size(dtype));
    int64_t stride[CB_MAX_RANK];
    memcpy(stride, t.stride, sizeof stride);
    t.shape = shape;
    for (int32_t k = 0; k <= last; k++) {
        if (how == REVERSED) t.stride[k] = stride[last - k];
        if (how == SCALAR) t.stride[k] = 0;
    }
    if (how == SLICED) {
        t.stride[last] = 2;
        if (cb_numel(&shape) > 0) t.data = (char *)t.data + cb_dtype_size(dtype);
    }
    if (how == FIRST_REPEATED) t.stride[0] = 0;
    if (how == LAST_REPEATED) t.stride[last] = 0;
    return t;
}

typedef enum values {
    SMALL,
    FINITE,
    SPECIAL
} values; /* within 4; also zeros, subnormals and large numbers; all bit patterns */

static inline void fill_values(const cb_tensor *t, values which) {
    static const double special[] = {0.0,      -0.0,      1e-40, -1e-42, 30,   -30,  100,  -100,
                                     INFINITY, -INFINITY, NAN,   3e9,    -3e9, 1e20, -1e20};
    int64_t n = cb_numel(&t->shape), n_special = which == FINITE ? 6 : COUNT(special);
    for (int64_t i = 0; i < n; i++) {
        bool odd = which != SMALL && next_random() % 8 == 0;
        if (t->dtype == CB_BOOL) set(t, i, (double)(next_random() & 1));
        else if (t->dtype == CB_U8) set(t, i, (double)random_int(0, 255));
        else if (t->dtype == CB_I32) set(t, i, (double)random_int(INT32_MIN, INT32_MAX));
        else if (t->dtype == CB_I64)
            set(t, i, (double)random_int(-(INT64_C(1) << 52), INT64_C(1) << 52));
        else if (odd) set(t, i, special[next_random() % (uint64_t)n_special]);
        else set(t, i, 4 * random_real());
    }
}

static inline cb_tensor input(cb_dtype dtype, cb_shape shape, layout how, values which) {
    cb_tensor t = laid_out(dtype, shape, how);
    fill_values(&t, which);
    return t;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static inline bool is_nan_at(const cb_tensor *t, int64_t i) {
    return cb_dtype_is_float(t->dtype) && isnan(get(t, i));
}

/* True if the bits are the same; any two NaNs count as equal. */
static inline bool same_values(const cb_tensor *a, const cb_tensor *b) {
    size_t size = cb_dtype_size(a->dtype);
    int64_t n = cb_numel(&a->shape);
    if (same_bits(a, b)) return true;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(element(a, i), element(b, i), size) != 0 &&
            !(is_nan_at(a, i) && is_nan_at(b, i)))
            return false;
    }
    return true;
}

static inline double ulp_of(cb_dtype dtype) { /* the ulp of 1 */
    return dtype == CB_F64 ? 0x1p-52
                           : (dtype == CB_F32 ? 0x1p-23 : (dtype == CB_F16 ? 0x1p-10 : 0x1p-7));
}

/* The allowed error: `ulps` of the compute type at the larger of the result and `size`, plus one
 * ulp of the dtype for 16-bit floats. */
typedef struct slack {
    double ulps, size;
} slack;

static inline bool is_near(const cb_tensor *got, const cb_tensor *want, int64_t i, slack s) {
    if (got->dtype == CB_I64)
        return *(const int64_t *)element(got, i) == *(const int64_t *)element(want, i);
    double x = get(got, i), y = get(want, i);
    if (x == y || (isnan(x) && isnan(y))) return true;
    if (!cb_dtype_is_float(got->dtype)) return false;
    bool half = got->dtype == CB_F16 || got->dtype == CB_BF16;
    double ulp =
        got->dtype == CB_F64 ? 16 * 0x1p-52 : 0x1p-23; /* in f64 the twin is no more accurate */
    double least = got->dtype == CB_F16 ? 0x1p-24 : 0x1p-133;
    double room =
        s.ulps * ulp * fmax(fabs(y), s.size) + (half ? ulp_of(got->dtype) * fabs(y) : 0) + least;
    return fabs(x - y) <= room;
}

/* Compares with the twin, for each instruction set and thread count. */
static inline void check_twin(test_op *op, slack s, int line) {
    test_op first = {.n_out = 0};
    int wrong_bits = 0, wrong_values = 0;
    for (int isa = 0; isa <= (int)cb_cpu_isa(); isa++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)isa), 1);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            cb_status status = run_op(op, n_threads, NULL);
            CHECK(status == CB_OK);
            if (status != CB_OK) printf("line %d: %s\n", line, err.text);
            if (first.n_out == 0) first = *op;
            for (uint32_t k = 0; k < op->n_out; k++)
                wrong_bits += !same_values(&first.out[k], &op->out[k]);
        }
    }
    unsetenv("CUTBACK_ISA");
    cb_tensor want[4];
    for (uint32_t k = 0; k < op->n_out; k++)
        want[k] = new_tensor(op->out[k].dtype, op->out[k].shape);
    CHECK_OK(cb_ref_op(op->code, &op->attrs, op->n_in, op->in, op->n_out, want, &op->random, &err));
    for (uint32_t k = 0; k < op->n_out; k++) {
        for (int64_t i = 0; i < cb_numel(&want[k].shape); i++) {
            if (is_near(&op->out[k], &want[k], i, s)) continue;
            if (wrong_values++ > 0) continue;
            char text[CB_SHAPE_TEXT];
            printf("line %d: %s %s%s out %d element %lld: %.9g, twin %.9g\n", line,
                   cb_op_def_of(op->code)->name, cb_dtype_name(op->in[0].dtype),
                   cb_shape_text(&op->out[k].shape, text), (int)k, (long long)i,
                   get(&op->out[k], i), get(&want[k], i));
        }
    }
    if (wrong_bits)
        printf("line %d: %s: bits depend on threads or instruction set\n", line,
               cb_op_def_of(op->code)->name);
    CHECK(wrong_bits == 0);
    CHECK(wrong_values == 0);
}
#define CHECK_TWIN_KEEP(op, ...) \
    check_twin((op), (slack){__VA_ARGS__}, __LINE__) /* tensors stay \
                                                      */
#define CHECK_TWIN(op, ...) (CHECK_TWIN_KEEP(op, __VA_ARGS__), free_tensors())

#endif
