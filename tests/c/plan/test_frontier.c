/* The frontier of a problem against the schedules of its points, all subsets of ops that may rerun,
 * and single cuts; constraints, limits of regions, budgets. */
#include "plan/cut/frontier.h"

#include "check.h"
#include "oom.h"
#include "plan/files/frontier_json.h"
#include "plan/planner.h"
#include "plan/schedule/sim.h"
#include "problems.h"

static cb_alloc alloc;

typedef struct fixture {
    cb_problem *p;
    cb_arena arena;
    cb_facts f;
    cb_cut cut;
    cb_sim sim;
    cb_pairs pairs;
    bool *recompute;
    cb_tradeoffs t;
} fixture;

static cb_status set_up(fixture *x, const maker *m, cb_preset preset) {
    *x = (fixture){.p = make_problem(m, &alloc)};
    cb_arena_init(&x->arena, &alloc);
    x->pairs.arena = &x->arena;
    x->recompute = CB_NEW(&x->arena, bool, x->p->n_op);
    CB_TRY(cb_problem_verify(x->p, &err));
    CB_TRY(cb_facts_make(x->p, cb_device_find("cpu"), &x->arena, &x->f, &err));
    CB_TRY(cb_cut_init(&x->cut, &x->f, &x->arena, &err));
    CB_TRY(cb_sim_init(&x->sim, &x->f, &alloc, &err));
    return cb_tradeoffs_make(&x->t, &x->cut, preset, &x->arena, &err);
}

static void tear_down(fixture *x) {
    cb_sim_free(&x->sim);
    cb_arena_free(&x->arena);
    cb_problem_free(x->p);
}

static void simulate(fixture *x) {
    CHECK_OK(cb_recompute_lazily(&x->f, x->recompute, NULL, &x->pairs, &err));
    CHECK_OK(cb_sim_run(&x->sim, x->pairs.list.at, x->pairs.list.len, &err));
}

/* Checks that bytes and times of all points equal those of their schedules, that bytes rise and
 * times fall. */
static void check_points(fixture *x) {
    for (uint32_t i = 0; i < x->t.n_point; i++) {
        const cb_tradeoff *point = &x->t.point[i];
        cb_tradeoffs_recompute(&x->t, i, x->recompute);
        simulate(x);
        CHECK(x->sim.saved == point->saved_bytes && x->sim.time_ps == point->time_ps);
        CHECK(point->bound_ps <= point->time_ps && point->bound_ps >= x->f.once_ps);
        CHECK(i == 0 ||
              (point->saved_bytes > point[-1].saved_bytes && point->time_ps < point[-1].time_ps));
        CHECK(cb_tradeoffs_at(&x->t, point->saved_bytes) == i);
    }
    uint64_t first = x->t.point->saved_bytes;
    CHECK(first == 0 || cb_tradeoffs_at(&x->t, first - 1) == CB_NONE);
    CHECK(cb_tradeoffs_at(&x->t, UINT64_MAX) == x->t.n_point - 1);
}

TEST(points_are_what_their_schedules_do) {
    static const cb_preset presets[] = {CB_PRESET_RECOMPUTE_ALL, CB_PRESET_AGGRESSIVE,
                                        CB_PRESET_CONSERVATIVE, CB_PRESET_AUTOGRAD};
    static maker m;
    uint32_t n_kind[CB_TRADEOFF_KINDS] = {0};
    for (uint64_t seed = 0; seed < 400; seed++) {
        fixture x;
        cb_preset preset = presets[seed % 4];
        make_random(&m, seed, 5 + (uint32_t)seed % 60);
        CHECK_OK(set_up(&x, &m, preset));
        check_points(&x);
        for (uint32_t i = 0; i < x.t.n_point; i++) n_kind[x.t.point[i].kind]++;
        if (preset == CB_PRESET_AUTOGRAD) CHECK(x.t.n_point == 1);
        tear_down(&x);
    }
    for (int kind = 0; kind < CB_TRADEOFF_KINDS; kind++) CHECK(n_kind[kind] > 50);
}

