/* kern_rows.h: sums and row access for one compute type. A template: a file of row kernels includes
 * it with REAL_BITS 32 and again with 64, each time followed by its kernels. It defines
 *
 *     CB_REAL, ROW_KEY   float and int32_t, or double and int64_t
 *     CB_TYPED(name)     name_f32 or name_f64: the functions of a template
 *     ROW_MATH(exp)      cb_exp_f32 or cb_exp_f64
 *     ROW_FEW(few)       few_float or few_double (kern_few.h)
 *
 * A sum has the same order on every instruction set: leaves of up to CB_TILE elements, each summed
 * in CB_SUM_LANES lanes that are folded in halves, and the leaves added in pairs, pairs of pairs,
 * ... The vectors are gcc's and clang's vector extension, registers of the instruction set. */
#include "../move/kern_copy.h"
#include "kern_few.h"
#include "kern_fold.h"

#undef CB_REAL
#undef ROW_KEY
#undef ROW_KEY_MAX
#undef ROW_KEY_INFINITY
#undef CB_TYPED
#undef ROW_MATH
#undef ROW_LANES
#undef ROW_FEW
#if REAL_BITS == 32
#define CB_REAL float
#define ROW_KEY int32_t
#define ROW_KEY_MAX INT32_MAX
#define ROW_KEY_INFINITY 0x7F800000
#define CB_TYPED(name) name##_f32
#define ROW_MATH(name) cb_##name##_f32
#define ROW_FEW(name) name##_float
#else
#define CB_REAL double
#define ROW_KEY int64_t
#define ROW_KEY_MAX INT64_MAX
#define ROW_KEY_INFINITY 0x7FF0000000000000
#define CB_TYPED(name) name##_f64
#define ROW_MATH(name) cb_##name##_f64
#define ROW_FEW(name) name##_double
#endif
#define ROW_LANES (CB_LANE_BYTES / (int64_t)sizeof(CB_REAL)) /* lanes of a vector */

/* ---- leaves ---------------------------------------------------------------------------------- */

typedef CB_REAL CB_TYPED(full) __attribute__((vector_size(CB_LANE_BYTES)));
/* The type of lanes in memory; gcc would split a memcpy of it in halves. */
typedef CB_TYPED(full) CB_TYPED(lanes) __attribute__((aligned(sizeof(CB_REAL)), may_alias));

/* Adds to vector k + q of the lanes. Four at a time stay in registers. */
#define CB_ADD_LANES(q, expression)                                                          \
    {                                                                                        \
        const CB_TYPED(full) x = *(const CB_TYPED(lanes) *)(xs + i + (k + (q)) * ROW_LANES), \
                             y = *(const CB_TYPED(lanes) *)(ys + i + (k + (q)) * ROW_LANES); \
        sum##q += expression;                                                                \
        (void)x;                                                                             \
        (void)y;                                                                             \
    }
/* Does the same if only `n - whole` elements remain for all lanes. */
#define CB_ADD_FEW(q, expression)                                                       \
    {                                                                                   \
        const int64_t first = whole + (k + (q)) * ROW_LANES, few = n - first;           \
        if (few > 0) {                                                                  \
            const CB_TYPED(full) x = ROW_FEW(few)(xs + first, few),                     \
                                 y = ROW_FEW(few)(ys + first, few), added = expression; \
            sum##q += ROW_FEW(keep_few)(added, few);                                    \
            (void)x;                                                                    \
            (void)y;                                                                    \
        }                                                                               \
    }
#define CB_KEEP_LANES(q) *(CB_TYPED(lanes) *)(sum + (k + (q)) * ROW_LANES) = sum##q;

/* Lane i of CB_SUM_LANES holds the elements i, i + CB_SUM_LANES, ... of a leaf; halves are added
 * until one is left. The expression is in x and y, vectors of the rows `xs` and `ys`, and the
 * number m. Lanes are stored as whole vectors: the fold reads vectors, which a processor would
 * have to put together from single stores. */
#define CB_LEAF(name, expression)                                                         \
    static inline CB_REAL CB_TYPED(name)(const CB_REAL *xs, const CB_REAL *ys, CB_REAL m, \
                                         int64_t n) {                                     \
        CB_REAL sum[CB_SUM_LANES];                                                        \
        const int64_t whole = n - n % CB_SUM_LANES;                                       \
        (void)m;                                                                          \
        for (int64_t k = 0; k < CB_SUM_LANES / ROW_LANES; k += 4) {                       \
            CB_TYPED(full) sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};                \
            for (int64_t i = 0; i < whole; i += CB_SUM_LANES) {                           \
                CB_ADD_LANES(0, expression)                                               \
                CB_ADD_LANES(1, expression)                                               \
                CB_ADD_LANES(2, expression)                                               \
                CB_ADD_LANES(3, expression)                                               \
            }                                                                             \
            CB_ADD_FEW(0, expression)                                                     \
            CB_ADD_FEW(1, expression)                                                     \
            CB_ADD_FEW(2, expression)                                                     \
            CB_ADD_FEW(3, expression)                                                     \
            CB_KEEP_LANES(0) CB_KEEP_LANES(1) CB_KEEP_LANES(2) CB_KEEP_LANES(3)           \
        }                                                                                 \
        return ROW_MATH(fold)(sum);                                                       \
    }
/* clang-format off */
CB_LEAF(leaf_sum, x)
CB_LEAF(leaf_dot, x * y)
CB_LEAF(leaf_spread, (x - m) * (x - m))
CB_LEAF(leaf_dot_from, (x - m) * y)
/* clang-format on */
#undef CB_LEAF
#undef CB_ADD_LANES
#undef CB_ADD_FEW
#undef CB_KEEP_LANES

