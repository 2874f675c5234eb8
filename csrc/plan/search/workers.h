/* workers.h: several searches at once. Internal.
 *
 * What a search finds does not depend on who does it or when, so threads change how long an answer
 * takes and nothing else. */
#ifndef CB_PLAN_WORKERS_H
#define CB_PLAN_WORKERS_H

#include "../../base/threads.h"
#include "worker.h"

typedef struct cb_workers cb_workers;

/* Search number `job`, with a worker that no other search has at the time. */
typedef cb_status (*cb_worker_fn)(cb_worker *c, uint32_t job, void *user, cb_error *err);

/* `first` is the caller's worker. Those of other threads (`threads` may be NULL: there are none)
 * are made like it, with its first `n_tangent` tangents, when they are needed. */
CB_MUST_CHECK cb_status cb_workers_new(cb_worker *first, size_t n_tangent, cb_threads *threads,
                                       cb_workers **out, cb_error *err);
void cb_workers_free(cb_workers *workers); /* NULL is fine */
/* Jobs 0 .. n_job - 1 in any order, or one after the other where there is
 * one thread. */
CB_MUST_CHECK cb_status cb_workers_run(cb_workers *workers, uint32_t n_job, cb_worker_fn fn,
                                       void *user, cb_error *err);
/* How many jobs are done at a time. */
uint32_t cb_workers_at_once(const cb_workers *workers);
/* The plans of the workers beside the first. NULL has none. */
uint32_t cb_workers_count(const cb_workers *workers);
cb_candidates *cb_workers_candidates(const cb_workers *workers, uint32_t i);

#endif
