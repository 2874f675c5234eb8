/* Readers come after their inputs, so one pass from the last op to the first sees all readers of a
 * unit before the unit. */
#include "taking.h"

#include "../../base/sort.h"

#define SEVERAL_HOSTS UINT64_MAX

bool cb_taking_init(cb_taking *t, const cb_facts *f, cb_arena *arena) {
    *t = (cb_taking){.f = f};
    if (!f->inlines) return true;
    t->wished = CB_NEW(arena, uint32_t, f->n_unit);
    t->taken = CB_NEW(arena, uint32_t, f->n_unit);
    t->read = CB_NEW(arena, uint32_t, f->n_unit);
    t->host = CB_NEW(arena, uint64_t, f->n_unit);
    return t->wished && t->taken && t->read && t->host;
}

void cb_taking_wish(cb_taking *t, uint32_t unit, bool inlines) {
    bool was = t->wished[unit] == t->round, is = inlines && t->f->inlines[unit];
    t->wished[unit] = is ? t->round : 0;
    t->n_wish += (uint32_t)is - (uint32_t)was;
}

static int compare_reached(const void *a, const void *b) {
    const cb_reached *x = a, *y = b;
    if (x->op != y->op) return x->op > y->op ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Notes that this run reads the inputs of units that run or are inlined. */
static void note_reads(cb_taking *t, const cb_reached *x, uint64_t host) {
    const cb_problem *p = t->f->p;
    cb_slice slice = cb_slice_of(p, x->op, cb_unit_made(t->f, x->id));
    for (uint32_t j = p->in_begin[x->op]; j < p->in_begin[x->op + 1]; j++) {
        uint32_t unit = t->f->unit[p->value_storage[p->in_value[j]]];
        if (unit == CB_NONE || t->wished[unit] != t->round) continue;
        if (!cb_slice_reads(slice, j - p->in_begin[x->op])) continue;
        bool other = t->read[unit] == t->round && t->host[unit] != host;
        t->read[unit] = t->round;
        t->host[unit] = other ? SEVERAL_HOSTS : host;
    }
}

void cb_taking_choose(cb_taking *t) {
    const cb_facts *f = t->f;
    if (t->n_wish == 0 || t->list.len == 0) return;
    cb_sort(t->list.at, t->list.len, sizeof *t->list.at, compare_reached);
    for (size_t i = 0; i < t->list.len; i++) {
        const cb_reached *x = &t->list.at[i];
        uint64_t host = (uint64_t)x->top << 32 | x->op;
        bool may = t->wished[x->id] == t->round && t->read[x->id] == t->round &&
                   t->host[x->id] != SEVERAL_HOSTS;
        if (may &&
            cb_find_inlining(f->p, (uint32_t)t->host[x->id], cb_unit_value(f, x->id)) != CB_NONE) {
            t->taken[x->id] = t->round;
            host = t->host[x->id];
        }
        note_reads(t, x, host);
    }
}

uint64_t cb_taken_now(const cb_taking *t, uint32_t op, uint32_t made) {
    const cb_problem *p = t->f->p;
    uint64_t taken = 0;
    if (!t->wished || t->n_wish == 0) return 0;
    for (uint32_t i = p->inline_begin[op]; i < p->inline_begin[op + 1]; i++) {
        uint32_t unit = t->f->unit[p->value_storage[p->inlining[i].value]];
        if (unit != CB_NONE && cb_is_taken(t, unit))
            taken |= UINT64_C(1) << (i - p->inline_begin[op]);
    }
    return cb_taken_read(p, op, made, taken);
}
