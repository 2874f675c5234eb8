/* find.c: a strip grows from its end towards the inputs. It takes in an op if row i of its
 * results depends only on row i of what it reads, and if only the strip reads these results. It
 * does not grow beyond the products that make its rows wide.
 *
 * The leading axes of a shape enumerate its rows. They differ between ops: a product may have
 * [tokens, width] and a pointwise op [batch, length, width]. */
#include "find.h"

typedef struct finder {
    const cb_graph *g;
    cb_strips *out;
    cb_arena *arena;
    uint32_t *n_reads;     /* [value] number of reads by ops and as outputs of the graph */
    uint32_t *n_row_reads; /* [value] number of reads by ops of this strip that read its rows */
    cb_bitset taken;       /* ops in a strip */
    cb_error *err;
} finder;

int64_t cb_piece_begins(int64_t rows, uint32_t n_pieces, uint32_t piece) {
    const int64_t blocks = rows / CB_PIECE_ROWS;
    return piece == n_pieces ? rows : blocks * piece / n_pieces * CB_PIECE_ROWS;
}

int32_t cb_leading_axes(const cb_shape *s, int64_t rows) {
    int64_t n = 1;
    for (int32_t k = 0; k < s->rank; k++) {
        n *= s->dim[k];
        if (n == rows) return k + 1;
    }
    return -1;
}

bool cb_reads_rows(cb_opcode code, uint32_t input) {
    const bool has_whole =
        code == CB_OP_MATMUL || code == CB_OP_LAYER_NORM || code == CB_OP_RMS_NORM;
    return input == 0 || !has_whole;
}

static const cb_shape *shape_of(const cb_graph *g, cb_value_id value) {
    return &g->values.at[value].shape;
}

/* ---- row-wise ops ---------------------------------------------------------------------------- */

static bool is_product(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    return op->code == CB_OP_MATMUL && g->values.at[op->out_begin].shape.rank == 2;
}

/* True if expanding x to y leaves the leading axes unchanged. */
static bool keeps_leading(const cb_shape *x, const cb_shape *y, int32_t leading) {
    bool keeps = x->rank == y->rank;
    for (int32_t k = 0; k < leading && keeps; k++) keeps = x->dim[k] == y->dim[k];
    return keeps;
}

static bool has_rows(const cb_graph *g, cb_op_id id, int64_t rows) {
    const cb_op *op = &g->ops.at[id];
    bool has = true;
    for (uint32_t k = 0; k < op->n_out && has; k++)
        has = cb_leading_axes(shape_of(g, op->out_begin + k), rows) > 0;
    for (uint32_t k = 0; k < op->n_in && has; k++) {
        if (!cb_reads_rows(op->code, k)) continue;
        has = cb_leading_axes(shape_of(g, cb_op_ins(g, id)[k]), rows) > 0;
    }
    return has;
}

/* True if row i of each output depends only on rows i of the inputs whose rows are read. */
static bool is_by_rows(const cb_graph *g, cb_op_id id, int64_t rows) {
    const cb_op *op = &g->ops.at[id];
    if (op->n_in == 0 || !has_rows(g, id, rows)) return false;
    const uint32_t flags = cb_op_flags(g, id);
    const cb_attrs *attrs = cb_op_attrs(g, id);
    const cb_shape *x = shape_of(g, cb_op_ins(g, id)[0]);
    const int32_t leading = cb_leading_axes(x, rows);
    switch (op->code) {
        case CB_OP_MATMUL: return x->rank == 2 && leading == 1;
        case CB_OP_RESHAPE: return true;
        case CB_OP_EXPAND: return keeps_leading(x, shape_of(g, op->out_begin), leading);
        case CB_OP_SOFTMAX:
        case CB_OP_LOG_SOFTMAX:
        case CB_OP_LAYER_NORM:
        case CB_OP_RMS_NORM:
        case CB_OP_CROSS_ENTROPY: return leading < x->rank;
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN: return attrs->dims.rank > 0 && attrs->dims.dim[0] >= leading;
        case CB_OP_GATHER: return attrs->i[0] >= leading;
        case CB_OP_TRIL: return false; /* depends on the number of the row */
        default: return (flags & CB_OPF_POINTWISE) && !(flags & CB_OPF_RANDOM);
    }
}

/* ---- one strip ------------------------------------------------------------------------------- */

/* True if the strip takes in this op, which then reads rows of its inputs. */
static bool takes(const finder *x, const cb_strip *s, cb_op_id id) {
    const cb_op *op = &x->g->ops.at[id];
    bool any = false, only = true;
    for (uint32_t k = 0; k < op->n_out; k++) {
        any |= x->n_row_reads[op->out_begin + k] > 0;
        only &= x->n_row_reads[op->out_begin + k] == x->n_reads[op->out_begin + k];
    }
    return any && only && !cb_bitset_has(&x->taken, id) && is_by_rows(x->g, id, s->rows);
}

