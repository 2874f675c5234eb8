/* cutback.h: the public C API.
 *
 * Cutback takes a forward graph, builds the joint forward/backward graph, decides what to save and
 * what to recompute, and runs the training step in one planned block of memory.
 *
 * Rules that hold for every function here:
 *   - A function that can fail returns cb_status and takes a cb_error last (NULL is allowed). On
 *     failure every output is untouched and nothing is leaked; the error text names the thing.
 *   - Handles are opaque. `_new` gives one to the caller, who frees it with `_free` (NULL is fine).
 *     A context must outlive the graphs and steps made from it.
 *   - One handle is used by one thread at a time; different handles by different threads freely.
 *   - Nothing prints, exits or aborts.
 */
#ifndef CUTBACK_H
#define CUTBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CB_VERSION_MAJOR 0
#define CB_VERSION_MINOR 1
#define CB_VERSION_PATCH 0

#if defined(__GNUC__)
#define CB_MUST_CHECK __attribute__((warn_unused_result))
#define CB_API __attribute__((visibility("default")))
#define CB_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define CB_MUST_CHECK
#define CB_API
#define CB_PRINTF(fmt_index, first_arg)
#endif

/* ---- status -------------------------------------------------------------------------------- */

typedef enum cb_status {
    CB_OK = 0,
    CB_INVALID,     /* a value that cannot be right (Python: ValueError) */
    CB_TYPE,        /* a dtype or kind that does not fit (TypeError) */
    CB_NOMEM,       /* out of memory; everything is as before (MemoryError) */
    CB_INFEASIBLE,  /* no plan meets the budget (cutback.BudgetError) */
    CB_UNSUPPORTED, /* not built yet, or not by this backend (NotImplementedError) */
    CB_CANCELLED,   /* the caller's poll function asked to stop (KeyboardInterrupt) */
    CB_INTERNAL     /* a broken invariant: a bug in cutback (RuntimeError) */
} cb_status;

/* What a budget bounds. */
typedef enum cb_measure {
    CB_MEASURE_ARENA = 0, /* peak with offsets and alignment: what is really allocated */
    CB_MEASURE_LIVE,      /* liveness peak of what the step allocates */
    CB_MEASURE_SAVED,     /* bytes alive between forward and backward */
    CB_MEASURE_TOTAL,     /* live plus parameters, gradients and optimizer states */
    CB_MEASURE_COUNT
} cb_measure;

typedef enum cb_refusal_reason {
    CB_REFUSED_OTHER = 0,   /* the text says why */
    CB_REFUSED_BUDGET,      /* no plan was found that fits budget_bytes */
    CB_REFUSED_TIME,        /* CB_BUDGET_MIN: every plan found takes more time than max_extra */
    CB_REFUSED_CONSTRAINTS, /* no plan keeps all constraints, whatever the budget */
    CB_REFUSED_REGION,      /* `region` may save budget_bytes; it cannot save less than
                               smallest_bytes */
    CB_REFUSED_PINNED,      /* the host may hold pinned_bytes; MUST_OFFLOAD needs smallest_bytes */
    CB_REFUSED_STOPPED,     /* the caller ended the search before a plan was found */
    CB_REFUSED_COUNT
} cb_refusal_reason;

/* Why there is no plan, as data. Unknown numbers are 0 and unknown names empty; long names are cut.
 */
#define CB_REFUSAL_NAME 96
#define CB_REFUSAL_LOCATION 128
typedef struct cb_refusal {
    cb_refusal_reason reason;
    cb_measure measure;
    bool must_save;          /* constraints demand that some values are saved */
    double share;            /* the budget as a share of save_all_bytes; 0: it was given in bytes */
    double max_extra;        /* CB_REFUSED_TIME: extra time allowed, as a share of the step's */
    double least_extra;      /* CB_REFUSED_TIME: extra time of the fastest plan */
    uint64_t budget_bytes;   /* UINT64_MAX: none */
    uint64_t pinned_bytes;   /* limit on host memory */
    uint64_t smallest_bytes; /* smallest plan found, however slow; a budget of this much is met */
    uint64_t floor_bytes;    /* lower bound for plans that run the ops in this order */
    uint64_t save_all_bytes; /* the plan that saves everything: what shares count from */
    uint64_t held_bytes;     /* results and gradients, which every plan holds at its end */
    char op[CB_REFUSAL_NAME], location[CB_REFUSAL_LOCATION]; /* at the peak of the smallest plan */
    char floor_op[CB_REFUSAL_NAME];                          /* that sets the floor */
    char region[CB_REFUSAL_NAME];
} cb_refusal;

#define CB_ERROR_TEXT 1024
typedef struct cb_error {
    cb_status status;
    bool has_location;        /* the text ends with the source line of an op */
    char text[CB_ERROR_TEXT]; /* of CB_INFEASIBLE: the reason without numbers */
    cb_refusal refusal;       /* of CB_INFEASIBLE only */
} cb_error;

CB_API const char *cb_status_name(cb_status status);

/* ---- element types and shapes --------------------------------------------------------------- */

typedef enum cb_dtype {
    CB_BOOL = 0,
    CB_U8,
    CB_I32,
    CB_I64,
    CB_F16,  /* storage only: computed in f32, rounded at every op */
    CB_BF16, /* likewise */
    CB_F32,
    CB_F64,
    CB_DTYPE_COUNT
} cb_dtype;

#define CB_MAX_RANK 8
typedef struct cb_shape {
    int32_t rank;
    int64_t dim[CB_MAX_RANK]; /* [rank], each >= 0 */
} cb_shape;

/* ---- context: allocator and thread pool ------------------------------------------------------ */

typedef struct cb_context cb_context;

