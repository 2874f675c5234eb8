/* kern_together.h: computes the sum or an extreme of each of several adjacent rows
 * (micro/together.h), and per-row numbers. Part of kern_executor.c. Sums are added in the order of
 * one leaf (kern_fold.h). */

#include "kern_sides.h"

#ifdef CB_X_WIDE
#define EX_FEW(name) name##_double
#else
#define EX_FEW(name) name##_float
#endif

#define EX_IN_SUM (CB_X_LANES / EX_LANES) /* vectors */

/* Limits n to the lanes of a vector: kern_few.h accepts at most 255. */
VFN int64_t at_most_lanes(int64_t n) { return n < EX_LANES ? n : EX_LANES; }

/* Adds vectors k .. k + 4 of the 64 lanes: those at x, those 64 elements later, and so on. */
#define ADD_TO_FOUR(q, lanes) lanes[q] += EX_VM(load)((const char *)(x + q * EX_LANES));
#define ADD_FOUR(q, lanes, more) lanes[q] += more[q];
#define ADD_REST_TO_FOUR(q, lanes) \
    if (n > q * EX_LANES) lanes[q] += EX_FEW(few)(x + q * EX_LANES, n - q * EX_LANES);
VFN void four_lanes(VEC lanes[EX_VECTORS], const EX_REAL *x, int64_t n) {
    lanes[0] = lanes[1] = lanes[2] = lanes[3] = CB_ZERO;
    for (; n >= EX_STEP; n -= CB_X_LANES, x += CB_X_LANES) {
        EX_EACH(ADD_TO_FOUR, lanes)
    }
    EX_EACH(ADD_REST_TO_FOUR, lanes)
}

/* Do the same for 2, 4 and 8 times as many vectors, in groups of four that are `apart` groups
 * apart, and add the two halves to each other. */
VFN void lanes_of_2(VEC lanes[EX_VECTORS], const EX_REAL *x, int64_t n, int apart) {
    VEC more[EX_VECTORS];
    four_lanes(lanes, x, n);
    four_lanes(more, x + apart * EX_STEP, n - apart * EX_STEP);
    EX_EACH(ADD_FOUR, lanes, more)
}
VFN void lanes_of_4(VEC lanes[EX_VECTORS], const EX_REAL *x, int64_t n, int apart) {
    VEC more[EX_VECTORS];
    lanes_of_2(lanes, x, n, 2 * apart);
    lanes_of_2(more, x + apart * EX_STEP, n - apart * EX_STEP, 2 * apart);
    EX_EACH(ADD_FOUR, lanes, more)
}
VFN void lanes_of_8(VEC lanes[EX_VECTORS], const EX_REAL *x, int64_t n) {
    VEC more[EX_VECTORS];
    lanes_of_4(lanes, x, n, 2);
    lanes_of_4(more, x + EX_STEP, n - EX_STEP, 2);
    EX_EACH(ADD_FOUR, lanes, more)
}

