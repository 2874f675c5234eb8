/* over.h: memory that an output takes over from an input. An op lists the inputs whose memory its
 * one output may take, by their places in the op's list of inputs, in the order of preference. That
 * the output takes it is no decision of a plan: it does where the life of such an input ends with
 * the step. Internal.
 *
 * The two lives then share their bytes: while the step runs they count once, and both have the same
 * place in the arena. What a run takes in (inlining.h) may read the same memory in another order,
 * so a run that takes something in takes nothing over. */
#ifndef CB_PLAN_OVER_H
#define CB_PLAN_OVER_H

#include "problem.h"

/* The places that an op lists. */
static inline uint32_t cb_count_over(const cb_problem *p, uint32_t op) {
    return p->over_begin ? p->over_begin[op + 1] - p->over_begin[op] : 0;
}
static inline const uint32_t *cb_over_of(const cb_problem *p, uint32_t op) {
    return p->over + p->over_begin[op];
}
/* The storage of the i-th input that an op lists. */
static inline uint32_t cb_over_storage(const cb_problem *p, uint32_t op, uint32_t i) {
    return p->value_storage[p->in_value[p->in_begin[op] + cb_over_of(p, op)[i]]];
}
/* Bytes that a step of an op with such a list saves where the output takes memory over. */
static inline uint64_t cb_over_bytes(const cb_problem *p, uint32_t op) {
    return p->storage_bytes[p->value_storage[p->out_begin[op]]];
}

/* The same problem, in the same memory, where nothing is taken over. Shares count from saving
 * everything in it: they are as many bytes whether or not outputs take over memory. */
static inline cb_problem cb_without_over(const cb_problem *p) {
    cb_problem apart = *p;
    apart.over_begin = apart.over = NULL;
    return apart;
}

/* Storages whose memory nobody may take over, into `out` [n_storage]: the caller's, and what is
 * held or returned. */
void cb_mark_kept(const cb_problem *p, bool *out);
/* Why the output of `op` may not take over the memory of the input at place `at`; NULL: it may, as
 * far as bytes and lives are concerned. Whether the kernel allows it is the caller's to know.
 * `kept` as from cb_mark_kept. */
const char *cb_over_refusal(const cb_problem *p, const bool *kept, uint32_t op, uint32_t at);

/* Lists, for each op, the inputs that `may` allows and cb_over_refusal does not refuse. Replaces
 * what the problem lists. The arrays are the problem's. */
typedef bool (*cb_may_be_over)(const void *context, const cb_problem *p, uint32_t op, uint32_t at);
CB_MUST_CHECK cb_status cb_list_over(cb_problem *p, cb_may_be_over may, const void *context,
                                     cb_error *err);
/* The rules for these lists. */
CB_MUST_CHECK cb_status cb_verify_over(const cb_problem *p, cb_error *err);

#endif
