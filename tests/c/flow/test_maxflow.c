/* Compares both solvers, in both widths, with all cuts and with slow augmenting paths. Also tests
 * refusals, that the cut does not depend on the order of arcs, and networks built to be hard. */
#include "flow/oracle.h"
#include "flow/push_relabel.h"
#include "oom.h"

typedef cb_status (*solver64)(cb_flow *, uint32_t, uint32_t, const int64_t *, cb_error *);
typedef cb_status (*solver128)(cb_flow128 *, uint32_t, uint32_t, const cb_int128 *, cb_error *);
static const solver64 SOLVERS64[] = {cb_flow_solve, cb_flow_solve_by_push};
static const solver128 SOLVERS128[] = {cb_flow128_solve, cb_flow128_solve_by_push};

static cb_alloc alloc;

static bool is_infinite(const small_network *g, uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < g->n_arc; i++) {
        if (g->from[i] == from && g->to[i] == to && g->capacity[i] == CB_FLOW_INF) return true;
    }
    return false;
}

static void check_path(const small_network *g, const uint32_t *path, uint32_t n_path) {
    CHECK(n_path >= 2 && path[0] == g->source && path[n_path - 1] == g->sink);
    for (uint32_t i = 0; i + 1 < n_path; i++) CHECK(is_infinite(g, path[i], path[i + 1]));
}

static void check_solvers(const small_network *g, bool feasible, cb_int128 value,
                          const bool *side) {
    cb_arena arena;
    cb_flow f;
    cb_flow128 f128;
    cb_int128 wide[SMALL_ARCS];
    cb_arena_init(&arena, &alloc);
    for (uint32_t i = 0; i < g->n_arc; i++) {
        wide[i] = g->capacity[i] == CB_FLOW_INF ? CB_FLOW128_INF : (cb_int128)g->capacity[i] << 50;
    }
    CHECK_OK(cb_flow_build(&f, &arena, g->n_node, g->n_arc, g->from, g->to, &err));
    CHECK_OK(cb_flow128_build(&f128, &arena, g->n_node, g->n_arc, g->from, g->to, &err));
    for (int k = 0; k < 2; k++) {
        cb_status status = SOLVERS64[k](&f, g->source, g->sink, g->capacity, &err);
        if (status == CB_UNSUPPORTED && k == 1) continue; /* too large for push-relabel */
        CHECK(status == (feasible ? CB_OK : CB_INFEASIBLE));
        if (!feasible) check_path(g, f.path, f.n_path);
        else CHECK(f.value == value && memcmp(f.sink_side, side, g->n_node) == 0);
    }
    for (int k = 0; k < 2; k++) {
        cb_status status = SOLVERS128[k](&f128, g->source, g->sink, wide, &err);
        CHECK(status == (feasible ? CB_OK : CB_INFEASIBLE));
        if (!feasible) check_path(g, f128.path, f128.n_path);
        else CHECK(f128.value == value << 50 && memcmp(f128.sink_side, side, g->n_node) == 0);
    }
    cb_arena_free(&arena);
}

TEST(equals_all_cuts) {
    random_state r = {1};
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t n = 2 + random_below(&r, 9);
        small_network g = random_network(&r, n, random_below(&r, 3 * n + 1), 9, i % 3 * 15);
        bool side[SMALL_NODES], slow_side[SMALL_NODES];
        cb_int128 value = 0, slow_value;
        bool feasible = brute_cut(&g, &value, side);
        CHECK(slow_cut(&g, &slow_value, slow_side) == feasible);
        if (feasible) CHECK(value == slow_value && memcmp(side, slow_side, n) == 0);
        check_solvers(&g, feasible, value, side);
    }
}

