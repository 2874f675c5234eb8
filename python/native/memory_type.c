/* memory_type.c: the type _native.RunMemory: the memory that steps run in, one at a time, and the
 * allocator of their results. */
#include "state.h"

#include "base/threads.h"

/* In a forked child, replaces the lock, which a thread that does not exist here may hold. A run of
 * that thread never ends, and the arrays of its step may be partly written. */
static int after_fork(cb_py_run_memory *self) {
    if (self->n_forks == cb_fork_count()) return 0;
    const unsigned long owner = atomic_load(&self->owner);
    if (owner == PyThread_get_thread_ident())
        return 0; /* the process was forked during a run, such as by a signal handler */
    PyThread_type_lock fresh = PyThread_allocate_lock();
    if (!fresh) {
        PyErr_NoMemory();
        return -1;
    }
    PyThread_free_lock(self->lock);
    self->lock = fresh;
    if (owner && self->running) self->running->is_left = true;
    self->running = NULL;
    self->wanted = 0;
    atomic_store(&self->owner, 0);
    self->n_forks = cb_fork_count();
    return 0;
}

int cb_py_run_memory_has_left(cb_py_run_memory *self, const cb_py_step *step) {
    return after_fork(self) < 0 ? -1 : step->is_left;
}

static void refuse_nested(const cb_py_run_memory *self, const cb_py_step *step) {
    PyErr_SetString(PyExc_RuntimeError,
                    self->running == step
                        ? "this step is already running, further up this thread's stack"
                        : "another step is already running in this step's memory, further up this "
                          "thread's stack; "
                          "a step that is called inside another one needs a separate memory");
}

int cb_py_run_memory_lock(cb_py_run_memory *self, cb_py_step *step) {
    if (after_fork(self) < 0) return -1;
    if (step->is_left) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this process was forked while another thread ran this step, so its "
                        "updates may be incomplete: load a checkpoint and compile the step "
                        "again, or fork between steps");
        return -1;
    }
    const unsigned long me = PyThread_get_thread_ident();
    if (atomic_load(&self->owner) == me) {
        refuse_nested(self, step);
        return -1;
    }
    PyLockStatus got = PyThread_acquire_lock_timed(self->lock, 0, 0);
    while (got != PY_LOCK_ACQUIRED) {
        Py_BEGIN_ALLOW_THREADS got = PyThread_acquire_lock_timed(self->lock, 50000, 0);
        Py_END_ALLOW_THREADS if (got != PY_LOCK_ACQUIRED && PyErr_CheckSignals() < 0) return -1;
    }
    atomic_store(&self->owner, me);
    self->running = step;
    return 0;
}

void cb_py_run_memory_unlock(cb_py_run_memory *self) {
    self->wanted = 0;
    self->running = NULL;
    atomic_store(&self->owner, 0);
    PyThread_release_lock(self->lock);
}

int cb_py_run_memory_admit(cb_py_run_memory *self, const cb_py_step *step) {
    const uint64_t more = cb_step_growth(step->core);
    if (more == 0 || !self->admit) return 0;
    PyObject *bytes = PyLong_FromUnsignedLongLong(more);
    PyObject *done =
        bytes ? PyObject_CallFunctionObjArgs(self->admit, (PyObject *)self, bytes, NULL) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

int cb_py_run_memory_refused(cb_py_run_memory *self, const cb_py_step *step, bool gradients) {
    if (!self->refused || !PyErr_ExceptionMatches(PyExc_MemoryError)) return -1;
    PyErr_Clear();
    PyObject *sizes = PyList_New(0);
    for (uint32_t i = 0; sizes && i < cb_step_n_outputs(step->core); i++) {
        const cb_argument_info info = cb_step_output(step->core, i);
        if (!cb_py_is_made(&info, gradients)) continue;
        PyObject *bytes = PyLong_FromUnsignedLongLong(info.bytes);
        if (!bytes || PyList_Append(sizes, bytes) < 0) Py_CLEAR(sizes);
        Py_XDECREF(bytes);
    }
    PyObject *done =
        sizes ? PyObject_CallFunctionObjArgs(self->refused, (PyObject *)self, sizes, NULL) : NULL;
    Py_XDECREF(sizes);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* ---- the type -------------------------------------------------------------------------------- */

static int set_hook(PyObject **hook, PyObject *given, const char *name) {
    if (given == Py_None) return 0;
    if (!PyCallable_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%s must be a function or None", name);
        return -1;
    }
    *hook = Py_NewRef(given);
    return 0;
}

static int fill(cb_py_run_memory *self, cb_py_state *state, PyObject *keeper) {
    cb_error error = {0};
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return -1;
    self->context = cb_py_context_retain(context);
    self->keeper = Py_NewRef(keeper);
    self->lock = PyThread_allocate_lock();
    self->n_forks = cb_fork_count();
    if (!self->lock) {
        PyErr_NoMemory();
        return -1;
    }
    if (cb_run_memory_new(context->core, &self->core, &error) == CB_OK) return 0;
    cb_py_raise(state, &error, NULL);
    return -1;
}

cb_py_run_memory *cb_py_run_memory_new(cb_py_state *state, PyObject *keeper) {
    PyTypeObject *type = state->run_memory_type;
    cb_py_run_memory *self = (cb_py_run_memory *)type->tp_alloc(type, 0);
    if (self && fill(self, state, keeper) < 0) Py_CLEAR(self);
    return self;
}

/* Returns the allocator of results: a new one, that of another RunMemory, or the module's. */
static PyObject *keeper_of(const cb_py_state *state, PyObject *like, int own) {
    if (own) return cb_py_keeper_new();
    if (like == Py_None) return Py_NewRef(state->keeper);
    if (PyObject_TypeCheck(like, state->run_memory_type))
        return Py_NewRef(((cb_py_run_memory *)like)->keeper);
    return PyErr_Format(PyExc_TypeError, "like must be a RunMemory");
}

/* RunMemory(like=None, admit=None, refused=None, own=False) */
static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"like", "admit", "refused", "own", NULL};
    cb_py_state *state = PyType_GetModuleState(type);
    PyObject *like = Py_None, *admit = Py_None, *refused = Py_None;
    int own = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOp:RunMemory", names, &like, &admit,
                                     &refused, &own))
        return NULL;
    PyObject *keeper = keeper_of(state, like, own);
    cb_py_run_memory *self = keeper ? cb_py_run_memory_new(state, keeper) : NULL;
    Py_XDECREF(keeper);
    if (self && (set_hook(&self->admit, admit, "admit") < 0 ||
                 set_hook(&self->refused, refused, "refused") < 0))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int memory_traverse(cb_py_run_memory *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->admit);
    Py_VISIT(self->refused);
    return 0;
}

