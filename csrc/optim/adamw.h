/* adamw.h: AdamW (Loshchilov, Hutter 2019) over one table of tensors in one parallel region.
 *
 *     p <- p * (1 - lr * weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 */
#ifndef CB_OPTIM_ADAMW_H
#define CB_OPTIM_ADAMW_H

#include "../base/dtype.h"
#include "../base/threads.h"

typedef cb_adamw_options
    cb_adamw_group; /* hyper-parameters are data: changing them changes nothing else */

typedef struct cb_adamw_row { /* one tensor, all arrays contiguous, of `n` elements of `dtype` (f32
                                 or f64) */
    void *param;
    const void *grad;
    void *m;
    void *v;
    int64_t n;
    cb_dtype dtype;
    uint32_t group;
} cb_adamw_row;

/* Whether every hyper-parameter is in its range. */
CB_MUST_CHECK cb_status cb_adamw_check(const cb_adamw_group *groups, uint32_t n_groups,
                                       cb_error *err);

/* Step number `t` counts from 1. The same bits for any number of threads. */
CB_MUST_CHECK cb_status cb_adamw_step(cb_threads *pool, const cb_adamw_group *groups,
                                      uint32_t n_groups, const cb_adamw_row *rows, uint32_t n_rows,
                                      int64_t t, cb_error *err);

#endif
