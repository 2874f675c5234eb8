/* kern.h: included by every kernel file.
 *
 * A file kern_<x>.c is compiled once for each instruction set (cmake/kernels.cmake) and exports one
 * function, named with CB_KERN, that finds its kernels:
 *
 *     cb_kernel_fn CB_KERN(unary)(cb_opcode code, cb_dtype dtype) { ... }    NULL: not in this file
 *
 * `dtype` is that of any floating-point input or output of the op, or of its first input; the
 * kernel chooses its loop from the tensors when it is called. Everything else in a kernel file and
 * in the headers it includes is static: a function shared between builds would carry one build's
 * instructions into another. */
#ifndef CB_EXEC_CPU_KERN_H
#define CB_EXEC_CPU_KERN_H

#include "../kernel.h"

/* The kernel files. Add new ones here. */
#define CB_KERN_FILES(X, isa) \
    X(argmax, isa)            \
    X(attention, isa)         \
    X(batch, isa)             \
    X(bits, isa)              \
    X(conv, isa)              \
    X(index, isa)             \
    X(matmul, isa)            \
    X(move, isa)              \
    X(norm, isa)              \
    X(pool, isa)              \
    X(reduce, isa)            \
    X(softmax, isa)           \
    X(source, isa)

/* Kernels of pointwise ops, plain_<x>.c, are compiled once, for any machine. For floats the
 * executor runs these ops; the debug backend, its reference, uses the kernels. */
#define CB_KERN_PLAIN(X) \
    X(binary, plain)     \
    X(cast, plain)       \
    X(unary, plain)

#define CB_KERN_DECLARE(file, isa) \
    cb_kernel_fn cb_kern_##file##_##isa(cb_opcode code, cb_dtype dtype);
CB_KERN_FILES(CB_KERN_DECLARE, baseline)
CB_KERN_FILES(CB_KERN_DECLARE, avx2)
CB_KERN_FILES(CB_KERN_DECLARE, avx512)
CB_KERN_PLAIN(CB_KERN_DECLARE)
#undef CB_KERN_DECLARE

#define CB_KERN_PASTE(file, isa) cb_kern_##file##_##isa
#define CB_KERN_EXPAND(file, isa) CB_KERN_PASTE(file, isa)
#define CB_KERN(file) CB_KERN_EXPAND(file, CB_KERN_ISA)

#endif
