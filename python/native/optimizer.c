/* optimizer.c: finds optimizers of the core by name, and parses their rows of numbers. */
#include "state.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "base/dtype.h"
#include "base/shape.h"

int cb_py_check_count(PyObject *tuple, size_t wanted, const char *what) {
    if ((size_t)PyTuple_GET_SIZE(tuple) == wanted) return 0;
    PyErr_Format(PyExc_ValueError, "expected %zu %s, got %zd", wanted, what,
                 PyTuple_GET_SIZE(tuple));
    return -1;
}

const cb_optimizer *cb_py_optimizer_of(const cb_py_state *state, PyObject *object) {
    if (Py_IS_TYPE(object, state->expression_type))
        return cb_expression_optimizer(((cb_py_expression *)object)->core);
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "an optimizer must be a name or an Expression, not %s",
                     Py_TYPE(object)->tp_name);
        return NULL;
    }
    const char *name = PyUnicode_AsUTF8(object);
    const cb_optimizer *found = name ? cb_optimizer_find(name) : NULL;
    if (name && !found) PyErr_Format(PyExc_ValueError, "no optimizer is called \"%s\"", name);
    return found;
}

static uint32_t count(const cb_optimizer *core,
                      const char *(*name)(const cb_optimizer *, uint32_t)) {
    uint32_t n = 0;
    while (name(core, n)) n++;
    return n;
}

/* Parses the hyper-parameters of one group. */
static int parse_row(PyObject *row, uint32_t n, double *out) {
    if (!PyTuple_Check(row) || (size_t)PyTuple_GET_SIZE(row) != n) {
        PyErr_Format(PyExc_TypeError, "an optimizer group must be a tuple of %u floats", n);
        return -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(row, i));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static int parse_groups(PyObject *groups, cb_py_optimizer *out) {
    PyObject *rows = PySequence_Tuple(groups);
    if (!rows) return -1;
    const uint32_t n_hyper = count(out->core, cb_optimizer_hyper_name);
    size_t n = (size_t)PyTuple_GET_SIZE(rows);
    out->n_groups = (uint32_t)n;
    out->n_hyper = n_hyper;
    out->hyper = PyMem_New(double, n *n_hyper + 1);
    if (!out->hyper) PyErr_NoMemory();
    for (size_t i = 0; !PyErr_Occurred() && i < n; i++) {
        PyObject *row = PyTuple_GET_ITEM(rows, (Py_ssize_t)i);
        if (parse_row(row, n_hyper, out->hyper + i * n_hyper) < 0) break;
    }
    Py_DECREF(rows);
    return PyErr_Occurred() ? -1 : 0;
}

static int parse_group_ids(PyObject *ids, uint32_t n, cb_py_optimizer *out) {
    PyObject *items = PySequence_Tuple(ids);
    if (!items) return -1;
    out->group = PyMem_New(uint32_t, (size_t)n + 1);
    if (!out->group) PyErr_NoMemory();
    else if (cb_py_check_count(items, n, "group numbers") == 0) {
        for (uint32_t k = 0; k < n && !PyErr_Occurred(); k++) {
            unsigned long id = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(items, k));
            if (!PyErr_Occurred() && id >= out->n_groups) {
                PyErr_Format(PyExc_ValueError, "there is no group %lu; there are %u groups", id,
                             out->n_groups);
            }
            out->group[k] = (uint32_t)id;
        }
    }
    Py_DECREF(items);
    return PyErr_Occurred() ? -1 : 0;
}

int cb_py_optimizer_parse(const cb_optimizer *core, PyObject *groups, PyObject *group_of,
                          uint32_t n_params, cb_py_optimizer *out) {
    out->core = core;
    if (parse_groups(groups, out) < 0) return -1;
    return parse_group_ids(group_of, n_params, out);
}

int cb_py_optimizer_numbers(PyObject *array, uint32_t n_params, cb_py_optimizer *out) {
    cb_py_view view;
    out->n_number = count(out->core, cb_optimizer_number_name);
    if (cb_py_view_of(array, "numbers", &view) < 0) return -1;
    const int64_t n = (int64_t)n_params * out->n_number;
    bool good = view.known_dtype && view.dtype == CB_F64 && view.contiguous && view.aligned &&
                view.writable && cb_numel(&view.shape) == n;
    out->number = (double *)(void *)view.data;
    if (good) return 0;
    PyErr_Format(PyExc_TypeError, "numbers: expected a writable array of %lld f64", (long long)n);
    return -1;
}

