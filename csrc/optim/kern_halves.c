/* The loops of halves.h, compiled once for each instruction set (cmake/kernels.cmake).
 *
 * A remainder is the lower half of the f32 as a number of -32768 .. 32767, and the weight is that
 * f32 less its remainder, so halves are rounded away from 0: both together are all bits of it, and
 * the weight alone the nearest bf16. What begins as zeros stands for the weights as they are. */
#include "halves.h"

#include "../base/philox.h"
#include "half_bits.h"

static void widen(cb_dtype dtype, const uint16_t *x, float *to, int64_t n) {
    if (dtype == CB_BF16) {
        for (int64_t i = 0; i < n; i++) to[i] = cb_of_bf16(x[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = cb_f16_to_f32(x[i]);
    }
}

/* ---- a copy in f32: one that is not the weight any more, since somebody has written that, is
 * made anew */

static void open_master(const cb_optim_row *row, int64_t at, int64_t n, float *weight) {
    const uint16_t *restrict p = (const uint16_t *)row->param + at;
    float *restrict master = weight;
    if (row->dtype == CB_BF16) {
        for (int64_t i = 0; i < n; i++)
            master[i] = cb_bf16_of(master[i]) == p[i] ? master[i] : cb_of_bf16(p[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            master[i] = cb_f32_to_f16(master[i]) == p[i] ? master[i] : cb_f16_to_f32(p[i]);
    }
}

static void close_master(const cb_optim_row *row, int64_t at, int64_t n, const float *weight) {
    uint16_t *restrict p = (uint16_t *)row->param + at;
    if (row->dtype == CB_BF16) {
        for (int64_t i = 0; i < n; i++) p[i] = cb_bf16_of(weight[i]);
    } else {
        for (int64_t i = 0; i < n; i++) p[i] = cb_f32_to_f16(weight[i]);
    }
}

/* ---- the rest of its bits */

static void open_remainder(const cb_optim_row *row, int64_t at, int64_t n, float *weight) {
    const uint16_t *restrict p = (const uint16_t *)row->param + at;
    const int16_t *restrict rest = (const int16_t *)row->rest + at;
    for (int64_t i = 0; i < n; i++) {
        /* an infinity that somebody has written has no lower bits */
        const bool ends = (p[i] & 0x7F80u) == 0x7F80u && rest[i] > 0;
        const uint32_t low = ends ? 0 : (uint32_t)(int32_t)rest[i];
        weight[i] = cb_float_of(((uint32_t)p[i] << 16) + low);
    }
}

static void close_remainder(const cb_optim_row *row, int64_t at, int64_t n, const float *weight) {
    uint16_t *restrict p = (uint16_t *)row->param + at, *restrict rest = (uint16_t *)row->rest + at;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = cb_bits_with_nan(weight[i]);
        p[i] = (uint16_t)((bits + 0x8000u) >> 16);
        rest[i] = (uint16_t)bits;
    }
}

/* ---- noise: what is cut off counts as its share of a unit, up or down */

static void open_stochastic(const cb_optim_row *row, int64_t at, int64_t n, float *weight) {
    widen(row->dtype, (const uint16_t *)row->param + at, weight, n);
}

static void close_stochastic(const cb_optim_row *row, int64_t at, int64_t n, const float *weight) {
    uint16_t *restrict p = (uint16_t *)row->param + at;
    const cb_philox noise = {.seed = row->seed, .stream = row->stream, .step = (uint32_t)row->t};
    for (int64_t i = 0; i < n; i += CB_PHILOX_BLOCK) {
        uint32_t words[CB_PHILOX_BLOCK / 2];
        const int64_t some = n - i < CB_PHILOX_BLOCK ? n - i : CB_PHILOX_BLOCK;
        cb_philox_block(&noise, (uint64_t)(at + i) / CB_PHILOX_BLOCK, words);
        for (int64_t j = 0; j < some; j++) {
            const uint32_t drawn = words[j / 2] >> (16 * (j % 2)) & 0xFFFFu;
            p[i + j] = (uint16_t)((cb_bits_with_nan(weight[i + j]) + drawn) >> 16);
        }
    }
}

#define PASTE(isa) cb_half_fns_##isa
#define TABLE_OF(isa) PASTE(isa)
extern const cb_half_fns TABLE_OF(CB_KERN_ISA);
const cb_half_fns TABLE_OF(CB_KERN_ISA) = {
    .widen = widen,
    .open = {[CB_HALF_MASTER] = open_master,
             [CB_HALF_REMAINDER] = open_remainder,
             [CB_HALF_STOCHASTIC] = open_stochastic},
    .close = {[CB_HALF_MASTER] = close_master,
              [CB_HALF_REMAINDER] = close_remainder,
              [CB_HALF_STOCHASTIC] = close_stochastic},
};
