#include "carry.h"

#define MOST_OUTPUTS 64 /* outputs of a carrier */

/* Marks of a storage: it must not move; more than one op picks it; its copy takes too long; it is
 * an output, which must exist when it is due, whoever owns its memory. */
enum { STAYS = 1, SEVERAL = 2, LONG = 4, GIVEN = 8 };

typedef struct finder {
    const cb_facts *f;
    const cb_problem *p;
    cb_carriers *out;
    uint8_t *mark;    /* [n_storage] */
    uint32_t *picker; /* [n_storage] view that reads the op which allocates it */
    bool *direct;     /* [n_op] true if an op other than a view reads it */
    bool *used;       /* [n_value] true if it is read or is an output */
} finder;

/* Marks storages that do not move: held or mutated memory, and memory without values of the
 * forward. */
static void mark_staying(const finder *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = z->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        uint32_t root = f->root[s];
        bool moves = root != CB_NONE && f->position[root] < f->base_backward && !f->held[s];
        z->mark[s] = moves ? 0 : STAYS;
        z->picker[s] = CB_NONE;
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        z->mark[p->value_storage[p->forward_output[i]]] = STAYS | GIVEN;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        z->mark[p->value_storage[p->backward_output[i]]] = STAYS | GIVEN;
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v], op = p->value_op[v];
        bool fixed = f->once[op] || f->stays[op]; /* the view cannot be made at another time */
        bool once =
            (p->op_flags[op] & CB_POP_MUTATES) || ((p->op_flags[op] & CB_POP_VIEW) && fixed);
        if (once && f->root[s] != op) z->mark[s] |= STAYS;
    }
}

static void mark_used(const finder *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = z->p;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++)
            z->used[p->in_value[j]] = true;
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++) z->used[p->forward_output[i]] = true;
    for (uint32_t i = 0; i < p->n_backward_output; i++) z->used[p->backward_output[i]] = true;
}

static void find_pickers(const finder *z) {
    const cb_facts *f = z->f;
    const cb_problem *p = z->p;
    for (uint32_t k = 0; k < f->n_base; k++) {
        uint32_t op = f->base[k];
        bool view = p->op_flags[op] & CB_POP_VIEW;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
            uint32_t root = p->value_op[p->in_value[j]];
            if (!view || k >= f->base_backward) z->direct[root] = true;
            for (uint32_t v = p->out_begin[op]; view && v < p->out_begin[op + 1]; v++) {
                uint32_t s = p->value_storage[v];
                if (f->root[s] != root) continue;
                bool alone = z->picker[s] == CB_NONE || z->picker[s] == op;
                alone &= p->out_begin[op + 1] - p->out_begin[op] == 1 && k < f->base_backward;
                if (!alone) z->mark[s] |= SEVERAL;
                z->picker[s] = op;
            }
        }
    }
}

/* Counts the storages that `op` allocates and tells whether all may move. Every value that the op
 * makes moves with them, so it must not make an output in the caller's memory either. */
static uint32_t count_made(const finder *z, uint32_t op, bool *all_move) {
    const cb_problem *p = z->p;
    uint32_t n = 0, last = CB_NONE;
    *all_move = p->out_begin[op + 1] - p->out_begin[op] <= MOST_OUTPUTS;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (z->f->root[s] != op) { /* memory of an input or of the caller is not brought back */
            *all_move &=
                (p->storage_flags[s] & CB_STORE_STATIC) && !(z->mark[s] & GIVEN) && !z->used[v];
            continue;
        }
        n += s != last;
        last = s;
        *all_move &= !(z->mark[s] & STAYS);
    }
    return n;
}

static void choose(const finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t s = 0; s < z->p->n_storage; s++) {
        uint32_t root = f->root[s];
        bool all_move;
        z->out->carrier[s] = CB_NONE;
        if (z->mark[s] & STAYS) continue;
        bool single = count_made(z, root, &all_move) == 1;
        bool picked = !single && !z->direct[root] && !(z->mark[s] & SEVERAL);
        if (picked) z->out->carrier[s] = z->picker[s]; /* CB_NONE: nothing reads it */
        else if (all_move) z->out->carrier[s] = root;
    }
}

