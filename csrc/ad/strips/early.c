/* early.c: the new order of ops.
 *
 *   ops before the pieces | what the gradients of pieces need besides the pieces |
 *   piece, its gradients, piece, its gradients, .. | the rest of the forward | the backward
 *
 * Pieces are placed in the order in which gradients read them. */
#include "early.h"

#include "../../base/bitset.h"

typedef struct ordering {
    const cb_graph *g;
    const cb_early *early;
    cb_bitset placed, needed;
    cb_op_id *order;
    uint32_t n;
} ordering;

static bool is_piece(const ordering *x, cb_op_id id) {
    return id >= x->early->first[0] && id < x->early->first[x->early->n_pieces];
}

static void place(ordering *x, cb_op_id id) {
    if (cb_bitset_has(&x->placed, id)) return;
    cb_bitset_add(&x->placed, id);
    x->order[x->n++] = id;
}

static void place_range(ordering *x, cb_op_id begin, cb_op_id end) {
    for (cb_op_id id = begin; id < end; id++) place(x, id);
}

static cb_op_id maker(const ordering *x, cb_op_id id, uint32_t k) {
    return x->g->values.at[cb_op_ins(x->g, id)[k]].producer;
}

/* Marks the ops between the pieces and the gradients that the gradients need. Returns false if one
 * of these reads a piece. */
static bool find_needed(ordering *x) {
    const cb_early *e = x->early;
    bool known = true;
    for (cb_op_id id = e->end; id-- > e->first[e->n_pieces] && known;) {
        const bool is_gradient = id >= e->begin;
        if (!is_gradient && !cb_bitset_has(&x->needed, id)) continue;
        for (uint32_t k = 0; k < x->g->ops.at[id].n_in; k++) {
            cb_bitset_add(&x->needed, maker(x, id, k));
            known &= is_gradient || !is_piece(x, maker(x, id, k));
        }
    }
    return known;
}

static void place_pieces_of(ordering *x, cb_op_id id) {
    const cb_early *e = x->early;
    for (uint32_t k = 0; k < x->g->ops.at[id].n_in; k++) {
        const cb_op_id from = maker(x, id, k);
        for (uint32_t i = 0; i < e->n_pieces && is_piece(x, from); i++)
            if (from >= e->first[i] && from < e->first[i + 1])
                place_range(x, e->first[i], e->first[i + 1]);
    }
}

/* Returns the number of ops in the forward. */
static uint32_t put_in_order(ordering *x) {
    const cb_early *e = x->early;
    place_range(x, 0, e->first[0]);
    for (cb_op_id id = e->first[e->n_pieces]; id < e->begin; id++)
        if (cb_bitset_has(&x->needed, id)) place(x, id);
    for (cb_op_id id = e->begin; id < e->end; id++) {
        place_pieces_of(x, id);
        place(x, id);
    }
    place_range(x, e->first[0], e->starts);
    const uint32_t forward = x->n;
    place_range(x, e->starts, (cb_op_id)x->g->ops.len);
    return forward;
}

cb_status cb_gradients_early(const cb_graph *g, const cb_early *early, cb_alloc *alloc,
                             cb_graph **out, cb_error *err) {
    ordering x = {.g = g, .early = early};
    cb_arena scratch;
    cb_status status = CB_OK;
    cb_arena_init(&scratch, alloc);
    *out = NULL;
    x.order = CB_NEW(&scratch, cb_op_id, g->ops.len);
    const bool has_room = x.order && cb_bitset_init(&x.placed, &scratch, g->ops.len) &&
                          cb_bitset_init(&x.needed, &scratch, g->ops.len);
    if (!has_room) status = cb_no_memory(err);
    if (has_room && find_needed(&x)) {
        const uint32_t forward = put_in_order(&x);
        status = cb_graph_arrange(g, x.order, alloc, out, err);
        for (uint32_t i = 0; status == CB_OK && i < forward; i++)
            (*out)->ops.at[i].phase = CB_FORWARD;
        if (status == CB_OK) (*out)->backward_starts = forward;
    }
    cb_arena_free(&scratch);
    return status;
}
