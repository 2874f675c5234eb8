/* The planner in one screen: facts, the save-everything reference, the schedule (a preset's cut or
 * the search for a budget), then evaluation, offsets and reasons. */
#include "planner.h"

#include "cut/mincut.h"
#include "cut/search_saved.h"
#include "explain/decide.h"
#include "model/device.h"
#include "offload/offload.h"
#include "schedule/decisions.h"
#include "schedule/goal.h"
#include "schedule/offload_sim.h"
#include "schedule/sim.h"
#include "search/search.h"

static cb_status fail_saved(cb_error *err) {
    return cb_fail(err, CB_UNSUPPORTED,
                   "plan: offload goes with a budget on live, arena or total, not on saved");
}

/* Copies to the host are of whole ops, and PyTorch knows no insides. */
static cb_status check_insides(const cb_problem *p, cb_preset preset, const cb_facts *f,
                               const cb_budget *b, cb_error *err) {
    if (b->offload != CB_OFFLOAD_ASKED || f->offloads)
        return cb_refuse_insides(p, "plan: offload", err);
    if (b->kind == CB_BUDGET_NONE && preset == CB_PRESET_TORCH_COMPAT)
        return cb_refuse_insides(p, "torch-compat", err);
    return CB_OK;
}

static cb_status check_budget(const cb_budget *b, cb_error *err) {
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
    if (b->kind == CB_BUDGET_MIN && !(b->share >= 0 && b->share <= CB_MOST_EXTRA)) {
        return cb_fail(err, CB_INVALID,
                       "budget: an extra time of %g; it must be a share from 0 to %d", b->share,
                       CB_MOST_EXTRA);
    }
    return CB_OK;
}

/* What all budgets of one question share. */
typedef struct planner {
    const cb_problem *p;
    const cb_plan_options *o;
    cb_arena *scratch;
    cb_facts facts;
    cb_sim sim;
    cb_cut cut;
    cb_lives save_all; /* lives of the save-everything plan */
    uint64_t save_all_arena_bytes;
    const cb_budget *budget; /* [n_budget] all that are asked */
    uint32_t n_budget;
    cb_searcher *searcher[2]; /* for peaks, for saved bytes; NULL: not asked so far */
} planner;

static cb_status set_reference(planner *r, cb_error *err) {
    cb_schedule schedule;
    CB_TRY(cb_sim_run(&r->sim, NULL, 0, err));
    CB_TRY(cb_sim_schedule(&r->sim, r->scratch, &schedule, err));
    CB_TRY(cb_schedule_walk(r->p, &schedule, r->facts.device, r->scratch, &r->save_all, err));
    return cb_place(r->p, &r->save_all, r->scratch, r->o->poll, &r->save_all_arena_bytes, err);
}

static cb_goal make_goal(const planner *r, const cb_budget *b) {
    const cb_plan_options *o = r->o;
    cb_goal goal = {
        .measure = b->measure, .bytes = b->bytes, .exact = b->exact, .progress = o->progress};
    goal.poll = o->poll;
    goal.offload = b->offload;
    goal.pinned_bytes = b->pinned_bytes > 0 ? b->pinned_bytes : UINT64_MAX;
    if (b->kind == CB_BUDGET_SHARE) {
        uint64_t whole = cb_measured(r->p, b->measure, &r->save_all, r->save_all_arena_bytes);
        goal.bytes = (uint64_t)(b->share * (double)whole);
    } else if (b->kind == CB_BUDGET_MIN) {
        goal.smallest = true;
        goal.share = b->share > 0 ? b->share : CB_MIN_SHARE;
    }
    return goal;
}

/* PyTorch's partitioner knows no such limits. */
static cb_status check_regions(const cb_problem *p, cb_preset preset, const cb_budget *b,
                               cb_error *err) {
    bool torch = preset == CB_PRESET_TORCH_COMPAT && b->kind == CB_BUDGET_NONE;
    for (uint32_t r = 0; torch && r < p->n_region; r++) {
        if (p->region_limit[r] == UINT64_MAX) continue;
        return cb_fail(err, CB_UNSUPPORTED,
                       "torch-compat: region %s has a limit, which PyTorch does not know; choose "
                       "another preset or a budget",
                       p->region_name[r]);
    }
    return CB_OK;
}

static cb_search_tools tools_of(planner *r) {
    return (cb_search_tools){
        .f = &r->facts, .cut = &r->cut, .sim = &r->sim, .threads = r->o->threads};
}

