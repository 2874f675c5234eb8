/* table_tensors.c: an optimizer's step on the tensors of another library, read through its DLPack
 * functions in a few tens of nanoseconds each. Tensors that do not fit are only listed, because
 * their library has to change their layout or make a missing state.
 *
 * A tensor consists of several objects in memory, and those of ten thousand parameters do not fit
 * the inner caches. So the objects of a row are prefetched some rows ahead: the Python objects, and
 * the library's own objects, whose addresses are known from the shapes at the latest step. */
#include "base/dtype.h"
#include "table.h"

/* Columns of a row's tensors; scalar state k has the column NUMBER - k. */
enum { NUMBER = -2, COUNT = -1, PARAM = 0, GRAD = 1, STATE = 2 };
enum { NEAR = 8, FAR = 16 }; /* distances of the prefetches, in rows */

enum { MOST_KINDS = 4 };

/* The getter of a type's gradient attribute, which an attribute lookup would call in the end. If
 * `get` is NULL, the attribute is looked up by name. */
typedef struct cb_py_getter {
    getter get;
    void *closure;
} cb_py_getter;

/* The C function of a method without arguments. If `call` is NULL, the method is called by name. */
typedef struct cb_py_method {
    PyCFunction call;
    PyObject *name;
} cb_py_method;

enum { IS_NEG, IS_CONJ, STORAGE, N_METHODS };

typedef struct reading {
    const void *exchange;
    PyObject *kinds;              /* types of plain tensors */
    PyObject *const *params;      /* [n_rows] */
    PyObject *const *states;      /* [n_rows] dicts */
    PyObject *const *keys;        /* [n_state + 1] keys of the states and of the extra half state */
    PyObject *const *number_keys; /* [n_number] */
    PyObject *grads;              /* dict: row -> gradient to use instead of the parameter's */
    PyObject *kept;               /* list of (dict, items to add to it after the step) */
    PyObject *count_key, *grad_name;
    cb_py_getter getter[MOST_KINDS];            /* [kinds] */
    cb_py_method method[MOST_KINDS][N_METHODS]; /* [kinds] */
    PyObject *unfit;                            /* list of (row, column, why) */
    PyObject **held; /* references, so that other threads cannot free them */
    size_t n_held;
    cb_py_tensor *counter; /* [n_rows][1 + n_number] step count and scalar states */
    cb_py_seen *seen;      /* the table's */
    uint32_t n_waiting;    /* number of rows without a gradient */
} reading;

static int add_unfit(reading *r, uint32_t row, int column, const char *why) {
    PyObject *item = Py_BuildValue("(kis)", (unsigned long)row, column, why);
    int done = item ? PyList_Append(r->unfit, item) : -1;
    Py_XDECREF(item);
    return done;
}

static void hold(reading *r, PyObject *object) { r->held[r->n_held++] = object; }

/* Returns the index of an object's type among the kinds; -1 if it has another type. */
static Py_ssize_t kind_of(const reading *r, PyObject *object) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(r->kinds); i++) {
        if ((PyObject *)Py_TYPE(object) == PyTuple_GET_ITEM(r->kinds, i)) return i;
    }
    return -1;
}

static bool is_plain(const reading *r, PyObject *object) { return kind_of(r, object) >= 0; }

/* Returns a borrowed item of a row's dict. NULL: it does not exist, or an exception is set. Keys
 * are usually requested in insertion order, so the entry at `at` is tried first. */
static PyObject *item_of(const reading *r, uint32_t i, PyObject *key, Py_ssize_t *at) {
    PyObject *found, *item;
    Py_ssize_t next = *at;
    if (!PyDict_Next(r->states[i], &next, &found, &item) || found != key)
        return PyDict_GetItemWithError(r->states[i], key);
    *at = next;
    return item;
}

/* ---- prefetching ----------------------------------------------------------------------------- */

static inline void ask_for(uintptr_t address) { __builtin_prefetch((const void *)address); }

static inline void ask_for_4(uintptr_t address) {
    for (unsigned i = 0; i < 4; i++) ask_for(address + 64 * i);
}

