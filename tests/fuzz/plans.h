/* plans.h: invariants of a plan of a problem, whether it was made or read. */
#ifndef CB_FUZZ_PLANS_H
#define CB_FUZZ_PLANS_H

#include "plan/files/explanation.h"
#include "plan/files/plan_json.h"
#include "plan/schedule/plan.h"
#include "target.h"

/* Checks that the evaluator accepts the plan's schedule and finds the stated bytes and times. */
static inline void expect_walk(const cb_problem *p, const cb_plan *plan, cb_arena *arena) {
    cb_lives lives;
    uint64_t arena_bytes = 0;
    EXPECT_OK(cb_schedule_walk(p, &plan->schedule, plan->device, arena, &lives, &err));
    EXPECT(lives.peak_bytes == plan->live_bytes && lives.saved_bytes == plan->saved_bytes);
    EXPECT(lives.time_ps == plan->time_ps && lives.once_ps == plan->once_ps);
    EXPECT_OK(cb_place(p, &lives, arena, (cb_poll){0}, &arena_bytes, &err));
    EXPECT(arena_bytes == plan->arena_bytes && plan->arena_bytes >= plan->live_bytes);
}

static inline void expect_explained(const cb_problem *p, const cb_plan *plan, cb_arena *arena) {
    cb_str text;
    const cb_json *doc;
    cb_str_init(&text, arena);
    EXPECT_OK(cb_plan_explanation_to_text(p, plan, &text, &err));
    cb_str_init(&text, arena);
    EXPECT_OK(cb_plan_explanation_to_json(p, plan, &text, &err));
    EXPECT_OK(cb_json_parse(arena, text.at, text.len, &doc, &err));
}

/* Calls every function on the plan; it must survive a round trip. */
static inline void expect_plan(const cb_problem *p, const cb_plan *plan, cb_alloc *alloc) {
    cb_arena arena;
    cb_str first, second, judged;
    cb_plan *again = NULL;
    cb_arena_init(&arena, alloc);
    expect_walk(p, plan, &arena);
    expect_explained(p, plan, &arena);
    cb_str_init(&first, &arena);
    cb_str_init(&second, &arena);
    cb_str_init(&judged, &arena);
    EXPECT_OK(cb_plan_to_json(p, plan, &first, &err));
    EXPECT_OK(cb_plan_from_json(p, NULL, alloc, first.at, first.len, &again, &err));
    EXPECT_OK(cb_plan_to_json(p, again, &second, &err));
    EXPECT(same_text(&first, &second));
    EXPECT_OK(cb_evaluate_to_json(p, NULL, alloc, first.at, first.len, &judged, &err));
    cb_plan_free(again);
    cb_arena_free(&arena);
}

#endif
