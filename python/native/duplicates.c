/* duplicates.c: finds nodes of a graph that compute the same values. */
#include "state.h"

#include "plan/torch/duplicates.h"

static PyObject *duplicates_of(cb_py_state *state, const cb_calls *calls) {
    cb_error error = {0};
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    uint32_t *same = PyMem_New(uint32_t, (size_t)calls->n + 1);
    if (!same) return PyErr_NoMemory();
    PyObject *result = cb_find_duplicates(&alloc, calls, same, &error) == CB_OK
                           ? cb_py_give_ids(same, calls->n)
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
        PyErr_Format(PyExc_ValueError, "find_duplicates: got %u starts for %u nodes", n_starts,
                     calls.n);
    else result = duplicates_of(cb_py_state_of(module), &calls);
done:
    PyMem_Free(key);
    PyMem_Free(start);
    PyMem_Free(in);
    return result;
}
