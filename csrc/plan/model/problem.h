/* problem.h: what the planner sees: ops, values and storages of a joint graph, in plain arrays
 * indexed by id, without shapes or op semantics. Built from our own graphs (lower/annotate), from
 * other tracers, or from JSON (docs/problem.md); round-trips to that JSON, so any planner result
 * can be reproduced from a file.
 *
 * An op that is a PLACEHOLDER (argument of the graph) is never a step of a schedule. Values of one
 * storage are views of one allocation: bytes count once, while any of them lives. */
#ifndef CB_PLAN_PROBLEM_H
#define CB_PLAN_PROBLEM_H

#include "../../base/json.h"
#include "../../base/vec.h"

enum { /* op flags */
       CB_POP_PLACEHOLDER = 1 << 0,
       CB_POP_BACKWARD = 1 << 1, /* depends on a tangent: runs in the backward only */
       CB_POP_VIEW = 1 << 2,     /* allocates nothing, costs nothing */
       CB_POP_FUSIBLE = 1 << 3,  /* pointwise, or a reduction that fuses */
       CB_POP_COMPUTE = 1 << 4,  /* compute-intensive: matmul, convolution, attention */
       CB_POP_RANDOM_COUNTER =
           1 << 5, /* random, but a pure function of its counter: may be recomputed */
       CB_POP_RANDOM_STATEFUL = 1 << 6, /* random from a hidden state: runs exactly once */
       CB_POP_EFFECT = 1 << 7,          /* side effect: runs exactly once */
       CB_POP_COLLECTIVE = 1 << 8,      /* communicates: runs exactly once, unless the problem says
                                           `collective_again` */
       CB_POP_MUTATES = 1 << 9,         /* writes an input: runs exactly once */
       CB_POP_UNKNOWN = 1 << 10,        /* unknown or custom op: expensive, not recomputable */
       CB_POP_REDUCTION = 1 << 11,      /* with FUSIBLE: output much smaller than the input */
       CB_POP_PARAMETER =
           1 << 12 /* with PLACEHOLDER: parameter or buffer, there in every step anyway */
};
/* What a member of an op with an inside may be: what runs once is an op by itself. */
#define CB_POP_INNER (CB_POP_FUSIBLE | CB_POP_COMPUTE | CB_POP_RANDOM_COUNTER | CB_POP_REDUCTION)
#define CB_POP_ONCE \
    (CB_POP_RANDOM_STATEFUL | CB_POP_EFFECT | CB_POP_COLLECTIVE | CB_POP_MUTATES | CB_POP_UNKNOWN)

/* What runs whether or not anything reads what it makes. */
#define CB_POP_ACTS (CB_POP_ONCE & ~CB_POP_UNKNOWN)

enum { /* storage flags */
       CB_STORE_STATIC =
           1 << 0, /* belongs to the caller (parameter, input, given output): not counted */
       CB_STORE_HOLD_FORWARD = 1 << 1, /* must be alive when the backward starts */
       CB_STORE_HOLD_END =
           1 << 2 /* must be alive at the end (gradients kept for the optimizer, new states) */
};

/* Which ops may run again, or run their first time later than the given order has them. */
typedef enum cb_reruns {
    CB_RERUNS_FORWARD = 0, /* ops of the forward */
    CB_RERUNS_ALL,         /* ops of the backward as well */
    CB_RERUNS_COUNT
} cb_reruns;

typedef enum cb_work_class {
    CB_WORK_F32 = 0,
    CB_WORK_F64,
    CB_WORK_F16,
    CB_WORK_BF16,
    CB_WORK_INT,
    CB_WORK_CLASS_COUNT
} cb_work_class;

typedef struct cb_member { /* of an op with an inside (inside.h): makes one value of it */
    uint64_t reads;        /* inputs of the op, a bit each by their place in its list */
    uint64_t uses;         /* members before it whose values it reads, a bit each */
    uint64_t size;         /* bytes of the value that it makes */
    double flops;
    uint64_t bytes;     /* moved; what the op writes of it counts by itself */
    int64_t time_ps;    /* measured picoseconds, -1: use the cost model */
    uint64_t workspace; /* scratch bytes, beside those of the op and of other members */
    uint32_t flags;     /* CB_POP_INNER */
    uint8_t work_class; /* cb_work_class */
} cb_member;

/* A value that runs of one of its readers may take in (inlining.h): what that adds to the run. */
typedef struct cb_inlining {
    uint32_t value, op; /* what is taken in, and the op whose runs may do so */
    double flops;
    uint64_t bytes;     /* moved */
    int64_t time_ps;    /* measured picoseconds, -1: use the cost model */
    uint64_t workspace; /* scratch bytes, beside those of the run */
    uint8_t work_class; /* cb_work_class */
} cb_inlining;