static void look_ahead(const cb_py_table *self, const reading *r, uint32_t i) {
    if (i + FAR < self->n_rows) {
        ask_for((uintptr_t)r->params[i + FAR]);
        ask_for((uintptr_t)r->states[i + FAR]);
    }
    if (i + NEAR >= self->n_rows) return;
    ask_for_4((uintptr_t)((PyDictObject *)r->states[i + NEAR])->ma_keys);
    const cb_py_seen *seen = r->seen + (size_t)(i + NEAR) * CB_PY_COLUMNS;
    for (uint32_t k = CB_MAX_NUMBERS - self->n_number; k < CB_MAX_NUMBERS + 4 + self->n_state;
         k++) {
        ask_for(seen[k].object);
        ask_for_4(seen[k].shape - 64); /* the shape is inside the tensor object */
    }
}

static cb_py_seen *seen_at(const reading *r, uint32_t row, int column) {
    const size_t k = (size_t)(column - COUNT + CB_MAX_NUMBERS);
    return &r->seen[row * (size_t)CB_PY_COLUMNS + k];
}

/* ---- facts that DLPack does not provide ------------------------------------------------------ */

static PyObject *ask(const reading *r, Py_ssize_t kind, int which, PyObject *tensor) {
    const cb_py_method *method = &r->method[kind][which];
    return method->call ? method->call(tensor, NULL)
                        : PyObject_CallMethodNoArgs(tensor, method->name);
}

static int answers(const reading *r, Py_ssize_t kind, int which, PyObject *tensor) {
    PyObject *answer = ask(r, kind, which, tensor);
    int is_true = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_true;
}

/* Calls a method that returns an address or a size. */
static unsigned long long number_of(PyObject *object, const char *method) {
    PyObject *number = PyObject_CallMethod(object, method, NULL);
    unsigned long long x = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    return x;
}

/* Returns 1 if a tensor's elements are inside its storage, which may have been shrunk; -1 if an
 * exception is set. */
static int has_memory(const reading *r, Py_ssize_t kind, PyObject *tensor, const cb_py_tensor *x) {
    const unsigned long long bytes = (unsigned long long)x->n * cb_dtype_size(x->dtype);
    if (x->n == 0) return 1;
    if (!x->data) return 0;
    PyObject *storage = ask(r, kind, STORAGE, tensor);
    if (!storage) return -1;
    const unsigned long long begin = number_of(storage, "data_ptr");
    const unsigned long long size = PyErr_Occurred() ? 0 : number_of(storage, "nbytes");
    Py_DECREF(storage);
    if (PyErr_Occurred()) return -1;
    const unsigned long long at = (uintptr_t)x->data;
    return at >= begin && at - begin <= size && bytes <= size - (at - begin);
}

/* Returns NULL if the memory of a tensor holds its values, otherwise the reason (an exception may
 * be set). A tensor may be negated or conjugated lazily, or its storage may be too small. The
 * result is cached while object, shape and memory are the same. Gradients are always checked for
 * lazy negation, because another gradient may reuse the same addresses. */
