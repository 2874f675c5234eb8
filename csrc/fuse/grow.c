#include "grow.h"

static cb_shaped shapes_of(const cb_steps *s, uint32_t step) {
    return cb_shaped_op(s->g, cb_step_id(s, step));
}

cb_status cb_joining_init(cb_joining *x, const cb_steps *steps, cb_fuses_fn fuses, cb_arena *arena,
                          cb_error *err) {
    *x = (cb_joining){.steps = steps, .fuses = fuses};
    x->made = CB_NEW(arena, uint8_t, steps->n_place);
    return x->made ? CB_OK : cb_no_memory(err);
}

static bool backend_fuses(const cb_joining *x, uint32_t step, cb_part part,
                          const cb_domain *domain) {
    const cb_graph *g = x->steps->g;
    const cb_op *op = cb_step_op(x->steps, step);
    const cb_value_id *ins = cb_op_ins(g, cb_step_id(x->steps, step));
    cb_dtype dtype[CB_PART_OPERANDS];
    for (uint32_t k = 0; k < op->n_in + op->n_out && k < CB_PART_OPERANDS; k++)
        dtype[k] = g->values.at[k < op->n_in ? ins[k] : op->out_begin + k - op->n_in].dtype;
    return cb_part_fuses(x->fuses, op->code, part, domain, dtype, op->n_in, op->n_out);
}

static void forget(cb_joining *x, uint32_t step) {
    const cb_op *op = cb_step_op(x->steps, step);
    for (uint32_t k = 0; k < op->n_out; k++)
        x->made[cb_place_out(x->steps, step, k)] = CB_MADE_OUTSIDE;
}

/* Determines the part of member `i` in the group's domain; CB_END_NONE: it may join. */
static cb_group_end fit(cb_joining *x, uint32_t i) {
    const cb_steps *s = x->steps;
    const uint32_t step = x->step[i];
    const cb_shaped of = shapes_of(s, step);
    const cb_op *op = cb_step_op(s, step);
    const cb_part part = cb_part_of(&of, &x->domain);
    bool late = false;
    if (part == CB_PART_NONE) return CB_END_DOMAIN;
    if (!backend_fuses(x, step, part, &x->domain)) return CB_END_OP;
    for (uint32_t k = 0; k < op->n_in; k++) {
        const cb_value *v = &s->g->values.at[cb_op_ins(s->g, cb_step_id(s, step))[k]];
        const cb_made made = (cb_made)x->made[cb_place_in(s, step, k)];
        cb_parts_add_dtype(&x->parts, v->dtype);
        late |= made == CB_MADE_LATE;
        if (made == CB_MADE_OUTSIDE) continue;
        const cb_view view = cb_view_of(&v->shape, v->stride, &x->domain);
        if (!cb_may_read(of.code, part, k, made, view)) return CB_END_READ;
    }
    x->part[i] = part;
    cb_parts_add(&x->parts, of.code, part);
    for (uint32_t k = 0; k < op->n_out; k++)
        x->made[cb_place_out(s, step, k)] = (uint8_t)cb_made_by(of.code, part, k, late);
    for (uint32_t k = 0; k < op->n_out; k++)
        cb_parts_add_dtype(&x->parts, s->g->values.at[op->out_begin + k].dtype);
    if (!cb_parts_agree(&x->parts)) return CB_END_DTYPE;
    return cb_parts_fit(&x->parts, &x->domain) ? CB_END_NONE : CB_END_CUT;
}

static cb_group_end fit_all(cb_joining *x) {
    x->parts = (cb_parts){0};
    for (uint32_t i = 0; i < x->n; i++) forget(x, x->step[i]);
    for (uint32_t i = 0; i < x->n; i++) {
        const cb_group_end end = fit(x, i);
        if (end != CB_END_NONE) return end;
    }
    return CB_END_NONE;
}

bool cb_can_join(const cb_joining *x, uint32_t step) {
    const cb_shaped of = shapes_of(x->steps, step);
    cb_domain own = {0};
    return cb_domain_join(&own, &of) && backend_fuses(x, step, cb_part_of(&of, &own), &own);
}

cb_group_end cb_join(cb_joining *x, uint32_t step) {
    const cb_shaped of = shapes_of(x->steps, step);
    const cb_domain before = x->domain;
    const cb_parts parts = x->parts;
    if (x->n == CB_GROUP_MOST) return CB_END_LIMIT;
    if (!cb_domain_join(&x->domain, &of)) return CB_END_DOMAIN;
    /* A member's part depends on the domain, so every member must fit again in a wider one. */
    bool widened = x->domain.count != before.count || x->domain.columns != before.columns ||
                   x->domain.inner != before.inner;
    x->step[x->n++] = step;
    const cb_group_end end = widened ? fit_all(x) : fit(x, x->n - 1);
    if (end == CB_END_NONE) return end;
    forget(x, step);
    x->n--;
    x->domain = before;
    x->parts = parts;
    if (widened) (void)fit_all(x); /* restores the state, which fitted */
    return end;
}

cb_domain cb_longer_rows(const cb_joining *x, uint32_t step) {
    const cb_shaped of = shapes_of(x->steps, step);
    cb_domain own = {0};
    const bool is_longer = cb_domain_join(&own, &of) && own.count == x->domain.count &&
                           own.columns > x->domain.columns && !own.inner && !x->domain.inner;
    return is_longer ? own : (cb_domain){0};
}

void cb_joining_cut(cb_joining *x, uint32_t n) {
    uint32_t step[CB_GROUP_MOST];
    memcpy(step, x->step, sizeof step);
    for (uint32_t i = 0; i < x->n; i++) forget(x, x->step[i]);
    x->n = 0;
    x->domain = x->start;
    x->parts = (cb_parts){0};
    for (uint32_t i = 0; i < n; i++)
        (void)cb_join(x, step[i]); /* they join as before, in this
                                                                   order */
}

void cb_joining_start(cb_joining *x, cb_domain domain) {
    x->start = domain;
    cb_joining_cut(x, 0);
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* Starts from an empty group with the rows of `start`. */
static uint32_t grow_once(cb_growing *g, uint32_t first, cb_domain start, cb_domain *longer) {
    uint32_t at = first + 1, deferred = 0;
    cb_joining_start(g->joining, start);
    g->begin(g->user);
    g->end = g->take(g->user, first, longer);
    g->end_unit = first;
    for (; g->joining->n > 0 && at < g->n_unit && g->joining->n < g->members; at++) {
        if (g->passes(g->user, at)) continue;
        const cb_group_end end = g->take(g->user, at, longer);
        if (end == CB_END_NONE || g->end == CB_END_NONE) {
            g->end = end;
            g->end_unit = at;
        }
        if (end != CB_END_NONE && deferred++ == g->deferred) break;
    }
    if (g->end != CB_END_NONE) return at;
    while (at < g->n_unit && g->passes(g->user, at)) at++;
    g->end = at < g->n_unit ? CB_END_LIMIT : CB_END_PROGRAM;
    g->end_unit = at < g->n_unit ? at : CB_NONE;
    return at;
}

/* Starts again with longer rows when a unit needs them, unless fewer steps would join. */
uint32_t cb_grow(cb_growing *g, uint32_t first) {
    cb_domain start = {0}, longer = {0}, unused = {0};
    uint32_t at = grow_once(g, first, start, &longer);
    while (longer.count > 0) {
        const cb_domain rows = longer;
        const uint32_t n = g->joining->n;
        longer = (cb_domain){0};
        at = grow_once(g, first, rows, &longer);
        if (g->joining->n < n) return grow_once(g, first, start, &unused);
        start = rows;
    }
    return at;
}
