/* windows.h: plans that run an op again several times in the backward. Internal.
 *
 * A minimum cut runs an op again once, and the result stays until its last read. In an unrolled
 * loop this keeps values that all iterations share, such as the projection of a whole sequence, for
 * most of the backward. Here the backward is paged like virtual memory: an op that misses a value
 * opens a window, which makes that value again. While there is room, the window also makes values
 * for later ops that share work with it. */
#ifndef CB_PLAN_WINDOWS_H
#define CB_PLAN_WINDOWS_H

#include "../candidates/trial.h"
#include "ledger.h"

typedef struct cb_windows cb_windows;

CB_MUST_CHECK cb_status cb_windows_new(cb_trial *t, const cb_ledger *l, const bool *may_rerun,
                                       cb_windows **out, cb_error *err);
/* Tries a plan under `target` bytes. Values that take long to make are kept throughout at
 * `n_position` positions of the forward; those that take less than `share` of the step's time per
 * byte are made when they are needed. `done` is false if that would take too much effort. */
CB_MUST_CHECK cb_status cb_windows_try(cb_windows *w, uint64_t target, uint32_t n_position,
                                       double share, bool *done, cb_error *err);
/* Tries the plans of CB_WINDOW_POSITIONS and CB_WINDOW_RATE, unless they take too much effort: then
 * `done`, which is true at first, becomes false. */
CB_MUST_CHECK cb_status cb_windows_try_all(cb_windows *w, uint64_t target, bool *done,
                                           cb_error *err);

#endif
