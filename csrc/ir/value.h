/* value.h: one output of one op, as a view of a storage (graph.h). */
#ifndef CB_IR_VALUE_H
#define CB_IR_VALUE_H

#include "op.h"

typedef uint32_t cb_op_id;
typedef uint32_t cb_storage_id;

typedef struct cb_value {
    cb_dtype dtype;
    cb_shape shape;
    int64_t stride[CB_MAX_RANK]; /* elements */
    int64_t offset;              /* elements from the start of the storage */
    cb_storage_id storage;
    cb_op_id producer;
    uint32_t out_index;
} cb_value;

#endif
