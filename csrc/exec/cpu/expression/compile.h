/* compile.h: compiles nodes to records. */
#ifndef CB_EXEC_EXPRESSION_COMPILE_H
#define CB_EXEC_EXPRESSION_COMPILE_H

#include "form.h"

/* Fills in x->phase and x->table. */
CB_MUST_CHECK cb_status cb_e_compile(cb_expression *x, cb_error *err);

#endif
