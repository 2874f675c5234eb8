/* steps.h: a plan's schedule as those see it who build groups: which steps run, what they read
 * and make.
 *
 * A place is where a value is kept: an instance of the plan, or, behind those, a storage in an
 * argument's memory. */
#ifndef CB_FUSE_STEPS_H
#define CB_FUSE_STEPS_H

#include "../ir/graph.h"
#include "../plan/schedule/plan.h"
#include "domain.h"

/* An op of a graph as domains see it. */
cb_shaped cb_shaped_op(const cb_graph *g, cb_op_id id);

typedef struct cb_steps {
    const cb_graph *g;
    const cb_problem *p;
    const cb_plan *plan;
    uint32_t n_place;
    uint32_t *maker; /* [n_place] step that makes it, CB_NONE: the caller does */
    uint32_t *reads; /* [n_place] by steps that are no views, each input counted */
} cb_steps;

CB_MUST_CHECK cb_status cb_steps_init(cb_steps *s, const cb_graph *g, const cb_problem *p,
                                      const cb_plan *plan, cb_arena *arena, cb_error *err);
/* The same of every op once, before anything is planned: nothing has a place but a storage. Fills
 * `plan` as far as this looks at it. */
CB_MUST_CHECK cb_status cb_steps_once(cb_steps *s, cb_plan *plan, const cb_graph *g,
                                      const cb_problem *p, cb_arena *arena, cb_error *err);

static inline cb_op_id cb_step_id(const cb_steps *s, uint32_t step) {
    return s->plan->schedule.step[step];
}
static inline const cb_op *cb_step_op(const cb_steps *s, uint32_t step) {
    return &s->g->ops.at[cb_step_id(s, step)];
}
static inline uint32_t cb_place_of(const cb_steps *s, cb_value_id value, uint32_t instance) {
    if (instance != CB_NONE) return instance;
    return s->plan->lives.n_instance + s->g->values.at[value].storage;
}
static inline uint32_t cb_place_in(const cb_steps *s, uint32_t step, uint32_t k) {
    const cb_lives *lives = &s->plan->lives;
    return cb_place_of(s, cb_op_ins(s->g, cb_step_id(s, step))[k],
                       lives->value_instance_in[lives->in_begin[step] + k]);
}
static inline uint32_t cb_place_out(const cb_steps *s, uint32_t step, uint32_t k) {
    const cb_lives *lives = &s->plan->lives;
    return cb_place_of(s, cb_step_op(s, step)->out_begin + k,
                       lives->value_instance_out[lives->out_begin[step] + k]);
}
/* Whether the scratch of one step may be that of another in the same group: both hold a copy of the
 * same indices, and nothing else. */
bool cb_step_shares_scratch(const cb_steps *s, uint32_t step, uint32_t other);
static inline uint64_t cb_step_scratch(const cb_steps *s, uint32_t step) {
    uint32_t scratch = s->plan->lives.scratch_instance[step];
    return scratch == CB_NONE ? 0 : s->plan->lives.instance[scratch].bytes;
}

/* Memory that what a group makes takes over from what it reads (plan/model/over.h).
 *
 * A step that is a group of its own takes over what the plan says. In a group of several, a value
 * takes over memory through those that the group keeps for itself:
 *
 *     plan     b over a, c over b          b = relu(a)    c = neg(b)
 *     group    {relu neg}: c over a, as b is a local
 *
 * All members must then be pointwise: such a group passes over its elements once, and reads each of
 * them before it is written. Others take nothing over. */
static inline bool cb_part_may_take(cb_part part) {
    return part == CB_PART_MAP || part == CB_PART_ONE;
}
typedef struct cb_taking {
    const cb_steps *steps;
    const uint32_t *step; /* [n] of the group, in order */
    uint32_t n;
    /* Whether nothing reads this instance after the group, and it is not held. */
    bool (*ends)(const void *user, uint32_t instance);
    const void *user;
} cb_taking;

/* The instance, made before the group, whose memory the result of member `at` takes over; CB_NONE:
 * none. The plan must have something that is taken over; the group must be one step or pointwise,
 * and the result must outlive it. */
uint32_t cb_taken(const cb_taking *x, uint32_t at);

#endif