static const char *look_closely(const reading *r, uint32_t row, int column, PyObject *tensor,
                                const cb_py_tensor *x) {
    const Py_ssize_t kind = kind_of(r, tensor);
    cb_py_seen *seen = seen_at(r, row, column);
    const cb_py_seen now = {(uintptr_t)tensor, (uintptr_t)x->shape, (uintptr_t)x->data};
    const bool is_known =
        seen->object == now.object && seen->shape == now.shape && seen->data == now.data && x->data;
    if (is_known && column != GRAD) return NULL;
    int wrong = answers(r, kind, IS_NEG, tensor);
    if (wrong == 0 && x->is_complex) wrong = answers(r, kind, IS_CONJ, tensor);
    if (wrong) return "is negated or conjugated lazily";
    if (is_known) return NULL;
    const int has = has_memory(r, kind, tensor, x);
    if (has <= 0) return has < 0 ? "is not a plain tensor" : CB_PY_NO_MEMORY;
    *seen = now;
    return NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* True if the elements are row-major. The strides of an empty tensor do not matter. */
static bool is_in_rows(const cb_py_tensor *x) {
    int64_t reached = 1;
    for (int i = x->rank - 1; x->n && x->strides && i >= 0; i--) {
        if (x->shape[i] != 1 && x->strides[i] != reached) return false;
        reached *= x->shape[i];
    }
    return true;
}

static bool has_shape_of(const cb_py_tensor *x, const cb_py_tensor *param) {
    if (x->rank != param->rank) return false;
    for (int i = 0; i < x->rank; i++)
        if (x->shape[i] != param->shape[i]) return false;
    return true;
}

/* Checks a state whose form differs from its parameter's; returns the problem, or NULL. Codes have
 * the shape of their parameter, other forms only a number of elements; all are row-major. */
static const char *check_form(const cb_py_tensor *x, const cb_py_tensor *kind,
                              const cb_py_tensor *param) {
    if (x->dtype != kind->dtype || x->is_complex || x->is_bits) return "is of another type";
    if (x->n != kind->n || !is_in_rows(x)) return "is of another size, or has gaps";
    if (kind->dtype == CB_U8 && !has_shape_of(x, param)) return "has another shape";
    return NULL;
}

/* Reads one tensor of a row. It must have the type of `kind`, and the parameter's shape unless
 * `kind` gives a number of elements. A tensor that does not fit is listed; -1: an exception is
 * set. */
static int read_tensor(reading *r, uint32_t i, int column, PyObject *object,
                       const cb_py_tensor *param, const cb_py_tensor *kind, cb_py_tensor *out) {
    const char *why = "is not a plain tensor", *unlike;
    if (is_plain(r, object)) why = cb_py_tensor_of(r->exchange, object, out);
    if (!why && kind != param && kind->n) why = check_form(out, kind, param);
    else if (!why && !cb_py_tensor_like(out, param, kind, &unlike)) why = unlike;
    if (!why) why = look_closely(r, i, column, object, out);
    if (PyErr_Occurred()) return -1;
    return why ? add_unfit(r, i, column, why) : 0;
}

static bool is_half(const cb_py_tensor *x) { return x->dtype == CB_F16 || x->dtype == CB_BF16; }

static const char *check_axes(const cb_py_table *self, const cb_py_tensor *x) {
    if (!self->has_form) return NULL;
    if (x->is_complex) return "is complex";
    if (self->axes == CB_AXES_TWO && x->rank != 2) return "is not a matrix stored row by row";
    if (x->rank < 2 || is_in_rows(x)) return NULL;
    return self->axes == CB_AXES_TWO ? "is not a matrix stored row by row"
                                     : "is not stored row by row";
}

/* Reads a parameter. Without a gradient it is not stepped, so its memory is not checked. */
static int read_param(const cb_py_table *self, reading *r, uint32_t i, bool is_stepped,
                      cb_py_tensor *out) {
    const char *why = "is not a plain tensor";
    if (is_plain(r, r->params[i])) why = cb_py_tensor_of(r->exchange, r->params[i], out);
    if (!why && is_half(out)) {
        if (!self->takes_halves || out->is_bits) why = "is neither single nor double precision";
        else if (out->dtype == CB_F16 && self->half != CB_HALF_MASTER)
            why = "is float16, for which half is \"master\" or None";
    }
    if (!why && !cb_dtype_is_float(out->dtype)) why = "has a type that optimizers do not support";
    if (!why) why = check_axes(self, out);
    if (!why && is_stepped) why = look_closely(r, i, PARAM, r->params[i], out);
    if (PyErr_Occurred()) return -1;
    return why ? add_unfit(r, i, PARAM, why) : 0;
}

/* Returns the gradient of a row and holds a reference. NULL: it has none, or an exception is
 * set. */
static PyObject *gradient_of(reading *r, uint32_t i) {
    PyObject *grad = NULL;
    if (r->grads != Py_None) {
        PyObject *row = PyLong_FromUnsignedLong(i);
        grad = row ? PyDict_GetItemWithError(r->grads, row) : NULL;
        Py_XINCREF(grad);
        Py_XDECREF(row);
        if (!grad && PyErr_Occurred()) return NULL;
    }
    const Py_ssize_t kind = grad ? -1 : kind_of(r, r->params[i]);
    if (kind >= 0 && r->getter[kind].get)
        grad = r->getter[kind].get(r->params[i], r->getter[kind].closure);
    else if (!grad) grad = PyObject_GetAttr(r->params[i], r->grad_name);
    if (!grad) return NULL;
    hold(r, grad);
    return grad == Py_None ? NULL : grad;
}

static double value_of(const cb_py_tensor *scalar) {
    return scalar->dtype == CB_F32 ? (double)*(const float *)scalar->data
                                   : *(const double *)scalar->data;
}

static void set_value(const cb_py_tensor *scalar, double x) {
    if (scalar->dtype == CB_F32) *(float *)scalar->data = (float)x;
    else *(double *)scalar->data = x;
}

/* Reads a scalar state of a row, an f32 or f64 tensor of one element. NULL: it does not exist, it
 * does not fit and was listed, or an exception is set. */
static const cb_py_tensor *read_scalar(reading *r, uint32_t i, int column, PyObject *key,
                                       Py_ssize_t *at, cb_py_tensor *out) {
    PyObject *object = item_of(r, i, key, at);
    out->data = NULL;
    if (!object) return NULL;
    const char *why = "is not a plain tensor";
    hold(r, Py_NewRef(object));
    if (is_plain(r, object)) why = cb_py_tensor_of(r->exchange, object, out);
    if (!why && (out->n != 1 || out->is_complex || (out->dtype != CB_F32 && out->dtype != CB_F64)))
        why = "is not one number";
    if (!why) why = look_closely(r, i, column, object, out);
    if (PyErr_Occurred()) return NULL;
    if (!why) return out;
    (void)add_unfit(r, i, column, why); /* the caller checks for exceptions */
    return NULL;
}

/* Reads the number of this step: the step count plus 1. Without a count it is 2 (not the first
 * step); if the rounding noise needs it, a missing count is listed. */
static int read_count(reading *r, uint32_t i, bool is_asked, Py_ssize_t *at, cb_py_tensor *out,
                      int64_t *t) {
    const cb_py_tensor *counter = read_scalar(r, i, COUNT, r->count_key, at, out);
    *t = 2;
    if (!counter && PyErr_Occurred()) return -1;
    if (!counter) return is_asked ? add_unfit(r, i, COUNT, "is missing") : 0;
    const double taken = value_of(counter);
    if (!(taken >= 0 && taken < 9e15)) return add_unfit(r, i, COUNT, "is not a number of steps");
    *t = (int64_t)taken + 1;
    return 0;
}

static int read_numbers(reading *r, uint32_t i, uint32_t n, Py_ssize_t *at, cb_py_tensor *out,
                        cb_optim_row *row) {
    for (uint32_t k = 0; k < n; k++) {
        const int column = NUMBER - (int)k;
        const cb_py_tensor *number = read_scalar(r, i, column, r->number_keys[k], at, &out[k]);
        if (PyErr_Occurred()) return -1;
        if (number) row->number[k] = value_of(number);
        else if (add_unfit(r, i, column, "is missing") < 0) return -1;
    }
    return 0;
}

/* Reads one state of a row, or the extra state of a half-precision row. */
static int read_state(reading *r, uint32_t i, uint32_t s, Py_ssize_t *at, const cb_py_tensor *param,
                      const cb_py_tensor *kind, void **out) {
    cb_py_tensor state = {0};
    PyObject *object = item_of(r, i, r->keys[s], at);
    if (!object && PyErr_Occurred()) return -1;
    if (!object || object == Py_None) return add_unfit(r, i, STATE + (int)s, "is missing");
    hold(r, Py_NewRef(object));
    if (read_tensor(r, i, STATE + (int)s, object, param, kind, &state) < 0) return -1;
    *out = state.data;
    return 0;
}

/* Sets the expected size and type of a state with its own form; returns false if the row does not
 * have it. */
static bool set_form(const cb_py_table *self, uint32_t s, const double *hyper,
                     const cb_optim_row *row, const cb_py_tensor **kind, cb_py_tensor *other) {
    const cb_state_kind form = cb_optimizer_state_kind(self->optimizer, s);
    other->n = cb_optimizer_state_size(self->optimizer, s, hyper, row);
    other->dtype = form == CB_STATE_CODES    ? CB_U8
                   : form == CB_STATE_SCALES ? CB_F32
                                             : (*kind)->dtype;
    if (form == CB_STATE_ALIKE) return true;
    if (form != CB_STATE_WHOLE) *kind = other;
    return other->n > 0;
}

static int read_states(const cb_py_table *self, reading *r, uint32_t i, const double *hyper,
                       Py_ssize_t at, const cb_py_tensor *param, cb_optim_row *row) {
    const cb_py_tensor whole = {.dtype = CB_F32}, bits = {.dtype = CB_BF16, .is_bits = true};
    const uint32_t n_used = cb_optimizer_n_used(self->optimizer, hyper);
    for (uint32_t s = 0; s < n_used; s++) {
        const cb_py_tensor *kind = is_half(param) ? &whole : param;
        cb_py_tensor other = {.n = 0};
        if (self->has_form && !set_form(self, s, hyper, row, &kind, &other)) continue;
        if (read_state(r, i, s, &at, param, kind, &row->state[s]) < 0) return -1;
    }
    if (!is_half(param) || !cb_py_table_has_rest(self)) return 0;
    const cb_py_tensor *kind = self->half == CB_HALF_MASTER ? &whole : &bits;
    return read_state(r, i, self->n_state, &at, param, kind, &row->rest);
}

static int read_row(cb_py_table *self, reading *r, uint32_t i, uint32_t group,
                    const double *hyper) {
    cb_py_tensor param = {0}, grad = {0};
    cb_optim_row row = cb_py_table_row(self, i, group);
    cb_py_tensor *counter = &r->counter[(size_t)i * (1 + self->n_number)];
    counter->data = NULL;
    PyObject *gradient = gradient_of(r, i);
    if (PyErr_Occurred() || read_param(self, r, i, gradient != NULL, &param) < 0) return -1;
    row.param = param.data;
    row.dtype = param.dtype;
    row.n = param.n;
    (void)cb_optimizer_see(self->optimizer, param.rank, param.shape,
                           &row); /* checked by read_param */
    if (gradient) {
        if (read_tensor(r, i, GRAD, gradient, &param, &param, &grad) < 0) return -1;
        const bool is_noisy = is_half(&param) && self->half == CB_HALF_STOCHASTIC;
        Py_ssize_t at = 0;
        if (read_count(r, i, is_noisy, &at, counter, &row.t) < 0) return -1;
        if (read_numbers(r, i, self->n_number, &at, counter + 1, &row) < 0) return -1;
        if (read_states(self, r, i, hyper, at, &param, &row) < 0) return -1;
        row.grad = grad.data;
    } else {
        row.n = 0;
        r->n_waiting++;
    }
    if (PyList_GET_SIZE(r->unfit) == 0) cb_tensor_table_set(self->core, i, &row);
    return 0;
}

/* Increments the step count of each row and advances its scalar states, after the step. */
static void count_steps(const cb_py_table *self, const cb_py_optimizer *numbers, const reading *r) {
    for (uint32_t i = 0; i < self->n_rows; i++) {
        const cb_py_tensor *counter = &r->counter[(size_t)i * (1 + self->n_number)];
        double number[CB_MAX_NUMBERS] = {0};
        if (!counter->data) continue;
        const double t = value_of(counter) + 1;
        set_value(counter, t);
        for (uint32_t k = 0; k < self->n_number; k++) number[k] = value_of(counter + 1 + k);
        cb_optimizer_count_on(self->optimizer,
                              numbers->hyper + (size_t)numbers->group[i] * numbers->n_hyper,
                              (int64_t)t, number);
        for (uint32_t k = 0; k < self->n_number; k++) set_value(counter + 1 + k, number[k]);
    }
}

/* Adds new states to the optimizer's dicts, in the same call as the step, so that a signal cannot
 * come in between. */
static int keep_begun(PyObject *kept) {
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(kept); k++) {
        PyObject *pair = PyList_GET_ITEM(kept, k);
        if (PyDict_Update(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)) < 0) return -1;
    }
    return 0;
}

