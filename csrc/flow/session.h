/* session.h: a solved network in which nodes are banned from the sink side and freed again.
 *
 *     cb_session s;
 *     CB_TRY(cb_session_open(&s, &flow, source, sink, capacity, &arena, err));
 *     CB_TRY(cb_session_ban(&s, v, err));      // as if an infinite arc source -> v had been added
 *     cb_session_unban(&s, v);
 *     flow.value;  flow.sink_side[u];          // a minimum cut, after each call
 *     cb_session_settle(&s);                   // now the sink-minimal one, as cb_flow_solve has it
 *
 * A ban or its end costs what changes around the node, less than a microsecond in the mean on
 * training graphs; settling costs a search of the sink side. The flow belongs to the session until
 * the last use of either; `capacity` is borrowed as long. */
#ifndef CB_FLOW_SESSION_H
#define CB_FLOW_SESSION_H

#include "../base/bitset.h"
#include "maxflow.h"

typedef struct cb_session {
    cb_flow *flow;
    uint32_t source, sink;
    const int64_t *capacity; /* [flow->n_arc] */
    cb_bitset banned;        /* [flow->n_node] */
    uint32_t *seen;          /* [flow->n_node] the search that last came here */
    uint32_t search;
    int64_t pushed; /* no infinite arc carries more */
} cb_session;

/* Solves; fails as cb_flow_solve does. */
CB_MUST_CHECK cb_status cb_session_open(cb_session *s, cb_flow *flow, uint32_t source,
                                        uint32_t sink, const int64_t *capacity, cb_arena *arena,
                                        cb_error *err);
/* Banning twice is as once. CB_INFEASIBLE: infinite arcs lead from the node to the sink;
 * CB_INVALID: no such node. */
CB_MUST_CHECK cb_status cb_session_ban(cb_session *s, uint32_t node, cb_error *err);
void cb_session_unban(cb_session *s, uint32_t node);
void cb_session_settle(cb_session *s);

#endif
