/* frontier.h: finds all trade-offs between saved bytes and time in one pass. Internal.
 *
 *     cb_tradeoffs t;
 *     CB_TRY(cb_tradeoffs_make(&t, &cut, CB_PRESET_RECOMPUTE_ALL, arena, err));
 *     uint32_t i = cb_tradeoffs_at(&t, bytes);        // CB_NONE: even the first point saves more
 *     t.point[i].time_ps;
 *     cb_tradeoffs_recompute(&t, i, recompute);       // for cb_recompute_lazily
 *
 * Saved bytes are the bytes alive between forward and backward, which is a single moment. So the
 * network of mincut.h, with a price on time, gives all cuts at once, and they are nested
 * (flow/frontier.h). Points are its corners and its steps; two fills find more points between large
 * steps. Bytes and times of a point are exactly those of the schedule that cb_recompute_lazily
 * makes. No values are inlined. */
#ifndef CB_PLAN_FRONTIER_H
#define CB_PLAN_FRONTIER_H

#include "../../flow/frontier.h"
#include "mincut.h"

typedef enum cb_tradeoff_kind {
    CB_TRADEOFF_HULL = 0, /* a corner of the lower hull of all pairs (bytes, time) */
    CB_TRADEOFF_STEP,     /* between two corners, at their price */
    CB_TRADEOFF_FILL,     /* off the hull */
    CB_TRADEOFF_KINDS
} cb_tradeoff_kind;
extern const char *const cb_tradeoff_names[CB_TRADEOFF_KINDS];

typedef struct cb_tradeoff {
    uint64_t saved_bytes;
    int64_t time_ps;  /* time of the whole step */
    int64_t bound_ps; /* no schedule that saves as little takes less (docs/planner.md) */
    cb_tradeoff_kind kind;
    uint32_t step;    /* index of its step in the frontier */
    const bool *runs; /* [n_run] the runs that a fill recomputes; NULL for other points */
} cb_tradeoff;

typedef struct cb_tradeoffs {
    const cb_cut *cut;
    cb_frontier frontier;
    uint64_t held_bytes; /* saved at every point */
    uint64_t sure_bytes; /* the part of these bytes that every schedule saves */
    bool has_bound;      /* false if preferences change costs or ops have insides; bounds are then
                       once_ps */
    uint32_t n_point;
    cb_tradeoff *point; /* saved bytes rise, time falls */
} cb_tradeoffs;

/* `preset` determines which ops may run again. CB_PRESET_RECOMPUTE_ALL allows all ops that may run
 * twice; the others allow those of cb_preset_allows. The user's constraints come first. Returns
 * CB_UNSUPPORTED if no point keeps the limits of all regions. `cut` is borrowed; its costs do not
 * change. */
CB_MUST_CHECK cb_status cb_tradeoffs_make(cb_tradeoffs *t, const cb_cut *cut, cb_preset preset,
                                          cb_arena *arena, cb_error *err);
/* Returns the fastest point that saves at most `saved_bytes`. */
uint32_t cb_tradeoffs_at(const cb_tradeoffs *t, uint64_t saved_bytes);
/* Fills `recompute` [n_unit]: which units are recomputed at a point. */
void cb_tradeoffs_recompute(const cb_tradeoffs *t, uint32_t point, bool *recompute);

#endif
