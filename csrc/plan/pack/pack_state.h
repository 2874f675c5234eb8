/* pack_state.h: placed lives, unplaced lives, and the levels to blame. Internal to pack.c.
 *
 *   offset |            +-------+        floor: top of the lives placed there
 *          |  +---------+.......|        ....   a permanent gap: all later lives are placed above
 *          |  |    +----+       |        rest:  bytes of the lives not yet placed
 *          +--+----+------------+---- section */
#ifndef CB_PLAN_PACK_STATE_H
#define CB_PLAN_PACK_STATE_H

#include "../../base/arena.h"
#include "../../base/vec.h"
#include "../model/cost.h"

typedef struct cb_pack_life { /* bytes > 0; alive at moments made..last, both included */
    uint64_t bytes;
    uint32_t made, last;
} cb_pack_life;

typedef struct cb_pack_level { /* a placed life, or the next one to place */
    uint32_t life;
    uint32_t choice, n_choice; /* the first entry of `choice` that was not tried yet, and the end */
    size_t below, lifted;      /* first entries of the level in `below` and in `lift` */
    size_t opened, placed;     /* length of `trail` when the level began, when `life` was placed */
} cb_pack_level;

typedef struct cb_pack_rank {
    double rank; /* of lives with the same offset, the one with the larger rank goes first */
    uint32_t id;
} cb_pack_rank;

#define CB_PACK_BLOCK 32       /* ranks in a block */
typedef struct cb_pack_block { /* a block of unplaced lives; UINT64_MAX: there are none */
    uint64_t low, end;         /* the least offset, and the least end */
    bool stale;                /* `low` and `end` are out of date */
} cb_pack_block;

typedef struct cb_pack_top { /* the top of a section */
    uint64_t floor;          /* the next life there has at least this offset */
    uint32_t owner;          /* the life that ends at `floor`; CB_NONE: none */
} cb_pack_top;

typedef struct cb_pack_sleep { /* undoes a change of `asleep` */
    uint32_t life, level;
} cb_pack_sleep;

typedef struct cb_pack_lift { /* undoes a change of `offset` and `under` */
    uint32_t life, under;
    uint64_t offset;
} cb_pack_lift;

typedef struct cb_pack_way { /* the method of an attempt */
    bool lowest;             /* any life below the pivot's top may be next, not only those that meet
                                the pivot */
    bool lifts;              /* sleeping lives count at the offset at which they can wake up */
    bool jumps;              /* jumps back to the deepest level to blame, instead of to the last */
} cb_pack_way;

typedef struct cb_pack {
    const cb_pack_life *life; /* [n] */
    uint32_t n, n_section;
    uint64_t capacity;
    uint64_t effort; /* work limit of a search; the caller may change it */
    uint64_t step;   /* bytes added to the capacity when an attempt fails; 0: the attempt ends */
    uint64_t most;   /* largest capacity that such additions may reach */
    bool proven;     /* the last search has proved that no offsets fit the capacity */
    cb_arena *arena;
    cb_poll poll;
    uint64_t looks, most_looks; /* lives or sections examined: the measure of work */
    uint64_t polled, chance;
    uint64_t dead_ends, most_dead_ends; /* dead ends of this attempt */
    cb_pack_way way;
    bool complete;          /* this attempt has skipped nothing so far */
    uint32_t *first, *last; /* [n] sections */
    cb_pack_top *top;       /* [n_section] */
    uint64_t *rest;         /* [n_section] bytes of unplaced lives */
    uint32_t *lowest;       /* [n_section] an unplaced life that had room at the last check */
    uint32_t stale_first;   /* the first section that has changed */
    uint32_t stale_last;    /* the last one; less than stale_first: none has changed */
    uint32_t full;          /* a section that the unplaced lives do not fit */
    uint64_t *offset;       /* [n] offset of a placed life; lowest possible offset of an unplaced
                               one */
    uint32_t *under;        /* [n] the life on which each would rest; CB_NONE: none */
    uint32_t *level_of;     /* [n] level of a placed life; levels count from 1 */
    uint32_t *asleep;       /* [n] the level at which it failed at its offset; 0: awake */
    cb_pack_rank *rank;     /* [n] in descending order */
    uint32_t *position;     /* [n] in `rank` */
    cb_pack_block *block;   /* [n_block] blocks of CB_PACK_BLOCK ranks each */
    uint32_t n_block;
    uint32_t *alive_begin; /* [n_section + 1] into `alive` */
    uint32_t *alive;       /* lives, by each section at which they are alive */
    uint32_t *begun_begin; /* [n_section + 1] into `begun` */
    uint32_t *begun;       /* [n] lives, by their first section */
    uint32_t *met;         /* [n + 1] see cb_pack_find_open */
    uint64_t *wakes;       /* [n] offset at which a sleeping life can wake up, computed in round
                              `woken_in` */
    uint32_t *woken_in, round;
    cb_pack_level *level; /* [n + 2] */
    uint64_t *blamed;     /* [n + 2][n_word] for each level, a bit for each level to blame */
    uint32_t n_word;
    CB_VEC(uint32_t) choice;
    CB_VEC(cb_pack_top) below; /* tops below placed lives */
    CB_VEC(cb_pack_sleep) trail;
    CB_VEC(cb_pack_lift) lift; /* the lives that placed lives raised, in order */
} cb_pack;

