/* gemm_bf16.h: products of bf16 by vdpbf16ps, the instruction that multiplies pairs of them. It
 * adds a[2p] b[2p] and a[2p+1] b[2p+1] to a sum in f32, with its own rounding, and treats subnormal
 * numbers as zeros. So bits differ from those of the widened product. They, too, depend only on the
 * inner axis, which is always cut into the same blocks.
 *
 * The right side is packed into panels of 32 columns, [pair][column][2]. The left side is read
 * in place, or packed into panels of 16 rows, [pair][row][2], if it is column-major. */
#ifndef CB_EXEC_CPU_GEMM_GEMM_BF16_H
#define CB_EXEC_CPU_GEMM_GEMM_BF16_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../../base/cpu.h"
#include "gemm_own.h"

#define BF16_COLUMNS 32
#define BF16_INNER 128 /* maximum number of pairs */

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>

#define BF16_TARGET __attribute__((target("avx512bf16")))
#define BF16_INLINE BF16_TARGET static inline __attribute__((always_inline))
#define BF16_LANES 16
#define BF16_ROWS 12  /* rows of sums, two vectors each */
#define BF16_FAR 1024 /* elements */

/* A matrix of bf16, with its strides. One of the strides is 1. */
typedef struct bf16_view {
    const uint16_t *at;
    int64_t row, column;
} bf16_view;

/* The left side: pair p of row i is at at[i * row + p * pair]. */
typedef struct bf16_left {
    const uint16_t *at;
    int64_t row, pair;
} bf16_left;

typedef struct bf16_out {
    float *c;
    int64_t ld, columns;
    bool add;
} bf16_out;

/* ---- packing --------------------------------------------------------------------------------- */

/* Interleaves lines 2p and 2p+1, of up to 16 elements each, to pairs. */
BF16_INLINE __m512i bf16_pairs(const uint16_t *first, const uint16_t *second, __mmask32 mask) {
    const __m256i x = _mm256_maskz_loadu_epi16((__mmask16)mask, first),
                  y = second ? _mm256_maskz_loadu_epi16((__mmask16)mask, second)
                             : _mm256_setzero_si256();
    return _mm512_or_si512(_mm512_cvtepu16_epi32(x),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16));
}

/* Fills to[p][i][2], i < 16, from `n` lines i along the inner axis. Missing lines become zeros. */
BF16_TARGET static void bf16_pack_lines(const uint16_t *from, int64_t ld, int64_t inner, int64_t n,
                                        uint16_t *to, int64_t pitch) {
    for (int64_t i = 0; i < BF16_LANES; i++) {
        const uint16_t *line = from + i * ld;
        uint16_t *out = to + 2 * i;
        for (int64_t p = 0; p + 1 < inner; p += 2, out += pitch) {
            uint32_t pair = 0;
            if (i < n) memcpy(&pair, line + p, sizeof pair);
            memcpy(out, &pair, sizeof pair);
        }
        if (inner % 2) {
            const uint16_t last[2] = {i < n ? line[inner - 1] : 0, 0};
            memcpy(out, last, sizeof last);
        }
    }
}

/* Does the same from lines of n elements that run across the inner axis. */
BF16_TARGET static void bf16_pack_across(const uint16_t *from, int64_t ld, int64_t inner, int64_t n,
                                         uint16_t *to, int64_t pitch) {
    const __mmask32 mask = n >= BF16_LANES ? 0xFFFF : (__mmask32)((1u << (n > 0 ? n : 0)) - 1);
    for (int64_t p = 0; p < inner; p += 2, to += pitch) {
        const uint16_t *first = from + p * ld;
        _mm512_storeu_si512(to, bf16_pairs(first, p + 1 < inner ? first + ld : NULL, mask));
    }
}

