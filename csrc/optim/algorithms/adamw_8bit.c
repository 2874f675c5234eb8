/* AdamW with its moments in 8 bits, in blocks of CB_STATE_BLOCK elements that have scales of their
 * own (after Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").
 *
 *     v is w^2, where w is the f32 with the bits first + (c - 1) step for a code c in 1 .. 255,
 *         and 0 for c = 0; v_scale has the block's least w that is not 0 and its largest, `first`
 *         are the bits of the least, and step is (bits of the largest - first) / 253 + 1
 *     m is s (m_scale[0] w + m_scale[1]), s an integer in -127 .. 127
 *
 * The bits of an f32 are nearly its logarithm, so all w of a block have nearly the same relative
 * precision, as fine as the block's range allows: 0.1 % where gradients are alike, 3 % where their
 * scales differ by three decades. Values more than 15.8 octaves below the largest are raised to
 * that limit, and v is 0 only if it was 0. |m| is never much larger than w, so m is stored as the
 * update that was computed from it, m / (w root + eps), in evenly spaced codes: small moments are
 * not lost beside large ones.
 *
 * An element whose update or root is not finite (or whose update is not below 2^60) is left out of
 * the ranges of its block, so that the others keep their precision. Its parameter becomes what the
 * formula gives: NaN for a gradient that is not finite, unchanged but for weight decay where v
 * overflows. Codes have no infinity and no NaN: its m restarts from 0 where the update is not
 * finite, and its w is clamped to the largest finite w of the block (0 if there is none).
 *
 * A moment changes by less than the distance of two codes at a time, and would never change if it
 * were rounded to the nearest. So it is rounded up or down by noise, a function of the element and
 * of t, and is right in the mean.
 *
 * These are codes of version 2. Version 1 had eight codes an octave for both moments and one scale
 * for each block; python/cutback/optim/codes.py converts its states. */
#include "../elements.h"
#include "../optimizers.h"

#include <float.h>
#include <math.h>

#include "adam_factors.h"

enum { EIGHT_MAXIMIZE = AMSGRAD, N_EIGHT }; /* the others as Adam has them */

static const char *const states[] = {"m", "v", "m_scale", "v_scale"};
static const cb_state_kind kinds[] = {CB_STATE_CODES, CB_STATE_CODES, CB_STATE_SCALES,
                                      CB_STATE_SCALES};
static const cb_hyper hypers[N_EIGHT] = {
    CB_ADAPTIVE_HYPERS,
    [EIGHT_MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, int64_t t, const double *number, double *factor) {
    double adam[N_HYPER] = {[MAXIMIZE] = hyper[EIGHT_MAXIMIZE]};
    for (int i = 0; i < AMSGRAD; i++) adam[i] = hyper[i];
    cb_adamw_factors(adam, t, number, factor);
    /* With eps = 0 an element that never had a gradient would be 0 / 0, and spoil its block. */
    factor[CB_ADAM_EPS] = fmax(factor[CB_ADAM_EPS], FLT_MIN);
    factor[CB_ADAMW_8BIT_NOISE_SEED] = (double)((uint32_t)t * UINT32_C(0x9E3779B9));
}

CB_ELEMENTWISE(adamw_8bit, CB_FORMULA_ADAMW_8BIT, factors_of, states, hypers, .kind = kinds);
