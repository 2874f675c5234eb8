/* Plans with offload against all plans that offload or recompute each value at most once, on small
 * problems; monotone in the budget; and refusals. */
#include "check.h"
#include "oom.h"
#include "plan/cut/mincut.h"
#include "plan/planner.h"
#include "plan/schedule/offload_sim.h"
#include "problems.h"

#define MOST_FREE 7

static cb_alloc alloc;
static maker made;

static cb_status plan_for(const cb_problem *p, uint64_t bytes, cb_offload offload, uint64_t pinned,
                          cb_plan **out) {
    const cb_plan_options o = {.budget = {.kind = CB_BUDGET_BYTES,
                                          .bytes = bytes,
                                          .measure = CB_MEASURE_LIVE,
                                          .offload = offload,
                                          .pinned_bytes = pinned}};
    return cb_plan_make(p, &o, &alloc, out, &err);
}

typedef struct choices { /* choices at the first use in the backward */
    cb_pair rerun[MOST_FREE], fetch[MOST_FREE];
    uint32_t n;
} choices;

static void find_choices(const cb_offload_sim *m, choices *c) {
    const cb_facts *f = m->f;
    c->n = 0;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k], need = CB_NONE;
        for (uint32_t b = f->base_backward; b < f->n_base && need == CB_NONE; b++) {
            uint32_t reader = f->base[b];
            for (uint32_t j = f->p->in_begin[reader]; j < f->p->in_begin[reader + 1]; j++) {
                uint32_t s = f->p->value_storage[f->p->in_value[j]];
                if (m->carrier[s] == op && f->root[s] == op) need = b;
            }
        }
        if (need == CB_NONE || c->n == MOST_FREE) continue;
        c->rerun[c->n] = f->once[op] ? UINT64_MAX : cb_pair_make(need, op);
        c->fetch[c->n++] = cb_pair_fetch(need, op);
    }
}

static int64_t best_of_all(cb_offload_sim *m, uint64_t target) {
    choices c;
    int64_t best = INT64_MAX;
    uint32_t count = 1;
    find_choices(m, &c);
    for (uint32_t i = 0; i < c.n; i++) count *= 3;
    for (uint32_t code = 0; code < count; code++) {
        cb_pair pair[MOST_FREE];
        size_t n = 0;
        for (uint32_t i = 0, rest = code; i < c.n; i++, rest /= 3) {
            cb_pair one = rest % 3 == 1 ? c.rerun[i] : rest % 3 == 2 ? c.fetch[i] : UINT64_MAX;
            size_t j = n;
            if (one == UINT64_MAX) continue;
            for (n++; j > 0 && pair[j - 1] > one; j--) pair[j] = pair[j - 1];
            pair[j] = one;
        }
        CHECK_OK(cb_offload_sim_run(m, pair, n, target, &err));
        if (!m->broken && m->peak <= target && m->time_ps < best) best = m->time_ps;
    }
    return best;
}

TEST(close_to_the_best_of_all) {
    uint32_t n = 0, equal = 0, infeasible = 0;
    double worst = 0;
    const uint32_t step = (uint32_t)check_rounds(3, 1);
    for (uint64_t seed = 0; seed < 24; seed += step) {
        cb_arena arena;
        cb_facts f;
        cb_offload_sim m;
        make_random(&made, seed, 6 + (uint32_t)(seed % 4));
        cb_problem *p = make_problem(&made, &alloc);
        p->link_bytes_per_s = 1e8 * (double)(1 << seed % 4);
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_facts_make(p, cb_device_find("cpu"), &arena, &f, &err));
        CHECK_OK(cb_offload_sim_init(&m, &f, false, &alloc, &err));
        CHECK_OK(cb_offload_sim_run(&m, NULL, 0, 0, &err));
        uint64_t whole = m.peak;
        for (uint64_t percent = 50; percent <= 90; percent += 20) {
            uint64_t target = whole * percent / 100;
            cb_plan *plan = NULL;
            int64_t best = best_of_all(&m, target);
            cb_status status = plan_for(p, target, CB_OFFLOAD_JOINT, 0, &plan);
            CHECK(best == INT64_MAX || status == CB_OK);
            infeasible += status != CB_OK;
            if (status != CB_OK || best == INT64_MAX) {
                cb_plan_free(plan);
                continue;
            }
            CHECK(plan->live_bytes <= target);
            CHECK(plan->lower_bound_ps < 0 || plan->lower_bound_ps <= best);
            n++;
            equal += plan->time_ps <= best;
            double over = (double)(plan->time_ps - best) / (double)best;
            if (over > worst) worst = over;
            cb_plan_free(plan);
        }
        cb_offload_sim_free(&m);
        cb_arena_free(&arena);
        cb_problem_free(p);
    }
    printf("%u of %u as fast as the best of all, %.1f %% above at most; %u infeasible\n", equal, n,
           100 * worst, infeasible);
    CHECK(step * n > 15 && equal * 10 >= n * 8 && worst < 0.2);
}

