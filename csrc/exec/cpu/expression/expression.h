/* expression.h: optimizers that the caller writes (cutback.h). */
#ifndef CB_EXEC_EXPRESSION_EXPRESSION_H
#define CB_EXEC_EXPRESSION_EXPRESSION_H

#include "../../../optim/optimizer.h"

CB_MUST_CHECK cb_status cb_expression_make(cb_alloc *alloc, const cb_expression_spec *spec,
                                           cb_expression **out, cb_error *err);

#endif
