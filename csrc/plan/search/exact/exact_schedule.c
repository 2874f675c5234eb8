/* Traces the path from the last state back to the first, then makes its steps in forward order and
 * restores the views. */
#include "exact_parts.h"

typedef struct writer {
    solver *z;
    cb_arena *arena;
    CB_VEC(uint32_t) step;
    CB_VEC(uint32_t) sets;  /* outputs that each step makes */
    CB_VEC(uint64_t) taken; /* values inlined into each step */
    uint32_t *made;         /* [n_storage] step that made the newest instance */
    uint32_t *shown;        /* [n_value] the same, for the instance of a value */
} writer;

static bool show(writer *w, uint32_t value);

/* Held values belong to the first run, so their views are inserted before another run. Backward
 * outputs without a hold flag are views of the last run. */
static bool show_first(writer *w, uint32_t n, const uint32_t *value, uint32_t op, bool flagged) {
    const cb_facts *f = w->z->f;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = f->p->value_storage[value[i]];
        bool waits = w->shown[value[i]] == 0 && w->made[s] != 0;
        if (flagged && !cb_stays_to_end(f, s)) continue;
        if (waits && (op == CB_NONE || f->root[s] == op) && !show(w, value[i])) return false;
    }
    return true;
}

static bool emit(writer *w, uint32_t op, uint32_t made, uint64_t taken) {
    const cb_facts *f = w->z->f;
    const cb_problem *p = f->p;
    if (!cb_is_view(f, op) && (!show_first(w, p->n_forward_output, p->forward_output, op, false) ||
                               !show_first(w, p->n_backward_output, p->backward_output, op, true)))
        return false;
    cb_reading r = cb_read_run(p, op, made, taken);
    for (uint32_t v; cb_read_next(&r, &v);) {
        if (v != CB_NONE && !show(w, v)) return false;
    }
    if (!CB_PUSH(w->arena, w->step, op) || !CB_PUSH(w->arena, w->sets, made) ||
        !CB_PUSH(w->arena, w->taken, taken))
        return false;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (!cb_makes(made, v - p->out_begin[op])) continue;
        if (f->root[s] == op) w->made[s] = (uint32_t)w->step.len;
        w->shown[v] = w->made[s];
    }
    return true;
}

/* Updates a view to its storage's newest instance. Recursion handles the few views of views. */
static bool show(writer *w, uint32_t value) {
    const cb_problem *p = w->z->f->p;
    uint32_t op = p->value_op[value];
    bool stale = w->shown[value] != w->made[p->value_storage[value]];
    return !stale || !cb_is_view(w->z->f, op) || emit(w, op, CB_ALL_OUTPUTS, 0);
}

/* True if the view's memory is alive. A view of freed memory waits for its reader. */
static bool is_there(const solver *z, uint32_t op, uint32_t set) {
    const cb_problem *p = z->f->p;
    if (!cb_is_view(z->f, op)) return true;
    uint32_t bit = z->bit_of[p->value_storage[p->out_begin[op]]];
    return bit == CB_NONE || cb_exact_shows(z, set) >> bit & 1;
}

typedef struct past { /* an event of the schedule */
    uint32_t op;      /* CB_NONE: nothing to run */
    uint32_t made;    /* outputs */
    uint64_t taken;   /* inlined values */
    bool first;       /* the first step of the backward */
} past;

/* Returns the view of memory in `set` with which the backward starts: one of those at its start in
 * the base order, or else one of the forward, or else one of memory that exists in every plan. */
static uint32_t view_of(const solver *z, uint32_t set) {
    const cb_facts *f = z->f;
    uint32_t found = CB_NONE;
    for (uint32_t k = f->base_backward + z->n_leading; k-- > 0;) {
        uint32_t op = f->base[k], b = z->bit_of[f->p->value_storage[f->p->out_begin[op]]];
        if (k < f->base_backward && (cb_exact_shows(z, set) & z->leading)) return found;
        if (cb_is_view(f, op) && !f->once[op] && b != CB_NONE && cb_exact_shows(z, set) >> b & 1)
            found = op;
    }
    return found == CB_NONE ? z->opener : found;
}

/* Steps one event back from the state (stage, set). */
static past step_back(const solver *z, uint32_t *stage, uint32_t *set) {
    size_t at = ((size_t)*stage << z->n_bit) + *set;
    uint8_t how = z->how[at];
    *set = z->from[at];
    bool first_base = how == FIRST || how >= MORE_FIRST, reruns = how >= RERUN && how < MORE_BASE;
    past e = {.op = CB_NONE,
              .made = CB_ALL_OUTPUTS,
              .first = first_base || how == SHOW || (reruns && how >= CROSS)};
    if (reruns) {
        const event *again = &z->rerun[how - (how >= CROSS ? CROSS : RERUN)];
        e.op = again->op;
        e.made = again->made;
        e.taken = again->taken;
        if (how >= CROSS) --*stage;
    } else if (how == SHOW) {
        e.op = view_of(z, *set);
        --*stage;
    } else if (how < DROP || how >= MORE_BASE) {
        *stage -= first_base ? 2 : 1;
        uint32_t more = how >= MORE_FIRST  ? how - MORE_FIRST
                        : how >= MORE_BASE ? how - MORE_BASE
                                           : 0;
        const event *base = &z->base[z->base_begin[cb_exact_position(z, *stage)] + more];
        if (how == SKIP_BASE || !is_there(z, base->op, *set)) return e;
        e.op = base->op;
        e.made = base->made;
        e.taken = base->taken;
    }
    return e;
}

