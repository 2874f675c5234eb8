/* crew.h: several rungs of a ladder at once. Internal.
 *
 * A rung's plan does not depend on who searches it or when, so threads change how long an answer
 * takes and nothing else. */
#ifndef CB_PLAN_CREW_H
#define CB_PLAN_CREW_H

#include "../base/threads.h"
#include "ladder.h"

typedef struct cb_crew cb_crew;

/* Searches the rungs in `wanted` [CB_RUNGS_MOST] that have not been, with the threads of `pool`
 * (may be NULL). Where there is nothing to gain by it, none are:
 * cb_ladder_climb finds out later. */
CB_MUST_CHECK cb_status cb_crew_climb(cb_ladder *d, cb_pool *pool, const bool *wanted,
                                      cb_error *err);
void cb_crew_free(cb_crew *crew); /* NULL is fine */
/* The plans of the climbers beside the ladder's own. */
uint32_t cb_crew_count(const cb_crew *crew);
cb_pool_of_plans *cb_crew_plans(const cb_crew *crew, uint32_t i);

#endif
