/* ints.h: minimum, maximum and rounded-up division of integers. */
#ifndef CB_BASE_INTS_H
#define CB_BASE_INTS_H

#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t div_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
} /* a >= 0, b > 0 */

#endif
