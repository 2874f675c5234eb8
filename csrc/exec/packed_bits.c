/* Packs eight bools at a time, as the bytes of one 64-bit word. `ones` finds the bytes of the word
 * that are not 0, without a carry into the next byte. A product with `gather` then moves the lowest
 * bit of byte k to bit 56 + k; no two terms of the product meet in one bit. Unpacking copies a byte
 * into all eight and keeps bit k of copy k. Every x86-64 processor has SSE2, which compares 16
 * bytes with 0 and gathers the results in two instructions. */
#include "packed_bits.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static const uint64_t low_bits = UINT64_C(0x0101010101010101);
static const uint64_t low_sevens = UINT64_C(0x7F7F7F7F7F7F7F7F);
static const uint64_t gather = UINT64_C(0x0102040810204080);
static const uint64_t diagonal = UINT64_C(0x8040201008040201);

/* Returns 1 in every byte that is not 0. */
static uint64_t ones(uint64_t word) {
    return (((word & low_sevens) + low_sevens) | word) >> 7 & low_bits;
}

static uint64_t unpack_word(uint8_t packed) { return ones(packed * low_bits & diagonal); }

/* Packs `bytes` times eight bools. */
static void pack_words(const uint8_t *bools, uint64_t bytes, uint8_t *packed) {
    uint64_t i = 0;
#if defined(__SSE2__)
    for (; i + 2 <= bytes; i += 2) {
        const __m128i pair = _mm_loadu_si128((const __m128i *)(const void *)(bools + 8 * i));
        const int zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(pair, _mm_setzero_si128()));
        const uint16_t bits = (uint16_t)~zeros;
        memcpy(packed + i, &bits, sizeof bits);
    }
#endif
    for (; i < bytes; i++) {
        uint64_t word;
        memcpy(&word, bools + 8 * i, sizeof word);
        packed[i] = (uint8_t)(ones(word) * gather >> 56);
    }
}

void cb_pack_bits(const uint8_t *bools, uint64_t n, uint8_t *packed) {
    pack_words(bools, n / 8, packed);
    if (n % 8 == 0) return;
    uint8_t rest[8] = {0};
    memcpy(rest, bools + n / 8 * 8, n % 8);
    pack_words(rest, 1, packed + n / 8);
}

void cb_unpack_bits(const uint8_t *packed, uint64_t n, uint8_t *bools) {
    for (uint64_t i = 0; i < n / 8; i++) {
        const uint64_t word = unpack_word(packed[i]);
        memcpy(bools + 8 * i, &word, sizeof word);
    }
    if (n % 8 == 0) return;
    const uint64_t word = unpack_word(packed[n / 8]);
    memcpy(bools + n / 8 * 8, &word, n % 8);
}

/* ---- signs of floats, as integers of their width --------------------------------------------- */

#define CB_SIGNS(T)                                                                            \
    static void pack_##T(const T *x, uint64_t n, T infinity, uint8_t *packed) {                \
        const T sign = (T)((T)1 << (8 * sizeof(T) - 1));                                       \
        for (uint64_t i = 0; i < n; i += 8) {                                                  \
            unsigned bits = 0;                                                                 \
            for (unsigned k = 0; k < 8 && i + k < n; k++) {                                    \
                const T magnitude = (T)(x[i + k] & (T)~sign);                                  \
                bits |= (unsigned)(magnitude > 0 && (x[i + k] < sign || magnitude > infinity)) \
                        << k;                                                                  \
            }                                                                                  \
            packed[i / 8] = (uint8_t)bits;                                                     \
        }                                                                                      \
    }                                                                                          \
    static void keep_##T(const T *from, const uint8_t *packed, uint64_t n, T *to) {            \
        for (uint64_t i = 0; i < n; i++) to[i] = packed[i / 8] >> i % 8 & 1 ? from[i] : 0;     \
    }

CB_SIGNS(uint16_t)
CB_SIGNS(uint32_t)
CB_SIGNS(uint64_t)

void cb_pack_signs(const void *floats, uint64_t n, unsigned width, uint64_t infinity,
                   uint8_t *packed) {
    if (width == 2) pack_uint16_t(floats, n, (uint16_t)infinity, packed);
    else if (width == 4) pack_uint32_t(floats, n, (uint32_t)infinity, packed);
    else pack_uint64_t(floats, n, infinity, packed);
}

void cb_keep_by_bits(const void *from, const uint8_t *packed, uint64_t n, unsigned width,
                     void *to) {
    if (width == 2) keep_uint16_t(from, packed, n, to);
    else if (width == 4) keep_uint32_t(from, packed, n, to);
    else keep_uint64_t(from, packed, n, to);
}
