/* kernel.h: the interface of a CPU kernel, which computes all outputs of one instruction.
 *
 * Bits: outputs depend only on shapes, dtypes, inputs and attributes, never on the number of
 * threads, on alignment or on the instruction set. Work is cut by shape (cb_row_blocks, fixed tile
 * sizes), a reduction has a fixed number of lanes and a fixed order, contraction is off
 * (-ffp-contract=off) and multiply-adds are fused where gemm_fma.h says so. Compute type: f32 for
 * f32, f16, bf16; f64 for f64; each op rounds its result to its dtype once. Memory: no allocation.
 * Scratch has the size given by cb_op_workspace for this op (workspace.h), without the copy of the
 * indices: these are in memory that nothing else writes, so a kernel may check them in one pass and
 * use them in the next. Inputs and outputs never overlap, but the output of a pointwise op may be
 * an input of the same dtype, element by element (plan/model/over.h). */
#ifndef CB_EXEC_KERNEL_H
#define CB_EXEC_KERNEL_H

#include "../base/philox.h"
#include "../base/threads.h"
#include "../ir/op.h"

typedef struct cb_tensor {
    void *data; /* first element (operand offset applied) */
    cb_dtype dtype;
    cb_shape shape;
    int64_t stride[CB_MAX_RANK]; /* elements; outputs are contiguous */
} cb_tensor;

typedef struct cb_kernel_args {
    const cb_tensor *in;
    const cb_tensor *out;
    uint32_t n_in, n_out;
    const cb_attrs *attrs;
    cb_opcode code;
    void *scratch; /* 64-byte aligned, uninitialised */
    size_t scratch_bytes;
    cb_threads *pool;
    const cb_blas *blas;
    cb_philox random; /* seed and step of the run; stream from the op's attributes */
} cb_kernel_args;

/* Returns CB_INVALID for data-dependent errors (an index out of range); everything else was checked
 * before. */
typedef cb_status (*cb_kernel_fn)(const cb_kernel_args *args, cb_error *err);

/* Returns the kernel for an op at these dtypes, for the best instruction set
 * (CUTBACK_ISA=baseline|avx2|avx512 lowers it); NULL: none. */
cb_kernel_fn cb_cpu_kernel(cb_opcode code, cb_dtype dtype);

#endif
