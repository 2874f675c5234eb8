/* captured.h: captures runs and their updates as graphs of the driver. */
#ifndef CB_EXEC_CUDA_CAPTURED_H
#define CB_EXEC_CUDA_CAPTURED_H

#include "run.h"

extern const cb_capturing cb_cu_capturing;

/* Call this after a failed run: the device counted none of the updates queued after it. */
void cb_cu_captured_forget(cb_cu_executable *x);

#endif
