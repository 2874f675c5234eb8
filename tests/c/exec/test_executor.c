/* The executor's functions one by one, for each instruction set: every operation in every operand
 * form, in both registers, threaded by jumps and by calls, against the operation on scalars. */
#include "check.h"

#include "base/cpu.h"
#include "exec/cpu/executor/scalar.h"

/* The call-threaded form, which sanitizers and other calling conventions use. test_executor_wide.c
 * includes this file with CB_X_WIDE set, for f64. */
#define CB_X_CALLS 1
#undef CB_KERN_ISA
#define CB_KERN_ISA calls
#include "exec/cpu/executor/kern_executor.c"

#ifdef CB_X_WIDE
#define TABLE(isa) cb_x_wide_##isa
#define SCALAR cb_x_scalar64
#define IS_WIDE true
#else
#define TABLE(isa) cb_x_table_##isa
#define SCALAR cb_x_scalar
#define IS_WIDE false
#endif

#if defined(__x86_64__)
extern const cb_x_table TABLE(baseline), TABLE(avx2), TABLE(avx512);
static const cb_x_table *const jumping[] = {&TABLE(baseline), &TABLE(avx2), &TABLE(avx512)};
#else
extern const cb_x_table TABLE(baseline);
static const cb_x_table *const jumping[] = {&TABLE(baseline)};
#endif

enum { N = 192, A = 0, B = 1, OUT = 2, BOOLS = 3, CONDITION = 4 };

static _Alignas(64) EX_REAL array[5][N];
static _Alignas(64) uint8_t truth[N];
static _Alignas(64) cb_x_context context;

/* Returns ordinary numbers and special values. */
static EX_REAL some_number(uint32_t i, uint32_t salt) {
    static const EX_REAL odd[] = {0.0f,   -0.0f,  1.0f,    -1.0f, INFINITY, -INFINITY,
                                  NAN,    1e-40f, -1e-40f, 3e38f, -3e38f,   88.7f,
                                  -87.5f, 2e6f,   -1e7f,   0.625f};
    uint32_t h = (i * 2654435761u) ^ (salt * 40503u);
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    if (h % 5 == 0) return odd[h / 5 % (sizeof odd / sizeof odd[0])];
    return ((EX_REAL)(h % 20001u) - 10000) / 1500;
}

static void fill_arrays(uint32_t salt) {
    for (uint32_t i = 0; i < N; i++) {
        array[A][i] = some_number(i, salt);
        array[B][i] = some_number(i, salt + 77);
        array[CONDITION][i] = (EX_REAL)(i * salt % 3 == 0);
        truth[i] = (uint8_t)(i * salt % 3 == 0);
    }
    memset(&context, 0, sizeof context);
    for (int k = 0; k < 5; k++) context.p[k] = (char *)array[k];
    context.p[BOOLS] = (char *)truth;
    context.EX_FIELD(s)[1] = some_number(salt, 5);
    for (int k = 0; k < CB_X_LANES; k++)
        context.EX_FIELD(slot)[1][k] = some_number((uint32_t)k, salt + 5);
    context.end = N;
}

static bool same(EX_REAL a, EX_REAL b) {
    EX_KEY x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y || (isnan(a) && isnan(b));
}

static int n_record;
static cb_record record[16];
static void put(cb_x_fn fn, int dst, int b, int c) {
    record[n_record++] =
        (cb_record){.fn = fn, .dst = (int16_t)dst, .b = (int16_t)b, .c = (int16_t)c};
}

/* Appends the end of the loop and runs over all elements. */
static void go(const cb_x_table *t) {
    put(t->loop, 0, 0, 0);
    put(t->end, 0, 0, 0);
    t->run(&context, record, 0);
    n_record = 0;
}

/* Returns the operand of this form at element i, if the registers hold A (dst) and B. */
static EX_REAL operand_at(cb_x_form form, int i) {
    switch (form) {
        case CB_X_OTHER: return array[B][i];
        case CB_X_SELF: return array[A][i];
        case CB_X_STREAM: return array[B][i];
        case CB_X_SLOT: return context.EX_FIELD(slot)[1][i % CB_X_LANES];
        default: return context.EX_FIELD(s)[1];
    }
}
static int index_of(cb_x_form form) { return form == CB_X_STREAM ? B : 1; }

