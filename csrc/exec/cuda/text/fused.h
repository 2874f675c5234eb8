/* fused.h: the kernels of a group that has microcode. */
#ifndef CB_EXEC_CUDA_TEXT_FUSED_H
#define CB_EXEC_CUDA_TEXT_FUSED_H

#include "micro.h"

/* Adds the group's kernels to the code, in the order in which they run. `scratch` provides
 * temporary memory. CB_UNSUPPORTED: the group does not fit the tables of the microcode, or its rows
 * are not whole vectors; it can run op by op. */
CB_MUST_CHECK cb_status cb_cu_fused(cb_cu_code *code, const cb_program *program, uint32_t group,
                                    cb_arena *scratch, cb_error *err);

#endif
