/* group.h: a group of a program becomes kernels. */
#ifndef CB_EXEC_CUDA_GROUP_H
#define CB_EXEC_CUDA_GROUP_H

#include "code.h"

/* Adds all kernels of a group, in the order in which they run. */
CB_MUST_CHECK cb_status cb_cu_group(cb_cu_code *code, uint32_t group, cb_alloc *alloc,
                                    cb_error *err);

/* Whether each op of a group has a kernel: CB_UNSUPPORTED names the first that has none. */
CB_MUST_CHECK cb_status cb_cu_supports(const cb_program *program, uint32_t group, cb_error *err);

#endif
