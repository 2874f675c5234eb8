/* Finds ops that may run in either phase: those of the given backward that no tangent reaches. */
#include "facts.h"

/* `written` [n_storage]: true if an op of the backward writes into the storage. */
static void mark_written(const cb_facts *f, bool *written) {
    const cb_problem *p = f->p;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        bool mutates = p->op_flags[op] & CB_POP_MUTATES;
        for (uint32_t v = p->out_begin[op]; mutates && v < p->out_begin[op + 1]; v++)
            written[p->value_storage[v]] = true;
    }
}

static bool may_move(const cb_facts *f, const bool *may, const bool *written, uint32_t op) {
    const cb_problem *p = f->p;
    if (f->once[op] || (p->op_flags[op] & (CB_POP_BACKWARD | CB_POP_COLLECTIVE))) return false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t from = p->value_op[p->in_value[j]];
        if (written[p->value_storage[p->in_value[j]]]) return false;
        if (f->position[from] == CB_NONE || f->position[from] < f->base_backward) continue;
        if (!may[from]) return false;
    }
    return true;
}

/* Inputs come before their readers, so one forward pass and one backward pass suffice. */
static void choose_moves(const cb_facts *f, const bool *written, bool *may, bool *move) {
    const cb_problem *p = f->p;
    for (uint32_t k = f->base_backward; k < f->n_base; k++)
        may[f->base[k]] = may_move(f, may, written, f->base[k]);
    for (uint32_t k = f->n_base; k-- > f->base_backward;) {
        uint32_t op = f->base[k];
        move[op] &= may[op];
        for (uint32_t j = p->in_begin[op]; move[op] && j < p->in_begin[op + 1]; j++)
            move[p->value_op[p->in_value[j]]] = true;
    }
}

static void move_ops(cb_facts *f, const bool *move, uint32_t *rest) {
    uint32_t n_rest = 0, at = f->base_backward;
    for (uint32_t k = f->base_backward; k < f->n_base; k++) {
        if (move[f->base[k]]) f->base[at++] = f->base[k];
        else rest[n_rest++] = f->base[k];
    }
    f->base_backward = at;
    for (uint32_t i = 0; i < n_rest; i++) f->base[at++] = rest[i];
    for (uint32_t k = 0; k < f->n_base; k++) f->position[f->base[k]] = k;
    for (uint32_t u = f->p->n_op; u < f->n_unit; u++)
        f->position[u] = f->position[cb_unit_op(f, u)];
}

static bool any_of(const bool *marked, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (marked[i]) return true;
    return false;
}

cb_status cb_facts_hoist(const cb_facts *f, const bool *hoist, cb_arena *arena, cb_facts *out,
                         cb_error *err) {
    const cb_problem *p = f->p;
    cb_arena scratch;
    *out = *f;
    if (!any_of(hoist, p->n_op)) return CB_OK;
    CB_TRY_NEW(out->base, arena, f->n_base, err);
    CB_TRY_NEW(out->position, arena, f->n_unit, err);
    if (f->n_base > 0) memcpy(out->base, f->base, f->n_base * sizeof *f->base);
    if (f->n_unit > 0) memcpy(out->position, f->position, f->n_unit * sizeof *f->position);
    cb_arena_init(&scratch, f->alloc);
    bool *written = CB_NEW(&scratch, bool, p->n_storage), *may = CB_NEW(&scratch, bool, p->n_op);
    bool *move = CB_NEW(&scratch, bool, p->n_op);
    uint32_t *rest = CB_NEW(&scratch, uint32_t, f->n_base);
    cb_status status = written && may && move && rest ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) {
        if (p->n_op > 0) memcpy(move, hoist, p->n_op * sizeof *move);
        mark_written(f, written);
        choose_moves(f, written, may, move);
        move_ops(out, move, rest);
    }
    cb_arena_free(&scratch);
    return status;
}
