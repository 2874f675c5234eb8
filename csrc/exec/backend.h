/* backend.h: the contract between a compiled program and whatever runs it. A backend is a const
 * table of functions; each of the folders holds one. They include `lower`, `ir` and `base`. Start
 * here, then read kernel.h and executable.h, which the backends share.
 *
 *   cpu    one planned arena, vectorised kernels, the thread pool of the context
 *   debug  the cpu kernels, but every buffer is allocated by itself at its first group and freed
 *          after its last; its counted peak equals program->live_bytes (locals, there for the time
 *          of their group, do not count), and a sanitizer sees every stray access
 *   ref    the slow twin: plain loops in double, no kernel shared with cpu
 *   null   runs nothing, counts groups
 */
#ifndef CB_EXEC_BACKEND_H
#define CB_EXEC_BACKEND_H

#include "../base/philox.h"
#include "../base/threads.h"
#include "../lower/program.h"

typedef struct cb_runtime { /* what a backend may use; outlives every executable made with it */
    cb_alloc *alloc;
    cb_threads *pool;
    cb_blas blas;
} cb_runtime;

typedef struct cb_bindings {
    void *const *inputs;  /* [n_input] contiguous, of the argument's bytes */
    void *const *outputs; /* [n_output]; entries of outputs kept inside the arena are ignored */
    uint64_t seed;
    uint32_t step;   /* of the random generator */
    cb_poll_fn poll; /* asked between groups; may be NULL */
    void *poll_user;
    double *group_seconds; /* [n_group] filled when not NULL */
    uint64_t *group_bytes; /* [n_group] bytes allocated while each group ran, filled by the debug
                              backend when not NULL; others leave it alone */
} cb_bindings;

typedef struct cb_run_stats {
    uint64_t peak_bytes; /* cpu: high-water mark of arena bytes in use; debug: counted peak of what
                            was allocated */
    uint64_t n_group;    /* run */
    uint64_t n_alloc;    /* allocations made by this run: 0 for cpu */
} cb_run_stats;

typedef struct cb_backend {
    const char *name;
    /* What runs in groups of several; NULL: nothing. */
    cb_fuses_fn fuses;
    /* May this program run here? CB_UNSUPPORTED names the first instruction that may not. */
    cb_status (*supports)(const cb_program *program, cb_error *err);
    cb_status (*compile)(const cb_program *program, const cb_runtime *runtime, void **state,
                         cb_error *err);
    cb_status (*run)(void *state, const cb_bindings *bindings, cb_run_stats *stats, cb_error *err);
    /* Address of an operand that is kept inside after a run (a gradient or a state); NULL when
     * there is none. */
    void *(*address)(void *state, uint32_t operand);
    void (*destroy)(void *state);
} cb_backend;

extern const cb_backend cb_backend_cpu, cb_backend_debug, cb_backend_ref, cb_backend_null;
const cb_backend *cb_backend_find(const char *name); /* NULL: unknown */

#endif
