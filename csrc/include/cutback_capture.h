/* cutback_capture.h: steps that a device replays as one graph. */
#ifndef CUTBACK_CAPTURE_H
#define CUTBACK_CAPTURE_H

#include "cutback.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of a step, and the update after it, as one graph that the device replays: one launch for
 * the host, however many kernels and tensors there are. The graph holds the addresses that it was
 * captured with. Before a replay, arguments may be copied to those addresses, and after it results
 * from them. */
typedef struct cb_captured cb_captured;
/* Captures; nothing runs. All arguments are in device memory, and the caller keeps them while the
 * graph exists. Pins the step's block. `update`: NULL, or an update without extras; its `t` and
 * `hyper` may differ in each replay. CB_UNSUPPORTED: the backend cannot capture. */
CB_API CB_MUST_CHECK cb_status cb_step_capture(cb_step *step, const cb_run *run,
                                               const cb_update *update, cb_captured **out,
                                               cb_error *err);
CB_API void cb_captured_free(cb_captured *captured); /* waits for replays; call it before freeing
                                                        the step; NULL is fine */
/* An array that a replay copies. */
typedef struct cb_captured_copy {
    uint32_t i; /* number of the step's input or output */
    bool there; /* false: the array is in host memory, which only inputs may be */
    void *data;
} cb_captured_copy;
typedef struct cb_captured_run {
    const cb_captured_copy *inputs;  /* copied to the graph's before the run */
    const cb_captured_copy *outputs; /* receive copies of the graph's */
    uint32_t n_inputs, n_outputs;    /* lengths of the lists; all other arrays are not copied */
    void *stream;                    /* as in cb_run */
    uint32_t random_step;
    const double *hyper; /* [n_groups][n_hyper] as captured; NULL without an update */
    int64_t t;           /* number of the step, from 1 */
    double *numbers;     /* as in cb_update */
    bool *was_put; /* set to true once the graph is launched: the step counts then, even if a result
                      could not be copied and the call fails. May be NULL */
} cb_captured_run;
/* Queues one replay on the stream; cb_step_wait waits for it. The device counts steps itself: `t`
 * is copied there only if it does not follow the latest replay's. */
CB_API CB_MUST_CHECK cb_status cb_captured_replay(cb_captured *captured,
                                                  const cb_captured_run *replay, cb_error *err);
/* Waits for the latest replay. Returns the number of steps that the device has made, without those
 * that `found_inf` skipped, and the numbers of each parameter. */
CB_API CB_MUST_CHECK cb_status cb_captured_counts(cb_captured *captured, int64_t *t,
                                                  double *numbers, cb_error *err);
/* Like cb_step_resident, for the graph's own numbers. */
CB_API CB_MUST_CHECK cb_status cb_captured_resident(const cb_captured *captured, uint32_t group,
                                                    cb_resident *out, cb_error *err);

#ifdef __cplusplus
}
#endif
#endif
