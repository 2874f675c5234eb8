/* races.c: a cell for each two bytes holds the last writer and the readers since: readers of the
 * last reading operation by lane, and unordered readers of other operations as a set (readers.h).
 * Two accesses are ordered when
 *
 *   - the operations differ, and the earlier one happens before the later
 *     (sim_happened_before);
 *   - the blocks are the same, with a barrier in between: the later thread's `barriers` clock is
 *     greater;
 *   - the warps are the same, with a warp operation in between: its `warps` clock is greater;
 *   - the blocks differ, the earlier access is released by a fence and a later atomic, and
 *     the later block has executed an atomic on the same address.
 *
 * These are Lamport clocks: a later ordered access always has a greater clock, so ordered accesses
 * are never reported. An unordered one may also have a greater clock, but only among threads that
 * meet in barriers or warp operations of part of the block; a race may be missed there. Of the
 * bytes that share a cell, only the last writer is known. */
#include "races.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "entries.h"
#include "memory.h"
#include "queue.h"
#include "readers.h"
#include "report.h"

enum { SEVERAL = UINT32_MAX, NOBODY = UINT16_MAX, N_VARIABLES = 64 };

typedef struct cell {
    uint32_t w_stamp, w_block;
    uint16_t w_barriers, w_warps;
    uint16_t w_thread : 10, w_bytes : 2, w_strong : 1;
    uint16_t r_bytes : 2, r_several : 1, r_warp : 5; /* several: from more than one warp */
    uint32_t r_stamp, r_block;                       /* stamp 0: no readers; block SEVERAL */
    uint16_t r_barriers, r_warps;
    uint32_t r_lanes;
    uint32_t r_others, spare; /* readers of operations not ordered with r_stamp's */
} cell;
_Static_assert(sizeof(cell) == 40, "two bytes of memory have a cell of 40 bytes");

/* What a block has released, by an atomic on the variables in `released`: accesses with a
 * `barriers` clock below `before`, and all of `thread`. */
typedef struct block_sync {
    uint64_t released, acquired;
    uint16_t before, thread;
} block_sync;

static struct {
    uint32_t stamp, block;
    block_sync *blocks;
    uint32_t n_blocks, n_begun;
    uint64_t variable[N_VARIABLES]; /* addresses of atomics */
    uint32_t n_variables, n_released[N_VARIABLES];
    uint32_t n_fenced;                /* threads that executed a fence since the last barrier */
    uint16_t fenced_before;           /* all threads fenced accesses below this clock */
    uint32_t known_before, known_not; /* latest answers of sim_happened_before */
} now;

static cell *cell_of(uint64_t address) {
    return (cell *)(SIM_CELLS + (address - SIM_ARENA) / 2 * sizeof(cell));
}

void sim_races_begin(uint32_t stamp, uint32_t n_blocks) {
    now.stamp = now.known_before = stamp;
    now.known_not = now.n_variables = now.n_begun = 0;
    sim_readers_begin();
    memset(now.n_released, 0, sizeof now.n_released);
    if (!sim_device.watches_races) return;
    if (n_blocks > now.n_blocks) {
        block_sync *more = realloc(now.blocks, n_blocks * sizeof *more);
        if (!more) return; /* n_blocks is unchanged: blocks beyond it release nothing */
        now.blocks = more;
        now.n_blocks = n_blocks;
    }
    memset(now.blocks, 0, n_blocks * sizeof *now.blocks);
}

void sim_races_block(uint32_t block) {
    now.block = block;
    now.n_begun++;
    now.n_fenced = 0;
    now.fenced_before = 0;
}

void sim_races_barrier(uint32_t n_threads) {
    if (now.n_fenced == sim_now.n_alive && n_threads == sim_now.n_alive)
        now.fenced_before = (uint16_t)(sim_fibers[0].barriers + 1);
    now.n_fenced = 0;
}

void sim_races_fence(sim_fiber *f) {
    if (f->fenced_at != f->barriers + 1u) now.n_fenced++;
    f->fenced_at = f->barriers + 1u;
}

static int variable_at(uint64_t address) {
    for (uint32_t i = 0; i < now.n_variables; i++)
        if (now.variable[i] == address) return (int)i;
    if (now.n_variables == N_VARIABLES) return N_VARIABLES - 1;
    now.variable[now.n_variables] = address;
    return (int)now.n_variables++;
}

/* Handles a strong access: it acquires what others released at the address, and releases what this
 * thread, or all threads, have fenced. */
