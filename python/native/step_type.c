/* step_type.c: the type _native.Step, a compiled training step. */
#include "planned.h"

#include "base/dtype.h"
#include "base/shape.h"
#include "base/threads.h"
#include "step_fields.h"

static PyObject *raise(cb_py_step *self, const cb_error *error) {
    return cb_py_raise(cb_py_state_of_object((PyObject *)self), error, NULL);
}

/* Fills in is_wrt and has_state. */
static void note_facts(cb_py_step *self) {
    for (uint32_t k = 0; k < self->n_wrt; k++) self->is_wrt[self->wrt[k]] = true;
    for (uint32_t i = 0; i < cb_step_n_outputs(self->core); i++) {
        const cb_argument_info info = cb_step_output(self->core, i);
        if (info.role_or_kind == CB_PY_STATE) self->has_state[info.input] = true;
    }
}

PyObject *cb_py_step_wrap(cb_py_state *state, cb_py_run_memory *memory, cb_step *core,
                          const uint32_t *wrt, uint32_t n_wrt, bool on_device) {
    cb_py_step *self = (cb_py_step *)state->step_type->tp_alloc(state->step_type, 0);
    if (!self) {
        cb_step_free(core);
        return NULL;
    }
    self->core = core;
    self->context = cb_py_context_retain(memory->context);
    self->memory = (cb_py_run_memory *)Py_NewRef(memory);
    size_t n_pointers =
        cb_step_n_inputs(core) + cb_step_n_outputs(core) + (1 + CB_MAX_STATES) * (size_t)n_wrt;
    self->n_wrt = n_wrt;
    self->on_device = on_device;
    self->wrt = PyMem_New(uint32_t, (size_t)n_wrt + 1);
    self->is_wrt = PyMem_Calloc((size_t)cb_step_n_inputs(core) + 1, sizeof(bool));
    self->has_state = PyMem_Calloc((size_t)cb_step_n_inputs(core) + 1, sizeof(bool));
    self->pointers = PyMem_New(void *, n_pointers + 1);
    self->there = PyMem_New(bool, n_pointers + 1);
    self->claim.own = PyMem_New(cb_written, (3 + CB_MAX_STATES) * (size_t)n_wrt + 1);
    if (!self->wrt || !self->is_wrt || !self->has_state || !self->pointers || !self->there ||
        !self->claim.own) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if (n_wrt) memcpy(self->wrt, wrt, n_wrt * sizeof *wrt);
    note_facts(self);
    return (PyObject *)self;
}

static int step_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((cb_py_step *)self)->memory);
    return 0;
}

