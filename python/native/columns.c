/* columns.c: defines the tables of columns.h. */
#include "columns.h"

#include "plan/model/names.h"

#define FLAGS cb_op_flag_names, CB_OP_FLAG_COUNT
#define CLASSES cb_work_class_names, CB_WORK_CLASS_COUNT
#define ARRAY(array) (array), sizeof *(array)
#define FIELD(item, field) &(item)->field, sizeof *(item)

cb_py_columns cb_py_columns_of_ops(const cb_problem *p) {
    return (cb_py_columns){.what = "op",
                           .n = 11,
                           .column = {{"name", CB_PY_TEXT, ARRAY(p->op_name), NULL, 0},
                                      {"kind", CB_PY_TEXT, ARRAY(p->op_kind), NULL, 0},
                                      {"flags", CB_PY_WORDS, ARRAY(p->op_flags), FLAGS},
                                      {"location", CB_PY_TEXT, ARRAY(p->op_location), NULL, 0},
                                      {"flops", CB_PY_REAL, ARRAY(p->op_flops), NULL, 0},
                                      {"bytes", CB_PY_COUNT, ARRAY(p->op_bytes), NULL, 0},
                                      {"work", CB_PY_WORD, ARRAY(p->op_class), CLASSES},
                                      {"time_ps", CB_PY_TIME, ARRAY(p->op_time_ps), NULL, 0},
                                      {"workspace", CB_PY_COUNT, ARRAY(p->op_workspace), NULL, 0},
                                      {"group", CB_PY_ID_OPTION, ARRAY(p->op_group), NULL, 0},
                                      {"region", CB_PY_ID_OPTION, ARRAY(p->op_region), NULL, 0}}};
}

cb_py_columns cb_py_columns_of_values(const cb_problem *p) {
    return (cb_py_columns){.what = "value",
                           .n = 4,
                           .column = {{"storage", CB_PY_ID, ARRAY(p->value_storage), NULL, 0},
                                      {"type", CB_PY_TEXT, ARRAY(p->value_type), NULL, 0},
                                      {"bytes", CB_PY_OPTION, ARRAY(p->value_bytes), NULL, 0},
                                      {"constraint", CB_PY_WORD, ARRAY(p->value_constraint),
                                       cb_constraint_names, CB_CONSTRAINT_COUNT}}};
}

cb_py_columns cb_py_columns_of_storages(const cb_problem *p) {
    static uint32_t none = CB_NONE; /* the update of every storage if no gradient has one */
    uint32_t *updates = p->updates ? p->updates : &none;
    return (cb_py_columns){.what = "storage",
                           .n = 3,
                           .column = {{"bytes", CB_PY_COUNT, ARRAY(p->storage_bytes), NULL, 0},
                                      {"flags", CB_PY_WORDS8, ARRAY(p->storage_flags),
                                       cb_store_flag_names, CB_STORE_FLAG_COUNT},
                                      {"updates", CB_PY_ID_OPTION, updates,
                                       p->updates ? sizeof *updates : 0, NULL, 0}}};
}

cb_py_columns cb_py_columns_of_members(const cb_problem *p) {
    static cb_member none; /* never read or written: there are no members */
    cb_member *member = p->member ? p->member : &none;
    return (cb_py_columns){.what = "member",
                           .n = 7,
                           .column = {{"size", CB_PY_COUNT, FIELD(member, size), NULL, 0},
                                      {"flops", CB_PY_REAL, FIELD(member, flops), NULL, 0},
                                      {"bytes", CB_PY_COUNT, FIELD(member, bytes), NULL, 0},
                                      {"work", CB_PY_WORD, FIELD(member, work_class), CLASSES},
                                      {"time_ps", CB_PY_TIME, FIELD(member, time_ps), NULL, 0},
                                      {"workspace", CB_PY_COUNT, FIELD(member, workspace), NULL, 0},
                                      {"flags", CB_PY_WORDS, FIELD(member, flags), FLAGS}}};
}

cb_py_columns cb_py_columns_of_inlinings(const cb_problem *p) {
    static cb_inlining none; /* never read or written: there are no inlinings */
    cb_inlining *inlining = p->inlining ? p->inlining : &none;
    return (cb_py_columns){
        .what = "inlining",
        .n = 7,
        .column = {{"value", CB_PY_ID, FIELD(inlining, value), NULL, 0},
                   {"op", CB_PY_ID, FIELD(inlining, op), NULL, 0},
                   {"flops", CB_PY_REAL, FIELD(inlining, flops), NULL, 0},
                   {"bytes", CB_PY_COUNT, FIELD(inlining, bytes), NULL, 0},
                   {"work", CB_PY_WORD, FIELD(inlining, work_class), CLASSES},
                   {"time_ps", CB_PY_TIME, FIELD(inlining, time_ps), NULL, 0},
                   {"workspace", CB_PY_COUNT, FIELD(inlining, workspace), NULL, 0}}};
}

cb_py_columns cb_py_columns_of_regions(const cb_problem *p) {
    return (cb_py_columns){
        .what = "region",
        .n = 3,
        .column = {{"name", CB_PY_TEXT, ARRAY(p->region_name), NULL, 0},
                   {"parent", CB_PY_ID_OPTION, ARRAY(p->region_parent), NULL, 0},
                   {"saved_limit", CB_PY_OPTION, ARRAY(p->region_limit), NULL, 0}}};
}

/* Returns the columns of the problem, which is item 0. */
cb_py_columns cb_py_columns_of_problem(cb_problem *p) {
    return (cb_py_columns){
        .what = "problem",
        .n = 8,
        .column = {{"backward_starts", CB_PY_ID, FIELD(p, backward_starts), NULL, 0},
                   {"align", CB_PY_COUNT, FIELD(p, align), NULL, 0},
                   {"static_bytes", CB_PY_COUNT, FIELD(p, static_bytes), NULL, 0},
                   {"link_bytes_per_s", CB_PY_REAL, FIELD(p, link_bytes_per_s), NULL, 0},
                   {"reruns", CB_PY_WORD, FIELD(p, reruns), cb_reruns_names, CB_RERUNS_COUNT},
                   {"collective_again", CB_PY_TRUTH, FIELD(p, collective_again), NULL, 0},
                   {"keep_saved", CB_PY_TRUTH, FIELD(p, keep_saved), NULL, 0},
                   {"network_bytes_per_s", CB_PY_REAL, FIELD(p, network_bytes_per_s), NULL, 0}}};
}

int cb_py_columns_open(cb_py_columns *t, PyObject *module, const char *class_name) {
    for (uint32_t c = 0; c < t->n; c++) {
        t->key[c] = PyUnicode_InternFromString(t->column[c].name);
        if (!t->key[c]) return -1;
    }
    if (!module) return 0;
    t->class = PyObject_GetAttrString(module, class_name);
    return t->class ? 0 : -1;
}

void cb_py_columns_close(cb_py_columns *t) {
    Py_XDECREF(t->class);
    for (uint32_t c = 0; c < t->n; c++) Py_XDECREF(t->key[c]);
}