TEST(equals_slow_paths) {
    random_state r = {2};
    static const uint64_t MOST[] = {
        1, 3, 100, 1 << 20, UINT64_C(1) << 40, UINT64_C(1) << 53, UINT64_C(1) << 54};
    for (uint32_t i = 0; i < 1500; i++) {
        uint32_t n = 4 + random_below(&r, SMALL_NODES - 4), m = n + random_below(&r, 4 * n);
        small_network g = random_network(&r, n, m, MOST[i % 7], i % 4 * 4);
        bool side[SMALL_NODES];
        cb_int128 value;
        bool feasible = slow_cut(&g, &value, side);
        check_solvers(&g, feasible, value, side);
    }
}

/* Solves for the same arcs in another order, with renamed nodes. */
TEST(cut_does_not_depend_on_order) {
    random_state r = {3};
    for (int i = 0; i < 300; i++) {
        uint32_t n = 4 + random_below(&r, 40), name[SMALL_NODES];
        small_network g = random_network(&r, n, 3 * n, 4, 6), h = g;
        bool side[SMALL_NODES], renamed[SMALL_NODES];
        cb_int128 value;
        if (!slow_cut(&g, &value, side)) continue;
        for (uint32_t v = 0; v < n; v++) {
            uint32_t u = random_below(&r, v + 1);
            name[v] = name[u];
            name[u] = v;
        }
        for (uint32_t k = 0; k < g.n_arc; k++) {
            uint32_t j = random_below(&r, k + 1);
            h.from[k] = h.from[j];
            h.to[k] = h.to[j];
            h.capacity[k] = h.capacity[j];
            h.from[j] = name[g.from[k]];
            h.to[j] = name[g.to[k]];
            h.capacity[j] = g.capacity[k];
        }
        h.source = name[g.source];
        h.sink = name[g.sink];
        for (uint32_t v = 0; v < n; v++) renamed[name[v]] = side[v];
        check_solvers(&h, true, value, renamed);
    }
}

TEST(refuses_what_cannot_be) {
    cb_arena arena;
    cb_flow f;
    uint32_t from[] = {0, 1}, to[] = {1, 2}, beyond[] = {1, 3};
    cb_arena_init(&arena, &alloc);
    CHECK_FAIL(cb_flow_build(&f, &arena, 3, 2, from, beyond, &err), CB_INVALID,
               "arc 1 joins nodes 1 and 3, but there are only 3 nodes");
    CHECK_FAIL(cb_flow_build(&f, &arena, 3, UINT32_MAX / 2, from, to, &err), CB_INVALID,
               "there must be fewer than");
    CHECK_OK(cb_flow_build(&f, &arena, 3, 2, from, to, &err));
    int64_t good[] = {4, 3}, negative[] = {4, -1}, much[] = {CB_FLOW_MOST - 1, 1};
    int64_t endless[] = {CB_FLOW_INF, CB_FLOW_INF}, most[] = {CB_FLOW_MOST - 2, 1};
    CHECK_FAIL(cb_flow_solve(&f, 0, 0, good, &err), CB_INVALID, "source 0 and sink 0");
    CHECK_FAIL(cb_flow_solve(&f, 0, 3, good, &err), CB_INVALID,
               "sink 3 must be different nodes below 3");
    CHECK_FAIL(cb_flow_solve(&f, 0, 2, negative, &err), CB_INVALID, "arc 1 has a negative");
    CHECK_FAIL(cb_flow_solve(&f, 0, 2, much, &err), CB_INVALID, "2^62");
    CHECK_FAIL(cb_flow_solve(&f, 0, 2, endless, &err), CB_INFEASIBLE,
               "a path of 2 arcs without limit");
    CHECK(f.n_path == 3 && f.path[0] == 0 && f.path[1] == 1 && f.path[2] == 2);
    CHECK_OK(cb_flow_solve(&f, 0, 2, most, &err));
    CHECK(f.value == 1 && !f.sink_side[1] && f.sink_side[2]);
    CHECK_OK(cb_flow_solve(&f, 0, 2, good, &err));
    CHECK(f.value == 3 && f.n_path == 0);
    CHECK_OK(cb_flow_solve(&f, 2, 0, good, &err)); /* no path in that direction */
    CHECK(f.value == 0 && f.sink_side[0] && !f.sink_side[1]);
    CHECK_OK(cb_flow_build(&f, &arena, 2, 0, NULL, NULL, &err));
    CHECK_OK(cb_flow_solve(&f, 0, 1, NULL, &err));
    CHECK(f.value == 0 && f.sink_side[1] && !f.sink_side[0]);
    cb_arena_free(&arena);
}

