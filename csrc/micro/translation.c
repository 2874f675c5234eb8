#include "translation.h"

#include <string.h>

cb_x_ref cb_t_number_ref(int16_t id) { return (cb_x_ref){CB_X_NUMBER, id}; }

/* ---- adding to the tables -------------------------------------------------------------------- */

/* clang-format off */
#define LAY_OUT(type, name, n, most) m->name = room->name;
void cb_t_lay_out(cb_microcode *m, cb_x_room *room) { CB_X_TABLES(LAY_OUT) }

/* clang-format on */

int16_t cb_t_add(cb_translation *x, int *n, int limit) {
    if (*n < limit) return (int16_t)(*n)++;
    x->is_full = true;
    return 0;
}

int16_t cb_t_new_scalar(cb_translation *x, int16_t available, uint8_t when) {
    int16_t id = cb_t_add(x, &x->m->n_scalar, x->limits->scalars);
    x->available[id] = available;
    x->when[id] = when;
    x->m->constant[id] = 0;
    return id;
}

cb_x_ref cb_t_constant(cb_translation *x, double value) {
    const double v = x->m->is_wide ? value : (double)(float)value;
    for (int16_t k = 0; k < x->m->n_scalar; k++) {
        if (x->is_constant[k] && memcmp(&x->m->constant[k], &v, sizeof v) == 0)
            return cb_t_number_ref(k);
    }
    int16_t id = cb_t_new_scalar(x, -1, CB_X_BEFORE_ALL);
    x->m->constant[id] = v;
    x->is_constant[id] = true;
    return cb_t_number_ref(id);
}

static int16_t phase_of_ref(const cb_translation *x, cb_x_ref r) {
    if (r.kind == CB_X_VALUE) return x->phase_of[r.id];
    if (r.kind == CB_X_NUMBER) return (int16_t)(x->available[r.id] < 0 ? 0 : x->available[r.id]);
    return 0;
}

cb_micro *cb_t_emit(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c) {
    int16_t at = cb_t_add(x, &x->m->n_micro, CB_X_MICROS);
    cb_micro *micro = &x->m->micro[at];
    *micro = (cb_micro){.op = op, .in = {a, b, c}, .value = -1, .second = -1, .dst = -1};
    for (int k = 0; k < 3; k++) {
        int16_t phase = phase_of_ref(x, micro->in[k]);
        if (phase > micro->phase) micro->phase = phase;
    }
    if (micro->phase >= CB_X_PHASES) x->is_full = true;
    return micro;
}

bool cb_t_same_ref(cb_x_ref a, cb_x_ref b) { return a.kind == b.kind && a.id == b.id; }

/* Finds the same operation on the same operands; NULL: none. A gradient often needs a value that
 * the forward has computed. */
static cb_micro *find_micro(const cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b,
                            cb_x_ref c) {
    for (int k = 0; k < x->m->n_micro; k++) {
        cb_micro *micro = &x->m->micro[k];
        if (micro->op == op && micro->value >= 0 && cb_t_same_ref(micro->in[0], a) &&
            cb_t_same_ref(micro->in[1], b) && cb_t_same_ref(micro->in[2], c))
            return micro;
    }
    return NULL;
}

static int16_t new_value(cb_translation *x, int16_t phase) {
    int16_t id = cb_t_add(x, &x->m->n_value, CB_X_VALUES);
    x->phase_of[id] = phase;
    return id;
}

cb_x_ref cb_t_value(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c) {
    const cb_micro *known = find_micro(x, op, a, b, c);
    if (known) return (cb_x_ref){CB_X_VALUE, known->value};
    cb_micro *micro = cb_t_emit(x, op, a, b, c);
    micro->value = new_value(x, micro->phase);
    return (cb_x_ref){CB_X_VALUE, micro->value};
}

/* Emits an operation with two results; returns the first and sets *second. */
cb_x_ref cb_t_of_pair(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref *second) {
    cb_x_ref first = cb_t_value(x, op, a, CB_T_NOTHING, CB_T_NOTHING);
    cb_micro *micro = find_micro(x, op, a, CB_T_NOTHING, CB_T_NOTHING);
    if (!micro) return first; /* the table is full */
    if (micro->second < 0) micro->second = new_value(x, micro->phase);
    *second = (cb_x_ref){CB_X_VALUE, micro->second};
    return first;
}

