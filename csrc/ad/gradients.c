#include "gradients.h"

#include "backward.h"

static cb_status check_pair(const cb_graph *g, cb_value_id of, cb_value_id from, cb_error *err) {
    const cb_value *y = &g->values.at[of], *dy = &g->values.at[from];
    char want[CB_SHAPE_TEXT], got[CB_SHAPE_TEXT];
    if (!cb_dtype_is_float(y->dtype))
        return cb_fail(err, CB_TYPE, "gradient: a result has dtype %s; it must be floating",
                       cb_dtype_name(y->dtype));
    if (y->dtype == dy->dtype && cb_shape_equal(&y->shape, &dy->shape)) return CB_OK;
    return cb_fail(err, CB_INVALID, "gradient: a result is %s %s, but its gradient is %s %s",
                   cb_dtype_name(y->dtype), cb_shape_text(&y->shape, want),
                   cb_dtype_name(dy->dtype), cb_shape_text(&dy->shape, got));
}

static cb_status walk(cb_backward *b, const cb_gradients *x, cb_value_id *out, cb_error *err) {
    const cb_graph *g = b->g;
    CB_TRY(cb_backward_cover(b, err));
    for (uint32_t i = 0; i < x->n_wrt; i++) {
        if (!cb_dtype_is_float(g->values.at[x->wrt[i]].dtype))
            return cb_fail(err, CB_TYPE,
                           "gradient: a value of dtype %s has no gradient; it must be floating",
                           cb_dtype_name(g->values.at[x->wrt[i]].dtype));
        b->active.at[x->wrt[i]] = 1;
    }
    for (uint32_t i = 0; i < x->n_of; i++) {
        CB_TRY(check_pair(g, x->of[i], x->from[i], err));
        CB_TRY(cb_backward_add(b, x->of[i], x->from[i], err));
    }
    CB_TRY(cb_backward_cover(b, err)); /* adding gradients has appended sums */
    CB_TRY(cb_backward_walk(b, err));
    for (uint32_t i = 0; i < x->n_wrt; i++) out[i] = b->grad.at[x->wrt[i]];
    return CB_OK;
}

cb_status cb_gradients_append(cb_graph *g, const cb_gradients *wanted, cb_value_id *out,
                              cb_error *err) {
    const cb_graph before = *g; /* for lengths; the arrays may move */
    cb_backward b = {.g = g, .starts = (cb_op_id)g->ops.len};
    cb_arena_init(&b.scratch, g->arena.alloc);
    const cb_status status = walk(&b, wanted, out, err);
    cb_arena_free(&b.scratch);
    g->location = before.location;
    if (status == CB_OK) return CB_OK;
    g->ops.len = before.ops.len;
    g->values.len = before.values.len;
    g->storages.len = before.storages.len;
    g->in_value.len = before.in_value.len;
    g->attrs.len = before.attrs.len;
    g->backward_starts = before.backward_starts;
    return status;
}
