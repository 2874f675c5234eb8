/* planning.c: planning from files: texts in, texts out, the GIL released in between. */
#include "state.h"

#include "plan/torch/duplicates.h"

/* ---- plan_json ---------------------------------------------------------------------------------
 */

/* A search that may be ended early: by the clock, or by what `progress` answers. */
typedef struct search {
    cb_py_work work;
    PyObject *progress;            /* None: nobody is told */
    int64_t start_ns, deadline_ns; /* 0: no limit */
    int64_t next_report_ns;
    bool finish;
    cb_progress best;
} search;

#define REPORT_EVERY_NS 100000000

/* Tells `progress` the seconds so far and the best plan; true: it wants an end, or raised. */
static bool report(search *s, int64_t now) {
    double seconds = (double)(now - s->start_ns) * 1e-9;
    const cb_progress *best = &s->best;
    PyObject *answer = NULL;
    PyEval_RestoreThread(s->work.thread);
    if (PyErr_CheckSignals() == 0)
        answer = best->best_bytes == 0 ? PyObject_CallFunction(s->progress, "dO", seconds, Py_None)
                                       : PyObject_CallFunction(s->progress, "d(Kdd)", seconds,
                                                               (unsigned long long)best->best_bytes,
                                                               best->extra, best->gap);
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

/* [plan JSON or BudgetError]; takes the texts. */
static PyObject *give_all(cb_py_state *state, cb_py_context *context, cb_planned *planned,
                          Py_ssize_t n) {
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = NULL;
        if (!list) cb_text_free(context->core, planned[i].plan);
        else if (planned[i].plan) item = give_text(context, planned[i].plan);
        else item = cb_py_budget_error(state, &planned[i].why_not);
        if (item) PyList_SET_ITEM(list, i, item);
        else Py_CLEAR(list);
    }
    return list;
}

static PyObject *plan_budgets(PyObject *module, search *s, const char *graph, Py_ssize_t length,
                              int preset_number, const char *device, double time_limit,
                              const cb_budget *budget, Py_ssize_t n) {
    cb_preset preset;
    cb_py_state *state = cb_py_state_of(module);
    if (cb_py_parse_preset(preset_number, &preset) < 0) return NULL;
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_planned *planned = PyMem_Calloc((size_t)n + 1, sizeof *planned);
    if (!planned) return PyErr_NoMemory();
    s->start_ns = s->next_report_ns = cb_py_now_ns();
    if (time_limit > 0 && time_limit < 1e6)
        s->deadline_ns = s->start_ns + (int64_t)(time_limit * 1e9);
    cb_error error = {0};
    cb_py_work_begin(&s->work, context);
    cb_status status =
        cb_plans_json(context->core, graph, (size_t)length, preset, budget, (uint32_t)n, device,
                      poll_search, s, &s->best, planned, &error);
    cb_py_work_end(&s->work);
    PyObject *result = NULL;
    if (PyErr_Occurred()) { /* from a signal handler or `progress` */
        for (Py_ssize_t i = 0; i < n; i++) cb_text_free(context->core, planned[i].plan);
    } else if (status == CB_OK) {
        result = give_all(state, context, planned, n);
    } else {
        cb_py_raise(state, &error, NULL);
    }
    PyMem_Free(planned);
    return result;
}

PyObject *cb_py_plan_json(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph", "preset", "budget", "device", "time_limit", "progress", NULL};
    const char *graph, *device = NULL;
    Py_ssize_t length;
    int preset = CB_PRESET_AUTOGRAD;
    double time_limit = 0;
    PyObject *item = Py_None;
    cb_budget budget;
    search s = {.progress = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#|$iOzdO:plan_json", names, &graph, &length,
                                     &preset, &item, &device, &time_limit, &s.progress) ||
        cb_py_parse_budget(item, &budget) < 0) {
        return NULL;
    }
    PyObject *list =
        plan_budgets(module, &s, graph, length, preset, device, time_limit, &budget, 1);
    if (!list) return NULL;
    PyObject *answer = Py_NewRef(PyList_GET_ITEM(list, 0));
    Py_DECREF(list);
    if (PyUnicode_Check(answer)) return answer;
    PyErr_SetObject((PyObject *)Py_TYPE(answer), answer);
    Py_DECREF(answer);
    return NULL;
}

