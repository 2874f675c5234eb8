/* ranges.h: checks that the arguments of a call do not overlap in memory. */
#ifndef CB_RANGES_H
#define CB_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct cb_range {
    uintptr_t begin, end;
    const char *kind, *name; /* for errors, e.g. "output", "loss" */
    bool written;
} cb_range;

/* Ranges that passed the check, so that the same ranges need not be sorted again. */
typedef struct cb_known_range {
    uintptr_t begin, end;
    bool written;
} cb_known_range;

typedef struct cb_known_ranges {
    cb_known_range *at; /* room for the largest number of ranges that is ever checked */
    uint32_t n;
} cb_known_ranges;

/* CB_INVALID if a range that is written overlaps another; ranges that are only read may overlap.
 * Takes n log n time, or n if the ranges are `known` in the same order. `known` may be NULL: then
 * nothing is remembered. May reorder `at`. */
CB_MUST_CHECK cb_status cb_ranges_check(cb_range *at, uint32_t n, cb_known_ranges *known,
                                        cb_error *err);

#endif
