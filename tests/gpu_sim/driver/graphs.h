/* graphs.h: captures: a graph collects the operations of its streams, with the nodes that each
 * waits for. */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H

#include <pthread.h>

#include "execute.h"

typedef struct sim_node {
    sim_op *op;
    size_t *waits; /* nodes that it waits for */
    size_t n_waits;
} sim_node;

typedef struct sim_graph {
    sim_node *nodes;
    size_t n;
    sim_stream *origin; /* where the capture began; NULL: it has ended */
    int mode;
    bool is_invalid;
    pthread_t thread;
    int references; /* references from the handle and from executables */
} sim_graph;

/* Makes the stream's next operations also wait for the captured node; a stream outside a capture
 * joins it. */
sim_result sim_graph_join(sim_stream *stream, sim_graph *graph, size_t node);

#endif
