/* join_products.c: one pass finds products that can be joined, another copies the graph. The first
 * product of a group is replaced by the joined one, and each by its rows of the result. Views that
 * the joined product reads are made again before it. */
#include "joins.h"

#include "../../ir/builder.h"

#define VIEWS 6 /* maximum number of views between a left side and an op before the first product */
#define TRIES 8 /* maximum number of sets that a product is compared with */

/* Products with the same right side and left sides of the same shape. */
typedef struct set {
    cb_op_id first;
    uint32_t n, begin; /* members, and their place in `member` */
    uint32_t next;     /* the set before it with a right side in the same storage, or CB_NONE */
    cb_value_id whole; /* the last joined product, a value of the new graph */
} set;

typedef struct joins {
    const cb_graph *g;
    cb_arena *scratch;
    CB_VEC(set) sets;
    uint32_t *last;  /* [storages] the last set whose right side is in it */
    uint32_t *set;   /* [ops] */
    uint32_t *place; /* [ops] position in the set */
    cb_op_id *member;
    cb_value_id *pieces;    /* room for left sides, as values of the new graph */
    const cb_value_id *map; /* [values of g] values of the new graph */
    cb_value_id *rows;      /* [storages] the storage as a matrix whose rows are left sides, a value
                             * of the new graph, or CB_NONE */
} joins;

/* ---- which ----------------------------------------------------------------------------------- */

static bool is_view(const cb_graph *g, cb_op_id id) { return cb_op_flags(g, id) & CB_OPF_VIEW; }

static const cb_value *in_of(const cb_graph *g, cb_op_id id, uint32_t k) {
    return &g->values.at[cb_op_ins(g, id)[k]];
}

static bool is_small_product(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    if (op->code != CB_OP_MATMUL || op->constraint != CB_FREE) return false;
    const cb_shape *left = &in_of(g, id, 0)->shape;
    return left->rank == 2 && left->dim[0] > 0 && 2 * left->dim[0] <= CB_JOIN_ROWS;
}

static bool is_same_view(const cb_value *a, const cb_value *b) {
    if (a->storage != b->storage || a->offset != b->offset || a->dtype != b->dtype) return false;
    if (!cb_shape_equal(&a->shape, &b->shape)) return false;
    for (int32_t k = 0; k < a->shape.rank; k++)
        if (a->stride[k] != b->stride[k]) return false;
    return true;
}

/* True if the value, or what it is a view of, exists before an op. */
static bool is_known(const cb_graph *g, cb_value_id value, cb_op_id before) {
    for (int views = 0; g->values.at[value].producer >= before; views++) {
        const cb_op_id producer = g->values.at[value].producer;
        if (views == VIEWS || !is_view(g, producer)) return false;
        value = cb_op_ins(g, producer)[0];
    }
    return true;
}

static bool belongs(const cb_graph *g, const set *s, cb_op_id id) {
    return is_same_view(in_of(g, s->first, 1), in_of(g, id, 1)) &&
           cb_shape_equal(&in_of(g, s->first, 0)->shape, &in_of(g, id, 0)->shape) &&
           g->ops.at[s->first].region == g->ops.at[id].region &&
           is_known(g, cb_op_ins(g, id)[0], s->first);
}

/* Adds a product to its set, or makes a new set. */
static bool take(joins *x, cb_op_id id) {
    uint32_t *last = &x->last[in_of(x->g, id, 1)->storage], s = *last, tries = 1;
    while (s != CB_NONE && !belongs(x->g, &x->sets.at[s], id))
        s = tries++ < TRIES ? x->sets.at[s].next : CB_NONE;
    if (s == CB_NONE) {
        const set made = {.first = id, .next = *last};
        if (!CB_PUSH(x->scratch, x->sets, made)) return false;
        *last = s = (uint32_t)x->sets.len - 1;
    }
    x->set[id] = s;
    x->place[id] = x->sets.at[s].n++;
    return true;
}

