/* carry.h: which op moves a storage. Internal.
 *
 * A schedule moves what an op made, not a storage. The op that allocates a storage carries it, all
 * of them if it has several; or, where every reader of such an op picks one output of it (a view),
 * each storage goes through the op that picks it. */
#ifndef CB_PLAN_CARRY_H
#define CB_PLAN_CARRY_H

#include "offload_sim.h"

/* Fills carriers, copies and musts. `firm` and failures as of cb_offload_sim_init. */
CB_MUST_CHECK cb_status cb_find_carriers(cb_offload_sim *m, bool firm, cb_error *err);

#endif
