/* The ledger against the simulator and against itself; the floor and the bound against plans. */
#include "check.h"

#include "plan/floor.h"
#include "plan/ladder.h"
#include "plan/plan.h"
#include "problems.h"

static cb_alloc alloc;

typedef struct bench {
    cb_problem *p;
    cb_arena arena;
    cb_facts f;
    cb_sim sim;
    cb_ledger ledger, fresh;
    bool *may_rerun, early;
} bench;

static bool start(bench *b, uint64_t seed, uint32_t n_forward) {
    static maker m;
    make_random(&m, seed, n_forward);
    if (seed % 2) hold_parts(&m, seed);
    *b = (bench){.p = make_problem(&m, &alloc), .early = seed % 4 == 3};
    cb_arena_init(&b->arena, &alloc);
    if (cb_facts_make(b->p, cb_device_find("a100"), &b->arena, &b->f, &err) != CB_OK) return false;
    b->may_rerun = CB_NEW(&b->arena, bool, b->p->n_op);
    cb_facts_mark_free(&b->f, b->may_rerun);
    return cb_sim_init(&b->sim, &b->f, &alloc, &err) == CB_OK &&
           cb_ledger_init(&b->ledger, &b->f, b->may_rerun, &alloc, &err) == CB_OK &&
           cb_ledger_init(&b->fresh, &b->f, b->may_rerun, &alloc, &err) == CB_OK;
}

static void end(bench *b) {
    cb_ledger_free(&b->ledger);
    cb_ledger_free(&b->fresh);
    cb_sim_free(&b->sim);
    cb_arena_free(&b->arena);
    cb_problem_free(b->p);
}

static bool same_books(const cb_ledger *a, const cb_ledger *b) {
    bool same = a->peak == b->peak && a->area == b->area && a->extra_ps == b->extra_ps;
    for (uint32_t k = 0; k < a->n; k++) same &= cb_ledger_moment(a, k) == cb_ledger_moment(b, k);
    return same;
}

/* Some chain of some anchor becomes a random set of ops, some of them for who reads them later. */
static bool move_at_random(bench *b, uint64_t *state) {
    uint32_t op[12], n = maker_draw(state, 12), anchor = maker_draw(state, b->ledger.n), len = 0;
    bool may = b->early && !(b->p->op_flags[b->f.base[anchor]] & CB_POP_VIEW);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = maker_draw(state, anchor + 1);
        if (k >= anchor || !b->may_rerun[b->f.base[k]]) continue;
        op[len++] = b->f.base[k] | (may && maker_draw(state, 4) == 0 ? CB_EARLY : 0);
    }
    return cb_ledger_set(&b->ledger, anchor, op, len) && cb_ledger_settle(&b->ledger);
}

/* After any moves the books are those of the plan written afresh, and never below the simulator's
 * peak and time; no plan is below the floor. */
TEST(books_agree) {
    uint32_t exact = 0, total = 0;
    for (uint64_t seed = 0; seed < 60; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start(&b, seed, 4 + (uint32_t)seed));
        uint64_t state = seed;
        cb_floor floor;
        CHECK_OK(cb_sim_run(&b.sim, NULL, 0, &err));
        double target = 0.7 * (double)b.sim.peak;
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, target, &err));
        CHECK_OK(cb_find_floor(&b.ledger, &b.arena, &floor, &err));
        CHECK(floor.bytes <= b.sim.peak);
        for (int i = 0; i < 40; i++) {
            cb_pairs pairs = {.arena = &b.arena};
            CHECK(move_at_random(&b, &state));
            CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            CHECK_OK(cb_ledger_load(&b.fresh, pairs.list.at, pairs.list.len, target, &err));
            CHECK(same_books(&b.ledger, &b.fresh));
            CHECK_OK(cb_sim_run(&b.sim, pairs.list.at, pairs.list.len, &err));
            CHECK(b.ledger.peak >= (double)b.sim.peak);
            CHECK(b.ledger.extra_ps + b.f.once_ps >= b.sim.time_ps);
            CHECK(b.sim.peak >= floor.bytes);
            exact += b.ledger.peak == (double)b.sim.peak &&
                     b.ledger.extra_ps + b.f.once_ps == b.sim.time_ps;
            total++;
        }
        end(&b);
    }
    printf("     exact for %u of %u plans\n", exact, total);
    CHECK(exact > total / 2);
}