/* Searches for peaks hear of all goals at once. */
static cb_status new_searcher(planner *r, bool saved, cb_error *err) {
    cb_searcher **out = &r->searcher[saved];
    const cb_search_tools tools = tools_of(r);
    CB_TRY(cb_searcher_new(&tools, r->scratch, out, err));
    if (saved || r->n_budget < 2) return CB_OK;
    cb_goal *goal = CB_NEW(r->scratch, cb_goal, r->n_budget);
    if (!goal) return cb_no_memory(err);
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_budget; i++) {
        if (r->budget[i].kind != CB_BUDGET_NONE) goal[n++] = make_goal(r, &r->budget[i]);
    }
    cb_searcher_expect(*out, goal, n);
    return CB_OK;
}

static cb_status ask_searcher(planner *r, const cb_goal *goal, cb_found *found, cb_error *err) {
    cb_searcher **searcher = &r->searcher[goal->measure == CB_MEASURE_SAVED];
    if (!*searcher) CB_TRY(new_searcher(r, goal->measure == CB_MEASURE_SAVED, err));
    return cb_searcher_ask(*searcher, goal, found, err);
}

/* Where ops have insides, or may be taken in, the frontier finds one plan, and the search, which
 * knows what outputs share and takes values in, another: the better one. */
static cb_status find_saved_inside(planner *r, const cb_goal *goal, cb_found *found,
                                   cb_error *err) {
    cb_found other = {.pairs = {.arena = r->scratch}};
    cb_error why = {0};
    const cb_status known = cb_search_saved(&r->facts, &r->cut, r->o->preset, goal, &other, &why);
    const cb_status status = ask_searcher(r, goal, found, err);
    if (known != CB_OK || (status != CB_OK && status != CB_INFEASIBLE)) return status;
    if (status == CB_OK) {
        if (found->schedule.n_step > 0) return CB_OK;
        CB_TRY(cb_sim_run(&r->sim, found->pairs.list.at, found->pairs.list.len, err));
        const uint64_t saved = r->sim.saved;
        const int64_t time_ps = r->sim.time_ps;
        CB_TRY(cb_sim_run(&r->sim, other.pairs.list.at, other.pairs.list.len, err));
        const bool smaller = goal->smallest && r->sim.saved != saved;
        if (smaller ? r->sim.saved > saved : r->sim.time_ps >= time_ps) return CB_OK;
    } else {
        found->least_extra_ps = -1;
    }
    found->pairs = other.pairs;
    return CB_OK;
}

/* The frontier answers about saved bytes, unless limits of regions leave nothing of it. */
static cb_status find_pairs(planner *r, const cb_goal *goal, cb_found *found, cb_error *err) {
    const cb_facts *f = &r->facts;
    if (goal->measure != CB_MEASURE_SAVED) return ask_searcher(r, goal, found, err);
    if (f->unit_begin || f->inlines) return find_saved_inside(r, goal, found, err);
    cb_status status = cb_search_saved(f, &r->cut, r->o->preset, goal, found, err);
    return status == CB_UNSUPPORTED ? ask_searcher(r, goal, found, err) : status;
}

/* A preset's schedule, with what is to be offloaded on the host. */
static cb_status move_preset(planner *r, const cb_budget *b, const cb_pairs *pairs, cb_plan *plan,
                             cb_error *err) {
    cb_offload_sim offload_sim;
    uint64_t most = b->pinned_bytes > 0 ? b->pinned_bytes : UINT64_MAX;
    CB_TRY(cb_offload_sim_init(&offload_sim, &r->facts, true, r->scratch->alloc, err));
    cb_status status =
        cb_offload_sim_run(&offload_sim, pairs->list.at, pairs->list.len, UINT64_MAX, err);
    if (status == CB_OK && offload_sim.host_bytes > most) {
        const cb_refusal refusal = {.reason = CB_REFUSED_PINNED,
                                    .budget_bytes = UINT64_MAX,
                                    .pinned_bytes = most,
                                    .smallest_bytes = offload_sim.host_bytes};
        status = cb_refuse(err, &refusal);
    }
    if (status == CB_OK)
        status = cb_offload_sim_schedule(&offload_sim, &plan->arena, &plan->schedule, err);
    cb_offload_sim_free(&offload_sim);
    return status;
}

static cb_status choose_moves(planner *r, const cb_goal *goal, cb_plan *plan, cb_error *err) {
    cb_offloaded found;
    cb_searcher **searcher = &r->searcher[false];
    if (!*searcher) CB_TRY(new_searcher(r, false, err));
    const cb_search_tools tools = tools_of(r);
    CB_TRY(cb_search_offload(&tools, *searcher, goal, r->scratch, &found, err));
    if (found.least_extra_ps >= 0 && !r->facts.bent)
        plan->lower_bound_ps = r->facts.once_ps + (int64_t)found.least_extra_ps;
    return cb_schedule_copy(&found.schedule, &plan->arena, &plan->schedule, err);
}

