/* group.h: writes the kernels of a group. */
#ifndef CB_EXEC_CUDA_GROUP_H
#define CB_EXEC_CUDA_GROUP_H

#include "text/code.h"

/* Adds all kernels of a group, in the order in which they run. */
CB_MUST_CHECK cb_status cb_cu_group(cb_cu_code *code, uint32_t group, cb_alloc *alloc,
                                    cb_error *err);

/* Checks that each op of a group has a kernel. If one has none, returns CB_UNSUPPORTED, and the
 * error names the first such op. */
CB_MUST_CHECK cb_status cb_cu_supports(const cb_program *program, uint32_t group, cb_error *err);

/* True if the op may be part of a group. These are the ops that the CPU fuses, except ops on f64 or
 * bool values that have one number per row or only one. */
bool cb_cu_fuses(cb_opcode code, cb_part part, const cb_domain *domain, const cb_dtype *in,
                 uint32_t n_in, const cb_dtype *out, uint32_t n_out);

#endif
