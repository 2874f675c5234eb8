/* A group becomes one kernel that walks rows (or elements, if nothing is reduced over rows), and
 * one or two further kernels for each kind of sum that is not over one row. These recompute their
 * operands from arrays and from row statistics, which the first kernel leaves in memory. So each
 * kernel has the parallelism that its sums allow, and each sum has the same order as on the CPU. */
#include "fused.h"

#include "../../../micro/decompose.h"
#include "../../../micro/sums.h"
#include "op.h"
#include "rows.h"
#include "sums.h"

/* True if rows consist of whole vectors, which totals and sums of pieces need. */
static bool can_sum(const cb_microcode *m) {
    return !(m->n_total || m->n_pieces) || m->rows == 1 || m->columns % 4 == 0;
}

/* Adds a kernel for each index operand of the group that checks its indices before they are used.
 */
static void check_indices(cb_cu_code *code, const cb_microcode *m) {
    for (int k = 0; k < m->n_load; k++) {
        const cb_x_row_value *v = &m->load[k];
        if (!v->is_index) continue;
        const cb_instr *instr = &code->program->instr[v->instr];
        const cb_cu_op op = {.code = code, .instr = instr, .at = v->instr + code->first_instr};
        const bool ignores =
            instr->code == CB_OP_CROSS_ENTROPY || instr->code == CB_OP_CROSS_ENTROPY_BWD;
        cb_cu_check_index(&op, v->tensor - instr->in_begin, m->columns,
                          ignores ? &v->ignored : NULL);
    }
}

/* Only the sizes of the tables limit a kernel. */
static const cb_x_limits limits = {CB_X_STREAMS, CB_X_SCALARS, CB_X_ACCS, false};

cb_status cb_cu_fused(cb_cu_code *code, const cb_program *program, uint32_t group,
                      cb_arena *scratch, cb_error *err) {
    cb_microcode *m = CB_NEW(scratch, cb_microcode, 1);
    cb_x_room *room = CB_NEW(scratch, cb_x_room, 1);
    cb_cu_micro *x = CB_NEW(scratch, cb_cu_micro, 1);
    if (!m || !room || !x) return cb_no_memory(err);
    CB_TRY(cb_microcode_of(program, group, &limits, room, m, err));
    if (!can_sum(m)) return CB_UNSUPPORTED; /* the group then runs op by op */
    check_indices(code, m);
    cb_cu_micro_init(x, code, m);
    cb_cu_place_leaves(x);
    x->has_leaves = cb_cu_walks_rows(m) && (m->columns % CB_X_LEAF == 0 || cb_cu_rows_of_leaf(m));
    cb_cu_need_sums(x);
    cb_cu_keep_numbers(x);
    cb_cu_forget(x);
    cb_cu_rows(x);
    cb_cu_sums(x);
    return CB_OK;
}
