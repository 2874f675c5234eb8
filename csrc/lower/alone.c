#include "alone.h"

#include "../fuse/reads.h"

#define OPERANDS_MOST 8 /* no op with more has a part */

/* Whether all have dtypes of one group, and rows cut nothing that is summed or drawn at a time. */
static bool may_run(const cb_program *p, const cb_instr *instr, const cb_alone *alone,
                    cb_fuses_fn fuses) {
    cb_parts parts = {0};
    cb_dtype dtype[OPERANDS_MOST];
    if (alone->part == CB_PART_NONE || instr->n_in + instr->n_out > OPERANDS_MOST) return false;
    for (uint32_t k = 0; k < instr->n_in + instr->n_out; k++) {
        const bool is_in = k < instr->n_in;
        const uint32_t at = is_in ? instr->in_begin + k : instr->out_begin + k - instr->n_in;
        dtype[k] = p->operand[p->operand_id[at]].dtype;
        cb_parts_add_dtype(&parts, dtype[k]);
    }
    cb_parts_add(&parts, instr->code, alone->part);
    return cb_parts_agree(&parts) && cb_parts_fit(&parts, &alone->domain) &&
           fuses(instr->code, alone->part, dtype, instr->n_in, dtype + instr->n_in, instr->n_out);
}

static const cb_shape *shape_at(const cb_program *p, uint32_t at) {
    return &p->operand[p->operand_id[at]].shape;
}

cb_alone cb_alone_of(const cb_program *program, const cb_instr *instr, cb_fuses_fn fuses) {
    const cb_shaped op = {
        .code = instr->code,
        .attrs = &instr->attrs,
        .in0 = instr->n_in > 0 ? shape_at(program, instr->in_begin) : NULL,
        .in1 = instr->n_in > 1 ? shape_at(program, instr->in_begin + 1) : NULL,
        .out0 = shape_at(program, instr->out_begin),
    };
    cb_alone alone = {0};
    if (!cb_domain_join(&alone.domain, &op)) return alone;
    alone.part = cb_part_of(&op, &alone.domain);
    if (!may_run(program, instr, &alone, fuses)) alone.part = CB_PART_NONE;
    return alone;
}
