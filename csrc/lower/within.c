/* Tries plans from the fastest to the smallest: without a budget, the planner's plan for the
 * budget, the one at position 0 (planner.h), and the smallest at any cost. */
#include "within.h"

#include "../fuse/find_groups.h"
#include "../plan/model/device.h"
#include "../plan/requests.h"
#include "../plan/schedule/goal.h"
#include "../plan/search/floor.h"

typedef struct both {
    cb_plan *plan;
    cb_program *program;
} both;

typedef struct within {
    const cb_lowered *of;
    const cb_plan_options *options;
    cb_budget asked;     /* a position is converted to bytes once these are known */
    cb_planner *planner; /* NULL: not made yet */
    both lowest;         /* plan and program at position 0; empty: not made yet */
    cb_alloc *alloc;
    cb_error *err;
} within;

static void drop(both *b) {
    cb_program_free(b->program);
    cb_plan_free(b->plan);
    *b = (both){0};
}

static cb_status lower(const within *w, both *out) {
    cb_arena scratch;
    cb_expanded expanded;
    cb_arena_init(&scratch, w->alloc);
    const cb_status status =
        cb_lower_plan(w->of, out->plan, &scratch, &expanded, &out->program, w->err);
    cb_arena_free(&scratch);
    if (status != CB_OK) drop(out);
    return status;
}

static cb_status need_planner(within *w) {
    if (w->planner) return CB_OK;
    return cb_planner_new(w->of->p, w->options, w->alloc, &w->planner, w->err);
}

static cb_status make(within *w, const cb_budget *budget, both *out) {
    *out = (both){0};
    CB_TRY(need_planner(w));
    CB_TRY(cb_planner_ask(w->planner, budget, &out->plan, w->err));
    return lower(w, out);
}

/* Uses a separate planner, because a preset may change the order of ops. */
static cb_status make_without_budget(const within *w, both *out) {
    cb_plan_options options = *w->options;
    *out = (both){0};
    options.budget = (cb_budget){.kind = CB_BUDGET_NONE};
    options.ignores_finish = true; /* there is no search, and no other plan to fall back to */
    CB_TRY(cb_plan_make(w->of->p, &options, w->alloc, &out->plan, w->err));
    return lower(w, out);
}

static cb_status make_lowest(within *w) {
    if (w->lowest.plan) return CB_OK;
    CB_TRY(need_planner(w));
    CB_TRY(cb_planner_smallest(w->planner, &w->asked, &w->lowest.plan, w->err));
    return lower(w, &w->lowest);
}

static uint64_t bytes_of(const both *b, cb_measure measure) {
    return measure == CB_MEASURE_ARENA ? b->program->arena_bytes : b->program->live_bytes;
}

/* Returns the limit of the budget. Shares refer to saving everything op by op, as in the
 * planner. */
static uint64_t limit_of(const cb_budget *budget, const cb_plan *plan) {
    if (budget->kind == CB_BUDGET_BYTES) return budget->bytes;
    if (cb_is_smallest(budget)) return 0;
    const bool is_arena = budget->measure == CB_MEASURE_ARENA;
    return (uint64_t)(budget->share *
                      (double)(is_arena ? plan->save_all_arena_bytes : plan->save_all_live_bytes));
}

static void take_lowest(within *w, both *out) {
    drop(out);
    *out = w->lowest;
    w->lowest = (both){0};
}

/* Replaces `out` by the program at position 0 if it fits, and if it is faster or `out` is empty. */
static cb_status try_lowest(within *w, uint64_t limit, both *out) {
    const cb_error why = *w->err;
    const cb_status status = make_lowest(w);
    if (status != CB_OK && status != CB_INFEASIBLE) return status;
    const bool is_faster =
        status == CB_OK && (!out->plan || w->lowest.plan->time_ps < out->plan->time_ps);
    if (is_faster && bytes_of(&w->lowest, w->asked.measure) <= limit) take_lowest(w, out);
    else *w->err = why;
    return CB_OK;
}

/* Records a program for the refusal, which names the smallest of all programs that were tried. */
static void note_program(const within *w, const both *b, cb_error *why) {
    const cb_plan *plan = b->plan;
    const uint64_t bytes = bytes_of(b, w->asked.measure), known = why->refusal.smallest_bytes;
    if (why->refusal.reason != CB_REFUSED_BUDGET || (known > 0 && known <= bytes)) return;
    why->refusal.smallest_bytes = bytes;
    cb_refusal_set_op(&why->refusal, w->of->p, plan->schedule.step[plan->lives.peak_step]);
}

