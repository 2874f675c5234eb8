/* The planner in one screen: facts, the save-everything reference, the schedule (a preset's cut or
 * the search for a budget), then evaluation, offsets and reasons. */
#include "plan.h"

#include "adopt.h"
#include "decide.h"
#include "frontier.h"
#include "mincut.h"
#include "move.h"
#include "offload.h"
#include "search.h"
#include "sim.h"

static cb_status fail_saved(cb_error *err) {
    return cb_fail(err, CB_UNSUPPORTED,
                   "plan: offload goes with a budget on live, arena or total, not on saved");
}

static cb_status check_options(const cb_plan_options *o, cb_error *err) {
    const cb_budget *b = &o->budget;
    if ((unsigned)o->preset >= CB_PRESET_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown preset %d", (int)o->preset);
    if ((unsigned)b->kind > CB_BUDGET_MIN)
        return cb_fail(err, CB_INVALID, "plan: unknown kind of budget %d", (int)b->kind);
    if ((unsigned)b->measure >= CB_MEASURE_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown measure %d", (int)b->measure);
    if ((unsigned)b->offload >= CB_OFFLOAD_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown kind of offload %d", (int)b->offload);
    if (b->offload != CB_OFFLOAD_ASKED && b->kind == CB_BUDGET_NONE)
        return cb_fail(err, CB_INVALID, "plan: offload goes with a budget; give one");
    if (b->offload != CB_OFFLOAD_ASKED && b->measure == CB_MEASURE_SAVED) return fail_saved(err);
    if (b->kind == CB_BUDGET_SHARE && !(b->share > 0 && b->share <= 1)) {
        return cb_fail(err, CB_INVALID, "budget: a share of %g; it must be above 0 and at most 1",
                       b->share);
    }
    if (b->kind == CB_BUDGET_MIN && !(b->share >= 0 && b->share <= 100)) {
        return cb_fail(err, CB_INVALID,
                       "budget: an extra time of %g; it must be a share from 0 to 100", b->share);
    }
    return CB_OK;
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

/* The save-everything plan: its numbers go into `plan`, its lives into `lives`. */
static cb_status set_reference(const cb_facts *f, cb_sim *sim, cb_arena *arena, cb_plan *plan,
                               cb_lives *lives, cb_error *err) {
    cb_schedule schedule;
    CB_TRY(cb_sim_run(sim, NULL, 0, err));
    CB_TRY(cb_sim_schedule(sim, arena, &schedule, err));
    CB_TRY(cb_schedule_walk(f->p, &schedule, f->device, arena, lives, err));
    CB_TRY(cb_place(f->p, lives, arena, &plan->save_all_arena_bytes, err));
    plan->save_all_live_bytes = lives->peak_bytes;
    plan->save_all_saved_bytes = lives->saved_bytes;
    return CB_OK;
}

static cb_goal make_goal(const cb_facts *f, const cb_plan_options *o, const cb_plan *plan,
                         const cb_lives *save_all) {
    const cb_budget *b = &o->budget;
    cb_goal goal = {
        .measure = b->measure, .bytes = b->bytes, .poll = o->poll, .poll_user = o->poll_user};
    goal.offload = b->offload;
    goal.pinned_bytes = b->pinned_bytes > 0 ? b->pinned_bytes : UINT64_MAX;
    if (b->kind == CB_BUDGET_SHARE) {
        uint64_t whole = cb_measured(f->p, b->measure, save_all, plan->save_all_arena_bytes);
        goal.bytes = (uint64_t)(b->share * (double)whole);
    } else if (b->kind == CB_BUDGET_MIN) {
        goal.smallest = true;
        goal.share = b->share > 0 ? b->share : 0.4;
    }
    return goal;
}

/* PyTorch's partitioner knows no such limits. */
static cb_status check_regions(const cb_problem *p, const cb_plan_options *o, cb_error *err) {
    bool torch = o->preset == CB_PRESET_TORCH_COMPAT && o->budget.kind == CB_BUDGET_NONE;
    for (uint32_t r = 0; torch && r < p->n_region; r++) {
        if (p->region_limit[r] == UINT64_MAX) continue;
        return cb_fail(err, CB_UNSUPPORTED,
                       "torch-compat: region %s has a limit, which PyTorch does not know; choose "
                       "another preset or a budget",
                       p->region_name[r]);
    }
    return CB_OK;
}

/* The frontier answers about saved bytes, unless limits of regions leave nothing of it. */
static cb_status find_pairs(const cb_facts *f, cb_cut *cut, cb_sim *sim, cb_preset preset,
                            const cb_goal *goal, cb_found *found, cb_error *err) {
    cb_status status = CB_UNSUPPORTED;
    if (goal->measure == CB_MEASURE_SAVED)
        status = cb_search_saved(f, cut, preset, goal, found, err);
    return status == CB_UNSUPPORTED ? cb_search(f, cut, sim, goal, found, err) : status;
}

/* A preset's schedule, with what is to be offloaded on the host. */
static cb_status move_preset(const cb_facts *f, const cb_plan_options *o, const cb_pairs *pairs,
                             cb_arena *arena, cb_schedule *out, cb_error *err) {
    cb_mover mover;
    uint64_t most = o->budget.pinned_bytes > 0 ? o->budget.pinned_bytes : UINT64_MAX;
    CB_TRY(cb_mover_init(&mover, f, true, arena->alloc, err));
    cb_status status = cb_mover_run(&mover, pairs->list.at, pairs->list.len, UINT64_MAX, err);
    if (status == CB_OK && mover.host_bytes > most) {
        status = cb_fail(err, CB_INFEASIBLE,
                         "what is to be offloaded needs %llu bytes on the host at one time, the "
                         "limit is %llu",
                         (unsigned long long)mover.host_bytes, (unsigned long long)most);
    }
    if (status == CB_OK) status = cb_mover_schedule(&mover, arena, out, err);
    cb_mover_free(&mover);
    return status;
}

static cb_status choose_moves(const cb_facts *f, const cb_goal *goal, cb_cut *cut, cb_sim *sim,
                              cb_arena *arena, cb_plan *plan, cb_error *err) {
    cb_moved found;
    CB_TRY(cb_search_offload(f, cut, sim, goal, arena, &found, err));
    if (found.least_extra_ps >= 0)
        plan->lower_bound_ps = f->once_ps + (int64_t)found.least_extra_ps;
    return cb_schedule_copy(&found.schedule, &plan->arena, &plan->schedule, err);
}

/* The schedule, into the plan's arena. */
static cb_status choose_schedule(const cb_facts *f, const cb_plan_options *o, cb_sim *sim,
                                 cb_arena *arena, cb_plan *plan, const cb_lives *save_all,
                                 cb_error *err) {
    cb_cut cut;
    cb_found found = {.pairs = {.arena = arena}};
    cb_schedule *out = &plan->schedule;
    CB_TRY(cb_cut_init(&cut, f, arena, err));
    if (o->budget.kind == CB_BUDGET_NONE) {
        CB_TRY(cb_cut_preset(&cut, o->preset, err));
        CB_TRY(cb_recompute_lazily(f, cut.recompute, NULL, &found.pairs, err));
        if (f->offloads) return move_preset(f, o, &found.pairs, &plan->arena, out, err);
    } else {
        cb_goal goal = make_goal(f, o, plan, save_all);
        plan->budget_bytes = goal.bytes;
        if (f->offloads && goal.measure == CB_MEASURE_SAVED) return fail_saved(err);
        if (f->offloads || goal.offload != CB_OFFLOAD_ASKED)
            return choose_moves(f, &goal, &cut, sim, arena, plan, err);
        CB_TRY(find_pairs(f, &cut, sim, o->preset, &goal, &found, err));
        if (found.least_extra_ps >= 0)
            plan->lower_bound_ps = f->once_ps + (int64_t)found.least_extra_ps;
    }
    CB_TRY(cb_sim_run(sim, found.pairs.list.at, found.pairs.list.len, err));
    return cb_sim_schedule(sim, &plan->arena, out, err);
}

/* Walks and places plan->schedule and fills in what follows from it. */
static cb_status finish_plan(const cb_facts *f, const cb_lives *save_all, cb_arena *scratch,
                             cb_plan *plan, cb_error *err) {
    const cb_problem *p = f->p;
    CB_TRY(cb_schedule_walk(p, &plan->schedule, f->device, &plan->arena, &plan->lives, err));
    CB_TRY(cb_place(p, &plan->lives, scratch, &plan->arena_bytes, err));
    plan->device = f->device;
    plan->fingerprint = cb_problem_fingerprint(p);
    plan->live_bytes = plan->lives.peak_bytes;
    plan->saved_bytes = plan->lives.saved_bytes;
    plan->total_bytes = plan->live_bytes + p->static_bytes;
    plan->time_ps = plan->lives.time_ps;
    plan->once_ps = plan->lives.once_ps;
    if (plan->lives.n_recomputed == 0) plan->lower_bound_ps = plan->once_ps;
    return cb_decide(f, save_all, plan, err);
}

static cb_status make_plan(const cb_problem *p, const cb_plan_options *o, cb_arena *arena,
                           cb_sim *sim, cb_plan *plan, cb_error *err) {
    cb_facts facts;
    cb_lives save_all;
    CB_TRY(check_regions(p, o, err));
    CB_TRY(cb_facts_make(p, o->device ? o->device : cb_device_find("cpu"), arena, &facts, err));
    CB_TRY(cb_sim_init(sim, &facts, arena->alloc, err));
    CB_TRY(set_reference(&facts, sim, arena, plan, &save_all, err));
    CB_TRY(choose_schedule(&facts, o, sim, arena, plan, &save_all, err));
    CB_TRY(finish_plan(&facts, &save_all, arena, plan, err));
    if (o->budget.kind == CB_BUDGET_MIN) { /* the budget that this turned out to be */
        plan->budget_bytes = cb_measured(p, plan->measure, &plan->lives, plan->arena_bytes);
    }
    return CB_OK;
}

/* A plan lies in the arena it owns. */
cb_status cb_plan_new(cb_alloc *alloc, cb_plan **out, cb_error *err) {
    cb_arena arena;
    cb_arena_init(&arena, alloc);
    cb_plan *plan = CB_NEW(&arena, cb_plan, 1);
    if (!plan) return cb_no_memory(err);
    plan->arena = arena;
    plan->budget_bytes = UINT64_MAX;
    plan->lower_bound_ps = -1;
    *out = plan;
    return CB_OK;
}

void cb_plan_free(cb_plan *plan) {
    if (!plan) return;
    cb_arena arena = plan->arena;
    cb_arena_free(&arena);
}

cb_status cb_plan_make(const cb_problem *p, const cb_plan_options *options, cb_alloc *alloc,
                       cb_plan **out, cb_error *err) {
    CB_TRY(check_options(options, err));
    cb_plan *plan = NULL;
    CB_TRY(cb_plan_new(alloc, &plan, err));
    plan->preset = options->preset;
    plan->measure = options->budget.measure;
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    cb_sim sim = {0};
    cb_status status = make_plan(p, options, &scratch, &sim, plan, err);
    cb_sim_free(&sim);
    cb_arena_free(&scratch);
    if (status == CB_OK) *out = plan;
    else cb_plan_free(plan);
    return status;
}

cb_status cb_plan_adopt(const cb_problem *p, const cb_device *device, cb_plan *plan,
                        cb_error *err) {
    cb_facts facts;
    cb_lives save_all;
    cb_arena scratch;
    cb_arena_init(&scratch, plan->arena.alloc);
    cb_sim sim = {0};
    cb_status status;
    CB_TRY_DONE(cb_facts_make(p, device ? device : cb_device_find("cpu"), &scratch, &facts, err));
    CB_TRY_DONE(cb_sim_init(&sim, &facts, plan->arena.alloc, err));
    CB_TRY_DONE(set_reference(&facts, &sim, &scratch, plan, &save_all, err));
    CB_TRY_DONE(finish_plan(&facts, &save_all, &scratch, plan, err));
done:
    cb_sim_free(&sim);
    cb_arena_free(&scratch);
    return status;
}
