/* group.h: a group of a program becomes kernels. */
#ifndef CB_EXEC_CUDA_GROUP_H
#define CB_EXEC_CUDA_GROUP_H

#include "text/code.h"

/* Adds all kernels of a group, in the order in which they run. */
CB_MUST_CHECK cb_status cb_cu_group(cb_cu_code *code, uint32_t group, cb_alloc *alloc,
                                    cb_error *err);

/* Whether each op of a group has a kernel: CB_UNSUPPORTED names the first that has none. */
CB_MUST_CHECK cb_status cb_cu_supports(const cb_program *program, uint32_t group, cb_error *err);

/* Which ops groups take: the cpu's but those in f64, those that read an index, which check it in
 * kernels of their own, and bools of one number a row. */
bool cb_cu_fuses(cb_opcode code, cb_part part, const cb_dtype *in, uint32_t n_in,
                 const cb_dtype *out, uint32_t n_out);

#endif
