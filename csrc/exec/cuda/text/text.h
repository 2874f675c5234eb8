/* text.h: the files that generated kernels include, as strings made by cmake/text.cmake. */
#ifndef CB_EXEC_CUDA_TEXT_TEXT_H
#define CB_EXEC_CUDA_TEXT_TEXT_H

#include "cu_jit.h"

extern const cb_cu_header cb_cu_headers[];
extern const int cb_cu_n_header;

#endif
