/* The formulas of formulas.h as loops, in f32 and f64, compiled once for each instruction set
 * (cmake/kernels.cmake). Everything but the table is static: a function shared between builds would
 * carry one build's instructions into another. Products and sums round by themselves, roots and
 * quotients are exact, so every build gives the same bits. */
#include "formulas.h"

#include <math.h>

#include "../base/bits.h"

#define INLINE static inline __attribute__((always_inline))

/* 32 bits that look independent for neighbouring x. */
INLINE uint32_t noise_of(uint32_t x) {
    x ^= x >> 16;
    x *= UINT32_C(0x7FEB352D);
    x ^= x >> 15;
    x *= UINT32_C(0x846CA68B);
    return x ^ x >> 16;
}

/* Noise of element i of a block that begins with `first`: steps of the golden ratio, which fill
 * 0 .. 2^32 - 1 evenly however many there are. */
INLINE uint32_t noise_at(uint32_t first, int32_t i) {
    return first + (uint32_t)i * UINT32_C(0x9E3779B9);
}

INLINE int32_t int_max(int32_t x, int32_t y) { return x > y ? x : y; }
INLINE int32_t int_min(int32_t x, int32_t y) { return x < y ? x : y; }

/* A share of the largest number of a block as a code of eight steps an octave, `most` for 1: the
 * upper bits of the share as an f32, rounded up or down by noise; `least` at least. */
INLINE int32_t code_of(float share, int32_t least, int32_t most, uint32_t noise) {
    const int32_t bits = (int32_t)((cb_bits_of_f32(share) + (noise >> 12)) >> 20);
    return int_min(int_max(bits - (127 * 8 - most), least), most);
}

INLINE float share_of(int32_t code, int32_t most) {
    return code == 0 ? 0 : cb_f32_of_bits((uint32_t)(code + 127 * 8 - most) << 20);
}

/* As a signed code: its magnitude's share with its sign. */
INLINE float signed_share_of(int32_t code) {
    const uint32_t bits = cb_bits_of_f32(share_of(code < 0 ? -code : code, 127));
    return cb_f32_of_bits(bits | ((uint32_t)code & UINT32_C(0x80000000)));
}

#define CB_IMPL "formulas_impl.h"
#include "both_reals.h"

#define BOTH(NAME_, x)                                                                    \
    static void x(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) { \
        OF_TYPE(row->dtype, x, factor, row, at, n);                                       \
    }
CB_FORMULAS(BOTH)

#define PASTE(isa) cb_formulas_##isa
#define TABLE_OF(isa) PASTE(isa)
#define ROW(NAME_, x) [CB_FORMULA_##NAME_] = x,
extern const cb_formula_fn TABLE_OF(CB_KERN_ISA)[CB_FORMULA_COUNT];
const cb_formula_fn TABLE_OF(CB_KERN_ISA)[CB_FORMULA_COUNT] = {CB_FORMULAS(ROW)};
