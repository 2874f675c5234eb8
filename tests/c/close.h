/* close.h: compares a backend's result with the reference's.
 *
 *     CHECK(is_close("cpu", &info, of_cpu, of_ref, CB_BF16));
 *
 * The first element that differs is printed. */
#ifndef CB_TESTS_CLOSE_H
#define CB_TESTS_CLOSE_H

#include <math.h>
#include <stdio.h>

#include "include/cutback.h"
#include "numbers.h"

static inline double ulp_of(cb_dtype dtype) {
    return dtype == CB_F64 ? 1e-12 : dtype == CB_F32 ? 4e-6 : dtype == CB_F16 ? 2e-3 : 1.6e-2;
}

/* True if all elements are close. The tolerance is relative to the largest element, because a small
 * element may be a long sum whose terms cancel. `narrow`: the least precise dtype on the way to
 * this value. */
static inline bool is_close(const char *by, const cb_argument_info *info, const void *a,
                            const void *b, cb_dtype narrow) {
    const int64_t n = (int64_t)(info->bytes / cb_dtype_size(info->dtype));
    double largest = 1;
    for (int64_t i = 0; i < n; i++) {
        const double y = fabs(get_number(info->dtype, b, (size_t)i));
        if (isfinite(y)) largest = fmax(largest, y);
    }
    const double tolerance = 4 * ulp_of(narrow) * largest;
    for (int64_t i = 0; i < n; i++) {
        const double x = get_number(info->dtype, a, (size_t)i),
                     y = get_number(info->dtype, b, (size_t)i);
        if (x == y || (isnan(x) && isnan(y))) continue;
        if (!cb_dtype_is_float(info->dtype) || !(fabs(x - y) <= tolerance)) {
            printf("  %s[%d]: %s %.9g, ref %.9g\n", info->name, (int)i, by, x, y);
            return false;
        }
    }
    return true;
}

#endif