/* Drops ops that could carry only some of their storages: an op carries all of them or none. */
static void drop_mixed(const finder *z) {
    const cb_facts *f = z->f;
    for (uint32_t s = 0; s < z->p->n_storage; s++) {
        uint32_t root = f->root[s];
        if (root == CB_NONE || z->out->carrier[s] == root) continue;
        for (uint32_t v = z->p->out_begin[root]; v < z->p->out_begin[root + 1]; v++) {
            uint32_t other = z->p->value_storage[v];
            if (f->root[other] == root && z->out->carrier[other] == root)
                z->out->carrier[other] = CB_NONE;
        }
    }
}

/* Computes bytes and times of copies. Storages whose copy would take too long stay. */
static void set_times(const finder *z, uint64_t *bytes, double link) {
    cb_carriers *out = z->out;
    for (uint32_t s = 0; s < z->p->n_storage; s++)
        if (out->carrier[s] != CB_NONE) bytes[out->carrier[s]] += z->p->storage_bytes[s];
    for (uint32_t op = 0; op < z->p->n_op; op++)
        out->copy_ps[op] = cb_copy_time_ps(bytes[op], link);
    for (uint32_t s = 0; s < z->p->n_storage; s++) {
        if (out->carrier[s] == CB_NONE || out->copy_ps[out->carrier[s]] >= 0) continue;
        out->carrier[s] = CB_NONE;
        z->mark[s] |= LONG;
    }
}

/* Without a budget (`firm`) a preference acts as a demand, if possible. */
static cb_status add_wishes(const finder *z, bool firm, cb_error *err) {
    const cb_facts *f = z->f;
    const cb_problem *p = z->p;
    char text[CB_OP_TEXT];
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v], root = f->root[s];
        uint8_t wish = p->value_constraint[v];
        bool must = wish == CB_MUST_OFFLOAD, prefers = wish == CB_PREFER_OFFLOAD;
        if (root == CB_NONE || f->position[root] >= f->base_backward) continue;
        if (z->out->carrier[s] != CB_NONE && (must || (prefers && firm && f->wish[root] == wish)))
            z->out->must[z->out->carrier[s]] = true;
        if (!must || z->out->carrier[s] != CB_NONE) continue;
        return cb_fail(err, CB_INVALID,
                       "MUST_OFFLOAD of %s: its memory cannot be offloaded (%s); save it instead",
                       cb_op_text(p, p->value_op[v], text),
                       z->mark[s] & LONG ? "its copy would take 1,000 s or more"
                       : f->held[s]      ? "it is an output, which stays alive"
                                    : "it is changed in place, split into several views, or made "
                                      "together with an output");
    }
    return CB_OK;
}

cb_status cb_find_carriers(const cb_facts *f, bool firm, cb_arena *arena, cb_carriers *out,
                           cb_error *err) {
    const cb_problem *p = f->p;
    double link = cb_link_bytes_per_s(p, f->device);
    if (!(link > 0)) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "offload: device %s has no link to a host; choose another device or give "
                       "the problem link_bytes_per_s",
                       f->device->name);
    }
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    finder z = {.f = f, .p = p, .out = out};
    z.mark = CB_NEW(&scratch, uint8_t, p->n_storage);
    z.picker = CB_NEW(&scratch, uint32_t, p->n_storage);
    z.direct = CB_NEW(&scratch, bool, p->n_op);
    z.used = CB_NEW(&scratch, bool, p->n_value);
    uint64_t *bytes = CB_NEW(&scratch, uint64_t, p->n_op);
    out->carrier = CB_NEW(arena, uint32_t, p->n_storage);
    out->copy_ps = CB_NEW(arena, int64_t, p->n_op);
    out->must = CB_NEW(arena, bool, p->n_op);
    cb_status status = CB_OK;
    if (!z.mark || !z.picker || !z.direct || !z.used || !bytes || !out->carrier || !out->copy_ps ||
        !out->must) {
        status = cb_no_memory(err);
        goto done;
    }
    mark_staying(&z);
    mark_used(&z);
    find_pickers(&z);
    choose(&z);
    drop_mixed(&z);
    set_times(&z, bytes, link);
    status = add_wishes(&z, firm, err);
done:
    cb_arena_free(&scratch);
    return status;
}
