/* problem_take.c: converts dataclasses of cutback.problem to a problem of the core. Only checks
 * types and ranges; the core checks the rest. */
#include "columns.h"

#include "plan/model/inlining.h"
#include "plan/model/inside.h"

static int no_memory(void) {
    PyErr_NoMemory();
    return -1;
}

#define MOST_SHOWN 80 /* characters of a value shown in an error */

/* Sets a ValueError that names the item, the attribute and its value, and returns -1. Other pending
 * exceptions, such as KeyboardInterrupt, are kept. */
static int refuse(const cb_py_columns *t, size_t i, const char *name, PyObject *is,
                  const char *wanted) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    PyErr_Clear();
    PyObject *text = PyObject_Repr(is);
    if (!text) PyErr_Clear();
    PyObject *start = text && PyUnicode_GET_LENGTH(text) > MOST_SHOWN
                          ? PyUnicode_Substring(text, 0, MOST_SHOWN)
                          : Py_XNewRef(text);
    if (start)
        PyErr_Format(PyExc_ValueError, "%s %zu: %s is %U%s, not %s", t->what, i, name, start,
                     PyUnicode_GET_LENGTH(text) > MOST_SHOWN ? "..." : "", wanted);
    else
        PyErr_Format(PyExc_ValueError, "%s %zu: %s is a %s, not %s", t->what, i, name,
                     Py_TYPE(is)->tp_name, wanted);
    Py_XDECREF(start);
    Py_XDECREF(text);
    return -1;
}

static int take_count(PyObject *is, uint64_t most, uint64_t *out) {
    PyObject *number = PyNumber_Index(is);
    if (!number) return -1;
    unsigned long long n = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) return -1;
    *out = n;
    return n <= most ? 0 : -1;
}

static int find_word(const cb_py_column *c, PyObject *word, uint32_t *out) {
    const char *text = PyUnicode_Check(word) ? PyUnicode_AsUTF8(word) : NULL;
    for (*out = 0; text && *out < c->n_words; ++*out)
        if (strcmp(text, c->words[*out]) == 0) return 0;
    return -1;
}

static int take_words(const cb_py_column *c, PyObject *is, uint32_t *out) {
    PyObject *all = PyObject_GetIter(is), *word;
    int status = all ? 0 : -1;
    uint32_t index;
    *out = 0;
    while (status == 0 && (word = PyIter_Next(all))) {
        status = find_word(c, word, &index);
        if (status == 0) *out |= UINT32_C(1) << index;
        Py_DECREF(word);
    }
    Py_XDECREF(all);
    return PyErr_Occurred() ? -1 : status;
}

static int take_text(cb_problem *p, PyObject *is, const char **out) {
    Py_ssize_t length;
    const char *text = PyUnicode_Check(is) ? PyUnicode_AsUTF8AndSize(is, &length) : NULL;
    if (!text || strlen(text) != (size_t)length) return -1;
    *out = length ? cb_arena_strdup(&p->arena, text, (size_t)length) : "";
    if (!*out) PyErr_NoMemory();
    return *out ? 0 : -1;
}

#define MOST_COUNT (UINT64_C(1) << 62)

static int take_field(cb_problem *p, const cb_py_columns *t, uint32_t c, size_t i, PyObject *is) {
    static const char *const wanted[] = {
        [CB_PY_TEXT] = "a str without NUL", [CB_PY_COUNT] = "a count",
        [CB_PY_OPTION] = "a count or None", [CB_PY_TIME] = "a number of picoseconds or None",
        [CB_PY_REAL] = "a number",          [CB_PY_ID] = "an id",
        [CB_PY_TRUTH] = "True or False",    [CB_PY_ID_OPTION] = "an id or None",
        [CB_PY_WORD] = "one of its words",  [CB_PY_WORDS] = "a set of flags",
        [CB_PY_WORDS8] = "a set of flags",
    };
    const cb_py_column *at = &t->column[c];
    void *out = cb_py_item_at(at, i);
    uint64_t wide = 0;
    uint32_t narrow = 0;
    int status = 0;
    switch (at->kind) {
        case CB_PY_TEXT: status = take_text(p, is, out); break;
        case CB_PY_OPTION:
        case CB_PY_TIME:
            if (is == Py_None) return 0; /* keeps the default in the array */
            status = take_count(is, MOST_COUNT, &wide);
            memcpy(out, &wide, sizeof wide);
            break;
        case CB_PY_COUNT:
            status = take_count(is, MOST_COUNT, &wide);
            memcpy(out, &wide, sizeof wide);
            break;
        case CB_PY_REAL:
            *(double *)out = PyFloat_AsDouble(is);
            status = PyErr_Occurred() ? -1 : 0;
            break;
        case CB_PY_TRUTH:
            status = PyBool_Check(is) ? 0 : -1;
            *(bool *)out = is == Py_True;
            break;
        case CB_PY_ID_OPTION:
            if (is == Py_None) return 0;
            status = take_count(is, CB_NONE - 1, &wide);
            *(uint32_t *)out = (uint32_t)wide;
            break;
        case CB_PY_ID:
            status = take_count(is, CB_NONE - 1, &wide);
            *(uint32_t *)out = (uint32_t)wide;
            break;
        case CB_PY_WORD:
            status = find_word(at, is, &narrow);
            *(uint8_t *)out = (uint8_t)narrow;
            break;
        case CB_PY_WORDS: status = take_words(at, is, out); break;
        case CB_PY_WORDS8:
            status = take_words(at, is, &narrow);
            *(uint8_t *)out = (uint8_t)narrow;
            break;
    }
    return status == 0 ? 0 : refuse(t, i, at->name, is, wanted[at->kind]);
}

