/* Long series of bans and their ends: at every moment the value is a cold solve's, the cut a
 * minimum one, and after settling the canonical one. */
#include "flow/oracle.h"
#include "flow/session.h"
#include "oom.h"

static cb_alloc alloc;

/* The network with an infinite arc to each banned node, solved cold. */
typedef struct cold {
    small_network g;
    cb_int128 value;
    bool side[SMALL_NODES];
} cold;

static bool solve_cold(cold *c, const small_network *g, const bool *banned) {
    c->g = *g;
    for (uint32_t v = 0; v < g->n_node; v++) {
        if (!banned[v]) continue;
        c->g.from[c->g.n_arc] = g->source;
        c->g.to[c->g.n_arc] = v;
        c->g.capacity[c->g.n_arc++] = CB_FLOW_INF;
    }
    return slow_cut(&c->g, &c->value, c->side);
}

static void check_series(const small_network *g, random_state *r, int length) {
    cb_arena arena;
    cb_flow f;
    cb_session s;
    cold c;
    bool banned[SMALL_NODES] = {false};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_flow_build(&f, &arena, g->n_node, g->n_arc, g->from, g->to, &err));
    cb_status opened = cb_session_open(&s, &f, g->source, g->sink, g->capacity, &arena, &err);
    CHECK((opened == CB_OK) == solve_cold(&c, g, banned));
    for (int i = 0; opened == CB_OK && i < length; i++) {
        uint32_t v = random_below(r, g->n_node);
        cb_int128 cost;
        if (random_below(r, 5) < 3) {
            bool was = banned[v];
            banned[v] = true;
            bool possible = solve_cold(&c, g, banned);
            CHECK(cb_session_ban(&s, v, &err) == (possible ? CB_OK : CB_INFEASIBLE));
            if (!possible) banned[v] = was;
        } else {
            banned[v] = false;
            cb_session_unban(&s, v);
        }
        CHECK(solve_cold(&c, g, banned));
        CHECK(f.value == c.value);
        CHECK(cut_costs(&c.g, f.sink_side, &cost) && cost == c.value);
        if (random_below(r, 3) == 0) {
            cb_session_settle(&s);
            CHECK(memcmp(f.sink_side, c.side, g->n_node) == 0);
        }
    }
    cb_arena_free(&arena);
}

TEST(equals_cold_solves) {
    random_state r = {1};
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t n = 3 + random_below(&r, 30);
        small_network g =
            random_network(&r, n, 2 * n + random_below(&r, 2 * n), i % 2 ? 5 : 1 << 30, i % 3 * 5);
        check_series(&g, &r, 40);
    }
}

/* Capacities so large that the flow must be found afresh now and then. */
TEST(series_of_huge_flows_do_not_overflow) {
    random_state r = {2};
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t n = 3 + random_below(&r, 8), m = 3 * n;
        small_network g = random_network(&r, n, m, (uint64_t)(CB_FLOW_MOST / m - 1), 20);
        check_series(&g, &r, 300);
    }
}

/* Each turn sends the same huge flow once more round a circle of infinite arcs. */
TEST(flows_in_circles_do_not_overflow) {
    cb_arena arena;
    cb_flow f;
    cb_session s;
    int64_t huge = INT64_C(1) << 61;
    uint32_t from[] = {2, 4, 3, 4}, to[] = {3, 2, 4, 1};
    int64_t capacity[] = {CB_FLOW_INF, CB_FLOW_INF, CB_FLOW_INF, huge};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_flow_build(&f, &arena, 5, 4, from, to, &err));
    CHECK_OK(cb_session_open(&s, &f, 0, 1, capacity, &arena, &err));
    int64_t most = 0;
    for (int i = 0; i < 20; i++) {
        uint32_t v = i % 2 ? 4 : 2;
        CHECK_OK(cb_session_ban(&s, v, &err));
        CHECK(f.value == huge && !f.sink_side[4]);
        if (s.pushed > most) most = s.pushed;
        cb_session_unban(&s, v);
        CHECK(f.value == 0);
    }
    CHECK(most >= CB_FLOW_MOST);
    cb_arena_free(&arena);
}