/* Returns the number of products that become one. */
static uint32_t per_join(const joins *x, const set *s) {
    const int64_t rows = in_of(x->g, s->first, 0)->shape.dim[0];
    const uint32_t most = (uint32_t)(CB_JOIN_ROWS / rows), part = s->n / CB_JOIN_PARTS;
    return part < most ? part : most;
}

/* Returns the number of products that are joined with this one, from position *begin of its set.
 * The last one may be alone; 0: those of its set are not joined. */
static uint32_t join_of(const joins *x, cb_op_id id, uint32_t *begin) {
    const set *s = &x->sets.at[x->set[id]];
    const uint32_t per = per_join(x, s);
    if (per < 2) return 0;
    *begin = x->place[id] / per * per;
    return s->n - *begin < per ? s->n - *begin : per;
}

static bool is_joined(const joins *x, cb_op_id id) {
    uint32_t begin;
    return x->set[id] != CB_NONE && join_of(x, id, &begin) > 0;
}

/* Finds the products to join. */
static cb_status find(joins *x, bool *any, cb_error *err) {
    const cb_graph *g = x->g;
    uint32_t n = 0;
    for (size_t s = 0; s < g->storages.len; s++) x->last[s] = x->rows[s] = CB_NONE;
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        x->set[id] = CB_NONE;
        if (is_small_product(g, id) && !take(x, id)) return cb_no_memory(err);
    }
    for (size_t s = 0; s < x->sets.len; s++) {
        x->sets.at[s].begin = n;
        n += x->sets.at[s].n;
    }
    *any = false;
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        if (x->set[id] == CB_NONE) continue;
        x->member[x->sets.at[x->set[id]].begin + x->place[id]] = id;
        *any |= is_joined(x, id);
    }
    return CB_OK;
}

/* ---- the new graph --------------------------------------------------------------------------- */

/* Returns a value of the new graph; `before` is the op that is copied now. A later view is made
 * again. */
static cb_status again(const joins *x, cb_graph *to, cb_op_id before, cb_value_id value,
                       cb_value_id *out, cb_error *err) {
    const cb_graph *g = x->g;
    cb_op_id view[VIEWS];
    uint32_t n = 0;
    while (g->values.at[value].producer >= before) {
        view[n] = g->values.at[value].producer;
        value = cb_op_ins(g, view[n++])[0];
    }
    *out = x->map[value];
    while (n-- > 0)
        CB_TRY(cb_build(to, g->ops.at[view[n]].code, 1, out, cb_op_attrs(g, view[n]), out, err));
    return CB_OK;
}

/* True if the left sides of n products are consecutive rows of a contiguous array; *row is the
 * first. */
static bool are_rows(const joins *x, const cb_op_id *member, uint32_t n, int64_t *row) {
    const cb_graph *g = x->g;
    const cb_value *first = in_of(g, member[0], 0),
                   *root = &g->values.at[g->storages.at[first->storage].root];
    const int64_t rows = first->shape.dim[0], width = first->shape.dim[1];
    const int32_t rank = root->shape.rank;
    if (rank == 0 || root->shape.dim[rank - 1] != width || width == 0) return false;
    if (!cb_is_contiguous(&root->shape, root->stride) || first->offset % width) return false;
    for (uint32_t k = 0; k < n; k++) {
        const cb_value *v = in_of(g, member[k], 0);
        if (v->storage != first->storage || v->offset != first->offset + k * rows * width)
            return false;
        if (!cb_is_contiguous(&v->shape, v->stride)) return false;
    }
    *row = first->offset / width;
    return true;
}

static cb_status slice(cb_graph *to, cb_value_id of, int64_t begin, int64_t rows, cb_value_id *out,
                       cb_error *err) {
    const cb_attrs attrs = {.i = {0, begin, begin + rows, 1}};
    return cb_build(to, CB_OP_SLICE, 1, &of, &attrs, out, err);
}

/* Returns the array that left sides are rows of, as a matrix. One view serves all products, so that
 * the gradients of its slices are concatenated. */
