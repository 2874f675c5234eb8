/* grouping.h: determines, before planning, which ops of a joint graph form one op of the problem,
 * and which values may be inlined into its runs (plan/model/inside.h, inlining.h). contract.h makes
 * the problem, and expand.h converts its plan back to ops of the graph.
 *
 *     graph      0 input  1 matmul  2 add  3 expand  4 gelu  5 matmul        group {2, 4}
 *     problem    0 input  1 matmul  2 {add, gelu}  3 matmul                  views are not ops
 *
 * A reader of a view reads its storage, so problems of groups have no views: each of their values
 * has a separate storage. A run of an op uses one domain (domain.h), that of all its members and of
 * all values that may be inlined into it. So any subset fits. */
#ifndef CB_FUSE_GROUPING_H
#define CB_FUSE_GROUPING_H

#include "../ir/graph.h"
#include "../plan/model/problem.h"
#include "fuses.h"

/* A request for groups and inlinings, in ids of the joint graph. */
typedef struct cb_group_request {
    uint32_t n_group;
    const uint32_t *begin; /* [n_group + 1] into op */
    const uint32_t *op; /* ops of each group; no op is in two groups, and none is a view or input */
    const uint32_t *kernel;  /* [n_group] in rising order: groups with equal numbers could run as
                                one, and are adjacent in the order; NULL: there are none */
    const cb_domain *domain; /* [n_group] the domain over which they could run as one; likewise */
    uint32_t n_inlining;
    const uint32_t *value;  /* [n_inlining] a value that may be inlined */
    const uint32_t *reader; /* [n_inlining] the op into which it may be inlined, or any op of its
                               group */
} cb_group_request;

/* Reads JSON, see grouping_json.c. The result is allocated in `arena`. */
CB_MUST_CHECK cb_status cb_group_request_read(const char *text, size_t length, cb_arena *arena,
                                              cb_group_request *out, cb_error *err);

typedef struct cb_grouped_inlining {
    uint32_t value; /* value of the graph */
    uint32_t op;    /* op of the problem */
} cb_grouped_inlining;

typedef struct cb_grouping {
    uint32_t n_op;     /* number of ops of the problem, in its order */
    uint32_t *begin;   /* [n_op + 1] into member */
    uint32_t *member;  /* ops of the graph, rising */
    uint32_t *kernel;  /* [n_op] the requested group; CB_NONE: no group */
    uint32_t *op_of;   /* [ops of the graph] op of the problem; CB_NONE: a view */
    uint32_t *root;    /* [values of the graph] the value of which it is a view, or itself */
    uint8_t *is_read;  /* [values of the graph] for roots, true if an op reads it, directly or
                          through views */
    uint8_t *is_given; /* [values of the graph] for roots, true if it is a value of the problem */
    cb_domain *domain; /* [n_op] domain of its runs; {0, 0}: it runs separately and no value is
                          inlined */
    uint32_t n_inlining;
    cb_grouped_inlining *inlining; /* by op, then by value */
} cb_grouping;

static inline uint32_t cb_group_size(const cb_grouping *x, uint32_t op) {
    return x->begin[op + 1] - x->begin[op];
}
/* True if a member of an inside makes the value: such an op has a member for its first output, and
 * for each other output that is read or returned. */
static inline bool cb_is_member_value(const cb_grouping *x, const cb_graph *g, uint32_t value) {
    const bool first = g->ops.at[g->values.at[value].producer].out_begin == value;
    return first || x->is_read[value] || x->is_given[value];
}
/* True if the op represents the tangent: it is in the backward, and reads no value made there. Such
 * an op is never in a group. */
bool cb_is_tangent(const cb_graph *g, uint32_t op);
/* Marks with 1 in `slice` [ops of the graph] the members of its op that make a value; entries that
 * are not 0 stay unchanged. */
void cb_mark_slice(const cb_grouping *x, const cb_graph *g, uint32_t value, uint8_t *slice);

/* Makes a grouping. `single` is the result of cb_annotate. Groups that cannot run are refused:
 * CB_UNSUPPORTED names the op that prevents it. Drops inlinings that are invalid or that conflict
 * with other inlinings of the same op. The result is allocated in `arena`. */
CB_MUST_CHECK cb_status cb_grouping_make(const cb_graph *joint, const cb_problem *single,
                                         const cb_group_request *request, cb_fuses_fn fuses,
                                         cb_arena *arena, cb_grouping *out, cb_error *err);
/* Returns CB_INTERNAL if a property of the grouping does not hold. */
CB_MUST_CHECK cb_status cb_grouping_verify(const cb_grouping *x, const cb_graph *joint,
                                           const cb_problem *single, cb_error *err);
/* Writes it as text, see grouping_text.c. */
CB_MUST_CHECK cb_status cb_grouping_print(const cb_grouping *x, const cb_graph *joint, cb_str *out,
                                          cb_error *err);

#endif
