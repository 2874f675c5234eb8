/* problem_type.c: the type _native.Problem: a problem in the core, read and checked once. */
#include "planned.h"

PyObject *cb_py_problem_wrap(cb_py_state *state, cb_py_context *context, const cb_problem *core,
                             PyObject *owner) {
    cb_py_problem *self = PyObject_GC_New(cb_py_problem, state->problem_type);
    if (!self) {
        if (!owner) cb_problem_free((cb_problem *)core);
        return NULL;
    }
    self->context = cb_py_context_retain(context);
    self->core = core;
    self->owner = Py_XNewRef(owner);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int problem_traverse(cb_py_problem *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    return 0;
}

static void problem_dealloc(cb_py_problem *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (!self->owner) cb_problem_free((cb_problem *)self->core);
    Py_XDECREF(self->owner);
    cb_py_context_release(self->context);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static cb_py_state *state_of(cb_py_problem *self) {
    return cb_py_state_of_object((PyObject *)self);
}

static PyObject *raise(cb_py_problem *self, const cb_error *error) {
    return cb_py_raise(state_of(self), error, NULL);
}

static PyObject *give_text(cb_py_problem *self, char *text) {
    PyObject *result = text ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
    cb_text_free(self->context->core, text);
    return result;
}

static PyObject *problem_read(PyObject *type, PyObject *text) {
    Py_ssize_t length;
    const char *data = PyUnicode_AsUTF8AndSize(text, &length);
    cb_py_state *state = PyType_GetModuleState((PyTypeObject *)type);
    cb_py_context *context = data ? cb_py_context_get(state) : NULL;
    if (!context) return NULL;
    cb_error error = {0};
    cb_problem *core = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, context);
    cb_status status = cb_planning_read(context->core, data, (size_t)length, &core, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    return cb_py_problem_wrap(state, context, core, NULL);
}

static PyObject *problem_of(PyObject *type, PyObject *parts) {
    cb_py_state *state = PyType_GetModuleState((PyTypeObject *)type);
    cb_py_context *context = cb_py_context_get(state);
    cb_problem *core = context ? cb_py_take_problem(state, context->core, parts) : NULL;
    return core ? cb_py_problem_wrap(state, context, core, NULL) : NULL;
}

static PyObject *problem_parts(cb_py_problem *self, PyObject *Py_UNUSED(none)) {
    return cb_py_give_problem(self->core);
}

static PyObject *problem_json(cb_py_problem *self, PyObject *Py_UNUSED(none)) {
    cb_error error = {0};
    char *text = NULL;
    if (cb_planning_problem_json(self->context->core, self->core, &text, &error) != CB_OK)
        return raise(self, &error);
    return give_text(self, text);
}

static PyObject *problem_ends(cb_py_problem *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"measure", "preset", "device", NULL};
    int measure, number = CB_PRESET_AUTOGRAD;
    const char *device = NULL;
    cb_preset preset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|iz:ends", names, &measure, &number,
                                     &device) ||
        cb_py_parse_preset(number, &preset) < 0)
        return NULL;
    if (measure < 0 || measure >= CB_MEASURE_COUNT)
        return PyErr_Format(PyExc_ValueError, "no measure number %d", measure);
    cb_error error = {0};
    cb_ends ends;
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    cb_status status =
        cb_planning_ends(self->context->core, self->core, preset, (cb_measure)measure, device,
                         (cb_poll){cb_py_poll, &work}, &ends, &error);
    cb_py_work_end(&work);
    if (PyErr_Occurred()) return NULL; /* raised by a signal handler */
    if (status != CB_OK) return raise(self, &error);
    return Py_BuildValue("(KK)", (unsigned long long)ends.smallest,
                         (unsigned long long)ends.everything);
}

static PyObject *problem_read_plan(cb_py_problem *self, PyObject *args) {
    const char *text, *device = NULL;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "s#|z:read_plan", &text, &length, &device)) return NULL;
    cb_error error = {0};
    cb_plan *plan = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    cb_status status = cb_planning_read_plan(self->context->core, self->core, text, (size_t)length,
                                             device, &plan, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return raise(self, &error);
    return cb_py_plan_wrap(state_of(self), self, plan, NULL);
}

