/* join_sums.c: one pass finds chains of adds whose terms are products, another copies the graph.
 * Consecutive terms are computed by one product, at the place of the add of the last of them. The
 * products and the other adds lose their readers. Weights that read the same rows, such as both of
 * an LSTM, share concatenated gradients. */
#include "join_sums.h"

#include "../../ir/builder.h"

#define FAR 2048 /* bytes between the rows of a left side that make reading across them slow */

typedef struct chain {
    uint32_t n, begin; /* terms, and their place in `term` */
    bool is_turned;    /* the terms are transposed products */
    bool is_flipped;   /* their transposes are summed, and the sum is transposed at the end */
    cb_value_id sum;   /* the sum so far, a value of the new graph; CB_NONE: not made yet */
} chain;

/* A concat that was made. */
typedef struct joint {
    uint32_t n, begin; /* its pieces, and their place in `known` */
    cb_value_id value; /* of the new graph */
} joint;

typedef struct sums {
    const cb_graph *g;
    cb_arena *scratch;
    CB_VEC(chain) chains;
    uint32_t *readers; /* [values] ops and outputs that read it */
    uint32_t *chain;   /* [ops] chain of an add, or CB_NONE */
    uint32_t *place;   /* [ops] the term that an add adds */
    cb_op_id *term;    /* products, by chains */
    CB_VEC(joint) joints;
    CB_VEC(cb_value_id) known; /* values of g */
    uint32_t *first;           /* [values of g] the joint that begins with it, or CB_NONE */
} sums;

/* ---- which ----------------------------------------------------------------------------------- */

static bool is_turn(const cb_graph *g, cb_op_id id) {
    return g->ops.at[id].code == CB_OP_TRANSPOSE && cb_op_attrs(g, id)->dims.rank == 2 &&
           cb_op_attrs(g, id)->dims.dim[0] == 1;
}

/* Returns the value that `value` is a transposed view of, or itself. */
static cb_value_id peel(const cb_graph *g, cb_value_id value, bool *is_turned) {
    while (is_turn(g, g->values.at[value].producer)) {
        value = cb_op_ins(g, g->values.at[value].producer)[0];
        *is_turned = !*is_turned;
    }
    return value;
}

static int64_t inner_of(const cb_graph *g, cb_op_id product) {
    return g->values.at[cb_op_ins(g, product)[0]].shape.dim[1];
}

/* Returns the product that only this use of a value needs, or CB_NONE. */
static cb_op_id term_of(const sums *x, cb_value_id value, bool *is_turned) {
    const cb_graph *g = x->g;
    *is_turned = false;
    for (;;) {
        const cb_op_id id = g->values.at[value].producer;
        const cb_op *op = &g->ops.at[id];
        if (x->readers[value] != 1 || op->phase != CB_BACKWARD || op->constraint != CB_FREE)
            return CB_NONE;
        if (is_turn(g, id)) {
            value = cb_op_ins(g, id)[0];
            *is_turned = !*is_turned;
            continue;
        }
        const bool fits = op->code == CB_OP_MATMUL && g->values.at[value].shape.rank == 2;
        return fits && inner_of(g, id) > 0 && inner_of(g, id) <= CB_JOIN_INNER ? id : CB_NONE;
    }
}

/* Finds the chain that an add continues, or begins one. */
static bool take(sums *x, cb_op_id id) {
    const cb_graph *g = x->g;
    const cb_value_id *in = cb_op_ins(g, id);
    const cb_op_id before = g->values.at[in[0]].producer;
    bool turned, also_turned;
    const cb_op_id term = term_of(x, in[1], &turned);
    if (term == CB_NONE) return true;
    uint32_t c = x->readers[in[0]] == 1 ? x->chain[before] : CB_NONE;
    if (c == CB_NONE) {
        const cb_op_id first = term_of(x, in[0], &also_turned);
        if (first == CB_NONE || also_turned != turned || inner_of(g, first) != inner_of(g, term))
            return true;
        if (!CB_PUSH(x->scratch, x->chains, ((chain){1, 0, turned, false, CB_NONE}))) return false;
        c = (uint32_t)x->chains.len - 1;
    } else {
        const cb_op_id last = term_of(x, cb_op_ins(g, before)[1], &also_turned);
        if (also_turned != turned || inner_of(g, last) != inner_of(g, term)) return true;
    }
    x->chain[id] = c;
    x->place[id] = x->chains.at[c].n++;
    return true;
}

static bool is_add(const cb_graph *g, cb_op_id id) {
    const cb_op *op = &g->ops.at[id];
    const cb_dtype dtype = g->values.at[op->out_begin].dtype;
    return id >= g->backward_starts && op->code == CB_OP_ADD && op->constraint == CB_FREE &&
           (dtype == CB_F32 || dtype == CB_F64);
}

