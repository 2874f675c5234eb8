/* exact_parts.h: the states of the exact solver. Only the files of this folder include it; each of
 * them builds on those before it: exact_tables (the problem as bits and events), exact_path (the
 * shortest path), exact_schedule (its events as steps), exact.
 *
 * The solver finds a shortest path. A state is a position in the base order, and the set of values
 * in memory about which there is a choice, with one bit each. Edges are single events:
 *
 *     drop a value takes nothing run a forward op again its time, if its inputs are in memory and
 *     its outputs fit run the base op its time, likewise; on to the next position leave the base op
 *     out takes nothing, if it may run later; on to the next position
 *
 * The first position of the backward counts twice: before anything of the backward has run, and
 * afterwards. These positions are the stages. One more stage follows the last base op, in which ops
 * of the forward whose outputs are only results may run.
 *
 * An op with an inside has an event for each set of its outputs that may be made again, also as a
 * base op, which leaves out the outputs that may be made later. Any op has an event for each set of
 * values that it may inline: it reads the inputs of these values and does not need the values.
 *
 * An op that may take over the memory of an input (model/over.h) has an event for each such input
 * with a bit: the value is gone afterwards, and its bytes are room for the output. An input without
 * a bit is taken over whenever the op is the last to read it.
 *
 * All other values live from their op to their last reader in every plan. Dijkstra's algorithm
 * visits the sets position by position; labels are compared by time, then by peak, so the smallest
 * of the fastest schedules wins. Views are not represented: they are restored where something reads
 * through them.
 *
 * Held values belong to their op's first run: they are alive from then on, until the first step of
 * the backward has run or to the end. A rerun makes a separate copy, which counts in its step and
 * may stay to be read: while a copy is the newest, the first instance is not read. So such a value
 * has three bits: the first instance is alive, a copy is alive, and the newest instance, a copy,
 * has been freed.
 *
 * So the choice of the first step of the backward can matter: a rerun of a small op, even of an
 * existing value, or an unneeded view frees the rest. Such a view is tried only if nothing else has
 * room, since it looks odd. Outputs of an inside must be read: one with which the backward begins
 * has a bit for its pending read, and stays until then. Elsewhere unread outputs bring no gain and
 * are dropped in the end. */
#ifndef CB_PLAN_EXACT_PARTS_H
#define CB_PLAN_EXACT_PARTS_H

#include "../../schedule/goal.h"
#include "../tuning.h"

/* Last events of a state. FIRST, SHOW and CROSS are the base op, a view and the reruns that are the
 * backward's first step: memory held until then may be freed after it. */
enum {
    NOTHING = 0,
    RUN_BASE,
    SKIP_BASE,
    FIRST,
    SHOW,
    DROP,
    RERUN = DROP + CB_EXACT_BITS,
    CROSS = RERUN + CB_EXACT_RERUNS,
    MORE_BASE = CROSS + CB_EXACT_RERUNS, /* the base op, making a different set of outputs */
    MORE_FIRST = MORE_BASE + CB_EXACT_SETS,
    N_EVENT = MORE_FIRST + CB_EXACT_SETS
};
_Static_assert(CB_EXACT_BITS <= CB_EXACT_RERUNS && N_EVENT <= UINT8_MAX, "an event is a byte");

typedef struct label {
    int64_t time_ps;
    uint64_t peak;
    uint32_t set;
} label;

typedef struct event { /* an op that may run: its requirements, as sets of bits and as bytes */
    uint32_t op;
    uint32_t made;         /* outputs, of an op with an inside */
    uint64_t taken;        /* inlined values */
    uint32_t pays;         /* bits of pending reads that this satisfies */
    uint32_t reads, makes; /* bits */
    uint32_t holds;        /* bits of held values, of which a rerun makes a copy */
    uint32_t over;         /* bit of the value whose memory it takes over; 0: none */
    uint64_t room;         /* bytes of its outputs and scratch */
    int64_t time_ps;
} event;

