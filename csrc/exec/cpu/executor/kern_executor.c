/* The functions that records point to (executor/record.h), for one instruction set.
 *
 * A function is leaf code that ends in a jump to the next one: it calls nothing and keeps nothing
 * on the stack, since otherwise the compiler could not emit the tail jump. Rare, long code (sine
 * and cosine of huge numbers) is a separate function that is jumped to. */
#include <math.h>

#include "../../../base/kern_half.h"
#include "../../../base/kern_random.h"
#include "../kern.h"
#include "../rows/kern_lanes.h"
#include "scalar.h"
#include "threading.h"
#include "vector_wide.h"

/* ---- operands -------------------------------------------------------------------------------- */

#define EX_EACH(X, ...) X(0, __VA_ARGS__) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__)
#define EX_LOAD_AT(u, q) EX_VM(load)(u + q * EX_LANES * EX_SIZE)
#define EX_STORE_AT(u, q, x) EX_VM(store)(u + q * EX_LANES * EX_SIZE, x)
#define OTHER_0 1
#define OTHER_1 0

#define OPEN_OTHER(u, field)
#define OPEN_SELF(u, field)
#define OPEN_STREAM(u, field) const char *u = c->p[s->field] + i * EX_SIZE;
#define OPEN_SLOT(u, field) const char *u = (const char *)c->EX_FIELD(slot)[s->field];
#define OPEN_SCALAR(u, field) VEC u = EX_VM(of)(c->EX_FIELD(s)[s->field]);
#define FROM_OTHER(u, d, q) EX_GLUE(v, EX_CAT(OTHER_, d), q)
#define FROM_SELF(u, d, q) v##d##q
#define FROM_STREAM(u, d, q) EX_LOAD_AT(u, q)
#define FROM_SLOT(u, d, q) EX_LOAD_AT(u, q)
#define FROM_SCALAR(u, d, q) u
#define EX_CAT_(a, b) a##b
#define EX_CAT(a, b) EX_CAT_(a, b)
#define EX_GLUE_(a, b, c) a##b##c
#define EX_GLUE(a, b, c) EX_GLUE_(a, b, c)

#define CB_SELECT(condition, a, b) EX_VM(select)(condition, a, b)
#define ONE_WHERE(condition) EX_VM(one_where)(condition)
#define CB_ZERO ((VEC){0})
#define CB_ONE EX_VM(of)(1.0f)
#define CB_MATH(name) EX_VM(name)

/* ---- arithmetic ------------------------------------------------------------------------------ */

#define ALL_FORMS(X, ...) \
    X(OTHER, __VA_ARGS__) \
    X(SELF, __VA_ARGS__) X(STREAM, __VA_ARGS__) X(SLOT, __VA_ARGS__) X(SCALAR, __VA_ARGS__)
#define MEMORY_FORMS(X, ...) X(STREAM, __VA_ARGS__) X(SLOT, __VA_ARGS__) X(SCALAR, __VA_ARGS__)

#define BINARY_LANES(q, d, form, expression)          \
    {                                                 \
        VEC x = v##d##q, y = FROM_##form(from, d, q); \
        v##d##q = expression;                         \
    }
#define BINARY_FORM(form, d, id, expression)                                              \
    EX_OP(id##_##d##_##form) {                                                            \
        EX_BEGIN OPEN_##form(from, b) EX_EACH(BINARY_LANES, d, form, expression) EX_NEXT; \
    }
#define EX_BINARY(id, expression)             \
    ALL_FORMS(BINARY_FORM, 0, id, expression) \
    ALL_FORMS(BINARY_FORM, 1, id, expression)
CB_X_BINARY(EX_BINARY)
#define UNARY_LANES(q, d, expression) \
    {                                 \
        VEC x = v##d##q;              \
        v##d##q = expression;         \
    }
