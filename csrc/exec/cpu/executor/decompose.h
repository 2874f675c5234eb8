/* decompose.h: a group of a program becomes microcode. */
#ifndef CB_EXEC_DECOMPOSE_H
#define CB_EXEC_DECOMPOSE_H

#include "microcode.h"

/* Whether the executor runs a group of one instruction: a pointwise one that reads a transposed
 * tensor, which it gathers by blocks. */
bool cb_runs_alone(const cb_program *program, uint32_t group);
/* CB_UNSUPPORTED: the group is too large for a fixed table; it can run op by op. */
CB_MUST_CHECK cb_status cb_microcode_of(const cb_program *program, uint32_t group,
                                        cb_microcode *out, cb_error *err);

#endif
