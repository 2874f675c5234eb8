/* network_type.h: the declarations of network.h for capacities of CB_FLOW_BITS bits. */
#include "maxflow_bits.h"

typedef struct CB_NETWORK {
    uint32_t n_node, n_arc;
    uint32_t *first;       /* [n_node + 1] where a node's half-arcs begin in `arc` */
    cb_half_arc *arc;      /* [2 n_arc] */
    uint32_t *half;        /* [n_arc] the forward half of an arc */
    CB_CAPACITY *residual; /* [2 n_arc] CB_CAPACITY_INF is never reduced */
    CB_CAPACITY *excess;   /* [n_node] > 0: supply not yet delivered, < 0: demand not yet met */
    uint8_t *fixed;        /* [n_node] cb_fixed */
    uint32_t
        *level; /* [n_node] distance to the nearest demand; CB_NONE: cannot reach one. Dinic counts
                   from 1, push-relabel from 0 */
    uint32_t *current; /* [n_node] next half-arc to try */
    uint32_t *queue;   /* [n_node] */
    uint32_t *stack;   /* [n_node] half-arcs of the current path */
    uint32_t
        *list[3];    /* [n_node] Dinic: supplies, demands; push-relabel: the nodes of each label */
    bool *sink_side; /* [n_node] result: the cut */
    CB_CAPACITY value; /* result: the cost of the cut */
    uint32_t *path;    /* [n_path] after CB_INFEASIBLE: nodes from source to sink */
    uint32_t n_path;
    uint32_t n_phase; /* phases of Dinic's algorithm in the last solve */
} CB_NETWORK;

#include "maxflow_bits.h" /* NOLINT(readability-duplicate-include): undefines the macros */