#define UNARY_REGISTER(id, d, expression) \
    EX_OP(id##_##d) { EX_BEGIN EX_EACH(UNARY_LANES, d, expression) EX_NEXT; }
#define EX_UNARY(id, expression) UNARY_REGISTER(id, 0, expression) UNARY_REGISTER(id, 1, expression)
CB_X_UNARY(EX_UNARY)

/* Store a register to memory, process it number by number, and load it again. */
#define TO_FAR(q, d) EX_VM(store)(c->EX_FIELD(far) + q * EX_LANES, v##d##q);
#define FROM_FAR(q, d) v##d##q = EX_VM(load)(c->EX_FIELD(far) + q * EX_LANES);
#define FROM_FAR_OTHER(q, d) \
    EX_GLUE(v, EX_CAT(OTHER_, d), q) = EX_VM(load)(c->EX_FIELD(far) + CB_X_LANES + q * EX_LANES);

__attribute__((noinline, cold)) static void each_sin_cos(EX_REAL *x, EX_REAL *cosine) {
    for (int k = 0; k < EX_STEP; k++) {
        EX_REAL from = x[k];
        x[k] = EX_MATH(sin)(from);
        cosine[k] = EX_MATH(cos)(from);
    }
}
#define PAIR_SLOW(name, id, d)                                                                  \
    EX_OP(name##_##d) {                                                                         \
        EX_BEGIN EX_EACH(TO_FAR, d) each_##id(c->EX_FIELD(far), c->EX_FIELD(far) + CB_X_LANES); \
        EX_EACH(FROM_FAR, d)                                                                    \
        EX_EACH(FROM_FAR_OTHER, d)                                                              \
        EX_NEXT;                                                                                \
    }

#ifdef CB_X_WIDE

#undef CB_MATH
#define CB_MATH(name) EX_MATH(name)
#define SLOW_REGISTER(id, d)                                     \
    EX_OP(id##_##d) {                                            \
        EX_BEGIN EX_EACH(TO_FAR, d) id##_each(c->EX_FIELD(far)); \
        EX_EACH(FROM_FAR, d)                                     \
        EX_NEXT;                                                 \
    }
#define EX_SLOW(id, expression)                                        \
    __attribute__((noinline)) static void id##_each(EX_REAL *number) { \
        for (int k = 0; k < EX_STEP; k++) {                            \
            EX_REAL x = number[k];                                     \
            number[k] = expression;                                    \
        }                                                              \
    }                                                                  \
    SLOW_REGISTER(id, 0)                                               \
    SLOW_REGISTER(id, 1)
CB_X_MATH(EX_SLOW)
#define SLOW_ROUND(id, name) EX_SLOW(id, EX_MATH(name)(x))
CB_X_ROUND(SLOW_ROUND)
#undef CB_MATH
#define CB_MATH(name) EX_VM(name)

__attribute__((noinline)) static void each_normal(EX_REAL *x, EX_REAL *density) {
    for (int k = 0; k < EX_STEP; k++) x[k] = EX_MATH(normal)(x[k], &density[k]);
}
PAIR_SLOW(NORMAL, normal, 0)
PAIR_SLOW(NORMAL, normal, 1)
PAIR_SLOW(SIN_COS, sin_cos, 0)
PAIR_SLOW(SIN_COS, sin_cos, 1)

#else

CB_X_MATH(EX_UNARY)
CB_X_HALF(EX_UNARY)

VFN bool any(INT mask) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int32_t all = 0;
    for (int k = 0; k < EX_LANES; k++) all |= mask[k];
    return all != 0;
#endif
}

