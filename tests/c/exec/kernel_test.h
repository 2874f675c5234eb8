/* kernel_test.h: runs the kernel of one op on test tensors. The op is added to a graph first, so
 * shapes are inferred and scratch is sized as in a real program. Scratch is a separate block, so
 * that a sanitizer checks its bounds.
 *
 * The BLAS is loaded from the library named by CUTBACK_TEST_BLAS (NumPy's own works); without it,
 * tests that need one report that they are skipped. */
#ifndef CB_TESTS_KERNEL_TEST_H
#define CB_TESTS_KERNEL_TEST_H

#include <dlfcn.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "check.h"
#include "exec/kernel.h"
#include "exec/tiles.h"
#include "exec/workspace.h"

#define MOST_TENSORS 64

static void *owned_blocks[MOST_TENSORS];
static int n_owned_blocks;
static uint64_t random_state = 88172645463325252u;

static inline void free_tensors(void) {
    while (n_owned_blocks > 0) free(owned_blocks[--n_owned_blocks]);
}

static inline uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static inline int64_t random_int(int64_t low, int64_t high) { /* both ends included */
    return low + (int64_t)(next_random() % (uint64_t)(high - low + 1));
}

static inline double random_real(void) { return (double)(next_random() >> 11) * 0x1p-52 - 1; }

/* ---- tensors --------------------------------------------------------------------------------- */

/* Returns a tensor that is row-major, uninitialised and aligned as in an arena; free_tensors frees
 * it. */
static inline cb_tensor new_tensor(cb_dtype dtype, cb_shape shape) {
    cb_tensor t = {.dtype = dtype, .shape = shape};
    cb_shape_strides(&shape, t.stride);
    CHECK(posix_memalign(&t.data, CB_ALIGN, (size_t)cb_numel(&shape) * cb_dtype_size(dtype) + 1) ==
          0);
    owned_blocks[n_owned_blocks++] = t.data;
    return t;
}

