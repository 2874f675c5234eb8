/* errors.c: converts cb_status and cb_error to Python exceptions. */
#include "state.h"

#include "plan/model/names.h"

static PyObject *exception_of(cb_status status) {
    switch (status) {
        case CB_TYPE: return PyExc_TypeError;
        case CB_NOMEM: return PyExc_MemoryError;
        case CB_UNSUPPORTED: return PyExc_NotImplementedError;
        case CB_CANCELLED: return PyExc_KeyboardInterrupt;
        case CB_INTERNAL: return PyExc_RuntimeError;
        case CB_OK:
        case CB_INFEASIBLE: /* handled by raise_refused */
        case CB_INVALID: break;
    }
    return PyExc_ValueError;
}

/* True for characters that control a terminal, change the text direction or are invisible. Names in
 * errors come from files. python/cutback/files.py has the same set. */
static bool steers(Py_UCS4 c) {
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0xad || c == 0x61c || c == 0x180e ||
           (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
           (c >= 0xe0000 && c <= 0xe0fff);
}

#define MOST_ESCAPED 10 /* length of the longest escape, \U000e0001 */

static Py_ssize_t escape(Py_UCS4 c, Py_UCS4 *out) {
    char text[MOST_ESCAPED + 1];
    const char *format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
    int length = PyOS_snprintf(text, sizeof text, format, (unsigned)c);
    for (int i = 0; i < length; i++) out[i] = (unsigned char)text[i];
    return length;
}

/* Returns the text of an error as a str. It may have been truncated within a character. */
static PyObject *shown(const char *text) {
    PyObject *whole = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (!whole) return NULL;
    Py_ssize_t n = PyUnicode_GET_LENGTH(whole), at = 0;
    Py_UCS4 *out = PyMem_New(Py_UCS4, (size_t)n * MOST_ESCAPED + 1);
    for (Py_ssize_t i = 0; out && i < n; i++) {
        Py_UCS4 c = PyUnicode_READ_CHAR(whole, i);
        if (steers(c)) at += escape(c, out + at);
        else out[at++] = c;
    }
    Py_DECREF(whole);
    PyObject *result =
        out ? PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, out, at) : PyErr_NoMemory();
    PyMem_Free(out);
    return result;
}

/* ---- budget errors --------------------------------------------------------------------------- */

static const char *const reasons[CB_REFUSED_COUNT] = {"other",  "budget", "time",   "constraints",
                                                      "region", "pinned", "stopped"};

/* Keyword arguments of BudgetError under construction. */
typedef struct facts {
    PyObject *dict;
    bool failed;
} facts;

static void set(facts *f, const char *name, PyObject *value) {
    f->failed |= !value || PyDict_SetItemString(f->dict, name, value) < 0;
    Py_XDECREF(value);
}

static void set_bytes(facts *f, const char *name, uint64_t bytes, uint64_t unknown) {
    if (!f->failed && bytes != unknown) set(f, name, PyLong_FromUnsignedLongLong(bytes));
}

static void set_share(facts *f, const char *name, double share) {
    if (!f->failed && share > 0) set(f, name, PyFloat_FromDouble(share));
}

static void set_name(facts *f, const char *name, const char *text) {
    if (!f->failed && text[0]) set(f, name, shown(text));
}

static void set_all(facts *f, const cb_refusal *r) {
    set_name(f, "reason", reasons[r->reason]);
    set_name(f, "measure", cb_measure_names[r->measure]);
    set(f, "must_save", PyBool_FromLong(r->must_save));
    set_share(f, "share", r->share);
    set_share(f, "max_extra", r->max_extra);
    set_share(f, "least_extra", r->least_extra);
    set_bytes(f, "budget_bytes", r->budget_bytes, UINT64_MAX);
    set_bytes(f, "pinned_bytes", r->pinned_bytes, 0);
    set_bytes(f, "smallest_bytes", r->smallest_bytes, 0);
    set_bytes(f, "floor_bytes", r->floor_bytes, 0);
    set_bytes(f, "save_all_bytes", r->save_all_bytes, 0);
    set_bytes(f, "held_bytes", r->held_bytes, 0);
    set_name(f, "op", r->op);
    set_name(f, "location", r->location);
    set_name(f, "floor_op", r->floor_op);
    set_name(f, "region", r->region);
}

/* Returns a borrowed reference to the class BudgetError, which is imported on the first error. */
static PyObject *budget_error_class(cb_py_state *state) {
    if (state->budget_error) return state->budget_error;
    PyObject *module = PyImport_ImportModule("cutback.errors");
    if (!module) return NULL;
    state->budget_error = PyObject_GetAttrString(module, "BudgetError");
    Py_DECREF(module);
    return state->budget_error;
}

PyObject *cb_py_budget_error(cb_py_state *state, const cb_error *error) {
    PyObject *type = budget_error_class(state);
    if (!type) return NULL;
    if (error->refusal.reason == CB_REFUSED_OTHER) {
        PyObject *text = shown(error->text);
        PyObject *result = text ? PyObject_CallOneArg(type, text) : NULL;
        Py_XDECREF(text);
        return result;
    }
    facts f = {.dict = PyDict_New()};
    PyObject *none = PyTuple_New(0), *result = NULL;
    if (f.dict && none) {
        set_all(&f, &error->refusal);
        if (!f.failed) result = PyObject_Call(type, none, f.dict);
    }
    Py_XDECREF(f.dict);
    Py_XDECREF(none);
    return result;
}

static PyObject *raise_refused(cb_py_state *state, const cb_error *error) {
    PyObject *refused = cb_py_budget_error(state, error);
    if (refused) PyErr_SetObject((PyObject *)Py_TYPE(refused), refused);
    Py_XDECREF(refused);
    return NULL;
}

/* ---- all errors ------------------------------------------------------------------------------ */

PyObject *cb_py_raise(cb_py_state *state, const cb_error *error, const char *location) {
    if (PyErr_Occurred()) return NULL; /* a signal handler or a dump function raised first */
    if (error->status == CB_INFEASIBLE) return raise_refused(state, error);
    PyObject *type = exception_of(error->status);
    PyObject *text = shown(error->text);
    PyObject *full = text && location ? PyUnicode_FromFormat("%U [%s]", text, location) : NULL;
    if (text && !location) full = Py_NewRef(text);
    PyObject *raised = full ? PyObject_CallOneArg(type, full) : NULL;
    Py_XDECREF(text);
    Py_XDECREF(full);
    if (raised && (location || error->has_location) &&
        PyObject_SetAttrString(raised, "has_location", Py_True) < 0)
        Py_CLEAR(raised);
    if (raised) PyErr_SetObject(type, raised);
    Py_XDECREF(raised);
    return NULL;
}
