/* How a group is taken apart: the row of the executor is chosen, instructions are translated in
 * order (translate.c), and what they are made of is put into phases (phases.c). */
#include "decompose.h"

#include "phases.h"
#include "translate.h"

/* Shorter runs are gathered: to begin a row costs as much as a few hundred elements. */
#define SHORTEST_ROW 256

static int64_t common(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The longest row over which every operand runs evenly; the whole where that is too short. */
static int64_t flat_columns(const cb_program *p, const cb_group *g) {
    int64_t columns = g->domain.count;
    bool has_total = false, draws = false;
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        has_total = has_total || p->instr[i].part == CB_PART_TOTAL;
        draws = draws || p->instr[i].code == CB_OP_DROPOUT;
        if (p->instr[i].part != CB_PART_MAP && p->instr[i].part != CB_PART_TOTAL) continue;
        for (uint32_t k = 0; k < p->instr[i].n_in; k++) {
            const cb_operand *o = &p->operand[p->operand_id[p->instr[i].in_begin + k]];
            if (cb_t_is_whole(o)) continue;
            cb_walk w = cb_t_walk_of(o);
            int64_t stride = w.stride[0][w.rank - 1];
            if (stride == 0 || stride == 1) columns = common(columns, w.dim[w.rank - 1]);
        }
    }
    /* Rows cut neither the lanes of sums nor the blocks of random numbers; where a row is longer
     * than a task, its pieces have to begin with leaves. */
    const int64_t grain = columns > CB_X_CHUNK ? CB_X_LEAF : CB_X_LANES;
    bool cuts = (has_total && columns % grain) || (draws && columns % CB_PHILOX_BLOCK);
    return columns < SHORTEST_ROW || cuts ? g->domain.count : columns;
}

cb_status cb_microcode_of(const cb_program *program, uint32_t group, cb_microcode *out,
                          cb_error *err) {
    const cb_group *g = &program->group[group];
    cb_translation x = {.p = program, .domain = g->domain, .m = out};
    *out = (cb_microcode){.columns = g->domain.columns, .has_rows = g->domain.columns > 0};
    if (!out->has_rows) out->columns = flat_columns(program, g);
    out->rows = out->columns ? g->domain.count / out->columns : 0;
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) cb_t_instruction(&x, i);
    cb_t_arrange(&x);
    if (!x.is_full) return CB_OK;
    return cb_fail(err, CB_UNSUPPORTED, "executor: group %u does not fit the tables", group);
}
