/* The frontier against the lower hull of all cuts, and against single cuts at many prices. */
#include "flow/oracle.h"
#include "oom.h"

static cb_alloc alloc;

static cb_priced_network priced(const small_network *g) {
    return (cb_priced_network){g->n_node, g->n_arc, g->source,   g->sink,
                               g->from,   g->to,    g->capacity, g->time};
}

/* Computes bytes and time of the cut at step `k`. */
static bool step_costs(const small_network *g, const cb_frontier *f, uint32_t k, int64_t *bytes,
                       int64_t *time) {
    bool side[SMALL_NODES];
    cb_int128 cost;
    *time = 0;
    for (uint32_t v = 0; v < g->n_node; v++) {
        side[v] = cb_frontier_has(f, v, k);
        if (side[v]) *time += g->time[v];
    }
    bool finite = cut_costs(g, side, &cost) && side[g->sink] && !side[g->source];
    *bytes = (int64_t)cost;
    return finite;
}

/* Checks the invariants of every finished frontier. */
static void check_shape(const cb_frontier *f) {
    CHECK(f->n_point >= 1 && f->n_step >= f->n_point);
    CHECK(f->point[0].step == 0 && f->point[f->n_point - 1].step == f->n_step - 1);
    for (uint32_t i = 0; i < f->n_point; i++) {
        const cb_frontier_point *b = &f->point[i], *a = b - 1;
        CHECK(b->bytes == f->step[b->step].bytes && b->time == f->step[b->step].time);
        if (i == 0) continue;
        CHECK(a->step < b->step && a->bytes < b->bytes && a->time > b->time);
        CHECK((cb_int128)a->p * b->q < (cb_int128)b->p * a->q); /* prices rise */
        for (uint32_t k = a->step + 1; k <= b->step; k++) {     /* steps are on the line */
            int64_t bytes = f->step[k].bytes - a->bytes, time = a->time - f->step[k].time;
            CHECK((cb_int128)bytes * b->q == (cb_int128)time * b->p);
            CHECK(f->step[k].point == i && bytes >= 0 && time >= 0);
        }
    }
}

/* Checks that every cut is on or above the frontier's line at every price between points, and that
 * the points are cuts. */
static void check_against_all_cuts(const small_network *g, const cb_frontier *f) {
    bool side[SMALL_NODES];
    for (uint32_t set = 0; set < 1u << g->n_node; set++) {
        cb_int128 cost;
        int64_t time = 0, bound;
        if (set >> g->source & 1 || !(set >> g->sink & 1)) continue;
        for (uint32_t v = 0; v < g->n_node; v++) {
            side[v] = set >> v & 1;
            if (side[v]) time += g->time[v];
        }
        if (!cut_costs(g, side, &cost)) continue;
        CHECK(cost >= f->point[0].bytes && time >= f->point[f->n_point - 1].time);
        for (uint32_t i = 1; i < f->n_point; i++) {
            const cb_frontier_point *b = &f->point[i];
            CHECK(cost * b->q + (cb_int128)time * b->p >=
                  (cb_int128)b->bytes * b->q + (cb_int128)b->time * b->p);
        }
        CHECK_OK(cb_frontier_bound(f, (int64_t)cost, &bound, &err));
        CHECK(bound <= time);
    }
}

/* Checks that the step that begins at a price is the sink-minimal cut of the network with priced
 * arcs. */
static void check_at_price(const small_network *g, const cb_frontier *f, int64_t p, int64_t q,
                           uint32_t step) {
    small_network h = *g;
    bool side[SMALL_NODES];
    cb_int128 value;
    for (uint32_t i = 0; i < h.n_arc; i++) {
        if (h.capacity[i] != CB_FLOW_INF) h.capacity[i] *= q;
    }
    for (uint32_t v = 0; v < h.n_node; v++) {
        h.from[h.n_arc] = h.source;
        h.to[h.n_arc] = v;
        h.capacity[h.n_arc++] = v == h.source || v == h.sink ? 0 : g->time[v] * p;
    }
    CHECK(slow_cut(&h, &value, side));
    for (uint32_t v = 0; v < h.n_node; v++) CHECK(side[v] == cb_frontier_has(f, v, step));
}

