/* Whole plans on random problems: every plan is walked again, placed without overlap, within its
 * budget; budgets are monotone; plans survive JSON. */
#include <math.h>
#include <stdlib.h>

#include "plan/planner.h"

#include "check.h"
#include "oom.h"
#include "plan/files/explanation.h"
#include "plan/files/plan_json.h"
#include "problems.h"

static cb_alloc alloc;

static cb_plan_options options(cb_preset preset) { return (cb_plan_options){.preset = preset}; }

static cb_plan_options budget(cb_measure measure, uint64_t bytes) {
    return (cb_plan_options){
        .budget = {.kind = CB_BUDGET_BYTES, .bytes = bytes, .measure = measure}};
}

static uint64_t measured(const cb_plan *plan, cb_measure measure) {
    const uint64_t bytes[CB_MEASURE_COUNT] = {plan->arena_bytes, plan->live_bytes,
                                              plan->saved_bytes, plan->total_bytes};
    return bytes[measure];
}

static void check_offsets(const cb_problem *p, const cb_lives *lives, uint64_t arena_bytes) {
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *a = &lives->instance[i];
        CHECK(a->offset % p->align == 0 && a->offset + a->bytes <= arena_bytes);
        for (uint32_t j = 0; j < i; j++) {
            const cb_instance *b = &lives->instance[j];
            bool in_time = a->made <= b->last && b->made <= a->last;
            /* they share memory; one begins where the other ends */
            if (lives->over && lives->over[i] == j) {
                CHECK(a->offset == b->offset && a->bytes == b->bytes && a->made == b->last);
                continue;
            }
            CHECK(
                !(in_time && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes));
        }
    }
}

/* Checks everything that a plan promises. */
static void check_plan(const cb_problem *p, const cb_plan *plan) {
    cb_arena arena;
    cb_lives lives = {0};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_schedule_walk(p, &plan->schedule, cb_device_find("cpu"), &arena, &lives, &err));
    CHECK(lives.peak_bytes == plan->live_bytes && lives.saved_bytes == plan->saved_bytes &&
          lives.time_ps == plan->time_ps);
    CHECK(plan->total_bytes == plan->live_bytes + p->static_bytes &&
          plan->time_ps >= plan->once_ps);
    CHECK(plan->arena_bytes % p->align == 0 && plan->live_bytes <= plan->arena_bytes);
    CHECK(plan->budget_bytes == UINT64_MAX || measured(plan, plan->measure) <= plan->budget_bytes);
    check_offsets(p, &plan->lives, plan->arena_bytes);
    for (uint32_t v = 0; v < p->n_value; v++) {
        CHECK((plan->decision[v] == CB_DECISION_NONE) == (plan->reason[v] == CB_REASON_NONE));
        if (p->value_constraint[v] == CB_MUST_SAVE)
            CHECK(plan->decision[v] != CB_DECISION_RECOMPUTE);
        if (p->value_constraint[v] == CB_MUST_RECOMPUTE && plan->reason[v] != CB_REASON_HELD)
            CHECK(plan->decision[v] != CB_DECISION_SAVE);
    }
    cb_arena_free(&arena);
}

TEST(presets_on_random_problems) {
    static maker m;
    for (uint64_t seed = 0; seed < 60; seed += check_rounds(3, 1)) {
        make_random(&m, seed, 10 + (uint32_t)seed);
        if (seed % 2) m.over = 1 + (uint32_t)seed;
        cb_problem *p = make_problem(&m, &alloc);
        p->static_bytes = 123;
        CHECK_OK(cb_problem_verify(p, &err));
        for (cb_preset preset = CB_PRESET_AUTOGRAD; preset < CB_PRESET_COUNT; preset++) {
            cb_plan_options o = options(preset);
            cb_plan *plan = NULL;
            CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
            if (!plan) return;
            check_plan(p, plan);
            if (preset == CB_PRESET_AUTOGRAD) {
                CHECK(plan->saved_bytes == plan->save_all_saved_bytes &&
                      plan->lives.n_recomputed == 0);
                const bool is_same = plan->live_bytes == plan->save_all_live_bytes &&
                                     plan->arena_bytes == plan->save_all_arena_bytes;
                CHECK(p->over_begin ? plan->live_bytes <= plan->save_all_live_bytes : is_same);
                CHECK(plan->lower_bound_ps == plan->time_ps);
            }
            cb_plan_free(plan);
        }
        cb_problem_free(p);
    }
}

