/* problem_give.c: converts a problem of the core to dataclasses of cutback.problem. */
#include "columns.h"

#include "plan/model/inside.h"
#include "plan/model/over.h"

/* Returns a frozenset of the words whose bits are set. `seen` caches the sets by bits. */
static PyObject *set_of_words(PyObject *seen, const cb_py_column *c, uint32_t bits) {
    PyObject *key = PyLong_FromUnsignedLong(bits);
    PyObject *set = key ? PyDict_GetItemWithError(seen, key) : NULL;
    if (set || PyErr_Occurred()) {
        Py_XDECREF(key);
        return Py_XNewRef(set);
    }
    PyObject *words = PyList_New(0);
    for (uint32_t i = 0; words && i < c->n_words; i++) {
        if (!(bits >> i & 1)) continue;
        PyObject *word = PyUnicode_InternFromString(c->words[i]);
        if (!word || PyList_Append(words, word) < 0) Py_CLEAR(words);
        Py_XDECREF(word);
    }
    set = words ? PyFrozenSet_New(words) : NULL;
    if (set && PyDict_SetItem(seen, key, set) < 0) Py_CLEAR(set);
    Py_XDECREF(words);
    Py_DECREF(key);
    return set;
}

static PyObject *give_field(PyObject *seen, const cb_py_column *c, size_t i) {
    const void *at = cb_py_item_at(c, i);
    switch (c->kind) {
        case CB_PY_TEXT: return PyUnicode_FromString(*(const char *const *)at);
        case CB_PY_COUNT: return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
        case CB_PY_OPTION:
            if (*(const uint64_t *)at == UINT64_MAX) Py_RETURN_NONE;
            return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
        case CB_PY_TIME:
            if (*(const int64_t *)at == -1) Py_RETURN_NONE;
            return PyLong_FromLongLong(*(const int64_t *)at);
        case CB_PY_REAL: return PyFloat_FromDouble(*(const double *)at);
        case CB_PY_TRUTH: return PyBool_FromLong(*(const bool *)at);
        case CB_PY_ID_OPTION:
            if (*(const uint32_t *)at == CB_NONE) Py_RETURN_NONE;
            return PyLong_FromUnsignedLong(*(const uint32_t *)at);
        case CB_PY_ID: return PyLong_FromUnsignedLong(*(const uint32_t *)at);
        case CB_PY_WORD: return PyUnicode_InternFromString(c->words[*(const uint8_t *)at]);
        case CB_PY_WORDS: return set_of_words(seen, c, *(const uint32_t *)at);
        case CB_PY_WORDS8: return set_of_words(seen, c, *(const uint8_t *)at);
    }
    Py_UNREACHABLE();
}

/* Calls class(**columns, **extra). `names` are the names of the columns, then those of `extra`
 * [n_extra]. Takes ownership of the extras; fails if one is NULL. */
static PyObject *give_item(const cb_py_columns *t, PyObject *seen, size_t i, PyObject *names,
                           PyObject *const *extra, uint32_t n_extra) {
    PyObject *args[CB_PY_MOST_COLUMNS + 4], *item = NULL;
    uint32_t n = 0;
    bool ok = true;
    for (uint32_t c = 0; c < t->n; c++, n++) {
        args[n] = give_field(seen, &t->column[c], i);
        ok = ok && args[n];
    }
    for (uint32_t e = 0; e < n_extra; e++, n++) {
        args[n] = extra[e];
        ok = ok && args[n];
    }
    if (ok) item = PyObject_Vectorcall(t->class, args, 0, names);
    for (uint32_t k = 0; k < n; k++) Py_XDECREF(args[k]);
    return item;
}

/* Returns the names of the columns and of `extra` as a tuple for a vectorcall. */
static PyObject *names_of(const cb_py_columns *t, const char *const *extra, uint32_t n_extra) {
    PyObject *names = PyTuple_New((Py_ssize_t)(t->n + n_extra));
    for (uint32_t c = 0; names && c < t->n; c++)
        PyTuple_SET_ITEM(names, (Py_ssize_t)c, Py_NewRef(t->key[c]));
    for (uint32_t e = 0; names && e < n_extra; e++) {
        PyObject *name = PyUnicode_InternFromString(extra[e]);
        if (!name) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, (Py_ssize_t)(t->n + e), name);
    }
    return names;
}

typedef struct giver {
    const cb_problem *p;
    PyObject *module, *seen; /* cutback.problem; cache of set_of_words */
    cb_py_columns op, value, member;
    PyObject *op_names, *value_names, *member_names;
} giver;

static PyObject *give_member(giver *g, uint32_t m) {
    PyObject *extra[] = {cb_py_give_bits(g->p->member[m].reads),
                         cb_py_give_bits(g->p->member[m].uses)};
    return give_item(&g->member, g->seen, m, g->member_names, extra, 2);
}