/* Returns the number of elements per iteration. */
static int step_of(const cb_x_table *t) {
#if defined(__x86_64__)
    const int vector = t == &TABLE(avx512) ? 64 : (t == &TABLE(avx2) ? 32 : 16);
    if (t != &TABLE(calls)) return EX_VECTORS * vector / (int)EX_SIZE;
#endif
    (void)t;
    return EX_STEP;
}

/* Returns the operand of this form; a slot holds the elements of one iteration. */
static EX_REAL expected_operand(const cb_x_table *t, cb_x_form form, int i) {
    return form == CB_X_SLOT ? context.EX_FIELD(slot)[1][i % step_of(t)] : operand_at(form, i);
}

static void check_binary(const cb_x_table *t, int op) {
    for (int d = 0; d < 2; d++) {
        for (cb_x_form form = 0; form < CB_X_FORM_COUNT; form++) {
            int wrong = 0;
            put(t->load[d][CB_X_STREAM], 0, A, 0);
            put(t->load[1 - d][CB_X_STREAM], 0, B, 0);
            put(t->binary[op][d][form], 0, index_of(form), 0);
            put(t->store[CB_X_REAL][d], OUT, 0, 0);
            go(t);
            for (int i = 0; i < N; i++) {
                EX_REAL want = SCALAR((cb_x_op)op, array[A][i], expected_operand(t, form, i), 0);
                wrong += !same(array[OUT][i], want);
            }
            CHECK(wrong == 0);
        }
    }
}

/* Returns the operand that is added to a scaled one; their streams differ. */
static EX_REAL expected_second(const cb_x_table *t, cb_x_form form, int i) {
    return form == CB_X_STREAM ? array[A][i] : expected_operand(t, form, i);
}

/* Checks op(x, y); y is x if its form is SELF. Returns 0 if there is no such record. */
static int check_made(const cb_x_table *t, int op, int d, cb_x_form x, cb_x_form y, bool stores) {
    const cb_x_fn fn = (stores ? t->store_made : t->made)[op][d][x][y];
    int wrong = 0;
    if (!fn) return 0;
    put(t->load[d][CB_X_STREAM], 0, CONDITION, 0);
    put(t->load[1 - d][CB_X_STREAM], 0, B, 0);
    put(fn, 0, index_of(x), y == CB_X_STREAM ? A : index_of(y));
    record[n_record - 1].to = OUT;
    if (!stores) put(t->store[CB_X_REAL][d], OUT, 0, 0);
    put(t->store[CB_X_REAL][d], BOOLS, 0, 0); /* the value stays in the register */
    context.p[BOOLS] = (char *)array[BOOLS];
    go(t);
    for (int i = 0; i < N; i++) {
        const EX_REAL first = x == CB_X_SELF ? array[CONDITION][i] : expected_operand(t, x, i);
        const EX_REAL second = y == CB_X_SELF ? first : expected_second(t, y, i);
        const EX_REAL want = SCALAR((cb_x_op)op, first, second, 0);
        wrong += !same(array[OUT][i], want) || !same(array[BOOLS][i], want);
    }
    CHECK(wrong == 0);
    context.p[BOOLS] = (char *)truth;
    return 1;
}

enum { FORMS = CB_X_FORM_COUNT, PAIRS = FORMS * FORMS };
#define FORM(k) ((cb_x_form)((k) % FORMS))
static void check_all_made(const cb_x_table *t) {
    int n = 0;
    for (int k = 0; k < CB_X_N_MADE * PAIRS * 4; k++)
        n += check_made(t, k / 4 / PAIRS, k & 1, FORM(k / 4 / FORMS), FORM(k / 4), k >> 1 & 1);
    CHECK(n == (IS_WIDE ? 0 : 4 * 2 * (14 + 19)));
}

/* Checks that OUT is B times a number, if there is such a record. */
static void check_product(const cb_x_table *t, int d, cb_x_form form) {
    if (!t->scaled[d][form]) return;
    int wrong = 0;
    put(t->load[1 - d][CB_X_STREAM], 0, B, 0);
    put(t->scaled[d][form], 0, index_of(form), 2);
    put(t->store[CB_X_REAL][d], OUT, 0, 0);
    go(t);
    for (int i = 0; i < N; i++)
        wrong += !same(array[OUT][i], expected_operand(t, form, i) * context.EX_FIELD(s)[2]);
    CHECK(wrong == 0);
}