/* ---- leaves to sums: a binary counter whose digit k holds the sum of 2^k leaves -------------- */

typedef struct CB_TYPED(pairs) {
    uint64_t count;
    CB_REAL level[56];
} CB_TYPED(pairs);

static inline void CB_TYPED(push)(CB_TYPED(pairs) * p, CB_REAL leaf) {
    int k = 0;
    for (uint64_t c = p->count++; c & 1; c >>= 1) leaf = p->level[k++] + leaf;
    p->level[k] = leaf;
}

static inline CB_REAL CB_TYPED(total)(const CB_TYPED(pairs) * p) {
    CB_REAL total = 0;
    int k = 0;
    for (uint64_t c = p->count; c; c >>= 1, k++)
        if (c & 1) total = p->level[k] + total;
    return total;
}

/* ---- rows of any floating dtype -------------------------------------------------------------- */

/* Returns elements at..at+n of a contiguous tensor as CB_REAL: in place, or widened into `tile`. */
static inline const CB_REAL *CB_TYPED(load)(const cb_tensor *t, int64_t at, int64_t n,
                                            CB_REAL *tile) {
#if REAL_BITS == 32
    if (t->dtype != CB_F32) {
        half_widen(t->dtype, cb_at(t, at), tile, n);
        return tile;
    }
#endif
    (void)n;
    (void)tile;
    return cb_at(t, at);
}

/* Returns where to write elements at..: in place, or to `tile`, which CB_TYPED(commit) then rounds
 * and stores. */
static inline CB_REAL *CB_TYPED(target)(const cb_tensor *t, int64_t at, CB_REAL *tile) {
    return is_half(t->dtype) ? tile : cb_at(t, at);
}

static inline void CB_TYPED(commit)(const cb_tensor *t, int64_t at, int64_t n,
                                    const CB_REAL *tile) {
#if REAL_BITS == 32
    if (is_half(t->dtype)) half_narrow(t->dtype, tile, cb_at(t, at), n);
#else
    (void)t, (void)at, (void)n, (void)tile;
#endif
}

/* Stores a row that was computed in another array. */
static inline void CB_TYPED(put_row)(const cb_tensor *t, int64_t at, int64_t n,
                                     const CB_REAL *row) {
    if (is_half(t->dtype)) CB_TYPED(commit)(t, at, n, row);
    else memcpy(cb_at(t, at), row, (size_t)n * sizeof(CB_REAL));
}

/* ---- largest --------------------------------------------------------------------------------- */

/* Maps floats to integers in the same order; every NaN becomes the largest. An integer maximum is
 * the same in any order, so the compiler may vectorise it in any way; the NaN is selected with a
 * mask because gcc turns a conditional into a branch. */
static inline ROW_KEY CB_TYPED(key)(CB_REAL x) {
    const CB_REAL infinity = (CB_REAL)INFINITY;
    ROW_KEY bits, limit;
    memcpy(&bits, &x, sizeof bits);
    memcpy(&limit, &infinity, sizeof limit);
    ROW_KEY nan = -(ROW_KEY)((bits & ROW_KEY_MAX) > limit);
    ROW_KEY ordered = bits ^ ((bits >> (REAL_BITS - 1)) & ROW_KEY_MAX);
    return (ordered & ~nan) | (ROW_KEY_MAX & nan);
}

static inline CB_REAL CB_TYPED(of_key)(ROW_KEY key) {
    ROW_KEY bits = key ^ ((key >> (REAL_BITS - 1)) & ROW_KEY_MAX);
    CB_REAL x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

typedef ROW_KEY CB_TYPED(keys) __attribute__((vector_size(CB_LANE_BYTES)));

static inline CB_TYPED(keys) CB_TYPED(keys_of)(CB_TYPED(full) x) {
    const CB_TYPED(keys) bits = (CB_TYPED(keys))x, magnitude = bits & ROW_KEY_MAX;
    const CB_TYPED(keys) nan = magnitude > ROW_KEY_INFINITY;
    return ((bits ^ ((bits >> (REAL_BITS - 1)) & ROW_KEY_MAX)) & ~nan) | (nan & ROW_KEY_MAX);
}

static inline CB_TYPED(keys) CB_TYPED(larger_keys)(CB_TYPED(keys) a, CB_TYPED(keys) b) {
    const CB_TYPED(keys) more = a > b;
    return (a & more) | (b & ~more);
}

static inline ROW_KEY CB_TYPED(max_key)(const CB_REAL *x, int64_t n, ROW_KEY best) {
    CB_TYPED(keys) most = best - (CB_TYPED(keys)){0};
    int64_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        most = CB_TYPED(larger_keys)(most, CB_TYPED(keys_of)(*(const CB_TYPED(lanes) *)(x + i)));
    if (i < n) { /* lanes without an element keep their maximum */
        const CB_TYPED(full) filled = ROW_FEW(few)(x + i, n - i);
        const CB_TYPED(keys) read =
            (CB_TYPED(keys))ROW_FEW(keep_few)((CB_TYPED(full)) ~(CB_TYPED(keys)){0}, n - i);
        most = CB_TYPED(larger_keys)(most, (CB_TYPED(keys_of)(filled) & read) | (most & ~read));
    }
    ROW_KEY key[ROW_LANES];
    memcpy(key, &most, sizeof key);
    for (int half = ROW_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) key[k] = key[k] > key[k + half] ? key[k] : key[k + half];
    return key[0];
}
