/* work.c: releases the GIL around work in the core and lets signals through.
 *
 * The core calls the poll function on the thread that started the work, so the function restores
 * that thread's state; this is correct in any interpreter. PyErr_CheckSignals only runs handlers on
 * the main thread. */
#include "state.h"

#include <time.h>

#define CHECK_EVERY_NS 50000000 /* 50 ms: prompt for the user, at no measurable cost */

int64_t cb_py_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void cb_py_work_begin(cb_py_work *work, cb_py_context *context) {
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    cb_py_context_forget_forked(context);
    context->n_working++;
    work->n_forks = context->n_forks;
    PyThread_release_lock(context->lock);
    work->context = context;
    work->next_check_ns = cb_py_now_ns() + CHECK_EVERY_NS;
    work->raised = false;
    work->thread = PyEval_SaveThread();
}

void cb_py_work_end(cb_py_work *work) {
    PyEval_RestoreThread(work->thread);
    PyThread_acquire_lock(work->context->lock, WAIT_LOCK);
    cb_py_context_forget_forked(work->context);
    if (work->n_forks == work->context->n_forks) work->context->n_working--;
    PyThread_release_lock(work->context->lock);
}

int cb_py_poll(void *user) {
    cb_py_work *work = user;
    if (work->raised) return CB_POLL_CANCEL;
    if (cb_py_now_ns() < work->next_check_ns) return CB_POLL_GO;
    PyEval_RestoreThread(work->thread);
    work->raised = PyErr_CheckSignals() != 0;
    work->thread = PyEval_SaveThread();
    work->next_check_ns = cb_py_now_ns() + CHECK_EVERY_NS;
    return work->raised ? CB_POLL_CANCEL : CB_POLL_GO;
}
