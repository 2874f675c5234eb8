/* optim.cuh: one launch steps all tensors of a table. A block takes a chunk of elements; it
 * finds its row among the rows by halves. The formulas are those of the CPU
 * (optim/formulas_impl.h), with its bits; Adam has a loop of its own over 16 bytes. */
#include "device_types.cuh"

#include "../../optim/formula_factors.h"

enum { CB_F32 = 6 };      /* cb_dtype */
enum { CHUNK = 4096, THREADS = 256 };    /* elements of a block */
enum { STATES = 4 };      /* CB_MAX_STATES */
enum { FACTORS_MOST = 16 }; /* CB_MAX_FACTORS */

struct cb_optim_row { /* what the formulas read of one */
    void *param;
    const void *grad;
    void *state[STATES];
};

struct device_row {
    cb_optim_row arrays;
    int64_t n;
    int64_t first; /* chunk */
    uint32_t dtype;
    uint32_t set; /* of its factors */
};

struct failure { /* as in prelude.cuh */
    uint32_t instr, unused;
    int64_t index;
};

#define INLINE static __forceinline__
#define CB_ELEMENTS_ALONE /* of formulas_impl.h */

#define restrict __restrict__
#define real float
#define square_root sqrtf
#define magnitude fabsf
#define NAME(x) x##_f32
#include "../../optim/formulas_impl.h"
#undef real
#undef square_root
#undef magnitude
#undef NAME
#ifdef CB_WITH_F64
#define real double
#define square_root sqrt
#define magnitude fabs
#define NAME(x) x##_f64
#include "../../optim/formulas_impl.h"
#define OF_TYPE(it, row, f, r, at, k) \
    if (row->dtype == CB_F32) it##_f32(f, r, at, k); \
    else it##_f64(f, r, at, k)
#else
#define OF_TYPE(it, row, f, r, at, k) it##_f32(f, r, at, k)
#endif
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

struct stretch { /* elements of a row that a block steps */
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
#pragma unroll 1
    for (int64_t i = s.begin + threadIdx.x; i < s.end; i += THREADS)
        formula(factor, &arrays, i, 1);
}

#define KERNEL(ID, it)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                       \
        cb_optim_##it(const device_row *rows, const double *sets, uint64_t n,                   \
                      const failure *failed) {                                                  \
        if (failed->instr != 0) return;                                                         \
        const int64_t chunk = blockIdx.x;                                                       \
        const device_row *row = row_of(rows, (uint32_t)n, chunk);                               \
        const double *factor = sets + row->set * FACTORS_MOST;                                  \
        if (steps_quads_##ID(row, factor, chunk)) return;                                       \
        step_chunk(row, factor, chunk, [row](const double *f, const cb_optim_row *r, int64_t at,        \
                                     int64_t k) { OF_TYPE(it, row, f, r, at, k); });            \
    }

/* ---- Adam: most of what is stepped ----------------------------------------------------------- */

/* As adam_loop of formulas_impl.h, operation by operation. */
static __forceinline__ float adam_step(const float *f, float p, float grad, float *m, float *v,
                                       float *w, bool decays, bool ams) {
    const float scaled = f[CB_GRAD_SCALE] * grad;
    const float g = decays ? scaled + f[CB_DECAY] * p : scaled;
    const float m_new = f[CB_ADAM_B1] * *m + f[CB_ADAM_A1] * g;
    float v_new = f[CB_ADAM_B2] * *v + f[CB_ADAM_A2] * g * g;
    *m = m_new;
    *v = v_new;
    if (ams) *w = v_new = *w > v_new || *w != *w ? *w : v_new;
    return p * f[CB_ADAM_KEEP] -
           f[CB_ADAM_RATE] * m_new / (sqrtf(v_new) * f[CB_ADAM_ROOT] + f[CB_ADAM_EPS]);
}

/* Four elements a thread, in 16 bytes, where all arrays of a row allow it; false: they do not. */
static __forceinline__ bool steps_quads_ADAM(const device_row *row, const double *factor,
                                                    int64_t chunk) {
    const cb_optim_row a = row->arrays;
    const bool ams = factor[CB_ADAM_AMS] != 0.0, decays = factor[CB_DECAY] != 0.0;
    const size_t all = (size_t)a.param | (size_t)a.grad | (size_t)a.state[0] | (size_t)a.state[1] |
                       (ams ? (size_t)a.state[2] : 0);
    if (row->dtype != CB_F32 || all % 16 != 0) return false;
    float f[CB_ADAM_AMS];
#pragma unroll
    for (int k = 0; k < CB_ADAM_AMS; k++) f[k] = (float)factor[k];
    float *const p = (float *)a.param, *const m = (float *)a.state[0],
                 *const v = (float *)a.state[1], *const w = (float *)a.state[2];
    const float *const grad = (const float *)a.grad;
    const stretch s = stretch_of(row, chunk);
    const int64_t whole = s.end & ~(int64_t)3;
#pragma unroll 1
    for (int64_t i = s.begin + 4 * (int64_t)threadIdx.x; i < whole; i += 4 * THREADS) {
        float4 x = *(float4 *)(p + i), y = *(float4 *)(m + i), z = *(float4 *)(v + i), u = {};
        const float4 g = *(const float4 *)(grad + i);
        if (ams) u = *(float4 *)(w + i);
        x.x = adam_step(f, x.x, g.x, &y.x, &z.x, &u.x, decays, ams);
        x.y = adam_step(f, x.y, g.y, &y.y, &z.y, &u.y, decays, ams);
        x.z = adam_step(f, x.z, g.z, &y.z, &z.z, &u.z, decays, ams);
        x.w = adam_step(f, x.w, g.w, &y.w, &z.w, &u.w, decays, ams);
        *(float4 *)(p + i) = x;
        *(float4 *)(m + i) = y;
        *(float4 *)(v + i) = z;
        if (ams) *(float4 *)(w + i) = u;
    }
#pragma unroll 1
    for (int64_t i = (whole > s.begin ? whole : s.begin) + threadIdx.x; i < s.end; i += THREADS)
        p[i] = adam_step(f, p[i], grad[i], &m[i], &v[i], ams ? &w[i] : &v[i], decays, ams);
    return true;
}

/* The others go element by element. */
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
CB_ELEMENT_FORMULAS(KERNEL)
