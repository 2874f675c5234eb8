/* Decomposes a group: chooses the length of a row, translates the instructions in order
 * (translate.c) and assigns their operations to phases (phases.c). */
#include "decompose.h"

#include <string.h>

#include "../base/philox.h"
#include "../lower/alone.h"
#include "phases.h"
#include "translate.h"

/* Operands with shorter runs are gathered, because starting a row costs as much as a few hundred
 * elements. */
#define SHORTEST_ROW 256
/* Short repetitions are combined into a row of at least this length, if possible. */
#define REPEATED_ROW 2048

/* Returns the greatest common divisor. */
static int64_t common(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Returns the part of an instruction. For the only instruction of a group it is in `alone`, because
 * the program does not store it. */
static cb_part part_of(const cb_instr *instr, const cb_alone *alone) {
    return instr->part != CB_PART_NONE ? instr->part : alone->part;
}

/* True if the last axis is strided and the axis before it is contiguous. Such rows are gathered
 * together. */
static bool lies_across(const cb_walk *w) {
    const int last = w->rank - 1;
    return last > 0 && w->stride[0][last] > 1 && w->stride[0][last - 1] == 1;
}

/* True if rows of this length split neither the lanes of sums nor the eight elements that are drawn
 * or packed at a time. If a row is longer than a task, its pieces must begin at leaves. */
static bool may_cut(int64_t columns, bool has_total, bool eights) {
    const int64_t grain = columns > CB_X_CHUNK ? CB_X_LEAF : CB_X_LANES;
    return !(has_total && columns % grain) && !(eights && columns % CB_PHILOX_BLOCK);
}

/* Returns the number of elements after which an operand repeats; 0 if it does not repeat, -1 if it
 * is a single element. */
static int64_t period_of(const cb_walk *w, int64_t count) {
    if (w->rank == 1 && w->stride[0][0] == 0) return -1;
    return w->stride[0][0] == 0 ? count / w->dim[0] : 0;
}

/* Returns the length of a row that is a multiple of `period`, the common period of all repeating
 * operands, so that these are gathered once for many rows. Returns 0 if no such row consists of
 * whole vectors. */
static int64_t repeating_columns(int64_t period, int64_t count) {
    int64_t columns = period;
    while ((columns < REPEATED_ROW || columns % CB_X_LANES) && columns <= CB_X_CHUNK / 2 &&
           count / columns % 2 == 0)
        columns *= 2;
    const bool fits = columns >= SHORTEST_ROW && columns <= CB_X_CHUNK && columns < count;
    return fits && columns % CB_X_LANES == 0 ? columns : 0;
}
_Static_assert(CB_X_LANES % CB_PHILOX_BLOCK == 0, "rows of whole vectors cut no block of draws");
_Static_assert(CB_PHILOX_BLOCK == 8, "a byte has as many bits as a block has numbers");

/* Returns the length of the longest row in which every operand has a constant stride. If that is
 * too short, returns the length after which operands repeat, or else that of the whole domain. */
static int64_t flat_columns(const cb_program *p, const cb_group *g, const cb_alone *alone,
                            int64_t count) {
    int64_t columns = count, period = -1;
    bool has_total = false, eights = false;
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const cb_part part = part_of(&p->instr[i], alone);
        has_total = has_total || part == CB_PART_TOTAL;
        eights = eights || p->instr[i].code == CB_OP_DROPOUT || part == CB_PART_BITS;
        if (part != CB_PART_MAP && part != CB_PART_TOTAL && part != CB_PART_BITS) continue;
        for (uint32_t k = 0; k < p->instr[i].n_in; k++) {
            const cb_operand *o = &p->operand[p->operand_id[p->instr[i].in_begin + k]];
            if (cb_t_is_whole(o)) continue;
            cb_walk w = cb_t_walk_of(o);
            int64_t stride = w.stride[0][w.rank - 1];
            if (stride == 0 || stride == 1 || lies_across(&w))
                columns = common(columns, w.dim[w.rank - 1]);
            const int64_t own = period_of(&w, count);
            if (own >= 0) period = period < 0 || period == own ? own : 0;
        }
    }
    if (columns >= SHORTEST_ROW && may_cut(columns, has_total, eights)) return columns;
    const int64_t repeating = period > 0 ? repeating_columns(period, count) : 0;
    return repeating ? repeating : count;
}

/* True if any operand is f64; then the whole group is computed in f64. */
static bool is_wide(const cb_program *p, const cb_group *g) {
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++) {
        const uint32_t *ins = p->operand_id + p->instr[i].in_begin;
        for (uint32_t k = 0; k < p->instr[i].n_in; k++)
            if (p->operand[ins[k]].dtype == CB_F64) return true;
        if (p->operand[p->operand_id[p->instr[i].out_begin]].dtype == CB_F64) return true;
    }
    return false;
}

cb_status cb_microcode_of(const cb_program *program, uint32_t group, const cb_x_limits *limits,
                          cb_x_room *room, cb_microcode *out, cb_error *err) {
    const cb_group *g = &program->group[group];
    const cb_instr *first = &program->instr[g->instr_begin];
    cb_alone alone = {.domain = g->domain};
    if (g->domain.count == 0) alone = cb_alone_of(program, first, cb_kernels_fuse);
    const cb_domain domain = alone.domain;
    cb_translation x = {.p = program, .domain = domain, .m = out, .limits = limits};
    *out = (cb_microcode){.columns = domain.columns,
                          .inner = domain.inner,
                          .has_rows = domain.columns > 0,
                          .is_wide = is_wide(program, g)};
    cb_t_lay_out(out, room);
    if (!out->has_rows) out->columns = flat_columns(program, g, &alone, domain.count);
    out->rows = out->columns ? domain.count / out->columns : 0;
    for (uint32_t i = g->instr_begin; i < g->instr_begin + g->n_instr; i++)
        cb_t_instruction(&x, i, part_of(&program->instr[i], &alone));
    cb_t_arrange(&x);
    if (!x.is_full) return CB_OK;
    return cb_fail(err, CB_UNSUPPORTED, "microcode: group %u does not fit into the tables", group);
}

cb_status cb_microcode_keep(cb_microcode *m, cb_arena *memory, cb_error *err) {
    m->n_micro = 0;
#define KEEP(type, name, n, most)                           \
    {                                                       \
        type *kept = CB_NEW(memory, type, m->n);            \
        if (!kept) return cb_no_memory(err);                \
        memcpy(kept, m->name, (size_t)m->n * sizeof *kept); \
        m->name = kept;                                     \
    }
    CB_X_TABLES(KEEP)
    return CB_OK;
}
