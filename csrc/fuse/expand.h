/* expand.h: expands a plan's steps to groups of ops of the graph: a step of a plan of single ops is
 * a group of one; a step of a contracted problem becomes the ops that it runs. Values keep the
 * plan's offsets; a value that a step makes only for itself is a local of its group. */
#ifndef CB_FUSE_EXPAND_H
#define CB_FUSE_EXPAND_H

#include "../plan/schedule/plan.h"
#include "grouping.h"

typedef struct cb_life { /* the life of an instance of the plan */
    uint32_t made, last; /* group indices; last == n_group: held to the end */
    uint64_t offset;     /* offset in the arena */
    bool is_local;       /* exists only in group `made`, without bytes in the arena */
    bool is_shared;      /* true if it is scratch in the same memory as that of an earlier instance
                            */
    uint32_t shared;     /* that instance, if `is_shared` */
    bool is_gone;        /* ends before a step runs, so it takes no bytes */
    bool takes_over;     /* begins in the memory of another instance, which ends with group `made`
                            */
    uint32_t over;       /* that instance, if `takes_over` */
} cb_life;

/* Returns how many of `n` ascending steps come before this one. */
static inline uint32_t cb_count_before(const uint32_t *steps, uint32_t n, uint32_t step) {
    uint32_t low = 0, high = n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (steps[middle] < step) low = middle + 1;
        else high = middle;
    }
    return low;
}

typedef struct cb_groups {
    uint32_t n_group, n_instr;
    uint32_t *begin;    /* [n_group + 1] into step and part */
    uint32_t *step;     /* [n_instr] steps in the order in which they run, without views */
    uint8_t *part;      /* [n_instr] cb_part */
    cb_domain *domain;  /* [n_group] */
    uint8_t *end;       /* [n_group] cb_group_end */
    uint32_t *end_step; /* [n_group] see cb_group */
    uint32_t *end_wait; /* [n_group] likewise */
    cb_life *life;      /* [n_instance] */
    uint32_t backward_starts;
} cb_groups;

/* Allocates zeroed tables of these sizes. */
CB_MUST_CHECK cb_status cb_groups_new(cb_groups *groups, size_t n_group, size_t n_instr,
                                      size_t n_instance, cb_arena *arena, cb_error *err);

typedef struct cb_expanded {
    cb_plan plan;     /* the plan of the graph, op by op, with the parts of lives that lowering
                         uses */
    cb_groups groups; /* groups of its steps in order, one for each step of the plan that runs */
    bool is_fused;    /* fuse.h has merged some groups, so the plan's bytes are a bound */
    uint32_t *step;   /* [plan.schedule.n_step] step of the plan; NULL: the same */
} cb_expanded;

/* `single` is the result of cb_annotate. `grouping` NULL: `p` is `single`, and the plan must
 * outlive the result, which is allocated in `arena`. */
CB_MUST_CHECK cb_status cb_expand(const cb_graph *joint, const cb_problem *single,
                                  const cb_grouping *grouping, const cb_problem *p,
                                  const cb_plan *plan, cb_arena *arena, cb_expanded *out,
                                  cb_error *err);

#endif
