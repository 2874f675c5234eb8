/* drawing.c: fills the caller's array with random numbers. */
#include "state.h"

#include "base/draw.h"

/* Draws from the distribution called `law`; -1 if the array's dtype does not support it. */
static int draw_into(const cb_py_view *view, const char *law, const cb_philox *random, double p) {
    const bool uniform = strcmp(law, "uniform") == 0, normal = strcmp(law, "normal") == 0;
    void *out = view->data;
    if (strcmp(law, "keep") == 0 && view->dtype == CB_BOOL)
        cb_draw_keep(random, p, view->bytes, out);
    else if (uniform && view->dtype == CB_F32) cb_draw_uniform_f32(random, view->bytes / 4, out);
    else if (uniform && view->dtype == CB_F64) cb_draw_uniform_f64(random, view->bytes / 8, out);
    else if (normal && view->dtype == CB_F32) cb_draw_normal_f32(random, view->bytes / 4, out);
    else if (normal && view->dtype == CB_F64) cb_draw_normal_f64(random, view->bytes / 8, out);
    else return -1;
    return 0;
}

PyObject *cb_py_draw(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *array;
    const char *law;
    unsigned long long seed;
    unsigned int stream;
    double p = 0;
    cb_py_view view;
    if (!PyArg_ParseTuple(args, "OsKI|d:draw", &array, &law, &seed, &stream, &p)) return NULL;
    if (cb_py_view_of(array, "draw", &view) < 0) return NULL;
    if (!view.known_dtype || !view.contiguous || !view.aligned || !view.writable) {
        PyErr_SetString(PyExc_ValueError,
                        "draw: the array must be contiguous and writable, of a supported dtype");
        return NULL;
    }
    if (!(p >= 0 && p <= 1)) {
        PyErr_SetString(PyExc_ValueError, "draw: the probability must be in 0..1");
        return NULL;
    }
    const cb_philox random = {.seed = seed, .stream = stream};
    PyThreadState *thread = PyEval_SaveThread();
    int known = draw_into(&view, law, &random, p);
    PyEval_RestoreThread(thread);
    if (known < 0)
        return PyErr_Format(PyExc_ValueError, "draw: no distribution \"%s\" for this dtype", law);
    Py_RETURN_NONE;
}
