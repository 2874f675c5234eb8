/* The planner's main steps: facts, the save-everything reference, the schedule (a preset's cut or
 * the search for a budget), then evaluation, offsets and reasons. */
#include "planner.h"

#include "cut/mincut.h"
#include "cut/search_saved.h"
#include "explain/decide.h"
#include "late/late.h"
#include "model/device.h"
#include "offload/offload.h"
#include "reference.h"
#include "requests.h"
#include "schedule/decisions.h"
#include "search/candidates/weigh.h"
#include "search/tuning.h"

/* A requested budget, converted to bytes if it is a position. */
typedef struct question {
    cb_budget budget;
    double position; /* -1: not a position */
    cb_ends ends;    /* the ends of a position */
} question;

typedef struct known_ends {
    bool known;
    uint64_t pinned_bytes; /* the limit that they hold for */
    cb_ends ends;
    cb_schedule lowest; /* the plan at position 0 */
} known_ends;

/* The search for peaks that may delay ops of the backward. All other code reruns only ops of the
 * forward: the planner's `facts.all` is false. */
typedef struct late_search {
    bool wanted; /* the problem allows late ops and has some */
    cb_facts facts;
    cb_sim sim;
    cb_cut cut;
    cb_late *both; /* NULL: not made yet */
} late_search;

/* State that all budgets share. */
typedef struct planner {
    const cb_problem *p;
    const cb_plan_options *o;
    cb_poll poll;        /* the caller's, except that CB_POLL_FINISH may be ignored */
    bool ignores_finish; /* CB_POLL_FINISH is being ignored */
    bool is_last;        /* this is the last question */
    cb_arena *scratch;
    cb_arena searching; /* memory of the searches */
    cb_placings placings;
    cb_facts facts;
    cb_sim sim;
    cb_cut cut;
    cb_reference save_all;
    const question *question; /* [n_question] the questions of this request */
    uint32_t n_question;
    known_ends ends[CB_MEASURE_COUNT];
    cb_searcher *searcher[2]; /* searchers for peaks and for saved bytes; NULL: not made yet */
    late_search late;
} planner;

static int ask_caller(void *user) {
    const planner *r = user;
    const int answer = cb_poll_answer(r->o->poll);
    return answer == CB_POLL_FINISH && r->ignores_finish ? CB_POLL_GO : answer;
}

static cb_goal make_goal(const planner *r, const cb_budget *b) {
    const cb_plan_options *o = r->o;
    cb_goal goal = {
        .measure = b->measure, .bytes = b->bytes, .exact = b->exact, .progress = o->progress};
    goal.poll = r->poll;
    goal.offload = b->offload;
    goal.pinned_bytes = b->pinned_bytes > 0 ? b->pinned_bytes : UINT64_MAX;
    if (b->kind == CB_BUDGET_SHARE)
        goal.bytes =
            (uint64_t)(b->share * (double)cb_reference_bytes(&r->save_all, r->p, b->measure));
    goal.smallest = cb_is_smallest(b);
    if (b->kind == CB_BUDGET_MIN) goal.share = b->share > 0 ? b->share : CB_MIN_SHARE;
    if (b->kind == CB_BUDGET_SMALLEST) goal.share = CB_MOST_EXTRA;
    return goal;
}

static cb_search_tools tools_of(planner *r, const cb_facts *f, cb_cut *cut, cb_sim *sim) {
    return (cb_search_tools){f, cut, sim, &r->placings, r->o->threads};
}

/* A search for peaks gets all goals at once. */
static cb_status tell_goals(planner *r, cb_error *err) {
    cb_searcher *searcher = r->searcher[false];
    uint32_t n = 0;
    if (!searcher || r->n_question < 2) return CB_OK;
    cb_goal *goal = CB_NEW(r->scratch, cb_goal, r->n_question);
    if (!goal) return cb_no_memory(err);
    for (uint32_t i = 0; i < r->n_question; i++) {
        const cb_budget *budget = &r->question[i].budget;
        if (budget->kind != CB_BUDGET_NONE) goal[n++] = make_goal(r, budget);
    }
    if (r->late.both) cb_late_expect(r->late.both, goal, n);
    else cb_searcher_expect(searcher, goal, n);
    return CB_OK;
}

