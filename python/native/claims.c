/* claims.c: ensures that one step at a time writes an optimizer's state or any other memory.
 *
 * Each optimizer state has a busy word. A step holds it from before its first read of the state to
 * its end. During the core's work, a step also claims the memory that it writes, because two
 * optimizers may share a parameter or a state. Neither makes a step wait: the second user gets an
 * error before it has written anything. */
#include "state.h"

#include <unistd.h>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/sort.h"
#include "base/threads.h"

#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* ---- holders that a fork left behind --------------------------------------------------------- */

static cb_py_holder me(void) {
    return (cb_py_holder){.process = 1 + cb_fork_count(), .thread = PyThread_get_thread_ident()};
}

/* True on the first thread of the process; in a forked child, that is the thread that forked. */
static bool is_first_thread(void) {
#if defined(__linux__)
    return (pid_t)syscall(SYS_gettid) == getpid();
#else
    return true;
#endif
}

/* True if the holder was a thread of a parent process that does not exist in this process. The
 * thread that forked does exist, for example in a signal handler that interrupted a step. */
static bool is_left(cb_py_holder holder, cb_py_holder now) {
    if (holder.process == now.process) return false;
    return holder.thread != now.thread || !is_first_thread();
}

/* ---- busy words ------------------------------------------------------------------------------ */

bool cb_py_word_take(cb_py_word *word) {
    const cb_py_holder now = me();
    uint64_t found = 0;
    bool taken = atomic_compare_exchange_strong(&word->process, &found, now.process);
    if (!taken && is_left((cb_py_holder){found, atomic_load(&word->thread)}, now))
        taken = atomic_compare_exchange_strong(&word->process, &found, now.process);
    if (taken) {
        atomic_store(&word->thread, now.thread);
        return true;
    }
    PyErr_SetString(
        PyExc_RuntimeError,
        "this optimizer is already stepping, in another thread or further up the stack");
    return false;
}

void cb_py_word_drop(cb_py_word *word) { atomic_store(&word->process, 0); }

typedef struct busy_word {
    PyObject_HEAD cb_py_word word;
    bool is_ready; /* the context exists, which enables the fork count */
} busy_word;

/* hold(function, *arguments): calls the function while holding the word. This is not a context
 * manager, because Ctrl-C may interrupt a `with` statement between any two bytecodes. */
static PyObject *word_hold(busy_word *self, PyObject *const *args, Py_ssize_t n) {
    if (n < 1) {
        PyErr_SetString(PyExc_TypeError, "hold() needs a function");
        return NULL;
    }
    if (!self->is_ready && !cb_py_context_get(PyType_GetModuleState(Py_TYPE(self)))) return NULL;
    self->is_ready = true;
    if (!cb_py_word_take(&self->word)) return NULL;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)n - 1, NULL);
    cb_py_word_drop(&self->word);
    return result;
}

/* Copies and pickles get a new word, because they belong to other optimizers. */
static PyObject *word_reduce(PyObject *self, PyObject *Py_UNUSED(none)) {
    return Py_BuildValue("(O())", Py_TYPE(self));
}

