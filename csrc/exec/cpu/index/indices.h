/* indices.h: checks the indices that gather, scatter_add, embedding, cross_entropy and their
 * gradients take. They are contiguous, i32 or i64. */
#ifndef CB_EXEC_CPU_INDEX_INDICES_H
#define CB_EXEC_CPU_INDEX_INDICES_H

#include "../../kernel.h"

static inline int64_t cb_index_at(const cb_tensor *index, int64_t i) {
    return index->dtype == CB_I64 ? ((const int64_t *)index->data)[i]
                                  : ((const int32_t *)index->data)[i];
}

/* Returns CB_INVALID with the first index that is neither in 0 .. rows nor the ignored label of
 * attrs; the same one for any number of threads. */
CB_MUST_CHECK cb_status cb_check_indices(cb_opcode code, const cb_attrs *attrs,
                                         const cb_tensor *index, int64_t rows, cb_error *err);

#endif
