/* run.h: a compiled program, and the parts of a run that a capture needs too. */
#ifndef CB_EXEC_CUDA_RUN_H
#define CB_EXEC_CUDA_RUN_H

#include "parts.h"
#include "text/code.h"
#include "update.h"

typedef struct cb_cu_failure { /* as in prelude.cuh */
    uint32_t instr, unused;
    int64_t index;
} cb_cu_failure;

typedef struct cb_cu_executable {
    cb_cu_gpu *d;
    const cb_program *program;
    cb_arena memory;
    cb_cu_code code;
    cb_cu_blaslt blaslt; /* set if code.products is not NULL */
    cb_cu_parts parts;
    void **function;               /* [n_kernel] */
    uint64_t arena, extra, failed; /* addresses; `arena` is that of the latest run, 0 before the
                                      first */
    uint64_t *value;               /* [n_param] parameters of all launches */
    void **parameter;              /* [n_param] each points to its value */
    const void **known;            /* [n_input + n_output] last arguments that passed the check */
    void **event;                  /* [n_group + 1] before, between and after groups */
    cb_cu_update update;
    uint64_t step_wanted, step_there; /* step of the random generator for this run; the step on the
                                        device */
    bool knows_step;                  /* step_there is valid */
    bool was_captured;                /* a replay may advance the step at any time */
    double *group_seconds;            /* times of the last run, filled by `finish`; NULL: not
                                        requested */
    struct cb_cu_captured *captured;  /* the graphs of its runs */
} cb_cu_executable;

/* The functions below must be called in the context. Sets the parameters that change only with the
 * arena. */
void cb_cu_use_arena(cb_cu_executable *x, uint64_t arena);
/* Copies the random step to the device unless it is there already, since each run advances it. A
 * captured run uses the step that it finds there. */
CB_MUST_CHECK cb_status cb_cu_bring_step(cb_cu_executable *x, void *stream, uint32_t step,
                                         bool *captured, cb_error *err);
/* Puts a run on the stream of the bindings. */
CB_MUST_CHECK cb_status cb_cu_put_run(cb_cu_executable *x, const cb_bindings *b, cb_error *err);

#endif
