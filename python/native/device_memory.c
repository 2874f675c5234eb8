/* device_memory.c: the type _native.DeviceMemory: contiguous elements in a GPU's memory, ours or
 * another library's, for the inputs and outputs of steps. cutback/device_arrays.py has its Python
 * methods.
 *
 * Our memory is a block of the device's pool (include/cutback.h: cb_block), and is returned to the
 * pool when the array dies. The next user waits for the marks of our work on it, and for the work
 * of other libraries on the streams that they have named. If a library did not name a stream, the
 * users are unknown, and the block is only reused after the whole device was synchronized.
 */
#include "state.h"

#include "base/dtype.h"
#include "base/shape.h"

#define BACKEND "cuda"

/* ---- order ----------------------------------------------------------------------------------- */

static void drop_marks(cb_uses *uses) {
    for (uint32_t i = 0; i < uses->n; i++) cb_mark_drop(uses->mark[i]);
    uses->n = 0;
}

static void drop_joint(cb_py_joint_use *joint) {
    if (!joint || --joint->n_ref) return;
    cb_mark_drop(joint->mark);
    PyMem_Free(joint);
}

static void leave_joint(cb_py_device_memory *self) {
    if (self->joint) self->joint->is_whole = false;
    drop_joint(self->joint);
    self->joint = NULL;
}

void cb_py_device_used(cb_py_device_memory *self, cb_mark *mark, void *home) {
    for (uint32_t i = 0; !mark && i < self->uses.n; i++) cb_mark_reached(self->uses.mark[i]);
    leave_joint(self);
    drop_marks(&self->uses);
    if (mark) self->uses.mark[self->uses.n++] = cb_mark_keep(mark);
    self->uses.home = home;
}

static bool was_seen(const cb_py_ordering *ordering, const cb_mark *mark) {
    for (uint32_t i = 0; i < ordering->n; i++)
        if (ordering->seen[i] == mark) return true;
    return false;
}

/* Keeps the first marks, because nearly all arrays have the last step's mark. */
static void note_seen(cb_py_ordering *ordering, const cb_mark *mark) {
    if (ordering->n < CB_MOST_MARKS) ordering->n++;
    ordering->seen[ordering->n - 1] = mark;
}

static cb_status order_mark(cb_mark *mark, cb_py_ordering *ordering, cb_error *err) {
    if (!mark || was_seen(ordering, mark)) return CB_OK;
    CB_TRY(cb_mark_wait(mark, ordering->stream, err));
    note_seen(ordering, mark);
    return CB_OK;
}

cb_status cb_py_device_order(cb_py_device_memory *self, cb_py_ordering *ordering, cb_error *err) {
    for (uint32_t i = 0; i < self->uses.n; i++)
        CB_TRY(order_mark(self->uses.mark[i], ordering, err));
    return self->joint ? order_mark(self->joint->mark, ordering, err) : CB_OK;
}

/* ---- joint uses ------------------------------------------------------------------------------ */

cb_py_joint_use *cb_py_joint_new(void) {
    cb_py_joint_use *joint = PyMem_Calloc(1, sizeof *joint);
    if (!joint) PyErr_NoMemory();
    else joint->n_ref = 1;
    return joint;
}

void cb_py_joint_free(cb_py_joint_use *joint) { drop_joint(joint); }

void cb_py_joint_add(cb_py_joint_use *joint, cb_py_device_memory *memory) {
    if (memory->joint != joint) {
        leave_joint(memory);
        memory->joint = joint;
        joint->n_ref++;
    }
    drop_marks(&memory->uses);
}

cb_status cb_py_joint_order(const cb_py_joint_use *joint, void *stream, cb_error *err) {
    return joint->mark ? cb_mark_wait(joint->mark, stream, err) : CB_OK;
}

void cb_py_joint_used(cb_py_joint_use *joint, cb_mark *mark, void *home) {
    if (!mark && joint->mark) cb_mark_reached(joint->mark);
    cb_mark_drop(joint->mark);
    joint->mark = mark ? cb_mark_keep(mark) : NULL;
    joint->home = home;
}

/* Returns the uses of a memory, with the joint one. There is room: streams of consumers become
 * marks only when the memory dies. */
static cb_uses uses_of(const cb_py_device_memory *self) {
    cb_uses uses = self->uses;
    if (!self->joint) return uses;
    if (self->joint->mark) uses.mark[uses.n++] = self->joint->mark;
    uses.home = self->joint->home;
    return uses;
}

/* Marks the current end of each consumer's work. The handle 2 (the per-thread default stream) is a
 * different stream on each thread, and the array may be released on another thread. */
