/* moves.h: shared by the searches over one ledger: seeded random numbers, changes that can be
 * undone, and the choice of what to drop and what to recompute. Internal. */
#ifndef CB_PLAN_MOVES_H
#define CB_PLAN_MOVES_H

#include "../candidates/trial.h"
#include "ledger.h"

typedef struct cb_chain_change { /* an anchor's old chain */
    uint32_t anchor, begin, end; /* anchor; range of its old chain in `before` */
} cb_chain_change;

typedef struct cb_moves {
    cb_trial *trial;
    cb_ledger *l;
    cb_arena *scratch;
    uint64_t chance;       /* state of the generator */
    const bool *may_rerun; /* [n_unit] */
    double early_share;    /* share of proposals that make a value before the anchor that reads
                              it */
    bool delays_chains;    /* set by the caller: proposals may delay several ops at once */
    bool heated;           /* a larger share of early proposals, and slower plans are accepted on
                              the way */
    double pace;           /* set by the caller: share of the usual effort; initially 1 */
    uint32_t *offer;       /* [l->n] first output of the base op there; CB_NONE: cannot be freed */
    uint32_t *missed;      /* [l->n] equal to `choice` if the op offers nothing in the current
                              tournament */
    uint32_t choice;       /* number of tournaments so far */
    uint32_t *seen;        /* [n_unit] stamps */
    uint32_t stamp;
    CB_VEC(cb_chain_change) change; /* changes since cb_moves_forget */
    cb_ledger_ids before;
    cb_ledger_ids next;       /* the chain being built */
    cb_ledger_ids todo, best; /* scratch */
    uint32_t settled;         /* settlings so far, for polling */
    uint32_t polled;          /* `settled` at the last poll */
    double once;              /* picoseconds of the step, the unit of time in objectives */
    double whole;             /* bytes of saving everything, the unit of bytes in objectives */
} cb_moves;

bool cb_is_small_search(const cb_moves *m); /* true if there are so few ops that effort is cheap */
bool cb_is_tiny_search(const cb_moves *m);  /* true if there are so few ops that chance decides a
                                               lot */
bool cb_is_fine_search(const cb_moves *m);  /* true if there are so few ops that plans are far
                                               apart */
bool cb_is_bare_search(const cb_moves *m);  /* true if there is no backward, so that prices have no
                                               effect */
CB_MUST_CHECK cb_status cb_moves_init(cb_moves *m, cb_trial *t, cb_ledger *l, cb_arena *scratch,
                                      uint64_t whole, cb_error *err);

uint32_t cb_moves_draw(cb_moves *m, uint32_t n); /* draws from 0 .. n-1; n >= 1 */
double cb_moves_chance(cb_moves *m);             /* draws from [0, 1) */

/* The functions below that return bool return false if memory runs out, unless they say otherwise.
 */
CB_MUST_CHECK bool cb_moves_settle(cb_moves *m);
CB_MUST_CHECK bool cb_moves_set(cb_moves *m, uint32_t anchor, const uint32_t *op,
                                size_t n);     /* logs the change, but does not settle */
CB_MUST_CHECK bool cb_moves_undo(cb_moves *m); /* undoes all logged changes and settles */
/* Undoes everything since cb_ledger_try; counts as a settling. */
CB_MUST_CHECK bool cb_moves_take_back(cb_moves *m);
void cb_moves_forget(cb_moves *m); /* keeps the changes and clears the log */

/* Picks a busy anchor, preferably one with many reruns, and one of its ops. Returns false if there
 * is none. */
bool cb_moves_pick(cb_moves *m, uint32_t *anchor, uint32_t *op);
/* Sets `next` to the chain of `anchor` without `op`. */
CB_MUST_CHECK bool cb_moves_without(cb_moves *m, uint32_t anchor, uint32_t op);
/* Proposes to recompute a value alive across `hot` where it is read next, with its ancestors that
 * are no longer alive: `next` becomes the new chain of `anchor`. `found` is false if there is no
 * such value. */
CB_MUST_CHECK bool cb_moves_propose(cb_moves *m, uint32_t hot, double deep_share, bool *found,
                                    uint32_t *anchor);
/* Picks a random anchor over `bytes`. */
uint32_t cb_moves_hot(cb_moves *m, double bytes);

/* Returns CB_CANCELLED if the caller's poll function says so. */
CB_MUST_CHECK cb_status cb_moves_poll(cb_moves *m, cb_error *err);
/* Evaluates the plan in the ledger with the simulator and offers it to the candidates. */
CB_MUST_CHECK cb_status cb_moves_offer(cb_moves *m, cb_error *err);

/* The searches. Each starts from the plan in the ledger, leaves its best plan there, and offers it
 * to the candidates. None goes below `least_ps` of extra time. */
CB_MUST_CHECK cb_status cb_trim(cb_moves *m, double least_ps, cb_error *err);
/* Ends after a share `patience` of the moves if no peak has been lower than the first. */
CB_MUST_CHECK cb_status cb_walk_down(cb_moves *m, uint32_t moves, double patience, cb_error *err);
typedef struct cb_ruin_limits {
    uint32_t settlings;
    double patience; /* share of the settlings: as many without progress end the search */
    double least_ps;
    double enough_ps; /* extra time of a plan that fits and ends the search */
    double most_ps;   /* extra time at which a search that is still above the target ends */
} cb_ruin_limits;
CB_MUST_CHECK cb_status cb_ruin_and_recreate(cb_moves *m, const cb_ruin_limits *limits,
                                             cb_error *err);

#endif
