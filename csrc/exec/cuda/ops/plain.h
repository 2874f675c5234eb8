/* plain.h: kernels of single ops that are not fused, for all types, shapes and strides. Most use a
 * thread per element or a block per row. Only matrix products are tuned. */
#ifndef CB_EXEC_CUDA_OPS_PLAIN_H
#define CB_EXEC_CUDA_OPS_PLAIN_H

#include "../text/code.h"

bool cb_cu_has_plain(cb_opcode code);
CB_MUST_CHECK cb_status cb_cu_plain(cb_cu_code *code, uint32_t instr, cb_error *err);

#endif
