/* Plan files, read for one of a few known problems: an accepted file is a plan like any other. The
 * first byte selects the problem. `fuzz_plan --seeds FOLDER` writes plans of these problems. */
#include "plan/problems.h"
#include "plans.h"

#include "base/map.h"
#include "plan/files/plan_json.h"
#include "plan/model/device.h"
#include "plan/planner.h"
#include "plan/torch/inductor_fusion.h"

#define N_KNOWN 4

static struct known {
    cb_alloc alloc;
    cb_problem *p;
} known[N_KNOWN];

int LLVMFuzzerInitialize(int *argc, char ***argv);

static void make_known(void) {
    static maker m; /* too large for a stack */
    if (known[0].p) return;
    for (uint32_t i = 0; i < N_KNOWN; i++) {
        struct known *k = &known[i];
        cb_alloc_init(&k->alloc);
        make_random(&m, 8 + i, 6 + 4 * i);
        k->p = make_problem(&m, &k->alloc);
        EXPECT(k->p);
        if (i % 2) k->p->link_bytes_per_s = 1e9;
        EXPECT_OK(cb_problem_verify(k->p, &err));
        EXPECT_OK(cb_find_fusion(k->p, &err));
    }
}

static void write_seed(const char *folder, uint32_t problem, uint32_t number, const cb_plan *plan) {
    char path[4096];
    cb_arena arena;
    cb_str text;
    cb_arena_init(&arena, &known[problem].alloc);
    cb_str_init(&text, &arena);
    EXPECT_OK(cb_plan_to_json(known[problem].p, plan, &text, &err));
    (void)snprintf(path, sizeof path, "%s/plan-%u-%u", folder, problem, number);
    FILE *f = fopen(path, "wb");
    EXPECT(f);
    fputc((int)problem, f);
    EXPECT(fwrite(text.at, 1, text.len, f) == text.len);
    fclose(f);
    cb_arena_free(&arena);
}

static void write_seeds(const char *folder) {
    for (uint32_t i = 0; i < N_KNOWN; i++) {
        for (uint32_t k = 0; k < 8; k++) {
            const cb_budget budget = {.kind = CB_BUDGET_SHARE,
                                      .share = 0.8,
                                      .measure = k == 6 ? CB_MEASURE_LIVE : CB_MEASURE_SAVED,
                                      .offload =
                                          i % 2 && k == 6 ? CB_OFFLOAD_JOINT : CB_OFFLOAD_ASKED};
            cb_plan_options o = {.device = cb_device_find(i < 2 ? "cpu" : "a100+fused")};
            cb_plan *plan = NULL;
            if (k < CB_PRESET_COUNT) o.preset = (cb_preset)k;
            else o.budget = budget;
            if (cb_plan_make(known[i].p, &o, &known[i].alloc, &plan, &err) != CB_OK) continue;
            write_seed(folder, i, k, plan);
            cb_plan_free(plan);
        }
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    make_known();
    if (*argc == 3 && strcmp((*argv)[1], "--seeds") == 0) {
        write_seeds((*argv)[2]);
        exit(0);
    }
    return 0;
}

/* Checks that any document with steps gives bytes and times, or a reason. */
static void evaluate(struct known *k, const char *text, size_t length) {
    cb_arena arena;
    cb_str judged;
    cb_arena_init(&arena, &k->alloc);
    cb_str_init(&judged, &arena);
    cb_status status = cb_evaluate_to_json(k->p, NULL, &k->alloc, text, length, &judged, &err);
    if (status != CB_OK) expect_refusal(status);
    cb_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, size};
    cb_plan *plan = NULL;
    struct known *k = &known[take_below(&b, N_KNOWN)];
    const uint64_t before = cb_alloc_stats(&k->alloc).live_bytes;
    char *text = exact_text(&b);
    evaluate(k, text, b.n);
    cb_status status = cb_plan_from_json(k->p, NULL, &k->alloc, text, b.n, &plan, &err);
    EXPECT((status == CB_OK) == (plan != NULL));
    if (plan) expect_plan(k->p, plan, &k->alloc);
    else expect_refusal(status);
    cb_plan_free(plan);
    EXPECT(cb_alloc_stats(&k->alloc).live_bytes == before);
    plan = NULL;
    cb_alloc_fail(&k->alloc, 1 + cb_hash_bytes(text, b.n, 0) % 64);
    cb_status starved = cb_plan_from_json(k->p, NULL, &k->alloc, text, b.n, &plan, &err);
    cb_alloc_fail(&k->alloc, 0);
    EXPECT(starved == status || starved == CB_NOMEM);
    cb_plan_free(plan);
    EXPECT(cb_alloc_stats(&k->alloc).live_bytes == before);
    free(text);
    return 0;
}
