/* cut.c: appends the pieces of strips in place of their last ops (ir/copy.c copies the rest). In
 * a piece, the leading axes of every value are one axis with the piece's rows. */
#include "cut.h"

#include "../../ir/builder.h"
#include "../../ir/infer_checks.h"

enum { MOST_INS = 8 }; /* maximum number of inputs of an op in a strip */

typedef struct cutting {
    const cb_graph *g;
    cb_strips *strips;
    cb_arena *scratch;
    /* [value of g] values of the new graph, or CB_NONE */
    cb_value_id *flat;  /* for an outer value, its rows along one axis, from the latest strip */
    cb_value_id *piece; /* for an inner value, the rows of the latest piece */
} cutting;

/* One piece of a strip. */
typedef struct part {
    const cutting *x;
    const cb_strip *s;
    cb_graph *to;
    const cb_value_id *map; /* [value of g] in the new graph */
    int64_t begin, end;     /* rows */
    cb_error *err;
} part;

static const cb_shape *shape_of(const cutting *x, cb_value_id value) {
    return &x->g->values.at[value].shape;
}

/* [leading axes.., inner axes..] -> [n, inner axes..] */
static cb_shape with_rows(const cb_shape *s, int64_t rows, int64_t n) {
    const int32_t leading = cb_leading_axes(s, rows);
    cb_shape out = {.rank = s->rank - leading + 1, .dim = {n}};
    for (int32_t k = leading; k < s->rank; k++) out.dim[k - leading + 1] = s->dim[k];
    return out;
}

/* Returns the input of an `expand` whose rows are all the same, else CB_NONE. `row` gets the shape
 * of one row of it, with a leading axis of 1. */
static cb_value_id repeated(const part *p, cb_value_id value, cb_shape *row) {
    const cb_op_id maker = p->x->g->values.at[value].producer;
    if (p->x->g->ops.at[maker].code != CB_OP_EXPAND) return CB_NONE;
    const cb_value_id source = cb_op_ins(p->x->g, maker)[0];
    const cb_shape *y = shape_of(p->x, value), *x = shape_of(p->x, source);
    const int32_t fresh = y->rank - x->rank, leading = cb_leading_axes(y, p->s->rows);
    *row = (cb_shape){.rank = y->rank - leading + 1, .dim = {1}};
    for (int32_t k = 0; k < y->rank; k++) {
        const int64_t dim = k < fresh ? 1 : x->dim[k - fresh];
        if (k < leading && dim != 1) return CB_NONE;
        if (k >= leading) row->dim[k - leading + 1] = dim;
    }
    return source;
}

/* True if the value has been flattened, by this strip or by one with as many rows. */
static bool is_flat(const part *p, cb_value_id value) {
    const cb_value_id flat = p->x->flat[value];
    return flat != CB_NONE && p->to->values.at[flat].shape.dim[0] == p->s->rows;
}

/* Flattens the leading axes of an outer value into one axis of rows. The op for this comes before
 * all pieces, which may run in any order. */
static cb_status flatten(const part *p, cb_value_id value) {
    cb_shape row;
    if (is_flat(p, value) || repeated(p, value, &row) != CB_NONE) return CB_OK;
    const cb_shape all = with_rows(shape_of(p->x, value), p->s->rows, p->s->rows);
    return cb_build_reshape(p->to, p->map[value], &all, &p->x->flat[value], p->err);
}

static cb_status flatten_inputs(const part *p) {
    const cb_graph *g = p->x->g;
    for (cb_op_id id = 0; id <= p->s->end; id++) {
        if (!cb_bitset_has(&p->s->ops, id)) continue;
        for (uint32_t k = 0; k < g->ops.at[id].n_in; k++) {
            const cb_value_id in = cb_op_ins(g, id)[k];
            const bool is_inner = cb_bitset_has(&p->s->ops, g->values.at[in].producer);
            if (!is_inner && cb_reads_rows(g->ops.at[id].code, k)) CB_TRY(flatten(p, in));
        }
    }
    return CB_OK;
}

/* Sets `out` to the piece's rows of a value. */
static cb_status rows_of(const part *p, cb_value_id value, cb_value_id *out) {
    cb_shape row;
    *out = p->x->piece[value];
    if (*out != CB_NONE) return CB_OK;
    const cb_value_id source = repeated(p, value, &row);
    if (source != CB_NONE) {
        const cb_shape all = with_rows(shape_of(p->x, value), p->s->rows, p->end - p->begin);
        CB_TRY(cb_build_reshape(p->to, p->map[source], &row, out, p->err));
        return cb_build_expand(p->to, *out, &all, out, p->err);
    }
    const cb_attrs rows = {.i = {0, p->begin, p->end, 1}};
    return cb_build(p->to, CB_OP_SLICE, 1, &p->x->flat[value], &rows, out, p->err);
}

/* Returns attributes for a piece, with adapted axes and shapes. */
static cb_attrs attrs_of(const part *p, cb_op_id id) {
    const cb_op *op = &p->x->g->ops.at[id];
    cb_attrs attrs = *cb_op_attrs(p->x->g, id);
    const cb_shape *x = shape_of(p->x, cb_op_ins(p->x->g, id)[0]),
                   *y = shape_of(p->x, op->out_begin);
    const int32_t fewer = cb_leading_axes(x, p->s->rows) - 1;
    switch (op->code) {
        case CB_OP_RESHAPE:
        case CB_OP_EXPAND: attrs.dims = with_rows(y, p->s->rows, p->end - p->begin); break;
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN:
            for (int32_t k = 0; k < attrs.dims.rank; k++) attrs.dims.dim[k] -= fewer;
            break;
        case CB_OP_GATHER: attrs.i[0] -= fewer; break;
        default: break;
    }
    return attrs;
}