static int check_of_scaled(const cb_x_table *t, int op, int d, cb_x_form x, cb_x_form y,
                           bool stores) {
    const cb_x_fn fn = stores ? t->store_scaled[op][d][x][y] : t->of_scaled[op][d][x][y];
    int wrong = 0;
    if (!fn) return 0;
    put(t->load[d][CB_X_STREAM], 0, A, 0);
    put(t->load[1 - d][CB_X_STREAM], 0, B, 0);
    put(fn, y == CB_X_STREAM ? A : 1, index_of(x), 2);
    record[n_record - 1].to = OUT;
    if (!stores) put(t->store[CB_X_REAL][d], OUT, 0, 0);
    put(t->store[CB_X_REAL][d], CONDITION, 0, 0); /* the value stays in the register */
    go(t);
    for (int i = 0; i < N; i++) {
        const EX_REAL product = expected_operand(t, x, i) * context.EX_FIELD(s)[2];
        const EX_REAL want = SCALAR((cb_x_op)op, product, expected_second(t, y, i), 0);
        wrong += !same(array[OUT][i], want) || !same(array[CONDITION][i], want);
    }
    CHECK(wrong == 0);
    return 1;
}

static void check_scaled(const cb_x_table *t) {
    int n = 0;
    context.EX_FIELD(s)[2] = (EX_REAL)-1.7;
    for (int k = 0; k < 2 * CB_X_FORM_COUNT; k++) check_product(t, k % 2, (cb_x_form)(k / 2));
    for (int k = 0; k < CB_X_N_OF_SCALED * PAIRS * 2; k++) {
        const int op = k / 2 / PAIRS;
        for (int stores = 0; stores <= (op < CB_X_N_SUMS); stores++)
            n += check_of_scaled(t, op, k % 2, FORM(k / 2), FORM(k / 2 / FORMS), stores);
    }
    CHECK(n == (IS_WIDE ? 0 : 6 * 2 * 10 + 3 * 2 * 6));
}

/* Checks sums of products of streams, which need all fields of a record. */
static void check_sum_of(const cb_x_table *t, bool third, int d, bool stores) {
    const EX_REAL *x = array[A], *y = array[B], *z = array[CONDITION], *s = context.EX_FIELD(s);
    int wrong = 0;
    put(stores ? t->store_sum_of[third][d] : t->sum_of[third][d], B | (third ? CONDITION << 8 : 0),
        A, 2 | 1 << 8);
    record[n_record - 1].to = OUT;
    if (!stores) put(t->store[CB_X_REAL][d], OUT, 0, 0);
    put(t->store[CB_X_REAL][d], BOOLS, 0, 0); /* the value stays in the register */
    context.p[BOOLS] = (char *)array[BOOLS];
    go(t);
    for (int i = 0; i < N; i++) {
        const EX_REAL first = x[i] * s[2], product = y[i] * s[1];
        const EX_REAL want = first + (third ? product * z[i] : product);
        wrong += !same(array[OUT][i], want) || !same(array[BOOLS][i], want);
    }
    CHECK(wrong == 0);
    context.p[BOOLS] = (char *)truth;
}

static void check_joined(const cb_x_table *t) {
    int wrong = 0;
    context.EX_FIELD(s)[2] = (EX_REAL)0.3;
    for (int k = 0; k < 8 && !IS_WIDE; k++) check_sum_of(t, k & 1, k >> 1 & 1, k >> 2);
    for (int d = 0; d < 2 && !IS_WIDE; d++) {
        put(t->load[d][CB_X_STREAM], 0, A, 0);
        put(t->scaled_root[d], 1, 0, 2);
        put(t->store[CB_X_REAL][d], OUT, 0, 0);
        go(t);
        for (int i = 0; i < N; i++) {
            const EX_REAL root = EX_MATH(sqrt)(array[A][i]) * context.EX_FIELD(s)[2];
            wrong += !same(array[OUT][i], root + context.EX_FIELD(s)[1]);
        }
    }
    CHECK(wrong == 0);
}

