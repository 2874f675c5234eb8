#include "plan.h"

const char *const cb_decision_names[CB_DECISION_OFFLOAD + 1] = {"none", "save", "recompute",
                                                                "offload"};
const char *const cb_reason_names[CB_REASON_PRESET + 1] = {"none", "cut",   "forbidden", "policy",
                                                           "held", "cheap", "peak",      "preset"};
const char *const cb_bound_class_names[CB_BOUND_ORDERED + 1] = {"trivial", "any", "ordered"};

cb_status cb_plan_new(cb_alloc *alloc, cb_plan **out, cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_plan *plan = CB_NEW(&arena, cb_plan, 1);
    if (!plan) return cb_no_memory(err);
    plan->arena = arena;
    plan->budget_bytes = plan->program_budget = UINT64_MAX;
    plan->lower_bound_ps = -1;
    plan->position = -1;
    *out = plan;
    return CB_OK;
}

void cb_plan_free(cb_plan *plan) {
    if (!plan) return;
    cb_arena arena = plan->arena;
    cb_arena_free(&arena);
}

void cb_plan_set_bound(cb_plan *plan, int64_t proven_ps) {
    bool saved = plan->measure == CB_MEASURE_SAVED;
    bool holds = proven_ps > plan->trivial_ps && (saved || plan->in_order);
    plan->lower_bound_ps = holds ? proven_ps : plan->trivial_ps;
    if (plan->time_ps == plan->trivial_ps) plan->bound_class = CB_BOUND_ANY;
    else if (!holds) plan->bound_class = CB_BOUND_TRIVIAL;
    else plan->bound_class = saved ? CB_BOUND_ANY : CB_BOUND_ORDERED;
}

void cb_plan_set_position(cb_plan *plan, double position, uint64_t smallest, uint64_t everything) {
    plan->position = position;
    plan->smallest_bytes = smallest;
    plan->everything_bytes = everything;
}

double cb_plan_gap(const cb_plan *plan) {
    if (plan->lower_bound_ps == 0) return plan->time_ps == 0 ? 0 : -1;
    return (double)(plan->time_ps - plan->lower_bound_ps) / (double)plan->lower_bound_ps;
}

uint64_t cb_measured(const cb_problem *p, cb_measure measure, const cb_lives *lives,
                     uint64_t arena_bytes) {
    switch (measure) {
        case CB_MEASURE_LIVE: return lives->peak_bytes;
        case CB_MEASURE_SAVED: return lives->saved_bytes;
        case CB_MEASURE_TOTAL: return lives->peak_bytes + p->static_bytes;
        case CB_MEASURE_ARENA:
        case CB_MEASURE_COUNT: break;
    }
    return arena_bytes;
}
