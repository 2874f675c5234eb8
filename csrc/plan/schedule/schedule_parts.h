/* schedule_parts.h: the evaluator. Only schedule_walk.c and schedule_copies.c include it; the
 * former uses the latter.
 *
 * It processes a schedule once, checks every rule and records lives. It is kept simple, because the
 * planner's claims depend on it; tests/reference/evaluate.py is an independent implementation.
 *
 *   - A value is live from the step that makes it until a step makes it again; a step reads the
 *     latest copy. A run makes those outputs of its op that its step lists, and reads the inputs
 *     that these need; the lives of other outputs do not change.
 *   - A value that is inlined into a run takes no memory there: the run computes it itself. The run
 *     reads the inputs of the value, not the value, which stays alive for other readers.
 *   - An instance is one life of one storage: it begins where its storage is allocated and ends
 *     with the last step that reads any value of it, views included.
 *   - Held values, and values in the caller's memory, belong to the first run that makes them. A
 *     later run makes a private copy, which is counted in its step and lives on only if a step
 *     reads it. The caller's memory is written once, and later steps read it.
 *
 * There is no list of frees: they follow from the last reads.
 *
 * Copies to the host and back run in parallel with the steps, on one lane per direction. A step
 * that reads a value in transit waits. A value that leaves keeps its memory until its copy has
 * ended: its life is extended to the last step that starts before then. */
#ifndef CB_PLAN_SCHEDULE_PARTS_H
#define CB_PLAN_SCHEDULE_PARTS_H

#include "../model/updates.h"
#include "schedule.h"

typedef struct leaver { /* a value on its way to the host */
    int64_t end;        /* end of the copy */
    uint32_t instance, step;
    uint32_t copy; /* CB_NONE: the instance itself; otherwise the instance is held, and this one
                      counts the bytes of the copy */
} leaver;

typedef struct host_copy {
    int64_t from, until; /* times from and until which it is held on the host */
    uint64_t bytes;
} host_copy;

/* State of moves. Only schedules that move something have it. */
typedef struct lanes {
    double link; /* bytes/s */
    int64_t out_free, in_free;
    int64_t *ended;    /* [n_op] end of its last copy out; -1: none */
    int64_t *ready;    /* [n_op] time at which its outputs are available */
    uint32_t *host;    /* [n_op] its latest entry in `copies` */
    uint32_t *out_at;  /* [n_op] step of its last copy out */
    uint32_t *made_at; /* [n_op] step that made its outputs; CB_NONE: they do not exist */
    uint32_t *written; /* [n_storage] step that last wrote into it; CB_NONE: none */
    uint32_t *left;    /* [n_instance] step of the copy out that moved it; CB_NONE: none */
    uint32_t *keeper;  /* [n_instance] step that made the value for which it is held to the end,
                          CB_NONE: none, n_step: several */
    leaver *leaving;   /* in order of their ends */
    uint32_t n_leaving, n_gone;
    host_copy *copies; /* in order of `from` */
    uint32_t n_copy;
} lanes;

typedef struct walker {
    const cb_problem *p;
    const cb_schedule *s;
    const cb_device *device;
    cb_lives *lives;
    uint32_t *value_instance; /* [n_value] instance of the latest run; CB_NONE: none or static */
    bool *have;               /* [n_value] true if it has been made */
    uint32_t *latest;         /* [n_storage] newest instance; CB_NONE: none */
    uint32_t *first;   /* [n_storage] the instance of the first run, which may be brought back
                          from the host; CB_NONE: none */
    uint32_t *seen_at; /* [n_storage] last step that reads or makes it, and the instance seen */
    uint32_t *seen_instance;
    uint32_t *mutator;   /* [n_storage] last op that wrote into it; CB_NONE: none */
    uint32_t *runs;      /* [n_op] */
    uint32_t *ever;      /* [n_op] outputs made so far */
    uint32_t collective; /* the last collective that ran for the first time; CB_NONE: none has */
    uint32_t newest; /* the op with the largest id that depends on a tangent and has run; CB_NONE:
                        none has run */
    uint32_t tail;   /* cb_problem_tail */
    cb_follows follows;
    bool *inlined; /* [n_value] inlined by some run so far, before its op made it; NULL: no run
                        has inlined values */
    int64_t clock;
    lanes *lanes; /* NULL: nothing moves */
    cb_error *err;
} walker;

static inline bool cb_is_static(const cb_problem *p, uint32_t storage) {
    return p->storage_flags[storage] & CB_STORE_STATIC;
}

static inline void cb_fill_none(uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

static inline uint32_t cb_walk_add_instance(walker *w, uint32_t storage, uint32_t step,
                                            uint64_t bytes) {
    uint32_t id = w->lives->n_instance++;
    w->lives->instance[id] =
        (cb_instance){.storage = storage, .made = step, .last = step, .bytes = bytes};
    return id;
}

static inline void cb_walk_hold(walker *w, uint32_t instance, uint32_t until) {
    if (instance == CB_NONE) return;
    cb_instance *life = &w->lives->instance[instance];
    if (life->last < until) life->last = until;
}

/* If the first run's instance has left for the host, the next one replaces it. */
static inline void cb_walk_note_newest(walker *w, uint32_t storage) {
    w->latest[storage] = w->seen_instance[storage];
    if (w->first[storage] == CB_NONE) w->first[storage] = w->latest[storage];
}

/* Sets `lanes` if anything moves. `n_instance`, `n_out`: upper limits. */
CB_MUST_CHECK cb_status cb_walk_start_copies(walker *w, cb_arena *scratch, uint64_t n_instance,
                                             uint64_t n_out);
/* Checks that nothing still needs memory that has left with another value. */
CB_MUST_CHECK cb_status cb_walk_check_here(const walker *w, uint32_t step, uint32_t value);
/* Frees the memory of values that have reached the host by the start of `step`. */
void cb_walk_free_gone(walker *w, uint32_t step, int64_t clock);
/* Waits until the outputs of an op are available. */
void cb_walk_stall_until(walker *w, int64_t when);
/* Handles a step that copies or waits for a copy. */
CB_MUST_CHECK cb_status cb_walk_copy(walker *w, uint32_t step, uint32_t op, cb_action action);
/* After the last step, computes the maximum that the host holds. */
CB_MUST_CHECK cb_status cb_walk_measure_host(walker *w, cb_arena *scratch);

#endif
