/* explain.h: collects the explanation of a plan, for text and for JSON. Internal. */
#ifndef CB_PLAN_EXPLAIN_H
#define CB_PLAN_EXPLAIN_H

#include "../../base/json.h"
#include "../schedule/plan.h"
#include "../search/floor.h"
#include "whatif.h"

#define CB_EXPLAIN_SETS 8

typedef struct cb_explained { /* one storage that the backward needs */
    uint32_t storage;
    uint32_t value; /* the first value with a decision; it represents its views */
    uint32_t op;    /* op that allocates the storage, and would run again */
    uint32_t made;  /* the outputs that would run again */
    uint64_t bytes;
    bool at_peak; /* alive at the peak of this plan */
    cb_change otherwise;
} cb_explained;

typedef struct cb_delayed { /* an op of the backward that runs after its place in the order */
    uint32_t op;
    uint32_t before; /* the op right before which it runs; CB_NONE: the end of the step */
    uint64_t bytes;  /* bytes of its outputs */
} cb_delayed;

typedef struct cb_explanation {
    const cb_problem *p;
    const cb_plan *plan;
    uint32_t n_line, n_tried; /* other choices are tried for `n_tried`: the first of each kind of
                                 line, then the largest */
    cb_explained *line;       /* largest first */
    uint32_t *reader_begin;   /* [n_storage + 1] into `reader` */
    uint32_t *reader;         /* ops that read a storage, also through views, in order */
    cb_floor floor;           /* floor of the measure `live` */
    uint64_t held_bytes;      /* results and gradients, which every plan holds at its end */
    uint32_t n_set;
    cb_working_set set[CB_EXPLAIN_SETS];
    const uint32_t *base; /* op at a position */
    uint32_t n_delayed;
    cb_delayed *delayed; /* largest first */
} cb_explanation;

CB_MUST_CHECK cb_status cb_explanation_make(const cb_problem *p, const cb_plan *plan,
                                            cb_arena *arena, cb_explanation *out, cb_error *err);
/* Returns the floor in the plan's measure; UINT64_MAX: unknown. */
uint64_t cb_explanation_floor(const cb_explanation *e);
/* Returns why the op of a line may run only once; NULL: it may run again. */
const char *cb_explained_once(const cb_explanation *e, const cb_explained *line);

#endif
