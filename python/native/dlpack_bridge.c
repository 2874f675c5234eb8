/* dlpack_bridge.c: exchanges arrays with other libraries without copies, through DLPack.
 *
 * The structs below are DLPack's ABI (dlpack.h 1.0,
 * https://dmlc.github.io/dlpack/latest/c_api.html). A capsule is consumed by renaming it; from then
 * on we must call its deleter. */
#include "state.h"

#include "base/dtype.h"

typedef struct dl_device {
    int32_t type, id; /* type 1: CPU, 2: CUDA, 3: page-locked host memory */
} dl_device;

typedef struct dl_dtype {
    uint8_t code, bits; /* codes: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* elements, NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *manager;
    void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_managed_versioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags; /* bit 0: read-only */
    dl_tensor tensor;
} dl_managed_versioned;

/* DLPack 1.3: a function table that a library provides for all of its tensors, instead of capsules.
 * The view that `dltensor_from_object` fills in is valid until the tensor changes. */
typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *older;
    void *allocate;
    int (*managed_from_object)(void *object, dl_managed_versioned **out);
    void *managed_to_object;
    int (*dltensor_from_object)(void *object, dl_tensor *out);
    int (*current_stream)(int32_t device_type, int32_t device, void **out);
} dl_exchange;

#define EXCHANGE_NAME "dlpack_exchange_api"
#define EXCHANGE_ATTRIBUTE "__dlpack_c_exchange_api__" /* an attribute of the tensor's type */
#define OLD_NAME "dltensor"
#define NEW_NAME "dltensor_versioned"
#define OWNED_OLD "cutback.dltensor"
#define OWNED_NEW "cutback.dltensor_versioned"

/* ---- import
 * ---------------------------------------------------------------------------------------------- */

static void release_import(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    void *pointer = PyCapsule_GetPointer(capsule, name);
    PyObject *type, *value, *trace; /* a deleter may run Python, which needs a clear error state */
    PyErr_Fetch(&type, &value, &trace);
    if (strcmp(name, OWNED_NEW) == 0) {
        dl_managed_versioned *managed = pointer;
        if (managed->deleter) managed->deleter(managed);
    } else {
        dl_managed *managed = pointer;
        if (managed->deleter) managed->deleter(managed);
    }
    PyErr_Restore(type, value, trace);
}

static bool dtype_of(dl_dtype type, cb_dtype *out) {
    static const struct {
        uint8_t code, bits;
        cb_dtype dtype;
    } rows[] = {{2, 32, CB_F32}, {2, 64, CB_F64}, {0, 32, CB_I32},  {0, 64, CB_I64},
                {1, 8, CB_U8},   {2, 16, CB_F16}, {4, 16, CB_BF16}, {6, 8, CB_BOOL}};
    for (size_t i = 0; type.lanes == 1 && i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].code == type.code && rows[i].bits == type.bits) {
            *out = rows[i].dtype;
            return true;
        }
    }
    return false;
}

/* Requests a versioned capsule, which has a read-only flag; exporters from before 2024 do not know
 * the argument. `stream` is the consumer's stream; NULL if there are no streams. */
static PyObject *request(PyObject *object, PyObject *stream) {
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    if (!method) return NULL;
    PyObject *none = PyTuple_New(0), *version = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    PyObject *before = stream ? Py_BuildValue("{sO}", "stream", stream) : PyDict_New();
    bool ready = none && version && before;
    if (ready && stream) ready = PyDict_SetItemString(version, "stream", stream) == 0;
    PyObject *capsule = ready ? PyObject_Call(method, none, version) : NULL;
    if (ready && !capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_Call(method, none, before);
    }
    Py_XDECREF(none);
    Py_XDECREF(version);
    Py_XDECREF(before);
    Py_DECREF(method);
    return capsule;
}

