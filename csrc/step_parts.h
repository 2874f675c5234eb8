/* step_parts.h: declarations shared by the files of a compiled step's public functions: api_step.c
 * (what it is, and runs), api_update.c (the optimizer), api_capture.c (graphs of both),
 * step_parts.c (what they need). */
#ifndef CB_STEP_PARTS_H
#define CB_STEP_PARTS_H

#include "pipeline.h"

/* ---- step_parts.c ---------------------------------------------------------------------------- */

/* Adds one argument's memory to the step's list; empty arguments need none. */
CB_MUST_CHECK cb_status cb_step_add_range(cb_step *step, uint32_t *n, const char *kind,
                                          const cb_argument *a, const void *data, bool written,
                                          cb_error *err);
/* Lists what a run reads and writes, except the memory that an update steps. */
CB_MUST_CHECK cb_status cb_step_add_others(cb_step *step, uint32_t *n, const cb_run *run,
                                           cb_error *err);
/* Returns the block that the step runs in. */
cb_run_block *cb_step_block(const cb_step *step);
/* Waits until no copy to or from the caller's memory is running, even if `status` is a failure.
 * Returns the first failure. */
CB_MUST_CHECK cb_status cb_step_after_copies(const cb_step *step, cb_status status, cb_error *err);

/* ---- api_step.c ------------------------------------------------------------------------------ */

/* Checks the arguments of a run. */
CB_MUST_CHECK cb_status cb_step_check_run(cb_step *step, const cb_run *run, cb_error *err);
/* Begins a run on the stream of the bindings, after the run before in the same memory, and fills in
 * its block. */
CB_MUST_CHECK cb_status cb_step_enter(cb_step *step, cb_bindings *bindings, uint64_t *n_alloc,
                                      cb_error *err);

/* ---- api_update.c ---------------------------------------------------------------------------- */

/* Fills step->rows: parameters, gradients and states in the backend's memory. */
CB_MUST_CHECK cb_status cb_step_fill_rows(cb_step *step, const cb_update *u, cb_error *err);
/* The table of step->rows. */
cb_optim_table cb_step_table(const cb_step *step, const cb_update *u);

/* ---- host_update.c --------------------------------------------------------------------------- */

/* True if the backend steps this optimizer where its arrays are. */
bool cb_step_has_kernels(const cb_step *step, const cb_optimizer *optimizer);
/* Bytes of the copies that an update on the host needs; step->rows have their sizes. */
uint64_t cb_host_update_bytes(const cb_step *step, const cb_update *u);
/* Waits for the run, and steps copies of the table's arrays on the host. */
CB_MUST_CHECK cb_status cb_host_update_do(cb_step *step, const cb_update *u,
                                          const cb_optim_table *table, cb_error *err);

/* ---- updates inside runs --------------------------------------------------------------------- */

/* Updates of a run with updates inside. */
typedef struct cb_inner_updates {
    cb_step *step;
    const cb_update *update;
    uint32_t n_done; /* number of entries of step->due that are done */
} cb_inner_updates;

/* Checks the update inside a run, and that its parameters are inputs of the run. */
CB_MUST_CHECK cb_status cb_inner_updates_check(cb_step *step, const cb_run *run, cb_error *err);
/* Makes the updates that come after this group; `user` is a cb_inner_updates. Returns true once
 * there has been one. Cannot fail: everything has been checked. */
bool cb_inner_updates_after(void *user, uint32_t group);
/* Writes the parameters' step counts, after the last update. */
void cb_inner_updates_end(const cb_inner_updates *x);

#endif
