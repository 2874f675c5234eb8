/* The tables of a ledger that depend only on the problem, and its memory.
 *
 * Outputs of one op that the same ops read and that are held alike (the statistics of a batch norm)
 * have the same lives in every plan. The ledger keeps the first of them, with the bytes of all. */
#include "../../model/over.h"
#include "../tuning.h"
#include "ledger.h"

/* Lists the storages that the base ops read, each once; `seen` [n_storage] is scratch. */
static void list_reads(cb_ledger *l, uint32_t *seen) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) seen[s] = CB_NONE;
    for (uint32_t id = 0; id < f->n_unit; id++) {
        uint32_t op = cb_unit_op(f, id);
        l->read_begin[id] = n;
        if (f->position[id] == CB_NONE || cb_is_view(f, id)) continue;
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, id));
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (f->root[s] == CB_NONE || seen[s] == id) continue;
            if (!cb_slice_reads(slice, j - p->in_begin[op])) continue;
            seen[s] = id;
            l->read[n++] = s;
        }
    }
    l->read_begin[f->n_unit] = n;
}

static bool goes_before(const cb_facts *f, uint32_t a, uint32_t b) {
    bool stays = cb_stays_to_end(f, a), other_stays = cb_stays_to_end(f, b);
    if (stays != other_stays) return other_stays;
    return f->p->storage_bytes[a] > f->p->storage_bytes[b];
}

static void list_held(cb_ledger *l) {
    const cb_facts *f = l->f;
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        if (f->root[s] == CB_NONE) continue;
        if (f->held[s]) l->held_until[s] = f->base_backward;
        if (cb_stays_to_end(f, s)) l->held_until[s] = l->n;
        l->holds[f->unit[s]] |= l->held_until[s] > 0;
    }
    for (uint32_t op = 0; op < f->p->n_op; op++) l->holds[op] |= f->stays[op];
}

static void list_made(cb_ledger *l, uint32_t *seen) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) seen[s] = CB_NONE;
    for (uint32_t id = 0; id < f->n_unit; id++) {
        uint32_t op = cb_unit_op(f, id), made = cb_unit_made(f, id);
        l->made_begin[id] = n;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op || seen[s] == id || !cb_makes(made, v - p->out_begin[op]))
                continue;
            seen[s] = id;
            uint32_t at = n++;
            for (; at > l->made_begin[id] && goes_before(f, s, l->made[at - 1]); at--)
                l->made[at] = l->made[at - 1];
            l->made[at] = s;
        }
    }
    l->made_begin[f->n_unit] = n;
}

/* ---- twins ----------------------------------------------------------------------------------- */

typedef struct reader_lists { /* the inverse of `read` */
    uint32_t *begin;          /* [n_storage + 1] into `reader` */
    uint32_t *reader;         /* rising */
    bool *alone; /* [n_storage] true if the caller, or a view for the caller, reads it as well */
} reader_lists;

static void list_readers(const cb_ledger *l, reader_lists *r) {
    const cb_problem *p = l->f->p;
    for (uint32_t id = 0; id < l->f->n_unit; id++) {
        for (uint32_t j = l->read_begin[id]; !cb_has_units(l->f, id) && j < l->read_begin[id + 1];
             j++)
            r->begin[l->read[j] + 1]++;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) r->begin[s + 1] += r->begin[s];
    for (uint32_t id = 0; id < l->f->n_unit; id++) {
        for (uint32_t j = l->read_begin[id]; !cb_has_units(l->f, id) && j < l->read_begin[id + 1];
             j++)
            r->reader[r->begin[l->read[j]]++] = id;
    }
    for (uint32_t s = p->n_storage; s > 0; s--) r->begin[s] = r->begin[s - 1];
    r->begin[0] = 0;
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        uint32_t v = p->forward_output[i];
        r->alone[p->value_storage[v]] |= cb_is_view(l->f, p->value_op[v]);
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        r->alone[s] |= cb_is_view(l->f, p->value_op[v]) || !cb_stays_to_end(l->f, s);
    }
    for (uint32_t s = 0; s < p->n_storage; s++) r->alone[s] |= cb_is_updating(p, s);
}

static bool are_twins(const cb_ledger *l, const reader_lists *r, uint32_t a, uint32_t b) {
    uint32_t n = r->begin[a + 1] - r->begin[a];
    if (r->alone[a] || r->alone[b] || l->held_until[a] != l->held_until[b] ||
        cb_stays_to_end(l->f, a) != cb_stays_to_end(l->f, b) || n != r->begin[b + 1] - r->begin[b])
        return false;
    return n == 0 ||
           memcmp(r->reader + r->begin[a], r->reader + r->begin[b], n * sizeof *r->reader) == 0;
}

