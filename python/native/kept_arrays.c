/* kept_arrays.c: allocates the output arrays of steps in cached memory (base/kept.h).
 *
 * NumPy can allocate arrays with a custom handler (NEP 49), a capsule that each such array keeps
 * alive. So an array owns its memory as usual, the memory returns to the cache when the array dies,
 * and the cache (the keeper) dies with its last array, possibly after the module. */
#include "state.h"

#include "numpy_table.h"

#include "base/kept.h"

typedef struct keeper {
    PyDataMem_Handler handler;
    cb_alloc alloc;
    cb_kept *kept;
} keeper;

static void *take(void *user, size_t bytes) { return cb_kept_take(((keeper *)user)->kept, bytes); }

static void *take_zeros(void *user, size_t n, size_t each) {
    size_t bytes;
    void *block = cb_mul_size(n, each, &bytes) ? take(user, bytes) : NULL;
    if (block) memset(block, 0, bytes);
    return block;
}

static void give(void *user, void *block, size_t Py_UNUSED(bytes)) {
    cb_kept_give(((keeper *)user)->kept, block);
}

/* Reallocates memory for ndarray.resize. */
static void *take_again(void *user, void *block, size_t bytes) {
    void *other = take(user, bytes);
    if (!other || !block) return other;
    size_t before = cb_block_bytes(block);
    memcpy(other, block, before < bytes ? before : bytes);
    give(user, block, before);
    return other;
}

static void drop_keeper(PyObject *capsule) {
    keeper *k = PyCapsule_GetPointer(capsule, "mem_handler");
    if (!k) return;
    cb_kept_free(k->kept);
    PyMem_RawFree(k);
}

PyObject *cb_py_keeper_new(void) {
    keeper *k = PyMem_RawCalloc(1, sizeof *k);
    if (!k) return PyErr_NoMemory();
    cb_error error;
    cb_alloc_init(&k->alloc);
    if (cb_kept_new(&k->alloc, &k->kept, &error) != CB_OK) {
        PyMem_RawFree(k);
        return PyErr_NoMemory();
    }
    k->handler = (PyDataMem_Handler){
        .name = "cutback_kept",
        .version = 1,
        .allocator =
            {.ctx = k, .malloc = take, .calloc = take_zeros, .realloc = take_again, .free = give},
    };
    PyObject *capsule = PyCapsule_New(k, "mem_handler", drop_keeper);
    if (!capsule) {
        cb_kept_free(k->kept);
        PyMem_RawFree(k);
    }
    return capsule;
}

PyObject *cb_py_empty(PyObject *module, PyObject *args) {
    PyArray_Dims shape = {0};
    PyArray_Descr *dtype = NULL;
    if (!PyArg_ParseTuple(args, "O&O&:empty", PyArray_IntpConverter, &shape, PyArray_DescrConverter,
                          &dtype)) {
        PyDimMem_FREE(shape.ptr);
        return NULL;
    }
    PyObject *before = PyDataMem_SetHandler(cb_py_state_of(module)->keeper);
    PyObject *array = before ? PyArray_Empty(shape.len, shape.ptr, dtype, 0) : NULL;
    if (!before) Py_DECREF(dtype); /* PyArray_Empty steals a reference */
    PyObject *ours = before ? PyDataMem_SetHandler(before) : NULL;
    if (before && !ours) Py_CLEAR(array);
    Py_XDECREF(ours);
    Py_XDECREF(before);
    PyDimMem_FREE(shape.ptr);
    return array;
}

/* Makes an array for one output; `descr` caches the dtypes used so far. */
static PyObject *empty_output(const cb_argument_info *info, PyObject **descr) {
    npy_intp dim[CB_MAX_RANK];
    PyObject **dtype = &descr[info->dtype];
    if (!*dtype && !(*dtype = cb_py_descr_of(info->dtype))) return NULL;
    for (int32_t i = 0; i < info->shape.rank; i++) dim[i] = (npy_intp)info->shape.dim[i];
    Py_INCREF(*dtype); /* PyArray_Empty steals a reference */
    return PyArray_Empty(info->shape.rank, dim, (PyArray_Descr *)*dtype, 0);
}

static int fill_outputs(const cb_step *core, bool gradients, PyObject *list) {
    PyObject *descr[CB_DTYPE_COUNT] = {NULL};
    int result = 0;
    for (uint32_t i = 0; result == 0 && i < cb_step_n_outputs(core); i++) {
        const cb_argument_info info = cb_step_output(core, i);
        PyObject *made =
            cb_py_is_made(&info, gradients) ? empty_output(&info, descr) : Py_NewRef(Py_None);
        if (made) PyList_SET_ITEM(list, (Py_ssize_t)i, made);
        else result = -1;
    }
    for (int i = 0; i < CB_DTYPE_COUNT; i++) Py_XDECREF(descr[i]);
    return result;
}

PyObject *cb_py_empty_outputs(cb_py_step *step, bool gradients) {
    PyObject *before = PyDataMem_SetHandler(step->memory->keeper);
    if (!before) return NULL;
    PyObject *list = PyList_New((Py_ssize_t)cb_step_n_outputs(step->core));
    if (list && fill_outputs(step->core, gradients, list) < 0) Py_CLEAR(list);
    PyObject *ours = PyDataMem_SetHandler(before);
    if (!ours) Py_CLEAR(list);
    Py_XDECREF(ours);
    Py_DECREF(before);
    return list;
}

/* ---- cached memory --------------------------------------------------------------------------- */

int cb_py_keeper_limit(PyObject *capsule, uint64_t bytes) {
    keeper *k = PyCapsule_GetPointer(capsule, "mem_handler");
    if (k) cb_kept_limit(k->kept, bytes);
    return k ? 0 : -1;
}

PyObject *cb_py_keeper_release(PyObject *capsule) {
    keeper *k = PyCapsule_GetPointer(capsule, "mem_handler");
    return k ? PyLong_FromUnsignedLongLong(cb_kept_release(k->kept)) : NULL;
}

PyObject *cb_py_keeper_stats(PyObject *capsule) {
    keeper *k = PyCapsule_GetPointer(capsule, "mem_handler");
    if (!k) return NULL;
    cb_kept_stats stats = cb_kept_stats_of(k->kept);
    return Py_BuildValue("{sKsKsK}", "in_use", stats.in_use, "kept", stats.kept, "n_fresh",
                         stats.n_fresh);
}

PyObject *cb_py_kept_memory(PyObject *module, PyObject *Py_UNUSED(none)) {
    return cb_py_keeper_stats(cb_py_state_of(module)->keeper);
}