static cb_status new_late_searcher(planner *r, cb_error *err) {
    late_search *l = &r->late;
    const cb_search_tools tools = tools_of(r, &l->facts, &l->cut, &l->sim);
    CB_TRY(cb_facts_make(r->p, r->facts.device, &r->searching, &l->facts, err));
    cb_late_keep_ends(&l->facts);
    CB_TRY(cb_sim_init(&l->sim, &l->facts, r->scratch->alloc, err));
    CB_TRY(cb_cut_init(&l->cut, &l->facts, &r->searching, err));
    l->cut.poll = r->cut.poll;
    return cb_late_new(&tools, r->searcher[false], &r->searching, &l->both, err);
}

static cb_status new_searcher(planner *r, bool saved, cb_error *err) {
    const cb_search_tools tools = tools_of(r, &r->facts, &r->cut, &r->sim);
    CB_TRY(cb_searcher_new(&tools, &r->searching, &r->searcher[saved], err));
    if (saved) return CB_OK;
    if (r->late.wanted) CB_TRY(new_late_searcher(r, err));
    return tell_goals(r, err);
}

static cb_status ask_searcher(planner *r, const cb_goal *goal, cb_found *found, cb_error *err) {
    cb_searcher **searcher = &r->searcher[goal->measure == CB_MEASURE_SAVED];
    if (!*searcher) CB_TRY(new_searcher(r, goal->measure == CB_MEASURE_SAVED, err));
    if (goal->measure != CB_MEASURE_SAVED && r->late.wanted)
        return cb_late_ask(r->late.both, goal, found, err);
    return cb_searcher_ask(*searcher, goal, found, err);
}

/* Finds the better of the frontier's plan and the search's. With insides or inlinings only the
 * search knows what outputs share. In small problems each value is a large share of the memory, and
 * the frontier has no plan between two points. The frontier's bound holds for both. */
static cb_status find_saved_by_both(planner *r, const cb_goal *goal, cb_found *found,
                                    cb_error *err) {
    cb_found other = {.pairs = {.arena = r->scratch}};
    cb_error why = {0};
    const cb_status known = cb_search_saved(&r->facts, &r->cut, r->o->preset, goal, &other, &why);
    if (known == CB_NOMEM) return cb_no_memory(err);
    const cb_status status = ask_searcher(r, goal, found, err);
    if (known != CB_OK || (status != CB_OK && status != CB_INFEASIBLE)) return status;
    found->least_extra_ps = other.least_extra_ps;
    if (status == CB_OK) {
        if (found->schedule.n_step > 0) return CB_OK;
        CB_TRY(cb_sim_run(&r->sim, found->pairs.list.at, found->pairs.list.len, err));
        const uint64_t saved = r->sim.saved;
        const int64_t time_ps = r->sim.time_ps;
        CB_TRY(cb_sim_run(&r->sim, other.pairs.list.at, other.pairs.list.len, err));
        const bool smaller = goal->smallest && r->sim.saved != saved;
        if (smaller ? r->sim.saved > saved : r->sim.time_ps >= time_ps) return CB_OK;
    }
    found->pairs = other.pairs;
    return CB_OK;
}

/* The frontier answers budgets on saved bytes, unless limits of regions exclude all its points. */
static cb_status find_pairs(planner *r, const cb_goal *goal, cb_found *found, cb_error *err) {
    const cb_facts *f = &r->facts;
    if (goal->measure != CB_MEASURE_SAVED) return ask_searcher(r, goal, found, err);
    if (f->unit_begin || f->inlines) return find_saved_by_both(r, goal, found, err);
    const bool is_small = f->n_base < CB_SMALL_OPS && r->o->preset == CB_PRESET_AUTOGRAD &&
                          !goal->smallest; /* position 0 is the frontier's end */
    const cb_status status = cb_search_saved(f, &r->cut, r->o->preset, goal, found, err);
    if (status == CB_UNSUPPORTED) return ask_searcher(r, goal, found, err);
    return status == CB_OK && is_small ? find_saved_by_both(r, goal, found, err) : status;
}

