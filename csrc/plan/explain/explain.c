/* Explains a plan: one line for each storage that the backward needs, largest first, with the
 * effect of the other choice. The simulator tries other choices, for as many lines as a fixed
 * effort allows. */
#include "explain.h"

#include "../../base/sort.h"
#include "../model/names.h"
#include "../schedule/decisions.h"
#include "../search/local/ledger.h"

#define LOOK_BACK 2000 /* compare a line with this many before it */
#define EXPLAIN_EFFORT \
    2000000 /* about this many simulated steps; at 3,000 ops a fifth of a
                                  second */

/* ---- lines ----------------------------------------------------------------------------------- */

static int compare_lines(const void *a, const void *b) {
    const cb_explained *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Makes one line for each storage: its first value with a decision represents its views. */
static void collect(const cb_facts *f, cb_explanation *e, bool *seen) {
    const cb_problem *p = e->p;
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v];
        if (e->plan->decision[v] == CB_DECISION_NONE || seen[s] || f->root[s] == CB_NONE) continue;
        seen[s] = true;
        e->line[e->n_line++] = (cb_explained){.storage = s,
                                              .value = v,
                                              .op = f->root[s],
                                              .made = cb_unit_made(f, f->unit[s]),
                                              .bytes = p->storage_bytes[s]};
    }
    if (e->n_line > 0) cb_sort(e->line, e->n_line, sizeof *e->line, compare_lines);
}

static void mark_peak(const cb_plan *plan, bool *alive) {
    const cb_lives *lives = &plan->lives;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        if (life->storage != CB_NONE && life->made <= lives->peak_step &&
            life->last >= lives->peak_step)
            alive[life->storage] = true;
    }
}

/* True if a summary would put both lines into one row. */
static bool alike(const cb_explanation *e, const cb_explained *a, const cb_explained *b) {
    const cb_problem *p = e->p;
    const cb_plan *plan = e->plan;
    return a->bytes == b->bytes && plan->decision[a->value] == plan->decision[b->value] &&
           plan->reason[a->value] == plan->reason[b->value] &&
           strcmp(p->op_kind[a->op], p->op_kind[b->op]) == 0 &&
           strcmp(p->value_type[a->value], p->value_type[b->value]) == 0;
}

/* Chooses the first line of each kind, then the largest lines; at most `most` in all. Lines are
 * sorted by size, so similar ones are near each other. */
static void choose_lines(cb_explanation *e, uint32_t most, bool *chosen) {
    for (uint32_t i = 0; i < e->n_line && e->n_tried < most; i++) {
        bool first = true;
        for (uint32_t j = i; j-- > 0 && first && i - j <= LOOK_BACK;)
            first = !(chosen[j] && alike(e, &e->line[i], &e->line[j]));
        chosen[i] = first;
        e->n_tried += first;
    }
    for (uint32_t i = 0; i < e->n_line && e->n_tried < most; i++) {
        e->n_tried += !chosen[i];
        chosen[i] = true;
    }
}

static cb_status try_others(const cb_facts *f, cb_arena *arena, cb_explanation *e, cb_error *err) {
    cb_whatif w;
    cb_status status = CB_OK;
    if (e->plan->schedule.action) return CB_OK; /* whatif.h does not support moves */
    uint32_t steps = e->plan->schedule.n_step + 1, most = EXPLAIN_EFFORT / steps;
    bool *chosen = CB_NEW(arena, bool, e->n_line);
    if (!chosen) return cb_no_memory(err);
    choose_lines(e, most < 8 ? 8 : most, chosen);
    CB_TRY(cb_whatif_init(&w, f, &e->plan->schedule, f->alloc, err));
    for (uint32_t i = 0; i < e->n_line && status == CB_OK; i++) {
        if (chosen[i]) status = cb_whatif_flip(&w, e->line[i].storage, &e->line[i].otherwise, err);
    }
    cb_whatif_free(&w);
    return status;
}

/* ---- who reads it ---------------------------------------------------------------------------- */

/* Counts the readers of each storage, and lists them if `list` is given. `seen` [n_storage]: last
 * op that read it. */
static void find_readers(const cb_facts *f, uint32_t *seen, uint32_t *count, uint32_t *list) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) seen[s] = CB_NONE;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (f->root[s] == CB_NONE || seen[s] == op) continue;
            if (!cb_slice_reads(slice, j - p->in_begin[op])) continue;
            seen[s] = op;
            if (list) list[count[s]] = op;
            count[s]++;
        }
    }
}

