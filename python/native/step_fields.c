/* step_fields.c: parses the arguments of a step's methods. */
#include "step_fields.h"

#include "base/dtype.h"

/* Reads the optimizer's step count; fails if it cannot be incremented. */
int cb_py_steps_taken(const cb_py_optimizer *opt, int64_t *taken) {
    *taken = opt ? *opt->t : 0;
    if (*taken >= 0 && *taken < INT64_MAX) return 0;
    PyErr_Format(PyExc_ValueError,
                 "%s: t=%lld steps were taken; a further step needs 0 <= t < 2**63 - 1",
                 cb_optimizer_name(opt->core), (long long)*taken);
    return -1;
}

void cb_py_drop_arrays(cb_py_run_arrays *run) {
    Py_XDECREF(run->inputs);
    Py_XDECREF(run->outputs);
    for (int s = 0; s < CB_MAX_STATES; s++) Py_XDECREF(run->states[s]);
}

int cb_py_parse_count(PyObject *array, const char *name, int64_t **out) {
    cb_py_view view;
    if (cb_py_view_of(array, name, &view) < 0) return -1;
    bool is_count = view.known_dtype && view.dtype == CB_I64 && view.shape.rank == 0;
    if (!is_count || !view.aligned || !view.writable) {
        PyErr_Format(PyExc_TypeError, "%s: expected a writable array of one i64, without axes",
                     name);
        return -1;
    }
    *out = (int64_t *)(void *)view.data;
    return 0;
}

/* Parses the count of random steps (None: not counted), which a successful run sets to `next`. */
static int parse_draws(PyObject *count, PyObject *next, cb_py_draw_count *out) {
    if (count == Py_None) return 0;
    out->next = PyLong_AsLongLong(next);
    if (PyErr_Occurred()) return -1;
    return cb_py_parse_count(count, "the count of random steps", &out->at);
}

/* Parses a stream. None stands for the device's default stream, and the call then waits for the
 * run. */
static int parse_stream(PyObject *stream, void **out) {
    *out = stream == Py_None ? NULL : PyLong_AsVoidPtr(stream);
    return PyErr_Occurred() ? -1 : 0;
}

/* Parses all arguments of a run except its arrays. `seed` has 64 bits, `random_step` 32. */
int cb_py_parse_settings(const cb_py_run_fields *given, cb_run *settings, cb_py_draw_count *draws) {
    settings->seed = PyLong_AsUnsignedLongLongMask(given->seed);
    settings->random_step = (uint32_t)PyLong_AsUnsignedLongMask(given->random_step);
    if (PyErr_Occurred()) return -1;
    if (parse_draws(given->count, given->next, draws) < 0) return -1;
    return parse_stream(given->stream, &settings->stream);
}

int cb_py_take_arrays(const cb_py_run_fields *given, cb_py_run_arrays *run) {
    run->inputs = PySequence_Tuple(given->inputs);
    run->outputs = run->inputs ? PySequence_Tuple(given->outputs) : NULL;
    return run->outputs ? 0 : -1;
}

/* Parses a sequence of arrays (or None) for each state. */
int cb_py_parse_states(PyObject *states, const cb_optimizer *core, cb_py_run_arrays *out) {
    PyObject *rows = PySequence_Tuple(states);
    if (!rows) return -1;
    out->optimizer = core;
    while (out->n_state < CB_MAX_STATES && cb_optimizer_state_name(core, out->n_state)) {
        out->state_name[out->n_state] = cb_optimizer_state_name(core, out->n_state);
        out->n_state++;
    }
    if (cb_py_check_count(rows, out->n_state, "optimizer states") == 0) {
        for (uint32_t s = 0; s < out->n_state && !PyErr_Occurred(); s++)
            out->states[s] = PySequence_Tuple(PyTuple_GET_ITEM(rows, s));
    }
    Py_DECREF(rows);
    return PyErr_Occurred() ? -1 : 0;
}

int cb_py_parse_update(cb_py_step *self, const cb_py_train_fields *given, cb_py_optimizer *out) {
    const cb_optimizer *core =
        cb_py_optimizer_of(cb_py_state_of_object((PyObject *)self), given->optimizer);
    if (!core || cb_py_optimizer_parse(core, given->groups, given->group_of, self->n_wrt, out) < 0)
        return -1;
    if (cb_py_optimizer_numbers(given->numbers, self->n_wrt, out) < 0) return -1;
    return cb_py_parse_count(given->t, "t", &out->t);
}
