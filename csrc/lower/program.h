/* program.h: the flat program a backend runs: groups of instructions over operands whose bytes have
 * an address before anything runs. It owns its memory: graph, problem and plan may be freed.
 *
 * A group is what runs at once: instructions in order, over one domain where there are several
 * (domain.h). All that a group reads and writes is alive together. A value that is made in a group,
 * read there and nowhere else is LOCAL: it has no bytes in the arena.
 * Views are no instructions: they are operands with other strides.
 *
 *   operand.space  address of its first element
 *   ARENA          arena + buffers[operand.buffer].offset + operand.offset * element size
 *   INPUT          bindings.inputs[operand.buffer] + ...
 *   OUTPUT         bindings.outputs[operand.buffer] + ...
 *   LOCAL          none: it is the backend's to keep; locals[operand.buffer] has its size */
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
    uint32_t out_begin, n_out; /* likewise; an output nobody reads has an operand all the same */
    uint32_t op;               /* op of the joint graph */
    uint32_t step;             /* of the plan */
    uint32_t scratch;          /* buffer id, CB_NONE: none */
    cb_part part;              /* in a group of several; NONE in a group of its own */
    bool recomputed;
    const char *location; /* user's source line, "" unknown */
} cb_instr;

typedef struct cb_group {
    uint32_t instr_begin, n_instr;
    cb_domain domain; /* {0, 0} in a group of one instruction by itself */
    cb_group_end end;
    uint32_t end_step; /* of the plan: the one that did not join; the group's own where it is the
                          one that fuses with nothing. CB_NONE: none */
    uint32_t end_wait; /* CB_END_WAIT: the step that makes what it reads; else CB_NONE */
} cb_group;

/* Whether it runs over a domain: as several instructions do, and one whose results are not all in
 * memory. Else it is one instruction by itself. */
static inline bool cb_group_fuses(const cb_group *group) { return group->domain.count > 0; }

/* A value that lives and dies in one group: contiguous, of this many bytes. */
typedef struct cb_local {
    uint64_t bytes;
    uint32_t group;
} cb_local;

/* One allocation: a life of a storage, or scratch. Alive while groups made..last run. With
 * `takes_over` it is the memory of buffer `over`, whose last group is `made`: a pointwise op reads
 * that buffer element by element and writes this one over it. */
typedef struct cb_buffer {
    uint64_t bytes;
    uint64_t offset;     /* in the arena */
    uint32_t made, last; /* group indices; last == n_group: held to the end */
    bool takes_over;
    uint32_t over;
} cb_buffer;

/* A copy of a whole buffer to the host's block, or from there. Group g has the moves move_begin[g]
 * .. move_begin[g + 1]: what comes back is copied before it runs, what leaves after. */
typedef struct cb_move {
    uint32_t buffer;
    uint32_t from; /* coming back: the move that took it out; leaving: CB_NONE */
    uint64_t host; /* offset in the host's block */
} cb_move;

typedef struct cb_argument { /* an input or an output of the compiled step */
    const char *name;
    cb_dtype dtype;
    cb_shape shape;
    uint64_t bytes;
    uint32_t role_or_kind; /* inputs: cb_role; outputs: cb_output_kind */
    uint32_t input;        /* outputs of kind STATE and GRAD: the input they belong to */
    uint32_t operand;      /* where it is; outputs: OUTPUT space, or ARENA when kept inside */
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
    uint64_t host_bytes;      /* of the block for what has moved */
    uint32_t backward_starts; /* group index */
    uint64_t align;           /* of each buffer's offset: the plan's, a power of two */
    uint64_t arena_bytes;     /* <= the plan's */
    uint64_t live_bytes; /* liveness peak, scratch included: what the debug backend must measure */
} cb_program;

/* The graph that a program is of, and the problems that its plans are made for. */
typedef struct cb_lowered {
    const cb_graph *joint;
    const cb_problem *single;    /* op by op, as cb_annotate gives it */
    const cb_problem *p;         /* of groups (contract.h), or `single` */
    const cb_grouping *grouping; /* NULL: p is `single` */
    cb_fuses_fn fuses;           /* NULL: groups run as they are planned, at the plan's offsets */
} cb_lowered;

/* The plan is expanded, its groups grow (fuse.h), and become the program's. What `expanded` says
 * lies in `arena`. */
CB_MUST_CHECK cb_status cb_lower_plan(const cb_lowered *of, const cb_plan *plan, cb_arena *arena,
                                      cb_expanded *expanded, cb_program **out, cb_error *err);
void cb_program_free(cb_program *program);
/* Every operand inside its buffer, no two live buffers overlap, every read after a write. */
CB_MUST_CHECK cb_status cb_program_verify(const cb_program *program, cb_error *err);
void cb_program_print_operand(const cb_program *program, uint32_t id, cb_str *out);
CB_MUST_CHECK cb_status cb_program_print(const cb_program *program, cb_str *out, cb_error *err);
/* What is in each group, what it moves, and why it ends, as JSON: see program_json.c. Problem and
 * plan are those that the program was made of. */
CB_MUST_CHECK cb_status cb_program_kernels(const cb_program *program, const cb_problem *p,
                                           const cb_plan *plan, cb_str *out, cb_error *err);

#endif
