/* compile.c: Graph.compile: from keyword arguments to cb_compile_options. */
#include "state.h"

#include "ir/graph.h"

/* A dump function of Python, called from inside the core. */
typedef struct dump {
    cb_py_work *work;
    PyObject *function;
} dump;

static void call_dump(void *user, const char *stage, const char *text) {
    dump *d = user;
    PyEval_RestoreThread(d->work->thread);
    if (!PyErr_Occurred()) {
        PyObject *result = PyObject_CallFunction(d->function, "ss", stage, text);
        Py_XDECREF(result); /* an exception stays set and is raised when the core returns */
    }
    d->work->thread = PyEval_SaveThread();
}

static PyObject *compile_graph(cb_py_graph *graph, cb_compile_options *options,
                               PyObject *dump_function) {
    cb_py_state *state = cb_py_state_of_object((PyObject *)graph);
    cb_py_work work;
    dump d = {&work, dump_function};
    if (dump_function != Py_None) {
        options->dump = call_dump;
        options->dump_user = &d;
    }
    options->poll = cb_py_poll;
    options->poll_user = &work;
    cb_error error = {0};
    cb_step *core = NULL;
    cb_py_work_begin(&work, graph->context);
    cb_status status = cb_compile(graph->context->core, graph->core, options, &core, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    if (PyErr_Occurred()) { /* from the dump function */
        cb_step_free(core);
        return NULL;
    }
    return cb_py_step_wrap(state, graph->context, core, options->wrt, options->n_wrt,
                           options->backend && strcmp(options->backend, "cuda") == 0);
}

/* A forward graph has no backward; one that was read from text may have. */
static bool is_joint(const cb_graph *graph) {
    for (size_t i = 0; i < graph->ops.len; i++)
        if (graph->ops.at[i].phase == CB_BACKWARD) return true;
    return false;
}

PyObject *cb_py_compile(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {
        "wrt",          "preset",    "budget", "backend", "device", "keep_gradients",
        "static_bytes", "plan_json", "groups", "dump",    NULL};
    cb_compile_options options = {0};
    PyObject *wrt_items, *budget = Py_None, *dump_function = Py_None;
    int preset = CB_PRESET_AUTOGRAD, keep_gradients = 0;
    unsigned long long static_bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$iOzzpKzzO:compile", names, &wrt_items,
                                     &preset, &budget, &options.backend, &options.device,
                                     &keep_gradients, &static_bytes, &options.plan_json,
                                     &options.groups, &dump_function)) {
        return NULL;
    }
    options.keep_gradients = keep_gradients;
    options.static_bytes = static_bytes;
    if (cb_py_parse_preset(preset, &options.preset) < 0 ||
        cb_py_parse_budget(budget, &options.budget) < 0)
        return NULL;
    uint32_t *wrt;
    if (cb_py_parse_ids(wrt_items, &wrt, &options.n_wrt) < 0) return NULL;
    options.wrt = wrt;
    PyObject *step = NULL;
    if (cb_py_graph_enter((cb_py_graph *)self) == 0) {
        if (is_joint(((cb_py_graph *)self)->core))
            PyErr_SetString(PyExc_ValueError,
                            "this is a joint graph: it holds its backward already, and compiling "
                            "adds one; compile the forward graph with wrt=... instead, which "
                            "Traced.text() and Graph.text() give");
        else step = compile_graph((cb_py_graph *)self, &options, dump_function);
        cb_py_graph_leave((cb_py_graph *)self);
    }
    PyMem_Free(wrt);
    return step;
}
