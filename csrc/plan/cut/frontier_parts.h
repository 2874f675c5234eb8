/* frontier_parts.h: the making of a frontier. Included by frontier_*.c alone, each above those
 * before it:
 *
 *     frontier_cost    what a family of nested sets really costs
 *     frontier_fill    points between the steps: greedily, and by mixing what is before a large
 *                      step with what is after
 *     frontier_make    the network with times on it, its steps, and the best of all points
 *
 * The network has one time for each op that runs again. That is right but for an op that only the
 * backward, or other such ops, have a use for: run again, its first run may fall away, and then
 * running it again costs nothing. The network counts it as free, so its hull stays a lower bound;
 * the points count what the schedule really does. */
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
    bool counts_late; /* follow: the first run of what makes `late` storages may fall away */
    bool *is_limited; /* [n_region] */
    uint32_t *run_of; /* [n_unit] index in cut->run_op */
    uint32_t *again;  /* [n_op] the op runs again in steps before this one */
    uint32_t *drop;   /* [n_op] its first run falls away in steps before this one */
    uint32_t *need;   /* [n_storage] the backward needs it in steps before this one */
    uint32_t *use;    /* [n_storage] a first run reads it from this step on */
    uint32_t *shown; /* [n_value] like `need` and `use`, of a value: what a view reads beside its */
    uint32_t *watch; /*           own storage goes with the view */
    int64_t *time;   /* [n_node] of the network */
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

/* Where ops have insides, or may be taken in, times do not add up over what runs again: then there
 * are no fills, and no bound but that of running everything once. */
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
/* Run i of the cut may run again in steps before `until`[i]: works out `again`, `drop`, `need` and
 * `use`, from the last op to the first. */
void cb_frontier_follow(const maker *m, const uint32_t *until);
/* After that: real bytes and times of the steps, and whether regions keep their limits. */
void cb_frontier_measure(const maker *m, changes *c);
CB_MUST_CHECK cb_status cb_frontier_add_point(maker *m, cb_tradeoff point, cb_error *err);
/* Once the frontier is made. */
CB_MUST_CHECK cb_status cb_frontier_add_fills(maker *m, cb_error *err);

#endif
