/* offload.h: the search for a budget with moves of values to the host. Internal. */
#ifndef CB_PLAN_OFFLOAD_H
#define CB_PLAN_OFFLOAD_H

#include "../cut/mincut.h"
#include "../search/search.h"

typedef struct cb_offloaded {
    cb_schedule schedule;
    uint64_t bytes; /* bytes by the goal's measure */
    int64_t time_ps;
    double least_extra_ps; /* lower bound for plans of the bound's class (docs/planner.md) that fit;
                              < 0: unknown */
} cb_offloaded;

/* Asks for a plan without offload, as cb_searcher_ask does. */
typedef struct cb_ask_without {
    cb_status (*ask)(void *user, const cb_goal *goal, cb_found *out, cb_error *err);
    void *user;
} cb_ask_without;

/* Writes the answer to `arena`. It is never slower than the answer of `without`, nor than that of
 * CB_OFFLOAD_ONLY for the same goal. Fails like cb_searcher_ask, and with CB_UNSUPPORTED if there
 * is no link. */
CB_MUST_CHECK cb_status cb_search_offload(const cb_search_tools *tools, cb_ask_without without,
                                          const cb_goal *goal, cb_arena *arena, cb_offloaded *out,
                                          cb_error *err);
/* Makes the schedule of a preset's pairs, with the values that constraints ask to offload on the
 * host. These take at most `pinned_bytes`; 0: no limit. */
CB_MUST_CHECK cb_status cb_offload_preset(const cb_facts *f, uint64_t pinned_bytes,
                                          const cb_pairs *pairs, cb_arena *arena, cb_schedule *out,
                                          cb_error *err);

#endif
