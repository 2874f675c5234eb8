/* following.h: the decisions of a plan, without sizes: which ops run, in which order, and what each
 * run makes. They are made at one size of a graph and followed at others, where offsets, bytes and
 * times are recomputed without a search. Internal. */
#ifndef CB_FOLLOWING_H
#define CB_FOLLOWING_H

#include "plan/planner.h"

struct cb_decisions {
    cb_arena arena;            /* the object itself is in it */
    uint64_t single_structure; /* cb_problem_structure of the graph op by op */
    uint64_t structure;        /* cb_problem_structure of the problem that was planned; the same
                                  number if ops are not grouped */
    bool in_groups;
    cb_schedule schedule;
    uint32_t n_value;
    uint8_t *decision, *reason; /* [n_value] */
    cb_preset preset;
    cb_measure measure;
    uint64_t budget_bytes; /* UINT64_MAX: none. For the smallest plan: its bytes */
    double position;       /* -1: the budget was not a position */
    uint64_t smallest_bytes, everything_bytes;
};

/* Makes the decisions of a plan of `p`, which is `single`, the graph op by op, or the same in
 * groups. */
CB_MUST_CHECK cb_status cb_decisions_copy(const cb_problem *p, const cb_problem *single,
                                          const cb_plan *plan, cb_alloc *alloc, cb_decisions **out,
                                          cb_error *err);
/* Makes a plan of `p` that follows the decisions; `out` NULL: they are not valid for it. */
CB_MUST_CHECK cb_status cb_decisions_plan(const cb_decisions *d, const cb_problem *p,
                                          const cb_device *device, cb_alloc *alloc, cb_plan **out,
                                          cb_error *err);

#endif
