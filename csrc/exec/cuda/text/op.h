/* op.h: helpers for writing kernels of single ops: operands, and the beginnings and ends of kernels
 * with a thread for each element or a block for each row. */
#ifndef CB_EXEC_CUDA_TEXT_OP_H
#define CB_EXEC_CUDA_TEXT_OP_H

#include "code.h"

typedef struct cb_cu_op { /* the instruction whose kernel is written */
    cb_cu_code *code;
    const cb_instr *instr;
    uint32_t at; /* its index in the program */
} cb_cu_op;

enum { CB_CU_THREADS = 256, CB_CU_ROW_THREADS = 128 };

const cb_operand *cb_cu_in(const cb_cu_op *x, uint32_t k);
const cb_operand *cb_cu_out(const cb_cu_op *x, uint32_t k);
int cb_cu_in_param(const cb_cu_op *x, uint32_t k);
int cb_cu_out_param(const cb_cu_op *x, uint32_t k);
/* Begins a kernel; the offset type I is wide enough for all elements of the op's operands. */
void cb_cu_begin_op(const cb_cu_op *x);
/* Begins a kernel with a thread `i` for each of n elements, or a block `row` for each row of
 * COLUMNS. */
void cb_cu_each(const cb_cu_op *x, int64_t n);
void cb_cu_end_each(const cb_cu_op *x, int64_t n);
void cb_cu_each_row(const cb_cu_op *x, int64_t columns);
void cb_cu_end_each_row(const cb_cu_op *x, int64_t rows);
/* Writes a template with operands among its holes. `operands` names them, in the order of the
 * kernel's parameters: in "g=x0 rstd=x4 dx=y0" they are inputs 0 and 4, and result 0. */
void cb_cu_op_template(const cb_cu_op *x, const char *operands, const char *text,
                       const cb_cu_hole *more);
/* Writes `I name = offset;`, the offset of element `at` of input k. */
void cb_cu_in_offset(const cb_cu_op *x, uint32_t k, const char *name, const char *at);
/* Adds a kernel that reports the first index of input k outside of 0..limit-1. *ignore, if not
 * NULL, is allowed. */
void cb_cu_check_index(const cb_cu_op *x, uint32_t k, int64_t limit, const int64_t *ignore);
/* Returns the type of the arithmetic: "double" for f64, otherwise "float". */
const char *cb_cu_real(cb_dtype dtype);
const char *cb_cu_op_name(cb_opcode code); /* "LAYER_NORM" */

#endif
