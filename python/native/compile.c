/* compile.c: Graph.compile and plan_json: from keyword arguments to cb_compile_options and
 * cb_budget. */
#include "state.h"

#include "base/dtype.h"

/* (kind, bytes, share, measure): kinds and measures as in cutback.h. */
static int parse_budget(PyObject *item, cb_budget *out) {
    memset(out, 0, sizeof *out);
    static const cb_budget kinds[] = {{.kind = CB_BUDGET_NONE},
                                      {.kind = CB_BUDGET_BYTES},
                                      {.kind = CB_BUDGET_SHARE},
                                      {.kind = CB_BUDGET_MIN}};
    int kind, measure;
    double share;
    unsigned long long bytes;
    if (item == Py_None) return 0;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a budget is a tuple (kind, bytes, share, measure)");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iKdi:budget", &kind, &bytes, &share, &measure)) return -1;
    if (kind < CB_BUDGET_NONE || kind > CB_BUDGET_MIN || measure < 0 ||
        measure >= CB_MEASURE_COUNT) {
        PyErr_SetString(PyExc_ValueError, "no such kind or measure of a budget");
        return -1;
    }
    *out = kinds[kind];
    out->bytes = bytes;
    out->share = share;
    out->measure = (cb_measure)measure;
    return 0;
}

static int parse_preset(int number, cb_preset *out) {
    if (number < 0 || number >= CB_PRESET_COUNT) {
        PyErr_Format(PyExc_ValueError, "no preset number %d", number);
        return -1;
    }
    *out = (cb_preset)number;
    return 0;
}

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
    return cb_py_step_wrap(state, graph->context, core, options->wrt, options->n_wrt);
}

PyObject *cb_py_compile(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {
        "wrt",          "preset",    "budget", "backend", "device", "keep_gradients",
        "static_bytes", "plan_json", "dump",   NULL};
    cb_compile_options options = {0};
    PyObject *wrt_items, *budget = Py_None, *dump_function = Py_None;
    int preset = CB_PRESET_AUTOGRAD, keep_gradients = 0;
    unsigned long long static_bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$iOzzpKzO:compile", names, &wrt_items,
                                     &preset, &budget, &options.backend, &options.device,
                                     &keep_gradients, &static_bytes, &options.plan_json,
                                     &dump_function)) {
        return NULL;
    }
    options.keep_gradients = keep_gradients;
    options.static_bytes = static_bytes;
    if (parse_preset(preset, &options.preset) < 0 || parse_budget(budget, &options.budget) < 0)
        return NULL;
    uint32_t *wrt;
    if (cb_py_parse_ids(wrt_items, &wrt, &options.n_wrt) < 0) return NULL;
    options.wrt = wrt;
    PyObject *step = NULL;
    if (cb_py_graph_enter((cb_py_graph *)self) == 0) {
        step = compile_graph((cb_py_graph *)self, &options, dump_function);
        cb_py_graph_leave((cb_py_graph *)self);
    }
    PyMem_Free(wrt);
    return step;
}

PyObject *cb_py_plan_json(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"problem", "preset", "budget", "device", NULL};
    const char *problem, *device = NULL;
    Py_ssize_t length;
    int preset_number = CB_PRESET_AUTOGRAD;
    PyObject *budget_item = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#|$iOz:plan_json", names, &problem, &length,
                                     &preset_number, &budget_item, &device)) {
        return NULL;
    }
    cb_preset preset;
    cb_budget budget;
    if (parse_preset(preset_number, &preset) < 0 || parse_budget(budget_item, &budget) < 0)
        return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL;
    cb_py_work work;
    cb_py_work_begin(&work, context);
    cb_status status = cb_plan_json(context->core, problem, (size_t)length, preset, &budget, device,
                                    cb_py_poll, &work, &text, &error);
    cb_py_work_end(&work);
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    PyObject *result = PyUnicode_FromString(text);
    cb_text_free(context->core, text);
    return result;
}

PyObject *cb_py_explain_json(PyObject *module, PyObject *args) {
    const char *problem, *plan;
    Py_ssize_t problem_length, plan_length;
    if (!PyArg_ParseTuple(args, "s#s#:explain_json", &problem, &problem_length, &plan,
                          &plan_length))
        return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL;
    if (cb_plan_explain_json(context->core, problem, (size_t)problem_length, plan,
                             (size_t)plan_length, NULL, &text, &error) != CB_OK) {
        return cb_py_raise(state, &error, NULL);
    }
    PyObject *result = PyUnicode_FromString(text);
    cb_text_free(context->core, text);
    return result;
}
