/* split_norms.h: a norm over channels as statistics and what is pointwise. */
#ifndef CB_AD_SPLIT_NORMS_H
#define CB_AD_SPLIT_NORMS_H

#include "../ir/graph.h"

/* A new graph in which each batch_norm whose y a pointwise op reads is batch_norm_stats and
 * batch_norm_apply, with the same bits; NULL where there is none. Every op of `g` is needed. */
CB_MUST_CHECK cb_status cb_split_norms(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                       cb_error *err);

#endif
