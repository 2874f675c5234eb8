/* Value numbering against a slow twin that compares complete expressions. */
#include "check.h"
#include "oom.h"

#include "base/philox.h"
#include "plan/torch/duplicates.h"

enum { N = 60 };

typedef struct graph {
    uint32_t key[N], in_start[N + 1], in[2 * N];
    cb_calls calls;
} graph;

/* Draws a graph with few keys and nearby inputs, so that equal expressions are common. */
static void draw(graph *g, uint64_t seed) {
    cb_philox random = {.seed = seed};
    uint64_t at = 0;
    uint32_t n_in = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t key = cb_philox_u16(&random, at++) % 4;
        g->key[i] = key == 3 ? CB_NONE : key;
        g->in_start[i] = n_in;
        uint32_t reads = i == 0 ? 0 : cb_philox_u16(&random, at++) % 3;
        for (uint32_t k = 0; k < reads; k++) {
            uint32_t back = 1 + cb_philox_u16(&random, at++) % (i < 9 ? i : 9);
            g->in[n_in++] = i - back;
        }
    }
    g->in_start[N] = n_in;
    g->calls =
        (cb_calls){.n = N, .key = g->key, .in_start = g->in_start, .in = g->in, .n_in = n_in};
}

/* Compares the expressions as trees, down to their leaves and without a table; `budget` stops the
 * longest. */
static bool same_tree(const cb_calls *c, uint32_t a, uint32_t b, int *budget) {
    if (a == b) return true;
    if (--*budget < 0 || c->key[a] == CB_NONE || c->key[a] != c->key[b]) return false;
    uint32_t n = c->in_start[a + 1] - c->in_start[a];
    if (n != c->in_start[b + 1] - c->in_start[b]) return false;
    for (uint32_t k = 0; k < n; k++) {
        if (!same_tree(c, c->in[c->in_start[a] + k], c->in[c->in_start[b] + k], budget))
            return false;
    }
    return true;
}

TEST(as_the_trees_say) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    uint32_t merged = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        graph g;
        uint32_t same[N];
        draw(&g, seed);
        CHECK(cb_find_duplicates(&alloc, &g.calls, same, NULL) == CB_OK);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t first = 0;
            int budget = 1 << 20;
            while (!same_tree(&g.calls, first, i, &budget)) first++;
            CHECK(budget > 0 && same[i] == first);
            merged += same[i] != i;
        }
    }
    CHECK(merged > 1000);
}

TEST(bad_input) {
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    cb_error error = {0};
    const uint32_t key[2] = {0, 0}, in[1] = {1}, start[3] = {0, 0, 1}, back[3] = {0, 1, 0};
    uint32_t same[2];
    cb_calls calls = {.n = 2, .key = key, .in_start = start, .in = in, .n_in = 1};
    CHECK(cb_find_duplicates(&alloc, &calls, same, &error) == CB_INVALID);
    CHECK(strcmp(error.text, "node 1: input 1 is not an earlier node") == 0);
    calls.n_in = 0;
    CHECK(cb_find_duplicates(&alloc, &calls, same, &error) == CB_INVALID);
    CHECK(strcmp(error.text, "inputs of 2 nodes end at 1, not at 0") == 0);
    calls.in_start = back;
    CHECK(cb_find_duplicates(&alloc, &calls, same, &error) == CB_INVALID);
    calls = (cb_calls){.n = 0, .key = key, .in_start = start, .in = in};
    CHECK(cb_find_duplicates(&alloc, &calls, same, &error) == CB_OK);
}

static cb_status work(cb_alloc *alloc, void *user) {
    graph *g = user;
    uint32_t same[N];
    return cb_find_duplicates(alloc, &g->calls, same, NULL);
}

TEST(out_of_memory) {
    graph g;
    draw(&g, 5);
    check_oom(work, &g);
}

int main(void) {
    RUN(as_the_trees_say);
    RUN(bad_input);
    RUN(out_of_memory);
    return check_report();
}
