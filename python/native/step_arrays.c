/* step_arrays.c: checks the arrays that a step runs on: NumPy arrays and device arrays. */
#include "state.h"

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"

static int check_type(const cb_argument_info *info, const char *name, const cb_py_view *view) {
    bool stands_in = view->is_bits16 && info->dtype == CB_BF16;
    bool same_dtype = stands_in || (view->known_dtype && view->dtype == info->dtype);
    if (same_dtype && cb_shape_equal(&view->shape, &info->shape)) return 0;
    char wanted[CB_SHAPE_TEXT], given[CB_SHAPE_TEXT];
    PyErr_Format(same_dtype ? PyExc_ValueError : PyExc_TypeError, "%s: expected %s %s, got %s %s",
                 name, cb_dtype_name(info->dtype), cb_shape_text(&info->shape, wanted),
                 view->known_dtype ? cb_dtype_name(view->dtype) : "an unsupported dtype",
                 cb_shape_text(&view->shape, given));
    return -1;
}

/* If `given`, the caller's array receives a gradient, so a copy would not help. */
static int check_layout(PyObject *array, const char *name, const cb_py_view *view, bool written,
                        bool given) {
    if (!view->contiguous) {
        PyObject *strides = cb_py_strides_text(array);
        if (strides) {
            char shape[CB_SHAPE_TEXT];
            PyErr_Format(
                PyExc_ValueError,
                "%s: an array of shape %s with strides %U (bytes) is not contiguous; pass %s", name,
                cb_shape_text(&view->shape, shape), strides,
                given ? "one from np.empty" : "np.ascontiguousarray(x)");
            Py_DECREF(strides);
        }
        return -1;
    }
    if (!view->aligned) {
        PyErr_Format(PyExc_ValueError, "%s: the array is not aligned to its elements; pass %s",
                     name, given ? "one from np.empty" : "np.array(x)");
        return -1;
    }
    if (written && !view->writable) {
        PyErr_Format(PyExc_ValueError, "%s: the array is read-only, but the step %s", name,
                     given ? "writes to it" : "updates it in place; pass x.copy()");
        return -1;
    }
    return 0;
}

/* The role of an array. */
typedef struct place {
    const char *name;
    bool written;
    bool is_gradient; /* the array for the gradient of `name`, given as out */
} place;

/* Returns the name of an array in an error. */
static const char *name_of(const place *p, char *room, size_t bytes) {
    if (!p->is_gradient) return p->name;
    PyOS_snprintf(room, bytes, "out, for the gradient of %s", p->name);
    return room;
}

/* Sets the exception for an invalid array on the host. */
static int refuse(PyObject *array, const cb_argument_info *info, const place *p) {
    cb_py_view view;
    char room[256];
    const char *name = name_of(p, room, sizeof room);
    if (cb_py_view_of(array, name, &view) < 0 || check_type(info, name, &view) < 0 ||
        check_layout(array, name, &view, p->written, p->is_gradient) < 0)
        return -1;
    PyErr_Format(PyExc_RuntimeError, "%s: the array changed while it was checked", name);
    return -1;
}

/* Sets the exception for an invalid device array. Device arrays are always contiguous and
 * aligned. */
static int refuse_there(const cb_py_step *self, const cb_py_device_memory *memory,
                        const cb_argument_info *info, const place *p) {
    const cb_py_view view = {.shape = memory->shape, .dtype = memory->dtype, .known_dtype = true};
    char room[256];
    const char *name = name_of(p, room, sizeof room);
    if (!self->on_device) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the array is on a GPU, but the step runs on the host; pass a NumPy "
                     "array, or compile with device=\"cuda\"",
                     name);
    } else if (check_type(info, name, &view) == 0) {
        PyErr_Format(PyExc_ValueError, "%s: the array is read-only, but the step writes to it",
                     name);
    }
    return -1;
}

static int take_there(const cb_py_step *self, const cb_py_device_memory *memory,
                      const cb_argument_info *info, const place *p, void **out) {
    *out = memory->data;
    if (self->on_device && memory->dtype == info->dtype &&
        cb_shape_equal(&memory->shape, &info->shape) && (memory->writable || !p->written))
        return 0;
    return refuse_there(self, memory, info, p);
}

static bool is_there(const cb_py_step *self, PyObject *array) {
    return PyObject_TypeCheck(array, cb_py_state_of_object((PyObject *)self)->memory_type);
}

/* Checks one array and stores its address. The core checks for overlaps. */
static int take(cb_py_step *self, PyObject *array, const cb_argument_info *info, const place *p,
                void **out) {
    bool *there = &self->there[out - self->pointers];
    *there = is_there(self, array);
    if (*there) return take_there(self, (cb_py_device_memory *)array, info, p, out);
    if (cb_py_array_fits(array, info->dtype, &info->shape, p->written, out)) return 0;
    return refuse(array, info, p);
}

