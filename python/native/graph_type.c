/* graph_type.c: the type _native.Graph, a thin wrapper of cb_graph. */
#include "state.h"

#include "base/dtype.h"
#include "ir/graph.h"

#define MAX_OUTS 8 /* no op has more outputs */

static PyObject *raise(cb_py_graph *self, const cb_error *error, const char *location) {
    return cb_py_raise(cb_py_state_of_object((PyObject *)self), error, location);
}

static PyObject *wrap(PyTypeObject *type, cb_py_context *context, cb_graph *core) {
    cb_py_graph *self = (cb_py_graph *)type->tp_alloc(type, 0);
    if (!self) {
        cb_graph_free(core);
        return NULL;
    }
    self->context = cb_py_context_retain(context);
    self->core = core;
    return (PyObject *)self;
}

static PyObject *graph_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Graph", names)) return NULL;
    cb_py_state *state = PyType_GetModuleState(type);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    cb_graph *core = NULL;
    if (cb_graph_new(context->core, &core, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    return wrap(type, context, core);
}

static int graph_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void graph_dealloc(cb_py_graph *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    cb_graph_free(self->core);
    cb_py_context_release(self->context);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *graph_input(cb_py_graph *self, PyObject *args) {
    const char *name;
    PyObject *shape_items, *dtype_name;
    int role;
    if (!PyArg_ParseTuple(args, "sOOi:input", &name, &shape_items, &dtype_name, &role)) return NULL;
    cb_shape shape;
    cb_dtype dtype;
    if (cb_py_parse_shape(shape_items, name, &shape) < 0 ||
        cb_py_parse_dtype(dtype_name, &dtype) < 0)
        return NULL;
    cb_error error = {0};
    cb_value_id id;
    cb_graph_set_constraint(self->core, CB_FREE); /* arguments have no location, region or policy */
    if (cb_graph_set_location(self->core, NULL, &error) != CB_OK) return raise(self, &error, NULL);
    if (cb_graph_set_region(self->core, CB_NONE, &error) != CB_OK) return raise(self, &error, NULL);
    if (cb_graph_add_input(self->core, name, (cb_role)role, dtype, shape, &id, &error) != CB_OK) {
        return raise(self, &error, NULL);
    }
    return PyLong_FromUnsignedLong(id);
}

static PyObject *value_row(cb_py_graph *self, cb_value_id id) {
    cb_error error = {0};
    cb_dtype dtype;
    cb_shape shape;
    if (cb_graph_value_info(self->core, id, &dtype, &shape, &error) != CB_OK)
        return raise(self, &error, NULL);
    return Py_BuildValue("(ksN)", (unsigned long)id, cb_dtype_name(dtype),
                         cb_py_shape_tuple(&shape));
}

static PyObject *value_rows(cb_py_graph *self, uint32_t n, const cb_value_id *ids) {
    PyObject *rows = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; rows && i < n; i++) {
        PyObject *row = value_row(self, ids[i]);
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    return rows;
}

/* op(name, ins, attrs, location, constraint, region) -> ((id, dtype, shape), ...) */
static PyObject *graph_op(cb_py_graph *self, PyObject *args) {
    const char *name, *location;
    PyObject *ins, *attr_dict, *region;
    int constraint;
    if (!PyArg_ParseTuple(args, "sOOziO:op", &name, &ins, &attr_dict, &location, &constraint,
                          &region))
        return NULL;
    unsigned long region_id = region == Py_None ? CB_NONE : PyLong_AsUnsignedLong(region);
    if (PyErr_Occurred()) return NULL;
    cb_attrs attrs;
    if (cb_py_parse_attrs(name, attr_dict, &attrs) < 0) return NULL;
    uint32_t n_ins;
    uint32_t *in_ids;
    if (cb_py_parse_ids(ins, &in_ids, &n_ins) < 0) return NULL;

    cb_opcode code;
    uint32_t n_outs =
        cb_op_find(name, strlen(name), &code) ? (uint32_t)cb_op_def_of(code)->n_outs : 1;
    cb_value_id outs[MAX_OUTS];
    cb_error error = {0};
    cb_status status = cb_graph_set_location(self->core, location, &error);
    if (status == CB_OK) status = cb_graph_set_region(self->core, (uint32_t)region_id, &error);
    if (status == CB_OK) {
        cb_graph_set_constraint(self->core, (cb_constraint)constraint);
        status = cb_graph_add_op(self->core, name, n_ins, in_ids, &attrs, n_outs, outs, &error);
    }
    PyMem_Free(in_ids);
    if (status != CB_OK) return raise(self, &error, location);
    return value_rows(self, n_outs, outs);
}

static PyObject *gradient_rows(cb_py_graph *self, uint32_t n, const cb_value_id *ids) {
    PyObject *rows = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; rows && i < n; i++) {
        PyObject *row = ids[i] == CB_NONE ? Py_NewRef(Py_None) : value_row(self, ids[i]);
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    return rows;
}

static PyObject *add_gradients(cb_py_graph *self, uint32_t n_of, const cb_value_id *of,
                               const cb_value_id *from, uint32_t n_wrt, const cb_value_id *wrt) {
    cb_error error = {0};
    PyObject *rows = NULL;
    cb_value_id *out = PyMem_Calloc((size_t)n_wrt + 1, sizeof *out);
    if (!out) return PyErr_NoMemory();
    cb_graph_set_constraint(self->core, CB_FREE);
    if (cb_graph_add_gradients(self->core, n_of, of, from, n_wrt, wrt, out, &error) == CB_OK)
        rows = gradient_rows(self, n_wrt, out);
    else raise(self, &error, NULL);
    PyMem_Free(out);
    return rows;
}

/* gradients(of, from, wrt, region) -> ((id, dtype, shape) or None, ...) */
static PyObject *graph_gradients(cb_py_graph *self, PyObject *args) {
    PyObject *of_ids, *from_ids, *wrt_ids, *region, *rows = NULL;
    uint32_t *of = NULL, *from = NULL, *wrt = NULL, n_of, n_from, n_wrt;
    if (!PyArg_ParseTuple(args, "OOOO:gradients", &of_ids, &from_ids, &wrt_ids, &region))
        return NULL;
    const unsigned long region_id = region == Py_None ? CB_NONE : PyLong_AsUnsignedLong(region);
    if (PyErr_Occurred()) return NULL;
    cb_error error = {0};
    if (cb_graph_set_region(self->core, (uint32_t)region_id, &error) != CB_OK)
        return raise(self, &error, NULL);
    if (cb_py_parse_ids(of_ids, &of, &n_of) < 0 || cb_py_parse_ids(from_ids, &from, &n_from) < 0 ||
        cb_py_parse_ids(wrt_ids, &wrt, &n_wrt) < 0) {
        /* the error is set */
    } else if (n_of != n_from) {
        PyErr_Format(PyExc_ValueError, "gradients: %u results need as many gradients, got %u", n_of,
                     n_from);
    } else {
        rows = add_gradients(self, n_of, of, from, n_wrt, wrt);
    }
    PyMem_Free(of);
    PyMem_Free(from);
    PyMem_Free(wrt);
    return rows;
}

static PyObject *graph_output(cb_py_graph *self, PyObject *args) {
    const char *name;
    unsigned long id;
    if (!PyArg_ParseTuple(args, "sk:output", &name, &id)) return NULL;
    cb_error error = {0};
    if (cb_graph_add_output(self->core, (cb_value_id)id, name, &error) != CB_OK)
        return raise(self, &error, NULL);
    Py_RETURN_NONE;
}

static PyObject *graph_state(cb_py_graph *self, PyObject *args) {
    unsigned long input, id;
    if (!PyArg_ParseTuple(args, "kk:state", &input, &id)) return NULL;
    cb_error error = {0};
    if (cb_graph_add_state(self->core, (uint32_t)input, (cb_value_id)id, &error) != CB_OK) {
        return raise(self, &error, NULL);
    }
    Py_RETURN_NONE;
}

/* region(name, parent, saved_limit) -> id; parent and limit may be None */
static PyObject *graph_region(cb_py_graph *self, PyObject *args) {
    const char *name;
    PyObject *parent, *limit;
    if (!PyArg_ParseTuple(args, "sOO:region", &name, &parent, &limit)) return NULL;
    unsigned long parent_id = parent == Py_None ? CB_NONE : PyLong_AsUnsignedLong(parent);
    unsigned long long bytes = limit == Py_None ? UINT64_MAX : PyLong_AsUnsignedLongLong(limit);
    if (PyErr_Occurred()) return NULL;
    cb_error error = {0};
    uint32_t id;
    if (cb_graph_add_region(self->core, name, (uint32_t)parent_id, bytes, &id, &error) != CB_OK) {
        return raise(self, &error, NULL);
    }
    return PyLong_FromUnsignedLong(id);
}

static PyObject *graph_constrain(cb_py_graph *self, PyObject *args) {
    unsigned long id;
    int constraint;
    if (!PyArg_ParseTuple(args, "ki:constrain", &id, &constraint)) return NULL;
    cb_error error = {0};
    if (cb_graph_constrain(self->core, (cb_value_id)id, (cb_constraint)constraint, &error) !=
        CB_OK) {
        return raise(self, &error, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *graph_info(cb_py_graph *self, PyObject *id) {
    unsigned long value = PyLong_AsUnsignedLong(id);
    if (PyErr_Occurred()) return NULL;
    return value_row(self, value < CB_NONE ? (cb_value_id)value : CB_NONE);
}

/* inputs() -> ((name, value id), ...) */
static PyObject *graph_inputs(cb_py_graph *self, PyObject *Py_UNUSED(none)) {
    const cb_graph *g = self->core;
    PyObject *rows = PyTuple_New((Py_ssize_t)g->inputs.len);
    for (size_t i = 0; rows && i < g->inputs.len; i++) {
        const cb_op *op = &g->ops.at[g->inputs.at[i]];
        PyObject *row =
            Py_BuildValue("(sk)", cb_graph_name(g, op->name), (unsigned long)op->out_begin);
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    return rows;
}

typedef cb_status (*write_fn)(const cb_graph *, char **, cb_error *);
typedef cb_status (*read_fn)(cb_context *, const char *, size_t, cb_graph **, cb_error *);

static PyObject *written(cb_py_graph *self, write_fn write) {
    cb_error error = {0};
    char *text = NULL;
    if (write(self->core, &text, &error) != CB_OK) return raise(self, &error, NULL);
    PyObject *result = PyUnicode_FromString(text);
    cb_text_free(self->context->core, text);
    return result;
}

static PyObject *read_from(PyTypeObject *type, PyObject *text, read_fn read) {
    Py_ssize_t length;
    const char *data = PyUnicode_AsUTF8AndSize(text, &length);
    if (!data) return NULL;
    cb_py_state *state = PyType_GetModuleState(type);
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    cb_graph *core = NULL;
    if (read(context->core, data, (size_t)length, &core, &error) != CB_OK)
        return cb_py_raise(state, &error, NULL);
    return wrap(type, context, core);
}

static PyObject *graph_text(cb_py_graph *self, PyObject *Py_UNUSED(none)) {
    return written(self, cb_graph_to_text);
}
static PyObject *graph_json(cb_py_graph *self, PyObject *Py_UNUSED(none)) {
    return written(self, cb_graph_save_json);
}
static PyObject *graph_from_text(PyObject *type, PyObject *text) {
    return read_from((PyTypeObject *)type, text, cb_graph_from_text);
}
static PyObject *graph_from_json(PyObject *type, PyObject *text) {
    return read_from((PyTypeObject *)type, text, cb_graph_load_json);
}

static PyObject *graph_bytes(cb_py_graph *self, PyObject *Py_UNUSED(none)) {
    return PyLong_FromUnsignedLongLong(cb_graph_bytes(self->core));
}

/* Wraps a method so that it holds the graph during the call. */
#define GUARDED(method)                                                   \
    static PyObject *guarded_##method(PyObject *object, PyObject *args) { \
        cb_py_graph *self = (cb_py_graph *)object;                        \
        if (cb_py_graph_enter(self) < 0) return NULL;                     \
        PyObject *result = method(self, args);                            \
        cb_py_graph_leave(self);                                          \
        return result;                                                    \
    }
GUARDED(graph_input)
GUARDED(graph_op)
GUARDED(graph_gradients)
GUARDED(graph_output)
GUARDED(graph_state)
GUARDED(graph_region)
GUARDED(graph_constrain)
GUARDED(graph_info)
GUARDED(graph_inputs)
GUARDED(graph_text)
GUARDED(graph_json)
GUARDED(graph_bytes)

static PyMethodDef graph_methods[] = {
    {"input", guarded_graph_input, METH_VARARGS, "input(name, shape, dtype, role, /) -> value id"},
    {"op", guarded_graph_op, METH_VARARGS,
     "op(name, ins, attrs, location, constraint, region, /) -> ((id, dtype, shape), ...)"},
    {"gradients", guarded_graph_gradients, METH_VARARGS,
     "gradients(of, from, wrt, region, /) -> ((id, dtype, shape) or None, ...)"},
    {"output", guarded_graph_output, METH_VARARGS, "output(name, value, /)"},
    {"state", guarded_graph_state, METH_VARARGS,
     "state(input, value, /): `value` replaces argument number `input` after a step"},
    {"region", guarded_graph_region, METH_VARARGS,
     "region(name, parent, saved_limit, /) -> region id"},
    {"constrain", guarded_graph_constrain, METH_VARARGS, "constrain(value, constraint, /)"},
    {"info", guarded_graph_info, METH_O, "info(value, /) -> (id, dtype, shape)"},
    {"inputs", guarded_graph_inputs, METH_NOARGS, "inputs() -> ((name, value id), ...)"},
    {"text", guarded_graph_text, METH_NOARGS, "text() -> the text form"},
    {"json", guarded_graph_json, METH_NOARGS, "json() -> the JSON form"},
    {"nbytes", guarded_graph_bytes, METH_NOARGS, "nbytes() -> bytes that the graph holds"},
    {"from_text", graph_from_text, METH_O | METH_CLASS, "from_text(text, /) -> Graph"},
    {"from_json", graph_from_json, METH_O | METH_CLASS, "from_json(text, /) -> Graph"},
    {"compile", (PyCFunction)(void (*)(void))cb_py_compile, METH_VARARGS | METH_KEYWORDS,
     "compile(...) -> Step; see _native.pyi"},
    {"decide", (PyCFunction)(void (*)(void))cb_py_decide, METH_VARARGS | METH_KEYWORDS,
     "decide(...) -> (decisions, bytes); see _native.pyi"},
    {"compile_text", (PyCFunction)(void (*)(void))cb_py_compile_text, METH_VARARGS | METH_KEYWORDS,
     "compile_text(what, ...) -> str; see _native.pyi"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot graph_slots[] = {
    {Py_tp_doc, "A graph under construction in the core."},
    {Py_tp_new, graph_new},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_traverse, graph_traverse},
    {Py_tp_methods, graph_methods},
    {0, NULL},
};

PyType_Spec cb_py_graph_spec = {
    .name = "cutback._native.Graph",
    .basicsize = sizeof(cb_py_graph),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = graph_slots,
};
