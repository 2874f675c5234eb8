/* state.h: what the files of the extension share.
 *
 * A binding function has four lines of thought: parse, convert to views, release the GIL and call,
 * translate the status. Shape rules, loops over elements and policy live in the core or in Python,
 * never here. */
#ifndef CB_PY_STATE_H
#define CB_PY_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>

#include "include/cutback.h"
#include "optim/table.h"

/* ---- context.c ------------------------------------------------------------------------------- */

/* The core's context with a reference count: graphs and steps may outlive the module at interpreter
 * exit. */
typedef struct cb_py_context {
    atomic_size_t refs;
    cb_context *core;
    PyThread_type_lock lock; /* guards n_working, n_forks and claims */
    size_t
        n_working; /* calls inside the core with the GIL released: the pool may not be exchanged */
    uint64_t n_forks;           /* cb_fork_count when n_working was counted */
    char blas_name[64];         /* "scipy-openblas 0.3.31", "" when none was found */
    char blas_path[1024];       /* file it was found in */
    int blas_bits;              /* widest vectors its kernels use; 0: unknown */
    struct cb_py_claim *claims; /* claims.c; under the lock */
} cb_py_context;

typedef struct cb_py_state {
    PyTypeObject *graph_type, *step_type, *table_type, *expression_type, *memory_type;
    PyTypeObject *busy_word_type, *signature_type, *problem_type, *plan_type, *run_memory_type;
    PyObject *budget_error;  /* cutback.errors.BudgetError; NULL until first use */
    PyObject *keeper;        /* capsule: where the memory of outputs comes from */
    PyThread_type_lock lock; /* guards `context` */
    cb_py_context *context;  /* NULL until first use */
} cb_py_state;

/* ---- module_state.c -------------------------------------------------------------------------- */

extern struct PyModuleDef cb_py_module_def;
cb_py_state *cb_py_state_of(PyObject *module);
cb_py_state *cb_py_state_of_object(PyObject *self); /* of an instance of one of our types */

/* The module's context, made at first use; borrowed. NULL with an exception set. */
cb_py_context *cb_py_context_get(cb_py_state *state);
cb_py_context *cb_py_context_retain(cb_py_context *context);
void cb_py_context_release(cb_py_context *context); /* NULL is fine */
/* Exchanges the thread pool; RuntimeError (and -1) while another thread is at work. */
/* Under `lock`: calls of threads that a fork left behind are not at work. */
void cb_py_context_forget_forked(cb_py_context *context);
int cb_py_context_set_threads(cb_py_state *state, cb_py_context *context, int n_threads);

/* ---- errors.c -------------------------------------------------------------------------------- */

/* Sets the Python exception for a failed call and returns NULL. `location` ("model.py:12", may be
 * NULL) is put after the text. A CB_CANCELLED whose exception the poll function has already set
 * keeps that exception. */
PyObject *cb_py_raise(cb_py_state *state, const cb_error *error, const char *location);
/* A BudgetError with the facts of a CB_INFEASIBLE; NULL with an exception set. */
PyObject *cb_py_budget_error(cb_py_state *state, const cb_error *error);

/* ---- work.c: the GIL around long work -------------------------------------------------------- */

/*     cb_py_work work;
 *     cb_py_work_begin(&work, context);     GIL released
 *     status = cb_compile(..., cb_py_poll, &work, ...);
 *     cb_py_work_end(&work);                GIL held; an exception may be set by a signal handler
 */
typedef struct cb_py_work {
    PyThreadState *thread;
    cb_py_context *context;
    uint64_t n_forks;      /* when it began */
    int64_t next_check_ns; /* monotonic clock */
    bool raised;           /* a signal handler has: the answer to all later polls is CANCEL */
} cb_py_work;
void cb_py_work_begin(cb_py_work *work, cb_py_context *context);
void cb_py_work_end(cb_py_work *work);
int cb_py_poll(void *user); /* a cb_poll_fn: looks for signals every 50 ms, on the thread that began
                               the work */
int64_t cb_py_now_ns(void);

/* ---- parse.c --------------------------------------------------------------------------------- */