/* A BLAS that the caller hands in (the Python module passes the one that NumPy has loaded) does the
 * matrix products that it is faster for than our own kernel. Fortran-free CBLAS signatures;
 * `int_bits` says which integer it was built with. */
typedef struct cb_blas {
    const char
        *name;    /* for reports, e.g. "scipy-openblas 0.3.31"; NULL: none, use our own kernel */
    int int_bits; /* 32 or 64 */
    void *sgemm;  /* cblas_sgemm, NULL: own kernel */
    void *dgemm;  /* cblas_dgemm, NULL: own kernel */
    void *set_threads_local; /* int f(int): threads for the calling thread, returns the old; may be
                                NULL */
    void *set_threads;       /* void f(int); may be NULL */
    void *get_threads;       /* int f(void); may be NULL */
    int vector_bits; /* widest vectors its kernels use here; 0: unknown. Where this processor has
                        wider ones, our own kernel multiplies instead */
} cb_blas;

typedef struct cb_context_options {
    int n_threads; /* 0: one for each processor in the affinity mask */
    cb_blas blas;
} cb_context_options;

CB_API CB_MUST_CHECK cb_status cb_context_new(const cb_context_options *options, cb_context **out,
                                              cb_error *err);
CB_API void cb_context_free(cb_context *ctx);
CB_API int cb_context_threads(const cb_context *ctx);
CB_API CB_MUST_CHECK cb_status cb_context_set_threads(cb_context *ctx, int n_threads,
                                                      cb_error *err);

/* What the backend "cuda" runs with: NVIDIA's libraries, which are opened when they are needed. */
typedef struct cb_cuda_options {
    const char *driver, *nvrtc; /* files, or names for the system's loader */
    const char *blaslt;         /* cuBLASLt; NULL: products by our own kernels */
    const char *cache;          /* folder of compiled kernels; NULL: they are not kept */
    int device;                 /* ordinal */
    bool as_ptx;                /* PTX is loaded in place of machine code: the driver compiles it */
    bool keep_sources;          /* the CUDA C of each program is written to the cache's folder */
} cb_cuda_options;

/* For backends that are opened from now on: a device that is open stays as it is. The texts are
 * copied. */
CB_API CB_MUST_CHECK cb_status cb_context_set_cuda(cb_context *ctx, const cb_cuda_options *options,
                                                   cb_error *err);
CB_API cb_cuda_options cb_context_cuda(const cb_context *ctx); /* what was set last */

typedef struct cb_memory_stats {
    uint64_t n_alloc;    /* allocations so far */
    uint64_t live_bytes; /* held now */
    uint64_t peak_bytes; /* largest held */
} cb_memory_stats;
CB_API cb_memory_stats cb_context_memory(const cb_context *ctx);
/* For tests: the n-th allocation from now fails (1: the next); 0 turns it off. Returns how many
 * were still to come of those that an earlier call asked for; 0: it has failed, or was none. */
CB_API uint64_t cb_context_fail_alloc(cb_context *ctx, uint64_t nth);

/* ---- graph ----------------------------------------------------------------------------------- */

typedef struct cb_graph cb_graph;
typedef uint32_t cb_value_id;
#define CB_NONE UINT32_MAX

typedef enum cb_role {
    CB_ROLE_DATA = 0, /* an input without gradient by default */
    CB_ROLE_PARAM,    /* a parameter */
    CB_ROLE_TANGENT,  /* input of the backward */
    CB_ROLE_STATE     /* an input that an output replaces after the step (running statistics) */
} cb_role;

/* What a user may say about saving a value; PyTorch's vocabulary. */
typedef enum cb_constraint {
    CB_FREE = 0,
    CB_MUST_SAVE,
    CB_PREFER_SAVE,
    CB_MUST_RECOMPUTE,
    CB_PREFER_RECOMPUTE,
    CB_MUST_OFFLOAD,
    CB_PREFER_OFFLOAD,
    CB_CONSTRAINT_COUNT
} cb_constraint;

/* Scalar attributes of an op. Which slot means what is in the op's row of ir/ops.def. */
typedef struct cb_attrs {
    double f[2];
    int64_t i[8];
    cb_shape dims; /* axes, a permutation or a target shape */
    cb_dtype dtype;
} cb_attrs;

CB_API CB_MUST_CHECK cb_status cb_graph_new(cb_context *ctx, cb_graph **out, cb_error *err);
CB_API void cb_graph_free(cb_graph *g);
CB_API CB_MUST_CHECK cb_status cb_graph_add_input(cb_graph *g, const char *name, cb_role role,
                                                  cb_dtype dtype, cb_shape shape, cb_value_id *out,
                                                  cb_error *err);
/* Adds op `name` ("matmul", "add", ... see docs/ops.md) with NumPy broadcasting; `attrs` may be
 * NULL where the op has none. `outs` has room for `n_outs` ids, as many as the op has outputs. */
