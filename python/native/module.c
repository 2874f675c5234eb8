/* module.c: the module cutback._native, with its types and its process-wide functions. */
#include <limits.h>

#include "state.h"

#include "base/cpu.h"
#include "ir/op.h"

#define TEXT(x) #x
#define VERSION_TEXT(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

static PyObject *get_num_threads(PyObject *module, PyObject *Py_UNUSED(none)) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    return context ? PyLong_FromLong(cb_context_threads(context->core)) : NULL;
}

static PyObject *set_num_threads(PyObject *module, PyObject *number) {
    cb_py_state *state = cb_py_state_of(module);
    int overflow = 0;
    if (PyBool_Check(number))
        return PyErr_Format(PyExc_TypeError, "set_num_threads: expected a number, got %R", number);
    long n = PyLong_AsLongAndOverflow(number, &overflow);
    if (PyErr_Occurred()) return NULL;
    if (overflow) n = overflow < 0 ? LONG_MIN : LONG_MAX;
    if (n < 0 || n > 4096)
        return PyErr_Format(PyExc_ValueError,
                            "set_num_threads: %ld is not in 0..4096 (0: one per processor)", n);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    if (cb_py_context_set_threads(state, context, (int)n) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *memory_stats(PyObject *module, PyObject *Py_UNUSED(none)) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    if (!context) return NULL;
    cb_memory_stats stats = cb_context_memory(context->core);
    return Py_BuildValue("{sKsKsK}", "n_alloc", stats.n_alloc, "live_bytes", stats.live_bytes,
                         "peak_bytes", stats.peak_bytes);
}

static PyObject *fail_alloc(PyObject *module, PyObject *nth) {
    unsigned long long n = PyLong_AsUnsignedLongLong(nth);
    if (PyErr_Occurred()) return NULL;
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    if (!context) return NULL;
    return PyLong_FromUnsignedLongLong(cb_context_fail_alloc(context->core, n));
}

static PyObject *op_row(const cb_op_def *def) {
    return Py_BuildValue("(siiikssO)", def->name, def->min_ins, def->max_ins, def->n_outs,
                         (unsigned long)def->flags, def->attrs, def->doc,
                         strcmp(def->vjp, "zero") == 0 ? Py_False : Py_True);
}

static PyObject *op_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    PyObject *rows = PyTuple_New(CB_OP_COUNT);
    for (int code = 0; rows && code < CB_OP_COUNT; code++) {
        PyObject *row = op_row(cb_op_def_of((cb_opcode)code));
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, code, row);
    }
    return rows;
}

