/* Recovers decisions from schedules, and predicts what other decisions would change: on random
 * problems with plans of all kinds and with random sets of decisions. */
#include "plan/cut/mutwo.h"
#include "plan/explain/explain.h"
#include "plan/schedule/decisions.h"

#include "check.h"
#include "oom.h"
#include "plan/files/explanation.h"
#include "plan/planner.h"
#include "problems.h"

static cb_alloc alloc;

/* Facts, a simulator, and the schedule of some decisions. */
typedef struct bench {
    cb_problem *p;
    cb_arena arena;
    cb_facts f;
    cb_sim sim;
    cb_schedule schedule;
    cb_lives lives;
} bench;

static void open_bench(bench *b, uint64_t seed, uint32_t n_forward) {
    static maker m;
    make_random(&m, seed, n_forward);
    m.reruns = seed % 3 == 1 ? CB_RERUNS_ALL : CB_RERUNS_FORWARD;
    b->p = make_problem(&m, &alloc);
    cb_arena_init(&b->arena, &alloc);
    CHECK_OK(cb_facts_make(b->p, cb_device_find("cpu"), &b->arena, &b->f, &err));
    CHECK_OK(cb_sim_init(&b->sim, &b->f, &alloc, &err));
}

static void close_bench(bench *b) {
    cb_sim_free(&b->sim);
    cb_arena_free(&b->arena);
    cb_problem_free(b->p);
}

/* Runs a random set of decisions: each forward op that may rerun does so at a few later anchors. */
static void run_random(bench *b, uint64_t *state, uint32_t one_in) {
    cb_pair pair[2 * MAKER_MOST];
    size_t n = 0;
    for (uint32_t k = 1; k < b->f.n_base; k++) {
        for (uint32_t i = 0; i < k; i++) {
            uint32_t op = b->f.base[i];
            bool may = cb_may_rerun(&b->f, op);
            for (uint32_t s = 0; s < b->p->n_storage; s++)
                may &= b->f.root[s] != op || !b->f.held[s];
            if (may && n < 2 * MAKER_MOST && maker_draw(state, one_in) == 0)
                pair[n++] = cb_pair_make(k, op);
        }
    }
    for (size_t i = 1; i < n; i++) { /* sorts by op within an anchor */
        for (size_t j = i; j > 0 && pair[j] < pair[j - 1]; j--) {
            cb_pair keep = pair[j];
            pair[j] = pair[j - 1];
            pair[j - 1] = keep;
        }
    }
    CHECK_OK(cb_sim_run(&b->sim, pair, n, &err));
    CHECK_OK(cb_sim_schedule(&b->sim, &b->arena, &b->schedule, &err));
    CHECK_OK(cb_schedule_walk(b->p, &b->schedule, b->f.device, &b->arena, &b->lives, &err));
}

static bool same(const cb_schedule *a, const cb_schedule *b) {
    return a->n_step == b->n_step && a->backward_starts == b->backward_starts &&
           memcmp(a->step, b->step, a->n_step * sizeof *a->step) == 0;
}

/* Random decisions may rerun an op for another one that is then dropped; the schedule no longer
 * shows the purpose of such a run. */
TEST(schedules_give_their_decisions_back) {
    uint32_t exact = 0;
    const uint64_t n = check_rounds(100, 300);
    for (uint64_t seed = 0; seed < n; seed++) {
        bench b;
        uint64_t state = seed;
        open_bench(&b, seed, 6 + (uint32_t)(seed % 30));
        run_random(&b, &state, 4 + (uint32_t)(seed % 60));
        cb_decisions found;
        cb_schedule again;
        CHECK_OK(cb_decisions_of(&b.f, &b.schedule, &b.arena, &found, &err));
        CHECK_OK(cb_sim_run(&b.sim, found.pairs.list.at, found.pairs.list.len, &err));
        CHECK_OK(cb_sim_schedule(&b.sim, &b.arena, &again, &err));
        exact += same(&b.schedule, &again);
        close_bench(&b);
    }
    CHECK(30 * exact >= 29 * n);
}

/* ---- the other choice ------------------------------------------------------------------------ */

static void count_runs(const cb_problem *p, const cb_schedule *s, uint32_t *runs) {
    memset(runs, 0, p->n_op * sizeof *runs);
    for (uint32_t t = 0; t < s->n_step; t++) runs[s->step[t]]++;
}

/* Checks that in the schedule that the flip tried, only this decision and those that depend on it
 * differ. */