/* Lists the storages that an op makes, one for each set of twins. */
static void list_lives(cb_ledger *l, const reader_lists *r) {
    const cb_problem *p = l->f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) l->twin[s] = s;
    for (uint32_t op = 0; op < l->f->n_unit; op++) {
        l->life_begin[op] = n;
        if (cb_has_units(l->f, op)) continue; /* its units list them instead */
        for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
            uint32_t s = l->made[j], like = CB_NONE;
            double bytes = (double)p->storage_bytes[s];
            for (uint32_t i = n;
                 i > l->life_begin[op] && n - i < CB_LEDGER_TWIN_TRIES && like == CB_NONE; i--)
                if (are_twins(l, r, s, l->life[i - 1])) like = l->life[i - 1];
            l->made_bytes[op] += bytes;
            if (like == CB_NONE) l->life[n++] = s;
            else l->twin[s] = like;
            l->life_bytes[l->twin[s]] += bytes;
        }
    }
    l->life_begin[l->f->n_unit] = n;
}

/* Finds the lives that a base op reads; `seen` [n_storage] is scratch. */
static void list_needs(cb_ledger *l, uint32_t *seen) {
    const cb_problem *p = l->f->p;
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) seen[s] = CB_NONE;
    for (uint32_t op = 0; op < l->f->n_unit; op++) {
        l->need_begin[op] = n;
        for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
            uint32_t s = l->twin[l->read[j]];
            if (seen[s] != op) l->need[n++] = s;
            seen[s] = op;
        }
    }
    l->need_begin[l->f->n_unit] = n;
}

/* Lists memory that may be taken over. Units of an op with an inside take over no memory. */
static bool list_over(cb_ledger *l) {
    const cb_problem *p = l->f->p;
    uint32_t n = 0;
    if (!p->over_begin) return true;
    l->over_begin = CB_NEW(&l->arena, uint32_t, (size_t)l->f->n_unit + 1);
    l->over = CB_NEW(&l->arena, uint32_t, p->over_begin[p->n_op]);
    if (!l->over_begin || !l->over) return false;
    for (uint32_t op = 0; op < l->f->n_unit; op++) {
        l->over_begin[op] = n;
        const uint32_t count = op < p->n_op ? cb_count_over(p, op) : 0;
        for (uint32_t i = 0; i < count; i++) l->over[n++] = l->twin[cb_over_storage(p, op, i)];
    }
    l->over_begin[l->f->n_unit] = n;
    return true;
}