/* If one number is too large for the vector code, all numbers take the slow path. */
#define FAR_LANES(q, d) far |= EX_VM(abs)(v##d##q) > CB_SIN_MAX_F32;
#define LEAVE_IF_FAR(function, d) \
    INT far = {0};                \
    EX_EACH(FAR_LANES, d)         \
    if (__builtin_expect(any(far), 0)) EX_TO(function##_##d);
#define ROUND_REGISTER(id, name, d)                                                         \
    __attribute__((noinline, cold)) EX_OP(id##_far_##d) {                                   \
        EX_BEGIN EX_EACH(TO_FAR, d) id##_each(c->EX_FIELD(far));                            \
        EX_EACH(FROM_FAR, d)                                                                \
        EX_NEXT;                                                                            \
    }                                                                                       \
    EX_OP(id##_##d) {                                                                       \
        EX_BEGIN LEAVE_IF_FAR(id##_far, d) EX_EACH(UNARY_LANES, d, CB_MATH(name##_near)(x)) \
            EX_NEXT;                                                                        \
    }
#define EX_ROUND(id, name)                                              \
    __attribute__((noinline, cold)) static void id##_each(EX_REAL *x) { \
        for (int k = 0; k < EX_STEP; k++) x[k] = EX_MATH(name)(x[k]);   \
    }                                                                   \
    ROUND_REGISTER(id, name, 0)                                         \
    ROUND_REGISTER(id, name, 1)
CB_X_ROUND(EX_ROUND)

#define PAIR_LANES(q, d, function)            \
    {                                         \
        VEC a, b;                             \
        a = function(v##d##q, &b);            \
        v##d##q = a;                          \
        EX_GLUE(v, EX_CAT(OTHER_, d), q) = b; \
    }
VFN VEC sin_cos(VEC x, VEC *cosine) {
    VEC sine;
    vm_sin_cos_near(x, &sine, cosine);
    return sine;
}
#define SIN_COS_REGISTER(d)                                                            \
    EX_OP(SIN_COS_##d) {                                                               \
        EX_BEGIN LEAVE_IF_FAR(SIN_COS_far, d) EX_EACH(PAIR_LANES, d, sin_cos) EX_NEXT; \
    }
__attribute__((noinline, cold)) PAIR_SLOW(SIN_COS_far, sin_cos, 0) __attribute__((noinline, cold))
PAIR_SLOW(SIN_COS_far, sin_cos, 1) SIN_COS_REGISTER(0) SIN_COS_REGISTER(1) EX_OP(NORMAL_0) {
    EX_BEGIN EX_EACH(PAIR_LANES, 0, vm_normal) EX_NEXT;
}
EX_OP(NORMAL_1) { EX_BEGIN EX_EACH(PAIR_LANES, 1, vm_normal) EX_NEXT; }

#endif

#define SELECT_LANES(q, d, fx, fy) \
    v##d##q = CB_SELECT(v##d##q != 0.0f, FROM_##fx(x, d, q), FROM_##fy(y, d, q));
#define SELECT_FORM(fy, d, fx)                                                             \
    EX_OP(select_##d##_##fx##_##fy) {                                                      \
        EX_BEGIN OPEN_##fx(x, b) OPEN_##fy(y, c) EX_EACH(SELECT_LANES, d, fx, fy) EX_NEXT; \
    }
#define SELECT_REGISTER(d)               \
    MEMORY_FORMS(SELECT_FORM, d, STREAM) \
    MEMORY_FORMS(SELECT_FORM, d, SLOT) MEMORY_FORMS(SELECT_FORM, d, SCALAR)
SELECT_REGISTER(0)
SELECT_REGISTER(1)

/* ---- memory ---------------------------------------------------------------------------------- */

#define LOAD_LANES(q, d, form) v##d##q = FROM_##form(from, d, q);
#define LOAD_FORM(form, d, _) \
    EX_OP(load_##d##_##form) { EX_BEGIN OPEN_##form(from, b) EX_EACH(LOAD_LANES, d, form) EX_NEXT; }
ALL_FORMS(LOAD_FORM, 0, _)
ALL_FORMS(LOAD_FORM, 1, _)

/* Convert an array's elements to a vector, and back. */
VFN VEC of_bytes(const char *from) {
    BYTES bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, INT), VEC);
}
VFN void to_bytes(char *to, VEC x) {
    BYTES bytes = __builtin_convertvector(__builtin_convertvector(x, INT), BYTES);
    memcpy(to, &bytes, sizeof bytes);
}

/* Maps floats to integers in the same order; every NaN becomes the largest (kern_rows.h). */
VFN INT key_of(VEC x) {
    INT bits = (INT)x, magnitude = bits & EX_KEY_MAX;
    INT nan = magnitude > (EX_KEY)EX_KEY_INFINITY;
    INT ordered = bits ^ ((bits >> (8 * EX_SIZE - 1)) & EX_KEY_MAX);
    return (ordered & ~nan) | (nan & EX_KEY_MAX);
}

#define UNPACK_LANES(q, d, of, size) v##d##q = of(from + q * EX_LANES * (size));
#define PACK_LANES(q, d, into, size) into(to + q * EX_LANES * (size), v##d##q);
#define STORE_LANES(q, d) EX_STORE_AT(to, q, v##d##q);
#define STORE_FAR_LANES(q, d) EX_VM(store_far)(to + q * EX_LANES * EX_SIZE, v##d##q);
#define ADD_LANES(q, d) EX_STORE_AT(to, q, EX_LOAD_AT(to, q) + v##d##q);
#define EX_MASK(q) (INT) EX_LOAD_AT(mask, q)
#define ADD_MASKED(q, d) EX_STORE_AT(to, q, EX_LOAD_AT(to, q) + (VEC)((INT)v##d##q & EX_MASK(q)));
#define STORE_LARGER(q, key) \
    EX_STORE_AT(to, q, (VEC)EX_VM(larger_int)((INT)EX_LOAD_AT(to, q), key));
#define EX_LARGEST(q, d, sign) STORE_LARGER(q, key_of(sign v##d##q))
#define LARGEST_MASKED(q, d, sign) \
    STORE_LARGER(q, (key_of(sign v##d##q) & EX_MASK(q)) | (~EX_MASK(q) & EX_KEY_MIN))

#include "kern_scaled.h"
/* Uses macros of kern_scaled.h. */
#include "kern_made.h"

#define TO_STREAM char *to = c->p[s->dst] + i * EX_SIZE;
#define TO_ACC char *to = (char *)(c->EX_FIELD(acc)[s->dst] + (i & (CB_X_LANES - 1)));
#define WITH_MASK const char *mask = (const char *)(c->EX_FIELD(mask) + (i & (CB_X_LANES - 1)));

#define EX_PACKED(d, name, size)                             \
    EX_OP(unpack_##name##_##d) {                             \
        EX_BEGIN const char *from = c->p[s->b] + i * (size); \
        EX_EACH(UNPACK_LANES, d, of_##name, size)            \
        EX_NEXT;                                             \
    }                                                        \
    EX_OP(store_##name##_##d) {                              \
        EX_BEGIN char *to = c->p[s->dst] + i * (size);       \
        EX_EACH(PACK_LANES, d, to_##name, size)              \
        EX_NEXT;                                             \
    }
EX_PACKED(0, bytes, 1)
EX_PACKED(1, bytes, 1)

#ifndef CB_X_WIDE
VFN VEC of_bf16(const char *from) {
    VS half;
    memcpy(&half, from, sizeof half);
    return (VEC)(vm_of_halves(half) << 16);
}
VFN void to_bf16(char *to, VEC x) {
    VS half = vm_to_halves((VU)vm_round_bf16(x) >> 16);
    memcpy(to, &half, sizeof half);
}
VFN VEC of_f16(const char *from) {
    VS half;
    memcpy(&half, from, sizeof half);
    return vm_of_f16(half);
}
VFN void to_f16(char *to, VEC x) {
    VS half = vm_to_f16(x);
    memcpy(to, &half, sizeof half);
}
EX_PACKED(0, bf16, 2)
EX_PACKED(1, bf16, 2)
EX_PACKED(0, f16, 2)
EX_PACKED(1, f16, 2)

/* Packs two vectors of halves into one vector. */
#define PACK_FAR_LANES(q, r, d, name)                              \
    {                                                              \
        char two[2 * EX_LANES * 2];                                \
        to_##name(two, v##d##q);                                   \
        to_##name(two + EX_LANES * 2, v##d##r);                    \
        EX_VM(store_far)(to + q * EX_LANES * 2, EX_VM(load)(two)); \
    }
#define PACKED_FAR(d, name)                       \
    EX_OP(store_far_##name##_##d) {               \
        EX_BEGIN char *to = c->p[s->dst] + i * 2; \
        PACK_FAR_LANES(0, 1, d, name)             \
        PACK_FAR_LANES(2, 3, d, name)             \
        EX_NEXT;                                  \
    }
PACKED_FAR(0, bf16)
PACKED_FAR(1, bf16)
PACKED_FAR(0, f16)
PACKED_FAR(1, f16)
#endif

/* Access an element of the row by its position, which is rarely in the current lanes. */
#define EX_LANE_AT const int64_t lane = (int64_t)c->EX_FIELD(s)[s->b] - i;
#define IF_HERE if (__builtin_expect((uint64_t)lane < EX_STEP, 0))

#define EX_MEMORY(d)                                                                           \
    EX_OP(store_##d) { EX_BEGIN TO_STREAM EX_EACH(STORE_LANES, d) EX_NEXT; }                   \
    EX_OP(store_far_##d) { EX_BEGIN TO_STREAM EX_EACH(STORE_FAR_LANES, d) EX_NEXT; }           \
    EX_OP(spill_##d) {                                                                         \
        EX_BEGIN char *to = (char *)c->EX_FIELD(slot)[s->dst];                                 \
        EX_EACH(STORE_LANES, d)                                                                \
        EX_NEXT;                                                                               \
    }                                                                                          \
    EX_OP(take_##d) {                                                                          \
        EX_BEGIN EX_LANE_AT IF_HERE {                                                          \
            EX_EACH(TO_FAR, d)                                                                 \
            c->EX_FIELD(s)[s->dst] = c->EX_FIELD(far)[lane];                                   \
        }                                                                                      \
        EX_NEXT;                                                                               \
    }                                                                                          \
    EX_OP(add_at_##d) {                                                                        \
        EX_BEGIN EX_LANE_AT IF_HERE {                                                          \
            EX_EACH(TO_FAR, d)                                                                 \
            c->EX_FIELD(far)[lane] += c->EX_FIELD(s)[s->c];                                    \
            EX_EACH(FROM_FAR, d)                                                               \
        }                                                                                      \
        EX_NEXT;                                                                               \
    }                                                                                          \
    EX_OP(column_##d) { EX_BEGIN TO_STREAM EX_EACH(ADD_LANES, d) EX_NEXT; }                    \
    EX_OP(column_max_##d) { EX_BEGIN TO_STREAM EX_EACH(EX_LARGEST, d, ) EX_NEXT; }             \
    EX_OP(column_min_##d) { EX_BEGIN TO_STREAM EX_EACH(EX_LARGEST, d, -) EX_NEXT; }            \
    EX_OP(acc_##d) { EX_BEGIN TO_ACC EX_EACH(ADD_LANES, d) EX_NEXT; }                          \
    EX_OP(acc_masked_##d) { EX_BEGIN TO_ACC WITH_MASK EX_EACH(ADD_MASKED, d) EX_NEXT; }        \
    EX_OP(amax_##d) { EX_BEGIN TO_ACC EX_EACH(EX_LARGEST, d, ) EX_NEXT; }                      \
    EX_OP(amax_masked_##d) { EX_BEGIN TO_ACC WITH_MASK EX_EACH(LARGEST_MASKED, d, ) EX_NEXT; } \
    EX_OP(amin_##d) { EX_BEGIN TO_ACC EX_EACH(EX_LARGEST, d, -) EX_NEXT; }                     \
    EX_OP(amin_masked_##d) { EX_BEGIN TO_ACC WITH_MASK EX_EACH(LARGEST_MASKED, d, -) EX_NEXT; }
EX_MEMORY(0)
EX_MEMORY(1)

/* ---- control --------------------------------------------------------------------------------- */

#define EX_PREFETCH(name, size)                                                           \
    EX_OP(name) {                                                                         \
        EX_BEGIN const char *from = c->p[s->dst] + (i + s->b) * (size);                   \
        for (int k = 0; k < EX_STEP * (int)(size); k += 64) __builtin_prefetch(from + k); \
        EX_NEXT;                                                                          \
    }
EX_PREFETCH(prefetch, EX_SIZE)
#ifndef CB_X_WIDE
EX_PREFETCH(prefetch_half, 2)
#endif

EX_OP(loop) {
    EX_BEGIN i += EX_STEP;
    if (i < c->end) EX_LOOP_AGAIN;
    EX_NEXT;
}

/* Not inlined: for a constant x gcc would emit a string instruction, which takes longer than
 * everything else. */
__attribute__((noinline)) static void set_lanes(cb_x_context *c, int k, VEC x) {
    char *to = (char *)c->EX_FIELD(acc)[k];
    for (int lane = 0; lane < CB_X_LANES; lane += EX_LANES) EX_VM(store)(to + lane * EX_SIZE, x);
}

static void fold(cb_x_context *c, int first, int n) {
    for (int k = first; k < first + n; k++) {
        const EX_REAL leaf = EX_MATH(fold)(c->EX_FIELD(acc)[k]);
        set_lanes(c, k, CB_ZERO);
        cb_x_pairs *p = &c->sum[k];
        EX_REAL *leaves = p->leaves;
        if (leaves) {
            *leaves = leaf;
            p->leaves = leaves + 1;
            continue;
        }
        EX_PUSH(p, leaf);
    }
}

/* Converts a key to a number: the inverse of key_of. */
static void largest(cb_x_context *c, int k, int to, bool is_min) {
    const char *from = (const char *)c->EX_FIELD(acc)[k];
    INT best = (INT)EX_VM(load)(from);
    for (int lane = EX_LANES; lane < CB_X_LANES; lane += EX_LANES)
        best = EX_VM(larger_int)(best, (INT)EX_VM(load)(from + lane * EX_SIZE));
    EX_KEY key[EX_LANES];
    memcpy(key, &best, sizeof key);
    for (int n = EX_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) key[i] = key[i] > key[i + n] ? key[i] : key[i + n];
    const EX_KEY bits = key[0] ^ ((key[0] >> (8 * EX_SIZE - 1)) & EX_KEY_MAX);
    EX_REAL x;
    memcpy(&x, &bits, sizeof x);
    c->EX_FIELD(s)[to] = is_min ? -x : x;
    set_lanes(c, k, (VEC)((INT){0} + EX_KEY_MIN));
}

static void add(void *to, const void *from, int64_t n) {
    EX_REAL *restrict t = to;
    const EX_REAL *restrict f = from;
    for (int64_t i = 0; i < n; i++) t[i] += f[i];
}

#include "kern_together.h"

static void to_lanes(cb_x_context *c, int k, int64_t at, const void *line, int64_t n) {
    const EX_REAL *from = line;
    for (int64_t some; n > 0; at += some, from += some, n -= some) {
        some = EX_ADD_LANES(c->EX_FIELD(acc)[k], at, from, n, CB_X_LEAF);
        if (((at + some) & (CB_X_LEAF - 1)) == 0) fold(c, k, 1);
    }
}

__attribute__((noinline)) static void fold_leaf(cb_x_context *c, const cb_record *s) {
    fold(c, s->b, s->c);
}

/* Folds totals at the end of an iteration: the leaves of a sum over all elements do not begin where
 * rows begin. */
EX_OP(totals) {
    EX_BEGIN
    if (((i + EX_STEP + c->leaf) & (CB_X_LEAF - 1)) == 0) {
        fold_leaf(c, s);
        v00 = v01 = v02 = v03 = v10 = v11 = v12 = v13 = CB_ZERO; /* nothing is kept over a call */
    }
    EX_NEXT;
}

/* Appends the sum of a piece of the row to the stream of piece sums. */
__attribute__((noinline)) static void put_piece(cb_x_context *c, const cb_record *s, int64_t i,
                                                bool is_mean) {
    const int64_t length = (int64_t)1 << (s->c & 0xFF), at = i >> (s->c & 0xFF);
    EX_REAL sum = 0 + EX_MATH(fold)(c->EX_FIELD(acc)[s->b]);
    set_lanes(c, s->b, CB_ZERO);
    if (is_mean) sum /= (EX_REAL)length;
#ifndef CB_X_WIDE
    if (s->c >> 8 != CB_X_REAL) {
        const uint16_t half = s->c >> 8 == CB_X_BF16 ? half_store_bf16(sum) : half_store_f16(sum);
        memcpy(c->p[s->dst] + at * (int64_t)sizeof half, &half, sizeof half);
        return;
    }
#endif
    memcpy(c->p[s->dst] + at * EX_SIZE, &sum, sizeof sum);
}
#define EX_PIECE(name, is_mean)                                                           \
    EX_OP(name) {                                                                         \
        EX_BEGIN                                                                          \
        if (((i + EX_STEP) & (((int64_t)1 << (s->c & 0xFF)) - 1)) == 0) {                 \
            put_piece(c, s, i, is_mean);                                                  \
            v00 = v01 = v02 = v03 = v10 = v11 = v12 = v13 = CB_ZERO; /* as in `totals` */ \
        }                                                                                 \
        EX_NEXT;                                                                          \
    }
EX_PIECE(piece_sum, false)
EX_PIECE(piece_mean, true)

/* Like `loop`, and folds the sums s->b .. s->b + s->c at the end of each leaf. */
EX_OP(loop_sums) {
    EX_BEGIN i += EX_STEP;
    if ((i & (CB_X_LEAF - 1)) == 0) {
        fold_leaf(c, s);
        v00 = v01 = v02 = v03 = v10 = v11 = v12 = v13 = CB_ZERO; /* nothing is kept over a call */
    }
    if (i < c->end) EX_LOOP_AGAIN;
    EX_NEXT;
}

EX_OP(end) {
    EX_BEGIN(void) c, (void)s, (void)i;
    (void)v00, (void)v01, (void)v02, (void)v03, (void)v10, (void)v11, (void)v12, (void)v13;
    EX_FINISH;
}

#ifndef CB_X_CALLS
static void run(cb_x_context *c, const cb_record *s, int64_t i) {
    VEC v00 = CB_ZERO, v01 = v00, v02 = v00, v03 = v00, v10 = v00, v11 = v00, v12 = v00, v13 = v00;
    c->again = s;
    ((op_fn)s->fn)(c, s, i, v00, v01, v02, v03, v10, v11, v12, v13);
    v_leave();
}
#else
static void run(cb_x_context *c, const cb_record *s, int64_t i) {
    memset(c->EX_FIELD(reg), 0, sizeof c->EX_FIELD(reg));
    c->again = s;
    while (s) s = run_one(c, s, &i);
}
#endif

/* ---- random numbers -------------------------------------------------------------------------- */

static void keep(const cb_philox *random, uint64_t first, uint32_t threshold, void *numbers,
                 int64_t n) {
    EX_REAL *out = numbers;
    if (threshold > UINT16_MAX) { /* nothing is kept */
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t at = 0; at < n; at += CB_DRAWN) {
        const uint64_t block = (first + (uint64_t)at) / CB_PHILOX_BLOCK;
#ifdef CB_X_WIDE
        float piece[CB_DRAWN];
        cb_draw_kept(random, block, threshold, piece);
        for (int k = 0; k < CB_DRAWN; k++) out[at + k] = piece[k];
#else
        cb_draw_kept(random, block, threshold, out + at);
#endif
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

#define EX_FN(name) (cb_x_fn) name
#define FORMS_ROW(name)                                                                 \
    {EX_FN(name##_OTHER), EX_FN(name##_SELF), EX_FN(name##_STREAM), EX_FN(name##_SLOT), \
     EX_FN(name##_SCALAR)}
#define BINARY_ROW(id, expression) {FORMS_ROW(id##_0), FORMS_ROW(id##_1)},
#define UNARY_ROW(id, ...) {EX_FN(id##_0), EX_FN(id##_1)},
#define SELECT_ROW(d, fx)                                                \
    {EX_FN(select_##d##_##fx##_STREAM), EX_FN(select_##d##_##fx##_SLOT), \
     EX_FN(select_##d##_##fx##_SCALAR)}
#define LOAD_ROW(d) FORMS_ROW(load_##d)

#ifdef CB_X_WIDE
#define CB_X_TABLE_OF(isa) EX_CAT(cb_x_wide_, isa)
#else
#define CB_X_TABLE_OF(isa) EX_CAT(cb_x_table_, isa)
#endif
extern const cb_x_table CB_X_TABLE_OF(CB_KERN_ISA);
const cb_x_table CB_X_TABLE_OF(CB_KERN_ISA) = {
    .is_wide = sizeof(EX_REAL) == sizeof(double),
    .register_bytes = 4 * sizeof(VEC),
    .binary = {CB_X_BINARY(BINARY_ROW)},
    .select = {{SELECT_ROW(0, STREAM), SELECT_ROW(0, SLOT), SELECT_ROW(0, SCALAR)},
               {SELECT_ROW(1, STREAM), SELECT_ROW(1, SLOT), SELECT_ROW(1, SCALAR)}},
    .load = {LOAD_ROW(0), LOAD_ROW(1)},
    .pair = {CB_X_PAIR(UNARY_ROW)},
#ifdef CB_X_WIDE
    .unary = {CB_X_UNARY(UNARY_ROW) CB_X_MATH(UNARY_ROW) CB_X_ROUND(UNARY_ROW)},
    .unpack = {[CB_X_BYTE] = {EX_FN(unpack_bytes_0), EX_FN(unpack_bytes_1)}},
    .store = {[CB_X_REAL] = {EX_FN(store_0), EX_FN(store_1)},
              [CB_X_BYTE] = {EX_FN(store_bytes_0), EX_FN(store_bytes_1)}},
    .store_far = {{EX_FN(store_far_0), EX_FN(store_far_1)}},
    .prefetch = {EX_FN(prefetch)},
#else
    .unary = {CB_X_UNARY(UNARY_ROW) CB_X_MATH(UNARY_ROW) CB_X_ROUND(UNARY_ROW)
                  CB_X_HALF(UNARY_ROW)},
    .unpack = {[CB_X_BF16] = {EX_FN(unpack_bf16_0), EX_FN(unpack_bf16_1)},
               [CB_X_F16] = {EX_FN(unpack_f16_0), EX_FN(unpack_f16_1)},
               [CB_X_BYTE] = {EX_FN(unpack_bytes_0), EX_FN(unpack_bytes_1)}},
    .store = {{EX_FN(store_0), EX_FN(store_1)},
              {EX_FN(store_bf16_0), EX_FN(store_bf16_1)},
              {EX_FN(store_f16_0), EX_FN(store_f16_1)},
              {EX_FN(store_bytes_0), EX_FN(store_bytes_1)}},
    .store_far = {{EX_FN(store_far_0), EX_FN(store_far_1)},
                  {EX_FN(store_far_bf16_0), EX_FN(store_far_bf16_1)},
                  {EX_FN(store_far_f16_0), EX_FN(store_far_f16_1)}},
    .prefetch = {EX_FN(prefetch), EX_FN(prefetch_half), EX_FN(prefetch_half)},
#endif
    .acc = {{EX_FN(acc_0), EX_FN(acc_1)}, {EX_FN(acc_masked_0), EX_FN(acc_masked_1)}},
    .amax = {{EX_FN(amax_0), EX_FN(amax_1)}, {EX_FN(amax_masked_0), EX_FN(amax_masked_1)}},
    .amin = {{EX_FN(amin_0), EX_FN(amin_1)}, {EX_FN(amin_masked_0), EX_FN(amin_masked_1)}},
    .take = {EX_FN(take_0), EX_FN(take_1)},
    .add_at = {EX_FN(add_at_0), EX_FN(add_at_1)},
    .column = {EX_FN(column_0), EX_FN(column_1)},
    .column_max = {EX_FN(column_max_0), EX_FN(column_max_1)},
    .column_min = {EX_FN(column_min_0), EX_FN(column_min_1)},
    .spill = {EX_FN(spill_0), EX_FN(spill_1)},
    .totals = EX_FN(totals),
    .piece = {EX_FN(piece_sum), EX_FN(piece_mean)},
    .loop = EX_FN(loop),
    .loop_sums = EX_FN(loop_sums),
    .end = EX_FN(end),
    .run = run,
    .fold = fold,
    .add = add,
    .row_sums = row_sums,
    .row_largest = row_largest,
    .spread = spread,
    .add_rows = add_rows,
    .numbers_of_rows = numbers_of_rows,
    .to_lanes = to_lanes,
    .largest = largest,
    .keep = keep,
    SCALED_TABLES MADE_TABLES};
