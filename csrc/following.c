#include "following.h"

static cb_status copy_plan(const cb_plan *plan, uint32_t n_value, cb_decisions *d, cb_error *err) {
    CB_TRY(cb_schedule_copy(&plan->schedule, &d->arena, &d->schedule, err));
    CB_TRY_NEW(d->decision, &d->arena, n_value, err);
    CB_TRY_NEW(d->reason, &d->arena, n_value, err);
    memcpy(d->decision, plan->decision, n_value);
    memcpy(d->reason, plan->reason, n_value);
    d->n_value = n_value;
    d->preset = plan->preset;
    d->measure = plan->measure;
    d->budget_bytes = plan->budget_bytes;
    d->position = plan->position;
    d->smallest_bytes = plan->smallest_bytes;
    d->everything_bytes = plan->everything_bytes;
    return CB_OK;
}

cb_status cb_decisions_copy(const cb_problem *p, const cb_problem *single, const cb_plan *plan,
                            cb_alloc *alloc, cb_decisions **out, cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_decisions *d = CB_NEW(&arena, cb_decisions, 1);
    if (!d) return cb_no_memory(err);
    *d = (cb_decisions){.arena = arena,
                        .single_structure = cb_problem_structure(single),
                        .structure = cb_problem_structure(p),
                        .in_groups = p != single};
    const cb_status status = copy_plan(plan, p->n_value, d, err);
    if (status == CB_OK) *out = d;
    else cb_decisions_free(d);
    return status;
}

void cb_decisions_free(cb_decisions *d) {
    if (!d) return;
    cb_arena arena = d->arena;
    cb_arena_free(&arena);
}

uint64_t cb_decisions_bytes(const cb_decisions *d) { return cb_arena_bytes(&d->arena); }

/* Only a search checks the limits of regions, and there is no search here. */
static bool has_limits(const cb_problem *p) {
    bool any = false;
    for (uint32_t r = 0; r < p->n_region; r++) any |= p->region_limit[r] != UINT64_MAX;
    return any;
}

static cb_status fill_plan(const cb_decisions *d, const cb_problem *p, const cb_device *device,
                           cb_plan *plan, cb_error *err) {
    CB_TRY(cb_schedule_copy(&d->schedule, &plan->arena, &plan->schedule, err));
    plan->preset = d->preset;
    plan->measure = d->measure;
    plan->budget_bytes = d->budget_bytes;
    CB_TRY(cb_plan_adopt(p, device, plan, err));
    cb_plan_set_position(plan, d->position, d->smallest_bytes, d->everything_bytes);
    for (uint32_t v = 0; v < p->n_value; v++)
        if (plan->decision[v] == d->decision[v]) plan->reason[v] = d->reason[v];
    return CB_OK;
}

cb_status cb_decisions_plan(const cb_decisions *d, const cb_problem *p, const cb_device *device,
                            cb_alloc *alloc, cb_plan **out, cb_error *err) {
    cb_plan *plan;
    *out = NULL;
    if (p->n_value != d->n_value || cb_problem_structure(p) != d->structure || has_limits(p))
        return CB_OK;
    CB_TRY(cb_plan_new(alloc, &plan, err));
    const cb_status status = fill_plan(d, p, device, plan, err);
    if (status == CB_OK) *out = plan;
    else cb_plan_free(plan);
    return status == CB_INVALID || status == CB_UNSUPPORTED ? CB_OK : status;
}
