/* schedule.h: a schedule is the list of ops to run, in order, with the outputs of each run if its
 * op has an inside (model/inside.h), and its inlined values (model/inlining.h); everything else
 * follows from it. The evaluator computes lives, peak, saved bytes, time, and the offset of each
 * storage instance in the arena. The planner and lowering both use it, so the plan is what runs. */
#ifndef CB_PLAN_SCHEDULE_H
#define CB_PLAN_SCHEDULE_H

#include "../model/cost.h"

typedef enum cb_action {
    CB_ACTION_RUN = 0,
    CB_ACTION_OUT,  /* start copying the op's outputs to the host */
    CB_ACTION_WAIT, /* stall until that copy has ended */
    CB_ACTION_IN,   /* allocate, and start bringing it back */
    CB_ACTION_COUNT
} cb_action;
extern const char *const cb_action_names[CB_ACTION_COUNT];

typedef struct cb_schedule {
    uint32_t n_step;
    const uint32_t *step;  /* [n_step] op ids; an op that occurs again is recomputed */
    const uint8_t *action; /* [n_step] cb_action; NULL: all run */
    const uint32_t *made;  /* [n_step] set of outputs that a run makes; NULL: always all.
                              CB_ALL_OUTPUTS for an op without an inside */
    const uint64_t *taken; /* [n_step] inlined values of a run, among its op's inlinings; NULL: none
                              */
    uint32_t backward_starts; /* index of the first step of the backward */
} cb_schedule;
static inline cb_action cb_action_at(const cb_schedule *s, uint32_t step) {
    return s->action ? (cb_action)s->action[step] : CB_ACTION_RUN;
}

static inline uint32_t cb_made_at(const cb_problem *p, const cb_schedule *s, uint32_t step) {
    uint32_t all = cb_all_made(p, s->step[step]);
    return s->made ? s->made[step] & all : all;
}

static inline uint64_t cb_taken_at(const cb_schedule *s, uint32_t step) {
    return s->taken ? s->taken[step] : 0;
}

/* One life of one storage, or the scratch of one step (storage CB_NONE). It is alive while steps
 * made..last run. A life that moves to the host lasts until the copy has ended. */
typedef struct cb_instance {
    uint32_t storage;
    uint32_t made; /* step */
    uint32_t last; /* last step that uses it; n_step: held to the end */
    uint64_t bytes;
    uint64_t offset; /* offset in the arena, filled by cb_place */
} cb_instance;

typedef struct cb_lives {
    uint32_t n_instance;
    cb_instance *instance;        /* in order of `made`; statics have none */
    uint32_t *value_instance_in;  /* per read, in the order of cb_read_run for each step: the
                                     instance read; CB_NONE: static, or not read by this run */
    uint32_t *in_begin;           /* [n_step + 1] into value_instance_in */
    uint32_t *value_instance_out; /* likewise per step output; CB_NONE also if the run does not make
                                     it */
    uint32_t *out_begin;          /* [n_step + 1] */
    uint32_t *scratch_instance;   /* [n_step] CB_NONE: no scratch */
    uint32_t *over; /* [n_instance] the instance whose memory it takes over (model/over.h), and
                       which ends with the step that makes this one; CB_NONE: none. NULL: nothing is
                       taken over */
    uint64_t
        peak_bytes; /* peak of live bytes: inputs, outputs and scratch of a running step are alive
                       together; memory taken over counts once */
    uint32_t peak_step;
    uint64_t saved_bytes; /* bytes alive between forward and backward */
    int64_t time_ps;
    int64_t once_ps; /* time of running everything in the schedule once */
    uint32_t n_recomputed;
    uint64_t *live_bytes;         /* [n_step] live bytes while the step runs */
    int64_t stall_ps;             /* the part of time_ps that waits for copies */
    uint64_t out_bytes, in_bytes; /* bytes copied to the host, and back */
    uint64_t host_bytes;          /* maximum held on the host at one time */
} cb_lives;

CB_MUST_CHECK cb_status cb_schedule_copy(const cb_schedule *s, cb_arena *arena, cb_schedule *out,
                                         cb_error *err);
/* Checks every rule (inputs are alive, backward ops come after the start, run-once ops run once,
 * outputs exist, an op without an inside makes all of them, an op with an inside makes no output
 * without a reader, inlined values may be inlined and are read, shared memory does not move) and
 * fills `out` from `arena`. CB_INVALID names a violated rule. CB_UNSUPPORTED: a value moves, but
 * there is no link. */
CB_MUST_CHECK cb_status cb_schedule_walk(const cb_problem *p, const cb_schedule *s,
                                         const cb_device *device, cb_arena *arena, cb_lives *out,
                                         cb_error *err);
/* Assigns offsets so that lives that overlap in time do not overlap in memory; deterministic.
 * Returns the arena's bytes (a multiple of p->align). Tens of thousands of lives take seconds:
 * returns CB_CANCELLED if `poll` returns CB_POLL_CANCEL; CB_POLL_FINISH is for searches. */
CB_MUST_CHECK cb_status cb_place(const cb_problem *p, cb_lives *lives, cb_arena *scratch,
                                 cb_poll poll, uint64_t *arena_bytes, cb_error *err);
/* Does the same for lives that differ a little from placed ones, given the offsets of those. Lives
 * keep their offsets if possible, so the arena seldom grows. */
CB_MUST_CHECK cb_status cb_place_near(const cb_problem *p, cb_lives *lives, cb_arena *scratch,
                                      cb_poll poll, uint64_t *arena_bytes, cb_error *err);

#endif
