/* Small problems against every set of reruns; several budgets in one search against each alone;
 * monotone budgets. */
#include "check.h"

#include "base/sanitize.h"
#include "plan/planner.h"
#include "plan/schedule/decisions.h"
#include "plan/schedule/sim.h"
#include "plan/search/exact/exact.h"
#include "plan/search/prices.h"
#include "problems.h"

static cb_alloc alloc;

#define MOST_PAIRS 12

typedef struct front { /* the fastest of all sets, for each peak that occurs */
    uint64_t peak[1 << MOST_PAIRS];
    int64_t time_ps[1 << MOST_PAIRS];
    uint32_t n;
} front;

/* Lists pairs of an anchor and a forward op that it needs, directly or not. Returns false if there
 * are too many. */
static bool list_pairs(const cb_facts *f, const bool *may_rerun, cb_pair *pair, uint32_t *n) {
    const cb_problem *p = f->p;
    *n = 0;
    for (uint32_t k = 0; k < f->n_base; k++) {
        bool needs[MAKER_MOST] = {false};
        needs[f->base[k]] = true;
        for (uint32_t op = f->base[k] + 1; op-- > 0;) {
            if (!needs[op]) continue;
            for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++)
                needs[p->value_op[p->in_value[j]]] = true;
        }
        for (uint32_t id = 0; id < f->n_unit; id++) {
            uint32_t op = cb_unit_op(f, id);
            if (f->position[op] >= k || !needs[op] || !may_rerun[id]) continue;
            bool inlines = cb_unit_inlines(f, id);
            if (*n + inlines >= MOST_PAIRS) return false;
            pair[(*n)++] = cb_pair_make(k, id);
            if (inlines) pair[(*n)++] = cb_pair_make(k, id | CB_INLINE);
        }
    }
    return true;
}

/* Marks what the searches may rerun: values that are read, except those that their flag holds to
 * the end. */
static void mark_reruns(const cb_facts *f, bool *may_rerun) {
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < f->n_base; k++) {
        for (uint32_t j = p->in_begin[f->base[k]]; j < p->in_begin[f->base[k] + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]], op = f->unit[s];
            bool free = op != CB_NONE && cb_may_rerun(f, op);
            if (free) may_rerun[op] |= !(p->storage_flags[s] & CB_STORE_HOLD_END);
        }
    }
}

static bool try_all(const cb_problem *p, cb_arena *arena, front *out, bool *exact) {
    cb_facts f;
    cb_sim sim;
    cb_pair pair[MOST_PAIRS], some[MOST_PAIRS];
    uint32_t n;
    if (cb_facts_make(p, cb_device_find("a100"), arena, &f, &err) != CB_OK) return false;
    bool *may_rerun = CB_NEW(arena, bool, f.n_unit);
    if (!may_rerun) return false;
    mark_reruns(&f, may_rerun);
    cb_status status = cb_exact_suits(&f, exact, &err);
    CHECK_OK(status);
    if (!list_pairs(&f, may_rerun, pair, &n)) return false;
    if (cb_sim_init(&sim, &f, &alloc, &err) != CB_OK) return false;
    bool ok = true;
    out->n = 0;
    for (uint32_t set = 0; set < 1u << n && ok; set++) {
        size_t count = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (set >> i & 1) some[count++] = pair[i];
        }
        for (size_t i = 1; i < count; i++) { /* sorted by anchor, then op */
            for (size_t j = i; j > 0 && some[j - 1] > some[j]; j--) {
                cb_pair swap = some[j];
                some[j] = some[j - 1];
                some[j - 1] = swap;
            }
        }
        ok = cb_sim_run(&sim, some, count, &err) == CB_OK;
        out->peak[out->n] = sim.peak;
        out->time_ps[out->n++] = sim.time_ps;
    }
    cb_sim_free(&sim);
    return ok;
}

static int64_t fastest(const front *all, uint64_t bytes) {
    int64_t best = INT64_MAX;
    for (uint32_t i = 0; i < all->n; i++) {
        if (all->peak[i] <= bytes && all->time_ps[i] < best) best = all->time_ps[i];
    }
    return best;
}

typedef struct tally {
    uint32_t judged, met, exact; /* numbers of plans */
} tally;

