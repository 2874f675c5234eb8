/* drops.h: the plan that goes with the bound. Internal. */
#ifndef CB_PLAN_DROPS_H
#define CB_PLAN_DROPS_H

#include "../cut/mincut.h"
#include "../schedule/sim.h"
#include "gaps.h"

typedef struct cb_drops {
    const cb_cut *cut; /* solved */
    const cb_gaps *gaps;
    const double *sum;     /* [n_base + 1] running sum of the prices of moments */
    const cb_pairs *pairs; /* the reruns of the cut */
} cb_drops;

/* The reruns of the cut, and those of the other gaps over which the prices make keeping a value
 * dearer than running its op again. A rerun before the main gap is an early pair: it stands where
 * the inputs are read last, before an op that does not read the value. `added`: is there any? */
CB_MUST_CHECK cb_status cb_drop_gaps(const cb_drops *z, cb_pairs *out, bool *added, cb_error *err);

#endif
