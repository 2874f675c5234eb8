/* columns.h: maps attributes of the dataclasses of cutback.problem to arrays of a problem. There is
 * one table per class, used in both directions (problem_give.c, problem_take.c). */
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
    CB_PY_WORDS8     /* uint8_t: a bit for each word */
} cb_py_kind;

typedef struct cb_py_column {
    const char *name; /* name of the attribute */
    cb_py_kind kind;
    void *base; /* address of the first item's field */
    size_t stride;
    const char *const *words;
    uint32_t n_words;
} cb_py_column;

#define CB_PY_MOST_COLUMNS 16

typedef struct cb_py_columns { /* the columns of one class */
    const char *what;          /* name of an item in errors, such as "op" */
    cb_py_column column[CB_PY_MOST_COLUMNS];
    uint32_t n;
    PyObject *class;
    PyObject *key[CB_PY_MOST_COLUMNS]; /* interned attribute names */
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
/* Interns the names and looks up the class in `module`, unless that is NULL. Returns -1 with an
 * exception set on failure; close it after a failure, too. */
int cb_py_columns_open(cb_py_columns *t, PyObject *module, const char *class_name);
void cb_py_columns_close(cb_py_columns *t);

#endif
