/* cutback.h: the public C API.
 *
 * Cutback takes a forward graph, builds the joint forward/backward graph, decides what to save and
 * what to recompute, and runs the training step in one planned block of memory.
 *
 * Rules that hold for every function here:
 *   - A function that can fail returns cb_status and takes a cb_error last (may be NULL). On
 *     failure every output is untouched and nothing is leaked; the error text names the object
 *     at fault.
 *   - Handles are opaque. The caller owns what `_new` returns and frees it with `_free`, which
 *     accepts NULL. A context must outlive the graphs and steps made from it.
 *   - A handle may be used by one thread at a time. Different handles may be used concurrently.
 *   - No function prints, exits or aborts.
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
    CB_INVALID,     /* an invalid argument (Python: ValueError) */
    CB_TYPE,        /* a wrong dtype or kind (TypeError) */
    CB_NOMEM,       /* out of memory; nothing has changed (MemoryError) */
    CB_INFEASIBLE,  /* no plan meets the budget (cutback.BudgetError) */
    CB_UNSUPPORTED, /* not implemented, or not by this backend (NotImplementedError) */
    CB_CANCELLED,   /* the caller's poll function asked to stop (KeyboardInterrupt) */
    CB_INTERNAL     /* a broken invariant: a bug in cutback (RuntimeError) */
} cb_status;