static void mark_consumers(cb_py_device_memory *self) {
    void *const per_thread = (void *)2;
    cb_uses *uses = &self->uses;
    for (uint32_t i = 0; i < self->n_consumer && !uses->is_unknown; i++) {
        cb_mark *mark;
        if (uses->n == CB_MOST_MARKS || self->consumer[i] == per_thread ||
            cb_mark_new(self->context->core, BACKEND, self->consumer[i], &mark, NULL) != CB_OK)
            uses->is_unknown = true;
        else uses->mark[uses->n++] = mark;
    }
}

static void add_consumer(cb_py_device_memory *self, void *stream) {
    for (uint32_t i = 0; i < self->n_consumer; i++)
        if (self->consumer[i] == stream) return;
    if (self->n_consumer == CB_PY_MOST_CONSUMERS) self->uses.is_unknown = true;
    else self->consumer[self->n_consumer++] = stream;
}

/* ---- creation -------------------------------------------------------------------------------- */

static cb_py_device_memory *memory_new(PyTypeObject *type, cb_py_context *context, cb_dtype dtype,
                                       const cb_shape *shape, int device) {
    int64_t n = 1;
    bool fits = true;
    for (int32_t i = 0; i < shape->rank; i++)
        fits &= shape->dim[i] >= 0 && !__builtin_mul_overflow(n, shape->dim[i], &n);
    if (!fits || n > INT64_MAX / 8)
        return (cb_py_device_memory *)PyErr_Format(PyExc_ValueError,
                                                   "invalid shape: negative or too large");
    cb_py_device_memory *self = (cb_py_device_memory *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->context = cb_py_context_retain(context);
    self->dtype = dtype;
    self->shape = *shape;
    self->bytes = (size_t)n * cb_dtype_size(dtype);
    self->device = device;
    return self;
}

/* Parses shape and dtype. */
static int parse_kind(PyObject *shape, PyObject *dtype, cb_shape *out, cb_dtype *type) {
    return cb_py_parse_shape(shape, "shape", out) < 0 ? -1 : cb_py_parse_dtype(dtype, type);
}

/* Returns the state of the module that the type, or its base type, belongs to. */
static cb_py_state *state_of_type(PyTypeObject *type) {
    PyObject *module = PyType_GetModuleByDef(type, &cb_py_module_def);
    return module ? cb_py_state_of(module) : NULL;
}

static int parse_stream(PyObject *stream, void **out) {
    *out = NULL;
    if (stream == Py_None) return 0;
    *out = PyLong_AsVoidPtr(stream);
    return PyErr_Occurred() ? -1 : 0;
}

/* empty(shape, dtype, device, stream) */
static PyObject *memory_empty(PyObject *type, PyObject *args) {
    PyObject *shape_of, *dtype_of, *stream_of;
    int device;
    cb_shape shape;
    cb_dtype dtype;
    cb_error error;
    void *stream;
    cb_py_state *state = state_of_type((PyTypeObject *)type);
    if (!state || !PyArg_ParseTuple(args, "OOiO:empty", &shape_of, &dtype_of, &device, &stream_of))
        return NULL;
    if (parse_kind(shape_of, dtype_of, &shape, &dtype) < 0 || parse_stream(stream_of, &stream) < 0)
        return NULL;
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_py_device_memory *self = memory_new((PyTypeObject *)type, context, dtype, &shape, device);
    if (!self || self->bytes == 0) return (PyObject *)self;
    cb_status status;
    Py_BEGIN_ALLOW_THREADS status = cb_block_take(context->core, BACKEND, self->bytes, stream,
                                                  &self->block, &self->uses, &error);
    Py_END_ALLOW_THREADS if (status != CB_OK) {
        self->block = NULL;
        Py_DECREF(self);
        return cb_py_raise(state, &error, NULL);
    }
    self->data = cb_block_address(self->block);
    self->writable = true;
    return (PyObject *)self;
}

/* over(shape, dtype, device, address, writable, owner) */
static PyObject *memory_over(PyObject *type, PyObject *args) {
    PyObject *shape_of, *dtype_of, *address, *owner;
    int device, writable;
    cb_shape shape;
    cb_dtype dtype;
    cb_py_state *state = state_of_type((PyTypeObject *)type);
    if (!state || !PyArg_ParseTuple(args, "OOiOpO:over", &shape_of, &dtype_of, &device, &address,
                                    &writable, &owner))
        return NULL;
    if (parse_kind(shape_of, dtype_of, &shape, &dtype) < 0) return NULL;
    void *data = PyLong_AsVoidPtr(address);
    cb_py_context *context = PyErr_Occurred() ? NULL : cb_py_context_get(state);
    if (!context) return NULL;
    cb_py_device_memory *self = memory_new((PyTypeObject *)type, context, dtype, &shape, device);
    if (!self) return NULL;
    self->data = data;
    self->writable = writable;
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

static int memory_traverse(cb_py_device_memory *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    return 0;
}

static int memory_clear(cb_py_device_memory *self) {
    Py_CLEAR(self->owner);
    return 0;
}

static void memory_dealloc(cb_py_device_memory *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->block) {
        self->uses = uses_of(self);
        if (self->joint && self->joint->mark) (void)cb_mark_keep(self->joint->mark);
        mark_consumers(self);
        cb_block_give(self->context->core, BACKEND, self->block, &self->uses);
    } else drop_marks(&self->uses);
    leave_joint(self);
    Py_CLEAR(self->owner);
    cb_py_context_release(self->context);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- copies and other libraries -------------------------------------------------------------- */

/* Takes references to the marks of a memory. While the GIL is released, other threads may drop the
 * marks. */
static cb_uses keep_marks(const cb_py_device_memory *self) {
    cb_uses kept = uses_of(self);
    for (uint32_t i = 0; i < kept.n; i++) (void)cb_mark_keep(kept.mark[i]);
    return kept;
}

/* Removes the marks that were waited for, and drops the references of keep_marks. */
static void forget_marks(cb_py_device_memory *self, cb_uses *waited) {
    cb_uses *uses = &self->uses;
    for (uint32_t k = 0; k < waited->n; k++) {
        cb_mark_reached(waited->mark[k]);
        for (uint32_t i = 0; i < uses->n; i++) {
            if (uses->mark[i] != waited->mark[k]) continue;
            cb_mark_drop(uses->mark[i]);
            uses->mark[i--] = uses->mark[--uses->n];
        }
    }
    drop_marks(waited);
}

static cb_status order_after(const cb_uses *uses, void *stream, cb_error *err) {
    for (uint32_t i = 0; i < uses->n; i++) CB_TRY(cb_mark_wait(uses->mark[i], stream, err));
    return CB_OK;
}

static PyObject *copy(cb_py_device_memory *self, PyObject *array, bool to_host) {
    cb_py_view view;
    cb_error error;
    cb_status status;
    if (cb_py_view_of(array, "copy", &view) < 0) return NULL;
    if (!view.contiguous || view.bytes != self->bytes || (to_host && !view.writable))
        return PyErr_Format(PyExc_ValueError, "copy: expected a contiguous array of %zu bytes",
                            self->bytes);
    if (self->bytes == 0) Py_RETURN_NONE;
    cb_context *core = self->context->core;
    cb_uses before = keep_marks(self);
    Py_BEGIN_ALLOW_THREADS status = order_after(&before, NULL, &error);
    if (status == CB_OK)
        status = cb_memory_copy(core, BACKEND, NULL, to_host, to_host ? view.data : self->data,
                                to_host ? self->data : view.data, self->bytes, &error);
    Py_END_ALLOW_THREADS if (status == CB_OK) forget_marks(self, &before);
    else drop_marks(&before);
    if (status != CB_OK) return cb_py_raise(state_of_type(Py_TYPE(self)), &error, NULL);
    Py_RETURN_NONE;
}

static PyObject *memory_read(cb_py_device_memory *self, PyObject *array) {
    return copy(self, array, true);
}

static PyObject *memory_write(cb_py_device_memory *self, PyObject *array) {
    return copy(self, array, false);
}

/* order(stream): makes later work on the stream wait until the array is written. */
static PyObject *memory_put_order(cb_py_device_memory *self, PyObject *stream_of) {
    cb_error error;
    void *stream;
    if (parse_stream(stream_of, &stream) < 0) return NULL;
    const cb_uses uses = uses_of(self);
    if (order_after(&uses, stream, &error) != CB_OK)
        return cb_py_raise(state_of_type(Py_TYPE(self)), &error, NULL);
    Py_RETURN_NONE;
}

/* lend(stream): another library uses the memory on this stream; None: on an unknown stream. */
static PyObject *memory_lend(cb_py_device_memory *self, PyObject *stream_of) {
    void *stream;
    if (parse_stream(stream_of, &stream) < 0) return NULL;
    if (stream) add_consumer(self, stream);
    else self->uses.is_unknown = true;
    Py_RETURN_NONE;
}

/* to_dlpack(versioned) -> capsule */
static PyObject *memory_to_dlpack(cb_py_device_memory *self, PyObject *versioned) {
    const int is_versioned = PyObject_IsTrue(versioned);
    return is_versioned < 0 ? NULL : cb_py_export_device(self, is_versioned);
}

/* ---- attributes ------------------------------------------------------------------------------ */

static PyObject *memory_shape(cb_py_device_memory *self, void *Py_UNUSED(closure)) {
    return cb_py_shape_tuple(&self->shape);
}

static PyObject *memory_core_dtype(cb_py_device_memory *self, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(cb_dtype_name(self->dtype));
}

static PyObject *memory_nbytes(cb_py_device_memory *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->bytes);
}

static PyObject *memory_address(cb_py_device_memory *self, void *Py_UNUSED(closure)) {
    return PyLong_FromVoidPtr(self->data);
}

static PyObject *memory_device(cb_py_device_memory *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(self->device);
}

static PyObject *memory_writable(cb_py_device_memory *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->writable);
}