int cb_py_parse_dtype(PyObject *name, cb_dtype *out); /* "f32"; -1: exception set */
int cb_py_parse_shape(PyObject *sequence, const char *what, cb_shape *out);
int cb_py_parse_attrs(const char *op, PyObject *dict, cb_attrs *out); /* NULL or None: all zero */
/* A sequence of ids; one too large for an id becomes CB_NONE. Free `*out` with PyMem_Free. */
int cb_py_parse_ids(PyObject *sequence, uint32_t **out, uint32_t *n);
PyObject *cb_py_give_ids(const uint32_t *ids, uint32_t n); /* a list */
PyObject *cb_py_give_bits(uint64_t bits);                  /* a tuple of those that are set */
PyObject *cb_py_give_fingerprint(uint64_t fingerprint);    /* sixteen hexadecimal digits */
PyObject *cb_py_shape_tuple(const cb_shape *shape);
int cb_py_parse_budget(PyObject *item, cb_budget *out); /* (kind, bytes, share, measure) or None */
int cb_py_parse_preset(int number, cb_preset *out);

/* ---- claims.c -------------------------------------------------------------------------------- */

typedef struct cb_py_holder {
    uint64_t process; /* by the number of forks that led to it, from 1 on */
    unsigned long thread;
} cb_py_holder;

typedef struct cb_py_word {
    _Atomic uint64_t process; /* of the holder; 0: free */
    atomic_ulong thread;
} cb_py_word;
/* False, with RuntimeError set: another thread, or a frame further up, has it. */
bool cb_py_word_take(cb_py_word *word);
void cb_py_word_drop(cb_py_word *word);

/* Memory that a step writes, while it does. It stands in an object of Python, which a fork leaves
 * where it is. */
typedef struct cb_py_claim {
    struct cb_py_claim *next;
    const cb_written *written; /* [n] */
    cb_written *own;           /* if they are to be sorted when somebody asks; or NULL */
    uint32_t n;
    bool is_sorted;
    cb_py_holder holder;
} cb_py_claim;

extern PyType_Spec cb_py_busy_word_spec;

/* ---- graph_type.c, step_type.c, compile.c ---------------------------------------------------- */

typedef struct cb_py_graph {
    PyObject_HEAD cb_py_context *context;
    cb_graph *core;
    atomic_bool busy; /* in use by a call; see cb_py_graph_enter */
} cb_py_graph;

/* In claims.c. A graph is used by one thread at a time: a second user, or a signal handler that
 * meets a compile, gets a RuntimeError (and -1). */
int cb_py_graph_enter(cb_py_graph *graph);
void cb_py_graph_leave(cb_py_graph *graph);

/* ---- memory_type.c --------------------------------------------------------------------------- */

typedef struct cb_py_run_memory {
    PyObject_HEAD cb_py_context *context;
    cb_run_memory *core;
    PyObject *keeper;           /* capsule: where the memory of results comes from */
    PyObject *admit, *refused;  /* functions; or NULL */
    uint64_t wanted;            /* bytes that the block is about to have; 0: it does not grow */
    PyThread_type_lock lock;    /* one run at a time, of any step */
    atomic_ulong owner;         /* thread that holds the lock, 0: none */
    struct cb_py_step *running; /* the step that it holds the lock for */
    uint64_t n_forks;           /* cb_fork_count when the lock was made */
} cb_py_run_memory;

extern PyType_Spec cb_py_run_memory_spec;
/* With results from this keeper. */
cb_py_run_memory *cb_py_run_memory_new(cb_py_state *state, PyObject *keeper);
/* One run at a time. Waiting lets other threads and Ctrl-C through. RuntimeError (and -1): a signal
 * handler calls a step that would wait for the one it has interrupted, or this process was forked
 * while another thread ran the step. */
int cb_py_run_memory_lock(cb_py_run_memory *self, struct cb_py_step *step);
void cb_py_run_memory_unlock(cb_py_run_memory *self);
/* Whether this process was forked while another thread ran the step; -1: exception set. */
int cb_py_run_memory_has_left(cb_py_run_memory *self, const struct cb_py_step *step);
/* Asks whether the block may grow for a run of the step; -1: it may not. */
int cb_py_run_memory_admit(cb_py_run_memory *self, const struct cb_py_step *step);
/* Results could not be allocated, an exception is set. 0: it is worth another try; -1: it is not,
 * and an exception says why. */
int cb_py_run_memory_refused(cb_py_run_memory *self, const struct cb_py_step *step, bool gradients);

typedef struct cb_py_step {
    PyObject_HEAD cb_py_context *context;
    cb_step *core;
    uint32_t n_wrt;
    uint32_t *wrt;   /* [n_wrt] positions of the inputs that have gradients */
    bool *is_wrt;    /* [n_inputs] whether it is one of those */
    bool *has_state; /* [n_inputs] whether a run replaces its elements */
    void **pointers; /* [n_inputs + n_outputs + (1 + CB_MAX_STATES) n_wrt] scratch of a run */
    bool *there;     /* likewise: which lie on the device */
    bool on_device;  /* its backend has arrays of its own */
    cb_py_run_memory *memory; /* that it runs in */
    bool is_left;             /* a run of a thread that a fork left behind was never finished */
    cb_py_claim claim;        /* what its optimizer writes */
} cb_py_step;