/* Returns the type and the shape of a parameter's state, where the parameter has the state. */
cb_argument_info cb_py_state_info(const cb_py_step *self, const cb_optimizer *core, uint32_t s,
                                  uint32_t k) {
    cb_argument_info info = cb_step_input(self->core, self->wrt[k]);
    const cb_state_kind kind = cb_optimizer_state_kind(core, s);
    int64_t *dim = info.shape.dim;
    if (kind == CB_STATE_ALIKE || kind == CB_STATE_WHOLE) return info;
    cb_optim_row row = {.n = cb_numel(&info.shape)};
    (void)cb_optimizer_see(core, info.shape.rank, dim, &row);
    if (kind == CB_STATE_CODES) {
        info.dtype = CB_U8;
    } else if (kind == CB_STATE_SCALES) {
        info.dtype = CB_F32;
        info.shape =
            (cb_shape){.rank = 2, .dim = {(row.n + CB_STATE_BLOCK - 1) / CB_STATE_BLOCK, 2}};
    } else if (kind == CB_STATE_ROWS && info.shape.rank > 1) {
        info.shape.rank--;
    } else if (kind == CB_STATE_COLUMNS && info.shape.rank > 1) {
        info.shape.rank--;
        dim[info.shape.rank - 1] = row.width;
    } else if (kind == CB_STATE_LEFT || kind == CB_STATE_RIGHT) {
        const int64_t side = kind == CB_STATE_LEFT ? row.height : row.width;
        info.shape = (cb_shape){.rank = 3, .dim = {2, side, side}};
    }
    info.bytes = (uint64_t)cb_numel(&info.shape) * cb_dtype_size(info.dtype);
    return info;
}

/* Checks the state arrays of an optimizer. None means that a parameter lacks a state, which the
 * core reports if its group needs the state. */
static int bind_states(cb_py_step *self, const cb_py_run_arrays *run, void **params) {
    bool *there = self->there + (params - self->pointers);
    for (uint32_t k = 0; k < self->n_wrt; k++) {
        params[k] = self->pointers[self->wrt[k]];
        there[k] = self->there[self->wrt[k]];
    }
    for (uint32_t s = 0; s < run->n_state; s++) {
        void **state = params + (size_t)(1 + s) * self->n_wrt;
        const place p = {.name = run->state_name[s], .written = true};
        if (cb_py_check_count(run->states[s], self->n_wrt, "arrays of an optimizer state") < 0)
            return -1;
        for (uint32_t k = 0; k < self->n_wrt; k++) {
            const cb_argument_info info = cb_py_state_info(self, run->optimizer, s, k);
            PyObject *array = PyTuple_GET_ITEM(run->states[s], k);
            state[k] = NULL;
            self->there[state + k - self->pointers] = false;
            if (array == Py_None) continue;
            if (take(self, array, &info, &p, &state[k]) < 0) return -1;
        }
    }
    return 0;
}

static int bind_outputs(cb_py_step *self, const cb_py_run_arrays *run, void **outputs) {
    const uint32_t n = cb_step_n_outputs(self->core);
    for (uint32_t i = 0; i < n; i++) {
        const cb_argument_info info = cb_step_output(self->core, i);
        PyObject *array = PyTuple_GET_ITEM(run->outputs, i);
        const place p = {
            .name = info.name, .written = true, .is_gradient = info.role_or_kind == CB_PY_GRADIENT};
        outputs[i] = NULL;
        self->there[outputs + i - self->pointers] = false;
        if (array == Py_None && (info.inside || info.role_or_kind == CB_PY_STATE)) continue;
        if (take(self, array, &info, &p, &outputs[i]) < 0) return -1;
    }
    return 0;
}

/* Checks all arrays and fills self->pointers: inputs, outputs, and with an optimizer the parameters
 * and each state. */
int cb_py_bind(cb_py_step *self, const cb_py_run_arrays *run) {
    const uint32_t n_in = cb_step_n_inputs(self->core), n_out = cb_step_n_outputs(self->core);
    void **outputs = self->pointers + n_in;
    if (cb_py_check_count(run->inputs, n_in, "inputs") < 0 ||
        cb_py_check_count(run->outputs, n_out, "outputs") < 0)
        return -1;
    for (uint32_t i = 0; i < n_in; i++) {
        const cb_argument_info info = cb_step_input(self->core, i);
        const bool written = self->has_state[i] || (run->is_stepped && self->is_wrt[i]);
        const place p = {.name = info.name, .written = written};
        if (take(self, PyTuple_GET_ITEM(run->inputs, i), &info, &p, &self->pointers[i]) < 0)
            return -1;
    }
    if (bind_outputs(self, run, outputs) < 0) return -1;
    return run->is_stepped ? bind_states(self, run, outputs + n_out) : 0;
}

