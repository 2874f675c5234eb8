/* handles.h: the objects behind API handles. A handle that was destroyed or never made is detected;
 * its memory is never reused, so that it cannot refer to a newer object. */
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

void *sim_handle_new(sim_handle_kind kind, size_t bytes);   /* zeroed; NULL: out of memory */
void *sim_handle(const void *handle, sim_handle_kind kind); /* NULL: not such a handle */
void sim_handle_end(void *handle);

#endif
