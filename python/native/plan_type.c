/* plan_type.c: the type _native.Plan: a plan in the core, with its problem. */
#include "planned.h"

#include "base/json.h"
#include "plan/model/device.h"
#include "plan/model/names.h"

PyObject *cb_py_plan_wrap(cb_py_state *state, cb_py_problem *problem, const cb_plan *core,
                          PyObject *owner) {
    cb_py_plan *self = PyObject_GC_New(cb_py_plan, state->plan_type);
    if (!self) {
        if (!owner) cb_plan_free((cb_plan *)core);
        return NULL;
    }
    self->problem = (cb_py_problem *)Py_NewRef(problem);
    self->core = core;
    self->owner = Py_XNewRef(owner);
    self->again = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int plan_traverse(cb_py_plan *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->problem);
    Py_VISIT(self->owner);
    return 0;
}

static void plan_dealloc(cb_py_plan *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (!self->owner) cb_plan_free((cb_plan *)self->core);
    PyMem_Free(self->again);
    Py_XDECREF(self->owner);
    Py_DECREF(self->problem);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static cb_context *context_of(cb_py_plan *self) { return self->problem->context->core; }

typedef cb_status (*write_fn)(cb_context *, const cb_problem *, const cb_plan *, char **,
                              cb_error *);

static PyObject *written(cb_py_plan *self, cb_py_problem *problem, write_fn write) {
    cb_error error = {0};
    char *text = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, problem->context);
    cb_status status = write(context_of(self), problem->core, self->core, &text, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return cb_py_raise(cb_py_state_of_object((PyObject *)self), &error, NULL);
    PyObject *result = PyUnicode_FromString(text);
    cb_text_free(context_of(self), text);
    return result;
}

static PyObject *plan_json(cb_py_plan *self, PyObject *Py_UNUSED(none)) {
    return written(self, self->problem, cb_planning_plan_json);
}

static PyObject *plan_explain_json(cb_py_plan *self, PyObject *Py_UNUSED(none)) {
    return written(self, self->problem, cb_planning_explain_json);
}

/* explain_text(problem): uses the names of `problem`, which must have the same ops. */
static PyObject *plan_explain_text(cb_py_plan *self, PyObject *names) {
    cb_py_state *state = cb_py_state_of_object((PyObject *)self);
    if (!Py_IS_TYPE(names, state->problem_type))
        return PyErr_Format(PyExc_TypeError, "explain_text: expected a Problem, not %R", names);
    cb_py_problem *named = (cb_py_problem *)names;
    if (cb_problem_fingerprint(named->core) != self->core->fingerprint) {
        PyErr_SetString(PyExc_ValueError,
                        "explain_text: the ops of the problem are not those of the plan");
        return NULL;
    }
    return written(self, named, cb_planning_explain_text);
}

/* asked(measure, budget_bytes) -> a copy of the plan with this measure and budget */
static PyObject *plan_asked(cb_py_plan *self, PyObject *args) {
    int measure;
    unsigned long long budget;
    if (!PyArg_ParseTuple(args, "iK:asked", &measure, &budget)) return NULL;
    if (measure < 0 || measure >= CB_MEASURE_COUNT)
        return PyErr_Format(PyExc_ValueError, "no measure number %d", measure);
    cb_plan *again = PyMem_New(cb_plan, 1);
    if (!again) return PyErr_NoMemory();
    *again = *self->core; /* its pointers belong to `self` */
    again->measure = (cb_measure)measure;
    again->budget_bytes = budget;
    again->position = -1;
    cb_py_plan *plan = (cb_py_plan *)cb_py_plan_wrap(cb_py_state_of_object((PyObject *)self),
                                                     self->problem, again, (PyObject *)self);
    if (plan) plan->again = again;
    else PyMem_Free(again);
    return (PyObject *)plan;
}

static PyObject *plan_problem(cb_py_plan *self, void *Py_UNUSED(none)) {
    return Py_NewRef(self->problem);
}
static PyObject *plan_steps(cb_py_plan *self, void *Py_UNUSED(none)) {
    return cb_py_give_steps(self->problem->core, &self->core->schedule);
}
static PyObject *plan_times(cb_py_plan *self, void *Py_UNUSED(none)) {
    return cb_py_give_times(self->problem->core, &self->core->schedule, self->core->device);
}
static PyObject *plan_backward_starts(cb_py_plan *self, void *Py_UNUSED(none)) {
    return PyLong_FromUnsignedLong(self->core->schedule.backward_starts);
}
static PyObject *plan_lives(cb_py_plan *self, void *Py_UNUSED(none)) {
    return cb_py_give_lives(&self->core->lives);
}
static PyObject *plan_decisions(cb_py_plan *self, void *Py_UNUSED(none)) {
    return cb_py_give_decisions(self->problem->core, self->core);
}
static PyObject *plan_numbers(cb_py_plan *self, void *Py_UNUSED(none)) {
    return cb_py_give_numbers(self->core);
}
static PyObject *plan_fingerprint(cb_py_plan *self, void *Py_UNUSED(none)) {
    return cb_py_give_fingerprint(self->core->fingerprint);
}
static PyObject *plan_preset(cb_py_plan *self, void *Py_UNUSED(none)) {
    return PyUnicode_FromString(cb_preset_names[self->core->preset]);
}
static PyObject *plan_measure(cb_py_plan *self, void *Py_UNUSED(none)) {
    return PyUnicode_FromString(cb_measure_names[self->core->measure]);
}
static PyObject *plan_budget(cb_py_plan *self, void *Py_UNUSED(none)) {
    if (self->core->budget_bytes == UINT64_MAX) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(self->core->budget_bytes);
}

/* Returns the requested position, (position, bytes at 0, bytes at 1), or None. */
static PyObject *plan_position(cb_py_plan *self, void *Py_UNUSED(none)) {
    const cb_plan *plan = self->core;
    if (plan->position < 0) Py_RETURN_NONE;
    return Py_BuildValue("(dKK)", plan->position, (unsigned long long)plan->smallest_bytes,
                         (unsigned long long)plan->everything_bytes);
}

/* Returns the device whose cost model was used, in the form that searches accept: a name, or
 * JSON. */
static PyObject *plan_device(cb_py_plan *self, void *Py_UNUSED(none)) {
    cb_arena scratch;
    cb_str text;
    cb_arena_init(&scratch, cb_planning_alloc(context_of(self)));
    cb_str_init(&text, &scratch);
    cb_json_writer w = {.out = &text};
    cb_device_put(&w, NULL, self->core->device);
    const Py_ssize_t quote = !text.failed && text.at[0] == '"';
    PyObject *result = text.failed ? PyErr_NoMemory()
                                   : PyUnicode_FromStringAndSize(text.at + quote,
                                                                 (Py_ssize_t)text.len - 2 * quote);
    cb_arena_free(&scratch);
    return result;
}

static PyMethodDef plan_methods[] = {
    {"to_json", (PyCFunction)plan_json, METH_NOARGS, "to_json() -> the plan as JSON"},
    {"explain_json", (PyCFunction)plan_explain_json, METH_NOARGS,
     "explain_json() -> the explanation as JSON"},
    {"explain_text", (PyCFunction)plan_explain_text, METH_O,
     "explain_text(problem, /) -> the explanation as text, with the names of that problem"},
    {"asked", (PyCFunction)plan_asked, METH_VARARGS,
     "asked(measure, budget_bytes, /) -> the same Plan with this measure and budget"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef plan_getset[] = {
    {"problem", (getter)plan_problem, NULL, "the planned Problem", NULL},
    {"steps", (getter)plan_steps, NULL, "[cutback.schedule.Step]", NULL},
    {"times_ps", (getter)plan_times, NULL, "[modelled picoseconds of each step]", NULL},
    {"backward_starts", (getter)plan_backward_starts, NULL, "first step of the backward", NULL},
    {"lives", (getter)plan_lives, NULL, "[cutback.schedule.Life]", NULL},
    {"decisions", (getter)plan_decisions, NULL, "[cutback.schedule.Decision]", NULL},
    {"numbers", (getter)plan_numbers, NULL, "cutback.schedule.Numbers", NULL},
    {"fingerprint", (getter)plan_fingerprint, NULL, "fingerprint of the problem", NULL},
    {"preset", (getter)plan_preset, NULL, "name of the preset", NULL},
    {"measure", (getter)plan_measure, NULL, "what the budget bounds", NULL},
    {"budget_bytes", (getter)plan_budget, NULL, "the budget in bytes, or None", NULL},
    {"position", (getter)plan_position, NULL,
     "(position, bytes at 0, bytes at 1) if the budget was a position, else None", NULL},
    {"device", (getter)plan_device, NULL, "the device's name, or its numbers as JSON", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, "A plan in the core; it never changes."},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_traverse, plan_traverse},
    {Py_tp_methods, plan_methods},
    {Py_tp_getset, plan_getset},
    {0, NULL},
};

PyType_Spec cb_py_plan_spec = {
    .name = "cutback._native.Plan",
    .basicsize = sizeof(cb_py_plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = plan_slots,
};