/* Takes the tensor out of the capsule; `owner` is a new capsule that will call its deleter. */
static const dl_tensor *consume(PyObject *capsule, bool *writable, PyObject **owner) {
    if (PyCapsule_IsValid(capsule, NEW_NAME)) {
        dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, NEW_NAME);
        if (managed->major != 1) {
            PyErr_Format(PyExc_BufferError, "DLPack version %u is not supported, only version 1",
                         managed->major);
            return NULL;
        }
        if (!(*owner = PyCapsule_New(managed, OWNED_NEW, release_import))) return NULL;
        PyCapsule_SetName(capsule, "used_" NEW_NAME);
        *writable = !(managed->flags & 1);
        return &managed->tensor;
    }
    dl_managed *managed = PyCapsule_GetPointer(capsule, OLD_NAME);
    if (!managed || !(*owner = PyCapsule_New(managed, OWNED_OLD, release_import))) return NULL;
    PyCapsule_SetName(capsule, "used_" OLD_NAME);
    *writable = true;
    return &managed->tensor;
}

static bool is_empty(const dl_tensor *t) {
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0) return true;
    return false;
}

/* Checks that the tensor's type, shape, strides and memory are valid, since its library may have
 * filled in anything. -1: an exception is set. */
static int check_tensor(const dl_tensor *t, const char *name, cb_dtype *dtype) {
    if (!dtype_of(t->dtype, dtype)) {
        PyErr_Format(PyExc_TypeError,
                     "%s: DLPack type (code %d, %d bits, %d lanes) is not supported", name,
                     t->dtype.code, t->dtype.bits, t->dtype.lanes);
        return -1;
    }
    if (t->ndim < 0 || t->ndim > CB_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%s: %d dimensions, at most %d are supported", name, t->ndim,
                     CB_MAX_RANK);
        return -1;
    }
    if (t->ndim > 0 && !t->shape) {
        PyErr_Format(PyExc_ValueError, "%s: its library reports %d dimensions, but no shape", name,
                     t->ndim);
        return -1;
    }
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t bytes;
        if (t->shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, "%s: dimension %d has %lld elements", name, i,
                         (long long)t->shape[i]);
            return -1;
        }
        if (t->strides &&
            __builtin_mul_overflow(t->strides[i], (int64_t)cb_dtype_size(*dtype), &bytes)) {
            PyErr_Format(PyExc_ValueError, "%s: dimension %d has a stride of %lld elements", name,
                         i, (long long)t->strides[i]);
            return -1;
        }
    }
    if (!t->data && !is_empty(t)) {
        PyErr_Format(PyExc_ValueError, "%s: the tensor has elements, but no memory", name);
        return -1;
    }
    return 0;
}

static PyObject *view_tensor(const dl_tensor *t, const char *name, bool writable, PyObject *owner) {
    cb_dtype dtype = CB_BOOL;
    int ready = -1;
    if (t->device.type != 1 && t->device.type != 3)
        PyErr_Format(PyExc_ValueError,
                     "%s: the tensor is on device (%d, %d); move it to the CPU first", name,
                     t->device.type, t->device.id);
    else ready = check_tensor(t, name, &dtype);
    if (ready < 0) {
        Py_DECREF(owner);
        return NULL;
    }
    cb_shape shape = {.rank = t->ndim};
    int64_t strides[CB_MAX_RANK];
    for (int32_t i = 0; i < t->ndim; i++) {
        shape.dim[i] = t->shape[i];
        if (t->strides) strides[i] = t->strides[i] * (int64_t)cb_dtype_size(dtype);
    }
    char *data = t->data ? (char *)t->data + t->byte_offset : NULL;
    PyObject *array =
        cb_py_array_over(dtype, &shape, t->strides ? strides : NULL, data, writable, owner);
    return array ? Py_BuildValue("(Ns)", array, cb_dtype_name(dtype)) : NULL;
}

PyObject *cb_py_from_dlpack(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object, *owner;
    const char *name;
    bool writable;
    if (!PyArg_ParseTuple(args, "Os:from_dlpack", &object, &name)) return NULL;
    PyObject *capsule = request(object, NULL);
    if (!capsule) return NULL;
    const dl_tensor *tensor = consume(capsule, &writable, &owner);
    Py_DECREF(capsule);
    return tensor ? view_tensor(tensor, name, writable, owner) : NULL;
}