static void check_flip(bench *b, const cb_whatif *w, uint32_t storage, const cb_change *change) {
    static uint32_t before[MAKER_MOST], after[MAKER_MOST];
    cb_schedule other = {0};
    cb_lives lives;
    uint32_t op = b->f.root[storage];
    CHECK_OK(cb_sim_schedule(&w->sim, &b->arena, &other, &err));
    CHECK_OK(cb_schedule_walk(b->p, &other, b->f.device, &b->arena, &lives, &err));
    CHECK((int64_t)(lives.peak_bytes - b->lives.peak_bytes) == change->peak_bytes &&
          (int64_t)(lives.saved_bytes - b->lives.saved_bytes) == change->saved_bytes &&
          lives.time_ps - b->lives.time_ps == change->time_ps);
    count_runs(b->p, &b->schedule, before);
    count_runs(b->p, &other, after);
    bool recomputed = before[op] > 1;
    for (uint32_t t = b->schedule.backward_starts; t < b->schedule.n_step; t++)
        recomputed |= b->schedule.step[t] == op;
    uint32_t in_backward = 0;
    for (uint32_t t = other.backward_starts; t < other.n_step; t++)
        in_backward += other.step[t] == op;
    CHECK(in_backward == !recomputed && (!recomputed || after[op] == 1));
    for (uint32_t i = 0; i < b->p->n_op; i++) {
        if (i == op || (b->p->op_flags[i] & CB_POP_VIEW)) continue;
        if (recomputed) CHECK(after[i] <= before[i] || before[i] == 0);
        if (b->p->op_flags[i] & CB_POP_BACKWARD) CHECK(after[i] == before[i]);
    }
}

TEST(other_choices_on_random_plans) {
    uint32_t saved = 0, recomputed = 0, exact = 0;
    const uint32_t step = (uint32_t)check_rounds(3, 1);
    for (uint64_t seed = 0; seed < 200; seed += step) {
        bench b;
        uint64_t state = seed + 7;
        open_bench(&b, seed, 6 + (uint32_t)(seed % 24));
        run_random(&b, &state, 30 + (uint32_t)(seed % 90));
        cb_whatif w;
        CHECK_OK(cb_whatif_init(&w, &b.f, &b.schedule, &alloc, &err));
        exact += w.exact;
        for (uint32_t s = 0; s < b.p->n_storage; s++) {
            cb_change change;
            CHECK_OK(cb_whatif_flip(&w, s, &change, &err));
            if (!change.known) continue;
            check_flip(&b, &w, s, &change);
            saved += change.saved_bytes < 0;
            recomputed += change.time_ps < 0;
        }
        cb_whatif_free(&w);
        close_bench(&b);
    }
    CHECK(step * saved > 100 && step * recomputed > 80 && step * exact > 190);
}

/* x -> a -> b -> c, all read by the backward, last first. Saving everything: 1000 + 1000 + 1000. */
TEST(other_choices_by_hand) {
    maker m = {0};
    uint32_t x = make_input(&m, 1000), a = make_op(&m, CB_POP_FUSIBLE, 1, &x, 1000);
    uint32_t b = make_op(&m, CB_POP_FUSIBLE, 1, &a, 1000);
    uint32_t c = make_op(&m, CB_POP_UNKNOWN, 1, &b, 1000);
    m.backward_starts = m.n_op;
    m.result[m.n_result++] = c;
    uint32_t g = make_input(&m, 8);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    uint32_t in[2] = {g, c}, gc = make_op(&m, CB_POP_BACKWARD, 2, in, 8);
    uint32_t next[2] = {gc, b}, gb = make_op(&m, CB_POP_BACKWARD, 2, next, 8);
    uint32_t final[2] = {gb, a};
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 2, final, 8);
    bench k = {.p = make_problem(&m, &alloc)};
    cb_whatif w;
    cb_change change;
    cb_arena_init(&k.arena, &alloc);
    CHECK_OK(cb_facts_make(k.p, cb_device_find("cpu"), &k.arena, &k.f, &err));
    CHECK_OK(cb_sim_init(&k.sim, &k.f, &alloc, &err));
    CHECK_OK(cb_sim_run(&k.sim, NULL, 0, &err));
    CHECK_OK(cb_sim_schedule(&k.sim, &k.arena, &k.schedule, &err));
    CHECK_OK(cb_whatif_init(&w, &k.f, &k.schedule, &alloc, &err));
    uint32_t storage_a = k.p->value_storage[a], op_a = k.p->value_op[a], op_b = k.p->value_op[b];
    CHECK_OK(cb_whatif_flip(&w, storage_a, &change, &err)); /* no room is needed besides b and c */
    CHECK(change.known && change.saved_bytes == -1000 && change.time_ps == k.f.time_ps[op_a]);
    CHECK(change.peak_bytes == -1000);
    /* a is in memory, so no chain is needed */
    CHECK_OK(cb_whatif_flip(&w, k.p->value_storage[b], &change, &err));
    CHECK(change.known && change.saved_bytes == -1000 && change.time_ps == k.f.time_ps[op_b]);
    CHECK_OK(cb_whatif_flip(&w, k.p->value_storage[c], &change, &err)); /* runs once */
    CHECK(!change.known);
    CHECK_OK(cb_whatif_flip(&w, k.p->value_storage[x], &change, &err)); /* the caller's */
    CHECK(!change.known);
    cb_whatif_free(&w);
    close_bench(&k);
}