static inline bool cb_pack_meet(const cb_pack *z, uint32_t i, uint32_t j) {
    return z->first[i] <= z->last[j] && z->first[j] <= z->last[i];
}

static inline bool cb_pack_is_open(const cb_pack *z, uint32_t i) { return z->level_of[i] == 0; }
/* Lists in `met` the unplaced lives that are alive in a section from `low` to `high`; returns their
 * number. */
uint32_t cb_pack_find_open(cb_pack *z, uint32_t low, uint32_t high, uint32_t *met);
/* Brings a block up to date. */
const cb_pack_block *cb_pack_look_at(cb_pack *z, uint32_t block);

/* Sets `rest` for the state in which no life is placed. */
void cb_pack_sum(cb_pack *z);
/* Must be called after cb_pack_sum. Sets the rest of that state, with sorted ranks. */
void cb_pack_clear(cb_pack *z);
/* Checks the sections that have changed. Returns false if no order of the unplaced lives fits in
 * the section `full`. */
bool cb_pack_promises(cb_pack *z);
/* Returns false if a section of `i` becomes `full` when `i` is placed. */
bool cb_pack_fits_above(cb_pack *z, uint32_t i);
/* Places a level's life at its offset, and wakes lives that overlap it in time. Returns false if
 * out of memory. */
bool cb_pack_place(cb_pack *z, uint32_t level);
/* Removes the last placed life. */
void cb_pack_take_back(cb_pack *z, const cb_pack_level *level);
/* A life that failed at its offset sleeps until a life that overlaps it in time is placed: all
 * layouts with it at this offset, below all other lives that overlap it, have been searched.
 * Returns false if out of memory. */
bool cb_pack_put_to_sleep(cb_pack *z, uint32_t level);
/* Returns false if out of memory. */
bool cb_pack_wake(cb_pack *z, uint32_t i);
void cb_pack_wind_back(cb_pack *z, size_t length);

/* For a failure of a level, blames the levels up to `depth` that explain why `s` is full: lives
 * placed there, and the lives on which these and the unplaced ones rest. */
void cb_pack_blame(cb_pack *z, uint32_t level, uint32_t s, uint32_t depth);
/* Blames the lives on which life `i` rests. */
void cb_pack_blame_under(cb_pack *z, uint32_t level, uint32_t i);
/* Blames the levels that put life `i` to sleep. */
void cb_pack_blame_sleep(cb_pack *z, uint32_t level, uint32_t i);
/* Returns the deepest level below `level` that is to blame for its failure; 0: none. */
uint32_t cb_pack_find_blamed(const cb_pack *z, uint32_t level);
/* Adds the levels to blame for the failure of `from` to those of `to`. */
void cb_pack_pass_blame(cb_pack *z, uint32_t from, uint32_t to);

#endif
