/* queue.h: operations, and the streams that order them. An operation waits for others and runs when
 * somebody needs it, or at a moment chosen by the seed. Each has a clock with an entry per slot (a
 * stream, or a branch of a graph), which shows what happened before it. */
#ifndef SIM_QUEUE_H
#define SIM_QUEUE_H

#include "block.h"
#include "types.h"

enum { SIM_SLOTS = 128, SIM_HOST_SLOT = 0 };

typedef enum {
    SIM_OP_KERNEL,
    SIM_OP_COPY_IN,
    SIM_OP_COPY_OUT,
    SIM_OP_COPY,
    SIM_OP_FILL,
    SIM_OP_ALLOCATE,
    SIM_OP_FREE,
    SIM_OP_EVENT,
    SIM_OP_CALL,
    SIM_OP_JOIN
} sim_op_kind;

typedef struct sim_op {
    sim_op_kind kind;
    bool is_done;
    int references;
    uint32_t slot, sequence, clock[SIM_SLOTS];
    struct sim_op **waits;
    size_t n_waits;
    double ends; /* milliseconds of an imagined device, for cuEventElapsedTime */
    /* the launch */
    sim_launch launch;
    char *owned; /* parameters of a launch, or bytes copied from pageable memory */
    uint64_t to, from, bytes;
    uint32_t value, element; /* value of a fill, and its bytes */
    void (*call)(void *data);
    void *data;
} sim_op;

struct sim_graph;
typedef struct sim_stream {
    uint32_t slot;
    CUcontext context; /* NULL: a built-in stream, shared by all contexts */
    bool is_blocking;
    sim_op *tail;
    sim_op **waits; /* events, for the next operation */
    size_t n_waits;
    struct sim_graph *capture; /* NULL: not capturing */
    size_t *ends;              /* captured nodes that the next one waits for */
    size_t n_ends;
} sim_stream;

sim_op *sim_op_new(sim_op_kind kind);            /* NULL: out of memory. Returns one reference */
bool sim_op_wait_for(sim_op *op, sim_op *other); /* false: out of memory; `other` may be NULL */
sim_op *sim_op_keep(sim_op *op);                 /* adds a reference */
void sim_op_drop(sim_op *op);                    /* may be NULL */
sim_op *sim_op_copy(const sim_op *op);           /* the same work, without its waits */

/* Issues an operation to a stream, to be captured or run. Takes over the reference. */
sim_result sim_issue(sim_stream *stream, sim_op *op);
/* Assigns a slot, and a clock after everything it waits for. Takes over the reference; a caller
 * that needs another calls sim_op_keep. */
sim_result sim_enqueue(sim_op *op, uint32_t slot);
void sim_run_host(sim_op *op); /* runs it after all that the host knows; takes the reference */
void sim_wait_for(sim_op *op); /* the host waits; NULL: for nothing */
void sim_wait_for_all(void);
void sim_run_some(void);          /* may run one operation, if the seed is random */
void sim_run_eagerly(sim_op *op); /* runs it if the seed is 0 */
void sim_forget_pending(void);    /* pending work never runs */
bool sim_wait_before(sim_op *op,
                     const sim_stream *stream); /* adds all waits of the stream's next operation */

bool sim_happened_before(uint32_t stamp); /* relative to the running operation */
const char *sim_operation_name(uint32_t stamp);

/* Streams. Handles 0 and 1: the legacy stream; 2: the per-thread stream, one for all threads
 * here. */
sim_stream *sim_stream_of(CUstream handle); /* NULL: no stream */
sim_stream *sim_stream_new(bool is_blocking);
void sim_stream_end(sim_stream *stream);
sim_stream *sim_stream_at(uint32_t slot); /* NULL: none */
bool sim_is_legacy(const sim_stream *stream);
bool sim_is_current(const sim_stream *stream); /* true if it belongs to the current context */
bool sim_take_slot(uint32_t *slot);
void sim_release_slot(uint32_t slot); /* reusable once the host knows everything that ran there */

#endif
