/* update.h: an optimizer's step on a GPU: two launches for all tensors of a table. */
#ifndef CB_EXEC_CUDA_UPDATE_H
#define CB_EXEC_CUDA_UPDATE_H

#include "device/device.h"

enum { CB_CU_COUNT_THREADS = 32, CB_CU_STEP_THREADS = 256 }; /* of a block; as in optim.cuh */

typedef struct cb_cu_update {
    const cb_optimizer *optimizer; /* whose kernels are loaded; NULL: nobody's */
    void *library, *count, *step;
    struct cb_cu_rows *wanted, *there; /* the table as a step needs it, and as the device has it */
    uint64_t table;                    /* where it is there; 0: nothing is ever updated */
    uint32_t room;                     /* rows */
    bool has_f64;
    bool was_captured; /* a replay may change the device's numbers at any time */
} cb_cu_update;

/* In the context. Room for so many rows; `has_f64`: some rows are of f64. */
CB_MUST_CHECK cb_status cb_cu_update_init(cb_cu_update *u, const cb_cu_gpu *d, uint32_t rows,
                                          bool has_f64, cb_arena *memory, cb_error *err);
void cb_cu_update_release(cb_cu_update *u, const cb_cu_gpu *d);
/* Kernels of the optimizer, in place of another's. */
CB_MUST_CHECK cb_status cb_cu_update_ready(cb_cu_update *u, const cb_cu_gpu *d,
                                           const cb_optimizer *optimizer, cb_error *err);
/* The table stays on the device, which counts its steps: what is not as it would have it is copied
 * there, so that a step neither allocates nor waits. While the stream is captured nothing is
 * copied: the table has to be that of the last step, whose numbers stay the device's. Does nothing
 * where the word at `failed` says that a run before has failed. */
CB_MUST_CHECK cb_status cb_cu_update_put(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                         uint64_t failed, const cb_optimizer *optimizer,
                                         const cb_optim_table *table, cb_error *err);
/* A run has failed, and what came behind it did not count. */
void cb_cu_update_forget(cb_cu_update *u);
/* Where the numbers of a group of the last table are; false: it had no rows. */
bool cb_cu_update_resident(const cb_cu_update *u, uint32_t group, cb_resident *out);

#endif
