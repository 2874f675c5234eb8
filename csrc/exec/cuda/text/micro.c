/* The operations that a kernel needs are found backward, because each reads only earlier ones; then
 * their text is written forward. In the text, values are v<i>[V], streams t<i>[V], numbers s<i>. */
#include "micro.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../../base/philox.h"
#include "../../../micro/translation.h"

#define CB_X_NAME(id, ...) [CB_X_##id] = #id,
static const char *const op_names[CB_X_OP_COUNT] = {
    CB_X_BINARY(CB_X_NAME) CB_X_UNARY(CB_X_NAME) CB_X_MATH(CB_X_NAME) CB_X_ROUND(CB_X_NAME)
        CB_X_HALF(CB_X_NAME)[CB_X_NORMAL] = "NORMAL",
    [CB_X_SELECT] = "SELECT"};

typedef struct text { /* the text of an operand, e.g. "v12[j]" */
    char at[40];
} text;

static const cb_operand *operand_of(const cb_cu_micro *x, uint32_t tensor) {
    return &x->code->program->operand[x->code->program->operand_id[tensor]];
}

static int param_of(cb_cu_micro *x, uint32_t tensor, bool writes) {
    return cb_cu_operand(x->code, x->code->program->operand_id[tensor], writes);
}

/* ---- needed operations ----------------------------------------------------------------------- */

static void note_constants(cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    for (int k = 0; k < CB_X_SCALARS; k++) x->is_constant[k] = true;
    for (int k = 0; k < m->n_load; k++) x->is_constant[m->load[k].number] = false;
    for (int k = 0; k < m->n_once; k++) x->is_constant[m->once[k].number] = false;
    for (int k = 0; k < m->n_total; k++) x->is_constant[m->total[k].number] = false;
    for (int k = 0; k < m->n_number; k++) {
        const cb_x_number *number = &m->number[k];
        x->is_constant[number->dst] = false;
        if (number->when == CB_X_OF_ROW && number->after >= 0) x->of_row[number->dst] = true;
    }
    for (int k = 0; k < m->n_micro; k++) {
        if (m->micro[k].op != CB_X_TAKE) continue;
        x->is_constant[m->micro[k].dst] = false;
        x->of_row[m->micro[k].dst] = true;
    }
}

/* Returns true if two streams read the same elements of memory, possibly in different shapes, and
 * nothing writes them. */
static bool are_same(const cb_cu_micro *x, int one, int other) {
    const cb_x_stream *a = &x->m->stream[one], *b = &x->m->stream[other];
    if (a->source != CB_X_ARRAY || b->source != CB_X_ARRAY) return one == other;
    if (a->is_written || b->is_written) return one == other;
    const cb_operand *p = operand_of(x, a->tensor), *q = operand_of(x, b->tensor);
    return p->space == q->space && p->buffer == q->buffer && p->offset == q->offset &&
           p->dtype == q->dtype && cb_numel(&p->shape) == cb_numel(&q->shape) && cb_t_is_whole(p) &&
           cb_t_is_whole(q);
}

static void find_same(cb_cu_micro *x) {
    for (int16_t k = 0; k < x->m->n_stream; k++) {
        int16_t first = 0;
        while (first < k && !are_same(x, first, k)) first++;
        x->same_as[k] = first;
    }
}

void cb_cu_micro_init(cb_cu_micro *x, cb_cu_code *code, const cb_microcode *m) {
    memset(x, 0, sizeof *x);
    x->code = code;
    x->m = m;
    note_constants(x);
    find_same(x);
    memset(x->maker, 0xFF, sizeof x->maker);
    memset(x->in_tile, 0xFF, sizeof x->in_tile);
    memset(x->with_tile, 0xFF, sizeof x->with_tile);
    for (int16_t k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (micro->is_dead) continue;
        if (micro->value >= 0) x->maker[micro->value] = k;
        if (micro->second >= 0) x->maker[micro->second] = k;
        if (micro->op == CB_X_STORE && m->stream[micro->dst].source == CB_X_TILE) {
            x->in_tile[micro->dst] = micro->in[0].id;
            x->with_tile[micro->in[0].id] = micro->dst;
        }
    }
}

