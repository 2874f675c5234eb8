/* offload_sim.h: plans that also move values to the host and back. Internal: the evaluator of the
 * search for such plans; it agrees with cb_schedule_walk to the byte and the picosecond.
 *
 * A pair (sim.h) with CB_PAIR_FETCH says: "what op makes is brought back from the host for the base
 * op at position anchor, which needs it", where a plain pair says that op runs again. The rest
 * follows. The value leaves after the last use of its life before; it comes back as late as lets
 * the copy end when its first reader starts, or later, where there is no room under the target; a
 * step waits for a leaving copy only where it needs the room. What is on the host stays there: a
 * second fetch needs no second copy out. Any sorted set of pairs is a valid plan. */
#ifndef CB_PLAN_OFFLOAD_SIM_H
#define CB_PLAN_OFFLOAD_SIM_H

#include "offload_timeline.h"

static inline cb_pair cb_pair_fetch(uint32_t anchor, uint32_t op) {
    return cb_pair_make(anchor, op) | CB_PAIR_FETCH;
}

/* What must be offloaded is, whatever the pairs say; if `firm`, what should be is as well.
 * CB_UNSUPPORTED: there is no link. CB_INVALID: what must leave cannot; the text names it. */
CB_MUST_CHECK cb_status cb_offload_sim_init(cb_offload_sim *m, const cb_facts *f, bool firm,
                                            cb_alloc *alloc, cb_error *err);
void cb_offload_sim_free(cb_offload_sim *m);
/* Uses up to `target` bytes where that saves time. */
CB_MUST_CHECK cb_status cb_offload_sim_run(cb_offload_sim *m, const cb_pair *pair, size_t n_pair,
                                           uint64_t target, cb_error *err);
/* Copies the schedule of the last run. */
CB_MUST_CHECK cb_status cb_offload_sim_schedule(const cb_offload_sim *m, cb_arena *arena,
                                                cb_schedule *out, cb_error *err);

#endif
