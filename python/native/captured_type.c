/* captured_type.c: the type _native.Captured: a run of a step, and the optimizer's step after it,
 * captured as a graph of the device. */
#include "include/cutback_capture.h"
#include "step_fields.h"

typedef struct cb_py_captured {
    PyObject_HEAD cb_py_step *step;
    cb_captured *core;
    cb_py_run_arrays arrays;  /* the arrays that the graph reads and writes */
    cb_py_joint_use *use;     /* their latest use */
    cb_captured_copy *copies; /* [n_copied + n_made] inputs and outputs that replays copy */
    uint32_t n_copied, n_made;
    cb_py_claim claim;             /* the memory that its optimizer writes */
    const cb_optimizer *optimizer; /* NULL: none */
    PyObject *named;               /* the object that named the optimizer and keeps it alive */
} cb_py_captured;

static PyObject *raise(cb_py_captured *self, const cb_error *error) {
    return cb_py_raise(cb_py_state_of_object((PyObject *)self), error, NULL);
}

static const char *parameter_name(const void *owner, uint32_t i) {
    const cb_py_step *step = owner;
    return cb_step_input(step->core, step->wrt[i]).name;
}

/* ---- creation -------------------------------------------------------------------------------- */

static int captured_traverse(cb_py_captured *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->step);
    Py_VISIT(self->arrays.inputs);
    Py_VISIT(self->arrays.outputs);
    for (int s = 0; s < CB_MAX_STATES; s++) Py_VISIT(self->arrays.states[s]);
    Py_VISIT(self->named);
    return 0;
}

