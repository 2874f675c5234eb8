/* aten.h: facts about PyTorch's ops, by name. Internal; data only.
 *
 * Names are packets, namespace and op ("aten.mul"), so that all overloads of an op share a row. */
#ifndef CB_PLAN_ATEN_H
#define CB_PLAN_ATEN_H

#include "../model/problem.h"

enum {                             /* flags of an op's row */
       CB_ATEN_RECOMPUTE = 1 << 0, /* PyTorch's partitioner may recompute it, and fuses it */
       CB_ATEN_VIEW = 1 << 1,      /* PyTorch's partitioner treats it as a view */
       CB_ATEN_RANDOM = 1 << 2,    /* the partitioner fuses it, but never recomputes it */
       CB_ATEN_JOIN = 1 << 3,      /* fuses with its inputs, but not with its readers */
       CB_ATEN_GETITEM = 1 << 4,   /* picks one tensor of an op with several */
       CB_ATEN_REDUCE = 1 << 5,    /* a reduction that fuses */
       CB_ATEN_FUSE = 1 << 6       /* one output element from few inputs: fuses when we plan */
};

/* Returns the row of an op named "aten.mul.Tensor" or "aten.mul"; 0: none. */
uint32_t cb_aten_row(const char *op);
/* Returns the flags of the op by its name and row (FUSIBLE, REDUCTION, COMPUTE, RANDOM_STATEFUL,
 * COLLECTIVE, UNKNOWN). */
uint32_t cb_aten_flags(const char *op);
/* True if the op works element by element, so that its output may take over the memory of an input
 * with the same shape, strides and width. */
bool cb_aten_may_be_over(const char *op);
/* Returns how PyTorch's partitioner classifies an op of a problem: CB_ATEN_*. Ops that are not
 * PyTorch's are classified by their flags. */
uint32_t cb_aten_class(const cb_problem *p, uint32_t op);

#endif
