/* A step is a base step if its op has not run yet, comes after all earlier base steps in the base
 * order, and, if it is an op of the forward, runs in the forward. All others are reruns, including
 * the first run of an op without a base run. A rerun belongs to the first base step that needs it,
 * directly or through other reruns, so anchors propagate backwards from readers to their inputs. */
#include "decisions.h"

static void find_base(const cb_facts *f, const cb_schedule *s, bool *ran, cb_decisions *out) {
    uint32_t next = 0; /* position */
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t], k = f->position[op];
        if (t == s->backward_starts) next = f->base_backward;
        uint32_t end = t < s->backward_starts ? f->base_backward : f->n_base;
        out->base[t] = !ran[op] && k >= next && k < end;
        out->anchor[t] = out->base[t] ? k : CB_NONE;
        if (out->base[t]) next = k + 1;
        ran[op] = true;
    }
}

/* Fills `maker` [reads of all steps] with the step that made the value that is read. */
static void find_makers(const cb_facts *f, const cb_schedule *s, uint32_t *made_at,
                        uint32_t *maker) {
    const cb_problem *p = f->p;
    for (uint32_t v = 0; v < p->n_value; v++) made_at[v] = CB_NONE;
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t], made = cb_made_at(p, s, t);
        cb_reading r = cb_read_run(p, op, made, cb_taken_at(s, t));
        for (uint32_t v; cb_read_next(&r, &v);) *maker++ = v != CB_NONE ? made_at[v] : CB_NONE;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
            if (cb_makes(made, v - p->out_begin[op])) made_at[v] = t;
    }
}

static void hand_anchors_on(const cb_facts *f, const cb_schedule *s, const uint32_t *maker,
                            size_t n_in, cb_decisions *out) {
    const cb_problem *p = f->p;
    const uint32_t *end = maker + n_in;
    for (uint32_t t = s->n_step; t-- > 0;) {
        uint32_t n = cb_count_reads(p, s->step[t], cb_taken_at(s, t));
        end -= n;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t from = end[j];
            if (from == CB_NONE || out->base[from]) continue;
            if (out->anchor[t] < out->anchor[from]) out->anchor[from] = out->anchor[t];
        }
    }
}

static bool allocates(const cb_facts *f, uint32_t op) {
    for (uint32_t v = f->p->out_begin[op]; v < f->p->out_begin[op + 1]; v++)
        if (f->root[f->p->value_storage[v]] == op) return true;
    return false;
}

/* Adds a pair for each output that a run of an op with an inside makes. */
static bool add_pairs(const cb_facts *f, uint32_t anchor, uint32_t op, uint32_t early,
                      uint32_t made, cb_pairs *out) {
    if (!cb_has_units(f, op))
        return CB_PUSH(out->arena, out->list, cb_pair_make(anchor, op | early));
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++) {
        bool makes = made & cb_unit_made(f, u);
        if (makes && !CB_PUSH(out->arena, out->list, cb_pair_make(anchor, u | early))) return false;
    }
    return true;
}

/* Adds pairs for the values inlined into the step, at the anchor of its outputs. */
static bool add_taken(const cb_facts *f, const cb_schedule *s, uint32_t step, uint32_t anchor,
                      cb_pairs *out) {
    const cb_problem *p = f->p;
    uint64_t taken = cb_taken_at(s, step);
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++) {
        if (!(taken >> i & 1)) continue;
        uint32_t v = p->inlining[p->inline_begin[s->step[step]] + i].value;
        uint32_t unit = f->unit[p->value_storage[v]];
        if (unit != CB_NONE &&
            !CB_PUSH(out->arena, out->list, cb_pair_make(anchor, unit | CB_INLINE)))
            return false;
    }
    return true;
}

static bool list_pairs(const cb_facts *f, const cb_schedule *s, cb_arena *arena,
                       cb_decisions *out) {
    uint32_t next = CB_NONE; /* position of the base step after it */
    out->pairs.arena = arena;
    for (uint32_t t = s->n_step; t-- > 0;) {
        uint32_t anchor = out->anchor[t], id = s->step[t], early = 0;
        if (out->base[t] && !cb_is_view(f, id)) next = anchor;
        if (next < anchor) {
            anchor = next;
            early = CB_EARLY;
        }
        if (anchor != CB_NONE && !add_taken(f, s, t, anchor, &out->pairs)) return false;
        if (out->base[t] || anchor == CB_NONE || !allocates(f, id)) continue;
        if (!add_pairs(f, anchor, id, early, cb_made_at(f->p, s, t), &out->pairs)) return false;
    }
    cb_sort_pairs(out->pairs.list.at, out->pairs.list.len);
    return true;
}