/* No schedule of the ops in the cut is below the bound, or saves less than the first point. */
TEST(no_subset_beats_the_bound) {
    static maker m;
    uint32_t n_tried = 0, n_hit = 0;
    for (uint64_t seed = 0; seed < 120; seed++) {
        fixture x;
        make_random(&m, seed, 9);
        CHECK_OK(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL));
        uint64_t least = UINT64_MAX;
        for (uint32_t set = 0; set < 1u << x.cut.n_run; set++) {
            bool may = true;
            for (uint32_t i = 0; i < x.cut.n_run; i++) {
                x.recompute[x.cut.run_op[i]] = set >> i & 1;
                may &= !(set >> i & 1) || !x.f.once[x.cut.run_op[i]];
            }
            if (!may) continue;
            simulate(&x);
            if (x.sim.saved < least) least = x.sim.saved;
            uint32_t at = cb_tradeoffs_at(&x.t, x.sim.saved);
            CHECK(at != CB_NONE);
            if (at == CB_NONE) continue;
            int64_t extra = 0, saved = (int64_t)(x.sim.saved - x.t.held_bytes);
            CHECK_OK(cb_frontier_bound(&x.t.frontier, saved, &extra, &err));
            CHECK(x.f.once_ps + extra <= x.sim.time_ps);
            n_tried++;
            n_hit += x.t.point[at].time_ps <= x.sim.time_ps;
        }
        CHECK(x.t.point->saved_bytes == least);
        tear_down(&x);
    }
    CHECK(n_tried > 10000 && n_hit > n_tried / 10 * 9); /* the rest needs more than a greedy fill */
}

/* Makes a chain with skips that ends in a result, so every first run is needed. */
static void make_chain(maker *m, uint32_t n, uint64_t seed) {
    uint32_t v[100], grad;
    memset(m, 0, sizeof *m);
    v[0] = make_input(m, 64);
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t in[2] = {v[i - 1], v[maker_draw(&seed, i)]};
        v[i] = make_op(m, i % 3 ? CB_POP_FUSIBLE : CB_POP_COMPUTE, 1 + maker_draw(&seed, 2), in,
                       64 * (1 + maker_draw(&seed, 9)));
    }
    m->backward_starts = m->n_op;
    m->result[m->n_result++] = v[n];
    grad = make_input(m, 64);
    m->flags[m->n_op - 1] |= CB_POP_BACKWARD;
    for (uint32_t i = n; i > 0; i--) {
        if (i % 3 != 1) grad = make_op(m, CB_POP_BACKWARD, 2, (const uint32_t[]){grad, v[i]}, 64);
    }
    m->grad[m->n_grad++] = grad;
}

TEST(corners_are_the_cuts_at_every_price) {
    static maker m;
    for (uint64_t seed = 0; seed < 100; seed++) {
        fixture x;
        make_chain(&m, 60, seed);
        CHECK_OK(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL));
        check_points(&x);
        for (int64_t q = 1; q < 10000000; q *= 7) { /* picoseconds per byte */
            for (uint32_t i = 0; i < x.cut.n_run; i++)
                x.cut.run_cost[i] = x.f.time_ps[x.cut.run_op[i]];
            for (uint32_t i = 0; i < x.cut.n_save; i++) {
                uint32_t s = x.cut.save_storage[i];
                x.cut.save_cost[i] = x.f.held[s] ? 0 : q * (int64_t)x.p->storage_bytes[s];
            }
            CHECK_OK(cb_cut_solve(&x.cut, &err));
            int64_t best = INT64_MAX;
            for (uint32_t i = 0; i < x.t.n_point; i++) {
                const cb_tradeoff *point = &x.t.point[i];
                int64_t cost = q * (int64_t)(point->saved_bytes - x.t.held_bytes) + point->time_ps -
                               x.f.once_ps;
                if (cost < best) best = cost;
                CHECK(point->kind == CB_TRADEOFF_FILL || point->bound_ps == point->time_ps);
            }
            CHECK(best == x.cut.flow.value);
        }
        tear_down(&x);
    }
}

TEST(wishes_hold_at_every_point) {
    static maker m;
    fixture x;
    make_chain(&m, 60, 1);
    m.constraint[5] = CB_MUST_SAVE;
    m.constraint[8] = CB_MUST_RECOMPUTE;
    CHECK_OK(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL));
    CHECK(x.t.n_point > 10 && x.t.has_bound);
    check_points(&x);
    for (uint32_t i = 0; i < x.t.n_point; i++) {
        cb_tradeoffs_recompute(&x.t, i, x.recompute);
        CHECK(!x.recompute[5] && x.recompute[8]);
    }
    tear_down(&x);
    m.constraint[9] = CB_PREFER_SAVE;
    m.constraint[11] = CB_PREFER_RECOMPUTE;
    CHECK_OK(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL));
    CHECK(!x.t.has_bound);
    check_points(&x);
    tear_down(&x);
}

