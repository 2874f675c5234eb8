/* exact_parts.h: the states of the exact solver. Included by the files of this folder alone, each
 * above those before it: exact_tables (the problem as bits and events), exact_path (the shortest
 * path), exact_schedule (its events as steps), exact.
 *
 * A shortest path. A state is a position in the base order and the set of those values in memory
 * about which there is a choice, a bit each; edges are single events:
 *
 *     drop a value             takes nothing
 *     run a forward op again   its time, if its inputs are there and there is room
 *     run the base op          its time, likewise; on to the next position
 *     leave the base op out    takes nothing, if it may run later; on to the next position
 *
 * The first position of the backward counts twice: as long as nothing of the backward has run, and
 * afterwards. These are the stages. In one more stage, after the last base op, ops of the forward
 * whose outputs are only results may run.
 *
 * An op with an inside has an event for each set of its outputs that may be made again, also as
 * base op: it leaves out what may be made later. So has any op for each set of values that it may
 * take in: it reads what they are made from, and does not ask for them.
 *
 * An op that may take over the memory of an input (model/over.h) has an event for each such input
 * with a bit: the value is gone afterwards, and its bytes are room for the output. An input without
 * a bit is taken over whenever the op is the last to read it.
 *
 * All other values live from their op to their last reader whatever the plan. Dijkstra's algorithm
 * goes through the sets of one position after the other; labels are compared by time, then by peak,
 * so that of the fastest schedules the smallest wins. Views take part in nothing: they are put back
 * where somebody reads through them.
 *
 * What is held belongs to its op's first run: from then on it is there, until the first step of the
 * backward has run or to the end. A rerun makes a copy of it beside, which counts in its step and
 * may stay to be read: while a copy is the newest, the first is not read. So a bit says that the
 * first is there, one that a copy is, and one that the newest, a copy, has gone.
 *
 * So the first step of the backward can be worth choosing: a rerun of something small,
 * also of what is there already, or a view put back for nothing lets the rest go. Such a view is
 * tried only where something else has no room, since it looks odd. Outputs of an inside are not
 * made in vain: one that the backward begins with is owed a read, which is a bit as well, and stays
 * until then. Elsewhere what nobody reads is no gain and is left out in the end. */
#ifndef CB_PLAN_EXACT_PARTS_H
#define CB_PLAN_EXACT_PARTS_H

#include "../../schedule/goal.h"
#include "../tuning.h"

/* Last events of a state. FIRST, SHOW and CROSS are the base op, a view and the reruns that are the
 * backward's first step: what it starts with may go after that. */
enum {
    NOTHING = 0,
    RUN_BASE,
    SKIP_BASE,
    FIRST,
    SHOW,
    DROP,
    RERUN = DROP + CB_EXACT_BITS,
    CROSS = RERUN + CB_EXACT_RERUNS,
    MORE_BASE = CROSS + CB_EXACT_RERUNS, /* the base op, making another set than its first */
    MORE_FIRST = MORE_BASE + CB_EXACT_SETS,
    N_EVENT = MORE_FIRST + CB_EXACT_SETS
};
_Static_assert(CB_EXACT_BITS <= CB_EXACT_RERUNS && N_EVENT <= UINT8_MAX, "an event is a byte");

typedef struct label {
    int64_t time_ps;
    uint64_t peak;
    uint32_t set;
} label;

typedef struct event { /* an op that may run: what it takes, as sets of bits and as bytes */
    uint32_t op;
    uint32_t made;         /* outputs, of an op with an inside */
    uint64_t taken;        /* what it takes in */
    uint32_t pays;         /* bits of reads that are owed, which this is */
    uint32_t reads, makes; /* bits */
    uint32_t holds;        /* bits of what is held: a rerun makes a copy of it */
    uint32_t over;         /* bit of the value whose memory it takes over, 0: none */
    uint64_t room;         /* bytes of what it makes, and scratch */
    int64_t time_ps;
} event;

typedef struct solver {
    const cb_facts *f;
    cb_arena *arena;
    bool *may_rerun;  /* [n_unit] */
    uint32_t *bit_of; /* [n_storage] CB_NONE: no choice about it */
    uint32_t n_bit;
    uint64_t bytes_of[CB_EXACT_BITS];
    uint32_t held;    /* bits that the backward starts with, its first step included */
    uint32_t stays;   /* bits that are there to the end once they are made */
    uint32_t doubled; /* of either, those with a bit for a copy behind them, and one for its end */
    uint32_t ends;    /* bits that are there at the end */
    uint32_t gone;    /* bits that are not */
    uint32_t owes[CB_EXACT_BITS]; /* by bit: the bit that says that a read of it is owed, 0: none */
    uint32_t owed;                /* all of these */
    uint32_t leading;             /* bits of the views that the backward begins with */
    uint32_t viewed;              /* the same, and of the forward's views */
    uint32_t n_leading;
    uint32_t opener;      /* a view of memory without a bit that is there when the backward begins,
                             which may begin it; CB_NONE: there is none */
    uint32_t *base_begin; /* [n_base + 1] into base */
    event *base;
    event rerun[CB_EXACT_RERUNS];
    uint32_t n_rerun;
    uint64_t *fixed;     /* [n_stage + 1] bytes of values without a choice that cross it */
    uint64_t *set_bytes; /* [1 << n_bit] */
    uint32_t n_stage;
    uint8_t *how;              /* [n_stage + 1][1 << n_bit] last event */
    uint32_t *from;            /* likewise, the set before it */
    label *now, *next, *later; /* [1 << n_bit] of a stage and the two after it */
    label *heap;
    size_t n_heap, room_heap;
    uint64_t most;    /* the budget */
    uint64_t refused; /* the least that an event wanted beyond it */
    int64_t most_ps;  /* slower labels lead nowhere */
} solver;

/* The base position of a stage. */
static inline uint32_t cb_exact_position(const solver *z, uint32_t stage) {
    uint32_t backward = z->f->base_backward;
    if (stage < backward) return stage;
    return stage + z->n_leading - (stage > backward);
}

/* Bits of what a view can show: the newest is there. */
static inline uint32_t cb_exact_shows(const solver *z, uint32_t set) {
    return set & ~(set >> 2 & z->doubled);
}

/* May the base op fall away, its runs being made later? */
static inline bool cb_exact_may_skip(const solver *z, uint32_t k) {
    uint32_t op = z->f->base[k];
    if (cb_has_units(z->f, op)) return z->base[z->base_begin[k]].made == 0;
    return z->may_rerun[op] && !z->f->stays[op];
}

/* How many bits the problem takes; more than CB_EXACT_BITS: it does not suit. */
CB_MUST_CHECK cb_status cb_exact_count_bits(const cb_facts *f, uint32_t *n, cb_error *err);
/* For a problem that suits; all of `z` lies in `arena`. */
CB_MUST_CHECK cb_status cb_exact_set_up(solver *z, const cb_facts *f, cb_arena *arena,
                                        cb_error *err);
/* The best label behind the last stage within `most` bytes; its time is negative when there is
 * none. */
CB_MUST_CHECK cb_status cb_exact_solve(solver *z, const cb_goal *goal, uint64_t most, label *best,
                                       cb_error *err);
/* The schedule that led to `set` behind the last stage. False: out of memory. */
CB_MUST_CHECK bool cb_exact_write(solver *z, uint32_t set, cb_arena *arena, cb_schedule *out);

#endif
