/* drops.h: makes the plan that corresponds to the bound. Internal. */
#ifndef CB_PLAN_DROPS_H
#define CB_PLAN_DROPS_H

#include "../cut/mincut.h"
#include "../schedule/sim.h"
#include "gaps.h"

typedef struct cb_drops {
    const cb_cut *cut; /* solved */
    const cb_gaps *gaps;
    const double *sum; /* [n_base + 1] running sum of the prices of moments */
} cb_drops;

/* Finds the reruns in all gaps except the main ones for which keeping the value costs more than
 * rerunning its op, at the current prices; often there are none. A rerun before the main gap is an
 * early pair: it runs where its inputs are last read, before an op that does not read the value. */
CB_MUST_CHECK cb_status cb_drop_gaps(const cb_drops *z, cb_pairs *out, cb_error *err);
/* Adds the reruns of the cut, or other reruns, each pair once. */
CB_MUST_CHECK cb_status cb_add_pairs(const cb_pairs *more, cb_pairs *out, cb_error *err);

#endif