static void captured_dealloc(cb_py_captured *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_BEGIN_ALLOW_THREADS cb_captured_free(self->core);
    Py_END_ALLOW_THREADS PyMem_Free(self->claim.own);
    PyMem_Free(self->copies);
    cb_py_joint_free(self->use);
    cb_py_drop_arrays(&self->arrays);
    Py_XDECREF(self->named);
    Py_XDECREF(self->step);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Copies the step's current claim on the memory that the optimizer writes. */
static int keep_claim(cb_py_captured *self) {
    cb_py_step *step = self->step;
    cb_py_claim_step(step, &self->arrays, NULL);
    self->claim = (cb_py_claim){.n = step->claim.n};
    self->claim.own = PyMem_New(cb_written, step->claim.n + 1);
    if (!self->claim.own) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(self->claim.own, step->claim.own, step->claim.n * sizeof *self->claim.own);
    self->claim.written = self->claim.own;
    return 0;
}

static bool is_all_there(const cb_py_captured *self) {
    const cb_py_step *step = self->step;
    size_t n = (size_t)cb_step_n_inputs(step->core) + cb_step_n_outputs(step->core);
    if (self->arrays.is_stepped) n += (1 + (size_t)self->arrays.n_state) * step->n_wrt;
    for (size_t i = 0; i < n; i++)
        if (step->pointers[i] && !step->there[i]) return false;
    return true;
}

static cb_update update_of(const cb_py_step *step, const cb_py_optimizer *opt,
                           void *const *const *states) {
    const size_t n = cb_step_n_inputs(step->core) + (size_t)cb_step_n_outputs(step->core);
    return (cb_update){.params = step->pointers + n,
                       .states = states,
                       .t = *opt->t + 1,
                       .optimizer = opt->core,
                       .group = opt->group,
                       .hyper = opt->hyper,
                       .n_groups = opt->n_groups,
                       .numbers = opt->number};
}

/* Captures the graph. The arrays of the step must be bound. */
static int capture(cb_py_captured *self, const cb_run *settings, const cb_py_optimizer *opt) {
    cb_py_step *step = self->step;
    const uint32_t n_in = cb_step_n_inputs(step->core), n_out = cb_step_n_outputs(step->core);
    void *const *states[CB_MAX_STATES];
    cb_run run = *settings;
    cb_update update = {0};
    cb_error error = {0};
    int64_t taken;
    if (!is_all_there(self)) {
        PyErr_SetString(PyExc_ValueError, "capture: all arrays must be on the device");
        return -1;
    }
    if (cb_py_steps_taken(opt, &taken) < 0 || keep_claim(self) < 0 ||
        cb_py_run_memory_admit(step->memory, step) < 0)
        return -1;
    run.inputs = step->pointers;
    run.outputs = step->pointers + n_in;
    for (size_t s = 0; s < CB_MAX_STATES; s++)
        states[s] = step->pointers + n_in + n_out + (1 + s) * step->n_wrt;
    if (opt) update = update_of(step, opt, states);
    cb_py_work work;
    cb_py_work_begin(&work, step->context);
    const cb_status status =
        cb_step_capture(step->core, &run, opt ? &update : NULL, &self->core, &error);
    cb_py_work_end(&work);
    if (status == CB_OK) return 0;
    raise(self, &error);
    return -1;
}

static int bind_and_capture(cb_py_captured *self, const cb_run *settings,
                            const cb_py_optimizer *opt) {
    cb_py_step *step = self->step;
    if (cb_py_run_memory_lock(step->memory, step) < 0) return -1;
    const int result = cb_py_bind(step, &self->arrays) < 0 ? -1 : capture(self, settings, opt);
    cb_py_run_memory_unlock(step->memory);
    return result;
}

typedef struct capture_fields {
    cb_py_train_fields train;
    PyObject *copied, *made;
} capture_fields;

#define TRAIN_FIELD(name) {#name, offsetof(capture_fields, train.name)}

static const cb_py_field in_capture[] = {
    CB_PY_RUN_FIELDS(capture_fields, train.run.),
    TRAIN_FIELD(optimizer),
    TRAIN_FIELD(states),
    TRAIN_FIELD(group_of),
    TRAIN_FIELD(groups),
    TRAIN_FIELD(t),
    TRAIN_FIELD(numbers),
    CB_PY_FIELD(capture_fields, copied),
    CB_PY_FIELD(capture_fields, made),
};

/* Parses the numbers of inputs or outputs that replays copy. */
static int parse_places(PyObject *places, uint32_t n_all, const char *what, cb_captured_copy *out) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(places); k++) {
        const unsigned long i = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(places, k));
        if (PyErr_Occurred()) return -1;
        if (i >= n_all) {
            PyErr_Format(PyExc_ValueError, "capture: %s %lu does not exist, there are %u", what, i,
                         n_all);
            return -1;
        }
        out[k].i = (uint32_t)i;
    }
    return 0;
}

static int take_places(cb_py_captured *self, const capture_fields *given) {
    const cb_step *core = self->step->core;
    PyObject *copied = PySequence_Tuple(given->copied);
    PyObject *made = copied ? PySequence_Tuple(given->made) : NULL;
    int result = -1;
    if (made) {
        self->n_copied = (uint32_t)PyTuple_GET_SIZE(copied);
        self->n_made = (uint32_t)PyTuple_GET_SIZE(made);
        self->copies = PyMem_New(cb_captured_copy, (size_t)self->n_copied + self->n_made + 1);
        if (!self->copies) PyErr_NoMemory();
        else if (parse_places(copied, cb_step_n_inputs(core), "input", self->copies) == 0)
            result = parse_places(made, cb_step_n_outputs(core), "output",
                                  self->copies + self->n_copied);
    }
    Py_XDECREF(copied);
    Py_XDECREF(made);
    return result;
}

static int make(cb_py_captured *self, const cb_py_train_fields *given, cb_py_optimizer *opt) {
    cb_run settings = {0};
    cb_py_draw_count draws = {0};
    const bool updates = given->optimizer != Py_None;
    self->arrays.is_stepped = updates;
    if (cb_py_parse_settings(&given->run, &settings, &draws) < 0 ||
        cb_py_take_arrays(&given->run, &self->arrays) < 0)
        return -1;
    if (!updates) return bind_and_capture(self, &settings, NULL);
    if (cb_py_parse_update(self->step, given, opt) < 0 ||
        cb_py_parse_states(given->states, opt->core, &self->arrays) < 0)
        return -1;
    self->optimizer = opt->core;
    self->named = Py_NewRef(given->optimizer);
    return bind_and_capture(self, &settings, opt);
}

