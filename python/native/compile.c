/* compile.c: Graph.compile, decide and compile_text: parses keyword arguments to
 * cb_compile_options. */
#include "planned.h"

#include "ir/graph.h"

/* A Python dump function that the core calls. */
typedef struct dump {
    cb_py_work *work;
    PyObject *function;
} dump;

static void call_dump(void *user, const char *stage, const char *text) {
    dump *d = user;
    PyEval_RestoreThread(d->work->thread);
    if (!PyErr_Occurred()) {
        PyObject *result = PyObject_CallFunction(d->function, "ss", stage, text);
        Py_XDECREF(result); /* an exception stays set until the core returns */
    }
    d->work->thread = PyEval_SaveThread();
}

/* ---- decisions ------------------------------------------------------------------------------- */

#define DECISIONS "cutback._native.decisions"

static void free_decisions(PyObject *capsule) {
    cb_decisions_free(PyCapsule_GetPointer(capsule, DECISIONS));
    cb_py_context_release(PyCapsule_GetContext(capsule));
}

/* Converts decisions to (opaque capsule, bytes). */
static PyObject *give_decisions(cb_py_context *context, cb_decisions *core) {
    const unsigned long long bytes = cb_decisions_bytes(core);
    PyObject *capsule = PyCapsule_New(core, DECISIONS, NULL);
    if (!capsule) {
        cb_decisions_free(core);
        return NULL;
    }
    /* Set the context first, because the destructor needs it. */
    if (PyCapsule_SetContext(capsule, cb_py_context_retain(context)) < 0 ||
        PyCapsule_SetDestructor(capsule, free_decisions) < 0) {
        Py_DECREF(capsule);
        return NULL;
    }
    return Py_BuildValue("NK", capsule, bytes);
}

static int parse_decisions(PyObject *object, const cb_decisions **out) {
    if (object == Py_None) return 0;
    *out = PyCapsule_GetPointer(object, DECISIONS);
    return *out ? 0 : -1;
}

/* The parsed arguments of the methods; the caller frees `wrt`. */
typedef struct request {
    cb_compile_options options;
    uint32_t *wrt;
    PyObject *dump_function, *progress, *memory;
    double time_limit;
    bool brief;
} request;

/* Returns a new reference to the memory that the step will run in: the given memory, or a new
 * one. */
static cb_py_run_memory *memory_of(cb_py_state *state, PyObject *given) {
    if (given == Py_None) return cb_py_run_memory_new(state, state->keeper);
    if (PyObject_TypeCheck(given, state->run_memory_type))
        return (cb_py_run_memory *)Py_NewRef(given);
    PyErr_SetString(PyExc_TypeError, "compile: memory must be a RunMemory");
    return NULL;
}

/* The result of a request: decisions or a step. */
typedef struct made {
    cb_step *step;
    cb_decisions *decisions;
} made;

static void drop_made(const made *m) {
    cb_step_free(m->step);
    cb_decisions_free(m->decisions);
}

/* Makes decisions if `memory` is NULL, otherwise a step that runs in it. */
static PyObject *make(cb_py_graph *graph, request *r, cb_py_run_memory *memory) {
    cb_py_state *state = cb_py_state_of_object((PyObject *)graph);
    cb_compile_options *options = &r->options;
    cb_py_search search;
    dump d = {&search.work, r->dump_function};
    if (r->dump_function != Py_None) {
        options->dump = call_dump;
        options->dump_user = &d;
    }
    options->poll = cb_py_search_poll;
    options->poll_user = &search;
    options->progress = &search.best;
    if (memory) options->memory = memory->core;
    cb_error error = {0};
    made m = {0};
    cb_context *context = graph->context->core;
    cb_py_search_begin(&search, graph->context, r->time_limit, r->progress);
    const cb_status status =
        !memory    ? cb_decisions_make(context, graph->core, options, &m.decisions, &error)
        : r->brief ? cb_compile_briefly(context, graph->core, options, &m.step, &error)
                   : cb_compile(context, graph->core, options, &m.step, &error);
    cb_py_work_end(&search.work);
    if (PyErr_Occurred()) { /* raised by the dump function, `progress` or a signal handler */
        drop_made(&m);
        return NULL;
    }
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    if (!memory) return give_decisions(graph->context, m.decisions);
    return cb_py_step_wrap(state, memory, m.step, options->wrt, options->n_wrt,
                           options->backend && strcmp(options->backend, "cuda") == 0);
}

static PyObject *compile_graph(cb_py_graph *graph, request *r) {
    cb_py_run_memory *memory = memory_of(cb_py_state_of_object((PyObject *)graph), r->memory);
    if (!memory) return NULL;
    PyObject *step = make(graph, r, memory);
    Py_DECREF(memory);
    return step;
}

