/* ladder.h: the fixed set of plans that budgets choose from. Internal.
 *
 * A rung is a target in bytes and the fastest plan that a search at that target finds. Targets and
 * searches depend only on the problem, and so does the set. The answer to a budget is the fastest
 * plan of the set that fits: a smaller budget never gives a larger plan, and a larger budget never
 * a slower one, in one process or in several. Only rungs that may hold the answer are searched: the
 * plan of rung r counts only if it is larger than the target of rung r + 1 and takes at least
 * `least_ps[r]`. A deep rung, which prices do not reach, starts from the plan of the rung before it
 * and is no faster; the first one without a plan is the last. Threads search near rungs in
 * parallel, and the two attempts at a deep rung. */
#ifndef CB_PLAN_LADDER_H
#define CB_PLAN_LADDER_H

#include "floor.h"
#include "rung.h"
#include "sweep.h"
#include "tuning.h"
#include "workers.h"

#define CB_DUG_MOST (2 * CB_ATTEMPTS) /* plans below the last rung: two digs */

/* Plans of a rung below its first: smaller and no faster, and larger than the next target. */
typedef struct cb_stairs {
    bool searched;
    uint32_t n;
    cb_candidate at[CB_STAIRS_MOST]; /* sizes fall, times rise */
} cb_stairs;

typedef struct cb_ladder {
    cb_worker first;      /* the calling thread's worker */
    cb_workers *workers;  /* the first worker and those of other threads */
    cb_candidates *base;  /* plans of the searches that every budget needs first */
    cb_candidates *drops; /* plans of the steps on the bound. Every budget considers them as well.
                             They are in the base only if one of them beats the guess */
    bool *may_rerun;
    uint64_t whole; /* save-everything's bytes */
    uint32_t n_rung;
    uint64_t target[CB_RUNGS_MOST + 1]; /* targets in falling order, with a 0 after the last */
    double least_ps[CB_RUNGS_MOST];     /* rising: a rung's plans with less extra time do not count
                                           (see cb_ladder_least) */
    double own_ps[CB_RUNGS_MOST];       /* the same bound for near rungs, from a guess at each; 0:
                                           not computed yet */
    uint32_t n_near;                    /* rungs that the base reaches; later ones are deep */
    uint32_t n_priced;                  /* rungs that prices reach. If these are few, windows
                                           (windows.h) add plans to the base; otherwise
                                           CB_RUNGS_MOST */
    bool orders_pages;                  /* rungs that only windows reach are searched in order */
    bool searched[CB_RUNGS_MOST];
    cb_candidate plan[CB_RUNGS_MOST];  /* plan of each rung; size 0: no plan counts */
    cb_candidate tight[CB_RUNGS_MOST]; /* plan whose offsets fit although those of the rung's plan
                                          do not; size 0: none */
    bool tightened[CB_RUNGS_MOST];     /* the plan `tight` was searched for (pick.c) */
    cb_candidate *built;               /* [CB_RUNGS_MOST] see cb_ladder_build; NULL: none so far */
    bool has_built[CB_RUNGS_MOST];
    cb_stairs *stairs;             /* [CB_RUNGS_MOST] stairs of a fine search; NULL: none so far */
    cb_candidate last_deep;        /* plan of the last deep rung searched; size 0: none was found */
    double deep_ps[CB_RUNGS_MOST]; /* extra time of the deep rungs searched: later ones take no
                                          less */
    const cb_facts *few;  /* set by the caller: facts of the original problem, if it has few enough
                             ops for a front (front.h); or NULL */
    cb_candidates *front; /* plans of the front; NULL: it was not walked so far */
    bool has_front;       /* the front has been walked */
    cb_swept swept;       /* the smallest plan of the sweep, below all of the front */
    struct cb_ladder *rival;                       /* see cb_ladder_init; or NULL */
    bool follows;                                  /* see cb_ladder_follow */
    bool has_followed;                             /* its base is built */
    const cb_candidate *from_rival[CB_RUNGS_MOST]; /* plans of searched rungs; NULL: none */
    /* the answers to position 0 and to `min`, for a following ladder; size 0: none so far */
    cb_candidate low[CB_MEASURE_COUNT], min[CB_MEASURE_COUNT];
    bool judged[CB_RUNGS_MOST], spared[CB_RUNGS_MOST]; /* see cb_ladder_spares */
    bool modest; /* set by the caller: peaks are solved exactly, so no effort is added */
    bool has_floor;
    cb_floor floor; /* floor of all plans of the ladder's class, computed for the first deep
                       search */
    bool has_dug;
    cb_candidate dug[CB_DUG_MOST]; /* see cb_ladder_dig_down */
    uint32_t n_dug;
    cb_price_span start[CB_LADDER_STARTS];       /* initial prices for shares 0.9, 0.8 ... 0.1 */
    cb_price_span proof_start[CB_LADDER_STARTS]; /* the same for the bound */
    size_t n_tangent;                            /* numbers of the base's tangents of the bound and
                                                    of the guess */
} cb_ladder;