/* Fills to[p][j][2], j < 32, from whole lines across the inner axis. */
BF16_TARGET static void bf16_pack_panel(const uint16_t *from, int64_t ld, int64_t inner,
                                        uint16_t *to) {
    __m512i low, high; /* indices of the elements of two lines that make pairs of columns */
    int16_t at[2 * BF16_COLUMNS];
    for (int16_t j = 0; j < BF16_COLUMNS; j++) at[2 * j] = j, at[2 * j + 1] = BF16_COLUMNS + j;
    memcpy(&low, at, sizeof low);
    memcpy(&high, at + BF16_COLUMNS, sizeof high);
    for (int64_t p = 0; p < inner; p += 2, to += 2 * BF16_COLUMNS) {
        const __m512i x = _mm512_loadu_si512(from + p * ld),
                      y = p + 1 < inner ? _mm512_loadu_si512(from + (p + 1) * ld)
                                        : _mm512_setzero_si512();
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(x, low, y));
        _mm512_storeu_si512(to + BF16_COLUMNS, _mm512_permutex2var_epi16(x, high, y));
    }
}

/* Packs columns j .. j+n of b, where n is at most 16. */
BF16_TARGET static void bf16_pack(bf16_view b, int64_t inner, int64_t j, int64_t n, uint16_t *to,
                                  int64_t pitch) {
    const uint16_t *from = b.at + (n > 0 ? j * b.column : 0);
    if (b.row == 1 && b.column != 1) bf16_pack_lines(from, b.column, inner, n, to, pitch);
    else bf16_pack_across(from, b.row, inner, n, to, pitch);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Sums `rows` rows and `width` vectors of columns, which are compile-time constants. */
BF16_INLINE void bf16_sum(const int rows, const int width, bf16_left a, const uint16_t *panel,
                          int64_t pairs, const bf16_out *out) {
    __m512 sum[2 * BF16_ROWS];
    GEMM_UNROLL
    for (int i = 0; i < rows * width; i++) sum[i] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; p++, a.at += a.pair, panel += 2 * BF16_COLUMNS) {
        __m512bh right[2];
        GEMM_UNROLL
        for (int j = 0; j < width; j++)
            right[j] = (__m512bh)_mm512_loadu_si512(panel + 2 * j * BF16_LANES);
        GEMM_UNROLL
        for (int i = 0; i < rows; i++) {
            int32_t pair;
            memcpy(&pair, a.at + i * a.row, sizeof pair);
            const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
            GEMM_UNROLL
            for (int j = 0; j < width; j++)
                sum[i * width + j] = _mm512_dpbf16_ps(sum[i * width + j], left, right[j]);
        }
    }
    GEMM_UNROLL
    for (int j = 0; j < width; j++) {
        const int64_t n = out->columns - j * BF16_LANES;
        const __mmask16 mask = (__mmask16)(n >= BF16_LANES ? 0xFFFFu : (1u << (n > 0 ? n : 0)) - 1);
        GEMM_UNROLL
        for (int i = 0; i < rows; i++) {
            float *c = out->c + i * out->ld + j * BF16_LANES;
            __m512 x = sum[i * width + j];
            if (out->add) x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x);
            _mm512_mask_storeu_ps(c, mask, x);
        }
    }
}

#define BF16_DEFINE_SUM(rows, width)                                                        \
    BF16_TARGET static void bf16_sum_##rows##_##width(bf16_left a, const uint16_t *panel,   \
                                                      int64_t pairs, const bf16_out *out) { \
        bf16_sum(rows, width, a, panel, pairs, out);                                        \
    }
BF16_DEFINE_SUM(12, 1)
BF16_DEFINE_SUM(12, 2)
BF16_DEFINE_SUM(8, 1)
BF16_DEFINE_SUM(8, 2)
BF16_DEFINE_SUM(4, 1)
BF16_DEFINE_SUM(4, 2)
BF16_DEFINE_SUM(2, 1)
BF16_DEFINE_SUM(2, 2)
BF16_DEFINE_SUM(1, 1)
BF16_DEFINE_SUM(1, 2)
#undef BF16_DEFINE_SUM