/* A schedule that no decisions produce: no decisions are reported. */
TEST(schedules_from_elsewhere) {
    for (uint64_t seed = 0; seed < 40; seed++) {
        bench b;
        open_bench(&b, seed, 12);
        CHECK_OK(cb_sim_run(&b.sim, NULL, 0, &err));
        CHECK_OK(cb_sim_schedule(&b.sim, &b.arena, &b.schedule, &err));
        uint32_t step[2 * MAKER_MOST], n = 0; /* the whole forward runs again at once */
        for (uint32_t t = 0; t < b.schedule.n_step; t++) {
            if (t == b.schedule.backward_starts) {
                for (uint32_t i = 0; i < t; i++) {
                    if (!b.f.once[b.schedule.step[i]]) step[n++] = b.schedule.step[i];
                }
            }
            step[n++] = b.schedule.step[t];
        }
        cb_schedule s = {.n_step = n, .step = step, .backward_starts = b.schedule.backward_starts};
        cb_whatif w;
        cb_change change;
        bool in_class;
        CHECK_OK(cb_schedule_walk(b.p, &s, b.f.device, &b.arena, &b.lives, &err));
        CHECK_OK(cb_in_bound_class(&b.f, &s, &b.lives, &in_class, &err));
        CHECK_OK(cb_whatif_init(&w, &b.f, &s, &alloc, &err));
        for (uint32_t i = 0; i < b.p->n_storage; i++) {
            CHECK_OK(cb_whatif_flip(&w, i, &change, &err));
            CHECK(w.exact || !change.known);
        }
        cb_whatif_free(&w);
        close_bench(&b);
    }
}

/* ---- the class of the bound ------------------------------------------------------------------ */

static uint32_t first_run(const cb_schedule *s, uint32_t op) {
    for (uint32_t t = 0; t < s->n_step; t++)
        if (s->step[t] == op) return t;
    return CB_NONE;
}

static uint32_t count_runs_of(const cb_schedule *s, uint32_t op) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < s->n_step; t++) n += s->step[t] == op;
    return n;
}

/* Tests the definition op by op: an op that must not rerun runs once, in its phase and in base
 * order; an op that may rerun first runs after all those that precede it. */
static bool in_class_by_pairs(const bench *b, const cb_schedule *s) {
    for (uint32_t k = 0; k < b->f.n_base; k++) {
        uint32_t op = b->f.base[k], first = first_run(s, op);
        bool again = cb_may_rerun(&b->f, op);
        if (b->p->op_flags[op] & CB_POP_VIEW) continue;
        if (!again && count_runs_of(s, op) > 1) return false;
        if (!again && k < b->f.base_backward && first >= s->backward_starts) return false;
        for (uint32_t i = 0; i < k && first != CB_NONE; i++) {
            uint32_t before = b->f.base[i];
            if (cb_may_rerun(&b->f, before) || (b->p->op_flags[before] & CB_POP_VIEW)) continue;
            if (first_run(s, before) > first) return false;
        }
    }
    return true;
}

/* Copies the schedule with one step moved or repeated. */
static void change_schedule(const bench *b, uint64_t *state, uint32_t *step, cb_schedule *out) {
    uint32_t n = b->schedule.n_step, from = maker_draw(state, n), to = maker_draw(state, n);
    bool moves = maker_draw(state, 2);
    *out = (cb_schedule){.step = step, .backward_starts = b->schedule.backward_starts};
    for (uint32_t t = 0; t < n; t++) {
        if (t == to) step[out->n_step++] = b->schedule.step[from];
        if (t != from || !moves) step[out->n_step++] = b->schedule.step[t];
    }
    out->backward_starts += to < out->backward_starts;
    out->backward_starts -= moves && from < b->schedule.backward_starts;
}

TEST(the_class_of_the_bound) {
    uint32_t inside = 0, outside = 0;
    const uint32_t step = (uint32_t)check_rounds(4, 1);
    for (uint64_t seed = 0; seed < 2000; seed += step) {
        bench b;
        uint64_t state = seed * 3;
        open_bench(&b, seed, 4 + (uint32_t)(seed % 12));
        run_random(&b, &state, 20 + (uint32_t)(seed % 300));
        bool in_class;
        CHECK_OK(cb_in_bound_class(&b.f, &b.schedule, &b.lives, &in_class, &err));
        CHECK(in_class); /* schedules of sets of pairs are always in the class */
        for (int i = 0; i < 6; i++) {
            static uint32_t changed[4 * MAKER_MOST];
            cb_schedule s;
            cb_lives lives;
            change_schedule(&b, &state, changed, &s);
            if (cb_schedule_walk(b.p, &s, b.f.device, &b.arena, &lives, &err) != CB_OK) continue;
            CHECK_OK(cb_in_bound_class(&b.f, &s, &lives, &in_class, &err));
            CHECK(in_class == in_class_by_pairs(&b, &s));
            inside += in_class;
            outside += !in_class;
        }
        close_bench(&b);
    }
    CHECK(step * inside > 50 && step * outside > 50);
}

