/* plan.h: a finished plan: a schedule that has been checked and placed, with the decision for each
 * value. Internal. */
#ifndef CB_PLAN_PLAN_H
#define CB_PLAN_PLAN_H

#include "schedule.h"

typedef enum cb_decision {
    CB_DECISION_NONE = 0,
    CB_DECISION_SAVE,
    CB_DECISION_RECOMPUTE,
    CB_DECISION_OFFLOAD
} cb_decision;
typedef enum cb_reason {
    CB_REASON_NONE = 0,
    CB_REASON_CUT,       /* on the minimum cut: saving is cheapest here */
    CB_REASON_FORBIDDEN, /* must not be recomputed (compute-intensive under the preset, stateful,
                            unknown) */
    CB_REASON_POLICY,    /* the user's constraint */
    CB_REASON_HELD,      /* an output, alive anyway */
    CB_REASON_CHEAP,     /* recomputed, because that is cheaper than keeping it */
    CB_REASON_PEAK,      /* recomputed, because it was alive at the peak and the budget needed the
                            room */
    CB_REASON_PRESET     /* the preset saves or recomputes all such values */
} cb_reason;

/* The class of schedules for which a lower bound on the time holds. */
typedef enum cb_bound_class {
    CB_BOUND_TRIVIAL = 0, /* all schedules; the bound is only the time of running every op once */
    CB_BOUND_ANY,         /* all schedules that keep the budget */
    CB_BOUND_ORDERED      /* schedules that keep the budget and the base order (decisions.h) */
} cb_bound_class;

typedef struct cb_plan {
    cb_arena arena;
    cb_schedule schedule;
    const cb_device *device; /* device row of the times */
    uint8_t *decision;       /* [n_value] cb_decision; NONE: the backward does not need it */
    uint8_t *reason;         /* [n_value] cb_reason */
    cb_lives lives;          /* the lives, with offsets */
    uint64_t fingerprint;    /* fingerprint of the problem */
    uint64_t arena_bytes, live_bytes, saved_bytes, total_bytes;
    uint64_t save_all_arena_bytes, save_all_live_bytes,
        save_all_saved_bytes; /* the save-everything plan of the same problem */
    int64_t time_ps, once_ps;
    int64_t lower_bound_ps; /* never above time_ps. Before the plan is checked: the bound of the
                               search; -1: none */
    int64_t trivial_ps;     /* no schedule takes less, whatever the budget */
    cb_bound_class bound_class;
    bool in_order;           /* true if the schedule is in the class CB_BOUND_ORDERED */
    uint64_t budget_bytes;   /* the resolved budget, UINT64_MAX: none */
    uint64_t program_budget; /* limit of its program, which the plan of single ops may exceed;
                                UINT64_MAX: budget_bytes */
    double position;         /* the requested budget, if it was a position; -1: it was not */
    uint64_t smallest_bytes, everything_bytes; /* the ends of a position */
    cb_measure measure;
    cb_preset preset;
} cb_plan;

extern const char *const cb_decision_names[CB_DECISION_OFFLOAD + 1];
extern const char *const cb_reason_names[CB_REASON_PRESET + 1];
extern const char *const cb_bound_class_names[CB_BOUND_ORDERED + 1];

/* Makes an empty plan without a budget, allocated in its own arena. */
CB_MUST_CHECK cb_status cb_plan_new(cb_alloc *alloc, cb_plan **out, cb_error *err);
void cb_plan_free(cb_plan *plan);
/* Sets the bound and its class, from the bound proven for the plan's budget (-1: none). A bound of
 * a class that does not contain the plan becomes the trivial one. Call after time_ps, trivial_ps
 * and in_order are set. */
void cb_plan_set_bound(cb_plan *plan, int64_t proven_ps);
/* Sets the position that was requested, and the bytes of both ends of its range. */
void cb_plan_set_position(cb_plan *plan, double position, uint64_t smallest, uint64_t everything);
/* Returns (time - lower bound) / lower bound; -1 if the bound is 0 and the time is not. */
double cb_plan_gap(const cb_plan *plan);
/* Returns what a measure counts in a checked and placed schedule. */
uint64_t cb_measured(const cb_problem *p, cb_measure measure, const cb_lives *lives,
                     uint64_t arena_bytes);

#endif