static int step_reading(cb_py_table *self, const cb_py_optimizer *numbers, reading *r) {
    const uint32_t n_hyper = numbers->n_hyper;
    for (uint32_t i = 0; i < self->n_rows; i++) {
        look_ahead(self, r, i);
        uint32_t group = numbers->group[i];
        const double *hyper = numbers->hyper + (size_t)group * n_hyper;
        if (read_row(self, r, i, group, hyper) < 0) return -1;
    }
    if (PyList_GET_SIZE(r->unfit)) return 0;
    if (cb_py_table_run(self, numbers) < 0) return -1;
    if (cb_tensor_table_outcome(self->core).skipped) return 0;
    count_steps(self, numbers, r);
    return keep_begun(r->kept);
}

/* Finds the getter of a kind's gradient. It must be a data descriptor, which takes precedence over
 * an instance's own attribute. */
static void find_getter(reading *r, Py_ssize_t kind) {
    PyObject *type = PyTuple_GET_ITEM(r->kinds, kind);
    PyObject *found = PyObject_GetAttr(type, r->grad_name);
    if (!found) PyErr_Clear();
    if (found && PyType_Check(type) &&
        ((PyTypeObject *)type)->tp_getattro == PyObject_GenericGetAttr &&
        Py_IS_TYPE(found, &PyGetSetDescr_Type) &&
        PyType_IsSubtype((PyTypeObject *)type, PyDescr_TYPE(found))) {
        const PyGetSetDef *def = ((PyGetSetDescrObject *)found)->d_getset;
        if (def->get && def->set) r->getter[kind] = (cb_py_getter){def->get, def->closure};
    }
    Py_XDECREF(found); /* the type keeps it */
}

