/* Optimizers outside a compiled step: tables and expressions, in the context's memory. */
#include "pipeline.h"

#include "exec/cpu/expression/expression.h"
#include "optim/table.h"

cb_status cb_expression_new(cb_context *ctx, const cb_expression_spec *spec, cb_expression **out,
                            cb_error *err) {
    return cb_expression_make(&ctx->alloc, spec, out, err);
}

cb_status cb_tensor_table_new(cb_context *ctx, const cb_optimizer *optimizer, uint32_t n_rows,
                              cb_tensor_table **out, cb_error *err) {
    CB_TRY(cb_table_new(&ctx->alloc, &ctx->runtime.pool, optimizer, n_rows, out, err));
    cb_table_use(*out, &ctx->products);
    return CB_OK;
}