static cb_status ask_without(void *user, const cb_goal *goal, cb_found *found, cb_error *err) {
    return ask_searcher(user, goal, found, err);
}

/* Searches for moves never delay ops of the backward, but the plan without moves may do so. */
static cb_status bound_late_moves(planner *r, const cb_goal *goal, cb_offloaded *found,
                                  cb_error *err) {
    cb_found known = {.cost_ps = found->time_ps, .bytes = found->bytes, .least_extra_ps = -1};
    CB_TRY(cb_late_prove_moves(r->late.both, goal, &known, err));
    found->least_extra_ps = known.least_extra_ps;
    return CB_OK;
}

static cb_status choose_moves(planner *r, const cb_goal *goal, cb_plan *plan, cb_error *err) {
    cb_offloaded found;
    if (!r->searcher[false]) CB_TRY(new_searcher(r, false, err));
    const cb_search_tools tools = tools_of(r, &r->facts, &r->cut, &r->sim);
    const cb_ask_without without = {ask_without, r};
    CB_TRY(cb_search_offload(&tools, without, goal, r->scratch, &found, err));
    if (r->late.wanted && found.least_extra_ps >= 0) CB_TRY(bound_late_moves(r, goal, &found, err));
    if (found.least_extra_ps >= 0 && !r->facts.bent)
        plan->lower_bound_ps = r->facts.once_ps + (int64_t)found.least_extra_ps;
    return cb_schedule_copy(&found.schedule, &plan->arena, &plan->schedule, err);
}

/* Stores the result of a search: in the plan if values move, otherwise as the set of reruns. */
static cb_status choose_for(planner *r, const cb_goal *goal, cb_plan *plan, cb_found *found,
                            cb_error *err) {
    if (r->facts.offloads && goal->measure == CB_MEASURE_SAVED) return cb_refuse_saved(err);
    if (r->facts.offloads || goal->offload != CB_OFFLOAD_ASKED)
        return choose_moves(r, goal, plan, err);
    CB_TRY(find_pairs(r, goal, found, err));
    if (found->least_extra_ps >= 0 && !r->facts.bent)
        plan->lower_bound_ps = r->facts.once_ps + (int64_t)found->least_extra_ps;
    return CB_OK;
}

/* Searches for the smallest plan within a share of extra time, or without a limit if the
 * constraints alone take more and the caller gave no share. */
static cb_status choose_found(planner *r, const cb_budget *budget, const cb_goal *goal,
                              cb_plan *plan, cb_found *found, cb_error *err) {
    plan->budget_bytes = goal->bytes;
    cb_status status = choose_for(r, goal, plan, found, err);
    const bool may_retry = budget->kind == CB_BUDGET_MIN && !(budget->share > 0);
    if (status != CB_INFEASIBLE || !may_retry) return status;
    if (cb_poll_answer(goal->poll) != CB_POLL_GO) return status; /* the caller ended it */
    cb_goal any = *goal;
    any.share = CB_MOST_EXTRA;
    found->schedule = (cb_schedule){0};
    return choose_for(r, &any, plan, found, err);
}

static cb_status choose_for_budget(planner *r, const cb_budget *budget, const cb_goal *goal,
                                   cb_plan *plan, cb_error *err) {
    cb_found found = {.pairs = {.arena = r->scratch}};
    CB_TRY(choose_found(r, budget, goal, plan, &found, err));
    if (plan->schedule.n_step > 0) return CB_OK;
    if (found.schedule.n_step > 0)
        return cb_schedule_copy(&found.schedule, &plan->arena, &plan->schedule, err);
    CB_TRY(cb_sim_run(&r->sim, found.pairs.list.at, found.pairs.list.len, err));
    return cb_sim_schedule(&r->sim, &plan->arena, &plan->schedule, err);
}

/* True if a plan at position 0 is known to fit. A search that ended early may have none. */
static bool lowest_fits(const planner *r, const cb_budget *budget, const cb_goal *goal) {
    const known_ends *known = &r->ends[goal->measure];
    return known->known && known->pinned_bytes == budget->pinned_bytes && !goal->smallest &&
           goal->offload != CB_OFFLOAD_ONLY && known->ends.smallest <= goal->bytes;
}