static cb_status append_op(const part *p, cb_op_id id) {
    const cb_op *op = &p->x->g->ops.at[id];
    const cb_attrs attrs = attrs_of(p, id);
    cb_value_id ins[MOST_INS], outs[CB_MAX_OUTS];
    if (op->n_in > MOST_INS)
        return cb_fail(p->err, CB_INTERNAL, "%s: too many inputs for a piece of rows",
                       cb_op_def_of(op->code)->name);
    p->to->location = op->location;
    p->to->region = op->region;
    p->to->constraint = op->constraint;
    for (uint32_t k = 0; k < op->n_in; k++) {
        const cb_value_id in = cb_op_ins(p->x->g, id)[k];
        if (cb_reads_rows(op->code, k)) CB_TRY(rows_of(p, in, &ins[k]));
        else ins[k] = p->map[in];
    }
    CB_TRY(cb_build(p->to, op->code, op->n_in, ins, &attrs, outs, p->err));
    p->to->ops.at[p->to->values.at[outs[0]].producer].name = op->name;
    for (uint32_t k = 0; k < op->n_out; k++) p->x->piece[op->out_begin + k] = outs[k];
    return CB_OK;
}

/* Joins the pieces of one output of the last op. */
static cb_status join(const part *p, cb_value_id value, const cb_value_id *pieces,
                      cb_value_id *out) {
    const cb_attrs along = {.i = {0}};
    CB_TRY(cb_build(p->to, CB_OP_CONCAT, p->s->n_pieces, pieces, &along, out, p->err));
    return cb_build_reshape(p->to, *out, shape_of(p->x, value), out, p->err);
}

/* Appends all pieces, last rows first. */
static cb_status append_pieces(part *p, cb_strip *s, cb_value_id *outs) {
    const cb_op *end = &p->x->g->ops.at[s->end];
    cb_value_id made[CB_MAX_OUTS][CB_MAX_PIECES];
    CB_TRY(flatten_inputs(p));
    for (uint32_t k = 0; k < s->n_pieces; k++) {
        const uint32_t piece = s->n_pieces - 1 - k;
        s->first[k] = (cb_op_id)p->to->ops.len;
        p->begin = cb_piece_begins(s->rows, s->n_pieces, piece);
        p->end = cb_piece_begins(s->rows, s->n_pieces, piece + 1);
        for (cb_op_id id = 0; id <= s->end; id++)
            if (cb_bitset_has(&s->ops, id)) CB_TRY(append_op(p, id));
        for (uint32_t i = 0; i < end->n_out; i++) made[i][piece] = p->x->piece[end->out_begin + i];
    }
    s->first[s->n_pieces] = (cb_op_id)p->to->ops.len;
    for (uint32_t i = 0; i < end->n_out; i++) {
        CB_TRY(join(p, end->out_begin + i, made[i], &outs[i]));
        p->x->piece[end->out_begin + i] = CB_NONE; /* an outer value for later strips */
    }
    return CB_OK;
}

static cb_strip *strip_at(const cb_strips *strips, cb_op_id end) {
    for (size_t i = 0; i < strips->strips.len; i++)
        if (strips->strips.at[i].end == end) return &strips->strips.at[i];
    return NULL;
}

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    const cutting *x = user;
    (void)g;
    return strip_at(x->strips, id) != NULL;
}

static cb_status emit(void *user, cb_graph *to, cb_op_id id, const cb_value_id *map,
                      cb_value_id *outs, cb_error *err) {
    const cutting *x = user;
    cb_strip *s = strip_at(x->strips, id);
    part p = {.x = x, .s = s, .to = to, .map = map, .err = err};
    return append_pieces(&p, s, outs);
}

cb_status cb_strips_cut(const cb_graph *g, cb_strips *strips, cb_alloc *alloc, cb_graph **out,
                        cb_error *err) {
    cb_arena scratch;
    cb_status status;
    cutting x = {.g = g, .strips = strips, .scratch = &scratch};
    const cb_replacing by = {.user = &x, .wants = wants, .emit = emit};
    cb_arena_init(&scratch, alloc);
    x.flat = CB_NEW(&scratch, cb_value_id, g->values.len);
    x.piece = CB_NEW(&scratch, cb_value_id, g->values.len);
    status = x.flat && x.piece ? CB_OK : cb_no_memory(err);
    for (size_t i = 0; status == CB_OK && i < g->values.len; i++) x.flat[i] = x.piece[i] = CB_NONE;
    if (status == CB_OK) status = cb_graph_replace(g, &by, alloc, out, err);
    cb_arena_free(&scratch);
    return status;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_op(const cb_graph *g, cb_op_id id, cb_str *out) {
    const cb_op *op = &g->ops.at[id];
    if (op->location != CB_NONE) cb_str_addf(out, "%s ", cb_graph_name(g, op->location));
    cb_str_addf(out, "%s: ", cb_op_def_of(op->code)->name);
}

void cb_strips_print(const cb_graph *g, const cb_strips *strips, const cb_strip *early,
                     cb_str *out) {
    for (size_t i = 0; i < strips->strips.len; i++) {
        const cb_strip *s = &strips->strips.at[i];
        print_op(g, s->end, out);
        cb_str_addf(out, "%lld rows in %u pieces%s\n", (long long)s->rows, s->n_pieces,
                    s == early ? ", each followed by its gradients" : "");
    }
    for (size_t i = 0; i < strips->wholes.len; i++) {
        print_op(g, strips->wholes.at[i].op, out);
        cb_str_addf(out, "whole, as %s\n", strips->wholes.at[i].reason);
    }
}