/* Compares both solvers on generated networks. */
static uint32_t check_made(made_network *g) {
    cb_flow a, b;
    cb_priced_network n = made_view(g);
    CHECK(!g->failed);
    CHECK_OK(cb_flow_build(&a, g->arena, n.n_node, n.n_arc, n.from, n.to, &err));
    CHECK_OK(cb_flow_build(&b, g->arena, n.n_node, n.n_arc, n.from, n.to, &err));
    CHECK_OK(cb_flow_solve(&a, n.source, n.sink, n.bytes, &err));
    CHECK_OK(cb_flow_solve_by_push(&b, n.source, n.sink, n.bytes, &err));
    CHECK(a.value == b.value && a.value > 0 && memcmp(a.sink_side, b.sink_side, n.n_node) == 0);
    cb_int128 value = 0; /* the cut arcs add up to the value */
    for (uint32_t i = 0; i < n.n_arc; i++) {
        if (!a.sink_side[n.from[i]] && a.sink_side[n.to[i]]) value += n.bytes[i];
    }
    CHECK(value == a.value);
    return a.n_phase;
}

TEST(solvers_agree_on_generated_graphs) {
    for (uint64_t kind = 0; kind < 10; kind++) {
        cb_arena arena;
        made_network g;
        cb_arena_init(&arena, &alloc);
        made_init(&g, &arena, kind);
        uint32_t n = kind % 2 ? 100000 : 3000;
        if (kind / 2 == 0) make_gpt(&g, n, BANNED);
        if (kind / 2 == 1) make_gpt(&g, n, FREE_OP);
        if (kind / 2 == 2) make_resnet(&g, n, BANNED);
        if (kind / 2 == 3) make_random_dag(&g, n);
        if (kind / 2 == 4) make_grid(&g, n, kind % 2 ? 200 : 20);
        uint32_t n_phase = check_made(&g);
        CHECK(kind / 2 > 2 || n_phase < 4);
        cb_arena_free(&arena);
    }
}

/* Solves a ladder on which each phase finds one path, one arc longer than the last. */
TEST(falls_back_when_phases_are_many) {
    enum { RUNGS = 200 };
    cb_arena arena;
    made_network g;
    cb_arena_init(&arena, &alloc);
    made_init(&g, &arena, 0);
    for (uint32_t i = 0; i < RUNGS; i++) {
        uint32_t v = made_node(&g, 0);
        if (i == 0) made_arc(&g, g.source, v, 1000);
        else made_arc(&g, v - 1, v, (int64_t)(1000 - i));
        made_arc(&g, v, g.sink, 1);
    }
    CHECK(check_made(&g) == CB_FLOW_PATIENCE);
    cb_arena_free(&arena);
}

static cb_status build_and_solve(cb_alloc *a, void *user) {
    const small_network *g = user;
    cb_arena arena;
    cb_flow f;
    cb_flow128 f128;
    cb_arena_init(&arena, a);
    cb_status status = cb_flow_build(&f, &arena, g->n_node, g->n_arc, g->from, g->to, &err);
    if (status == CB_OK) status = cb_flow_solve(&f, g->source, g->sink, g->capacity, &err);
    if (status == CB_OK)
        status = cb_flow128_build(&f128, &arena, g->n_node, g->n_arc, g->from, g->to, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    random_state r = {4};
    small_network g = random_network(&r, 40, 160, 9, 0);
    check_oom(build_and_solve, &g);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(equals_all_cuts);
    RUN(equals_slow_paths);
    RUN(cut_does_not_depend_on_order);
    RUN(refuses_what_cannot_be);
    RUN(solvers_agree_on_generated_graphs);
    RUN(falls_back_when_phases_are_many);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