/* Budgets or None in a sequence: how many; -1: an exception. */
static Py_ssize_t parse_budgets(PyObject *items, cb_budget **out) {
    PyObject *fast = PySequence_Fast(items, "budgets is a sequence of budgets");
    if (!fast) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    *out = PyMem_Calloc((size_t)n + 1, sizeof **out);
    if (!*out) PyErr_NoMemory();
    bool ok = *out != NULL && n <= INT32_MAX;
    for (Py_ssize_t i = 0; i < n && ok; i++)
        ok = cb_py_parse_budget(PySequence_Fast_GET_ITEM(fast, i), &(*out)[i]) == 0;
    Py_DECREF(fast);
    if (ok) return n;
    PyMem_Free(*out);
    return -1;
}

PyObject *cb_py_plans_json(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph", "budgets", "preset", "device", "time_limit", "progress", NULL};
    const char *graph, *device = NULL;
    Py_ssize_t length;
    int preset = CB_PRESET_AUTOGRAD;
    double time_limit = 0;
    PyObject *items;
    cb_budget *budget;
    search s = {.progress = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s#O|$izdO:plans_json", names, &graph, &length,
                                     &items, &preset, &device, &time_limit, &s.progress)) {
        return NULL;
    }
    Py_ssize_t n = parse_budgets(items, &budget);
    if (n < 0) return NULL;
    PyObject *list = plan_budgets(module, &s, graph, length, preset, device, time_limit, budget, n);
    PyMem_Free(budget);
    return list;
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
    cb_py_work work;
    cb_py_work_begin(&work, context);
    cb_status status = cb_frontier_json(context->core, graph, (size_t)length, preset, device,
                                        cb_py_poll, &work, &text, &error);
    cb_py_work_end(&work);
    if (PyErr_Occurred()) { /* from a signal handler */
        cb_text_free(context->core, text);
        return NULL;
    }
    return status == CB_OK ? give_text(context, text) : cb_py_raise(state, &error, NULL);
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

PyObject *cb_py_explain_text(PyObject *module, PyObject *args) {
    return answer_two(module, args, "s#s#|z:explain_text", cb_plan_explain_text);
}

PyObject *cb_py_explain_json(PyObject *module, PyObject *args) {
    return answer_two(module, args, "s#s#|z:explain_json", cb_plan_explain_json);
}

PyObject *cb_py_evaluate_json(PyObject *module, PyObject *args) {
    return answer_two(module, args, "s#s#|z:evaluate_json", cb_evaluate_json);
}

/* ---- find_duplicates --------------------------------------------------------------------------
 */

static PyObject *give_ids(const uint32_t *ids, uint32_t n) {
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *id = PyLong_FromUnsignedLong(ids[i]);
        if (id) PyList_SET_ITEM(list, i, id);
        else Py_CLEAR(list);
    }
    return list;
}

static PyObject *duplicates_of(cb_py_state *state, const cb_calls *calls) {
    cb_error error = {0};
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    uint32_t *same = PyMem_New(uint32_t, (size_t)calls->n + 1);
    if (!same) return PyErr_NoMemory();
    PyObject *result = cb_find_duplicates(&alloc, calls, same, &error) == CB_OK
                           ? give_ids(same, calls->n)
                           : cb_py_raise(state, &error, NULL);
    PyMem_Free(same);
    return result;
}

PyObject *cb_py_find_duplicates(PyObject *module, PyObject *args) {
    PyObject *keys, *starts, *inputs, *result = NULL;
    uint32_t *key = NULL, *start = NULL, *in = NULL, n_starts;
    cb_calls calls = {0};
    if (!PyArg_ParseTuple(args, "OOO:find_duplicates", &keys, &starts, &inputs)) return NULL;
    if (cb_py_parse_ids(keys, &key, &calls.n) < 0) goto done;
    if (cb_py_parse_ids(starts, &start, &n_starts) < 0) goto done;
    if (cb_py_parse_ids(inputs, &in, &calls.n_in) < 0) goto done;
    calls.key = key;
    calls.in_start = start;
    calls.in = in;
    if (n_starts != calls.n + 1)
        PyErr_Format(PyExc_ValueError, "find_duplicates: %u starts for %u nodes", n_starts,
                     calls.n);
    else result = duplicates_of(cb_py_state_of(module), &calls);
done:
    PyMem_Free(key);
    PyMem_Free(start);
    PyMem_Free(in);
    return result;
}
