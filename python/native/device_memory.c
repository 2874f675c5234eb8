/* device_memory.c: the type _native.DeviceMemory: contiguous elements in a GPU's memory, of ours or
 * of another library, as steps take them and give them out. What Python adds to it is in
 * cutback/device_arrays.py.
 *
 * Memory of ours goes back to a list of blocks when its array dies, as the driver takes memory back
 * only when all of its work is done. A block that only our steps have seen may be used again by
 * what comes behind them on the same stream; one that was handed to others is given to the driver.
 */
#include "state.h"

#include "base/dtype.h"
#include "base/shape.h"

#define BACKEND "cuda"
#define MOST_KEPT 64

typedef struct kept_block {
    void *data;
    size_t bytes;
    void *stream; /* whose work may still use it, where is_pending */
    bool is_pending;
} kept_block;

struct cb_py_device_pool { /* under the context's lock */
    kept_block block[MOST_KEPT];
    int n;
};

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A block of this size that the stream may use; NULL: there is none. */
static void *take_kept(cb_py_context *context, size_t bytes, const void *stream) {
    void *data = NULL;
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    cb_py_device_pool *pool = context->pool;
    for (int i = 0; pool && i < pool->n && !data; i++) {
        const kept_block *block = &pool->block[i];
        if (block->bytes != bytes || (block->is_pending && block->stream != stream)) continue;
        data = block->data;
        pool->block[i] = pool->block[--pool->n];
    }
    PyThread_release_lock(context->lock);
    return data;
}

/* Keeps a block; the oldest one goes where there is no room. */
static void keep(cb_py_context *context, kept_block block) {
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    if (!context->pool) context->pool = PyMem_RawCalloc(1, sizeof *context->pool);
    cb_py_device_pool *pool = context->pool;
    kept_block gone = block;
    if (pool && pool->n < MOST_KEPT) {
        pool->block[pool->n++] = block;
        gone.data = NULL;
    } else if (pool) {
        gone = pool->block[0];
        pool->block[0] = block;
    }
    PyThread_release_lock(context->lock);
    if (gone.data) cb_memory_free(context->core, BACKEND, gone.data);
}

void cb_py_device_pool_empty(cb_py_context *context) {
    cb_py_device_pool *pool = context->pool;
    for (int i = 0; pool && i < pool->n; i++)
        cb_memory_free(context->core, BACKEND, pool->block[i].data);
    PyMem_RawFree(pool);
    context->pool = NULL;
}

static cb_status take_block(cb_py_context *context, size_t bytes, const void *stream, void **out,
                            cb_error *err) {
    if ((*out = take_kept(context, bytes, stream))) return CB_OK;
    const cb_status status = cb_memory_alloc(context->core, BACKEND, bytes, out, err);
    if (status != CB_NOMEM) return status;
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    cb_py_device_pool_empty(context);
    PyThread_release_lock(context->lock);
    return cb_memory_alloc(context->core, BACKEND, bytes, out, err);
}

/* ---- making ---------------------------------------------------------------------------------- */

