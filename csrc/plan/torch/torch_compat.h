/* torch_compat.h: the minimum cut that PyTorch's partitioner solves, with its weights and bans, so
 * that plans can be compared one to one. Internal.
 *
 *   source --inf--> in(op): may not be recomputed      in(op) --inf--> sink: runs in the backward
 *   in(op) --weight--> out(op) --inf--> in(reader)     out(op) --inf--> sink: read by the backward
 *
 * Unlike the network of mincut.h it has a node for every op, views and arguments included: PyTorch
 * saves tensors, not allocations. */
#ifndef CB_PLAN_TORCH_COMPAT_H
#define CB_PLAN_TORCH_COMPAT_H

#include "../../flow/maxflow.h"
#include "../model/facts.h"

enum { CB_TORCH_SOURCE = 0, CB_TORCH_SINK = 1 };

typedef struct cb_torch_cut {
    cb_flow flow;
    int64_t *capacity; /* [flow.n_arc] */
    uint32_t n_saved;
    uint32_t *saved; /* [n_saved] ops, in order; arguments of the graph included */
    bool *again;     /* [n_op] forward ops that run again in the backward */
} cb_torch_cut;

CB_MUST_CHECK cb_status cb_torch_cut_solve(const cb_facts *f, cb_arena *arena, cb_torch_cut *out,
                                           cb_error *err);

#endif
