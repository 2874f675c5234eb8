/* inductor_fusion.h: which ops of an imported problem its own compiler runs as one kernel, as
 * PyTorch's Inductor does with pointwise chains: what they cost on a device "+fused". Internal.
 *
 * A group is what the problem says (op_group), else an op that fuses with the only op that reads
 * it. What is made and read inside a group alone is not moved, what several ops of a group read is
 * moved once, and a group is launched once. */
#ifndef CB_PLAN_TORCH_INDUCTOR_FUSION_H
#define CB_PLAN_TORCH_INDUCTOR_FUSION_H

#include "../model/problem.h"

/* Fills p->fused_group, p->fused_bytes and p->fused_launch of a verified problem. */
CB_MUST_CHECK cb_status cb_find_fusion(cb_problem *p, cb_error *err);

#endif