/* Tries the plan for a kind of budget that requests a small one. If its program is larger than the
 * limit, `why` gets its bytes, and `out` stays empty. */
static cb_status try_small(within *w, cb_budget_kind kind, uint64_t limit, cb_error *why,
                           both *out) {
    cb_budget small = w->asked;
    small.kind = kind;
    small.share = 0;
    const cb_status status = make(w, &small, out);
    if (status == CB_INFEASIBLE) return CB_OK;
    CB_TRY(status);
    if (bytes_of(out, small.measure) <= limit) return CB_OK;
    note_program(w, out, why);
    drop(out);
    return CB_OK;
}

/* Handles the case that neither a plan of single ops nor the program at position 0 fits. Of two
 * plans, the smaller one may have the larger program, so both are tried. err->refusal gets the
 * bytes of the smallest program, so that it never names more bytes than "min" takes. */
static cb_status try_smallest(within *w, uint64_t limit, both *out) {
    cb_error why = *w->err;
    CB_TRY(try_small(w, CB_BUDGET_MIN, limit, &why, out));
    if (!out->plan) CB_TRY(try_small(w, CB_BUDGET_SMALLEST, limit, &why, out));
    if (out->plan) return CB_OK;
    if (w->lowest.plan) note_program(w, &w->lowest, &why);
    *w->err = why;
    return CB_INFEASIBLE;
}

/* Refuses a budget that no program can meet, without a search for the smallest plan. */
static cb_status refuse_hopeless(const within *w, uint64_t limit) {
    const cb_device *device = w->options->device;
    uint64_t least = 0;
    cb_arena scratch;
    cb_arena_init(&scratch, w->alloc);
    bool *separate = CB_NEW(&scratch, bool, w->of->p->n_op);
    cb_status status = separate ? CB_OK : cb_no_memory(w->err);
    if (status == CB_OK) {
        cb_mark_separate(w->of->joint, w->of->grouping, w->of->p->n_op, separate);
        status = cb_find_program_floor(w->of->p, device ? device : cb_device_find("cpu"), separate,
                                       &scratch, &least, w->err);
    }
    cb_arena_free(&scratch);
    if (status != CB_OK || least <= limit) return status;
    const cb_refusal refusal = {
        .reason = CB_REFUSED_BUDGET, .measure = w->asked.measure, .budget_bytes = limit};
    return cb_refuse(w->err, &refusal);
}

/* Finds the answer to a budget in bytes that is too small for saving everything. */
static cb_status choose_within(within *w, uint64_t limit, both *out) {
    const cb_status status = make(w, &w->asked, out);
    if (status != CB_OK && status != CB_INFEASIBLE) return status;
    const bool is_slow = status == CB_OK &&
                         (double)out->plan->time_ps >
                             (double)out->plan->once_ps * (1 + cb_planner_little_extra(w->planner));
    if (status == CB_INFEASIBLE || is_slow) CB_TRY(try_lowest(w, limit, out));
    return out->plan ? CB_OK : try_smallest(w, limit, out);
}

/* Finds the smallest program, which need not be that of the smallest plan. */
static cb_status choose_smallest(within *w, both *out) {
    CB_TRY(make(w, &w->asked, out));
    if (w->asked.kind == CB_BUDGET_MIN && w->asked.share > 0) return CB_OK;
    CB_TRY(make_lowest(w));
    if (bytes_of(&w->lowest, w->asked.measure) >= bytes_of(out, w->asked.measure)) return CB_OK;
    take_lowest(w, out);
    return CB_OK;
}

/* Chooses a smaller program. `taken` has the bytes of the program that saves everything. */
static cb_status choose_smaller(within *w, uint64_t taken, uint64_t limit, both *out) {
    if (taken <= limit) return CB_OK;
    if (w->options->brief && !cb_is_smallest(&w->asked)) CB_TRY(refuse_hopeless(w, limit));
    return cb_is_smallest(&w->asked) ? choose_smallest(w, out) : choose_within(w, limit, out);
}

static bool is_for_programs(const within *w) {
    const cb_budget *b = &w->asked;
    return w->of->fuses && b->kind != CB_BUDGET_NONE && b->offload == CB_OFFLOAD_ASKED &&
           (b->measure == CB_MEASURE_ARENA || b->measure == CB_MEASURE_LIVE);
}

/* If a position was requested, converts it to bytes, between the bytes of two programs. */
static cb_status resolve(within *w, uint64_t taken, cb_ends *ends) {
    *ends = (cb_ends){.everything = taken};
    if (w->asked.kind != CB_BUDGET_POSITION) return CB_OK;
    CB_TRY(make_lowest(w));
    const uint64_t lowest = bytes_of(&w->lowest, w->asked.measure);
    ends->smallest = lowest < taken ? lowest : taken;
    w->asked.kind = CB_BUDGET_BYTES;
    w->asked.bytes = cb_bytes_at(w->asked.share, *ends);
    return CB_OK;
}