#define TENSOR(dtype, ...)                                                                  \
    new_tensor((dtype),                                                                     \
               cb_shape_make((int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                             (int64_t[]){__VA_ARGS__}))

/* Returns the address of the i-th element in row-major order of the shape, whatever the strides. */
static inline void *element(const cb_tensor *t, int64_t i) {
    int64_t offset = 0;
    for (int32_t k = t->shape.rank - 1; k >= 0; k--) {
        offset += i % t->shape.dim[k] * t->stride[k];
        i /= t->shape.dim[k];
    }
    return (char *)t->data + offset * (int64_t)cb_dtype_size(t->dtype);
}

static inline double get(const cb_tensor *t, int64_t i) {
    const void *at = element(t, i);
    switch (t->dtype) {
        case CB_F64: return *(const double *)at;
        case CB_F32: return (double)*(const float *)at;
        case CB_F16: return (double)cb_f16_to_f32(*(const uint16_t *)at);
        case CB_BF16: return (double)cb_bf16_to_f32(*(const uint16_t *)at);
        case CB_I64: return (double)*(const int64_t *)at;
        case CB_I32: return (double)*(const int32_t *)at;
        default: return (double)*(const uint8_t *)at;
    }
}

static inline void set(const cb_tensor *t, int64_t i, double x) {
    void *at = element(t, i);
    switch (t->dtype) {
        case CB_F64: *(double *)at = x; break;
        case CB_F32: *(float *)at = (float)x; break;
        case CB_F16: *(uint16_t *)at = cb_f64_to_f16(x); break;
        case CB_BF16: *(uint16_t *)at = cb_f64_to_bf16(x); break;
        case CB_I64: *(int64_t *)at = (int64_t)x; break;
        case CB_I32: *(int32_t *)at = (int32_t)x; break;
        default: *(uint8_t *)at = (uint8_t)x; break;
    }
}

static inline void fill_random(const cb_tensor *t) {
    int64_t n = cb_numel(&t->shape);
    for (int64_t i = 0; i < n; i++) set(t, i, random_real());
}

static inline void fill_indices(const cb_tensor *t, int64_t rows) {
    int64_t n = cb_numel(&t->shape);
    for (int64_t i = 0; i < n; i++) set(t, i, (double)random_int(0, rows - 1));
}

static inline bool same_bits(const cb_tensor *a, const cb_tensor *b) { /* both contiguous */
    return cb_shape_equal(&a->shape, &b->shape) &&
           memcmp(a->data, b->data, (size_t)cb_numel(&a->shape) * cb_dtype_size(a->dtype)) == 0;
}

/* True if the next product or convolution is compared with sums of its terms: one in eight if tests
 * are brief, because the plain build compares them all and the kernels run in any case. */
static inline bool is_compared(void) {
    static uint32_t n;
    return !check_is_brief() || n++ % 8 == 0;
}

/* True if `got` is the sum `want` of terms whose sizes add up to `size`, within the error of the
 * dtype's arithmetic. */
static inline bool is_close(cb_dtype dtype, double got, double want, double size) {
    double rounding = dtype == CB_BF16 ? 0x1p-8 : dtype == CB_F16 ? 0x1p-10 : 0;
    double arithmetic = dtype == CB_F64 ? 1e-14 : 3e-6;
    return fabs(got - want) <=
           rounding * fabs(want) + arithmetic * size + (dtype == CB_F16 ? 0x1p-24 : 1e-30);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Returns the library's products, or our own kernels if `wanted` is false or there is no
 * library. */
static inline const cb_blas *test_blas(bool wanted) {
    static cb_blas none, found;
    static bool looked;
    const char *path = getenv("CUTBACK_TEST_BLAS");
    if (!wanted || !path) return &none;
    if (!looked) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        looked = true;
        if (!library) {
            printf("CUTBACK_TEST_BLAS: %s\n", dlerror());
            return &none;
        }
        found = (cb_blas){.name = "test", .int_bits = 64};
        found.sgemm = dlsym(library, "scipy_cblas_sgemm64_");
        found.dgemm = dlsym(library, "scipy_cblas_dgemm64_");
        if (!found.sgemm) {
            found.int_bits = 32;
            found.sgemm = dlsym(library, "cblas_sgemm");
            found.dgemm = dlsym(library, "cblas_dgemm");
        }
        found.set_threads_local = dlsym(library, "openblas_set_num_threads_local");
        found.get_threads = dlsym(library, "scipy_openblas_get_num_threads64_");
        found.set_threads = dlsym(library, "scipy_openblas_set_num_threads64_");
    }
    return &found;
}

static inline bool have_blas(const char *what) {
    if (test_blas(true)->sgemm) return true;
    printf("skip %s: CUTBACK_TEST_BLAS names no BLAS\n", what);
    return false;
}

typedef struct test_op {
    cb_opcode code;
    cb_attrs attrs;
    uint32_t n_in;
    cb_tensor in[8];
    uint32_t n_out;
    cb_tensor out[4]; /* made by run_op */
    cb_philox random;
} test_op;

static inline cb_status infer_outputs(test_op *op, uint64_t *scratch_bytes) {
    cb_alloc alloc;
    cb_graph *g = NULL;
    cb_value_id ins[8];
    cb_op_id id = 0;
    cb_alloc_init(&alloc);
    CB_TRY(cb_graph_create(&alloc, &g, &err));
    cb_status status = CB_OK;
    for (uint32_t i = 0; i < op->n_in; i++) {
        char name[2] = {(char)('a' + i), 0};
        CB_TRY_DONE(cb_graph_append_input(g, name, CB_ROLE_DATA, op->in[i].dtype, &op->in[i].shape,
                                          &ins[i], &err));
    }
    CB_TRY_DONE(cb_graph_append(g, op->code, op->n_in, ins, &op->attrs, &id, &err));
    *scratch_bytes = cb_op_workspace(g, id) - cb_op_index_copy(g, id); /* the kernel's part */
    op->n_out = g->ops.at[id].n_out;
    for (uint32_t k = 0; k < op->n_out; k++) {
        const cb_value *v = &g->values.at[g->ops.at[id].out_begin + k];
        op->out[k] = new_tensor(v->dtype, v->shape);
        memset(op->out[k].data, 0xFF, (size_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype));
    }
done:
    cb_graph_free(g);
    return status;
}

/* Makes new outputs and runs the kernel with `n_threads`. */
static inline cb_status run_op(test_op *op, int n_threads, const cb_blas *blas) {
    uint64_t scratch_bytes = 0;
    CB_TRY(infer_outputs(op, &scratch_bytes));
    CHECK(scratch_bytes <= CB_WORKSPACE_MAX);
    cb_dtype dtype = op->in[0].dtype;
    for (uint32_t i = 0; i < op->n_in && !cb_dtype_is_float(dtype); i++) dtype = op->in[i].dtype;
    cb_kernel_fn kernel =
        cb_cpu_kernel(op->code, cb_dtype_is_float(dtype) ? dtype : op->in[0].dtype);
    if (!kernel) return cb_fail(&err, CB_UNSUPPORTED, "no kernel");
    cb_alloc alloc;
    cb_threads *pool = NULL;
    cb_alloc_init(&alloc);
    CB_TRY(cb_threads_new(&alloc, n_threads, &pool, &err));
    void *scratch = cb_malloc(&alloc, (size_t)scratch_bytes);
    const cb_kernel_args args = {
        .in = op->in,
        .out = op->out,
        .n_in = op->n_in,
        .n_out = op->n_out,
        .attrs = &op->attrs,
        .code = op->code,
        .scratch = scratch,
        .scratch_bytes = (size_t)scratch_bytes,
        .pool = pool,
        .blas = blas,
        .random = op->random,
    };
    uint64_t n_alloc = cb_alloc_stats(&alloc).n_alloc;
    cb_status status = kernel(&args, &err);
    CHECK(cb_alloc_stats(&alloc).n_alloc == n_alloc);
    cb_free(&alloc, scratch);
    cb_threads_free(pool);
    return status;
}

/* Checks that outputs with 2 and 3 threads have the bits of those with 1, which stay in op->out. */
static inline void check_threads(test_op *op, const cb_blas *blas) {
    CHECK_OK(run_op(op, 1, blas));
    test_op first = *op;
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        CHECK_OK(run_op(op, n_threads, blas));
        for (uint32_t k = 0; k < op->n_out; k++) CHECK(same_bits(&first.out[k], &op->out[k]));
    }
    *op = first;
}

/* Checks the same for every instruction set of this processor, with our own product. Naming an
 * instruction set, even the best, implies bf16 widened to f32 (gemm_bf16.h). */
static inline void check_isas(test_op *op) {
    cb_blas none = {0};
    setenv("CUTBACK_ISA", cb_isa_name(cb_cpu_isa()), 1);
    CHECK_OK(run_op(op, 1, &none));
    test_op first = *op;
    for (int isa = 0; isa < (int)cb_cpu_isa(); isa++) {
        setenv("CUTBACK_ISA", cb_isa_name((cb_isa)isa), 1);
        CHECK_OK(run_op(op, 2, &none));
        for (uint32_t k = 0; k < op->n_out; k++) CHECK(same_bits(&first.out[k], &op->out[k]));
    }
    unsetenv("CUTBACK_ISA");
    *op = first;
}

#endif