static PyObject *lengths(const int64_t *at, int32_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (int32_t i = 0; tuple && i < n; i++) {
        PyObject *length = PyLong_FromLongLong(at[i]);
        if (!length) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, length);
    }
    return tuple;
}

/* Returns the function table of a type; NULL if it has none that we support (no exception is
 * set). */
static const dl_exchange *exchange_of(PyObject *object) {
    PyObject *capsule = PyObject_GetAttrString((PyObject *)Py_TYPE(object), EXCHANGE_ATTRIBUTE);
    const dl_exchange *api = NULL;
    if (capsule && PyCapsule_IsValid(capsule, EXCHANGE_NAME))
        api = PyCapsule_GetPointer(capsule, EXCHANGE_NAME); /* the table exists as long as its
                                                               library */
    Py_XDECREF(capsule);
    PyErr_Clear();
    while (api && api->major != 1) api = api->older;
    return api && api->managed_from_object && api->current_stream ? api : NULL;
}

static void *refuse(const char *what) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_BufferError, "its library does not say %s", what);
    return NULL;
}

/* Works like `consume`, but through the function table. `theirs` is the library's current stream,
 * which the caller still has to wait for. Stream 0 is the legacy stream, which DLPack calls 1. */
static const dl_tensor *exchange(const dl_exchange *api, PyObject *object, bool *writable,
                                 PyObject **owner, PyObject **theirs) {
    dl_managed_versioned *managed = NULL;
    void *stream = NULL;
    if (api->managed_from_object(object, &managed) != 0 || !managed)
        return refuse("where the tensor is");
    if (!(*owner = PyCapsule_New(managed, OWNED_NEW, release_import))) {
        if (managed->deleter) managed->deleter(managed);
        return NULL;
    }
    const dl_device at = managed->tensor.device;
    const bool is_host = at.type == 1;
    if (!is_host && api->current_stream(at.type, at.id, &stream) != 0) refuse("its stream");
    else *theirs = is_host ? Py_NewRef(Py_None) : PyLong_FromVoidPtr(stream ? stream : (void *)1);
    if (PyErr_Occurred()) {
        Py_CLEAR(*owner);
        return NULL;
    }
    *writable = !(managed->flags & 1);
    return &managed->tensor;
}

PyObject *cb_py_dlpack_parts(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object, *stream, *owner, *theirs = NULL;
    const char *name;
    bool writable;
    cb_dtype dtype;
    if (!PyArg_ParseTuple(args, "OsO:dlpack_parts", &object, &name, &stream)) return NULL;
    const dl_exchange *api = exchange_of(object);
    PyObject *capsule = api ? NULL : request(object, stream);
    if (!api && !capsule) return NULL;
    const dl_tensor *t = api ? exchange(api, object, &writable, &owner, &theirs)
                             : consume(capsule, &writable, &owner);
    Py_XDECREF(capsule);
    if (!t) return NULL;
    if (!theirs) theirs = Py_NewRef(Py_None);
    if (check_tensor(t, name, &dtype) < 0) {
        Py_DECREF(owner);
        Py_DECREF(theirs);
        return NULL;
    }
    PyObject *strides = t->strides ? lengths(t->strides, t->ndim) : Py_NewRef(Py_None);
    char *at = t->data ? (char *)t->data + t->byte_offset : NULL;
    return Py_BuildValue("(sNNNiiNNN)", cb_dtype_name(dtype), lengths(t->shape, t->ndim), strides,
                         PyLong_FromVoidPtr(at), t->device.type, t->device.id,
                         PyBool_FromLong(writable), owner, theirs);
}

/* ---- export
 * ---------------------------------------------------------------------------------------------- */

/* An exported tensor and the arrays that it points to, in one allocation. */
typedef struct exported {
    dl_managed managed;
    dl_managed_versioned versioned;
    int64_t shape[CB_MAX_RANK];
    PyObject *array;
} exported;

