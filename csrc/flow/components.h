/* components.h: strongly connected components of part of a network. */
#ifndef CB_FLOW_COMPONENTS_H
#define CB_FLOW_COMPONENTS_H

#include "maxflow.h"

/* Scratch for graphs of up to the given number of nodes. */
typedef struct cb_components {
    uint32_t *order;  /* [n_node] when a node was first seen, from 1; 0: not yet */
    uint32_t *low;    /* [n_node] `order` of the earliest open node that it leads to */
    uint32_t *cursor; /* [n_node] next half-arc to follow */
    uint32_t *open;   /* [n_node] stack of nodes whose component is not yet known */
    uint32_t *walk;   /* [n_node] stack of the path from the root */
} cb_components;
bool cb_components_init(cb_components *c, cb_arena *arena, size_t n_node);

/* Numbers the components of the graph formed by the half-arcs e with is_arc[e]:
 * `component`[n_node]. Every arc leads to its own component or to one with a smaller number.
 * Returns the number of components. */
uint32_t cb_components_find(cb_components *c, uint32_t n_node, const uint32_t *first,
                            const cb_half_arc *arc, const bool *is_arc, uint32_t *component);

#endif