/* Replaces an AttributeError by a TypeError that names the object's type. */
static void name_the_attribute(PyObject *object, const char *name) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "problem: a %s has no %s; see cutback.problem",
                 Py_TYPE(object)->tp_name, name);
}

static int take_item(cb_problem *p, const cb_py_columns *t, size_t i, PyObject *item) {
    for (uint32_t c = 0; c < t->n; c++) {
        PyObject *is = PyObject_GetAttr(item, t->key[c]);
        if (!is) name_the_attribute(item, t->column[c].name);
        int status = is ? take_field(p, t, c, i, is) : -1;
        Py_XDECREF(is);
        if (status < 0) return -1;
    }
    return 0;
}

/* Copies the attribute to a tuple, because a list may be changed while it is read. */
static PyObject *take_list(PyObject *object, const char *name) {
    PyObject *items = PyObject_GetAttrString(object, name);
    if (!items) name_the_attribute(object, name);
    PyObject *own = items ? PySequence_Tuple(items) : NULL;
    Py_XDECREF(items);
    return own;
}

static int take_ids(const cb_py_columns *t, size_t i, const char *name, PyObject *list,
                    uint32_t *out) {
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(list); k++) {
        PyObject *is = PySequence_Fast_GET_ITEM(list, k);
        uint64_t id;
        if (take_count(is, CB_NONE - 1, &id) < 0) return refuse(t, i, name, is, "a list of ids");
        out[k] = (uint32_t)id;
    }
    return 0;
}

static int take_bits(const cb_py_columns *t, size_t i, PyObject *member, const char *name,
                     uint64_t *out) {
    PyObject *list = take_list(member, name);
    int status = list ? 0 : -1;
    *out = 0;
    for (Py_ssize_t k = 0; status == 0 && k < PySequence_Fast_GET_SIZE(list); k++) {
        PyObject *is = PySequence_Fast_GET_ITEM(list, k);
        uint64_t place;
        if (take_count(is, 63, &place) < 0) status = refuse(t, i, name, is, "indices below 64");
        else *out |= UINT64_C(1) << place;
    }
    Py_XDECREF(list);
    return status;
}

typedef struct taker {
    PyObject *source; /* a cutback.problem.Problem */
    PyObject *ops, *storages, *forward, *backward, *regions, *inlinings; /* its lists */
    PyObject *parts; /* tuple: inputs, outputs, inside and over of each op */
    cb_problem *p;
    cb_py_columns op, value, member;
} taker;

enum { INPUTS, OUTPUTS, INSIDE, OVER, N_PART };
static const char *const part_names[N_PART] = {"inputs", "outputs", "inside", "over"};

static PyObject *part_of(const taker *k, uint32_t op, uint32_t part) {
    return PyTuple_GET_ITEM(k->parts, (Py_ssize_t)op * N_PART + part);
}