static void release(exported *e) {
    PyGILState_STATE gil = PyGILState_Ensure(); /* the consumer may call from any thread */
    Py_DECREF(e->array);
    PyMem_Free(e);
    PyGILState_Release(gil);
}

static void release_old(dl_managed *managed) { release(managed->manager); }
static void release_new(dl_managed_versioned *managed) { release(managed->manager); }

static void release_unused(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    if (strcmp(name, OLD_NAME) == 0)
        release(((dl_managed *)PyCapsule_GetPointer(capsule, name))->manager);
    if (strcmp(name, NEW_NAME) == 0)
        release(((dl_managed_versioned *)PyCapsule_GetPointer(capsule, name))->manager);
}

/* Makes a capsule over memory that `array` keeps alive. Only versioned capsules have a read-only
 * flag. */
static PyObject *export(PyObject *array, dl_tensor tensor, const cb_shape *shape, bool versioned,
                        bool writable) {
    if (!versioned && !writable) {
        PyErr_SetString(PyExc_BufferError,
                        "a read-only array can only be exported with DLPack 1.0 or newer "
                        "(max_version=(1, 0)), because older versions have no read-only flag");
        return NULL;
    }
    exported *e = PyMem_Calloc(1, sizeof *e);
    if (!e) return PyErr_NoMemory();
    memcpy(e->shape, shape->dim, sizeof e->shape);
    e->array = Py_NewRef(array);
    tensor.ndim = shape->rank;
    tensor.shape = e->shape;
    e->managed = (dl_managed){.tensor = tensor, .manager = e, .deleter = release_old};
    e->versioned = (dl_managed_versioned){.major = 1,
                                          .manager = e,
                                          .deleter = release_new,
                                          .flags = writable ? 0 : 1,
                                          .tensor = tensor};
    void *managed = versioned ? (void *)&e->versioned : (void *)&e->managed;
    PyObject *capsule = PyCapsule_New(managed, versioned ? NEW_NAME : OLD_NAME, release_unused);
    if (!capsule) release(e);
    return capsule;
}

static dl_dtype type_of(cb_dtype dtype) {
    uint8_t bits = (uint8_t)(8 * cb_dtype_size(dtype));
    uint8_t code = dtype == CB_BOOL           ? 6
                   : dtype == CB_U8           ? 1
                   : dtype == CB_BF16         ? 4
                   : cb_dtype_is_float(dtype) ? 2
                                              : 0;
    return (dl_dtype){code, bits, 1};
}

PyObject *cb_py_to_dlpack(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *array, *dtype_name;
    cb_dtype dtype;
    cb_py_view view;
    int versioned = false;
    if (!PyArg_ParseTuple(args, "OO|p:to_dlpack", &array, &dtype_name, &versioned)) return NULL;
    if (cb_py_parse_dtype(dtype_name, &dtype) < 0 || cb_py_view_of(array, "to_dlpack", &view) < 0)
        return NULL;
    bool same = view.known_dtype ? view.dtype == dtype : view.is_bits16 && dtype == CB_BF16;
    if (!same || !view.contiguous) {
        PyErr_SetString(PyExc_BufferError,
                        "to_dlpack needs a contiguous array of the dtype it is exported as");
        return NULL;
    }
    const dl_tensor tensor = {.data = view.data, .device = {1, 0}, .dtype = type_of(dtype)};
    return export(array, tensor, &view.shape, versioned, view.writable);
}

PyObject *cb_py_export_device(cb_py_device_memory *memory, bool versioned) {
    const dl_tensor tensor = {
        .data = memory->data, .device = {2, memory->device}, .dtype = type_of(memory->dtype)};
    return export((PyObject *)memory, tensor, &memory->shape, versioned, memory->writable);
}

/* ---- many tensors of one library ------------------------------------------------------------- */