/* Checks that no set of reruns is faster than the plan, and that its bound equals its time. */
static void judge(const cb_problem *p, const front *all, bool exact, tally *sum) {
    for (uint32_t i = 0; i < all->n; i += 1 + all->n / 8) {
        cb_plan_options o = {.device = cb_device_find("a100")};
        o.budget = (cb_budget){.kind = CB_BUDGET_BYTES, .measure = CB_MEASURE_LIVE};
        o.budget.bytes = all->peak[i] - (i % 3 == 1);
        int64_t best = fastest(all, o.budget.bytes);
        cb_plan *plan = NULL;
        cb_status status = cb_plan_make(p, &o, &alloc, &plan, &err);
        CHECK(status == CB_OK || (status == CB_INFEASIBLE && best == INT64_MAX));
        if (status != CB_OK) continue;
        CHECK(plan->live_bytes <= o.budget.bytes);
        CHECK(!exact || (plan->time_ps <= best && plan->lower_bound_ps == plan->time_ps));
        sum->judged++;
        sum->met += plan->time_ps == best;
        sum->exact += exact;
        cb_plan_free(plan);
    }
}

static bool insides, inlinings; /* for the next problems */

static void judge_all(uint64_t begin, uint64_t end, void (*change)(maker *, uint64_t), tally *sum) {
    static maker m;
    static front all;
    bool exact;
    for (uint64_t seed = begin; seed < end; seed++) {
        if (insides) make_random_insides(&m, seed, 2 + (uint32_t)seed % 3);
        else make_random(&m, seed, 2 + (uint32_t)seed % 4);
        if (change) change(&m, seed);
        if (inlinings) give_inlinings(&m, seed);
        cb_problem *p = make_problem(&m, &alloc);
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        if (p && try_all(p, &arena, &all, &exact)) judge(p, &all, exact, sum);
        cb_arena_free(&arena);
        cb_problem_free(p);
    }
    printf("     %u plans, %u of them exact, %u as fast as the best set\n", sum->judged, sum->exact,
           sum->met);
}

TEST(no_set_is_faster) {
    tally sum = {0};
    judge_all(0, check_rounds(check_few(150), 400), NULL, &sum);
    CHECK(sum.judged > check_few(100) && sum.met > sum.judged / 2 && sum.exact > sum.judged / 2);
}

/* Makes the forward return more values, most of them large: values, views, one of two outputs of an
 * op. Some are held to the end, by a flag or as an output of the backward. */
static void return_more(maker *m, uint64_t seed) {
    uint64_t s = seed * 31 + 7;
    uint32_t first = m->out_begin[2], n = m->out_begin[m->backward_starts] - first;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t v = first + maker_draw(&s, n), storage = m->storage[v];
        if (m->storage_flags[storage] & CB_STORE_STATIC) continue;
        m->result[m->n_result++] = v;
        if (maker_draw(&s, 4)) m->bytes[storage] = 2000 + maker_draw(&s, 8000);
        if (maker_draw(&s, 4) == 0) m->storage_flags[storage] |= CB_STORE_HOLD_FORWARD;
        if (maker_draw(&s, 10) == 0) m->storage_flags[storage] |= CB_STORE_HOLD_END;
        if (maker_draw(&s, 10) == 0) m->grad[m->n_grad++] = v;
    }
}

TEST(no_set_is_faster_whatever_the_forward_returns) {
    tally sum = {0};
    judge_all(1000, 1000 + check_rounds(check_few(200), CB_ASAN ? 400 : 2000), return_more, &sum);
    CHECK(sum.exact > check_few(300) && sum.met < sum.judged);
}

/* Some outputs of an op are held or are the caller's; the op reruns for the others. */
TEST(no_set_is_faster_where_parts_are_held) {
    tally sum = {0};
    judge_all(5000, 5000 + check_rounds(check_few(150), CB_ASAN ? 300 : 800), hold_parts, &sum);
    CHECK(sum.exact > check_few(100) && sum.met > sum.exact / 2);
}

/* Outputs may reuse the memory of inputs. */
static void take_over(maker *m, uint64_t seed) { m->over = 1 + (uint32_t)seed; }

static void hold_and_take_over(maker *m, uint64_t seed) {
    if (seed % 2) hold_parts(m, seed);
    else return_more(m, seed);
    take_over(m, seed);
}

TEST(no_set_is_faster_where_memory_is_taken_over) {
    tally sum = {0}, held = {0};
    judge_all(0, check_rounds(check_few(30), 2000), take_over, &sum);
    judge_all(0, check_rounds(check_few(30), 2000), hold_and_take_over, &held);
    CHECK(sum.exact > check_few(50) && held.exact > check_few(30) && sum.met > sum.exact / 2);
}

