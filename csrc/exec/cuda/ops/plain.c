/* Maps ops to families. */
#include "plain.h"

#include "families.h"

typedef void (*family_fn)(const cb_cu_op *x);

/* Returns the family of an op; NULL: the op runs only on the CPU (docs/cuda.md). */
static family_fn family_of(cb_opcode code) {
    switch (code) {
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN:
        case CB_OP_ARGMAX: return cb_cu_reduce;
        case CB_OP_CONCAT:
        case CB_OP_PAD: return cb_cu_move;
        case CB_OP_PACK_BITS:
        case CB_OP_UNPACK_BITS: return cb_cu_bits;
        case CB_OP_PACK_INDEX:
        case CB_OP_UNPACK_INDEX: return cb_cu_packed_index;
        case CB_OP_GATHER:
        case CB_OP_SCATTER_ADD:
        case CB_OP_EMBEDDING:
        case CB_OP_EMBEDDING_BWD: return cb_cu_index;
        case CB_OP_MATMUL:
        case CB_OP_MATMUL_ADD: return cb_cu_matmul;
        case CB_OP_SOFTMAX:
        case CB_OP_SOFTMAX_BWD:
        case CB_OP_LOG_SOFTMAX:
        case CB_OP_LOG_SOFTMAX_BWD:
        case CB_OP_CROSS_ENTROPY:
        case CB_OP_CROSS_ENTROPY_BWD: return cb_cu_softmax;
        case CB_OP_LAYER_NORM:
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM:
        case CB_OP_RMS_NORM_BWD: return cb_cu_norm;
        case CB_OP_BATCH_NORM:
        case CB_OP_BATCH_NORM_STATS:
        case CB_OP_BATCH_NORM_BWD: return cb_cu_batch_norm;
        default: break;
    }
    return cb_op_def_of(code)->flags & CB_OPF_POINTWISE ? cb_cu_point : NULL;
}

bool cb_cu_has_plain(cb_opcode code) { return family_of(code) != NULL; }

cb_status cb_cu_plain(cb_cu_code *code, uint32_t instr, cb_error *err) {
    const cb_cu_op x = {.code = code, .instr = &code->program->instr[instr], .at = instr};
    const family_fn family = family_of(x.instr->code);
    if (!family)
        return cb_fail(err, CB_UNSUPPORTED, "%s: the cuda backend has no kernel for this op",
                       cb_op_def_of(x.instr->code)->name);
    family(&x);
    return CB_OK;
}