/* What is said about a rerun's removal holds when it is removed, over several blocks of moments. */
TEST(peak_without_is_no_more) {
    uint32_t known = 0, total = 0;
    for (uint64_t seed = 0; seed < 24; seed += check_rounds(3, 1)) {
        bench b;
        CHECK(start(&b, 1000 + seed, seed < 16 ? 6 + 2 * (uint32_t)seed : 150));
        uint64_t state = seed;
        CHECK_OK(cb_ledger_load(&b.ledger, NULL, 0, 1, &err));
        for (int i = 0; i < 200; i++) {
            CHECK(move_at_random(&b, &state));
            cb_pairs pairs = {.arena = &b.arena};
            CHECK(cb_ledger_pairs(&b.ledger, &pairs));
            for (int drawn = 0; drawn < 4 && pairs.list.len > 0; drawn++) {
                cb_pair pair = pairs.list.at[maker_draw(&state, (uint32_t)pairs.list.len)];
                uint32_t anchor = cb_pair_anchor(pair), op[64], n = 0;
                double least = cb_ledger_peak_without(&b.ledger, anchor, cb_pair_op(pair));
                for (size_t j = 0; j < pairs.list.len && n < 64; j++) {
                    if (cb_pair_anchor(pairs.list.at[j]) == anchor && pairs.list.at[j] != pair)
                        op[n++] = cb_pair_id(pairs.list.at[j]);
                }
                CHECK_OK(cb_ledger_load(&b.fresh, pairs.list.at, pairs.list.len, 1, &err));
                CHECK(cb_ledger_set(&b.fresh, anchor, op, n) && cb_ledger_settle(&b.fresh));
                CHECK(b.fresh.peak >= least);
                known += least > 0;
                total++;
            }
        }
        end(&b);
    }
    printf("     known for %u of %u reruns\n", known, total);
    CHECK(known > total / 4);
}

/* The same question gives the same bits, and the bound is below the answer. */
TEST(plans_repeat) {
    static maker m;
    for (uint64_t seed = 0; seed < 6; seed += check_rounds(2, 1)) {
        make_random(&m, seed + 40, 24);
        cb_problem *p = make_problem(&m, &alloc);
        cb_plan_options o = {
            .budget = {.kind = CB_BUDGET_SHARE, .measure = CB_MEASURE_LIVE, .share = 0.8}};
        cb_plan *a = NULL, *b = NULL;
        cb_status status = cb_plan_make(p, &o, &alloc, &a, &err);
        CHECK(status == CB_OK || status == CB_INFEASIBLE);
        CHECK(cb_plan_make(p, &o, &alloc, &b, &err) == status);
        if (status == CB_OK) {
            CHECK(a->schedule.n_step == b->schedule.n_step &&
                  a->lower_bound_ps == b->lower_bound_ps);
            CHECK(memcmp(a->schedule.step, b->schedule.step,
                         a->schedule.n_step * sizeof(uint32_t)) == 0);
            CHECK(a->lower_bound_ps <= a->time_ps && a->live_bytes <= a->budget_bytes);
        }
        cb_plan_free(a);
        cb_plan_free(b);
        cb_problem_free(p);
    }
}

/* A chain of equal ops, read last to first: the known optimum runs again all but every second. */
TEST(chain_is_optimal) {
    static maker m;
    memset(&m, 0, sizeof m);
    uint32_t value[17], gradient;
    value[0] = make_input(&m, 64);
    for (int i = 1; i <= 16; i++) value[i] = make_op(&m, CB_POP_FUSIBLE, 1, &value[i - 1], 6400);
    m.backward_starts = m.n_op;
    m.result[m.n_result++] = value[16];
    gradient = make_input(&m, 64);
    m.flags[m.n_op - 1] |= CB_POP_BACKWARD;
    for (int i = 16; i >= 1; i--) {
        uint32_t in[2] = {gradient, value[i]};
        gradient = make_op(&m, CB_POP_BACKWARD, 2, in, 640);
    }
    m.grad[m.n_grad++] = gradient;
    cb_problem *p = make_problem(&m, &alloc);
    cb_plan *plan = NULL;
    int64_t fewest = -1;
    for (uint64_t kept = 10; kept <= 16; kept++) { /* room for `kept` values beside two gradients */
        cb_plan_options o = {.budget = {.kind = CB_BUDGET_BYTES, .measure = CB_MEASURE_LIVE}};
        o.budget.bytes = kept * 6400 + 1280;
        CHECK_OK(cb_plan_make(p, &o, &alloc, &plan, &err));
        if (!plan) break;
        CHECK(plan->lives.n_recomputed <= 16 - kept);
        CHECK(fewest < 0 || (int64_t)plan->lives.n_recomputed <= fewest);
        fewest = plan->lives.n_recomputed;
        cb_plan_free(plan);
        plan = NULL;
    }
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(books_agree);
    RUN(peak_without_is_no_more);
    RUN(plans_repeat);
    RUN(chain_is_optimal);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
