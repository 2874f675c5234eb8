/* offload_sim.h: plans that also move values to the host and back. Internal: the evaluator of the
 * search for such plans; it agrees with cb_schedule_walk to the byte and the picosecond.
 *
 * A pair (sim.h) with CB_PAIR_FETCH means that the op's output is brought back from the host for
 * the base op at position anchor, which needs it; a plain pair means that the op runs again.
 * Everything else follows. The value is copied out after the last use of its previous life. It
 * comes back as late as possible so that the copy ends when its first reader starts, or later if
 * there is no room under the target. A step waits for an outgoing copy only if it needs the room.
 * Values on the host stay there: a second fetch needs no second copy out. Any sorted set of pairs
 * is a valid plan. */
#ifndef CB_PLAN_OFFLOAD_SIM_H
#define CB_PLAN_OFFLOAD_SIM_H

#include "offload_timeline.h"

static inline cb_pair cb_pair_fetch(uint32_t anchor, uint32_t op) {
    return cb_pair_make(anchor, op) | CB_PAIR_FETCH;
}

/* Values that must be offloaded are offloaded for any pairs; if `firm`, so are those with a
 * preference for it. Returns CB_UNSUPPORTED if there is no link, and CB_INVALID if a value must be
 * offloaded but cannot be; the text names it. */
CB_MUST_CHECK cb_status cb_offload_sim_init(cb_offload_sim *m, const cb_facts *f, bool firm,
                                            cb_alloc *alloc, cb_error *err);
void cb_offload_sim_free(cb_offload_sim *m);
/* Uses up to `target` bytes if that saves time. */
CB_MUST_CHECK cb_status cb_offload_sim_run(cb_offload_sim *m, const cb_pair *pair, size_t n_pair,
                                           uint64_t target, cb_error *err);
/* Copies the schedule of the last run. */
CB_MUST_CHECK cb_status cb_offload_sim_schedule(const cb_offload_sim *m, cb_arena *arena,
                                                cb_schedule *out, cb_error *err);

#endif