/* Makes the schedule of a preset in the plan's arena. */
static cb_status choose_preset(planner *r, uint64_t pinned_bytes, cb_plan *plan, cb_error *err) {
    cb_pairs pairs = {.arena = r->scratch};
    cb_facts facts;
    cb_sim sim;
    CB_TRY(cb_cut_poll(&r->cut, err));
    CB_TRY(cb_cut_preset(&r->cut, r->o->preset, err));
    CB_TRY(cb_cut_poll(&r->cut, err));
    CB_TRY(cb_facts_hoist(&r->facts, r->cut.hoist, r->scratch, &facts, err));
    CB_TRY(cb_recompute_lazily(&facts, r->cut.recompute, NULL, &pairs, err));
    if (facts.offloads)
        return cb_offload_preset(&facts, pinned_bytes, &pairs, &plan->arena, &plan->schedule, err);
    CB_TRY(cb_sim_init(&sim, &facts, r->scratch->alloc, err));
    cb_status status = cb_sim_run(&sim, pairs.list.at, pairs.list.len, err);
    if (status == CB_OK) status = cb_sim_schedule(&sim, &plan->arena, &plan->schedule, err);
    cb_sim_free(&sim);
    return status;
}

/* Makes the schedule in the plan's arena. */
static cb_status choose_schedule(planner *r, const cb_budget *budget, cb_plan *plan,
                                 cb_error *err) {
    if (budget->kind == CB_BUDGET_NONE) return choose_preset(r, budget->pinned_bytes, plan, err);
    const cb_goal goal = make_goal(r, budget);
    const cb_status status = choose_for_budget(r, budget, &goal, plan, err);
    if (status != CB_INFEASIBLE || !lowest_fits(r, budget, &goal)) return status;
    return cb_schedule_copy(&r->ends[goal.measure].lowest, &plan->arena, &plan->schedule, err);
}

/* Checks and places plan->schedule, and fills in all fields that follow from it and the problem. */
static cb_status finish_plan(planner *r, cb_plan *plan, cb_error *err) {
    const cb_problem *p = r->p;
    cb_facts followed, *f = &followed;
    CB_TRY(cb_follow_schedule(&r->facts, &plan->schedule, r->scratch, f, err));
    cb_facts all = *f; /* a schedule may run everything that the problem allows */
    all.all = r->late.wanted;
    CB_TRY(cb_schedule_walk(p, &plan->schedule, f->device, &plan->arena, &plan->lives, err));
    CB_TRY(
        cb_place_again(&r->placings, &plan->lives, r->scratch, r->poll, &plan->arena_bytes, err));
    CB_TRY(cb_device_copy(f->device, &plan->arena, &plan->device, err));
    plan->fingerprint = cb_problem_fingerprint(p);
    plan->live_bytes = plan->lives.peak_bytes;
    plan->saved_bytes = plan->lives.saved_bytes;
    plan->total_bytes = plan->live_bytes + p->static_bytes;
    plan->save_all_arena_bytes = r->save_all.arena_bytes;
    plan->save_all_live_bytes = r->save_all.live_bytes;
    plan->save_all_saved_bytes = r->save_all.saved_bytes;
    plan->time_ps = plan->lives.time_ps;
    plan->once_ps = plan->lives.once_ps;
    plan->trivial_ps = f->once_ps;
    CB_TRY(cb_in_bound_class(&all, &plan->schedule, &plan->lives, &plan->in_order, err));
    cb_plan_set_bound(plan, plan->lower_bound_ps);
    return cb_decide(f, r->save_all.at_peak, plan, err);
}

/* Frees the memory that only searches use. */
static void end_search(planner *r) {
    cb_late_free(r->late.both);
    cb_sim_free(&r->late.sim);
    cb_searcher_free(r->searcher[0]);
    cb_searcher_free(r->searcher[1]);
    cb_sim_free(&r->sim);
    cb_arena_free(&r->searching);
    r->late.both = NULL;
    r->searcher[0] = r->searcher[1] = NULL;
}

