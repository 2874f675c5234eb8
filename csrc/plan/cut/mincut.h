/* mincut.h: finds which forward values to save and which to recompute, as a minimum cut. Internal.
 *
 *   source --run_cost--> R(op) --save_cost--> N(storage) --inf--> R(reader);
 *                                                        --inf--> sink, if the backward reads it
 *
 * An op with an inside has an R node for each output (a unit, facts.h), which pays for writing it
 * again. It also has an M node for each member and one for the op, which pay for running them:
 *
 *   R(unit) <--inf-- M(its member) <--inf-- M(a member it uses), N(storage it reads), M(op)
 *
 * An infinite arc means that the node it points to does not run again without the node it comes
 * from. So outputs that share members pay for these once, and need only the inputs of their slices.
 *
 * On the sink side, R(op) means "the op runs again in the backward", and N(storage) means "the
 * backward needs it in memory". Cutting source-R pays for a second run, and cutting R-N pays for
 * saving. Views have no nodes: they cost nothing and share the node of their storage. The network
 * is built once; costs may change between solves. */
#ifndef CB_PLAN_MINCUT_H
#define CB_PLAN_MINCUT_H

#include "../../flow/maxflow.h"
#include "../model/facts.h"

typedef struct cb_cut {
    const cb_facts *f;
    cb_flow flow;
    uint32_t n_run, n_save, n_inner;
    uint32_t *run_op;       /* [n_run] ids of units */
    uint32_t *inner_op;     /* [n_inner] ops with an inside */
    uint32_t *inner_member; /* [n_inner] the member; CB_NONE: the cost of every run of the op */
    uint32_t *save_storage; /* [n_save] */
    uint32_t *save_run;     /* [n_save] index in run_op of the unit that makes it */
    int64_t *capacity;      /* [flow.n_arc] */
    int64_t *run_cost;      /* [n_run] a part of capacity; CB_FLOW_INF: it must not run again */
    int64_t *save_cost;     /* [n_save] a part of capacity; CB_FLOW_INF: it must not be saved */
    int64_t *inner_cost;    /* [n_inner] a part of capacity */
    bool *recompute;        /* [n_unit] result */
    bool *saved;            /* [n_storage] result: the backward needs it and it is not recomputed */
    bool *hoist;  /* [n_op] result of cb_cut_preset: ops of the backward that no tangent reaches and
                    that are worth running in the forward, see cb_facts_hoist */
    cb_poll poll; /* set by the caller: loops over cuts end with CB_CANCELLED if it returns
                     CB_POLL_CANCEL; CB_POLL_FINISH is for searches */
} cb_cut;

CB_MUST_CHECK cb_status cb_cut_init(cb_cut *cut, const cb_facts *f, cb_arena *arena, cb_error *err);
CB_MUST_CHECK cb_status cb_cut_poll(const cb_cut *cut, cb_error *err);
CB_MUST_CHECK cb_status cb_cut_solve(cb_cut *cut, cb_error *err);

/* Sets the preset's costs, the user's constraints and the limits of regions, then cuts. Returns
 * CB_INFEASIBLE if a region cannot keep its limit; the text states the smallest limit that it can
 * keep. */
CB_MUST_CHECK cb_status cb_cut_preset(cb_cut *cut, cb_preset preset, cb_error *err);
/* Does the same with costs in bytes only: recomputing a small result of a reduction costs
 * nothing. */
CB_MUST_CHECK cb_status cb_cut_preset_by_bytes(cb_cut *cut, cb_preset preset, cb_error *err);
/* True if the preset may recompute this unit, ignoring the user's wishes and the rules about chains
 * of ops. */
bool cb_preset_allows(const cb_facts *f, cb_preset preset, uint32_t unit);

#endif