static void check_unary(const cb_x_table *t, int op) {
    for (int d = 0; d < 2; d++) {
        int wrong = 0;
        put(t->load[d][CB_X_STREAM], 0, A, 0);
        put(t->unary[CB_X_UNARY_INDEX(op)][d], 0, 0, 0);
        put(t->store_far[CB_X_REAL][d], OUT, 0, 0);
        go(t);
        for (int i = 0; i < N; i++)
            wrong += !same(array[OUT][i], SCALAR((cb_x_op)op, array[A][i], 0, 0));
        CHECK(wrong == 0);
    }
}

/* Checks that the first result is in the operand's register and the second in the other one. */
static void check_pairs(const cb_x_table *t) {
    for (int d = 0; d < 2; d++) {
        for (int op = CB_X_UNARY_END; op < CB_X_PAIR_END; op++) {
            for (int second = 0; second < 2; second++) {
                int wrong = 0;
                put(t->load[d][CB_X_STREAM], 0, A, 0);
                put(t->pair[CB_X_PAIR_INDEX(op)][d], 0, 0, 0);
                put(t->store[CB_X_REAL][second ? 1 - d : d], OUT, 0, 0);
                go(t);
                for (int i = 0; i < N; i++) {
                    EX_REAL x = array[A][i], density, below = EX_MATH(normal)(x, &density);
                    EX_REAL want = second ? density : below;
                    if (op == CB_X_SIN_COS) want = second ? EX_MATH(cos)(x) : EX_MATH(sin)(x);
                    wrong += !isnan(x) && !same(array[OUT][i], want);
                }
                CHECK(wrong == 0);
            }
        }
    }
}

static void check_select(const cb_x_table *t) {
    for (int d = 0; d < 2; d++) {
        for (int fx = 0; fx < 3; fx++) {
            for (int fy = 0; fy < 3; fy++) {
                cb_x_form x = CB_X_STREAM + (cb_x_form)fx, y = CB_X_STREAM + (cb_x_form)fy;
                int wrong = 0;
                put(t->load[d][CB_X_STREAM], 0, CONDITION, 0);
                put(t->select[d][fx][fy], 0, index_of(x), index_of(y));
                put(t->store[CB_X_REAL][d], OUT, 0, 0);
                go(t);
                for (int i = 0; i < N; i++) {
                    EX_REAL want = array[CONDITION][i] != 0.0f ? expected_operand(t, x, i)
                                                               : expected_operand(t, y, i);
                    wrong += !same(array[OUT][i], want);
                }
                CHECK(wrong == 0);
            }
        }
    }
}

static void check_memory(const cb_x_table *t) {
    for (int d = 0; d < 2; d++) {
        int wrong = 0;
        put(t->unpack[CB_X_BYTE][d], 0, BOOLS, 0);
        put(t->spill[d], 2, 0, 0);
        put(t->load[1 - d][CB_X_SLOT], 0, 2, 0);
        put(t->load[d][CB_X_OTHER], 0, 0, 0);
        put(t->prefetch[CB_X_REAL], A, 64, 0);
        put(t->store[CB_X_REAL][d], OUT, 0, 0);
        go(t);
        for (int i = 0; i < N; i++) wrong += array[OUT][i] != (EX_REAL)truth[i];
        put(t->load[d][CB_X_STREAM], 0, CONDITION, 0);
        put(t->store[CB_X_BYTE][d], BOOLS, 0, 0);
        go(t);
        for (int i = 0; i < N; i++) wrong += array[CONDITION][i] != (EX_REAL)truth[i];
        memset(array[OUT], 0, sizeof array[OUT]);
        put(t->load[d][CB_X_STREAM], 0, CONDITION, 0);
        put(t->column[d], OUT, 0, 0);
        put(t->column[d], OUT, 0, 0);
        go(t);
        for (int i = 0; i < N; i++) wrong += array[OUT][i] != 2 * array[CONDITION][i];
        CHECK(wrong == 0);
    }
}