void cb_cu_forget(cb_cu_micro *x) {
    memset(x->needed, 0, sizeof x->needed);
    memset(x->is_loaded, 0, sizeof x->is_loaded);
}

/* Returns the stream of the tile in which an earlier phase has stored a value, or -1. */
static int16_t left_in(const cb_cu_micro *x, int16_t value) {
    const int16_t stream = x->with_tile[value];
    const bool is_left = x->has_tiles && stream >= 0 && !x->is_cheap[stream] &&
                         x->m->micro[x->maker[value]].phase < x->phase;
    return is_left ? stream : -1;
}

/* Returns the source of an operand. A kernel loads a value that is in a tile, and recomputes the
 * value of a tile that it does not have. */
static cb_x_ref source_of(const cb_cu_micro *x, cb_x_ref ref) {
    if (ref.kind == CB_X_IN_STREAM && x->in_tile[ref.id] >= 0 &&
        (!x->has_tiles || x->is_cheap[ref.id]))
        ref = (cb_x_ref){CB_X_VALUE, x->in_tile[ref.id]};
    if (ref.kind == CB_X_VALUE && left_in(x, ref.id) >= 0)
        ref = (cb_x_ref){CB_X_IN_STREAM, left_in(x, ref.id)};
    if (ref.kind == CB_X_IN_STREAM) ref.id = x->same_as[ref.id];
    return ref;
}

/* Returns the value that an operand refers to; -1 if the operand is not a value. */
static int16_t value_of(const cb_cu_micro *x, cb_x_ref ref) {
    const cb_x_ref source = source_of(x, ref);
    return source.kind == CB_X_VALUE ? source.id : -1;
}

int16_t cb_cu_loads(const cb_cu_micro *x, cb_x_ref ref) {
    const cb_x_ref source = source_of(x, ref);
    return source.kind == CB_X_IN_STREAM ? source.id : -1;
}

bool cb_cu_is_same_in_rows(const cb_cu_micro *x, int stream) {
    return cb_numel(&operand_of(x, x->m->stream[stream].tensor)->shape) !=
           x->m->rows * x->m->columns;
}

void cb_cu_need(cb_cu_micro *x, int micro) {
    x->needed[micro] = true;
    for (int k = micro; k >= 0; k--) {
        for (int j = 0; x->needed[k] && j < 3; j++) {
            const int16_t value = value_of(x, x->m->micro[k].in[j]);
            if (value >= 0) x->needed[x->maker[value]] = true;
        }
    }
}

