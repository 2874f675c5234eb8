/* bench_flow: what minimum cuts, frontiers and warm bans cost on generated networks.
 *
 *     cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DCB_BENCH=ON
 *     cmake --build build/bench --target bench_flow && build/bench/bench_flow [rounds [largest
 * [folder]]]
 *
 * Prints one JSON row a line: the best of `rounds` (default 5) over networks of 1k nodes up to
 * `largest` (default 1M); networks of up to 100k nodes are written to `folder` as DIMACS files that
 * other solvers read. `nodes` are those of the split network, two for each forward op; a joint
 * graph of that many forward ops has about 2.5 ops for each. Times in milliseconds, of a ban in
 * microseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "flow/dimacs.h"
#include "flow/generate.h"
#include "flow/push_relabel.h"
#include "flow/session.h"

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

typedef struct row {
    const char *graph;
    uint32_t nodes, arcs;
    uint32_t phases, points, steps, bans;
    int64_t value; /* of the cut */
    double build, solve, push, frontier, ban, unban, settle;
    cb_frontier_point price; /* in the middle of the frontier */
} row;

static void keep_least(double *best, double ms) {
    if (*best == 0 || ms < *best) *best = ms;
}

static cb_status time_cut(row *r, const cb_priced_network *n, cb_alloc *alloc) {
    cb_arena arena;
    cb_flow f;
    cb_status status;
    cb_arena_init(&arena, alloc);
    double begin = now_ms();
    CB_TRY_DONE(cb_flow_build(&f, &arena, n->n_node, n->n_arc, n->from, n->to, NULL));
    double built = now_ms();
    CB_TRY_DONE(cb_flow_solve(&f, n->source, n->sink, n->bytes, NULL));
    double solved = now_ms();
    keep_least(&r->build, built - begin);
    keep_least(&r->solve, solved - built);
    r->phases = f.n_phase;
    r->value = f.value;
    begin = now_ms();
    CB_TRY_DONE(cb_flow_solve_by_push(&f, n->source, n->sink, n->bytes, NULL));
    keep_least(&r->push, now_ms() - begin);
done:
    cb_arena_free(&arena);
    return status;
}

static cb_status time_frontier(row *r, const cb_priced_network *n, cb_alloc *alloc) {
    cb_arena arena;
    cb_frontier f = {0};
    cb_arena_init(&arena, alloc);
    double begin = now_ms();
    cb_status status = cb_frontier_make(&f, n, &arena, NULL);
    keep_least(&r->frontier, now_ms() - begin);
    r->points = f.n_point;
    r->steps = f.n_step;
    if (f.n_point > 0) r->price = f.point[f.n_point / 2];
    cb_arena_free(&arena);
    return status;
}

/* Bans a thousand ops that the cut runs again, one by one, and frees them. */
static cb_status time_bans(row *r, const cb_priced_network *n, cb_alloc *alloc) {
    cb_arena arena;
    cb_flow f;
    cb_session s;
    cb_status status;
    random_state random = {7};
    uint32_t ban[1000], n_ban = 0;
    cb_arena_init(&arena, alloc);
    CB_TRY_DONE(cb_flow_build(&f, &arena, n->n_node, n->n_arc, n->from, n->to, NULL));
    CB_TRY_DONE(cb_session_open(&s, &f, n->source, n->sink, n->bytes, &arena, NULL));
    for (int i = 0; i < 100000 && n_ban < 1000; i++) {
        uint32_t v = 2 + 2 * random_below(&random, (n->n_node - 2) / 2);
        if (f.sink_side[v] && f.fixed[v] == 0 && s.seen[v] == 0) ban[n_ban++] = v;
        s.seen[v] = 1; /* no search has that number again */
    }
    s.search = 1;
    double begin = now_ms();
    for (uint32_t i = 0; i < n_ban; i++) CB_TRY_DONE(cb_session_ban(&s, ban[i], NULL));
    double banned = now_ms();
    cb_session_settle(&s);
    double settled = now_ms();
    for (uint32_t i = n_ban; i-- > 0;) cb_session_unban(&s, ban[i]);
    double freed = now_ms();
    r->bans = n_ban;
    if (n_ban) keep_least(&r->ban, 1e3 * (banned - begin) / n_ban);
    if (n_ban) keep_least(&r->unban, 1e3 * (freed - settled) / n_ban);
    keep_least(&r->settle, settled - banned);
done:
    cb_arena_free(&arena);
    return status;
}