static cb_status fill_plan(planner *r, const cb_budget *budget, cb_plan *plan, cb_error *err) {
    plan->preset = r->o->preset;
    plan->measure = budget->measure;
    CB_TRY(cb_check_regions(r->p, r->o->preset, budget, err));
    CB_TRY(cb_check_insides(r->p, r->o->preset, &r->facts, budget, err));
    CB_TRY(choose_schedule(r, budget, plan, err));
    if (r->is_last) end_search(r);
    CB_TRY(finish_plan(r, plan, err));
    if (cb_is_smallest(budget)) /* the budget in bytes */
        plan->budget_bytes = cb_measured(r->p, plan->measure, &plan->lives, plan->arena_bytes);
    return CB_OK;
}

/* ---- positions ------------------------------------------------------------------------------- */

/* Finds the plan at position 0 and its bytes. */
static cb_status find_lowest(planner *r, const cb_budget *like, known_ends *out, cb_error *err) {
    const cb_budget lowest = cb_lowest_of(like);
    cb_goal goal = make_goal(r, &lowest);
    cb_plan *plan;
    cb_weight weight;
    goal.progress = NULL;
    goal.skips_bound = goal.quick = true;
    CB_TRY(cb_plan_new(r->scratch->alloc, &plan, err));
    cb_status status = choose_for_budget(r, &lowest, &goal, plan, err);
    if (status == CB_OK)
        status = cb_weigh_schedule(&r->facts, &goal, &r->placings, &plan->schedule, &weight, err);
    if (status == CB_OK) {
        out->ends.smallest = weight.bytes;
        status = cb_schedule_copy(&plan->schedule, r->scratch, &out->lowest, err);
    }
    cb_plan_free(plan);
    return status;
}

static cb_status find_ends(planner *r, const cb_budget *like, cb_ends *out, cb_error *err) {
    known_ends *known = &r->ends[like->measure];
    const bool ignored = r->ignores_finish;
    if (!known->known || known->pinned_bytes != like->pinned_bytes) {
        known_ends found = {.known = true, .pinned_bytes = like->pinned_bytes};
        found.ends.everything = cb_reference_bytes(&r->save_all, r->p, like->measure);
        r->ignores_finish = true;
        const cb_status status = find_lowest(r, like, &found, err);
        r->ignores_finish = ignored;
        CB_TRY(status);
        *known = found;
    }
    *out = known->ends;
    return CB_OK;
}

/* Converts a position to bytes; other budgets are unchanged. */
static cb_status resolve(planner *r, const cb_budget *budget, question *out, cb_error *err) {
    *out = (question){.budget = *budget, .position = -1};
    if (budget->kind != CB_BUDGET_POSITION) return CB_OK;
    CB_TRY(cb_check_insides(r->p, r->o->preset, &r->facts, budget, err));
    CB_TRY(find_ends(r, budget, &out->ends, err));
    if (budget->bytes > 0) out->ends.everything = budget->bytes;
    out->position = budget->share;
    out->budget.kind = CB_BUDGET_BYTES;
    out->budget.bytes = cb_bytes_at(budget->share, out->ends);
    return CB_OK;
}

static cb_status start(planner *r, const cb_problem *p, const cb_device *device, cb_arena *scratch,
                       cb_error *err) {
    r->p = p;
    r->scratch = scratch;
    cb_arena_init(&r->searching, scratch->alloc);
    cb_placings_init(&r->placings, p, scratch->alloc);
    if (r->o->poll.ask) r->poll = (cb_poll){ask_caller, r};
    r->ignores_finish = r->o->ignores_finish;
    if (!device) device = cb_device_find("cpu");
    CB_TRY(cb_facts_make(p, device, scratch, &r->facts, err));
    r->late.wanted = cb_may_delay_any(&r->facts);
    r->facts.all = false;
    CB_TRY(cb_sim_init(&r->sim, &r->facts, scratch->alloc, err));
    return cb_reference_make(&r->sim, r->poll, scratch, &r->save_all, err);
}

