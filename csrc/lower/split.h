/* split.h: splits a joint graph by a plan into a forward graph and a backward graph. Saved values
 * are outputs of the first and inputs of the second; a recomputed op is a clone (its `origin` is
 * the op of the joint graph). Arguments that the backward reads are inputs of both. Used for
 * display, dumps and tests; the program is lowered from the same plan. */
#ifndef CB_LOWER_SPLIT_H
#define CB_LOWER_SPLIT_H

#include "../ir/graph.h"
#include "../plan/schedule/plan.h"

typedef struct cb_split {
    cb_graph *forward, *backward; /* op order = step order; views of saved storages are cloned where
                                     they are read */
    uint32_t n_saved; /* the forward's last n_saved outputs = the backward's first n_saved inputs */
} cb_split;

CB_MUST_CHECK cb_status cb_split_make(const cb_graph *joint, const cb_plan *plan, cb_alloc *alloc,
                                      cb_split *out, cb_error *err);
void cb_split_free(cb_split *s);

#endif