CB_API CB_MUST_CHECK cb_status cb_graph_add_op(cb_graph *g, const char *name, uint32_t n_ins,
                                               const cb_value_id *ins, const cb_attrs *attrs,
                                               uint32_t n_outs, cb_value_id *outs, cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_add_output(cb_graph *g, cb_value_id value, const char *name,
                                                   cb_error *err);
/* What ops added from now on carry: source place ("model.py:12", NULL: none), checkpoint region
 * (CB_NONE: none), and what the user says about saving their outputs. */
CB_API CB_MUST_CHECK cb_status cb_graph_set_location(cb_graph *g, const char *location,
                                                     cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_add_region(cb_graph *g, const char *name, uint32_t parent,
                                                   uint64_t saved_limit, uint32_t *out,
                                                   cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_set_region(cb_graph *g, uint32_t region, cb_error *err);
CB_API void cb_graph_set_constraint(cb_graph *g, cb_constraint constraint);
/* The same, for one value that is there already. */
CB_API CB_MUST_CHECK cb_status cb_graph_constrain(cb_graph *g, cb_value_id value,
                                                  cb_constraint constraint, cb_error *err);
/* An output that replaces an input after the step; the input takes the role STATE. */
CB_API CB_MUST_CHECK cb_status cb_graph_add_state(cb_graph *g, uint32_t input, cb_value_id value,
                                                  cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_value_info(const cb_graph *g, cb_value_id value,
                                                   cb_dtype *dtype, cb_shape *shape, cb_error *err);
CB_API uint64_t cb_graph_bytes(const cb_graph *g); /* of memory that the graph holds */
CB_API CB_MUST_CHECK cb_status cb_graph_to_text(const cb_graph *g, char **out, cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_from_text(cb_context *ctx, const char *text, size_t length,
                                                  cb_graph **out, cb_error *err);
/* The JSON form, with the same content as the text form. */
CB_API CB_MUST_CHECK cb_status cb_graph_save_json(const cb_graph *g, char **out, cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_load_json(cb_context *ctx, const char *text, size_t length,
                                                  cb_graph **out, cb_error *err);
CB_API void cb_text_free(const cb_context *ctx, char *text);

/* ---- planning and compiling ------------------------------------------------------------------ */

typedef enum cb_preset {
    CB_PRESET_AUTOGRAD = 0,  /* save what the backward reads */
    CB_PRESET_RECOMPUTE_ALL, /* save only inputs: plain checkpointing */
    CB_PRESET_CONSERVATIVE,  /* recompute what fuses */
    CB_PRESET_AGGRESSIVE,    /* recompute anything but random ops and products of more than 64
                                operations for a byte of their result, with weights 16 */
    CB_PRESET_TORCH_COMPAT,  /* what PyTorch's default partitioner saves */
    CB_PRESET_SHAPE_AWARE,   /* as aggressive, by amounts of work: products bound by memory may run
                                again, long chains of arithmetic may not */
    CB_PRESET_COUNT
} cb_preset;

typedef enum cb_offload {
    CB_OFFLOAD_ASKED = 0, /* only values whose constraint asks for it */
    CB_OFFLOAD_JOINT,     /* save, recompute or offload, whatever is fastest */
    CB_OFFLOAD_ONLY,      /* save or offload: nothing runs again */
    CB_OFFLOAD_COUNT
} cb_offload;

#define CB_MOST_EXTRA 100 /* times the step's: the largest extra time that a budget may ask for */

/* CB_BUDGET_POSITION stands for bytes between two ends: the peak of the smallest plan that a search
 * of fixed effort finds at no more than 40 % more time (at most 2 % of the range above that of
 * CB_BUDGET_MIN; for the measure `saved` the smallest at any price), and the peak without a budget.
 * It is never out of reach, unless copies to the host are limited to less than constraints need, or
 * nothing may run again (CB_OFFLOAD_ONLY). */
typedef enum cb_budget_kind {
    CB_BUDGET_NONE = 0,
    CB_BUDGET_BYTES,
    CB_BUDGET_SHARE,
    CB_BUDGET_MIN,      /* the smallest peak within a share of extra time */
    CB_BUDGET_POSITION, /* from 0, the smallest plan, to 1, no budget */
    CB_BUDGET_SMALLEST, /* the smallest peak, however slow */
    CB_BUDGET_KIND_COUNT
} cb_budget_kind;

typedef struct cb_budget {
    cb_budget_kind kind;
    uint64_t bytes; /* CB_BUDGET_BYTES; CB_BUDGET_POSITION: what position 1 stands for, 0: the peak
                       without a budget */
    double share;   /* CB_BUDGET_SHARE: of the save-everything value; CB_BUDGET_MIN: largest extra
                       time; 0: 0.4, or what constraints make it; CB_BUDGET_POSITION: the position
                     */
    cb_measure measure;
    cb_offload offload;    /* goes with a budget on another measure than saved */
    uint64_t pinned_bytes; /* most that the host may hold for it at one time; 0: no limit */
    bool exact; /* search again at just this budget: the plan may be faster, but a larger budget may
                   then give a slower one */
} cb_budget;

/* Called from the working thread now and then. FINISH ends a search for a plan with the best found
 * so far; where there is nothing yet, and in all other work, it is CANCEL. It has to be repeated
 * when asked again. */
enum { CB_POLL_GO = 0, CB_POLL_CANCEL = 1 /* CB_CANCELLED */, CB_POLL_FINISH = 2 };
typedef int (*cb_poll_fn)(void *user);

/* What a search for a plan has when it polls. */
typedef struct cb_progress {
    uint32_t budget;     /* which of several it is about */
    uint64_t best_bytes; /* of the best plan that fits so far; 0: none, the others do not count */
    double extra;        /* its extra time, as a share of running everything once */
    double gap;          /* its time over the bound's, as a share of the latter */
} cb_progress;

/* ---- the compiled step ----------------------------------------------------------------------- */

typedef struct cb_step cb_step;

/* Memory that steps run in, one after another: for each backend one block, as large as the largest
 * step that has run in it needs. Between runs it is scratch, since results leave it. Only gradients
 * stay inside (cb_compile_options.keep_gradients), until the next run of any step in this memory.
 * Runs on different streams are ordered. At most one thread at a time runs or updates steps that
 * share a memory, or releases it; they are compiled and freed freely.
 *
 * A block that is too small is freed before a larger one is allocated. If that fails with CB_NOMEM,
 * the memory holds no block, everything else is as before, and the next run allocates again. */
typedef struct cb_run_memory cb_run_memory;
CB_API CB_MUST_CHECK cb_status cb_run_memory_new(cb_context *ctx, cb_run_memory **out,
                                                 cb_error *err);
CB_API void cb_run_memory_free(cb_run_memory *memory);      /* steps that use it keep it */
CB_API uint64_t cb_run_memory_bytes(cb_run_memory *memory); /* of its blocks now; from any thread */
/* Waits for the latest runs and frees the blocks, but for pinned ones, and copies of arguments of
 * the host (cb_run); returns how many bytes the blocks had. */
CB_API uint64_t cb_run_memory_release(cb_run_memory *memory);

/* Called with the text of each stage: "forward", "joint", "groups", "problem",
 * "plan", "split", "program"; those of groups where there are any. */
typedef void (*cb_dump_fn)(void *user, const char *stage, const char *text);

/* Names of the backends: "cpu", "debug", "ref", "null", "cuda". NULL if i is past the last one. */
CB_API const char *cb_backend_name(uint32_t i);

/* What a plan decides, without sizes; see cb_decisions_make. */
typedef struct cb_decisions cb_decisions;

typedef struct cb_compile_options {
    const uint32_t *wrt; /* positions of the inputs whose gradients are wanted */
    uint32_t n_wrt;      /* 0: forward only */
    cb_preset preset;
    cb_budget budget;
    const char *backend;   /* NULL: the first of cb_backend_name, "cpu" */
    const char *device;    /* row of the cost model: a name, or JSON (plan/device.h); NULL: "cpu" */
    cb_run_memory *memory; /* of the same context, kept with the step; NULL: a new one of its own */
    bool keep_gradients; /* gradients stay in the arena for cb_step_update; else they are outputs of
                            the caller */
    uint64_t static_bytes; /* parameters and optimizer states, counted by the measure `total` */
    const char *plan_json; /* use this plan instead of making one; NULL: make one */
    /* Decisions for the same options and a graph that differs in sizes only. They are followed,
     * without a search, unless they are not valid for this graph or exceed their budget here; then
     * a plan is made. cb_step_follows says which. NULL: make one. */
    const cb_decisions *decisions;
    /* Groups to plan as one op each, as JSON (docs/problem.md). "found": those that the core finds.
     * "auto": the same, but only if single ops cannot meet the budget. NULL: single ops. */
    const char *groups;
    cb_dump_fn dump; /* may be NULL */
    void *dump_user;
    cb_poll_fn poll; /* may be NULL */
    void *poll_user;
    cb_progress *progress; /* filled before each poll; may be NULL */
} cb_compile_options;

/* The whole way: joint graph, problem, plan, program, backend. The graph is not kept. */
CB_API CB_MUST_CHECK cb_status cb_compile(cb_context *ctx, const cb_graph *forward,
                                          const cb_compile_options *options, cb_step **out,
                                          cb_error *err);
/* A text of the step that cb_compile would make, by the names of cb_step_text. No device is opened:
 * the "code" of a GPU is the CUDA C for compute capability 8.0, where none is. Free with
 * cb_text_free. */
CB_API CB_MUST_CHECK cb_status cb_compile_text(cb_context *ctx, const cb_graph *forward,
                                               const cb_compile_options *options, const char *what,
                                               char **out, cb_error *err);
CB_API void cb_step_free(cb_step *step);
/* The decisions of the plan that cb_compile would make, for graphs that differ from this one in
 * sizes only. Opens no device. */
CB_API CB_MUST_CHECK cb_status cb_decisions_make(cb_context *ctx, const cb_graph *forward,
                                                 const cb_compile_options *options,
                                                 cb_decisions **out, cb_error *err);
CB_API void cb_decisions_free(cb_decisions *decisions); /* NULL is fine */
CB_API uint64_t cb_decisions_bytes(const cb_decisions *decisions);
/* Does the step's plan follow the decisions that it was compiled with? */
CB_API bool cb_step_follows(const cb_step *step);

typedef struct cb_argument_info {
    const char *name; /* lives as long as the step */
    cb_dtype dtype;
    cb_shape shape;
    uint64_t bytes;
    int role_or_kind; /* inputs: cb_role; outputs: 0 result, 1 state, 2 gradient */
    uint32_t input;   /* outputs that are states or gradients: the input they belong to */
    bool inside;      /* outputs: kept in the arena, no buffer is passed */
} cb_argument_info;

CB_API uint32_t cb_step_n_inputs(const cb_step *step);
CB_API uint32_t cb_step_n_outputs(const cb_step *step);
CB_API cb_argument_info cb_step_input(const cb_step *step, uint32_t i);
CB_API cb_argument_info cb_step_output(const cb_step *step, uint32_t i);

typedef struct cb_step_numbers {
    uint64_t arena_bytes, live_bytes, saved_bytes,
        total_bytes; /* of the program, at most the plan's;
                                                                   saved_bytes: the plan's */
    uint64_t save_all_arena_bytes, save_all_live_bytes, save_all_saved_bytes;
    uint64_t budget_bytes;                    /* UINT64_MAX: none */
    int64_t time_ps, once_ps, lower_bound_ps; /* modelled */
    uint32_t n_groups, n_recomputed;
} cb_step_numbers;
CB_API cb_step_numbers cb_step_get_numbers(const cb_step *step);

/* Bytes of the host's memory that the step holds: graph, problem, plan, program and what the
 * backend made of it. Memory for runs is not included, unless compiling allocates it. */
CB_API uint64_t cb_step_bytes(const cb_step *step);

/* Step of the plan at which each group starts: [n_groups]. */
CB_API void cb_step_group_steps(const cb_step *step, uint32_t *out);
/* How many steps of the plan a group runs; the first `room` of them, in the order in which it runs
 * them, go to `out`. */
CB_API uint32_t cb_step_group_members(const cb_step *step, uint32_t group, uint32_t *out,
                                      uint32_t room);

/* Texts of the compiled step: "joint", "forward", "backward", "split" (graph text; the last has
 * both halves), "groups", "program", "explain" (text), "problem", "plan", "kernels" and "launches"
 * (JSON, see docs/problem.md for the last two; "launches" on a GPU only), and "code": what each
 * group became, CUDA C on a GPU and the executor's records on the cpu. Free with cb_text_free. */
CB_API CB_MUST_CHECK cb_status cb_step_text(const cb_step *step, const char *what, char **out,
                                            cb_error *err);

/* A backend's memory is its own: the device's, or for those that run on the host the host's. Where
 * `on_host` is set, arguments lie in the host's memory whatever the backend's is: they are copied
 * there and back (blocks for the copies are kept in the step's memory), and the call ends when all
 * is done; only a device that is lost on the way back leaves some old and some new. Those that
 * `there` marks lie in the backend's memory all the same, and are not copied. Else all lie in the
 * backend's memory, and on a device the call puts the work on a stream and returns; cb_step_wait
 * waits for it. */
typedef struct cb_run {
    void *const *inputs;  /* [n_inputs] contiguous, aligned to their element */
    void *const *outputs; /* [n_outputs] NULL for outputs kept inside */
    bool on_host;         /* where they lie */
    const bool *there;    /* [n_inputs + n_outputs] NULL: none */
    void *stream;         /* the device's handle of a stream, which stays the caller's; NULL: the
                             device's own. Looked at by nobody on the host */
    uint64_t seed;
    uint32_t random_step;
    cb_poll_fn poll;
    void *poll_user;
    double *group_seconds; /* [n_groups], may be NULL */
    uint64_t *group_bytes; /* [n_groups] allocated in each group, by `debug` alone; may be NULL */
} cb_run;
typedef struct cb_run_result {
    uint64_t peak_bytes; /* measured: see cb_step_numbers for the planned ones */
    uint64_t n_alloc; /* allocations of this run: of its arena, if it was the first or the largest
                            so far in its memory, and by `debug` of each buffer */
} cb_run_result;

/* Forward and backward. After a failure or a cancel, inputs are unchanged and outputs undefined.
 * States are copied into the inputs they belong to as the last action. Runs in one memory follow
 * each other, also on different streams. */
CB_API CB_MUST_CHECK cb_status cb_step_run(cb_step *step, const cb_run *run, cb_run_result *result,
                                           cb_error *err);
/* Bytes that a run needs in the step's memory, and how many of them are not there yet. */
CB_API uint64_t cb_step_run_bytes(const cb_step *step);
CB_API uint64_t cb_step_growth(const cb_step *step);
/* Keeps the block that this step runs in at its address, and for as long as the step exists, since
 * a captured graph holds addresses in it. Another step of the same memory that needs more gets
 * another block. The caller orders replays and runs in that memory. */
CB_API CB_MUST_CHECK cb_status cb_step_pin(cb_step *step, cb_error *err);
/* Waits until the latest run, and the update after it, is done. CB_INVALID where a run has found an
 * index out of range, say: neither it nor what was put behind it has changed an input. `seconds`
 * (may be NULL): what they took, by the device's clock. */
CB_API CB_MUST_CHECK cb_status cb_step_wait(cb_step *step, double *seconds, cb_error *err);
/* Waits as well. `seconds`: the part of them that the update took, without copies between host and
 * device; 0 if the latest run was not followed by an update. */
CB_API CB_MUST_CHECK cb_status cb_step_update_seconds(cb_step *step, double *seconds,
                                                      cb_error *err);

/* ---- optimizers ------------------------------------------------------------------------------ */

/* A constant with a name ("adamw", "sgd"). For each parameter it keeps up to CB_MAX_STATES arrays,
 * zeros before the first step, of the parameter's type and shape where no other kind is said; its
 * hyper-parameters are rows of doubles, one row a group of parameters. */
#define CB_MAX_STATES 4
#define CB_MAX_NUMBERS 2
#define CB_STATE_BLOCK 256
typedef enum cb_state_kind {
    CB_STATE_ALIKE = 0, /* of the parameter's type and shape */
    CB_STATE_CODES,     /* u8, of the parameter's shape: 8-bit numbers ... */
    CB_STATE_SCALES,    /* ... and their scales, f32, two for each CB_STATE_BLOCK or part of it */
    CB_STATE_ROWS,      /* of the parameter's type: one for each row of its matrices, ... */
    CB_STATE_COLUMNS,   /* ... one for each column of them, ... */
    CB_STATE_WHOLE,     /* ... or one for each element of a parameter without matrices */
    CB_STATE_LEFT,      /* two square matrices of a matrix's height, ... */
    CB_STATE_RIGHT,     /* ... or width, where these are no longer than the group says */
    CB_STATE_KIND_COUNT
} cb_state_kind;
/* The matrices that an optimizer sees in a parameter: none; it is one, and others are refused; its
 * last two axes; its first axis by all others. Of fewer than two axes the last two see none. */
typedef enum cb_axes { CB_AXES_NONE, CB_AXES_TWO, CB_AXES_LAST, CB_AXES_FIRST } cb_axes;
typedef struct cb_optim_row cb_optim_row;
typedef struct cb_optimizer cb_optimizer;
CB_API const cb_optimizer *cb_optimizer_find(const char *name); /* NULL: there is none */
CB_API const cb_optimizer *cb_optimizer_at(uint32_t i);         /* NULL: past the last one */
CB_API const char *cb_optimizer_name(const cb_optimizer *optimizer);
/* Names of states and hyper-parameters in their order; NULL: past the last one. */
CB_API const char *cb_optimizer_state_name(const cb_optimizer *optimizer, uint32_t i);
CB_API const char *cb_optimizer_hyper_name(const cb_optimizer *optimizer, uint32_t i);
CB_API cb_state_kind cb_optimizer_state_kind(const cb_optimizer *optimizer, uint32_t i);
CB_API cb_axes cb_optimizer_axes(const cb_optimizer *optimizer);
/* Elements of a state beside a row, whose n, height and width are set, of a group with these
 * numbers; 0: it has none. */
CB_API int64_t cb_optimizer_state_size(const cb_optimizer *optimizer, uint32_t i,
                                       const double *hyper, const cb_optim_row *row);
/* How many of its states, counted from the first, a group with this row has. */
CB_API uint32_t cb_optimizer_n_used(const cb_optimizer *optimizer, const double *hyper);
/* For each parameter some keep up to CB_MAX_NUMBERS numbers as well: their names, and what they are
 * after step t, made in place of what they were before; at t = 0 what they begin with. */
CB_API const char *cb_optimizer_number_name(const cb_optimizer *optimizer, uint32_t i);
CB_API void cb_optimizer_count_on(const cb_optimizer *optimizer, const double *hyper, int64_t t,
                                  double *number);

/* ---- optimizers that the caller writes */
/* A list of operations, each of which reads what stands before it, made ready in microseconds.
 * Those on numbers that all elements of a tensor share are computed in double, others in f32. */
typedef struct cb_expression_node {
    const char *op; /* param, grad, state, hyper, t (number of the step), size (elements), constant;
                       add, sub, mul, div, maximum, minimum, eq, ne, lt, le, gt, ge, logical_and,
                       logical_or, logical_not, neg, abs, sign, floor, exp, log, log1p, sqrt, tanh,
                       sigmoid, erf, where, pow (of numbers), sum (over the elements of a tensor) */
    uint32_t in[3]; /* operands: nodes; of state and hyper which one it is */
    double value;   /* of a constant */
} cb_expression_node;

typedef struct cb_expression_spec {
    const char *name;
    const char *const *states; /* [n_states] names, at most CB_MAX_STATES */
    const char *const *hyper;  /* [n_hyper] names */
    const cb_expression_node *nodes;
    const uint32_t *out; /* [1 + n_states] nodes: the new parameter, the new states */
    uint32_t n_states, n_hyper, n_nodes;
} cb_expression_spec;

typedef struct cb_expression cb_expression;
CB_API CB_MUST_CHECK cb_status cb_expression_new(cb_context *ctx, const cb_expression_spec *spec,
                                                 cb_expression **out, cb_error *err);
CB_API void cb_expression_free(cb_expression *expression); /* after its tables; NULL is fine */
/* It steps f32 tensors, and is there as long as the expression. */
CB_API const cb_optimizer *cb_expression_optimizer(const cb_expression *expression);

/* ---- an optimizer's step on any arrays */
/* How weights of f16 or bf16 are kept, which are stepped as f32, with states of f32. */
typedef enum cb_half_form {
    CB_HALF_MASTER = 0, /* `rest` is an f32 for each, which is stepped; param is it, rounded */
    CB_HALF_REMAINDER,  /* bf16: `rest` is an i16 for each, the bits that this f32 has more */
    CB_HALF_STOCHASTIC, /* bf16: rounded up or down by noise, right in the mean; no rest */
    CB_HALF_FORM_COUNT
} cb_half_form;

/* A tensor: contiguous arrays of `n` elements of `dtype` (f32, f64, f16, bf16), none shared. */
struct cb_optim_row {
    void *param;
    const void *grad;
    void *rest;                    /* of halves; zeros before the first step */
    void *state[CB_MAX_STATES];    /* those that its group has; the others are not looked at */
    int64_t n;                     /* 0: no part of this step */
    int64_t height, width;         /* of its matrices, row by row; 0: it has none */
    int64_t t;                     /* number of this step for this tensor, from 1 */
    double number[CB_MAX_NUMBERS]; /* before this step */
    cb_dtype dtype;
    uint32_t group;
    cb_half_form half;
    uint32_t stream; /* of the noise, one for each row; it is a function of this, ... */
    uint64_t seed;   /* ... of this, of t and the element */
};

/* A table of tensors that is stepped again and again. What is checked is remembered while pointers
 * stay the same: where only gradients move, only they are looked at. */
typedef struct cb_tensor_table cb_tensor_table;
CB_API CB_MUST_CHECK cb_status cb_tensor_table_new(cb_context *ctx, const cb_optimizer *optimizer,
                                                   uint32_t n_rows, cb_tensor_table **out,
                                                   cb_error *err);
CB_API void cb_tensor_table_free(cb_tensor_table *table);
CB_API void cb_tensor_table_set(cb_tensor_table *table, uint32_t i, const cb_optim_row *row);
typedef struct cb_extra_row { /* beside a row; NULL: not for this one */
    void *average;            /* of the row's size and type, of halves f32 */
    void *copy;               /* n elements of copy_dtype, f16 or bf16 */
    cb_dtype copy_dtype;
} cb_extra_row;
typedef struct cb_optim_extras { /* what a step does beside the update, in the same pass */
    double grad_factor;          /* gradients count times this: 1 / the scale of a loss */
    double max_norm;             /* > 0: and are shortened to this norm, of all rows together; an
                                    infinite one only asks for the norm */
    double average_keep;      /* averages become average_keep of themselves and the rest of param */
    bool skips;               /* if a gradient is not finite nothing is stepped; so with max_norm */
    bool zeroes;              /* gradients are zeros after the step, or after it is skipped */
    const cb_extra_row *rows; /* [n_rows], copied; NULL: no averages and copies */
} cb_optim_extras;
typedef struct cb_optim_outcome { /* of the last step */
    double norm; /* of all gradients, times grad_factor; NaN where one is not finite; -1: neither
                    max_norm nor skips asked for it */
    bool skipped;
} cb_optim_outcome;
/* For all steps from now on; NULL: none. After an error the old ones stay. */
CB_API CB_MUST_CHECK cb_status cb_tensor_table_ask(cb_tensor_table *table,
                                                   const cb_optim_extras *extras, cb_error *err);
CB_API cb_optim_outcome cb_tensor_table_outcome(const cb_tensor_table *table);

/* One step of every row; `hyper` is [n_groups][n_hyper]. All is checked before anything is written,
 * and then nothing can fail. */
CB_API CB_MUST_CHECK cb_status cb_tensor_table_step(cb_tensor_table *table, const double *hyper,
                                                    uint32_t n_groups, cb_error *err);

/* One step of an optimizer, whose states are all alike their parameters, on the parameters `wrt` of
 * a step that was compiled with keep_gradients.
 * Parameters and states are updated in place; states that a parameter's group does not have may be
 * NULL. */
typedef struct cb_update {
    const cb_optimizer *optimizer;
    void *const *params;        /* [n_wrt] */
    void *const *const *states; /* [n_state][n_wrt] */
    const uint32_t *group;      /* [n_wrt] rows of `hyper` */
    const double *hyper;        /* [n_groups][n_hyper] */
    uint32_t n_groups;
    int64_t t;         /* number of this step, from 1 */
    bool on_host;      /* where parameters and states lie: see cb_run */
    const bool *there; /* [(1 + n_state) n_wrt] parameters, then each state; NULL: none */
    double *numbers;   /* [n_wrt][n_number], counted on by the step, begun by the first; or NULL */
    const cb_optim_extras *extras; /* rows as parameters, nothing zeroed; on a CPU; NULL: none */
    cb_optim_outcome *outcome; /* what they find; an update that was skipped has changed and counted
                                  nothing; may be NULL */
    const cb_run
        *run; /* whose arguments extras share no memory with; NULL: they are not looked at */
} cb_update;
/* Whether cb_step_update will take it after the next run; a run may have replaced states that it
 * could not give back. */
CB_API CB_MUST_CHECK cb_status cb_step_check_update(cb_step *step, const cb_update *update,
                                                    cb_error *err);
/* The update, from the gradients of the latest run, on its stream. Not interruptible. CB_INVALID:
 * another step has run in the same memory since, or the memory was released. */
CB_API CB_MUST_CHECK cb_status cb_step_update(cb_step *step, const cb_update *update,
                                              cb_error *err);

/* Addresses in the device's memory of what an update reads there, where a backend keeps it there: a
 * scheduler or a scaler of losses may write them, in order with the work of the stream, and a step
 * that was captured once finds them in each replay. What the caller's own numbers are is copied
 * there when they change, and `t` when replays have counted on. */
typedef struct cb_resident {
    uint64_t hyper;       /* doubles of the group, in the order of their names */
    uint64_t t;           /* i64: steps of the group so far */
    uint64_t grad_factor; /* double: gradients of all groups count times this */
    uint64_t found_inf;   /* u32: not 0: nothing of any group is stepped, and t stays */
} cb_resident;
/* Of the latest update of this step. CB_UNSUPPORTED: the backend keeps none; CB_INVALID: there was
 * no update, or none of this group. */
CB_API CB_MUST_CHECK cb_status cb_step_resident(const cb_step *step, uint32_t group,
                                                cb_resident *out, cb_error *err);

/* ---- memory of a device ---------------------------------------------------------------------- */

/* For callers whose arrays stay on the device of a backend (NULL: the first one): the device is the
 * context's, opened when it is first asked for. Streams are the device's handles; NULL: its own. */
CB_API CB_MUST_CHECK cb_status cb_memory_alloc(cb_context *ctx, const char *backend, size_t bytes,
                                               void **block, cb_error *err);
/* Waits for the device. NULL is fine. */
CB_API void cb_memory_free(cb_context *ctx, const char *backend, void *block);
/* Copies behind what was put on the stream, and waits. */
CB_API CB_MUST_CHECK cb_status cb_memory_copy(cb_context *ctx, const char *backend, void *stream,
                                              bool to_host, void *to, const void *from,
                                              size_t bytes, cb_error *err);
/* What is put on `after` from now on waits for what was put on `before`. */
CB_API CB_MUST_CHECK cb_status cb_memory_order(cb_context *ctx, const char *backend, void *before,
                                               void *after, cb_error *err);
/* Waits for all work of a stream. */
CB_API CB_MUST_CHECK cb_status cb_memory_wait(cb_context *ctx, const char *backend, void *stream,
                                              cb_error *err);

/* The end of what is on a stream at some moment. References are counted, and may be dropped on any
 * thread. It stays valid when its stream is destroyed. */
typedef struct cb_mark cb_mark;
CB_API CB_MUST_CHECK cb_status cb_mark_new(cb_context *ctx, const char *backend, void *stream,
                                           cb_mark **out, cb_error *err);
CB_API cb_mark *cb_mark_keep(cb_mark *mark); /* one more reference */
CB_API void cb_mark_drop(cb_mark *mark);     /* NULL is fine */
/* The caller has waited for the mark, or for what came after it: nobody has to again. */
CB_API void cb_mark_reached(cb_mark *mark);
/* What is put on the stream from now on comes after the mark. */
CB_API CB_MUST_CHECK cb_status cb_mark_wait(cb_mark *mark, void *stream, cb_error *err);

/* Work that may still use a block of memory. */
#define CB_MOST_MARKS 4
typedef struct cb_uses {
    cb_mark *mark[CB_MOST_MARKS]; /* a reference each */
    uint32_t n;
    void *home;      /* stream that the block is mostly used on: a hint, never dereferenced */
    bool is_unknown; /* other work may use it too: only the whole device can be waited for */
} cb_uses;

/* Memory that a device keeps for the next request when it is given back, so that steps that make
 * the same arrays again and again call the driver for none of them. CB_UNSUPPORTED: the backend
 * keeps none. */
typedef struct cb_block cb_block;
/* A block of at least this many bytes. The caller's work on it has to come after `after`, whose
 * marks belong to the caller. `stream`: where it will be used. A block whose last stream was
 * another one is only taken once its work is done. */
CB_API CB_MUST_CHECK cb_status cb_block_take(cb_context *ctx, const char *backend, size_t bytes,
                                             void *stream, cb_block **out, cb_uses *after,
                                             cb_error *err);
/* Takes the marks over. Does not wait. */
CB_API void cb_block_give(cb_context *ctx, const char *backend, cb_block *block,
                          const cb_uses *uses);
CB_API void *cb_block_address(const cb_block *block);

typedef struct cb_block_stats {
    uint64_t in_use, kept, peak; /* bytes: of blocks taken, of blocks given back, most in use */
    uint64_t n_fresh;            /* blocks taken from the driver so far */
} cb_block_stats;
/* All 0 where no device is open. `resets_peak`: the peak starts again from what is in use. */
CB_API cb_block_stats cb_block_stats_of(cb_context *ctx, const char *backend, bool resets_peak);
/* Waits for the device and gives the driver what is kept; returns how many bytes. */
CB_API uint64_t cb_block_release(cb_context *ctx, const char *backend);

/* ---- planning from files --------------------------------------------------------------------- */

/* Each takes a problem or a traced graph, both as JSON (docs/problem.md); `device` NULL: "cpu", or
 * the one a plan was made for. The text they give belongs to the caller: cb_text_free. */

/* -> the same as a problem. */
CB_API CB_MUST_CHECK cb_status cb_problem_json(cb_context *ctx, const char *graph, size_t length,
                                               char **out, cb_error *err);
/* -> the same as a problem whose constraints are what mu-TWO selects (docs/planner.md) so that
 * about as many bytes as `saved` says are saved: CB_BUDGET_BYTES, or CB_BUDGET_SHARE of what saving
 * everything saves. */
CB_API CB_MUST_CHECK cb_status cb_mutwo_json(cb_context *ctx, const char *graph, size_t length,
                                             const cb_budget *saved, const char *device, char **out,
                                             cb_error *err);
/* -> a plan. */
CB_API CB_MUST_CHECK cb_status cb_plan_json(cb_context *ctx, const char *graph, size_t length,
                                            cb_preset preset, const cb_budget *budget,
                                            const char *device, cb_poll_fn poll, void *poll_user,
                                            char **out, cb_error *err);
/* -> a plan for each of `n` budgets, in one search: `out` [n] gets what each would get alone. An
 * impossible budget fails alone. `progress` (may be NULL) is filled before each poll. */
typedef struct cb_planned {
    char *plan;       /* NULL: the budget is out of reach */
    cb_error why_not; /* CB_OK: there is a plan */
} cb_planned;
CB_API CB_MUST_CHECK cb_status cb_plans_json(cb_context *ctx, const char *graph, size_t length,
                                             cb_preset preset, const cb_budget *budgets, uint32_t n,
                                             const char *device, cb_poll_fn poll, void *poll_user,
                                             cb_progress *progress, cb_planned *out, cb_error *err);
/* -> the minimum cut of a preset, and its network in DIMACS form (`network` may be NULL: not
 * wanted). */
CB_API CB_MUST_CHECK cb_status cb_cut_json(cb_context *ctx, const char *graph, size_t length,
                                           cb_preset preset, char **out, char **network,
                                           cb_error *err);
/* -> every trade-off between saved bytes and time (docs/planner.md); a budget on the measure
 * `saved` with the same preset gives the plan of a point. The preset says what may run again;
 * CB_PRESET_AUTOGRAD: all that may. */
CB_API CB_MUST_CHECK cb_status cb_frontier_json(cb_context *ctx, const char *graph, size_t length,
                                                cb_preset preset, const char *device,
                                                cb_poll_fn poll, void *poll_user, char **out,
                                                cb_error *err);
/* A graph and a plan -> what cb_step_text calls "explain". */
CB_API CB_MUST_CHECK cb_status cb_plan_explain_text(cb_context *ctx, const char *graph,
                                                    size_t graph_length, const char *plan,
                                                    size_t plan_length, const char *device,
                                                    char **out, cb_error *err);
/* The same as JSON (docs/problem.md, "Explanation"). */
CB_API CB_MUST_CHECK cb_status cb_plan_explain_json(cb_context *ctx, const char *graph,
                                                    size_t graph_length, const char *plan,
                                                    size_t plan_length, const char *device,
                                                    char **out, cb_error *err);
/* A graph and any document with `steps` and `backward_starts` -> bytes and times. */
CB_API CB_MUST_CHECK cb_status cb_evaluate_json(cb_context *ctx, const char *graph,
                                                size_t graph_length, const char *plan,
                                                size_t plan_length, const char *device, char **out,
                                                cb_error *err);

#ifdef __cplusplus
}
#endif
#endif /* CUTBACK_H */
