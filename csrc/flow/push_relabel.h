/* push_relabel.h: a second way to a maximum flow, for networks that are hard for the first.
 *
 * `push` goes on from wherever a flow stands after cb_flow_load and leaves as much as can be
 * delivered delivered; supply that cannot be stays where it got stuck, which is no matter for the
 * cut. */
#ifndef CB_FLOW_PUSH_RELABEL_H
#define CB_FLOW_PUSH_RELABEL_H

#include "maxflow.h"

/* False: sums would overflow, and some supply may be left that could be delivered. */
bool cb_flow_push(cb_flow *f);
bool cb_flow128_push(cb_flow128 *f);

/* As cb_flow_solve, by push-relabel alone. CB_UNSUPPORTED where that could overflow. */
CB_MUST_CHECK cb_status cb_flow_solve_by_push(cb_flow *f, uint32_t source, uint32_t sink,
                                              const int64_t *capacity, cb_error *err);
CB_MUST_CHECK cb_status cb_flow128_solve_by_push(cb_flow128 *f, uint32_t source, uint32_t sink,
                                                 const cb_int128 *capacity, cb_error *err);

#endif
