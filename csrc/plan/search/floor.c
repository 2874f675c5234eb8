/* While op t runs, its inputs, outputs and scratch are alive, and in addition enough values to make
 * all that later ops of the base order read. The least bytes of such values are a minimum vertex
 * cut between values that cannot be recomputed and later reads:
 *
 *   source --inf--> in(s)              s was made before t by an op that may not run again
 *   in(s) --bytes--> out(s)            0 for values that t reads: they are counted already
 *   out(s) --inf--> in(s')             making s' again reads s
 *   out(s) --inf--> sink               an op after t reads s, or it is an output
 *
 * Proof: take a plan, and the storages that it has in memory both while t runs and afterwards.
 * Every path contains one of them or one that t reads. Otherwise the last storage of the path,
 * which an op after t reads, would have to be made after t, so the one before it would be read
 * after t, and so on to the first, which can no longer be made. Every t gives a floor, so any
 * choice of t is valid: we take those where the most bytes are certainly alive, and others evenly
 * spread. Only two kinds of ops are used: those that run exactly once, because others may run at
 * other times as well, and ops of the backward whose outputs are all held to the end, because their
 * first run stays in its place. For all others, only the values alive while they run count.
 *
 * A value that an op may inline (inlining.h) needs no bytes where the op runs, but its inputs are
 * read there, so the proof holds for them. We assume that t needs no bytes for values that it may
 * inline.
 *
 * If t may take over the memory of a value that it reads (over.h), that memory counts once. The
 * value is gone after t, so the rest of the proof is the same.
 *
 * If ops of the backward may be late, an op before t may not have run yet. Then its outputs can
 * still be made, like values that can be recomputed. The ops that read s after t run after t in any
 * case. Gradients whose ops are never late are different: they are alive from their place in the
 * base order to the end, so they count while any op after it runs, even a late one.
 *
 * The floor holds for plans that keep the base order and in which only ops run late or again that
 * may do so (facts.h). */
#include "floor.h"

#include "../../base/sort.h"
#include "../../flow/maxflow.h"
#include "../model/over.h"
#include "local/ledger.h"
#include "tuning.h"

enum { SOURCE = 0, SINK = 1, FIRST = 2 };

typedef struct network {
    const cb_ledger *l;
    const uint32_t *last; /* [n_storage] last position that reads it; n: output */
    cb_arena *arena;
    CB_VEC(uint32_t) from;
    CB_VEC(uint32_t) to;
    CB_VEC(int64_t) capacity;
} network;

static int compare_sets(const void *a, const void *b) {
    const cb_working_set *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool add(network *w, uint32_t from, uint32_t to, int64_t capacity) {
    return CB_PUSH(w->arena, w->from, from) && CB_PUSH(w->arena, w->to, to) &&
           CB_PUSH(w->arena, w->capacity, capacity);
}

static void find_last(const cb_ledger *l, uint32_t *last) {
    const cb_facts *f = l->f;
    const cb_problem *p = f->p;
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) last[l->read[j]] = k;
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (f->held[s] && last[s] < f->base_backward) last[s] = f->base_backward;
        if (p->storage_flags[s] & CB_STORE_HOLD_END) last[s] = l->n;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        last[p->value_storage[p->backward_output[i]]] = l->n;
}

/* Returns the bytes that `op` may take over from an input. */
static uint64_t taken_over(const cb_ledger *l, uint32_t op) {
    return cb_count_over(l->f->p, op) > 0 ? cb_over_bytes(l->f->p, op) : 0;
}

static uint64_t working_set(const cb_ledger *l, uint32_t op) {
    uint64_t bytes = cb_ledger_bytes(l, op) + l->f->p->op_workspace[op] - taken_over(l, op);
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        if (!cb_may_take_in(l->f, op, l->read[j])) bytes += l->f->p->storage_bytes[l->read[j]];
    }
    return bytes;
}

static bool is_read_at(const cb_ledger *l, uint32_t storage, uint32_t op) {
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        if (l->read[j] == storage) return true;
    }
    return false;
}

static bool build(network *w, uint32_t at) {
    const cb_ledger *l = w->l;
    const cb_facts *f = l->f;
    uint32_t n_storage = f->p->n_storage;
    w->from.len = w->to.len = w->capacity.len = 0;
    for (uint32_t k = 0; k < at; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
            uint32_t s = l->made[j], in = FIRST + s, out = FIRST + n_storage + s;
            bool read = is_read_at(l, s, f->base[at]);
            int64_t bytes = read ? 0 : (int64_t)f->p->storage_bytes[s];
            if (!add(w, in, out, bytes)) return false;
            uint32_t unit = f->unit[s];
            bool again = cb_may_rerun(f, unit);
            if (!again && !add(w, SOURCE, in, CB_FLOW_INF)) return false;
            if (w->last[s] > at && !add(w, out, SINK, CB_FLOW_INF)) return false;
            for (uint32_t i = l->read_begin[unit]; again && i < l->read_begin[unit + 1]; i++) {
                if (!add(w, FIRST + n_storage + l->read[i], in, CB_FLOW_INF)) return false;
            }
        }
    }
    return true;
}

