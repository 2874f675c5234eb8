/* nodes.h: converts the caller's expression to nodes. */
#ifndef CB_EXEC_EXPRESSION_NODES_H
#define CB_EXEC_EXPRESSION_NODES_H

#include "form.h"

/* Fills in node, number, out and the counts of x; its interface must be set. */
CB_MUST_CHECK cb_status cb_e_read(cb_expression *x, const cb_expression_spec *spec, cb_error *err);

#endif
