/* Greedily removes reruns that the plan can do without. Reruns with the most time per freed byte
 * and moment come first. */
#include "../../../base/sort.h"
#include "../tuning.h"
#include "moves.h"

typedef struct rerun {
    double worth; /* picoseconds per byte and moment; the most expensive go first */
    cb_pair pair;
} rerun;

static int compare_reruns(const void *a, const void *b) {
    const rerun *x = a, *y = b;
    if (x->worth < y->worth || x->worth > y->worth) return x->worth > y->worth ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

/* Returns the moments for which the rerun keeps its op's memory free. */
static double gap_before(const cb_ledger *l, uint32_t op, uint32_t anchor) {
    if (l->made_begin[op] == l->made_begin[op + 1]) return 1;
    const cb_ledger_spans *spans = cb_ledger_spans_of(l, l->made[l->made_begin[op]]);
    size_t i = spans->len;
    while (i > 0 && spans->at[i - 1].made >= anchor) i--;
    return i > 0 && spans->at[i - 1].last < anchor ? (double)(anchor - spans->at[i - 1].last) : 1;
}

static bool list_reruns(const cb_moves *m, cb_arena *scratch, rerun **out, size_t *n) {
    const cb_ledger *l = m->l;
    size_t count = 0;
    for (size_t i = 0; i < l->busy.len; i++) count += l->chain[l->busy.at[i]].len;
    rerun *list = CB_NEW(scratch, rerun, count);
    if (!list) return false;
    *n = 0;
    for (size_t i = 0; i < l->busy.len; i++) {
        uint32_t anchor = l->busy.at[i];
        for (size_t j = 0; j < l->chain[anchor].len; j++) {
            uint32_t op = cb_chain_op(l->chain[anchor].at[j]);
            double freed = ((double)cb_ledger_bytes(l, op) + 1) * gap_before(l, op, anchor);
            list[(*n)++] = (rerun){(double)l->f->cost_ps[op] / freed, cb_pair_make(anchor, op)};
        }
    }
    if (*n > 0) cb_sort(list, *n, sizeof *list, compare_reruns);
    *out = list;
    return true;
}

static bool stands(const cb_moves *m, uint32_t anchor, uint32_t op) {
    const cb_ledger_ids *chain = &m->l->chain[anchor];
    for (size_t i = 0; i < chain->len; i++) {
        if (cb_chain_op(chain->at[i]) == op) return !m->trial->forced[op];
    }
    return false;
}

static bool trim_once(cb_moves *m, double least_ps, cb_arena *scratch, uint32_t *left, bool *any) {
    cb_ledger *l = m->l;
    rerun *list;
    size_t n;
    *any = false;
    if (!list_reruns(m, scratch, &list, &n)) return false;
    for (size_t i = 0; i < n && *left > 0; i++, --*left) {
        uint32_t anchor = cb_pair_anchor(list[i].pair), op = cb_pair_op(list[i].pair);
        int64_t before = l->extra_ps;
        if (!stands(m, anchor, op)) continue;
        if (cb_ledger_peak_without(l, anchor, op) > l->target) continue; /* most cases */
        cb_ledger_try(l);
        if (!cb_moves_without(m, anchor, op) ||
            !cb_ledger_set(l, anchor, m->next.at, m->next.len) || !cb_moves_settle(m))
            return false;
        if (l->peak <= l->target && l->extra_ps < before && (double)l->extra_ps >= least_ps) {
            *any = true;
            cb_ledger_keep(l);
        } else if (!cb_moves_take_back(m)) {
            return false;
        }
    }
    return true;
}

cb_status cb_trim(cb_moves *m, double least_ps, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, m->scratch->alloc);
    bool ok = true, any = true;
    uint32_t left = (uint32_t)(CB_TRIM_EFFORT / (m->l->n + 1.0)) + 1;
    for (int pass = 0; pass < CB_TRIM_PASSES && ok && any; pass++)
        ok = trim_once(m, least_ps, &scratch, &left, &any);
    cb_arena_free(&scratch);
    return ok ? cb_moves_offer(m, err) : cb_no_memory(err);
}
