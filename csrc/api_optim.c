/* Optimizers on arrays outside a compiled step: a table on the context's memory and threads. */
#include "pipeline.h"

#include "optim/table.h"

cb_status cb_tensor_table_new(cb_context *ctx, const cb_optimizer *optimizer, uint32_t n_rows,
                              cb_tensor_table **out, cb_error *err) {
    return cb_table_new(&ctx->alloc, &ctx->runtime.pool, optimizer, n_rows, out, err);
}