/* Replaces `fast`, the program without a budget, if the budget requires less. */
static cb_status improve(within *w, both *fast) {
    both other = {0};
    cb_ends ends;
    const uint64_t taken = bytes_of(fast, w->asked.measure);
    CB_TRY(resolve(w, taken, &ends));
    const uint64_t limit = limit_of(&w->asked, fast->plan);
    const cb_status status = choose_smaller(w, taken, limit, &other);
    if (status == CB_INFEASIBLE && !cb_is_brief(w->options, w->err)) {
        note_program(w, fast, w->err);
        /* the floor holds only for ops that run one by one */
        w->err->refusal.floor_bytes = 0;
        w->err->refusal.floor_op[0] = 0;
    }
    if (status != CB_OK) {
        drop(&other);
        return status;
    }
    if (other.plan && bytes_of(&other, w->asked.measure) < taken) {
        drop(fast);
        *fast = other;
    } else {
        drop(&other);
    }
    fast->plan->measure = w->asked.measure;
    if (!cb_is_smallest(&w->asked)) fast->plan->program_budget = limit;
    const cb_budget *given = &w->options->budget;
    if (given->kind == CB_BUDGET_POSITION)
        cb_plan_set_position(fast->plan, given->share, ends.smallest, ends.everything);
    return CB_OK;
}

static cb_status choose(within *w, both *out) {
    if (!is_for_programs(w)) return make(w, &w->asked, out);
    CB_TRY(make_without_budget(w, out));
    const cb_status status = improve(w, out);
    if (status != CB_OK) drop(out);
    return status;
}

cb_status cb_plan_within(const cb_lowered *of, const cb_plan_options *options, cb_alloc *alloc,
                         cb_plan **plan, cb_program **program, cb_error *err) {
    within w = {.of = of, .options = options, .asked = options->budget, .alloc = alloc, .err = err};
    both found = {0};
    const cb_status status = choose(&w, &found);
    drop(&w.lowest);
    cb_planner_free(w.planner);
    CB_TRY(status);
    *plan = found.plan;
    *program = found.program;
    return CB_OK;
}

uint64_t cb_bytes_within(const cb_problem *p, cb_measure measure, const cb_plan *plan,
                         const cb_program *program) {
    if (measure == CB_MEASURE_ARENA) return program->arena_bytes;
    if (measure == CB_MEASURE_LIVE) return program->live_bytes;
    return cb_measured(p, measure, &plan->lives, plan->arena_bytes);
}

/* ---- groups or single ops -------------------------------------------------------------------- */

/* Computes the bytes of the program for this budget. */
static cb_status measure_program(const cb_lowered *of, const cb_plan_options *options,
                                 const cb_budget *budget, cb_alloc *alloc, uint64_t *bytes,
                                 cb_error *err) {
    cb_plan_options own = *options;
    cb_plan *plan;
    cb_program *program;
    own.budget = *budget;
    own.ignores_finish = true; /* a position is the same number of bytes for every time limit */
    CB_TRY(cb_plan_within(of, &own, alloc, &plan, &program, err));
    *bytes = cb_bytes_within(of->p, options->budget.measure, plan, program);
    cb_plan_free(plan);
    cb_program_free(program);
    return CB_OK;
}

static bool has_none(cb_status status) {
    return status == CB_INFEASIBLE || status == CB_UNSUPPORTED;
}

cb_status cb_ends_within(const cb_lowered *groups, const cb_lowered *single,
                         const cb_plan_options *options, cb_alloc *alloc, cb_ends *out,
                         cb_error *err) {
    const cb_budget *asked = &options->budget, none = {.measure = asked->measure};
    const cb_budget lowest = {
        .kind = CB_BUDGET_POSITION, .measure = asked->measure, .pinned_bytes = asked->pinned_bytes};
    uint64_t smallest;
    cb_status status = measure_program(groups, options, &none, alloc, &out->everything, err);
    if (has_none(status))
        status = measure_program(single, options, &none, alloc, &out->everything, err);
    CB_TRY(status);
    status = measure_program(groups, options, &lowest, alloc, &smallest, err);
    if (has_none(status)) status = measure_program(single, options, &lowest, alloc, &smallest, err);
    CB_TRY(status);
    out->smallest = smallest < out->everything ? smallest : out->everything;
    return CB_OK;
}
