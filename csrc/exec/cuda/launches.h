/* launches.h: describes the launches of a program and the resources of each kernel. */
#ifndef CB_EXEC_CUDA_LAUNCHES_H
#define CB_EXEC_CUDA_LAUNCHES_H

#include "device/device.h"
#include "text/code.h"
#include "update.h"

/* Must be called in the context. Writes JSON (docs/problem.md, "Launches"). `function`: [kernels of
 * the code]. */
CB_MUST_CHECK cb_status cb_cu_launches(const cb_cu_gpu *d, const cb_cu_code *code,
                                       void *const *function, const cb_cu_update *update,
                                       cb_str *out, cb_error *err);

#endif
