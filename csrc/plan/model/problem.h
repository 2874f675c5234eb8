/* problem.h: the planner's view of a joint graph: ops, values and storages in plain arrays indexed
 * by id, without shapes or op semantics. It is built from our graphs (lower/annotate), by other
 * tracers, or from JSON (docs/problem.md), and round-trips to that JSON, so any planner result can
 * be reproduced from a file.
 *
 * An op that is a PLACEHOLDER (argument of the graph) is never a step of a schedule. Values of one
 * storage are views of one allocation: bytes count once, while any of these values is alive. */
#ifndef CB_PLAN_PROBLEM_H
#define CB_PLAN_PROBLEM_H

#include "../../base/json.h"
#include "../../base/vec.h"

enum { /* op flags */
       CB_POP_PLACEHOLDER = 1 << 0,
       CB_POP_BACKWARD = 1 << 1, /* depends on a tangent: runs only in the backward */
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
       CB_POP_PARAMETER = 1 << 12 /* with PLACEHOLDER: parameter or buffer, alive in every step */
};
/* Flags of a member of an op with an inside; ops that run once are separate ops. */
#define CB_POP_INNER (CB_POP_FUSIBLE | CB_POP_COMPUTE | CB_POP_RANDOM_COUNTER | CB_POP_REDUCTION)
#define CB_POP_ONCE \
    (CB_POP_RANDOM_STATEFUL | CB_POP_EFFECT | CB_POP_COLLECTIVE | CB_POP_MUTATES | CB_POP_UNKNOWN)

/* Flags of ops that run even if nothing reads their outputs. */
#define CB_POP_ACTS (CB_POP_ONCE & ~CB_POP_UNKNOWN)

enum { /* storage flags */
       CB_STORE_STATIC =
           1 << 0, /* belongs to the caller (parameter, input, given output): not counted */
       CB_STORE_HOLD_FORWARD = 1 << 1, /* must be alive when the backward starts */
       CB_STORE_HOLD_END =
           1 << 2 /* must be alive at the end (gradients kept for the optimizer, new states) */
};

/* The ops that may run again, or have their first run later than in the given order. */
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

typedef struct cb_member { /* a member of an op with an inside (inside.h), which makes one value of
                              the op */
    uint64_t reads;        /* inputs of the op, one bit for each index in its list */
    uint64_t uses;         /* earlier members whose values it reads, one bit each */
    uint64_t size;         /* bytes of the value that it makes */
    double flops;
    uint64_t bytes;     /* bytes moved; writes of the op count separately */
    int64_t time_ps;    /* measured picoseconds, -1: use the cost model */
    uint64_t workspace; /* scratch bytes, in addition to those of the op and of other members */
    uint32_t flags;     /* CB_POP_INNER */
    uint8_t work_class; /* cb_work_class */
} cb_member;

/* A value that may be inlined into runs of one of its readers (inlining.h), and what that adds to a
 * run. */