static cb_status floor_at(network *w, uint32_t at, uint64_t *bytes, cb_error *err) {
    const cb_ledger *l = w->l;
    cb_arena arena;
    cb_flow flow;
    cb_arena_init(&arena, w->arena->alloc);
    cb_status status = CB_OK;
    if (!build(w, at)) {
        status = cb_no_memory(err);
        goto done;
    }
    CB_TRY_DONE(cb_flow_build(&flow, &arena, FIRST + 2 * l->f->p->n_storage, (uint32_t)w->from.len,
                              w->from.at, w->to.at, err));
    CB_TRY_DONE(cb_flow_solve(&flow, SOURCE, SINK, w->capacity.at, err));
    *bytes = working_set(l, l->f->base[at]) + (uint64_t)flow.value;
done:
    cb_arena_free(&arena);
    return status;
}

/* Sums, at each position, the bytes of values that cannot be recomputed and are read later. These
 * belong to every cut and are cheap to find. `stays` [n + 1]. */
static void find_stays(const cb_ledger *l, const uint32_t *last, uint64_t *stays) {
    const cb_facts *f = l->f;
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++) {
            uint32_t s = l->made[j];
            if (cb_may_rerun(f, f->unit[s])) continue;
            if (last[s] <= k + 1) continue; /* these are differences modulo 2^64 */
            stays[k + 1] += f->p->storage_bytes[s];
            stays[last[s]] -= f->p->storage_bytes[s];
        }
    }
    for (uint32_t k = 1; k <= l->n; k++) stays[k] += stays[k - 1];
}

/* Returns the bytes of such values that `op` reads, because its working set contains them
 * already. */
static uint64_t stays_and_read(const cb_ledger *l, const uint32_t *last, uint32_t op) {
    const cb_facts *f = l->f;
    uint64_t bytes = 0;
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++) {
        uint32_t s = l->read[j];
        if (last[s] > f->position[op] && !cb_may_rerun(f, f->unit[s]))
            bytes += f->p->storage_bytes[s];
    }
    return bytes;
}

/* Chooses the positions to examine: those with the most bytes without a cut, and a spread over the
 * rest. */
static uint32_t choose(const cb_ledger *l, const uint32_t *last, uint64_t *stays,
                       cb_working_set *list, uint32_t *n_list) {
    uint32_t n = 0;
    find_stays(l, last, stays);
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t op = l->f->base[k];
        bool view = l->f->p->op_flags[op] & CB_POP_VIEW;
        bool stays_there = k >= l->f->base_backward && cb_makes_only_held(l->f, op);
        if ((cb_may_rerun(l->f, op) && !stays_there) || view) continue;
        uint64_t bytes = working_set(l, op) + stays[k] - stays_and_read(l, last, op);
        list[n++] = (cb_working_set){bytes, k};
    }
    *n_list = n;
    if (n == 0) return 0;
    cb_sort(list, n, sizeof *list, compare_sets);
    double share = CB_FLOOR_EFFORT / ((double)l->n * (CB_FLOOR_LARGEST + CB_FLOOR_SPREAD));
    uint32_t most = (uint32_t)((share < 1 ? share : 1) * (CB_FLOOR_LARGEST + CB_FLOOR_SPREAD));
    return most < 5 ? 5 : most;
}

/* True if the storage is alive from its op's place in the base order to the end, in every plan. */
static bool is_kept(const cb_ledger *l, uint32_t storage) {
    const cb_facts *f = l->f;
    const uint32_t unit = f->unit[storage];
    if (unit == CB_NONE || !cb_stays_to_end(f, storage)) return false;
    if (f->position[unit] < f->base_backward) return false;
    return !cb_may_rerun(f, unit) || cb_makes_only_held(f, cb_unit_op(f, unit));
}

/* Adds the bytes of the kept values that `op` makes to `made`, and of those that it reads to
 * `read`. */
static void add_kept(const cb_ledger *l, uint32_t op, uint64_t *made, uint64_t *read) {
    for (uint32_t j = l->made_begin[op]; j < l->made_begin[op + 1]; j++)
        if (is_kept(l, l->made[j])) *made += l->f->p->storage_bytes[l->made[j]];
    for (uint32_t j = l->read_begin[op]; j < l->read_begin[op + 1]; j++)
        if (is_kept(l, l->read[j])) *read += l->f->p->storage_bytes[l->read[j]];
}

/* True if an op always has its working set in memory while it runs. */
static bool has_whole_set(const cb_ledger *l, uint32_t op) {
    const bool inlined = l->f->inlines && l->f->inlines[op];
    return !(l->f->p->op_flags[op] & CB_POP_VIEW) && !inlined && !cb_has_inside(l->f->p, op);
}

