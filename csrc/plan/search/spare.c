/* Spare ops read and make nothing and take no time. Nothing needs them, so the simulator drops
 * their steps, and the backward starts with the step after them. */
#include "spare.h"

/* Returns the array with `more` zeroed entries after its `n`. */
static void *extend(cb_arena *arena, const void *from, size_t n, size_t more, size_t size) {
    void *out = cb_arena_get(arena, n + more, size);
    if (out && n > 0) memcpy(out, from, n * size);
    return out;
}

#define EXTEND_ARRAY(array, n, more)                                    \
    do {                                                                \
        (array) = extend(arena, (array), (n), (more), sizeof *(array)); \
        if (!(array)) return cb_no_memory(err);                         \
    } while (0)

static cb_status extend_problem(cb_problem *p, uint32_t more, cb_arena *arena, cb_error *err) {
    uint32_t n = p->n_op;
    EXTEND_ARRAY(p->op_flags, n, more);
    EXTEND_ARRAY(p->op_flops, n, more);
    EXTEND_ARRAY(p->op_bytes, n, more);
    EXTEND_ARRAY(p->op_class, n, more);
    EXTEND_ARRAY(p->op_time_ps, n, more);
    EXTEND_ARRAY(p->op_workspace, n, more);
    EXTEND_ARRAY(p->op_group, n, more);
    EXTEND_ARRAY(p->op_region, n, more);
    EXTEND_ARRAY(p->op_kind, n, more);
    EXTEND_ARRAY(p->op_name, n, more);
    EXTEND_ARRAY(p->op_location, n, more);
    EXTEND_ARRAY(p->in_begin, n + 1, more);
    EXTEND_ARRAY(p->out_begin, n + 1, more);
    if (p->member_begin) {
        EXTEND_ARRAY(p->member_begin, n + 1, more);
        for (uint32_t op = n; op < n + more; op++) p->member_begin[op + 1] = p->member_begin[n];
    }
    if (p->inline_begin) {
        EXTEND_ARRAY(p->inline_begin, n + 1, more);
        for (uint32_t op = n; op < n + more; op++) p->inline_begin[op + 1] = p->inline_begin[n];
    }
    if (p->over_begin) {
        EXTEND_ARRAY(p->over_begin, n + 1, more);
        for (uint32_t op = n; op < n + more; op++) p->over_begin[op + 1] = p->over_begin[n];
    }
    if (p->fused_group) {
        EXTEND_ARRAY(p->fused_group, n, more);
        EXTEND_ARRAY(p->fused_bytes, n, more);
        EXTEND_ARRAY(p->fused_launch, n, more);
    }
    p->n_op += more;
    return CB_OK;
}

static void set_spare(cb_problem *p, uint32_t op, bool backward) {
    p->op_flags[op] = backward ? CB_POP_BACKWARD : 0;
    p->op_group[op] = p->op_region[op] = CB_NONE;
    p->op_kind[op] = p->op_name[op] = "spare";
    p->op_location[op] = "";
    p->in_begin[op + 1] = p->in_begin[op];
    p->out_begin[op + 1] = p->out_begin[op];
    if (p->fused_group) p->fused_group[op] = op;
}

/* Does the same for an array of units, which has `n_own` more entries after those of the ops. */
#define SPREAD_ARRAY(array)                                                                \
    do {                                                                                   \
        void *units = (array) + n;                                                         \
        EXTEND_ARRAY(array, n, more + n_own);                                              \
        if (n_own > 0) memcpy((array) + n + more, units, (size_t)n_own * sizeof *(array)); \
    } while (0)

static cb_status renumber_units(cb_facts *f, uint32_t n, uint32_t more, cb_arena *arena,
                                cb_error *err) {
    const cb_problem *p = f->p;
    if (!f->unit_begin) return CB_OK;
    EXTEND_ARRAY(f->unit_begin, n + 1, more);
    EXTEND_ARRAY(f->useful, n, more);
    EXTEND_ARRAY(f->unit, p->n_storage, 0);
    for (uint32_t op = 0; op <= n; op++) f->unit_begin[op] += more;
    for (uint32_t op = n; op < n + more; op++) f->unit_begin[op + 1] = f->unit_begin[n];
    for (uint32_t s = 0; s < p->n_storage; s++)
        if (f->unit[s] != CB_NONE && f->unit[s] >= n) f->unit[s] += more;
    return CB_OK;
}

static cb_status extend_facts(cb_facts *f, uint32_t n, uint32_t more, cb_arena *arena,
                              cb_error *err) {
    uint32_t n_own = f->n_unit - n; /* units that come after the spare ops */
    bool same = f->least_cost_ps == f->cost_ps;
    SPREAD_ARRAY(f->time_ps);
    SPREAD_ARRAY(f->cost_ps);
    if (!same) SPREAD_ARRAY(f->least_cost_ps);
    else f->least_cost_ps = f->cost_ps;
    if (f->inlines) SPREAD_ARRAY(f->inlines);
    SPREAD_ARRAY(f->once);
    SPREAD_ARRAY(f->again_bytes);
    SPREAD_ARRAY(f->stays);
    SPREAD_ARRAY(f->wish);
    SPREAD_ARRAY(f->wish_value);
    SPREAD_ARRAY(f->position);
    f->n_unit += more;
    if (f->follows.begin) {
        EXTEND_ARRAY(f->follows.begin, n + 1, more);
        for (uint32_t op = n; op < n + more; op++) f->follows.begin[op + 1] = f->follows.begin[n];
    }
    CB_TRY(renumber_units(f, n, more, arena, err));
    f->base = CB_NEW(arena, uint32_t, (size_t)f->n_base + more);
    return f->base ? CB_OK : cb_no_memory(err);
}

cb_status cb_add_spares(const cb_facts *f, const uint32_t *count, cb_arena *arena, cb_facts *out,
                        cb_error *err) {
    uint32_t more = 0, at = 0, spare = f->p->n_op;
    for (uint32_t k = 0; k < f->n_base; k++) more += count ? count[k] : 1;
    cb_problem *p = CB_NEW(arena, cb_problem, 1);
    if (!p) return cb_no_memory(err);
    *p = *f->p;
    *out = *f;
    out->p = p;
    CB_TRY(extend_problem(p, more, arena, err));
    CB_TRY(extend_facts(out, spare, more, arena, err));
    out->spared = true;
    out->first_spare = f->p->n_op;
    out->n_base = out->base_backward = f->n_base + more;
    for (uint32_t k = 0; k < f->n_base; k++) {
        if (k == f->base_backward) out->base_backward = at;
        for (uint32_t i = count ? count[k] : 1; i > 0; i--, spare++) {
            set_spare(p, spare, k >= f->base_backward);
            out->once[spare] = true;
            out->wish[spare] = CB_FREE;
            out->wish_value[spare] = CB_NONE;
            out->position[spare] = at;
            out->base[at++] = spare;
        }
        out->position[f->base[k]] = at;
        out->base[at++] = f->base[k];
    }
    for (uint32_t u = p->n_op; u < out->n_unit; u++)
        out->position[u] = out->position[cb_unit_op(out, u)];
    return CB_OK;
}
