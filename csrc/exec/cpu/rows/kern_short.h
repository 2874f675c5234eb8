/* kern_short.h: processes sixteen short rows at once, for one compute type. Included after
 * kern_rows.h, which defines the names of the type.
 *
 * A row of a few elements takes as long as its chain of dependent operations: a maximum, an
 * exponential, a sum. So rows are transposed into a block, where a vector holds one element of each
 * row, and the chains of all rows run at the same time. The operations on each row are those of the
 * functions for a single row, in the same order, so the bits are the same. */
#ifndef CB_EXEC_CPU_ROWS_KERN_SHORT_H
#define CB_EXEC_CPU_ROWS_KERN_SHORT_H

enum { CB_SHORT_ROWS = 16, CB_SHORT_COLUMNS = CB_TILE / CB_SHORT_ROWS };
_Static_assert(CB_SHORT_COLUMNS <= CB_SUM_LANES, "each element of a row has a lane of its own");

/* True if blocks can hold rows of n elements. */
static inline bool short_fits(int64_t n) { return n > 0 && n <= CB_SHORT_COLUMNS; }

#if defined(__AVX512F__)
/* Transposes 16 vectors: first pairs, then pairs of pairs, then quarters. */
VFN void short_transpose(V v[16]) {
    __m512 t[16], u[16];
    for (int k = 0; k < 16; k += 2) {
        t[k] = _mm512_unpacklo_ps((__m512)v[k], (__m512)v[k + 1]);
        t[k + 1] = _mm512_unpackhi_ps((__m512)v[k], (__m512)v[k + 1]);
    }
    for (int k = 0; k < 16; k += 4) {
        u[k] = _mm512_shuffle_ps(t[k], t[k + 2], 0x44);
        u[k + 1] = _mm512_shuffle_ps(t[k], t[k + 2], 0xEE);
        u[k + 2] = _mm512_shuffle_ps(t[k + 1], t[k + 3], 0x44);
        u[k + 3] = _mm512_shuffle_ps(t[k + 1], t[k + 3], 0xEE);
    }
    for (int k = 0; k < 4; k++) {
        const __m512 a = _mm512_shuffle_f32x4(u[k], u[k + 4], 0x88),
                     b = _mm512_shuffle_f32x4(u[k + 8], u[k + 12], 0x88),
                     c = _mm512_shuffle_f32x4(u[k], u[k + 4], 0xDD),
                     d = _mm512_shuffle_f32x4(u[k + 8], u[k + 12], 0xDD);
        v[k] = (V)_mm512_shuffle_f32x4(a, b, 0x88);
        v[k + 8] = (V)_mm512_shuffle_f32x4(a, b, 0xDD);
        v[k + 4] = (V)_mm512_shuffle_f32x4(c, d, 0x88);
        v[k + 12] = (V)_mm512_shuffle_f32x4(c, d, 0xDD);
    }
}
#endif

#endif

typedef CB_REAL CB_TYPED(block)[CB_SHORT_COLUMNS][CB_SHORT_ROWS];
#define EACH_SHORT(r) for (int r = 0; r < CB_SHORT_ROWS; r++)

/* Loads sixteen contiguous rows of n elements, from element `at` on. */
static inline void CB_TYPED(load_block)(const cb_tensor *t, int64_t at, int64_t n,
                                        CB_REAL (*restrict to)[CB_SHORT_ROWS]) {
    CB_REAL tile[CB_TILE];
    const CB_REAL *restrict from = CB_TYPED(load)(t, at, n * CB_SHORT_ROWS, tile);
#if defined(__AVX512F__) && REAL_BITS == 32
    for (int64_t j = 0; j < n; j += 16) {
        V v[16];
        for (int r = 0; r < 16; r++) v[r] = few_float(from + r * n + j, n - j);
        short_transpose(v);
        for (int64_t k = 0; k < 16 && k < n - j; k++) memcpy(to[j + k], &v[k], sizeof v[k]);
    }
#else
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) to[j][r] = from[r * n + j];
#endif
}

/* Stores a block to memory. */
static inline void CB_TYPED(put_block)(CB_REAL *restrict to, int64_t n,
                                       CB_REAL (*restrict from)[CB_SHORT_ROWS]) {
#if defined(__AVX512F__) && REAL_BITS == 32
    for (int64_t j = 0; j < n; j += 16) {
        V v[16];
        for (int64_t k = 0; k < 16; k++) memcpy(&v[k], from[k < n - j ? j + k : j], sizeof v[k]);
        short_transpose(v);
        for (int r = 0; r < 16; r++) put_few_float(to + r * n + j, v[r], n - j);
    }
#else
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) to[r * n + j] = from[j][r];
#endif
}

static inline void CB_TYPED(store_block)(const cb_tensor *t, int64_t at, int64_t n,
                                         CB_REAL (*restrict from)[CB_SHORT_ROWS]) {
    CB_REAL tile[CB_TILE];
    CB_REAL *to = CB_TYPED(target)(t, at, tile);
    CB_TYPED(put_block)(to, n, from);
    CB_TYPED(commit)(t, at, n * CB_SHORT_ROWS, to);
}

/* Computes the sum of each row in the order of a leaf: adds halves of its lanes until one is left.
 * Lanes without an element hold 0, which changes nothing but a -0, and a total starts from 0. */
static inline void CB_TYPED(sum_block)(CB_REAL (*from)[CB_SHORT_ROWS], int64_t n,
                                       CB_REAL *restrict sum) {
    CB_TYPED(block) half;
    int64_t w = CB_SHORT_COLUMNS / 2;
    while (w >= n && w > 1) w /= 2;
    for (int64_t k = 0; k < min_i64(w, n); k++)
        EACH_SHORT(r) half[k][r] = k + w < n ? from[k][r] + from[k + w][r] : from[k][r];
    for (n = min_i64(w, n); n > 1; n = w) {
        w = n / 2;
        for (int64_t k = 0; k < w; k++) EACH_SHORT(r) half[k][r] += half[k + w][r];
    }
    EACH_SHORT(r) sum[r] = n ? half[0][r] + 0 : 0;
}

static inline void CB_TYPED(max_block)(CB_REAL (*restrict from)[CB_SHORT_ROWS], int64_t n,
                                       CB_REAL *restrict largest) {
    ROW_KEY best[CB_SHORT_ROWS];
    EACH_SHORT(r) best[r] = CB_TYPED(key)(-(CB_REAL)INFINITY);
    for (int64_t j = 0; j < n; j++) EACH_SHORT(r) {
            const ROW_KEY key = CB_TYPED(key)(from[j][r]);
            best[r] = key > best[r] ? key : best[r];
        }
    EACH_SHORT(r) largest[r] = CB_TYPED(of_key)(best[r]);
}