static PyObject *give_inside(giver *g, uint32_t op) {
    const cb_problem *p = g->p;
    if (!cb_has_inside(p, op)) return PyTuple_New(0);
    uint32_t begin = p->member_begin[op], n = p->member_begin[op + 1] - begin;
    PyObject *members = PyTuple_New((Py_ssize_t)n);
    for (uint32_t m = 0; members && m < n; m++) {
        PyObject *member = give_member(g, begin + m);
        if (!member) Py_CLEAR(members);
        else PyTuple_SET_ITEM(members, (Py_ssize_t)m, member);
    }
    return members;
}

static PyObject *give_over(const cb_problem *p, uint32_t op) {
    PyObject *list = cb_py_give_ids(p->over_begin ? cb_over_of(p, op) : NULL, cb_count_over(p, op));
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *give_value(giver *g, uint32_t v) {
    bool inside = cb_has_inside(g->p, g->p->value_op[v]);
    PyObject *member = inside ? PyLong_FromUnsignedLong(g->p->value_member[v]) : Py_NewRef(Py_None);
    return give_item(&g->value, g->seen, v, g->value_names, &member, 1);
}

static PyObject *give_outputs(giver *g, uint32_t op) {
    uint32_t begin = g->p->out_begin[op], n = g->p->out_begin[op + 1] - begin;
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *value = give_value(g, begin + i);
        if (!value) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, value);
    }
    return list;
}

static PyObject *give_ops(giver *g) {
    const cb_problem *p = g->p;
    PyObject *list = PyList_New((Py_ssize_t)p->n_op);
    for (uint32_t op = 0; list && op < p->n_op; op++) {
        uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op];
        PyObject *extra[] = {cb_py_give_ids(p->in_value + p->in_begin[op], n_in),
                             give_outputs(g, op), give_inside(g, op), give_over(p, op)};
        PyObject *item = give_item(&g->op, g->seen, op, g->op_names, extra, 4);
        if (!item) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)op, item);
    }
    return list;
}

/* Makes a list of items of a class that has only columns. */
static PyObject *give_rows(PyObject *module, const char *class_name, cb_py_columns t, uint32_t n) {
    PyObject *list = NULL, *names = NULL, *seen = PyDict_New();
    if (!seen || cb_py_columns_open(&t, module, class_name) < 0) goto done;
    names = names_of(&t, NULL, 0);
    list = names ? PyList_New((Py_ssize_t)n) : NULL;
    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *item = give_item(&t, seen, i, names, NULL, 0);
        if (!item) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
done:
    Py_XDECREF(names);
    Py_XDECREF(seen);
    cb_py_columns_close(&t);
    return list;
}

static PyObject *give_problem(giver *g) {
    static const char *const lists[] = {
        "ops", "storages", "forward_outputs", "backward_outputs", "regions", "inlinings"};
    const cb_problem *p = g->p;
    cb_py_columns t = cb_py_columns_of_problem((cb_problem *)p); /* only read */
    PyObject *problem = NULL, *names = NULL;
    const uint32_t n_inlining = p->inline_begin ? p->inline_begin[p->n_op] : 0;
    if (cb_py_columns_open(&t, g->module, "Problem") == 0) names = names_of(&t, lists, 6);
    if (names) {
        PyObject *extra[] = {
            give_ops(g),
            give_rows(g->module, "Storage", cb_py_columns_of_storages(p), p->n_storage),
            cb_py_give_ids(p->forward_output, p->n_forward_output),
            cb_py_give_ids(p->backward_output, p->n_backward_output),
            give_rows(g->module, "Region", cb_py_columns_of_regions(p), p->n_region),
            give_rows(g->module, "Inlining", cb_py_columns_of_inlinings(p), n_inlining)};
        problem = give_item(&t, g->seen, 0, names, extra, 6);
    }
    Py_XDECREF(names);
    cb_py_columns_close(&t);
    return problem;
}

PyObject *cb_py_give_problem(const cb_problem *p) {
    static const char *const op_extra[] = {"inputs", "outputs", "inside", "over"};
    static const char *const value_extra[] = {"member"};
    static const char *const member_extra[] = {"reads", "uses"};
    giver g = {.p = p,
               .op = cb_py_columns_of_ops(p),
               .value = cb_py_columns_of_values(p),
               .member = cb_py_columns_of_members(p),
               .module = PyImport_ImportModule("cutback.problem"),
               .seen = PyDict_New()};
    PyObject *problem = NULL;
    if (!g.module || !g.seen || cb_py_columns_open(&g.op, g.module, "Op") < 0 ||
        cb_py_columns_open(&g.value, g.module, "Value") < 0 ||
        cb_py_columns_open(&g.member, g.module, "Member") < 0)
        goto done;
    g.op_names = names_of(&g.op, op_extra, 4);
    g.value_names = names_of(&g.value, value_extra, 1);
    g.member_names = names_of(&g.member, member_extra, 2);
    if (g.op_names && g.value_names && g.member_names) problem = give_problem(&g);
done:
    Py_XDECREF(g.op_names);
    Py_XDECREF(g.value_names);
    Py_XDECREF(g.member_names);
    cb_py_columns_close(&g.op);
    cb_py_columns_close(&g.value);
    cb_py_columns_close(&g.member);
    Py_XDECREF(g.seen);
    Py_XDECREF(g.module);
    return problem;
}
