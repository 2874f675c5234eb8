/* cost.h: converts work to time, in integer picoseconds. No other file does. */
#ifndef CB_PLAN_COST_H
#define CB_PLAN_COST_H

#include "inlining.h"

typedef struct cb_device {
    const char *name;
    double flops_per_s[CB_WORK_CLASS_COUNT];
    double bytes_per_s;
    double launch_s;
    double link_bytes_per_s;                 /* rate of the link to the host, in one direction; 0:
                                                no offload */
    bool fused;                              /* kernels are those of problem.h's fused_group */
    double point_per_s[CB_WORK_CLASS_COUNT]; /* arithmetic rates of ops that fuse; 0: flops_per_s */
} cb_device;

/* Finds a row by its name: "cpu" (a 2-core guess until measured), or "a100", "h100", "h200",
 * "b200", "rtx4090" (from data sheets). None of them is fused. Returns NULL for an unknown name. */
const cb_device *cb_device_find(const char *name);
/* Returns CB_INVALID, with the known names in the text. */
CB_MUST_CHECK cb_status cb_unknown_device(const char *name, cb_error *err);
/* Returns the seconds of this much arithmetic. Ops that fuse run on vector units and compute
 * exponentials and the like, far below the peak of products. `flags`: CB_POP_* */
double cb_arithmetic_s(const cb_device *device, uint32_t flags, uint32_t work_class, double flops);
/* Returns max(flops / rate, bytes / bandwidth) + launch. A fused device counts only bytes that
 * cross the border of the op's group, and one launch per group. A collective's bytes move at the
 * problem's `network_bytes_per_s` if that is slower. Views and placeholders take 0; a measured time
 * overrides the model. */
int64_t cb_op_time_ps(const cb_problem *p, uint32_t op, const cb_device *device);
/* Does the same for a run that makes these outputs (inside.h). For an op with an inside the time is
 * a sum: of the op's own work, of the members of its slice, and of writing each output. */
int64_t cb_run_time_ps(const cb_problem *p, uint32_t op, uint32_t made, const cb_device *device);
/* Return the parts of that sum: the op's own work, one member, and writing one output. */
int64_t cb_own_time_ps(const cb_problem *p, uint32_t op, const cb_device *device);
int64_t cb_member_time_ps(const cb_problem *p, uint32_t op, uint32_t member,
                          const cb_device *device);
int64_t cb_write_time_ps(const cb_problem *p, uint32_t value, const cb_device *device);
/* Returns what inlining a value adds to the time of a run, by the index of its inlining. */
int64_t cb_inline_time_ps(const cb_problem *p, uint32_t at, const cb_device *device);
/* Returns what all values inlined into a run of the op add (inlining.h). */
int64_t cb_taken_time_ps(const cb_problem *p, uint32_t op, uint64_t taken, const cb_device *device);
/* Returns the rate of the problem's link, which overrides the device's; 0 if there is none. */
double cb_link_bytes_per_s(const cb_problem *p, const cb_device *device);
/* Returns the time of a copy over the link, which must exist; negative if it is 1,000 s or more,
 * which no plan uses. */
int64_t cb_copy_time_ps(uint64_t bytes, double link_bytes_per_s);

/* The caller's function that decides whether the work goes on. */
typedef struct cb_poll {
    cb_poll_fn ask; /* may be NULL: go on */
    void *user;
} cb_poll;
static inline int cb_poll_answer(cb_poll poll) {
    return poll.ask ? poll.ask(poll.user) : CB_POLL_GO;
}
/* Polls, and returns true for CB_POLL_CANCEL or an invalid answer. CB_POLL_FINISH is for searches,
 * which can end with a plan. */
static inline bool cb_poll_cancels(cb_poll poll) {
    int answer = cb_poll_answer(poll);
    return answer != CB_POLL_GO && answer != CB_POLL_FINISH;
}

/* These return the later of two times, and a time plus a duration, in picoseconds. Sums
 * saturate. */
static inline int64_t cb_later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t cb_after(int64_t a, int64_t ps) {
    return a > INT64_MAX - ps ? INT64_MAX : a + ps;
}

#endif
