/* workers.h: runs several searches in parallel. Internal.
 *
 * The result of a search does not depend on its thread or time, so threads only change how long an
 * answer takes. */
#ifndef CB_PLAN_WORKERS_H
#define CB_PLAN_WORKERS_H

#include "../../base/threads.h"
#include "worker.h"

typedef struct cb_workers cb_workers;

/* Runs search number `job`, with a worker that no other search uses at that time. */
typedef cb_status (*cb_worker_fn)(cb_worker *c, uint32_t job, void *user, cb_error *err);

/* `first` is the calling thread's worker. Workers of other threads (none if `threads` is NULL) are
 * copies of it, with its first `n_tangent` tangents, made when needed. */
CB_MUST_CHECK cb_status cb_workers_new(cb_worker *first, size_t n_tangent, cb_threads *threads,
                                       cb_workers **out, cb_error *err);
void cb_workers_free(cb_workers *workers); /* NULL is fine */
/* Runs jobs 0 .. n_job - 1 in any order, or sequentially if there is one thread. */
CB_MUST_CHECK cb_status cb_workers_run(cb_workers *workers, uint32_t n_job, cb_worker_fn fn,
                                       void *user, cb_error *err);
/* Returns the number of jobs that run at a time. */
uint32_t cb_workers_at_once(const cb_workers *workers);
/* Return the number of workers other than the first, and their plans. NULL has none. */
uint32_t cb_workers_count(const cb_workers *workers);
cb_candidates *cb_workers_candidates(const cb_workers *workers, uint32_t i);

#endif
