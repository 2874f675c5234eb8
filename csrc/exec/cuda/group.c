/* A group of several ops is fused. A single op that could be part of a group is fused as a group of
 * one, so its results are bitwise the same in any group; unpack_bits, which is exact, has its own
 * kernel. A group that does not fit the tables of the microcode runs op by op, with its locals in
 * memory. */
#include "group.h"

#include <string.h>

#include "../../lower/alone.h"
#include "../../micro/sums.h"
#include "../executable.h"
#include "ops/plain.h"
#include "text/fused.h"

#define SHORTEST_ROW 32

static bool are_known(const cb_dtype *dtype, uint32_t n, bool with_bool) {
    for (uint32_t k = 0; k < n; k++)
        if (dtype[k] == CB_F64 || (dtype[k] == CB_BOOL && !with_bool)) return false;
    return true;
}

/* True if rows are long enough. Short rows would leave most threads of a block idle, and sums over
 * everything need whole lanes of each row. */
static bool has_long_rows(cb_part part, const cb_domain *domain) {
    if (domain->columns == 0 || domain->inner) return true;
    if (domain->columns < SHORTEST_ROW || domain->columns > CB_ROW_MAX) return false;
    return part != CB_PART_TOTAL || domain->columns % CB_X_LANES == 0;
}

bool cb_cu_fuses(cb_opcode code, cb_part part, const cb_domain *domain, const cb_dtype *in,
                 uint32_t n_in, const cb_dtype *out, uint32_t n_out) {
    const bool with_bool = part != CB_PART_ROW_MAP && part != CB_PART_ONE;
    /* A block of threads processes one row, so adjacent threads would read elements that are far
     * apart. */
    if (part == CB_PART_ACROSS || part == CB_PART_LINES || part == CB_PART_ODD_PIECES) return false;
    if (part == CB_PART_BITS) return false; /* a thread may compute fewer than eight elements */
    if (!has_long_rows(part, domain)) return false;
    return are_known(in, n_in, with_bool) && are_known(out, n_out, with_bool) &&
           cb_kernels_fuse(code, part, domain, in, n_in, out, n_out);
}

/* Writes an instruction as a group of one, in a program with only this group. */
static cb_status fuse_one(cb_cu_code *code, const cb_instr *instr, cb_arena *scratch,
                          cb_error *err) {
    const cb_program *whole = code->program;
    cb_program one = *whole;
    cb_instr copy = *instr;
    cb_group group = {.n_instr = 1};
    const cb_alone alone = cb_alone_of(whole, instr, cb_cu_fuses);
    if (alone.part == CB_PART_NONE || instr->code == CB_OP_UNPACK_BITS) return CB_UNSUPPORTED;
    group.domain = alone.domain;
    copy.part = alone.part;
    one.instr = &copy;
    one.group = &group;
    one.n_group = one.n_instr = 1;
    code->program = &one;
    code->first_instr = (uint32_t)(instr - whole->instr);
    const cb_status status = cb_cu_fused(code, &one, 0, scratch, err);
    code->first_instr = 0;
    code->program = whole;
    return status;
}

static cb_status add_instr(cb_cu_code *code, uint32_t i, cb_arena *scratch, cb_error *err) {
    const cb_instr *instr = &code->program->instr[i];
    const cb_status status = fuse_one(code, instr, scratch, err);
    return status == CB_UNSUPPORTED ? cb_cu_plain(code, i, err) : status;
}

/* Copies the program with the group's locals in memory. They become outputs with numbers from
 * n_output on, which cb_cu_operand recognizes. */
static cb_status without_locals(cb_cu_code *code, const cb_group *g, cb_program *out,
                                cb_arena *scratch, cb_error *err) {
    const cb_program *p = code->program;
    *out = *p;
    CB_TRY_NEW(out->operand, scratch, p->n_operand, err);
    memcpy(out->operand, p->operand, p->n_operand * sizeof *p->operand);
    for (uint32_t k = 0; k < p->n_operand; k++) {
        cb_operand *o = &out->operand[k];
        if (o->space != CB_SPACE_LOCAL) continue;
        const cb_local *local = &p->locals[o->buffer];
        if (local->group == (uint32_t)(g - p->group) && code->local_at[o->buffer] == UINT64_MAX)
            code->local_at[o->buffer] = cb_cu_extra(code, local->bytes);
        o->space = CB_SPACE_OUTPUT;
        o->buffer += p->n_output;
    }
    return CB_OK;
}

static cb_status add_each(cb_cu_code *code, const cb_group *g, cb_arena *scratch, cb_error *err) {
    const cb_program *whole = code->program;
    cb_program p;
    if (!cb_group_fuses(g)) return add_instr(code, g->instr_begin, scratch, err);
    CB_TRY(without_locals(code, g, &p, scratch, err));
    code->program = &p;
    cb_status status = CB_OK;
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr && status == CB_OK; i++)
        status = add_instr(code, i, scratch, err);
    code->program = whole;
    return status;
}

static cb_status make_locals(cb_cu_code *code, cb_error *err) {
    if (code->local_at) return CB_OK;
    CB_TRY_NEW(code->local_at, code->arena, code->program->n_local, err);
    memset(code->local_at, 0xFF, code->program->n_local * sizeof *code->local_at);
    return CB_OK;
}

cb_status cb_cu_group(cb_cu_code *code, uint32_t group, cb_alloc *alloc, cb_error *err) {
    const cb_group *g = &code->program->group[group];
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    code->group = group;
    cb_status status = make_locals(code, err);
    if (status == CB_OK && cb_group_fuses(g))
        status = cb_cu_fused(code, code->program, group, &scratch, err);
    if (!cb_group_fuses(g) || status == CB_UNSUPPORTED) status = add_each(code, g, &scratch, err);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_cu_supports(const cb_program *program, uint32_t group, cb_error *err) {
    const cb_group *g = &program->group[group];
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const cb_instr *instr = &program->instr[i];
        if (cb_cu_has_plain(instr->code)) continue;
        const bool placed = instr->location && instr->location[0];
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s: the cuda backend has no kernel for this op%s%s; backend=\"cpu\" runs it",
            cb_op_def_of(instr->code)->name, placed ? ", at " : "", placed ? instr->location : "");
    }
    return CB_OK;
}
