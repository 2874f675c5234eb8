/* optim.cuh: the kernels of an optimizer step. The first kernel advances each set of rows and
 * computes its factors; the second steps all tensors of the table. A block of the second kernel
 * processes one chunk of elements, and finds its row by binary search. The formulas are those of
 * the CPU (optim/formulas_impl.h), with bitwise equal results; Adam has a separate loop with
 * 16-byte accesses. A source that includes this file has one optimizer:
 *
 *     #include "adamw_factors.h"
 *     OPTIMIZER(ADAM, adam, cb_adamw_factors, cb_counts_nothing)
 *
 * It defines CB_F32_ALONE before the include if no row is f64. */
#include "device_types.cuh"

#include "../../../optim/formula_factors.h"

enum { CB_F32 = 6 };      /* cb_dtype */
enum { CHUNK = 4096, THREADS = 256 };    /* elements of a block; threads of a block */
enum { STATES = 4 };      /* CB_MAX_STATES */
enum { FACTORS_MOST = 16, HYPERS_MOST = 16 }; /* CB_MAX_FACTORS, and as in update.c */

struct cb_optim_row { /* the fields that the formulas read */
    void *param;
    const void *grad;
    void *state[STATES];
};

struct device_row {
    cb_optim_row arrays;
    int64_t n;
    int64_t first; /* the row's first chunk */
    uint32_t dtype;
    uint32_t set; /* the set that holds the row's factors */
};

struct device_set { /* rows of one group with the same number of steps */
    int64_t t;            /* steps so far */
    double number[2];     /* CB_MAX_NUMBERS */
    uint64_t group;       /* row of the hyper-parameters */
};

struct device_words { /* values for all rows; a loss scaler may write them */
    double grad_factor;
    uint32_t found_inf, unused; /* found_inf not 0: no row is stepped, and no set advances */
};

struct failure { /* as in prelude.cuh */
    uint32_t instr, unused;
    int64_t index;
};

#define CB_INLINE static __forceinline__

#ifdef CB_BLOCKS
/* A thread block steps a block of CB_STATE_BLOCK elements, a thread each. */
enum { CB_STATE_BLOCK = THREADS };
#define CB_BLOCK_ROOM 1
#define CB_MOST_ACROSS(x) across<true>(x)
#define CB_LEAST_ACROSS(x) across<false>(x)
#define CB_WRITES_SCALES (threadIdx.x == 0)

/* Returns the largest or smallest x of the thread block. */
template <bool MOST> static __forceinline__ uint32_t across(uint32_t x) {
    __shared__ uint32_t of_warp[THREADS / 32];
    for (int step = 16; step; step /= 2) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, x, step);
        x = MOST == (other > x) ? other : x;
    }
    __syncthreads(); /* the previous results have been read */
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int k = 0; k < THREADS / 32; k++) {
        const uint32_t other = of_warp[k];
        x = MOST == (other > x) ? other : x;
    }
    return x;
}
#include "../../../optim/blocks_8bit.h"
#else
#define CB_ELEMENTS_ALONE /* leaves out the 8-bit formulas of formulas_impl.h */
#endif

#define restrict __restrict__
#define CB_IMPL "../../../optim/formulas_impl.h"
#include "../../../optim/both_reals.h"
#undef restrict

static __forceinline__ const device_row *row_of(const device_row *rows, uint32_t n, int64_t chunk) {
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (rows[middle].first <= chunk) low = middle;
        else high = middle;
    }
    return &rows[low];
}

struct stretch { /* the elements of a row that a block steps */
    int64_t begin, end;
};
static __forceinline__ stretch stretch_of(const device_row *row, int64_t chunk) {
    const int64_t begin = (chunk - row->first) * CHUNK, wanted = begin + CHUNK;
    return {begin, wanted < row->n ? wanted : row->n};
}

