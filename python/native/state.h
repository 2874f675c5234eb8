/* state.h: types and functions shared by the files of the extension.
 *
 * A binding function does four things: it parses arguments, converts them to views, releases the
 * GIL and calls the core, and translates the status. Shape rules, loops over elements and policy
 * belong to the core or to Python. */
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
        n_working; /* calls inside the core with the GIL released; the pool must not be replaced */
    uint64_t n_forks;           /* cb_fork_count when n_working was counted */
    char blas_name[64];         /* name and version, such as "scipy-openblas 0.3.31"; "" if none was
                                   found */
    char blas_path[1024];       /* the file that contains it */
    int blas_bits;              /* width of its kernels' vectors; 0: unknown */
    struct cb_py_claim *claims; /* claims.c; under the lock */
} cb_py_context;

typedef struct cb_py_state {
    PyTypeObject *graph_type, *step_type, *table_type, *expression_type, *memory_type;
    PyTypeObject *busy_word_type, *signature_type, *problem_type, *plan_type, *run_memory_type;
    PyTypeObject *captured_type;
    PyObject *budget_error;  /* cutback.errors.BudgetError; NULL until first use */
    PyObject *keeper;        /* capsule: allocator of outputs */
    PyThread_type_lock lock; /* guards `context` */
    cb_py_context *context;  /* NULL until first use */
} cb_py_state;

/* ---- module_state.c -------------------------------------------------------------------------- */

extern struct PyModuleDef cb_py_module_def;
cb_py_state *cb_py_state_of(PyObject *module);
cb_py_state *cb_py_state_of_object(PyObject *self); /* `self` has one of our types */

/* Returns a borrowed reference to the module's context, which is created on first use. Returns NULL
 * with an exception set on failure. */
cb_py_context *cb_py_context_get(cb_py_state *state);
cb_py_context *cb_py_context_retain(cb_py_context *context);
void cb_py_context_release(cb_py_context *context); /* NULL is fine */
/* After a fork, resets n_working, because the threads that are inside the core do not exist in the
 * child. The caller holds `lock`. */
void cb_py_context_forget_forked(cb_py_context *context);
/* Replaces the thread pool. Raises RuntimeError (and returns -1) while another thread is inside the
 * core. */
int cb_py_context_set_threads(cb_py_state *state, cb_py_context *context, int n_threads);

/* ---- team.c ---------------------------------------------------------------------------------- */

PyObject *cb_py_join_team(PyObject *module, PyObject *library); /* the method join_team */

/* ---- errors.c -------------------------------------------------------------------------------- */

/* Sets the Python exception for a failed call and returns NULL. `location` ("model.py:12", may be
 * NULL) is appended to the text. An exception that is already set, such as by a signal handler, is
 * kept. */
PyObject *cb_py_raise(cb_py_state *state, const cb_error *error, const char *location);
/* Makes the BudgetError for a CB_INFEASIBLE error. Returns NULL with an exception set on
 * failure. */
PyObject *cb_py_budget_error(cb_py_state *state, const cb_error *error);

/* ---- work.c: releases the GIL during long work ----------------------------------------------- */

/*     cb_py_work work;
 *     cb_py_work_begin(&work, context);     GIL released
 *     status = cb_compile(..., cb_py_poll, &work, ...);
 *     cb_py_work_end(&work);                GIL held; an exception may be set by a signal handler
 */
typedef struct cb_py_work {
    PyThreadState *thread;
    cb_py_context *context;
    uint64_t n_forks;      /* fork count when the work began */
    int64_t next_check_ns; /* monotonic clock */
    bool raised;           /* a signal handler has raised; all later polls return CANCEL */
} cb_py_work;
void cb_py_work_begin(cb_py_work *work, cb_py_context *context);
void cb_py_work_end(cb_py_work *work);
int cb_py_poll(
    void *user); /* a cb_poll_fn: checks for signals every 50 ms, on the thread that began
                               the work */
int64_t cb_py_now_ns(void);

/* ---- parse.c --------------------------------------------------------------------------------- */

