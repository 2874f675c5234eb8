/* Minimum cuts against two slow twins: all cuts of small networks, and augmenting paths found one
 * at a time on larger ones. */
#include "flow/maxflow.h"

#include "check.h"
#include "oom.h"

#define MOST_NODES 80
#define MOST_ARCS 400

static uint64_t state;
static uint32_t draw(uint32_t n) {
    uint64_t x = state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ x >> 31) % n);
}

typedef struct network {
    uint32_t n_node, n_arc;
    uint32_t from[MOST_ARCS], to[MOST_ARCS];
    int64_t capacity[MOST_ARCS];
} network;

static network random_network(uint32_t n_node, uint32_t n_arc, uint32_t most, bool infinite) {
    network g = {.n_node = n_node, .n_arc = n_arc};
    for (uint32_t i = 0; i < n_arc; i++) {
        g.from[i] = draw(n_node);
        g.to[i] = draw(n_node);
        g.capacity[i] = infinite && draw(5) == 0 ? CB_FLOW_INF : (int64_t)draw(most);
    }
    return g;
}

/* ---- twins ----------------------------------------------------------------------------------- */

/* The smallest cut, and the nodes on the sink side of every smallest one. False: no finite cut. */
static bool brute_force(const network *g, int64_t *value, uint32_t *sink_side) {
    *value = CB_FLOW_INF;
    for (uint32_t set = 0; set < 1u << g->n_node;
         set++) { /* the sink side; node 0 is the source, 1 the sink */
        int64_t sum = 0;
        if (set & 1 || !(set & 2)) continue;
        for (uint32_t i = 0; i < g->n_arc && sum >= 0; i++) {
            bool cut = !(set >> g->from[i] & 1) && (set >> g->to[i] & 1);
            if (cut) sum = g->capacity[i] == CB_FLOW_INF ? -1 : sum + g->capacity[i];
        }
        if (sum < 0 || sum > *value) continue;
        *sink_side = sum < *value ? set : *sink_side & set;
        *value = sum;
    }
    return *value != CB_FLOW_INF;
}

/* Ford and Fulkerson on a matrix, depth first. */
typedef struct matrix {
    uint32_t n;
    int64_t left[MOST_NODES][MOST_NODES];
    bool seen[MOST_NODES];
} matrix;

static int64_t push(matrix *m, uint32_t v, uint32_t sink, int64_t amount) {
    if (v == sink) return amount;
    m->seen[v] = true;
    for (uint32_t u = 0; u < m->n; u++) {
        if (m->seen[u] || m->left[v][u] == 0) continue;
        int64_t sent = push(m, u, sink, amount < m->left[v][u] ? amount : m->left[v][u]);
        if (sent == 0) continue;
        m->left[v][u] -= sent;
        m->left[u][v] += sent;
        return sent;
    }
    return 0;
}

static int64_t slow_flow(matrix *m, const network *g, uint32_t source, uint32_t sink) {
    int64_t sum = 0, sent;
    memset(m, 0, sizeof *m);
    m->n = g->n_node;
    for (uint32_t i = 0; i < g->n_arc; i++) m->left[g->from[i]][g->to[i]] += g->capacity[i];
    while ((sent = push(m, source, sink, INT64_MAX)) > 0) {
        sum += sent;
        memset(m->seen, 0, sizeof m->seen);
    }
    /* Now mark what can still reach the sink. */
    memset(m->seen, 0, sizeof m->seen);
    m->seen[sink] = true;
    for (bool more = true; more;) {
        more = false;
        for (uint32_t v = 0; v < m->n; v++) {
            for (uint32_t u = 0; u < m->n && !m->seen[v]; u++) {
                if (m->seen[u] && m->left[v][u] > 0) m->seen[v] = more = true;
            }
        }
    }
    return sum;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static cb_alloc alloc;

static cb_status solve(cb_flow *f, cb_arena *arena, const network *g, uint32_t source,
                       uint32_t sink) {
    CB_TRY(cb_flow_build(f, arena, g->n_node, g->n_arc, g->from, g->to, &err));
    return cb_flow_solve(f, source, sink, g->capacity, &err);
}

/* Every two neighbours of the path are joined by an arc without limit. */
static bool is_contradiction(const cb_flow *f, const network *g) {
    if (f->n_path < 2 || f->path[0] != 0 || f->path[f->n_path - 1] != 1) return false;
    for (uint32_t i = 0; i + 1 < f->n_path; i++) {
        bool joined = false;
        for (uint32_t a = 0; a < g->n_arc; a++) {
            joined |= g->from[a] == f->path[i] && g->to[a] == f->path[i + 1] &&
                      g->capacity[a] == CB_FLOW_INF;
        }
        if (!joined) return false;
    }
    return true;
}

TEST(equals_brute_force) {
    uint32_t n_contradiction = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        state = round;
        uint32_t n = 2 + draw(9);
        network g = random_network(n, draw(4 * n), 1 + draw(6), round % 2);
        int64_t value;
        uint32_t side = 0;
        cb_arena arena;
        cb_flow f;
        cb_arena_init(&arena, &alloc);
        bool finite = brute_force(&g, &value, &side);
        cb_status status = solve(&f, &arena, &g, 0, 1);
        CHECK(status == (finite ? CB_OK : CB_INFEASIBLE));
        if (finite) CHECK(f.value == value);
        for (uint32_t v = 0; finite && v < n; v++) CHECK(f.sink_side[v] == (bool)(side >> v & 1));
        if (!finite) CHECK(is_contradiction(&f, &g));
        n_contradiction += !finite;
        cb_arena_free(&arena);
    }
    CHECK(n_contradiction > 20);
}

