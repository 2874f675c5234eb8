/* Tables of the exact solver: which values have a bit, how ops change the bits, and the bytes of
 * values without a bit. */
#include "../../model/over.h"
#include "../tuning.h"
#include "exact_parts.h"

/* ---- bits ------------------------------------------------------------------------------------ */

/* True if the storage is alive when the backward starts because the caller gets it. */
static bool is_returned(const cb_facts *f, uint32_t storage) {
    const cb_problem *p = f->p;
    bool held = p->storage_flags[storage] & CB_STORE_HOLD_FORWARD;
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        held |= p->value_storage[p->forward_output[i]] == storage;
    return held;
}

static bool is_kept_to_the_end(const cb_facts *f, uint32_t storage) {
    const cb_problem *p = f->p;
    bool kept = cb_stays_to_end(f, storage);
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        kept |= p->value_storage[p->backward_output[i]] == storage;
    return kept;
}

static bool is_held(const cb_facts *f, uint32_t storage) {
    return cb_stays_to_end(f, storage) || is_returned(f, storage);
}

/* Sets `first` to the first unit of an op: the op itself, or its first output. Returns the number
 * of units. */
static uint32_t units_of(const cb_facts *f, uint32_t op, uint32_t *first) {
    *first = cb_has_units(f, op) ? f->unit_begin[op] : op;
    return cb_has_units(f, op) ? f->unit_begin[op + 1] - f->unit_begin[op] : 1;
}

/* Marks the units of the forward that may run again: the free ones with an output that is read or
 * returned and that no flag keeps to the end. (A value that is returned but never read may still
 * run late, or run again as the first step of the backward, which frees its first copy.) */
static void mark_reruns(const cb_facts *f, bool *is_read, bool *may_rerun) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) is_read[s] = false;
    for (uint32_t u = 0; u < f->n_unit; u++) may_rerun[u] = false;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; !cb_is_view(f, op) && j < p->in_begin[op + 1]; j++)
            if (cb_slice_reads(slice, j - p->in_begin[op]))
                is_read[p->value_storage[p->in_value[j]]] = true;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        is_read[p->value_storage[p->backward_output[i]]] = true;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (f->root[s] != op || !cb_may_rerun(f, f->unit[s])) continue;
            may_rerun[f->unit[s]] |= (is_read[s] || is_returned(f, s)) && !cb_stays_to_end(f, s);
        }
    }
}

/* Gives bits to the outputs and inputs of a unit. For a value that is held and read, the next bit
 * is its copy, and the one after that means that the copy was freed, so a reader needs another. */
static void give_unit_bits(const cb_facts *f, const bool *is_read, uint32_t unit, uint32_t *bit_of,
                           uint32_t *n) {
    const cb_problem *p = f->p;
    uint32_t op = cb_unit_op(f, unit), made = cb_unit_made(f, unit);
    cb_slice slice = cb_slice_of(p, op, made);
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t s = p->value_storage[p->in_value[j]];
        if (f->root[s] == CB_NONE || bit_of[s] != CB_NONE || is_kept_to_the_end(f, s)) continue;
        if (cb_slice_reads(slice, j - p->in_begin[op])) bit_of[s] = (*n)++;
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (f->root[s] != op || bit_of[s] != CB_NONE) continue;
        if (!cb_makes(made, v - p->out_begin[op])) continue;
        bit_of[s] = *n;
        *n += is_held(f, s) && is_read[s] ? 3 : 1;
    }
}

/* Returns the number of bits. If it exceeds the available bits, the problem is unsuitable. */
static uint32_t give_bits(const cb_facts *f, const bool *is_read, const bool *may_rerun,
                          uint32_t *bit_of) {
    uint32_t n = 0, first;
    for (uint32_t s = 0; s < f->p->n_storage; s++) bit_of[s] = CB_NONE;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t n_unit = units_of(f, f->base[k], &first);
        for (uint32_t u = first; u < first + n_unit; u++) {
            if (!may_rerun[u]) continue;
            if (n > CB_EXACT_BITS) return n; /* the result is known */
            give_unit_bits(f, is_read, u, bit_of, &n);
        }
    }
    return n;
}

/* If a value is held until the backward begins, the backward may begin with a step that nothing
 * else needs. Adds bits for the outputs of that step, which must then be read. `owes` may be
 * NULL. */