/* Call after cb_try_pairs of the save-everything plan. `threads` may be NULL. With a `rival`, the
 * ladder of a smaller class of plans, whose answers are considered as well, it takes CB_FOLLOW_PACE
 * of the effort. */
CB_MUST_CHECK cb_status cb_ladder_init(cb_ladder *d, cb_trial *t, cb_cut *cut, cb_threads *threads,
                                       cb_ladder *rival, cb_error *err);
/* Does the same for a ladder that follows `rival`, which has been built: it searches from the plans
 * of the rival, and only at targets where they cost more than cb_ladder_little_extra. Call
 * cb_ladder_follow_base before any function except cb_ladder_prove. */
CB_MUST_CHECK cb_status cb_ladder_follow(cb_ladder *d, cb_trial *t, cb_cut *cut,
                                         cb_threads *threads, cb_ladder *rival, cb_error *err);
/* Searches the base of a following ladder. Has no effect if called again. */
CB_MUST_CHECK cb_status cb_ladder_follow_base(cb_ladder *d, cb_error *err);
void cb_ladder_free(cb_ladder *d);
/* True if position 0 has a separate answer. With few ops the answer to `min` is found quickly and
 * used instead. */
bool cb_ladder_has_low(const cb_ladder *d);
/* Returns the minimum extra time, as a share, of the answer to position 0 if it is not a rung's
 * plan: CB_LITTLE_EXTRA, or that of the smallest plan of the base if that costs less. 0 if the
 * answer to `min` is used instead. */
double cb_ladder_little_extra(const cb_ladder *d);
/* Makes a search by `c` start from the plans of the base and the front, and from the bounds that
   the base proved. */
void cb_ladder_begin(const cb_ladder *d, cb_worker *c);
/* The first is true if windows added plans to the base, the second if near rung `r` starts from
 * them. The plan of such a rung is no faster than that of the base at the target above. So only the
 * first rung that fits may hold an answer. */
static inline bool cb_ladder_pages(const cb_ladder *d) { return d->n_priced < d->n_near; }
static inline bool cb_ladder_is_paged(const cb_ladder *d, uint32_t r) { return r >= d->n_priced; }
/* Returns the extra time of the fastest plan of the base that fits, or infinity. */
double cb_ladder_known(const cb_ladder *d, uint64_t target);
/* Returns the first rung whose plan may be as small as `bytes`. */
uint32_t cb_ladder_first(const cb_ladder *d, uint64_t bytes);
/* Returns a lower bound on the extra time of the plan of rung `r`, from the base and, with `deep`,
 * from the earlier deep rungs, which have been searched. */
double cb_ladder_least(const cb_ladder *d, uint32_t r, bool deep);
/* True if a plan of the searched rung `r` with this extra time may count. */
bool cb_ladder_may_take(const cb_ladder *d, uint32_t r, int64_t time_ps);
/* Sets `out` to true if the rival's plan of near rung `r` is so close to the bound that budgets
 * need no search of this rung. Depends only on the rung, so the set of plans does not depend on the
 * budget. */