typedef struct cb_inlining {
    uint32_t value, op; /* the inlined value, and the op into whose runs it may be inlined */
    double flops;
    uint64_t bytes;     /* moved */
    int64_t time_ps;    /* measured picoseconds, -1: use the cost model */
    uint64_t workspace; /* scratch bytes, in addition to those of the run */
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
    uint64_t *value_bytes;   /* [n_value] bytes of its elements; UINT64_MAX: as many as its storage.
                                Views may have fewer or more */
    const char **value_type; /* [n_value] "f32[8,32]", for display */

    uint32_t n_storage;
    uint64_t *storage_bytes;
    uint8_t *storage_flags; /* CB_STORE_* */
    uint32_t *updates;      /* [n_storage] for a gradient, the parameter's storage, which its update
                               rewrites (updates.h); CB_NONE: no update reads it. NULL: there are no
                               updates */

    uint32_t n_region;
    const char **region_name;
    uint32_t *region_parent;
    uint64_t *region_limit; /* saved bytes that are allowed inside; UINT64_MAX: no limit */

    uint32_t n_forward_output,
        *forward_output; /* value ids that must exist when the backward starts */
    uint32_t n_backward_output, *backward_output; /* value ids that must exist at the end */
    uint32_t backward_starts;   /* first op of the backward in the given order (= id order) */
    uint64_t align;             /* alignment of offsets in the arena, a power of two; 64 */
    uint64_t static_bytes;      /* bytes of parameters, optimizer states, ..., which `total` adds to
                                   `live` */
    double link_bytes_per_s;    /* one direction of the offload link; 0: no offload */
    uint8_t reruns;             /* cb_reruns */
    bool collective_again;      /* collectives of the forward may run again. Their first runs keep
                                   their place in the base order */
    double network_bytes_per_s; /* rate of a collective's `op_bytes`, if slower than memory; 0: the
                                   memory's rate */

    uint32_t *member_begin; /* [n_op + 1] into member; an empty range: no inside. NULL: no op has
                               one */
    cb_member *member;
    uint8_t *value_member; /* [n_value] the member of its op that makes it; NULL likewise */

    uint32_t
        *inline_begin;     /* [n_op + 1] into inlining: values that may be inlined into an op. NULL:
                          none */
    cb_inlining *inlining; /* by op, then by value */

    uint32_t *over_begin; /* [n_op + 1] into `over`; NULL: all lists are empty */
    uint32_t *over;       /* indices of inputs whose memory the output may take (over.h) */
    bool keep_saved;      /* memory that is alive between forward and backward is not taken over */

    /* Groups and traffic for a device that fuses (cost.h), filled by code that knows which ops run
     * as one kernel (plan/torch/inductor_fusion.h); NULL: every op is separate. */
    uint32_t *fused_group; /* [n_op] last op of its group */
    uint64_t *fused_bytes; /* [n_op] bytes moved across the border of its group */
    bool *fused_launch;    /* [n_op] true for the op that carries its group's launch */
} cb_problem;

typedef struct cb_problem_sizes {
    uint32_t n_op, n_in, n_value, n_storage, n_member, n_inlining, n_over;
} cb_problem_sizes;
/* Allocates zeroed arrays, with constraints FREE, times -1, ids CB_NONE. Without members there are
 * no arrays for them, and likewise for inlinings and memory taken over. */
CB_MUST_CHECK cb_status cb_problem_create(cb_alloc *alloc, cb_problem_sizes n, cb_problem **out,
                                          cb_error *err);
void cb_problem_free(cb_problem *p);
static inline uint64_t cb_value_bytes(const cb_problem *p, uint32_t value) {
    return p->value_bytes[value] == UINT64_MAX ? p->storage_bytes[p->value_storage[value]]
                                               : p->value_bytes[value];
}
/* Returns the flags because of which an op runs exactly once; 0 if there are none. */
static inline uint32_t cb_once_flags(const cb_problem *p, uint32_t op) {
    uint32_t once = p->op_flags[op] & CB_POP_ONCE;
    return p->collective_again ? once & ~(uint32_t)CB_POP_COLLECTIVE : once;
}
/* Returns the first of the effects at the end of the given order; n_op if the last op is not an
 * effect. These effects represent actions after the backward (leaves copy gradients, an optimizer
 * steps), so all other ops of the backward run before them. */
uint32_t cb_problem_tail(const cb_problem *p);
/* Checks everything that the planner relies on; run on every problem from outside. */
CB_MUST_CHECK cb_status cb_problem_verify(const cb_problem *p, cb_error *err);
/* Returns a hash of everything except sizes and costs, which is equal for problems of graphs that
 * differ only in sizes. */
uint64_t cb_problem_structure(const cb_problem *p);
/* Returns a hash of structure, sizes and flags, but not of costs, names or source lines. */
uint64_t cb_problem_fingerprint(const cb_problem *p);

CB_MUST_CHECK cb_status cb_problem_to_json(const cb_problem *p, cb_str *out, cb_error *err);
CB_MUST_CHECK cb_status cb_problem_from_json(cb_alloc *alloc, const char *text, size_t length,
                                             cb_problem **out, cb_error *err);

#endif
