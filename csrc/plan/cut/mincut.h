/* mincut.h: which forward values to save and which to recompute, as a minimum cut. Internal.
 *
 *   source --run_cost--> R(op) --save_cost--> N(storage) --inf--> R(reader);
 *                                                        --inf--> sink, if the backward reads it
 *
 * Of an op with an inside there is an R for each output (a unit, facts.h), which pays for writing
 * it again, and behind it one for each member and one for the op, which pay for running:
 *
 *   R(unit) <--inf-- M(its member) <--inf-- M(a member it uses), N(storage it reads), M(op)
 *
 * An arc without limit says: what it points to does not run again without what it comes from. So
 * outputs that share members pay for these once, and ask for no inputs but those of their slices.
 *
 * On the sink side R(op) means "the op runs again in the backward" and N(storage) "it must be there
 * in the backward". Cutting source-R pays for a second run, cutting R-N for saving. Views have no
 * nodes: they cost nothing and share their storage's. The network is built once; costs may change
 * between solves. */
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
    uint32_t *inner_member; /* [n_inner] the member, CB_NONE: what every run of the op takes */
    uint32_t *save_storage; /* [n_save] */
    uint32_t *save_run;     /* [n_save] index in run_op of the unit that makes it */
    int64_t *capacity;      /* [flow.n_arc] */
    int64_t *run_cost;      /* [n_run] part of capacity; CB_FLOW_INF: may not run again */
    int64_t *save_cost;     /* [n_save] part of capacity; CB_FLOW_INF: may not be saved */
    int64_t *inner_cost;    /* [n_inner] part of capacity */
    bool *recompute;        /* [n_unit] result */
    bool *saved;            /* [n_storage] result: the backward needs it and it is not recomputed */
    bool *hoist;  /* [n_op] result of cb_cut_preset: ops of the backward that no tangent reaches and
                    that are worth running in the forward, see cb_facts_hoist */
    cb_poll poll; /* the caller's to set: loops over cuts end with CB_CANCELLED where it says
                     CB_POLL_CANCEL; CB_POLL_FINISH is for searches */
} cb_cut;

CB_MUST_CHECK cb_status cb_cut_init(cb_cut *cut, const cb_facts *f, cb_arena *arena, cb_error *err);
CB_MUST_CHECK cb_status cb_cut_poll(const cb_cut *cut, cb_error *err);
CB_MUST_CHECK cb_status cb_cut_solve(cb_cut *cut, cb_error *err);

/* The preset's costs, the user's wishes and the limits of regions; then the cut. CB_INFEASIBLE: a
 * region cannot keep its limit; the text states the smallest it can reach. */
CB_MUST_CHECK cb_status cb_cut_preset(cb_cut *cut, cb_preset preset, cb_error *err);
/* The same with costs in bytes only: recomputing a small result of a reduction costs nothing. */
CB_MUST_CHECK cb_status cb_cut_preset_by_bytes(cb_cut *cut, cb_preset preset, cb_error *err);
/* True if the preset may recompute this unit, apart from wishes and rules about chains of ops. */
bool cb_preset_allows(const cb_facts *f, cb_preset preset, uint32_t unit);

#endif