static uint32_t give_owed_bits(const cb_facts *f, const bool *may_rerun, const uint32_t *bit_of,
                               uint32_t n, uint32_t *owes) {
    bool holds = false;
    for (uint32_t s = 0; f->unit_begin && s < f->p->n_storage; s++) holds |= f->held[s];
    for (uint32_t s = 0; holds && s < f->p->n_storage; s++) {
        uint32_t unit = f->unit[s];
        if (unit == CB_NONE || unit < f->p->n_op || !may_rerun[unit]) continue;
        if (owes) owes[bit_of[s]] = 1u << n;
        n++;
    }
    return n;
}

/* Returns the set of outputs of an op with an inside that may be recomputed. */
static uint32_t free_outputs(const cb_facts *f, const bool *may_rerun, uint32_t op) {
    uint32_t made = 0;
    for (uint32_t u = f->unit_begin[op]; u < f->unit_begin[op + 1]; u++)
        if (may_rerun[u]) made |= cb_unit_made(f, u);
    return made;
}

/* Returns the set of values that may be inlined into runs of the op. */
static uint64_t free_inlinings(const cb_facts *f, const bool *may_rerun, uint32_t op) {
    const cb_problem *p = f->p;
    uint64_t taken = 0;
    for (uint32_t i = p->inline_begin ? p->inline_begin[op] : 0;
         p->inline_begin && i < p->inline_begin[op + 1]; i++) {
        uint32_t unit = f->unit[p->value_storage[p->inlining[i].value]];
        if (unit != CB_NONE && may_rerun[unit]) taken |= UINT64_C(1) << (i - p->inline_begin[op]);
    }
    return taken;
}

/* True if there are too many subsets of `set`. Multiplies `n` by two for each of its bits. */
static bool has_more_sets(uint64_t set, uint32_t *n) {
    for (; set; set &= set - 1) {
        *n *= 2;
        if (*n > CB_EXACT_SETS) return true;
    }
    return false;
}

/* True if there are few enough sets, so that all events fit into the tables. */
static bool has_few_sets(const cb_facts *f, const bool *may_rerun) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k], sets = 1;
        if (has_more_sets(free_inlinings(f, may_rerun, op), &sets)) return false;
        if (!cb_has_units(f, op)) {
            sets += cb_count_over(f->p, op);
            if (sets > CB_EXACT_SETS) return false;
            n += may_rerun[op] ? sets : 0;
            continue;
        }
        if (has_more_sets(free_outputs(f, may_rerun, op), &sets)) return false;
        n += sets - 1;
    }
    return n <= CB_EXACT_RERUNS;
}

/* Views that read or show more than one storage are not supported, because they are hard to
 * restore. */
static bool has_plain_views(const cb_facts *f) {
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k], shown = p->value_storage[p->out_begin[op]];
        if (!cb_is_view(f, op)) continue;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            if (p->value_storage[v] != shown) return false;
        }
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (s != shown && f->root[s] != CB_NONE) return false;
        }
    }
    return true;
}

/* Counts the views with a bit with which the backward begins in the base order. They need no stage:
 * they run if their memory is alive, and otherwise wait for their readers. */
static uint32_t count_leading(const cb_facts *f, const uint32_t *bit_of) {
    const cb_problem *p = f->p;
    uint32_t k = f->base_backward;
    while (k < f->n_base && cb_is_view(f, f->base[k]) &&
           bit_of[p->value_storage[p->out_begin[f->base[k]]]] != CB_NONE)
        k++;
    return k - f->base_backward;
}

cb_status cb_exact_count_bits(const cb_facts *f, uint32_t *n, cb_error *err) {
    const cb_problem *p = f->p;
    cb_arena scratch;
    cb_arena_init(&scratch, f->alloc);
    bool *may_rerun = CB_NEW(&scratch, bool, f->n_unit),
         *is_read = CB_NEW(&scratch, bool, p->n_storage);
    uint32_t *bit_of = CB_NEW(&scratch, uint32_t, p->n_storage);
    cb_status status = may_rerun && bit_of && is_read ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) {
        mark_reruns(f, is_read, may_rerun);
        *n = give_bits(f, is_read, may_rerun, bit_of);
        if (*n <= CB_EXACT_BITS) *n = give_owed_bits(f, may_rerun, bit_of, *n, NULL);
        if (*n <= CB_EXACT_BITS && !has_plain_views(f)) *n = CB_EXACT_BITS + 1;
        bool chooses = f->unit_begin || f->inlines || p->over_begin;
        if (chooses && !has_few_sets(f, may_rerun)) *n = CB_EXACT_BITS + 1;
        if (*n <= CB_EXACT_BITS && f->base_backward < f->n_base &&
            f->base_backward + count_leading(f, bit_of) == f->n_base)
            *n = CB_EXACT_BITS + 1; /* the backward has no step with which it can certainly start */
    }
    cb_arena_free(&scratch);
    return status;
}

