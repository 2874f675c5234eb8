/* run_memory.h: memory that steps run in, one after another. It has one block for each backend,
 * which holds the arena of the running step, so that many programs take no more than the largest
 * one. The contents of a block are scratch between runs, except gradients that are kept inside
 * until the next run in it.
 *
 * Runs in one memory happen one at a time. Steps that use it may be compiled and freed meanwhile,
 * so blocks may be accessed only between cb_run_memory_lock and cb_run_memory_unlock. */
#ifndef CB_RUN_MEMORY_H
#define CB_RUN_MEMORY_H

#include <pthread.h>

#include "exec/backend.h"
#include "staging.h"

typedef struct cb_turn { /* the latest run of a step, and the update after it */
    const cb_backend *backend;
    void *device, *state; /* the device; the executable */
    cb_stream *stream;
    cb_event *ended;
} cb_turn;

typedef struct cb_run_block {
    uint32_t refs; /* one for the memory, and one for each step that has pinned the block */
    void *data;    /* NULL: none was needed so far, or it was released */
    uint64_t bytes;
    const cb_turn *last; /* the latest run in this block; NULL: none, its step was freed, or `data`
                            has been replaced */
} cb_run_block;

struct cb_run_memory {
    cb_devices *devices; /* devices of the context, which outlives this memory */
    cb_alloc *alloc;
    atomic_uint refs; /* one for the caller, and one for each step */
    pthread_mutex_t mutex;
    atomic_uint_fast64_t n_forks;          /* cb_fork_count when the mutex was made */
    cb_run_block *block[CB_BACKENDS_MOST]; /* NULL: no step of that backend has used it */
    cb_copy *copies[CB_BACKENDS_MOST];     /* for each slot, the head of a list */
};

CB_MUST_CHECK cb_status cb_run_memory_make(cb_devices *devices, cb_run_memory **out, cb_error *err);
/* Registers a step of this backend, which will run in `named`, or in a new memory if that is NULL.
 * Makes the backend's entry, without bytes, so that runs need not make it. */
CB_MUST_CHECK cb_status cb_run_memory_join(cb_devices *devices, cb_run_memory *named,
                                           const cb_backend *backend, cb_run_memory **out,
                                           cb_error *err);
/* Fills in the copies of a step's slots. */
CB_MUST_CHECK cb_status cb_run_memory_copies(cb_run_memory *memory, const cb_staging *staging,
                                             cb_error *err);
/* Ends a step: destroys its executable, whose runs end before another step may use the memory.
 * `memory` NULL: it has not joined one. */
void cb_run_memory_leave(cb_run_memory *memory, const cb_turn *turn, cb_run_block *pinned);

/* A forked child starts with a new lock. */
void cb_run_memory_lock(cb_run_memory *memory);
void cb_run_memory_unlock(cb_run_memory *memory);

/* Returns the block that runs of a step use: `pinned`, or the memory's if that is NULL. */
cb_run_block *cb_run_block_of(const cb_run_memory *memory, const cb_backend *backend,
                              cb_run_block *pinned);

/* Makes a block of at least `bytes` current. A block that is too small is freed first, so that old
 * and new never exist together; if the new one cannot be allocated, the memory has no block. A
 * pinned block stays, and the memory gets another one. `n_alloc`: allocations made. */
CB_MUST_CHECK cb_status cb_run_memory_fit(cb_run_memory *memory, const cb_backend *backend,
                                          void *device, uint64_t bytes, uint64_t *n_alloc,
                                          cb_error *err);

#endif