CB_MUST_CHECK cb_status cb_ladder_spares(cb_ladder *d, uint32_t r, bool *out, cb_error *err);
/* Sets `least_ps` to the least extra time of the plan of near rung `r`, from a guess at its target.
 * It is at least cb_ladder_least, and is worth computing before a search of the rung. */
CB_MUST_CHECK cb_status cb_ladder_screen(cb_ladder *d, uint32_t r, double *least_ps, cb_error *err);
/* Sets `out` to true if the bound shows that no plan within near rung `r`, nor within a later one,
 * is faster than `time_ps`. */
CB_MUST_CHECK cb_status cb_ladder_excludes(cb_ladder *d, uint32_t r, double time_ps, bool *out,
                                           cb_error *err);
/* Computes `floor`, once. */
CB_MUST_CHECK cb_status cb_ladder_find_floor(cb_ladder *d, cb_error *err);
/* Searches the near rungs in `wanted` [CB_RUNGS_MOST] that have not been searched, and the first
 * deep one if any deep rung is wanted. */
CB_MUST_CHECK cb_status cb_ladder_climb_many(cb_ladder *d, const bool *wanted, cb_error *err);
/* Searches rung `r`, and for a deep rung all deep rungs before it; `best` is NULL if the rung has
 * no plan. */
CB_MUST_CHECK cb_status cb_ladder_climb(cb_ladder *d, uint32_t r, const cb_candidate **best,
                                        cb_error *err);
/* With few ops, there may be several plans between two targets. For a rung that has a plan,
 * `stairs` receives those that are smaller and no faster; NULL: the search is not fine. A budget
 * that the rung's plan exceeds considers them. */
CB_MUST_CHECK cb_status cb_ladder_climb_stairs(cb_ladder *d, uint32_t r, const cb_stairs **stairs,
                                               cb_error *err);
/* With few ops, also searches the target of rung `r` op by op (local/beam.h), if the searched rung
 * has a plan. `found` receives the result if it is faster and counts for the rung; otherwise NULL.
 * No search starts from it, so no other plan changes. */
CB_MUST_CHECK cb_status cb_ladder_build(cb_ladder *d, uint32_t r, const cb_candidate **found,
                                        cb_error *err);
/* For a searched rung without a plan: true if a plan was found that is so small that it belongs to
 * a later rung. With large values, most rungs are like that. */
bool cb_ladder_passes(const cb_ladder *d, uint32_t r);
/* Searches all deep rungs, then below the smallest plan found, down to the floor, for the plans in
 * `dug`, independently of the request. */
CB_MUST_CHECK cb_status cb_ladder_dig_down(cb_ladder *d, cb_error *err);
typedef struct cb_dig_effort { /* shares of the usual effort */
    double descent;            /* share to get under a target */
    double share;              /* share once under it */
    double most_ps;            /* the extra time allowed (rung.h); 0: any */
    bool full;                 /* a following ladder also uses the usual effort */
} cb_dig_effort;
/* Finds a plan under each target, which need not be rungs, starting from `from`; size 0: none
 * found. With `most_ps`, targets after one that is met within it may be left out. */
CB_MUST_CHECK cb_status cb_ladder_dig(cb_ladder *d, const cb_candidate *from, cb_dig_effort effort,
                                      const uint64_t target[CB_ATTEMPTS],
                                      cb_candidate out[CB_ATTEMPTS], cb_error *err);
/* Finds the fastest plan at `target`, which need not be a rung, starting from `from`; size 0: none
 * fits. */
CB_MUST_CHECK cb_status cb_ladder_refine(cb_ladder *d, const cb_candidate *from, uint64_t target,
                                         cb_candidate *out, cb_error *err);
/* Computes a bound on the extra time of plans of `bytes` (prices.h), given a known plan with
 * `known_ps` of extra time. */
CB_MUST_CHECK cb_status cb_ladder_prove(cb_ladder *d, uint64_t bytes, double known_ps,
                                        double *bound_ps, cb_error *err);

#endif