cb_x_ref cb_t_of_two(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b) {
    return cb_t_value(x, op, a, b, CB_T_NOTHING);
}
cb_x_ref cb_t_of_one(cb_translation *x, cb_x_op op, cb_x_ref a) {
    return cb_t_value(x, op, a, CB_T_NOTHING, CB_T_NOTHING);
}

/* Finds the same operation on the same numbers; NULL: none. It exists, for instance, if a plan
 * recomputes an op in the kernel that already computes it. */
static const cb_x_number *find_number(const cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b,
                                      cb_x_ref c) {
    for (int k = 0; k < x->m->n_number; k++) {
        const cb_x_number *number = &x->m->number[k];
        if (number->op == op && number->a == a.id && number->b == b.id && number->c == c.id)
            return number;
    }
    return NULL;
}

/* Computes a number from other numbers, as soon as all of these are available, and as often as the
 * most frequently computed of them. */
cb_x_ref cb_t_number(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c) {
    const cb_x_number *known = find_number(x, op, a, b, c);
    if (known) return cb_t_number_ref(known->dst);
    int16_t at = cb_t_add(x, &x->m->n_number, CB_X_NUMBERS), available = -1;
    uint8_t when = CB_X_BEFORE_ALL;
    const cb_x_ref in[3] = {a, b, c};
    for (int k = 0; k < 3; k++) {
        if (in[k].kind != CB_X_NUMBER) continue;
        if (x->available[in[k].id] > available) available = x->available[in[k].id];
        uint8_t other = x->when[in[k].id];
        if (other == CB_X_AFTER_ALL || (other == CB_X_OF_ROW && when == CB_X_BEFORE_ALL))
            when = other;
    }
    int16_t dst = cb_t_new_scalar(x, available, when);
    x->m->number[at] = (cb_x_number){.op = op,
                                     .dst = dst,
                                     .a = a.id,
                                     .b = b.id,
                                     .c = c.id,
                                     .after = (int16_t)(available < 0 ? -1 : available - 1),
                                     .when = when};
    return cb_t_number_ref(dst);
}

/* Finds the same reduction of the same operand; NULL: none. */
static const cb_x_number *find_over_row(const cb_translation *x, cb_x_op op, cb_x_ref of) {
    for (int k = 0; k < x->m->n_number; k++) {
        const cb_x_number *number = &x->m->number[k];
        if (number->op != op) continue;
        for (int j = 0; j < x->m->n_micro; j++) {
            const cb_micro *micro = &x->m->micro[j];
            if (micro->op == op && micro->dst == number->a && cb_t_same_ref(micro->in[0], of))
                return number;
        }
    }
    return NULL;
}

/* Returns the sum, maximum or minimum of a vector value over the row. */
cb_x_ref cb_t_over_row(cb_translation *x, cb_x_op op, cb_x_ref of) {
    const cb_x_number *known = find_over_row(x, op, of);
    if (known) return cb_t_number_ref(known->dst);
    int16_t acc = cb_t_add(x, &x->m->n_acc, x->limits->accs);
    cb_micro *micro = cb_t_emit(x, op, of, CB_T_NOTHING, CB_T_NOTHING);
    micro->dst = acc;
    int16_t at = cb_t_add(x, &x->m->n_number, CB_X_NUMBERS),
            dst = cb_t_new_scalar(x, (int16_t)(micro->phase + 1), CB_X_OF_ROW);
    x->m->number[at] =
        (cb_x_number){.op = op, .dst = dst, .a = acc, .after = micro->phase, .when = CB_X_OF_ROW};
    return cb_t_number_ref(dst);
}

/* Returns the element of a vector value at a position of the row; undefined if the position is -1.
 */
cb_x_ref cb_t_take(cb_translation *x, cb_x_ref of, cb_x_ref at) {
    cb_micro *micro = cb_t_emit(x, CB_X_TAKE, of, at, CB_T_NOTHING);
    micro->dst = cb_t_new_scalar(x, (int16_t)(micro->phase + 1), CB_X_OF_ROW);
    return cb_t_number_ref(micro->dst);
}

cb_dtype cb_t_real(const cb_translation *x) { return x->m->is_wide ? CB_F64 : CB_F32; }

