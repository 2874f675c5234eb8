/* AdamW with 8-bit moments in blocks of CB_STATE_BLOCK elements, each with its own scales (after
 * Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").
 *
 *     v is w^2, where w is the f32 with the bits first + (c - 1) step for a code c in 1 .. 255,
 *         and 0 for c = 0; v_scale holds the block's smallest nonzero w and its largest w, `first`
 *         is the bits of the smallest, and step is (bits of the largest - first) / 253 + 1
 *     m is s (m_scale[0] w + m_scale[1]), s an integer in -127 .. 127
 *
 * The bits of an f32 are nearly its logarithm, so all w of a block have nearly the same relative
 * precision. It is as fine as the block's range allows: 0.1 % if gradients are of similar size, 3 %
 * if their scales differ by three decades. Values more than 15.8 octaves below the largest are
 * raised to that limit, and v is 0 only if it was 0. |m| is never much larger than w, so m is
 * stored as the update that was computed from it, m / (w root + eps), in evenly spaced codes. So a
 * block can hold small and large moments.
 *
 * An element whose update or root is not finite (or whose update is not below 2^60) is excluded
 * from the ranges of its block, so that the others keep their precision. Its parameter becomes what
 * the formula gives: NaN if the gradient is not finite; if v overflows, it changes only by weight
 * decay. Codes cannot represent infinity or NaN. If the update is not finite, m restarts from 0. w
 * is clamped to the largest finite w of the block (0 if there is none).
 *
 * A moment usually changes by less than the distance of two codes, and with rounding to nearest it
 * would never change. So rounding is stochastic and unbiased. Its noise is a function of the
 * element and of t.
 *
 * This is version 2 of the codes. Version 1 had eight codes per octave for both moments and one
 * scale per block; python/cutback/optim/codes.py converts its states. */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "adam_factors.h"

static const char *const states[] = {"m", "v", "m_scale", "v_scale"};
static const cb_state_kind kinds[] = {CB_STATE_CODES, CB_STATE_CODES, CB_STATE_SCALES,
                                      CB_STATE_SCALES};
static const cb_hyper hypers[N_EIGHT] = {
    CB_ADAPTIVE_HYPERS,
    [EIGHT_MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(adamw_8bit, CB_FORMULA_ADAMW_8BIT, cb_adamw_8bit_factors, states, hypers,
               .kind = kinds);
