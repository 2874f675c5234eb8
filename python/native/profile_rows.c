/* profile_rows.c: makes the result of Step.profile. */
#include "state.h"

/* Returns the plan's steps in a group. */
static PyObject *group_members(const cb_step *core, uint32_t group) {
    uint32_t n = cb_step_group_members(core, group, NULL, 0);
    uint32_t *step = PyMem_New(uint32_t, (size_t)n + 1);
    PyObject *members = step ? PyTuple_New((Py_ssize_t)n) : PyErr_NoMemory();
    if (members) (void)cb_step_group_members(core, group, step, n);
    for (uint32_t i = 0; members && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLong(step[i]);
        if (!number) Py_CLEAR(members);
        else PyTuple_SET_ITEM(members, (Py_ssize_t)i, number);
    }
    PyMem_Free(step);
    return members;
}

PyObject *cb_py_profile_rows(const cb_step *core, const double *seconds, const uint64_t *bytes,
                             uint32_t n) {
    PyObject *rows = PyTuple_New((Py_ssize_t)n);
    for (uint32_t g = 0; rows && g < n; g++) {
        PyObject *row = Py_BuildValue("(NdK)", group_members(core, g), seconds[g],
                                      (unsigned long long)bytes[g]);
        if (!row) Py_CLEAR(rows);
        else PyTuple_SET_ITEM(rows, (Py_ssize_t)g, row);
    }
    return rows;
}