PyObject *cb_py_step_capture(cb_py_step *step, PyObject *const *values, Py_ssize_t n,
                             PyObject *names) {
    capture_fields given = {.train = {.run = {.count = Py_None, .next = Py_None, .stream = Py_None},
                                      .optimizer = Py_None,
                                      .states = Py_None,
                                      .group_of = Py_None,
                                      .groups = Py_None,
                                      .t = Py_None,
                                      .numbers = Py_None}};
    const cb_py_call as_called = {values, n, names};
    cb_py_optimizer opt = {0};
    cb_py_state *state = cb_py_state_of_object((PyObject *)step);
    if (CB_PY_READ_FIELDS("capture", as_called, in_capture, &given) < 0) return NULL;
    cb_py_captured *self =
        (cb_py_captured *)state->captured_type->tp_alloc(state->captured_type, 0);
    if (!self) return NULL;
    self->step = (cb_py_step *)Py_NewRef(step);
    self->use = cb_py_joint_new();
    const bool made =
        self->use && take_places(self, &given) == 0 && make(self, &given.train, &opt) == 0;
    cb_py_optimizer_drop(&opt);
    if (!made) Py_CLEAR(self);
    return (PyObject *)self;
}

/* ---- replaying ------------------------------------------------------------------------------- */

typedef struct replay_fields {
    PyObject *inputs, *outputs, *random_step, *count, *next, *stream, *groups, *t, *numbers;
} replay_fields;

static const cb_py_field in_replay[] = {
    CB_PY_FIELD(replay_fields, inputs),      CB_PY_FIELD(replay_fields, outputs),
    CB_PY_FIELD(replay_fields, random_step), CB_PY_FIELD(replay_fields, count),
    CB_PY_FIELD(replay_fields, next),        CB_PY_FIELD(replay_fields, stream),
    CB_PY_FIELD(replay_fields, groups),      CB_PY_FIELD(replay_fields, t),
    CB_PY_FIELD(replay_fields, numbers),
};

/* Fills in the addresses of the arrays that are copied. */
static int bind(cb_py_captured *self, const cb_py_run_arrays *given) {
    cb_py_step *step = self->step;
    const uint32_t n_in = cb_step_n_inputs(step->core);
    if (cb_py_check_count(given->inputs, self->n_copied, "inputs") < 0 ||
        cb_py_check_count(given->outputs, self->n_made, "outputs") < 0)
        return -1;
    for (uint32_t k = 0; k < self->n_copied; k++) {
        cb_captured_copy *copy = &self->copies[k];
        if (cb_py_bind_input(step, copy->i, PyTuple_GET_ITEM(given->inputs, k)) < 0) return -1;
        copy->data = step->pointers[copy->i];
        copy->there = step->there[copy->i];
    }
    for (uint32_t k = 0; k < self->n_made; k++) {
        cb_captured_copy *copy = &self->copies[self->n_copied + k];
        if (cb_py_bind_output(step, copy->i, PyTuple_GET_ITEM(given->outputs, k)) < 0) return -1;
        copy->data = step->pointers[n_in + copy->i];
        copy->there = step->there[n_in + copy->i];
        if (copy->there) continue;
        PyErr_SetString(PyExc_ValueError, "replay: results must be copied to arrays on the device");
        return -1;
    }
    return 0;
}

static int order(cb_py_captured *self, const cb_py_run_arrays *given, void *stream) {
    cb_py_step *step = self->step;
    cb_error error = {0};
    cb_status status = cb_py_before_replay(step, &self->arrays, self->use, given, stream, &error);
    if (status == CB_OK && !stream)
        status = cb_memory_order(step->context->core, "cuda", (void *)1, NULL, &error);
    if (status == CB_OK) return 0;
    raise(self, &error);
    return -1;
}

