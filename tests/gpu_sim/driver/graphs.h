/* graphs.h: captures: a graph takes the operations of the streams that belong to it, with what each
 * waits for. */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H

#include <pthread.h>

#include "execute.h"

typedef struct sim_node {
    sim_op *op;
    size_t *waits; /* nodes before it */
    size_t n_waits;
} sim_node;

typedef struct sim_graph {
    sim_node *nodes;
    size_t n;
    sim_stream *origin; /* where the capture began; NULL: it has ended */
    int mode;
    bool is_invalid;
    pthread_t thread;
    int references; /* the handle, and executables made of it */
} sim_graph;

/* A stream's next operations wait for the captured node as well; joins the capture, if it is in
 * none. */
sim_result sim_graph_join(sim_stream *stream, sim_graph *graph, size_t node);

#endif