/* Finds the C function of a method of a kind. */
static void find_method(cb_py_method *method, PyObject *type) {
    PyObject *found = PyObject_GetAttr(type, method->name);
    if (!found) PyErr_Clear();
    if (found && PyType_Check(type) && Py_IS_TYPE(found, &PyMethodDescr_Type) &&
        PyType_IsSubtype((PyTypeObject *)type, PyDescr_TYPE(found))) {
        const PyMethodDef *def = ((PyMethodDescrObject *)found)->d_method;
        if (def->ml_flags == METH_NOARGS) method->call = def->ml_meth;
    }
    Py_XDECREF(found); /* the type keeps it */
}

/* Finds the gradient getters and the methods of all kinds; -1: an exception is set. */
static int intern(reading *r) {
    static const char *const methods[N_METHODS] = {"is_neg", "is_conj", "untyped_storage"};
    if (PyTuple_GET_SIZE(r->kinds) > MOST_KINDS) {
        PyErr_Format(PyExc_ValueError, "expected at most %d kinds of tensors", MOST_KINDS);
        return -1;
    }
    r->grad_name = PyUnicode_InternFromString("grad");
    if (!r->grad_name) return -1;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(r->kinds); k++) {
        find_getter(r, k);
        for (int m = 0; m < N_METHODS; m++) {
            r->method[k][m].name = PyUnicode_InternFromString(methods[m]);
            if (!r->method[k][m].name) return -1;
            find_method(&r->method[k][m], PyTuple_GET_ITEM(r->kinds, k));
        }
    }
    return 0;
}