static cb_x_format format_of(cb_dtype dtype) {
    switch (dtype) {
        case CB_BF16: return CB_X_BF16;
        case CB_F16: return CB_X_F16;
        case CB_BOOL: return CB_X_BYTE;
        default: return CB_X_REAL;
    }
}

int16_t cb_t_new_stream(cb_translation *x, cb_x_source source, uint32_t tensor, cb_dtype dtype) {
    int16_t id = cb_t_add(x, &x->m->n_stream, x->limits->streams);
    x->m->stream[id] = (cb_x_stream){.source = source,
                                     .tensor = tensor,
                                     .format = format_of(dtype),
                                     .size = (uint8_t)cb_dtype_size(dtype),
                                     .tile = -1,
                                     .first_phase = -1,
                                     .over = -1};
    if (source != CB_X_ARRAY && source != CB_X_SUMS && source != CB_X_PIECES &&
        source != CB_X_VECTORS)
        x->m->stream[id].tile = x->m->n_tile++;
    return id;
}

/* ---- operands -------------------------------------------------------------------------------- */

const cb_operand *cb_t_operand(const cb_translation *x, uint32_t tensor) {
    return &x->p->operand[x->p->operand_id[tensor]];
}

cb_walk cb_t_walk_of(const cb_operand *o) {
    cb_walk w = cb_walk_start(1);
    for (int32_t k = 0; k < o->shape.rank; k++) cb_walk_add(&w, o->shape.dim[k], &o->stride[k]);
    cb_walk_finish(&w);
    return w;
}

bool cb_t_is_whole(const cb_operand *o) { return cb_is_contiguous(&o->shape, o->stride); }

/* Returns the stride within rows of an operand from outside the group: 0, 1, or -1 for any other.
 */
static int64_t row_stride(const cb_operand *o, int64_t columns) {
    if (cb_t_is_whole(o)) return 1;
    cb_walk w = cb_t_walk_of(o);
    int64_t stride = w.stride[0][w.rank - 1], run = w.dim[w.rank - 1];
    return run % columns == 0 && (stride == 0 || stride == 1) ? stride : -1;
}

static cb_t_name *find_name(cb_translation *x, const cb_operand *o) {
    for (int k = 0; k < x->n_name; k++)
        if (x->names[k].space == o->space && x->names[k].buffer == o->buffer) return &x->names[k];
    return NULL;
}

void cb_t_give_name(cb_translation *x, uint32_t tensor, cb_x_ref ref) {
    const cb_operand *o = cb_t_operand(x, tensor);
    int16_t at = cb_t_add(x, &x->n_name, CB_X_VALUES);
    x->names[at] = (cb_t_name){.space = o->space, .buffer = o->buffer, .ref = ref};
}

static bool same_operand(const cb_translation *x, uint32_t a, uint32_t b) {
    return x->p->operand_id[a] == x->p->operand_id[b];
}

static cb_x_ref load_number(cb_translation *x, uint32_t tensor, uint8_t when) {
    cb_x_row_value *list = when == CB_X_BEFORE_ALL ? x->m->once
                           : when == CB_X_OF_LINE  ? x->m->line
                                                   : x->m->load;
    int *n = when == CB_X_BEFORE_ALL ? &x->m->n_once
             : when == CB_X_OF_LINE  ? &x->m->n_line
                                     : &x->m->n_load;
    for (int k = 0; k < *n; k++) {
        if (!list[k].is_index && same_operand(x, list[k].tensor, tensor))
            return cb_t_number_ref(list[k].number);
    }
    int16_t at = cb_t_add(x, n, CB_X_ROW_VALUES), id = cb_t_new_scalar(x, -1, when);
    list[at] = (cb_x_row_value){.tensor = tensor, .number = id};
    return cb_t_number_ref(id);
}

static cb_x_ref read_stream(cb_translation *x, uint32_t tensor, int64_t stride) {
    const cb_operand *o = cb_t_operand(x, tensor);
    cb_x_source source = stride == 1 ? CB_X_ARRAY : CB_X_GATHERED;
    int16_t id = -1;
    for (int16_t k = 0; k < x->m->n_stream && id < 0; k++) {
        const cb_x_stream *s = &x->m->stream[k];
        if (s->source == source && !s->is_written && same_operand(x, s->tensor, tensor)) id = k;
    }
    if (id < 0) id = cb_t_new_stream(x, source, tensor, o->dtype);
    x->m->stream[id].is_read = true;
    return (cb_x_ref){CB_X_IN_STREAM, id};
}

