/* The functions that records point to (executor/record.h), for one instruction set.
 *
 * A function is leaf code that ends in a jump to the next one: it calls nothing and keeps nothing
 * on the stack, since a compiler that has to clean up after it would give up the jump. What is rare
 * and long (sine and cosine of huge numbers) is a function of its own that is jumped to. */
#include <math.h>

#include "../../../base/kern_half.h"
#include "../../../base/kern_random.h"
#include "../kern.h"
#include "../rows/kern_fold.h"
#include "scalar.h"
#include "threading.h"
#include "vector_wide.h"

/* ---- operands -------------------------------------------------------------------------------- */

#define EACH(X, ...) X(0, __VA_ARGS__) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__)
#define OTHER_0 1
#define OTHER_1 0

#define OPEN_OTHER(u, field)
#define OPEN_SELF(u, field)
#define OPEN_STREAM(u, field) const char *u = c->p[s->field] + i * SIZE;
#define OPEN_SLOT(u, field) const char *u = (const char *)c->FIELD(slot)[s->field];
#define OPEN_SCALAR(u, field) VEC u = VM(of)(c->FIELD(s)[s->field]);
#define FROM_OTHER(u, d, q) GLUE(v, CAT(OTHER_, d), q)
#define FROM_SELF(u, d, q) v##d##q
#define FROM_STREAM(u, d, q) VM(load)(u + q * LANES * SIZE)
#define FROM_SLOT(u, d, q) VM(load)(u + q * LANES * SIZE)
#define FROM_SCALAR(u, d, q) u
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define GLUE_(a, b, c) a##b##c
#define GLUE(a, b, c) GLUE_(a, b, c)

#define SEL(condition, a, b) VM(select)(condition, a, b)
#define ONE_WHERE(condition) VM(one_where)(condition)
#define ZERO ((VEC){0})
#define ONE VM(of)(1.0f)
#define F(name) VM(name)

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
#define BINARY_FORM(form, d, id, expression)                                     \
    OP(id##_##d##_##form) {                                                      \
        BEGIN OPEN_##form(from, b) EACH(BINARY_LANES, d, form, expression) NEXT; \
    }
#define BINARY(id, expression)                \
    ALL_FORMS(BINARY_FORM, 0, id, expression) \
    ALL_FORMS(BINARY_FORM, 1, id, expression)
CB_X_BINARY(BINARY)
#define UNARY_LANES(q, d, expression) \
    {                                 \
        VEC x = v##d##q;              \
        v##d##q = expression;         \
    }
#define UNARY_REGISTER(id, d, expression) \
    OP(id##_##d) { BEGIN EACH(UNARY_LANES, d, expression) NEXT; }
#define UNARY(id, expression) UNARY_REGISTER(id, 0, expression) UNARY_REGISTER(id, 1, expression)
CB_X_UNARY(UNARY)

/* Through memory, number by number. */
#define TO_FAR(q, d) VM(store)(c->FIELD(far) + q * LANES, v##d##q);
#define FROM_FAR(q, d) v##d##q = VM(load)(c->FIELD(far) + q * LANES);
#define FROM_FAR_OTHER(q, d) \
    GLUE(v, CAT(OTHER_, d), q) = VM(load)(c->FIELD(far) + CB_X_LANES + q * LANES);

__attribute__((noinline, cold)) static void each_sin_cos(REAL *x, REAL *cosine) {
    for (int k = 0; k < STEP; k++) {
        REAL from = x[k];
        x[k] = MATH(sin)(from);
        cosine[k] = MATH(cos)(from);
    }
}
#define PAIR_SLOW(name, id, d)                                                      \
    OP(name##_##d) {                                                                \
        BEGIN EACH(TO_FAR, d) each_##id(c->FIELD(far), c->FIELD(far) + CB_X_LANES); \
        EACH(FROM_FAR, d)                                                           \
        EACH(FROM_FAR_OTHER, d)                                                     \
        NEXT;                                                                       \
    }

#ifdef CB_X_WIDE

#undef F
#define F(name) MATH(name)
#define SLOW_REGISTER(id, d)                            \
    OP(id##_##d) {                                      \
        BEGIN EACH(TO_FAR, d) id##_each(c->FIELD(far)); \
        EACH(FROM_FAR, d)                               \
        NEXT;                                           \
    }
#define SLOW(id, expression)                                        \
    __attribute__((noinline)) static void id##_each(REAL *number) { \
        for (int k = 0; k < STEP; k++) {                            \
            REAL x = number[k];                                     \
            number[k] = expression;                                 \
        }                                                           \
    }                                                               \
    SLOW_REGISTER(id, 0)                                            \
    SLOW_REGISTER(id, 1)
