/* ranges.h: memory that a call was given, and whether parts of it overlap. */
#ifndef CB_RANGES_H
#define CB_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct cb_range {
    uintptr_t begin, end;
    const char *kind, *name; /* "output", "loss" */
    bool written;
} cb_range;

/* Ranges that were found good, so that the same ones need not be looked at again. */
typedef struct cb_known_range {
    uintptr_t begin, end;
    bool written;
} cb_known_range;

typedef struct cb_known_ranges {
    cb_known_range *at; /* room for as many as are ever checked */
    uint32_t n;
} cb_known_ranges;

/* CB_INVALID if a range that is written overlaps another; ranges that are only read may overlap.
 * Takes n log n time, or n if they are `known`, in the same order; NULL: nothing is remembered.
 * May reorder `at`. */
CB_MUST_CHECK cb_status cb_ranges_check(cb_range *at, uint32_t n, cb_known_ranges *known,
                                        cb_error *err);

#endif
