/* workers.h: several searches of a ladder at once. Internal.
 *
 * What a search finds does not depend on who does it or when, so threads change how long an answer
 * takes and nothing else. */
#ifndef CB_PLAN_WORKERS_H
#define CB_PLAN_WORKERS_H

#include "ladder.h"

typedef struct cb_workers cb_workers;

/* Search number `job`, with a worker that no other search has at the time. */
typedef cb_status (*cb_worker_fn)(cb_worker *c, uint32_t job, void *user, cb_error *err);

/* Jobs 0 .. n_job - 1 (at most CB_RUNGS_MOST), in any order, with the threads of the ladder, or one
 * after the other where it has none. */
CB_MUST_CHECK cb_status cb_workers_run(cb_ladder *d, uint32_t n_job, cb_worker_fn fn, void *user,
                                       cb_error *err);
void cb_workers_free(cb_workers *workers); /* NULL is fine */
/* The plans of the workers beside the ladder's own. */
uint32_t cb_workers_count(const cb_workers *workers);
cb_candidates *cb_workers_candidates(const cb_workers *workers, uint32_t i);

#endif
