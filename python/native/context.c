/* context.c: one core context per module, created on first use, so that importing the module does
 * not start threads. */
#include "state.h"

#include "base/threads.h"

static cb_py_context *context_new(cb_py_state *state) {
    cb_py_context *context = PyMem_RawCalloc(1, sizeof *context);
    if (!context) return (cb_py_context *)PyErr_NoMemory();
    cb_context_options options = {.n_threads = 0};
    cb_py_find_blas(&options.blas, context->blas_name, sizeof context->blas_name,
                    context->blas_path, sizeof context->blas_path);
    context->blas_bits = options.blas.vector_bits;
    cb_error error = {0};
    context->lock = PyThread_allocate_lock();
    if (!context->lock) {
        PyMem_RawFree(context);
        return (cb_py_context *)PyErr_NoMemory();
    }
    if (cb_context_new(&options, &context->core, &error) != CB_OK) {
        PyThread_free_lock(context->lock);
        PyMem_RawFree(context);
        return (cb_py_context *)cb_py_raise(state, &error, NULL);
    }
    atomic_init(&context->refs, 1);
    context->n_forks = cb_fork_count();
    return context;
}

cb_py_context *cb_py_context_get(cb_py_state *state) {
    PyThread_acquire_lock(state->lock, WAIT_LOCK);
    if (!state->context) state->context = context_new(state);
    cb_py_context *context = state->context;
    PyThread_release_lock(state->lock);
    return context;
}

cb_py_context *cb_py_context_retain(cb_py_context *context) {
    atomic_fetch_add(&context->refs, 1);
    return context;
}

void cb_py_context_release(cb_py_context *context) {
    if (!context || atomic_fetch_sub(&context->refs, 1) != 1) return;
    cb_context_free(context->core);
    PyThread_free_lock(context->lock);
    PyMem_RawFree(context);
}

void cb_py_context_forget_forked(cb_py_context *context) {
    if (context->n_forks == cb_fork_count()) return;
    context->n_forks = cb_fork_count();
    context->n_working = 0;
}

int cb_py_context_set_threads(cb_py_state *state, cb_py_context *context, int n_threads) {
    cb_error error = {0};
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    cb_py_context_forget_forked(context);
    bool idle = context->n_working == 0;
    cb_status status = idle ? cb_context_set_threads(context->core, n_threads, &error) : CB_OK;
    PyThread_release_lock(context->lock);
    if (!idle)
        PyErr_SetString(PyExc_RuntimeError,
                        "the number of threads cannot change while a step or a plan is running");
    else if (status != CB_OK) cb_py_raise(state, &error, NULL);
    return PyErr_Occurred() ? -1 : 0;
}
