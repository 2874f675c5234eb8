/* push_relabel.h: a second way to a maximum flow, for networks that are hard for the first.
 *
 * `push` starts from any flow of a loaded network and delivers as much as can be delivered. Supply
 * that cannot be delivered stays where it got stuck, which does not change the cut. */
#ifndef CB_FLOW_PUSH_RELABEL_H
#define CB_FLOW_PUSH_RELABEL_H

#include "network.h"

/* False: sums would overflow, and some supply may be left that could be delivered. */
bool cb_flow_push(cb_flow *f);
bool cb_flow128_push(cb_flow128 *f);

#endif