typedef struct solver {
    const cb_facts *f;
    cb_arena *arena;
    bool *may_rerun;  /* [n_unit] */
    uint32_t *bit_of; /* [n_storage] CB_NONE: no choice */
    uint32_t n_bit;
    uint64_t bytes_of[CB_EXACT_BITS];
    uint32_t held;  /* bits that the backward starts with, its first step included */
    uint32_t stays; /* bits that stay to the end once made */
    uint32_t
        doubled;   /* bits of `held` or `stays` that two more follow: for a copy and for its end */
    uint32_t ends; /* bits that must be set at the end */
    uint32_t gone; /* bits that must be clear at the end */
    uint32_t owes[CB_EXACT_BITS]; /* by bit: the bit of its pending read; 0: none */
    uint32_t owed;                /* all bits of pending reads */
    uint32_t leading;             /* bits of the views that the backward begins with */
    uint32_t viewed;              /* the same, and the bits of the forward's views */
    uint32_t n_leading;
    uint32_t arrived;     /* cb_arrived */
    uint32_t opener;      /* a view of memory without a bit that is alive when the backward begins,
                             which may begin it; CB_NONE: none */
    uint32_t *base_begin; /* [n_base + 1] into base */
    event *base;
    event rerun[CB_EXACT_RERUNS];
    uint32_t n_rerun;
    uint64_t *fixed;     /* [n_stage + 1] bytes of values without a choice that cross it */
    uint64_t *set_bytes; /* [1 << n_bit] */
    uint32_t *useful;    /* [n_stage + 1] bits that count from there on; others are dropped */
    uint32_t n_stage;
    uint8_t *how;              /* [n_stage + 1][1 << n_bit] last event */
    uint32_t *from;            /* likewise, the set before it */
    label *now, *next, *later; /* [1 << n_bit] of a stage and the two after it */
    label *heap;
    size_t n_heap, room_heap;
    uint64_t most;    /* the budget */
    uint64_t refused; /* the smallest excess of an event over the limit */
    int64_t most_ps;  /* slower labels are useless */
} solver;

/* Returns the base position of a stage. */
static inline uint32_t cb_exact_position(const solver *z, uint32_t stage) {
    uint32_t backward = z->f->base_backward;
    if (stage < backward) return stage;
    return stage + z->n_leading - (stage > backward);
}

/* Returns the bits of the values that a view can show: those whose newest instance is alive. */
static inline uint32_t cb_exact_shows(const solver *z, uint32_t set) {
    return set & ~(set >> 2 & z->doubled);
}

/* True if the base op may be skipped, with its runs made later. */
static inline bool cb_exact_may_skip(const solver *z, uint32_t k) {
    uint32_t op = z->f->base[k];
    if (cb_has_units(z->f, op)) return z->base[z->base_begin[k]].made == 0;
    return z->may_rerun[op] && !z->f->stays[op];
}

/* Counts the bits of the problem, which is unsuitable above CB_EXACT_BITS. */
CB_MUST_CHECK cb_status cb_exact_count_bits(const cb_facts *f, uint32_t *n, cb_error *err);
/* Sets up the solver for a suitable problem; all of `z` is allocated in `arena`. */
CB_MUST_CHECK cb_status cb_exact_set_up(solver *z, const cb_facts *f, cb_arena *arena,
                                        cb_error *err);
/* Finds the best label after the last stage within `most` bytes; its time is negative if there is
 * none. */
CB_MUST_CHECK cb_status cb_exact_solve(solver *z, const cb_goal *goal, uint64_t most, label *best,
                                       cb_error *err);
/* Makes the schedule that led to `set` after the last stage. Returns false if out of memory. */
CB_MUST_CHECK bool cb_exact_write(solver *z, uint32_t set, cb_arena *arena, cb_schedule *out);

#endif
