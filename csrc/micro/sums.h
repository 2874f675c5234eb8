/* sums.h: the order in which elements are added up. It is part of how results are defined, on every
 * machine: never a setting. Element i of a sum is in lane i mod CB_X_LANES; lanes are folded at
 * each leaf of CB_X_LEAF elements; leaves, and then segments, are put together in pairs. */
#ifndef CB_MICRO_SUMS_H
#define CB_MICRO_SUMS_H

#include "../base/ints.h"

enum {
    CB_X_LANES = 64,
    CB_X_LEAF = 1024,
    CB_X_CHUNK = 16384, /* elements of a task; of a row that is longer, one piece */
};

/* Rows that are added up before they join the sums of their block (the shorter the chain, the
 * smaller the error); and elements of a segment of a long row, a power of two so that there are at
 * most CB_SEGMENTS. */
#define CB_RUN_ROWS 128
#define CB_SEGMENT ((int64_t)1 << 16)
#define CB_SEGMENTS 64

static inline int64_t cb_segment_of(int64_t count) {
    int64_t segment = CB_SEGMENT;
    while (div_up(count, segment) > CB_SEGMENTS) segment *= 2;
    return segment;
}

#endif