/* ---- runs whose results are never read ------------------------------------------------------- */

typedef struct use {
    bool *needed;    /* [n_value] true if a later step reads its latest version */
    bool *held;      /* [n_storage] */
    uint32_t *first; /* [n_value] step that makes it first */
} use;

static void find_held(const cb_facts *f, const writer *w, use *u) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) u->held[s] = f->held[s] || p->storage_flags[s];
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i];
        if (!cb_stays_to_end(f, p->value_storage[v])) u->needed[v] = true;
    }
    for (uint32_t t = (uint32_t)w->step.len; t-- > 0;) {
        uint32_t op = w->step.at[t];
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
            if (cb_makes(w->sets.at[t], v - p->out_begin[op])) u->first[v] = t;
    }
}

static uint32_t used_of(const writer *w, use *u, uint32_t step) {
    const cb_problem *p = w->z->f->p;
    uint32_t op = w->step.at[step], made = w->sets.at[step], used = 0;
    if (!cb_has_inside(p, op)) return made;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        if (!cb_makes(made, v - p->out_begin[op])) continue;
        bool held = u->first[v] == step && u->held[p->value_storage[v]];
        if (u->needed[v] || held) used |= UINT32_C(1) << (v - p->out_begin[op]);
        u->needed[v] = false;
    }
    return used;
}

/* A path may make an output of an inside and drop it at no cost; such an output is not made. */
static bool drop_unread(writer *w, cb_schedule *out) {
    const cb_facts *f = w->z->f;
    const cb_problem *p = f->p;
    use u = {.needed = CB_NEW(w->z->arena, bool, p->n_value),
             .held = CB_NEW(w->z->arena, bool, p->n_storage),
             .first = CB_NEW(w->z->arena, uint32_t, p->n_value)};
    if (!u.needed || !u.held || !u.first) return false;
    find_held(f, w, &u);
    for (uint32_t t = (uint32_t)w->step.len; t-- > 0;) {
        uint32_t op = w->step.at[t], made = used_of(w, &u, t);
        w->sets.at[t] = made;
        w->taken.at[t] = cb_taken_read(p, op, made, w->taken.at[t]);
        cb_reading r = cb_read_run(p, op, made, w->taken.at[t]);
        for (uint32_t v; made && cb_read_next(&r, &v);)
            if (v != CB_NONE) u.needed[v] = true;
    }
    uint32_t n = 0, starts = out->backward_starts;
    for (uint32_t t = 0; t < w->step.len; t++) {
        if (w->sets.at[t] == 0 && t < starts) out->backward_starts--;
        if (w->sets.at[t] == 0) continue;
        w->step.at[n] = w->step.at[t];
        w->taken.at[n] = w->taken.at[t];
        w->sets.at[n++] = w->sets.at[t];
    }
    w->step.len = w->sets.len = w->taken.len = n;
    out->made = w->sets.at;
    return true;
}

/* ---- the schedule ---------------------------------------------------------------------------- */

/* Shows values that are alive at the end without a hold; they are of the newest version. */
static bool show_newest(writer *w, uint32_t n, const uint32_t *value) {
    const cb_facts *f = w->z->f;
    for (uint32_t i = 0; i < n; i++) {
        bool first = cb_stays_to_end(f, f->p->value_storage[value[i]]);
        if (!first && !show(w, value[i])) return false;
    }
    return show_first(w, n, value, CB_NONE, false);
}

static bool start_backward(writer *w, cb_schedule *out) {
    const cb_problem *p = w->z->f->p;
    bool ok = show_first(w, p->n_forward_output, p->forward_output, CB_NONE, false);
    out->backward_starts = (uint32_t)w->step.len;
    return ok;
}

/* Follows the events from the last state back to the first, then writes them as steps in forward
 * order. */
bool cb_exact_write(solver *z, uint32_t set, cb_arena *arena, cb_schedule *out) {
    const cb_facts *f = z->f;
    writer w = {.z = z, .arena = arena};
    CB_VEC(past) list = {0}; /* last event first */
    w.made = CB_NEW(z->arena, uint32_t, f->p->n_storage);
    w.shown = CB_NEW(z->arena, uint32_t, f->p->n_value);
    if (!w.made || !w.shown) return false;
    for (uint32_t stage = z->n_stage; stage > 0;) {
        if (!CB_PUSH(z->arena, list, step_back(z, &stage, &set))) return false;
    }
    out->backward_starts = CB_NONE;
    for (size_t i = list.len; i-- > 0;) {
        if (list.at[i].first && !start_backward(&w, out)) return false;
        if (list.at[i].op != CB_NONE && !emit(&w, list.at[i].op, list.at[i].made, list.at[i].taken))
            return false;
    }
    if (out->backward_starts == CB_NONE && !start_backward(&w, out)) return false;
    if (!show_newest(&w, f->p->n_backward_output, f->p->backward_output)) return false;
    if (f->unit_begin && !drop_unread(&w, out)) return false;
    if (f->inlines) out->taken = w.taken.at;
    out->step = w.step.at;
    out->n_step = (uint32_t)w.step.len;
    return true;
}
