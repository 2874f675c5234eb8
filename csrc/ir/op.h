/* op.h: facts about an op that do not depend on a graph. All of them come from ops.def. */
#ifndef CB_IR_OP_H
#define CB_IR_OP_H

#include "../base/shape.h"

typedef enum cb_opcode {
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) CB_OP_##id,
#include "ops.def"
#undef CB_OP
    CB_OP_COUNT
} cb_opcode;

enum {
    CB_OPF_NONE = 0,
    CB_OPF_SOURCE = 1 << 0,    /* an argument of the graph: not a step of any schedule */
    CB_OPF_POINTWISE = 1 << 1, /* output element i needs element i of each input: fuses */
    CB_OPF_REDUCE = 1 << 2,    /* reduces rows or columns: fuses with its producers */
    CB_OPF_VIEW = 1 << 3,      /* output 0 shares the storage of input 0: costs nothing */
    CB_OPF_COMPUTE = 1 << 4,   /* time grows faster than bytes: expensive to recompute */
    CB_OPF_RANDOM = 1 << 5,    /* draws from the counter-based generator: pure, and recomputable */
    CB_OPF_STRIDED = 1 << 6,   /* the kernel reads any strides; other ops get contiguous inputs */
    CB_OPF_MATRIX = 1 << 7, /* the last two axes must be row- or column-major; others may stride */
    CB_OPF_GRAD = 1 << 8,   /* made by autodiff */
    CB_OPF_FUSES = 1 << 9,  /* pointwise in a group: its microcode is known (micro/translate.c) */
    CB_OPF_BOOLS = 1 << 10, /* bools go in or out, in a group too */
    CB_OPF_EXACT = 1 << 11  /* never rounds: results are exact in the inputs' dtype */
};

typedef struct cb_op_def {
    const char *name;
    int min_ins, max_ins; /* max -1: any number */
    int n_outs;
    uint32_t flags;
    const char *attrs; /* "name=slot ..." */
    const char *doc;
    const char *vjp; /* "zero": no gradient */
} cb_op_def;

const cb_op_def *cb_op_def_of(cb_opcode code);
/* Returns CB_INVALID if there is no such op, or it takes another number of inputs. */
CB_MUST_CHECK cb_status cb_op_check_call(cb_opcode code, uint32_t n_ins, cb_error *err);
/* Returns the input with indices of the elements of another input that are read or written; -1:
 * none. */
int cb_op_index_input(cb_opcode code);
/* Returns the bytes of a packed index, by the attributes of pack_index: 1, 2 or 4. */
int64_t cb_packed_index_bytes(const cb_attrs *attrs);
bool cb_op_find(const char *name, size_t length, cb_opcode *out);

/* One attribute of an op, as named in its row. Iterate with index 0.. until false. */
typedef struct cb_attr_slot {
    const char *name; /* not 0-terminated */
    size_t name_length;
    enum { CB_ATTR_F, CB_ATTR_I, CB_ATTR_DIMS, CB_ATTR_DTYPE } kind;
    int index; /* index into f[] or i[] */
} cb_attr_slot;
bool cb_op_attr(cb_opcode code, int index, cb_attr_slot *out);

#endif