static uint64_t row_bytes(const cb_graph *g, cb_value_id value) {
    const cb_value *v = &g->values.at[value];
    return (uint64_t)cb_numel(&v->shape) * cb_dtype_size(v->dtype);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* True if cutting pays: some value inside is at least twice as large as each end. */
static bool pays(const finder *x, const cb_strip *s) {
    uint64_t inner = 0, ends = row_bytes(x->g, x->g->ops.at[s->end].out_begin);
    for (cb_op_id id = 0; id <= s->end; id++) {
        const cb_op *op = &x->g->ops.at[id];
        if (!cb_bitset_has(&s->ops, id)) continue;
        if (id != s->end) inner = larger(inner, row_bytes(x->g, op->out_begin));
        for (uint32_t k = 0; k < op->n_in; k++) {
            const cb_value_id in = cb_op_ins(x->g, id)[k];
            const bool inside = cb_bitset_has(&s->ops, x->g->values.at[in].producer);
            const cb_op_id maker = x->g->values.at[in].producer;
            if (inside || !cb_reads_rows(op->code, k)) continue;
            if (x->g->ops.at[maker].code != CB_OP_EXPAND) ends = larger(ends, row_bytes(x->g, in));
        }
    }
    return inner > 0 && inner >= 2 * ends;
}

static void read_rows(finder *x, cb_op_id id, uint32_t n) {
    const cb_op *op = &x->g->ops.at[id];
    for (uint32_t k = 0; k < op->n_in; k++)
        if (cb_reads_rows(op->code, k)) x->n_row_reads[cb_op_ins(x->g, id)[k]] += n;
}

/* Takes in ops before the end. Returns the number of products that begin the strip. */
static uint32_t grow(finder *x, cb_strip *s) {
    uint32_t n_products = 0;
    cb_bitset_add(&s->ops, s->end);
    read_rows(x, s->end, 1);
    for (cb_op_id id = s->end; id-- > 0;) {
        if (!takes(x, s, id)) continue;
        cb_bitset_add(&s->ops, id);
        n_products += is_product(x->g, id);
        if (!is_product(x->g, id)) read_rows(x, id, 1);
    }
    for (cb_op_id id = 0; id <= s->end; id++) /* the counts are per strip */
        if (cb_bitset_has(&s->ops, id) && (id == s->end || !is_product(x->g, id)))
            read_rows(x, id, (uint32_t)-1);
    return n_products;
}

static bool is_end(const cb_graph *g, cb_op_id id) {
    if (g->ops.at[id].code == CB_OP_CROSS_ENTROPY) return true;
    if (!is_product(g, id)) return false;
    const cb_shape *x = shape_of(g, cb_op_ins(g, id)[0]);
    return 2 * shape_of(g, g->ops.at[id].out_begin)->dim[1] <= x->dim[1];
}

static bool is_half(const cb_graph *g, cb_value_id value) {
    const cb_dtype dtype = g->values.at[value].dtype;
    return cb_dtype_is_float(dtype) && dtype != CB_F32 && dtype != CB_F64;
}

/* True if an op of the strip reads or makes 16-bit floats. */
static bool has_halves(const finder *x, const cb_strip *s) {
    bool has = false;
    for (cb_op_id id = 0; id <= s->end && !has; id++) {
        const cb_op *op = &x->g->ops.at[id];
        if (!cb_bitset_has(&s->ops, id)) continue;
        has = is_half(x->g, op->out_begin);
        for (uint32_t k = 0; k < op->n_in; k++) has |= is_half(x->g, cb_op_ins(x->g, id)[k]);
    }
    return has;
}

static const char *try_strip(finder *x, cb_strip *s) {
    if (s->rows < 2 * CB_PIECE_ROWS) return "there are fewer than 512 rows";
    const uint32_t n_products = grow(x, s);
    if (has_halves(x, s)) return "sums of pieces in 16 bits would be rounded";
    if (n_products == 0)
        return "no matrix product by rows leads here, or its result is read elsewhere";
    return pays(x, s) ? NULL : "nothing in between is twice as wide as both ends";
}

static cb_status find_strip(finder *x, cb_op_id id) {
    const cb_shape *in = shape_of(x->g, cb_op_ins(x->g, id)[0]);
    const int64_t rows = cb_numel_of(in, 0, in->rank - 1), blocks = rows / CB_PIECE_ROWS;
    cb_strip s = {.end = id, .rows = rows};
    s.n_pieces = (uint32_t)(blocks < CB_MAX_PIECES ? blocks : CB_MAX_PIECES);
    if (!cb_bitset_init(&s.ops, x->arena, x->g->ops.len)) return cb_no_memory(x->err);
    const cb_whole whole = {id, try_strip(x, &s)};
    if (whole.reason)
        return CB_PUSH(x->arena, x->out->wholes, whole) ? CB_OK : cb_no_memory(x->err);
    for (cb_op_id k = 0; k <= id; k++)
        if (cb_bitset_has(&s.ops, k)) cb_bitset_add(&x->taken, k);
    return CB_PUSH(x->arena, x->out->strips, s) ? CB_OK : cb_no_memory(x->err);
}

cb_status cb_strips_find(const cb_graph *g, cb_arena *arena, cb_strips *out, cb_error *err) {
    finder x = {.g = g, .out = out, .arena = arena, .err = err};
    *out = (cb_strips){0};
    CB_TRY_NEW(x.n_reads, arena, g->values.len, err);
    CB_TRY_NEW(x.n_row_reads, arena, g->values.len, err);
    if (!cb_bitset_init(&x.taken, arena, g->ops.len)) return cb_no_memory(err);
    for (size_t i = 0; i < g->in_value.len; i++) x.n_reads[g->in_value.at[i]]++;
    for (size_t i = 0; i < g->outputs.len; i++) x.n_reads[g->outputs.at[i].value]++;
    for (cb_op_id id = 0; id < g->ops.len; id++)
        if (is_end(g, id)) CB_TRY(find_strip(&x, id));
    return CB_OK;
}
