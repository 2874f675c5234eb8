/* expression_type.c: the type _native.Expression, a user-defined optimizer. */
#include "state.h"

static int wrong(const char *what) {
    PyErr_Format(PyExc_TypeError, "Expression: %s", what);
    return -1;
}

/* Parses a tuple of at most `room` strings, which are borrowed from the tuple. */
static int parse_names(PyObject *tuple, const char **out, uint32_t room, uint32_t *n) {
    if (PyTuple_GET_SIZE(tuple) > (Py_ssize_t)room) {
        PyErr_Format(PyExc_ValueError, "Expression: %zd names; at most %u are supported",
                     PyTuple_GET_SIZE(tuple), room);
        return -1;
    }
    *n = (uint32_t)PyTuple_GET_SIZE(tuple);
    for (uint32_t i = 0; i < *n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, (Py_ssize_t)i);
        if (!PyUnicode_Check(item)) return wrong("names must be str");
        if (!(out[i] = PyUnicode_AsUTF8(item))) return -1;
    }
    return 0;
}

static int parse_id(PyObject *item, uint32_t *out) {
    unsigned long id = PyLong_AsUnsignedLong(item);
    if (PyErr_Occurred()) return -1;
    if (id > UINT32_MAX) return wrong("a node number is too large");
    *out = (uint32_t)id;
    return 0;
}

/* Parses (op, (operands, ...), value). */
static int parse_node(PyObject *item, cb_expression_node *out) {
    PyObject *operands;
    *out = (cb_expression_node){0};
    if (!PyTuple_Check(item)) return wrong("a node must be a tuple");
    if (!PyArg_ParseTuple(item, "sO!d:node", &out->op, &PyTuple_Type, &operands, &out->value))
        return -1;
    if (PyTuple_GET_SIZE(operands) > 3) return wrong("a node has at most three operands");
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(operands); k++) {
        if (parse_id(PyTuple_GET_ITEM(operands, k), &out->in[k]) < 0) return -1;
    }
    return 0;
}

#define MOST_HYPER 64

static int parse_spec(PyObject *states, PyObject *hyper, PyObject *nodes, PyObject *out,
                      const char **state_names, const char **hyper_names, uint32_t *out_ids,
                      cb_expression_node *list, cb_expression_spec *spec) {
    if (parse_names(states, state_names, CB_MAX_STATES, &spec->n_states) < 0) return -1;
    if (parse_names(hyper, hyper_names, MOST_HYPER, &spec->n_hyper) < 0) return -1;
    if (cb_py_check_count(out, 1 + spec->n_states, "results") < 0) return -1;
    for (uint32_t k = 0; k <= spec->n_states; k++) {
        if (parse_id(PyTuple_GET_ITEM(out, (Py_ssize_t)k), &out_ids[k]) < 0) return -1;
    }
    for (uint32_t i = 0; i < spec->n_nodes; i++) {
        if (parse_node(PyTuple_GET_ITEM(nodes, (Py_ssize_t)i), &list[i]) < 0) return -1;
    }
    return 0;
}

static PyObject *expression_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *states, *hyper, *nodes, *out;
    const char *state_names[CB_MAX_STATES], *hyper_names[MOST_HYPER];
    uint32_t out_ids[1 + CB_MAX_STATES];
    cb_expression_spec spec = {.states = state_names, .hyper = hyper_names, .out = out_ids};
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        wrong("no keyword arguments are allowed");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "sO!O!O!O!:Expression", &spec.name, &PyTuple_Type, &states,
                          &PyTuple_Type, &hyper, &PyTuple_Type, &nodes, &PyTuple_Type, &out))
        return NULL;
    cb_py_state *state = PyType_GetModuleState(type);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    spec.n_nodes = (uint32_t)PyTuple_GET_SIZE(nodes);
    cb_expression_node *list = PyMem_New(cb_expression_node, (size_t)spec.n_nodes + 1);
    if (!list) return PyErr_NoMemory();
    spec.nodes = list;
    cb_error error = {0};
    cb_expression *core = NULL;
    int good =
        parse_spec(states, hyper, nodes, out, state_names, hyper_names, out_ids, list, &spec);
    if (good == 0 && cb_expression_new(context->core, &spec, &core, &error) != CB_OK)
        cb_py_raise(state, &error, NULL);
    PyMem_Free(list);
    cb_py_expression *self = core ? (cb_py_expression *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        cb_expression_free(core);
        return NULL;
    }
    self->context = cb_py_context_retain(context);
    self->core = core;
    return (PyObject *)self;
}

static void expression_dealloc(cb_py_expression *self) {
    PyTypeObject *type = Py_TYPE(self);
    cb_expression_free(self->core);
    if (self->context) cb_py_context_release(self->context);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot expression_slots[] = {
    {Py_tp_doc, "Expression(name, states, hyper, nodes, out, /): an optimizer as a list of nodes."},
    {Py_tp_new, expression_new},
    {Py_tp_dealloc, expression_dealloc},
    {0, NULL},
};

PyType_Spec cb_py_expression_spec = {
    .name = "cutback._native.Expression",
    .basicsize = sizeof(cb_py_expression),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = expression_slots,
};