static PyObject *problem_evaluate(cb_py_problem *self, PyObject *args) {
    PyObject *pair;
    const char *device = NULL;
    if (!PyArg_ParseTuple(args, "O|z:evaluate", &pair, &device)) return NULL;
    cb_arena scratch;
    cb_schedule schedule;
    cb_lives lives;
    uint64_t arena_bytes;
    cb_error error = {0};
    PyObject *result = NULL;
    cb_arena_init(&scratch, cb_planning_alloc(self->context->core));
    if (cb_py_take_schedule(self->core, pair, &scratch, &schedule) == 0) {
        cb_py_work work;
        cb_py_work_begin(&work, self->context);
        cb_status status = cb_planning_evaluate(self->core, &schedule, device, &scratch, &lives,
                                                &arena_bytes, &error);
        cb_py_work_end(&work);
        result = status == CB_OK ? cb_py_give_evaluated(&schedule, &lives, arena_bytes)
                                 : raise(self, &error);
    }
    cb_arena_free(&scratch);
    return result;
}

static PyObject *problem_evaluate_json(cb_py_problem *self, PyObject *args) {
    const char *plan, *device = NULL;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "s#|z:evaluate_json", &plan, &length, &device)) return NULL;
    cb_error error = {0};
    char *text = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    cb_status status = cb_planning_evaluate_json(self->context->core, self->core, plan,
                                                 (size_t)length, device, &text, &error);
    cb_py_work_end(&work);
    return status == CB_OK ? give_text(self, text) : raise(self, &error);
}

/* Makes a copy of the problem with mu-TWO's decisions as constraints. */
static PyObject *problem_mutwo(cb_py_problem *self, PyObject *args) {
    PyObject *item;
    const char *device = NULL;
    cb_budget saved;
    if (!PyArg_ParseTuple(args, "O|z:mutwo", &item, &device)) return NULL;
    if (cb_py_parse_budget(item, &saved) < 0) return NULL;
    cb_context *core = self->context->core;
    cb_error error = {0};
    char *before = NULL, *after = NULL;
    cb_problem *problem = NULL;
    cb_status status = cb_planning_problem_json(core, self->core, &before, &error);
    if (status == CB_OK)
        status = cb_mutwo_json(core, before, strlen(before), &saved, device, &after, &error);
    if (status == CB_OK) status = cb_planning_read(core, after, strlen(after), &problem, &error);
    cb_text_free(core, before);
    cb_text_free(core, after);
    if (status != CB_OK) return raise(self, &error);
    return cb_py_problem_wrap(state_of(self), self->context, problem, NULL);
}