TEST(budgets_are_monotone) {
    for (uint64_t seed = 0; seed < 2; seed++) {
        make_random(&made, seed, 30);
        cb_problem *p = make_problem(&made, &alloc);
        p->link_bytes_per_s = 2e8;
        cb_plan *all = NULL;
        const cb_plan_options none = {.preset = CB_PRESET_AUTOGRAD};
        CHECK_OK(cb_plan_make(p, &none, &alloc, &all, &err));
        int64_t before = 0;
        uint64_t size = UINT64_MAX;
        for (uint64_t percent = 95; percent >= 30; percent -= 13) {
            uint64_t bytes = all->live_bytes * percent / 100;
            cb_plan *joint = NULL, *runs = NULL, *only = NULL;
            cb_status status = plan_for(p, bytes, CB_OFFLOAD_JOINT, 0, &joint);
            cb_status alone = plan_for(p, bytes, CB_OFFLOAD_ASKED, 0, &runs);
            cb_status moves = plan_for(p, bytes, CB_OFFLOAD_ONLY, 0, &only);
            if (status == CB_OK) {
                CHECK(joint->time_ps >= before && joint->live_bytes <= size &&
                      joint->live_bytes <= bytes);
                CHECK(alone != CB_OK || joint->time_ps <= runs->time_ps);
                CHECK(moves != CB_OK || joint->time_ps <= only->time_ps);
                before = joint->time_ps;
                size = joint->live_bytes;
            } else {
                CHECK(status == CB_INFEASIBLE && alone != CB_OK && moves != CB_OK);
                before = INT64_MAX;
            }
            cb_plan_free(joint);
            cb_plan_free(runs);
            cb_plan_free(only);
        }
        cb_plan_free(all);
        cb_problem_free(p);
    }
}

/* Makes x -> a -> b -> c, then a backward that reads c, b and a. */
static cb_problem *chain(uint8_t of_b) {
    memset(&made, 0, sizeof made);
    uint32_t x = make_input(&made, 1000), a = make_op(&made, CB_POP_FUSIBLE, 1, &x, 100),
             b = make_op(&made, CB_POP_RANDOM_STATEFUL, 1, &a, 200),
             c = make_op(&made, CB_POP_FUSIBLE, 1, &b, 300);
    made.constraint[b] = of_b;
    made.backward_starts = made.n_op;
    uint32_t t = make_input(&made, 8);
    made.flags[made.n_op - 1] |= CB_POP_BACKWARD;
    for (uint32_t v = c; v >= a; v--)
        t = make_op(&made, CB_POP_BACKWARD, 2, (const uint32_t[]){t, v}, 10);
    made.grad[made.n_grad++] = t;
    cb_problem *p = make_problem(&made, &alloc);
    p->link_bytes_per_s = 1e9;
    return p;
}

static bool leaves_and_returns(const cb_plan *plan, uint32_t op) {
    uint32_t out = 0, in = 0;
    for (uint32_t t = 0; t < plan->schedule.n_step; t++) {
        if (plan->schedule.step[t] != op) continue;
        out += cb_action_at(&plan->schedule, t) == CB_ACTION_OUT;
        in += cb_action_at(&plan->schedule, t) == CB_ACTION_IN;
    }
    return out == 1 && in == 1;
}

