/* Rungs searched by several threads: the same plans as one thread, bit for bit; searches that the
 * caller ends, and memory that runs out on any thread. */
#include "check.h"

#include "base/sanitize.h"
#include "oom.h"
#include "plan/files/frontier_json.h"
#include "plan/planner.h"
#include "problems.h"

#define N_BUDGET 12
#define N_SHARED (CB_TSAN ? 20u : 26u) /* forward ops of the problem whose budgets share a search */
#define N_FORWARD 14u /* ops of stopped searches, whose time grows almost cubically with it */

static cb_alloc alloc;

static void set_budgets(cb_budget *budget) {
    for (uint32_t i = 0; i < N_BUDGET; i++) {
        budget[i] = (cb_budget){.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_LIVE};
        budget[i].share = 0.05 + 0.95 * ((i * 7 + 5) % N_BUDGET) / N_BUDGET;
        if (i % 6 == 1) budget[i].measure = CB_MEASURE_ARENA;
        if (i % 6 == 3) budget[i].measure = CB_MEASURE_TOTAL;
    }
    budget[4] = (cb_budget){.kind = CB_BUDGET_MIN, .share = 0.3};
}

static bool same_answer(const cb_answer *a, const cb_answer *b) {
    if (!a->plan || !b->plan)
        return a->plan == b->plan &&
               memcmp(&a->why.refusal, &b->why.refusal, sizeof a->why.refusal) == 0;
    const cb_schedule *x = &a->plan->schedule, *y = &b->plan->schedule;
    return x->n_step == y->n_step && a->plan->lower_bound_ps == b->plan->lower_bound_ps &&
           memcmp(x->step, y->step, x->n_step * sizeof *x->step) == 0;
}

static void free_answers(cb_answer *answer) {
    for (uint32_t i = 0; i < N_BUDGET; i++) cb_plan_free(answer[i].plan);
}

TEST(threads_change_nothing) {
    static maker m;
    cb_answer alone[N_BUDGET], together[N_BUDGET];
    cb_budget budget[N_BUDGET];
    set_budgets(budget);
    for (int n_thread = 2; n_thread <= (CB_TSAN ? 2 : 5); n_thread += 3) {
        cb_threads *pool = NULL;
        CHECK_OK(cb_threads_new(&alloc, n_thread, &pool, &err));
        make_random(&m, 70 + (uint64_t)n_thread, N_SHARED);
        cb_problem *p = make_problem(&m, &alloc);
        cb_plan_options o = {0};
        CHECK_OK(cb_plan_make_many(p, &o, budget, N_BUDGET, &alloc, alone, &err));
        o.threads = pool;
        CHECK_OK(cb_plan_make_many(p, &o, budget, N_BUDGET, &alloc, together, &err));
        for (uint32_t i = 0; i < N_BUDGET; i++) {
            CHECK(same_answer(&alone[i], &together[i]));
            if (i % 3 != 1 || CB_TSAN) continue; /* each of these rebuilds the base */
            o.budget = budget[i];
            cb_answer single = {0};
            cb_status status = cb_plan_make(p, &o, &alloc, &single.plan, &single.why);
            CHECK(status == CB_OK || status == CB_INFEASIBLE);
            CHECK(same_answer(&alone[i], &single));
            cb_plan_free(single.plan);
        }
        free_answers(alone);
        free_answers(together);
        cb_problem_free(p);
        cb_threads_free(pool);
    }
}

typedef struct patience {
    int left;
    int answer; /* returned once none are left */
} patience;

static int run_out(void *user) {
    patience *p = user;
    return --p->left < 0 ? p->answer : CB_POLL_GO;
}

/* The caller stops at any poll: nothing is left behind, and CB_POLL_FINISH gives plans that fit. */
TEST(ends_early) {
    static maker m;
    cb_answer answer[N_BUDGET];
    cb_budget budget[N_BUDGET];
    cb_threads *pool = NULL;
    set_budgets(budget);
    CHECK_OK(cb_threads_new(&alloc, 3, &pool, &err));
    make_random(&m, 75, N_FORWARD);
    cb_problem *p = make_problem(&m, &alloc);
    for (int polls = 1; polls < (CB_TSAN ? 100 : 4000); polls = polls * 3 / 2 + 1) {
        patience wait = {polls, CB_POLL_CANCEL};
        cb_plan_options o = {.poll = {run_out, &wait}, .threads = pool};
        cb_status status = cb_plan_make_many(p, &o, budget, N_BUDGET, &alloc, answer, &err);
        CHECK(status == CB_CANCELLED || status == CB_OK);
        if (status == CB_OK) free_answers(answer);
        wait = (patience){polls, CB_POLL_FINISH};
        CHECK_OK(cb_plan_make_many(p, &o, budget, N_BUDGET, &alloc, answer, &err));
        for (uint32_t i = 0; i < N_BUDGET; i++) {
            const cb_plan *plan = answer[i].plan;
            if (!plan || budget[i].measure != CB_MEASURE_LIVE) continue;
            CHECK(plan->live_bytes <= plan->budget_bytes);
        }
        free_answers(answer);
    }
    cb_problem_free(p);
    cb_threads_free(pool);
}