static void bf16_add_panel(bf16_left a, int64_t rows, const uint16_t *panel, int64_t pairs,
                           bf16_out out) {
    const bool is_narrow = out.columns <= BF16_LANES;
#define BF16_TAKE(n)                                                               \
    for (; rows >= (n); rows -= (n), a.at += (n) * a.row, out.c += (n) * out.ld) { \
        if (is_narrow) bf16_sum_##n##_1(a, panel, pairs, &out);                    \
        else bf16_sum_##n##_2(a, panel, pairs, &out);                              \
    }
    if (rows != 16) BF16_TAKE(12)
    BF16_TAKE(8)
    BF16_TAKE(4)
    BF16_TAKE(2)
    BF16_TAKE(1)
#undef BF16_TAKE
}

/* ---- products -------------------------------------------------------------------------------- */

/* Computes c[rows, columns] (+)= a[rows, inner] b[inner, columns]. `left` holds rows times inner
 * elements, with `inner` rounded up to an even number; `panel` is on the caller's stack. */
static void bf16_multiply(bf16_view a, int64_t rows, bf16_view b, int64_t inner, bf16_out out,
                          uint16_t *left, uint16_t *panel) {
    const int64_t pairs = (inner + 1) / 2, columns = out.columns;
    /* Rows at a distance of a page, or half a page, evict each other from the L1 cache. */
    const bool is_packed = a.column != 1,
               is_padded = !is_packed && (inner % 2 || (a.row % BF16_FAR == 0 && rows > BF16_ROWS));
    _Alignas(64) uint16_t rest[2 * BF16_INNER * BF16_LANES]; /* the panel of the last few rows */
    for (int64_t i = 0; is_packed && i < rows; i += BF16_LANES)
        bf16_pack((bf16_view){a.at, a.column, a.row}, inner, i, gemm_least(BF16_LANES, rows - i),
                  rows - i < BF16_LANES ? rest : left + i * 2 * pairs, 2 * BF16_LANES);
    for (int64_t i = 0; is_padded && i < rows; i++) {
        memcpy(left + i * 2 * pairs, a.at + i * a.row, (size_t)inner * sizeof *left);
        if (inner % 2) left[i * 2 * pairs + inner] = 0;
    }
    for (int64_t j = 0; j < columns; j += BF16_COLUMNS) {
        const int64_t pitch = 2 * BF16_COLUMNS;
        out.columns = gemm_least(BF16_COLUMNS, columns - j);
        if (out.columns == BF16_COLUMNS && b.column == 1)
            bf16_pack_panel(b.at + j, b.row, inner, panel);
        else
            for (int64_t k = 0; k < out.columns; k += BF16_LANES)
                bf16_pack(b, inner, j + k, gemm_least(BF16_LANES, out.columns - k), panel + 2 * k,
                          pitch);
        bf16_left from = {a.at, a.row, 2};
        if (is_padded) from = (bf16_left){left, 2 * pairs, 2};
        for (int64_t i = 0; is_packed && i < rows; i += BF16_LANES) {
            bf16_out some = out;
            some.c += i * out.ld;
            const uint16_t *at = rows - i < BF16_LANES ? rest : left + i * 2 * pairs;
            bf16_add_panel((bf16_left){at, 2, 2 * BF16_LANES}, gemm_least(BF16_LANES, rows - i),
                           panel, pairs, some);
        }
        if (!is_packed) bf16_add_panel(from, rows, panel, pairs, out);
        out.c += BF16_COLUMNS;
    }
}

static bool bf16_is_native(void) { return cb_cpu_multiplies_bf16(); }

#else /* for other instruction sets */

typedef struct bf16_view {
    const uint16_t *at;
    int64_t row, column;
} bf16_view;
typedef struct bf16_out {
    float *c;
    int64_t ld, columns;
    bool add;
} bf16_out;

static bool bf16_is_native(void) { return false; }
static void bf16_multiply(bf16_view a, int64_t rows, bf16_view b, int64_t inner, bf16_out out,
                          uint16_t *left, uint16_t *panel) {
    (void)a, (void)rows, (void)b, (void)inner, (void)out, (void)left, (void)panel;
}

#endif

#endif
