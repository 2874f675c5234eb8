/* families.h: functions that write the kernels of an op, one per family of ops (plain_*.c). */
#ifndef CB_EXEC_CUDA_OPS_FAMILIES_H
#define CB_EXEC_CUDA_OPS_FAMILIES_H

#include "../text/op.h"

void cb_cu_point(const cb_cu_op *x);
void cb_cu_move(const cb_cu_op *x);
void cb_cu_bits(const cb_cu_op *x);
void cb_cu_packed_index(const cb_cu_op *x);
void cb_cu_index(const cb_cu_op *x);
void cb_cu_reduce(const cb_cu_op *x);
void cb_cu_softmax(const cb_cu_op *x);
void cb_cu_norm(const cb_cu_op *x);
void cb_cu_batch_norm(const cb_cu_op *x);
void cb_cu_matmul(const cb_cu_op *x);

#endif