TEST(no_set_of_outputs_is_faster) {
    tally sum = {0}, more = {0}, held = {0};
    insides = true;
    judge_all(0, check_rounds(check_few(200), 2000), NULL, &sum);
    judge_all(0, check_rounds(check_few(200), 2000), return_more, &more);
    judge_all(0, check_rounds(check_few(200), 2000), hold_parts, &held);
    insides = false;
    CHECK(sum.exact > check_few(100) && sum.met > sum.exact / 2);
    CHECK(more.exact > check_few(100) && held.exact > check_few(100));
}

/* Each anchor inlines a value or does not, independently of the others. */
TEST(no_set_of_inlinings_is_faster) {
    tally sum = {0}, more = {0}, held = {0}, all = {0};
    inlinings = true;
    judge_all(0, check_rounds(check_few(100), 2000), NULL, &sum);
    judge_all(0, check_rounds(check_few(100), 2000), return_more, &more);
    judge_all(0, check_rounds(check_few(100), 2000), hold_parts, &held);
    insides = true;
    judge_all(0, check_rounds(check_few(100), 2000), NULL, &all);
    insides = inlinings = false;
    CHECK(sum.exact > check_few(100) && sum.met > sum.exact / 2);
    CHECK(more.exact > check_few(60) && held.exact > check_few(60) && all.exact > check_few(60));
}

/* Returns the time of the fastest plan within `bytes`, over all sets of pairs and, if the problem
 * is small enough, from the exact solver, which also makes values before they are needed. */
static int64_t fastest_of_all(const cb_facts *f, cb_sim *sim, const cb_pair *pair, uint32_t n,
                              uint64_t bytes, cb_arena *arena) {
    const cb_goal goal = {.measure = CB_MEASURE_LIVE, .bytes = bytes};
    int64_t best = INT64_MAX;
    for (uint32_t set = 0; set < 1u << n; set++) {
        cb_pair some[MOST_PAIRS];
        size_t count = 0;
        for (uint32_t i = 0; i < n; i++)
            if (set >> i & 1) some[count++] = pair[i];
        CHECK_OK(cb_sim_run(sim, some, count, &err));
        if (sim->peak <= bytes && sim->time_ps < best) best = sim->time_ps;
    }
    bool suits;
    CHECK_OK(cb_exact_suits(f, &suits, &err));
    if (!suits) return best;
    cb_schedule s = {0};
    cb_lives lives;
    CHECK_OK(cb_exact_fastest(f, &goal, bytes, arena, &s, &err));
    if (s.n_step == 0) return best;
    CHECK_OK(cb_schedule_walk(f->p, &s, f->device, arena, &lives, &err));
    CHECK(lives.peak_bytes <= bytes);
    return lives.time_ps < best ? lives.time_ps : best;
}

typedef struct bounder { /* a problem, and prices that bound its plans */
    cb_facts f;
    cb_sim sim;
    cb_cut cut;
    cb_prices prices;
    cb_goal goal;
    cb_candidates candidates;
    cb_trial t;
    uint64_t whole; /* bytes if everything is saved */
    uint32_t known, total;
} bounder;

static void start_bounds(bounder *b, const cb_problem *p, cb_arena *arena) {
    b->goal = (cb_goal){.measure = CB_MEASURE_LIVE};
    b->candidates.alloc = &alloc;
    CHECK_OK(cb_facts_make(p, cb_device_find("a100"), arena, &b->f, &err));
    CHECK_OK(cb_sim_init(&b->sim, &b->f, &alloc, &err));
    CHECK_OK(cb_cut_init(&b->cut, &b->f, arena, &err));
    b->t = (cb_trial){.f = &b->f,
                      .goal = &b->goal,
                      .sim = &b->sim,
                      .candidates = &b->candidates,
                      .scratch = arena,
                      .forced = CB_NEW(arena, bool, b->f.n_unit)};
    CHECK_OK(cb_try_pairs(&b->t, NULL, 0, &err));
    b->whole = b->t.size;
    CHECK_OK(cb_prices_init(&b->prices, &b->t, &b->cut, &err));
}

static void stop_bounds(bounder *b) {
    cb_candidates_free(&b->candidates);
    cb_sim_free(&b->sim);
}