/* Kinds of outputs, `role_or_kind` of a cb_argument_info. */
enum { CB_PY_RESULT, CB_PY_STATE, CB_PY_GRADIENT };

/* Whether a run gets a new array for an output; for gradients the caller may have some. */
static inline bool cb_py_is_made(const cb_argument_info *output, bool gradients) {
    return !output->inside && output->role_or_kind != CB_PY_STATE &&
           (gradients || output->role_or_kind != CB_PY_GRADIENT);
}

extern PyType_Spec cb_py_graph_spec, cb_py_step_spec;

/* A Step of the graph; `args` and `kwargs` as Graph.compile takes them. */
PyObject *cb_py_compile(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_decide(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_compile_text(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_step_wrap(cb_py_state *state, cb_py_run_memory *memory, cb_step *core,
                          const uint32_t *wrt, uint32_t n_wrt,
                          bool on_device); /* takes `core`, also on failure */

/* ---- profile_rows.c -------------------------------------------------------------------------- */

/* A row (steps, seconds, bytes) for each of `n` groups. */
PyObject *cb_py_profile_rows(const cb_step *core, const double *seconds, const uint64_t *bytes,
                             uint32_t n);

/* ---- extras.c -------------------------------------------------------------------------------- */

typedef struct cb_py_rows { /* parameters, by number */
    const void *owner;
    const char *(*name)(const void *owner, uint32_t i);
    uint32_t n;
} cb_py_rows;

typedef struct cb_py_extras {
    cb_optim_extras core;
    cb_extra_row *rows; /* PyMem */
    PyObject *averages, *copies;
} cb_py_extras;

/* `asked`: an object with the fields grad_factor, max_norm, average_keep, skips, zeroes, averages
 * and copies, or None. 0: it is None; 1: the caller drops `out`; -1: an exception is set. */
int cb_py_extras_parse(PyObject *asked, const cb_py_rows *rows, cb_py_extras *out);
void cb_py_extras_drop(cb_py_extras *extras);
PyObject *cb_py_outcome(cb_optim_outcome outcome); /* (norm, skipped) */

/* RuntimeError (and -1): another step that is under way writes some of the same memory. */
int cb_py_claim_take(cb_py_context *context, cb_py_claim *claim, const cb_py_rows *rows);
void cb_py_claim_drop(cb_py_context *context, const cb_py_claim *claim);
/* Lists what a step writes whose arrays are bound. `extra`: [n_wrt], or NULL. */
void cb_py_claim_step(cb_py_step *step, uint32_t n_state, const cb_extra_row *extra);

/* ---- signature.c ----------------------------------------------------------------------------- */

extern PyType_Spec cb_py_signature_spec;
PyObject *cb_py_on_device(PyObject *module, PyObject *arrays);

/* ---- step_arrays.c --------------------------------------------------------------------------- */

/* What one run needs; tuples keep the arrays alive while the GIL is released. */
typedef struct cb_py_run_arrays {
    PyObject *inputs, *outputs;      /* tuples */
    PyObject *states[CB_MAX_STATES]; /* tuples, NULL from `n_state` on */
    bool is_stepped;                 /* an optimizer updates the parameters */
    uint32_t n_state;
    const char *state_name[CB_MAX_STATES];
} cb_py_run_arrays;

/* Checks every array and fills step->pointers and ->there: inputs, outputs, then for an optimizer
 * parameters and each of its states. */
int cb_py_bind(cb_py_step *step, const cb_py_run_arrays *run);
/* Around a run: it comes after what is pending on arrays of the device, and then its own work is.
 * `stream` NULL in the second: the run was waited for. */
cb_status cb_py_before_run(const cb_py_step *step, const cb_py_run_arrays *run, void *stream,
                           cb_error *err);
void cb_py_leave_pending(const cb_py_step *step, const cb_py_run_arrays *run, void *stream);

/* ---- optimizer.c ----------------------------------------------------------------------------- */

typedef struct cb_py_optimizer { /* the optimizer's part of a call */
    const cb_optimizer *core;
    uint32_t *group; /* [n_params] */
    double *hyper;   /* [n_groups][n_hyper] */
    double *number;  /* [n_params][n_number], borrowed; NULL until it is asked for */
    uint32_t n_hyper, n_groups, n_number;
    int64_t *t; /* steps taken so far, set by the caller */
} cb_py_optimizer;

/* What an optimizer's name or an Expression stands for; NULL: an exception is set. An Expression
 * has to be kept. */
const cb_optimizer *cb_py_optimizer_of(const cb_py_state *state, PyObject *object);
/* Drop it after a failure, too. */
int cb_py_optimizer_parse(const cb_optimizer *core, PyObject *groups, PyObject *group_of,
                          uint32_t n_params, cb_py_optimizer *out);
/* Takes an array of the numbers that parameters keep; -1: it is none. */
int cb_py_optimizer_numbers(PyObject *array, uint32_t n_params, cb_py_optimizer *out);
void cb_py_optimizer_drop(cb_py_optimizer *optimizer);
/* ValueError (and -1): a tuple of another length. */
int cb_py_check_count(PyObject *tuple, size_t wanted, const char *what);
PyObject *cb_py_optimizer_table(PyObject *module, PyObject *none);
PyObject *cb_py_optimizer_states(PyObject *module, PyObject *args);
PyObject *cb_py_same_objects(PyObject *module, PyObject *args);
PyObject *cb_py_ask_for_large_pages(PyObject *module, PyObject *args);

/* ---- table_type.c ---------------------------------------------------------------------------- */

extern PyType_Spec cb_py_table_spec;

/* ---- expression_type.c ----------------------------------------------------------------------- */

typedef struct cb_py_expression {
    PyObject_HEAD cb_py_context *context;
    cb_expression *core;
} cb_py_expression;

extern PyType_Spec cb_py_expression_spec;

/* ---- duplicates.c ---------------------------------------------------------------------------- */

PyObject *cb_py_find_duplicates(PyObject *module, PyObject *args);

/* ---- problem_type.c, plan_type.c: see planned.h ---------------------------------------------- */

extern PyType_Spec cb_py_problem_spec, cb_py_plan_spec;

/* ---- numpy_bridge.c -------------------------------------------------------------------------- */

typedef struct cb_py_view {
    char *data;
    cb_shape shape;
    size_t bytes;
    cb_dtype dtype;
    bool known_dtype; /* false: a dtype that the core does not have */
    bool is_bits16;   /* uint16: stands for bf16 where ml_dtypes is absent */
    bool contiguous, aligned, writable;
} cb_py_view;

int cb_py_numpy_init(void); /* once a process; -1: exception set */
int cb_py_view_of(PyObject *object, const char *name,
                  cb_py_view *out); /* TypeError when it is no ndarray */
/* Quick looks at many arrays. Whether it is a contiguous, aligned array of f32 or f64, and may be
 * written if that is asked; whether another is, of the same type and shape. */
bool cb_py_plain_array(PyObject *object, bool written, void **data, cb_dtype *dtype, int64_t *n);
bool cb_py_array_like(PyObject *object, PyObject *like, bool written, const void **data);
PyObject *cb_py_strides_text(PyObject *array); /* "(8, 4)" */
/* Whether it is an ndarray, and no instance of a subclass, of a dtype that the core has. */
bool cb_py_plain_kind(PyObject *object, cb_dtype *dtype, cb_shape *shape);
/* Whether it is an array of this dtype and shape, contiguous and aligned, that may be written if
 * `written`; cb_py_view_of tells what is wrong with one that is not. */
bool cb_py_array_fits(PyObject *object, cb_dtype dtype, const cb_shape *shape, bool written,
                      void **data);
PyObject *cb_py_descr_of(cb_dtype dtype); /* NumPy's dtype; of bf16 perhaps uint16, for its bits */
/* An array over foreign memory; steals `owner`. strides in bytes, NULL: row-major. */
PyObject *cb_py_array_over(cb_dtype dtype, const cb_shape *shape, const int64_t *byte_strides,
                           void *data, bool writable, PyObject *owner);

/* ---- kept_arrays.c: arrays in memory that is kept -------------------------------------------- */

PyObject *cb_py_keeper_new(void);                         /* a capsule, NumPy's "mem_handler" */
int cb_py_keeper_limit(PyObject *keeper, uint64_t bytes); /* UINT64_MAX: none */
PyObject *cb_py_keeper_stats(PyObject *keeper);           /* -> {in_use, kept, n_fresh} */
PyObject *cb_py_keeper_release(PyObject *keeper);         /* -> bytes */
PyObject *cb_py_empty(PyObject *module, PyObject *args);  /* (shape, dtype) -> ndarray */
/* A list with an array for each output of a step that is handed out, None for the others; gradients
 * are not handed out if the caller has arrays for them. */
PyObject *cb_py_empty_outputs(cb_py_step *step, bool gradients);
PyObject *cb_py_kept_memory(PyObject *module, PyObject *none);

/* ---- dlpack_bridge.c: the only file that knows DLPack's layout ------------------------------- */

PyObject *cb_py_from_dlpack(PyObject *module,
                            PyObject *args); /* (object, name) -> (ndarray, dtype name) */
PyObject *cb_py_to_dlpack(PyObject *module,
                          PyObject *args); /* (ndarray, dtype name[, versioned]) */

typedef struct
    cb_py_tensor { /* dense memory of a floating type, or of bytes; a complex number is two */
    void *data;
    int64_t n; /* elements of `dtype` */
    cb_dtype dtype;
    bool is_complex;
    bool is_bits; /* i16: bits of no number; `dtype` is bf16 */
    int32_t rank;
    const int64_t *shape, *strides; /* [rank], the tensor's own; strides in its elements */
} cb_py_tensor;

/* The functions that a library of tensors hands out; NULL: an exception is set. */
const void *cb_py_exchange_of(PyObject *capsule);
/* NULL: done; else why the tensor is not such memory. */
const char *cb_py_tensor_of(const void *exchange, PyObject *object, cb_py_tensor *out);
/* Whether element i of one, of a type as `kind` has it, belongs to element i of its parameter; if
 * not, why. */
bool cb_py_tensor_like(const cb_py_tensor *x, const cb_py_tensor *param, const cb_py_tensor *kind,
                       const char **why);

/* (object, name, stream) -> (dtype, shape, strides or None, address, kind and number of the device,
 * writable, owner, stream that its library works on or None: it has seen to the order) */
PyObject *cb_py_dlpack_parts(PyObject *module, PyObject *args);

/* ---- device_memory.c ------------------------------------------------------------------------- */

#define CB_PY_MOST_CONSUMERS (CB_MOST_MARKS - 1) /* and one mark for the last step */

typedef struct cb_py_device_memory {
    PyObject_HEAD cb_py_context *context;
    PyObject *owner; /* keeps memory that is not ours; NULL: ours */
    void *data;
    size_t bytes;
    cb_dtype dtype;
    cb_shape shape;
    int device;
    bool writable;
    cb_block *block;                      /* NULL: memory of another library, or no bytes */
    cb_uses uses;                         /* what comes next comes after these marks */
    void *consumer[CB_PY_MOST_CONSUMERS]; /* streams of other libraries that use it */
    uint32_t n_consumer;
} cb_py_device_memory;

extern PyType_Spec cb_py_device_memory_spec;
PyObject *cb_py_device_release(PyObject *module, PyObject *none);       /* -> bytes */
PyObject *cb_py_device_stats(PyObject *module, PyObject *resets_peak);  /* -> dict */
PyObject *cb_py_device_order_streams(PyObject *module, PyObject *args); /* (before, after) */
PyObject *cb_py_device_ordinal(PyObject *module, PyObject *none);
PyObject *cb_py_has_cuda(PyObject *module, PyObject *none);
/* Work is about to be put on a stream: it comes after the marks of each memory, which are waited
 * for once. Begin with {.stream = stream}. */
typedef struct cb_py_ordering {
    void *stream;
    const cb_mark *seen[CB_MOST_MARKS]; /* some of the marks that were waited for */
    uint32_t n;
} cb_py_ordering;
cb_status cb_py_device_order(cb_py_device_memory *memory, cb_py_ordering *ordering, cb_error *err);
/* Work that came after all marks has used the memory: `mark` is where it ends on `home`; NULL: it
 * is done. */
void cb_py_device_used(cb_py_device_memory *memory, cb_mark *mark, void *home);
PyObject *cb_py_export_device(cb_py_device_memory *memory, bool versioned); /* dlpack_bridge.c */

/* ---- drawing.c ------------------------------------------------------------------------------- */

PyObject *cb_py_draw(PyObject *module, PyObject *args); /* (ndarray, law, seed, stream[, p]) */

/* ---- cuda.c: NVIDIA's libraries by their paths ----------------------------------------------- */

PyObject *cb_py_cuda_driver(PyObject *module, PyObject *path);
PyObject *cb_py_cuda_nvrtc(PyObject *module, PyObject *path);
PyObject *cb_py_cuda_blaslt(PyObject *module, PyObject *path);
PyObject *cb_py_set_cuda(PyObject *module, PyObject *args);

/* ---- blas.c ---------------------------------------------------------------------------------- */

/* The matrix product of a BLAS that is mapped into the process already; all NULL when there is
 * none. The library stays loaded. `out->name` points into `name`. */
void cb_py_find_blas(cb_blas *out, char *name, size_t name_size, char *path, size_t path_size);

#endif
