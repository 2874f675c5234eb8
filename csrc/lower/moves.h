/* moves.h: copies to the host and back, as a plan that offloads has them. Internal.
 *
 * A plan copies while it computes: a copy out has a start and an end, and so has a copy back. A
 * program runs both at once, in the order of the plan: a copy out behind the last group before its
 * step, a copy back in front of the first group behind it. The buffers of both live at least as
 * long as in the plan, so what the plan has room for, the program has. */
#ifndef CB_LOWER_MOVES_H
#define CB_LOWER_MOVES_H

#include "../fuse/expand.h"
#include "program.h"

/* Fills the moves of a program whose groups are single steps and whose buffers are known; `memory`
 * gives the buffer of an instance. */
CB_MUST_CHECK cb_status cb_lower_moves(const cb_problem *p, const cb_plan *plan,
                                       const cb_groups *groups, const uint32_t *memory,
                                       cb_arena *scratch, cb_program *program, cb_error *err);

#endif
