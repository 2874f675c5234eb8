/* plain.h: kernels of single ops, for all types, shapes and strides: what groups leave over. Each
 * element or each row has a thread or a block; nothing here is tuned. */
#ifndef CB_EXEC_CUDA_OPS_PLAIN_H
#define CB_EXEC_CUDA_OPS_PLAIN_H

#include "../text/code.h"

bool cb_cu_has_plain(cb_opcode code);
CB_MUST_CHECK cb_status cb_cu_plain(cb_cu_code *code, uint32_t instr, cb_error *err);

#endif
