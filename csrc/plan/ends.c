#include "ends.h"

#include <math.h>

#include "../flow/network.h"

#define DIGITS 53 /* bits of a double's significand */

uint64_t cb_bytes_at(double k, cb_ends ends) {
    int exponent;
    const double fraction = frexp(k, &exponent);
    const int shift = DIGITS - exponent; /* k = fraction * 2^DIGITS / 2^shift */
    if (ends.smallest >= ends.everything) return ends.smallest;
    const cb_int128 product =
        (cb_int128)ldexp(fraction, DIGITS) * (cb_int128)(ends.everything - ends.smallest);
    if (shift >= DIGITS + 65) return ends.smallest + (product > 0); /* less than one byte */
    const cb_int128 unit = (cb_int128)1 << shift;
    return ends.smallest + (uint64_t)((product + unit - 1) >> shift);
}
