/* mutwo.h: chooses the values to recompute or offload greedily, as mu-TWO does (Purandare et al.,
 * MLSys 2023). Internal.
 *
 * A value that the backward reads is idle from its last forward to its first backward use. Its
 * recompute ratio is bytes x idle time / time to make it again from the values that are still
 * saved. Each round standardises ratios and idle times over the remaining values, (x - mean) /
 * deviation, and picks the value with the largest of either. It recomputes the value if the ratio
 * is largest, or offloads it if the idle time is and the problem has a link. Rounds end when at
 * most `target` bytes are saved or no values remain. */
#ifndef CB_PLAN_MUTWO_H
#define CB_PLAN_MUTWO_H

#include "../model/facts.h"

/* Fills `choice` [n_op] with a cb_constraint for the storages that each op allocates:
 * PREFER_RECOMPUTE, PREFER_OFFLOAD or PREFER_SAVE, or FREE if it made no choice. An op keeps
 * the user's constraint, if it has one. */
CB_MUST_CHECK cb_status cb_mutwo(const cb_facts *f, uint64_t target, uint8_t *choice,
                                 cb_error *err);
/* Computes the bytes that saving everything saves. */
CB_MUST_CHECK cb_status cb_mutwo_whole(const cb_facts *f, uint64_t *bytes, cb_error *err);
/* Writes `p` with these choices as constraints, as JSON. `saved` is CB_BUDGET_BYTES, or
 * CB_BUDGET_SHARE of the bytes that saving everything saves; its measure is ignored. */
CB_MUST_CHECK cb_status cb_mutwo_to_json(cb_problem *p, const cb_budget *saved,
                                         const cb_device *device, cb_alloc *alloc, cb_str *out,
                                         cb_error *err);

#endif
