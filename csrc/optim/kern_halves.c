/* The loops of halves.h, compiled for each instruction set (cmake/kernels.cmake).
 *
 * A remainder is the lower half of the f32 weight as a number in -32768 .. 32767. The stored weight
 * is the f32 minus its remainder, so ties are rounded away from 0. Together they hold all bits of
 * the f32, and the stored weight is the nearest bf16. A remainder of zeros represents the stored
 * weights themselves. */
#include "halves.h"

#include "../base/kern_half.h"
#include "../base/kern_random.h"

/* Returns the bits of x. A NaN is encoded only in the upper half, so that it stays a NaN for any
 * lower half. */
static inline uint32_t bits_with_nan(float x) {
    const uint32_t bits = cb_bits_of_f32(x), nan = (bits & 0xFFFF0000u) | 0x400000u;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : bits;
}

/* ---- a master copy in f32. If it no longer rounds to the weight, because the weight was written
 * from outside, it is recreated from the weight */

static void open_master(const cb_optim_row *row, int64_t at, int64_t n, float *weight) {
    const uint16_t *restrict p = (const uint16_t *)row->param + at;
    float *restrict master = weight;
    if (row->dtype == CB_BF16) {
        for (int64_t i = 0; i < n; i++)
            master[i] = half_store_bf16(master[i]) == p[i] ? master[i] : half_load_bf16(p[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            master[i] = half_store_f16(master[i]) == p[i] ? master[i] : half_load_f16(p[i]);
    }
}

static void close_master(const cb_optim_row *row, int64_t at, int64_t n, const float *weight) {
    half_narrow(row->dtype, weight, (uint16_t *)row->param + at, n);
}

/* ---- remainders: the other 16 bits of the f32 weight */

static void open_remainder(const cb_optim_row *row, int64_t at, int64_t n, float *weight) {
    const uint16_t *restrict p = (const uint16_t *)row->param + at;
    const int16_t *restrict rest = (const int16_t *)row->rest + at;
    for (int64_t i = 0; i < n; i++) {
        /* an infinity that was written from outside has no lower bits */
        const bool ends = (p[i] & 0x7F80u) == 0x7F80u && rest[i] > 0;
        const uint32_t low = ends ? 0 : (uint32_t)(int32_t)rest[i];
        weight[i] = cb_f32_of_bits(((uint32_t)p[i] << 16) + low);
    }
}

static void close_remainder(const cb_optim_row *row, int64_t at, int64_t n, const float *weight) {
    uint16_t *restrict p = (uint16_t *)row->param + at, *restrict rest = (uint16_t *)row->rest + at;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = bits_with_nan(weight[i]);
        p[i] = (uint16_t)((bits + 0x8000u) >> 16);
        rest[i] = (uint16_t)bits;
    }
}

/* ---- stochastic rounding: up with a probability equal to the fraction that is cut off */

static void open_stochastic(const cb_optim_row *row, int64_t at, int64_t n, float *weight) {
    half_widen(row->dtype, (const uint16_t *)row->param + at, weight, n);
}

static void close_stochastic(const cb_optim_row *row, int64_t at, int64_t n, const float *weight) {
    uint16_t *restrict p = (uint16_t *)row->param + at;
    const cb_philox noise = {.seed = row->seed, .stream = row->stream, .step = (uint32_t)row->t};
    for (int64_t i = 0; i < n; i += CB_DRAWN) {
        uint16_t drawn[CB_DRAWN];
        const int64_t some = n - i < CB_DRAWN ? n - i : CB_DRAWN;
        cb_draw(&noise, (uint64_t)(at + i) / CB_PHILOX_BLOCK, drawn);
        for (int64_t j = 0; j < some; j++)
            p[i + j] = (uint16_t)((bits_with_nan(weight[i + j]) + drawn[j]) >> 16);
    }
}

#define CB_TABLE_PASTE(isa) cb_half_fns_##isa
#define CB_TABLE_OF(isa) CB_TABLE_PASTE(isa)
extern const cb_half_fns CB_TABLE_OF(CB_KERN_ISA);
const cb_half_fns CB_TABLE_OF(CB_KERN_ISA) = {
    .widen = half_widen,
    .open = {[CB_HALF_MASTER] = open_master,
             [CB_HALF_REMAINDER] = open_remainder,
             [CB_HALF_STOCHASTIC] = open_stochastic},
    .close = {[CB_HALF_MASTER] = close_master,
              [CB_HALF_REMAINDER] = close_remainder,
              [CB_HALF_STOCHASTIC] = close_stochastic},
};