/* FOLDER/GRAPH-NODES.txt */
static cb_status write_network(const char *folder, const char *graph, uint32_t n_node,
                               const cb_priced_network *n, cb_arena *arena) {
    char path[1024];
    cb_str text;
    cb_str_init(&text, arena);
    CB_TRY(cb_dimacs_write(&text, n->n_node, n->n_arc, n->from, n->to, n->bytes, n->source, n->sink,
                           NULL));
    snprintf(path, sizeof path, "%s/%s-%u.txt", folder, graph, n_node);
    FILE *file = fopen(path, "w");
    if (file == NULL) return CB_INVALID;
    size_t written = fwrite(text.at, 1, text.len, file);
    return fclose(file) == 0 && written == text.len ? CB_OK : CB_INVALID;
}

/* The cut has its matrix products banned and recompute for nothing; frontier and bans work on the
 * network without, the bans at a price from the middle of the frontier. */
static cb_status measure(const char *graph, uint32_t n_node, int rounds, const char *folder) {
    cb_alloc alloc;
    cb_arena arena;
    made_network cut, free_cut;
    cb_alloc_init(&alloc);
    cb_arena_init(&arena, &alloc);
    row r = {.graph = graph};
    cb_status status = CB_OK;
    made_init(&cut, &arena, 1);
    made_init(&free_cut, &arena, 1);
    if (strcmp(graph, "gpt") == 0) {
        make_gpt(&cut, n_node, BANNED);
        make_gpt(&free_cut, n_node, FREE_OP);
    } else if (strcmp(graph, "gpt, times +-2%") == 0) {
        free_cut.noise = 20;
        make_gpt(&cut, n_node, BANNED);
        make_gpt(&free_cut, n_node, FREE_OP);
    } else if (strcmp(graph, "resnet") == 0) {
        make_resnet(&cut, n_node, BANNED);
        make_resnet(&free_cut, n_node, FREE_OP);
    } else if (strcmp(graph, "random") == 0) {
        make_random_dag(&cut, n_node);
        make_random_dag(&free_cut, n_node);
    } else {
        make_grid(&cut, n_node, 200);
        make_grid(&free_cut, n_node, 200);
    }
    cb_priced_network n = made_view(&cut), m = made_view(&free_cut);
    uint32_t n_arc = m.n_arc;
    if (folder && n_node <= 100000) status = write_network(folder, graph, n_node, &n, &arena);
    for (int i = 0; i < rounds && status == CB_OK; i++) {
        status = time_cut(&r, &n, &alloc);
        if (status == CB_OK) status = time_frontier(&r, &m, &alloc);
    }
    double price = (double)r.price.p / (double)r.price.q;
    for (uint32_t v = 2; v < m.n_node; v += 2) {
        made_arc(&free_cut, m.source, v, (int64_t)(price * (double)m.time[v]));
    }
    cb_priced_network priced = made_view(&free_cut);
    for (int i = 0; i < rounds && status == CB_OK; i++) status = time_bans(&r, &priced, &alloc);
    printf(
        "{\"graph\": \"%s\", \"size\": %u, \"nodes\": %u, \"arcs\": %u, \"cut\": %lld, "
        "\"build_ms\": %.3f, \"solve_ms\": %.3f, "
        "\"phases\": %u, \"push_relabel_ms\": %.3f, \"frontier_ms\": %.3f, \"frontier_arcs\": %u, "
        "\"points\": %u, \"steps\": %u, \"bans\": %u, \"ban_us\": %.3f, \"unban_us\": %.3f, "
        "\"settle_ms\": %.3f}\n",
        graph, n_node, n.n_node, n.n_arc, (long long)r.value, r.build, r.solve, r.phases, r.push,
        r.frontier, n_arc, r.points, r.steps, r.bans, r.ban, r.unban, r.settle);
    fflush(stdout);
    cb_arena_free(&arena);
    return status;
}

int main(int argc, char **argv) {
    static const char *const GRAPHS[] = {"gpt", "gpt, times +-2%", "resnet", "random", "grid"};
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    long largest = argc > 2 ? atol(argv[2]) : 1000000;
    const char *folder = argc > 3 ? argv[3] : NULL;
    for (uint32_t n = 1000; n <= (uint32_t)largest; n *= 10) {
        for (size_t i = 0; i < sizeof GRAPHS / sizeof *GRAPHS; i++) {
            cb_status status = measure(GRAPHS[i], n, rounds, folder);
            if (status != CB_OK) {
                fprintf(stderr, "%s of %u nodes: %s\n", GRAPHS[i], n, cb_status_name(status));
                return 1;
            }
        }
    }
    return 0;
}
