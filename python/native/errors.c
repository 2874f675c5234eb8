/* errors.c: from cb_status to a Python exception. */
#include "state.h"

static PyObject *exception_of(const cb_py_state *state, cb_status status) {
    switch (status) {
        case CB_TYPE: return PyExc_TypeError;
        case CB_NOMEM: return PyExc_MemoryError;
        case CB_INFEASIBLE: return state->budget_error;
        case CB_UNSUPPORTED: return PyExc_NotImplementedError;
        case CB_CANCELLED: return PyExc_KeyboardInterrupt;
        case CB_INTERNAL: return PyExc_RuntimeError;
        case CB_OK:
        case CB_INVALID: break;
    }
    return PyExc_ValueError;
}

/* Does a character steer a terminal, turn the direction of what follows, or stay unseen? Names in
 * an error come from files; the same set is in python/cutback/files.py. */
static bool steers(Py_UCS4 c) {
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0xad || c == 0x61c || c == 0x180e ||
           (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
           (c >= 0xe0000 && c <= 0xe0fff);
}

#define MOST_ESCAPED 10 /* characters of \U000e0001 */

static Py_ssize_t escape(Py_UCS4 c, Py_UCS4 *out) {
    char text[MOST_ESCAPED + 1];
    const char *format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
    int length = PyOS_snprintf(text, sizeof text, format, (unsigned)c);
    for (int i = 0; i < length; i++) out[i] = (unsigned char)text[i];
    return length;
}

/* The text of an error as a str. It may have been cut within a character. */
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

PyObject *cb_py_raise(const cb_py_state *state, const cb_error *error, const char *location) {
    if (PyErr_Occurred()) return NULL; /* a signal handler or a dump function raised first */
    PyObject *type = exception_of(state, error->status);
    PyObject *text = shown(error->text);
    if (text && location) PyErr_Format(type, "%U [%s]", text, location);
    else if (text) PyErr_SetObject(type, text);
    Py_XDECREF(text);
    return NULL;
}
