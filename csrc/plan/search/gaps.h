/* gaps.h: the bytes that every plan of a base order keeps in memory, and the intervals over which a
 * plan may either keep a value or run its op again. Internal.
 *
 * The class of plans: base ops run in the given order. A forward op that may run again
 * (cb_may_rerun) may do so before any base op or after the last one, any number of times. Its first
 * run may also be that late, if nothing reads the value earlier. The same holds for ops of the
 * backward that may run again. All others run once, in their place. This is the class of the exact
 * solver and of the lower bound (prices.h); the search covers most of it.
 *
 * Moments. Moment k is the run of the base op at position k, or, if that op may be run late, its
 * first run: only ops whose first run must come before the next such run are used ("pinned"), so
 * that these runs keep their order in every plan. The moment of any other position is that of the
 * last pinned op before it: values that a plan keeps over the position are in memory at that
 * moment. Ops of the backward that may be late are pinned likewise, from the end of the step on.
 *
 * Gaps. Between two reads of a value a plan keeps it, or runs its op at least once. The gap between
 * the last forward and the first backward read is the main gap. The cut decides whether a value is
 * kept over it, because a rerun needs its inputs. All other gaps are independent of each other. The
 * main gap of a value starts only after the last forward reads of the inputs of a rerun (`start`),
 * if the backward does not read those inputs itself: before that they are in memory anyway, and a
 * rerun there costs only its own time. The rest, between the value's own last forward read and
 * `start`, is a gap like the others. The main gap ends at the first read by a pinned op of the
 * backward. If there is none, any read will do: it ends (`end`) after the last moment that must
 * come before that read. */
#ifndef CB_PLAN_GAPS_H
#define CB_PLAN_GAPS_H

#include "../model/facts.h"

#include "../../base/vec.h"

typedef struct cb_gap {
    uint32_t storage;
    uint32_t from, to; /* moments [from, to) */
    double bytes, cost_ps;
} cb_gap;

typedef struct cb_gaps {
    CB_VEC(cb_gap) list; /* all except the main gaps and the time before them */
    double *least;       /* [n_base] bytes in memory at each moment, in every plan */
    uint32_t *early;     /* [n_storage] moment after the last forward read */
    uint32_t *start;     /* [n_storage] first moment of the main gap; no less than `early` */
    uint32_t *end;       /* [n_storage] moment at which the main gap ends; CB_NONE: none */
    double *again_ps;    /* [n_storage] a rerun in [early, start) costs this */
    uint32_t *due;       /* [n_unit] the unit has run, or has been inlined, before this moment;
                            CB_NONE: no needed op of the forward reads its output */
    uint32_t *sure;      /* [n_unit] the same for runs that write to memory */
} cb_gaps;

/* Returns the minimum cost of a rerun, without members that other outputs share. */
int64_t cb_again_alone_ps(const cb_facts *f, uint32_t unit);

/* `earliest` [n_storage]: the first position of the backward that may need the value, directly or
 * for a rerun; `direct`: the first that reads it. CB_NONE: none. All memory is from `arena`. */
CB_MUST_CHECK cb_status cb_gaps_find(const cb_facts *f, const uint32_t *earliest,
                                     const uint32_t *direct, cb_arena *arena, cb_gaps *out,
                                     cb_error *err);

#endif
