/* ref_op.h: computes each op from its definition, one element at a time, to check the kernels.
 *
 * Operands may have any strides. Floats are computed in f64 and rounded to the output's dtype once;
 * integers have 64 bits and wrap. No code is shared with exec/cpu. Graphs in f64 run here are the
 * oracle for finite differences. */
#ifndef CB_EXEC_REF_OP_H
#define CB_EXEC_REF_OP_H

#include "../../base/philox.h"
#include "../kernel.h"

/* Computes all outputs of one op. `random` has the seed and step of the run; the stream is that of
 * the op. Returns CB_INVALID for data-dependent errors; outputs are then undefined. Inputs of the
 * graph and views have nothing to compute and are CB_INTERNAL here. */
CB_MUST_CHECK cb_status cb_ref_op(cb_opcode code, const cb_attrs *attrs, uint32_t n_in,
                                  const cb_tensor *in, uint32_t n_out, const cb_tensor *out,
                                  const cb_philox *random, cb_error *err);

#endif
