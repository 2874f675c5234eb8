#include "mutwo.h"

#include <math.h>

typedef enum mode {
    GONE_BY = 0, /* the backward does not read it; recomputed if a chain needs it */
    KEPT,        /* saved so far */
    CHOSEN       /* recomputed or offloaded */
} mode;

typedef struct selection {
    const cb_facts *f;
    cb_arena arena;
    uint8_t *mode;     /* [n_op] */
    uint64_t *bytes;   /* [n_op] bytes of its storages that are saved if everything is saved */
    double *idle;      /* [n_op] picoseconds; the least idle time of its storages */
    double *ratio;     /* [n_op] < 0: not a candidate */
    uint32_t *seen_in; /* [n_op] stamps */
    uint32_t seen;
    CB_VEC(uint32_t) stack;
    uint64_t saved, held; /* bytes */
} selection;

static bool is_forward(const cb_facts *f, uint32_t op) {
    return op != CB_NONE && f->position[op] < f->base_backward;
}

/* Finds the uses of a storage, also through views: the `last` of the forward and the `first` of the
 * backward. */
static void find_uses(const cb_facts *f, uint32_t *last, uint32_t *first) {
    const cb_problem *p = f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        last[s] = f->root[s] == CB_NONE ? 0 : f->position[f->root[s]];
        first[s] = CB_NONE;
    }
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        if (p->op_flags[op] & CB_POP_VIEW) continue;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t s = p->value_storage[p->in_value[j]];
            if (k < f->base_backward) last[s] = k;
            else if (first[s] == CB_NONE) first[s] = k;
        }
    }
}

static void sum_up(selection *z, const uint32_t *last, const uint32_t *first, double *until) {
    const cb_facts *f = z->f;
    for (uint32_t k = 0; k < f->n_base; k++)
        until[k + 1] = until[k] + (double)f->time_ps[f->base[k]];
    for (uint32_t s = 0; s < f->p->n_storage; s++) {
        uint32_t op = f->root[s];
        if (!is_forward(f, op)) continue;
        if (f->held[s]) z->held += f->p->storage_bytes[s];
        if (f->held[s] || first[s] == CB_NONE) continue;
        double idle = until[first[s]] - until[last[s] + 1];
        if (z->mode[op] != KEPT || idle < z->idle[op]) z->idle[op] = idle;
        z->mode[op] = KEPT;
        z->bytes[op] += f->p->storage_bytes[s];
        z->saved += f->p->storage_bytes[s];
    }
    for (uint32_t s = 0; s < f->p->n_storage; s++) { /* held storages are in memory anyway */
        if (is_forward(f, f->root[s]) && f->held[s]) z->mode[f->root[s]] = KEPT;
    }
}

static cb_status open_selection(selection *z, const cb_facts *f, cb_error *err) {
    const cb_problem *p = f->p;
    *z = (selection){.f = f};
    cb_arena_init(&z->arena, f->alloc);
    CB_TRY_NEW(z->mode, &z->arena, p->n_op, err);
    CB_TRY_NEW(z->bytes, &z->arena, p->n_op, err);
    CB_TRY_NEW(z->idle, &z->arena, p->n_op, err);
    CB_TRY_NEW(z->ratio, &z->arena, p->n_op, err);
    CB_TRY_NEW(z->seen_in, &z->arena, p->n_op, err);
    double *until = CB_NEW(&z->arena, double, (size_t)f->n_base + 1);
    uint32_t *last = CB_NEW(&z->arena, uint32_t, p->n_storage);
    uint32_t *first = CB_NEW(&z->arena, uint32_t, p->n_storage);
    if (!until || !last || !first) return cb_no_memory(err);
    find_uses(f, last, first);
    sum_up(z, last, first, until);
    return CB_OK;
}

/* Computes the time to recompute the results of `top` from kept values; < 0 if that needs an op
 * that must not run again. */
static bool chain_time(selection *z, uint32_t top, double *time) {
    const cb_facts *f = z->f;
    const cb_problem *p = f->p;
    *time = 0;
    z->stack.len = 0;
    z->seen_in[top] = ++z->seen;
    if (!CB_PUSH(&z->arena, z->stack, top)) return false;
    while (z->stack.len > 0) {
        uint32_t op = z->stack.at[--z->stack.len];
        if (f->once[op]) {
            *time = -1;
            return true;
        }
        *time += (double)f->time_ps[op];
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t root = f->root[p->value_storage[p->in_value[j]]];
            if (!is_forward(f, root) || z->mode[root] == KEPT || z->seen_in[root] == z->seen)
                continue;
            z->seen_in[root] = z->seen;
            if (!CB_PUSH(&z->arena, z->stack, root)) return false;
        }
    }
    return true;
}

/* Computes the ratios of all candidates and returns the number of candidates. */
static bool rate(selection *z, uint32_t *n) {
    const cb_facts *f = z->f;
    *n = 0;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        double time;
        z->ratio[op] = -1;
        if (z->mode[op] != KEPT || z->bytes[op] == 0 || f->once[op] || f->wish[op] != CB_FREE)
            continue;
        if (!chain_time(z, op, &time)) return false;
        if (time < 0) continue;
        z->ratio[op] = (double)z->bytes[op] * z->idle[op] / fmax(time, 1);
        (*n)++;
    }
    return true;
}