static cb_py_device_memory *memory_new(PyTypeObject *type, cb_py_context *context, cb_dtype dtype,
                                       const cb_shape *shape, int device) {
    int64_t n = 1;
    bool fits = true;
    for (int32_t i = 0; i < shape->rank; i++)
        fits &= shape->dim[i] >= 0 && !__builtin_mul_overflow(n, shape->dim[i], &n);
    if (!fits || n > INT64_MAX / 8)
        return (cb_py_device_memory *)PyErr_Format(PyExc_ValueError, "a shape that is no shape");
    cb_py_device_memory *self = (cb_py_device_memory *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->context = cb_py_context_retain(context);
    self->dtype = dtype;
    self->shape = *shape;
    self->bytes = (size_t)n * cb_dtype_size(dtype);
    self->device = device;
    return self;
}

/* Types that DeviceMemory.__new__ makes: our own. */
static int parse_kind(PyObject *shape, PyObject *dtype, cb_shape *out, cb_dtype *type) {
    return cb_py_parse_shape(shape, "shape", out) < 0 ? -1 : cb_py_parse_dtype(dtype, type);
}

/* Its context: of the module that the base type belongs to. */
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
    void *block = NULL;
    Py_BEGIN_ALLOW_THREADS status = take_block(context, self->bytes, stream, &block, &error);
    Py_END_ALLOW_THREADS if (status != CB_OK) {
        Py_DECREF(self);
        return cb_py_raise(state, &error, NULL);
    }
    self->data = block;
    self->is_ours = self->writable = true;
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
    const kept_block block = {self->data, self->bytes, self->stream, self->is_pending};
    if (self->is_ours && self->data) {
        if (self->is_shared) cb_memory_free(self->context->core, BACKEND, self->data);
        else keep(self->context, block);
    }
    Py_CLEAR(self->owner);
    cb_py_context_release(self->context);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- order and copies ------------------------------------------------------------------------ */

cb_status cb_py_device_order(cb_py_device_memory *self, void *stream, cb_error *err) {
    if (self->is_pending && self->stream != stream) {
        CB_TRY(cb_memory_order(self->context->core, BACKEND, self->stream, stream, err));
        self->is_shared = true; /* work of two streams uses it */
    }
    return CB_OK;
}

static PyObject *copy(cb_py_device_memory *self, PyObject *array, bool to_host) {
    cb_py_view view;
    cb_error error;
    cb_status status;
    if (cb_py_view_of(array, "copy", &view) < 0) return NULL;
    if (!view.contiguous || view.bytes != self->bytes || (to_host && !view.writable))
        return PyErr_Format(PyExc_ValueError, "copy: a contiguous array of %zu bytes is needed",
                            self->bytes);
    if (self->bytes == 0) Py_RETURN_NONE;
    cb_context *core = self->context->core;
    void *stream = self->is_pending ? self->stream : NULL;
    Py_BEGIN_ALLOW_THREADS status =
        cb_memory_copy(core, BACKEND, stream, to_host, to_host ? view.data : self->data,
                       to_host ? self->data : view.data, self->bytes, &error);
    Py_END_ALLOW_THREADS if (status != CB_OK) return cb_py_raise(state_of_type(Py_TYPE(self)),
                                                                 &error, NULL);
    self->is_pending = false;
    Py_RETURN_NONE;
}

static PyObject *memory_read(cb_py_device_memory *self, PyObject *array) {
    return copy(self, array, true);
}

static PyObject *memory_write(cb_py_device_memory *self, PyObject *array) {
    return copy(self, array, false);
}

/* order(stream): what is put there from now on finds the array written. None: waits for it. */
static PyObject *memory_put_order(cb_py_device_memory *self, PyObject *stream_of) {
    cb_error error;
    void *stream;
    cb_status status = CB_OK;
    if (parse_stream(stream_of, &stream) < 0) return NULL;
    cb_context *core = self->context->core;
    self->is_shared = true; /* somebody else uses it */
    if (!self->is_pending) Py_RETURN_NONE;
    if (stream) status = cb_py_device_order(self, stream, &error);
    else {
        Py_BEGIN_ALLOW_THREADS status = cb_memory_wait(core, BACKEND, self->stream, &error);
        Py_END_ALLOW_THREADS
    }
    if (status != CB_OK) return cb_py_raise(state_of_type(Py_TYPE(self)), &error, NULL);
    if (!stream) self->is_pending = false;
    Py_RETURN_NONE;
}

/* to_dlpack(versioned) -> capsule */
static PyObject *memory_to_dlpack(cb_py_device_memory *self, PyObject *versioned) {
    const int is_versioned = PyObject_IsTrue(versioned);
    return is_versioned < 0 ? NULL : cb_py_export_device(self, is_versioned);
}

/* ---- looking at it --------------------------------------------------------------------------- */

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
    {"read", (PyCFunction)memory_read, METH_O, "read(array, /): copies into it"},
    {"write", (PyCFunction)memory_write, METH_O, "write(array, /): copies out of it"},
    {"order", (PyCFunction)memory_put_order, METH_O,
     "order(stream, /): what is put there from now on finds it written; None: waits"},
    {"to_dlpack", (PyCFunction)memory_to_dlpack, METH_O, "to_dlpack(versioned, /) -> capsule"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef memory_getset[] = {
    {"shape", (getter)memory_shape, NULL, "sizes of the axes", NULL},
    {"core_dtype", (getter)memory_core_dtype, NULL, "\"f32\"", NULL},
    {"nbytes", (getter)memory_nbytes, NULL, "bytes of all elements", NULL},
    {"address", (getter)memory_address, NULL, "of element 0, as the device has it", NULL},
    {"device", (getter)memory_device, NULL, "ordinal", NULL},
    {"writable", (getter)memory_writable, NULL, "may a step update it?", NULL},
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
