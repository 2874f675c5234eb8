/* update.h: an optimizer's step on a GPU: two launches for all tensors of a table. */
#ifndef CB_EXEC_CUDA_UPDATE_H
#define CB_EXEC_CUDA_UPDATE_H

#include "device/device.h"
#include "matrices.h"

enum {
    CB_CU_COUNT_THREADS = 32,
    CB_CU_STEP_THREADS = 256
}; /* threads per block, as in
                                                                optim.cuh */

typedef struct cb_cu_update {
    const cb_optimizer *optimizer; /* the optimizer whose kernels are loaded; NULL: none */
    void *library, *count, *step;
    struct cb_cu_rows *wanted, *there; /* the table that a step needs; the table on the device */
    uint64_t table;                    /* its device address; 0: there are no updates */
    uint32_t room;                     /* maximum number of rows */
    bool has_f64;
    cb_cu_matrices matrices;
    bool was_captured; /* a replay may change the device's numbers at any time */
} cb_cu_update;

/* The functions below must be called in the context. Allocates a table of `rows` rows; `has_f64`:
 * some rows are f64. */
CB_MUST_CHECK cb_status cb_cu_update_init(cb_cu_update *u, const cb_cu_gpu *d, uint32_t rows,
                                          bool has_f64, cb_arena *memory, cb_error *err);
void cb_cu_update_release(cb_cu_update *u, const cb_cu_gpu *d);
bool cb_cu_update_steps(const cb_optimizer *optimizer); /* like cb_backend.steps */
/* Loads the kernels of the optimizer, replacing those of another one. */
CB_MUST_CHECK cb_status cb_cu_update_ready(cb_cu_update *u, const cb_cu_gpu *d,
                                           const cb_optimizer *optimizer, cb_error *err);
/* Launches a step. The table stays on the device, which counts steps; only differences are copied,
 * so a step neither allocates nor waits. If the stream is being captured, nothing is copied: the
 * rows must be those of the last step, and the device's numbers are used. The step does nothing if
 * the failure word at `failed` says that an earlier run has failed. */
CB_MUST_CHECK cb_status cb_cu_update_put(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                         uint64_t failed, const cb_optimizer *optimizer,
                                         const cb_optim_table *table, cb_error *err);
/* Copies the data that a step of this table needs to the device, without making the step. */
CB_MUST_CHECK cb_status cb_cu_update_bring(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                           const cb_optimizer *optimizer,
                                           const cb_optim_table *table, cb_error *err);
/* True if the host knows that the device's numbers are those before step `t`. */
bool cb_cu_update_continues(const cb_cu_update *u, int64_t t);
/* Like cb_cu_update_bring for the next step, but compares only hyper-parameters. */
CB_MUST_CHECK cb_status cb_cu_update_bring_hyper(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                                 const cb_optim_table *table, cb_error *err);
/* Call this after a replay: the device has made one more step. */
void cb_cu_update_replayed(cb_cu_update *u);
/* Reads the count of steps and the numbers of each row of `rows`, [n][n_number]; waits for the
 * stream. */
CB_MUST_CHECK cb_status cb_cu_update_counts(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                            const cb_optim_table *table, int64_t *t,
                                            double *numbers, cb_error *err);
/* Call this after a failed run: the device did not count the steps queued after it. */
void cb_cu_update_forget(cb_cu_update *u);
/* Finds the addresses of the numbers of a group in the last table. Returns false if it had no rows
 * of this group. */
bool cb_cu_update_resident(const cb_cu_update *u, uint32_t group, cb_resident *out);

#endif
