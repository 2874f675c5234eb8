/* step_call.c: runs a step on addresses, for callers that hold the arrays themselves: the PyTorch
 * bridge, which calls a step for a few operations at a time and for which checks of dtypes and
 * shapes would take too long. */
#include "state.h"

static PyObject *refuse_count(const cb_py_step *self, Py_ssize_t n) {
    return PyErr_Format(
        PyExc_TypeError,
        "call: expected the addresses of %lu inputs and %lu outputs, a block and perhaps a seed, "
        "got %zd",
        (unsigned long)cb_step_n_inputs(self->core), (unsigned long)cb_step_n_outputs(self->core),
        n);
}

static int take_addresses(cb_py_step *self, PyObject *const *values, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        self->pointers[i] = PyLong_AsVoidPtr(values[i]);
        if (!self->pointers[i] && PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *execute(cb_py_step *self, void *block, uint64_t seed) {
    cb_run run = {.inputs = self->pointers,
                  .outputs = self->pointers + cb_step_n_inputs(self->core),
                  .seed = seed,
                  .poll = cb_py_poll,
                  .block = block};
    cb_error error = {0};
    cb_py_work work;
    cb_py_work_begin(&work, self->context);
    run.poll_user = &work;
    const cb_status status = cb_step_run(self->core, &run, NULL, &error);
    cb_py_work_end(&work);
    if (status == CB_OK) Py_RETURN_NONE;
    return cb_py_raise(cb_py_state_of_object((PyObject *)self), &error, NULL);
}

PyObject *cb_py_step_call(cb_py_step *self, PyObject *const *values, Py_ssize_t n) {
    const Py_ssize_t n_arrays =
        (Py_ssize_t)cb_step_n_inputs(self->core) + (Py_ssize_t)cb_step_n_outputs(self->core);
    if (n != n_arrays + 1 && n != n_arrays + 2) return refuse_count(self, n);
    void *block = PyLong_AsVoidPtr(values[n_arrays]);
    if (!block && PyErr_Occurred()) return NULL;
    if (!block && cb_step_run_bytes(self->core)) {
        return PyErr_Format(PyExc_ValueError, "call: needs a block of %llu bytes",
                            (unsigned long long)cb_step_run_bytes(self->core));
    }
    uint64_t seed = n == n_arrays + 2 ? PyLong_AsUnsignedLongLong(values[n_arrays + 1]) : 0;
    if (PyErr_Occurred() || cb_py_run_memory_lock(self->memory, self) < 0) return NULL;
    const int taken = take_addresses(self, values, n_arrays);
    PyObject *result = taken == 0 ? execute(self, block, seed) : NULL;
    cb_py_run_memory_unlock(self->memory);
    return result;
}
