/* kern_int.h: small integer helpers for kernel files (kern.h). */
#ifndef CB_EXEC_CPU_KERN_INT_H
#define CB_EXEC_CPU_KERN_INT_H

#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t div_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
} /* a >= 0, b > 0 */

#endif
