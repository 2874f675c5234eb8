/* Positions: the bytes they stand for, in exact arithmetic; one planner that is asked several
 * times; ends that do not depend on when the caller stops the search. */
#include <math.h>

#include "plan/planner.h"

#include "check.h"
#include "oom.h"
#include "problems.h"

static cb_alloc alloc;

/* Checks the definition: the smallest integer that is at least k times the range. */
static void check_bytes_at(double k, uint64_t smallest, uint64_t range) {
    const cb_ends ends = {smallest, smallest + range};
    const uint64_t bytes = cb_bytes_at(k, ends);
    CHECK(smallest <= bytes && bytes <= ends.everything);
    const long double product = (long double)k * (long double)range; /* 64 bits of digits */
    if (range < UINT64_C(1) << 11) CHECK(bytes - smallest == (uint64_t)ceill(product));
    CHECK(fabsl((long double)(bytes - smallest) - product) <= 1 + product * 0x1p-62L);
}

TEST(positions_are_exact) {
    const uint64_t sizes[] = {0, 1, 2, 3, 1000, 2047, (UINT64_C(1) << 53) + 1, UINT64_MAX / 2};
    const double places[] = {0, 1, 0.5, 0.1, 0.3, 1 - 0x1p-53, 0x1p-53, 0x1p-64, 0x1p-1074};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t j = 0; j < sizeof places / sizeof *places; j++) {
            check_bytes_at(places[j], 0, sizes[i]);
            check_bytes_at(places[j], 12345, sizes[i]);
        }
        CHECK(cb_bytes_at(0, (cb_ends){7, 7 + sizes[i]}) == 7);
        CHECK(cb_bytes_at(1, (cb_ends){7, 7 + sizes[i]}) == 7 + sizes[i]);
        CHECK(cb_bytes_at(0x1p-1074, (cb_ends){7, 7 + sizes[i]}) == 7 + (sizes[i] > 0));
    }
    CHECK(cb_bytes_at(0.5, (cb_ends){8, 7}) == 8 && cb_bytes_at(1, (cb_ends){8, 7}) == 8);
    CHECK(cb_bytes_at(0.1, (cb_ends){0, 30}) == 4); /* 0.1 is a little more than a tenth */
}

static bool same_plan(const cb_plan *a, const cb_plan *b) {
    const cb_schedule *x = &a->schedule, *y = &b->schedule;
    return x->n_step == y->n_step && a->lower_bound_ps == b->lower_bound_ps &&
           a->budget_bytes == b->budget_bytes && a->arena_bytes == b->arena_bytes &&
           memcmp(x->step, y->step, x->n_step * sizeof *x->step) == 0;
}

static uint64_t measured(const cb_plan *plan) {
    const uint64_t bytes[CB_MEASURE_COUNT] = {plan->arena_bytes, plan->live_bytes,
                                              plan->saved_bytes, plan->total_bytes};
    return bytes[plan->measure];
}

/* Checks that the same position asked alone, and the bytes it stands for, give the same plan. */
static void check_alone(const cb_problem *p, cb_plan_options o, const cb_plan *plan) {
    cb_plan *alone = NULL, *again = NULL;
    CHECK_OK(cb_plan_make(p, &o, &alloc, &alone, &err));
    CHECK(same_plan(plan, alone));
    o.budget.kind = CB_BUDGET_BYTES;
    o.budget.bytes = plan->budget_bytes;
    CHECK_OK(cb_plan_make(p, &o, &alloc, &again, &err));
    CHECK(same_plan(plan, again) && again->position < 0);
    cb_plan_free(alone);
    cb_plan_free(again);
}

/* Checks that at each position the plan is no larger and no faster than the next one. Plans at
 * every fifth position (at every one if all random cases run) equal the plans for their bytes. */