const void *cb_py_exchange_of(PyObject *capsule) {
    const dl_exchange *api = PyCapsule_GetPointer(capsule, EXCHANGE_NAME);
    while (api && api->major != 1) api = api->older;
    if (api && api->dltensor_from_object) return api;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_NotImplementedError,
                        "the library's DLPack exchange table is not version 1");
    return NULL;
}

/* True if the elements fill their memory without gaps, in any order of axes. */
static bool is_dense(const dl_tensor *x) {
    int64_t reached = 1;
    uint64_t seen = 0;
    for (int32_t round = 0; round < x->ndim; round++) {
        int32_t next = -1; /* finds the axis whose stride is the extent so far */
        for (int32_t i = x->ndim - 1; i >= 0 && next < 0; i--) {
            bool fits = !(seen >> i & 1) && (x->shape[i] == 1 || x->strides[i] == reached);
            if (fits) next = i;
        }
        if (next < 0) return false;
        seen |= UINT64_C(1) << next;
        reached *= x->shape[next];
    }
    return true;
}

/* Sets the element type; false if optimizers do not support it. */
static bool element_of(dl_dtype type, cb_py_tensor *out) {
    out->is_complex = type.code == 5;
    out->is_bits = type.code == 0 && type.bits == 16;
    if (type.code == 2 && type.bits == 32 && type.lanes == 1) { /* the usual case */
        out->dtype = CB_F32;
        return true;
    }
    if (out->is_complex) type = (dl_dtype){2, type.bits / 2, type.lanes};
    if (out->is_bits) type = (dl_dtype){4, 16, type.lanes};
    return dtype_of(type, &out->dtype) && (cb_dtype_is_float(out->dtype) || out->dtype == CB_U8);
}

const char *cb_py_tensor_of(const void *exchange, PyObject *object, cb_py_tensor *out) {
    const dl_exchange *api = exchange;
    dl_tensor x; /* the call fills in all fields */
    if (api->dltensor_from_object(object, &x) != 0) {
        PyErr_Clear();
        return "has no memory of its own";
    }
    if (x.device.type != 1) return "is not in the processor's memory";
    if (!element_of(x.dtype, out)) return "has a type that optimizers do not support";
    if (x.ndim < 0 || x.ndim > 64) return "has more than 64 axes";
    if (x.ndim > 0 && !x.shape) return "has axes, but no shape";
    out->n = out->is_complex ? 2 : 1;
    out->data = (char *)x.data + x.byte_offset;
    out->rank = x.ndim;
    out->shape = x.shape;
    out->strides = x.strides;
    int64_t reached = 1;
    bool in_rows = true;
    for (int32_t i = x.ndim - 1; i >= 0; i--) {
        const int64_t length = x.shape[i];
        in_rows &= length == 1 || !x.strides || x.strides[i] == reached;
        reached *= length;
    }
    out->n *= reached;
    return in_rows || out->n == 0 || is_dense(&x) ? NULL : "has gaps in its memory";
}

/* Describes the difference between two tensors. */
static const char *unlike(const cb_py_tensor *x, const cb_py_tensor *y, const cb_py_tensor *kind) {
    if (x->dtype != kind->dtype || x->is_complex != y->is_complex || x->is_bits != kind->is_bits)
        return "does not have its parameter's type";
    if (x->rank != y->rank) return "does not have its parameter's shape";
    for (int32_t i = 0; i < x->rank; i++) {
        if (x->shape[i] != y->shape[i]) return "does not have its parameter's shape";
    }
    return "does not have its parameter's layout";
}

bool cb_py_tensor_like(const cb_py_tensor *x, const cb_py_tensor *y, const cb_py_tensor *kind,
                       const char **why) {
    bool like = x->dtype == kind->dtype && x->is_complex == y->is_complex &&
                x->is_bits == kind->is_bits && x->rank == y->rank;
    for (int32_t i = 0; like && i < x->rank; i++) {
        const int64_t length = x->shape[i];
        like =
            length == y->shape[i] && (x->strides[i] == y->strides[i] || length == 1 || x->n == 0);
    }
    if (!like) *why = unlike(x, y, kind);
    return like;
}