/* Checks that no bound for `bytes` is above the time `best` of a plan within them. */
static void judge_bound(bounder *b, uint64_t bytes, int64_t best) {
    double extra = (double)(best - b->f.once_ps);
    CHECK_OK(cb_prices_polyak(&b->prices, CB_PRICE_BOUND, bytes, NULL, extra, 60, &err));
    double bound = cb_prices_bound(&b->prices, (double)bytes);
    CHECK(bound <= extra);
    b->known += bound > 1;
    b->total++;
}

static void judge_bounds(bounder *b, const cb_problem *p, cb_arena *arena) {
    cb_pair pair[MOST_PAIRS];
    uint32_t n;
    start_bounds(b, p, arena);
    bool *may_rerun = CB_NEW(arena, bool, b->f.n_unit);
    mark_reruns(&b->f, may_rerun);
    if (list_pairs(&b->f, may_rerun, pair, &n) && n <= (b->f.inlines ? 11 : 9)) {
        cb_sort_pairs(pair, n);
        for (uint32_t share = 95; share > 30; share -= 16) {
            uint64_t bytes = b->whole * share / 100;
            int64_t best = fastest_of_all(&b->f, &b->sim, pair, n, bytes, arena);
            if (best < INT64_MAX) judge_bound(b, bytes, best);
        }
    }
    stop_bounds(b);
}

/* Makes one of twelve kinds of problems. Each also exists with a backward that may rerun late, and
 * both forms exist with reused memory and with updates that consume gradients. */
static void make_kind(maker *m, int kind, uint64_t seed, uint32_t n_forward) {
    bool updates = kind >= 48, over = kind >= 24 && !updates, all = kind / 12 % 2;
    kind %= 12;
    if (kind % 2) make_random_insides(m, seed, n_forward);
    else make_random(m, seed, n_forward + 1);
    if (kind / 2 % 3 == 1) return_more(m, seed);
    if (kind / 2 % 3 == 2) hold_parts(m, seed);
    if (kind >= 6) give_inlinings(m, seed);
    if (all) m->reruns = CB_RERUNS_ALL;
    if (over) m->over = 1 + (uint32_t)seed;
    if (updates) m->updates = 1 + (uint32_t)seed;
}

/* Checks that no bound is above the time of a plan. A bound counts members shared by outputs once
 * and leaves out those that the forward may skip; values that the forward returns may be freed when
 * a rerun begins the backward. */
static void judge_kind(bounder *b, int kind, uint64_t n) {
    static maker m;
    for (uint64_t seed = 9000; seed < 9000 + n; seed++) {
        make_kind(&m, kind, seed, 2 + (uint32_t)seed % 3);
        cb_problem *p = make_problem(&m, &alloc);
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        judge_bounds(b, p, &arena);
        cb_arena_free(&arena);
        cb_problem_free(p);
    }
    printf("     %u of %u bounds say something\n", b->known, b->total);
}

TEST(bounds_are_below_all_sets) {
    for (int kind = 0; kind < 12; kind++) {
        bounder b = {0};
        judge_kind(&b, kind, check_rounds(300, 3000));
        CHECK(b.known > 0 && b.total > 10);
    }
}

/* If ops of the backward may run late, there are many more sets, so fewer problems are small
 * enough. */
TEST(bounds_are_below_late_sets) {
    bounder b = {0};
    for (int kind = 12; kind < 24; kind++) judge_kind(&b, kind, check_rounds(100, 3000));
    CHECK(b.known > 2 && b.total > 100);
}

TEST(bounds_are_below_sets_with_memory_taken_over) {
    bounder b = {0};
    for (int kind = 24; kind < 48; kind++)
        judge_kind(&b, kind, kind < 36 ? check_rounds(100, 3000) : check_rounds(50, 3000));
    CHECK(b.known > 20 && b.total > 100);
}

TEST(bounds_are_below_sets_with_updates) {
    bounder b = {0};
    for (int kind = 48; kind < 72; kind++)
        judge_kind(&b, kind, kind < 60 ? check_rounds(100, 3000) : check_rounds(50, 3000));
    CHECK(b.known > 20 && b.total > 100);
}

/* `wide` needs much scratch and may run after `reader`, which follows it and reads the large
 * `kept`. So a plan need not hold `kept` together with that scratch. */