int cb_py_parse_dtype(PyObject *name, cb_dtype *out); /* "f32"; -1: exception set */
int cb_py_parse_shape(PyObject *sequence, const char *what, cb_shape *out);
int cb_py_parse_attrs(const char *op, PyObject *dict, cb_attrs *out); /* NULL or None: all zero */
/* Parses a sequence of ids; ids that are too large become CB_NONE. Free `*out` with PyMem_Free. */
int cb_py_parse_ids(PyObject *sequence, uint32_t **out, uint32_t *n);
PyObject *cb_py_give_ids(const uint32_t *ids, uint32_t n); /* a list */
PyObject *cb_py_give_bits(uint64_t bits);                  /* a tuple of the set bits' indices */
PyObject *cb_py_give_fingerprint(uint64_t fingerprint);    /* sixteen hexadecimal digits */
PyObject *cb_py_shape_tuple(const cb_shape *shape);
int cb_py_parse_budget(PyObject *item, cb_budget *out); /* (kind, bytes, share, measure) or None */
int cb_py_parse_preset(int number, cb_preset *out);
/* Raises ValueError unless the text is a device of the cost model: a name, or a row as JSON. */
PyObject *cb_py_check_device(PyObject *module, PyObject *name);

/* ---- claims.c -------------------------------------------------------------------------------- */

typedef struct cb_py_holder {
    uint64_t process; /* 1 + the number of forks that led to the process */
    unsigned long thread;
} cb_py_holder;

typedef struct cb_py_word {
    _Atomic uint64_t process; /* process of the holder; 0: the word is free */
    atomic_ulong thread;
} cb_py_word;
/* Takes the word. Returns false, with RuntimeError set, if another thread or an outer frame holds
 * it. */
bool cb_py_word_take(cb_py_word *word);
void cb_py_word_drop(cb_py_word *word);

/* The memory that a step is writing. A claim is part of a Python object, so it stays valid in a
 * forked process. */
typedef struct cb_py_claim {
    struct cb_py_claim *next;
    const cb_written *written; /* [n] */
    cb_written *own;           /* `written`, if it still has to be sorted on demand; or NULL */
    uint32_t n;
    bool is_sorted;
    cb_py_holder holder;
} cb_py_claim;

extern PyType_Spec cb_py_busy_word_spec;

/* ---- graph_type.c, step_type.c, compile.c ---------------------------------------------------- */

typedef struct cb_py_graph {
    PyObject_HEAD cb_py_context *context;
    cb_graph *core;
    atomic_bool busy; /* a call is using the graph; see cb_py_graph_enter */
} cb_py_graph;

/* Starts a call that uses the graph (claims.c). One call uses a graph at a time: another thread, or
 * a signal handler that interrupts a compile, gets a RuntimeError (and -1). */
int cb_py_graph_enter(cb_py_graph *graph);
void cb_py_graph_leave(cb_py_graph *graph);

/* ---- memory_type.c --------------------------------------------------------------------------- */

typedef struct cb_py_run_memory {
    PyObject_HEAD cb_py_context *context;
    cb_run_memory *core;
    PyObject *keeper;           /* capsule: allocator of results */
    PyObject *admit, *refused;  /* callbacks, or NULL */
    uint64_t wanted;            /* size that the block is growing to; 0: it is not growing */
    PyThread_type_lock lock;    /* held during a run of any step */
    atomic_ulong owner;         /* thread that holds the lock, 0: none */
    struct cb_py_step *running; /* the step that holds the lock */
    uint64_t n_forks;           /* cb_fork_count when the lock was made */
} cb_py_run_memory;

extern PyType_Spec cb_py_run_memory_spec;
/* Creates a RunMemory whose results `keeper` allocates. */
cb_py_run_memory *cb_py_run_memory_new(cb_py_state *state, PyObject *keeper);
/* Locks the memory for a run. Other threads run while it waits, and Ctrl-C interrupts it. Raises
 * RuntimeError (and returns -1) if this thread already holds the lock (a signal handler calls a
 * step), or if the process was forked while another thread ran the step. */
int cb_py_run_memory_lock(cb_py_run_memory *self, struct cb_py_step *step);
void cb_py_run_memory_unlock(cb_py_run_memory *self);
/* Returns 1 if this process was forked while another thread ran the step; -1 if an exception is
 * set. */
int cb_py_run_memory_has_left(cb_py_run_memory *self, const struct cb_py_step *step);
/* Asks the `admit` callback whether the block may grow for a run of the step; -1: it may not. */
int cb_py_run_memory_admit(cb_py_run_memory *self, const struct cb_py_step *step);
/* Called after an allocation of results failed with an exception. Returns 0 to try again, or -1
 * with an exception set to give up. */