static void stop(planner *r) {
    end_search(r);
    cb_placings_free(&r->placings);
    cb_arena_free(r->scratch);
}

/* Records why one budget cannot be met; the other budgets are not affected. */
static cb_status refuse_alone(const planner *r, const cb_budget *budget, cb_status status,
                              cb_answer *answer, cb_error *err) {
    if (status != CB_INFEASIBLE) return cb_fail(err, status, "%s", answer->why.text);
    cb_refusal_add_request(&r->facts, &r->save_all, budget, &answer->why.refusal);
    return CB_OK;
}

static cb_status make_one(planner *r, const question *q, cb_answer *answer, cb_alloc *alloc,
                          cb_error *err) {
    cb_plan *plan = NULL;
    if (answer->why.status == CB_INFEASIBLE) return CB_OK; /* there are no such ends */
    CB_TRY(cb_plan_new(alloc, &plan, err));
    const cb_status status = fill_plan(r, &q->budget, plan, &answer->why);
    if (status != CB_OK) {
        cb_plan_free(plan);
        return refuse_alone(r, &q->budget, status, answer, err);
    }
    cb_plan_set_position(plan, q->position, q->ends.smallest, q->ends.everything);
    answer->plan = plan;
    return CB_OK;
}

static cb_status resolve_one(planner *r, const cb_budget *budget, question *out, cb_answer *answer,
                             cb_error *err) {
    *answer = (cb_answer){0};
    const cb_status status = resolve(r, budget, out, &answer->why);
    if (status != CB_OK) return refuse_alone(r, budget, status, answer, err);
    answer->why = (cb_error){0}; /* a search may have failed before another found a plan */
    return CB_OK;
}

/* Answers one budget. If the budget is impossible, `why` has the reason. */
static cb_status answer_one(planner *r, const cb_budget *budget, cb_alloc *alloc, cb_answer *out,
                            cb_error *err) {
    question q;
    CB_TRY(resolve_one(r, budget, &q, out, err));
    return make_one(r, &q, out, alloc, err);
}

/* Positions are converted to bytes first, so that the search gets all goals at once. */
static cb_status resolve_all(planner *r, const cb_budget *budget, uint32_t n, cb_answer *out,
                             cb_error *err) {
    question *all = CB_NEW(r->scratch, question, n);
    if (!all) return cb_no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        CB_TRY(resolve_one(r, &budget[i], &all[i], &out[i], err));
        if (out[i].why.status == CB_INFEASIBLE) all[i].budget.kind = CB_BUDGET_NONE;
    }
    r->question = all;
    r->n_question = n;
    return tell_goals(r, err);
}

static cb_status start_search(planner *r, const cb_problem *p, cb_arena *scratch, cb_error *err) {
    CB_TRY(start(r, p, r->o->device, scratch, err));
    CB_TRY(cb_cut_init(&r->cut, &r->facts, &r->searching, err));
    r->cut.poll = r->poll;
    return CB_OK;
}

static cb_status answer_until_met(planner *r, const cb_budget *budget, uint32_t n, cb_alloc *alloc,
                                  cb_answer *out, cb_error *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (r->o->progress) *r->o->progress = (cb_progress){.budget = i};
        CB_TRY(answer_one(r, &budget[i], alloc, &out[i], err));
        if (out[i].plan) return CB_OK;
    }
    return CB_OK;
}

static cb_status answer_all(planner *r, const cb_budget *budget, uint32_t n, cb_alloc *alloc,
                            cb_answer *out, cb_error *err) {
    CB_TRY(resolve_all(r, budget, n, out, err));
    for (uint32_t i = 0; i < n; i++) {
        if (r->o->progress) *r->o->progress = (cb_progress){.budget = i};
        r->is_last = i + 1 == n;
        CB_TRY(make_one(r, &r->question[i], &out[i], alloc, err));
    }
    return CB_OK;
}