TEST(a_late_op_may_pass_a_reader) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t x = make_input(&m, 64), kept = make_op(&m, CB_POP_COMPUTE, 1, &x, 10000);
    uint32_t loss = make_op(&m, CB_POP_FUSIBLE, 1, &kept, 64);
    m.backward_starts = m.n_op;
    m.result[m.n_result++] = loss;
    uint32_t first = make_op(&m, CB_POP_BACKWARD, 1, &loss, 64);
    m.workspace[m.n_op] = 10000;
    uint32_t wide = make_op(&m, CB_POP_BACKWARD, 1, &first, 64);
    uint32_t both[] = {first, kept};
    uint32_t reader = make_op(&m, CB_POP_BACKWARD, 2, both, 64);
    uint32_t next = make_op(&m, CB_POP_BACKWARD, 1, &wide, 64);
    uint32_t ends[] = {next, reader};
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 2, ends, 64);
    m.reruns = CB_RERUNS_ALL;
    cb_problem *p = make_problem(&m, &alloc);
    cb_arena arena;
    bounder b = {0};
    cb_arena_init(&arena, &alloc);
    start_bounds(&b, p, &arena);
    const uint64_t bytes = 15000;
    const cb_pair late = cb_pair_make(b.f.position[p->value_op[next]], p->value_op[wide]);
    CHECK_OK(cb_sim_run(&b.sim, &late, 1, &err));
    CHECK(b.whole > bytes && b.sim.peak <= bytes && b.sim.time_ps == b.f.once_ps);
    judge_bound(&b, bytes, b.sim.time_ps);
    stop_bounds(&b);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

/* Checks the bounds of larger problems against the exact solver, at the sizes of the fastest
 * plans. */
static void judge_optima(bounder *b, const cb_problem *p, cb_arena *arena) {
    bool suits;
    start_bounds(b, p, arena);
    CHECK_OK(cb_exact_suits(&b->f, &suits, &err));
    for (uint64_t bytes = b->whole; suits && bytes > 0;) {
        const cb_goal goal = {.measure = CB_MEASURE_LIVE, .bytes = bytes};
        cb_schedule s = {0};
        cb_lives lives;
        CHECK_OK(cb_exact_fastest(&b->f, &goal, bytes, arena, &s, &err));
        if (s.n_step == 0) break;
        CHECK_OK(cb_schedule_walk(p, &s, b->f.device, arena, &lives, &err));
        judge_bound(b, lives.peak_bytes, lives.time_ps);
        bytes = lives.peak_bytes - 1;
    }
    stop_bounds(b);
}

TEST(bounds_are_below_the_optimum) {
    static maker m;
    const uint64_t n = check_rounds(CB_ASAN ? 15 : 30, CB_ASAN ? 200 : 3000);
    for (int kind = 0; kind < 12; kind++) {
        bounder b = {0};
        for (uint64_t seed = 20000; seed < 20000 + n; seed++) {
            make_kind(&m, kind, seed, 3 + (uint32_t)seed % 5);
            cb_problem *p = make_problem(&m, &alloc);
            cb_arena arena;
            cb_arena_init(&arena, &alloc);
            judge_optima(&b, p, &arena);
            cb_arena_free(&arena);
            cb_problem_free(p);
        }
        printf("     %u of %u bounds say something\n", b.known, b.total);
        CHECK(b.known > 0 && b.total > 10);
    }
}

static bool same_plan(const cb_plan *a, const cb_plan *b) {
    return a->schedule.n_step == b->schedule.n_step && a->time_ps == b->time_ps &&
           a->lower_bound_ps == b->lower_bound_ps && a->budget_bytes == b->budget_bytes &&
           memcmp(a->schedule.step, b->schedule.step, a->schedule.n_step * sizeof(uint32_t)) == 0;
}

/* One search for all budgets, or several in any order: the same plans and the same errors. */
TEST(several_budgets_are_single_ones) {
    static maker m;
    static cb_answer answer[24];
    const uint64_t step = check_rounds(CB_ASAN ? 6 : 3, CB_ASAN ? 3 : 1);
    for (uint64_t seed = 0; seed < 8; seed += check_rounds(4, 2)) {
        make_random(&m, seed + 70, seed < 4 ? 8 : 40);
        m.reruns = seed % 3 == 1 ? CB_RERUNS_ALL : CB_RERUNS_FORWARD;
        cb_problem *p = make_problem(&m, &alloc);
        cb_budget budget[24];
        cb_plan_options o = {0};
        for (uint32_t i = 0; i < 24; i++) {
            budget[i] = (cb_budget){.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_LIVE};
            budget[i].share = 0.03 + 0.97 * ((i * 7 + 5) % 24) / 24;
            if (i % 6 == 1) budget[i].measure = CB_MEASURE_ARENA;
            if (i % 8 == 3) budget[i].measure = CB_MEASURE_SAVED;
            if (i % 11 == 4) budget[i] = (cb_budget){.kind = CB_BUDGET_MIN, .share = 0.3};
        }
        budget[20].kind = CB_BUDGET_NONE;
        CHECK_OK(cb_plan_make_many(p, &o, budget, 24, &alloc, answer, &err));
        for (uint32_t i = 0; i < 24; i++) {
            if ((i + 2) % step != 0) { /* each takes a separate search */
                cb_plan_free(answer[i].plan);
                continue;
            }
            cb_plan *alone = NULL;
            o.budget = budget[i];
            cb_status status = cb_plan_make(p, &o, &alloc, &alone, &err);
            CHECK(status == (answer[i].plan ? CB_OK : CB_INFEASIBLE));
            if (status == CB_OK) CHECK(answer[i].plan && same_plan(alone, answer[i].plan));
            else CHECK(err.refusal.smallest_bytes == answer[i].why.refusal.smallest_bytes);
            cb_plan_free(alone);
            cb_plan_free(answer[i].plan);
        }
        cb_problem_free(p);
    }
}