static PyObject *backends(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    Py_ssize_t n = 0;
    while (cb_backend_name((uint32_t)n)) n++;
    PyObject *names = PyTuple_New(n);
    for (Py_ssize_t i = 0; names && i < n; i++) {
        PyObject *name = PyUnicode_FromString(cb_backend_name((uint32_t)i));
        if (!name) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyObject *machine(PyObject *module, PyObject *Py_UNUSED(none)) {
    cb_py_context *context = cb_py_context_get(cb_py_state_of(module));
    if (!context) return NULL;
    return Py_BuildValue("{sssssssssisi}", "commit", CB_COMMIT, "isa", cb_isa_name(cb_cpu_isa()),
                         "blas", context->blas_name, "blas_path", context->blas_path, "blas_bits",
                         context->blas_bits, "threads", cb_context_threads(context->core));
}

static PyMethodDef module_methods[] = {
    {"get_num_threads", get_num_threads, METH_NOARGS,
     "get_num_threads() -> int\n\n"
     "Returns the number of threads that steps run on.\n\n"
     ">>> cutback.set_num_threads(2)\n"
     ">>> cutback.get_num_threads()\n"
     "2"},
    {"join_team", cb_py_join_team, METH_O,
     "join_team(library, /) -> bool: runs regions on the threads of the OpenMP library that an "
     "open "
     "library uses; False: it uses none. None: on our own"},
    {"set_num_threads", set_num_threads, METH_O,
     "set_num_threads($module, n, /)\n--\n\n"
     "Sets the number of threads that steps run on, from 1 to 4096; 0: one for each processor. "
     "Results have the same bits for any number.\n\n"
     "Raises:\n"
     "    TypeError, ValueError: ``n`` is not a number in this range.\n\n"
     ">>> cutback.set_num_threads(1)\n"
     ">>> cutback.get_num_threads()\n"
     "1"},
    {"memory", memory_stats, METH_NOARGS,
     "memory() -> {n_alloc, live_bytes, peak_bytes} of the core's allocator"},
    {"fail_alloc", fail_alloc, METH_O,
     "fail_alloc(n, /): for tests, makes the n-th allocation from now fail; 0: off. Returns the "
     "allocations left of an earlier n"},
    {"empty", cb_py_empty, METH_VARARGS, "empty(shape, dtype, /) -> ndarray in cached memory"},
    {"kept_memory", cb_py_kept_memory, METH_NOARGS,
     "kept_memory() -> {in_use, kept, n_fresh} of the memory of outputs"},
    {"op_table", op_table, METH_NOARGS,
     "op_table() -> ((name, min_ins, max_ins, n_outs, flags, attrs, doc, differentiable), ...)"},
    {"backends", backends, METH_NOARGS, "backends() -> names of the backends"},
    {"optimizer_table", cb_py_optimizer_table, METH_NOARGS,
     "optimizer_table() -> ((name, names of states, names of hyper-parameters), ...)"},
    {"optimizer_states", cb_py_optimizer_states, METH_VARARGS,
     "optimizer_states(optimizer, row, /) -> names of the states of a group with this row"},
    {"ask_for_large_pages", cb_py_ask_for_large_pages, METH_VARARGS,
     "ask_for_large_pages(address, bytes, /): for memory that was not touched yet"},
    {"same_objects", cb_py_same_objects, METH_VARARGS,
     "same_objects(objects, known, /) -> True if a dict's values or a list's items are `known`"},
    {"machine", machine, METH_NOARGS,
     "machine() -> {commit, isa, blas, blas_path, blas_bits, threads}"},
    {"check_device", cb_py_check_device, METH_O,
     "check_device(text, /): raises ValueError unless the text is a device"},
    {"find_duplicates", cb_py_find_duplicates, METH_VARARGS,
     "find_duplicates(keys, starts, inputs, /) -> [first node that computes the same]"},
    {"place", cb_py_place, METH_VARARGS,
     "place([(made, last, bytes), ...], capacity, effort=CB_PLACE_EFFORT, /) -> (\"found\", "
     "\"none\" or \"unknown\", offsets, live bytes, fullest moment, arena bytes)"},
    {"draw", cb_py_draw, METH_VARARGS,
     "draw(array, law, seed, stream, p=0.0, /): fills the array with \"keep\", \"uniform\" or "
     "\"normal\""},
    {"pack_bits", cb_py_pack_bits, METH_VARARGS,
     "pack_bits(bools, packed, /): packs eight bools per byte, the first in the lowest bit"},
    {"unpack_bits", cb_py_unpack_bits, METH_VARARGS,
     "unpack_bits(packed, bools, /): the reverse of pack_bits"},
    {"pack_signs", cb_py_pack_signs, METH_VARARGS,
     "pack_signs(floats, width, infinity, packed, /): a bit for each float, 1 if it is above 0 or "
     "NaN"},
    {"keep_by_bits", cb_py_keep_by_bits, METH_VARARGS,
     "keep_by_bits(floats, packed, width, out, /): copies the floats whose bit is 1; the others "
     "become 0"},
    {"pack_windows", cb_py_pack_windows, METH_VARARGS,
     "pack_windows(indices, packed, windows, plane, kernel, stride, pad, dilation, /): packs "
     "indices of a max pooling as positions in their windows; the last six have three sizes each"},
    {"unpack_windows", cb_py_unpack_windows, METH_VARARGS,
     "unpack_windows(packed, indices, windows, plane, kernel, stride, pad, dilation, /): the "
     "reverse of pack_windows"},
    {"cuda_driver", cb_py_cuda_driver, METH_O,
     "cuda_driver(path, /) -> (version, [(name, capability, bytes) of a device, ...])"},
    {"cuda_nvrtc", cb_py_cuda_nvrtc, METH_O,
     "cuda_nvrtc(path, /) -> (version, least capability, most)"},
    {"cuda_blaslt", cb_py_cuda_blaslt, METH_O, "cuda_blaslt(path, /) -> version"},
    {"set_cuda", cb_py_set_cuda, METH_VARARGS,
     "set_cuda(driver, nvrtc, blaslt, cache, device, as_ptx, keep_sources, /): the libraries that "
     "backend=\"cuda\" opens on first use"},
    {"from_dlpack", cb_py_from_dlpack, METH_VARARGS,
     "from_dlpack(tensor, name, /) -> (ndarray, dtype)"},
    {"device_order", cb_py_device_order_streams, METH_VARARGS,
     "device_order(before, after, /): later work on stream after waits for work on stream before"},
    {"device_ordinal", cb_py_device_ordinal, METH_NOARGS,
     "device_ordinal() -> ordinal of the GPU that backend=\"cuda\" uses"},
    {"on_device", cb_py_on_device, METH_O,
     "on_device(arrays, /) -> bytes: 1 for each DeviceMemory"},
    {"device_release", cb_py_device_release, METH_NOARGS,
     "device_release() -> bytes of cached memory that were returned to the driver"},
    {"device_stats", cb_py_device_stats, METH_O,
     "device_stats(resets_peak, /) -> {in_use, kept, peak, n_fresh}"},
    {"has_cuda", cb_py_has_cuda, METH_NOARGS, "has_cuda() -> whether set_cuda has named libraries"},
    {"dlpack_parts", cb_py_dlpack_parts, METH_VARARGS,
     "dlpack_parts(tensor, name, stream, /) -> (dtype, shape, strides or None, address, kind of "
     "device, its number, writable, owner)"},
    {"to_dlpack", cb_py_to_dlpack, METH_VARARGS,
     "to_dlpack(array, dtype, versioned=False, /) -> capsule"},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **out) {
    *out = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out ? PyModule_AddType(module, *out) : -1;
}

static int module_exec(PyObject *module) {
    cb_py_state *state = cb_py_state_of(module);
    if (cb_py_numpy_init() < 0) return -1;
    state->lock = PyThread_allocate_lock();
    if (!state->lock) {
        PyErr_NoMemory();
        return -1;
    }
    state->keeper = cb_py_keeper_new();
    if (!state->keeper) return -1;
    if (add_type(module, &cb_py_graph_spec, &state->graph_type) < 0) return -1;
    if (add_type(module, &cb_py_step_spec, &state->step_type) < 0) return -1;
    if (add_type(module, &cb_py_table_spec, &state->table_type) < 0) return -1;
    if (add_type(module, &cb_py_expression_spec, &state->expression_type) < 0) return -1;
    if (add_type(module, &cb_py_device_memory_spec, &state->memory_type) < 0) return -1;
    if (add_type(module, &cb_py_busy_word_spec, &state->busy_word_type) < 0) return -1;
    if (add_type(module, &cb_py_signature_spec, &state->signature_type) < 0) return -1;
    if (add_type(module, &cb_py_problem_spec, &state->problem_type) < 0) return -1;
    if (add_type(module, &cb_py_plan_spec, &state->plan_type) < 0) return -1;
    if (add_type(module, &cb_py_run_memory_spec, &state->run_memory_type) < 0) return -1;
    if (add_type(module, &cb_py_captured_spec, &state->captured_type) < 0) return -1;
    const char *version = VERSION_TEXT(CB_VERSION_MAJOR, CB_VERSION_MINOR, CB_VERSION_PATCH);
    return PyModule_AddStringConstant(module, "__version__", version);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_MOD_GIL_NOT_USED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) {
    cb_py_module_def.m_methods = module_methods;
    cb_py_module_def.m_slots = module_slots;
    return PyModuleDef_Init(&cb_py_module_def);
}