/* What a budget bounds. */
typedef enum cb_measure {
    CB_MEASURE_ARENA = 0, /* size of the allocated block, with offsets and alignment */
    CB_MEASURE_LIVE,      /* peak of live bytes that the step allocates */
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

/* Why there is no plan, as data. Unknown numbers are 0, unknown names are empty, and long names
 * are truncated. */
#define CB_REFUSAL_NAME 96
#define CB_REFUSAL_LOCATION 128
typedef struct cb_refusal {
    cb_refusal_reason reason;
    cb_measure measure;
    bool must_save;          /* constraints force some values to be saved */
    double share;            /* the budget as a share of save_all_bytes; 0: it was given in bytes */
    double max_extra;        /* CB_REFUSED_TIME: extra time allowed, as a share of step time */
    double least_extra;      /* CB_REFUSED_TIME: extra time of the fastest plan */
    uint64_t budget_bytes;   /* UINT64_MAX: none */
    uint64_t pinned_bytes;   /* limit on host memory */
    uint64_t smallest_bytes; /* smallest plan found, however slow; this budget can be met */
    uint64_t floor_bytes;    /* lower bound for plans that run the ops in this order */
    uint64_t save_all_bytes; /* the plan that saves everything; shares are relative to it */
    uint64_t held_bytes;     /* results and gradients, which every plan holds at its end */
    char op[CB_REFUSAL_NAME], location[CB_REFUSAL_LOCATION]; /* at the peak of the smallest plan */
    char floor_op[CB_REFUSAL_NAME];                          /* the op that sets the floor */
    char region[CB_REFUSAL_NAME];
} cb_refusal;

#define CB_ERROR_TEXT 1024
typedef struct cb_error {
    cb_status status;
    bool has_location;        /* the text ends with the source line of an op */
    char text[CB_ERROR_TEXT]; /* for CB_INFEASIBLE: the reason without numbers */
    cb_refusal refusal;       /* set for CB_INFEASIBLE only */
} cb_error;

CB_API const char *cb_status_name(cb_status status);

/* ---- element types and shapes --------------------------------------------------------------- */

typedef enum cb_dtype {
    CB_BOOL = 0,
    CB_U8,
    CB_I32,
    CB_I64,
    CB_F16,  /* storage only: ops compute in f32 and round their results */
    CB_BF16, /* storage only, like CB_F16 */
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

/* A BLAS that the caller provides (the Python module passes the one that NumPy has loaded). It runs
 * the matrix products for which it is faster than our own kernel. Functions have CBLAS signatures;
 * `int_bits` is the width of the BLAS's integers. */
typedef struct cb_blas {
    const char *name;        /* for reports, e.g. "scipy-openblas 0.3.31"; NULL: no BLAS */
    int int_bits;            /* 32 or 64 */
    void *sgemm;             /* cblas_sgemm; NULL: use our own kernel */
    void *dgemm;             /* cblas_dgemm; NULL: use our own kernel */
    void *set_threads_local; /* int f(int): sets the calling thread's number of threads and returns
                                the old one; may be NULL */
    void *set_threads;       /* void f(int); may be NULL */
    void *get_threads;       /* int f(void); may be NULL */
    int vector_bits; /* widest vectors its kernels use on this machine; 0: unknown. If the processor
                        has wider ones, our own kernel is used instead */
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

/* Settings of the backend "cuda". NVIDIA's libraries are opened on first use. */
typedef struct cb_cuda_options {
    const char *driver, *nvrtc; /* paths, or names for the dynamic loader */
    const char *blaslt;         /* cuBLASLt; NULL: our own kernels compute matrix products */
    const char *cache;          /* folder for compiled kernels; NULL: they are not kept */
    int device;                 /* ordinal */
    bool as_ptx;                /* load PTX, which the driver compiles, instead of machine code */
    bool keep_sources;          /* write the CUDA C of each program to the cache folder */
} cb_cuda_options;

/* Applies to devices opened after this call; an open device keeps its settings. The strings are
 * copied. */
CB_API CB_MUST_CHECK cb_status cb_context_set_cuda(cb_context *ctx, const cb_cuda_options *options,
                                                   cb_error *err);
CB_API cb_cuda_options cb_context_cuda(const cb_context *ctx); /* the current settings */

typedef struct cb_memory_stats {
    uint64_t n_alloc;    /* allocations so far */
    uint64_t live_bytes; /* held now */
    uint64_t peak_bytes; /* largest held */
} cb_memory_stats;
CB_API cb_memory_stats cb_context_memory(const cb_context *ctx);
/* For tests: makes the n-th allocation from now fail (1: the next); 0 turns this off. Returns the
 * remaining count of the previous request; 0 if that failure has happened or there was no request.
 */
CB_API uint64_t cb_context_fail_alloc(cb_context *ctx, uint64_t nth);

/* ---- graph ----------------------------------------------------------------------------------- */

typedef struct cb_graph cb_graph;
typedef uint32_t cb_value_id;
#define CB_NONE UINT32_MAX

typedef enum cb_role {
    CB_ROLE_DATA = 0, /* an input that gets no gradient by default */
    CB_ROLE_PARAM,    /* a parameter */
    CB_ROLE_TANGENT,  /* an input of the backward: the gradient of an output */
    CB_ROLE_STATE     /* an input that an output replaces after the step (running statistics) */
} cb_role;

/* Whether a value should be saved, recomputed or offloaded, in PyTorch's terms. MUST is a hard
 * constraint, PREFER a soft one. */
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

/* Scalar attributes of an op. The op's row in ir/ops.def says what each slot means. */
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
/* Adds op `name` ("matmul", "add", ... see docs/ops.md) with NumPy broadcasting. `attrs` may be
 * NULL if the op has none. `outs` receives `n_outs` ids, one for each output of the op. */
CB_API CB_MUST_CHECK cb_status cb_graph_add_op(cb_graph *g, const char *name, uint32_t n_ins,
                                               const cb_value_id *ins, const cb_attrs *attrs,
                                               uint32_t n_outs, cb_value_id *outs, cb_error *err);
/* Adds the gradients of values of the graph as ordinary ops. `of` are n_of floating values and
 * `from` are their gradients; out[n_wrt] receives the gradients of `wrt`, CB_NONE where no value of
 * `of` depends on it. */
CB_API CB_MUST_CHECK cb_status cb_graph_add_gradients(cb_graph *g, uint32_t n_of,
                                                      const cb_value_id *of,
                                                      const cb_value_id *from, uint32_t n_wrt,
                                                      const cb_value_id *wrt, cb_value_id *out,
                                                      cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_add_output(cb_graph *g, cb_value_id value, const char *name,
                                                   cb_error *err);
/* cb_graph_set_location, _set_region and _set_constraint apply to ops that are added afterwards: a
 * source location ("model.py:12"; NULL: none), a checkpoint region (CB_NONE: none) and a constraint
 * on their outputs. */
CB_API CB_MUST_CHECK cb_status cb_graph_set_location(cb_graph *g, const char *location,
                                                     cb_error *err);
/* Adds a checkpoint region inside region `parent` (CB_NONE: at the top level). At most
 * `saved_limit` bytes of values made in it may be saved; UINT64_MAX: no limit. */
CB_API CB_MUST_CHECK cb_status cb_graph_add_region(cb_graph *g, const char *name, uint32_t parent,
                                                   uint64_t saved_limit, uint32_t *out,
                                                   cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_set_region(cb_graph *g, uint32_t region, cb_error *err);
CB_API void cb_graph_set_constraint(cb_graph *g, cb_constraint constraint);
/* Sets the constraint of one existing value. */
CB_API CB_MUST_CHECK cb_status cb_graph_constrain(cb_graph *g, cb_value_id value,
                                                  cb_constraint constraint, cb_error *err);
/* Adds an output that replaces an input after the step. The input's role becomes STATE. */
CB_API CB_MUST_CHECK cb_status cb_graph_add_state(cb_graph *g, uint32_t input, cb_value_id value,
                                                  cb_error *err);
CB_API CB_MUST_CHECK cb_status cb_graph_value_info(const cb_graph *g, cb_value_id value,
                                                   cb_dtype *dtype, cb_shape *shape, cb_error *err);
CB_API uint64_t cb_graph_bytes(const cb_graph *g); /* host memory that the graph holds */
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
    CB_PRESET_CONSERVATIVE,  /* recompute only ops that fuse */
    CB_PRESET_AGGRESSIVE,    /* recompute anything except random ops and those products,
                                convolutions and attention ops that take more than 64 operations per
                                output byte (16 if an input is a weight) */
    CB_PRESET_TORCH_COMPAT,  /* save what PyTorch's default partitioner saves */
    CB_PRESET_SHAPE_AWARE,   /* like aggressive, but decided by the amount of work: memory-bound
                                products may run again, long chains of arithmetic may not */
    CB_PRESET_COUNT
} cb_preset;

typedef enum cb_offload {
    CB_OFFLOAD_ASKED = 0, /* offload only values whose constraint asks for it */
    CB_OFFLOAD_JOINT,     /* save, recompute or offload, whatever is fastest */
    CB_OFFLOAD_ONLY,      /* save or offload; never recompute */
    CB_OFFLOAD_COUNT
} cb_offload;

#define CB_MOST_EXTRA 100 /* largest extra time that a budget may allow, in multiples of the step */

/* CB_BUDGET_POSITION is a position between two numbers of bytes. Position 0 is the peak of the
 * smallest plan that a search of fixed effort finds with at most 40 % extra time (at most 2 % of
 * the range above that of CB_BUDGET_MIN; for the measure `saved`, with any extra time). Position 1
 * is the peak without a budget. Some plan always meets a position, unless pinned_bytes is below
 * what constraints need or nothing may be recomputed (CB_OFFLOAD_ONLY). */
typedef enum cb_budget_kind {
    CB_BUDGET_NONE = 0,
    CB_BUDGET_BYTES,
    CB_BUDGET_SHARE,
    CB_BUDGET_MIN,      /* the smallest peak for a limited extra time */
    CB_BUDGET_POSITION, /* from 0 (the smallest plan) to 1 (no budget) */
    CB_BUDGET_SMALLEST, /* the smallest peak, however slow */
    CB_BUDGET_KIND_COUNT
} cb_budget_kind;

typedef struct cb_budget {
    cb_budget_kind kind;
    uint64_t bytes; /* CB_BUDGET_BYTES: the budget; CB_BUDGET_POSITION: bytes at position 1, or 0
                       for the peak without a budget */
    double share;   /* CB_BUDGET_SHARE: share of what saving everything takes; CB_BUDGET_MIN:
                       largest extra time as a share (0: 0.4, or more if constraints need it);
                       CB_BUDGET_POSITION: the position */
    cb_measure measure;
    cb_offload offload;    /* any but ASKED needs a budget, and a measure other than `saved` */
    uint64_t pinned_bytes; /* most bytes that the host may hold at one time; 0: no limit */
    bool exact; /* search again at exactly this budget: the plan may be faster, but a larger budget
                   may then give a slower plan */
} cb_budget;

/* Called from the working thread at intervals. FINISH ends a search with the best plan found so
 * far; before the first plan, and outside of searches, it acts as CANCEL. Once it has returned
 * FINISH, the function must return it whenever it is called again. */
enum { CB_POLL_GO = 0, CB_POLL_CANCEL = 1 /* CB_CANCELLED */, CB_POLL_FINISH = 2 };
typedef int (*cb_poll_fn)(void *user);

/* The state of a search for a plan when it polls. */
typedef struct cb_progress {
    uint32_t budget;     /* index of the budget being searched */
    uint64_t best_bytes; /* the best plan that fits so far; 0: none, ignore the fields below */
    double extra;        /* its extra time, as a share of running everything once */
    double gap;          /* its time above the lower bound, as a share of the bound */
} cb_progress;

/* ---- the compiled step ----------------------------------------------------------------------- */

typedef struct cb_step cb_step;

/* Memory that steps share and run in one after another. It has one block per backend, as large as
 * the largest step that has run in it needs. A block is scratch between runs, since results are
 * copied out of it; only gradients stay (cb_compile_options.keep_gradients), until the next run of
 * any step in this memory. Runs on different streams are ordered. Only one thread at a time may run
 * or update steps that share a memory, or release it; any thread may compile and free such steps.
 *
 * A block that is too small is freed before a larger one is allocated. If that fails with CB_NOMEM,
 * the memory has no block, nothing else has changed, and the next run allocates again. */
typedef struct cb_run_memory cb_run_memory;
CB_API CB_MUST_CHECK cb_status cb_run_memory_new(cb_context *ctx, cb_run_memory **out,
                                                 cb_error *err);
CB_API void cb_run_memory_free(cb_run_memory *memory); /* steps that use it keep it */
/* The current size of its blocks. May be called from any thread. */
CB_API uint64_t cb_run_memory_bytes(cb_run_memory *memory);
/* Waits for the latest runs, then frees the blocks, except pinned ones, and the device copies of
 * host arguments (see cb_run). Returns the size of the freed blocks. */
CB_API uint64_t cb_run_memory_release(cb_run_memory *memory);

/* Called with the text of each stage: "forward", "joint", "groups", "problem",
 * "plan", "split", "program". "groups" comes only if there are groups. */
typedef void (*cb_dump_fn)(void *user, const char *stage, const char *text);

/* Names of the backends: "cpu", "debug", "ref", "null", "cuda". NULL if i is past the last one. */
CB_API const char *cb_backend_name(uint32_t i);

/* A plan's decisions without sizes; see cb_decisions_make. */
typedef struct cb_decisions cb_decisions;

typedef struct cb_compile_options {
    const uint32_t *wrt; /* positions of the inputs whose gradients are wanted */
    uint32_t n_wrt;      /* 0: forward only */
    cb_preset preset;
    cb_budget budget;
    const char *backend;   /* NULL: the first of cb_backend_name, "cpu" */
    const char *device;    /* cost model: a device name, or JSON (plan/device.h); NULL: "cpu" */
    cb_run_memory *memory; /* must belong to `ctx`; the step keeps a reference. NULL: a new one */
    bool keep_gradients;   /* true: gradients stay in the arena for cb_step_update; false: they are
                            written to the caller's buffers */
    bool updates_inside;   /* with keep_gradients: a run updates each parameter, and frees its
                              gradient, as soon as nothing reads the parameter any more and nothing
                              can fail. Ignored where this is impossible (cb_step_updates_reason) */
    bool slices;           /* run chains of row-wise ops, such as the products and the cross entropy
                              of a language model's loss, in pieces whose sizes depend only on
                              shapes */
    bool packed;           /* values that the backward reads may be saved packed. The plan without
                              packing is used if it is better: faster within the budget or, if the
                              smallest plan is asked for, smaller */
    uint64_t static_bytes; /* parameters and optimizer states, counted by the measure `total` */
    const char *plan_json; /* use this plan; NULL: search for one */
    /* Decisions made with the same options for a graph that differs only in sizes. They replace the
     * search if they are valid for this graph and keep the budget here (cb_step_follows tells).
     * NULL: search. */
    const cb_decisions *decisions;
    /* Groups, each planned as one op, as JSON (docs/problem.md). "found": groups that the core
     * finds. "auto": as "found", but only if single ops cannot meet the budget. NULL: single ops.
     */
    const char *groups;
    cb_dump_fn dump; /* may be NULL */
    void *dump_user;
    cb_poll_fn poll; /* may be NULL */
    void *poll_user;
    cb_progress *progress; /* filled before each poll; may be NULL */
} cb_compile_options;

/* Compiles a forward graph: joint graph, problem, plan, program, executable. The step keeps no
 * reference to the graph. */
CB_API CB_MUST_CHECK cb_status cb_compile(cb_context *ctx, const cb_graph *forward,
                                          const cb_compile_options *options, cb_step **out,
                                          cb_error *err);
/* One of the texts of cb_step_text, for the step that cb_compile would make. Opens no device:
 * without an open GPU, "code" is CUDA C for compute capability 8.0. Free with cb_text_free. */
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
/* True if the step's plan follows the decisions that it was compiled with. */
CB_API bool cb_step_follows(const cb_step *step);

typedef struct cb_argument_info {
    const char *name; /* lives as long as the step */
    cb_dtype dtype;
    cb_shape shape;
    uint64_t bytes;
    int role_or_kind; /* inputs: cb_role; outputs: 0 result, 1 state, 2 gradient */
    uint32_t input;   /* outputs that are states or gradients: the input they belong to */
    bool inside;      /* outputs: kept in the arena; the caller passes no buffer */
} cb_argument_info;

CB_API uint32_t cb_step_n_inputs(const cb_step *step);
CB_API uint32_t cb_step_n_outputs(const cb_step *step);
CB_API cb_argument_info cb_step_input(const cb_step *step, uint32_t i);
CB_API cb_argument_info cb_step_output(const cb_step *step, uint32_t i);

typedef struct cb_step_numbers {
    uint64_t arena_bytes, live_bytes, saved_bytes,
        total_bytes; /* bytes of the program, at most the plan's; saved_bytes are the plan's */
    uint64_t save_all_arena_bytes, save_all_live_bytes, save_all_saved_bytes;
    uint64_t budget_bytes;                    /* UINT64_MAX: none */
    int64_t time_ps, once_ps, lower_bound_ps; /* modelled: of the plan; of each op run once; a bound
                                                 for any plan within the budget */
    uint32_t n_groups, n_recomputed; /* groups of the program; steps that run an op again */
} cb_step_numbers;
CB_API cb_step_numbers cb_step_get_numbers(const cb_step *step);

/* Host memory that the step holds: graph, problem, plan, program and executable. Memory for runs is
 * included only if compiling allocates it. */
CB_API uint64_t cb_step_bytes(const cb_step *step);

/* Writes the plan step at which each group starts to out[n_groups]. */
CB_API void cb_step_group_steps(const cb_step *step, uint32_t *out);
/* Returns the number of plan steps that a group runs, and writes the first `room` of them to `out`
 * in the order in which they run. */
CB_API uint32_t cb_step_group_members(const cb_step *step, uint32_t group, uint32_t *out,
                                      uint32_t room);

/* Texts of the compiled step: "joint", "forward", "backward", "split" (graph text; the last has
 * both halves), "groups", "program", "explain" (text), "problem", "single" (the problem of single
 * ops), "packed" (the problem of single ops with packed values; "null" if the step packs none, or
 * already does), "plan", "kernels" and "launches" (JSON, see docs/problem.md for the last two;
 * "launches" on a GPU only), "slices" (a line for each chain of ops that runs in pieces or could
 * not) and "code" (the code of each group: CUDA C on a GPU, the executor's records on the CPU).
 * Free with cb_text_free. */
CB_API CB_MUST_CHECK cb_status cb_step_text(const cb_step *step, const char *what, char **out,
                                            cb_error *err);

/* A backend's memory is the memory of its device; for backends that run on the host it is host
 * memory.
 *
 * With `on_host`, arguments are in host memory. They are copied to the backend's memory and back
 * (the step's memory keeps the blocks for the copies), and the call returns when everything is
 * done. Arguments that `there` marks are already in the backend's memory and are not copied. If the
 * device is lost while results are copied back, some may be old and some new.
 *
 * Without it, all arguments are in the backend's memory. On a device the call puts the work on a
 * stream and returns; cb_step_wait waits for it. */
typedef struct cb_run {
    void *const *inputs;  /* [n_inputs] contiguous, aligned to their element type */
    void *const *outputs; /* [n_outputs] NULL for outputs kept inside */
    bool on_host;         /* true: arguments are in host memory */
    const bool *there;    /* [n_inputs + n_outputs] NULL: all false */
    void *stream;         /* the device's stream handle, owned by the caller; NULL: the device's own
                             stream. Ignored by backends that run on the host */
    uint64_t seed;        /* random ops depend on seed, random_step, stream and element only */
    uint32_t random_step; /* change it in each run to draw new numbers */
    cb_poll_fn poll;
    void *poll_user;
    double *group_seconds; /* [n_groups] seconds that each group takes; may be NULL */
    uint64_t *group_bytes; /* [n_groups] bytes allocated in each group; only the backend "debug"
                              fills it; may be NULL */
    void *block; /* memory that this run uses instead of the step's: cb_step_run_bytes, aligned to
                    64 bytes. Only for backends that run on the host, and without an update after
                    the run. NULL: the step's memory */
    const struct cb_update *update; /* the update to apply inside this run; its `run` points to this
                                       struct. Requires cb_step_updates_inside. NULL: no update */
} cb_run;
typedef struct cb_run_result {
    uint64_t peak_bytes; /* measured; cb_step_numbers has the planned ones */
    uint64_t n_alloc;    /* allocations of this run: the arena, if this was the first or the largest
                            run in its memory; with "debug" also each buffer */
} cb_run_result;

/* True if runs update parameters. If updates inside were asked for and are not possible, the other
 * function says why; "" otherwise. The text belongs to the step. */
CB_API bool cb_step_updates_inside(const cb_step *step);
CB_API const char *cb_step_updates_reason(const cb_step *step);
/* Runs forward and backward. After a failure or a cancel, inputs are unchanged and outputs are
 * undefined. New states are copied into their inputs last. A run with an update changes parameters
 * only once nothing can fail any more, and from then on does not poll. Runs in one memory are
 * ordered, even on different streams. */
CB_API CB_MUST_CHECK cb_status cb_step_run(cb_step *step, const cb_run *run, cb_run_result *result,
                                           cb_error *err);
/* The first returns the bytes that a run needs in the step's memory; the second, by how much the
 * memory would have to grow. */
CB_API uint64_t cb_step_run_bytes(const cb_step *step);
CB_API uint64_t cb_step_growth(const cb_step *step);
/* Keeps the block that this step runs in at its address for as long as the step exists, because a
 * captured graph holds addresses in it. If another step of the same memory needs more, it gets
 * another block. The caller must order replays and runs in that memory. */
CB_API CB_MUST_CHECK cb_status cb_step_pin(cb_step *step, cb_error *err);
/* Waits for the latest run and for the update after it. Returns CB_INVALID if the run found bad
 * data, for instance an index out of range; then neither the run nor the work queued after it has
 * changed an input. `seconds` (may be NULL): their duration on the device's clock. */
CB_API CB_MUST_CHECK cb_status cb_step_wait(cb_step *step, double *seconds, cb_error *err);
/* Waits like cb_step_wait. `seconds`: the duration of the update without copies between host and
 * device; 0 if no update followed the latest run. */
CB_API CB_MUST_CHECK cb_status cb_step_update_seconds(cb_step *step, double *seconds,
                                                      cb_error *err);

/* ---- optimizers ------------------------------------------------------------------------------ */

/* An optimizer is a constant with a name ("adamw", "sgd"). It has up to CB_MAX_STATES state arrays
 * for each parameter, which the caller sets to zero before the first step. A state has the
 * parameter's type and shape unless its kind says otherwise. Hyper-parameters are rows of doubles,
 * one row per group of parameters. */
#define CB_MAX_STATES 4
#define CB_MAX_NUMBERS 2
#define CB_STATE_BLOCK 256
typedef enum cb_state_kind {
    CB_STATE_ALIKE = 0, /* the parameter's type and shape */
    CB_STATE_CODES,     /* u8, the parameter's shape: 8-bit codes of quantized numbers */
    CB_STATE_SCALES,    /* f32: two scales of these codes per block of CB_STATE_BLOCK codes */
    CB_STATE_ROWS,      /* the parameter's type: one element per row of its matrices */
    CB_STATE_COLUMNS,   /* the parameter's type: one element per column of its matrices */
    CB_STATE_WHOLE,     /* like ALIKE, but only for parameters without matrices */
    CB_STATE_LEFT,      /* two height x height matrices, if the group allows this height */
    CB_STATE_RIGHT,     /* two width x width matrices, if the group allows this width */
    CB_STATE_KIND_COUNT
} cb_state_kind;
/* How an optimizer views a parameter as matrices. NONE: it does not. TWO: the parameter must have
 * two axes and is one matrix. LAST: its last two axes are matrices. FIRST: one matrix, its first
 * axis by all others. With LAST or FIRST, a parameter of fewer than two axes has no matrices. */
typedef enum cb_axes { CB_AXES_NONE, CB_AXES_TWO, CB_AXES_LAST, CB_AXES_FIRST } cb_axes;
typedef struct cb_optim_row cb_optim_row;
typedef struct cb_optimizer cb_optimizer;
CB_API const cb_optimizer *cb_optimizer_find(const char *name); /* NULL: no such optimizer */
CB_API const cb_optimizer *cb_optimizer_at(uint32_t i);         /* NULL: i is past the last one */
CB_API const char *cb_optimizer_name(const cb_optimizer *optimizer);
/* Names of states and hyper-parameters, in order; NULL if i is past the last one. */
CB_API const char *cb_optimizer_state_name(const cb_optimizer *optimizer, uint32_t i);
CB_API const char *cb_optimizer_hyper_name(const cb_optimizer *optimizer, uint32_t i);
CB_API cb_state_kind cb_optimizer_state_kind(const cb_optimizer *optimizer, uint32_t i);
CB_API cb_axes cb_optimizer_axes(const cb_optimizer *optimizer);
/* Sets the height and width of a row whose parameter has these sizes. Returns false if the
 * optimizer supports only matrices and the parameter is not one. */
CB_API bool cb_optimizer_see(const cb_optimizer *optimizer, int rank, const int64_t *dim,
                             cb_optim_row *row);
/* Number of elements of state i for a row (its n, height and width are read) in a group with these
 * hyper-parameters; 0: the row does not have this state. */
CB_API int64_t cb_optimizer_state_size(const cb_optimizer *optimizer, uint32_t i,
                                       const double *hyper, const cb_optim_row *row);
/* Returns the number of states that a group with these hyper-parameters uses: the first n. */
CB_API uint32_t cb_optimizer_n_used(const cb_optimizer *optimizer, const double *hyper);
/* Some optimizers keep up to CB_MAX_NUMBERS numbers per parameter as well. The first function gives
 * their names. The second replaces the numbers before step t by those after it; with t = 0 it sets
 * their initial values. */
CB_API const char *cb_optimizer_number_name(const cb_optimizer *optimizer, uint32_t i);
CB_API void cb_optimizer_count_on(const cb_optimizer *optimizer, const double *hyper, int64_t t,
                                  double *number);

/* ---- optimizers that the caller writes */
/* A list of operations, each of which reads earlier nodes. Preparing it takes microseconds.
 * Operations on numbers that all elements of a tensor share are computed in double, others in f32.
 */
typedef struct cb_expression_node {
    const char *op; /* param, grad, state, hyper, t (number of the step), size (elements), constant;
                       add, sub, mul, div, maximum, minimum, eq, ne, lt, le, gt, ge, logical_and,
                       logical_or, logical_not, neg, abs, sign, floor, exp, log, log1p, sqrt, tanh,
                       sigmoid, erf, where, pow (of numbers), sum (over the elements of a tensor) */
    uint32_t in[3]; /* operand nodes; for state and hyper, in[0] is the index of the state or hyper-
                       parameter */
    double value;   /* value of a constant */
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
CB_API void cb_expression_free(cb_expression *expression); /* free its tables first; NULL is fine */
/* The optimizer steps f32 tensors and lives as long as the expression. */
CB_API const cb_optimizer *cb_expression_optimizer(const cb_expression *expression);

/* ---- an optimizer's step on any arrays */
/* How f16 and bf16 weights are stored. They are stepped in f32, with f32 states. */
typedef enum cb_half_form {
    CB_HALF_MASTER = 0, /* `rest` holds f32 master weights; param is their rounded copy */
    CB_HALF_REMAINDER,  /* bf16: `rest` holds an i16 per weight, the low bits of the f32 weight */
    CB_HALF_STOCHASTIC, /* bf16: stochastic rounding, unbiased; `rest` is not used */
    CB_HALF_FORM_COUNT
} cb_half_form;

/* A tensor: contiguous arrays of `n` elements of `dtype` (f32, f64, f16, bf16) that do not overlap.
 */
struct cb_optim_row {
    void *param;
    const void *grad;
    void *rest;                    /* f16 and bf16 only, see cb_half_form; zeros before step 1 */
    void *state[CB_MAX_STATES];    /* the states that its group uses; the others are ignored */
    int64_t n;                     /* 0: the row is skipped */
    int64_t height, width;         /* size of its row-major matrices; 0: it has none */
    int64_t t;                     /* number of this step for this tensor, from 1 */
    double number[CB_MAX_NUMBERS]; /* values before this step */
    cb_dtype dtype;
    uint32_t group;
    cb_half_form half;
    uint32_t stream; /* stream of the rounding noise; must be different for each row */
    uint64_t seed;   /* the noise is a function of seed, stream, t and the element's index */
};

/* A table of tensors that is stepped repeatedly. Checks are repeated only for rows that change: if
 * only gradients move, only they are checked. */
typedef struct cb_tensor_table cb_tensor_table;
CB_API CB_MUST_CHECK cb_status cb_tensor_table_new(cb_context *ctx, const cb_optimizer *optimizer,
                                                   uint32_t n_rows, cb_tensor_table **out,
                                                   cb_error *err);
CB_API void cb_tensor_table_free(cb_tensor_table *table);
CB_API void cb_tensor_table_set(cb_tensor_table *table, uint32_t i, const cb_optim_row *row);
typedef struct cb_extra_row { /* extra outputs of a row; NULL: not wanted for this row */
    void *average;            /* n elements of the row's dtype, or f32 for f16 and bf16 rows */
    void *copy;               /* n elements of copy_dtype, f16 or bf16 */
    cb_dtype copy_dtype;
} cb_extra_row;
typedef struct cb_optim_extras { /* what a step does besides the update, in the same pass */
    double grad_factor;          /* gradients are multiplied by this: 1 / loss scale */
    double max_norm;             /* > 0: then clipped to this norm over all rows; if infinite, the
                                    norm is only computed */
    double average_keep;         /* average = average_keep * average + (1 - average_keep) * param */
    bool skips;                  /* step nothing if a gradient is not finite; also with max_norm */
    bool zeroes;                 /* zero the gradients after the step, even if it was skipped */
    const cb_extra_row *rows;    /* [n_rows], copied; NULL: no averages or copies */
} cb_optim_extras;
typedef struct cb_optim_outcome { /* outcome of the last step */
    double norm; /* norm of all gradients times grad_factor; NaN if one is not finite; -1 if neither
                    max_norm nor skips is set */
    bool skipped;
} cb_optim_outcome;
/* Sets the extras of all further steps; NULL: none. After an error the old extras stay. */
CB_API CB_MUST_CHECK cb_status cb_tensor_table_ask(cb_tensor_table *table,
                                                   const cb_optim_extras *extras, cb_error *err);
CB_API cb_optim_outcome cb_tensor_table_outcome(const cb_tensor_table *table);

/* One step of every row; `hyper` is [n_groups][n_hyper]. Everything is checked before anything is
 * written. */
CB_API CB_MUST_CHECK cb_status cb_tensor_table_step(cb_tensor_table *table, const double *hyper,
                                                    uint32_t n_groups, cb_error *err);

/* One optimizer step on the parameters `wrt` of a step that was compiled with keep_gradients.
 * Parameters and states are updated in place; states that a parameter does not have, or that its
 * group does not use, may be NULL. A backend without kernels for the optimizer copies its arrays to
 * the host, steps them there, and copies them back, which waits. */
typedef struct cb_update {
    const cb_optimizer *optimizer;
    void *const *params;        /* [n_wrt] */
    void *const *const *states; /* [n_state][n_wrt] */
    const uint32_t *group;      /* [n_wrt] the row of `hyper` for each parameter */
    const double *hyper;        /* [n_groups][n_hyper] */
    uint32_t n_groups;
    int64_t t;         /* number of this step, from 1 */
    bool on_host;      /* true: parameters and states are in host memory; see cb_run */
    const bool *there; /* [(1 + n_state) n_wrt] parameters, then each state; NULL: all false */
    double *numbers;   /* [n_wrt][n_number] initialized at t = 1, updated by each step; or NULL */
    const cb_optim_extras *extras; /* one row per parameter; CPU only; `zeroes` must be false; NULL:
                                      none */
    cb_optim_outcome *outcome;     /* may be NULL; a skipped update changes no parameter, state or
                                  number */
    const cb_run
        *run; /* extras must not overlap the arguments of this run; NULL: this is not checked */
} cb_update;
/* Checks that cb_step_update will accept this update after the next run. Call it before the run,
 * which may replace states that cannot be restored. */
CB_API CB_MUST_CHECK cb_status cb_step_check_update(cb_step *step, const cb_update *update,
                                                    cb_error *err);
/* Applies an update with the gradients of the latest run, on its stream. Cannot be interrupted.
 * Returns CB_INVALID if another step has run in the same memory since, or if the memory was
 * released. */
CB_API CB_MUST_CHECK cb_status cb_step_update(cb_step *step, const cb_update *update,
                                              cb_error *err);

/* Device addresses of the numbers that an update reads, for backends that keep them in device
 * memory. A learning-rate scheduler or a loss scaler may write them in stream order, and every
 * replay of a captured step reads them. The caller's hyper-parameters are copied there when they
 * change, and `t` when replays have advanced it. */
typedef struct cb_resident {
    uint64_t hyper;       /* doubles: the group's hyper-parameters, in the order of their names */
    uint64_t t;           /* i64: steps of the group so far */
    uint64_t grad_factor; /* double: the gradients of all groups are multiplied by this */
    uint64_t found_inf;   /* u32: if not 0, no group is stepped and t stays */
} cb_resident;
/* The addresses for a group of the latest update of this step. CB_UNSUPPORTED: the backend keeps
 * none. CB_INVALID: there was no update, or it had no such group. */
CB_API CB_MUST_CHECK cb_status cb_step_resident(const cb_step *step, uint32_t group,
                                                cb_resident *out, cb_error *err);

/* ---- memory of a device ---------------------------------------------------------------------- */

/* For callers that keep arrays on the device of a backend (NULL: the first backend). The device
 * belongs to the context and is opened on first use. Streams are the device's handles; NULL is the
 * device's own stream. */
CB_API CB_MUST_CHECK cb_status cb_memory_alloc(cb_context *ctx, const char *backend, size_t bytes,
                                               void **block, cb_error *err);
/* Waits for the device. NULL is fine. */
CB_API void cb_memory_free(cb_context *ctx, const char *backend, void *block);
/* Copies in stream order and waits for the copy. */
CB_API CB_MUST_CHECK cb_status cb_memory_copy(cb_context *ctx, const char *backend, void *stream,
                                              bool to_host, void *to, const void *from,
                                              size_t bytes, cb_error *err);
/* Makes later work on stream `after` wait for the work already on stream `before`. */
CB_API CB_MUST_CHECK cb_status cb_memory_order(cb_context *ctx, const char *backend, void *before,
                                               void *after, cb_error *err);
/* Waits for all work of a stream. */
CB_API CB_MUST_CHECK cb_status cb_memory_wait(cb_context *ctx, const char *backend, void *stream,
                                              cb_error *err);

/* A point on a stream: the end of the work queued so far. Marks are reference-counted; any thread
 * may drop a reference. A mark stays valid when its stream is destroyed. */
typedef struct cb_mark cb_mark;
CB_API CB_MUST_CHECK cb_status cb_mark_new(cb_context *ctx, const char *backend, void *stream,
                                           cb_mark **out, cb_error *err);
CB_API cb_mark *cb_mark_keep(cb_mark *mark); /* one more reference */
CB_API void cb_mark_drop(cb_mark *mark);     /* NULL is fine */
/* Records that the caller has waited for the mark or for later work, so that no one has to wait for
 * it again. */
CB_API void cb_mark_reached(cb_mark *mark);
/* Makes later work on the stream wait for the mark. */
CB_API CB_MUST_CHECK cb_status cb_mark_wait(cb_mark *mark, void *stream, cb_error *err);

/* Work that may still use a block of memory. */
#define CB_MOST_MARKS 4
typedef struct cb_uses {
    cb_mark *mark[CB_MOST_MARKS]; /* one reference each */
    uint32_t n;
    void *home;      /* stream that the block is mostly used on: a hint, never dereferenced */
    bool is_unknown; /* other work may use it too: only waiting for the whole device is safe */
} cb_uses;

/* A block of device memory. The device keeps blocks that are given back for later requests, so that
 * steps which make the same arrays repeatedly do not call the driver. CB_UNSUPPORTED: the backend
 * keeps no blocks. */
typedef struct cb_block cb_block;
/* Takes a block of at least `bytes` bytes for use on `stream`. The caller must order its work on
 * the block after the marks in `after`, which it then owns. A block that was last used on another
 * stream is taken only if its work is done. */
CB_API CB_MUST_CHECK cb_status cb_block_take(cb_context *ctx, const char *backend, size_t bytes,
                                             void *stream, cb_block **out, cb_uses *after,
                                             cb_error *err);
/* Gives a block back without waiting, and takes ownership of the marks in `uses`. */
CB_API void cb_block_give(cb_context *ctx, const char *backend, cb_block *block,
                          const cb_uses *uses);
CB_API void *cb_block_address(const cb_block *block);

typedef struct cb_block_stats {
    uint64_t in_use, kept, peak; /* bytes of blocks taken, bytes kept for reuse, largest in_use */
    uint64_t n_fresh;            /* blocks taken from the driver so far */
} cb_block_stats;
/* All 0 if no device is open. `resets_peak` sets the peak to what is in use. */
CB_API cb_block_stats cb_block_stats_of(cb_context *ctx, const char *backend, bool resets_peak);
/* Waits for the device and returns the kept blocks to the driver; returns their bytes. */
CB_API uint64_t cb_block_release(cb_context *ctx, const char *backend);

/* ---- planning from files --------------------------------------------------------------------- */

/* Each function takes a problem or a traced graph as JSON (docs/problem.md). A `device` of NULL is
 * "cpu", or the device that a given plan was made for. The caller frees the texts with
 * cb_text_free. */

/* Converts a traced graph to a problem. */
CB_API CB_MUST_CHECK cb_status cb_problem_json(cb_context *ctx, const char *graph, size_t length,
                                               char **out, cb_error *err);
/* Like cb_problem_json, with constraints that mu-TWO selects (docs/planner.md) so that about
 * `saved` bytes are saved: CB_BUDGET_BYTES, or CB_BUDGET_SHARE of what saving everything saves. */
CB_API CB_MUST_CHECK cb_status cb_mutwo_json(cb_context *ctx, const char *graph, size_t length,
                                             const cb_budget *saved, const char *device, char **out,
                                             cb_error *err);
/* Makes a plan. */
CB_API CB_MUST_CHECK cb_status cb_plan_json(cb_context *ctx, const char *graph, size_t length,
                                            cb_preset preset, const cb_budget *budget,
                                            const char *device, cb_poll_fn poll, void *poll_user,
                                            char **out, cb_error *err);
/* Makes a plan for each of `n` budgets in one search. out[n] receives the plans that separate calls
 * would give. An infeasible budget does not fail the others. `progress` (may be NULL) is filled
 * before each poll. */
typedef struct cb_planned {
    char *plan;       /* NULL: no plan meets the budget */
    cb_error why_not; /* CB_OK: there is a plan */
} cb_planned;
CB_API CB_MUST_CHECK cb_status cb_plans_json(cb_context *ctx, const char *graph, size_t length,
                                             cb_preset preset, const cb_budget *budgets, uint32_t n,
                                             const char *device, cb_poll_fn poll, void *poll_user,
                                             cb_progress *progress, cb_planned *out, cb_error *err);
/* Computes the minimum cut of a preset; `network` (may be NULL) receives its network in DIMACS
 * form. */
CB_API CB_MUST_CHECK cb_status cb_cut_json(cb_context *ctx, const char *graph, size_t length,
                                           cb_preset preset, char **out, char **network,
                                           cb_error *err);
/* Computes every trade-off between saved bytes and time (docs/planner.md). A budget on the measure
 * `saved` with the same preset gives the plan of a point. The preset says which ops may be
 * recomputed; CB_PRESET_AUTOGRAD: all that allow it. */
CB_API CB_MUST_CHECK cb_status cb_frontier_json(cb_context *ctx, const char *graph, size_t length,
                                                cb_preset preset, const char *device,
                                                cb_poll_fn poll, void *poll_user, char **out,
                                                cb_error *err);
/* Explains a plan of a graph as text, like "explain" of cb_step_text. */
CB_API CB_MUST_CHECK cb_status cb_plan_explain_text(cb_context *ctx, const char *graph,
                                                    size_t graph_length, const char *plan,
                                                    size_t plan_length, const char *device,
                                                    char **out, cb_error *err);
/* Explains a plan as JSON (docs/problem.md, "Explanation"). */
CB_API CB_MUST_CHECK cb_status cb_plan_explain_json(cb_context *ctx, const char *graph,
                                                    size_t graph_length, const char *plan,
                                                    size_t plan_length, const char *device,
                                                    char **out, cb_error *err);
/* Computes bytes and times of any document with `steps` and `backward_starts`. */
CB_API CB_MUST_CHECK cb_status cb_evaluate_json(cb_context *ctx, const char *graph,
                                                size_t graph_length, const char *plan,
                                                size_t plan_length, const char *device, char **out,
                                                cb_error *err);

#ifdef __cplusplus
}
#endif
#endif /* CUTBACK_H */