/* A larger budget never makes a plan slower, and a smaller one never makes it larger. Below the
 * smallest plan, the error names a number of bytes that does suffice. */
TEST(budgets_are_monotone) {
    static maker m;
    for (uint64_t seed = 100; seed < 106; seed += check_rounds(CB_ASAN ? 4 : 1, 1)) {
        cb_measure measure = (cb_measure)(seed % CB_MEASURE_COUNT);
        make_random(&m, seed, 30);
        m.over = seed < 104 ? 0 : 1 + (uint32_t)seed;
        cb_problem *p = make_problem(&m, &alloc);
        p->static_bytes = 5000;
        cb_plan_options o = options(CB_PRESET_AUTOGRAD);
        cb_plan *plan = NULL;
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        uint64_t whole = measured(plan, measure), last_bytes = 0, smallest = 0;
        int64_t last_time = INT64_MAX;
        cb_plan_free(plan);
        for (uint64_t i = 0; i <= 50; i += check_rounds(10, CB_ASAN ? 5 : 1)) {
            o = budget(measure, whole * i / 50);
            cb_status status = cb_plan_make(p, &o, &alloc, &plan, &err);
            if (status == CB_INFEASIBLE) {
                const cb_refusal *why = &err.refusal;
                CHECK(why->reason == CB_REFUSED_BUDGET && why->measure == measure);
                CHECK(why->budget_bytes == whole * i / 50 && why->save_all_bytes >= whole);
                CHECK(why->op[0] && strcmp(why->location, "model.py:7") == 0 && last_bytes == 0);
                CHECK(why->floor_bytes <= why->smallest_bytes);
                smallest = why->smallest_bytes;
                continue;
            }
            CHECK(status == CB_OK);
            check_plan(p, plan);
            CHECK(measured(plan, measure) >= last_bytes && plan->time_ps <= last_time);
            last_bytes = measured(plan, measure);
            last_time = plan->time_ps;
            cb_plan_free(plan);
        }
        CHECK(last_bytes > 0 && last_time < INT64_MAX);
        if (smallest > 0) {
            o = budget(measure, smallest);
            CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
            CHECK(measured(plan, measure) == smallest);
            cb_plan_free(plan);
            o = budget(measure, smallest - 1);
            CHECK(cb_plan_make(p, &o, &alloc, &plan, &err) == CB_INFEASIBLE);
        }
        cb_problem_free(p);
    }
}

/* Equal layers in a row: with half the bytes of saving everything, less than one forward is
 * recomputed. */
TEST(half_the_memory_of_a_chain) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t value = make_input(&m, 1000), layer[60], n = 60;
    for (uint32_t i = 0; i < n; i++)
        layer[i] = value = make_op(&m, i % 3 ? CB_POP_FUSIBLE : CB_POP_COMPUTE, 1, &value, 6400);
    m.backward_starts = m.n_op;
    uint32_t gradient = make_input(&m, 64);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    for (uint32_t i = n; i-- > 0;)
        gradient = make_op(&m, CB_POP_BACKWARD, 2, (const uint32_t[]){gradient, layer[i]}, 6400);
    m.grad[m.n_grad++] = gradient;
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan_options o = {
        .budget = {.kind = CB_BUDGET_SHARE, .share = 0.5, .measure = CB_MEASURE_ARENA}};
    cb_plan *plan = NULL;
    CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
    check_plan(p, plan);
    CHECK(plan->budget_bytes == plan->save_all_arena_bytes / 2 && plan->lives.n_recomputed < 40 &&
          plan->lives.n_recomputed > 20);
    cb_plan_free(plan);
    o.budget = (cb_budget){.kind = CB_BUDGET_MIN, .measure = CB_MEASURE_ARENA};
    CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
    CHECK((double)plan->time_ps <= 1.4 * (double)plan->once_ps &&
          2 * plan->arena_bytes < plan->save_all_arena_bytes);
    CHECK(plan->budget_bytes == plan->arena_bytes);
    cb_plan_free(plan);
    o.budget.share = 0.01; /* about one layer */
    CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
    CHECK((double)plan->time_ps <= 1.01 * (double)plan->once_ps);
    cb_plan_free(plan);
    cb_problem_free(p);
}

