/* AdamW with its moments in 8 bits (after Dettmers et al. 2022): blocks of CB_STATE_BLOCK elements
 * have scales of their own, the largest of the block.
 *
 *     m is the sign of s times m_scale 2^((|s| - 127) / 8), s an integer in -127 .. 127
 *     v is v_scale 2^((c - 255) / 8), c an integer in 0 .. 255
 *     where a power of two between whole ones is a straight line, and s = 0 and c = 0 stand for 0
 *
 * So a moment is known to within an eighth of itself, over four decades of m and nine of v: small
 * moments are not lost beside large ones, and v is 0 only where it was. A moment changes by less
 * than such a step at a time, and would stay where it is if it were rounded to the nearest; so it
 * is rounded up or down by noise, a function of the element and of t, and right in the mean. */
#include "../elements.h"
#include "../optimizers.h"

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

static void factors_of(const double *hyper, int64_t t, const double *number, double *f) {
    double adam[N_HYPER] = {[MAXIMIZE] = hyper[EIGHT_MAXIMIZE]};
    for (int i = 0; i < AMSGRAD; i++) adam[i] = hyper[i];
    cb_adamw_factors(adam, t, number, f);
    f[CB_ADAMW_8BIT_SEED] = (double)((uint32_t)t * UINT32_C(0x9E3779B9));
}

CB_ELEMENTWISE(adamw_8bit, CB_FORMULA_ADAMW_8BIT, factors_of, states, hypers, .kind = kinds);
