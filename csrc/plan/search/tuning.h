/* tuning.h: the constants of the searches. Internal.
 *
 * Work is counted in steps, moves and settlings (one settling brings the ledger up to date after a
 * change), never in seconds, so that results repeat; an effort is a number of settlings, and a
 * share is a factor. Changing a constant changes plans: benchmarks/planner/bench_limits.py and
 * tests/plan/test_limits.py show whether plans improve, on the traced graphs with which all
 * constants were tuned.
 *
 * The probabilities of the moves of one search are defined next to those moves. */
#ifndef CB_PLAN_TUNING_H
#define CB_PLAN_TUNING_H

/* ---- how large a search is ------------------------------------------------------------------- */

#define CB_SMALL_OPS 1000        /* problems with fewer ops are small: effort is cheap */
#define CB_TINY_OPS 100          /* problems with fewer ops are tiny: chance decides a lot */
#define CB_FINE_OPS 160          /* below this, several plans may lie between two targets */
#define CB_FEW_OPS 40            /* below this, the front of plans is walked, with spare ops */
#define CB_UNHURRIED_OPS 12000.0 /* largest graph that takes all steps of a target */

/* ---- candidates: candidates/ ----------------------------------------------------------------- */

#define CB_CANDIDATES_MOST 640 /* kept at once; beyond, those closest in size are dropped */
#define CB_TRIALS_A_POLL 16    /* trials between polls, of 10 to 1000 microseconds each */

/* ---- prices: prices.c ------------------------------------------------------------------------ */

/* cost of the most expensive plan in units of the cut, 2^36, which keeps sums far below 2^62 */
#define CB_CUT_UNITS 6.8719476736e10
#define CB_FIRST_ETA 2.0      /* initial rate at which prices follow the excess over the target */
#define CB_ETA_DECAY 0.03     /* decrease of that rate with each step */
#define CB_AIM 0.98           /* share of the target: prices oscillate, and most plans should fit */
#define CB_AIM_DIRECT 0.97    /* the same if values are kept until the backward reads them */
#define CB_POLYAK_PATIENCE 12 /* steps without progress before steps become shorter */
#define CB_DEFLECTION \
    1.5 /* part of the last direction that is kept if the new one is opposed
                                 to it */

/* share of the step's time: a bound this close to the time of a plan is not improved */
#define CB_PROVED 2e-4

/* ---- crossover and removal: improve.c -------------------------------------------------------- */

#define CB_CROSS_SMALL 6       /* candidates under the target that crossover tries */
#define CB_CROSS_FAST 8        /* candidates over the target that crossover tries */
#define CB_CROSS_STEPS 9       /* steps of bisection: 1 part in 512 of the forward */
#define CB_CROSS_SIZE_WEIGHT 2 /* weight of the excess over the target against time, as shares */
#define CB_REMOVAL_TRIALS 64   /* maximum number of blocks of reruns that are removed on trial */
#define CB_REMOVAL_BLOCKS 16   /* initial number of blocks; later halves of those */

/* ---- the floor: floor.c ---------------------------------------------------------------------- */

#define CB_FLOOR_LARGEST 25 /* moments examined because they hold the most bytes */
#define CB_FLOOR_SPREAD 60  /* moments examined that are spread evenly */
#define CB_FLOOR_EFFORT 1e6 /* limit of moments times ops */

/* ---- the search at one target: rung.c -------------------------------------------------------- */