TEST(equals_augmenting_paths) {
    static matrix m;
    for (uint32_t round = 0; round < 300; round++) {
        state = 7777 + round;
        uint32_t n = 10 + draw(MOST_NODES - 10);
        network g = random_network(n, 2 * n + draw(2 * n), 1 + draw(1000), false);
        cb_arena arena;
        cb_flow f;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(solve(&f, &arena, &g, 0, n - 1));
        CHECK(f.value == slow_flow(&m, &g, 0, n - 1));
        for (uint32_t v = 0; v < n; v++) CHECK(f.sink_side[v] == m.seen[v]);
        cb_arena_free(&arena);
    }
}

TEST(cut_ignores_order_of_arcs) {
    for (uint32_t round = 0; round < 200; round++) {
        state = 31 * round;
        network g = random_network(30, 90, 4, false), shuffled = g;
        for (uint32_t i = g.n_arc; i-- > 1;) {
            uint32_t j = draw(i + 1), from = shuffled.from[i], to = shuffled.to[i];
            int64_t capacity = shuffled.capacity[i];
            shuffled.from[i] = shuffled.from[j], shuffled.from[j] = from;
            shuffled.to[i] = shuffled.to[j], shuffled.to[j] = to;
            shuffled.capacity[i] = shuffled.capacity[j], shuffled.capacity[j] = capacity;
        }
        cb_arena arena;
        cb_flow a, b;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(solve(&a, &arena, &g, 0, 1));
        CHECK_OK(solve(&b, &arena, &shuffled, 0, 1));
        CHECK(a.value == b.value && memcmp(a.sink_side, b.sink_side, 30) == 0);
        cb_arena_free(&arena);
    }
}

TEST(solves_again_with_other_capacities) {
    cb_arena arena;
    cb_flow f;
    const uint32_t from[] = {0, 1}, to[] = {1, 2};
    cb_arena_init(&arena, &alloc);
    CHECK_OK(cb_flow_build(&f, &arena, 3, 2, from, to, &err));
    CHECK_OK(cb_flow_solve(&f, 0, 2, (const int64_t[]){5, 3}, &err));
    CHECK(f.value == 3 && !f.sink_side[1]); /* sink-minimal: only the sink itself */
    CHECK_OK(cb_flow_solve(&f, 0, 2, (const int64_t[]){2, 3}, &err));
    CHECK(f.value == 2 && f.sink_side[1]);
    CHECK_OK(cb_flow_solve(&f, 0, 2, (const int64_t[]){2, CB_FLOW_INF}, &err));
    CHECK(f.value == 2 && f.sink_side[1]);
    CHECK_FAIL(cb_flow_solve(&f, 0, 2, (const int64_t[]){CB_FLOW_INF, CB_FLOW_INF}, &err),
               CB_INFEASIBLE, "without limit");
    CHECK(f.n_path == 3 && f.path[1] == 1);
    cb_arena_free(&arena);
}

TEST(refuses_what_overflows) {
    cb_arena arena;
    cb_flow f;
    const uint32_t from[] = {0, 0}, to[] = {1, 1}, outside[] = {0, 2};
    const int64_t huge = INT64_C(1) << 61;
    cb_arena_init(&arena, &alloc);
    CHECK_FAIL(cb_flow_build(&f, &arena, 2, 2, from, outside, &err), CB_INVALID,
               "joins 0 and 2 of 2 nodes");
    CHECK_OK(cb_flow_build(&f, &arena, 2, 2, from, to, &err));
    CHECK_FAIL(cb_flow_solve(&f, 0, 1, (const int64_t[]){huge, huge}, &err), CB_INVALID, "2^62");
    CHECK_FAIL(cb_flow_solve(&f, 0, 1, (const int64_t[]){1, -1}, &err), CB_INVALID, "negative");
    CHECK_FAIL(cb_flow_solve(&f, 0, 0, (const int64_t[]){1, 1}, &err), CB_INVALID,
               "source 0 and sink 0");
    CHECK_OK(cb_flow_solve(&f, 0, 1, (const int64_t[]){huge, huge - 1}, &err));
    CHECK(f.value == 2 * huge - 1);
    cb_arena_free(&arena);
}

static cb_status build_and_solve(cb_alloc *a, void *user) {
    cb_arena arena;
    cb_flow f;
    cb_arena_init(&arena, a);
    cb_status status = solve(&f, &arena, user, 0, 1);
    cb_arena_free(&arena);
    return status;
}

TEST(out_of_memory) {
    state = 5;
    network g = random_network(40, 200, 9, false);
    check_oom(build_and_solve, &g);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(equals_brute_force);
    RUN(equals_augmenting_paths);
    RUN(cut_ignores_order_of_arcs);
    RUN(solves_again_with_other_capacities);
    RUN(refuses_what_overflows);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