template <class F>
static __forceinline__ void step_chunk(const device_row *row, const double *factor, int64_t chunk,
                                       F formula) {
    const stretch s = stretch_of(row, chunk);
    const cb_optim_row arrays = row->arrays;
#ifdef CB_BLOCKS /* threads without an element take part in the sums of their block */
#pragma unroll 1
    for (int64_t at = s.begin; at < s.end; at += THREADS)
        formula(factor, &arrays, at + threadIdx.x, at + threadIdx.x < s.end);
#else
#pragma unroll 1
    for (int64_t i = s.begin + threadIdx.x; i < s.end; i += THREADS)
        formula(factor, &arrays, i, 1);
#endif
}

#define STEPPER(ID, it)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                       \
        cb_optim_step(const device_row *rows, const double *factors, uint64_t n,                \
                      const failure *failed, const device_words *words) {                       \
        if (failed->instr != 0 || words->found_inf != 0) return;                                \
        const int64_t chunk = blockIdx.x;                                                       \
        const device_row *row = row_of(rows, (uint32_t)n, chunk);                               \
        const double *factor = factors + row->set * FACTORS_MOST;                                  \
        if (steps_quads_##ID(row, factor, chunk)) return;                                       \
        step_chunk(row, factor, chunk, [row](const double *f, const cb_optim_row *r, int64_t at,        \
                                     int64_t k) { CB_OF_TYPE(row->dtype, it, f, r, at, k); });            \
    }

static __forceinline__ void cb_counts_nothing(const double *, int64_t, double *) {}

/* Uses a thread for each set. `failed` is the failure word of earlier runs. */
#define COUNTER(factors_of, count_on)                                                           \
    extern "C" __global__ void __launch_bounds__(32)                                            \
        cb_optim_count(device_set *sets, const double *hyper, double *factors, uint64_t n,      \
                       const failure *failed, const device_words *words) {                      \
        const uint32_t i = blockIdx.x * 32 + threadIdx.x;                                       \
        if (i >= n || failed->instr != 0 || words->found_inf != 0) return;                      \
        device_set set = sets[i];                                                               \
        const double *const of_group = hyper + set.group * HYPERS_MOST;                         \
        double f[FACTORS_MOST] = {};                                                            \
        set.t++;                                                                                \
        factors_of(of_group, set.t, set.number, f);                                             \
        f[CB_GRAD_SCALE] *= words->grad_factor;                                                 \
        count_on(of_group, set.t, set.number);                                                  \
        sets[i] = set;                                                                          \
        _Pragma("unroll") for (int k = 0; k < FACTORS_MOST; k++)                                \
            factors[i * FACTORS_MOST + k] = f[k];                                               \
    }

#define OPTIMIZER(ID, it, factors_of, count_on) \
    COUNTER(factors_of, count_on)               \
    STEPPER(ID, it)

/* ---- Adam, the most common optimizer --------------------------------------------------------- */

/* Loops over adam_element of formulas_impl.h. If all arrays of a row are aligned to 16 bytes, a
 * thread steps four elements at a time; the remaining elements are stepped one by one. */
template <bool AMSGRAD>
static __forceinline__ void adam_stretch(const cb_optim_row &a, const float *adam,
                                         const stretch &s, bool decays) {
    float *const p = (float *)a.param, *const m = (float *)a.state[0],
                 *const v = (float *)a.state[1], *const w = AMSGRAD ? (float *)a.state[2] : v;
    const float *const grad = (const float *)a.grad;
    const size_t all = (size_t)p | (size_t)grad | (size_t)m | (size_t)v | (size_t)w;
    const int64_t quads = all % 16 == 0 ? (s.end - s.begin) / 4 : 0;
#pragma unroll 1
    for (int64_t q = threadIdx.x; q < quads; q += THREADS) {
        const int64_t i = s.begin + 4 * q;
        float4 x = *(float4 *)(p + i), y = *(float4 *)(m + i), z = *(float4 *)(v + i), u = {};
        const float4 g = *(const float4 *)(grad + i);
        if (AMSGRAD) u = *(float4 *)(w + i);
        adam_element_f32(adam, &x.x, g.x, &y.x, &z.x, &u.x, decays, AMSGRAD);
        adam_element_f32(adam, &x.y, g.y, &y.y, &z.y, &u.y, decays, AMSGRAD);
        adam_element_f32(adam, &x.z, g.z, &y.z, &z.z, &u.z, decays, AMSGRAD);
        adam_element_f32(adam, &x.w, g.w, &y.w, &z.w, &u.w, decays, AMSGRAD);
        *(float4 *)(p + i) = x;
        *(float4 *)(m + i) = y;
        *(float4 *)(v + i) = z;
        if (AMSGRAD) *(float4 *)(w + i) = u;
    }
#pragma unroll 1
    for (int64_t i = s.begin + 4 * quads + threadIdx.x; i < s.end; i += THREADS) {
        float x = p[i];
        adam_element_f32(adam, &x, grad[i], &m[i], &v[i], &w[i], decays, AMSGRAD);
        p[i] = x;
    }
}

/* Returns false for an f64 row, which it does not step. */
static __forceinline__ bool steps_quads_ADAM(const device_row *row, const double *factor,
                                             int64_t chunk) {
#ifndef CB_F32_ALONE
    if (row->dtype != CB_F32) return false;
#endif
    float adam[CB_ADAM_AMSGRAD];
#pragma unroll
    for (int k = 0; k < CB_ADAM_AMSGRAD; k++) adam[k] = (float)factor[k];
    const stretch s = stretch_of(row, chunk);
    const bool decays = factor[CB_WEIGHT_DECAY] != 0.0;
    if (factor[CB_ADAM_AMSGRAD] != 0.0) adam_stretch<true>(row->arrays, adam, s, decays);
    else adam_stretch<false>(row->arrays, adam, s, decays);
    return true;
}

/* The other formulas have no such loop and are stepped element by element. */
#define NO_QUADS(ID) \
    static __forceinline__ bool steps_quads_##ID(const device_row *, const double *, int64_t) { \
        return false;                                                                           \
    }
