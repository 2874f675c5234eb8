/* The DIMACS text; the network read from it has the same minimum cut. */
#include "flow/dimacs.h"
#include "flow/oracle.h"
#include "oom.h"

static cb_alloc alloc;

static cb_status write_network(const small_network *g, cb_str *out) {
    return cb_dimacs_write(out, g->n_node, g->n_arc, g->from, g->to, g->capacity, g->source,
                           g->sink, &err);
}

TEST(writes_the_format) {
    cb_arena arena;
    cb_str out;
    small_network g = {3, 3, 0, 2, {0, 1, 0}, {1, 2, 2}, {CB_FLOW_INF, 7, 0}, {0}};
    cb_arena_init(&arena, &alloc);
    cb_str_init(&out, &arena);
    CHECK_OK(write_network(&g, &out));
    CHECK(strcmp(out.at, "c minimum cut; a capacity of 8 means no limit\np max 3 3\nn 1 s\nn 3 t\n"
                         "a 1 2 8\na 2 3 7\na 1 3 0\n") == 0);
    g.capacity[1] = -7;
    CHECK_FAIL(write_network(&g, &out), CB_INVALID, "capacity -7 of arc 1");
    g.capacity[1] = g.capacity[2] = CB_FLOW_MOST - 1;
    CHECK_FAIL(write_network(&g, &out), CB_INVALID, "arc 2");
    cb_arena_free(&arena);
}

static small_network read_network(const char *text) {
    small_network g = {0};
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        long long capacity;
        uint32_t node;
        char end;
        if (sscanf(line, "p max %u", &node) == 1) g.n_node = node;
        if (sscanf(line, "n %u %c", &node, &end) == 2)
            *(end == 's' ? &g.source : &g.sink) = node - 1;
        if (sscanf(line, "a %u %u %lld", &g.from[g.n_arc], &g.to[g.n_arc], &capacity) != 3)
            continue;
        g.from[g.n_arc]--;
        g.to[g.n_arc]--;
        g.capacity[g.n_arc++] = capacity;
    }
    return g;
}

TEST(reads_back_with_the_same_cut) {
    random_state r = {1};
    for (uint32_t i = 0; i < 300; i++) {
        cb_arena arena;
        cb_str out;
        cb_int128 value, again;
        bool side[SMALL_NODES], side_again[SMALL_NODES];
        small_network g = random_network(&r, 2 + random_below(&r, 30), 80, 1 << 30, i % 3 * 3);
        cb_arena_init(&arena, &alloc);
        cb_str_init(&out, &arena);
        CHECK_OK(write_network(&g, &out));
        small_network h = read_network(out.at);
        CHECK(h.n_node == g.n_node && h.n_arc == g.n_arc);
        bool feasible = slow_cut(&g, &value, side);
        CHECK(slow_cut(&h, &again, side_again));
        if (feasible) CHECK(value == again && memcmp(side, side_again, g.n_node) == 0);
        cb_arena_free(&arena);
    }
}

static cb_status write_once(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_str out;
    cb_arena_init(&arena, a);
    cb_str_init(&out, &arena);
    cb_status status = write_network(user, &out);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    random_state r = {2};
    small_network g = random_network(&r, 30, 400, 1 << 30, 3);
    check_oom(write_once, &g);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(writes_the_format);
    RUN(reads_back_with_the_same_cut);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
