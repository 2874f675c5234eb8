/* split_norms.h: splits batch norms into statistics and a pointwise op. */
#ifndef CB_AD_SPLIT_NORMS_H
#define CB_AD_SPLIT_NORMS_H

#include "../../ir/graph.h"

/* Makes a new graph in which each batch_norm whose y is read by a pointwise op is replaced by
 * batch_norm_stats and batch_norm_apply, with bitwise equal results. `out` is NULL if there is no
 * such batch_norm. `g` must have no dead ops. */
CB_MUST_CHECK cb_status cb_split_norms(const cb_graph *g, cb_alloc *alloc, cb_graph **out,
                                       cb_error *err);

#endif
