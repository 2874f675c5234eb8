/* execute.h: how operations run, and what a capture does with them. */
#ifndef SIM_EXECUTE_H
#define SIM_EXECUTE_H

#include "queue.h"

/* Runs the operation; `stamp` identifies it in race reports. A fault is reported and becomes an
 * error of the context. */
sim_result sim_execute(const sim_op *op, uint32_t stamp, uint32_t n_blocks);
double sim_imagined_time(const sim_op *op); /* milliseconds */
void sim_restart_random(void);

/* graphs.c */
struct sim_graph;
sim_result sim_graph_add(sim_stream *stream, sim_op *op); /* takes over the reference */
void sim_graph_invalidate(struct sim_graph *graph);
void sim_graph_forget_captures(void); /* ends all captures */
/* True if a call that may wait or allocate is allowed now; otherwise invalidates the captures that
 * forbid it. `what` is named in the report. */
bool sim_may_interrupt(const char *what);

#endif
