#include "slices.h"

#include "../base/sort.h"

cb_status cb_slices_add(cb_slices *s, cb_arena *memory, cb_slice_gradient part, cb_error *err) {
    while (s->first.len <= part.of)
        if (!CB_PUSH(memory, s->first, CB_NONE)) return cb_no_memory(err);
    part.next = s->first.at[part.of];
    if (!CB_PUSH(memory, s->known, part)) return cb_no_memory(err);
    s->first.at[part.of] = (uint32_t)s->known.len - 1;
    return CB_OK;
}

static int by_start(const void *a, const void *b) {
    const cb_slice_gradient *x = a, *y = b;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return x->gradient < y->gradient ? -1 : x->gradient > y->gradient;
}

/* Moves slices of `value` along the first slice's axis to `chosen`, sorted, except those that
 * overlap an earlier one. Returns the number of chosen slices. */
static uint32_t choose(cb_slices *s, cb_value_id value, cb_slice_gradient *chosen) {
    const int64_t axis = s->known.at[s->first.at[value]].axis;
    uint32_t n = 0, kept = 0, left = CB_NONE;
    for (uint32_t k = s->first.at[value], next; k != CB_NONE; k = next) {
        next = s->known.at[k].next;
        if (s->known.at[k].axis == axis) {
            chosen[n++] = s->known.at[k];
            chosen[n - 1].next = k; /* its index in `known`, in case it is not chosen */
        } else {
            s->known.at[k].next = left;
            left = k;
        }
    }
    cb_sort(chosen, n, sizeof *chosen, by_start);
    for (uint32_t k = 0; k < n; k++) {
        if (kept == 0 || chosen[k].start >= chosen[kept - 1].stop) {
            chosen[kept++] = chosen[k];
        } else {
            s->known.at[chosen[k].next].next = left;
            left = chosen[k].next;
        }
    }
    s->first.at[value] = left;
    return kept;
}

/* Pads `x` with zeros before and after it. */
static cb_value_id padded(cb_emit *e, cb_value_id x, int64_t axis, int64_t before, int64_t after) {
    const cb_attrs pad = {.i = {axis, before, after}};
    return cb_emit1_with(e, CB_OP_PAD, x, &pad);
}

/* Makes the gradient of a value from those of slices, with zeros in the gaps. The second of two
 * slices is padded with the zeros between them, so that every emitted op depends on a gradient. */
static cb_value_id joined(cb_emit *e, const cb_slice_gradient *part, uint32_t n,
                          cb_value_id *pieces) {
    const int64_t axis = part->axis, whole = e->graph->values.at[part->of].shape.dim[axis],
                  before = part[0].start, after = whole - part[n - 1].stop;
    for (uint32_t k = 0; k < n; k++) {
        const int64_t gap = k ? part[k].start - part[k - 1].stop : 0;
        pieces[k] = gap ? padded(e, part[k].gradient, axis, gap, 0) : part[k].gradient;
    }
    cb_value_id out = pieces[0];
    const cb_attrs along = {.i = {axis}};
    if (n > 1) cb_emit_op(e, CB_OP_CONCAT, n, pieces, &along, &out);
    return n == 1 || before || after ? padded(e, out, axis, before, after) : out;
}

cb_status cb_slices_take(cb_slices *s, cb_arena *memory, cb_graph *g, cb_value_id value,
                         cb_value_id *out, cb_error *err) {
    *out = CB_NONE;
    if (value >= s->first.len || s->first.at[value] == CB_NONE) return CB_OK;
    size_t n = 0;
    for (uint32_t k = s->first.at[value]; k != CB_NONE; k = s->known.at[k].next) n++;
    cb_slice_gradient *chosen = CB_NEW(memory, cb_slice_gradient, n);
    cb_value_id *pieces = CB_NEW(memory, cb_value_id, n);
    if (!chosen || !pieces) return cb_no_memory(err);
    cb_emit e = {.graph = g, .err = err};
    *out = joined(&e, chosen, choose(s, value, chosen), pieces);
    return e.status;
}