/* Every plan states a bound that is not above its time. */
TEST(gaps_are_not_negative) {
    static maker m;
    uint32_t known = 0;
    const uint32_t step = (uint32_t)check_rounds(check_is_brief() ? 21 : 5, 1); /* all measures */
    for (uint64_t seed = 0; seed < 80; seed += step) {
        make_random(&m, seed, 12 + (uint32_t)(seed % 20));
        cb_problem *p = make_problem(&m, &alloc);
        cb_plan_options o = {
            .budget = {.kind = CB_BUDGET_SHARE, .share = 0.75, .measure = seed % 4}};
        cb_plan *plan = NULL;
        cb_status status = cb_plan_make(p, &o, &alloc, &plan, &err);
        CHECK(status == CB_OK || status == CB_INFEASIBLE);
        if (status == CB_OK) {
            CHECK(plan->in_order && cb_plan_gap(plan) >= 0);
            CHECK(plan->lower_bound_ps <= plan->time_ps);
            CHECK(plan->lower_bound_ps >= plan->trivial_ps);
            known += plan->bound_class == CB_BOUND_ORDERED;
        }
        cb_plan_free(plan);
        cb_problem_free(p);
    }
    CHECK(step * known > 15);
}

/* ---- whole plans ----------------------------------------------------------------------------- */

TEST(working_sets_and_floor) {
    uint32_t n_decided_plans = 0;
    const uint32_t step = (uint32_t)check_rounds(8, 1);
    for (uint64_t seed = 0; seed < 30; seed += step) {
        static maker m;
        make_random(&m, seed, 20);
        cb_problem *p = make_problem(&m, &alloc);
        cb_plan_options o = {.budget = {.kind = CB_BUDGET_MIN, .measure = CB_MEASURE_LIVE}};
        cb_plan *plan = NULL;
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        if (!plan) return;
        cb_arena arena;
        cb_explanation e;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_explanation_make(p, plan, &arena, &e, &err));
        CHECK(cb_explanation_floor(&e) <= plan->live_bytes);
        CHECK(e.n_set > 0 && e.set[0].bytes <= plan->live_bytes);
        for (uint32_t i = 1; i < e.n_set; i++) CHECK(e.set[i].bytes <= e.set[i - 1].bytes);
        uint32_t n_decided = 0;
        for (uint32_t i = 0; i < e.n_line; i++) {
            const cb_explained *line = &e.line[i];
            CHECK(plan->decision[line->value] != CB_DECISION_NONE);
            CHECK(line->bytes == p->storage_bytes[line->storage]);
            n_decided += line->otherwise.known;
        }
        n_decided_plans += n_decided > 0;
        cb_arena_free(&arena);
        cb_plan_free(plan);
        cb_problem_free(p);
    }
    /* about half of the smallest plans run an op twice before another, which is not a set of
     * decisions */
    CHECK(2 * step * n_decided_plans >= 30);
}

static cb_status tell(cb_alloc *a, void *user) {
    const cb_plan *plan = ((const void **)user)[1];
    cb_arena arena;
    cb_str text;
    cb_arena_init(&arena, a);
    cb_str_init(&text, &arena);
    cb_status status = cb_plan_explanation_to_text(((const void **)user)[0], plan, &text, &err);
    if (status == CB_OK)
        status = cb_plan_explanation_to_json(((const void **)user)[0], plan, &text, &err);
    cb_arena_free(&arena);
    return status;
}

static cb_status select_by_mutwo(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_str text;
    cb_arena_init(&arena, a);
    cb_str_init(&text, &arena);
    cb_budget half = {.kind = CB_BUDGET_SHARE, .share = 0.5};
    cb_status status = cb_mutwo_to_json(user, &half, NULL, a, &text, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    static maker m;
    make_random(&m, 9, 8);
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan_options o = {.preset = CB_PRESET_AGGRESSIVE};
    cb_plan *plan = NULL;
    CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
    void *user[] = {p, plan};
    check_oom(tell, user);
    check_oom(select_by_mutwo, p);
    cb_plan_free(plan);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(schedules_give_their_decisions_back);
    RUN(other_choices_on_random_plans);
    RUN(other_choices_by_hand);
    RUN(schedules_from_elsewhere);
    RUN(the_class_of_the_bound);
    RUN(gaps_are_not_negative);
    RUN(working_sets_and_floor);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
