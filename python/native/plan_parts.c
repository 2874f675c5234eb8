/* plan_parts.c: converts schedules and plans between the core's arrays and the types of
 * cutback.schedule. */
#include "planned.h"

#include "plan/model/inlining.h"

/* ---- from the core --------------------------------------------------------------------------- */

static PyObject *class_of(const char *name) {
    PyObject *module = PyImport_ImportModule("cutback.schedule");
    PyObject *class = module ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return class;
}

/* Calls class(*items). Takes ownership of the items; fails if one is NULL. */
static PyObject *give_tuple(PyObject *class, PyObject **items, size_t n) {
    bool ok = true;
    for (size_t i = 0; i < n; i++) ok = ok && items[i];
    PyObject *tuple = ok ? PyObject_Vectorcall(class, items, n, NULL) : NULL;
    for (size_t i = 0; i < n; i++) Py_XDECREF(items[i]);
    return tuple;
}

static PyObject *outputs_of(const cb_problem *p, uint32_t op, uint32_t made) {
    return made == cb_all_made(p, op) ? Py_NewRef(Py_None) : cb_py_give_bits(made);
}

static PyObject *taken_by(const cb_problem *p, uint32_t op, uint64_t taken) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && taken >> i; i++) {
        if (!(taken >> i & 1)) continue;
        PyObject *value = PyLong_FromUnsignedLong(p->inlining[p->inline_begin[op] + i].value);
        if (!value || PyList_Append(list, value) < 0) Py_CLEAR(list);
        Py_XDECREF(value);
        if (i == 63) break;
    }
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *give_step(PyObject *class, const cb_problem *p, const cb_schedule *s, uint32_t t) {
    const uint32_t op = s->step[t];
    const cb_action action = cb_action_at(s, t);
    const bool runs = action == CB_ACTION_RUN;
    PyObject *items[] = {PyLong_FromUnsignedLong(op),
                         PyUnicode_InternFromString(cb_action_names[action]),
                         runs ? outputs_of(p, op, cb_made_at(p, s, t)) : Py_NewRef(Py_None),
                         taken_by(p, op, runs ? cb_taken_at(s, t) : 0)};
    return give_tuple(class, items, 4);
}

PyObject *cb_py_give_steps(const cb_problem *p, const cb_schedule *s) {
    PyObject *class = class_of("Step");
    PyObject *list = class ? PyList_New((Py_ssize_t)s->n_step) : NULL;
    for (uint32_t t = 0; list && t < s->n_step; t++) {
        PyObject *step = give_step(class, p, s, t);
        if (!step) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)t, step);
    }
    Py_XDECREF(class);
    return list;
}

PyObject *cb_py_give_times(const cb_problem *p, const cb_schedule *s, const cb_device *device) {
    PyObject *list = PyList_New((Py_ssize_t)s->n_step);
    for (uint32_t t = 0; list && t < s->n_step; t++) {
        int64_t time = 0;
        if (cb_action_at(s, t) == CB_ACTION_RUN) {
            time = cb_run_time_ps(p, s->step[t], cb_made_at(p, s, t), device);
            if (s->taken) time += cb_taken_time_ps(p, s->step[t], s->taken[t], device);
        }
        PyObject *number = PyLong_FromLongLong(time);
        if (!number) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)t, number);
    }
    return list;
}

PyObject *cb_py_give_lives(const cb_lives *lives) {
    PyObject *class = class_of("Life");
    PyObject *list = class ? PyList_New((Py_ssize_t)lives->n_instance) : NULL;
    for (uint32_t i = 0; list && i < lives->n_instance; i++) {
        const cb_instance *one = &lives->instance[i];
        PyObject *items[] = {
            one->storage == CB_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(one->storage),
            PyLong_FromUnsignedLong(one->made), PyLong_FromUnsignedLong(one->last),
            PyLong_FromUnsignedLongLong(one->bytes), PyLong_FromUnsignedLongLong(one->offset)};
        PyObject *life = give_tuple(class, items, 5);
        if (!life) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, life);
    }
    Py_XDECREF(class);
    return list;
}