/* Returns the op with the largest standardised ratio or idle time; the first one on ties. */
static uint32_t pick(const selection *z, uint32_t n, bool may_move, bool *move) {
    const cb_facts *f = z->f;
    double ratio = 0, idle = 0, ratio2 = 0, idle2 = 0, best = -INFINITY;
    uint32_t found = CB_NONE;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (z->ratio[op] < 0) continue;
        ratio += z->ratio[op] / n;
        idle += z->idle[op] / n;
    }
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (z->ratio[op] < 0) continue;
        ratio2 += (z->ratio[op] - ratio) * (z->ratio[op] - ratio) / n;
        idle2 += (z->idle[op] - idle) * (z->idle[op] - idle) / n;
    }
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (z->ratio[op] < 0) continue;
        double recompute = ratio2 > 0 ? (z->ratio[op] - ratio) / sqrt(ratio2) : 0;
        double away = may_move && idle2 > 0 ? (z->idle[op] - idle) / sqrt(idle2) : -INFINITY;
        if (fmax(recompute, away) <= best) continue;
        best = fmax(recompute, away);
        *move = away > recompute;
        found = op;
    }
    return found;
}

static cb_status choose(selection *z, uint64_t target, uint8_t *choice, cb_error *err) {
    const cb_facts *f = z->f;
    bool may_move = f->p->link_bytes_per_s > 0, move = false;
    uint32_t n;
    for (uint32_t op = 0; op < f->p->n_op; op++) choice[op] = CB_FREE;
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        if (f->wish[op] != CB_FREE || f->once[op] || (f->p->op_flags[op] & CB_POP_VIEW)) continue;
        choice[op] = z->mode[op] == KEPT ? CB_PREFER_SAVE : CB_PREFER_RECOMPUTE;
    }
    while (z->saved + z->held > target) {
        if (!rate(z, &n)) return cb_no_memory(err);
        uint32_t op = n > 0 ? pick(z, n, may_move, &move) : CB_NONE;
        if (op == CB_NONE) break;
        z->mode[op] = move ? KEPT : CHOSEN;
        z->saved -= z->bytes[op];
        z->bytes[op] = 0;
        choice[op] = move ? CB_PREFER_OFFLOAD : CB_PREFER_RECOMPUTE;
    }
    return CB_OK;
}

cb_status cb_mutwo(const cb_facts *f, uint64_t target, uint8_t *choice, cb_error *err) {
    selection z;
    cb_status status = open_selection(&z, f, err);
    if (status == CB_OK) status = choose(&z, target, choice, err);
    cb_arena_free(&z.arena);
    return status;
}

cb_status cb_mutwo_whole(const cb_facts *f, uint64_t *bytes, cb_error *err) {
    selection z;
    cb_status status = open_selection(&z, f, err);
    if (status == CB_OK) *bytes = z.saved + z.held;
    cb_arena_free(&z.arena);
    return status;
}

static cb_status constrain(cb_problem *p, const cb_budget *saved, const cb_device *device,
                           cb_arena *scratch, cb_error *err) {
    CB_TRY(cb_refuse_insides(p, "mu-two", err));
    CB_TRY(cb_refuse_updates(p, "mu-two", err));
    cb_facts f;
    uint64_t target = saved->bytes, whole;
    uint8_t *choice = CB_NEW(scratch, uint8_t, p->n_op);
    if (!choice) return cb_no_memory(err);
    CB_TRY(cb_facts_make(p, device ? device : cb_device_find("cpu"), scratch, &f, err));
    if (saved->kind == CB_BUDGET_SHARE) {
        CB_TRY(cb_mutwo_whole(&f, &whole, err));
        target = (uint64_t)(saved->share * (double)whole);
    }
    CB_TRY(cb_mutwo(&f, target, choice, err));
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t op = p->value_op[v];
        if (choice[op] != CB_FREE && f.root[p->value_storage[v]] == op)
            p->value_constraint[v] = choice[op];
    }
    return CB_OK;
}

cb_status cb_mutwo_to_json(cb_problem *p, const cb_budget *saved, const cb_device *device,
                           cb_alloc *alloc, cb_str *out, cb_error *err) {
    cb_arena scratch;
    if (saved->kind != CB_BUDGET_BYTES &&
        !(saved->kind == CB_BUDGET_SHARE && saved->share > 0 && saved->share <= 1)) {
        return cb_fail(err, CB_INVALID,
                       "mu-two: the budget must be a number of bytes or a share in (0, 1]");
    }
    cb_arena_init(&scratch, alloc);
    cb_status status = constrain(p, saved, device, &scratch, err);
    if (status == CB_OK) status = cb_problem_to_json(p, out, err);
    cb_arena_free(&scratch);
    return status;
}