bool cb_t_is_of_line(const cb_translation *x, cb_x_ref ref) {
    return ref.kind == CB_X_NUMBER && x->when[ref.id] == CB_X_OF_LINE;
}

/* True if an operand has one element per line, at a constant stride. */
static bool is_one_a_line(const cb_translation *x, const cb_operand *o) {
    const cb_walk w = cb_t_walk_of(o);
    const int last = w.rank - 1;
    if (w.count != x->domain.count || w.stride[0][last] != 0) return false;
    if (w.dim[last] % (x->domain.columns * x->domain.inner) == 0) return true;
    return w.dim[last] == x->domain.inner && last > 0 && w.dim[last - 1] % x->domain.columns == 0;
}

/* Returns the constant that an operation returns in every element, converted to its dtype. */
cb_x_ref cb_t_filled_with(cb_translation *x, const cb_instr *instr) {
    const double v = instr->attrs.f[0];
    switch (cb_t_operand(x, instr->out_begin)->dtype) {
        case CB_BOOL: return cb_t_constant(x, v != 0);
        case CB_BF16: return cb_t_constant(x, (double)cb_bf16_to_f32(cb_f64_to_bf16(v)));
        case CB_F16: return cb_t_constant(x, (double)cb_f16_to_f32(cb_f64_to_f16(v)));
        default: return cb_t_constant(x, v);
    }
}

/* Returns the instruction of an earlier group that has filled an operand with a constant, or NULL.
 */
static const cb_instr *filled_by(const cb_translation *x, const cb_operand *o) {
    const cb_program *p = x->p;
    const uint32_t made = o->space == CB_SPACE_ARENA ? p->buffer[o->buffer].made : p->n_group;
    if (made >= p->n_group) return NULL;
    const cb_group *g = &p->group[made];
    for (const cb_instr *i = &p->instr[g->instr_begin], *end = i + g->n_instr; i < end; i++) {
        const cb_operand *out = &p->operand[p->operand_id[i->out_begin]];
        if (i->code == CB_OP_FULL && out->space == o->space && out->buffer == o->buffer) return i;
    }
    return NULL;
}

/* Reads input `tensor` as a vector operand, or as a number if it is constant within a row. */
cb_x_ref cb_t_read_full(cb_translation *x, uint32_t tensor) {
    const cb_operand *o = cb_t_operand(x, tensor);
    const cb_t_name *known = find_name(x, o);
    if (known) return known->ref;
    const cb_view view = cb_view_of(&o->shape, o->stride, &x->domain);
    if (view == CB_VIEW_ONE) return load_number(x, tensor, CB_X_BEFORE_ALL);
    if (x->domain.inner && view == CB_VIEW_ROW) return load_number(x, tensor, CB_X_OF_ROW);
    const bool is_number = x->domain.inner && cb_band_lines(x->domain.inner) == 1;
    if (is_number && is_one_a_line(x, o)) return load_number(x, tensor, CB_X_OF_LINE);
    if (x->domain.inner) return read_stream(x, tensor, cb_t_is_whole(o) ? 1 : -1);
    int64_t stride = row_stride(o, x->m->columns);
    return stride == 0 ? load_number(x, tensor, CB_X_OF_ROW) : read_stream(x, tensor, stride);
}

/* Reads input `tensor` as a number: one per row, or one in all if `is_once`. */
cb_x_ref cb_t_read_number(cb_translation *x, uint32_t tensor, bool is_once) {
    const cb_t_name *known = find_name(x, cb_t_operand(x, tensor));
    return known ? known->ref : load_number(x, tensor, is_once ? CB_X_BEFORE_ALL : CB_X_OF_ROW);
}