static void check_frontier(const small_network *g, bool all_cuts) {
    cb_arena arena;
    cb_frontier f = {0};
    cb_priced_network net = priced(g);
    bool side[SMALL_NODES];
    cb_int128 value;
    cb_arena_init(&arena, &alloc);
    bool feasible = slow_cut(g, &value, side);
    cb_status status = cb_frontier_make(&f, &net, &arena, &err);
    CHECK(status == (feasible ? CB_OK : CB_INFEASIBLE));
    if (status == CB_OK) {
        check_shape(&f);
        for (uint32_t k = 0; k < f.n_step; k++) {
            int64_t bytes, time;
            CHECK(step_costs(g, &f, k, &bytes, &time));
            CHECK(bytes == f.step[k].bytes && time == f.step[k].time);
        }
        for (uint32_t i = 0; i < f.n_point; i++) {
            check_at_price(g, &f, f.point[i].p, f.point[i].q, f.point[i].step);
            if (i == 0) continue; /* between two prices, the earlier point is best */
            const cb_frontier_point *x = &f.point[i - 1], *y = &f.point[i];
            check_at_price(g, &f, x->p * y->q + y->p * x->q, 2 * x->q * y->q, x->step);
        }
        if (all_cuts) check_against_all_cuts(g, &f);
    }
    cb_arena_free(&arena);
}

TEST(equals_all_cuts) {
    random_state r = {1};
    for (uint32_t i = 0; i < 1500; i++) {
        uint32_t n = 2 + random_below(&r, 8);
        small_network g = random_network(&r, n, random_below(&r, 3 * n + 1), 9, i % 3 * 10);
        check_frontier(&g, true);
    }
}

TEST(equals_cuts_at_prices) {
    random_state r = {2};
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t n = 10 + random_below(&r, SMALL_NODES - 10);
        small_network g =
            random_network(&r, n, 2 * n + random_below(&r, 2 * n), 1 << (i % 10), i % 6 * 3);
        for (uint32_t k = 0; k < g.n_arc; k++) { /* prefer arcs of the planner's kind */
            if (g.capacity[k] == CB_FLOW_INF && (g.from[k] == g.source || g.to[k] == g.sink)) {
                g.capacity[k] = 7;
            }
        }
        check_frontier(&g, false);
    }
}

/* Bytes and times are at the limits of their ranges: products need more than 64 bits and stay
 * exact. */
TEST(huge_numbers) {
    enum { N = 12 };
    cb_arena arena;
    cb_frontier f;
    small_network g = {.n_node = 2 + N, .source = 0, .sink = 1};
    cb_arena_init(&arena, &alloc);
    for (uint32_t v = 2; v < 2 + N; v++) { /* v leaves at its own price, near its neighbours' */
        g.time[v] = (INT64_C(1) << 58) - v;
        g.from[g.n_arc] = v;
        g.to[g.n_arc] = g.sink;
        g.capacity[g.n_arc++] = (INT64_C(1) << 58) + 3 * v;
    }
    cb_priced_network net = priced(&g);
    CHECK_OK(cb_frontier_make(&f, &net, &arena, &err));
    CHECK(f.n_point == N + 1 && f.n_step == N + 1);
    check_shape(&f);
    for (uint32_t v = 2; v < 2 + N; v++) CHECK(f.leaves[v] == v - 1);
    cb_arena_free(&arena);
}

/* Ten equal chains leave at the same price, one after the other. */
TEST(steps_fill_the_hull) {
    enum { CHAINS = 10 };
    cb_arena arena;
    made_network g;
    cb_frontier f;
    uint32_t step;
    int64_t time;
    cb_arena_init(&arena, &alloc);
    made_init(&g, &arena, 0);
    for (int i = 0; i < CHAINS; i++) {
        uint32_t x = made_op(&g, NO_INPUT, NO_INPUT, 4, 0, BANNED);
        made_op(&g, made_op(&g, x, NO_INPUT, 64, 3, FREE_OP), NO_INPUT, 34, 7, READ);
    }
    cb_priced_network net = made_view(&g);
    CHECK_OK(cb_frontier_make(&f, &net, &arena, &err));
    check_shape(&f);
    CHECK(f.n_point == 2 && f.n_step == CHAINS + 1);
    CHECK(f.point[0].bytes == 40 && f.point[0].time == 100 && f.point[0].p == 0);
    CHECK(f.point[1].bytes == 340 && f.point[1].time == 0 && f.point[1].p == 3 &&
          f.point[1].q == 1);
    CHECK_OK(cb_frontier_at(&f, 129, &step, &err));
    CHECK(step == 2 && f.step[step].bytes == 100 && f.step[step].time == 80);
    CHECK_OK(cb_frontier_bound(&f, 129, &time, &err));
    CHECK(time == 71); /* 80 - 29 / 3, rounded up */
    CHECK_OK(cb_frontier_bound(&f, INT64_MAX, &time, &err));
    CHECK(time == 0);
    CHECK_FAIL(cb_frontier_at(&f, 39, &step, &err), CB_INFEASIBLE, "the smallest takes 40");
    CHECK_FAIL(cb_frontier_bound(&f, -1, &time, &err), CB_INFEASIBLE, "-1 bytes");
    cb_arena_free(&arena);
}