CB_X_MATH(SLOW)
#define SLOW_ROUND(id, name) SLOW(id, MATH(name)(x))
CB_X_ROUND(SLOW_ROUND)
#undef F
#define F(name) VM(name)

__attribute__((noinline)) static void each_normal(REAL *x, REAL *density) {
    for (int k = 0; k < STEP; k++) x[k] = MATH(normal)(x[k], &density[k]);
}
PAIR_SLOW(NORMAL, normal, 0)
PAIR_SLOW(NORMAL, normal, 1)
PAIR_SLOW(SIN_COS, sin_cos, 0)
PAIR_SLOW(SIN_COS, sin_cos, 1)

#else

CB_X_MATH(UNARY)
CB_X_HALF(UNARY)

VFN bool any(INT mask) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int32_t all = 0;
    for (int k = 0; k < LANES; k++) all |= mask[k];
    return all != 0;
#endif
}

/* Where a number is too large for the vectors, all take the slow way. */
#define FAR_LANES(q, d) far |= VM(abs)(v##d##q) > CB_SIN_MAX_F32;
#define LEAVE_IF_FAR(function, d) \
    INT far = {0};                \
    EACH(FAR_LANES, d)            \
    if (__builtin_expect(any(far), 0)) TO(function##_##d);
#define ROUND_REGISTER(id, name, d)                     \
    __attribute__((noinline, cold)) OP(id##_far_##d) {  \
        BEGIN EACH(TO_FAR, d) id##_each(c->FIELD(far)); \
        EACH(FROM_FAR, d)                               \
        NEXT;                                           \
    }                                                   \
    OP(id##_##d) { BEGIN LEAVE_IF_FAR(id##_far, d) EACH(UNARY_LANES, d, F(name##_near)(x)) NEXT; }
#define ROUND(id, name)                                              \
    __attribute__((noinline, cold)) static void id##_each(REAL *x) { \
        for (int k = 0; k < STEP; k++) x[k] = MATH(name)(x[k]);      \
    }                                                                \
    ROUND_REGISTER(id, name, 0)                                      \
    ROUND_REGISTER(id, name, 1)
CB_X_ROUND(ROUND)

#define PAIR_LANES(q, d, function)      \
    {                                   \
        VEC a, b;                       \
        a = function(v##d##q, &b);      \
        v##d##q = a;                    \
        GLUE(v, CAT(OTHER_, d), q) = b; \
    }
VFN VEC sin_cos(VEC x, VEC *cosine) {
    VEC sine;
    vm_sin_cos_near(x, &sine, cosine);
    return sine;
}
#define SIN_COS_REGISTER(d) \
    OP(SIN_COS_##d) { BEGIN LEAVE_IF_FAR(SIN_COS_far, d) EACH(PAIR_LANES, d, sin_cos) NEXT; }
__attribute__((noinline, cold)) PAIR_SLOW(SIN_COS_far, sin_cos, 0) __attribute__((noinline, cold))
PAIR_SLOW(SIN_COS_far, sin_cos, 1) SIN_COS_REGISTER(0) SIN_COS_REGISTER(1) OP(NORMAL_0) {
    BEGIN EACH(PAIR_LANES, 0, vm_normal) NEXT;
}
OP(NORMAL_1) { BEGIN EACH(PAIR_LANES, 1, vm_normal) NEXT; }

#endif

#define SELECT_LANES(q, d, fx, fy) \
    v##d##q = SEL(v##d##q != 0.0f, FROM_##fx(x, d, q), FROM_##fy(y, d, q));
#define SELECT_FORM(fy, d, fx)                                                    \
    OP(select_##d##_##fx##_##fy) {                                                \
        BEGIN OPEN_##fx(x, b) OPEN_##fy(y, c) EACH(SELECT_LANES, d, fx, fy) NEXT; \
    }
#define SELECT_REGISTER(d)               \
    MEMORY_FORMS(SELECT_FORM, d, STREAM) \
    MEMORY_FORMS(SELECT_FORM, d, SLOT) MEMORY_FORMS(SELECT_FORM, d, SCALAR)
SELECT_REGISTER(0)
SELECT_REGISTER(1)

/* ---- memory ---------------------------------------------------------------------------------- */

#define LOAD_LANES(q, d, form) v##d##q = FROM_##form(from, d, q);
#define LOAD_FORM(form, d, _) \
    OP(load_##d##_##form) { BEGIN OPEN_##form(from, b) EACH(LOAD_LANES, d, form) NEXT; }
ALL_FORMS(LOAD_FORM, 0, _)
ALL_FORMS(LOAD_FORM, 1, _)

/* How an array's elements become a vector, and a vector becomes such elements. */
VFN VEC of_bytes(const char *from) {
    BYTES bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, INT), VEC);
}
VFN void to_bytes(char *to, VEC x) {
    BYTES bytes = __builtin_convertvector(__builtin_convertvector(x, INT), BYTES);
    memcpy(to, &bytes, sizeof bytes);
}

/* Floats in order as integers, every NaN the largest (kern_rows.h). */
VFN INT key_of(VEC x) {
    INT bits = (INT)x, magnitude = bits & KEY_MAX;
    INT nan = magnitude > (KEY)KEY_INFINITY;
    INT ordered = bits ^ ((bits >> (8 * SIZE - 1)) & KEY_MAX);
    return (ordered & ~nan) | (nan & KEY_MAX);
}

#define UNPACK_LANES(q, d, of, size) v##d##q = of(from + q * LANES * (size));
#define PACK_LANES(q, d, into, size) into(to + q * LANES * (size), v##d##q);
#define STORE_LANES(q, d) VM(store)(to + q * LANES * SIZE, v##d##q);
#define STORE_FAR_LANES(q, d) VM(store_far)(to + q * LANES * SIZE, v##d##q);
#define ADD_LANES(q, d) VM(store)(to + q * LANES * SIZE, VM(load)(to + q * LANES * SIZE) + v##d##q);
#define MASK(q) (INT) VM(load)(mask + q * LANES * SIZE)
#define ADD_MASKED(q, d) \
    VM(store)            \
    (to + q * LANES * SIZE, VM(load)(to + q * LANES * SIZE) + (VEC)((INT)v##d##q & MASK(q)));
#define LARGEST(q, d, sign) \
    VM(store)               \
    (to + q * LANES * SIZE, \
     (VEC)VM(larger_int)((INT)VM(load)(to + q * LANES * SIZE), key_of(sign v##d##q)));
#define LARGEST_MASKED(q, d, sign)                             \
    VM(store)                                                  \
    (to + q * LANES * SIZE,                                    \
     (VEC)VM(larger_int)((INT)VM(load)(to + q * LANES * SIZE), \
                         (key_of(sign v##d##q) & MASK(q)) | (~MASK(q) & KEY_MIN)));

#include "kern_scaled.h"

#define TO_STREAM char *to = c->p[s->dst] + i * SIZE;
#define TO_ACC char *to = (char *)(c->FIELD(acc)[s->dst] + (i & (CB_X_LANES - 1)));
#define WITH_MASK const char *mask = (const char *)(c->FIELD(mask) + (i & (CB_X_LANES - 1)));

#define PACKED(d, name, size)                             \
    OP(unpack_##name##_##d) {                             \
        BEGIN const char *from = c->p[s->b] + i * (size); \
        EACH(UNPACK_LANES, d, of_##name, size)            \
        NEXT;                                             \
    }                                                     \
    OP(store_##name##_##d) {                              \
        BEGIN char *to = c->p[s->dst] + i * (size);       \
        EACH(PACK_LANES, d, to_##name, size)              \
        NEXT;                                             \
    }
PACKED(0, bytes, 1)
PACKED(1, bytes, 1)

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
PACKED(0, bf16, 2)
PACKED(1, bf16, 2)
PACKED(0, f16, 2)
PACKED(1, f16, 2)

/* Two vectors of halves are one vector. */
#define PACK_FAR_LANES(q, r, d, name)                     \
    {                                                     \
        char two[2 * LANES * 2];                          \
        to_##name(two, v##d##q);                          \
        to_##name(two + LANES * 2, v##d##r);              \
        VM(store_far)(to + q * LANES * 2, VM(load)(two)); \
    }
#define PACKED_FAR(d, name)                    \
    OP(store_far_##name##_##d) {               \
        BEGIN char *to = c->p[s->dst] + i * 2; \
        PACK_FAR_LANES(0, 1, d, name)          \
        PACK_FAR_LANES(2, 3, d, name)          \
        NEXT;                                  \
    }
PACKED_FAR(0, bf16)
PACKED_FAR(1, bf16)
PACKED_FAR(0, f16)
PACKED_FAR(1, f16)
#endif

/* An element of the row by its position, which rarely is one of the running lanes. */
#define WHERE const int64_t lane = (int64_t)c->FIELD(s)[s->b] - i;
#define IF_HERE if (__builtin_expect((uint64_t)lane < STEP, 0))

#define MEMORY(d)                                                                  \
    OP(store_##d) { BEGIN TO_STREAM EACH(STORE_LANES, d) NEXT; }                   \
    OP(store_far_##d) { BEGIN TO_STREAM EACH(STORE_FAR_LANES, d) NEXT; }           \
    OP(spill_##d) {                                                                \
        BEGIN char *to = (char *)c->FIELD(slot)[s->dst];                           \
        EACH(STORE_LANES, d)                                                       \
        NEXT;                                                                      \
    }                                                                              \
    OP(take_##d) {                                                                 \
        BEGIN WHERE IF_HERE {                                                      \
            EACH(TO_FAR, d)                                                        \
            c->FIELD(s)[s->dst] = c->FIELD(far)[lane];                             \
        }                                                                          \
        NEXT;                                                                      \
    }                                                                              \
    OP(add_at_##d) {                                                               \
        BEGIN WHERE IF_HERE {                                                      \
            EACH(TO_FAR, d)                                                        \
            c->FIELD(far)[lane] += c->FIELD(s)[s->c];                              \
            EACH(FROM_FAR, d)                                                      \
        }                                                                          \
        NEXT;                                                                      \
    }                                                                              \
    OP(column_##d) { BEGIN TO_STREAM EACH(ADD_LANES, d) NEXT; }                    \
    OP(acc_##d) { BEGIN TO_ACC EACH(ADD_LANES, d) NEXT; }                          \
    OP(acc_masked_##d) { BEGIN TO_ACC WITH_MASK EACH(ADD_MASKED, d) NEXT; }        \
    OP(amax_##d) { BEGIN TO_ACC EACH(LARGEST, d, ) NEXT; }                         \
    OP(amax_masked_##d) { BEGIN TO_ACC WITH_MASK EACH(LARGEST_MASKED, d, ) NEXT; } \
    OP(amin_##d) { BEGIN TO_ACC EACH(LARGEST, d, -) NEXT; }                        \
    OP(amin_masked_##d) { BEGIN TO_ACC WITH_MASK EACH(LARGEST_MASKED, d, -) NEXT; }
MEMORY(0)
MEMORY(1)

/* ---- control --------------------------------------------------------------------------------- */

#define PREFETCH(name, size)                                                           \
    OP(name) {                                                                         \
        BEGIN const char *from = c->p[s->dst] + (i + s->b) * (size);                   \
        for (int k = 0; k < STEP * (int)(size); k += 64) __builtin_prefetch(from + k); \
        NEXT;                                                                          \
    }
PREFETCH(prefetch, SIZE)
#ifndef CB_X_WIDE
PREFETCH(prefetch_half, 2)
#endif

OP(loop) {
    BEGIN i += STEP;
    if (i < c->end) LOOP_AGAIN;
    NEXT;
}

/* Not inlined: of constants gcc makes a copy of strings, which takes longer than all else. */
__attribute__((noinline)) static void set_lanes(cb_x_context *c, int k, VEC x) {
    char *to = (char *)c->FIELD(acc)[k];
    for (int lane = 0; lane < CB_X_LANES; lane += LANES) VM(store)(to + lane * SIZE, x);
}

static void fold(cb_x_context *c, int first, int n) {
    for (int k = first; k < first + n; k++) {
        const REAL leaf = MATH(fold)(c->FIELD(acc)[k]);
        set_lanes(c, k, ZERO);
        cb_x_pairs *p = &c->sum[k];
        REAL *leaves = p->leaves;
        if (leaves) {
            *leaves = leaf;
            p->leaves = leaves + 1;
            continue;
        }
        PUSH(p, leaf);
    }
}

/* A key becomes a number: the inverse of key_of. */
static void largest(cb_x_context *c, int k, int to, bool is_min) {
    const char *from = (const char *)c->FIELD(acc)[k];
    INT best = (INT)VM(load)(from);
    for (int lane = LANES; lane < CB_X_LANES; lane += LANES)
        best = VM(larger_int)(best, (INT)VM(load)(from + lane * SIZE));
    KEY key[LANES];
    memcpy(key, &best, sizeof key);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) key[i] = key[i] > key[i + n] ? key[i] : key[i + n];
    const KEY bits = key[0] ^ ((key[0] >> (8 * SIZE - 1)) & KEY_MAX);
    REAL x;
    memcpy(&x, &bits, sizeof x);
    c->FIELD(s)[to] = is_min ? -x : x;
    set_lanes(c, k, (VEC)((INT){0} + KEY_MIN));
}

static void add(void *to, const void *from, int64_t n) {
    REAL *restrict t = to;
    const REAL *restrict f = from;
    for (int64_t i = 0; i < n; i++) t[i] += f[i];
}

__attribute__((noinline)) static void fold_leaf(cb_x_context *c, const cb_record *s) {
    fold(c, s->b, s->c);
}

/* At the end of an iteration: sums over everything have leaves of their own, which rows do not
 * begin. */
OP(totals) {
    BEGIN
    if (((i + STEP + c->leaf) & (CB_X_LEAF - 1)) == 0) {
        fold_leaf(c, s);
        v00 = v01 = v02 = v03 = v10 = v11 = v12 = v13 = ZERO; /* nothing is kept over the call */
    }
    NEXT;
}

/* The sum of a piece of the row joins the others, in the stream. */
__attribute__((noinline)) static void put_piece(cb_x_context *c, const cb_record *s, int64_t i,
                                                bool is_mean) {
    const int64_t length = (int64_t)1 << (s->c & 0xFF), at = i >> (s->c & 0xFF);
    REAL sum = 0 + MATH(fold)(c->FIELD(acc)[s->b]);
    set_lanes(c, s->b, ZERO);
    if (is_mean) sum /= (REAL)length;
#ifndef CB_X_WIDE
    if (s->c >> 8 != CB_X_REAL) {
        const uint16_t half = s->c >> 8 == CB_X_BF16 ? half_store_bf16(sum) : half_store_f16(sum);
        memcpy(c->p[s->dst] + at * (int64_t)sizeof half, &half, sizeof half);
        return;
    }
#endif
    memcpy(c->p[s->dst] + at * SIZE, &sum, sizeof sum);
}
#define PIECE(name, is_mean)                                                           \
    OP(name) {                                                                         \
        BEGIN                                                                          \
        if (((i + STEP) & (((int64_t)1 << (s->c & 0xFF)) - 1)) == 0) {                 \
            put_piece(c, s, i, is_mean);                                               \
            v00 = v01 = v02 = v03 = v10 = v11 = v12 = v13 = ZERO; /* as in `totals` */ \
        }                                                                              \
        NEXT;                                                                          \
    }
PIECE(piece_sum, false)
PIECE(piece_mean, true)

/* As loop, and the sums s->b .. s->b + s->c are folded at the end of each leaf. */
OP(loop_sums) {
    BEGIN i += STEP;
    if ((i & (CB_X_LEAF - 1)) == 0) {
        fold_leaf(c, s);
        v00 = v01 = v02 = v03 = v10 = v11 = v12 = v13 = ZERO; /* nothing is kept over the call */
    }
    if (i < c->end) LOOP_AGAIN;
    NEXT;
}

OP(end) {
    BEGIN(void) c, (void)s, (void)i;
    (void)v00, (void)v01, (void)v02, (void)v03, (void)v10, (void)v11, (void)v12, (void)v13;
    FINISH;
}

#ifndef CB_X_CALLS
static void run(cb_x_context *c, const cb_record *s, int64_t i) {
    VEC v00 = ZERO, v01 = v00, v02 = v00, v03 = v00, v10 = v00, v11 = v00, v12 = v00, v13 = v00;
    c->again = s;
    ((op_fn)s->fn)(c, s, i, v00, v01, v02, v03, v10, v11, v12, v13);
    v_leave();
}
#else
static void run(cb_x_context *c, const cb_record *s, int64_t i) {
    memset(c->FIELD(reg), 0, sizeof c->FIELD(reg));
    c->again = s;
    while (s) s = run_one(c, s, &i);
}
#endif

/* ---- random numbers -------------------------------------------------------------------------- */

#if defined(__AVX512BW__)
VFN void keep_piece(const cb_philox *random, uint64_t block, uint32_t threshold, float *out) {
    const __m512i least = _mm512_set1_epi16((short)threshold);
    const __m512 one = _mm512_set1_ps(1.0f);
    VU words[4];
    philox_vector(random, block, words);
    for (int k = 0; k < 4; k++) {
        __mmask32 kept = _mm512_cmpge_epu16_mask((__m512i)words[k], least);
        _mm512_storeu_ps(out + 32 * k, _mm512_maskz_mov_ps((__mmask16)kept, one));
        _mm512_storeu_ps(out + 32 * k + 16, _mm512_maskz_mov_ps((__mmask16)(kept >> 16), one));
    }
}
#else
VFN void keep_piece(const cb_philox *random, uint64_t block, uint32_t threshold, float *out) {
    uint16_t bits[CB_DRAWN];
    cb_draw(random, block, bits);
    for (int i = 0; i < CB_DRAWN; i++) out[i] = bits[i] >= threshold ? 1.0f : 0.0f;
}
#endif

static void keep(const cb_philox *random, uint64_t first, uint32_t threshold, void *numbers,
                 int64_t n) {
    REAL *out = numbers;
    if (threshold > UINT16_MAX) { /* nothing is kept */
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t at = 0; at < n; at += CB_DRAWN) {
        const uint64_t block = (first + (uint64_t)at) / CB_PHILOX_BLOCK;
#ifdef CB_X_WIDE
        float piece[CB_DRAWN];
        keep_piece(random, block, threshold, piece);
        for (int k = 0; k < CB_DRAWN; k++) out[at + k] = piece[k];
#else
        keep_piece(random, block, threshold, out + at);
#endif
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

#define FN(name) (cb_x_fn) name
#define BINARY_ROW(id, expression)                                                               \
    {{FN(id##_0_OTHER), FN(id##_0_SELF), FN(id##_0_STREAM), FN(id##_0_SLOT), FN(id##_0_SCALAR)}, \
     {FN(id##_1_OTHER), FN(id##_1_SELF), FN(id##_1_STREAM), FN(id##_1_SLOT), FN(id##_1_SCALAR)}},
#define UNARY_ROW(id, ...) {FN(id##_0), FN(id##_1)},
#define SELECT_ROW(d, fx) \
    { FN(select_##d##_##fx##_STREAM), FN(select_##d##_##fx##_SLOT), FN(select_##d##_##fx##_SCALAR) }
#define LOAD_ROW(d)                                                                            \
    {                                                                                          \
        FN(load_##d##_OTHER), FN(load_##d##_SELF), FN(load_##d##_STREAM), FN(load_##d##_SLOT), \
            FN(load_##d##_SCALAR)                                                              \
    }

#ifdef CB_X_WIDE
#define CB_X_TABLE_OF(isa) CAT(cb_x_wide_, isa)
#else
#define CB_X_TABLE_OF(isa) CAT(cb_x_table_, isa)
#endif
extern const cb_x_table CB_X_TABLE_OF(CB_KERN_ISA);
const cb_x_table CB_X_TABLE_OF(CB_KERN_ISA) = {
    .is_wide = sizeof(REAL) == sizeof(double),
    .register_bytes = 4 * sizeof(VEC),
    .binary = {CB_X_BINARY(BINARY_ROW)},
    SCALED_TABLES
    .select = {{SELECT_ROW(0, STREAM), SELECT_ROW(0, SLOT), SELECT_ROW(0, SCALAR)},
               {SELECT_ROW(1, STREAM), SELECT_ROW(1, SLOT), SELECT_ROW(1, SCALAR)}},
    .load = {LOAD_ROW(0), LOAD_ROW(1)},
    .pair = {CB_X_PAIR(UNARY_ROW)},
#ifdef CB_X_WIDE
    .unary = {CB_X_UNARY(UNARY_ROW) CB_X_MATH(UNARY_ROW) CB_X_ROUND(UNARY_ROW)},
    .unpack = {[CB_X_BYTE] = {FN(unpack_bytes_0), FN(unpack_bytes_1)}},
    .store = {[CB_X_REAL] = {FN(store_0), FN(store_1)},
              [CB_X_BYTE] = {FN(store_bytes_0), FN(store_bytes_1)}},
    .store_far = {{FN(store_far_0), FN(store_far_1)}},
    .prefetch = {FN(prefetch)},
#else
    .unary = {CB_X_UNARY(UNARY_ROW) CB_X_MATH(UNARY_ROW) CB_X_ROUND(UNARY_ROW)
                  CB_X_HALF(UNARY_ROW)},
    .unpack = {[CB_X_BF16] = {FN(unpack_bf16_0), FN(unpack_bf16_1)},
               [CB_X_F16] = {FN(unpack_f16_0), FN(unpack_f16_1)},
               [CB_X_BYTE] = {FN(unpack_bytes_0), FN(unpack_bytes_1)}},
    .store = {{FN(store_0), FN(store_1)},
              {FN(store_bf16_0), FN(store_bf16_1)},
              {FN(store_f16_0), FN(store_f16_1)},
              {FN(store_bytes_0), FN(store_bytes_1)}},
    .store_far = {{FN(store_far_0), FN(store_far_1)},
                  {FN(store_far_bf16_0), FN(store_far_bf16_1)},
                  {FN(store_far_f16_0), FN(store_far_f16_1)}},
    .prefetch = {FN(prefetch), FN(prefetch_half), FN(prefetch_half)},
#endif
    .acc = {{FN(acc_0), FN(acc_1)}, {FN(acc_masked_0), FN(acc_masked_1)}},
    .amax = {{FN(amax_0), FN(amax_1)}, {FN(amax_masked_0), FN(amax_masked_1)}},
    .amin = {{FN(amin_0), FN(amin_1)}, {FN(amin_masked_0), FN(amin_masked_1)}},
    .take = {FN(take_0), FN(take_1)},
    .add_at = {FN(add_at_0), FN(add_at_1)},
    .column = {FN(column_0), FN(column_1)},
    .spill = {FN(spill_0), FN(spill_1)},
    .totals = FN(totals),
    .piece = {FN(piece_sum), FN(piece_mean)},
    .loop = FN(loop),
    .loop_sums = FN(loop_sums),
    .end = FN(end),
    .run = run,
    .fold = fold,
    .add = add,
    .largest = largest,
    .keep = keep,
};