typedef struct cb_problem {
    cb_arena arena; /* owns everything below */

    uint32_t n_op;
    uint32_t *op_flags;       /* [n_op] CB_POP_* */
    double *op_flops;         /* [n_op] */
    uint64_t *op_bytes;       /* [n_op] bytes moved */
    uint8_t *op_class;        /* [n_op] cb_work_class */
    int64_t *op_time_ps;      /* [n_op] measured picoseconds, -1: use the cost model */
    uint64_t *op_workspace;   /* [n_op] scratch bytes while it runs */
    uint32_t *op_group;       /* [n_op] fusion group, CB_NONE: its own */
    uint32_t *op_region;      /* [n_op] checkpoint region, CB_NONE: outside */
    const char **op_kind;     /* [n_op] "matmul" */
    const char **op_name;     /* [n_op] unique readable name, "matmul_12" */
    const char **op_location; /* [n_op] "model.py:12", "" when unknown */
    uint32_t *in_begin;       /* [n_op + 1] into in_value */
    uint32_t *in_value;
    uint32_t
        *out_begin; /* [n_op + 1] outputs of op i are values out_begin[i] .. out_begin[i+1]-1 */

    uint32_t n_value;
    uint32_t *value_op;        /* [n_value] producer */
    uint32_t *value_storage;   /* [n_value] */
    uint8_t *value_constraint; /* [n_value] cb_constraint */
    uint64_t *value_bytes;   /* [n_value] of its elements, UINT64_MAX: as many as its storage; views
                                may have fewer or more */
    const char **value_type; /* [n_value] "f32[8,32]", for people */

    uint32_t n_storage;
    uint64_t *storage_bytes;
    uint8_t *storage_flags; /* CB_STORE_* */

    uint32_t n_region;
    const char **region_name;
    uint32_t *region_parent;
    uint64_t *region_limit; /* saved bytes allowed inside, UINT64_MAX: no limit */

    uint32_t n_forward_output,
        *forward_output; /* value ids that must exist when the backward starts */
    uint32_t n_backward_output, *backward_output; /* value ids that must exist at the end */
    uint32_t backward_starts;   /* first op of the backward in the given order (= id order) */
    uint64_t align;             /* arena grain in bytes, a power of two; 64 */
    uint64_t static_bytes;      /* parameters, optimizer states, ...: what `total` adds to `live` */
    double link_bytes_per_s;    /* one direction of the offload link; 0: no offload */
    uint8_t reruns;             /* cb_reruns */
    bool collective_again;      /* collectives of the forward may run again. Their first runs stay
                                 where they are, in the base order */
    double network_bytes_per_s; /* that a collective's `op_bytes` move at, if that is slower than
                                   memory; 0: they move as in memory */

    uint32_t *member_begin; /* [n_op + 1] into member; none of its own: an op without an inside.
                               NULL: no op has one */
    cb_member *member;
    uint8_t *value_member; /* [n_value] the member of its op that makes it; NULL likewise */

    uint32_t
        *inline_begin; /* [n_op + 1] into inlining: what runs of an op may take in. NULL: none */
    cb_inlining *inlining; /* by op, then by value */

    uint32_t *over_begin; /* [n_op + 1] into `over`; NULL: no op lists anything */
    uint32_t *over;       /* places in an op's list of inputs whose memory its output may take
                             (over.h) */

    /* What a device that fuses counts (cost.h), by whoever knows which ops run as one kernel
     * (plan/torch/inductor_fusion.h); NULL: every op is by itself. */
    uint32_t *fused_group; /* [n_op] last op of its group */
    uint64_t *fused_bytes; /* [n_op] bytes moved across the border of its group */
    bool *fused_launch;    /* [n_op] is it the one that its group's launch counts for? */
} cb_problem;

typedef struct cb_problem_sizes {
    uint32_t n_op, n_in, n_value, n_storage, n_member, n_inlining, n_over;
} cb_problem_sizes;
/* Zeroed arrays; constraints FREE, times -1, ids CB_NONE. No members: no arrays for them, and
 * likewise of inlinings and memory taken over. */
CB_MUST_CHECK cb_status cb_problem_create(cb_alloc *alloc, cb_problem_sizes n, cb_problem **out,
                                          cb_error *err);
void cb_problem_free(cb_problem *p);
static inline uint64_t cb_value_bytes(const cb_problem *p, uint32_t value) {
    return p->value_bytes[value] == UINT64_MAX ? p->storage_bytes[p->value_storage[value]]
                                               : p->value_bytes[value];
}
/* The flags for which an op runs exactly once. */
static inline uint32_t cb_once_flags(const cb_problem *p, uint32_t op) {
    uint32_t once = p->op_flags[op] & CB_POP_ONCE;
    return p->collective_again ? once & ~(uint32_t)CB_POP_COLLECTIVE : once;
}
/* The first of the effects at the end of the given order, n_op if the last op is not an effect.
 * They stand for what happens after the backward (leaves copy gradients, an optimizer steps), so
 * all other ops of the backward run before them. */
uint32_t cb_problem_tail(const cb_problem *p);
/* Everything the planner relies on; run on every problem from outside. */
CB_MUST_CHECK cb_status cb_problem_verify(const cb_problem *p, cb_error *err);
/* Hash of all but sizes and costs: equal for problems of graphs that differ in sizes only. */
uint64_t cb_problem_structure(const cb_problem *p);
/* Hash of structure, sizes and flags; not of costs, names or source lines. */
uint64_t cb_problem_fingerprint(const cb_problem *p);

CB_MUST_CHECK cb_status cb_problem_to_json(const cb_problem *p, cb_str *out, cb_error *err);
CB_MUST_CHECK cb_status cb_problem_from_json(cb_alloc *alloc, const char *text, size_t length,
                                             cb_problem **out, cb_error *err);

#endif
