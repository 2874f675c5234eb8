/* program.h: the flat program that a backend runs: groups of instructions over operands whose
 * addresses are known before anything runs. It owns its memory: graph, problem and plan may be
 * freed.
 *
 * A group runs as one unit: instructions in order, over one domain if there are several (domain.h).
 * All inputs and outputs of a group are alive together. A value that is made and read only inside a
 * group is LOCAL: it has no bytes in the arena. Views are not instructions: they are operands with
 * other strides.
 *
 *   operand.space  address of its first element
 *   ARENA          arena + buffers[operand.buffer].offset + operand.offset * element size
 *   INPUT          bindings.inputs[operand.buffer] + ...
 *   OUTPUT         bindings.outputs[operand.buffer] + ...
 *   LOCAL          none: the backend keeps it; locals[operand.buffer] has its size */
#ifndef CB_LOWER_PROGRAM_H
#define CB_LOWER_PROGRAM_H

#include "../fuse/expand.h"
#include "../ir/graph.h"
#include "../plan/schedule/plan.h"

typedef enum cb_space {
    CB_SPACE_ARENA = 0,
    CB_SPACE_INPUT,
    CB_SPACE_OUTPUT,
    CB_SPACE_LOCAL
} cb_space;

typedef struct cb_operand {
    cb_dtype dtype;
    cb_shape shape;
    int64_t stride[CB_MAX_RANK]; /* elements */
    int64_t offset;              /* elements */
    cb_space space;
    uint32_t buffer; /* ARENA: index into buffers; INPUT, OUTPUT: position of the argument; LOCAL:
                        index into locals */
} cb_operand;

typedef struct cb_instr {
    cb_opcode code;
    cb_attrs attrs;
    uint32_t in_begin, n_in;   /* operand ids, in program->operand_id */
    uint32_t out_begin, n_out; /* likewise; an unread output also has an operand */
    uint32_t op;               /* op of the joint graph */
    uint32_t step;             /* step of the plan */
    uint32_t scratch;          /* buffer id, CB_NONE: none */
    cb_part part;              /* part of a group of several ops; NONE in a group of one */
    bool recomputed;
    const char *location; /* user's source line, "" unknown */
} cb_instr;

typedef struct cb_group {
    uint32_t instr_begin, n_instr;
    cb_domain domain; /* {0, 0} in a group of one separate instruction */
    cb_group_end end;
    uint32_t end_step; /* step of the plan that did not join; the group's step if that does not
                          fuse. CB_NONE: none */
    uint32_t end_wait; /* CB_END_WAIT: the step that makes its input; otherwise CB_NONE */
} cb_group;

/* True if it runs over a domain. This holds for several instructions, and for one whose results are
 * not all in memory. Otherwise it is one separate instruction. */
static inline bool cb_group_fuses(const cb_group *group) { return group->domain.count > 0; }

/* A value that exists only in one group: contiguous, of this many bytes. */
typedef struct cb_local {
    uint64_t bytes;
    uint32_t group;
} cb_local;

/* One allocation: a life of a storage, or scratch. It is alive while groups made..last run. With
 * `takes_over` it is the memory of buffer `over`, whose last group is `made`: a pointwise op reads
 * that buffer element by element and writes this one over it. */
typedef struct cb_buffer {
    uint64_t bytes;
    uint64_t offset;     /* offset in the arena */
    uint32_t made, last; /* group indices; last == n_group: held to the end */
    bool takes_over;
    uint32_t over;
} cb_buffer;

/* A copy of a whole buffer to the host's block, or from there. Group g has the moves move_begin[g]
 * .. move_begin[g + 1]: values that come back are copied before it runs, values that leave after
 * it. */
typedef struct cb_move {
    uint32_t buffer;
    uint32_t from; /* for a move back, the move that took it out; for a move out, CB_NONE */
    uint64_t host; /* offset in the host's block */
} cb_move;

typedef struct cb_argument { /* an input or an output of the compiled step */
    const char *name;
    cb_dtype dtype;
    cb_shape shape;
    uint64_t bytes;
    uint32_t role_or_kind; /* inputs: cb_role; outputs: cb_output_kind */
    uint32_t input;        /* outputs of kind STATE and GRAD: the input they belong to */
    uint32_t operand;      /* operand where it is; outputs: in OUTPUT space, or in ARENA if kept
                              inside */
} cb_argument;

typedef struct cb_program {
    cb_arena arena;
    uint32_t n_group, n_instr, n_operand, n_buffer, n_local, n_input, n_output;
    cb_group *group;
    cb_instr *instr;
    cb_operand *operand;
    uint32_t *operand_id; /* lists that instr.in_begin and out_begin point into */
    cb_buffer *buffer;
    cb_local *locals;
    cb_argument *input;
    cb_argument *output;
    uint32_t n_move;
    cb_move *move;
    uint32_t *move_begin;     /* [n_group + 1]; NULL: nothing moves */
    uint64_t host_bytes;      /* bytes of the host's block for moved values */
    uint32_t backward_starts; /* group index */
    bool updates_inside;      /* gradients in the arena are consumed by updates, each after the last
                                 group of its buffer */
    uint64_t align;           /* alignment of each buffer's offset: that of the plan, a power of
                                 two */
    uint64_t arena_bytes;     /* at most the plan's arena bytes */
    uint64_t live_bytes; /* liveness peak, scratch included: what the debug backend must measure */
} cb_program;

/* The graph of a program, and the problems for which its plans are made. */
typedef struct cb_lowered {
    const cb_graph *joint;
    const cb_problem *single;    /* the problem of single ops, from cb_annotate */
    const cb_problem *p;         /* the problem of groups (contract.h), or `single` */
    const cb_grouping *grouping; /* NULL: p is `single` */
    cb_fuses_fn fuses;           /* NULL: groups run as planned, at the plan's offsets */
} cb_lowered;

/* Expands the plan, grows its groups (fuse.h), and makes the program from them. `expanded` is
 * allocated in `arena`. */
CB_MUST_CHECK cb_status cb_lower_plan(const cb_lowered *of, const cb_plan *plan, cb_arena *arena,
                                      cb_expanded *expanded, cb_program **out, cb_error *err);
void cb_program_free(cb_program *program);
/* Checks that every operand is inside its buffer, that no two live buffers overlap, and that every
 * read comes after a write. */
CB_MUST_CHECK cb_status cb_program_verify(const cb_program *program, cb_error *err);
void cb_program_print_operand(const cb_program *program, uint32_t id, cb_str *out);
CB_MUST_CHECK cb_status cb_program_print(const cb_program *program, cb_str *out, cb_error *err);
/* Writes the contents of each group, its traffic, and why it ends, as JSON: see program_json.c.
 * Problem and plan are those of the program. */
CB_MUST_CHECK cb_status cb_program_kernels(const cb_program *program, const cb_problem *p,
                                           const cb_plan *plan, cb_str *out, cb_error *err);

#endif
