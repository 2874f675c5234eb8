/* block.h: runs a grid: one block after another, and the threads of each in turns. */
#ifndef SIM_BLOCK_H
#define SIM_BLOCK_H

#include "../runtime/sim_thread.h"

enum { SIM_MAX_THREADS = 1024, SIM_COPIES = 64, SIM_WARP = 32 };

typedef struct sim_launch {
    const sim_kernel *kernel;
    const uint64_t *globals;
    uint32_t grid[3], block[3], dynamic_shared;
    const char *params; /* params_bytes of the kernel */
} sim_launch;

/* Runs a grid to its end, or to its first fault, which is reported. */
sim_fault sim_run_grid(const sim_launch *launch);

/* A thread and its state in the scheduler. Two clocks order accesses: after a barrier, `barriers`
 * is above that of all participants; after a warp operation, `warps` is. */
typedef struct sim_copy {
    uint64_t to, from;
    uint32_t bytes, given, group;
} sim_copy;

typedef struct sim_fiber {
    sim_thread thread; /* first: hooks get a pointer to it */
    enum { READY, IN_WARP_OP, AT_BARRIER, DONE } state;
    uint32_t site; /* where it waits */
    void *stack;
    uint16_t barriers, warps;
    uint32_t fenced_at; /* epoch of its last fence + 1; 0: none */
    /* a warp operation */
    sim_warp_op op;
    uint32_t mask, value, b, c, result;
    bool predicate;
    const void *operands; /* operands of a matrix operation */
    /* a barrier */
    uint32_t barrier;
    sim_barrier_kind kind;
    /* copies that have not arrived yet */
    int n_copies;
    sim_copy copies[SIM_COPIES];
} sim_fiber;

/* State of the running block for warp.c and races.c. */
extern sim_fiber sim_fibers[SIM_MAX_THREADS];
typedef struct sim_running {
    const sim_launch *launch;
    uint32_t n_threads, n_alive;
    uint32_t n_blocks;
    uint32_t arrived[SIM_WARP],
        gone[SIM_WARP]; /* lanes of each warp: in an operation; ended or absent */
    uint32_t left_out;  /* the line that threads skip; 0: none */
    sim_fault fault;
} sim_running;
extern sim_running sim_now;

/* Writes "name block (0,0,0) thread (1,0,0) PTX line 7, source line 3". */
void sim_where(const sim_fiber *f, uint32_t site, char *text, size_t n);
void sim_fail_block(sim_fault fault); /* ends the grid; does not return */
void sim_wait(sim_fiber *f);          /* runs others until f is READY and has its turn */
bool sim_is_left_out(uint32_t site);  /* true if threads skip this line; counts the skip */
void sim_wake(sim_fiber *f);          /* makes it READY, after the others */
/* warp.c: completes the operation that f waits in, if all its lanes have arrived; `running`: the
 * lane that need not be woken. */
void sim_finish_warp(sim_fiber *f, const sim_fiber *running);

extern const sim_hooks sim_warp_hooks; /* warp, multiply and load_matrix */

#endif
