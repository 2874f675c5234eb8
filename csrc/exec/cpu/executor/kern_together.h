/* kern_together.h: adjacent rows (micro/together.h): the sum or an extreme of each, and numbers of
 * rows. Part of kern_executor.c. Sums are added in the order of one leaf (kern_fold.h). */

#ifdef CB_X_WIDE
#define EX_FEW(name) name##_double
#else
#define EX_FEW(name) name##_float
#endif

enum { EX_IN_SUM = CB_X_LANES / EX_LANES, EX_SIDES = 16 }; /* vectors; rows */

/* kern_few.h takes numbers up to 255. */
VFN int64_t at_most_lanes(int64_t n) { return n < EX_LANES ? n : EX_LANES; }

/* Adds halves of the lanes of a sum until they are one vector. */
VFN VEC lanes_of_row(const EX_REAL *x, int64_t n) {
    VEC lanes[EX_IN_SUM];
    if (n <= EX_LANES) return EX_FEW(few)(x, n);
    for (int k = 0; k < EX_IN_SUM; k++) lanes[k] = CB_ZERO;
    for (; n >= CB_X_LANES; n -= CB_X_LANES, x += CB_X_LANES)
        for (int k = 0; k < EX_IN_SUM; k++)
            lanes[k] += EX_VM(load)((const char *)(x + k * EX_LANES));
    for (int k = 0; k < EX_IN_SUM; k++)
        if (n > k * EX_LANES) lanes[k] += EX_FEW(few)(x + k * EX_LANES, n - k * EX_LANES);
    for (int half = EX_IN_SUM / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) lanes[k] += lanes[k + half];
    return lanes[0];
}

/* The last additions; a total starts from 0, so it is not -0. */
VFN EX_REAL sum_of_lanes(VEC lanes) {
    EX_REAL x[EX_LANES];
    memcpy(x, &lanes, sizeof x);
    for (int half = EX_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) x[k] += x[k + half];
    return x[0] + 0;
}

