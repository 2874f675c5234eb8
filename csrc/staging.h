/* staging.h: copies, in a backend's memory, of arguments that are in host memory. Each argument has
 * a slot, whose copy is allocated when it is first needed and kept. Copies are scratch between
 * runs, so steps of one memory (run_memory.h) use the same ones, each as large as the largest
 * argument in its slot. If the backend's memory is host memory, or an argument is already in it,
 * there is no copy: a slot is the argument itself. */
#ifndef CB_STAGING_H
#define CB_STAGING_H

#include "exec/backend.h"

typedef struct cb_copy {  /* the copy of the arguments in one slot */
    struct cb_copy *next; /* the copy of the next slot */
    void *data;           /* NULL: none was needed so far */
    uint64_t bytes;
} cb_copy;

typedef struct cb_staging {
    const cb_backend *backend;
    void *device;
    cb_copy **copy; /* [n_slot] of the step's memory; the caller fills them in */
    bool *is_there; /* [n_slot] the last argument was in the backend's memory already */
    uint32_t n_slot;
} cb_staging;

CB_MUST_CHECK cb_status cb_staging_init(cb_staging *s, const cb_backend *backend, void *device,
                                        size_t n_slot, cb_arena *arena, cb_error *err);

/* Returns where argument `host` of this many bytes is in the backend's memory; NULL: it is empty.
 * `there`: it is not host memory and is already in place. */
CB_MUST_CHECK cb_status cb_stage(cb_staging *s, uint32_t slot, void *host, uint64_t bytes,
                                 bool there, void **at, cb_error *err);
/* Queue the copy of an argument to the backend's memory, or back from it, on the stream. Only
 * arguments that have a copy are copied. */
CB_MUST_CHECK cb_status cb_stage_in(const cb_staging *s, cb_stream *stream, uint32_t slot,
                                    const void *host, uint64_t bytes, cb_error *err);
CB_MUST_CHECK cb_status cb_stage_out(const cb_staging *s, cb_stream *stream, uint32_t slot,
                                     void *host, uint64_t bytes, cb_error *err);

#endif
