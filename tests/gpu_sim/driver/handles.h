/* handles.h: what handles of the API point to. A handle that was destroyed, or never made, is
 * found out; its memory is never used again, so that it cannot stand for something newer. */
#ifndef SIM_HANDLES_H
#define SIM_HANDLES_H

#include <stddef.h>

typedef enum {
    SIM_STREAM,
    SIM_EVENT,
    SIM_MODULE,
    SIM_FUNCTION,
    SIM_GRAPH,
    SIM_GRAPH_EXEC,
    SIM_POOL
} sim_handle_kind;

void *sim_handle_new(sim_handle_kind kind, size_t bytes);   /* zeros; NULL: out of memory */
void *sim_handle(const void *handle, sim_handle_kind kind); /* NULL: it is not one */
void sim_handle_end(void *handle);

#endif