PyObject *cb_py_give_decisions(const cb_problem *p, const cb_plan *plan) {
    PyObject *class = class_of("Decision");
    PyObject *list = class ? PyList_New(0) : NULL;
    for (uint32_t v = 0; list && v < p->n_value; v++) {
        if (plan->decision[v] == CB_DECISION_NONE) continue;
        PyObject *items[] = {PyLong_FromUnsignedLong(v),
                             PyUnicode_InternFromString(cb_decision_names[plan->decision[v]]),
                             PyUnicode_InternFromString(cb_reason_names[plan->reason[v]])};
        PyObject *row = give_tuple(class, items, 3);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    Py_XDECREF(class);
    return list;
}

/* Adds the numbers of a schedule that offloads. */
static PyObject *with_moved(PyObject *dict, const cb_schedule *s, const cb_lives *lives) {
    if (!dict || !s->action) return dict;
    PyObject *moved =
        Py_BuildValue("{sLsKsKsK}", "stall_ps", lives->stall_ps, "out_bytes", lives->out_bytes,
                      "in_bytes", lives->in_bytes, "host_bytes", lives->host_bytes);
    if (!moved || PyDict_Update(dict, moved) < 0) Py_CLEAR(dict);
    Py_XDECREF(moved);
    return dict;
}

PyObject *cb_py_give_numbers(const cb_plan *plan) {
    const double gap = cb_plan_gap(plan);
    PyObject *share = gap < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(gap);
    if (!share) return NULL;
    PyObject *dict = Py_BuildValue(
        "{sKsKsKsKsKsKsKsLsLsLsssNsk}", "arena_bytes", plan->arena_bytes, "live_bytes",
        plan->live_bytes, "saved_bytes", plan->saved_bytes, "total_bytes", plan->total_bytes,
        "save_all_arena_bytes", plan->save_all_arena_bytes, "save_all_live_bytes",
        plan->save_all_live_bytes, "save_all_saved_bytes", plan->save_all_saved_bytes, "time_ps",
        plan->time_ps, "once_ps", plan->once_ps, "lower_bound_ps", plan->lower_bound_ps,
        "bound_class", cb_bound_class_names[plan->bound_class], "gap", share, "recomputed",
        (unsigned long)plan->lives.n_recomputed);
    return with_moved(dict, &plan->schedule, &plan->lives);
}

PyObject *cb_py_give_evaluated(const cb_schedule *s, const cb_lives *lives, uint64_t arena_bytes) {
    unsigned long runs = 0;
    for (uint32_t t = 0; t < s->n_step; t++) runs += cb_action_at(s, t) == CB_ACTION_RUN;
    PyObject *dict = Py_BuildValue("{sKsKsKsLsLsksk}", "peak_bytes", lives->peak_bytes,
                                   "arena_bytes", arena_bytes, "saved_bytes", lives->saved_bytes,
                                   "time_ps", lives->time_ps, "once_ps", lives->once_ps, "runs",
                                   runs, "recomputed", (unsigned long)lives->n_recomputed);
    return with_moved(dict, s, lives);
}

/* ---- to the core ----------------------------------------------------------------------------- */

static int take_id(PyObject *is, uint32_t end, const char *what, Py_ssize_t t, uint32_t *out) {
    unsigned long id = PyLong_Check(is) ? PyLong_AsUnsignedLong(is) : ULONG_MAX;
    if (PyErr_Occurred()) PyErr_Clear();
    *out = (uint32_t)id;
    if (id < end) return 0;
    PyErr_Format(PyExc_ValueError, "step %zd: %s is %R, not an id below %u", t, what, is, end);
    return -1;
}

static int take_outputs(const cb_problem *p, PyObject *is, Py_ssize_t t, uint32_t op,
                        uint32_t *made) {
    const uint32_t n = p->out_begin[op + 1] - p->out_begin[op];
    if (is == Py_None) return 0;
    PyObject *list = PySequence_Tuple(is);
    Py_ssize_t count = list ? PySequence_Fast_GET_SIZE(list) : 0;
    int status = list ? 0 : -1;
    uint32_t set = 0;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        uint32_t at = 0;
        status = take_id(PySequence_Fast_GET_ITEM(list, i), n, "an output", t, &at);
        if (status == 0 && at < 32) set |= UINT32_C(1) << at;
    }
    Py_XDECREF(list);
    *made = cb_has_inside(p, op) || (uint32_t)count < n ? set : CB_ALL_OUTPUTS;
    return status;
}