/* Checks that the smallest plan is no larger than any budget's plan that takes at most 1.4 times
 * the time. */
static void check_smallest(const cb_problem *p, const cb_answer *answer, uint32_t n) {
    cb_plan_options o = {.budget = {.kind = CB_BUDGET_MIN, .measure = CB_MEASURE_LIVE}};
    cb_plan *smallest = NULL;
    CHECK_OK(cb_plan_make(p, &o, &alloc, &smallest, &err));
    for (uint32_t i = 0; smallest && i < n; i++) {
        const cb_plan *plan = answer[i].plan;
        bool fast = plan && (double)plan->time_ps <= 1.4 * (double)plan->once_ps;
        CHECK(!fast || smallest->live_bytes <= plan->live_bytes);
    }
    cb_plan_free(smallest);
}

/* Makes a problem in which some values are as large as all others together, so most rungs of the
 * ladder are empty. */
static void make_coarse(maker *m, uint64_t seed) {
    make_random(m, seed, 50);
    for (uint32_t i = 0; i < m->n_storage; i++)
        m->bytes[i] = i % 7 == 0 ? 1000000 : 1 + m->bytes[i] % 10;
}

/* A larger budget never gives a slower plan, a smaller one never a larger plan. */
TEST(budgets_are_monotone) {
    static maker m;
    enum { N = CB_ASAN ? 10 : 40 };
    static cb_answer answer[N];
    for (uint64_t seed = 0; seed < 15; seed += check_rounds(4, 1)) {
        if (seed < 10) make_random(&m, seed + 300, seed < 5 ? 6 : 50);
        else make_coarse(&m, seed + 300);
        m.reruns = seed % 3 == 1 ? CB_RERUNS_ALL : CB_RERUNS_FORWARD;
        cb_problem *p = make_problem(&m, &alloc);
        cb_budget budget[N];
        cb_plan_options o = {0};
        for (uint32_t i = 0; i < N; i++) {
            budget[i] = (cb_budget){.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_LIVE};
            budget[i].share = 1 - i / (double)N;
        }
        CHECK_OK(cb_plan_make_many(p, &o, budget, N, &alloc, answer, &err));
        const cb_plan *before = NULL;
        for (uint32_t i = 0; i < N; i++) {
            const cb_plan *plan = answer[i].plan;
            if (plan && before)
                CHECK(plan->time_ps >= before->time_ps && plan->live_bytes <= before->live_bytes);
            CHECK(!plan || i == 0 || before);
            before = plan;
        }
        check_smallest(p, answer, N);
        for (uint32_t i = 0; i < N; i++) cb_plan_free(answer[i].plan);
        cb_problem_free(p);
    }
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(no_set_is_faster);
    RUN(no_set_is_faster_whatever_the_forward_returns);
    RUN(no_set_is_faster_where_parts_are_held);
    RUN(no_set_is_faster_where_memory_is_taken_over);
    RUN(no_set_of_outputs_is_faster);
    RUN(no_set_of_inlinings_is_faster);
    RUN(bounds_are_below_all_sets);
    RUN(bounds_are_below_late_sets);
    RUN(bounds_are_below_sets_with_memory_taken_over);
    RUN(bounds_are_below_sets_with_updates);
    RUN(a_late_op_may_pass_a_reader);
    RUN(bounds_are_below_the_optimum);
    RUN(several_budgets_are_single_ones);
    RUN(budgets_are_monotone);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