#ifndef CB_X_WIDE
static bool same_half(cb_x_format format, uint16_t a, uint16_t b) {
    const uint16_t infinity = format == CB_X_BF16 ? 0x7F80 : 0x7C00;
    return a == b || ((a & 0x7FFF) > infinity && (b & 0x7FFF) > infinity);
}

/* Unpacks every 16-bit float and rounds f32 values at fixed steps over all bit patterns. */
static void check_halves(const cb_x_table *t, cb_x_format format, int d) {
    const cb_dtype dtype = format == CB_X_BF16 ? CB_BF16 : CB_F16;
    static _Alignas(64) uint16_t halves[N], far_halves[N];
    int wrong = 0;
    for (int first = 0; first < 65536; first += N) {
        for (int i = 0; i < N; i++) halves[i] = (uint16_t)(first + i);
        context.p[BOOLS] = (char *)halves;
        put(t->prefetch[format], BOOLS, 64, 0);
        put(t->unpack[format][d], 0, BOOLS, 0);
        put(t->store[CB_X_REAL][d], OUT, 0, 0);
        go(t);
        for (int i = 0; i < N; i++) wrong += !same(array[OUT][i], half_load(dtype, &halves[i]));
    }
    CHECK(wrong == 0);
    const uint64_t step = check_rounds(400009, 997);
    for (uint64_t first = 0; first <= UINT32_MAX; first += step * N) {
        for (uint64_t i = 0; i < N; i++) {
            uint32_t bits = (uint32_t)(first + i * step);
            memcpy(&array[OUT][i], &bits, sizeof bits);
        }
        context.p[CONDITION] = (char *)far_halves;
        put(t->load[d][CB_X_STREAM], 0, OUT, 0);
        put(t->store[format][d], BOOLS, 0, 0);
        put(t->store_far[format][d], CONDITION, 0, 0);
        go(t);
        for (int i = 0; i < N; i++) {
            uint16_t want;
            half_store(dtype, &want, array[OUT][i]);
            wrong += !same_half(format, halves[i], want) || far_halves[i] != halves[i];
        }
    }
    CHECK(wrong == 0);
    context.p[BOOLS] = (char *)truth;
    context.p[CONDITION] = (char *)array[CONDITION];
}
#endif

/* Checks the lanes of accumulators: element i is in lane i mod 64 if the mask is set. */
static void check_accumulators(const cb_x_table *t, bool masked) {
    for (int d = 0; d < 2; d++) {
        for (int k = 0; k < CB_X_LANES; k++) {
            const EX_KEY set = !masked || k % 3 ? -1 : 0, least = EX_KEY_MIN;
            memcpy(&context.EX_FIELD(mask)[k], &set, sizeof set);
            context.EX_FIELD(acc)[0][k] = 0;
            memcpy(&context.EX_FIELD(acc)[1][k], &least, sizeof least);
            memcpy(&context.EX_FIELD(acc)[2][k], &least, sizeof least);
        }
        put(t->load[d][CB_X_STREAM], 0, B, 0);
        put(t->acc[masked][d], 0, 0, 0);
        put(t->amax[masked][d], 1, 0, 0);
        put(t->amin[masked][d], 2, 0, 0);
        go(t);
        int wrong = 0;
        for (int k = 0; k < CB_X_LANES; k++) {
            bool counts = !masked || k % 3;
            EX_REAL sum = 0;
            EX_KEY largest = EX_KEY_MIN, smallest = EX_KEY_MIN, got;
            for (int i = k; i < N && counts; i += CB_X_LANES) {
                sum += array[B][i];
                for (int sign = -1; sign <= 1; sign += 2) {
                    EX_REAL x = array[B][i] * (EX_REAL)sign;
                    EX_KEY bits, *best = sign > 0 ? &largest : &smallest;
                    memcpy(&bits, &x, sizeof bits);
                    EX_KEY key =
                        isnan(x) ? EX_KEY_MAX : bits ^ ((bits >> (8 * EX_SIZE - 1)) & EX_KEY_MAX);
                    if (key > *best) *best = key;
                }
            }
            wrong += !same(context.EX_FIELD(acc)[0][k], sum);
            memcpy(&got, &context.EX_FIELD(acc)[1][k], sizeof got);
            wrong += got != largest;
            memcpy(&got, &context.EX_FIELD(acc)[2][k], sizeof got);
            wrong += got != smallest;
        }
        CHECK(wrong == 0);
    }
}

