/* frontier_parts.h: declarations shared by the files that make a frontier. Only frontier_*.c
 * include it; each of them builds on those before it:
 *
 *     frontier_cost    the real cost of a family of nested sets
 *     frontier_fill    points between the steps: greedily, and by mixing the sets before and after
 *                      a large step
 *     frontier_make    the network with times, its steps, and the best of all points
 *
 * The network has one time for each op that runs again. The exception is an op whose result only
 * the backward, or other such ops, read: if it runs again, its first run may be dropped, and
 * running it again then costs nothing. The network counts it as free, so its hull stays a lower
 * bound. The points count the real cost of the schedule. */
#ifndef CB_PLAN_FRONTIER_PARTS_H
#define CB_PLAN_FRONTIER_PARTS_H

#include "../schedule/sim.h"
#include "frontier.h"

/* Nodes of the network of mincut.h. */
enum { SOURCE = 0, SINK = 1, FIRST_RUN = 2 };

typedef struct maker {
    cb_tradeoffs *t;
    const cb_cut *cut;
    const cb_facts *f;
    cb_arena *arena, *scratch;
    bool *held;       /* [n_storage] made in the forward and saved at every point */
    bool *late;       /* [n_storage] held to the end only: plans may make it in the backward */
    bool counts_late; /* cb_frontier_follow: the first run of an op that makes `late` storages may
                         be dropped */
    bool *is_limited; /* [n_region] */
    uint32_t *run_of; /* [n_unit] index in cut->run_op */
    uint32_t *again;  /* [n_op] the op is recomputed in steps before this one */
    uint32_t *drop;   /* [n_op] its first run is dropped in steps before this one */
    uint32_t *need;   /* [n_storage] the backward needs it in steps before this one */
    uint32_t *use;    /* [n_storage] a first run reads it from this step on */
    uint32_t *shown;  /* [n_value] like `need`, for a value: it decides when a view of it is
                        recomputed */
    uint32_t *watch;  /* like `use`, for a value */
    int64_t *time;    /* [n_node] time of each node of the network */
    /* the steps of the frontier, node by node */
    uint32_t *begin; /* [n_step + 1] into `node` */
    uint32_t *node;
    bool *in; /* [n_node] on the sink side, while filling */
    CB_VEC(cb_tradeoff) found;
} maker;

static inline uint32_t cb_node_of_run(uint32_t run) { return FIRST_RUN + run; }
static inline uint32_t cb_node_of_save(const cb_cut *cut, uint32_t save) {
    return FIRST_RUN + cut->n_run + save;
}

/* If ops have insides or may be inlined, times do not add up over recomputed ops. Then there are no
 * fills, and the only bound is that of running everything once. */
static inline bool cb_frontier_is_walked(const maker *m) {
    return m->f->unit_begin || m->f->inlines;
}

static inline uint32_t cb_least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Changes from step to step, to be summed up. */
typedef struct changes {
    uint32_t n_step;
    int64_t *bytes, *time; /* [n_step + 1] */
    bool *lawful;          /* [n_step] */
} changes;

CB_MUST_CHECK bool cb_changes_init(changes *c, cb_arena *arena, uint32_t n_step);
/* Run i of the cut may be recomputed in steps before `until`[i]. Computes `again`, `drop`, `need`
 * and `use`, from the last op to the first. */
void cb_frontier_follow(const maker *m, const uint32_t *until);
/* Must be called after cb_frontier_follow. Computes the real bytes and times of the steps, and
 * whether regions keep their limits. */
void cb_frontier_measure(const maker *m, changes *c);
CB_MUST_CHECK cb_status cb_frontier_add_point(maker *m, cb_tradeoff point, cb_error *err);
/* Must be called after the frontier has been made. */
CB_MUST_CHECK cb_status cb_frontier_add_fills(maker *m, cb_error *err);

#endif
