/* module_state.c: the module's state, and its lookup from objects. The module's definition is here,
 * because types look it up; its functions are in module.c, which uses all other files. */
#include "state.h"

cb_py_state *cb_py_state_of(PyObject *module) { return PyModule_GetState(module); }
cb_py_state *cb_py_state_of_object(PyObject *self) { return PyType_GetModuleState(Py_TYPE(self)); }

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    cb_py_state *state = cb_py_state_of(module);
    Py_VISIT(state->graph_type);
    Py_VISIT(state->step_type);
    Py_VISIT(state->table_type);
    Py_VISIT(state->expression_type);
    Py_VISIT(state->memory_type);
    Py_VISIT(state->busy_word_type);
    Py_VISIT(state->signature_type);
    Py_VISIT(state->problem_type);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->run_memory_type);
    Py_VISIT(state->captured_type);
    Py_VISIT(state->budget_error);
    Py_VISIT(state->keeper);
    return 0;
}

static int module_clear(PyObject *module) {
    cb_py_state *state = cb_py_state_of(module);
    Py_CLEAR(state->graph_type);
    Py_CLEAR(state->step_type);
    Py_CLEAR(state->table_type);
    Py_CLEAR(state->expression_type);
    Py_CLEAR(state->memory_type);
    Py_CLEAR(state->busy_word_type);
    Py_CLEAR(state->signature_type);
    Py_CLEAR(state->problem_type);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->run_memory_type);
    Py_CLEAR(state->captured_type);
    Py_CLEAR(state->budget_error);
    Py_CLEAR(state->keeper);
    return 0;
}

static void module_free(void *module) {
    cb_py_state *state = cb_py_state_of(module);
    module_clear(module);
    cb_py_context_release(state->context);
    state->context = NULL;
    if (state->lock) PyThread_free_lock(state->lock);
    state->lock = NULL;
}

PyModuleDef cb_py_module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cutback._native",
    .m_doc = "The core of cutback; the package is its only user.",
    .m_size = sizeof(cb_py_state),
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};
