/* backend.h: the contract between a compiled step and the backend that runs it. A backend is a
 * const table of functions, and each folder here holds one. docs/backends.md describes each call of
 * the table; the host's backends share kernel.h, executable.h and host.h.
 *
 *   cpu    one planned arena, vectorised kernels, the thread pool of the context
 *   debug  the cpu kernels, but every buffer is allocated separately at its first group and freed
 *          after its last; its counted peak equals program->live_bytes (locals, which exist only
 *          during their group, do not count), and a sanitizer sees every stray access
 *   ref    the reference: plain loops in double, no kernel shared with cpu
 *   null   runs nothing, counts groups
 *   cuda   a GPU, with kernels that are generated for each program and compiled with it
 *
 * Memory. The inputs and outputs of a run are in the backend's memory. If `is_host` is false, the
 * host accesses it only through `copy`. The caller owns the arena of a run and may pass another
 * one, or pass the same one to other executables, whenever no run in it is pending.
 *
 * Streams. `copy`, `record`, `wait`, `run` and `update` put work on a stream, which executes it in
 * order; only events order work on different streams. The caller owns a stream and keeps it until
 * its work is done: a backend does not create, retain or return streams. NULL is the device's
 * default stream. On the host all work is done when the call returns, and the stream is ignored.
 *
 * Blocking. `record`, `wait`, `address`, `update` and `run` put work on a stream and return: they
 * neither allocate memory (`debug` does) nor wait for the device, so that they can be captured. A
 * graph that has captured a run holds the address of its arena, which the caller keeps as long as
 * the graph. All other calls may block.
 *
 * Errors. A call returns the errors that are known at once. Errors that occur while work executes
 * are returned by `sync` (errors of the device, which is then lost: every later call fails) or
 * `finish` (errors of a run, for example an index out of range). A failed run changes none of its
 * inputs, nor do later runs of the same executable until `finish` has returned.
 *
 * Threads. Any number of threads may use a device; one thread at a time may use an executable. */
#ifndef CB_EXEC_BACKEND_H
#define CB_EXEC_BACKEND_H

#include "../base/philox.h"
#include "../base/threads.h"
#include "../lower/annotate.h"
#include "../lower/program.h"
#include "../optim/optimizer.h"

typedef struct cb_runtime { /* what a backend may use; outlives every device opened with it */
    cb_alloc *alloc;
    cb_threads *pool;
    cb_blas blas;
    cb_cuda_options cuda; /* CUDA libraries and options; all NULL: no library was named */
} cb_runtime;

typedef struct cb_stream cb_stream; /* never defined: each backend casts its own handles */
typedef struct cb_event
    cb_event; /* never defined either: a point on a stream, with the time when it is reached */

typedef enum cb_way { CB_WAY_IN = 0, /* from the host to the device */ CB_WAY_OUT } cb_way;

/* Lists are read before `run` returns. The caller must not touch the memory that they point to, or
 * the outputs of a run, until the run is done. */
typedef struct cb_bindings {
    cb_stream *stream;
    void *const *inputs;  /* [n_input] contiguous, aligned to an element */
    void *const *outputs; /* [n_output]; entries of outputs kept inside the arena are ignored */
    void *arena;          /* program->arena_bytes, aligned to the backend's `alignment` */
    void *host; /* program->host_bytes of the host's memory, for offloaded values. Both are
                   uninitialized before the run, and are ignored without `uses_arena` */
    uint64_t seed;
    uint32_t step;   /* step of the random generator */
    cb_poll_fn poll; /* called before anything is put on the stream, and between groups by backends
                        that run within the call; may be NULL */
    void *poll_user;
    double *group_seconds; /* [n_group] filled when not NULL */
    /* Called after each group. Returns true once it has changed inputs; from then on the run no
     * longer calls `poll`. Only for backends with `updates_inside`. NULL: nothing is called. */
    bool (*after_group)(void *user, uint32_t group);
    void *after_user;
    uint64_t *group_bytes; /* [n_group] bytes allocated while each group ran, filled by the debug
                              backend when not NULL; others do not write it */
} cb_bindings;

typedef struct cb_run_stats { /* filled when `run` returns */
    uint64_t peak_bytes; /* cpu: high-water mark of arena bytes in use; debug: counted peak of what
                            was allocated */
    uint64_t n_group;    /* groups that were run */
    uint64_t n_alloc;    /* allocations made by the backend in this run: 0 for cpu */
} cb_run_stats;

