/* grouping.h: which ops of a joint graph are one op of the problem, before anything is planned, and
 * what its runs may take in (plan/model/inside.h, inlining.h). contract.h makes the problem, and
 * expand.h goes back from a plan of it to ops of the graph.
 *
 *     graph      0 input  1 matmul  2 add  3 expand  4 gelu  5 matmul        group {2, 4}
 *     problem    0 input  1 matmul  2 {add, gelu}  3 matmul                  a view is no op
 *
 * What reads a view reads the storage that it shows, so problems of groups have no views: each of
 * their values has a storage of its own. A run of an op does everything over one domain (domain.h):
 * that of all its members and of all that it may take in together. So any of them fit. */
#ifndef CB_FUSE_GROUPING_H
#define CB_FUSE_GROUPING_H

#include "../ir/graph.h"
#include "../plan/model/problem.h"
#include "fuses.h"

/* What is asked for, in ids of the joint graph. */
typedef struct cb_group_request {
    uint32_t n_group;
    const uint32_t *begin; /* [n_group + 1] into op */
    const uint32_t *op;    /* of each group; each op in one at most, none of them a view or input */
    const uint32_t *kernel;  /* [n_group] rising: groups of one number could run as one, and stand
                                together in the order; NULL: none do, */
    const cb_domain *domain; /* [n_group] and over this domain; likewise */
    uint32_t n_inlining;
    const uint32_t *value;  /* [n_inlining] what may be taken in, */
    const uint32_t *reader; /* [n_inlining] and an op (or any of its group) that may do so */
} cb_group_request;

/* From JSON, see grouping_json.c. What is handed out lies in `arena`. */
CB_MUST_CHECK cb_status cb_group_request_read(const char *text, size_t length, cb_arena *arena,
                                              cb_group_request *out, cb_error *err);

typedef struct cb_grouped_inlining {
    uint32_t value; /* of the graph */
    uint32_t op;    /* of the problem */
} cb_grouped_inlining;

typedef struct cb_grouping {
    uint32_t n_op;     /* of the problem, in its order */
    uint32_t *begin;   /* [n_op + 1] into member */
    uint32_t *member;  /* ops of the graph, rising */
    uint32_t *kernel;  /* [n_op] as asked for; CB_NONE: of no group */
    uint32_t *op_of;   /* [ops of the graph] op of the problem, CB_NONE: a view */
    uint32_t *root;    /* [values of the graph] the value that made its storage */
    uint8_t *is_read;  /* [values of the graph] roots: an op reads it, through views or not */
    uint8_t *is_given; /* [values of the graph] roots: a value of the problem */
    cb_domain *domain; /* [n_op] of its runs; {0, 0}: it runs by itself and takes nothing in */
    uint32_t n_inlining;
    cb_grouped_inlining *inlining; /* by op, then by value */
} cb_grouping;

static inline uint32_t cb_group_size(const cb_grouping *x, uint32_t op) {
    return x->begin[op + 1] - x->begin[op];
}
/* Whether a value is made by a member of an inside: such an op has a member for the first of its
 * outputs, and for each other that anybody reads or is given. */
static inline bool cb_is_member_value(const cb_grouping *x, const cb_graph *g, uint32_t value) {
    const bool first = g->ops.at[g->values.at[value].producer].out_begin == value;
    return first || x->is_read[value] || x->is_given[value];
}
/* Whether it stands for the tangent: of the backward, and reads nothing of it. No group has it. */
bool cb_is_tangent(const cb_graph *g, uint32_t op);
/* Marks in `slice` [ops of the graph] with 1 the members of its op that a value is made by; where
 * it is not 0, it stays as it is. */
void cb_mark_slice(const cb_grouping *x, const cb_graph *g, uint32_t value, uint8_t *slice);

/* `single`: the graph as cb_annotate gives it. Groups that cannot run are refused: CB_UNSUPPORTED
 * names the op that keeps one from it. Of the inlinings those are left out that are none, or that a
 * run could not do beside the others of its op. What is handed out lies in `arena`. */
CB_MUST_CHECK cb_status cb_grouping_make(const cb_graph *joint, const cb_problem *single,
                                         const cb_group_request *request, cb_fuses_fn fuses,
                                         cb_arena *arena, cb_grouping *out, cb_error *err);
/* CB_INTERNAL: what it promises does not hold. */
CB_MUST_CHECK cb_status cb_grouping_verify(const cb_grouping *x, const cb_graph *joint,
                                           const cb_problem *single, cb_error *err);
/* As text, see grouping_text.c. */
CB_MUST_CHECK cb_status cb_grouping_print(const cb_grouping *x, const cb_graph *joint, cb_str *out,
                                          cb_error *err);

#endif
