/* planning.c: planning from files: texts in, texts out, the GIL released in between. */
#include "state.h"

/* (kind, bytes, share, measure): kinds and measures as in cutback.h. */
int cb_py_parse_budget(PyObject *item, cb_budget *out) {
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

int cb_py_parse_preset(int number, cb_preset *out) {
    if (number < 0 || number >= CB_PRESET_COUNT) {
        PyErr_Format(PyExc_ValueError, "no preset number %d", number);
        return -1;
    }
    *out = (cb_preset)number;
    return 0;
}

/* ---- plan_json ---------------------------------------------------------------------------------
 */

/* A search that may be ended early: by the clock, or by what `progress` answers. */
typedef struct search {
    cb_py_work work;
    PyObject *progress;            /* None: nobody is told */
    int64_t start_ns, deadline_ns; /* 0: no limit */
    int64_t next_report_ns;
    bool finish;
} search;

#define REPORT_EVERY_NS 100000000

/* Tells `progress` the seconds so far; true: it wants an end, or raised. */
static bool report(search *s, int64_t now) {
    PyEval_RestoreThread(s->work.thread);
    PyObject *answer =
        PyErr_CheckSignals() < 0
            ? NULL
            : PyObject_CallFunction(s->progress, "d", (double)(now - s->start_ns) * 1e-9);
    bool stop = !answer || PyObject_IsTrue(answer) == 1;
    Py_XDECREF(answer);
    s->work.thread = PyEval_SaveThread();
    return stop;
}

static int poll_search(void *user) {
    search *s = user;
    int64_t now = cb_py_now_ns();
    if (s->deadline_ns && now >= s->deadline_ns) s->finish = true;
    if (s->finish) return CB_POLL_FINISH;
    if (s->progress == Py_None) return cb_py_poll(&s->work);
    if (now < s->next_report_ns) return CB_POLL_GO;
    s->next_report_ns = now + REPORT_EVERY_NS;
    s->finish = report(s, now);
    return s->finish ? CB_POLL_FINISH : CB_POLL_GO;
}

static PyObject *give_text(cb_py_context *context, char *text) {
    PyObject *result = text ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
    cb_text_free(context->core, text);
    return result;
}

PyObject *cb_py_plan_json(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph", "preset", "budget", "device", "time_limit", "progress", NULL};
    const char *graph, *device = NULL;
    Py_ssize_t length;
    int preset_number = CB_PRESET_AUTOGRAD;
    double time_limit = 0;
    PyObject *budget_item = Py_None;
    search s = {.progress = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#|$iOzdO:plan_json", names, &graph, &length,
                                     &preset_number, &budget_item, &device, &time_limit,
                                     &s.progress)) {
        return NULL;
    }
    cb_preset preset;
    cb_budget budget;
    if (cb_py_parse_preset(preset_number, &preset) < 0 ||
        cb_py_parse_budget(budget_item, &budget) < 0)
        return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    s.start_ns = s.next_report_ns = cb_py_now_ns();
    if (time_limit > 0 && time_limit < 1e6)
        s.deadline_ns = s.start_ns + (int64_t)(time_limit * 1e9);
    cb_error error = {0};
    char *text = NULL;
    cb_py_work_begin(&s.work, context);
    cb_status status = cb_plan_json(context->core, graph, (size_t)length, preset, &budget, device,
                                    poll_search, &s, &text, &error);
    cb_py_work_end(&s.work);
    if (PyErr_Occurred()) { /* from a signal handler or `progress` */
        cb_text_free(context->core, text);
        return NULL;
    }
    if (status != CB_OK) return cb_py_raise(state, &error, NULL);
    return give_text(context, text);
}

/* ---- the others --------------------------------------------------------------------------------
 */

PyObject *cb_py_problem_json(PyObject *module, PyObject *args) {
    const char *graph;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "s#:problem_json", &graph, &length)) return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL;
    if (cb_problem_json(context->core, graph, (size_t)length, &text, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    return give_text(context, text);
}

PyObject *cb_py_mutwo_json(PyObject *module, PyObject *args) {
    const char *graph, *device = NULL;
    Py_ssize_t length;
    PyObject *item;
    cb_budget saved;
    if (!PyArg_ParseTuple(args, "s#O|z:mutwo_json", &graph, &length, &item, &device)) return NULL;
    if (cb_py_parse_budget(item, &saved) < 0) return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL;
    if (cb_mutwo_json(context->core, graph, (size_t)length, &saved, device, &text, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    return give_text(context, text);
}

/* cut_json(graph, preset, with_network, /) -> (JSON, DIMACS or None) */
PyObject *cb_py_cut_json(PyObject *module, PyObject *args) {
    const char *graph;
    Py_ssize_t length;
    int number, with_network;
    cb_preset preset;
    if (!PyArg_ParseTuple(args, "s#ip:cut_json", &graph, &length, &number, &with_network))
        return NULL;
    if (cb_py_parse_preset(number, &preset) < 0) return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL, *network = NULL;
    if (cb_cut_json(context->core, graph, (size_t)length, preset, &text,
                    with_network ? &network : NULL, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    PyObject *answer = give_text(context, text), *dimacs = give_text(context, network);
    if (!answer || !dimacs) {
        Py_XDECREF(answer);
        Py_XDECREF(dimacs);
        return NULL;
    }
    return Py_BuildValue("(NN)", answer, dimacs);
}

PyObject *cb_py_frontier_json(PyObject *module, PyObject *args) {
    const char *graph, *device = NULL;
    Py_ssize_t length;
    int number;
    cb_preset preset;
    if (!PyArg_ParseTuple(args, "s#i|z:frontier_json", &graph, &length, &number, &device))
        return NULL;
    if (cb_py_parse_preset(number, &preset) < 0) return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL;
    if (cb_frontier_json(context->core, graph, (size_t)length, preset, device, &text, &error) !=
        CB_OK)
        return cb_py_raise(state, &error, NULL);
    return give_text(context, text);
}

typedef cb_status (*two_texts_fn)(cb_context *, const char *, size_t, const char *, size_t,
                                  const char *, char **, cb_error *);

static PyObject *answer_two(PyObject *module, PyObject *args, const char *format,
                            two_texts_fn ask) {
    const char *graph, *plan, *device = NULL;
    Py_ssize_t graph_length, plan_length;
    if (!PyArg_ParseTuple(args, format, &graph, &graph_length, &plan, &plan_length, &device))
        return NULL;
    cb_py_state *state = cb_py_state_of(module);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    char *text = NULL;
    if (ask(context->core, graph, (size_t)graph_length, plan, (size_t)plan_length, device, &text,
            &error) != CB_OK) {
        return cb_py_raise(state, &error, NULL);
    }
    return give_text(context, text);
}

PyObject *cb_py_explain_json(PyObject *module, PyObject *args) {
    return answer_two(module, args, "s#s#|z:explain_json", cb_plan_explain_json);
}

PyObject *cb_py_explanation_json(PyObject *module, PyObject *args) {
    return answer_two(module, args, "s#s#|z:explanation_json", cb_plan_explanation_json);
}

PyObject *cb_py_evaluate_json(PyObject *module, PyObject *args) {
    return answer_two(module, args, "s#s#|z:evaluate_json", cb_evaluate_json);
}
