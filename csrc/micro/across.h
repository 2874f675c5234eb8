/* across.h: lays out groups whose rows are side by side in memory. What is a number or an
 * accumulator for contiguous rows is a vector for these, which operations read and write as a
 * stream. */
#ifndef CB_MICRO_ACROSS_H
#define CB_MICRO_ACROSS_H

#include "translation.h"

enum { CB_X_KEPT_LINES = 4096 }; /* elements */
/* The vectors of a sum: for the current run of rows, for their block, and for all rows. */
enum { CB_X_RUN = 0, CB_X_BLOCK, CB_X_ALL, CB_X_SUM_VECTORS };

/* Returns the number of bands whose elements are stored before they are summed over lines: several
 * if bands are short. */
static inline int64_t cb_x_bands_kept(int64_t inner) {
    return max_i64(CB_X_KEPT_LINES / (inner * cb_band_lines(inner)), 1);
}

/* True if lines or bands cut the lanes of sums over all elements. */
static inline bool cb_x_cuts_lanes(const cb_microcode *m) {
    const int64_t lines = cb_band_lines(m->inner);
    const bool fits = lines * m->inner % CB_X_LANES == 0 && m->columns % lines == 0;
    return m->inner % CB_X_LANES != 0 && !fits;
}

/* Must be called after the phases are known. If each row is contiguous, it only records that. */
void cb_t_lay_across(cb_translation *x);

#endif
