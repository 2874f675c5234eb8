/* update.h: an optimizer's step on a GPU: one launch for all tensors of a table. */
#ifndef CB_EXEC_CUDA_UPDATE_H
#define CB_EXEC_CUDA_UPDATE_H

#include "device.h"

typedef struct cb_cu_update {
    void *library;
    void **function;                   /* of each formula of elements */
    struct cb_cu_rows *wanted, *there; /* the table as a step needs it, and as the device has it */
    uint64_t table;                    /* where it is there; 0: nothing is ever updated */
    uint32_t room;                     /* rows */
} cb_cu_update;

/* In the context. Room for so many rows, and the kernels of all formulas; `has_f64`: some rows are
 * of f64. */
CB_MUST_CHECK cb_status cb_cu_update_init(cb_cu_update *u, const cb_cu_gpu *d, uint32_t rows,
                                          bool has_f64, cb_arena *memory, cb_error *err);
void cb_cu_update_release(cb_cu_update *u, const cb_cu_gpu *d);
/* The table stays on the device: what has changed since the last step is copied there, so that a
 * step neither allocates nor waits. Does nothing where the word at `failed` says that a run before
 * has failed. */
CB_MUST_CHECK cb_status cb_cu_update_put(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                         uint64_t failed, const cb_optimizer *optimizer,
                                         const cb_optim_table *table, cb_error *err);

#endif