#define CB_AIM_STEPS 60          /* price steps that aim at a target */
#define CB_POLYAK_STEPS 100      /* steps on the guess */
#define CB_MORE_POLYAK_STEPS 200 /* steps on the guess if the best plan is far from it */
#define CB_PROOF_STEPS 120       /* steps on the bound, once the answer is known */
#define CB_CROSS_ROUNDS 2        /* maximum number of rounds of crossover */
#define CB_TRIMMED_PLANS 4       /* number of fastest plans that fit and are trimmed */
#define CB_CLOSE 1.02            /* times the guess: plans this close are not improved */
#define CB_NEAR 1.01             /* times the guess: plans this close end the search */
#define CB_EFFORT 2.5e8          /* settlings of ruin and recreate times ops */
#define CB_MOST_EFFORT 100.0     /* maximum number of settlings per op */
#define CB_LEAST_EFFORT 2.4e5    /* minimum number of settlings in a small search */
#define CB_BARE_EFFORT 6e4       /* the same without a backward, where all rungs are deep */
#define CB_TINY_EFFORT 6.0       /* with few ops: settlings per squared number of ops */
#define CB_TINY_LEAST 1e3        /* with few ops: additional settlings */
#define CB_STARTS 2              /* starts of ruin and recreate in a tiny search */
#define CB_SMALL_TURNS 5         /* rounds in a small search, every second one heated */
#define CB_START_SHARE 0.6       /* share of the effort for each start */
#define CB_NEAR_SHARE 0.5        /* share of the effort if prices lead near the best */
#define CB_FAR 1.04              /* times the guess: beyond this, the full effort is used */
#define CB_PATIENCE 0.5          /* share of the effort without progress that ends it */
#define CB_DEEP_PATIENCE 0.6     /* the same if the target is deep */
#define CB_WALK_SHARE 0.13       /* share of the effort for a walk to a deep target */
#define CB_DESCENT_SHARE 0.1     /* share for getting under the target if the walk ends above */
#define CB_ROUNDS_OPS 40         /* ops per round of a last attempt; fewer ops get more rounds */
#define CB_ROUNDS_MOST \
    4 /* maximum number of rounds; every second one starts from saving
                                    everything */

/* ---- the ladder: ladder.c, climb.c ----------------------------------------------------------- */

#define CB_RUNGS_MOST 120 /* maximum number of targets */
/* number of shares of the memory at which prices are found first: 0.9, 0.8 ... 0.1 */
#define CB_LADDER_STARTS 9
#define CB_START_STEPS 60        /* steps on the guess at the first share */
#define CB_NEXT_STEPS 30         /* steps at the other shares, which reuse prices */
#define CB_BOUND_STEPS 15        /* steps on the bound at each share */
#define CB_START_EFFORT 250000.0 /* steps times base ops: large graphs take fewer steps */
#define CB_LEAST_STEPS 6         /* minimum number of steps on the guess at a share */
#define CB_LARGE_STEPS 4         /* the same for graphs of more than CB_ALONE_OPS ops */
#define CB_ENOUGH 1.02           /* times the bound: closer plans need no larger class */
#define CB_FINE_ENOUGH 1.002     /* the same in a fine search */
#define CB_SLACK 0.97            /* times the guess: minimum time of a plan that counts */
#define CB_GROWTH 1.03           /* growth of the minimum time per rung without a guess */
#define CB_ATTEMPTS 2            /* attempts at a deep rung, which share the effort */
/* share of the usual effort for the first deep rung, which has no plan to start from */
#define CB_FIRST_SHARE 0.7
#define CB_LEAST_SHARE 0.25 /* share for rungs far below the first deep one */
#define CB_DIG_SHARE 0.3    /* share for searches below the last rung */
/* share of save-everything's bytes: a gap to the floor below this is not searched */
#define CB_DUG_SHARE 0.004
#define CB_STAIRS_MOST 32   /* plans between two targets of a fine search */
#define CB_STAIRS_SHARE 0.2 /* share of the usual effort for each of them */

/* ---- following another ladder: ladder.c ------------------------------------------------------ */

#define CB_FOLLOW_OPS 300            /* with fewer ops the other ladder works like the first */
#define CB_FOLLOW_PACE 0.3           /* share of the usual effort */
#define CB_FOLLOW_SHARE 0.05         /* share of that at each target of the base */
#define CB_FOLLOW_SMALL_SHARE 0.02   /* the same in a small search */
#define CB_FOLLOW_WALK_PATIENCE 0.75 /* share of a walk that ends it if the peak does not fall */
#define CB_FOLLOW_PATIENCE 0.3       /* CB_DEEP_PATIENCE after such a walk */
#define CB_FURTHER_DEPTH 0.015       /* share of the memory searched below the smallest plan */
#define CB_FURTHER_DESCENT 0.3       /* CB_DESCENT_SHARE when that search is repeated */
#define CB_FURTHER_ROUNDS 3          /* maximum rounds of that search, of two targets each */
#define CB_FURTHER_GAP 0.0015        /* share of the memory at which these rounds end */
#define CB_FURTHER_SHARE 0.06        /* share of the usual effort once under a target */

