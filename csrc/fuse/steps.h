/* steps.h: a plan's schedule in the form needed to build groups: the steps that run, with their
 * reads and outputs.
 *
 * A place is the memory of a value: an instance of the plan, or, numbered after those, a storage in
 * an argument's memory. */
#ifndef CB_FUSE_STEPS_H
#define CB_FUSE_STEPS_H

#include "../ir/graph.h"
#include "../plan/schedule/plan.h"
#include "domain.h"

/* Converts an op of a graph to the form that domain.h uses. */
cb_shaped cb_shaped_op(const cb_graph *g, cb_op_id id);

typedef struct cb_steps {
    const cb_graph *g;
    const cb_problem *p;
    const cb_plan *plan;
    uint32_t n_place;
    uint32_t *maker; /* [n_place] step that makes its value; CB_NONE: the caller does */
    uint32_t *reads; /* [n_place] number of reads by steps that are not views, counting each input;
                        for a gradient that an update consumes, also the reads of its parameter */
    uint32_t *gradient_at; /* [n_place] for a parameter, the place of the gradient that its update
                              consumes; CB_NONE: none. NULL: there are no updates */
} cb_steps;

CB_MUST_CHECK cb_status cb_steps_init(cb_steps *s, const cb_graph *g, const cb_problem *p,
                                      const cb_plan *plan, cb_arena *arena, cb_error *err);
/* Like cb_steps_init, but before planning, with every op run once; only storages have places. Fills
 * the parts of `plan` that are needed for this. */
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
/* Returns the place of the gradient that the update of this parameter consumes, or CB_NONE. */
static inline uint32_t cb_gradient_of(const cb_steps *s, uint32_t place) {
    return s->gradient_at ? s->gradient_at[place] : CB_NONE;
}
/* True if two steps of a group may share scratch: both hold only a copy of the same indices. */
bool cb_step_shares_scratch(const cb_steps *s, uint32_t step, uint32_t other);
static inline uint64_t cb_step_scratch(const cb_steps *s, uint32_t step) {
    uint32_t scratch = s->plan->lives.scratch_instance[step];
    return scratch == CB_NONE ? 0 : s->plan->lives.instance[scratch].bytes;
}

/* Memory that outputs of a group take over from its inputs (plan/model/over.h).
 *
 * A group of one step takes over memory as the plan does. In a group of several steps, a value
 * takes over memory through the group's locals:
 *
 *     plan     b over a, c over b          b = relu(a)    c = neg(b)
 *     group    {relu neg}: c over a, as b is a local
 *
 * All members must then be pointwise: such a group makes one pass over its elements, and reads each
 * of them before it is written. Other groups take over no memory. */
static inline bool cb_part_may_take(cb_part part) {
    return part == CB_PART_MAP || part == CB_PART_BITS || part == CB_PART_ONE;
}
typedef struct cb_taking {
    const cb_steps *steps;
    const uint32_t *step; /* [n] steps of the group, in order */
    uint32_t n;
    /* True if nothing reads this instance after the group and it is not held. */
    bool (*ends)(const void *user, uint32_t instance);
    const void *user;
} cb_taking;

/* Returns the instance, made before the group, whose memory the result of member `at` takes over,
 * or CB_NONE. The plan must take over memory; the group must be one step or pointwise, and the
 * result must outlive it. */
uint32_t cb_taken(const cb_taking *x, uint32_t at);

#endif