static bool has_host_input(const cb_py_captured *self) {
    bool has = false;
    for (uint32_t k = 0; k < self->n_copied; k++) has |= !self->copies[k].there;
    return has;
}

static PyObject *put(cb_py_captured *self, const cb_py_run_arrays *given, const cb_run *settings,
                     const cb_py_optimizer *opt, const cb_py_draw_count *draws) {
    cb_py_step *step = self->step;
    cb_context *core = step->context->core;
    void *const stream = settings->stream;
    const bool waits = !stream || has_host_input(self);
    bool was_put = false;
    cb_captured_run run = {.inputs = self->copies,
                           .outputs = self->copies + self->n_copied,
                           .n_inputs = self->n_copied,
                           .n_outputs = self->n_made,
                           .stream = stream,
                           .random_step = settings->random_step,
                           .was_put = &was_put};
    cb_error error = {0};
    double seconds = 0;
    int64_t taken;
    if (cb_py_steps_taken(opt, &taken) < 0 || order(self, given, stream) < 0) return NULL;
    if (opt) {
        run.hyper = opt->hyper;
        run.numbers = opt->number;
        run.t = taken + 1;
    }
    cb_py_work work;
    cb_py_work_begin(&work, step->context);
    cb_status status = cb_captured_replay(self->core, &run, &error);
    if (status == CB_OK && waits) {
        status = cb_step_wait(step->core, &seconds, &error);
        was_put = status == CB_OK; /* a run that found bad data has changed nothing */
    }
    if (was_put && opt) *opt->t = taken + 1;
    if (was_put && draws->at) *draws->at = draws->next;
    if (status != CB_OK) (void)(cb_memory_wait(core, "cuda", stream, NULL) == CB_OK);
    cb_py_work_end(&work);
    if (status != CB_OK) return raise(self, &error);
    cb_py_leave_replay(step, &self->arrays, self->use, given, waits ? NULL : stream);
    return PyFloat_FromDouble(seconds);
}

static PyObject *claim_and_put(cb_py_captured *self, const cb_py_run_arrays *given,
                               const cb_run *settings, const cb_py_optimizer *opt,
                               const cb_py_draw_count *draws) {
    cb_py_context *context = self->step->context;
    const cb_py_rows rows = {.owner = self->step, .name = parameter_name, .n = self->step->n_wrt};
    if (!opt) return put(self, given, settings, NULL, draws);
    if (cb_py_claim_take(context, &self->claim, &rows) < 0) return NULL;
    PyObject *result = put(self, given, settings, opt, draws);
    cb_py_claim_drop(context, &self->claim);
    return result;
}

/* Parses the update of a replay. The groups of parameters are part of the graph. */
static int parse_update(cb_py_captured *self, const replay_fields *given, cb_py_optimizer *out) {
    if (!self->optimizer) return 0;
    PyObject *none = PyTuple_New(0);
    if (!none) return -1;
    const int parsed = cb_py_optimizer_parse(self->optimizer, given->groups, none, 0, out);
    Py_DECREF(none);
    if (parsed < 0 || cb_py_optimizer_numbers(given->numbers, self->step->n_wrt, out) < 0)
        return -1;
    return cb_py_parse_count(given->t, "t", &out->t);
}

static PyObject *parse_and_put(cb_py_captured *self, const replay_fields *given,
                               cb_py_run_arrays *arrays, cb_py_optimizer *opt) {
    cb_py_step *step = self->step;
    cb_run settings = {0};
    cb_py_draw_count draws = {0};
    PyObject *result = NULL, *zero = PyLong_FromLong(0);
    const cb_py_run_fields fields = {given->inputs,      given->outputs, zero,
                                     given->random_step, given->count,   given->next,
                                     given->stream};
    if (zero && parse_update(self, given, opt) == 0 &&
        cb_py_parse_settings(&fields, &settings, &draws) == 0 &&
        cb_py_take_arrays(&fields, arrays) == 0 && cb_py_run_memory_lock(step->memory, step) == 0) {
        if (bind(self, arrays) == 0)
            result = claim_and_put(self, arrays, &settings, self->optimizer ? opt : NULL, &draws);
        cb_py_run_memory_unlock(step->memory);
    }
    Py_XDECREF(zero);
    return result;
}