/* Returns the bytes that the last simulated schedule saves inside the region. */
static uint64_t saved_inside(const fixture *x, uint32_t region) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->sim.life.len; i++) {
        const cb_sim_life *life = &x->sim.life.at[i];
        bool saved = life->made != CB_NONE && life->made < x->sim.backward_starts &&
                     life->last >= x->sim.backward_starts;
        if (saved && cb_inside_region(x->sim.f, life->storage, region))
            bytes += x->sim.f->p->storage_bytes[life->storage];
    }
    return bytes;
}

TEST(regions_keep_their_limits) {
    static maker m;
    fixture x;
    make_chain(&m, 60, 1);
    m.n_region = 1;
    m.limit[0] = 700;
    for (uint32_t op = 1; op <= 15; op++) m.region[op] = 1;
    CHECK_OK(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL));
    check_points(&x);
    for (uint32_t i = 0; i < x.t.n_point; i++) {
        cb_tradeoffs_recompute(&x.t, i, x.recompute);
        simulate(&x);
        CHECK(saved_inside(&x, 0) <= 700);
    }
    tear_down(&x);
    m.limit[0] = 1;
    for (uint32_t v = 2; v <= 15; v++) m.constraint[v] = CB_MUST_SAVE;
    CHECK_FAIL(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL), CB_UNSUPPORTED, "limits of all regions");
    tear_down(&x);
}

/* With a preset. Without one, small problems are also searched for plans between points. */
TEST(budgets_on_saved_bytes_are_points) {
    static maker m;
    fixture x;
    make_random(&m, 12, 50);
    CHECK_OK(set_up(&x, &m, CB_PRESET_RECOMPUTE_ALL));
    for (uint32_t i = 0; i < 2 * x.t.n_point; i++) {
        const cb_tradeoff *point = &x.t.point[i / 2];
        const bool searches = i % 2 == 1;
        cb_plan_options o = {.preset = searches ? CB_PRESET_AUTOGRAD : CB_PRESET_RECOMPUTE_ALL,
                             .budget = {.kind = CB_BUDGET_BYTES,
                                        .bytes = point->saved_bytes,
                                        .measure = CB_MEASURE_SAVED}};
        cb_plan *plan = NULL;
        CHECK_OK(cb_plan_make(x.p, &o, &alloc, &plan, &err));
        if (!plan) break;
        CHECK(plan->saved_bytes <= point->saved_bytes && plan->time_ps <= point->time_ps);
        CHECK(searches ||
              (plan->saved_bytes == point->saved_bytes && plan->time_ps == point->time_ps));
        CHECK(plan->lower_bound_ps == point->bound_ps);
        cb_plan_free(plan);
    }
    tear_down(&x);
}

static cb_status make_points(cb_alloc *a, void *user) {
    const cb_problem *p = user;
    cb_arena arena;
    cb_facts f;
    cb_cut cut;
    cb_tradeoffs t;
    cb_arena_init(&arena, a);
    cb_status status = cb_facts_make(p, cb_device_find("cpu"), &arena, &f, &err);
    if (status == CB_OK) status = cb_cut_init(&cut, &f, &arena, &err);
    if (status == CB_OK)
        status = cb_tradeoffs_make(&t, &cut, CB_PRESET_RECOMPUTE_ALL, &arena, &err);
    cb_arena_free(&arena);
    return status;
}

static cb_status write_document(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_str text;
    cb_arena_init(&arena, a);
    cb_str_init(&text, &arena);
    const cb_frontier_request request = {.preset = CB_PRESET_CONSERVATIVE};
    cb_status status = cb_frontier_to_json(user, &request, a, &text, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    static maker m;
    make_random(&m, 4, 60);
    cb_problem *p = make_problem(&m, &alloc);
    check_oom(make_points, p);
    check_oom(write_document, p);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(points_are_what_their_schedules_do);
    RUN(no_subset_beats_the_bound);
    RUN(corners_are_the_cuts_at_every_price);
    RUN(wishes_hold_at_every_point);
    RUN(regions_keep_their_limits);
    RUN(budgets_on_saved_bytes_are_points);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
