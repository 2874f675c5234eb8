/* crew.h: several searches of a ladder at once. Internal.
 *
 * What a search finds does not depend on who does it or when, so threads change how long an answer
 * takes and nothing else. */
#ifndef CB_PLAN_CREW_H
#define CB_PLAN_CREW_H

#include "ladder.h"

typedef struct cb_crew cb_crew;

/* Search number `job`, with a climber that no other search has at the time. */
typedef cb_status (*cb_crew_fn)(cb_climber *c, uint32_t job, void *user, cb_error *err);

/* Jobs 0 .. n_job - 1 (at most CB_RUNGS_MOST), in any order, with the threads of the ladder, or one
 * after the other where it has none. */
CB_MUST_CHECK cb_status cb_crew_run(cb_ladder *d, uint32_t n_job, cb_crew_fn fn, void *user,
                                    cb_error *err);
void cb_crew_free(cb_crew *crew); /* NULL is fine */
/* The plans of the climbers beside the ladder's own. */
uint32_t cb_crew_count(const cb_crew *crew);
cb_pool_of_plans *cb_crew_plans(const cb_crew *crew, uint32_t i);

#endif
