/* cost.h: the one place where work becomes time, in integer picoseconds. */
#ifndef CB_PLAN_COST_H
#define CB_PLAN_COST_H

#include "inlining.h"

typedef struct cb_device {
    const char *name;
    double flops_per_s[CB_WORK_CLASS_COUNT];
    double bytes_per_s;
    double launch_s;
    double link_bytes_per_s;                 /* to the host, one direction; 0: no offload */
    bool fused;                              /* kernels are those of problem.h's fused_group */
    double point_per_s[CB_WORK_CLASS_COUNT]; /* the arithmetic of ops that fuse; 0: flops_per_s */
} cb_device;

/* Rows: "cpu" (a stated 2-core guess until measured), "a100", "h100", "h200", "b200", "rtx4090"
 * (data sheets), none of them fused. NULL: unknown name. */
const cb_device *cb_device_find(const char *name);
/* CB_INVALID with the names there are. */
CB_MUST_CHECK cb_status cb_unknown_device(const char *name, cb_error *err);
/* Seconds that so much arithmetic takes by itself. What fuses runs on vector units and goes through
 * exponentials and the like, far below the peak of products. `flags`: CB_POP_* */
double cb_arithmetic_s(const cb_device *device, uint32_t flags, uint32_t work_class, double flops);
/* max(flops / rate, bytes / bandwidth) + launch, where a fused device counts only bytes that cross
 * the border of the op's group, and one launch a group. A collective's bytes move at the problem's
 * `network_bytes_per_s` if that is slower. Views and placeholders take 0; a measured time wins. */
int64_t cb_op_time_ps(const cb_problem *p, uint32_t op, const cb_device *device);
/* The same of a run that makes these outputs (inside.h). Of an op with an inside the time is a sum:
 * what every run of the op takes, what the members of its slice take, and what it takes to write
 * each output. */
int64_t cb_run_time_ps(const cb_problem *p, uint32_t op, uint32_t made, const cb_device *device);
/* Parts of that sum: every run of the op; one member, by its place; writing one output. */
int64_t cb_own_time_ps(const cb_problem *p, uint32_t op, const cb_device *device);
int64_t cb_member_time_ps(const cb_problem *p, uint32_t op, uint32_t member,
                          const cb_device *device);
int64_t cb_write_time_ps(const cb_problem *p, uint32_t value, const cb_device *device);
/* What taking in a value adds to the time of a run, by the place of its inlining. */
int64_t cb_inline_time_ps(const cb_problem *p, uint32_t at, const cb_device *device);
/* What all that a run of the op takes in adds (inlining.h). */
int64_t cb_taken_time_ps(const cb_problem *p, uint32_t op, uint64_t taken, const cb_device *device);
/* The problem's own link goes before the device's. 0: there is none. */
double cb_link_bytes_per_s(const cb_problem *p, const cb_device *device);
/* Of a copy over such a link, which there must be; negative: 1,000 s or more, which no plan takes.
 */
int64_t cb_copy_time_ps(uint64_t bytes, double link_bytes_per_s);

/* Whom to ask now and then whether to go on. */
typedef struct cb_poll {
    cb_poll_fn ask; /* may be NULL: go on */
    void *user;
} cb_poll;
static inline int cb_poll_answer(cb_poll poll) {
    return poll.ask ? poll.ask(poll.user) : CB_POLL_GO;
}
/* What only stops for CB_POLL_CANCEL, or for anything that is no answer: CB_POLL_FINISH is for
 * searches, which have a plan to end with. */
static inline bool cb_poll_cancels(cb_poll poll) {
    int answer = cb_poll_answer(poll);
    return answer != CB_POLL_GO && answer != CB_POLL_FINISH;
}

/* Moments in picoseconds: the later of two, and one that lies so much behind; no sum overflows. */
static inline int64_t cb_later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t cb_after(int64_t a, int64_t ps) {
    return a > INT64_MAX - ps ? INT64_MAX : a + ps;
}

#endif
