/* ends.h: the range of budgets of a problem, and the bytes of a position in it. Internal. */
#ifndef CB_PLAN_ENDS_H
#define CB_PLAN_ENDS_H

#include <stdint.h>

typedef struct cb_ends {
    uint64_t smallest;   /* peak of the smallest plan at position 0 */
    uint64_t everything; /* peak without a budget; constraints may make every plan larger */
} cb_ends;

/* Returns smallest + ceil(k * (everything - smallest)) for k in [0, 1], computed exactly. If
 * `smallest` is not below `everything`, returns `smallest`. */
uint64_t cb_bytes_at(double k, cb_ends ends);

#endif
