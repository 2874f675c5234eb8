/* cut_json.h: writes the minimum cut of a preset as a separate document, and its network so that
 * other solvers can check it. */
#ifndef CB_PLAN_CUT_JSON_H
#define CB_PLAN_CUT_JSON_H

#include "../schedule/plan.h"

/* Writes a single cut without a plan: {"preset", "fingerprint", "cut", "saved_bytes", "nodes",
 * "arcs", "saved"}, where `saved` holds ids of ops: those whose results are saved (torch-compat:
 * arguments of the graph as well, as in PyTorch). `solve_ms` is the time of the cut by `clock`,
 * including facts and network; if `clock` is NULL, it is left out. `network` (may be NULL) receives
 * the network in DIMACS form. */
CB_MUST_CHECK cb_status cb_cut_to_json(const cb_problem *p, cb_preset preset, cb_alloc *alloc,
                                       double (*clock)(void), cb_str *json, cb_str *network,
                                       cb_error *err);

#endif
