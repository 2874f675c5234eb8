/* mixed.h: a group that sums over rows and over columns, as gradients of norms do, in one kernel
 * that reads its arrays once. */
#ifndef CB_EXEC_CUDA_TEXT_MIXED_H
#define CB_EXEC_CUDA_TEXT_MIXED_H

#include "micro.h"

/* Writes all kernels of the group. False: it is none of those, or two kernels are as good; nothing
 * is written then. */
bool cb_cu_mixed(cb_cu_micro *x);

#endif