/* Reads input `input` of an instruction as a position in each row. */
cb_x_ref cb_t_read_index(cb_translation *x, uint32_t instr, uint32_t input, int64_t ignored) {
    const uint32_t tensor = x->p->instr[instr].in_begin + input;
    for (int k = 0; k < x->m->n_load; k++) {
        const cb_x_row_value *v = &x->m->load[k];
        if (v->is_index && v->ignored == ignored && same_operand(x, v->tensor, tensor))
            return cb_t_number_ref(v->number);
    }
    int16_t at = cb_t_add(x, &x->m->n_load, CB_X_ROW_VALUES),
            id = cb_t_new_scalar(x, -1, CB_X_OF_ROW);
    x->m->load[at] = (cb_x_row_value){
        .tensor = tensor, .number = id, .is_index = true, .ignored = ignored, .instr = instr};
    return cb_t_number_ref(id);
}

/* Reads a vector with one element per column, the same for each row, such as the weight of a norm.
 * Norms have contiguous inputs. A vector of equal elements is a number. */
cb_x_ref cb_t_read_column(cb_translation *x, uint32_t tensor) {
    const cb_instr *full = filled_by(x, cb_t_operand(x, tensor));
    return full ? cb_t_filled_with(x, full) : read_stream(x, tensor, 1);
}

/* Returns a b, or `a` itself if b is the constant 1. */
cb_x_ref cb_t_times(cb_translation *x, cb_x_ref a, cb_x_ref b) {
    const bool is_one = b.kind == CB_X_NUMBER && x->is_constant[b.id] && x->m->constant[b.id] == 1;
    return is_one ? a : cb_t_of_two(x, CB_X_MUL, a, b);
}

/* Rounds a value to its dtype, whether or not it is stored, so that readers in the group get the
 * same value as from memory. */
static cb_x_ref rounded(cb_translation *x, uint32_t tensor, cb_x_ref ref) {
    const cb_x_format format = format_of(cb_t_operand(x, tensor)->dtype);
    if (format != CB_X_BF16 && format != CB_X_F16) return ref;
    if (ref.kind == CB_X_IN_STREAM && x->m->stream[ref.id].format == format) return ref;
    const cb_x_op op = format == CB_X_BF16 ? CB_X_ROUND_BF16 : CB_X_ROUND_F16;
    if (ref.kind == CB_X_NUMBER && !cb_t_is_of_line(x, ref))
        return cb_t_number(x, op, ref, CB_T_NOTHING, CB_T_NOTHING);
    return cb_t_of_one(x, op, ref);
}

/* Returns the stream whose array a result overwrites; -1: the group reads no such stream. */
static int16_t taken_over(const cb_translation *x, const cb_operand *o) {
    const cb_buffer *to = o->space == CB_SPACE_ARENA ? &x->p->buffer[o->buffer] : NULL;
    for (int16_t k = 0; to && to->takes_over && k < x->m->n_stream; k++) {
        const cb_x_stream *s = &x->m->stream[k];
        if (s->source != CB_X_ARRAY) continue;
        const cb_operand *from = cb_t_operand(x, s->tensor);
        if (from->space == CB_SPACE_ARENA && from->buffer == to->over) return k;
    }
    return -1;
}

/* The store uses the unrounded `ref`, because stores round. */
void cb_t_give_full(cb_translation *x, uint32_t tensor, cb_x_ref ref, bool is_exact) {
    const cb_operand *o = cb_t_operand(x, tensor);
    cb_t_give_name(x, tensor, is_exact ? ref : rounded(x, tensor, ref));
    if (o->space == CB_SPACE_LOCAL) return;
    int16_t id = cb_t_new_stream(x, CB_X_ARRAY, tensor, o->dtype);
    x->m->stream[id].is_written = true;
    x->m->stream[id].over = taken_over(x, o);
    cb_t_emit(x, CB_X_STORE, ref, CB_T_NOTHING, CB_T_NOTHING)->dst = id;
}

void cb_t_give_number(cb_translation *x, uint32_t tensor, cb_x_ref ref, bool is_once,
                      bool is_exact) {
    if (!is_exact) ref = rounded(x, tensor, ref);
    cb_t_give_name(x, tensor, ref);
    if (cb_t_operand(x, tensor)->space == CB_SPACE_LOCAL) return;
    cb_x_row_value *list = is_once ? x->m->give : x->m->store;
    int16_t at = cb_t_add(x, is_once ? &x->m->n_give : &x->m->n_store, CB_X_ROW_VALUES);
    list[at] = (cb_x_row_value){.tensor = tensor, .number = ref.id};
}
