/* push_relabel.h: a second way to a maximum flow, for networks that are hard for the first.
 *
 * `push` goes on from wherever a flow stands after cb_flow_load and leaves as much as can be
 * delivered delivered; supply that cannot be stays where it got stuck, which is no matter for the
 * cut. */
#ifndef CB_FLOW_PUSH_RELABEL_H
#define CB_FLOW_PUSH_RELABEL_H

#include "network.h"

/* False: sums would overflow, and some supply may be left that could be delivered. */
bool cb_flow_push(cb_flow *f);
bool cb_flow128_push(cb_flow128 *f);

#endif
