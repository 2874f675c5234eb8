/* Moment = bytes alive when the anchor is entered + local, the rise inside its own steps. Whole
 * blocks of moments share a lift, so that long lives cost little. Peaks and areas are kept per
 * block, and recomputed for the blocks that changed.
 *
 * Bytes are integers below 2^53, so sums are exact in any order. */
#include "ledger_parts.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LEDGER_BLOCK CB_LEDGER_BLOCK_SIZE
#define LEDGER_LANES 4 /* independent pairs of doubles, to hide the latency of maximum */

/* ---- bytes added ----------------------------------------------------------------------------- */

/* Logs the moments of a block before they change for the first time in a trial. */
static bool note_moments(cb_ledger *l, uint32_t block) {
    cb_ledger_notes *notes = &l->notes;
    if (!notes->on || notes->moment_in[block] == notes->trial) return true;
    notes->moment_in[block] = notes->trial;
    if (!CB_PUSH(&l->arena, notes->block, block) ||
        !CB_RESERVE(&l->arena, notes->moment, LEDGER_BLOCK))
        return false;
    memcpy(notes->moment.at + notes->moment.len, l->moment + ((size_t)block << CB_LEDGER_BLOCK),
           LEDGER_BLOCK * sizeof *l->moment);
    notes->moment.len += LEDGER_BLOCK;
    return true;
}

/* Adds to the moments in [from, end), within one block. */
bool cb_ledger_add_in_block(cb_ledger *l, uint32_t block, uint32_t from, uint32_t end,
                            double bytes) {
    if (!note_moments(l, block)) return false;
    for (uint32_t k = from; k < end; k++) l->moment[k] += bytes;
    l->stale[block] = true;
    return true;
}

/* Lifts whole blocks, all at once when they are summed. In the two blocks at the ends, the smaller
 * part is visited: the moments to change, or, with a lift, the others. */
bool cb_ledger_add_load(cb_ledger *l, uint32_t from, uint32_t to, double bytes) {
    if (to >= l->n) to = l->n - 1; /* the storage is held to the end */
    if (from > to) return true;
    uint32_t first = from >> CB_LEDGER_BLOCK, last = to >> CB_LEDGER_BLOCK, end = to + 1;
    if (first == last) return cb_ledger_add_in_block(l, first, from, end, bytes);
    uint32_t after = (first + 1) << CB_LEDGER_BLOCK, before = last << CB_LEDGER_BLOCK;
    uint32_t rises = first + 1, falls = last;
    if (after - from <= LEDGER_BLOCK / 2) {
        if (!cb_ledger_add_in_block(l, first, from, after, bytes)) return false;
    } else {
        rises = first;
        if (!cb_ledger_add_in_block(l, first, after - LEDGER_BLOCK, from, -bytes)) return false;
    }
    if (end - before <= LEDGER_BLOCK / 2) {
        if (!cb_ledger_add_in_block(l, last, before, end, bytes)) return false;
    } else {
        falls = last + 1;
        if (!cb_ledger_add_in_block(l, last, end, before + LEDGER_BLOCK, -bytes)) return false;
    }
    l->rise[rises] += bytes;
    l->rise[falls] -= bytes;
    return true;
}

/* ---- peak and area --------------------------------------------------------------------------- */

typedef double two __attribute__((vector_size(16)));
#ifndef __SSE2__
typedef int64_t two_masks __attribute__((vector_size(16)));
#endif

static two larger(two a, two b) {
#ifdef __SSE2__
    return _mm_max_pd(a, b); /* a > b ? a : b in a form that compilers vectorize */
#else
    two_masks first = a > b;
    return (two)(((two_masks)a & first) | ((two_masks)b & ~first));
#endif
}

static two load_two(const double *at) {
    two both;
    memcpy(&both, at, sizeof both);
    return both;
}

/* Returns the peak of a block. Moments after the last anchor are 0. */
static double peak_of(const double *moment) {
    two peak[LEDGER_LANES];
    for (uint32_t j = 0; j < LEDGER_LANES; j++) peak[j] = load_two(moment + 2 * j);
    for (uint32_t k = 2 * LEDGER_LANES; k < LEDGER_BLOCK; k += 2 * LEDGER_LANES) {
        for (uint32_t j = 0; j < LEDGER_LANES; j++)
            peak[j] = larger(load_two(moment + k + 2 * j), peak[j]);
    }
    two most = larger(larger(peak[0], peak[1]), larger(peak[2], peak[3]));
    return most[0] > most[1] ? most[0] : most[1];
}

static double area_above(const double *moment, double level) {
    two area[LEDGER_LANES] = {0}, zero = {0}, from = {level, level};
    for (uint32_t k = 0; k < LEDGER_BLOCK; k += 2 * LEDGER_LANES) {
        for (uint32_t j = 0; j < LEDGER_LANES; j++)
            area[j] += larger(load_two(moment + k + 2 * j) - from, zero);
    }
    two all = (area[0] + area[1]) + (area[2] + area[3]);
    return all[0] + all[1];
}

/* Updates the sums of a block. Most blocks are below the target, so their area is skipped. */
static void sum_up_block(cb_ledger *l, uint32_t block) {
    const double *moment = l->moment + ((size_t)block << CB_LEDGER_BLOCK);
    double lift = l->lift[block], peak = peak_of(moment) + lift;
    l->block_peak[block] = peak;
    l->block_area[block] = peak > l->target ? area_above(moment, l->target - lift) : 0;
    l->stale[block] = false;
}

static void lift_block(cb_ledger *l, uint32_t block, double bytes) {
    l->lift[block] += bytes;
    l->block_peak[block] += bytes;
    l->stale[block] |= l->block_peak[block] > l->target || l->block_area[block] > 0;
}

void cb_ledger_sum_up(cb_ledger *l) {
    double peak = 0, area = 0, rise = 0;
    for (uint32_t b = 0; b < l->n_block; b++) {
        rise += l->rise[b];
        l->rise[b] = 0;
        if (rise < 0 || rise > 0) lift_block(l, b, rise);
        if (l->stale[b]) sum_up_block(l, b);
        if (l->block_peak[b] > peak) peak = l->block_peak[b];
        area += l->block_area[b];
    }
    l->rise[l->n_block] = 0;
    l->peak = peak;
    l->area = area;
}
