/* placing.c: finds offsets for lives that Python lists. */
#include "state.h"

#include "plan/pack/place_within.h"
#include "planning.h"

/* Fills a life from a tuple (made, last, bytes); -1: an exception is set. */
static int take_life(PyObject *row, cb_pack_life *out) {
    unsigned long long bytes;
    unsigned int made, last;
    if (!PyTuple_Check(row)) {
        PyErr_Format(PyExc_TypeError, "place: a life must be a tuple (made, last, bytes), not %R",
                     row);
        return -1;
    }
    if (!PyArg_ParseTuple(row, "IIK:place", &made, &last, &bytes)) return -1;
    if (made > last || last == UINT32_MAX || bytes == 0) {
        PyErr_Format(PyExc_ValueError,
                     "place: a life must have at least one byte and one moment, not %R", row);
        return -1;
    }
    *out = (cb_pack_life){.bytes = bytes, .made = made, .last = last};
    return 0;
}

static PyObject *give_placed(const cb_placed *placed, const uint64_t *offset, uint32_t n) {
    static const char *const words[] = {"found", "none", "unknown"};
    const bool found = placed->fit == CB_FIT_FOUND;
    PyObject *offsets = PyList_New(found ? n : 0);
    for (uint32_t i = 0; offsets && found && i < n; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(offset[i]);
        if (item) PyList_SET_ITEM(offsets, i, item);
        else Py_CLEAR(offsets);
    }
    if (!offsets) return NULL;
    return Py_BuildValue("sNKIK", words[placed->fit], offsets,
                         (unsigned long long)placed->live_bytes, placed->moment,
                         (unsigned long long)placed->arena_bytes);
}

static PyObject *place(cb_py_state *state, const cb_pack_life *life, uint32_t n, uint64_t capacity,
                       uint64_t effort) {
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    cb_error error = {0};
    cb_placed placed = {0};
    cb_arena scratch;
    cb_py_work work;
    PyObject *result = NULL;
    uint64_t *offset = PyMem_New(uint64_t, (size_t)n + 1);
    if (!offset) return PyErr_NoMemory();
    cb_arena_init(&scratch, cb_planning_alloc(context->core));
    cb_py_work_begin(&work, context);
    const cb_poll poll = {cb_py_poll, &work};
    const cb_status status =
        cb_place_within(life, n, capacity, effort, &scratch, poll, offset, &placed, &error);
    cb_py_work_end(&work);
    cb_arena_free(&scratch);
    if (status == CB_OK) result = give_placed(&placed, offset, n);
    else if (!work.raised) result = cb_py_raise(state, &error, NULL);
    PyMem_Free(offset);
    return result;
}

PyObject *cb_py_place(PyObject *module, PyObject *args) {
    PyObject *rows, *items, *result = NULL;
    unsigned long long capacity, effort = CB_PLACE_EFFORT;
    if (!PyArg_ParseTuple(args, "OK|K:place", &rows, &capacity, &effort)) return NULL;
    items = PySequence_Fast(rows, "place: lives must be a sequence");
    if (!items) return NULL;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(items);
    cb_pack_life *life = n < UINT32_MAX ? PyMem_New(cb_pack_life, (size_t)n + 1) : NULL;
    if (!life) PyErr_NoMemory();
    for (Py_ssize_t i = 0; life && i < n; i++)
        if (take_life(PySequence_Fast_GET_ITEM(items, i), &life[i]) < 0) goto done;
    if (life) result = place(cb_py_state_of(module), life, (uint32_t)n, capacity, effort);
done:
    PyMem_Free(life);
    Py_DECREF(items);
    return result;
}