NO_QUADS(SGD)
NO_QUADS(RADAM)
NO_QUADS(ADAMAX)
NO_QUADS(ADAGRAD)
NO_QUADS(ADADELTA)
NO_QUADS(RMSPROP)
NO_QUADS(RMSPROP_CENTERED)
NO_QUADS(LION)
NO_QUADS(NADAM)
NO_QUADS(ADEMAMIX)
NO_QUADS(ADOPT)
NO_QUADS(ASGD)
NO_QUADS(RPROP)
NO_QUADS(SCHEDULE_FREE)
NO_QUADS(ADAMW_8BIT)

/* ---- batches (matrices.h) -------------------------------------------------------------------- */

/* The kernels of batches do nothing after a failed run, or if found_inf is set. A chunk is CHUNK
 * elements of a row. */

/* Returns the sum of x over the threads of the block, in all of them. */
static __forceinline__ double sum_of_block(double x) {
    __shared__ double of_warp[THREADS / 32];
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    __syncthreads(); /* the previous sums have been read */
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int k = 0; k < THREADS / 32; k++) x += of_warp[k];
    return x;
}

static __forceinline__ double sum_of(const double *from, int64_t n) {
    double sum = 0;
    for (int64_t k = threadIdx.x; k < n; k += THREADS) sum += from[k];
    return sum_of_block(sum);
}

static __forceinline__ bool is_off(const failure *failed, const device_words *words) {
    return failed->instr != 0 || words->found_inf != 0;
}

struct part { /* what a block works on */
    const device_row *row;
    const double *factor;
    int64_t matrix, begin, end;
};
static __forceinline__ part part_of(const device_row *rows, const double *factors,
                                    uint64_t chunks) {
    part p;
    p.matrix = blockIdx.x / (uint32_t)chunks;
    p.row = rows + p.matrix;
    p.factor = factors + p.row->set * FACTORS_MOST;
    p.begin = (int64_t)(blockIdx.x % (uint32_t)chunks) * CHUNK;
    p.end = p.begin + CHUNK < p.row->n ? p.begin + CHUNK : p.row->n;
    return p;
}
