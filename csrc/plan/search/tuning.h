/* tuning.h: the constants of the searches. Internal.
 *
 * Work is counted in steps, moves and settlings (one settling brings the ledger up to date after a
 * change), never in seconds, so that results repeat; an effort is a number of settlings, and a
 * share is a factor. Changing a constant changes plans: benchmarks/planner/bench_limits.py and
 * tests/plan/test_limits.py say whether for the better, by the traced graphs that all of them were
 * found with.
 *
 * How chance is divided between the moves of one search stands beside those moves. */
#ifndef CB_PLAN_TUNING_H
#define CB_PLAN_TUNING_H

/* ---- how large a search is ------------------------------------------------------------------- */

#define CB_SMALL_OPS 1000 /* below so many, effort costs little; */
#define CB_TINY_OPS 100   /* and below these, little decides */
#define CB_FEW_OPS 40     /* of fewer the front of plans is walked, with spare ops between them */
#define CB_UNHURRIED_OPS 12000.0 /* of the largest graph that takes all steps of a target */

/* ---- candidates: candidates/ ----------------------------------------------------------------- */

#define CB_CANDIDATES_MOST 640 /* kept at once; then those closest in size go */
#define CB_TRIALS_A_POLL 16    /* of some 10 to 1000 microseconds each */

/* ---- prices: prices.c ------------------------------------------------------------------------ */

/* 2^36: the dearest plan in units of the cut, so that sums stay far from 2^62 */
#define CB_CUT_UNITS 6.8719476736e10
#define CB_FIRST_ETA 2.0   /* how fast prices follow what is over the target, at first; */
#define CB_ETA_DECAY 0.03  /* and how much less so with each step */
#define CB_AIM 0.98        /* of the target: prices swing around it, and most swings should fit; */
#define CB_AIM_DIRECT 0.97 /* the same where a value is kept until the backward reads it */
#define CB_POLYAK_PATIENCE 12 /* steps of the bound without progress, until they get shorter */
#define CB_DEFLECTION 1.5     /* how much of the last direction a step keeps where they oppose */

/* of the step: the bound is that close to the time of a plan, so it needs no more steps */
#define CB_PROVED 2e-4

/* ---- crossover and removal: improve.c -------------------------------------------------------- */

#define CB_CROSS_SMALL 6       /* candidates under a target that are tried in a crossover, */
#define CB_CROSS_FAST 8        /* and over it */
#define CB_CROSS_STEPS 9       /* of bisection: 1 part in 512 of the forward */
#define CB_CROSS_SIZE_WEIGHT 2 /* bytes over the target, as a share of it, against time, likewise */
#define CB_REMOVAL_TRIALS 64   /* blocks of reruns that are left out to see, */
#define CB_REMOVAL_BLOCKS 16   /* beginning with so many; then halves of those */

/* ---- the floor: floor.c ---------------------------------------------------------------------- */

#define CB_FLOOR_LARGEST 25 /* moments looked at, those where most is there, */
#define CB_FLOOR_SPREAD 60  /* and evenly spread ones; */
#define CB_FLOOR_EFFORT 1e6 /* moments times ops, at most */

/* ---- the search at one target: rung.c -------------------------------------------------------- */

#define CB_AIM_STEPS 60          /* of prices that aim at a target */
#define CB_POLYAK_STEPS 100      /* of the guess; */
#define CB_MORE_POLYAK_STEPS 200 /* more of them where the best is far from the guess */
#define CB_PROOF_STEPS 120       /* of the bound, once the answer is known */
#define CB_CROSS_ROUNDS 2        /* of crossover, while they help */
#define CB_TRIMMED_PLANS 4       /* the fastest that fit are trimmed */
#define CB_CLOSE 1.02            /* of the guess: no need to improve it */
#define CB_NEAR 1.01             /* of the guess: good enough, the search ends */
#define CB_EFFORT 2.5e8          /* settlings of ruin and recreate, times ops; */
#define CB_MOST_EFFORT 100.0     /* at most so many settlings an op, */
#define CB_LEAST_EFFORT 2.4e5    /* in a small search so many at least, */
#define CB_BARE_EFFORT 6e4       /* or so many of a graph without a backward: all rungs are deep, */
#define CB_TINY_EFFORT 6.0       /* but of few ops only so many an op and op, */
#define CB_TINY_LEAST 1e3        /* and these */
#define CB_STARTS 2          /* of ruin and recreate in a tiny search, each with its own chance; */
#define CB_SMALL_TURNS 5     /* in a small one each goes on from the best, every second heated: */
#define CB_START_SHARE 0.6   /* of that effort each */
#define CB_NEAR_SHARE 0.5    /* of that effort, where prices lead near the best; */
#define CB_FAR 1.04          /* of the guess: from there on all of it */
#define CB_PATIENCE 0.5      /* of an effort, without progress, ends it; */
#define CB_DEEP_PATIENCE 0.6 /* more where the target is deep */
#define CB_WALK_SHARE 0.13   /* of that effort, for a walk to a deep target, */
#define CB_DESCENT_SHARE 0.1 /* and, where the walk ends above it, to get under */
#define CB_ROUNDS_OPS 40     /* of which a last attempt is one round, of fewer more, */
#define CB_ROUNDS_MOST 4     /* up to so many, every second one from saving everything */