void cb_cu_keep_numbers(cb_cu_micro *x) {
    for (int k = 0; k < x->m->n_micro; k++) {
        for (int j = 0; x->needed[k] && j < 3; j++) {
            const cb_x_ref ref = x->m->micro[k].in[j];
            if (ref.kind == CB_X_NUMBER && x->of_row[ref.id]) x->is_kept[ref.id] = true;
        }
    }
    for (int id = 0; id < CB_X_SCALARS; id++) {
        if (x->is_kept[id])
            x->kept_at[id] = cb_cu_extra(x->code, (uint64_t)x->m->rows * sizeof(float));
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

enum {
    PRICE_MOST = 24
}; /* maximum number of operations that are cheaper than a word of shared
                             memory */

/* True if an operation takes as long as a dozen simple ones. */
static bool is_expensive(cb_x_op op) {
    return (op >= CB_X_EXP && op <= CB_X_COS) || op == CB_X_NORMAL || op == CB_X_SIN_COS;
}

/* Returns the number of operations that compute a value from kept tiles and from arrays that are
 * the same for each row. More than PRICE_MOST means that the value should be kept. */
static int price_of(const cb_cu_micro *x, int16_t value) {
    const cb_micro *micro = &x->m->micro[x->maker[value]];
    int price = is_expensive(micro->op) ? PRICE_MOST + 1 : 1;
    for (int j = 0; j < 3 && price <= PRICE_MOST; j++) {
        const cb_x_ref ref = micro->in[j];
        if (ref.kind == CB_X_VALUE) {
            const int16_t tile = x->with_tile[ref.id];
            price +=
                tile >= 0 && x->is_decided[tile] && !x->is_cheap[tile] ? 1 : price_of(x, ref.id);
        }
        if (ref.kind != CB_X_IN_STREAM) continue;
        const int16_t stream = x->same_as[ref.id];
        const cb_x_stream *s = &x->m->stream[stream];
        if (s->source == CB_X_TILE)
            price += x->is_cheap[stream] ? price_of(x, x->in_tile[stream]) : 1;
        else if (x->is_held[stream]) price++;
        else
            price += s->source == CB_X_ARRAY &&
                             cb_numel(&operand_of(x, s->tensor)->shape) == x->m->columns
                         ? 1
                         : PRICE_MOST + 1;
    }
    return price;
}

void cb_cu_find_cheap(cb_cu_micro *x) {
    memset(x->is_cheap, 0, sizeof x->is_cheap);
    memset(x->is_decided, 0, sizeof x->is_decided);
    for (int k = 0; k < x->m->n_micro; k++) { /* in order: tiles depend on earlier tiles */
        const cb_micro *micro = &x->m->micro[k];
        const bool is_tile = micro->op == CB_X_STORE && !micro->is_dead &&
                             x->m->stream[micro->dst].source == CB_X_TILE;
        if (!is_tile) continue;
        x->is_cheap[micro->dst] = price_of(x, x->in_tile[micro->dst]) <= PRICE_MOST;
        x->is_decided[micro->dst] = true;
    }
}

bool cb_cu_is_store(const cb_cu_micro *x, const cb_micro *micro) {
    if (micro->op != CB_X_STORE) return false;
    if (micro->is_dead || x->m->stream[micro->dst].source != CB_X_TILE) return !micro->is_dead;
    return x->has_tiles && !x->is_cheap[micro->dst];
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Returns the text of a number. Constants are parameters, except 0 and 1, with which the compiler
 * can simplify the code. */
static text number_text(const cb_cu_micro *x, int16_t id) {
    text t;
    const float value = (float)x->m->constant[id]; /* these groups compute in f32 */
    const bool is_simple = value == 1.0f || (value == 0.0f && !signbit(value));
    if (!x->is_constant[id]) snprintf(t.at, sizeof t.at, "s%d", id);
    else if (is_simple) snprintf(t.at, sizeof t.at, "%.1ff", (double)value);
    else snprintf(t.at, sizeof t.at, "p%d", cb_cu_constant(x->code, (uint32_t)id + 1, value));
    return t;
}

void cb_cu_narrow_number(cb_cu_micro *x, int param, const char *at, int16_t id) {
    cb_cu_add(x->code, "narrow(&p%d[%s], %s);\n", param, at, number_text(x, id).at);
}

static int arity_of(cb_x_op op) { return op < CB_X_BINARY_END ? 2 : op == CB_X_SELECT ? 3 : 1; }

static void add_call(cb_cu_code *c, cb_x_op op, const text in[3]) {
    const int n = arity_of(op);
    cb_cu_add(c, "x_%s(%s", op_names[op], in[0].at);
    for (int k = 1; k < n; k++) cb_cu_add(c, ", %s", in[k].at);
    cb_cu_add(c, ");\n");
}

void cb_cu_number(cb_cu_micro *x, const cb_x_number *number) {
    const text in[3] = {number_text(x, number->a), number_text(x, number->b),
                        number_text(x, number->c)};
    cb_cu_add(x->code, "const float s%d = ", number->dst);
    add_call(x->code, number->op, in);
}

void cb_cu_once(void *with) {
    cb_cu_micro *x = with;
    for (int k = 0; k < x->m->n_once; k++) {
        const cb_x_row_value *v = &x->m->once[k];
        cb_cu_add(x->code, "const float s%d = widen(p%d[0]);\n", v->number,
                  param_of(x, v->tensor, false));
    }
    for (int k = 0; k < x->m->n_number; k++) {
        if (x->m->number[k].when == CB_X_BEFORE_ALL) cb_cu_number(x, &x->m->number[k]);
    }
}

/* ---- offsets in tensors ---------------------------------------------------------------------- */

/* Writes `I name = offset;`, the offset of element `at` of a tensor that is walked along these
 * axes. */
static void add_offset(cb_cu_code *c, const cb_walk *w, const char *name, const char *at) {
    cb_cu_offset(c, w->rank, w->dim, w->stride[0], name, at);
}

/* Writes i<number>, a position in the row or -1 if it is ignored, and the same as a number
 * s<number>. An earlier kernel has reported indices out of range; here they match no element. */
static void add_index(cb_cu_micro *x, const cb_x_row_value *v, int param, const char *at) {
    const int ignored = cb_cu_count(x->code, v->ignored);
    cb_cu_add(x->code, "const int64_t x%d = p%d[%s], i%d = x%d == (int64_t)p%d ? -1 : x%d;\n",
              v->number, param, at, v->number, v->number, ignored, v->number);
    cb_cu_add(x->code, "const float s%d = (float)i%d;\n", v->number, v->number);
}

void cb_cu_row_numbers(void *with) {
    cb_cu_micro *x = with;
    cb_cu_code *c = x->code;
    for (int k = 0; k < x->m->n_load; k++) {
        const cb_x_row_value *v = &x->m->load[k];
        const cb_operand *o = operand_of(x, v->tensor);
        const cb_walk w = cb_t_walk_of(o);
        const int p = param_of(x, v->tensor, false);
        char name[24] = "row";
        if (w.count != x->m->rows || !cb_t_is_whole(o)) {
            snprintf(name, sizeof name, "o%d", v->number);
            add_offset(c, &w, name, w.count == x->m->rows ? "row" : "row * COLUMNS");
        }
        if (v->is_index) add_index(x, v, p, name);
        else cb_cu_add(c, "const float s%d = widen(p%d[%s]);\n", v->number, p, name);
    }
    for (int k = 0; k < x->m->n_number; k++) {
        const cb_x_number *number = &x->m->number[k];
        if (number->when == CB_X_OF_ROW && number->after < 0) cb_cu_number(x, number);
    }
}

void cb_cu_kept_numbers(void *with) {
    cb_cu_micro *x = with;
    for (int id = 0; id < CB_X_SCALARS; id++) {
        if (!x->is_kept[id]) continue;
        const cb_cu_param at = {CB_CU_EXTRA, 0, x->kept_at[id]};
        cb_cu_add(x->code, "const float s%d = p%d[row];\n", id,
                  cb_cu_param_of(x->code, at, "float", false));
    }
}

/* ---- streams --------------------------------------------------------------------------------- */

/* True if every aligned vector of V elements is contiguous and aligned in memory. */
static bool is_even_walk(const cb_walk *w, int vector) {
    bool even = w->stride[0][w->rank - 1] == 1 && w->dim[w->rank - 1] % vector == 0;
    for (int k = 0; k < w->rank - 1; k++) even = even && w->stride[0][k] % vector == 0;
    return even;
}

/* Tells whether vector accesses are allowed: "true", "false", or the name of a run-time check. */
static text even_text(cb_cu_micro *x, int param, int size) {
    text t;
    const int all = size * x->vector, bytes = all < 16 ? all : 16;
    const bool never = x->vector == 1 || (x->m->columns % x->vector && x->m->rows > 1);
    if (never || cb_cu_is_even(x->code, param, (uint64_t)bytes))
        snprintf(t.at, sizeof t.at, "%s", never ? "false" : "true");
    else snprintf(t.at, sizeof t.at, "%s", cb_cu_looked_at(x->code, param, (uint64_t)bytes));
    return t;
}

static void load_walked(cb_cu_micro *x, int k, int p, const cb_walk *w) {
    cb_cu_code *c = x->code;
    const int64_t stride = w->stride[0][w->rank - 1];
    const bool whole = w->dim[w->rank - 1] % x->vector == 0;
    char name[16];
    snprintf(name, sizeof name, "o%d_", k);
    if (whole && (stride == 0 || is_even_walk(w, x->vector))) {
        add_offset(c, w, name, "e");
        if (stride == 0) cb_cu_add(c, "EACH t%d[j] = widen(p%d[%s]);\n", k, p, name);
        else
            cb_cu_add(c, "load(t%d, p%d + %s, %s, n);\n", k, p, name,
                      even_text(x, p, x->m->stream[k].size).at);
        return;
    }
    cb_cu_add(c, "EACH {\n");
    add_offset(c, w, name, "e + j");
    cb_cu_add(c, "t%d[j] = j < n ? widen(p%d[%s]) : 0.0f;\n}\n", k, p, name);
}

static void load_array(cb_cu_micro *x, int k) {
    const cb_x_stream *s = &x->m->stream[k];
    const cb_operand *o = operand_of(x, s->tensor);
    const int p = param_of(x, s->tensor, s->is_written);
    if (cb_numel(&o->shape) != x->m->rows * x->m->columns) { /* the same elements in each row */
        cb_cu_add(x->code, "load(t%d, p%d + col, %s, n);\n", k, p, even_text(x, p, s->size).at);
    } else if (cb_t_is_whole(o)) {
        cb_cu_add(x->code, "load(t%d, p%d + e, %s, n);\n", k, p, even_text(x, p, s->size).at);
    } else {
        const cb_walk w = cb_t_walk_of(o);
        load_walked(x, k, p, &w);
    }
}

static void draw(cb_cu_micro *x, int k) {
    const cb_attrs *attrs = &x->code->program->instr[x->m->stream[k].instr].attrs;
    const int seed = cb_cu_param_of(x->code, (cb_cu_param){.place = CB_CU_SEED}, "uint64_t", false),
              step = cb_cu_param_of(x->code, (cb_cu_param){.place = CB_CU_STEP}, "uint64_t", false);
    const bool even = x->vector > 1 && (x->m->rows == 1 || x->m->columns % x->vector == 0);
    const int stream = cb_cu_count(x->code, attrs->i[0]);
    cb_cu_add(x->code, "keep%s(t%d, p%d, p%d, (uint32_t)p%d, %uu, e);\n", even ? "_even" : "", k,
              seed, step, stream, cb_dropout_threshold(attrs->f[0]));
}

static void add_triangle(cb_cu_micro *x, int k) {
    const cb_instr *instr = &x->code->program->instr[x->m->stream[k].instr];
    const cb_shape *shape = &operand_of(x, x->m->stream[k].tensor)->shape;
    cb_cu_add(x->code,
              "EACH t%d[j] = ONE_WHERE((int64_t)((e + j) %% (I)%lld) <= (int64_t)((e + j) / "
              "(I)%lld %% (I)%lld) + (int64_t)%lld);\n",
              k, (long long)shape->dim[shape->rank - 1], (long long)shape->dim[shape->rank - 1],
              (long long)shape->dim[shape->rank - 2], (long long)instr->attrs.i[0]);
}

static void unpack(cb_cu_micro *x, int k) {
    const int p = param_of(x, x->m->stream[k].tensor, false);
    cb_cu_add(x->code,
              "EACH t%d[j] = j < n ? ONE_WHERE(p%d[(e + j) / 8] >> (e + j) %% 8 & 1) : 0.0f;\n", k,
              p);
}

/* Loads stream k into t<k>, unless it is already loaded. */
static void load_stream(cb_cu_micro *x, int k) {
    const cb_x_stream *s = &x->m->stream[k];
    if (x->is_loaded[k]) return;
    x->is_loaded[k] = true;
    cb_cu_add(x->code, "float t%d[V];\n", k);
    if (x->is_turned[k]) {
        cb_cu_add(x->code, "turned%d%s.load(t%d, %s);\n", k, x->turned_tile, k, x->turned_at);
        return;
    }
    const bool is_held = x->has_tiles && x->is_held[k];
    if (is_held && x->is_filled[k]) {
        cb_cu_add(x->code, "load(t%d, tile%d + col, true, V);\n", k, k);
        return;
    }
    switch (s->source) {
        case CB_X_KEPT: draw(x, k); break;
        case CB_X_TRIANGLE: add_triangle(x, k); break;
        case CB_X_BITS: unpack(x, k); break;
        case CB_X_GATHERED: {
            const cb_walk w = cb_t_walk_of(operand_of(x, s->tensor));
            load_walked(x, k, param_of(x, s->tensor, false), &w);
            break;
        }
        case CB_X_TILE: cb_cu_add(x->code, "load(t%d, tile%d + col, true, V);\n", k, k); break;
        default: load_array(x, k);
    }
    if (is_held) cb_cu_add(x->code, "store(tile%d + col, t%d, true, V);\n", k, k);
}

/* ---- micro-operations ------------------------------------------------------------------------ */

static text ref_text(cb_cu_micro *x, cb_x_ref ref) {
    text t = {""};
    const cb_x_ref source = source_of(x, ref);
    if (source.kind == CB_X_VALUE) snprintf(t.at, sizeof t.at, "v%d[j]", source.id);
    else if (source.kind == CB_X_NUMBER) t = number_text(x, source.id);
    else if (source.kind == CB_X_IN_STREAM) snprintf(t.at, sizeof t.at, "t%d[j]", source.id);
    return t;
}

static void add_store(cb_cu_micro *x, const cb_micro *micro, const text *of) {
    const cb_x_stream *s = &x->m->stream[micro->dst];
    cb_cu_add(x->code, "{ float w[V]; EACH w[j] = %s; ", of->at);
    if (s->source == CB_X_TILE) {
        cb_cu_add(x->code, "store(tile%d + col, w, true, V); }\n", micro->dst);
    } else {
        const int p = param_of(x, s->tensor, true);
        cb_cu_add(x->code, "store(p%d + e, w, %s, n); }\n", p, even_text(x, p, s->size).at);
    }
}

static void add_pair(cb_cu_micro *x, const cb_micro *micro, const text *of) {
    cb_cu_add(x->code, "float v%d[V];\n", micro->value);
    if (micro->second >= 0) cb_cu_add(x->code, "float v%d[V];\n", micro->second);
    if (micro->op == CB_X_SIN_COS) {
        cb_cu_add(x->code, "EACH { v%d[j] = x_SIN(%s); v%d[j] = x_COS(%s); }\n", micro->value,
                  of->at, micro->second, of->at);
    } else if (micro->second >= 0) {
        cb_cu_add(x->code, "EACH v%d[j] = cb_normal_f32(%s, &v%d[j]);\n", micro->value, of->at,
                  micro->second);
    } else {
        cb_cu_add(x->code, "EACH v%d[j] = x_NORMAL(%s);\n", micro->value, of->at);
    }
}

static void add_micro(cb_cu_micro *x, const cb_micro *micro) {
    cb_cu_code *c = x->code;
    text in[3];
    const char *guard = x->is_guarded ? "if (j < n) " : "";
    for (int j = 0; j < 3; j++) {
        const cb_x_ref ref = micro->in[j];
        const int16_t loaded = cb_cu_loads(x, ref);
        if (loaded >= 0) load_stream(x, loaded);
        in[j] = ref_text(x, ref);
    }
    switch ((int)micro->op) {
        case CB_X_ACC: cb_cu_add(c, "EACH %sa%d[j] += %s;\n", guard, micro->dst, in[0].at); break;
        case CB_X_AMAX:
        case CB_X_AMIN:
            cb_cu_add(c, "EACH %sk%d = max(k%d, key_of(%s(%s)));\n", guard, micro->dst, micro->dst,
                      micro->op == CB_X_AMIN ? "-" : "", in[0].at);
            break;
        case CB_X_COLUMN: cb_cu_add(c, "EACH c%d[j] += %s;\n", micro->dst, in[0].at); break;
        case CB_X_STORE: add_store(x, micro, &in[0]); break;
        case CB_X_TAKE:
            cb_cu_add(c, "EACH if ((int64_t)(col + j) == i%d) taken%d = %s;\n", micro->in[1].id,
                      micro->dst, in[0].at);
            break;
        case CB_X_ADD_AT:
            cb_cu_add(
                c, "float v%d[V]; EACH v%d[j] = (int64_t)(col + j) == i%d ? x_ADD(%s, %s) : %s;\n",
                micro->value, micro->value, micro->in[1].id, in[0].at, in[2].at, in[0].at);
            break;
        case CB_X_NORMAL:
        case CB_X_SIN_COS: add_pair(x, micro, &in[0]); break;
        default:
            cb_cu_add(c, "float v%d[V]; EACH v%d[j] = ", micro->value, micro->value);
            add_call(c, micro->op, in);
    }
}

void cb_cu_body(void *with) {
    cb_cu_micro *x = with;
    memset(x->is_loaded, 0, sizeof x->is_loaded);
    for (int k = 0; k < x->m->n_micro; k++) {
        if (x->needed[k] && !x->m->micro[k].is_dead) add_micro(x, &x->m->micro[k]);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Returns eight if 16 bytes hold eight elements, or if random numbers are drawn, because with four,
 * half of each block of numbers would be discarded. Otherwise returns four, or one if rows are not
 * whole vectors. */
int cb_cu_vector(const cb_microcode *m) {
    bool has_eights = false;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_stream *s = &m->stream[k];
        has_eights |= s->source == CB_X_KEPT || (s->source == CB_X_ARRAY && s->size == 2);
    }
    if (has_eights && (m->columns % 8 == 0 || m->rows == 1)) return 8;
    return m->columns % 4 == 0 || m->rows == 1 ? 4 : 1;
}

/* Returns the offset of an operand's last element. */
static int64_t last_of(const cb_operand *o) {
    int64_t last = 0;
    for (int32_t d = 0; d < o->shape.rank; d++) last += (o->shape.dim[d] - 1) * o->stride[d];
    return last;
}

/* True if 32-bit offsets reach every element of the group and of the arrays that it reads. */
static bool is_small(const cb_cu_micro *x) {
    const cb_microcode *m = x->m;
    bool small = m->rows * m->columns < INT32_MAX;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_source source = m->stream[k].source;
        if (source == CB_X_ARRAY || source == CB_X_GATHERED)
            small = small && last_of(operand_of(x, m->stream[k].tensor)) < INT32_MAX;
    }
    for (int k = 0; k < m->n_load; k++)
        small = small && last_of(operand_of(x, m->load[k].tensor)) < INT32_MAX;
    return small;
}

void cb_cu_head(cb_cu_micro *x, int vector) {
    x->vector = vector;
    x->is_guarded = x->m->columns % vector != 0;
    cb_cu_add(x->code, "typedef %s I;\nenum { V = %d };\n", is_small(x) ? "uint32_t" : "uint64_t",
              vector);
    const int rows = cb_cu_count(x->code, x->m->rows);
    cb_cu_add(x->code, "const I ROWS = (I)p%d, COLUMNS = ", rows);
    if (x->m->rows == 1) cb_cu_add(x->code, "(I)p%d;\n", cb_cu_count(x->code, x->m->columns));
    else cb_cu_add(x->code, "%lld;\n", (long long)x->m->columns);
}