void cb_py_optimizer_drop(cb_py_optimizer *optimizer) {
    PyMem_Free(optimizer->group);
    PyMem_Free(optimizer->hyper);
}

/* ---- tables of optimizers -------------------------------------------------------------------- */

static PyObject *names(const cb_optimizer *core, uint32_t n,
                       const char *(*name)(const cb_optimizer *, uint32_t)) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; tuple && i < n; i++) {
        PyObject *text = PyUnicode_FromString(name(core, i));
        if (!text) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, text);
    }
    return tuple;
}

static const char *kind_name(const cb_optimizer *core, uint32_t i) {
    static const char *const names_[CB_STATE_KIND_COUNT] = {"alike",   "codes", "scales", "rows",
                                                            "columns", "whole", "left",   "right"};
    return names_[cb_optimizer_state_kind(core, i)];
}

PyObject *cb_py_optimizer_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    uint32_t n = 0;
    while (cb_optimizer_at(n)) n++;
    PyObject *rows = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; rows && i < n; i++) {
        const cb_optimizer *core = cb_optimizer_at(i);
        PyObject *row = Py_BuildValue(
            "(sNNNN)", cb_optimizer_name(core),
            names(core, count(core, cb_optimizer_state_name), cb_optimizer_state_name),
            names(core, count(core, cb_optimizer_hyper_name), cb_optimizer_hyper_name),
            names(core, count(core, cb_optimizer_number_name), cb_optimizer_number_name),
            names(core, count(core, cb_optimizer_state_name), kind_name));
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, (Py_ssize_t)i, row);
    }
    return rows;
}

/* optimizer_states(optimizer, row) -> the states that a group with these numbers has */
PyObject *cb_py_optimizer_states(PyObject *module, PyObject *args) {
    PyObject *optimizer, *row, *result = NULL;
    if (!PyArg_ParseTuple(args, "OO:optimizer_states", &optimizer, &row)) return NULL;
    const cb_optimizer *core = cb_py_optimizer_of(cb_py_state_of(module), optimizer);
    if (!core) return NULL;
    const uint32_t n_hyper = count(core, cb_optimizer_hyper_name);
    double *hyper = PyMem_New(double, (size_t)n_hyper + 1);
    if (!hyper) return PyErr_NoMemory();
    if (parse_row(row, n_hyper, hyper) == 0)
        result = names(core, cb_optimizer_n_used(core, hyper), cb_optimizer_state_name);
    PyMem_Free(hyper);
    return result;
}

/* same_objects(objects, known) -> whether the values of a dict, or the items of a list, are the
 * objects in `known`, in this order. Compares identity, not equality. */
PyObject *cb_py_same_objects(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *objects, *known, *item;
    if (!PyArg_ParseTuple(args, "OO!:same_objects", &objects, &PyList_Type, &known)) return NULL;
    const bool is_dict = PyDict_Check(objects);
    if (!is_dict && !PyList_Check(objects)) Py_RETURN_FALSE;
    const Py_ssize_t n = is_dict ? PyDict_GET_SIZE(objects) : PyList_GET_SIZE(objects);
    bool same = n == PyList_GET_SIZE(known);
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; same && i < n; i++) {
        if (!is_dict) item = PyList_GET_ITEM(objects, i);
        else if (!PyDict_Next(objects, &at, NULL, &item)) item = NULL;
        same = item == PyList_GET_ITEM(known, i);
    }
    return PyBool_FromLong(same);
}

/* ask_for_large_pages(address, bytes): asks the system to back untouched memory with huge pages,
 * which reduces TLB misses. */
PyObject *cb_py_ask_for_large_pages(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long address, bytes;
    if (!PyArg_ParseTuple(args, "KK:ask_for_large_pages", &address, &bytes)) return NULL;
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)address + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)address + (uintptr_t)bytes) / page * page;
    if (end > begin) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* only a hint */
#endif
    Py_RETURN_NONE;
}