/* Functions for the marks and kept blocks (include/cutback.h) of one device. */
typedef struct cb_pooled {
    cb_status (*mark)(void *device, cb_stream *stream, cb_mark **out, cb_error *err);
    void (*unmark)(void *device, cb_mark *mark); /* when nothing refers to it any more */
    cb_status (*take)(void *device, size_t bytes, cb_stream *stream, cb_block **out, cb_uses *after,
                      cb_error *err);
    void (*give)(void *device, cb_block *block, const cb_uses *uses);
    uint64_t (*release)(void *device);
    cb_block_stats (*stats)(void *device, bool resets_peak);
} cb_pooled;

/* Captures a run and the update that follows it as a graph, which the device replays. A graph holds
 * the addresses of its run; the caller keeps that memory, and the executable, as long as the
 * graph. */
typedef struct cb_capturing {
    /* From now on, `address` returns addresses in this arena. */
    void (*use)(void *executable, void *arena);
    /* Captures a run, and the update if there is a table. Blocks, and runs nothing. The stream of
     * the bindings is not used. */
    cb_status (*capture)(void *executable, const cb_bindings *bindings, const cb_optim_table *table,
                         void **graph, cb_error *err);
    /* True if the device is known to have made t - 1 steps. If not, the table of the next replay
     * must contain rows with their counts and numbers. */
    bool (*continues)(const void *graph, int64_t t);
    /* Puts the run on the stream. If `rows` is NULL in the table, it uses the rows of the latest
     * replay. */
    cb_status (*replay)(void *graph, cb_stream *stream, uint32_t step, const cb_optim_table *table,
                        cb_error *err);
    /* Waits for the stream; returns how many steps the device has made, and the numbers of each
     * row. */
    cb_status (*counts)(void *graph, cb_stream *stream, const cb_optim_table *table, int64_t *t,
                        double *numbers, cb_error *err);
    bool (*resident)(const void *graph, uint32_t group,
                     cb_resident *out); /* like cb_backend.resident */
    void (*release)(void *graph);       /* waits; NULL is fine */
    /* Copies on the device, in stream order. */
    cb_status (*move)(void *device, cb_stream *stream, void *to, const void *from, size_t bytes,
                      cb_error *err);
} cb_capturing;

struct cb_mark {
    atomic_uint refs;
    const struct cb_backend *backend;
    void *device;
    cb_event *event;
    atomic_bool is_reached; /* true: the device is known to have reached it */
    cb_mark *next;          /* owned by the backend while nothing refers to it */
};

struct cb_block {
    void *data;
    size_t bytes;
    cb_uses uses;   /* uses of a block that is kept */
    cb_block *next; /* owned by the backend while the block is kept */
};