/* ---- windows: local/windows.c, ladder.c ------------------------------------------------------ */

#define CB_PAGED_REACH 0.6 /* share of save-everything: windows help if prices reach less */
#define CB_WINDOW_POSITIONS {0, 2, 6} /* forward positions whose values are kept */
#define CB_WINDOW_RATE 0.3 /* share of the step's time per byte: cheaper values are not kept */
#define CB_WINDOW_CROSSING_RATE 4 /* the same for values that are kept across a position */
#define CB_WINDOW_MISSES 12       /* values without room that end a window */
#define CB_WINDOW_ROUNDS 4        /* rounds of filling a window with the room of dropped values */
#define CB_WINDOW_EFFORT 1000000  /* limit of units examined for one plan */
#define CB_BRIEF_SHARE 0.05       /* share of the usual effort at each target of the base */
#define CB_BRIEF_SMALL_SHARE 0.02 /* the same in a small search */
#define CB_PAGED_SHARE 1.0        /* share of the effort at a rung that windows reach */
/* share of save-everything: if prices reach less in a fine search, rungs are searched in order */
#define CB_ORDERED_REACH 0.8
#define CB_ORDERED_SHARE 0.15    /* share of the effort there, in addition to that with prices */
#define CB_PAGED_SMALL_SHARE 0.4 /* the same in a small search, which has more rounds */

/* ---- the front: front.c ---------------------------------------------------------------------- */

#define CB_FRONT_POINTS 120 /* points of a walk; with more values, targets are farther apart */
#define CB_FRONT_ROUNDS 4   /* rounds, each from earlier results, every second one deep */
#define CB_FRONT_WALKS 2    /* walks per round */
#define CB_POINT_SHARE 0.2  /* share of the usual effort at a point */
#define CB_AT_EASE_OPS 36.0 /* with more ops the share shrinks: the effort grows with ops^2 */

/* ---- the sweep: sweep.c ---------------------------------------------------------------------- */

#define CB_SWEEP_WIDTH 512         /* number of fastest states of a stage that are extended */
#define CB_SWEEP_EFFORT (1u << 18) /* limit of ways to make room, over all stages and sweeps */

/* ---- the beam: local/beam.c ------------------------------------------------------------------ */

#define CB_BEAM_EFFORT 100000 /* beginnings of plans examined at one target */
#define CB_BEAM_SMALL 500     /* values smaller than this part of the target are not dropped */

/* ---- an answer: fill.c, pick.c, search.c ----------------------------------------------------- */

#define CB_SAVED_TARGETS 19 /* 0.95, 0.90 ... 0.05 of save-everything's saved bytes */
#define CB_SAVED_STEPS 24   /* price steps for each of them */
#define CB_REFINED 4        /* searches for one budget if offsets exceed it */
#define CB_LOW_ROUNDS 6     /* maximum rounds of the search for position 0, of two targets each */
#define CB_LOW_GAP 0.02     /* share of the memory at which these rounds end */
#define CB_LOW_DESCENT 0.4  /* share of the usual effort to get under a target */
#define CB_LOW_SHARE 0.1    /* share of the effort once under the target */
#define CB_LOW_ENOUGH 0.5   /* times the extra time allowed: a faster plan is not improved */
#define CB_LOW_SLACK 1.1    /* times the extra time allowed: a slower descent is given up */
#define CB_LOW_PROBES 4     /* rungs tried if the smallest plans of the base are too slow */
#define CB_TIGHT_OPS 1600   /* maximum ops for a second search of a rung with tight offsets */
#define CB_AHEAD 2          /* rungs of one budget searched at once if threads are idle */
#define CB_ALONE_OPS \
    200000 /* maximum ops for this: each worker takes as much memory as the graph
                               */

/* ---- small problems: exact/ ------------------------------------------------------------------ */

