/* prelude.cuh: functions that every generated kernel may use. NVRTC compiles it before the kernels
 * of a program, together with the core's own headers (vecmath.h, ops.h, point_ops.h, philox.h), so
 * each operation is defined once for CPU and GPU. Contraction is off: a product and a sum are
 * rounded separately, as on the CPU. */
#include "../../../base/philox.h"

#define CB_GPU
static inline float cb_clamp_f32(float x, float most) { return fminf(fmaxf(x, -most), most); }
static inline float cb_magnitude_f32(float x, float most) { return fminf(fabsf(x), most); }

/* Returns the correctly rounded 1 / x, if x and the result are normal. One Newton step suffices,
 * because the approximation is within one unit in the last place. */
static inline float cb_inverse_f32(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}
#include "../../../micro/vecmath.h"

/* ---- 16-bit floats --------------------------------------------------------------------------- */

struct half_t { /* f16 */
    uint16_t bits;
};
struct bhalf_t { /* bf16 */
    uint16_t bits;
};

inline float widen(half_t x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
inline float widen(bhalf_t x) { return cb_f32_of_bits((uint32_t)x.bits << 16); }
inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline uint8_t widen(uint8_t x) { return x; }
inline int32_t widen(int32_t x) { return x; }
inline int64_t widen(int64_t x) { return x; }

/* Conversions of the device, one instruction each: any NaN becomes 0x7FFF. */
inline void narrow(half_t *to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x)); }
inline void narrow(bhalf_t *to, float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    const uint32_t bits = cb_bits_of_f32(x);
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    to->bits = (uint16_t)(x != x ? 0x7FFFu : rounded);
#endif
}
/* Rounds a double to odd: the last bit of the float is set if any bits were lost. So the next
 * rounding gives the same result as rounding the double directly. */
inline float sticky(double x) {
    const float y = __double2float_rz(x);
    return x == x && (double)y != x ? cb_f32_of_bits(cb_bits_of_f32(y) | 1u) : y;
}
inline void narrow(half_t *to, double x) { narrow(to, sticky(x)); }
inline void narrow(bhalf_t *to, double x) { narrow(to, sticky(x)); }
inline void narrow(float *to, float x) { *to = x; }
inline void narrow(float *to, double x) { *to = (float)x; }
inline void narrow(double *to, double x) { *to = x; }
template <class T> inline void narrow(uint8_t *to, T x) { *to = (uint8_t)x; }
template <class T> inline void narrow(int32_t *to, T x) { *to = (int32_t)x; }
template <class T> inline void narrow(int64_t *to, T x) { *to = (int64_t)x; }

inline float cb_round_f16_f32(float x) {
    half_t y;
    narrow(&y, x);
    return widen(y);
}
inline float cb_round_bf16_f32(float x) {
    bhalf_t y;
    narrow(&y, x);
    return widen(y);
}

/* ---- operations of groups (ops.h): x_ADD(float, float), ... ---------------------------------- */

#include "../../../micro/ops.h"
#define CB_SELECT(condition, a, b) ((condition) ? (a) : (b))
#define ONE_WHERE(condition) ((condition) ? 1.0f : 0.0f)
#define CB_ZERO 0.0f
#define CB_ONE 1.0f
#define CB_MATH(name) cb_##name##_f32
#define DEFINE_BINARY(id, expression) \
    inline float x_##id(float x, float y) { return expression; }
#define DEFINE_UNARY(id, expression) \
    inline float x_##id(float x) { return expression; }
#define DEFINE_ROUND(id, name) \
    inline float x_##id(float x) { return CB_MATH(name)(x); }
CB_X_BINARY(DEFINE_BINARY)
CB_X_UNARY(DEFINE_UNARY)
CB_X_MATH(DEFINE_UNARY)
CB_X_ROUND(DEFINE_ROUND)
CB_X_HALF(DEFINE_UNARY)
#undef CB_MATH
inline float x_SELECT(float x, float y, float z) { return x != 0.0f ? y : z; }
inline float x_NORMAL(float x) {
    float density;
    return cb_normal_f32(x, &density);
}

/* ---- operations of single ops (point_ops.h): p_ADD(real, real), ... -------------------------- */

#include "../../../micro/point_ops.h"
#define UNARY_OF(name, type, expression) \
    inline type name(type x) {           \
        typedef type real;               \
        return (type)(expression);       \
    }
#define BINARY_OF(name, type, out, expression) \
    inline out name(type x, type y) {          \
        typedef type real;                     \
        return (out)(expression);              \
    }
