/* sums.h: the order of summation. It is part of the definition of results on every machine, so it
 * must not become a setting. Element i of a sum is added in lane i mod CB_X_LANES. Lanes are folded
 * after each leaf of CB_X_LEAF elements. Leaves, and then segments, are combined in pairs. */
#ifndef CB_MICRO_SUMS_H
#define CB_MICRO_SUMS_H

#include "../base/ints.h"

enum {
    CB_X_LANES = 64,
    CB_X_LEAF = 1024,
    CB_X_CHUNK = 16384, /* elements of a task; a longer row is split into pieces of this length */
};

/* Number of rows that are summed before they are added to the column sums of their block; shorter
 * chains have smaller errors. */
#define CB_RUN_ROWS 128
/* A line has one element of each of several adjacent strided rows (fuse/domain.h). Short lines are
 * processed several at a time, as a band: line c of a sum is added in group c mod the lines of a
 * band, and the groups of a block of bands are added in order. At most a sixteenth of the
 * iterations over a band is unused. */
#define CB_BAND_MIN 256
#define CB_BAND_MAX 1024
static inline int64_t cb_band_lines(int64_t inner) {
    for (int64_t lines = 1; lines * inner <= CB_BAND_MAX; lines++) {
        const int64_t band = lines * inner, whole = div_up(band, CB_X_LANES) * CB_X_LANES;
        if (band >= CB_BAND_MIN && (whole - band) * 16 <= whole) return lines;
    }
    return 1;
}

/* The minimum length of a segment of a long row, and the maximum number of segments. */
#define CB_SEGMENT ((int64_t)1 << 16)
#define CB_SEGMENTS 64

/* Returns the segment length of a row: a power of two, large enough that there are at most
 * CB_SEGMENTS segments. */
static inline int64_t cb_segment_of(int64_t count) {
    int64_t segment = CB_SEGMENT;
    while (div_up(count, segment) > CB_SEGMENTS) segment *= 2;
    return segment;
}

#endif
