/* push_relabel.h: a second maximum-flow algorithm, for networks that are hard for Dinic's.
 *
 * `push` starts from any flow of a loaded network and delivers as much as possible. Supply that
 * cannot be delivered stays where it is stuck, which does not change the cut. */
#ifndef CB_FLOW_PUSH_RELABEL_H
#define CB_FLOW_PUSH_RELABEL_H

#include "network.h"

/* Returns false if sums would overflow; then some deliverable supply may be left. */
bool cb_flow_push(cb_flow *f);
bool cb_flow128_push(cb_flow128 *f);

#endif
