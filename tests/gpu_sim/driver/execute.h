/* execute.h: what operations do when they run, and what happens to them in a capture. */
#ifndef SIM_EXECUTE_H
#define SIM_EXECUTE_H

#include "queue.h"

/* Runs it, which `stamp` names for races; a fault is reported, and is an error of the context. */
sim_result sim_execute(const sim_op *op, uint32_t stamp, uint32_t n_blocks);
double sim_imagined_time(const sim_op *op); /* milliseconds */
void sim_restart_random(void);

/* graphs.c */
struct sim_graph;
sim_result sim_graph_add(sim_stream *stream, sim_op *op); /* takes the reference */
void sim_graph_invalidate(struct sim_graph *graph);
void sim_graph_forget_captures(void); /* ends all of them */
/* Whether a call that may wait or allocate is allowed now; else invalidates the captures that
 * forbid it. `what` is reported. */
bool sim_may_interrupt(const char *what);

#endif
