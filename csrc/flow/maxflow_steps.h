/* maxflow_steps.h: the declarations of maxflow.h for capacities of CB_FLOW_BITS bits. */
#include "maxflow_bits.h"

/* Arcs are directed; the capacities of parallel arcs add up, and loops are allowed. All memory
 * comes from `arena`. */
CB_MUST_CHECK cb_status CB_FLOW_FN(build)(CB_NETWORK *f, cb_arena *arena, uint32_t n_node,
                                          uint32_t n_arc, const uint32_t *from, const uint32_t *to,
                                          cb_error *err);
/* `capacity` [n_arc], each >= 0. CB_INVALID: one is negative, or the sum is too large
 * (CB_CAPACITY_MOST). */
CB_MUST_CHECK cb_status CB_FLOW_FN(solve)(CB_NETWORK *f, uint32_t source, uint32_t sink,
                                          const CB_CAPACITY *capacity, cb_error *err);

/* Solves by push-relabel only. CB_UNSUPPORTED if that could overflow. */
CB_MUST_CHECK cb_status CB_FLOW_FN(solve_by_push)(CB_NETWORK *f, uint32_t source, uint32_t sink,
                                                  const CB_CAPACITY *capacity, cb_error *err);

/* Steps of a solve, for the other files of this folder. `reserve` allocates a network with all
 * nodes free, which the caller fills in (false: out of memory). `run` sends all flow that can still
 * be sent and finds the sink-minimal cut. */
bool CB_FLOW_FN(reserve)(CB_NETWORK *f, cb_arena *arena, uint32_t n_node, uint32_t n_arc);
void CB_FLOW_FN(run)(CB_NETWORK *f);

#include "maxflow_bits.h" /* NOLINT(readability-duplicate-include): undefines the macros */