static cb_status rows_of(const joins *x, cb_graph *to, const cb_value *left, cb_value_id *out,
                         cb_error *err) {
    const cb_shape matrix = {.rank = 2, .dim = {-1, left->shape.dim[1]}};
    const cb_value_id root = x->map[x->g->storages.at[left->storage].root];
    cb_value_id *rows = &x->rows[left->storage];
    if (*rows == CB_NONE) CB_TRY(cb_build_reshape(to, root, &matrix, rows, err));
    *out = *rows;
    return CB_OK;
}

/* Makes the left side of the product that joins n members. */
static cb_status left_of(const joins *x, cb_graph *to, const cb_op_id *member, uint32_t n,
                         cb_value_id *out, cb_error *err) {
    const cb_graph *g = x->g;
    const cb_value *first = in_of(g, member[0], 0);
    int64_t row;
    if (are_rows(x, member, n, &row)) {
        CB_TRY(rows_of(x, to, first, out, err));
        return slice(to, *out, row, n * first->shape.dim[0], out, err);
    }
    for (uint32_t k = 0; k < n; k++)
        CB_TRY(again(x, to, member[0], cb_op_ins(g, member[k])[0], &x->pieces[k], err));
    const cb_attrs along = {.i = {0}};
    *out = x->pieces[0];
    return n == 1 ? CB_OK : cb_build(to, CB_OP_CONCAT, n, x->pieces, &along, out, err);
}

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    const joins *x = user;
    if (!is_view(g, id)) return is_joined(x, id);
    const cb_storage *of = &g->storages.at[g->values.at[g->ops.at[id].out_begin].storage];
    return is_joined(x, g->values.at[of->root].producer);
}

static cb_status emit(void *user, cb_graph *to, cb_op_id id, const cb_value_id *map,
                      cb_value_id *outs, cb_error *err) {
    joins *x = user;
    const cb_graph *g = x->g;
    const cb_value_id *ins = cb_op_ins(g, id);
    uint32_t begin;
    x->map = map;
    if (is_view(g, id)) {
        CB_TRY(cb_build(to, g->ops.at[id].code, 1, &map[ins[0]], cb_op_attrs(g, id), outs, err));
        to->ops.at[to->values.at[outs[0]].producer].name = g->ops.at[id].name;
        return CB_OK;
    }
    const uint32_t n = join_of(x, id, &begin), at = x->place[id] - begin;
    set *s = &x->sets.at[x->set[id]];
    if (at == 0) {
        cb_value_id sides[2];
        CB_TRY(left_of(x, to, x->member + s->begin + begin, n, &sides[0], err));
        sides[1] = map[ins[1]];
        CB_TRY(cb_build(to, CB_OP_MATMUL, 2, sides, NULL, &s->whole, err));
    }
    const int64_t rows = in_of(g, id, 0)->shape.dim[0];
    outs[0] = s->whole;
    if (n > 1) CB_TRY(slice(to, s->whole, at * rows, rows, outs, err));
    to->ops.at[to->values.at[outs[0]].producer].name = g->ops.at[id].name;
    return CB_OK;
}

cb_status cb_join_products(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    cb_arena scratch;
    joins x = {.g = g, .scratch = &scratch};
    const cb_replacing by = {.user = &x, .wants = wants, .emit = emit};
    cb_status status;
    bool any = false;
    *out = NULL;
    cb_arena_init(&scratch, alloc);
    x.last = CB_NEW(&scratch, uint32_t, g->storages.len);
    x.rows = CB_NEW(&scratch, cb_value_id, g->storages.len);
    x.set = CB_NEW(&scratch, uint32_t, g->ops.len);
    x.place = CB_NEW(&scratch, uint32_t, g->ops.len);
    x.member = CB_NEW(&scratch, cb_op_id, g->ops.len);
    x.pieces = CB_NEW(&scratch, cb_value_id, CB_JOIN_ROWS);
    status =
        x.last && x.rows && x.set && x.place && x.member && x.pieces ? CB_OK : cb_no_memory(err);
    if (status == CB_OK) status = find(&x, &any, err);
    if (status == CB_OK && any) status = cb_graph_replace(g, &by, alloc, out, err);
    cb_arena_free(&scratch);
    return status;
}