int cb_py_run_memory_refused(cb_py_run_memory *self, const struct cb_py_step *step, bool gradients);

typedef struct cb_py_step {
    PyObject_HEAD cb_py_context *context;
    cb_step *core;
    uint32_t n_wrt;
    uint32_t *wrt;   /* [n_wrt] positions of the inputs that have gradients */
    bool *is_wrt;    /* [n_inputs] true if the input has a gradient */
    bool *has_state; /* [n_inputs] true if a run updates the input */
    void **pointers; /* [n_inputs + n_outputs + (1 + CB_MAX_STATES) n_wrt] scratch of a run */
    bool *there;     /* same size: true if the array is on the device */
    bool on_device;  /* the backend has device arrays */
    cb_py_run_memory *memory; /* the memory that the step runs in */
    bool is_left;             /* the process was forked while another thread ran the step, so that
                                 run never ends */
    cb_py_claim claim;        /* the memory that its optimizer writes */
} cb_py_step;

/* Kinds of outputs, `role_or_kind` of a cb_argument_info. */
enum { CB_PY_RESULT, CB_PY_STATE, CB_PY_GRADIENT };

/* True if an output needs a new array. If `gradients` is false, the caller has arrays for
 * gradients. */
static inline bool cb_py_is_made(const cb_argument_info *output, bool gradients) {
    return !output->inside && output->role_or_kind != CB_PY_STATE &&
           (gradients || output->role_or_kind != CB_PY_GRADIENT);
}

extern PyType_Spec cb_py_graph_spec, cb_py_step_spec;

