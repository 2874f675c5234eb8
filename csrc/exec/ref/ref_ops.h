/* ref_ops.h: internals of the reference backend: reading and writing elements, and the op families.
 *
 * Elements are numbered in row-major order of the tensor's shape, whatever its strides:
 * cb_ref_get(t, 5) is the sixth element. */
#ifndef CB_EXEC_REF_OPS_H
#define CB_EXEC_REF_OPS_H

#include "../../base/philox.h"
#include "../kernel.h"

typedef struct cb_ref_call {
    cb_opcode code;
    const cb_attrs *attrs;
    uint32_t n_in, n_out;
    const cb_tensor *in, *out;
    cb_philox random; /* includes the stream of the op */
} cb_ref_call;

double cb_ref_get(const cb_tensor *t, int64_t element);
/* Rounds to the dtype. For integers it truncates and saturates, and NaN becomes 0. */
void cb_ref_put(const cb_tensor *t, int64_t element, double x);
/* These are for bool and integer dtypes. A put wraps to the dtype's width; a bool becomes x !=
 * 0. */
int64_t cb_ref_get_int(const cb_tensor *t, int64_t element);
void cb_ref_put_int(const cb_tensor *t, int64_t element, int64_t x);

/* Returns the number of the element at `index`. */
int64_t cb_ref_number(const cb_shape *s, const int64_t *index);
void cb_ref_index(const cb_shape *s, int64_t element, int64_t *index); /* [rank] */

/* One function per family of ops. */
void cb_ref_source(const cb_ref_call *c);
void cb_ref_unary(const cb_ref_call *c);
void cb_ref_copy(const cb_ref_call *c); /* cast, contiguous */
void cb_ref_dropout(const cb_ref_call *c);
void cb_ref_tril(const cb_ref_call *c);
void cb_ref_point_bwd(const cb_ref_call *c);
void cb_ref_binary(const cb_ref_call *c);
void cb_ref_compare(const cb_ref_call *c);
void cb_ref_logical(const cb_ref_call *c);
void cb_ref_where(const cb_ref_call *c);

void cb_ref_reduce(const cb_ref_call *c);
void cb_ref_argmax(const cb_ref_call *c);

void cb_ref_concat(const cb_ref_call *c);
void cb_ref_pad(const cb_ref_call *c);
void cb_ref_pack_bits(const cb_ref_call *c);
void cb_ref_unpack_bits(const cb_ref_call *c);
void cb_ref_pack_index(const cb_ref_call *c);
void cb_ref_unpack_index(const cb_ref_call *c);
CB_MUST_CHECK cb_status cb_ref_gather(const cb_ref_call *c, cb_error *err);
CB_MUST_CHECK cb_status cb_ref_scatter_add(const cb_ref_call *c, cb_error *err);
CB_MUST_CHECK cb_status cb_ref_embedding(const cb_ref_call *c, cb_error *err);
CB_MUST_CHECK cb_status cb_ref_embedding_bwd(const cb_ref_call *c, cb_error *err);

void cb_ref_matmul(const cb_ref_call *c);
void cb_ref_conv2d(const cb_ref_call *c); /* and its two gradients */
void cb_ref_max_pool2d(const cb_ref_call *c);
void cb_ref_avg_pool2d(const cb_ref_call *c);
void cb_ref_avg_pool2d_bwd(const cb_ref_call *c);

void cb_ref_attention(const cb_ref_call *c);
void cb_ref_attention_bwd(const cb_ref_call *c);

void cb_ref_softmax(const cb_ref_call *c); /* and log_softmax */
void cb_ref_softmax_bwd(const cb_ref_call *c);
void cb_ref_norm(const cb_ref_call *c); /* layer, rms and batch norm */
void cb_ref_batch_stats(const cb_ref_call *c);
void cb_ref_batch_apply(const cb_ref_call *c);
void cb_ref_norm_bwd(const cb_ref_call *c);
CB_MUST_CHECK cb_status cb_ref_cross_entropy(const cb_ref_call *c, cb_error *err);
CB_MUST_CHECK cb_status cb_ref_cross_entropy_bwd(const cb_ref_call *c, cb_error *err);

#endif
