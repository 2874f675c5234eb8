#include "verify_updates.h"

#include <inttypes.h>

#include "indices.h"

/* Returns the first group that an update may follow; n_group if all updates come at the end. */
static uint32_t first_update(const cb_program *p) {
    uint32_t first = p->n_group;
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_operand *x = &p->operand[p->output[i].operand];
        if (p->output[i].role_or_kind != CB_OUTPUT_GRAD || x->space != CB_SPACE_ARENA) continue;
        if (p->buffer[x->buffer].last < first) first = p->buffer[x->buffer].last;
    }
    return first;
}

static bool reads_input(const cb_program *p, const cb_group *group, uint32_t input) {
    const cb_instr *end = &p->instr[group->instr_begin + group->n_instr];
    for (const cb_instr *instr = &p->instr[group->instr_begin]; instr < end; instr++) {
        for (uint32_t k = 0; k < instr->n_in; k++) {
            const cb_operand *x = &p->operand[p->operand_id[instr->in_begin + k]];
            if (x->space == CB_SPACE_INPUT && x->buffer == input) return true;
        }
    }
    return false;
}

/* True if an instruction makes positions in this buffer (indices.h). */
static bool holds_positions(const cb_program *p, uint32_t buffer) {
    for (uint32_t i = 0; i < p->n_instr; i++) {
        if (!cb_makes_positions(p->instr[i].code)) continue;
        for (uint32_t k = 0; k < p->instr[i].n_out; k++) {
            const cb_operand *x = &p->operand[p->operand_id[p->instr[i].out_begin + k]];
            if (x->space == CB_SPACE_ARENA && x->buffer == buffer) return true;
        }
    }
    return false;
}

/* True if an instruction before `end` has checked the same indices, or they need no check. */
static bool was_checked(const cb_program *p, const cb_instr *instr, uint32_t end) {
    const uint32_t input = (uint32_t)cb_op_index_input(instr->code);
    const cb_operand *x = &p->operand[p->operand_id[instr->in_begin + input]];
    bool was = x->space == CB_SPACE_ARENA && holds_positions(p, x->buffer);
    for (uint32_t i = 0; i < end && !was && x->space == CB_SPACE_ARENA; i++) {
        const int like = cb_op_index_input(p->instr[i].code);
        if (like < 0) continue;
        const cb_operand *y = &p->operand[p->operand_id[p->instr[i].in_begin + (uint32_t)like]];
        was = y->space == CB_SPACE_ARENA && y->buffer == x->buffer && y->offset == x->offset;
    }
    return was;
}

cb_status cb_verify_inner_updates(const cb_program *p, cb_error *err) {
    const uint32_t first = first_update(p);
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_operand *x = &p->operand[p->output[i].operand];
        if (p->output[i].role_or_kind != CB_OUTPUT_GRAD || x->space != CB_SPACE_ARENA) continue;
        for (uint32_t g = p->buffer[x->buffer].last + 1; g < p->n_group; g++) {
            if (!reads_input(p, &p->group[g], p->output[i].input)) continue;
            return cb_fail(err, CB_INTERNAL,
                           "program: group %" PRIu32 " reads %s, which was updated before", g,
                           p->output[i].name);
        }
    }
    for (uint32_t g = first + 1; g < p->n_group; g++) {
        const cb_group *group = &p->group[g];
        for (uint32_t i = group->instr_begin; i < group->instr_begin + group->n_instr; i++) {
            if (cb_op_index_input(p->instr[i].code) < 0 ||
                was_checked(p, &p->instr[i], p->group[first + 1].instr_begin))
                continue;
            return cb_fail(err, CB_INTERNAL,
                           "program: group %" PRIu32 " checks indices after the first update", g);
        }
    }
    return CB_OK;
}
