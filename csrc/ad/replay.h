/* replay.h: appends ops of a graph once more with other values in place of some of their inputs. */
#ifndef CB_AD_REPLAY_H
#define CB_AD_REPLAY_H

#include "../ir/graph.h"

typedef struct cb_replay {
    const cb_value_id *from, *to; /* [n] the new ops read `to[i]`, of the same type, instead of
                                     `from[i]` */
    uint32_t n;
    cb_op_id end; /* ops before this one are appended again if they depend on one of `from` */
} cb_replay;

/* Replaces each of `results` by the value computed from `to`. Results that do not depend on `from`
 * stay unchanged. */
CB_MUST_CHECK cb_status cb_replay_ops(cb_graph *g, const cb_replay *r, cb_value_id *results,
                                      uint32_t n_results, cb_arena *scratch, cb_error *err);

#endif
