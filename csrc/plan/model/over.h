/* over.h: outputs that take over the memory of an input. An op lists the inputs whose memory its
 * only output may take, by their indices in the op's list of inputs, in order of preference. Plans
 * do not choose: the output takes the memory if the life of such an input ends with the step.
 * Internal.
 *
 * The two lives then share their bytes: they count once while the step runs, and both have the same
 * offset in the arena. An inlined value (inlining.h) may read the same memory in another order, so
 * a run with inlined values takes nothing over. */
#ifndef CB_PLAN_OVER_H
#define CB_PLAN_OVER_H

#include "problem.h"

/* Return the number of inputs that an op lists, and their indices. */
static inline uint32_t cb_count_over(const cb_problem *p, uint32_t op) {
    return p->over_begin ? p->over_begin[op + 1] - p->over_begin[op] : 0;
}
static inline const uint32_t *cb_over_of(const cb_problem *p, uint32_t op) {
    return p->over + p->over_begin[op];
}
/* Returns the storage of the i-th input that an op lists. */
static inline uint32_t cb_over_storage(const cb_problem *p, uint32_t op, uint32_t i) {
    return p->value_storage[p->in_value[p->in_begin[op] + cb_over_of(p, op)[i]]];
}
/* Returns the bytes that a step of an op with such a list saves if the output takes memory over. */
static inline uint64_t cb_over_bytes(const cb_problem *p, uint32_t op) {
    return p->storage_bytes[p->value_storage[p->out_begin[op]]];
}

/* Returns a shallow copy of the problem in which outputs take over no memory. Shares refer to
 * saving everything in that problem, so they are the same bytes whether or not outputs take over
 * memory. */
static inline cb_problem cb_without_over(const cb_problem *p) {
    cb_problem apart = *p;
    apart.over_begin = apart.over = NULL;
    return apart;
}

/* Marks in `out` [n_storage] the storages whose memory must not be taken over: the caller's, and
 * those held or returned. */
void cb_mark_kept(const cb_problem *p, bool *out);
/* Returns why the output of `op` may not take over the memory of input `at`; NULL: bytes and lives
 * allow it. Whether the kernel allows it is not checked. `kept` comes from cb_mark_kept. */
const char *cb_over_refusal(const cb_problem *p, const bool *kept, uint32_t op, uint32_t at);

/* Lists, for each op, the inputs that `may` allows and cb_over_refusal does not refuse. Replaces
 * the problem's lists. The problem owns the arrays. */
typedef bool (*cb_may_be_over)(const void *context, const cb_problem *p, uint32_t op, uint32_t at);
CB_MUST_CHECK cb_status cb_list_over(cb_problem *p, cb_may_be_over may, const void *context,
                                     cb_error *err);
/* Checks these lists. */
CB_MUST_CHECK cb_status cb_verify_over(const cb_problem *p, cb_error *err);

#endif