TEST(demands_hold_under_a_budget) {
    static maker m;
    for (uint64_t seed = 0; seed < 20; seed += check_rounds(5, 1)) {
        uint64_t state = seed;
        make_random(&m, 500 + seed, 30);
        for (uint32_t v = 2; v < 24; v++) {
            uint32_t op = 0;
            while (m.out_begin[op + 1] <= v) op++;
            bool plain = !(m.flags[op] & (CB_POP_ONCE | CB_POP_VIEW)) &&
                         m.out_begin[op + 1] - m.out_begin[op] == 1;
            if (plain && maker_draw(&state, 3) == 0)
                m.constraint[v] = maker_draw(&state, 2) ? CB_MUST_SAVE : CB_MUST_RECOMPUTE;
        }
        cb_problem *p = make_problem(&m, &alloc);
        CHECK_OK(cb_problem_verify(p, &err));
        cb_plan_options o = budget(CB_MEASURE_LIVE, UINT64_MAX - 1);
        cb_plan *plan = NULL;
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        if (!plan) return;
        check_plan(p, plan);
        cb_plan_free(plan);
        cb_problem_free(p);
    }
}

TEST(options_are_checked) {
    static maker m;
    make_random(&m, 1, 5);
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan *plan;
    cb_plan_options o = options((cb_preset)17);
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "unknown preset 17");
    o = (cb_plan_options){.budget = {.kind = CB_BUDGET_SHARE, .share = 1.5}};
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "the share is 1.5");
    o = (cb_plan_options){.budget = {.kind = CB_BUDGET_MIN, .share = -1}};
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "extra time is -1");
    for (int i = 0; i < 3; i++) {
        const double wrong[] = {-0.1, 1.1, NAN};
        o = (cb_plan_options){.budget = {.kind = CB_BUDGET_POSITION, .share = wrong[i]}};
        CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "is not in [0, 1]");
    }
    o = (cb_plan_options){.budget = {.kind = CB_BUDGET_KIND_COUNT}};
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "unknown kind of budget");
    cb_problem_free(p);
}

static int stop_after(void *user) { return --*(int *)user < 0; }

TEST(polls_and_stops) {
    static maker m;
    make_random(&m, 2, 30);
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan *plan = NULL;
    int left = 3;
    cb_plan_options o = budget(CB_MEASURE_LIVE, 1u << 30);
    o.poll = (cb_poll){stop_after, &left};
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_CANCELLED, "cancelled");
    left = 1 << 30;
    CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
    cb_plan_free(plan);
    cb_problem_free(p);
}

TEST(json_there_and_back) {
    static maker m;
    for (uint64_t seed = 0; seed < 10; seed++) {
        make_random(&m, seed, 30);
        cb_problem *p = make_problem(&m, &alloc);
        cb_plan_options o = {.preset = CB_PRESET_AGGRESSIVE};
        cb_plan *plan, *back = NULL;
        cb_arena arena;
        cb_str text, again, explained;
        cb_arena_init(&arena, &alloc);
        cb_str_init(&text, &arena);
        cb_str_init(&again, &arena);
        cb_str_init(&explained, &arena);
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        CHECK_OK(cb_plan_to_json(p, plan, &text, &err));
        CHECK_OK(cb_plan_from_json(p, NULL, &alloc, text.at, text.len, &back, &err));
        if (!back) return;
        CHECK_OK(cb_plan_to_json(p, back, &again, &err));
        CHECK(text.len == again.len && memcmp(text.at, again.at, text.len) == 0);
        CHECK_OK(cb_plan_explanation_to_text(p, plan, &explained, &err));
        CHECK(strstr(explained.at, "plan: preset aggressive, no budget") &&
              strstr(explained.at, "model.py:7"));
        cb_plan_free(back);
        p->storage_bytes[0]++;
        CHECK_FAIL(cb_plan_from_json(p, NULL, &alloc, text.at, text.len, &back, &err), CB_INVALID,
                   "but this one has");
        cb_plan_free(plan);
        cb_arena_free(&arena);
        cb_problem_free(p);
    }
}