/* Returns the float with these bits; in f64 the lower half is a hash of them. */
static EX_REAL real_of_bits(uint32_t bits) {
    EX_REAL x;
#ifdef CB_X_WIDE
    const uint64_t all = (uint64_t)bits << 32 | bits * 2654435761u;
    memcpy(&x, &all, sizeof x);
#else
    memcpy(&x, &bits, sizeof x);
#endif
    return x;
}

static bool has_unary(const cb_x_table *t, int op) { return t->unary[CB_X_UNARY_INDEX(op)][0]; }

static void sweep_unary(const cb_x_table *t) {
    uint64_t step = check_rounds(400009, 9973);
    int wrong[CB_X_UNARY_END] = {0};
    for (uint64_t first = 0; first <= UINT32_MAX; first += step * N) {
        for (uint64_t i = 0; i < N; i++) {
            array[A][i] = real_of_bits((uint32_t)(first + i * step));
        }
        for (int op = CB_X_BINARY_END; op < CB_X_UNARY_END; op++) {
            if (!has_unary(t, op)) continue;
            put(t->load[0][CB_X_STREAM], 0, A, 0);
            put(t->unary[CB_X_UNARY_INDEX(op)][0], 0, 0, 0);
            put(t->store[CB_X_REAL][0], OUT, 0, 0);
            go(t);
            for (int i = 0; i < N; i++)
                wrong[op] += !same(array[OUT][i], SCALAR((cb_x_op)op, array[A][i], 0, 0));
        }
    }
    for (int op = CB_X_BINARY_END; op < CB_X_UNARY_END; op++) CHECK(wrong[op] == 0);
}

/* Checks that draws equal those of base/philox.h, even where the counter passes 32 bits. */
static void check_draws(const cb_x_table *t) {
    const cb_philox random = {.seed = 0x123456789ABCDEFu, .stream = 7, .step = 11};
    const uint64_t firsts[] = {0, 8, 4096, ((uint64_t)1 << 35) - 64, (uint64_t)1 << 36};
    EX_REAL kept[256];
    for (size_t k = 0; k < sizeof firsts / sizeof firsts[0]; k++) {
        int wrong = 0;
        t->keep(&random, firsts[k], 20000, kept, 200);
        for (uint64_t i = 0; i < 200; i++)
            wrong += (kept[i] != 0) != (cb_philox_u16(&random, firsts[k] + i) >= 20000);
        t->keep(&random, firsts[k], 65536, kept, 200);
        for (int i = 0; i < 200; i++) wrong += kept[i] != 0;
        CHECK(wrong == 0);
    }
}

/* Checks elements selected by position: the first, the last, one in the middle, and none. */
static void check_positions(const cb_x_table *t) {
    const int positions[] = {0, N - 1, 70, -1};
    for (int k = 0; k < 8; k++) {
        const int d = k % 2, at = positions[k / 2];
        int wrong = 0;
        context.EX_FIELD(s)[2] = (EX_REAL)at;
        context.EX_FIELD(s)[3] = (EX_REAL)-2.5;
        context.EX_FIELD(s)[4] = 7;
        put(t->load[d][CB_X_STREAM], 0, A, 0);
        put(t->take[d], 4, 2, 0);
        put(t->add_at[d], 0, 2, 3);
        put(t->store[CB_X_REAL][d], OUT, 0, 0);
        go(t);
        CHECK(same(context.EX_FIELD(s)[4], at < 0 ? 7 : array[A][at]));
        for (int i = 0; i < N; i++)
            wrong += !same(array[OUT][i], i == at ? array[A][i] - (EX_REAL)2.5 : array[A][i]);
        CHECK(wrong == 0);
    }
}