/* What a search finds: into the plan where values move, else what is to be run again. */
static cb_status choose_for(planner *r, const cb_goal *goal, cb_plan *plan, cb_found *found,
                            cb_error *err) {
    if (r->facts.offloads && goal->measure == CB_MEASURE_SAVED) return fail_saved(err);
    if (r->facts.offloads || goal->offload != CB_OFFLOAD_ASKED)
        return choose_moves(r, goal, plan, err);
    CB_TRY(find_pairs(r, goal, found, err));
    if (found->least_extra_ps >= 0 && !r->facts.bent)
        plan->lower_bound_ps = r->facts.once_ps + (int64_t)found->least_extra_ps;
    return CB_OK;
}

/* The smallest plan is looked for within some more time. Where constraints alone take more than
 * that, and nobody has said how much it may be, it is the smallest at any price. */
static cb_status choose_found(planner *r, const cb_budget *budget, cb_plan *plan, cb_found *found,
                              cb_error *err) {
    cb_goal goal = make_goal(r, budget);
    plan->budget_bytes = goal.bytes;
    cb_status status = choose_for(r, &goal, plan, found, err);
    if (status != CB_INFEASIBLE || !goal.smallest || budget->share > 0) return status;
    if (cb_poll_answer(goal.poll) != CB_POLL_GO) return status; /* ended by the caller */
    goal.share = CB_MOST_EXTRA;
    found->schedule = (cb_schedule){0};
    return choose_for(r, &goal, plan, found, err);
}

/* The schedule, into the plan's arena. */
static cb_status choose_schedule(planner *r, const cb_budget *budget, cb_plan *plan,
                                 cb_error *err) {
    cb_found found = {.pairs = {.arena = r->scratch}};
    if (budget->kind == CB_BUDGET_NONE) {
        CB_TRY(cb_cut_poll(&r->cut, err));
        CB_TRY(cb_cut_preset(&r->cut, r->o->preset, err));
        CB_TRY(cb_cut_poll(&r->cut, err));
        CB_TRY(cb_facts_hoist(&r->facts, r->cut.hoist, err));
        CB_TRY(cb_recompute_lazily(&r->facts, r->cut.recompute, NULL, &found.pairs, err));
        if (r->facts.offloads) return move_preset(r, budget, &found.pairs, plan, err);
    } else {
        CB_TRY(choose_found(r, budget, plan, &found, err));
        if (plan->schedule.n_step > 0) return CB_OK;
    }
    if (found.schedule.n_step > 0)
        return cb_schedule_copy(&found.schedule, &plan->arena, &plan->schedule, err);
    CB_TRY(cb_sim_run(&r->sim, found.pairs.list.at, found.pairs.list.len, err));
    return cb_sim_schedule(&r->sim, &plan->arena, &plan->schedule, err);
}

/* Walks and places plan->schedule and fills in what follows from it. */
static cb_status finish_plan(const planner *r, cb_plan *plan, cb_error *err) {
    const cb_problem *p = r->p;
    const cb_facts *f = &r->facts;
    CB_TRY(cb_schedule_walk(p, &plan->schedule, f->device, &plan->arena, &plan->lives, err));
    CB_TRY(cb_place(p, &plan->lives, r->scratch, r->o->poll, &plan->arena_bytes, err));
    CB_TRY(cb_device_copy(f->device, &plan->arena, &plan->device, err));
    plan->fingerprint = cb_problem_fingerprint(p);
    plan->live_bytes = plan->lives.peak_bytes;
    plan->saved_bytes = plan->lives.saved_bytes;
    plan->total_bytes = plan->live_bytes + p->static_bytes;
    plan->save_all_arena_bytes = r->save_all_arena_bytes;
    plan->save_all_live_bytes = r->save_all.peak_bytes;
    plan->save_all_saved_bytes = r->save_all.saved_bytes;
    plan->time_ps = plan->lives.time_ps;
    plan->once_ps = plan->lives.once_ps;
    plan->trivial_ps = f->once_ps;
    CB_TRY(cb_in_bound_class(f, &plan->schedule, &plan->lives, &plan->in_order, err));
    cb_plan_set_bound(plan, plan->lower_bound_ps);
    return cb_decide(f, &r->save_all, plan, err);
}

static cb_status fill_plan(planner *r, const cb_budget *budget, cb_plan *plan, cb_error *err) {
    plan->preset = r->o->preset;
    plan->measure = budget->measure;
    CB_TRY(check_regions(r->p, r->o->preset, budget, err));
    CB_TRY(check_insides(r->p, r->o->preset, &r->facts, budget, err));
    CB_TRY(choose_schedule(r, budget, plan, err));
    CB_TRY(finish_plan(r, plan, err));
    if (budget->kind == CB_BUDGET_MIN) { /* the budget that this turned out to be */
        plan->budget_bytes = cb_measured(r->p, plan->measure, &plan->lives, plan->arena_bytes);
    }
    return CB_OK;
}

