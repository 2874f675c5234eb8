/* infer_rules.h: the shape rules. Only infer*.c include it.
 *
 * A rule checks dtypes, shapes and attributes and fills dtype and shape of each output. Fresh
 * outputs are row-major; a view writes stride and offset itself. Errors start with the op's name.
 */
#ifndef CB_IR_INFER_RULES_H
#define CB_IR_INFER_RULES_H

#include "infer_checks.h"

/* One declaration per row; rows that share a rule repeat it, which C allows. */
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) \
    cb_status cb_infer_##infer(cb_infer *x, cb_error *err);
#include "ops.def"
#undef CB_OP

#endif
