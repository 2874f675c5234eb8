/* prices.h: makes schedules from minimum cuts with a price for each moment. Internal.
 *
 * The prices of a target also prove something: with price_t >= 0 and the value of the cut,
 *
 *     cut + sum over gaps of min(hold, one rerun) + sum of price_t (least_t - B)
 *
 * is at most the extra time of every plan of at most B bytes that keeps the base order. gaps.h has
 * the gaps and the bytes that every plan holds, docs/planner.md the proof. The bound is linear in
 * B, so it is a tangent that holds for all budgets.
 *
 * The same sum over fewer plans is a guess (guess.h): it is larger, so it guides the search better,
 * but it proves nothing. */
#ifndef CB_PLAN_PRICES_H
#define CB_PLAN_PRICES_H

#include "../cut/mincut.h"
#include "candidates/trial.h"
#include "gaps.h"
#include "guess.h"

typedef enum cb_price_rule {
    CB_PRICE_NEED = 0, /* a value is kept until the last schedule needed it */
    CB_PRICE_DIRECT,   /* a value is kept until the backward reads it */
    CB_PRICE_GUESS,    /* the same, with the counts of guess.h */
    CB_PRICE_BOUND,    /* a value is kept over the main gaps of gaps.h */
    CB_PRICE_RULES
} cb_price_rule;

/* Initial prices. Most moments far from the peak have none. */
typedef struct cb_price_span {
    uint32_t from, to; /* no moment outside [from, to) has a price */
    double *at;        /* [to - from] */
} cb_price_span;

typedef struct cb_prices {
    cb_cut *cut;
    cb_trial *trial;
    double *price;          /* [n_base] picoseconds for a byte held while that base op runs */
    double *best;           /* [n_base] prices of the best bound of the last cb_prices_polyak */
    double *sum;            /* [n_base + 1] running sum of `price` */
    double *relaxed;        /* [n_base + 1] bytes of the last cut's plan, without transients */
    double *direction;      /* [n_base] direction of the last step of cb_prices_polyak */
    uint64_t *first_moment; /* [n_base] largest number of bytes alive when everything is saved */
    double start, lowest, highest; /* first price of a crowded moment, and bounds on all prices */
    double scale;                  /* cut units per picosecond */
    cb_price_rule rule;
    uint32_t *last_forward; /* [n_storage] position of the last forward use */
    uint32_t *earliest;     /* [n_storage] first position in the backward that could need it,
                               CB_NONE: none */
    uint32_t *direct;       /* [n_storage] first position in the backward that reads it, CB_NONE */
    uint32_t *need;         /* [n_storage] first position that needs it in the last schedule */
    uint64_t *inlined; /* [n_op] members in the slices of outputs that may be inlined; NULL: none */
    bool *unused_forward; /* [n_unit] no needed forward op reads its output in the forward: running
                             it in the backward costs nothing more */
    double *guess_least;  /* [n_base] bytes that guess.h counts at each moment */
    cb_gaps gaps;
    cb_pairs pairs, dropped; /* pairs of the last plan; the same with reruns in all gaps (drops.h)
                                */
    cb_tangents tangent, guess;
    bool ignores_guess; /* set by the caller: cb_prices_guess returns the bound */
    bool tries_drops;   /* steps on the bound try plans */
} cb_prices;

/* If values may be inlined, recomputing one costs as much as the cheapest way to do so, and it
 * takes no memory for a reader into which it may be inlined. */

/* Call after a trial of the save-everything schedule. */
CB_MUST_CHECK cb_status cb_prices_init(cb_prices *z, cb_trial *trial, cb_cut *cut, cb_error *err);
/* Runs `steps` rounds of cut, schedule, and higher prices at moments where the schedule holds more
 * than `target` bytes. */
CB_MUST_CHECK cb_status cb_prices_aim(cb_prices *z, uint64_t target, cb_price_rule rule, int steps,
                                      cb_error *err);
/* Takes `steps` steps of Polyak's method at `target`, on the bound (CB_PRICE_BOUND) or the guess
 * (CB_PRICE_GUESS). They start from `from`, or, if it is NULL, from the excess over the target when
 * everything is saved. `extra_ps` is an upper estimate of the least extra time. Notes the best
 * tangent and keeps its prices in `best`. Steps on the guess try the plan of each cut. Steps on the
 * bound try that plan with reruns in the other gaps, if the prices suggest some and `tries_drops`
 * is set. */
CB_MUST_CHECK cb_status cb_prices_polyak(cb_prices *z, cb_price_rule rule, uint64_t target,
                                         const cb_price_span *from, double extra_ps, int steps,
                                         cb_error *err);
/* Copies `best` of the last step to the trial's scratch. */
CB_MUST_CHECK cb_status cb_prices_keep(const cb_prices *z, cb_price_span *out, cb_error *err);
/* Returns the best bound, at least 0, for plans that may also hold values on the host. A plan of
 * `bytes` and time T holds at most link x T / 2 bytes there. */
double cb_prices_bound_moves(const cb_prices *z, double bytes, double link);
/* Returns the best bound of all tangents at `bytes`; at least 0. */
double cb_prices_bound(const cb_prices *z, double bytes);
/* True if some candidate takes so little time that the guess is wrong. */
bool cb_prices_misjudge(const cb_prices *z, const cb_candidates *all);
/* Returns the guess at `bytes`, or the bound if a plan with `known_ps` of extra time shows that the
 * guess is wrong. */
double cb_prices_guess(const cb_prices *z, double bytes, double known_ps);

#endif
