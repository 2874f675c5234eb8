/* offload_timeline.h: a plan with copies between device and host: as built, and simulated with a
 * clock. Internal: used through offload_sim.h. */
#ifndef CB_PLAN_OFFLOAD_TIMELINE_H
#define CB_PLAN_OFFLOAD_TIMELINE_H

#include "carry.h"
#include "sim.h"

typedef struct cb_sim_fetch { /* a value that comes back */
    uint32_t op, step;        /* step as built */
    uint32_t departure;
    uint32_t life, n_life; /* the returning lives, from `life` on */
    uint64_t bytes;
    uint32_t soonest; /* first run by which all its earlier lives have ended */
    uint32_t first;   /* run that reads it first */
    uint32_t at;      /* run before which it is requested */
} cb_sim_fetch;

typedef struct cb_sim_departure { /* a value that leaves */
    uint32_t op, source;          /* step that made it */
    uint32_t life, n_life;        /* entries of `gone` */
    uint64_t bytes;
    uint32_t fetches; /* fetches that are kept and still pending */
    uint32_t last;    /* run that uses it last so far */
    uint32_t next;    /* next departure after the same run; CB_NONE: it is the last */
    int64_t end;      /* end of the copy */
} cb_sim_departure;

typedef struct cb_sim_copy { /* a copy in progress */
    int64_t end;
    uint64_t bytes;
    uint32_t op;
} cb_sim_copy;

typedef struct cb_offload_sim {
    const cb_facts *f;
    cb_arena arena;
    uint32_t *carrier; /* see cb_carriers */
    int64_t *copy_ps;
    bool *must;

    /* as built; see sim.h */
    CB_VEC(cb_sim_step) step;
    CB_VEC(cb_sim_read) read;
    CB_VEC(cb_sim_life) life;
    CB_VEC(cb_sim_read) hold;
    CB_VEC(uint32_t) stack;
    CB_VEC(uint32_t) new_index;
    CB_VEC(bool) keep;
    CB_VEC(bool) leaves; /* [life.len] */
    CB_VEC(cb_sim_fetch) fetch;
    CB_VEC(cb_sim_departure) departure;
    CB_VEC(uint32_t) gone; /* lives that leave */
    uint32_t *value_step, *value_life, *latest, *marked, *done;
    uint32_t *base_step, *first_life; /* see sim.h */
    uint32_t *wanted;                 /* [n_op] last anchor that needs it brought back */
    uint32_t *brought;                /* [n_op] last anchor it was brought back for */
    uint32_t *host;                   /* [n_op] its departure; CB_NONE: none so far */
    CB_VEC(uint32_t) fetch_of;        /* [step.len] CB_NONE: a run */
    uint32_t crossing;
    size_t n_forward_hold;
    /* by run that is kept */
    CB_VEC(uint32_t) run;        /* step as built */
    CB_VEC(uint64_t) scratch;    /* [run.len] bytes in addition to its lives */
    CB_VEC(int64_t) start;       /* [run.len + 1] start times if nothing stalls */
    CB_VEC(uint64_t) made, ends; /* [run.len + 1] bytes that begin with it, and end with it */
    CB_VEC(uint64_t) room;       /* [run.len + 1] bytes alive while it runs */
    CB_VEC(uint32_t) leaving_at; /* [run.len + 1] first departure after it */
    CB_VEC(cb_sim_copy) leaving, held;
    uint32_t backward; /* first run of the backward */

    /* results */
    bool broken; /* not a valid plan: a value comes back before it has left */
    uint64_t peak, moved_bytes, host_bytes;
    int64_t time_ps, stall_ps;
    uint64_t *moment; /* [n_base] peak of bytes while a base op and the runs anchored there run */
    CB_VEC(uint32_t) out; /* the schedule: op | cb_action << CB_SIM_ACTION */
    uint32_t backward_starts;
} cb_offload_sim;
#define CB_SIM_ACTION 30

/* Must be called after the plan has been built. Computes when copies run, which steps wait for
 * them, and the results. Uses up to `target` bytes if that saves time. */
CB_MUST_CHECK bool cb_offload_sim_play(cb_offload_sim *m, uint64_t target);

#endif