/* Copies the lists of all ops and counts their items, for the allocation of the problem. */
static int count_parts(taker *k, cb_problem_sizes *n) {
    Py_ssize_t n_op = PySequence_Fast_GET_SIZE(k->ops), count[N_PART] = {0};
    if (n_op > UINT32_MAX / 4) return no_memory();
    k->parts = PyTuple_New(n_op * N_PART);
    for (Py_ssize_t i = 0; k->parts && i < n_op * N_PART; i++) {
        const Py_ssize_t op = i / N_PART, part = i % N_PART;
        PyObject *list = take_list(PySequence_Fast_GET_ITEM(k->ops, op), part_names[part]);
        if (!list) return -1;
        PyTuple_SET_ITEM(k->parts, i, list);
        count[part] += PySequence_Fast_GET_SIZE(list);
    }
    for (int part = 0; part < N_PART; part++)
        if (count[part] > UINT32_MAX / 4) return no_memory();
    *n = (cb_problem_sizes){.n_op = (uint32_t)n_op,
                            .n_in = (uint32_t)count[INPUTS],
                            .n_value = (uint32_t)count[OUTPUTS],
                            .n_member = (uint32_t)count[INSIDE],
                            .n_over = (uint32_t)count[OVER],
                            .n_storage = (uint32_t)PySequence_Fast_GET_SIZE(k->storages),
                            .n_inlining = (uint32_t)PySequence_Fast_GET_SIZE(k->inlinings)};
    return k->parts ? 0 : -1;
}

static int take_inside(taker *k, uint32_t op) {
    cb_problem *p = k->p;
    PyObject *list = part_of(k, op, INSIDE);
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    if (!p->member_begin) return 0;
    uint32_t m = p->member_begin[op];
    for (Py_ssize_t i = 0; i < n; i++, m++) {
        PyObject *member = PySequence_Fast_GET_ITEM(list, i);
        if (take_item(p, &k->member, m, member) < 0 ||
            take_bits(&k->member, m, member, "reads", &p->member[m].reads) < 0 ||
            take_bits(&k->member, m, member, "uses", &p->member[m].uses) < 0)
            return -1;
    }
    p->member_begin[op + 1] = m;
    return 0;
}

static int take_member_of(taker *k, uint32_t v, PyObject *value, bool inside) {
    PyObject *is = PyObject_GetAttrString(value, "member");
    int status = is ? 0 : -1;
    uint64_t place = 0;
    if (status == 0 && (is == Py_None) == inside)
        status = refuse(&k->value, v, "member", is,
                        inside ? "the index of a member of its op"
                               : "None, because its op has no members");
    else if (status == 0 && inside && take_count(is, CB_MOST_MEMBERS - 1, &place) < 0)
        status = refuse(&k->value, v, "member", is, "the index of a member of its op");
    if (status == 0 && inside) k->p->value_member[v] = (uint8_t)place;
    Py_XDECREF(is);
    return status;
}

static int take_over(taker *k, uint32_t op) {
    cb_problem *p = k->p;
    PyObject *list = part_of(k, op, OVER);
    if (!p->over_begin) return 0;
    p->over_begin[op + 1] = p->over_begin[op] + (uint32_t)PySequence_Fast_GET_SIZE(list);
    return take_ids(&k->op, op, "over", list, p->over + p->over_begin[op]);
}

static int take_op(taker *k, uint32_t op) {
    cb_problem *p = k->p;
    PyObject *inputs = part_of(k, op, INPUTS), *outputs = part_of(k, op, OUTPUTS);
    if (take_item(p, &k->op, op, PySequence_Fast_GET_ITEM(k->ops, (Py_ssize_t)op)) < 0) return -1;
    p->in_begin[op + 1] = p->in_begin[op] + (uint32_t)PySequence_Fast_GET_SIZE(inputs);
    p->out_begin[op + 1] = p->out_begin[op] + (uint32_t)PySequence_Fast_GET_SIZE(outputs);
    if (take_ids(&k->op, op, "an input", inputs, p->in_value + p->in_begin[op]) < 0) return -1;
    if (take_inside(k, op) < 0 || take_over(k, op) < 0) return -1;
    for (uint32_t v = p->out_begin[op], i = 0; v < p->out_begin[op + 1]; v++, i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(outputs, (Py_ssize_t)i);
        p->value_op[v] = op;
        if (take_item(p, &k->value, v, value) < 0) return -1;
        if (take_member_of(k, v, value, cb_has_inside(p, op)) < 0) return -1;
    }
    return 0;
}

static int take_rows(cb_problem *p, cb_py_columns t, PyObject *list) {
    int status = cb_py_columns_open(&t, NULL, NULL);
    for (Py_ssize_t i = 0; status == 0 && i < PySequence_Fast_GET_SIZE(list); i++)
        status = take_item(p, &t, (size_t)i, PySequence_Fast_GET_ITEM(list, i));
    cb_py_columns_close(&t);
    return status;
}