static cb_status list_readers(const cb_facts *f, cb_arena *arena, cb_explanation *e,
                              cb_error *err) {
    const cb_problem *p = f->p;
    CB_TRY_NEW(e->reader_begin, arena, (size_t)p->n_storage + 1, err);
    CB_TRY_NEW(e->reader, arena, p->in_begin[p->n_op], err);
    uint32_t *at = CB_NEW(arena, uint32_t, p->n_storage);
    uint32_t *seen = CB_NEW(arena, uint32_t, p->n_storage);
    if (!at || !seen) return cb_no_memory(err);
    find_readers(f, seen, e->reader_begin + 1, NULL);
    for (uint32_t s = 0; s < p->n_storage; s++) {
        at[s] = e->reader_begin[s];
        e->reader_begin[s + 1] += e->reader_begin[s];
    }
    find_readers(f, seen, at, e->reader);
    return CB_OK;
}

/* ---- delayed ops ----------------------------------------------------------------------------- */

static int compare_delayed(const void *a, const void *b) {
    const cb_delayed *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static uint64_t bytes_made(const cb_facts *f, uint32_t op) {
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < f->p->n_storage; s++)
        if (f->root[s] == op) bytes += f->p->storage_bytes[s];
    return bytes;
}

/* Finds first runs of the backward that come later than their place in the order. Views do not
 * count. */
static cb_status list_delayed(const cb_facts *f, cb_arena *arena, cb_explanation *e,
                              cb_error *err) {
    const cb_schedule *s = &e->plan->schedule;
    cb_decisions found;
    if (!f->all || s->action) return CB_OK;
    CB_TRY(cb_decisions_of(f, s, arena, &found, err));
    CB_TRY_NEW(e->delayed, arena, f->n_base, err);
    bool *ran = CB_NEW(arena, bool, f->p->n_op);
    if (!ran) return cb_no_memory(err);
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t], anchor = found.anchor[t];
        bool late = !ran[op] && !found.base[t] && f->position[op] >= f->base_backward;
        ran[op] = true;
        if (!late || cb_is_view(f, op)) continue;
        e->delayed[e->n_delayed++] =
            (cb_delayed){op, anchor == CB_NONE ? CB_NONE : f->base[anchor], bytes_made(f, op)};
    }
    if (e->n_delayed > 0) cb_sort(e->delayed, e->n_delayed, sizeof *e->delayed, compare_delayed);
    return CB_OK;
}

/* ---- the floor ------------------------------------------------------------------------------- */

static cb_status find_floor(const cb_facts *f, cb_arena *arena, cb_explanation *e, cb_error *err) {
    cb_ledger ledger;
    bool *may_rerun = CB_NEW(arena, bool, f->n_unit);
    if (!may_rerun) return cb_no_memory(err);
    cb_facts_mark_free(f, may_rerun);
    CB_TRY(cb_ledger_init(&ledger, f, may_rerun, f->alloc, err));
    cb_status status = cb_find_floor(&ledger, arena, &e->floor, err);
    if (status == CB_OK)
        status = cb_largest_working_sets(&ledger, arena, CB_EXPLAIN_SETS, e->set, &e->n_set, err);
    cb_ledger_free(&ledger);
    return status;
}

const char *cb_explained_once(const cb_explanation *e, const cb_explained *line) {
    uint32_t once = cb_once_flags(e->p, line->op);
    bool argument = e->p->op_flags[line->op] & CB_POP_PLACEHOLDER;
    if (!once || argument) return NULL;
    /* the op that packs a value has the flags of the op that makes the value */
    const char packs[] = "cutback.pack";
    if (strncmp(e->p->op_kind[line->op], packs, sizeof packs - 1) == 0)
        return "the op whose result it packs runs once";
    return cb_why_once(once);
}

uint64_t cb_explanation_floor(const cb_explanation *e) {
    if (e->floor.op == CB_NONE || e->plan->measure == CB_MEASURE_SAVED) return UINT64_MAX;
    return e->floor.bytes + (e->plan->measure == CB_MEASURE_TOTAL ? e->p->static_bytes : 0);
}

cb_status cb_explanation_make(const cb_problem *p, const cb_plan *plan, cb_arena *arena,
                              cb_explanation *out, cb_error *err) {
    cb_explanation e = {.p = p, .plan = plan};
    cb_facts given, facts;
    CB_TRY(cb_facts_make(p, plan->device, arena, &given, err));
    CB_TRY(cb_follow_schedule(&given, &plan->schedule, arena, &facts, err));
    bool *seen = CB_NEW(arena, bool, p->n_storage), *alive = CB_NEW(arena, bool, p->n_storage);
    CB_TRY_NEW(e.line, arena, p->n_storage, err);
    if (!seen || !alive) return cb_no_memory(err);
    e.base = facts.base;
    e.held_bytes = cb_held_bytes(&facts);
    collect(&facts, &e, seen);
    mark_peak(plan, alive);
    for (uint32_t i = 0; i < e.n_line; i++) e.line[i].at_peak = alive[e.line[i].storage];
    CB_TRY(list_readers(&facts, arena, &e, err));
    CB_TRY(try_others(&facts, arena, &e, err));
    CB_TRY(list_delayed(&facts, arena, &e, err));
    CB_TRY(find_floor(&facts, arena, &e, err));
    *out = e;
    return CB_OK;
}