static bool list_twins(cb_ledger *l) {
    const cb_problem *p = l->f->p;
    cb_arena scratch;
    cb_arena_init(&scratch, l->arena.alloc);
    reader_lists r = {.begin = CB_NEW(&scratch, uint32_t, (size_t)p->n_storage + 1),
                      .reader = CB_NEW(&scratch, uint32_t, l->read_begin[l->f->n_unit]),
                      .alone = CB_NEW(&scratch, bool, p->n_storage)};
    bool ok = r.begin && r.reader && r.alone;
    if (ok) {
        list_readers(l, &r);
        list_lives(l, &r);
        list_needs(l, l->left);
    }
    cb_arena_free(&scratch);
    return ok;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool make_tables(cb_ledger *l, cb_arena *a) {
    const cb_problem *p = l->f->p;
    size_t n_op = l->f->n_unit, n_read = p->in_begin[p->n_op];
    for (uint32_t u = p->n_op; u < l->f->n_unit; u++) {
        uint32_t op = cb_unit_op(l->f, u);
        n_read += p->in_begin[op + 1] - p->in_begin[op];
    }
    l->read_begin = CB_NEW(a, uint32_t, n_op + 1);
    l->read = CB_NEW(a, uint32_t, n_read);
    l->made_begin = CB_NEW(a, uint32_t, n_op + 1);
    l->made = CB_NEW(a, uint32_t, p->n_storage + (n_op - p->n_op));
    l->life_begin = CB_NEW(a, uint32_t, n_op + 1);
    l->life = CB_NEW(a, uint32_t, p->n_storage);
    l->need_begin = CB_NEW(a, uint32_t, n_op + 1);
    l->need = CB_NEW(a, uint32_t, n_read);
    l->twin = CB_NEW(a, uint32_t, p->n_storage);
    l->life_bytes = CB_NEW(a, double, p->n_storage);
    l->made_bytes = CB_NEW(a, double, n_op);
    l->held_until = CB_NEW(a, uint32_t, p->n_storage);
    l->holds = CB_NEW(a, bool, n_op);
    return l->read_begin && l->read && l->made_begin && l->made && l->life_begin && l->life &&
           l->need_begin && l->need && l->twin && l->life_bytes && l->made_bytes && l->held_until &&
           l->holds;
}

static bool make_books(cb_ledger *l, cb_arena *a) {
    const cb_problem *p = l->f->p;
    l->n_block = (l->n >> CB_LEDGER_BLOCK) + 1;
    l->chain = CB_NEW(a, cb_ledger_ids, l->n);
    l->runs = CB_NEW(a, cb_ledger_ids, l->f->n_unit);
    if (l->asks) l->taken = CB_NEW(a, cb_ledger_ids, l->f->n_unit);
    l->idle = CB_NEW(a, bool, l->f->n_unit);
    l->use = CB_NEW(a, cb_ledger_uses, p->n_storage);
    l->span = CB_NEW(a, cb_ledger_spans, p->n_storage);
    l->busy_at = CB_NEW(a, uint32_t, l->n);
    l->moment = CB_NEW(a, double, (size_t)l->n_block << CB_LEDGER_BLOCK);
    l->block_peak = CB_NEW(a, double, 3 * (size_t)l->n_block);
    l->notes.sums = CB_NEW(a, double, 3 * (size_t)l->n_block);
    l->stale = CB_NEW(a, bool, l->n_block);
    l->rise = CB_NEW(a, double, (size_t)l->n_block + 1);
    l->local = CB_NEW(a, double, l->n);
    l->notes.moment_in = CB_NEW(a, uint32_t, l->n_block);
    l->notes.chain_in = CB_NEW(a, uint32_t, l->n);
    if (!l->block_peak) return false;
    l->block_area = l->block_peak + l->n_block;
    l->lift = l->block_area + l->n_block;
    return l->chain && l->runs && (l->taken || !l->asks) && l->idle && l->use && l->span &&
           l->busy_at && l->moment && l->stale && l->rise && l->local && l->notes.sums &&
           l->notes.moment_in && l->notes.chain_in;
}

static bool make_scratch(cb_ledger *l, cb_arena *a) {
    const cb_problem *p = l->f->p;
    l->touched_in = CB_NEW(a, uint32_t, p->n_storage);
    l->marked_in = CB_NEW(a, uint32_t, l->n);
    l->wanted = CB_NEW(a, uint32_t, l->f->n_unit);
    l->early = CB_NEW(a, uint32_t, l->f->n_unit);
    l->done = CB_NEW(a, uint32_t, l->f->n_unit);
    l->stood = CB_NEW(a, uint32_t, l->f->n_unit);
    l->reached = CB_NEW(a, uint32_t, l->f->n_unit);
    l->left = CB_NEW(a, uint32_t, p->n_storage);
    return l->touched_in && l->marked_in && l->wanted && l->early && l->done && l->stood &&
           l->reached && l->left && cb_taking_init(&l->taking, l->f, a) &&
           CB_RESERVE(a, l->touched, p->n_storage) && CB_RESERVE(a, l->marked, l->n);
}

cb_status cb_ledger_init(cb_ledger *l, const cb_facts *f, const bool *may_rerun, cb_alloc *alloc,
                         cb_error *err) {
    *l = (cb_ledger){.f = f, .n = f->n_base, .arrived = cb_arrived(f), .may_rerun = may_rerun};
    l->asks = f->unit_begin || f->inlines;
    cb_arena_init(&l->arena, alloc);
    bool ok = make_tables(l, &l->arena) && make_books(l, &l->arena) && make_scratch(l, &l->arena);
    if (ok) {
        list_reads(l, l->left);
        list_made(l, l->left);
        list_held(l);
        ok = list_twins(l) && list_over(l);
    }
    if (!ok) {
        cb_ledger_free(l);
        return cb_no_memory(err);
    }
    memset(l->left, 0, f->p->n_storage * sizeof *l->left);
    l->round = l->visit = 1;
    return CB_OK;
}

void cb_ledger_free(cb_ledger *l) { cb_arena_free(&l->arena); }