static int take_taken(const cb_problem *p, PyObject *is, Py_ssize_t t, uint32_t op,
                      uint64_t *taken) {
    PyObject *list = PySequence_Tuple(is);
    int status = list ? 0 : -1;
    *taken = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PySequence_Fast_GET_SIZE(list); i++) {
        uint32_t value;
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        status = take_id(item, p->n_value, "its inlined value", t, &value);
        uint64_t bit = status == 0 && p->inline_begin ? cb_inlining_bit(p, op, value) : 0;
        if (status == 0 && !bit) {
            PyErr_Format(PyExc_ValueError,
                         "step %zd: the problem has no inlining of value %R into op %u", t, item,
                         op);
            status = -1;
        }
        *taken |= bit;
    }
    Py_XDECREF(list);
    return status;
}

typedef struct columns {
    uint32_t *step;
    uint8_t *action;
    uint32_t *made;
    uint64_t *taken;
    bool moves, chooses, takes; /* true if any step moves, chooses outputs, or inlines */
} columns;

static int find_action(PyObject *is, Py_ssize_t t, uint8_t *out) {
    const char *text = PyUnicode_Check(is) ? PyUnicode_AsUTF8(is) : NULL;
    for (*out = 0; text && *out < CB_ACTION_COUNT; ++*out)
        if (strcmp(text, cb_action_names[*out]) == 0) return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "step %zd: there is no action %R", t, is);
    return -1;
}

/* Parses a step: the id of an op, or (op, action, outputs, taken). */
static int take_step(const cb_problem *p, PyObject *item, Py_ssize_t t, columns *c) {
    c->made[t] = CB_ALL_OUTPUTS;
    if (!PyTuple_Check(item)) return take_id(item, p->n_op, "its op", t, &c->step[t]);
    if (PyTuple_GET_SIZE(item) != 4) {
        PyErr_Format(PyExc_ValueError, "step %zd: %R is not (op, action, outputs, taken)", t, item);
        return -1;
    }
    if (take_id(PyTuple_GET_ITEM(item, 0), p->n_op, "its op", t, &c->step[t]) < 0) return -1;
    if (find_action(PyTuple_GET_ITEM(item, 1), t, &c->action[t]) < 0) return -1;
    if (take_outputs(p, PyTuple_GET_ITEM(item, 2), t, c->step[t], &c->made[t]) < 0) return -1;
    if (take_taken(p, PyTuple_GET_ITEM(item, 3), t, c->step[t], &c->taken[t]) < 0) return -1;
    c->moves |= c->action[t] != CB_ACTION_RUN;
    c->chooses |= c->made[t] != CB_ALL_OUTPUTS;
    c->takes |= c->taken[t] != 0;
    return 0;
}

int cb_py_take_schedule(const cb_problem *p, PyObject *pair, cb_arena *arena, cb_schedule *out) {
    PyObject *steps;
    unsigned int starts;
    if (!PyTuple_Check(pair)) {
        PyErr_Format(PyExc_TypeError, "a schedule must be (steps, backward_starts), not %R", pair);
        return -1;
    }
    if (!PyArg_ParseTuple(pair, "OI:schedule", &steps, &starts)) return -1;
    PyObject *list = PySequence_Tuple(steps);
    if (!list) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    columns c = {.step = CB_NEW(arena, uint32_t, n),
                 .action = CB_NEW(arena, uint8_t, n),
                 .made = CB_NEW(arena, uint32_t, n),
                 .taken = CB_NEW(arena, uint64_t, n)};
    int status = 0;
    if (n > UINT32_MAX / 2 || !c.step || !c.action || !c.made || !c.taken) {
        PyErr_NoMemory();
        status = -1;
    }
    for (Py_ssize_t t = 0; status == 0 && t < n; t++)
        status = take_step(p, PySequence_Fast_GET_ITEM(list, t), t, &c);
    Py_DECREF(list);
    *out = (cb_schedule){.n_step = (uint32_t)n,
                         .step = c.step,
                         .action = c.moves ? c.action : NULL,
                         .made = c.chooses || c.takes ? c.made : NULL,
                         .taken = c.takes ? c.taken : NULL,
                         .backward_starts = starts};
    return status;
}
