/* pipeline.h: the contents of the public handles cb_context and cb_step, only for pipeline.c,
 * compile.c and api_*.c. */
#ifndef CB_PIPELINE_H
#define CB_PIPELINE_H

#include "base/ranges.h"
#include "exec/backend.h"
#include "fuse/expand.h"
#include "optim/products.h"
#include "run_memory.h"
#include "staging.h"

#define CB_BLAS_NAME 96
#define CB_CUDA_PATH 4096
#define CB_UPDATES_AFTER_RUNS "this backend updates after its runs" /* a reason */

struct cb_context {
    cb_alloc alloc;
    cb_optim_products products; /* products for optimizers, with the runtime's BLAS */
    cb_runtime runtime; /* devices keep a pointer to it, so its pool may change between runs */
    cb_devices devices;
    char blas_name[CB_BLAS_NAME];
    char cuda_driver[CB_CUDA_PATH], cuda_nvrtc[CB_CUDA_PATH], cuda_blaslt[CB_CUDA_PATH],
        cuda_cache[CB_CUDA_PATH];
};

struct cb_step {
    cb_arena arena; /* holds the step itself as well */
    cb_context *ctx;
    cb_graph *joint;
    cb_problem *problem;
    cb_problem *single;   /* op by op, where the problem has groups; else NULL */
    bool merges;          /* with `single`: groups may grow (fuse/fuse.h) */
    cb_grouping grouping; /* with `single`: the groups of the problem, allocated in `arena` */
    cb_expanded expanded; /* with `single`: the plan op by op, allocated in `arena` */
    cb_plan *plan;
    cb_program *program;
    const cb_backend *backend;
    void *device, *state; /* the backend's device, owned by the context, and its compiled program */
    uint32_t n_gradients; /* the last outputs are gradients */
    bool keep_gradients;
    bool updates_inside;        /* runs update parameters */
    const char *updates_reason; /* why a request for that was not met; else "" */
    struct cb_due {
        uint32_t group, gradient;
    } *due; /* [n_gradients] with updates inside: the group after which each update comes, rising */
    bool packs;            /* the joint graph has packed values */
    bool brief;            /* a refusal may leave out the smallest plan */
    cb_str sliced;         /* a line for each chain in pieces; empty without slices */
    bool follows;          /* the plan follows the caller's decisions */
    bool only_follows;     /* it is made for these decisions only */
    bool *is_stepped;      /* [n_input] an optimizer updates it after the run */
    bool has_run;          /* the gradients inside come from a run that succeeded */
    cb_run_memory *memory; /* the memory that it runs in, perhaps shared with other steps */
    cb_run_block *pinned;  /* its pinned block; NULL: the memory's */
    cb_turn turn;          /* the latest run: its stream, and where it ended */
    cb_event *began;       /* where the latest run began */
    cb_event *stepping;    /* where the latest update begins */
    bool has_update;       /* an update follows the latest run */
    cb_staging staging; /* slots: inputs, outputs, then [n_state][n_gradients] of the optimizer */
    void **inputs, **outputs; /* [n_input], [n_output] addresses of staged host arguments */
    cb_range *ranges; /* room for the checks of a run or an optimizer step: neither allocates */
    cb_known_ranges run_ranges, update_ranges; /* the addresses that passed the latest check */
    cb_optim_row *rows;                        /* [n_gradients] */
    void *scratch; /* memory for updates on the host, of n_scratch bytes; NULL: none was needed */
    uint64_t n_scratch;
    void *squares; /* data about all gradients, for the extras of an update; NULL: gradients are not
                      kept inside */
};

/* A way to plan a step. */
typedef struct cb_variant {
    cb_budget budget;
    bool packs;        /* the joint graph has packed values (ad/rewrites/packs.h) */
    bool brief;        /* a refusal may leave out the smallest plan */
    bool only_follows; /* CB_UNSUPPORTED if the plan cannot follow the caller's decisions */
    bool opens_device; /* it will run, so its device must be there */
} cb_variant;

/* Makes a step with all stages up to the program. `err` must not be NULL. */
CB_MUST_CHECK cb_status cb_plan_variant(cb_context *ctx, const cb_graph *forward,
                                        const cb_compile_options *o, const cb_variant *v,
                                        cb_step **out, cb_error *err);
/* Makes such a step ready to run. After a failure it can only be freed. */
CB_MUST_CHECK cb_status cb_step_finish(cb_step *step, const cb_compile_options *o, cb_error *err);
/* Handles the case that neither of two ways to plan a step has a plan for the budget: `out`, the
 * refusal of one way, gets the facts that hold for both. */
void cb_join_refusals(cb_refusal *out, const cb_refusal *other);

#endif