/* Returns the number of terms that become one product; 0: the chain stays as it is. For each row of
 * the inner axis, both sides are kept and copied. */
static uint32_t per_join(const sums *x, const chain *c) {
    const cb_op_id first = x->term[c->begin];
    const cb_shape *y = &x->g->values.at[x->g->ops.at[first].out_begin].shape;
    const double m = (double)y->dim[0], n = (double)y->dim[1];
    const double room = m * n > 0 ? m * n / (2 * (m + n)) : 0;
    const double longest = room < CB_JOIN_INNER ? room : CB_JOIN_INNER;
    const uint32_t most = (uint32_t)(longest / (double)inner_of(x->g, first)),
                   part = c->n / CB_JOIN_PARTS;
    return part < 2 || most < 2 ? 0 : part < most ? part : most;
}

/* True if the transposed product is faster. The left side is read across its concatenated rows, so
 * the shorter rows should be on the left if the others are so long that each is on its own page or
 * half of one. */
static bool should_flip(const sums *x, const chain *c) {
    const cb_value *y = &x->g->values.at[x->g->ops.at[x->term[c->begin]].out_begin];
    const int64_t left = y->shape.dim[c->is_turned], right = y->shape.dim[!c->is_turned];
    return left > right && (uint64_t)left * cb_dtype_size(y->dtype) >= FAR;
}

static cb_status find(sums *x, bool *any, cb_error *err) {
    const cb_graph *g = x->g;
    uint32_t n = 0;
    bool turned;
    for (size_t i = 0; i < g->in_value.len; i++) x->readers[g->in_value.at[i]]++;
    for (size_t i = 0; i < g->outputs.len; i++) x->readers[g->outputs.at[i].value]++;
    for (size_t v = 0; v < g->values.len; v++) x->first[v] = CB_NONE;
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        x->chain[id] = CB_NONE;
        if (is_add(g, id) && !take(x, id)) return cb_no_memory(err);
    }
    for (size_t c = 0; c < x->chains.len; c++) {
        x->chains.at[c].begin = n;
        n += x->chains.at[c].n;
    }
    for (cb_op_id id = 0; id < g->ops.len; id++) {
        if (x->chain[id] == CB_NONE) continue;
        cb_op_id *term = x->term + x->chains.at[x->chain[id]].begin;
        if (x->place[id] == 1) term[0] = term_of(x, cb_op_ins(g, id)[0], &turned);
        term[x->place[id]] = term_of(x, cb_op_ins(g, id)[1], &turned);
    }
    *any = false;
    for (size_t c = 0; c < x->chains.len; c++) {
        *any |= per_join(x, &x->chains.at[c]) > 0;
        x->chains.at[c].is_flipped = should_flip(x, &x->chains.at[c]);
    }
    return CB_OK;
}

/* ---- the new graph --------------------------------------------------------------------------- */

/* Returns one side of a product as rows along the inner axis, which may be transposed. The sides of
 * a transposed product change places. */
static cb_value_id lines_of(const sums *x, const chain *c, cb_op_id product, int side,
                            bool *is_turned) {
    const int of = c->is_turned != c->is_flipped ? 1 - side : side;
    *is_turned = of == 0;
    return peel(x->g, cb_op_ins(x->g, product)[of], is_turned);
}

/* Terms that become one product, in a graph that is being made. */
typedef struct group {
    const chain *of;
    const cb_op_id *term;
    uint32_t n;
    const cb_value_id *map; /* [values of g] values of the new graph */
} group;

/* Appends a concat along the rows, which depends on a tangent only if a piece does. */
static cb_status concat(cb_graph *to, const cb_value_id *pieces, uint32_t n, cb_value_id *out,
                        cb_error *err) {
    const uint8_t phase = to->phase;
    const cb_attrs along = {.i = {0}};
    to->phase = CB_FORWARD;
    for (uint32_t k = 0; k < n; k++)
        if (to->ops.at[to->values.at[pieces[k]].producer].phase == CB_BACKWARD)
            to->phase = CB_BACKWARD;
    const cb_status status = cb_build(to, CB_OP_CONCAT, n, pieces, &along, out, err);
    to->phase = phase;
    return status;
}

/* Returns the concat of the last `n` known values if there is one, or CB_NONE. */
static cb_value_id same_concat(const sums *x, uint32_t n) {
    const cb_value_id *pieces = x->known.at + x->known.len - n;
    if (x->first[pieces[0]] == CB_NONE) return CB_NONE;
    const joint *made = &x->joints.at[x->first[pieces[0]]];
    const bool is_same =
        made->n == n && memcmp(x->known.at + made->begin, pieces, n * sizeof *pieces) == 0;
    return is_same ? made->value : CB_NONE;
}