static int check_dicts(const cb_py_table *self, const reading *r) {
    for (uint32_t i = 0; i < self->n_rows; i++) {
        if (PyDict_Check(r->states[i])) continue;
        PyErr_Format(PyExc_TypeError, "%s: the state must be a dict", cb_py_table_name(self, i));
        return -1;
    }
    return 0;
}

/* Releases all references. This writes each object's reference count, so objects are prefetched
 * here, too. */
static void drop_reading(reading *r) {
    for (size_t i = 0; i < r->n_held; i++) {
        if (i + FAR < r->n_held) ask_for((uintptr_t)r->held[i + FAR]);
        Py_DECREF(r->held[i]);
    }
    PyMem_Free(r->held);
    PyMem_Free(r->counter);
    Py_XDECREF(r->grad_name);
    for (int k = 0; k < MOST_KINDS; k++) {
        for (int m = 0; m < N_METHODS; m++) Py_XDECREF(r->method[k][m].name);
    }
}

/* True if `kept` is a list of pairs of dicts; otherwise sets an exception. */
static bool are_pairs(PyObject *kept) {
    bool are = PyList_Check(kept);
    for (Py_ssize_t k = 0; are && k < PyList_GET_SIZE(kept); k++) {
        PyObject *pair = PyList_GET_ITEM(kept, k);
        are = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 &&
              PyDict_Check(PyTuple_GET_ITEM(pair, 0)) && PyDict_Check(PyTuple_GET_ITEM(pair, 1));
    }
    if (!are)
        PyErr_SetString(PyExc_TypeError, "step_tensors: kept must be a list of pairs of dicts");
    return are;
}