static PyObject *captured_replay(cb_py_captured *self, PyObject *const *values, Py_ssize_t n,
                                 PyObject *names) {
    replay_fields given = {.count = Py_None,
                           .next = Py_None,
                           .stream = Py_None,
                           .groups = Py_None,
                           .t = Py_None,
                           .numbers = Py_None};
    const cb_py_call as_called = {values, n, names};
    cb_py_run_arrays arrays = {.inputs = NULL};
    cb_py_optimizer opt = {0};
    if (CB_PY_READ_FIELDS("replay", as_called, in_replay, &given) < 0) return NULL;
    PyObject *result = parse_and_put(self, &given, &arrays, &opt);
    cb_py_drop_arrays(&arrays);
    cb_py_optimizer_drop(&opt);
    return result;
}

/* counts(t, numbers): waits, and sets both to the device's values. */
static PyObject *captured_counts(cb_py_captured *self, PyObject *args) {
    PyObject *t, *numbers;
    cb_error error = {0};
    cb_py_optimizer opt = {0};
    if (!PyArg_ParseTuple(args, "OO:counts", &t, &numbers)) return NULL;
    cb_status status = CB_OK;
    opt.core = self->optimizer;
    if (self->optimizer && cb_py_optimizer_numbers(numbers, self->step->n_wrt, &opt) == 0 &&
        cb_py_parse_count(t, "t", &opt.t) == 0 &&
        cb_py_run_memory_lock(self->step->memory, self->step) == 0) {
        cb_py_work work;
        cb_py_work_begin(&work, self->step->context);
        status = cb_captured_counts(self->core, opt.t, opt.number, &error);
        cb_py_work_end(&work);
        cb_py_run_memory_unlock(self->step->memory);
    }
    if (PyErr_Occurred()) return NULL;
    if (status != CB_OK) return raise(self, &error);
    Py_RETURN_NONE;
}

/* resident(group) -> addresses (hyper, t, grad_factor, found_inf) */
static PyObject *captured_resident(cb_py_captured *self, PyObject *group) {
    const unsigned long i = PyLong_AsUnsignedLong(group);
    cb_resident at;
    cb_error error = {0};
    if (PyErr_Occurred()) return NULL;
    if (cb_captured_resident(self->core, (uint32_t)i, &at, &error) != CB_OK)
        return raise(self, &error);
    return Py_BuildValue("(KKKK)", (unsigned long long)at.hyper, (unsigned long long)at.t,
                         (unsigned long long)at.grad_factor, (unsigned long long)at.found_inf);
}

static PyMethodDef captured_methods[] = {
    {"replay", (PyCFunction)(void (*)(void))captured_replay, METH_FASTCALL | METH_KEYWORDS,
     "replay(*, inputs, outputs, random_step, count=None, next=0, stream=None, groups=None, "
     "t=None, numbers=None) -> seconds; inputs are copied to the inputs that were named `copied`, "
     "and outputs from those named `made`"},
    {"counts", (PyCFunction)captured_counts, METH_VARARGS,
     "counts(t, numbers, /): waits, and sets both arrays to what the device has counted"},
    {"resident", (PyCFunction)captured_resident, METH_O,
     "resident(group, /) -> device addresses (hyper, t, grad_factor, found_inf)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot captured_slots[] = {
    {Py_tp_doc, "A run of a step, captured as a graph of the device; created by Step.capture."},
    {Py_tp_dealloc, captured_dealloc},
    {Py_tp_traverse, captured_traverse},
    {Py_tp_methods, captured_methods},
    {0, NULL},
};

PyType_Spec cb_py_captured_spec = {
    .name = "cutback._native.Captured",
    .basicsize = sizeof(cb_py_captured),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = captured_slots,
};
