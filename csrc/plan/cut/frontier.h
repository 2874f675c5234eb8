/* frontier.h: every trade-off between saved bytes and time at once. Internal.
 *
 *     cb_tradeoffs t;
 *     CB_TRY(cb_tradeoffs_make(&t, &cut, CB_PRESET_RECOMPUTE_ALL, arena, err));
 *     uint32_t i = cb_tradeoffs_at(&t, bytes);        // CB_NONE: even the first point saves more
 *     t.point[i].time_ps;
 *     cb_tradeoffs_recompute(&t, i, recompute);       // for cb_recompute_lazily
 *
 * Saved bytes are what is alive between forward and backward, and that has one moment only; so the
 * network of mincut.h with a price on time gives all cuts at once (flow/frontier.h), nested. Points
 * are its corners and steps, and between large steps what two fills find. Their bytes and times are
 * those of the schedule that cb_recompute_lazily makes, to the byte and the picosecond. Runs take
 * nothing in. */
#ifndef CB_PLAN_FRONTIER_H
#define CB_PLAN_FRONTIER_H

#include "../../flow/frontier.h"
#include "mincut.h"

typedef enum cb_tradeoff_kind {
    CB_TRADEOFF_HULL = 0, /* a corner of the lower hull of all (bytes, time) */
    CB_TRADEOFF_STEP,     /* between two corners, at their price */
    CB_TRADEOFF_FILL,     /* off the hull */
    CB_TRADEOFF_KINDS
} cb_tradeoff_kind;
extern const char *const cb_tradeoff_names[CB_TRADEOFF_KINDS];

typedef struct cb_tradeoff {
    uint64_t saved_bytes;
    int64_t time_ps;  /* of the whole step */
    int64_t bound_ps; /* no schedule that saves as little takes less (docs/planner.md) */
    cb_tradeoff_kind kind;
    uint32_t step;    /* of the frontier */
    const bool *runs; /* [n_run] of a fill: what runs again; else NULL */
} cb_tradeoff;

typedef struct cb_tradeoffs {
    const cb_cut *cut;
    cb_frontier frontier;
    uint64_t held_bytes; /* saved at every point */
    uint64_t sure_bytes; /* of these, what every schedule saves */
    bool has_bound; /* no: preferences bend costs, or ops have insides; then bounds are once_ps */
    uint32_t n_point;
    cb_tradeoff *point; /* saved bytes rise, time falls */
} cb_tradeoffs;

/* `preset` says which ops may run again: CB_PRESET_RECOMPUTE_ALL, all that may run twice; others as
 * cb_preset_allows, wishes first. CB_UNSUPPORTED: no point keeps the limits of all regions. `cut`
 * is borrowed; its costs are not changed. */
CB_MUST_CHECK cb_status cb_tradeoffs_make(cb_tradeoffs *t, const cb_cut *cut, cb_preset preset,
                                          cb_arena *arena, cb_error *err);
/* The fastest point that saves at most `saved_bytes`. */
uint32_t cb_tradeoffs_at(const cb_tradeoffs *t, uint64_t saved_bytes);
/* Fills `recompute` [n_unit]: which units are recomputed at a point. */
void cb_tradeoffs_recompute(const cb_tradeoffs *t, uint32_t point, bool *recompute);

#endif