/* ---- events ---------------------------------------------------------------------------------- */

static event make_event(const solver *z, uint32_t op, uint32_t made, uint64_t taken) {
    const cb_problem *p = z->f->p;
    event e = {.op = op, .made = made, .taken = taken, .room = cb_run_workspace(p, op, made)};
    e.time_ps =
        cb_has_units(z->f, op) ? cb_run_time_ps(p, op, made, z->f->device) : z->f->time_ps[op];
    e.time_ps += cb_taken_time_ps(p, op, taken, z->f->device);
    e.room += cb_taken_workspace(p, op, taken);
    if (cb_is_view(z->f, op)) {
        if (z->bit_of[p->value_storage[p->out_begin[op]]] != CB_NONE) e.room = 0; /* may wait */
        return e;
    }
    cb_reading r = cb_read_run(p, op, made, taken);
    for (uint32_t v; cb_read_next(&r, &v);) {
        uint32_t bit = v == CB_NONE ? CB_NONE : z->bit_of[p->value_storage[v]];
        if (bit == CB_NONE) continue;
        e.reads |= 1u << bit;
        e.pays |= z->owes[bit];
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        bool first = z->f->root[s] == op && cb_makes(made, v - p->out_begin[op]);
        for (uint32_t u = p->out_begin[op]; u < v; u++) first &= p->value_storage[u] != s;
        if (!first) continue;
        e.room += p->storage_bytes[s];
        if (z->bit_of[s] == CB_NONE) continue;
        if (is_held(z->f, s)) e.holds |= 1u << z->bit_of[s];
        else e.makes |= 1u << z->bit_of[s];
    }
    return e;
}

/* Adds an event for each set of values that a run with these outputs reads and that may be inlined
 * into it, beginning with the empty set. */
static uint32_t make_taking(const solver *z, uint32_t op, uint32_t made, event *out) {
    const cb_problem *p = z->f->p;
    uint64_t all = free_inlinings(z->f, z->may_rerun, op), taken = 0;
    uint32_t n = 0;
    do { /* all sets of these */
        if (cb_taken_read(p, op, made, taken) == taken) out[n++] = make_event(z, op, made, taken);
        taken = (taken - all) & all;
    } while (taken);
    return n;
}

/* True if the base op at position `k` is the last to read the storage. */
static bool is_last_reader(const cb_facts *f, uint32_t k, uint32_t storage) {
    const cb_problem *p = f->p;
    for (uint32_t later = k + 1; later < f->n_base; later++) {
        uint32_t op = f->base[later];
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; !cb_is_view(f, op) && j < p->in_begin[op + 1]; j++)
            if (p->value_storage[p->in_value[j]] == storage &&
                cb_slice_reads(slice, j - p->in_begin[op]))
                return false;
    }
    return true;
}

/* In addition to `e`, which takes nothing over, adds an event for each value with a bit whose
 * memory the op at position `k` may take over. An input without a bit makes `e` itself smaller if
 * the op is the last to read it. */
static uint32_t make_over(const solver *z, uint32_t k, event *e, event *out) {
    const cb_facts *f = z->f;
    uint32_t op = f->base[k], n_over = cb_count_over(f->p, op), n = 0;
    for (uint32_t i = 0; i < n_over; i++) {
        uint32_t s = cb_over_storage(f->p, op, i);
        if (z->bit_of[s] != CB_NONE || !is_last_reader(f, k, s)) continue;
        e->room -= cb_over_bytes(f->p, op);
        return 0;
    }
    for (uint32_t i = 0; i < n_over; i++) {
        uint32_t bit = z->bit_of[cb_over_storage(f->p, op, i)];
        if (bit == CB_NONE) continue;
        out[n] = *e;
        out[n].over = 1u << bit;
        out[n++].room -= cb_over_bytes(f->p, op);
    }
    return n;
}