/* ---- the ladder: ladder.c -------------------------------------------------------------------- */

#define CB_RUNGS_MOST 120 /* targets at most */
/* shares of the memory at which prices are found first: 0.9, 0.8 ... 0.1 */
#define CB_LADDER_STARTS 9
#define CB_START_STEPS 60 /* of the guess at the first of them, then fewer, as prices carry over; */
#define CB_NEXT_STEPS 30  /* at the others */
#define CB_BOUND_STEPS 15 /* of the bound at each of them */
#define CB_START_EFFORT 250000.0 /* steps times base ops: large graphs take fewer */
#define CB_ENOUGH 1.02           /* of the bound: no need to search a larger class of plans */
#define CB_SLACK 0.97            /* of the guess, which a plan that counts is held to */
#define CB_GROWTH 1.03           /* of the least time, a rung, where the guess knows of no plan */
#define CB_ATTEMPTS 2            /* at a deep rung, sharing the effort */
/* of the usual effort, for the first deep rung: it starts from no plan; */
#define CB_FIRST_SHARE 0.7
#define CB_LEAST_SHARE 0.25 /* and for those far behind it */
#define CB_DIG_SHARE 0.3    /* of it, below the last rung */
/* of save-everything's bytes: closer to the floor is not worth a search */
#define CB_DUG_SHARE 0.004

/* ---- following another ladder: ladder.c ------------------------------------------------------ */

#define CB_FOLLOW_OPS 300          /* of fewer the other ladder is like the first */
#define CB_FOLLOW_PACE 0.3         /* of the usual effort; */
#define CB_FOLLOW_SHARE 0.05       /* of that, at each target of the base, */
#define CB_FOLLOW_SMALL_SHARE 0.02 /* and in a small search */

/* ---- windows: local/windows.c, ladder.c ------------------------------------------------------ */

#define CB_PAGED_REACH 0.6 /* of save-everything's bytes: where prices reach less, windows help */
#define CB_WINDOW_POSITIONS {0, 2, 6} /* of the forward at which values are kept throughout */
#define CB_WINDOW_RATE 0.3  /* of the step's time a byte: what is cheaper to make is not kept */
#define CB_WINDOW_DEAR 4    /* of it: what is dearer is worth keeping at a position */
#define CB_WINDOW_MISSES 12 /* values without room, until a window ends */
#define CB_WINDOW_ROUNDS 4  /* of filling a window, each with the room of what was let go */
#define CB_WINDOW_EFFORT 1000000  /* units looked at for one plan */
#define CB_BRIEF_SHARE 0.05       /* of the usual effort, at each target of the base, */
#define CB_BRIEF_SMALL_SHARE 0.02 /* and in a small search */
#define CB_PAGED_SHARE 1.0        /* of it, at a rung that windows reach, */
#define CB_PAGED_SMALL_SHARE 0.4  /* and in a small search, which has more turns */

/* ---- the front: front.c ---------------------------------------------------------------------- */

#define CB_FRONT_POINTS 120 /* of a walk: where values are more, targets are farther apart */
#define CB_FRONT_ROUNDS 4   /* each from what those before it have found, every second deep, */
#define CB_FRONT_WALKS 2    /* of so many walks */
#define CB_POINT_SHARE 0.2  /* of the usual effort, at a point; */
#define CB_AT_EASE_OPS 36.0 /* of more ops than these less, as effort grows with their square */

/* ---- the sweep: sweep.c ---------------------------------------------------------------------- */

#define CB_SWEEP_WIDTH 512         /* states of a stage that grow, the fastest */
#define CB_SWEEP_EFFORT (1u << 18) /* ways to make room, of all stages and sweeps */

/* ---- an answer: fill.c, pick.c, search.c ----------------------------------------------------- */

#define CB_SAVED_TARGETS 19 /* 0.95, 0.90 ... 0.05 of save-everything's saved bytes, */
#define CB_SAVED_STEPS 24   /* of prices for each */
#define CB_REFINED 4        /* searches at a budget, if offsets take more than it leaves, */
#define CB_LOW_ROUNDS 6     /* of digging for position 0 at most, each at two targets, */
#define CB_LOW_GAP 0.02     /* until what is left is this share of the memory; */
#define CB_LOW_DESCENT 0.4  /* of the usual effort to get under a target, */
#define CB_LOW_SHARE 0.1    /* and once under it; */
#define CB_LOW_PROBES 4     /* rungs tried where the smallest plans of the base are too slow */
#define CB_TIGHT_OPS 1600   /* and at a rung's target, of so many ops at most: it takes as long */
#define CB_AHEAD 2 /* rungs of a budget that are searched at once, where threads are idle, */
#define CB_ALONE_OPS 200000 /* of so many ops at most: a worker takes as much memory as its graph */

