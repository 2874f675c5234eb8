/* Up to three plans are tried, from the fastest to the smallest: without a budget, what the planner
 * finds for it, and the smallest at any price. */
#include "within.h"

typedef struct within {
    const cb_lowered *of;
    cb_plan_options options;
    cb_alloc *alloc;
    cb_error *err;
} within;

typedef struct both {
    cb_plan *plan;
    cb_program *program;
} both;

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
    return status;
}

static cb_status make(const within *w, cb_budget budget, both *out) {
    cb_plan_options options = w->options;
    options.budget = budget;
    *out = (both){0};
    CB_TRY(cb_plan_make(w->of->p, &options, w->alloc, &out->plan, w->err));
    const cb_status status = lower(w, out);
    if (status != CB_OK) drop(out);
    return status;
}

static uint64_t bytes_of(const both *b, cb_measure measure) {
    return measure == CB_MEASURE_ARENA ? b->program->arena_bytes : b->program->live_bytes;
}

/* Of the budget; shares are of saving everything op by op, as the planner has them. */
static uint64_t limit_of(const cb_budget *budget, const cb_plan *plan) {
    if (budget->kind == CB_BUDGET_BYTES) return budget->bytes;
    if (budget->kind == CB_BUDGET_MIN) return 0;
    const bool is_arena = budget->measure == CB_MEASURE_ARENA;
    return (uint64_t)(budget->share *
                      (double)(is_arena ? plan->save_all_arena_bytes : plan->save_all_live_bytes));
}

/* The planner has refused; err->refusal gets what the smallest program takes. */
static cb_status try_smallest(const within *w, uint64_t limit, both *out) {
    cb_error why = *w->err;
    cb_budget smallest = w->options.budget;
    smallest.kind = CB_BUDGET_MIN;
    smallest.share = CB_MOST_EXTRA;
    cb_status status = make(w, smallest, out);
    if (status == CB_INFEASIBLE) *w->err = why;
    if (status != CB_OK) return status;
    const uint64_t bytes = bytes_of(out, smallest.measure);
    if (bytes <= limit) return CB_OK;
    if (why.refusal.smallest_bytes == 0 || bytes < why.refusal.smallest_bytes)
        why.refusal.smallest_bytes = bytes;
    drop(out);
    *w->err = why;
    return CB_INFEASIBLE;
}

static bool is_for_programs(const within *w) {
    const cb_budget *b = &w->options.budget;
    return w->of->fuses && b->kind != CB_BUDGET_NONE && b->offload == CB_OFFLOAD_ASKED &&
           (b->measure == CB_MEASURE_ARENA || b->measure == CB_MEASURE_LIVE);
}

static cb_status choose(const within *w, both *out) {
    const cb_budget asked = w->options.budget;
    both fast = {0};
    if (!is_for_programs(w)) return make(w, asked, out);
    CB_TRY(make(w, (cb_budget){.kind = CB_BUDGET_NONE}, &fast));
    const uint64_t taken = bytes_of(&fast, asked.measure), limit = limit_of(&asked, fast.plan);
    cb_status status = CB_OK;
    if (taken > limit) status = make(w, asked, out);
    if (status == CB_INFEASIBLE && limit > 0) status = try_smallest(w, limit, out);
    if (status == CB_INFEASIBLE) { /* the floor is one for ops that run one by one */
        w->err->refusal.floor_bytes = 0;
        w->err->refusal.floor_op[0] = 0;
    }
    const bool is_best = status == CB_OK && (!out->plan || bytes_of(out, asked.measure) >= taken);
    if (!is_best) {
        drop(&fast);
        return status;
    }
    drop(out);
    *out = fast;
    return CB_OK;
}

cb_status cb_plan_within(const cb_lowered *of, const cb_plan_options *options, cb_alloc *alloc,
                         cb_plan **plan, cb_program **program, cb_error *err) {
    const within w = {of, *options, alloc, err};
    both found = {0};
    CB_TRY(choose(&w, &found));
    *plan = found.plan;
    *program = found.program;
    return CB_OK;
}
