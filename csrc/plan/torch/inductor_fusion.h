/* inductor_fusion.h: finds the ops of an imported problem that a compiler runs as one kernel, as
 * PyTorch's Inductor does with pointwise chains. This determines costs on a "+fused" device.
 * Internal.
 *
 * A group comes from the problem (op_group), or consists of ops that fuse with their only reader.
 * Values made and read only inside a group are not moved, an input of several ops of a group is
 * moved once, and a group is launched once. */
#ifndef CB_PLAN_TORCH_INDUCTOR_FUSION_H
#define CB_PLAN_TORCH_INDUCTOR_FUSION_H

#include "../model/problem.h"

/* Fills p->fused_group, p->fused_bytes and p->fused_launch of a verified problem. */
CB_MUST_CHECK cb_status cb_find_fusion(cb_problem *p, cb_error *err);

#endif
