/* Problems and traced graphs, as JSON, followed by planning. The first four bytes select the preset
 * and measure, the budget, the length of the search, and further questions. */
#include "plans.h"

#include "plan/cut/mutwo.h"
#include "plan/files/cut_json.h"
#include "plan/files/frontier_json.h"
#include "plan/model/device.h"
#include "plan/planner.h"
#include "plan/torch/inductor_fusion.h"
#include "plan/torch/traced.h"

/* limit for problems that are planned; larger ones are only read and written */
#define MOST_OPS 120

typedef struct question {
    cb_plan_options options;
    patience patience;
    bool wants_cut, wants_frontier, wants_mutwo;
    uint64_t starve; /* the allocation that fails in a second try; 0: none */
} question;

static void take_question(bytes *b, question *q) {
    static const char *const devices[] = {"cpu", "a100", "a100+fused"};
    static const double shares[] = {0, 0.1, 0.3, 0.5, 0.7, 0.9, 1, 2};
    const uint32_t what = take(b), how = take(b), time = take(b), more = take(b);
    cb_budget *budget = &q->options.budget;
    q->options.preset = (cb_preset)(what % CB_PRESET_COUNT);
    budget->measure = (cb_measure)(what / 8 % CB_MEASURE_COUNT);
    budget->offload = (cb_offload)(what / 32 % CB_OFFLOAD_COUNT);
    switch (how % 4) {
        case 0: budget->kind = CB_BUDGET_NONE; break;
        case 1:
            budget->kind = CB_BUDGET_BYTES;
            budget->bytes = (uint64_t)1 << how / 4 % 40;
            break;
        case 2: budget->kind = how & 32 ? CB_BUDGET_POSITION : CB_BUDGET_SHARE; break;
        default: budget->kind = how & 32 ? CB_BUDGET_SMALLEST : CB_BUDGET_MIN; break;
    }
    if (how % 4 > 1) budget->share = shares[how / 4 % 8];
    budget->exact = how / 128;
    budget->pinned_bytes = more & 1 ? 100 : 0;
    q->patience =
        (patience){.left = time % 64, .then = time < 192 ? CB_POLL_FINISH : CB_POLL_CANCEL};
    q->options.device = cb_device_find(devices[more / 2 % 3]);
    q->wants_cut = more & 8;
    q->wants_frontier = (more & 0x30) == 0x30;
    q->wants_mutwo = more & 64;
    q->starve = more & 128 ? 1 + time : 0;
}

static void expect_problem(const cb_problem *p, cb_alloc *alloc) {
    cb_arena arena;
    cb_str first, second;
    cb_problem *again = NULL;
    cb_arena_init(&arena, alloc);
    cb_str_init(&first, &arena);
    cb_str_init(&second, &arena);
    EXPECT_OK(cb_problem_verify(p, &err));
    EXPECT_OK(cb_problem_to_json(p, &first, &err));
    EXPECT_OK(cb_problem_from_json(alloc, first.at, first.len, &again, &err));
    EXPECT_OK(cb_problem_to_json(again, &second, &err));
    EXPECT(same_text(&first, &second));
    EXPECT(cb_problem_fingerprint(p) == cb_problem_fingerprint(again));
    cb_problem_free(again);
    cb_arena_free(&arena);
}

static uint64_t measured(const cb_plan *plan, cb_measure measure) {
    switch (measure) {
        case CB_MEASURE_ARENA: return plan->arena_bytes;
        case CB_MEASURE_LIVE: return plan->live_bytes;
        case CB_MEASURE_SAVED: return plan->saved_bytes;
        default: return plan->total_bytes;
    }
}

static void plan_it(const cb_problem *p, const question *q, cb_alloc *alloc) {
    cb_plan_options o = q->options;
    patience calls = q->patience;
    cb_plan *plan = NULL;
    o.poll = (cb_poll){run_out, &calls};
    const uint64_t before = cb_alloc_stats(alloc).live_bytes;
    cb_status status = cb_plan_make(p, &o, alloc, &plan, &err);
    if (status == CB_OK) {
        if (o.budget.kind != CB_BUDGET_NONE)
            EXPECT(measured(plan, o.budget.measure) <= plan->budget_bytes);
        expect_plan(p, plan, alloc);
    } else {
        expect_refusal(status);
    }
    cb_plan_free(plan);
    EXPECT(cb_alloc_stats(alloc).live_bytes == before);
    if (!q->starve) return;
    plan = NULL;
    calls = q->patience;
    cb_alloc_fail(alloc, q->starve);
    cb_status starved = cb_plan_make(p, &o, alloc, &plan, &err);
    cb_alloc_fail(alloc, 0);
    EXPECT(starved == status || starved == CB_NOMEM);
    cb_plan_free(plan);
    EXPECT(cb_alloc_stats(alloc).live_bytes == before);
}

static void ask_more(cb_problem *p, const question *q, cb_alloc *alloc) {
    cb_arena arena;
    cb_str text, network;
    cb_status status = CB_OK;
    cb_arena_init(&arena, alloc);
    cb_str_init(&text, &arena);
    cb_str_init(&network, &arena);
    if (q->wants_cut) {
        status = cb_cut_to_json(p, q->options.preset, alloc, NULL, &text, &network, &err);
        if (status != CB_OK) expect_refusal(status);
    }
    if (q->wants_frontier && p->n_op <= MOST_OPS / 4) {
        const cb_frontier_request request = {.preset = q->options.preset,
                                             .device = q->options.device};
        status = cb_frontier_to_json(p, &request, alloc, &text, &err);
        if (status != CB_OK) expect_refusal(status);
    }
    if (q->wants_mutwo) { /* last: it changes the constraints */
        status = cb_mutwo_to_json(p, &q->options.budget, q->options.device, alloc, &text, &err);
        if (status != CB_OK) expect_refusal(status);
        else expect_problem(p, alloc);
    }
    cb_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, size};
    question q = {0};
    cb_alloc alloc;
    cb_problem *p = NULL;
    cb_alloc_init(&alloc);
    take_question(&b, &q);
    char *text = exact_text(&b);
    cb_status status = cb_problem_read(&alloc, text, b.n, &p, &err);
    EXPECT((status == CB_OK) == (p != NULL));
    if (!p) {
        expect_refusal(status);
    } else {
        expect_problem(p, &alloc);
        if (p->n_op <= MOST_OPS && cb_find_fusion(p, &err) == CB_OK) {
            plan_it(p, &q, &alloc);
            ask_more(p, &q, &alloc);
        }
    }
    cb_problem_free(p);
    EXPECT(cb_alloc_stats(&alloc).live_bytes == 0);
    free(text);
    return 0;
}