/* An empty problem, one without a backward, and one without a forward. */
TEST(degenerate_problems) {
    cb_problem *p;
    cb_plan *plan = NULL;
    CHECK_OK(cb_problem_create(&alloc, (cb_problem_sizes){0}, &p, &err));
    cb_plan_options o = options(CB_PRESET_AUTOGRAD), b = budget(CB_MEASURE_ARENA, 0);
    CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
    CHECK(plan->schedule.n_step == 0 && plan->arena_bytes == 0);
    cb_plan_free(plan);
    CHECK_OK(cb_plan_make(p, &b, &alloc, &plan, &err));
    cb_plan_free(plan);
    cb_problem_free(p);
    for (int forward = 0; forward < 2; forward++) {
        maker m = {0};
        uint32_t x = make_input(&m, 8), y = make_op(&m, 0, 1, &x, 100);
        m.backward_starts = forward ? m.n_op : 0;
        if (forward) m.result[m.n_result++] = y;
        else m.grad[m.n_grad++] = y;
        p = make_problem(&m, &alloc);
        CHECK_OK(cb_problem_verify(p, &err));
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        CHECK(plan->live_bytes == 100 && plan->arena_bytes == 128 &&
              plan->saved_bytes == (forward ? 100u : 0u));
        cb_plan_free(plan);
        b = budget(CB_MEASURE_ARENA, 128);
        CHECK_OK(cb_plan_make(p, &b, &alloc, &plan, &err));
        cb_plan_free(plan);
        b = budget(CB_MEASURE_ARENA, 127);
        CHECK_FAIL(cb_plan_make(p, &b, &alloc, &plan, &err), CB_INFEASIBLE,
                   "no plan fits the budget");
        CHECK(err.refusal.reason == CB_REFUSED_BUDGET && err.refusal.share == 0);
        CHECK(err.refusal.budget_bytes == 127 && err.refusal.smallest_bytes == 128);
        CHECK(strcmp(err.refusal.op, "op_1") == 0);
        CHECK(strcmp(err.refusal.location, "model.py:7") == 0);
        cb_problem_free(p);
    }
}

static cb_status plan_and_tell(cb_alloc *a, void *user) {
    const cb_problem *p = user;
    cb_plan_options o = {.budget = {.kind = CB_BUDGET_MIN, .measure = CB_MEASURE_ARENA}};
    cb_plan *plan, *back = NULL;
    CB_TRY(cb_plan_make(p, &o, a, &plan, &err));
    cb_arena arena;
    cb_str text, explained;
    cb_arena_init(&arena, a);
    cb_str_init(&text, &arena);
    cb_str_init(&explained, &arena);
    cb_status status = cb_plan_to_json(p, plan, &text, &err);
    if (status == CB_OK) status = cb_plan_from_json(p, NULL, a, text.at, text.len, &back, &err);
    if (status == CB_OK) status = cb_plan_explanation_to_text(p, plan, &explained, &err);
    cb_plan_free(back);
    cb_plan_free(plan);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    static maker m;
    make_random(&m, 9, 5); /* small, because every allocation of a whole search fails once */
    cb_problem *p = make_problem(&m, &alloc);
    check_oom(plan_and_tell, p);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(presets_on_random_problems);
    RUN(budgets_are_monotone);
    RUN(half_the_memory_of_a_chain);
    RUN(demands_hold_under_a_budget);
    RUN(options_are_checked);
    RUN(polls_and_stops);
    RUN(json_there_and_back);
    RUN(degenerate_problems);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