static cb_status start(planner *r, const cb_problem *p, const cb_device *device, cb_arena *scratch,
                       cb_error *err) {
    r->p = p;
    r->scratch = scratch;
    CB_TRY(cb_facts_make(p, device ? device : cb_device_find("cpu"), scratch, &r->facts, err));
    CB_TRY(cb_sim_init(&r->sim, &r->facts, scratch->alloc, err));
    return set_reference(r, err);
}

static void stop(planner *r) {
    cb_searcher_free(r->searcher[0]);
    cb_searcher_free(r->searcher[1]);
    cb_sim_free(&r->sim);
    cb_arena_free(r->scratch);
}

/* Adds the question to a refusal: the measure, the share and what that is a share of. */
static void add_question(const planner *r, const cb_budget *b, cb_refusal *out) {
    const bool has_peak = b->measure != CB_MEASURE_SAVED;
    if (out->reason == CB_REFUSED_REGION) return; /* not about the budget */
    out->measure = b->measure;
    if (out->reason != CB_REFUSED_BUDGET && out->reason != CB_REFUSED_STOPPED) return;
    if (b->kind == CB_BUDGET_SHARE) out->share = b->share;
    out->save_all_bytes = cb_measured(r->p, b->measure, &r->save_all, r->save_all_arena_bytes);
    if (has_peak)
        out->held_bytes =
            cb_held_bytes(&r->facts) + (b->measure == CB_MEASURE_TOTAL ? r->p->static_bytes : 0);
}

/* An impossible budget fails alone. */
static cb_status make_one(planner *r, const cb_budget *budget, cb_answer *answer, cb_alloc *alloc,
                          cb_error *err) {
    cb_plan *plan = NULL;
    CB_TRY(cb_plan_new(alloc, &plan, err));
    cb_status status = fill_plan(r, budget, plan, &answer->why);
    if (status == CB_OK) {
        answer->plan = plan;
        return CB_OK;
    }
    cb_plan_free(plan);
    if (status == CB_INFEASIBLE) {
        add_question(r, budget, &answer->why.refusal);
        return CB_OK;
    }
    return cb_fail(err, status, "%s", answer->why.text);
}

cb_status cb_plan_make_many(const cb_problem *p, const cb_plan_options *options,
                            const cb_budget *budget, uint32_t n, cb_alloc *alloc, cb_answer *out,
                            cb_error *err) {
    if ((unsigned)options->preset >= CB_PRESET_COUNT)
        return cb_fail(err, CB_INVALID, "plan: unknown preset %d", (int)options->preset);
    for (uint32_t i = 0; i < n; i++) CB_TRY(check_budget(&budget[i], err));
    for (uint32_t i = 0; i < n; i++) out[i] = (cb_answer){0};
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    planner r = {.o = options, .budget = budget, .n_budget = n};
    cb_status status;
    CB_TRY_DONE(start(&r, p, options->device, &scratch, err));
    CB_TRY_DONE(cb_cut_init(&r.cut, &r.facts, &scratch, err));
    r.cut.poll = options->poll;
    for (uint32_t i = 0; i < n; i++) {
        if (options->progress) *options->progress = (cb_progress){.budget = i};
        CB_TRY_DONE(make_one(&r, &budget[i], &out[i], alloc, err));
    }
done:
    stop(&r);
    for (uint32_t i = 0; i < n && status != CB_OK; i++) {
        cb_plan_free(out[i].plan);
        out[i].plan = NULL;
    }
    return status;
}

cb_status cb_plan_make(const cb_problem *p, const cb_plan_options *options, cb_alloc *alloc,
                       cb_plan **out, cb_error *err) {
    cb_answer answer;
    CB_TRY(cb_plan_make_many(p, options, &options->budget, 1, alloc, &answer, err));
    if (!answer.plan) return cb_refuse(err, &answer.why.refusal);
    *out = answer.plan;
    return CB_OK;
}

cb_status cb_plan_adopt(const cb_problem *p, const cb_device *device, cb_plan *plan,
                        cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, plan->arena.alloc);
    const cb_plan_options never_polls = {0};
    planner r = {.o = &never_polls};
    cb_status status;
    CB_TRY_DONE(start(&r, p, device, &scratch, err));
    CB_TRY_DONE(cb_follow_schedule(&r.facts, &plan->schedule, err));
    CB_TRY_DONE(finish_plan(&r, plan, err));
done:
    stop(&r);
    return status;
}