/* These implement Graph.compile, Graph.decide and Graph.compile_text. */
PyObject *cb_py_compile(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_decide(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_compile_text(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cb_py_step_wrap(cb_py_state *state, cb_py_run_memory *memory, cb_step *core,
                          const uint32_t *wrt, uint32_t n_wrt,
                          bool on_device); /* takes ownership of `core`, even on failure */

/* ---- step_call.c ----------------------------------------------------------------------------- */

/* call(*addresses, block): runs the step on memory whose layout the caller guarantees. */
PyObject *cb_py_step_call(cb_py_step *self, PyObject *const *values, Py_ssize_t n);

/* ---- captured_type.c ------------------------------------------------------------------------- */

extern PyType_Spec cb_py_captured_spec;
/* Implements Step.capture. */
PyObject *cb_py_step_capture(cb_py_step *self, PyObject *const *values, Py_ssize_t n,
                             PyObject *names);

/* ---- profile_rows.c -------------------------------------------------------------------------- */

/* Returns a row (steps, seconds, bytes) for each of `n` groups. */
PyObject *cb_py_profile_rows(const cb_step *core, const double *seconds, const uint64_t *bytes,
                             uint32_t n);

/* ---- extras.c -------------------------------------------------------------------------------- */

typedef struct cb_py_rows { /* names of parameters, by row */
    const void *owner;
    const char *(*name)(const void *owner, uint32_t i);
    uint32_t n;
} cb_py_rows;

typedef struct cb_py_extras {
    cb_optim_extras core;
    cb_extra_row *rows; /* PyMem */
    PyObject *averages, *copies;
} cb_py_extras;

/* Parses `asked`: an object with the fields grad_factor, max_norm, average_keep, skips, zeroes,
 * averages and copies, or None. Returns 0 for None, 1 if the caller must drop `out`, -1 with an
 * exception set. */
int cb_py_extras_parse(PyObject *asked, const cb_py_rows *rows, cb_py_extras *out);
void cb_py_extras_drop(cb_py_extras *extras);
PyObject *cb_py_outcome(cb_optim_outcome outcome); /* (norm, skipped) */

/* Raises RuntimeError (and returns -1) if another running step writes some of the same memory. */
int cb_py_claim_take(cb_py_context *context, cb_py_claim *claim, const cb_py_rows *rows);
void cb_py_claim_drop(cb_py_context *context, const cb_py_claim *claim);
typedef struct cb_py_run_arrays cb_py_run_arrays;
typedef struct cb_py_joint_use cb_py_joint_use;
/* Lists the memory that a step with bound arrays writes. `extra`: [n_wrt], or NULL. */
void cb_py_claim_step(cb_py_step *step, const cb_py_run_arrays *run, const cb_extra_row *extra);

/* ---- signature.c ----------------------------------------------------------------------------- */

extern PyType_Spec cb_py_signature_spec;
PyObject *cb_py_on_device(PyObject *module, PyObject *arrays);

/* ---- step_arrays.c --------------------------------------------------------------------------- */

/* The arrays of one run; the tuples keep them alive while the GIL is released. */
struct cb_py_run_arrays {
    PyObject *inputs, *outputs;      /* tuples */
    PyObject *states[CB_MAX_STATES]; /* tuples, NULL from `n_state` on */
    bool is_stepped;                 /* an optimizer updates the parameters */
    uint32_t n_state;
    const cb_optimizer *optimizer; /* NULL: none */
    const char *state_name[CB_MAX_STATES];
};

/* Returns the type and the shape of state `s` of parameter k, where the parameter has this state.
 */
cb_argument_info cb_py_state_info(const cb_py_step *step, const cb_optimizer *core, uint32_t s,
                                  uint32_t k);

/* Checks every array and fills step->pointers and ->there: inputs, outputs, then for an optimizer
 * parameters and each of its states. */
int cb_py_bind(cb_py_step *step, const cb_py_run_arrays *run);
/* Checks one array that a run only reads, or one that it writes, and fills in its place. */
int cb_py_bind_input(cb_py_step *step, uint32_t i, PyObject *array);
int cb_py_bind_output(cb_py_step *step, uint32_t i, PyObject *array);
/* The first is called before a run on a stream, and orders it after pending work on its device
 * arrays. The second is called after the run, and records it as pending work; `stream` NULL: the
 * run has finished. */
cb_status cb_py_before_run(const cb_py_step *step, const cb_py_run_arrays *run, void *stream,
                           cb_error *err);
void cb_py_leave_pending(const cb_py_step *step, const cb_py_run_arrays *run, void *stream);
/* The same for two sets of arrays, the first of which is used jointly. */
cb_status cb_py_before_replay(const cb_py_step *step, const cb_py_run_arrays *graph,
                              const cb_py_joint_use *joint, const cb_py_run_arrays *copied,
                              void *stream, cb_error *err);
void cb_py_leave_replay(const cb_py_step *step, const cb_py_run_arrays *graph,
                        cb_py_joint_use *joint, const cb_py_run_arrays *copied, void *stream);

/* ---- optimizer.c ----------------------------------------------------------------------------- */

typedef struct cb_py_optimizer { /* the optimizer's part of a call */
    const cb_optimizer *core;
    uint32_t *group; /* [n_params] */
    double *hyper;   /* [n_groups][n_hyper] */
    double *number;  /* [n_params][n_number], borrowed; set by cb_py_optimizer_numbers */
    uint32_t n_hyper, n_groups, n_number;
    int64_t *t; /* number of steps taken, set by the caller */
} cb_py_optimizer;

/* Returns the optimizer with this name, or that of an Expression, which must be kept alive. Returns
 * NULL with an exception set on failure. */
const cb_optimizer *cb_py_optimizer_of(const cb_py_state *state, PyObject *object);
/* Drop `out` after a failure, too. */
int cb_py_optimizer_parse(const cb_optimizer *core, PyObject *groups, PyObject *group_of,
                          uint32_t n_params, cb_py_optimizer *out);
/* Parses the array of numbers (scalar states) of the parameters; -1: an exception is set. */
int cb_py_optimizer_numbers(PyObject *array, uint32_t n_params, cb_py_optimizer *out);
void cb_py_optimizer_drop(cb_py_optimizer *optimizer);
/* Raises ValueError (and returns -1) if the tuple has another length. */
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

/* ---- placing.c ------------------------------------------------------------------------------- */

PyObject *cb_py_place(PyObject *module, PyObject *args);

/* ---- problem_type.c, plan_type.c: see planned.h ---------------------------------------------- */

extern PyType_Spec cb_py_problem_spec, cb_py_plan_spec;

/* ---- numpy_bridge.c -------------------------------------------------------------------------- */

typedef struct cb_py_view {
    char *data;
    cb_shape shape;
    size_t bytes;
    cb_dtype dtype;
    bool known_dtype; /* false: the core does not have the dtype */
    bool is_bits16;   /* uint16: holds the bits of bf16 if ml_dtypes is not installed */
    bool contiguous, aligned, writable;
} cb_py_view;

int cb_py_numpy_init(void); /* call once per process; -1: exception set */
int cb_py_view_of(PyObject *object, const char *name,
                  cb_py_view *out); /* raises TypeError if it is not an ndarray */
/* Fast paths. The first is true for a contiguous, aligned array of f32 or f64, writable if
 * `written`; the second also needs the type and shape of `like`. */
bool cb_py_plain_array(PyObject *object, bool written, void **data, cb_dtype *dtype, int64_t *n);
bool cb_py_array_like(PyObject *object, PyObject *like, bool written, const void **data);
PyObject *cb_py_strides_text(PyObject *array); /* "(8, 4)" */
/* True for an ndarray, but not a subclass, whose dtype the core has. */
bool cb_py_plain_kind(PyObject *object, cb_dtype *dtype, cb_shape *shape);
/* True for a contiguous, aligned array of this dtype and shape, writable if `written`. Use
 * cb_py_view_of to find out why an array does not fit. */
bool cb_py_array_fits(PyObject *object, cb_dtype dtype, const cb_shape *shape, bool written,
                      void **data);
PyObject *cb_py_descr_of(cb_dtype dtype); /* NumPy's dtype; uint16 for bf16 without ml_dtypes */
/* Makes an array over foreign memory; steals `owner`. `byte_strides` NULL: row-major. */
PyObject *cb_py_array_over(cb_dtype dtype, const cb_shape *shape, const int64_t *byte_strides,
                           void *data, bool writable, PyObject *owner);

/* ---- kept_arrays.c: arrays in cached memory -------------------------------------------------- */

PyObject *cb_py_keeper_new(void);                         /* a capsule, NumPy's "mem_handler" */
int cb_py_keeper_limit(PyObject *keeper, uint64_t bytes); /* UINT64_MAX: no limit */
PyObject *cb_py_keeper_stats(PyObject *keeper);           /* -> {in_use, kept, n_fresh} */
PyObject *cb_py_keeper_release(PyObject *keeper);         /* -> bytes */
PyObject *cb_py_empty(PyObject *module, PyObject *args);  /* (shape, dtype) -> ndarray */
/* Makes a list with a new array for each output of a step that the caller gets, and None for the
 * others. If `gradients` is false, the caller has arrays for the gradients. */
PyObject *cb_py_empty_outputs(cb_py_step *step, bool gradients);
PyObject *cb_py_kept_memory(PyObject *module, PyObject *none);

/* ---- dlpack_bridge.c: the only file that knows DLPack's layout ------------------------------- */

PyObject *cb_py_from_dlpack(PyObject *module,
                            PyObject *args); /* (object, name) -> (ndarray, dtype name) */
PyObject *cb_py_to_dlpack(PyObject *module,
                          PyObject *args); /* (ndarray, dtype name[, versioned]) */

typedef struct
    cb_py_tensor { /* dense memory of floats or bytes; a complex number counts as two floats */
    void *data;
    int64_t n; /* elements of `dtype` */
    cb_dtype dtype;
    bool is_complex;
    bool is_bits; /* i16: raw bits (a remainder); `dtype` is bf16 */
    int32_t rank;
    const int64_t *shape, *strides; /* [rank], the tensor's own; strides in its elements */
} cb_py_tensor;

/* Returns the DLPack exchange functions of a tensor library, or NULL with an exception set. */
const void *cb_py_exchange_of(PyObject *capsule);
/* Fills in `out`; otherwise returns the reason why the tensor is not supported. */
const char *cb_py_tensor_of(const void *exchange, PyObject *object, cb_py_tensor *out);
/* True if a tensor has the type of `kind` and the shape and layout of its parameter; otherwise sets
 * the reason. */
bool cb_py_tensor_like(const cb_py_tensor *x, const cb_py_tensor *param, const cb_py_tensor *kind,
                       const char **why);

/* (object, name, stream) -> (dtype, shape, strides or None, address, kind and number of the device,
 * writable, owner, the library's stream or None if the library has ordered the streams itself) */
PyObject *cb_py_dlpack_parts(PyObject *module, PyObject *args);

/* ---- device_memory.c ------------------------------------------------------------------------- */

#define CB_PY_MOST_CONSUMERS (CB_MOST_MARKS - 1) /* one mark is for the last step */

/* The latest use of all arrays of a captured graph, so that a replay does not visit each of them.
 * While an array refers to it, the array's own `uses` have no marks of steps. */
struct cb_py_joint_use {
    uint32_t n_ref; /* the graph and its arrays */
    bool is_whole;  /* no array of the graph has been used by another step since */
    cb_mark *mark;  /* NULL: the use has finished */
    void *home;     /* its stream */
};
cb_py_joint_use *cb_py_joint_new(void);
void cb_py_joint_free(cb_py_joint_use *joint); /* NULL is fine */

typedef struct cb_py_device_memory {
    PyObject_HEAD cb_py_context *context;
    PyObject *owner; /* keeps foreign memory alive; NULL: our memory */
    void *data;
    size_t bytes;
    cb_dtype dtype;
    cb_shape shape;
    int device;
    bool writable;
    cb_block *block;                      /* NULL: foreign memory, or no bytes */
    cb_uses uses;                         /* marks that later work must wait for */
    void *consumer[CB_PY_MOST_CONSUMERS]; /* streams of other libraries that use the memory */
    uint32_t n_consumer;
    cb_py_joint_use *joint; /* NULL: none */
} cb_py_device_memory;

extern PyType_Spec cb_py_device_memory_spec;
PyObject *cb_py_device_release(PyObject *module, PyObject *none);       /* -> bytes */
PyObject *cb_py_device_stats(PyObject *module, PyObject *resets_peak);  /* -> dict */
PyObject *cb_py_device_order_streams(PyObject *module, PyObject *args); /* (before, after) */
PyObject *cb_py_device_ordinal(PyObject *module, PyObject *none);
PyObject *cb_py_has_cuda(PyObject *module, PyObject *none);
/* Makes a stream wait for the marks of several memories, once per mark. Begin with
 * {.stream = stream}. */
typedef struct cb_py_ordering {
    void *stream;
    const cb_mark *seen[CB_MOST_MARKS]; /* some of the marks already waited for */
    uint32_t n;
} cb_py_ordering;
cb_status cb_py_device_order(cb_py_device_memory *memory, cb_py_ordering *ordering, cb_error *err);
/* Records that work ordered after all marks uses the memory: `mark` is its end on the stream
 * `home`; NULL: it has finished. */
void cb_py_device_used(cb_py_device_memory *memory, cb_mark *mark, void *home);
/* Work ordered after all marks of the memory is about to use it jointly. */
void cb_py_joint_add(cb_py_joint_use *joint, cb_py_device_memory *memory);
/* These do what cb_py_device_order and cb_py_device_used do, for all memories of the joint use. */
cb_status cb_py_joint_order(const cb_py_joint_use *joint, void *stream, cb_error *err);
void cb_py_joint_used(cb_py_joint_use *joint, cb_mark *mark, void *home);
PyObject *cb_py_export_device(cb_py_device_memory *memory, bool versioned); /* dlpack_bridge.c */

/* ---- drawing.c ------------------------------------------------------------------------------- */

PyObject *cb_py_draw(PyObject *module, PyObject *args); /* (ndarray, law, seed, stream[, p]) */

/* ---- packing.c ------------------------------------------------------------------------------- */

PyObject *cb_py_pack_bits(PyObject *module, PyObject *args);   /* (bools, packed) */
PyObject *cb_py_unpack_bits(PyObject *module, PyObject *args); /* (packed, bools) */
/* Floats are passed as arrays of bytes, `width` for each float: (floats, width, infinity, packed),
 * and (from, packed, width, to). */
PyObject *cb_py_pack_signs(PyObject *module, PyObject *args);
PyObject *cb_py_keep_by_bits(PyObject *module, PyObject *args);
/* (indices, packed, windows, plane, kernel, stride, pad, dilation), and with packed first */
PyObject *cb_py_pack_windows(PyObject *module, PyObject *args);
PyObject *cb_py_unpack_windows(PyObject *module, PyObject *args);

/* ---- cuda.c: opens NVIDIA's libraries by path ------------------------------------------------ */

PyObject *cb_py_cuda_driver(PyObject *module, PyObject *path);
PyObject *cb_py_cuda_nvrtc(PyObject *module, PyObject *path);
PyObject *cb_py_cuda_blaslt(PyObject *module, PyObject *path);
PyObject *cb_py_set_cuda(PyObject *module, PyObject *args);

/* ---- blas.c ---------------------------------------------------------------------------------- */

/* Finds the matrix product of a BLAS that the process has already loaded; all fields are NULL if
 * there is none. The library stays loaded. `out->name` points into `name`. */
void cb_py_find_blas(cb_blas *out, char *name, size_t name_size, char *path, size_t path_size);

#endif