/* ---- small problems: exact/ ------------------------------------------------------------------ */

#define CB_INLINE_SHARE 0.5        /* of what a proposal adds that may be taken in: it is to be */
#define CB_UNINLINE_SHARE 0.1      /* of what stands in its chain: it is to be, or no longer */
#define CB_EXACT_BITS 18           /* values about which there is a choice, at most */
#define CB_EXACT_STATES (1u << 20) /* positions times sets */
#define CB_EXACT_RERUNS 64         /* what may run again, sets of outputs counted one by one */
#define CB_EXACT_SETS 16           /* sets of outputs of one op, as each may be left out */
#define CB_EXACT_PROBES 64         /* of the bisection for the smallest peak */

/* ---- local search: local/moves.c ------------------------------------------------------------- */

#define CB_SETTLINGS_A_POLL 256
#define CB_LONGEST_PROPOSAL 80  /* ops that one proposal adds */
#define CB_TOURNAMENT 4         /* values of which the best is proposed, */
#define CB_TOURNAMENT_DRAWS 200 /* drawn until there are so many */
/* of proposals that ignore size: bytes a picosecond never picks the small */
#define CB_BLIND_SHARE 0.1
#define CB_EARLY_SHARE 0.3   /* of the proposals of a small search that make a value early, */
#define CB_HEATED_EARLY 0.5  /* and where it is heated */
#define CB_OPENING_SHARE 0.3 /* of proposals where the backward begins and is over the target */

/* ---- trim: local/trim.c ---------------------------------------------------------------------- */

#define CB_TRIM_PASSES 3   /* over all reruns, while they help */
#define CB_TRIM_EFFORT 3e8 /* trials times ops, at most */

/* ---- walk: local/walk.c ---------------------------------------------------------------------- */

#define CB_WALK_PEAK_WEIGHT 2.0     /* of what the peak has over the target, against time */
#define CB_WALK_PENALTY 10.0        /* on all that is over the target, at first; */
#define CB_WALK_PENALTY_MOST 1000.0 /* it rises while the plan is over the target, */
#define CB_WALK_PENALTY_LEAST 5.0   /* and falls while it is not */
#define CB_WALK_REVIEW 300          /* moves after which it is reviewed */
#define CB_WALK_WARM 3e-4           /* temperature at first, as a share of the step's time, */
#define CB_WALK_COLD 3e-6           /* and at last */
#define CB_WALK_DEEP_SHARE 0.75     /* of proposals that take all ancestors that are gone */
#define CB_WALK_HOT_SHARE 0.97      /* of the target: what is above counts as hot */

/* ---- ruin and recreate: local/ruin.c --------------------------------------------------------- */

#define CB_RUIN_PROPOSALS 5   /* tried for one step of recreating */
#define CB_RUIN_WEIGHED 2     /* settlings that weighing one counts as */
#define CB_RUIN_STEPS 60      /* of recreating */
#define CB_RUIN_WARM 2e-4     /* slower by this share of the step is accepted at first */
#define CB_RUIN_GIVE_UP 0.004 /* slower by this share while recreating ends it */
#define CB_HEATED_WARM 5e-3   /* the two where a small search is heated */
#define CB_HEATED_GIVE_UP 0.03
/* of the peak over the target, beside the mean over all moments */
#define CB_RUIN_EXCESS_WEIGHT 0.3
#define CB_RUIN_LEVEL 1.0005   /* peaks this far above count as level on the way down */
#define CB_RUIN_TRIMMED 20     /* reruns drawn for trimming beside the chains touched */
#define CB_RUIN_LONGEST 40     /* ops of a chain that is trimmed */
#define CB_RUIN_DEEP_SHARE 0.6 /* of proposals that take all ancestors that are gone */

/* ---- the ledger: local/ledger_*.c ------------------------------------------------------------ */

#define CB_LEDGER_FEW_USES 8   /* of a storage are gone through one by one */
#define CB_LEDGER_TWIN_TRIES 8 /* outputs of an op that each other one is compared with, at most */

/* ---- threads: workers.c ---------------------------------------------------------------------- */

#define CB_HELPERS_MOST 15       /* threads beside the caller's */
#define CB_LOOK_AGAIN_NS 2000000 /* how long the caller, out of jobs, waits before it polls again */

#endif