static PyObject *problem_cut_json(cb_py_problem *self, PyObject *args) {
    int number, with_network;
    cb_preset preset;
    if (!PyArg_ParseTuple(args, "ip:cut_json", &number, &with_network)) return NULL;
    if (cb_py_parse_preset(number, &preset) < 0) return NULL;
    cb_error error = {0};
    char *text = NULL, *network = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    cb_status status = cb_planning_cut_json(self->context->core, self->core, preset, &text,
                                            with_network ? &network : NULL, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return raise(self, &error);
    PyObject *answer = give_text(self, text), *dimacs = give_text(self, network);
    PyObject *both = answer && dimacs ? PyTuple_Pack(2, answer, dimacs) : NULL;
    Py_XDECREF(answer);
    Py_XDECREF(dimacs);
    return both;
}

static PyObject *problem_frontier_json(cb_py_problem *self, PyObject *args) {
    const char *device = NULL;
    int number;
    cb_preset preset;
    if (!PyArg_ParseTuple(args, "i|z:frontier_json", &number, &device)) return NULL;
    if (cb_py_parse_preset(number, &preset) < 0) return NULL;
    cb_error error = {0};
    char *text = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    cb_status status = cb_planning_frontier_json(self->context->core, self->core, preset, device,
                                                 (cb_poll){cb_py_poll, &work}, &text, &error);
    cb_py_work_end(&work);
    if (PyErr_Occurred()) { /* raised by a signal handler */
        cb_text_free(self->context->core, text);
        return NULL;
    }
    return status == CB_OK ? give_text(self, text) : raise(self, &error);
}

static PyObject *problem_fingerprint(cb_py_problem *self, void *Py_UNUSED(none)) {
    return cb_py_give_fingerprint(cb_problem_fingerprint(self->core));
}

static PyObject *problem_wants_moves(cb_py_problem *self, void *Py_UNUSED(none)) {
    const cb_problem *p = self->core;
    for (uint32_t v = 0; v < p->n_value; v++) {
        const uint8_t wish = p->value_constraint[v];
        if (wish == CB_MUST_OFFLOAD || wish == CB_PREFER_OFFLOAD) Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyMethodDef problem_methods[] = {
    {"read", problem_read, METH_O | METH_CLASS,
     "read(text, /) -> Problem from JSON of a problem or a traced graph"},
    {"of", problem_of, METH_O | METH_CLASS,
     "of(problem, /) -> Problem from a cutback.problem.Problem"},
    {"parts", (PyCFunction)problem_parts, METH_NOARGS, "parts() -> cutback.problem.Problem"},
    {"to_json", (PyCFunction)problem_json, METH_NOARGS, "to_json() -> the problem as JSON"},
    {"plan", (PyCFunction)(void (*)(void))cb_py_search_one, METH_VARARGS | METH_KEYWORDS,
     "plan(*, preset, budget, device, time_limit, progress) -> Plan"},
    {"plans", (PyCFunction)(void (*)(void))cb_py_search_many, METH_VARARGS | METH_KEYWORDS,
     "plans(budgets, /, *, preset, device, time_limit, progress, until_met) -> "
     "[Plan or BudgetError]"},
    {"ends", (PyCFunction)(void (*)(void))problem_ends, METH_VARARGS | METH_KEYWORDS,
     "ends(measure, preset=0, device=None) -> (bytes at position 0, bytes of saving everything)"},
    {"read_plan", (PyCFunction)problem_read_plan, METH_VARARGS,
     "read_plan(text, device=None, /) -> Plan for this problem, from JSON"},
    {"evaluate", (PyCFunction)problem_evaluate, METH_VARARGS,
     "evaluate(schedule, device=None, /) -> cutback.schedule.Evaluated"},
    {"evaluate_json", (PyCFunction)problem_evaluate_json, METH_VARARGS,
     "evaluate_json(text, device=None, /) -> the evaluation of a document with steps, as JSON"},
    {"mutwo", (PyCFunction)problem_mutwo, METH_VARARGS,
     "mutwo(budget, device=None, /) -> Problem with mu-TWO's choices"},
    {"cut_json", (PyCFunction)problem_cut_json, METH_VARARGS,
     "cut_json(preset, with_network, /) -> (cut JSON, DIMACS network or None)"},
    {"frontier_json", (PyCFunction)problem_frontier_json, METH_VARARGS,
     "frontier_json(preset, device=None, /) -> frontier JSON"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef problem_getset[] = {
    {"fingerprint", (getter)problem_fingerprint, NULL,
     "hash of structure, sizes and flags; not of costs, names or lines", NULL},
    {"wants_moves", (getter)problem_wants_moves, NULL,
     "whether its constraints ask to move values to the host", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot problem_slots[] = {
    {Py_tp_doc, "A problem in the core, checked; it never changes."},
    {Py_tp_dealloc, problem_dealloc},
    {Py_tp_traverse, problem_traverse},
    {Py_tp_methods, problem_methods},
    {Py_tp_getset, problem_getset},
    {0, NULL},
};

PyType_Spec cb_py_problem_spec = {
    .name = "cutback._native.Problem",
    .basicsize = sizeof(cb_py_problem),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = problem_slots,
};