/* Raises the floor to the largest working set with the kept values that were made before. Values
 * that the op reads are in its working set already. */
static void count_kept(const cb_ledger *l, cb_floor *floor) {
    uint64_t kept = 0;
    for (uint32_t k = l->f->base_backward; k < l->n; k++) {
        const uint32_t op = l->f->base[k];
        uint64_t made = 0, read = 0;
        add_kept(l, op, &made, &read);
        const uint64_t bytes = working_set(l, op) + kept - read;
        if (has_whole_set(l, op) && bytes > floor->bytes)
            *floor = (cb_floor){bytes, op, floor->apart};
        kept += made;
    }
}

/* Finds the largest working set. While an op runs, its inputs, outputs and scratch are in memory,
 * unless it is always inlined or each of its runs makes only a part. */
static cb_floor largest_working_set(const cb_ledger *l) {
    cb_floor floor = {0, CB_NONE, 0};
    for (uint32_t k = 0; k < l->n; k++) {
        const uint32_t op = l->f->base[k];
        if (!has_whole_set(l, op)) continue;
        const uint64_t bytes = working_set(l, op);
        if (floor.op == CB_NONE || bytes > floor.bytes) floor = (cb_floor){bytes, op, 0};
    }
    return floor;
}

cb_status cb_find_floor(const cb_ledger *l, cb_arena *scratch, cb_floor *out, cb_error *err) {
    *out = largest_working_set(l);
    cb_working_set *list = CB_NEW(scratch, cb_working_set, l->n);
    uint32_t *last = CB_NEW(scratch, uint32_t, l->f->p->n_storage), n;
    uint64_t *stays = CB_NEW(scratch, uint64_t, (size_t)l->n + 1);
    if (!list || !last || !stays) return cb_no_memory(err);
    find_last(l, last);
    network w = {.l = l, .last = last, .arena = scratch};
    uint32_t most = choose(l, last, stays, list, &n),
             largest = most * CB_FLOOR_LARGEST / (CB_FLOOR_LARGEST + CB_FLOOR_SPREAD);
    for (uint32_t i = 0; i < most && i < n; i++) {
        uint32_t step = largest < n && most > largest ? (n - largest) / (most - largest) : 0;
        uint32_t at = i < largest || step == 0 ? i : largest + (i - largest) * step;
        uint64_t bytes = 0;
        CB_TRY(floor_at(&w, list[at].at, &bytes, err));
        if (bytes <= out->bytes && out->op != CB_NONE) continue;
        *out = (cb_floor){bytes, l->f->base[list[at].at], 0};
    }
    out->apart = out->op == CB_NONE ? 0 : out->bytes;
    count_kept(l, out);
    return CB_OK;
}

/* Ledgers have the tables of reads. */
static cb_status init_tables(cb_ledger *l, const cb_facts *f, cb_arena *scratch, cb_error *err) {
    bool *may_rerun = CB_NEW(scratch, bool, f->n_unit);
    if (!may_rerun) return cb_no_memory(err);
    cb_facts_mark_free(f, may_rerun);
    return cb_ledger_init(l, f, may_rerun, f->alloc, err);
}

cb_status cb_find_program_floor(const cb_problem *p, const cb_device *device, const bool *separate,
                                cb_arena *scratch, uint64_t *bytes, cb_error *err) {
    cb_facts f;
    cb_ledger l;
    uint64_t kept = 0;
    *bytes = 0;
    CB_TRY(cb_facts_make(p, device, scratch, &f, err));
    if (f.n_base < CB_FEW_OPS) return CB_OK; /* spare ops */
    CB_TRY(init_tables(&l, &f, scratch, err));
    for (uint32_t k = 0; k < l.n; k++) {
        const uint32_t op = f.base[k];
        uint64_t made = 0, read = 0;
        if (k >= f.base_backward) add_kept(&l, op, &made, &read);
        const uint64_t held = working_set(&l, op) - p->op_workspace[op] + kept - read;
        if (separate[op] && has_whole_set(&l, op) && held > *bytes) *bytes = held;
        kept += made;
    }
    if (kept > *bytes) *bytes = kept;
    cb_ledger_free(&l);
    return CB_OK;
}

cb_status cb_largest_working_sets(const cb_ledger *l, cb_arena *scratch, uint32_t most,
                                  cb_working_set *out, uint32_t *n, cb_error *err) {
    cb_working_set *list = CB_NEW(scratch, cb_working_set, l->n);
    uint32_t found = 0;
    if (!list) return cb_no_memory(err);
    for (uint32_t k = 0; k < l->n; k++) {
        if (!(l->f->p->op_flags[l->f->base[k]] & CB_POP_VIEW))
            list[found++] = (cb_working_set){working_set(l, l->f->base[k]), k};
    }
    if (found > 0) cb_sort(list, found, sizeof *list, compare_sets);
    *n = found < most ? found : most;
    for (uint32_t i = 0; i < *n; i++) out[i] = list[i];
    return CB_OK;
}
