/* Components against reachability, the chain of minimum cuts against all of them. */
#include "flow/components.h"
#include "flow/oracle.h"
#include "oom.h"

static cb_alloc alloc;

TEST(components_are_what_reaches_each_other) {
    enum { N = 12 };
    random_state r = {1};
    for (int i = 0; i < 500; i++) {
        cb_arena arena;
        cb_components c;
        uint32_t n = 1 + random_below(&r, N), first[N + 1], component[N], n_arc = 0;
        cb_half_arc arc[N * N];
        bool is_arc[N * N], reach[N][N] = {{false}};
        for (uint32_t v = 0; v < n; v++) {
            first[v] = n_arc;
            reach[v][v] = true;
            for (uint32_t d = random_below(&r, 4); d > 0; d--) {
                arc[n_arc].to = random_below(&r, n);
                is_arc[n_arc] = random_below(&r, 4) > 0;
                if (is_arc[n_arc]) reach[v][arc[n_arc].to] = true;
                n_arc++;
            }
        }
        first[n] = n_arc;
        for (uint32_t k = 0; k < n; k++) {
            for (uint32_t u = 0; u < n; u++) {
                for (uint32_t v = 0; v < n; v++) reach[u][v] |= reach[u][k] && reach[k][v];
            }
        }
        cb_arena_init(&arena, &alloc);
        CHECK(cb_components_init(&c, &arena, n));
        uint32_t n_component = cb_components_find(&c, n, first, arc, is_arc, component);
        for (uint32_t u = 0; u < n; u++) {
            CHECK(component[u] < n_component);
            for (uint32_t v = 0; v < n; v++) {
                CHECK((component[u] == component[v]) == (reach[u][v] && reach[v][u]));
                CHECK(!reach[u][v] || component[v] <= component[u]);
            }
        }
        cb_arena_free(&arena);
    }
}

/* Prefixes are minimum cuts; the first and last are the smallest and largest; nodes that share a
 * step are together in every minimum cut. */
TEST(chain_holds_minimum_cuts) {
    random_state r = {2};
    for (uint32_t i = 0; i < 1500; i++) {
        cb_arena arena;
        cb_flow f;
        cb_chain chain;
        uint32_t n = 2 + random_below(&r, 9);
        small_network g = random_network(&r, n, random_below(&r, 3 * n + 1), 3, i % 3 * 10);
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_flow_build(&f, &arena, n, g.n_arc, g.from, g.to, &err));
        if (cb_flow_solve(&f, g.source, g.sink, g.capacity, &err) == CB_OK) {
            cb_int128 cost;
            bool side[SMALL_NODES], largest[SMALL_NODES] = {false};
            CHECK_OK(cb_chain_of(&chain, &f, &arena, &err));
            for (uint32_t k = 0; k <= chain.n_step; k++) {
                for (uint32_t v = 0; v < n; v++) side[v] = chain.joins[v] <= k;
                CHECK(cut_costs(&g, side, &cost) && cost == f.value);
                CHECK(side[g.sink] && !side[g.source]);
            }
            for (uint32_t set = 0; set < 1u << n; set++) {
                if (set >> g.source & 1 || !(set >> g.sink & 1)) continue;
                for (uint32_t v = 0; v < n; v++) side[v] = set >> v & 1;
                if (!cut_costs(&g, side, &cost) || cost != f.value) continue;
                for (uint32_t v = 0; v < n; v++) {
                    largest[v] |= side[v];
                    CHECK(side[v] || chain.joins[v] != 0);
                    for (uint32_t u = 0; u < v; u++) {
                        bool together =
                            chain.joins[u] == chain.joins[v] && chain.joins[u] != CB_NONE;
                        CHECK(!together || side[u] == side[v]);
                    }
                }
            }
            for (uint32_t v = 0; v < n; v++) CHECK(largest[v] == (chain.joins[v] != CB_NONE));
        }
        cb_arena_free(&arena);
    }
}

static cb_status chain_once(cb_alloc *a, void *user) {
    const cb_flow *f = user;
    cb_arena arena;
    cb_chain chain;
    cb_arena_init(&arena, a);
    cb_status status = cb_chain_of(&chain, f, &arena, &err);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    cb_arena arena;
    made_network g;
    cb_flow f;
    cb_arena_init(&arena, &alloc);
    made_init(&g, &arena, 1);
    make_random_dag(&g, 3000);
    cb_priced_network n = made_view(&g);
    CHECK_OK(cb_flow_build(&f, &arena, n.n_node, n.n_arc, n.from, n.to, &err));
    CHECK_OK(cb_flow_solve(&f, n.source, n.sink, n.bytes, &err));
    check_oom(chain_once, &f);
    cb_arena_free(&arena);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(components_are_what_reaches_each_other);
    RUN(chain_holds_minimum_cuts);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