TEST(wishes_are_followed) {
    cb_plan *plan = NULL;
    const cb_plan_options none = {.preset = CB_PRESET_AUTOGRAD};
    for (int i = 0; i < 2; i++) { /* without a budget, PREFER acts like MUST */
        cb_problem *p = chain(i ? CB_MUST_OFFLOAD : CB_PREFER_OFFLOAD);
        CHECK_OK(cb_plan_make(p, &none, &alloc, &plan, &err));
        CHECK(leaves_and_returns(plan, 2) && plan->decision[2] == CB_DECISION_OFFLOAD &&
              plan->reason[2] == CB_REASON_POLICY);
        cb_plan_free(plan);
        cb_status status = plan_for(p, 610, CB_OFFLOAD_ASKED, 0, &plan);
        CHECK(status == CB_OK && leaves_and_returns(plan, 2) == (i == 1));
        cb_plan_free(plan);
        CHECK_FAIL(plan_for(p, 610, CB_OFFLOAD_ASKED, i ? 100 : 0, &plan),
                   i ? CB_INFEASIBLE : CB_OK, i ? "limit on host memory" : "");
        if (i) CHECK(err.refusal.reason == CB_REFUSED_PINNED && err.refusal.pinned_bytes == 100);
        if (i) CHECK(err.refusal.smallest_bytes > 100);
        if (!i) cb_plan_free(plan);
        p->link_bytes_per_s = 0;
        cb_device alone = *cb_device_find("cpu");
        alone.link_bytes_per_s = 0;
        const cb_plan_options there = {.preset = CB_PRESET_AUTOGRAD, .device = &alone};
        CHECK_FAIL(cb_plan_make(p, &there, &alloc, &plan, &err), CB_UNSUPPORTED,
                   "device cpu has no link to a host");
        cb_problem_free(p);
    }
}

/* An op's results are offloaded together, so an op that has written an output into the caller's
 * memory keeps them all, whether that output is the forward's or the backward's. */
TEST(what_gives_an_output_stays) {
    const cb_plan_options none = {.preset = CB_PRESET_AUTOGRAD};
    for (int backward = 0; backward < 2; backward++) {
        cb_plan *plan = NULL;
        made = (maker){0};
        uint32_t x = make_input(&made, 64), next,
                 both = make_pair_op(&made, CB_POP_COMPUTE, 1, &x, 128, 64);
        made.storage_flags[made.storage[both + 1]] = CB_STORE_STATIC;
        made.constraint[both] = CB_PREFER_OFFLOAD;
        next = make_op(&made, CB_POP_COMPUTE, 1, &both, 64);
        made.backward_starts = made.n_op;
        next = make_op(&made, CB_POP_BACKWARD, 2, (uint32_t[]){next, both}, 64);
        made.grad[made.n_grad++] = next;
        if (backward) made.grad[made.n_grad++] = both + 1;
        else made.result[made.n_result++] = both + 1;
        cb_problem *p = make_problem(&made, &alloc);
        p->link_bytes_per_s = 1e9;
        CHECK_OK(cb_problem_verify(p, &err));
        CHECK_OK(cb_plan_make(p, &none, &alloc, &plan, &err));
        CHECK(plan && plan->schedule.n_step == 3 && !plan->schedule.action);
        cb_plan_free(plan);
        p->value_constraint[both] = CB_MUST_OFFLOAD;
        CHECK_FAIL(cb_plan_make(p, &none, &alloc, &plan, &err), CB_INVALID,
                   "made together with an output");
        cb_problem_free(p);
    }
}

TEST(mistakes_are_refused) {
    cb_plan *plan = NULL;
    cb_problem *p = chain(CB_FREE);
    cb_plan_options o = {.budget = {.offload = CB_OFFLOAD_JOINT}};
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "offload requires a budget");
    o.budget.kind = CB_BUDGET_SHARE;
    o.budget.share = 0.5;
    o.budget.measure = CB_MEASURE_SAVED;
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_UNSUPPORTED, "not on saved");
    o.budget.offload = CB_OFFLOAD_COUNT;
    CHECK_FAIL(cb_plan_make(p, &o, &alloc, &plan, &err), CB_INVALID, "unknown kind of offload");
    CHECK_FAIL(plan_for(p, 10, CB_OFFLOAD_JOINT, 0, &plan), CB_INFEASIBLE, "no plan fits");
    CHECK(err.refusal.budget_bytes == 10 && err.refusal.pinned_bytes == 0);
    CHECK(err.refusal.floor_bytes > 10 && err.refusal.floor_bytes <= err.refusal.smallest_bytes);
    cb_problem_free(p);
}

static cb_status plan_once(cb_alloc *a, void *user) {
    cb_plan *plan = NULL;
    const cb_plan_options o = {.budget = {.kind = CB_BUDGET_SHARE,
                                          .share = 0.8,
                                          .measure = CB_MEASURE_LIVE,
                                          .offload = CB_OFFLOAD_ONLY}};
    cb_status status = cb_plan_make(user, &o, a, &plan, &err);
    cb_plan_free(plan);
    return status == CB_INFEASIBLE ? CB_OK : status;
}

TEST(out_of_memory) {
    cb_problem *p = chain(CB_FREE);
    check_oom(plan_once, p);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(close_to_the_best_of_all);
    RUN(budgets_are_monotone);
    RUN(wishes_are_followed);
    RUN(what_gives_an_output_stays);
    RUN(mistakes_are_refused);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