#define UNARY_F32(id, expression) UNARY_OF(p_##id, float, expression)
#define UNARY_F64(id, expression) UNARY_OF(p_##id, double, expression)
#define BINARY_F32(id, expression) BINARY_OF(p_##id, float, float, expression)
#define BINARY_F64(id, expression) BINARY_OF(p_##id, double, double, expression)
#define CB_MATH(name) cb_##name##_f32
CB_UNARY_FLOAT(UNARY_F32)
CB_BINARY_FLOAT(BINARY_F32)
UNARY_F32(SIN, CB_MATH(sin)(x))
UNARY_F32(COS, CB_MATH(cos)(x))
#undef CB_MATH
#define CB_MATH(name) cb_##name##_f64
CB_UNARY_FLOAT(UNARY_F64)
CB_BINARY_FLOAT(BINARY_F64)
UNARY_F64(SIN, CB_MATH(sin)(x))
UNARY_F64(COS, CB_MATH(cos)(x))
#undef CB_MATH
#define UNARY_WHOLE(id, expression)          \
    UNARY_OF(p_##id, uint8_t, expression)    \
    UNARY_OF(p_##id, int32_t, expression)    \
    UNARY_OF(p_##id, int64_t, expression)
#define BINARY_WHOLE(id, expression)                  \
    BINARY_OF(p_##id, uint8_t, uint8_t, expression)   \
    BINARY_OF(p_##id, int32_t, int32_t, expression)   \
    BINARY_OF(p_##id, int64_t, int64_t, expression)
#define COMPARISON(id, expression)                  \
    BINARY_OF(p_##id, float, uint8_t, expression)   \
    BINARY_OF(p_##id, double, uint8_t, expression)  \
    BINARY_OF(p_##id, uint8_t, uint8_t, expression) \
    BINARY_OF(p_##id, int32_t, uint8_t, expression) \
    BINARY_OF(p_##id, int64_t, uint8_t, expression)
#define LOGICAL(id, expression) BINARY_OF(p_##id, uint8_t, uint8_t, expression)
CB_UNARY_INT(UNARY_WHOLE)
CB_BINARY_INT(BINARY_WHOLE)
CB_COMPARE(COMPARISON)
CB_LOGICAL(LOGICAL)
inline uint8_t p_LOGICAL_NOT(uint8_t x) { return !x; }

/* Casts. Floats are truncated to integers and saturate, and NaN becomes 0; integers wrap. */
template <class T> inline int64_t whole_of(T x, double low, double high) {
    return !(x == x) ? 0 : x >= high ? (high >= 0x1p63 ? INT64_MAX : (int64_t)high - 1)
                         : x <= low  ? (int64_t)low
                                     : (int64_t)x;
}
inline void cast_int(uint8_t *to, double x) { *to = (uint8_t)whole_of(x, 0.0, 256.0); }
inline void cast_int(int32_t *to, double x) { *to = (int32_t)whole_of(x, -0x1p31, 0x1p31); }
inline void cast_int(int64_t *to, double x) { *to = whole_of(x, -0x1p63, 0x1p63); }
template <class To> inline void cast(To *to, float x) { narrow(to, x); }
template <class To> inline void cast(To *to, double x) { narrow(to, x); }
inline void cast(uint8_t *to, float x) { cast_int(to, (double)x); }
inline void cast(int32_t *to, float x) { cast_int(to, (double)x); }
inline void cast(int64_t *to, float x) { cast_int(to, (double)x); }
inline void cast(uint8_t *to, double x) { cast_int(to, x); }
inline void cast(int32_t *to, double x) { cast_int(to, x); }
inline void cast(int64_t *to, double x) { cast_int(to, x); }
inline void cast(float *to, float x) { *to = x; }
inline void cast(double *to, float x) { *to = x; }
inline void cast(float *to, int64_t x) { *to = (float)x; }
inline void cast(double *to, int64_t x) { *to = (double)x; }
inline void cast(half_t *to, int64_t x) { narrow(to, (double)x); }
inline void cast(bhalf_t *to, int64_t x) { narrow(to, (double)x); }
inline void cast(uint8_t *to, int64_t x) { *to = (uint8_t)x; }
inline void cast(int32_t *to, int64_t x) { *to = (int32_t)x; }
inline void cast(int64_t *to, int64_t x) { *to = x; }

/* ---- vectors of V elements ------------------------------------------------------------------- */

#define EACH _Pragma("unroll") for (int j = 0; j < V; j++)

/* True if an address is a multiple of `bytes`, a power of two. */
inline bool is_even(const void *p, unsigned bytes) { return ((size_t)p & (bytes - 1)) == 0; }

/* Loads or stores elements p[0], ..., p[n - 1]. `even`: p is aligned for accesses of V elements, or
 * of 16 bytes if those are more. */
template <int V> inline void load(float (&to)[V], const float *p, bool even, int n) {
    if constexpr (V % 4 == 0) {
        if (even && n == V) {
#pragma unroll
            for (int q = 0; q < V; q += 4) {
                const float4 x = *(const float4 *)(p + q);
                to[q] = x.x, to[q + 1] = x.y, to[q + 2] = x.z, to[q + 3] = x.w;
            }
            return;
        }
    } else if constexpr (V == 2) {
        if (even && n == V) {
            const float2 x = *(const float2 *)p;
            to[0] = x.x, to[1] = x.y;
            return;
        }
    }
    EACH to[j] = j < n ? p[j] : 0.0f;
}
template <int V> inline void store(float *p, const float (&from)[V], bool even, int n) {
    if constexpr (V % 4 == 0) {
        if (even && n == V) {
#pragma unroll
            for (int q = 0; q < V; q += 4)
                *(float4 *)(p + q) = make_float4(from[q], from[q + 1], from[q + 2], from[q + 3]);
            return;
        }
    } else if constexpr (V == 2) {
        if (even && n == V) {
            *(float2 *)p = make_float2(from[0], from[1]);
            return;
        }
    }
    EACH if (j < n) p[j] = from[j];
}

/* Elements of less than four bytes are accessed V at a time. */
template <int BYTES> struct word_of;
template <> struct word_of<1> {
    typedef uint8_t type;
};
template <> struct word_of<2> {
    typedef uint16_t type;
};
template <> struct word_of<4> {
    typedef uint32_t type;
};
template <> struct word_of<8> {
    typedef uint2 type;
};
template <> struct word_of<16> {
    typedef uint4 type;
};
template <int V, class T> inline void load_small(float (&to)[V], const T *p, bool even, int n) {
    if (even && n == V) {
        typedef typename word_of<V * sizeof(T)>::type word;
        T x[V];
        const word all = *(const word *)p;
        memcpy(x, &all, sizeof x);
        EACH to[j] = widen(x[j]);
    } else {
        EACH to[j] = j < n ? widen(p[j]) : 0.0f;
    }
}
template <int V, class T> inline void store_small(T *p, const float (&from)[V], bool even, int n) {
    T x[V];
    EACH narrow(&x[j], from[j]);
    if (even && n == V) {
        typedef typename word_of<V * sizeof(T)>::type word;
        word all;
        memcpy(&all, x, sizeof x);
        *(word *)p = all;
    } else {
        EACH if (j < n) p[j] = x[j];
    }
}
#define SMALL(T)                                                                             \
    template <int V> inline void load(float (&to)[V], const T *p, bool even, int n) {        \
        load_small(to, p, even, n);                                                          \
    }                                                                                        \
    template <int V> inline void store(T *p, const float (&from)[V], bool even, int n) {     \
        store_small(p, from, even, n);                                                       \
    }
SMALL(uint8_t)
SMALL(half_t)
SMALL(bhalf_t)

/* Writes 1 if dropout keeps an element, otherwise 0, for V elements from e on. */
template <int V>
inline void keep(float (&to)[V], uint64_t seed, uint64_t step, uint32_t stream, uint32_t threshold,
                 uint64_t e) {
    const cb_philox philox = {seed, stream, (uint32_t)step};
    EACH to[j] = cb_philox_u16(&philox, e + j) >= threshold ? 1.0f : 0.0f;
}
/* Does the same if e is a multiple of V: the V numbers are then in one block, which is drawn
 * once. */
template <int V>
inline void keep_even(float (&to)[V], uint64_t seed, uint64_t step, uint32_t stream,
                      uint32_t threshold, uint64_t e) {
    const cb_philox philox = {seed, stream, (uint32_t)step};
    uint32_t words[4];
    cb_philox_block(&philox, e / CB_PHILOX_BLOCK, words);
    const bool later = V == 4 && e % CB_PHILOX_BLOCK != 0;
    EACH {
        const uint32_t word = later ? words[(j / 2 + 2) % 4] : words[j / 2];
        to[j] = ((word >> 16 * (j % 2)) & 0xFFFFu) >= threshold ? 1.0f : 0.0f;
    }
}

/* ---- reductions of 64 lanes, in the order of the CPU: 16 threads with four each, or a warp with
 * two each ------------------------------------------------------------------------------------- */

/* Returns the mask of the threads that share 64 lanes with this one; each has V lanes. */
template <int V> inline unsigned team_mask() {
    return V == 4 ? 0xFFFFu << (threadIdx.x & 16) : ~0u;
}

/* Adds lanes i and i + 32, then i and i + 16, and so on. All threads of the team get the sum. */
template <int V> inline float fold(float (&a)[V]) {
#pragma unroll 1
    for (int d = 32 / V; d > 0; d /= 2) {
#pragma unroll
        for (int j = 0; j < V; j++) a[j] += __shfl_xor_sync(team_mask<V>(), a[j], d);
    }
    if constexpr (V == 4) return (a[0] + a[2]) + (a[1] + a[3]);
    else return a[0] + a[1];
}
template <int V> inline int fold_largest(int key) {
#pragma unroll 1
    for (int d = 32 / V; d > 0; d /= 2) key = max(key, __shfl_xor_sync(team_mask<V>(), key, d));
    return key;
}

/* Adds leaves in pairs: the largest power of two of them as a tree, plus the sum of the rest. */
template <int N> inline float tree_of(const float *leaf) {
    if constexpr (N == 1) return leaf[0];
    else return tree_of<N / 2>(leaf) + tree_of<N / 2>(leaf + N / 2);
}
constexpr int power_below(int n) { return n < 2 ? 1 : 2 * power_below(n / 2); }
template <int N> inline float pairs_of(const float *leaf) {
    constexpr int first = power_below(N);
    if constexpr (first == N) return tree_of<N>(leaf);
    else return tree_of<first>(leaf) + pairs_of<N - first>(leaf + first);
}
template <int N> inline int largest_of(const int *key) {
    int best = key[0];
#pragma unroll 4
    for (int i = 1; i < N; i++) best = max(best, key[i]);
    return best;
}

/* Adds a number of leaves that is known only at run time. Digit k of a binary counter holds the sum
 * of 2^k leaves. */
struct counter {
    uint32_t count;
    float level[16];
    inline void push(float x) {
        bool carries = true;
#pragma unroll
        for (int d = 0; d < 16; d++) {
            const bool full = count >> d & 1u;
            if (carries && full) x = level[d] + x;
            if (carries && !full) level[d] = x, carries = false;
        }
        count++;
    }
    inline float sum() const {
        float total = 0;
#pragma unroll
        for (int d = 0; d < 16; d++)
            if (count >> d & 1u) total = level[d] + total;
        return total;
    }
};

/* Adds leaves begin..end with all threads of a warp, eight adjacent leaves per thread. Missing
 * leaves are replaced by -0.0, which changes no sum. */
inline float pairs_of_warp(const float *leaf, uint64_t begin, uint64_t end) {
    counter all = {};
#pragma unroll 1
    for (uint64_t part = begin; part < end; part += 256) {
        const uint64_t first = part + threadIdx.x % 32 * 8;
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = first + j < end ? leaf[first + j] : -0.0f;
        float sum = tree_of<8>(x);
#pragma unroll 1
        for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
        all.push(sum);
    }
    return all.sum();
}

/* Maps floats to integers in the same order; every NaN is the largest. of_key is the inverse. */
inline int key_of(float x) {
    const int bits = (int)cb_bits_of_f32(x);
    return x == x ? bits ^ ((bits >> 31) & INT32_MAX) : INT32_MAX;
}
inline float of_key(int key) { return cb_f32_of_bits((uint32_t)(key ^ ((key >> 31) & INT32_MAX))); }

/* ---- reductions of a block, for single ops. The order depends only on the block's size. Each
 * reduction needs separate shared memory. ------------------------------------------------------ */

template <class T> inline T block_sum(T x, T *shared) {
    shared[threadIdx.x] = x;
    __syncthreads();
    for (unsigned n = blockDim.x / 2; n > 0; n /= 2) {
        if (threadIdx.x < n) shared[threadIdx.x] += shared[threadIdx.x + n];
        __syncthreads();
    }
    return shared[0];
}
template <class T> inline bool has_sign(T) { return false; }
inline bool has_sign(float x) { return (int)cb_bits_of_f32(x) < 0; }
inline bool has_sign(double x) { return __double_as_longlong(x) < 0; }
/* Returns the larger number, or NaN if either operand is NaN; 0.0 is larger than -0.0, as on the
 * CPU and in key_of. So the order of comparisons does not matter. */
template <class T> inline T larger(T x, T y) {
    return x > y || x != x || (x == y && has_sign(y)) ? x : y;
}
template <class T> inline T smaller(T x, T y) {
    return x < y || x != x || (x == y && has_sign(x)) ? x : y;
}
template <class T> inline T block_larger(T x, T *shared) {
    shared[threadIdx.x] = x;
    __syncthreads();
    for (unsigned n = blockDim.x / 2; n > 0; n /= 2) {
        if (threadIdx.x < n)
            shared[threadIdx.x] = larger(shared[threadIdx.x], shared[threadIdx.x + n]);
        __syncthreads();
    }
    return shared[0];
}

/* ---- errors ---------------------------------------------------------------------------------- */

struct failure { /* the first failure since the host last checked */
    uint32_t instr; /* 1 + the index of the instruction that failed; 0: none */
    uint32_t unused;
    int64_t index;
};

/* ---- products of matrices -------------------------------------------------------------------- */

inline float mad(float a, float b, float c) { return fmaf(a, b, c); }
inline double mad(double a, double b, double c) { return fma(a, b, c); }