static int take_regions(taker *k) {
    cb_problem *p = k->p;
    const uint32_t n = p->n_region = (uint32_t)PySequence_Fast_GET_SIZE(k->regions);
    p->region_name = CB_NEW(&p->arena, const char *, n);
    p->region_parent = CB_NEW(&p->arena, uint32_t, n);
    p->region_limit = CB_NEW(&p->arena, uint64_t, n);
    if (!p->region_name || !p->region_parent || !p->region_limit) return no_memory();
    for (uint32_t r = 0; r < n; r++) {
        p->region_parent[r] = CB_NONE;
        p->region_limit[r] = UINT64_MAX;
    }
    return take_rows(p, cb_py_columns_of_regions(p), k->regions);
}

static int take_ends(taker *k, const char *name, PyObject *list, uint32_t *n, uint32_t **ids) {
    static const cb_py_columns problem = {.what = "problem"};
    *n = (uint32_t)PySequence_Fast_GET_SIZE(list);
    *ids = CB_NEW(&k->p->arena, uint32_t, *n);
    if (!*ids) return no_memory();
    return take_ids(&problem, 0, name, list, *ids);
}

static int take_storages(taker *k) {
    cb_problem *p = k->p;
    bool any = false;
    p->updates = CB_NEW(&p->arena, uint32_t, p->n_storage);
    if (!p->updates) return no_memory();
    for (uint32_t s = 0; s < p->n_storage; s++) p->updates[s] = CB_NONE;
    if (take_rows(p, cb_py_columns_of_storages(p), k->storages) < 0) return -1;
    for (uint32_t s = 0; s < p->n_storage; s++) any |= p->updates[s] != CB_NONE;
    if (!any) p->updates = NULL;
    return 0;
}

static int take_everything(taker *k) {
    cb_problem *p = k->p;
    cb_py_columns whole = cb_py_columns_of_problem(p);
    int status = cb_py_columns_open(&whole, NULL, NULL);
    if (status == 0) status = take_item(p, &whole, 0, k->source);
    cb_py_columns_close(&whole);
    if (status < 0 || take_regions(k) < 0) return -1;
    if (take_storages(k) < 0) return -1;
    for (uint32_t op = 0; op < p->n_op; op++)
        if (take_op(k, op) < 0) return -1;
    if (take_rows(p, cb_py_columns_of_inlinings(p), k->inlinings) < 0) return -1;
    if (take_ends(k, "forward_outputs", k->forward, &p->n_forward_output, &p->forward_output) < 0)
        return -1;
    return take_ends(k, "backward_outputs", k->backward, &p->n_backward_output,
                     &p->backward_output);
}

/* Makes k->p, which the caller frees after a failure. */
static int take_problem(taker *k, cb_py_state *state, cb_context *ctx) {
    cb_problem_sizes sizes;
    cb_error error = {0};
    k->ops = take_list(k->source, "ops");
    k->storages = k->ops ? take_list(k->source, "storages") : NULL;
    k->forward = k->storages ? take_list(k->source, "forward_outputs") : NULL;
    k->backward = k->forward ? take_list(k->source, "backward_outputs") : NULL;
    k->regions = k->backward ? take_list(k->source, "regions") : NULL;
    k->inlinings = k->regions ? take_list(k->source, "inlinings") : NULL;
    if (!k->inlinings || count_parts(k, &sizes) < 0) return -1;
    cb_status status = cb_problem_create(cb_planning_alloc(ctx), sizes, &k->p, &error);
    if (status == CB_OK) {
        k->op = cb_py_columns_of_ops(k->p);
        k->value = cb_py_columns_of_values(k->p);
        k->member = cb_py_columns_of_members(k->p);
        if (cb_py_columns_open(&k->op, NULL, NULL) < 0 ||
            cb_py_columns_open(&k->value, NULL, NULL) < 0 ||
            cb_py_columns_open(&k->member, NULL, NULL) < 0 || take_everything(k) < 0)
            return -1;
        status = cb_inlinings_index(k->p, sizes.n_inlining, &error);
    }
    if (status == CB_OK) status = cb_planning_check(k->p, &error);
    if (status != CB_OK) cb_py_raise(state, &error, NULL);
    return status == CB_OK ? 0 : -1;
}

cb_problem *cb_py_take_problem(cb_py_state *state, cb_context *ctx, PyObject *source) {
    taker k = {.source = source};
    if (take_problem(&k, state, ctx) < 0) {
        cb_problem_free(k.p);
        k.p = NULL;
    }
    cb_py_columns_close(&k.op);
    cb_py_columns_close(&k.value);
    cb_py_columns_close(&k.member);
    PyObject *lists[] = {k.ops, k.storages, k.forward, k.backward, k.regions, k.inlinings, k.parts};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) Py_XDECREF(lists[i]);
    return k.p;
}