static void check_positions(const cb_problem *p, cb_measure measure) {
    cb_plan_options o = {0};
    cb_planner *planner = NULL;
    cb_plan *before = NULL, *plan = NULL;
    const int n = check_is_brief() ? 5 : 11;
    const int step = (int)check_rounds(check_is_brief() ? 4 : 5, 1); /* each takes a search */
    cb_ends ends;
    CHECK_OK(cb_plan_ends(p, &o, measure, &alloc, &ends, &err));
    CHECK_OK(cb_planner_new(p, &o, &alloc, &planner, &err));
    for (int i = 0; i < n; i++) {
        o.budget = (cb_budget){.kind = CB_BUDGET_POSITION, .measure = measure};
        o.budget.share = i / (n - 1.0);
        CHECK_OK(cb_planner_ask(planner, &o.budget, &plan, &err));
        CHECK(plan->smallest_bytes == ends.smallest && plan->everything_bytes == ends.everything);
        CHECK(plan->position >= 0 && plan->budget_bytes == cb_bytes_at(plan->position, ends));
        CHECK(measured(plan) <= plan->budget_bytes);
        if (i % step == 0) check_alone(p, o, plan);
        if (before) CHECK(measured(before) <= measured(plan) && before->time_ps >= plan->time_ps);
        cb_plan_free(before);
        before = plan;
    }
    cb_plan_free(before);
    cb_planner_free(planner);
}

TEST(positions_are_met_and_rise) {
    static maker m;
    for (uint64_t seed = 0; seed < check_rounds(4, 40); seed++) {
        make_random(&m, 900 + seed, 4 + (uint32_t)(seed % 5) * 4);
        cb_problem *p = make_problem(&m, &alloc);
        check_positions(p, (cb_measure)(seed % CB_MEASURE_COUNT));
        cb_problem_free(p);
    }
}

static int finish(void *user) {
    (void)user;
    return CB_POLL_FINISH;
}
static int cancel(void *user) {
    (void)user;
    return CB_POLL_CANCEL;
}

TEST(ends_do_not_depend_on_when_the_caller_wants_an_end) {
    static maker m;
    cb_ends ends, hurried;
    cb_plan *plan = NULL;
    make_random(&m, 950, 12);
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan_options o = {0};
    CHECK_OK(cb_plan_ends(p, &o, CB_MEASURE_LIVE, &alloc, &ends, &err));
    o.poll = (cb_poll){finish, NULL};
    CHECK_OK(cb_plan_ends(p, &o, CB_MEASURE_LIVE, &alloc, &hurried, &err));
    CHECK(hurried.smallest == ends.smallest && hurried.everything == ends.everything);
    for (int i = 0; i <= 4; i++) {
        o.budget =
            (cb_budget){.kind = CB_BUDGET_POSITION, .share = i / 4.0, .measure = CB_MEASURE_LIVE};
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        CHECK(plan->budget_bytes == cb_bytes_at(o.budget.share, ends));
        CHECK(plan->live_bytes <= plan->budget_bytes);
        cb_plan_free(plan);
    }
    o.poll = (cb_poll){cancel, NULL};
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_CANCELLED, "cancelled");
    cb_problem_free(p);
}

static cb_status ask_twice(cb_alloc *a, void *user) {
    const cb_plan_options o = {0};
    cb_planner *planner = NULL;
    cb_plan *plan = NULL;
    cb_error why;
    cb_status status = cb_planner_new(user, &o, a, &planner, &why);
    for (int i = 0; i < 2 && status == CB_OK; i++) {
        const cb_budget budget = {.kind = CB_BUDGET_POSITION, .share = 0.5 * i};
        status = cb_planner_ask(planner, &budget, &plan, &why);
        if (status == CB_OK) cb_plan_free(plan);
    }
    cb_planner_free(planner);
    return status;
}

TEST(memory_runs_out) {
    static maker m;
    make_random(&m, 76, 3);
    cb_problem *p = make_problem(&m, &alloc);
    check_oom_after(ask_twice, p, check_rounds(20, CB_OOM_ALL));
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(positions_are_exact);
    RUN(positions_are_met_and_rise);
    RUN(ends_do_not_depend_on_when_the_caller_wants_an_end);
    RUN(memory_runs_out);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