static PyMethodDef memory_methods[] = {
    {"empty", memory_empty, METH_VARARGS | METH_CLASS, "empty(shape, dtype, device, stream, /)"},
    {"over", memory_over, METH_VARARGS | METH_CLASS,
     "over(shape, dtype, device, address, writable, owner, /)"},
    {"read", (PyCFunction)memory_read, METH_O, "read(array, /): copies the elements to the array"},
    {"write", (PyCFunction)memory_write, METH_O,
     "write(array, /): copies the elements from the array"},
    {"order", (PyCFunction)memory_put_order, METH_O,
     "order(stream, /): makes later work on the stream wait until the elements are written"},
    {"lend", (PyCFunction)memory_lend, METH_O,
     "lend(stream, /): says that another library uses the memory on this stream; None: unknown"},
    {"to_dlpack", (PyCFunction)memory_to_dlpack, METH_O, "to_dlpack(versioned, /) -> capsule"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef memory_getset[] = {
    {"shape", (getter)memory_shape, NULL, "sizes of the axes", NULL},
    {"core_dtype", (getter)memory_core_dtype, NULL, "\"f32\"", NULL},
    {"nbytes", (getter)memory_nbytes, NULL, "bytes of all elements", NULL},
    {"address", (getter)memory_address, NULL, "device address of element 0", NULL},
    {"device", (getter)memory_device, NULL, "ordinal", NULL},
    {"writable", (getter)memory_writable, NULL, "whether a step may write to it", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Contiguous elements in a GPU's memory."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_traverse, memory_traverse},
    {Py_tp_clear, memory_clear},
    {Py_tp_methods, memory_methods},
    {Py_tp_getset, memory_getset},
    {0, NULL},
};

PyType_Spec cb_py_device_memory_spec = {
    .name = "cutback._native.DeviceMemory",
    .basicsize = sizeof(cb_py_device_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

/* ---- the device ------------------------------------------------------------------------------ */

PyObject *cb_py_device_order_streams(PyObject *module, PyObject *args) {
    PyObject *before, *after;
    void *from, *to;
    cb_error error;
    cb_py_state *state = cb_py_state_of(module);
    if (!PyArg_ParseTuple(args, "OO:device_order", &before, &after)) return NULL;
    if (parse_stream(before, &from) < 0 || parse_stream(after, &to) < 0) return NULL;
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    if (cb_memory_order(context->core, BACKEND, from, to, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    Py_RETURN_NONE;
}

PyObject *cb_py_device_ordinal(PyObject *module, PyObject *Py_UNUSED(none)) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    return context ? PyLong_FromLong(cb_context_cuda(context->core).device) : NULL;
}

PyObject *cb_py_has_cuda(PyObject *module, PyObject *Py_UNUSED(none)) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    return context ? PyBool_FromLong(cb_context_cuda(context->core).driver != NULL) : NULL;
}

PyObject *cb_py_device_release(PyObject *module, PyObject *Py_UNUSED(none)) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    uint64_t bytes;
    if (!context) return NULL;
    Py_BEGIN_ALLOW_THREADS bytes = cb_block_release(context->core, BACKEND);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong(bytes);
}

PyObject *cb_py_device_stats(PyObject *module, PyObject *resets_peak) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    const int resets = PyObject_IsTrue(resets_peak);
    if (!context || resets < 0) return NULL;
    const cb_block_stats stats = cb_block_stats_of(context->core, BACKEND, resets);
    return Py_BuildValue("{sKsKsKsK}", "in_use", stats.in_use, "kept", stats.kept, "peak",
                         stats.peak, "n_fresh", stats.n_fresh);
}