static void step_dealloc(cb_py_step *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    cb_step_free(self->core);
    cb_py_context_release(self->context);
    PyMem_Free(self->wrt);
    PyMem_Free(self->is_wrt);
    PyMem_Free(self->has_state);
    PyMem_Free(self->pointers);
    PyMem_Free(self->there);
    PyMem_Free(self->claim.own);
    Py_XDECREF(self->memory);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- running
 * --------------------------------------------------------------------------------------------- */

static int lock(cb_py_step *self) { return cb_py_run_memory_lock(self->memory, self); }

static void unlock(cb_py_step *self) { cb_py_run_memory_unlock(self->memory); }

/* Finds out whether any arrays are on the host or on the device. Host arrays are copied, and the
 * call waits for the copies. */
static void places(const cb_py_step *self, const cb_py_run_arrays *run, bool *host, bool *device) {
    size_t n = cb_step_n_inputs(self->core) + cb_step_n_outputs(self->core);
    if (run->is_stepped) n += (1 + (size_t)run->n_state) * self->n_wrt;
    *host = *device = false;
    for (size_t i = 0; i < n; i++) {
        *host |= self->pointers[i] && !self->there[i];
        *device |= self->there[i];
    }
    *host |= !*device;
}

/* Orders the run after pending work on its arrays. Without a stream, the run uses the device's own
 * stream, after the legacy stream, with which other libraries synchronize. */
static int order_arrays(cb_py_step *self, const cb_py_run_arrays *arrays, void *stream) {
    void *const legacy = (void *)1;
    cb_error error;
    cb_status status = cb_py_before_run(self, arrays, stream, &error);
    if (status == CB_OK && !stream)
        status = cb_memory_order(self->context->core, "cuda", legacy, NULL, &error);
    if (status == CB_OK) return 0;
    raise(self, &error);
    return -1;
}

/* The optimizer's update after a run. */
typedef struct update_call {
    cb_py_optimizer opt;
    const cb_optim_extras *extras; /* NULL: none */
    cb_optim_outcome outcome;
} update_call;

static cb_update update_of(const cb_py_step *self, update_call *call, int64_t t, bool on_host,
                           void *const *const *states) {
    const size_t n = cb_step_n_inputs(self->core) + (size_t)cb_step_n_outputs(self->core);
    const cb_py_optimizer *opt = &call->opt;
    return (cb_update){.params = self->pointers + n,
                       .states = states,
                       .t = t,
                       .on_host = on_host,
                       .there = self->there + n,
                       .optimizer = opt->core,
                       .group = opt->group,
                       .hyper = opt->hyper,
                       .n_groups = opt->n_groups,
                       .numbers = opt->number,
                       .extras = call->extras,
                       .outcome = &call->outcome};
}

static PyObject *execute(cb_py_step *self, const cb_py_run_arrays *arrays, const cb_run *settings,
                         update_call *call, const cb_py_draw_count *draws) {
    uint32_t n_in = cb_step_n_inputs(self->core), n_out = cb_step_n_outputs(self->core);
    void **params = self->pointers + n_in + n_out;
    void *const *states[CB_MAX_STATES];
    bool on_host, on_device;
    places(self, arrays, &on_host, &on_device);
    cb_run run = *settings;
    run.inputs = self->pointers;
    run.outputs = self->pointers + n_in;
    run.on_host = on_host;
    run.there = self->there;
    run.poll = cb_py_poll;
    cb_run_result result = {0};
    cb_error error = {0};
    int64_t taken;
    const cb_py_optimizer *opt = call ? &call->opt : NULL;
    if (cb_py_steps_taken(opt, &taken) < 0) return NULL;
    if (cb_py_run_memory_admit(self->memory, self) < 0) return NULL;
    if (on_device && order_arrays(self, arrays, run.stream) < 0) return NULL;
    for (size_t s = 0; s < CB_MAX_STATES; s++) states[s] = params + (1 + s) * self->n_wrt;
    cb_update update = {0};
    if (opt) update = update_of(self, call, taken + 1, on_host, states);
    const bool inside = opt && cb_step_updates_inside(self->core);
    update.run = &run;
    if (inside) run.update = &update;

    const bool waits = on_host || !run.stream;
    double seconds = 0;
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    run.poll_user = &work;
    cb_status status = opt && !inside ? cb_step_check_update(self->core, &update, &error) : CB_OK;
    if (status == CB_OK) status = cb_step_run(self->core, &run, &result, &error);
    if (status == CB_OK && opt && !inside) status = cb_step_update(self->core, &update, &error);
    if (status == CB_OK && waits) status = cb_step_wait(self->core, &seconds, &error);
    if (status == CB_OK && opt && !call->outcome.skipped) *opt->t = taken + 1;
    if (status == CB_OK && draws && draws->at) *draws->at = draws->next;
    if (status != CB_OK && on_device) /* wait for work that was launched before the failure */
        (void)(cb_memory_wait(self->context->core, "cuda", run.stream, NULL) == CB_OK);
    cb_py_work_end(&work);
    if (status == CB_OK && on_device) cb_py_leave_pending(self, arrays, waits ? NULL : run.stream);
    if (status != CB_OK) return raise(self, &error);
    return Py_BuildValue("(KKd)", (unsigned long long)result.peak_bytes,
                         (unsigned long long)result.n_alloc, seconds);
}

static const char *parameter_name(const void *owner, uint32_t i) {
    const cb_py_step *self = owner;
    return cb_step_input(self->core, self->wrt[i]).name;
}

/* Executes the run; with an optimizer, claims the memory that it writes. */
static PyObject *claim_and_execute(cb_py_step *self, const cb_py_run_arrays *run,
                                   const cb_run *settings, update_call *call,
                                   const cb_py_draw_count *draws) {
    const cb_py_rows rows = {.owner = self, .name = parameter_name, .n = self->n_wrt};
    if (!call) return execute(self, run, settings, call, draws);
    cb_py_claim_step(self, run, call->extras ? call->extras->rows : NULL);
    if (cb_py_claim_take(self->context, &self->claim, &rows) < 0) return NULL;
    PyObject *result = execute(self, run, settings, call, draws);
    cb_py_claim_drop(self->context, &self->claim);
    return result;
}

static PyObject *bind_and_execute(cb_py_step *self, const cb_py_run_arrays *run,
                                  const cb_run *settings, update_call *call,
                                  const cb_py_draw_count *draws) {
    if (lock(self) < 0) return NULL;
    PyObject *result =
        cb_py_bind(self, run) == 0 ? claim_and_execute(self, run, settings, call, draws) : NULL;
    unlock(self);
    return result;
}

/* run(*, inputs, outputs, seed, random_step, count=None, next=0, stream=None)
 * -> (peak_bytes, n_alloc, seconds) */
static PyObject *step_run(cb_py_step *self, PyObject *const *values, Py_ssize_t n,
                          PyObject *names) {
    static const cb_py_field fields[] = {CB_PY_RUN_FIELDS(cb_py_run_fields, )};
    cb_py_run_fields given = {.count = Py_None, .next = Py_None, .stream = Py_None};
    const cb_py_call as_called = {values, n, names};
    cb_py_draw_count draws = {0};
    cb_run settings = {0};
    cb_py_run_arrays run = {.inputs = NULL};
    if (CB_PY_READ_FIELDS("run", as_called, fields, &given) < 0 ||
        cb_py_parse_settings(&given, &settings, &draws) < 0)
        return NULL;
    PyObject *result = cb_py_take_arrays(&given, &run) == 0
                           ? bind_and_execute(self, &run, &settings, NULL, &draws)
                           : NULL;
    cb_py_drop_arrays(&run);
    return result;
}

/* profile(inputs, outputs, seed, random_step) -> ((steps, seconds, bytes), ...), a row per group */
static PyObject *step_profile(cb_py_step *self, PyObject *args) {
    PyObject *inputs, *outputs, *ran = NULL, *rows = NULL;
    unsigned long long seed;
    unsigned int random_step;
    if (!PyArg_ParseTuple(args, "OOKI:profile", &inputs, &outputs, &seed, &random_step))
        return NULL;
    uint32_t n = cb_step_get_numbers(self->core).n_groups;
    cb_py_run_arrays run = {.inputs = PySequence_Tuple(inputs)};
    run.outputs = run.inputs ? PySequence_Tuple(outputs) : NULL;
    double *seconds = PyMem_New(double, (size_t)n + 1);
    uint64_t *bytes = PyMem_Calloc((size_t)n + 1, sizeof *bytes);
    if (!seconds || !bytes) PyErr_NoMemory();
    cb_run settings = {
        .seed = seed, .random_step = random_step, .group_seconds = seconds, .group_bytes = bytes};
    if (run.outputs && !PyErr_Occurred()) ran = bind_and_execute(self, &run, &settings, NULL, NULL);
    if (ran) rows = cb_py_profile_rows(self->core, seconds, bytes, n);
    Py_XDECREF(ran);
    PyMem_Free(seconds);
    PyMem_Free(bytes);
    cb_py_drop_arrays(&run);
    return rows;
}

static const cb_py_field in_train[] = {
    CB_PY_RUN_FIELDS(cb_py_train_fields, run.), CB_PY_FIELD(cb_py_train_fields, optimizer),
    CB_PY_FIELD(cb_py_train_fields, states),    CB_PY_FIELD(cb_py_train_fields, group_of),
    CB_PY_FIELD(cb_py_train_fields, groups),    CB_PY_FIELD(cb_py_train_fields, t),
    CB_PY_FIELD(cb_py_train_fields, numbers),   CB_PY_FIELD(cb_py_train_fields, extras),
};

static PyObject *train(cb_py_step *self, const cb_py_run_arrays *run, const cb_run *settings,
                       update_call *call, const cb_py_draw_count *draws, PyObject *asked) {
    const cb_py_rows rows = {.owner = self, .name = parameter_name, .n = self->n_wrt};
    cb_py_extras extras;
    const int some = cb_py_extras_parse(asked, &rows, &extras);
    if (some < 0) return NULL;
    call->outcome.norm = -1;
    call->extras = some ? &extras.core : NULL;
    PyObject *measured = bind_and_execute(self, run, settings, call, draws);
    if (some) cb_py_extras_drop(&extras);
    return measured ? Py_BuildValue("(NN)", measured, cb_py_outcome(call->outcome)) : NULL;
}

/* train(*, inputs, outputs, seed, random_step, optimizer, states, group_of, groups, t, numbers,
 * extras=None, count=None, next=0, stream=None)
 * -> ((peak_bytes, n_alloc, seconds), (norm, skipped)) */
static PyObject *step_train(cb_py_step *self, PyObject *const *values, Py_ssize_t n,
                            PyObject *names) {
    cb_py_train_fields given = {.run = {.count = Py_None, .next = Py_None, .stream = Py_None},
                                .extras = Py_None};
    const cb_py_call as_called = {values, n, names};
    cb_py_draw_count draws = {0};
    update_call call = {.extras = NULL};
    cb_run settings = {0};
    cb_py_run_arrays run = {.is_stepped = true};
    PyObject *result = NULL;
    if (CB_PY_READ_FIELDS("train", as_called, in_train, &given) < 0) return NULL;
    if (cb_py_parse_update(self, &given, &call.opt) == 0 &&
        cb_py_parse_settings(&given.run, &settings, &draws) == 0 &&
        cb_py_take_arrays(&given.run, &run) == 0 &&
        cb_py_parse_states(given.states, call.opt.core, &run) == 0)
        result = train(self, &run, &settings, &call, &draws, given.extras);
    cb_py_drop_arrays(&run);
    cb_py_optimizer_drop(&call.opt);
    return result;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static PyObject *step_text(cb_py_step *self, PyObject *what) {
    const char *name = PyUnicode_AsUTF8(what);
    if (!name) return NULL;
    cb_error error = {0};
    char *text = NULL;
    if (cb_step_text(self->core, name, &text, &error) != CB_OK) return raise(self, &error);
    PyObject *result = PyUnicode_FromString(text);
    cb_text_free(self->context->core, text);
    return result;
}

static PyObject *argument_row(const cb_argument_info *a) {
    return Py_BuildValue("(ssNKikO)", a->name, cb_dtype_name(a->dtype),
                         cb_py_shape_tuple(&a->shape), (unsigned long long)a->bytes,
                         a->role_or_kind, (unsigned long)a->input, a->inside ? Py_True : Py_False);
}

static PyObject *argument_rows(const cb_py_step *self, uint32_t n,
                               cb_argument_info (*get)(const cb_step *, uint32_t)) {
    PyObject *rows = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; rows && i < n; i++) {
        cb_argument_info info = get(self->core, i);
        PyObject *row = argument_row(&info);
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    return rows;
}

static PyObject *step_inputs(cb_py_step *self, void *Py_UNUSED(closure)) {
    return argument_rows(self, cb_step_n_inputs(self->core), cb_step_input);
}

static PyObject *step_outputs(cb_py_step *self, void *Py_UNUSED(closure)) {
    return argument_rows(self, cb_step_n_outputs(self->core), cb_step_output);
}

static PyObject *bytes_or_none(uint64_t bytes) {
    if (bytes == UINT64_MAX) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *step_follows(cb_py_step *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(cb_step_follows(self->core));
}

static PyObject *step_bytes(cb_py_step *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(cb_step_bytes(self->core));
}

static PyObject *step_run_bytes(cb_py_step *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(cb_step_run_bytes(self->core));
}

static PyObject *step_numbers(cb_py_step *self, void *Py_UNUSED(closure)) {
    cb_step_numbers n = cb_step_get_numbers(self->core);
    return Py_BuildValue("{sK sK sK sK sK sK sK sN sL sL sL sk sk}", "arena_bytes", n.arena_bytes,
                         "live_bytes", n.live_bytes, "saved_bytes", n.saved_bytes, "total_bytes",
                         n.total_bytes, "save_all_arena_bytes", n.save_all_arena_bytes,
                         "save_all_live_bytes", n.save_all_live_bytes, "save_all_saved_bytes",
                         n.save_all_saved_bytes, "budget_bytes", bytes_or_none(n.budget_bytes),
                         "time_ps", n.time_ps, "once_ps", n.once_ps, "lower_bound_ps",
                         n.lower_bound_ps, "n_groups", (unsigned long)n.n_groups, "n_recomputed",
                         (unsigned long)n.n_recomputed);
}

/* Waits for the last run on a stream, without the GIL. */
static PyObject *step_wait(cb_py_step *self, PyObject *Py_UNUSED(none)) {
    double seconds = 0;
    cb_error error = {0};
    cb_py_work work;
    if (lock(self) < 0) return NULL;
    cb_py_work_begin(&work, self->context);
    const cb_status status = cb_step_wait(self->core, &seconds, &error);
    cb_py_work_end(&work);
    unlock(self);
    return status == CB_OK ? PyFloat_FromDouble(seconds) : raise(self, &error);
}

static PyObject *step_update_seconds(cb_py_step *self, PyObject *Py_UNUSED(none)) {
    double seconds = 0;
    cb_error error = {0};
    cb_py_work work;
    if (lock(self) < 0) return NULL;
    cb_py_work_begin(&work, self->context);
    const cb_status status = cb_step_update_seconds(self->core, &seconds, &error);
    cb_py_work_end(&work);
    unlock(self);
    return status == CB_OK ? PyFloat_FromDouble(seconds) : raise(self, &error);
}

static PyObject *step_empty_outputs(cb_py_step *self, PyObject *gradients) {
    const int all = PyObject_IsTrue(gradients);
    if (all < 0) return NULL;
    PyObject *arrays = cb_py_empty_outputs(self, all);
    if (arrays || cb_py_run_memory_refused(self->memory, self, all) < 0) return arrays;
    return cb_py_empty_outputs(self, all);
}

/* Returns the plan that the step was compiled from; it shares the step's memory. */
static PyObject *step_plan(cb_py_step *self, PyObject *Py_UNUSED(none)) {
    cb_py_state *state = cb_py_state_of_object((PyObject *)self);
    PyObject *owner = (PyObject *)self;
    PyObject *problem =
        cb_py_problem_wrap(state, self->context, cb_step_problem(self->core), owner);
    if (!problem) return NULL;
    PyObject *plan =
        cb_py_plan_wrap(state, (cb_py_problem *)problem, cb_step_plan(self->core), owner);
    Py_DECREF(problem);
    return plan;
}

static PyMethodDef step_methods[] = {
    {"plan", (PyCFunction)step_plan, METH_NOARGS, "plan() -> the Plan that it was compiled from"},
    {"empty_outputs", (PyCFunction)step_empty_outputs, METH_O,
     "empty_outputs(gradients, /) -> list of new arrays; None for outputs that the caller does not "
     "get, and for gradients if `gradients` is false"},
    {"update_seconds", (PyCFunction)step_update_seconds, METH_NOARGS,
     "update_seconds() -> seconds of the latest update, after waiting for it; 0: there was none"},
    {"capture", (PyCFunction)(void (*)(void))cb_py_step_capture, METH_FASTCALL | METH_KEYWORDS,
     "capture(*, inputs, outputs, seed, random_step, optimizer=None, states=None, group_of=None, "
     "groups=None, t=None, numbers=None) -> Captured: the run, and the optimizer's step after it, "
     "as one graph; all arrays are on the device"},
    {"wait", (PyCFunction)step_wait, METH_NOARGS,
     "wait() -> seconds of the latest run, after waiting for it"},
    {"run", (PyCFunction)(void (*)(void))step_run, METH_FASTCALL | METH_KEYWORDS,
     "run(*, inputs, outputs, seed, random_step, count=None, next=0, stream=None) -> (peak_bytes, "
     "n_alloc, seconds); a run that succeeds sets count, an array of one i64, to next"},
    {"profile", (PyCFunction)step_profile, METH_VARARGS,
     "profile(inputs, outputs, seed, random_step, /) -> ((steps, seconds, bytes), ...): one row "
     "per "
     "kernel; only the debug backend counts bytes"},
    {"train", (PyCFunction)(void (*)(void))step_train, METH_FASTCALL | METH_KEYWORDS,
     "train(*, inputs, outputs, seed, random_step, optimizer, states, group_of, groups, t, "
     "numbers, extras=None, count=None, next=0, stream=None) -> ((peak_bytes, n_alloc, seconds), "
     "(norm, skipped)); count and next as for run, extras as for OptimizerTable.ask"},
    {"call", (PyCFunction)(void (*)(void))cb_py_step_call, METH_FASTCALL,
     "call(*addresses, block[, seed], /): runs on memory of the caller: the addresses of all "
     "inputs and outputs, then of run_bytes bytes of scratch (0 if it needs none), then the seed "
     "of random numbers"},
    {"text", (PyCFunction)step_text, METH_O,
     "text(what, /): \"joint\", \"plan\", ... see cb_step_text"},
    {NULL, NULL, 0, NULL},
};

static PyObject *step_is_left(cb_py_step *self, void *closure) {
    (void)closure;
    const int is_left = cb_py_run_memory_has_left(self->memory, self);
    return is_left < 0 ? NULL : PyBool_FromLong(is_left);
}

static PyObject *step_updates(cb_py_step *self, void *closure) {
    (void)closure;
    return Py_BuildValue("(Ns)", PyBool_FromLong(cb_step_updates_inside(self->core)),
                         cb_step_updates_reason(self->core));
}

static PyGetSetDef step_getset[] = {
    {"inputs", (getter)step_inputs, NULL, "((name, dtype, shape, bytes, role, input, inside), ...)",
     NULL},
    {"outputs", (getter)step_outputs, NULL,
     "((name, dtype, shape, bytes, kind, input, inside), ...)", NULL},
    {"follows", (getter)step_follows, NULL, "whether the plan follows given decisions", NULL},
    {"is_left", (getter)step_is_left, NULL,
     "whether this process was forked while another thread ran the step", NULL},
    {"updates", (getter)step_updates, NULL,
     "(whether runs update parameters, why they do not although it was requested)", NULL},
    {"nbytes", (getter)step_bytes, NULL, "bytes that the compiled program holds in the core", NULL},
    {"run_bytes", (getter)step_run_bytes, NULL, "bytes of scratch that a run needs", NULL},
    {"numbers", (getter)step_numbers, NULL, "planned bytes and modelled times", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot step_slots[] = {
    {Py_tp_doc, "A compiled training step; made by Graph.compile."},
    {Py_tp_dealloc, step_dealloc},
    {Py_tp_traverse, step_traverse},
    {Py_tp_methods, step_methods},
    {Py_tp_getset, step_getset},
    {0, NULL},
};

PyType_Spec cb_py_step_spec = {
    .name = "cutback._native.Step",
    .basicsize = sizeof(cb_py_step),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = step_slots,
};