/* On large networks against the solver itself. */
TEST(large_networks) {
    for (uint64_t kind = 0; kind < 5; kind++) {
        cb_arena arena;
        made_network g;
        cb_session s;
        cb_flow f, afresh;
        cb_arena_init(&arena, &alloc);
        made_init(&g, &arena, kind);
        if (kind == 0) make_gpt(&g, 20000, FREE_OP);
        if (kind == 1) make_resnet(&g, 20000, FREE_OP);
        if (kind == 2) make_random_dag(&g, 20000);
        if (kind == 3) make_grid(&g, 4000, 40);
        if (kind == 4) make_gpt(&g, 20000, BANNED);
        for (uint32_t v = 2; v < g.n_node; v++) made_arc(&g, g.source, v, g.time.at[v]);
        uint32_t first_ban = (uint32_t)g.from.len, n_ban = 0, ban[400];
        for (uint32_t i = 0; i < 400; i++) {
            ban[i] = 2 + 2 * random_below(&g.random, g.n_op);
            made_arc(&g, g.source, ban[i], 0);
        }
        cb_priced_network n = made_view(&g);
        CHECK_OK(cb_flow_build(&f, &arena, n.n_node, n.n_arc, n.from, n.to, &err));
        CHECK_OK(cb_flow_build(&afresh, &arena, n.n_node, n.n_arc, n.from, n.to, &err));
        CHECK_OK(cb_session_open(&s, &f, n.source, n.sink, n.bytes, &arena, &err));
        int64_t *capacity = CB_NEW(&arena, int64_t, n.n_arc);
        memcpy(capacity, n.bytes, n.n_arc * sizeof *capacity);
        for (int round = 0; round < 8; round++) {
            for (int i = 0; i < 100; i++) {
                bool undo = round > 2 && random_below(&g.random, 2);
                uint32_t k = undo ? random_below(&g.random, n_ban) : n_ban % 400;
                cb_status status = CB_OK;
                if (undo) cb_session_unban(&s, ban[k]);
                else status = cb_session_ban(&s, ban[k], &err);
                CHECK(status == CB_OK || status == CB_INFEASIBLE);
                n_ban += !undo && n_ban < 400;
                for (uint32_t j = 0; status == CB_OK && j < 400; j++) { /* some ops stand twice */
                    if (ban[j] == ban[k]) capacity[first_ban + j] = undo ? 0 : CB_FLOW_INF;
                }
            }
            CHECK_OK(cb_flow_solve(&afresh, n.source, n.sink, capacity, &err));
            CHECK(f.value == afresh.value);
            cb_session_settle(&s);
            CHECK(memcmp(f.sink_side, afresh.sink_side, n.n_node) == 0);
        }
        cb_arena_free(&arena);
    }
}

TEST(refuses_what_cannot_be) {
    cb_arena arena;
    cb_flow f;
    cb_session s;
    uint32_t from[] = {0, 1, 2}, to[] = {1, 2, 3};
    int64_t capacity[] = {5, 3, CB_FLOW_INF}, endless[] = {CB_FLOW_INF, CB_FLOW_INF, CB_FLOW_INF};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_flow_build(&f, &arena, 4, 3, from, to, &err));
    CHECK_FAIL(cb_session_open(&s, &f, 0, 3, endless, &arena, &err), CB_INFEASIBLE,
               "without limit");
    CHECK_OK(cb_session_open(&s, &f, 0, 3, capacity, &arena, &err));
    CHECK_FAIL(cb_session_ban(&s, 4, &err), CB_INVALID, "node 4 of 4");
    CHECK_FAIL(cb_session_ban(&s, 2, &err), CB_INFEASIBLE, "node 2 cannot be banned");
    CHECK_FAIL(cb_session_ban(&s, 3, &err), CB_INFEASIBLE, "node 3 cannot be banned");
    CHECK_OK(cb_session_ban(&s, 0, &err));
    cb_session_unban(&s, 9);
    cb_session_unban(&s, 1);
    CHECK(f.value == 3);
    cb_arena_free(&arena);
}

static cb_status open_session(cb_alloc *a, void *user) {
    const small_network *g = user;
    cb_arena arena;
    cb_flow f;
    cb_session s;
    cb_arena_init(&arena, a);
    cb_status status = cb_flow_build(&f, &arena, g->n_node, g->n_arc, g->from, g->to, &err);
    if (status == CB_OK)
        status = cb_session_open(&s, &f, g->source, g->sink, g->capacity, &arena, &err);
    if (status == CB_OK) status = cb_session_ban(&s, g->source, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    random_state r = {4};
    small_network g = random_network(&r, 40, 160, 9, 0);
    check_oom(open_session, &g);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(equals_cold_solves);
    RUN(series_of_huge_flows_do_not_overflow);
    RUN(flows_in_circles_do_not_overflow);
    RUN(large_networks);
    RUN(refuses_what_cannot_be);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
