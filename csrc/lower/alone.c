#include "alone.h"

#include "../fuse/reads.h"

/* Inside a group nothing reads sums of columns, so a sum without memory has no reader. */
static bool has_one_result(const cb_program *p, const cb_instr *instr) {
    bool is = instr->n_out > 1;
    for (uint32_t k = 1; k < instr->n_out; k++)
        is &= p->operand[p->operand_id[instr->out_begin + k]].space == CB_SPACE_LOCAL;
    return is;
}

cb_shaped cb_shaped_instr(const cb_program *program, const cb_instr *instr) {
    const uint32_t *ins = program->operand_id + instr->in_begin;
    return (cb_shaped){
        .code = instr->code,
        .attrs = &instr->attrs,
        .in0 = instr->n_in > 0 ? &program->operand[ins[0]].shape : NULL,
        .in1 = instr->n_in > 1 ? &program->operand[ins[1]].shape : NULL,
        .out0 = &program->operand[program->operand_id[instr->out_begin]].shape,
        .has_one_result = has_one_result(program, instr),
    };
}

/* True if the backend can fuse the instruction as this part, and rows do not split a unit that is
 * summed or drawn as a whole. */
static bool may_run(const cb_program *p, const cb_instr *instr, const cb_alone *alone,
                    cb_fuses_fn fuses) {
    cb_parts parts = {0};
    cb_dtype dtype[CB_PART_OPERANDS];
    for (uint32_t k = 0; k < instr->n_in + instr->n_out && k < CB_PART_OPERANDS; k++) {
        const uint32_t at = k < instr->n_in ? instr->in_begin : instr->out_begin - instr->n_in;
        dtype[k] = p->operand[p->operand_id[at + k]].dtype;
    }
    cb_parts_add(&parts, instr->code, alone->part);
    return cb_parts_fit(&parts, &alone->domain) &&
           cb_part_fuses(fuses, instr->code, alone->part, &alone->domain, dtype, instr->n_in,
                         instr->n_out);
}

cb_alone cb_alone_of(const cb_program *program, const cb_instr *instr, cb_fuses_fn fuses) {
    const cb_shaped op = cb_shaped_instr(program, instr);
    cb_alone alone = {0};
    if (!cb_domain_join(&alone.domain, &op)) return alone;
    alone.part = cb_part_of(&op, &alone.domain);
    if (!may_run(program, instr, &alone, fuses)) alone.part = CB_PART_NONE;
    return alone;
}
