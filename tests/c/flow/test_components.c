/* Strongly connected components against reachability. */
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

static cb_status init_once(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_components c;
    (void)user;
    cb_arena_init(&arena, a);
    const bool there = cb_components_init(&c, &arena, 3000);
    cb_arena_free(&arena);
    return there ? CB_OK : CB_NOMEM;
}

TEST(out_of_memory) { check_oom(init_once, NULL); }

int main(void) {
    cb_alloc_init(&alloc);
    RUN(components_are_what_reaches_each_other);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
