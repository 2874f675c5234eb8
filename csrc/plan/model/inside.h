/* inside.h: ops with an inside. Internal.
 *
 * Most ops make all of their outputs whenever they run. An op with an inside is a group of members
 * that run as one: a run makes some of its outputs and executes the slice that they need: the
 * members that lead to them, and the inputs that these members read. Values that members make for
 * each other take no bytes.
 *
 *     in 0 --> member 0 --> member 1 --> output 0       outputs {0}: members 0 and 1, input 0
 *                     \--> member 2 --> output 1        outputs {1}: members 0 and 2, both inputs
 *     in 1 ---------------/
 *
 * The outputs of a run are a set, with one bit for each output of the op. */
#ifndef CB_PLAN_INSIDE_H
#define CB_PLAN_INSIDE_H

#include "problem.h"

#define CB_MOST_MEMBERS 64 /* maximum number of members of one op */
#define CB_MOST_INNER_INPUTS 64
#define CB_MOST_INNER_OUTPUTS 32

/* All outputs of an op, and the only set that an op without an inside may make. */
#define CB_ALL_OUTPUTS UINT32_MAX

typedef struct cb_slice {
    uint64_t members; /* indices in the op; empty if the op has no inside */
    uint64_t inputs;  /* indices in the op's list; all bits set: all inputs */
} cb_slice;

static inline bool cb_has_inside(const cb_problem *p, uint32_t op) {
    return p->member_begin && p->member_begin[op] < p->member_begin[op + 1];
}
/* Returns all outputs of the op as a set. */
static inline uint32_t cb_all_made(const cb_problem *p, uint32_t op) {
    if (!cb_has_inside(p, op)) return CB_ALL_OUTPUTS;
    uint32_t n = p->out_begin[op + 1] - p->out_begin[op];
    return n == CB_MOST_INNER_OUTPUTS ? UINT32_MAX : (UINT32_C(1) << n) - 1;
}
static inline bool cb_makes(uint32_t made, uint32_t output) {
    return made == CB_ALL_OUTPUTS || made >> output & 1;
}
/* Returns the slice of the outputs `made`: a set of existing outputs, or CB_ALL_OUTPUTS. */
cb_slice cb_slice_of(const cb_problem *p, uint32_t op, uint32_t made);
static inline bool cb_slice_reads(cb_slice slice, uint32_t input) {
    return slice.inputs == UINT64_MAX || (slice.inputs >> input & 1);
}
/* Returns the scratch of a run that makes these outputs. */
uint64_t cb_run_workspace(const cb_problem *p, uint32_t op, uint32_t made);
/* Returns CB_UNSUPPORTED if an op has an inside, which `what` does not support. */
CB_MUST_CHECK cb_status cb_refuse_insides(const cb_problem *p, const char *what, cb_error *err);
/* Checks the inside of one op; `root` [n_storage] is the op that allocates each storage. */
CB_MUST_CHECK cb_status cb_verify_inside(const cb_problem *p, uint32_t op, const uint32_t *root,
                                         cb_error *err);

#endif
