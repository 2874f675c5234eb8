/* executable.h: a program prepared to run with kernels: each instruction's function and tensors are
 * looked up once, so that a run only fills in addresses. Shared by the backends that run kernels.
 * Program and runtime must outlive it.
 *
 * Addresses come from two sources: ARENA and LOCAL operands are placed by the backend, wherever it
 * keeps buffers and locals (cb_executable_place), INPUT and OUTPUT operands by cb_executable_bind
 * at the start of a run. */
#ifndef CB_EXEC_EXECUTABLE_H
#define CB_EXEC_EXECUTABLE_H

#include "host.h"
#include "kernel.h"

typedef struct cb_executable {
    const cb_program *program;
    const cb_runtime *runtime;
    cb_arena memory;
    cb_kernel_fn *kernel; /* [n_instr] */
    cb_tensor *tensor;    /* [n_tensor] parallel to program->operand_id */
    uint32_t *bound;      /* [n_bound] tensors in the caller's buffers: indices into `tensor` */
    char **address;       /* [n_buffer] address of each buffer, filled by the backend; NULL: it does
                             not exist */
    char **local;         /* [n_local] address of each local, filled like `address` */
    char *host;           /* [program->host_bytes] offloaded values; filled like `address` */
    uint32_t n_tensor, n_bound;
} cb_executable;

/* Returns CB_UNSUPPORTED with the first instruction of the group without a kernel; CB_INTERNAL:
 * scratch is too small for indices that must be copied. */
CB_MUST_CHECK cb_status cb_executable_supports(const cb_program *program, uint32_t group,
                                               cb_error *err);
/* Prepares a program; frees everything on failure. */
CB_MUST_CHECK cb_status cb_executable_init(cb_executable *x, const cb_program *program,
                                           const cb_runtime *runtime, cb_error *err);
void cb_executable_free(cb_executable *x);
uint64_t cb_executable_bytes(const cb_executable *x); /* bytes of its own memory */

/* Copies the indices of an instruction that are in the caller's memory (cb_op_index_copy) to the
 * head of its scratch, where nothing else writes them, and redirects that entry of its inputs `in`.
 * Returns the bytes of the copy, 0 if there is none. */
size_t cb_copy_indices(const cb_program *program, const cb_instr *instr, cb_tensor *in,
                       void *scratch);

/* Points the ARENA and LOCAL tensors of one group at x->address and x->local. */
void cb_executable_place(cb_executable *x, uint32_t group);
/* Does the same for all groups, with each buffer at its offset in the arena, and sets x->host. */
void cb_executable_place_all(cb_executable *x, char *arena, char *host);
/* Points the other tensors at the caller's buffers; CB_INVALID: one is missing. */
CB_MUST_CHECK cb_status cb_executable_bind(cb_executable *x, const cb_bindings *bindings,
                                           cb_error *err);
/* Runs a group whose tensors are placed and bound, one instruction after another. Errors end with
 * the user's source line. */
CB_MUST_CHECK cb_status cb_executable_run_group(const cb_executable *x, uint32_t group,
                                                const cb_bindings *bindings, cb_error *err);
/* Copies offloaded values of a group: back from the host before it runs or, if `leaving`, to the
 * host after it. `host` has program->host_bytes bytes; `address` holds the addresses of buffers. */
void cb_run_moves(const cb_program *program, uint32_t group, bool leaving, char *host,
                  char *const *address);
/* Returns the address of an operand that is kept inside; NULL if it is the caller's or its buffer
 * does not exist. */
void *cb_executable_address(const cb_executable *x, uint32_t operand);

/* Copies new states over those of the caller, as the last action of a run. `address` comes from the
 * backend. */
void cb_replace_states(const cb_program *program, const cb_bindings *bindings,
                       void *(*address)(void *executable, uint32_t operand), void *executable);

/* The run loop: calls `run_group` for each group in order; calls `poll` before the first group and
 * then about every 5 ms of work (CB_CANCELLED), fills group_seconds, and calls `after_group`. */
typedef cb_status (*cb_run_group_fn)(void *user, uint32_t group, cb_error *err);
CB_MUST_CHECK cb_status cb_run_groups(uint32_t n_group, const cb_bindings *bindings,
                                      cb_run_group_fn run_group, void *user, cb_error *err);

#endif
