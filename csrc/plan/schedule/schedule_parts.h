/* schedule_parts.h: the evaluator. Included by schedule_copies.c and, above it, schedule_walk.c.
 *
 * It walks a schedule once, checks every rule and notes who lives when. It is kept plain, as the
 * planner's claims rest on it; tests/reference/evaluate.py says the same in another language.
 *
 *   - A value is live from the step that makes it until a step makes it again; a step reads the
 *     latest. A run makes the outputs that its step says, of those that its op has, and reads the
 *     inputs that these need; its other outputs keep their lives.
 *   - What a run takes in, it makes for itself alone, without memory: it reads what that is made
 *     from, and not the value, whose life goes on for others.
 *   - An instance is one life of one storage: it begins where its storage is allocated and ends
 *     with the last step that reads any value of it, views included.
 *   - What is held, and what lies in the caller's memory, belongs to the first run that makes it; a
 *     later run makes a copy for itself, which is counted in its step and lives on only if a step
 *     reads it. The caller's memory is written once, and it is what later steps read.
 *
 * No list of frees exists anywhere: frees follow from the last reads.
 *
 * Copies to the host and back run beside the steps, on one lane a direction. A step that reads what
 * is still on its way waits. What leaves keeps its room until its copy has ended: its life is
 * prolonged to the step before the first that starts later than that. */
#ifndef CB_PLAN_SCHEDULE_PARTS_H
#define CB_PLAN_SCHEDULE_PARTS_H

#include "schedule.h"

typedef struct leaver { /* on its way to the host */
    int64_t end;        /* of the copy */
    uint32_t instance, step;
    uint32_t copy; /* CB_NONE: the instance itself; else the instance is held, and this one counts
                      the bytes of the copy */
} leaver;

typedef struct host_copy {
    int64_t from, until; /* held on the host */
    uint64_t bytes;
} host_copy;

/* What moves. Only schedules that move something have any of it. */
typedef struct lanes {
    double link; /* bytes/s */
    int64_t out_free, in_free;
    int64_t *ended;    /* [n_op] end of its last copy out, -1: none */
    int64_t *ready;    /* [n_op] when what it makes is there */
    uint32_t *host;    /* [n_op] its latest entry in `copies` */
    uint32_t *out_at;  /* [n_op] step of its last copy out */
    uint32_t *made_at; /* [n_op] step that made what it makes, CB_NONE: nothing is there */
    uint32_t *written; /* [n_storage] step that last wrote into it, CB_NONE: none */
    uint32_t *left;    /* [n_instance] step of the copy out that took it, CB_NONE: none */
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
    uint32_t *value_instance; /* [n_value] instance of the latest run, CB_NONE: none or static */
    bool *have;               /* [n_value] made at all */
    uint32_t *latest;         /* [n_storage] newest instance, CB_NONE: none */
    uint32_t *first;   /* [n_storage] the instance of the first run, which may be brought back
                          from the host; CB_NONE: none */
    uint32_t *seen_at; /* [n_storage] last step that reads or makes it, and the instance it saw */
    uint32_t *seen_instance;
    uint32_t *mutator;   /* [n_storage] last op that wrote into it, CB_NONE: none */
    uint32_t *runs;      /* [n_op] */
    uint32_t *ever;      /* [n_op] outputs made so far */
    uint32_t collective; /* whose first run was the latest, CB_NONE: none has run */
    uint32_t newest; /* the last op by id, of those that depend on a tangent and have run; CB_NONE:
                        none has run */
    uint32_t tail;   /* cb_problem_tail */
    bool *inlined;   /* [n_value] taken in by some run so far, before its op made it; NULL: no run
                          takes in anything */
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

/* Where the first run's has left for the host, what comes next takes its place. */
static inline void cb_walk_note_newest(walker *w, uint32_t storage) {
    w->latest[storage] = w->seen_instance[storage];
    if (w->first[storage] == CB_NONE) w->first[storage] = w->latest[storage];
}

/* What moves at all: sets `lanes` if something does. `n_instance`, `n_out`: at most so many. */
CB_MUST_CHECK cb_status cb_walk_start_copies(walker *w, cb_arena *scratch, uint64_t n_instance,
                                             uint64_t n_out);
/* Nobody may still need memory that has left with another value. */
CB_MUST_CHECK cb_status cb_walk_check_here(const walker *w, uint32_t step, uint32_t value);
/* What has reached the host by the start of `step` gives its room back. */
void cb_walk_free_gone(walker *w, uint32_t step, int64_t clock);
/* Waits for what an op made to be there. */
void cb_walk_stall_until(walker *w, int64_t when);
/* A step that copies or waits for a copy. */
CB_MUST_CHECK cb_status cb_walk_copy(walker *w, uint32_t step, uint32_t op, cb_action action);
/* After the last step: the most that the host holds. */
CB_MUST_CHECK cb_status cb_walk_measure_host(walker *w, cb_arena *scratch);

#endif