#define CB_INLINE_SHARE 0.5        /* probability that a proposal inlines a value if possible */
#define CB_UNINLINE_SHARE 0.1      /* probability that a proposal toggles an inlining */
#define CB_EXACT_BITS 18           /* maximum number of values with a choice */
#define CB_EXACT_STATES (1u << 20) /* limit of positions times sets */
#define CB_EXACT_RERUNS 64         /* limit of recomputable sets of outputs */
#define CB_EXACT_SETS 16           /* limit of output sets of one op, as each may be skipped */
#define CB_EXACT_PROBES 64         /* probes of the bisection for the smallest peak */
#define CB_EXACT_LOW_PROBES 8      /* of these, at a quarter of the range instead of its half */

/* ---- local search: local/moves.c ------------------------------------------------------------- */

#define CB_SETTLINGS_A_POLL 256
#define CB_LONGEST_PROPOSAL 80  /* maximum number of ops that one proposal adds */
#define CB_TOURNAMENT 4         /* values in a tournament, whose best is proposed */
#define CB_TOURNAMENT_DRAWS 200 /* maximum number of draws to find them */
/* share of proposals that ignore size, because bytes per picosecond never picks small ones */
#define CB_BLIND_SHARE 0.1
#define CB_EARLY_SHARE 0.3   /* share of early proposals in a small search */
#define CB_HEATED_EARLY 0.5  /* the same when heated */
#define CB_JOIN_SHARE 0.3    /* share of proposals that may delay chains of ops */
#define CB_OPENING_SHARE 0.3 /* share of proposals at the start of an oversized backward */

/* ---- trim: local/trim.c ---------------------------------------------------------------------- */

#define CB_TRIM_PASSES 3   /* maximum passes over all reruns */
#define CB_TRIM_EFFORT 3e8 /* limit of trials times ops */

/* ---- walk: local/walk.c ---------------------------------------------------------------------- */

#define CB_WALK_PEAK_WEIGHT 2.0 /* weight of the peak's excess over the target, against time */
#define CB_WALK_PENALTY 10.0    /* initial penalty on the excess of all moments */
#define CB_WALK_PENALTY_MOST \
    1000.0                        /* maximum penalty; it rises while the plan exceeds the
                                       target */
#define CB_WALK_PENALTY_LEAST 5.0 /* minimum penalty; it falls while the plan fits */
#define CB_WALK_REVIEW 300        /* moves between changes of the penalty */
#define CB_WALK_WARM 3e-4         /* initial temperature, as a share of the step's time */
#define CB_WALK_COLD 3e-6         /* final temperature */
#define CB_WALK_DEEP_SHARE 0.75   /* share of proposals that recompute all missing ancestors */
#define CB_WALK_HOT_SHARE 0.97    /* share of the target above which moments are hot */

/* ---- ruin and recreate: local/ruin.c --------------------------------------------------------- */

#define CB_RUIN_PROPOSALS 5   /* proposals tried for one step of recreating */
#define CB_RUIN_WEIGHED 2     /* settlings that weighing one proposal counts as */
#define CB_RUIN_STEPS 60      /* maximum steps of recreating */
#define CB_RUIN_WARM 2e-4     /* initially accepted slowdown, as a share of the step's time */
#define CB_RUIN_GIVE_UP 0.004 /* slowdown that ends recreating */
#define CB_HEATED_WARM 5e-3   /* these two limits in a heated round of a small search */
#define CB_HEATED_GIVE_UP 0.03
/* weight of the peak's excess over the target, in addition to the mean over all moments */
#define CB_RUIN_EXCESS_WEIGHT 0.3
#define CB_RUIN_LEVEL 1.0005   /* peaks within this factor count as equal on the way down */
#define CB_RUIN_TRIMMED 20     /* random reruns that are trimmed besides touched chains */
#define CB_RUIN_LONGEST 40     /* maximum ops of a chain that is trimmed */
#define CB_RUIN_DEEP_SHARE 0.6 /* share of proposals that recompute all missing ancestors */

/* ---- the ledger: local/ledger_*.c ------------------------------------------------------------ */

#define CB_LEDGER_FEW_USES 8   /* uses of a storage that are scanned linearly */
#define CB_LEDGER_TWIN_TRIES 8 /* maximum outputs of an op that each is compared with */

/* ---- threads: workers.c ---------------------------------------------------------------------- */

#define CB_HELPERS_MOST 15       /* maximum number of threads besides the calling one */
#define CB_LOOK_AGAIN_NS 2000000 /* wait of the idle calling thread between polls */

#endif
