/* compile.h: compiles nodes to records. */
#ifndef CB_EXEC_EXPRESSION_COMPILE_H
#define CB_EXEC_EXPRESSION_COMPILE_H

#include "form.h"

/* Fills phase and table. */
CB_MUST_CHECK cb_status cb_e_compile(cb_expression *x, cb_error *err);

#endif