VFN INT keys_of_row(const EX_REAL *x, int64_t n, bool is_min) {
    INT best = (INT){0} + EX_KEY_MIN;
    for (int64_t i = 0; i < n; i += EX_LANES) {
        const int64_t some_n = at_most_lanes(n - i);
        const VEC some = EX_FEW(few)(x + i, some_n);
        const INT in = (INT)EX_FEW(keep_few)((VEC)((INT){0} - 1), some_n),
                  key = key_of(is_min ? -some : some);
        best = EX_VM(larger_int)(best, (key & in) | (~in & EX_KEY_MIN));
    }
    return best;
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

#if defined(__AVX512F__) && !defined(CB_X_WIDE)
/* Combines halves of 16 vectors until each has one lane left, in the vector that is returned: lanes
 * k and k + 8, then k and k + 4, ... A step puts the halves of two vectors next to each other. */
#define CB_HALVES(shuffle, low, high, n, apply)                                            \
    for (int k = 0; k < (n); k++) {                                                        \
        const __m512 a = (__m512)v[2 * k], b = (__m512)v[2 * k + 1];                       \
        v[k] = apply((VEC)_mm512_##shuffle(a, b, low), (VEC)_mm512_##shuffle(a, b, high)); \
    }
#define CB_FOLD_ROWS(name, apply)                                                    \
    VFN VEC name(VEC v[EX_SIDES]) {                                                  \
        const __m512i order =                                                        \
            _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); \
        CB_HALVES(shuffle_f32x4, 0x44, 0xEE, 8, apply)                               \
        CB_HALVES(shuffle_f32x4, 0x88, 0xDD, 4, apply)                               \
        CB_HALVES(shuffle_ps, 0x44, 0xEE, 2, apply)                                  \
        CB_HALVES(shuffle_ps, 0x88, 0xDD, 1, apply)                                  \
        return (VEC)_mm512_permutexvar_ps(order, (__m512)v[0]);                      \
    }
#define CB_ADDED(x, y) ((x) + (y))
#define CB_LARGER(x, y) ((VEC)EX_VM(larger_int)((INT)(x), (INT)(y)))
CB_FOLD_ROWS(sums_of_sides, CB_ADDED)
CB_FOLD_ROWS(largest_of_sides, CB_LARGER)

/* lanes_of_row where `whole` vectors and one of `rest` elements are the row; at most four. */
VFN VEC lanes_of_short(const EX_REAL *x, int whole, int64_t rest) {
    VEC lanes[EX_IN_SUM];
    for (int k = 0; k < whole; k++) lanes[k] = EX_VM(load)((const char *)(x + k * EX_LANES));
    lanes[whole] = few_float(x + whole * EX_LANES, rest);
    if (whole >= 2) lanes[0] += lanes[2];
    if (whole >= 3) lanes[1] += lanes[3];
    if (whole >= 1) lanes[0] += lanes[1];
    return lanes[0];
}

/* Rows of at most 64 elements, sixteen at a time; returns the number of rows. `whole` is a
 * constant, so that nothing is decided for each row. */
#define CB_SHORT_SUMS(whole)                                                    \
    case whole:                                                                 \
        for (; row + EX_SIDES <= rows; row += EX_SIDES) {                       \
            VEC v[EX_SIDES];                                                    \
            for (int k = 0; k < EX_SIDES; k++)                                  \
                v[k] = lanes_of_short(from + (row + k) * columns, whole, rest); \
            EX_VM(store)((char *)(to + row), sums_of_sides(v) + 0.0f);          \
        }                                                                       \
        return row;
static int64_t sums_of_blocks(EX_REAL *to, const EX_REAL *from, int64_t rows, int64_t columns) {
    const int64_t whole = (columns - 1) / EX_LANES, rest = columns - whole * EX_LANES;
    int64_t row = 0;
    switch (whole) {
        CB_SHORT_SUMS(0)
        CB_SHORT_SUMS(1)
        CB_SHORT_SUMS(2)
        CB_SHORT_SUMS(3)
        default: return row;
    }
}
#endif

static void row_sums(void *sums, const void *terms, int64_t rows, int64_t columns) {
    EX_REAL *to = sums;
    const EX_REAL *from = terms;
    int64_t row = 0;
#if defined(__AVX512F__) && !defined(CB_X_WIDE)
    if (columns > 0 && columns <= CB_X_LANES) row = sums_of_blocks(to, from, rows, columns);
    for (; row + EX_SIDES <= rows; row += EX_SIDES) {
        VEC v[EX_SIDES];
        for (int k = 0; k < EX_SIDES; k++) v[k] = lanes_of_row(from + (row + k) * columns, columns);
        EX_VM(store)((char *)(to + row), sums_of_sides(v) + 0.0f);
    }
#endif
    for (; row < rows; row++) to[row] = sum_of_lanes(lanes_of_row(from + row * columns, columns));
}

static void row_largest(void *largest, const void *terms, int64_t rows, int64_t columns,
                        bool is_min) {
    EX_REAL *to = largest;
    const EX_REAL *from = terms;
    int64_t row = 0;
#if defined(__AVX512F__) && !defined(CB_X_WIDE)
    for (; row + EX_SIDES <= rows; row += EX_SIDES) {
        VEC v[EX_SIDES];
        for (int k = 0; k < EX_SIDES; k++)
            v[k] = (VEC)keys_of_row(from + (row + k) * columns, columns, is_min);
        const VEC x = of_keys((INT)largest_of_sides(v));
        EX_VM(store)((char *)(to + row), is_min ? -x : x);
    }
#endif
    for (; row < rows; row++) {
        const EX_REAL x = largest_of_keys(keys_of_row(from + row * columns, columns, is_min));
        to[row] = is_min ? -x : x;
    }
}

/* Writes whole vectors: each row overwrites the excess of the one before it, and a tile has room
 * after its end. */
static void spread(void *tile, const void *numbers, int64_t rows, int64_t columns) {
    char *to = tile;
    const EX_REAL *number = numbers;
    for (int64_t row = 0; row < rows; row++, to += columns * EX_SIZE) {
        const VEC x = EX_VM(of)(number[row]);
        for (int64_t i = 0; i < columns; i += EX_LANES) EX_VM(store)(to + i * EX_SIZE, x);
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