/* True if the graph has a backward, which graphs read from text may have. */
static bool is_joint(const cb_graph *graph) {
    for (size_t i = 0; i < graph->ops.len; i++)
        if (graph->ops.at[i].phase == CB_BACKWARD) return true;
    return false;
}

static int read_request(PyObject *args, PyObject *kwargs, request *r) {
    static char *names[] = {"wrt",
                            "preset",
                            "budget",
                            "backend",
                            "device",
                            "keep_gradients",
                            "static_bytes",
                            "plan_json",
                            "groups",
                            "dump",
                            "time_limit",
                            "progress",
                            "memory",
                            "decisions",
                            "updates_inside",
                            "slices",
                            "packed",
                            "brief",
                            NULL};
    cb_compile_options *o = &r->options;
    PyObject *wrt_items, *budget = Py_None, *decisions = Py_None;
    int preset = CB_PRESET_AUTOGRAD, keep_gradients = 0, updates_inside = 0, slices = 0, packed = 0,
        brief = 0;
    unsigned long long static_bytes = 0;
    *r = (request){.dump_function = Py_None, .progress = Py_None, .memory = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$iOzzpKzzOdOOOpppp:compile", names,
                                     &wrt_items, &preset, &budget, &o->backend, &o->device,
                                     &keep_gradients, &static_bytes, &o->plan_json, &o->groups,
                                     &r->dump_function, &r->time_limit, &r->progress, &r->memory,
                                     &decisions, &updates_inside, &slices, &packed, &brief))
        return -1;
    if (parse_decisions(decisions, &o->decisions) < 0) return -1;
    o->keep_gradients = keep_gradients;
    o->updates_inside = updates_inside;
    o->slices = slices;
    o->packed = packed;
    r->brief = brief;
    o->static_bytes = static_bytes;
    if (cb_py_parse_preset(preset, &o->preset) < 0 || cb_py_parse_budget(budget, &o->budget) < 0)
        return -1;
    if (cb_py_parse_ids(wrt_items, &r->wrt, &o->n_wrt) < 0) return -1;
    o->wrt = r->wrt;
    return 0;
}

static int check_forward(const cb_py_graph *graph) {
    if (!is_joint(graph->core)) return 0;
    PyErr_SetString(PyExc_ValueError,
                    "this joint graph already has a backward, but compiling adds one; "
                    "compile the forward graph with wrt=... instead (see Traced.text() and "
                    "Graph.text())");
    return -1;
}

static PyObject *make_of(PyObject *self, PyObject *args, PyObject *kwargs, bool decides) {
    cb_py_graph *graph = (cb_py_graph *)self;
    request r;
    PyObject *result = NULL;
    if (read_request(args, kwargs, &r) < 0) return NULL;
    if (cb_py_graph_enter(graph) == 0) {
        if (check_forward(graph) == 0)
            result = decides ? make(graph, &r, NULL) : compile_graph(graph, &r);
        cb_py_graph_leave(graph);
    }
    PyMem_Free(r.wrt);
    return result;
}

PyObject *cb_py_compile(PyObject *self, PyObject *args, PyObject *kwargs) {
    return make_of(self, args, kwargs, false);
}

PyObject *cb_py_decide(PyObject *self, PyObject *args, PyObject *kwargs) {
    return make_of(self, args, kwargs, true);
}

static PyObject *text_of_graph(cb_py_graph *graph, cb_compile_options *options, const char *what) {
    cb_py_state *state = cb_py_state_of_object((PyObject *)graph);
    cb_py_work work;
    cb_error error = {0};
    char *text = NULL;
    options->poll = cb_py_poll;
    options->poll_user = &work;
    cb_py_work_begin(&work, graph->context);
    cb_status status =
        cb_compile_text(graph->context->core, graph->core, options, what, &text, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    PyObject *result = PyUnicode_FromString(text);
    cb_text_free(graph->context->core, text);
    return result;
}

PyObject *cb_py_compile_text(PyObject *self, PyObject *args, PyObject *kwargs) {
    cb_py_graph *graph = (cb_py_graph *)self;
    request r;
    PyObject *text = NULL;
    const char *what = PyTuple_GET_SIZE(args) ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(args, 0)) : "";
    PyObject *rest = what ? PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)) : NULL;
    if (!rest) return NULL;
    const int parsed = read_request(rest, kwargs, &r);
    if (parsed == 0 && cb_py_graph_enter(graph) == 0) {
        if (check_forward(graph) == 0) text = text_of_graph(graph, &r.options, what);
        cb_py_graph_leave(graph);
    }
    Py_DECREF(rest);
    if (parsed == 0) PyMem_Free(r.wrt);
    return text;
}