static void synchronise(const sim_fiber *f, uint64_t address, int access) {
    if (now.block >= now.n_blocks) return;
    const int i = variable_at(address);
    block_sync *own = &now.blocks[now.block];
    own->acquired |= 1ull << i;
    const bool is_fenced = f->fenced_at || now.fenced_before;
    if (!(access & SIM_WRITE) || !is_fenced) return;
    if (!(own->released >> i & 1)) now.n_released[i]++;
    own->released |= 1ull << i;
    own->before = f->fenced_at ? (uint16_t)(f->fenced_at - 1) : 0;
    if (now.fenced_before > own->before) own->before = now.fenced_before;
    own->thread = f->fenced_at ? (uint16_t)f->thread.id : NOBODY;
}

static bool operation_is_before(uint32_t stamp) {
    if (stamp == now.known_before) return true;
    if (stamp == now.known_not) return false;
    const bool is_before = sim_happened_before(stamp);
    if (is_before) now.known_before = stamp;
    else now.known_not = stamp;
    return is_before;
}

static bool block_is_released(uint32_t block, uint16_t barriers, uint32_t thread) {
    if (now.block >= now.n_blocks) return true;
    const uint64_t acquired = now.blocks[now.block].acquired;
    if (block == SEVERAL) { /* every other block that has begun must have released */
        for (uint32_t i = 0; i < now.n_variables; i++)
            if (acquired >> i & 1 && now.n_released[i] + 1 >= now.n_begun) return true;
        return false;
    }
    const block_sync *other = &now.blocks[block];
    return other->released & acquired && (barriers < other->before || thread == other->thread);
}

static bool writer_conflicts(const cell *c, const sim_fiber *f, bool is_strong) {
    if (!c->w_stamp || (c->w_strong && is_strong)) return false;
    if (c->w_stamp != now.stamp) return !operation_is_before(c->w_stamp);
    if (c->w_block != now.block) return !block_is_released(c->w_block, c->w_barriers, c->w_thread);
    if (c->w_thread == f->thread.id || c->w_barriers < f->barriers) return false;
    const bool is_same_warp = c->w_thread / SIM_WARP == f->thread.id / SIM_WARP;
    return !(is_same_warp && c->w_warps < f->warps);
}

static bool readers_conflict(const cell *c, const sim_fiber *f) {
    if (!c->r_stamp) return false;
    if (c->r_stamp != now.stamp) return !operation_is_before(c->r_stamp);
    if (c->r_block != now.block) return !block_is_released(c->r_block, c->r_barriers, NOBODY);
    if (c->r_barriers < f->barriers) return false;
    if (c->r_several || c->r_warp != f->thread.id / SIM_WARP) return true;
    return c->r_warps >= f->warps && c->r_lanes & ~(1u << f->thread.lane);
}

/* Called before this operation's readers replace those of another one. */
static void keep_others(cell *c) {
    if (c->r_stamp && (c->r_others || !operation_is_before(c->r_stamp)))
        c->r_others = sim_readers_add(c->r_others, c->r_stamp);
}

static void note_reader(cell *c, const sim_fiber *f, uint32_t bytes) {
    const uint32_t warp = f->thread.id / SIM_WARP, lane = 1u << f->thread.lane;
    if (c->r_stamp == now.stamp && c->r_block != now.block) {
        c->r_block = SEVERAL;
        c->r_bytes = (c->r_bytes | bytes) & 3;
        return;
    }
    if (c->r_stamp != now.stamp) keep_others(c);
    if (c->r_stamp == now.stamp && c->r_barriers >= f->barriers) {
        c->r_bytes = (c->r_bytes | bytes) & 3;
        if (c->r_warp != warp) c->r_several = 1;
        else if (c->r_warps == f->warps) c->r_lanes |= lane;
        else if (c->r_warps < f->warps) c->r_lanes = lane, c->r_warps = f->warps;
        return;
    }
    c->r_stamp = now.stamp;
    c->r_block = now.block;
    c->r_barriers = f->barriers;
    c->r_warps = f->warps;
    c->r_bytes = bytes & 3;
    c->r_several = 0;
    c->r_warp = warp & 31;
    c->r_lanes = lane;
}

static void note_writer(cell *c, const sim_fiber *f, uint32_t bytes, bool is_strong) {
    c->w_stamp = now.stamp;
    c->w_block = now.block;
    c->w_thread = f->thread.id & 1023;
    c->w_barriers = f->barriers;
    c->w_warps = f->warps;
    c->w_bytes = bytes & 3;
    c->w_strong = is_strong;
    if (!is_strong) c->r_stamp = c->r_others = 0;
}

