/* bench_flow: times minimum cuts and frontiers on generated networks.
 *
 *     cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DCB_BENCH=ON
 *     cmake --build build/bench --target bench_flow && build/bench/bench_flow [rounds [largest
 * [folder]]]
 *
 * Prints one JSON row per line, with the best of `rounds` runs (default 5), for networks of 1k
 * nodes up to `largest` (default 1M). Networks of up to 100k nodes are also written to `folder` as
 * DIMACS files, which other solvers can read. `nodes` counts the nodes of the split network, which
 * has two for each forward op; a joint graph has about 2.5 ops for each forward op. Times are in
 * milliseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "flow/dimacs.h"
#include "flow/frontier.h"
#include "flow/generate.h"

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

typedef struct row {
    const char *graph;
    uint32_t nodes, arcs;
    uint32_t phases, points, steps;
    int64_t value; /* value of the cut */
    double build, solve, push, frontier;
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
    cb_arena_free(&arena);
    return status;
}

/* Writes the network to FOLDER/GRAPH-NODES.txt. */
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

/* Times a cut that must not recompute matrix products and recomputes everything else for free, and
 * the frontier of the network in which everything may be recomputed, at a cost. */
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
    printf(
        "{\"graph\": \"%s\", \"size\": %u, \"nodes\": %u, \"arcs\": %u, \"cut\": %lld, "
        "\"build_ms\": %.3f, \"solve_ms\": %.3f, "
        "\"phases\": %u, \"push_relabel_ms\": %.3f, \"frontier_ms\": %.3f, \"frontier_arcs\": %u, "
        "\"points\": %u, \"steps\": %u}\n",
        graph, n_node, n.n_node, n.n_arc, (long long)r.value, r.build, r.solve, r.phases, r.push,
        r.frontier, n_arc, r.points, r.steps);
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