/* The keyword arguments of step_tensors. */
typedef struct tensors_fields {
    PyObject *exchange, *kinds, *params, *states, *keys, *count_key, *number_keys, *grads;
    PyObject *group_of, *groups, *kept;
} tensors_fields;

static const cb_py_field in_step_tensors[] = {
    CB_PY_FIELD(tensors_fields, exchange),    CB_PY_FIELD(tensors_fields, kinds),
    CB_PY_FIELD(tensors_fields, params),      CB_PY_FIELD(tensors_fields, states),
    CB_PY_FIELD(tensors_fields, keys),        CB_PY_FIELD(tensors_fields, count_key),
    CB_PY_FIELD(tensors_fields, number_keys), CB_PY_FIELD(tensors_fields, grads),
    CB_PY_FIELD(tensors_fields, group_of),    CB_PY_FIELD(tensors_fields, groups),
    CB_PY_FIELD(tensors_fields, kept),
};

static int check_types(const tensors_fields *given) {
    if (!PyTuple_Check(given->kinds) || !PyUnicode_Check(given->count_key)) {
        PyErr_SetString(PyExc_TypeError,
                        "step_tensors: kinds must be a tuple, and count_key a str");
        return -1;
    }
    return are_pairs(given->kept) ? 0 : -1;
}

/* step_tensors(*, exchange, kinds, params, states, keys, count_key, number_keys, grads, group_of,
 * groups, kept) -> ([(row, column, why)], rows without gradient) */
PyObject *cb_py_table_step_tensors(cb_py_table *self, PyObject *const *values, Py_ssize_t n_given,
                                   PyObject *names) {
    tensors_fields given = {.exchange = NULL};
    const cb_py_call as_called = {values, n_given, names};
    cb_py_optimizer numbers = {0};
    reading r = {0};
    if (CB_PY_READ_FIELDS("step_tensors", as_called, in_step_tensors, &given) < 0 ||
        check_types(&given) < 0)
        return NULL;
    r.kinds = given.kinds;
    r.count_key = given.count_key;
    r.grads = given.grads;
    r.kept = given.kept;
    if (r.grads != Py_None && !PyDict_Check(r.grads)) {
        PyErr_SetString(PyExc_TypeError, "step_tensors: grads must be a dict or None");
        return NULL;
    }
    if (cb_py_table_enter(self) < 0) return NULL;
    const size_t n = self->n_rows;
    r.held = PyMem_New(PyObject *, n * (CB_PY_COLUMNS - 1) + 1);
    r.counter = PyMem_New(cb_py_tensor, n * (1 + self->n_number) + 1);
    if (!self->seen) self->seen = PyMem_Calloc(n * CB_PY_COLUMNS + 1, sizeof *self->seen);
    r.seen = self->seen;
    if (!r.held || !r.counter || !r.seen) PyErr_NoMemory();
    bool ready =
        r.held && r.counter && r.seen && intern(&r) == 0 &&
        (r.exchange = cb_py_exchange_of(given.exchange)) &&
        (r.params = cb_py_items(given.params, self->n_rows, "parameters")) &&
        (r.states = cb_py_items(given.states, self->n_rows, "states")) &&
        (r.keys = cb_py_items(given.keys, self->n_state + cb_py_table_has_rest(self),
                              "names of states")) &&
        (r.number_keys = cb_py_items(given.number_keys, self->n_number, "names of numbers")) &&
        check_dicts(self, &r) == 0 &&
        cb_py_optimizer_parse(self->optimizer, given.groups, given.group_of, self->n_rows,
                              &numbers) == 0;
    if (ready) r.unfit = PyList_New(0);
    if (r.unfit && step_reading(self, &numbers, &r) < 0) Py_CLEAR(r.unfit);
    cb_py_optimizer_drop(&numbers);
    drop_reading(&r);
    cb_py_table_leave(self);
    return r.unfit ? Py_BuildValue("(Nk)", r.unfit, (unsigned long)r.n_waiting) : NULL;
}