/* The caller also stops at any poll before "no plan fits", where the search looks at plans that are
 * too large. */
TEST(ends_early_without_a_plan) {
    static maker m;
    patience wait = {0};
    cb_plan_options o = {.poll = {run_out, &wait}};
    make_random(&m, 75, 10);
    cb_problem *p = make_problem(&m, &alloc);
    o.budget = (cb_budget){.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_LIVE, .share = 0.4};
    uint32_t ended = 0;
    for (int polls = 1; wait.left < 0 || polls == 1;
         polls += 1 + polls / (int)check_rounds(4, 20)) {
        cb_plan *plan = NULL;
        wait = (patience){polls, CB_POLL_FINISH};
        CHECK(cb_plan_make(p, &o, &alloc, &plan, &err) == CB_INFEASIBLE && !plan);
        ended += err.refusal.reason == CB_REFUSED_STOPPED;
        cb_plan_free(plan);
    }
    CHECK(ended > 10 && err.refusal.reason == CB_REFUSED_BUDGET);
    cb_problem_free(p);
}

/* Counts polls; `progress` names the budget of each. */
typedef struct listener {
    cb_progress progress;
    int polls[2];
    int answer;
} listener;

static int count_poll(void *user) {
    listener *l = user;
    l->polls[l->progress.budget]++;
    return l->answer;
}

/* Makes a chain of `n` ops in two regions, each of which may save half of its bytes. */
static cb_problem *limited_chain(maker *m, uint32_t n) {
    memset(m, 0, sizeof *m);
    uint32_t first = make_input(m, 64), x = first;
    m->n_region = 2;
    for (uint32_t i = 0; i < n; i++) {
        x = make_op(m, CB_POP_FUSIBLE, 1, &x, 64 * (1 + i % 5));
        m->region[m->n_op - 1] = 1 + i / ((n + 1) / 2);
        m->limit[i / ((n + 1) / 2)] += 32 * (1 + i % 5);
    }
    m->backward_starts = m->n_op;
    m->result[m->n_result++] = x;
    uint32_t gradient = make_op(m, CB_POP_BACKWARD, 1, &x, 64);
    for (uint32_t v = x; v > first; v--) {
        uint32_t in[2] = {gradient, v};
        gradient = make_op(m, CB_POP_BACKWARD, 2, in, 64);
    }
    m->grad[m->n_grad++] = gradient;
    return make_problem(m, &alloc);
}

/* Presets that meet limits of regions, points of the frontier, and plans that only need
 * placement. */
TEST(all_stages_poll) {
    static maker m;
    cb_answer answer[2];
    cb_budget budget[2] = {{.kind = CB_BUDGET_NONE}};
    listener l = {.answer = CB_POLL_CANCEL};
    cb_plan_options o = {.poll = {count_poll, &l}, .progress = &l.progress};
    cb_problem *p = limited_chain(&m, 60);
    CHECK(cb_plan_make_many(p, &o, budget, 1, &alloc, answer, &err) == CB_CANCELLED);
    l = (listener){.answer = CB_POLL_GO};
    budget[0] = (cb_budget){.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_SAVED, .share = 0.5};
    CHECK_OK(cb_plan_make_many(p, &o, budget, 1, &alloc, answer, &err));
    CHECK(l.polls[0] > 5);
    cb_plan_free(answer[0].plan);
    cb_problem_free(p);
    make_random(&m, 77, 30);
    p = make_problem(&m, &alloc);
    budget[0] = (cb_budget){.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_ARENA, .share = 0.9};
    budget[1] = budget[0]; /* nothing is left to search */
    l = (listener){.answer = CB_POLL_GO};
    CHECK_OK(cb_plan_make_many(p, &o, budget, 2, &alloc, answer, &err));
    CHECK(l.polls[1] > 0);
    for (int i = 0; i < 2; i++) cb_plan_free(answer[i].plan);
    cb_problem_free(p);
}

/* Long lives, nested, and short ones: as many as a large step has. */
#define N_LONG 3000u
static cb_lives long_lives(cb_arena *arena) {
    cb_lives lives = {.n_instance = 2 * N_LONG, .instance = CB_NEW(arena, cb_instance, 2 * N_LONG)};
    for (uint32_t i = 0; i < 2 * N_LONG; i++) {
        cb_instance *life = &lives.instance[i];
        *life = (cb_instance){.made = i, .last = i < N_LONG ? 4 * N_LONG - i : i + 1 + i % 3};
        life->bytes = 64 * (1 + i % 97);
    }
    return lives;
}