static void word_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef word_methods[] = {
    {"hold", (PyCFunction)(void (*)(void))word_hold, METH_FASTCALL,
     "hold(function, /, *arguments) -> its result; RuntimeError if another call holds it"},
    {"__reduce__", word_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot word_slots[] = {
    {Py_tp_doc, "BusyWord(): held while an optimizer steps; a second holder gets an error."},
    {Py_tp_dealloc, word_dealloc},
    {Py_tp_methods, word_methods},
    {0, NULL},
};

PyType_Spec cb_py_busy_word_spec = {
    .name = "cutback._native.BusyWord",
    .basicsize = sizeof(busy_word),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = word_slots,
};

/* ---- memory ---------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
    const cb_written *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void sort(cb_py_claim *claim) {
    if (!claim->is_sorted) cb_sort(claim->own, claim->n, sizeof *claim->own, by_address);
    claim->is_sorted = true;
}

/* Returns the first range of `a` that overlaps one of `b`, or NULL. */
static const cb_written *shared(const cb_py_claim *a, const cb_py_claim *b) {
    for (uint32_t i = 0, j = 0; i < a->n && j < b->n;) {
        if (a->written[i].end <= b->written[j].begin) i++;
        else if (b->written[j].end <= a->written[i].begin) j++;
        else return &a->written[i];
    }
    return NULL;
}

/* Removes a claim from the list. The caller holds the context's lock. */
static void unlink_claim(cb_py_context *context, const cb_py_claim *claim) {
    cb_py_claim **at = &context->claims;
    while (*at && *at != claim) at = &(*at)->next;
    if (*at) *at = claim->next;
}

static void forget_left(cb_py_context *context, cb_py_holder now) {
    for (cb_py_claim *claim = context->claims, *next; claim; claim = next) {
        next = claim->next;
        if (is_left(claim->holder, now)) unlink_claim(context, claim);
    }
}

int cb_py_claim_take(cb_py_context *context, cb_py_claim *claim, const cb_py_rows *rows) {
    const cb_written *clash = NULL;
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    claim->holder = me();
    if (context->claims) forget_left(context, claim->holder);
    for (cb_py_claim *other = context->claims; other && !clash; other = other->next) {
        sort(claim);
        sort(other);
        clash = shared(claim, other);
    }
    if (!clash) {
        claim->next = context->claims;
        context->claims = claim;
    }
    PyThread_release_lock(context->lock);
    if (!clash) return 0;
    PyErr_Format(PyExc_RuntimeError,
                 "%s: %s is being updated by another step, in another thread or further up the "
                 "stack; optimizers that share memory must step one after the other",
                 rows->name(rows->owner, clash->row),
                 clash->array == 0 ? "the parameter" : "its state");
    return -1;
}

void cb_py_claim_drop(cb_py_context *context, const cb_py_claim *claim) {
    PyThread_acquire_lock(context->lock, WAIT_LOCK);
    unlink_claim(context, claim);
    PyThread_release_lock(context->lock);
}

/* ---- the memory that a compiled step writes -------------------------------------------------- */

static void add(cb_py_claim *claim, uint32_t row, uint32_t array, const void *data,
                uint64_t bytes) {
    const uintptr_t begin = (uintptr_t)data;
    if (!data || !bytes) return;
    claim->own[claim->n++] =
        (cb_written){.begin = begin, .end = begin + bytes, .row = row, .array = array};
}

void cb_py_claim_step(cb_py_step *step, const cb_py_run_arrays *run, const cb_extra_row *extra) {
    const size_t before = (size_t)cb_step_n_inputs(step->core) + cb_step_n_outputs(step->core);
    void *const *params = step->pointers + before;
    cb_py_claim *claim = &step->claim;
    claim->n = 0;
    claim->is_sorted = false;
    claim->written = claim->own;
    for (uint32_t k = 0; k < step->n_wrt; k++) {
        const cb_argument_info info = cb_step_input(step->core, step->wrt[k]);
        add(claim, k, 0, params[k], info.bytes);
        for (uint32_t s = 0; s < run->n_state; s++)
            add(claim, k, 1 + s, params[(size_t)(1 + s) * step->n_wrt + k],
                cb_py_state_info(step, run->optimizer, s, k).bytes);
        if (!extra) continue;
        const uint64_t n = (uint64_t)cb_numel(&info.shape);
        add(claim, k, 1 + CB_MAX_STATES, extra[k].average, info.bytes);
        add(claim, k, 2 + CB_MAX_STATES, extra[k].copy, n * cb_dtype_size(extra[k].copy_dtype));
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

int cb_py_graph_enter(cb_py_graph *graph) {
    if (!atomic_exchange(&graph->busy, true)) return 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "this graph is in use by another call; use one graph per thread");
    return -1;
}

void cb_py_graph_leave(cb_py_graph *graph) { atomic_store(&graph->busy, false); }
