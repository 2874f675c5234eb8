/* cut.h: a forward graph with its strips (find.h) in pieces. */
#ifndef CB_AD_STRIPS_CUT_H
#define CB_AD_STRIPS_CUT_H

#include "find.h"

/* Makes a copy of the graph in which strips run in pieces; fills `first` of each. Ops that pieces
 * have replaced are still there, but nothing reads them. */
CB_MUST_CHECK cb_status cb_strips_cut(const cb_graph *g, cb_strips *strips, cb_alloc *alloc,
                                      cb_graph **out, cb_error *err);
/* Writes a line about each strip, and about each op that stays whole. `early`: the strip whose
 * gradients follow its pieces, or NULL. */
void cb_strips_print(const cb_graph *g, const cb_strips *strips, const cb_strip *early,
                     cb_str *out);

#endif