TEST(placing_polls) {
    cb_problem p = {.align = 64};
    cb_arena arena;
    uint64_t bytes = 0, want = 0;
    cb_arena_init(&arena, &alloc);
    cb_lives lives = long_lives(&arena);
    CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){0}, &want, &err));
    patience wait = {.left = 1, .answer = CB_POLL_CANCEL};
    CHECK(cb_place(&p, &lives, &arena, (cb_poll){run_out, &wait}, &bytes, &err) == CB_CANCELLED);
    wait = (patience){.left = 1, .answer = CB_POLL_FINISH};
    CHECK_OK(cb_place(&p, &lives, &arena, (cb_poll){run_out, &wait}, &bytes, &err));
    CHECK(bytes == want && wait.left < -1);
    cb_arena_free(&arena);
}

/* Without a search: a preset, whose only work is a cut, and the frontier. */
TEST(cuts_poll) {
    static maker m;
    make_random(&m, 78, 30);
    cb_problem *p = make_problem(&m, &alloc);
    cb_arena arena;
    cb_str text;
    cb_plan *plan = NULL;
    cb_arena_init(&arena, &alloc);
    cb_str_init(&text, &arena);
    for (int polls = 0, ended = 0; !ended; polls++) { /* stops at every poll in turn */
        patience wait = {polls, CB_POLL_CANCEL};
        cb_plan_options o = {.preset = CB_PRESET_AGGRESSIVE, .poll = {run_out, &wait}};
        cb_status status = cb_plan_make(p, &o, &alloc, &plan, &err);
        ended = wait.left >= 0;
        CHECK(status == (ended ? CB_OK : CB_CANCELLED));
        if (status == CB_OK) cb_plan_free(plan);
        CHECK(!ended || polls > 0);
    }
    for (int polls = 0, ended = 0; !ended; polls++) {
        patience wait = {polls, CB_POLL_CANCEL};
        const cb_frontier_request request = {.poll = {run_out, &wait}};
        cb_status status = cb_frontier_to_json(p, &request, &alloc, &text, &err);
        ended = wait.left >= 0;
        CHECK(status == (ended ? CB_OK : CB_CANCELLED));
        CHECK(!ended || polls > CB_PRESET_COUNT);
    }
    cb_arena_free(&arena);
    cb_problem_free(p);
}

#define N_MEASURE 5

typedef struct question {
    const cb_problem *p;
    int n_thread;
} question;

static cb_status plan_together(cb_alloc *a, void *user) {
    const question *q = user;
    cb_answer answer[N_MEASURE];
    cb_budget budget[N_MEASURE] = {{.kind = CB_BUDGET_MIN, .measure = CB_MEASURE_LIVE}};
    cb_threads *pool = NULL;
    cb_error why;
    for (uint32_t i = 0; i + 1 < N_MEASURE; i++)
        budget[i + 1] =
            (cb_budget){.kind = CB_BUDGET_SHARE, .measure = (cb_measure)i, .share = 0.6 + 0.1 * i};
    cb_status status = cb_threads_new(a, q->n_thread, &pool, &why);
    if (status != CB_OK) return status;
    cb_plan_options o = {.threads = pool};
    status = cb_plan_make_many(q->p, &o, budget, N_MEASURE, a, answer, &why);
    for (uint32_t i = 0; i < N_MEASURE && status == CB_OK; i++) cb_plan_free(answer[i].plan);
    cb_threads_free(pool);
    return status;
}

/* One thread may take two jobs, and small problems are solved in another way. Some budgets of both
 * problems count live bytes; the others are searched. */
TEST(memory_runs_out) {
    static maker m;
    for (int n_thread = CB_TSAN ? 2 : 1; n_thread <= 4; n_thread *= 2) {
        make_random(&m, 76, 2);
        cb_problem *p = make_problem(&m, &alloc);
        question q = {p, n_thread};
        check_oom_after(plan_together, &q, CB_TSAN ? 5 : check_rounds(20, CB_OOM_ALL));
        cb_problem_free(p);
        make_random(&m, 76, 8);
        p = make_problem(&m, &alloc);
        q.p = p;
        check_oom_after(plan_together, &q, CB_TSAN ? 2 : check_rounds(3, 8));
        cb_problem_free(p);
    }
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(threads_change_nothing);
    RUN(ends_early);
    if (!CB_TSAN) RUN(ends_early_without_a_plan);
    if (!CB_TSAN) RUN(all_stages_poll); /* one thread, as below */
    if (!CB_TSAN) RUN(placing_polls);
    if (!CB_TSAN) RUN(cuts_poll);
    RUN(memory_runs_out);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
