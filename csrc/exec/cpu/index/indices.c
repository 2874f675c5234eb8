/* Checks indices in one pass with branches. Kernels that read many indices first check them in a
 * vectorized pass, and call this only for the error text. */
#include "indices.h"

#include <inttypes.h>

cb_status cb_check_indices(cb_opcode code, const cb_attrs *attrs, const cb_tensor *index,
                           int64_t rows, cb_error *err) {
    const char *name = cb_op_def_of(code)->name;
    const bool are_labels = code == CB_OP_CROSS_ENTROPY || code == CB_OP_CROSS_ENTROPY_BWD;
    const int64_t n = cb_numel(&index->shape), ignore = attrs->i[0];
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = cb_index_at(index, i);
        if (at >= 0 && at < rows) continue;
        if (!are_labels)
            return cb_fail(err, CB_INVALID,
                           "%s: index %" PRId64 " out of range for %" PRId64 " rows", name, at,
                           rows);
        if (at == ignore) continue;
        return cb_fail(err, CB_INVALID,
                       "%s: label %" PRId64 " of row %" PRId64 " is not one of %" PRId64
                       " classes (0..%" PRId64 ") and not the ignored label %" PRId64,
                       name, at, i, rows, rows - 1, ignore);
    }
    return CB_OK;
}