/* Returns the sum of a row: 64 lanes, folded in halves. */
static EX_REAL row_sum(const EX_REAL *x, int n) {
    EX_REAL lane[CB_X_LANES] = {0};
    for (int i = 0; i < n; i++) lane[i % CB_X_LANES] += x[i];
    for (int half = CB_X_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    return lane[0];
}

/* Returns the largest element of sign * x; NaN is the largest, and 0 is larger than -0. */
static EX_REAL row_extreme(const EX_REAL *x, int n, EX_REAL sign) {
    EX_REAL best = sign * x[0];
    for (int i = 1; i < n && !isnan(best); i++) {
        const EX_REAL y = sign * x[i];
        if (isnan(y) || y > best || (y == best && signbit(best))) best = y;
    }
    return sign * best;
}

/* Checks adjacent rows (micro/together.h), in memory that ends with the last of them. */
static void check_adjacent(const cb_x_table *t, int rows, int columns, bool is_odd) {
    EX_REAL *x = malloc(sizeof *x * (size_t)(rows * columns)), sum[64], most[64], least[64];
    for (int i = 0; i < rows * columns; i++) {
        x[i] = some_number((uint32_t)i, (uint32_t)columns);
        if (!is_odd && !(fabs((double)x[i]) < 1e3)) x[i] = (EX_REAL)i / 7;
    }
    t->row_sums(sum, x, rows, columns);
    t->row_largest(most, x, rows, columns, false);
    t->row_largest(least, x, rows, columns, true);
    int wrong = 0;
    for (int r = 0; r < rows; r++) {
        const EX_REAL *row = x + r * columns;
        wrong += !same(sum[r], row_sum(row, columns));
        wrong += !same(most[r], row_extreme(row, columns, 1));
        wrong += !same(least[r], row_extreme(row, columns, -1));
    }
    CHECK(wrong == 0);
    free(x);
}

static void check_rows(const cb_x_table *t) {
    for (int columns = 1; columns < 300; columns += columns < 70 ? 1 : 13) {
        check_adjacent(t, 37, columns, false);
        check_adjacent(t, 19, columns, true);
    }
}

static void check_table(const cb_x_table *t) {
    check_rows(t);
    fill_arrays(1);
    sweep_unary(t);
#ifndef CB_X_WIDE
    for (int d = 0; d < 2; d++) {
        check_halves(t, CB_X_BF16, d);
        check_halves(t, CB_X_F16, d);
    }
#endif
    check_draws(t);
    check_positions(t);
    for (uint32_t salt = 1; salt <= check_rounds(2, 20); salt++) {
        fill_arrays(salt);
        for (int op = 0; op < CB_X_N_BINARY; op++) check_binary(t, op);
        for (int op = CB_X_BINARY_END; op < CB_X_UNARY_END; op++)
            if (has_unary(t, op)) check_unary(t, op);
        check_pairs(t);
        check_select(t);
        check_accumulators(t, false);
        check_accumulators(t, true);
        check_memory(t);
        check_all_made(t);
        check_scaled(t);
        check_joined(t);
    }
}

TEST(by_jumps) {
    for (int isa = 0; isa < (int)(sizeof jumping / sizeof jumping[0]); isa++) {
        if (isa <= (int)cb_cpu_isa()) check_table(jumping[isa]);
    }
}
TEST(by_calls) { check_table(&TABLE(calls)); }

/* Leaves are folded in halves and combined in pairs. */
TEST(folding) {
    const cb_x_table *t = cb_x_table_of(IS_WIDE);
    fill_arrays(3);
    EX_REAL pairs[4] = {0};
    for (int leaf = 0; leaf < 4; leaf++) {
        EX_REAL lane[CB_X_LANES];
        for (int k = 0; k < CB_X_LANES; k++)
            lane[k] = context.EX_FIELD(acc)[5][k] = (EX_REAL)1 / (EX_REAL)(k * 7 + leaf + 1);
        for (int width = CB_X_LANES / 2; width > 0; width /= 2) {
            for (int j = 0; j < width; j++) lane[j] += lane[j + width];
        }
        pairs[leaf] = lane[0];
        t->fold(&context, 5, 1);
    }
    CHECK(context.sum[5].count == 4);
    CHECK(context.sum[5].EX_FIELD(level)[2] == (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]));
    CHECK(context.EX_FIELD(acc)[5][0] == 0 && context.EX_FIELD(acc)[5][63] == 0);
}

int main(void) {
    RUN(by_jumps);
    RUN(by_calls);
    RUN(folding);
    return check_report();
}