static int memory_clear(cb_py_run_memory *self) {
    Py_CLEAR(self->admit);
    Py_CLEAR(self->refused);
    return 0;
}

static void memory_dealloc(cb_py_run_memory *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)memory_clear(self);
    cb_run_memory_free(self->core);
    cb_py_context_release(self->context);
    Py_XDECREF(self->keeper);
    if (self->lock) PyThread_free_lock(self->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Frees the block, unless a run is using it, and returns its bytes. */
static PyObject *memory_release(cb_py_run_memory *self, PyObject *Py_UNUSED(none)) {
    uint64_t bytes = 0;
    if (after_fork(self) < 0) return NULL;
    if (PyThread_acquire_lock_timed(self->lock, 0, 0) == PY_LOCK_ACQUIRED) {
        Py_BEGIN_ALLOW_THREADS bytes = cb_run_memory_release(self->core);
        Py_END_ALLOW_THREADS PyThread_release_lock(self->lock);
    }
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *memory_reserve(cb_py_run_memory *self, PyObject *more) {
    const unsigned long long bytes = PyLong_AsUnsignedLongLong(more);
    if (PyErr_Occurred()) return NULL;
    self->wanted = cb_run_memory_bytes(self->core) + bytes;
    Py_RETURN_NONE;
}

static PyObject *memory_limit_results(cb_py_run_memory *self, PyObject *limit) {
    uint64_t bytes = UINT64_MAX;
    if (limit != Py_None) bytes = PyLong_AsUnsignedLongLong(limit);
    if (PyErr_Occurred() || cb_py_keeper_limit(self->keeper, bytes) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *memory_results(cb_py_run_memory *self, PyObject *Py_UNUSED(none)) {
    return cb_py_keeper_stats(self->keeper);
}

static PyObject *memory_release_results(cb_py_run_memory *self, PyObject *Py_UNUSED(none)) {
    return cb_py_keeper_release(self->keeper);
}

static PyObject *memory_bytes(cb_py_run_memory *self, void *Py_UNUSED(closure)) {
    const uint64_t there = cb_run_memory_bytes(self->core);
    return PyLong_FromUnsignedLongLong(there > self->wanted ? there : self->wanted);
}

static PyMethodDef memory_methods[] = {
    {"release", (PyCFunction)memory_release, METH_NOARGS,
     "release() -> bytes of the block that was freed; 0 while a step is running in it"},
    {"reserve", (PyCFunction)memory_reserve, METH_O,
     "reserve(more, /): called in admit; counts `more` additional bytes until the run ends"},
    {"limit_results", (PyCFunction)memory_limit_results, METH_O,
     "limit_results(bytes, /): limits the bytes of results and cached memory; None: no limit"},
    {"results", (PyCFunction)memory_results, METH_NOARGS, "results() -> {in_use, kept, n_fresh}"},
    {"release_results", (PyCFunction)memory_release_results, METH_NOARGS,
     "release_results() -> bytes of cached result memory that were freed"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef memory_getset[] = {
    {"bytes", (getter)memory_bytes, NULL, "bytes of the block", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc,
     "RunMemory(like=None, admit=None, refused=None, own=False): a block that steps run in, one at "
     "a time, as large as the largest step needs. Results are allocated by a new allocator (own), "
     "that of `like`, or the module's. "
     "admit(self, more) may raise before the block grows, refused(self, sizes) if results cannot "
     "be allocated."},
    {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_traverse, memory_traverse},
    {Py_tp_clear, memory_clear},
    {Py_tp_methods, memory_methods},
    {Py_tp_getset, memory_getset},
    {0, NULL},
};

PyType_Spec cb_py_run_memory_spec = {
    .name = "cutback._native.RunMemory",
    .basicsize = sizeof(cb_py_run_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_slots,
};