/* Adds halves of the lanes of a sum until they are one vector. */
VFN VEC lanes_of_row(const EX_REAL *x, int64_t n) {
    VEC lanes[EX_VECTORS];
    if (n <= EX_LANES) return EX_FEW(few)(x, n);
    switch (EX_IN_SUM / EX_VECTORS) {
        case 1: four_lanes(lanes, x, n); break;
        case 2: lanes_of_2(lanes, x, n, 1); break;
        case 4: lanes_of_4(lanes, x, n, 1); break;
        default: lanes_of_8(lanes, x, n); break;
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

/* Does the last additions. A total starts from 0, so it is not -0. */
VFN EX_REAL sum_of_lanes(VEC lanes) {
    EX_REAL x[EX_LANES];
    memcpy(x, &lanes, sizeof x);
    for (int half = EX_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) x[k] += x[k + half];
    return x[0] + 0;
}

VFN INT keys_of_row(const EX_REAL *x, int64_t n, bool is_min) {
    INT best = (INT){0} + EX_KEY_MIN;
    for (; n >= EX_LANES; n -= EX_LANES, x += EX_LANES) {
        const VEC all = EX_VM(load)((const char *)x);
        best = EX_VM(larger_int)(best, key_of(is_min ? -all : all));
    }
    if (n == 0) return best;
    const VEC some = EX_FEW(few)(x, n);
    const INT in = (INT)EX_FEW(keep_few)((VEC)((INT){0} - 1), n),
              key = key_of(is_min ? -some : some);
    return EX_VM(larger_int)(best, (key & in) | (~in & EX_KEY_MIN));
}

VFN VEC of_keys(INT key) { return (VEC)(key ^ ((key >> (8 * EX_SIZE - 1)) & EX_KEY_MAX)); }

VFN EX_REAL largest_of_keys(INT keys) {
    EX_KEY key[EX_LANES];
    memcpy(key, &keys, sizeof key);
    for (int half = EX_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) key[k] = key[k] > key[k + half] ? key[k] : key[k + half];
    const EX_KEY bits = key[0] ^ ((key[0] >> (8 * EX_SIZE - 1)) & EX_KEY_MAX);
    EX_REAL x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* lanes_of_row for a row of `count` vectors. The last one has `rest` elements, or is whole. */
#define SHORT_LANES(k)                                                                        \
    VEC lanes##k = CB_ZERO;                                                                   \
    if ((k) + 1 < count + is_whole) lanes##k = EX_VM(load)((const char *)(x + k * EX_LANES)); \
    else if ((k) + 1 == count) lanes##k = EX_FEW(few)(x + k * EX_LANES, rest);
#define JOIN_SHORT(k, other) \
    if (other < count) lanes##k += lanes##other;
VFN VEC lanes_of_short(const EX_REAL *x, int count, int64_t rest, bool is_whole) {
    SHORT_LANES(0)
    SHORT_LANES(1)
    SHORT_LANES(2)
    SHORT_LANES(3)
    SHORT_LANES(4)
    SHORT_LANES(5)
    SHORT_LANES(6)
    SHORT_LANES(7)
    JOIN_SHORT(0, 4)
    JOIN_SHORT(1, 5)
    JOIN_SHORT(2, 6)
    JOIN_SHORT(3, 7)
    JOIN_SHORT(0, 2)
    JOIN_SHORT(1, 3)
    JOIN_SHORT(0, 1)
    return lanes0;
}

/* Sums EX_SIDES rows at a time and returns the number of rows. If a row has at most EX_FEW_VECTORS
 * vectors, branches on their number only once. */
enum { EX_FEW_VECTORS = 8 };
#define SUMS_OF_SIDES(lanes_of, ...)                                  \
    for (; row + EX_SIDES <= rows; row += EX_SIDES) {                 \
        VEC v[EX_SIDES];                                              \
        EX_UNROLL                                                     \
        for (int k = 0; k < EX_SIDES; k++)                            \
            v[k] = lanes_of(from + (row + k) * columns, __VA_ARGS__); \
        EX_VM(store)((char *)(to + row), sums_of_sides(v) + 0);       \
    }
#define SHORT_SUMS(count)                                                          \
    case count:                                                                    \
        if (rest == EX_LANES) SUMS_OF_SIDES(lanes_of_short, count, EX_LANES, true) \
        else SUMS_OF_SIDES(lanes_of_short, count, rest, false)                     \
        break;
static int64_t sums_of_blocks(EX_REAL *to, const EX_REAL *from, int64_t rows, int64_t columns) {
    const int64_t count = (columns + EX_LANES - 1) / EX_LANES,
                  rest = columns - (count - 1) * EX_LANES;
    int64_t row = 0;
    switch (columns <= CB_X_LANES ? count : EX_FEW_VECTORS + 1) {
        SHORT_SUMS(1)
        SHORT_SUMS(2)
        SHORT_SUMS(3)
        SHORT_SUMS(4)
        SHORT_SUMS(5)
        SHORT_SUMS(6)
        SHORT_SUMS(7)
        SHORT_SUMS(8)
        default: SUMS_OF_SIDES(lanes_of_row, columns)
    }
    return row;
}

static void row_sums(void *sums, const void *terms, int64_t rows, int64_t columns) {
    EX_REAL *to = sums;
    const EX_REAL *from = terms;
    for (int64_t row = sums_of_blocks(to, from, rows, columns); row < rows; row++)
        to[row] = sum_of_lanes(lanes_of_row(from + row * columns, columns));
}

static void row_largest(void *largest, const void *terms, int64_t rows, int64_t columns,
                        bool is_min) {
    EX_REAL *to = largest;
    const EX_REAL *from = terms;
    int64_t row = 0;
    for (; row + EX_SIDES <= rows; row += EX_SIDES) {
        VEC v[EX_SIDES];
        EX_UNROLL
        for (int k = 0; k < EX_SIDES; k++)
            v[k] = (VEC)keys_of_row(from + (row + k) * columns, columns, is_min);
        const VEC x = of_keys((INT)largest_of_sides(v));
        EX_VM(store)((char *)(to + row), is_min ? -x : x);
    }
    for (; row < rows; row++) {
        const EX_REAL x = largest_of_keys(keys_of_row(from + row * columns, columns, is_min));
        to[row] = is_min ? -x : x;
    }
}

/* Writes whole vectors: each row overwrites the excess of the one before it, and a tile is padded
 * at its end. Vectors are aligned: if a row begins within one, the lanes before it keep the number
 * of the row before. */
#define EX_PUT_COPIES(count, x) \
    EX_UNROLL                   \
    for (int k = 1; k < (count); k++) EX_VM(store)(at + k * (int64_t)sizeof(VEC), x);
#define SPREAD_ROWS(count)                                                  \
    for (int64_t row = 0, first = 0; row < rows; row++, first += columns) { \
        const VEC x = EX_VM(of)(number[row]);                               \
        const int64_t before = first & (EX_LANES - 1);                      \
        char *at = to + (first - before) * EX_SIZE;                         \
        EX_VM(store)(at, before_and(last, x, before));                      \
        EX_PUT_COPIES(count, x)                                             \
        last = x;                                                           \
    }
#define SPREAD_WHOLE_ROWS(count)                                            \
    for (int64_t row = 0; row < rows; row++, to += (count) * sizeof(VEC)) { \
        const VEC x = EX_VM(of)(number[row]);                               \
        char *at = to;                                                      \
        EX_VM(store)(at, x);                                                \
        EX_PUT_COPIES(count, x)                                             \
    }
#define SHORT_SPREAD(count)                      \
    case count:                                  \
        if (start == 0) SPREAD_WHOLE_ROWS(count) \
        else SPREAD_ROWS(count)                  \
        break;

/* Returns the first n lanes of `a` and the other lanes of `b`. */
VFN VEC before_and(VEC a, VEC b, int64_t n) {
    static const EX_KEY first[32] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                     -1, -1, -1, -1, -1, -1, -1, -1};
    return EX_VM(select)((INT)EX_VM(load)((const char *)(first + 16 - n)), a, b);
}

static void spread(void *tile, const void *numbers, int64_t rows, int64_t columns) {
    char *to = tile;
    const EX_REAL *number = numbers;
    VEC last = CB_ZERO;
    const int64_t start = columns % EX_LANES ? EX_LANES - 1
                                             : 0, /* largest offset of a row in a vector */
        count = (start + columns + EX_LANES - 1) / EX_LANES;
    switch (columns < EX_LANES ? 0 : count) {
        SHORT_SPREAD(1)
        SHORT_SPREAD(2)
        SHORT_SPREAD(3)
        SHORT_SPREAD(4)
        SHORT_SPREAD(5)
        SHORT_SPREAD(6)
        SHORT_SPREAD(7)
        SHORT_SPREAD(8)
        default:
            for (int64_t row = 0; row < rows; row++, to += columns * EX_SIZE) {
                const VEC x = EX_VM(of)(number[row]);
                for (int64_t i = 0; i < columns; i += EX_LANES) EX_VM(store)(to + i * EX_SIZE, x);
            }
    }
}

/* Applies an operation to per-row numbers, in whole vectors. A step is 1, or 0 if all rows share
 * one number. Returns false for operations that the caller must compute number by number. */
#define NUMBERS_CASE(id, expression)                                   \
    case CB_X_##id:                                                    \
        for (int64_t i = 0; i < n; i += EX_LANES) {                    \
            const VEC x = step[0] ? EX_VM(load)(a + i * EX_SIZE) : xs, \
                      y = step[1] ? EX_VM(load)(b + i * EX_SIZE) : ys; \
            EX_VM(store)(to + i * EX_SIZE, expression);                \
            (void)y;                                                   \
        }                                                              \
        return true;
static bool numbers_of_rows(cb_x_op op, void *out, const void *const in[2], const bool step[2],
                            int64_t n) {
    char *to = out;
    const char *a = in[0], *b = in[1];
    const VEC xs = EX_VM(of)(*(const EX_REAL *)in[0]), ys = EX_VM(of)(*(const EX_REAL *)in[1]);
    switch ((int)op) {
        CB_X_SUMS(NUMBERS_CASE)
        CB_X_PRODUCTS(NUMBERS_CASE)
        CB_X_UNARY(NUMBERS_CASE)
#ifndef CB_X_WIDE
        CB_X_MATH(NUMBERS_CASE)
#endif
        default: return false;
    }
}

static void add_rows(void *sums, const void *terms, int64_t rows, int64_t columns) {
    EX_REAL *to = sums;
    const EX_REAL *from = terms;
    for (int64_t i = 0; i < columns; i += 2 * EX_LANES) {
        const int64_t n = at_most_lanes(columns - i), rest = at_most_lanes(columns - i - n),
                      next = rest ? EX_LANES : 0;
        VEC sum = EX_FEW(few)(to + i, n), other = EX_FEW(few)(to + i + next, rest);
        for (int64_t row = 0; row < rows; row++) {
            sum += EX_FEW(few)(from + row * columns + i, n);
            other += EX_FEW(few)(from + row * columns + i + next, rest);
        }
        EX_FEW(put_few)(to + i, sum, n);
        EX_FEW(put_few)(to + i + next, other, rest);
    }
}
