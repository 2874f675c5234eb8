/* lacking.h: replaces ops that a backend has no kernel for by primitives. */
#ifndef CB_AD_LACKING_H
#define CB_AD_LACKING_H

#include "../ir/graph.h"

/* Makes a new graph in which primitives replace each op that `lacks` returns true for; NULL if
 * there is none or `lacks` is NULL. It may return true for `attention` and `attention_bwd`. */
CB_MUST_CHECK cb_status cb_expand_lacking(const cb_graph *g, bool (*lacks)(cb_opcode code),
                                          cb_alloc *alloc, cb_graph **out, cb_error *err);

#endif