typedef struct cb_backend {
    const char *name;

    /* ---- properties and pure functions that planning and lowering use ---- */

    bool is_host;    /* its memory is the host's */
    bool uses_arena; /* runs need cb_bindings.arena and .host; false: it makes its own buffers */
    bool
        updates_inside; /* runs call cb_bindings.after_group, and once the forward has run they fail
                            only at indices that have not been checked before */
    uint64_t alignment; /* alignment of arguments it allocates and of buffers in the arena; a power
                           of two */
    cb_workspace_fn workspace; /* bytes of scratch that an op needs */
    cb_fuses_fn fuses;         /* which ops may run in groups of several; NULL: none */
    /* Returns true for ops without a kernel, which primitives replace before a step is planned
     * (ad/lacking.h); NULL: there are none. */
    bool (*lacks)(cb_opcode code);
    /* Checks that this backend can run the group. CB_UNSUPPORTED names the first instruction that
     * it cannot run. */
    cb_status (*supports)(const cb_program *program, uint32_t group, cb_error *err);

    /* ---- a device ---- */

    /* The device keeps a pointer to its runtime. Two devices may briefly be open for one runtime
     * (cb_devices_get). Executables, memory and events must be freed before the device is
     * closed. */
    cb_status (*open)(const cb_runtime *runtime, void **device, cb_error *err);
    void (*close)(void *device);

    /* ---- memory ---- */

    /* The caller owns the block and frees it when no work on it is pending. */
    cb_status (*alloc)(void *device, size_t bytes, void **block, cb_error *err);
    void (*free)(void *device, void *block); /* NULL is fine */
    const cb_pooled *pooled;                 /* NULL: the backend does not cache memory */
    /* Neither side may change until the copy is done; it may be done before the call returns. */
    cb_status (*copy)(void *device, cb_stream *stream, cb_way way, void *to, const void *from,
                      size_t bytes, cb_error *err);

    /* ---- order ---- */

    /* Waits until all work on the stream is done. */
    cb_status (*sync)(void *device, cb_stream *stream, cb_error *err);
    /* The caller owns an event. It may be freed while work waits for it. */
    cb_status (*event_new)(void *device, cb_event **event, cb_error *err);
    void (*event_free)(void *device, cb_event *event); /* NULL is fine */
    cb_status (*record)(void *device, cb_stream *stream, cb_event *event, cb_error *err);
    /* Later work on this stream waits for the last recording of the event; it does not wait if
     * there is none. */
    cb_status (*wait)(void *device, cb_stream *stream, cb_event *event, cb_error *err);
    /* Returns the time between two recorded events; blocks until both are reached. */
    cb_status (*seconds)(void *device, cb_event *from, cb_event *to, double *out, cb_error *err);

    /* ---- programs ---- */

    /* Program and device outlive the executable. Allocates everything besides the arena that runs
     * need, and everything that an update of gradients inside the executable needs. */
    cb_status (*compile)(const cb_program *program, void *device, void **executable, cb_error *err);
    /* The caller must order runs of one executable on several streams, because they share its
     * memory. As its last action, a run replaces input states by the new states. */
    cb_status (*run)(void *executable, const cb_bindings *bindings, cb_run_stats *stats,
                     cb_error *err);
    /* Blocks until the runs on the stream are done, and returns the first error of any run since
     * the last call. */
    cb_status (*finish)(void *executable, cb_stream *stream, cb_error *err);
    /* Returns the address of an operand (a gradient) that stays inside the executable after a run;
     * valid until the next run in the same arena. Returns NULL if the operand does not stay. */
    void *(*address)(void *executable, uint32_t operand);
    /* Frees the memory that `address` returns, because another executable is about to use this
     * one's memory. NULL: everything is in the arena. */
    void (*let_go)(void *executable);
    /* Writes the launches of a run in order, as JSON (docs/problem.md, "Launches"). NULL: runs
     * launch no kernels. */
    cb_status (*launches)(void *executable, cb_str *out, cb_error *err);
    /* Writes the code of each group for people to read: CUDA C, or the executor's records. If
     * `executable` is NULL, no device is open; the text then names the device that it is for. NULL:
     * groups have no readable form. */
    cb_status (*code)(const cb_program *program, const cb_runtime *runtime, void *executable,
                      cb_str *out, cb_error *err);
    /* Returns the bytes of host memory that the executable holds. Does not count arenas and
     * arguments that a run allocates, or memory of a driver. */
    uint64_t (*bytes)(const void *executable);
    /* Waits for pending runs, then frees the executable; NULL is fine. */
    void (*destroy)(void *executable);

    /* ---- optimizers ---- */

    /* True if `update` supports the optimizer; others are stepped in the host's memory. NULL: all
     * are. */
    bool (*steps)(const cb_optimizer *optimizer);
    /* Prepares for steps of this optimizer; may block. Called before the run that computes the
     * step's gradients. NULL: nothing is needed. */
    cb_status (*ready)(void *executable, const cb_optimizer *optimizer, cb_error *err);
    /* Finds the numbers of the latest update; returns false if that update had no such group. NULL:
     * not supported. */
    bool (*resident)(const void *executable, uint32_t group, cb_resident *out);
    const cb_capturing *capturing; /* NULL: runs are not captured */
    /* Puts one step of the optimizer on the stream of the run that has made the gradients. The
     * table has been checked; it is read before the call returns, and parameters, gradients and
     * states are in the backend's memory. NULL: the backend has no optimizers. */
    cb_status (*update)(void *device, void *executable, cb_stream *stream,
                        const cb_optimizer *optimizer, const cb_optim_table *table, cb_error *err);
} cb_backend;

extern const cb_backend cb_backend_cpu, cb_backend_debug, cb_backend_ref, cb_backend_null,
    cb_backend_cuda;

/* All backends (builtin.c), terminated by NULL; the first one is the default. */
extern const cb_backend *const cb_backends[];
#define CB_BACKENDS_MOST 8

const cb_backend *cb_backend_find(const char *name); /* returns NULL if the name is unknown */
/* Writes the names of all backends, like "cpu, debug and null". */
void cb_backend_names(cb_str *out);
/* Checks that the backend can run each group of the program. */
CB_MUST_CHECK cb_status cb_backend_supports(const cb_backend *backend, const cb_program *program,
                                            cb_error *err);

/* The open devices of one runtime, by backend. A device is opened at the first request from any
 * thread. */
typedef struct cb_devices {
    const cb_runtime *runtime;
    _Atomic(void *) open[CB_BACKENDS_MOST];
} cb_devices;
CB_MUST_CHECK cb_status cb_devices_get(cb_devices *devices, const cb_backend *backend,
                                       void **device, cb_error *err);
/* Returns NULL if the device is not open. */
void *cb_devices_find(cb_devices *devices, const cb_backend *backend);
void cb_devices_close(cb_devices *devices);

#endif