cb_status cb_decisions_of(const cb_facts *f, const cb_schedule *s, cb_arena *arena,
                          cb_decisions *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    size_t n_in = 0;
    for (uint32_t t = 0; t < s->n_step; t++)
        n_in += cb_count_reads(f->p, s->step[t], cb_taken_at(s, t));
    *out = (cb_decisions){.anchor = CB_NEW(arena, uint32_t, s->n_step),
                          .base = CB_NEW(arena, bool, s->n_step)};
    bool *ran = CB_NEW(&scratch, bool, f->p->n_op);
    uint32_t *made_at = CB_NEW(&scratch, uint32_t, f->p->n_value);
    uint32_t *maker = CB_NEW(&scratch, uint32_t, n_in);
    bool ok = out->anchor && out->base && ran && made_at && maker;
    if (ok) {
        find_base(f, s, ran, out);
        find_makers(f, s, made_at, maker);
        hand_anchors_on(f, s, maker, n_in, out);
        ok = list_pairs(f, s, arena, out);
    }
    cb_arena_free(&scratch);
    return ok ? CB_OK : cb_no_memory(err);
}

/* ---- the class of the bound ------------------------------------------------------------------ */

/* True if this run may be a rerun or a late first run. An op whose outputs are all held to the end
 * has its first run in its phase, and in the backward in its place. */
static bool may_be_late(const cb_facts *f, const cb_schedule *s, uint32_t step, bool first) {
    uint32_t op = s->step[step], made = cb_made_at(f->p, s, step);
    if (first && step >= s->backward_starts && cb_makes_only_held(f, op)) return false;
    if (!cb_has_units(f, op)) return cb_may_rerun(f, op) && !(first && f->stays[op]);
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if ((made & cb_unit_made(f, u)) && !cb_may_rerun(f, u)) return false;
    return true;
}

/* True if the schedule keeps a value that must be recomputed from the forward to the backward. */
static bool saves_forbidden(const cb_facts *f, const cb_schedule *s, const cb_lives *lives) {
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        if (life->storage == CB_NONE || f->root[life->storage] == CB_NONE) continue;
        bool crosses = life->made < s->backward_starts && life->last >= s->backward_starts;
        bool forbidden = f->wish[f->unit[life->storage]] == CB_MUST_RECOMPUTE;
        if (crosses && forbidden && !f->held[life->storage]) return true;
    }
    return false;
}

/* Checks the order of steps. Views may be anywhere, and may run again unless their memory is
 * written later. */
static bool keeps_order(const cb_facts *f, const cb_schedule *s, bool *ran) {
    uint32_t next = 0; /* position */
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t], k = f->position[op];
        bool backward = t >= s->backward_starts, first = !ran[op];
        if (cb_action_at(s, t) != CB_ACTION_RUN) continue;
        if (f->p->op_flags[op] & CB_POP_VIEW) {
            if (!first && f->once[op]) return false;
            ran[op] = true;
            continue;
        }
        if (backward && next < f->base_backward) next = f->base_backward;
        bool in_place = first && k >= next && k < (backward ? f->n_base : f->base_backward);
        if (!in_place && !may_be_late(f, s, t, first)) return false;
        if (in_place) next = k + 1;
        ran[op] = true;
    }
    return true;
}

cb_status cb_in_bound_class(const cb_facts *f, const cb_schedule *s, const cb_lives *lives,
                            bool *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *ran = CB_NEW(&scratch, bool, f->p->n_op);
    *out = ran && keeps_order(f, s, ran) && !saves_forbidden(f, s, lives);
    cb_arena_free(&scratch);
    return ran ? CB_OK : cb_no_memory(err);
}

/* ---- the base order -------------------------------------------------------------------------- */

cb_status cb_follow_schedule(const cb_facts *f, const cb_schedule *s, cb_arena *arena,
                             cb_facts *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *hoist = CB_NEW(&scratch, bool, f->p->n_op);
    uint32_t n = s->backward_starts < s->n_step ? s->backward_starts : s->n_step;
    for (uint32_t t = 0; hoist && t < n; t++) {
        uint32_t op = s->step[t];
        if (op >= f->p->n_op) continue; /* the walk refuses it */
        hoist[op] = f->position[op] != CB_NONE && f->position[op] >= f->base_backward;
    }
    cb_status status = hoist ? cb_facts_hoist(f, hoist, arena, out, err) : cb_no_memory(err);
    cb_arena_free(&scratch);
    return status;
}
