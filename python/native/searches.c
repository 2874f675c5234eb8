/* searches.c: searches for plans, which a time limit or the caller may end early. */
#include "planned.h"

#define REPORT_EVERY_NS 100000000

/* Calls `progress` with the elapsed seconds and the best plan. True if the search should end. If it
 * raised, work.raised is set, and the search is cancelled. */
static bool report(cb_py_search *s, int64_t now) {
    double seconds = (double)(now - s->start_ns) * 1e-9;
    const cb_progress *best = &s->best;
    PyObject *answer = NULL;
    PyEval_RestoreThread(s->work.thread);
    if (PyErr_CheckSignals() == 0)
        answer = best->best_bytes == 0
                     ? PyObject_CallFunction(s->progress, "dO", seconds, Py_None)
                     : PyObject_CallFunction(s->progress, "d(Kddk)", seconds,
                                             (unsigned long long)best->best_bytes, best->extra,
                                             best->gap, (unsigned long)best->budget);
    const int wanted = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    s->work.raised = wanted < 0;
    s->work.thread = PyEval_SaveThread();
    return wanted > 0;
}

int cb_py_search_poll(void *user) {
    cb_py_search *s = user;
    int64_t now = cb_py_now_ns();
    if (s->work.raised) return CB_POLL_CANCEL;
    if (s->deadline_ns && now >= s->deadline_ns) s->finish = true;
    if (!s->finish && s->progress != Py_None) {
        if (now < s->next_report_ns) return CB_POLL_GO;
        s->finish = report(s, now);
        s->next_report_ns = cb_py_now_ns() + REPORT_EVERY_NS; /* counted from the callback's end */
    } else {
        (void)cb_py_poll(&s->work); /* a search may take a while to finish */
    }
    if (s->work.raised) return CB_POLL_CANCEL;
    return s->finish ? CB_POLL_FINISH : CB_POLL_GO;
}

void cb_py_search_begin(cb_py_search *s, cb_py_context *context, double time_limit,
                        PyObject *progress) {
    *s = (cb_py_search){.progress = progress};
    s->start_ns = s->next_report_ns = cb_py_now_ns();
    if (time_limit > 0 && time_limit < 1e6)
        s->deadline_ns = s->start_ns + (int64_t)(time_limit * 1e9);
    cb_py_work_begin(&s->work, context);
}

typedef struct search {
    double time_limit;
    PyObject *progress;
    cb_planning_request request;
} search;

/* Runs a search; -1: an exception is set, and there are no plans. */
static int run(search *s, cb_py_problem *problem, int preset, cb_answer *answer) {
    cb_error error = {0};
    cb_py_search now;
    if (cb_py_parse_preset(preset, &s->request.preset) < 0) return -1;
    cb_py_search_begin(&now, problem->context, s->time_limit, s->progress);
    s->request.poll = (cb_poll){cb_py_search_poll, &now};
    s->request.progress = &now.best;
    cb_status status =
        cb_planning_plans(problem->context->core, problem->core, &s->request, answer, &error);
    cb_py_work_end(&now.work);
    if (PyErr_Occurred()) { /* raised by a signal handler or `progress` */
        for (uint32_t i = 0; i < s->request.n && status == CB_OK; i++) cb_plan_free(answer[i].plan);
        return -1;
    }
    if (status == CB_OK) return 0;
    cb_py_raise(cb_py_state_of_object((PyObject *)problem), &error, NULL);
    return -1;
}

/* Moves the plan of an answer to a new Plan. */
static PyObject *give_plan(cb_py_problem *problem, cb_answer *answer) {
    cb_plan *plan = answer->plan;
    answer->plan = NULL;
    return cb_py_plan_wrap(cb_py_state_of_object((PyObject *)problem), problem, plan, NULL);
}

PyObject *cb_py_search_one(cb_py_problem *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"preset", "budget", "device", "time_limit", "progress", NULL};
    int preset = CB_PRESET_AUTOGRAD;
    PyObject *item = Py_None;
    cb_budget budget;
    cb_answer answer;
    search s = {.progress = Py_None, .request = {.budget = &budget, .n = 1}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$iOzdO:plan", names, &preset, &item,
                                     &s.request.device, &s.time_limit, &s.progress) ||
        cb_py_parse_budget(item, &budget) < 0 || run(&s, self, preset, &answer) < 0)
        return NULL;
    if (answer.plan) return give_plan(self, &answer);
    return cb_py_raise(cb_py_state_of_object((PyObject *)self), &answer.why, NULL);
}

/* Parses a sequence of budgets (or None); returns their number, or -1 with an exception set. */
static Py_ssize_t parse_budgets(PyObject *items, cb_budget **out) {
    PyObject *fast = PySequence_Tuple(items);
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

/* Returns a list of the plans and errors. */
static PyObject *give_answers(cb_py_problem *problem, const search *s, cb_answer *answer) {
    cb_py_state *state = cb_py_state_of_object((PyObject *)problem);
    Py_ssize_t n = s->request.n, n_given = n;
    for (Py_ssize_t i = 0; s->request.until_met && i < n_given; i++)
        if (answer[i].plan) n_given = i + 1;
    PyObject *list = PyList_New(n_given);
    for (Py_ssize_t i = 0; list && i < n_given; i++) {
        PyObject *item = answer[i].plan ? give_plan(problem, &answer[i])
                                        : cb_py_budget_error(state, &answer[i].why);
        if (!item) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, item);
    }
    for (Py_ssize_t i = 0; i < n; i++) cb_plan_free(answer[i].plan);
    return list;
}

PyObject *cb_py_search_many(cb_py_problem *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"", "preset", "device", "time_limit", "progress", "until_met", NULL};
    int until_met = 0, preset = CB_PRESET_AUTOGRAD;
    PyObject *items, *result = NULL;
    cb_budget *budget;
    search s = {.progress = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$izdOp:plans", names, &items, &preset,
                                     &s.request.device, &s.time_limit, &s.progress, &until_met))
        return NULL;
    s.request.until_met = until_met != 0;
    Py_ssize_t n = parse_budgets(items, &budget);
    if (n < 0) return NULL;
    cb_answer *answer = PyMem_Calloc((size_t)n + 1, sizeof *answer);
    s.request.budget = budget;
    s.request.n = (uint32_t)n;
    if (!answer) PyErr_NoMemory();
    else if (run(&s, self, preset, answer) == 0) result = give_answers(self, &s, answer);
    PyMem_Free(answer);
    PyMem_Free(budget);
    return result;
}
