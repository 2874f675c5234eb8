/* table_type.c: the type _native.OptimizerTable, and an optimizer's step on NumPy arrays. */
#include "table.h"

#include "base/dtype.h"
#include "base/shape.h"

/* Parses the form in which half-precision weights are kept; None: they are not supported. */
static int parse_half(PyObject *name, cb_py_table *self) {
    static const char *const forms[CB_HALF_FORM_COUNT] = {"master", "remainder", "stochastic"};
    if (name == Py_None) return 0;
    for (int k = 0; PyUnicode_Check(name) && k < CB_HALF_FORM_COUNT; k++) {
        if (PyUnicode_CompareWithASCIIString(name, forms[k]) != 0) continue;
        self->takes_halves = true;
        self->half = (cb_half_form)k;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "half=%R must be master, remainder or stochastic", name);
    return -1;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *names, *kept, *half = Py_None;
    unsigned long long seed = 0;
    unsigned int first_row = 0;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "OptimizerTable takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO!|OKI:OptimizerTable", &kept, &PyTuple_Type, &names, &half,
                          &seed, &first_row)) {
        return NULL;
    }
    cb_py_state *state = PyType_GetModuleState(type);
    const cb_optimizer *optimizer = cb_py_optimizer_of(state, kept);
    cb_py_context *context = optimizer ? cb_py_context_get(state) : NULL;
    if (!context) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        if (PyUnicode_Check(PyTuple_GET_ITEM(names, i))) continue;
        PyErr_SetString(PyExc_TypeError, "OptimizerTable: names must be str");
        return NULL;
    }
    cb_error error = {0};
    cb_tensor_table *core = NULL;
    uint32_t n_rows = (uint32_t)PyTuple_GET_SIZE(names);
    if (cb_tensor_table_new(context->core, optimizer, n_rows, &core, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    cb_py_table *self = (cb_py_table *)type->tp_alloc(type, 0);
    if (!self) {
        cb_tensor_table_free(core);
        return NULL;
    }
    self->context = cb_py_context_retain(context);
    self->core = core;
    self->optimizer = optimizer;
    self->names = Py_NewRef(names);
    self->kept = Py_NewRef(kept);
    self->n_rows = n_rows;
    self->seed = seed;
    self->first_row = first_row;
    self->axes = cb_optimizer_axes(optimizer);
    self->has_form = self->axes != CB_AXES_NONE;
    while (cb_optimizer_state_name(optimizer, self->n_state)) {
        self->has_form |= cb_optimizer_state_kind(optimizer, self->n_state) != CB_STATE_ALIKE;
        self->n_state++;
    }
    while (cb_optimizer_number_name(optimizer, self->n_number)) self->n_number++;
    if (parse_half(half, self) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void table_dealloc(cb_py_table *self) {
    PyTypeObject *type = Py_TYPE(self);
    cb_tensor_table_free(self->core);
    if (self->context) cb_py_context_release(self->context);
    Py_XDECREF(self->names);
    PyMem_Free(self->seen);
    Py_XDECREF(self->kept);
    Py_XDECREF(self->asked);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static int check_layout(const cb_py_table *self, uint32_t i, const char *what,
                        const cb_py_view *view, bool written) {
    const char *problem = !view->contiguous ? "is not contiguous; pass np.ascontiguousarray(x)"
                          : !view->aligned  ? "is not aligned to its elements; pass np.array(x)"
                          : written && !view->writable
                              ? "is read-only, but the step updates it in place; pass x.copy()"
                              : NULL;
    if (!problem) return 0;
    PyErr_Format(PyExc_ValueError, "%s: the %s %s", cb_py_table_name(self, i), what, problem);
    return -1;
}

/* Views an array; uint16 counts as bf16 (it holds its bits, or those of a remainder). */
static int look_at(const cb_py_table *self, uint32_t i, PyObject *array, cb_py_view *view) {
    if (cb_py_view_of(array, cb_py_table_name(self, i), view) < 0) return -1;
    if (view->is_bits16) view->dtype = CB_BF16;
    view->known_dtype |= view->is_bits16;
    return 0;
}

static bool is_half(cb_dtype dtype) { return dtype == CB_F16 || dtype == CB_BF16; }

/* Checks one array of a row, which must have this type and the shape of its parameter. */
static int take(const cb_py_table *self, uint32_t i, const char *what, PyObject *array,
                const cb_py_view *param, cb_dtype dtype, bool written, cb_py_view *view) {
    if (look_at(self, i, array, view) < 0) return -1;
    bool same =
        view->known_dtype && view->dtype == dtype && cb_shape_equal(&view->shape, &param->shape);
    if (same) return check_layout(self, i, what, view, written);
    char wanted[CB_SHAPE_TEXT], given[CB_SHAPE_TEXT];
    PyErr_Format(PyExc_ValueError, "%s: the parameter is %s %s, the %s %s %s",
                 cb_py_table_name(self, i), cb_dtype_name(param->dtype),
                 cb_shape_text(&param->shape, wanted), what,
                 view->known_dtype ? cb_dtype_name(view->dtype) : "of an unsupported dtype",
                 cb_shape_text(&view->shape, given));
    return -1;
}

static int take_param(const cb_py_table *self, uint32_t i, PyObject *array, cb_py_view *view) {
    if (look_at(self, i, array, view) < 0) return -1;
    const bool is_whole = view->dtype == CB_F32 || view->dtype == CB_F64;
    if (view->known_dtype && (is_whole || (is_half(view->dtype) && self->takes_halves)))
        return check_layout(self, i, "parameter", view, true);
    PyErr_Format(PyExc_TypeError, "%s is %s; only f32 and f64 parameters are supported%s",
                 cb_py_table_name(self, i),
                 view->known_dtype ? cb_dtype_name(view->dtype) : "of an unsupported dtype",
                 view->known_dtype && is_half(view->dtype)
                     ? "; for half precision, give the optimizer half="
                     : "");
    return -1;
}

/* Checks one state of a row, in its own form. */
static int take_state(const cb_py_table *self, uint32_t s, uint32_t i, PyObject *array,
                      const cb_py_view *param, const double *hyper, cb_optim_row *row) {
    const char *what = cb_optimizer_state_name(self->optimizer, s);
    const cb_state_kind kind = cb_optimizer_state_kind(self->optimizer, s);
    const cb_dtype alike = is_half(param->dtype) ? CB_F32 : param->dtype;
    cb_py_view view;
    if (kind == CB_STATE_ALIKE) {
        if (take(self, i, what, array, param, alike, true, &view) < 0) return -1;
        row->state[s] = view.data;
        return 0;
    }
    const cb_dtype dtype = kind == CB_STATE_CODES    ? CB_U8
                           : kind == CB_STATE_SCALES ? CB_F32
                                                     : alike;
    cb_optim_row whole = *row;
    whole.n = cb_numel(&param->shape);
    const int64_t wanted = cb_optimizer_state_size(self->optimizer, s, hyper, &whole);
    if (whole.n == 0) return 0;
    if (cb_py_view_of(array, cb_py_table_name(self, i), &view) < 0) return -1;
    row->state[s] = view.data;
    if (view.known_dtype && view.dtype == dtype && cb_numel(&view.shape) == wanted) {
        return check_layout(self, i, what, &view, true);
    }
    PyErr_Format(PyExc_ValueError, "%s: the %s is not %s of %lld elements",
                 cb_py_table_name(self, i), what, cb_dtype_name(dtype), (long long)wanted);
    return -1;
}

typedef struct columns { /* columns with [n_rows] items each */
    PyObject *const *param, *const *grad, *const *state[CB_MAX_STATES];
    PyObject *const *rest; /* extra states of half-precision rows; NULL: none */
} columns;

static int read_columns(const cb_py_table *self, PyObject *params, PyObject *grads,
                        PyObject *states, PyObject *rest, columns *out) {
    PyObject *const *state = cb_py_items(states, self->n_state, "optimizer states");
    if (!state) return -1;
    if (!(out->param = cb_py_items(params, self->n_rows, "parameters"))) return -1;
    if (!(out->grad = cb_py_items(grads, self->n_rows, "gradients"))) return -1;
    for (uint32_t s = 0; s < self->n_state; s++) {
        out->state[s] = cb_py_items(state[s], self->n_rows, "arrays of a state");
        if (!out->state[s]) return -1;
    }
    out->rest = NULL;
    if (!cb_py_table_has_rest(self)) return 0;
    out->rest = cb_py_items(rest, self->n_rows, "extra states of half precision");
    return out->rest ? 0 : -1;
}

/* Takes the fast path, for a row of plain arrays that fit. Returns false if the slow path must be
 * taken, which reports errors. */
static bool set_known_row(cb_py_table *self, const columns *x, uint32_t i, cb_optim_row row) {
    PyObject *param = x->param[i];
    if (self->axes != CB_AXES_NONE) return false;
    if (!cb_py_plain_array(param, true, &row.param, &row.dtype, &row.n)) return false;
    if (x->grad[i] == Py_None) {
        row.n = 0;
    } else if (!cb_py_array_like(x->grad[i], param, false, &row.grad)) {
        return false;
    }
    for (uint32_t s = 0; s < self->n_state; s++) {
        const void *data;
        if (x->state[s][i] == Py_None) continue;
        if (cb_optimizer_state_kind(self->optimizer, s) != CB_STATE_ALIKE) return false;
        if (!cb_py_array_like(x->state[s][i], param, true, &data)) return false;
        row.state[s] = (void *)(uintptr_t)data;
    }
    cb_tensor_table_set(self->core, i, &row);
    return true;
}

static int set_row(cb_py_table *self, const columns *x, const double *hyper, uint32_t i,
                   cb_optim_row row) {
    cb_py_view param, view;
    if (set_known_row(self, x, i, row)) return 0;
    if (take_param(self, i, x->param[i], &param) < 0) return -1;
    row.param = param.data;
    row.dtype = param.dtype;
    if (!cb_optimizer_see(self->optimizer, param.shape.rank, param.shape.dim, &row)) {
        PyErr_Format(PyExc_ValueError, "%s has %d axes, but %s supports only matrices",
                     cb_py_table_name(self, i), param.shape.rank,
                     cb_optimizer_name(self->optimizer));
        return -1;
    }
    if (x->grad[i] != Py_None) {
        if (take(self, i, "gradient", x->grad[i], &param, param.dtype, false, &view) < 0) return -1;
        row.grad = view.data;
        row.n = cb_numel(&param.shape);
    }
    for (uint32_t s = 0; s < self->n_state; s++) {
        PyObject *array = x->state[s][i];
        if (array == Py_None) continue;
        if (take_state(self, s, i, array, &param, hyper, &row) < 0) return -1;
    }
    if (x->rest && x->rest[i] != Py_None) {
        const bool master = self->half == CB_HALF_MASTER;
        if (take(self, i, master ? "master" : "remainder", x->rest[i], &param,
                 master ? CB_F32 : CB_BF16, true, &view) < 0) {
            return -1;
        }
        row.rest = view.data;
    }
    cb_tensor_table_set(self->core, i, &row);
    return 0;
}

static int64_t *parse_i64(PyObject *array, const char *name, int64_t n) {
    cb_py_view view;
    if (cb_py_view_of(array, name, &view) < 0) return NULL;
    bool good = view.known_dtype && view.dtype == CB_I64 && view.contiguous && view.aligned &&
                view.writable && cb_numel(&view.shape) == n;
    if (good) return (int64_t *)(void *)view.data;
    PyErr_Format(PyExc_TypeError, "%s: expected a writable array of %lld i64", name, (long long)n);
    return NULL;
}

/* Returns the scalar states of a row before its step. */
static void numbers_before(const cb_py_table *self, const cb_py_optimizer *numbers, uint32_t i,
                           int64_t t, double *out) {
    const double *hyper = numbers->hyper + (size_t)numbers->group[i] * numbers->n_hyper;
    for (uint32_t k = 0; k < self->n_number; k++) out[k] = numbers->number[i * self->n_number + k];
    if (t == 1) cb_optimizer_count_on(self->optimizer, hyper, 0, out);
}

/* Advances the scalar states of a row after its step. */
static void count_on(const cb_py_table *self, const cb_py_optimizer *numbers, uint32_t i,
                     int64_t t) {
    const double *hyper = numbers->hyper + (size_t)numbers->group[i] * numbers->n_hyper;
    double *number = numbers->number + i * self->n_number;
    if (!self->n_number) return;
    numbers_before(self, numbers, i, t, number);
    cb_optimizer_count_on(self->optimizer, hyper, t, number);
}

/* Makes one step. A row without a gradient (None) is not changed, and its count of missed steps is
 * incremented. */
static PyObject *step_arrays(cb_py_table *self, const cb_py_optimizer *numbers, const columns *x,
                             int64_t *taken, int64_t *missed) {
    if (*taken < 0 || *taken == INT64_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "%s: t=%lld steps were taken; a further step needs 0 <= t < 2**63 - 1",
                     cb_optimizer_name(self->optimizer), (long long)*taken);
        return NULL;
    }
    for (uint32_t i = 0; i < self->n_rows; i++) {
        int64_t late = missed[i];
        if (late < 0 || late > *taken) {
            PyErr_Format(PyExc_ValueError, "%s has missed %lld of %lld steps",
                         cb_py_table_name(self, i), (long long)late, (long long)*taken);
            return NULL;
        }
        cb_optim_row row = cb_py_table_row(self, i, numbers->group[i]);
        row.t = *taken + 1 - late;
        numbers_before(self, numbers, i, row.t, row.number);
        const double *hyper = numbers->hyper + (size_t)numbers->group[i] * numbers->n_hyper;
        if (set_row(self, x, hyper, i, row) < 0) return NULL;
    }
    if (cb_py_table_run(self, numbers) < 0) return NULL;
    if (cb_tensor_table_outcome(self->core).skipped) Py_RETURN_NONE;
    for (uint32_t i = 0; i < self->n_rows; i++) {
        const bool waits = x->grad[i] == Py_None;
        if (!waits) count_on(self, numbers, i, *taken + 1 - missed[i]);
        missed[i] += waits;
    }
    *taken += 1;
    Py_RETURN_NONE;
}

/* The keyword arguments of step. */
typedef struct step_fields {
    PyObject *params, *grads, *states, *group_of, *groups, *t, *missed, *numbers, *rest;
} step_fields;

static const cb_py_field in_step[] = {
    CB_PY_FIELD(step_fields, params), CB_PY_FIELD(step_fields, grads),
    CB_PY_FIELD(step_fields, states), CB_PY_FIELD(step_fields, group_of),
    CB_PY_FIELD(step_fields, groups), CB_PY_FIELD(step_fields, t),
    CB_PY_FIELD(step_fields, missed), CB_PY_FIELD(step_fields, numbers),
    CB_PY_FIELD(step_fields, rest),
};

static PyObject *table_step(cb_py_table *self, PyObject *const *values, Py_ssize_t n,
                            PyObject *names) {
    step_fields given = {.rest = Py_None};
    const cb_py_call as_called = {values, n, names};
    PyObject *result = NULL;
    cb_py_optimizer numbers = {0};
    columns x;
    if (CB_PY_READ_FIELDS("step", as_called, in_step, &given) < 0) return NULL;
    if (cb_py_table_enter(self) < 0) return NULL;
    int64_t *taken = parse_i64(given.t, "t", 1);
    int64_t *late = taken ? parse_i64(given.missed, "missed", self->n_rows) : NULL;
    if (late &&
        cb_py_optimizer_parse(self->optimizer, given.groups, given.group_of, self->n_rows,
                              &numbers) == 0 &&
        cb_py_optimizer_numbers(given.numbers, self->n_rows, &numbers) == 0 &&
        read_columns(self, given.params, given.grads, given.states, given.rest, &x) == 0)
        result = step_arrays(self, &numbers, &x, taken, late);
    cb_py_optimizer_drop(&numbers);
    cb_py_table_leave(self);
    return result;
}

static PyMethodDef table_methods[] = {
    {"step", (PyCFunction)(void (*)(void))table_step, METH_FASTCALL | METH_KEYWORDS,
     "step(*, params, grads, states, group_of, groups, t, missed, numbers, rest=None): one step of "
     "the rows that have a gradient; updates t and missed (arrays of i64) and numbers (of f64)"},
    {"step_tensors", (PyCFunction)(void (*)(void))cb_py_table_step_tensors,
     METH_FASTCALL | METH_KEYWORDS,
     "step_tensors(*, exchange, kinds, params, states, keys, count_key, number_keys, grads, "
     "group_of, groups, kept) -> ([(row, column, why), ...], rows without gradient); see "
     "_native.pyi"},
    {"ask", (PyCFunction)cb_py_table_ask, METH_O,
     "ask(asked, /): sets the extras of the following steps: an object with the fields "
     "grad_factor, max_norm, average_keep, skips, zeroes, averages and copies; None: nothing"},
    {"outcome", (PyCFunction)cb_py_table_outcome, METH_NOARGS,
     "outcome() -> (norm of all gradients or -1, whether the step was skipped)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "OptimizerTable(optimizer, names, half=None, seed=0, first_row=0, /): tensors that "
                "are stepped together."},
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {0, NULL},
};

PyType_Spec cb_py_table_spec = {
    .name = "cutback._native.OptimizerTable",
    .basicsize = sizeof(cb_py_table),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};