static void report_race(const sim_fiber *f, uint32_t site, uint64_t address, int access,
                        const cell *c, bool with_writer) {
    char where[256], place[200];
    sim_where(f, site, where, sizeof where);
    sim_memory_describe(address, place, sizeof place);
    const char *own = access & SIM_WRITE ? "write" : "read",
               *other = with_writer ? "write" : "read";
    const uint32_t stamp = with_writer ? c->w_stamp : c->r_stamp;
    if (stamp != now.stamp)
        sim_report("%s: missing order of streams: %s of %s after the %s by %s", where, own, place,
                   other, sim_operation_name(stamp));
    else if ((with_writer ? c->w_block : c->r_block) != now.block)
        sim_report("%s: race: %s of %s after the %s by another block", where, own, place, other);
    else if (with_writer)
        sim_report("%s: race: %s of %s after the write by thread %u, no barrier between", where,
                   own, place, c->w_thread);
    else
        sim_report("%s: race: write of %s after the read by %s %u, no barrier between", where,
                   place, c->r_several ? "several warps, one of them" : "warp", c->r_warp);
    sim_fail_block(SIM_RACE);
}

void sim_races_access(sim_thread *t, uint32_t site, uint64_t address, uint32_t bytes, int access) {
    if (address >= SIM_LOCAL && address < SIM_SHARED) return; /* local to the thread */
    const sim_fiber *f = (const sim_fiber *)t;
    const bool is_shared = address >= SIM_SHARED, is_strong = access & SIM_STRONG;
    if (is_strong && !is_shared) synchronise(f, address, access);
    cell *c = cell_of(address);
    const uint32_t touched = bytes == 1 ? 1u << (address & 1) : 3;
    for (uint32_t i = 0; i < bytes; i += 2, c++) {
        if (is_shared && (c->w_stamp != now.stamp || c->w_block != now.block)) c->w_stamp = 0;
        if (is_shared && (c->r_stamp != now.stamp || c->r_block != now.block))
            c->r_stamp = c->r_others = 0;
        const bool with_writer = c->w_bytes & touched && writer_conflicts(c, f, is_strong);
        const bool with_readers =
            access & SIM_WRITE && c->r_bytes & touched && readers_conflict(c, f);
        const uint32_t other = access & SIM_WRITE ? sim_readers_unordered(c->r_others) : 0;
        if (other) c->r_stamp = other;
        if (with_writer || with_readers || other)
            report_race(f, site, address + i, access, c, with_writer);
        if (access & SIM_WRITE) note_writer(c, f, touched, is_strong);
        else if (!is_strong) note_reader(c, f, touched);
    }
}

sim_fault sim_races_range(uint64_t address, uint64_t bytes, int access, const char *what) {
    if (!sim_device.watches_races || bytes == 0) return SIM_FINE;
    const bool is_write = access & SIM_WRITE;
    cell *end = cell_of(address + bytes + 1);
    for (cell *c = cell_of(address); c < end; c++) {
        const bool with_writer =
            c->w_stamp && c->w_stamp != now.stamp && !operation_is_before(c->w_stamp);
        bool with_readers =
            is_write && c->r_stamp && c->r_stamp != now.stamp && !operation_is_before(c->r_stamp);
        const uint32_t other = is_write ? sim_readers_unordered(c->r_others) : 0;
        if (other) c->r_stamp = other;
        with_readers |= other != 0;
        if (with_writer || with_readers) {
            char place[200];
            sim_memory_describe(SIM_ARENA + (uint64_t)(c - cell_of(SIM_ARENA)) * 2, place,
                                sizeof place);
            sim_report("%s: missing order of streams: %s of %s after the %s by %s", what,
                       is_write ? "write" : "read", place, with_writer ? "write" : "read",
                       sim_operation_name(with_writer ? c->w_stamp : c->r_stamp));
            return SIM_RACE;
        }
        if (is_write) {
            *c = (cell){.w_stamp = now.stamp, .w_block = SEVERAL, .w_bytes = 3};
        } else {
            if (c->r_stamp != now.stamp) keep_others(c);
            c->r_stamp = now.stamp;
            c->r_block = SEVERAL;
            c->r_bytes = 3;
        }
    }
    return SIM_FINE;
}

void sim_races_forget(uint64_t address, uint64_t bytes) {
    const uintptr_t page = 4096, begin = (uintptr_t)cell_of(address);
    const uintptr_t end = (uintptr_t)cell_of(address + bytes + 1);
    /* Whole pages are returned to the system; of the rest only touched bytes need clearing. */
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (first >= last) {
        memset((void *)begin, 0, end - begin);
        return;
    }
    (void)madvise((void *)first, last - first, MADV_DONTNEED);
    memset((void *)begin, 0, first - begin);
    memset((void *)last, 0, end - last);
}
