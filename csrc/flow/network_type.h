/* network_type.h: what network.h declares, for the capacities of CB_FLOW_BITS. */
#include "maxflow_bits.h"

typedef struct CB_NETWORK {
    uint32_t n_node, n_arc;
    uint32_t *first;       /* [n_node + 1] a node's half-arcs in `arc` */
    cb_half_arc *arc;      /* [2 n_arc] */
    uint32_t *half;        /* [n_arc] the forward half of an arc */
    CB_CAPACITY *residual; /* [2 n_arc] CB_CAPACITY_INF is never used up */
    CB_CAPACITY *excess;   /* [n_node] > 0: supply not yet delivered, < 0: demand not yet met */
    uint8_t *fixed;        /* [n_node] cb_fixed */
    uint32_t
        *level; /* [n_node] distance to the nearest demand, 1 there; CB_NONE: cannot reach one */
    uint32_t *current; /* [n_node] next half-arc to try */
    uint32_t *queue;   /* [n_node] */
    uint32_t *stack;   /* [n_node] half-arcs of the path being grown */
    uint32_t
        *list[3];    /* [n_node] Dinic: supplies, demands; push-relabel: the nodes of each label */
    bool *sink_side; /* [n_node] result */
    CB_CAPACITY value; /* result */
    uint32_t *path;    /* [n_path] after CB_INFEASIBLE */
    uint32_t n_path;
    uint32_t n_phase; /* of Dinic, in the last solve */
} CB_NETWORK;

#include "maxflow_bits.h" /* NOLINT(readability-duplicate-include): takes the names back */