cb_status cb_plan_make_many(const cb_problem *p, const cb_plan_options *options,
                            const cb_budget *budget, uint32_t n, cb_alloc *alloc, cb_answer *out,
                            cb_error *err) {
    CB_TRY(cb_check_request(options->preset, budget, n, err));
    for (uint32_t i = 0; i < n; i++) out[i] = (cb_answer){0}; /* even if the start fails */
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    planner r = {.o = options};
    cb_status status;
    if (options->progress) *options->progress = (cb_progress){0};
    CB_TRY_DONE(start_search(&r, p, &scratch, err));
    if (options->until_met) CB_TRY_DONE(answer_until_met(&r, budget, n, alloc, out, err));
    else CB_TRY_DONE(answer_all(&r, budget, n, alloc, out, err));
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
    CB_TRY_DONE(finish_plan(&r, plan, err));
done:
    stop(&r);
    return status;
}

/* ---- one planner, asked several times -------------------------------------------------------- */

struct cb_planner {
    cb_arena arena; /* also holds this struct */
    cb_alloc *alloc;
    cb_plan_options options;
    planner core;
};

cb_status cb_planner_new(const cb_problem *p, const cb_plan_options *options, cb_alloc *alloc,
                         cb_planner **out, cb_error *err) {
    cb_arena arena;
    CB_TRY(cb_check_request(options->preset, &options->budget, 1, err));
    cb_arena_init(&arena, alloc);
    cb_planner *self = CB_NEW(&arena, cb_planner, 1);
    if (!self) return cb_no_memory(err);
    *self = (cb_planner){.arena = arena, .alloc = alloc, .options = *options};
    self->core.o = &self->options;
    const cb_status status = start_search(&self->core, p, &self->arena, err);
    if (status == CB_OK) *out = self;
    else cb_planner_free(self);
    return status;
}

void cb_planner_free(cb_planner *self) {
    if (!self) return;
    cb_arena arena = self->arena;
    self->core.scratch = &arena;
    stop(&self->core);
}

cb_status cb_planner_ask(cb_planner *self, const cb_budget *budget, cb_plan **out, cb_error *err) {
    planner *r = &self->core;
    cb_answer answer;
    CB_TRY(cb_check_request(r->o->preset, budget, 1, err));
    if (r->o->progress) *r->o->progress = (cb_progress){0};
    CB_TRY(answer_one(r, budget, self->alloc, &answer, err));
    if (!answer.plan) return cb_refuse(err, &answer.why.refusal);
    *out = answer.plan;
    return CB_OK;
}

double cb_planner_little_extra(const cb_planner *self) {
    const cb_searcher *searcher = self->core.searcher[false];
    return searcher ? cb_searcher_little_extra(searcher) : 0;
}

cb_status cb_planner_smallest(cb_planner *self, const cb_budget *like, cb_plan **out,
                              cb_error *err) {
    planner *r = &self->core;
    cb_plan *plan;
    cb_ends ends;
    CB_TRY(cb_check_insides(r->p, r->o->preset, &r->facts, like, err));
    CB_TRY(find_ends(r, like, &ends, err));
    CB_TRY(cb_plan_new(self->alloc, &plan, err));
    plan->preset = r->o->preset;
    plan->measure = like->measure;
    plan->budget_bytes = ends.smallest;
    cb_status status =
        cb_schedule_copy(&r->ends[like->measure].lowest, &plan->arena, &plan->schedule, err);
    if (status == CB_OK) status = finish_plan(r, plan, err);
    if (status == CB_OK) *out = plan;
    else cb_plan_free(plan);
    return status;
}

cb_status cb_plan_ends(const cb_problem *p, const cb_plan_options *options, cb_measure measure,
                       cb_alloc *alloc, cb_ends *out, cb_error *err) {
    const cb_budget like = {.kind = CB_BUDGET_POSITION,
                            .measure = measure,
                            .pinned_bytes = options->budget.pinned_bytes};
    cb_plan_options own = *options;
    cb_planner *self;
    own.budget = like;
    CB_TRY(cb_planner_new(p, &own, alloc, &self, err));
    cb_status status = cb_check_insides(p, own.preset, &self->core.facts, &like, err);
    if (status == CB_OK) status = find_ends(&self->core, &like, out, err);
    cb_planner_free(self);
    return status;
}