/* Adds the events of one base op, and those of running it again. The base run makes any subset of
 * the recomputable outputs, a rerun any non-empty subset. */
static void make_events(solver *z, uint32_t k) {
    const cb_facts *f = z->f;
    uint32_t op = f->base[k], at = z->base_begin[k];
    if (!cb_has_units(f, op)) {
        uint32_t first = at;
        at += make_taking(z, op, CB_ALL_OUTPUTS, z->base + at);
        if (!cb_is_view(f, op)) at += make_over(z, k, z->base + first, z->base + at);
        for (uint32_t i = z->base_begin[k]; z->may_rerun[op] && i < at; i++) {
            z->rerun[z->n_rerun] = z->base[i];
            z->rerun[z->n_rerun++].room += f->again_bytes[op];
        }
        z->base_begin[k + 1] = at;
        return;
    }
    uint32_t all = free_outputs(f, z->may_rerun, op), made = 0;
    do { /* all sets of these */
        at += make_taking(z, op, (f->useful[op] & ~all) | made, z->base + at);
        if (made) z->n_rerun += make_taking(z, op, made, z->rerun + z->n_rerun);
        made = (made - all) & all;
    } while (made);
    z->base_begin[k + 1] = at;
}

/* True if `storage`, which has no bit, is alive while the first step of the backward runs. */
static bool is_there_between(const solver *z, const uint32_t *last, uint32_t storage) {
    const cb_facts *f = z->f;
    if (f->root[storage] == CB_NONE) return true;
    if (f->position[f->root[storage]] >= f->base_backward) return false;
    return f->held[storage] || last[storage] >= f->base_backward;
}

static uint32_t find_opener(const solver *z, const uint32_t *last) {
    const cb_facts *f = z->f;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k], s = f->p->value_storage[f->p->out_begin[op]];
        if (!cb_is_view(f, op) || f->once[op] || z->bit_of[s] != CB_NONE) continue;
        if (is_there_between(z, last, s)) return op;
    }
    return CB_NONE;
}

/* Computes the bytes of values without a bit on entry to each stage, and the view of one of them
 * that may begin the backward. */
static bool sum_fixed(solver *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    uint32_t *last = CB_NEW(z->arena, uint32_t, p->n_storage);
    if (!last) return false;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        cb_slice slice = cb_slice_of(p, op, cb_unit_made(f, op));
        for (uint32_t j = p->in_begin[op]; !cb_is_view(f, op) && j < p->in_begin[op + 1]; j++)
            if (cb_slice_reads(slice, j - p->in_begin[op]))
                last[p->value_storage[p->in_value[j]]] = k;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (f->root[s] == CB_NONE || z->bit_of[s] != CB_NONE) continue;
        if (is_kept_to_the_end(f, s)) last[s] = f->n_base;
        for (uint32_t stage = 0; stage <= z->n_stage; stage++) {
            uint32_t k = cb_exact_position(z, stage);
            bool alive = last[s] >= k || (f->held[s] && stage <= f->base_backward);
            if (k > f->position[f->root[s]] && alive) z->fixed[stage] += p->storage_bytes[s];
        }
    }
    z->opener = find_opener(z, last);
    return true;
}

static void mark_bits(solver *z, const bool *is_read) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        uint32_t b = z->bit_of[s];
        if (b == CB_NONE) continue;
        z->bytes_of[b] = p->storage_bytes[s];
        if (is_returned(f, s)) z->held |= 1u << b;
        if (cb_stays_to_end(f, s)) z->stays |= 1u << b;
        if (is_kept_to_the_end(f, s)) z->ends |= 1u << b;
        else z->gone |= z->owes[b];
        z->owed |= z->owes[b];
        if (!is_held(f, s) || !is_read[s] || !z->may_rerun[f->unit[s]]) continue;
        z->doubled |= 1u << b;
        z->owes[b + 1] = z->owes[b]; /* the copy replaces the first instance, which may be freed */
        z->bytes_of[b + 1] = p->storage_bytes[s];
        if (is_kept_to_the_end(f, s) && !cb_stays_to_end(f, s)) z->gone |= 4u << b;
    }
    if (f->base_backward == f->n_base) z->ends |= z->held;
    for (uint32_t k = 0; k < f->base_backward + z->n_leading; k++) {
        uint32_t op = f->base[k];
        if (!cb_is_view(f, op) || f->once[op]) continue; /* others may have no outputs */
        uint32_t b = z->bit_of[p->value_storage[p->out_begin[op]]];
        if (b == CB_NONE) continue;
        z->viewed |= 1u << b;
        if (k >= f->base_backward) z->leading |= 1u << b;
    }
}