/* Makes one side of the product of a group, the last term first. */
static cb_status side_of(sums *x, cb_graph *to, const group *of, int side, cb_value_id *out,
                         cb_error *err) {
    joint made = {.n = of->n, .begin = (uint32_t)x->known.len};
    cb_value_id pieces[CB_JOIN_INNER];
    bool any_turned = false;
    for (uint32_t k = 0; k < of->n; k++) {
        bool turned;
        const cb_value_id value = lines_of(x, of->of, of->term[of->n - 1 - k], side, &turned);
        if (!CB_PUSH(x->scratch, x->known, value)) return cb_no_memory(err);
        pieces[k] = of->map[value];
        any_turned |= turned;
        if (turned) CB_TRY(cb_build_swap_last(to, pieces[k], &pieces[k], err));
    }
    *out = of->n == 1 ? pieces[0] : any_turned ? CB_NONE : same_concat(x, of->n);
    if (*out != CB_NONE) return CB_OK;
    CB_TRY(concat(to, pieces, of->n, out, err));
    made.value = *out;
    if (any_turned) return CB_OK;
    if (!CB_PUSH(x->scratch, x->joints, made)) return cb_no_memory(err);
    x->first[x->known.at[made.begin]] = (uint32_t)x->joints.len - 1;
    return CB_OK;
}

/* Adds the product of a group to the sum so far, if there is one. */
static cb_status add_group(sums *x, cb_graph *to, const group *of, cb_value_id *sum,
                           cb_error *err) {
    cb_value_id in[3] = {CB_NONE, CB_NONE, *sum};
    CB_TRY(side_of(x, to, of, 0, &in[0], err));
    CB_TRY(cb_build_swap_last(to, in[0], &in[0], err));
    CB_TRY(side_of(x, to, of, 1, &in[1], err));
    if (*sum == CB_NONE) return cb_build(to, CB_OP_MATMUL, 2, in, NULL, sum, err);
    return cb_build(to, CB_OP_MATMUL_ADD, 3, in, NULL, sum, err);
}

/* Makes a transposed copy. */
static cb_status turn(cb_graph *to, cb_value_id x, cb_value_id *out, cb_error *err) {
    CB_TRY(cb_build_swap_last(to, x, &x, err));
    return cb_build(to, CB_OP_CONTIGUOUS, 1, &x, NULL, out, err);
}

static bool wants(void *user, const cb_graph *g, cb_op_id id) {
    const sums *x = user;
    (void)g;
    return x->chain[id] != CB_NONE && per_join(x, &x->chains.at[x->chain[id]]) > 0;
}

static cb_status emit(void *user, cb_graph *to, cb_op_id id, const cb_value_id *map,
                      cb_value_id *outs, cb_error *err) {
    sums *x = user;
    chain *c = &x->chains.at[x->chain[id]];
    const cb_op_id *term = x->term + c->begin;
    const uint32_t per = per_join(x, c), rest = c->n % per ? c->n % per : per;
    const uint32_t end = x->place[id] + 1; /* terms up to this one */
    outs[0] = map[cb_op_ins(x->g, id)[1]]; /* only the next add of the chain reads it */
    if (end == 2 && rest == 1) CB_TRY(add_group(x, to, &(group){c, term, 1, map}, &c->sum, err));
    if (end < rest || (end - rest) % per) return CB_OK;
    const uint32_t n = end == rest ? rest : per;
    CB_TRY(add_group(x, to, &(group){c, term + end - n, n, map}, &c->sum, err));
    if (end < c->n && c->is_flipped) return CB_OK;
    if (!c->is_flipped) outs[0] = c->sum;
    else CB_TRY(turn(to, c->sum, &outs[0], err));
    to->ops.at[to->values.at[outs[0]].producer].name = x->g->ops.at[id].name;
    return CB_OK;
}

static bool make_room(sums *x) {
    const size_t n_ops = x->g->ops.len, n_values = x->g->values.len;
    x->readers = CB_NEW(x->scratch, uint32_t, n_values);
    x->first = CB_NEW(x->scratch, uint32_t, n_values);
    x->chain = CB_NEW(x->scratch, uint32_t, n_ops);
    x->place = CB_NEW(x->scratch, uint32_t, n_ops);
    x->term = CB_NEW(x->scratch, cb_op_id, 2 * n_ops);
    return x->readers && x->first && x->chain && x->place && x->term;
}

cb_status cb_join_sums(const cb_graph *g, cb_alloc *alloc, cb_graph **out, cb_error *err) {
    cb_arena scratch;
    sums x = {.g = g, .scratch = &scratch};
    const cb_replacing by = {.user = &x, .wants = wants, .emit = emit};
    bool any = false;
    *out = NULL;
    cb_arena_init(&scratch, alloc);
    cb_status status = make_room(&x) ? find(&x, &any, err) : cb_no_memory(err);
    if (status == CB_OK && any) status = cb_graph_replace(g, &by, alloc, out, err);
    cb_arena_free(&scratch);
    return status;
}