/* Compares large graphs with solves from scratch at some prices. */
static void check_made(made_network *g) {
    cb_frontier f;
    cb_flow flow;
    cb_flow128 wide;
    cb_priced_network net = made_view(g);
    CHECK_OK(cb_frontier_make(&f, &net, g->arena, &err));
    check_shape(&f);
    CHECK_OK(cb_flow_build(&flow, g->arena, net.n_node, net.n_arc, net.from, net.to, &err));
    CHECK_OK(cb_flow_solve(&flow, net.source, net.sink, net.bytes, &err));
    CHECK(flow.value == f.point[0].bytes);
    for (uint32_t v = 0; v < net.n_node; v++) CHECK(flow.sink_side[v] == cb_frontier_has(&f, v, 0));
    uint32_t n_arc = net.n_arc;
    for (uint32_t v = 2; v < net.n_node; v++) made_arc(g, g->source, v, 0);
    net = made_view(g);
    CHECK_OK(cb_flow128_build(&wide, g->arena, net.n_node, net.n_arc, net.from, net.to, &err));
    cb_int128 *capacity = CB_NEW(g->arena, cb_int128, net.n_arc);
    uint32_t stride = f.n_point / 8 + 1;
    for (uint32_t i = 0; i < f.n_point; i += stride) {
        const cb_frontier_point *at = &f.point[i];
        for (uint32_t k = 0; k < n_arc; k++) {
            capacity[k] =
                net.bytes[k] == CB_FLOW_INF ? CB_FLOW128_INF : (cb_int128)net.bytes[k] * at->q;
        }
        for (uint32_t v = 2; v < net.n_node; v++) {
            capacity[n_arc + v - 2] = (cb_int128)net.time[v] * at->p;
        }
        CHECK_OK(cb_flow128_solve(&wide, net.source, net.sink, capacity, &err));
        CHECK(wide.value == (cb_int128)at->bytes * at->q + (cb_int128)at->time * at->p);
        uint32_t n_other = 0;
        for (uint32_t v = 0; v < net.n_node; v++) {
            n_other += wide.sink_side[v] != cb_frontier_has(&f, v, at->step);
        }
        CHECK(n_other == 0);
    }
    printf("     %u nodes: %u points, %u steps\n", net.n_node, f.n_point, f.n_step);
}

TEST(generated_graphs) {
    for (uint64_t kind = 0; kind < 10; kind++) {
        cb_arena arena;
        made_network g;
        cb_arena_init(&arena, &alloc);
        made_init(&g, &arena, kind);
        uint32_t n = kind < 5 ? 2000 : 40000;
        g.noise = kind % 5 == 1 ? 20 : 0;
        if (kind % 5 < 2) make_gpt(&g, n, FREE_OP);
        if (kind % 5 == 2) make_resnet(&g, n, FREE_OP);
        if (kind % 5 == 3) make_random_dag(&g, n);
        if (kind % 5 == 4) make_grid(&g, n, kind < 5 ? 20 : 100);
        check_made(&g);
        cb_arena_free(&arena);
    }
}

TEST(refuses_what_cannot_be) {
    cb_arena arena;
    cb_frontier f;
    cb_arena_init(&arena, &alloc);
    small_network g = {.n_node = 3, .n_arc = 1, .sink = 1, .from = {2}, .to = {1}, .capacity = {5}};
    cb_priced_network net = priced(&g);
    g.time[2] = -1;
    CHECK_FAIL(cb_frontier_make(&f, &net, &arena, &err), CB_INVALID, "node 2 has a negative time");
    g.time[2] = INT64_MAX;
    CHECK_FAIL(cb_frontier_make(&f, &net, &arena, &err), CB_INVALID, "2^62");
    g.time[2] = 1;
    g.capacity[0] = -1;
    CHECK_FAIL(cb_frontier_make(&f, &net, &arena, &err), CB_INVALID, "negative capacity");
    cb_arena_free(&arena);
}

static cb_status make_one(cb_alloc *a, void *user) {
    const cb_priced_network *net = user;
    cb_arena arena;
    cb_frontier f;
    cb_arena_init(&arena, a);
    cb_status status = cb_frontier_make(&f, net, &arena, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    cb_arena arena;
    made_network g;
    cb_arena_init(&arena, &alloc);
    made_init(&g, &arena, 1);
    make_random_dag(&g, 1500);
    cb_priced_network net = made_view(&g);
    check_oom(make_one, &net);
    cb_arena_free(&arena);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(equals_all_cuts);
    RUN(equals_cuts_at_prices);
    RUN(huge_numbers);
    RUN(steps_fill_the_hull);
    RUN(generated_graphs);
    RUN(refuses_what_cannot_be);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
