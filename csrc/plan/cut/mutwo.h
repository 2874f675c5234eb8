/* mutwo.h: chooses the values to recompute or offload greedily, as mu-TWO does (Purandare et al.,
 * MLSys 2023). Internal.
 *
 * A value that the backward reads is idle from its last forward to its first backward use. Its
 * recompute ratio is bytes x idle time / time to make it again from what is still saved. In each
 * round ratios and idle times are standardised over the values left, (x - mean) / deviation; the
 * value with the largest of either goes: it is recomputed for its ratio, or moved away for its idle
 * time where the problem has a link. Until at most `target` bytes are saved, or nothing is left. */
#ifndef CB_PLAN_MUTWO_H
#define CB_PLAN_MUTWO_H

#include "../model/facts.h"

/* Fills `choice` [n_op] with a cb_constraint for what each op allocates: PREFER_RECOMPUTE,
 * PREFER_OFFLOAD or PREFER_SAVE; FREE where there is nothing to say. Ops with a wish of their own
 * keep it. */
CB_MUST_CHECK cb_status cb_mutwo(const cb_facts *f, uint64_t target, uint8_t *choice,
                                 cb_error *err);
/* The bytes that saving everything saves. */
CB_MUST_CHECK cb_status cb_mutwo_whole(const cb_facts *f, uint64_t *bytes, cb_error *err);
/* `p` with these choices as constraints, as JSON. `saved` is CB_BUDGET_BYTES or CB_BUDGET_SHARE of
 * what saving everything saves; its measure does not count. */
CB_MUST_CHECK cb_status cb_mutwo_to_json(cb_problem *p, const cb_budget *saved,
                                         const cb_device *device, cb_alloc *alloc, cb_str *out,
                                         cb_error *err);

#endif
