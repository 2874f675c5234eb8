/* moves.h: turns the offload of a plan into copies to the host and back. Internal.
 *
 * In a plan, copies overlap with computation: each copy out or back has a start and an end. A
 * program makes each in a single step, in the order of the plan: a copy out after the last group
 * before its step, a copy back before the first group after it. The program's buffers have the
 * lives of the plan, which cover both copies, so the plan's memory suffices. */
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