int cb_py_bind_input(cb_py_step *self, uint32_t i, PyObject *array) {
    const cb_argument_info info = cb_step_input(self->core, i);
    const place p = {.name = info.name};
    return take(self, array, &info, &p, &self->pointers[i]);
}

int cb_py_bind_output(cb_py_step *self, uint32_t i, PyObject *array) {
    const cb_argument_info info = cb_step_output(self->core, i);
    const place p = {
        .name = info.name, .written = true, .is_gradient = info.role_or_kind == CB_PY_GRADIENT};
    return take(self, array, &info, &p, &self->pointers[cb_step_n_inputs(self->core) + i]);
}

/* ---- arrays on a device ---------------------------------------------------------------------- */

typedef cb_status (*memory_fn)(cb_py_device_memory *memory, void *user, cb_error *err);

static cb_status each_of(const cb_py_step *self, PyObject *tuple, memory_fn visit, void *user,
                         cb_error *err) {
    PyTypeObject *const memory = cb_py_state_of_object((PyObject *)self)->memory_type;
    const PyTypeObject *latest = memory; /* a type of device arrays: nearly all have the same one */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *array = PyTuple_GET_ITEM(tuple, i);
        if (array == Py_None) continue;
        if (Py_TYPE(array) != latest && !PyObject_TypeCheck(array, memory)) continue;
        latest = Py_TYPE(array);
        CB_TRY(visit((cb_py_device_memory *)array, user, err));
    }
    return CB_OK;
}

static cb_status each_memory(const cb_py_step *self, const cb_py_run_arrays *run, memory_fn visit,
                             void *user, cb_error *err) {
    CB_TRY(each_of(self, run->inputs, visit, user, err));
    CB_TRY(each_of(self, run->outputs, visit, user, err));
    for (uint32_t s = 0; s < run->n_state; s++)
        CB_TRY(each_of(self, run->states[s], visit, user, err));
    return CB_OK;
}

static cb_status order(cb_py_device_memory *memory, void *user, cb_error *err) {
    return cb_py_device_order(memory, user, err);
}

typedef struct end_of_run {
    cb_mark *mark; /* NULL: the run has finished */
    void *stream;
} end_of_run;

static cb_status note_use(cb_py_device_memory *memory, void *user, cb_error *err) {
    const end_of_run *end = user;
    (void)err;
    cb_py_device_used(memory, end->mark, end->stream);
    return CB_OK;
}

cb_status cb_py_before_run(const cb_py_step *self, const cb_py_run_arrays *run, void *stream,
                           cb_error *err) {
    cb_py_ordering ordering = {.stream = stream};
    return each_memory(self, run, order, &ordering, err);
}

/* Returns the end of a run on a stream. */
static end_of_run end_on(const cb_py_step *self, void *stream) {
    end_of_run end = {.stream = stream};
    cb_context *core = self->context->core;
    if (stream && cb_mark_new(core, "cuda", stream, &end.mark, NULL) != CB_OK) {
        end = (end_of_run){0}; /* creating an event failed: wait instead */
        (void)(cb_memory_wait(core, "cuda", stream, NULL) == CB_OK);
    }
    return end;
}

void cb_py_leave_pending(const cb_py_step *self, const cb_py_run_arrays *run, void *stream) {
    end_of_run end = end_on(self, stream);
    (void)(each_memory(self, run, note_use, &end, NULL) == CB_OK);
    cb_mark_drop(end.mark);
}

/* ---- replays --------------------------------------------------------------------------------- */

static cb_status join(cb_py_device_memory *memory, void *user, cb_error *err) {
    (void)err;
    cb_py_joint_add(user, memory);
    return CB_OK;
}

cb_status cb_py_before_replay(const cb_py_step *self, const cb_py_run_arrays *graph,
                              const cb_py_joint_use *joint, const cb_py_run_arrays *copied,
                              void *stream, cb_error *err) {
    if (joint->is_whole) CB_TRY(cb_py_joint_order(joint, stream, err));
    else CB_TRY(cb_py_before_run(self, graph, stream, err));
    return cb_py_before_run(self, copied, stream, err);
}

void cb_py_leave_replay(const cb_py_step *self, const cb_py_run_arrays *graph,
                        cb_py_joint_use *joint, const cb_py_run_arrays *copied, void *stream) {
    end_of_run end = end_on(self, stream);
    if (!joint->is_whole) (void)(each_memory(self, graph, join, joint, NULL) == CB_OK);
    joint->is_whole = true;
    cb_py_joint_used(joint, end.mark, end.stream);
    (void)(each_memory(self, copied, note_use, &end, NULL) == CB_OK);
    cb_mark_drop(end.mark);
}