/* Works backwards from the end. A value counts at a stage if a base op reads it from there on, or
 * if an op that makes such a value again reads it. Up to the first step of the backward any rerun
 * may be that step. */
static void mark_useful(solver *z) {
    uint32_t useful = z->ends | z->stays | z->owed | z->doubled * 7;
    for (uint32_t b = 0; b < z->n_bit; b++) useful |= z->owes[b] ? 1u << b : 0;
    for (uint32_t stage = z->n_stage + 1; stage-- > 0;) {
        const uint32_t k = cb_exact_position(z, stage);
        const bool begins = stage <= z->f->base_backward;
        const uint32_t end = k < z->f->n_base ? z->base_begin[k + 1] : 0;
        for (uint32_t i = end > 0 ? z->base_begin[k] : 0; i < end; i++)
            useful |= z->base[i].reads | z->base[i].over;
        if (begins) useful |= z->held | z->viewed;
        for (uint32_t i = z->n_rerun; i-- > 0;) {
            const event *e = &z->rerun[i];
            if (begins || ((e->makes | e->holds) & useful)) useful |= e->reads | e->over;
        }
        z->useful[stage] = useful;
    }
}

/* An op has at least as many rerun events as base events, except for one; an op that does not run
 * again has one event for each inlined set. */
static size_t most_base_events(const cb_facts *f) {
    size_t n = (size_t)f->n_base + CB_EXACT_RERUNS;
    return f->inlines || f->p->over_begin ? (size_t)f->n_base * CB_EXACT_SETS : n;
}

cb_status cb_exact_set_up(solver *z, const cb_facts *f, cb_arena *arena, cb_error *err) {
    const cb_problem *p = f->p;
    *z = (solver){.f = f, .arena = arena, .arrived = cb_arrived(f), .most_ps = INT64_MAX};
    CB_TRY_NEW(z->may_rerun, arena, f->n_unit, err);
    bool *is_read = CB_NEW(arena, bool, p->n_storage);
    CB_TRY_NEW(z->bit_of, arena, p->n_storage, err);
    CB_TRY_NEW(z->base_begin, arena, (size_t)f->n_base + 1, err);
    CB_TRY_NEW(z->base, arena, most_base_events(f), err);
    if (!is_read) return cb_no_memory(err);
    mark_reruns(f, is_read, z->may_rerun);
    z->n_bit = give_bits(f, is_read, z->may_rerun, z->bit_of);
    z->n_bit = give_owed_bits(f, z->may_rerun, z->bit_of, z->n_bit, z->owes);
    z->n_leading = count_leading(f, z->bit_of);
    z->n_stage = f->n_base - z->n_leading + (f->base_backward < f->n_base);
    CB_TRY_NEW(z->fixed, arena, (size_t)z->n_stage + 1, err);
    CB_TRY_NEW(z->useful, arena, (size_t)z->n_stage + 1, err);
    for (uint32_t k = 0; k < f->n_base; k++) make_events(z, k);
    size_t n_set = (size_t)1 << z->n_bit, most = z->n_bit > z->n_rerun ? z->n_bit : z->n_rerun;
    CB_TRY_NEW(z->set_bytes, arena, n_set, err);
    CB_TRY_NEW(z->how, arena, (z->n_stage + (size_t)1) << z->n_bit, err);
    CB_TRY_NEW(z->from, arena, (z->n_stage + (size_t)1) << z->n_bit, err);
    CB_TRY_NEW(z->now, arena, n_set, err);
    CB_TRY_NEW(z->next, arena, n_set, err);
    CB_TRY_NEW(z->later, arena, n_set, err);
    z->room_heap = n_set * (z->n_bit + most + 2) + 1;
    CB_TRY_NEW(z->heap, arena, z->room_heap, err);
    if (!sum_fixed(z)) return cb_no_memory(err);
    mark_bits(z, is_read);
    mark_useful(z);
    for (uint32_t set = 1; set < n_set; set++) {
        uint32_t low = 0;
        while (!(set >> low & 1)) low++;
        z->set_bytes[set] = z->set_bytes[set & (set - 1)] + z->bytes_of[low];
    }
    return CB_OK;
}
