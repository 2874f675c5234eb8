/* columns.h: which attribute of the dataclasses of cutback.problem belongs to which array of a
 * problem. A table per class, read in both directions (problem_give.c, problem_take.c). */
#ifndef CB_PY_COLUMNS_H
#define CB_PY_COLUMNS_H

#include "planned.h"

typedef enum cb_py_kind {
    CB_PY_TEXT,      /* const char * */
    CB_PY_COUNT,     /* uint64_t */
    CB_PY_OPTION,    /* uint64_t, UINT64_MAX: None */
    CB_PY_TIME,      /* int64_t, -1: None */
    CB_PY_REAL,      /* double */
    CB_PY_TRUTH,     /* bool */
    CB_PY_ID,        /* uint32_t */
    CB_PY_ID_OPTION, /* uint32_t, CB_NONE: None */
    CB_PY_WORD,      /* uint8_t: index of a word */
    CB_PY_WORDS,     /* uint32_t: a bit for each word */
    CB_PY_WORDS8     /* uint8_t: likewise */
} cb_py_kind;

typedef struct cb_py_column {
    const char *name; /* of the attribute */
    cb_py_kind kind;
    void *base; /* of the first item */
    size_t stride;
    const char *const *words;
    uint32_t n_words;
} cb_py_column;

#define CB_PY_MOST_COLUMNS 16

typedef struct cb_py_columns { /* of one class */
    const char *what;          /* "op": what errors call an item */
    cb_py_column column[CB_PY_MOST_COLUMNS];
    uint32_t n;
    PyObject *class;
    PyObject *key[CB_PY_MOST_COLUMNS]; /* attributes' names, interned */
} cb_py_columns;

static inline void *cb_py_item_at(const cb_py_column *c, size_t i) {
    return (char *)c->base + i * c->stride;
}

cb_py_columns cb_py_columns_of_ops(const cb_problem *p);
cb_py_columns cb_py_columns_of_values(const cb_problem *p);
cb_py_columns cb_py_columns_of_storages(const cb_problem *p);
cb_py_columns cb_py_columns_of_members(const cb_problem *p);
cb_py_columns cb_py_columns_of_inlinings(const cb_problem *p);
cb_py_columns cb_py_columns_of_regions(const cb_problem *p);
cb_py_columns cb_py_columns_of_problem(cb_problem *p);
/* Looks up the names, and the class of that module unless it is NULL; -1: an exception is set.
 * Close it after a failure, too. */
int cb_py_columns_open(cb_py_columns *t, PyObject *module, const char *class_name);
void cb_py_columns_close(cb_py_columns *t);

#endif
