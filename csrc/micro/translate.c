/* Translates ops to microcode. Results are bitwise equal to those of the op's kernel (kern_*.c,
 * plain_*.c): the same operations in the same order. */
#include "translate.h"

#include "../base/philox.h"

/* ---- pointwise ops --------------------------------------------------------------------------- */

/* Ops that are a single operation on their inputs. */
/* clang-format off */
#define SAME(id) {CB_OP_##id, CB_X_##id}
static const struct simple {
    cb_opcode code;
    cb_x_op op;
} simples[] = {
    SAME(NEG), SAME(ABS), SAME(SIGN), SAME(FLOOR), SAME(EXP), SAME(LOG), SAME(LOG1P), SAME(SQRT),
    SAME(RSQRT), SAME(RECIPROCAL), SAME(SIN), SAME(COS), SAME(TANH), SAME(SIGMOID), SAME(ERF),
    SAME(RELU), SAME(ADD), SAME(SUB), SAME(MUL), SAME(DIV), SAME(MAXIMUM), SAME(MINIMUM), SAME(EQ),
    SAME(NE), SAME(LT), SAME(LE), SAME(GT), SAME(GE), SAME(RELU_BWD),
    {CB_OP_LOGICAL_NOT, CB_X_NOT}, {CB_OP_LOGICAL_AND, CB_X_AND}, {CB_OP_LOGICAL_OR, CB_X_OR},
    {CB_OP_WHERE, CB_X_SELECT},
};
/* clang-format on */

static const struct simple *find_simple(cb_opcode code) {
    for (size_t k = 0; k < sizeof simples / sizeof *simples; k++)
        if (simples[k].code == code) return &simples[k];
    return NULL;
}

static bool all_numbers(const cb_translation *x, const cb_x_ref *in, int n) {
    for (int k = 0; k < n; k++)
        if (in[k].kind != CB_X_NUMBER || cb_t_is_of_line(x, in[k])) return false;
    return true;
}

/* Applies an operation. The result is a number if all operands are numbers, else a vector value. */
static cb_x_ref apply(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c) {
    const cb_x_ref in[3] = {a, b, c};
    int n = c.kind ? 3 : (b.kind ? 2 : 1);
    return all_numbers(x, in, n) ? cb_t_number(x, op, a, b, c) : cb_t_value(x, op, a, b, c);
}

static cb_x_ref apply_one(cb_translation *x, cb_x_op op, cb_x_ref a) {
    return apply(x, op, a, CB_T_NOTHING, CB_T_NOTHING);
}
static cb_x_ref apply_two(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b) {
    return apply(x, op, a, b, CB_T_NOTHING);
}

/* Finds the stream of an equal dropout mask; -1: none. Masks are equal if their stream of random
 * numbers (i[0]) and probability (f[0]) are: dropout and its gradient share one. */
static int16_t find_draw(const cb_translation *x, uint32_t instr) {
    const cb_attrs *wanted = &x->p->instr[instr].attrs;
    for (int16_t k = 0; k < x->m->n_stream; k++) {
        const cb_x_stream *s = &x->m->stream[k];
        if (s->source != CB_X_KEPT) continue;
        const cb_attrs *known = &x->p->instr[s->instr].attrs;
        if (known->i[0] == wanted->i[0] && known->f[0] == wanted->f[0]) return k;
    }
    return -1;
}

static cb_x_ref pattern(cb_translation *x, cb_x_source source, uint32_t instr) {
    int16_t known = source == CB_X_KEPT ? find_draw(x, instr) : -1;
    if (known >= 0) return (cb_x_ref){CB_X_IN_STREAM, known};
    int16_t id = cb_t_new_stream(x, source, x->p->instr[instr].out_begin,
                                 source == CB_X_KEPT ? cb_t_real(x) : CB_BOOL);
    x->m->stream[id].instr = instr;
    x->m->stream[id].is_read = true;
    return (cb_x_ref){CB_X_IN_STREAM, id};
}

static cb_x_ref dropout(cb_translation *x, uint32_t at, cb_x_ref in) {
    double p = x->p->instr[at].attrs.f[0];
    cb_x_ref scaled = apply_two(x, CB_X_MUL, in, cb_t_constant(x, cb_dropout_scale(p)));
    return cb_t_value(x, CB_X_KEEP, pattern(x, CB_X_KEPT, at), scaled, CB_T_NOTHING);
}

static void translate_unpack(cb_translation *x, const cb_instr *instr) {
    const int16_t id = cb_t_new_stream(x, CB_X_BITS, instr->in_begin, CB_BOOL);
    x->m->stream[id].is_read = true;
    cb_t_give_full(x, instr->out_begin, (cb_x_ref){CB_X_IN_STREAM, id}, true);
}

static void translate_pack(cb_translation *x, const cb_instr *instr) {
    if (cb_t_operand(x, instr->out_begin)->space == CB_SPACE_LOCAL) return; /* it is never read */
    cb_x_ref in = cb_t_read_full(x, instr->in_begin);
    if (cb_t_operand(x, instr->in_begin)->dtype != CB_BOOL)
        in = apply_one(x, CB_X_NOT, apply_two(x, CB_X_LE, in, cb_t_constant(x, 0)));
    const int16_t id = cb_t_new_stream(x, CB_X_BITS, instr->out_begin, CB_BOOL);
    x->m->stream[id].is_written = true;
    cb_t_emit(x, CB_X_STORE, in, CB_T_NOTHING, CB_T_NOTHING)->dst = id;
}

/* x P(x), or its derivative P(x) + x p(x) (vecmath.h). Both use the same NORMAL operation, the
 * expensive part, so it is computed once. */
static cb_x_ref gelu(cb_translation *x, cb_x_ref in, bool slope) {
    cb_x_ref density = CB_T_NOTHING, below = cb_t_of_pair(x, CB_X_NORMAL, in, &density);
    if (!slope) return cb_t_of_two(x, CB_X_MUL, in, below);
    /* The constant is 1 / sqrt(2 pi). */
    cb_x_ref p = cb_t_of_two(x, CB_X_MUL, density, cb_t_constant(x, 0x1.9884533d43651p-2));
    return cb_t_of_two(x, CB_X_ADD, below, cb_t_of_two(x, CB_X_MUL, in, p));
}

static cb_x_ref gelu_tanh(cb_translation *x, cb_x_ref in, bool slope) {
    cb_x_ref s = apply_one(x, CB_X_GELU_TANH_PART, in);
    return apply_two(x, slope ? CB_X_GELU_TANH_SLOPE : CB_X_MUL, s, in);
}

/* x s, or its derivative s (1 + x (1 - s)), with s = sigmoid(x) */
static cb_x_ref silu(cb_translation *x, cb_x_ref in, bool slope) {
    cb_x_ref s = apply_one(x, CB_X_SIGMOID, in), one = cb_t_constant(x, 1);
    if (!slope) return apply_two(x, CB_X_MUL, in, s);
    cb_x_ref rest = apply_two(x, CB_X_MUL, in, apply_two(x, CB_X_SUB, one, s));
    return apply_two(x, CB_X_MUL, s, apply_two(x, CB_X_ADD, one, rest));
}

static cb_x_ref cast(cb_translation *x, const cb_instr *instr, cb_x_ref in) {
    cb_dtype from = cb_t_operand(x, instr->in_begin)->dtype,
             to = cb_t_operand(x, instr->out_begin)->dtype;
    return to == CB_BOOL && from != CB_BOOL ? apply_one(x, CB_X_TRUTH, in) : in;
}

/* (x - mean) rstd weight + bias */
static cb_x_ref batch_norm_apply(cb_translation *x, const cb_x_ref *in) {
    cb_x_ref y = apply_two(x, CB_X_SUB, in[0], in[1]);
    y = apply_two(x, CB_X_MUL, y, in[2]);
    y = apply_two(x, CB_X_MUL, y, in[3]);
    return apply_two(x, CB_X_ADD, y, in[4]);
}

static bool is_exact(cb_opcode code) { return cb_op_def_of(code)->flags & CB_OPF_EXACT; }

static cb_x_ref pointwise(cb_translation *x, uint32_t at, const cb_x_ref *in) {
    const cb_instr *instr = &x->p->instr[at];
    const struct simple *row = find_simple(instr->code);
    cb_x_ref slope = CB_T_NOTHING;
    if (row) return apply(x, row->op, in[0], in[1], in[2]);
    switch (instr->code) {
        case CB_OP_GELU: return gelu(x, in[0], false);
        case CB_OP_GELU_TANH: return gelu_tanh(x, in[0], false);
        case CB_OP_SILU: return silu(x, in[0], false);
        case CB_OP_GELU_BWD: slope = gelu(x, in[1], true); break;
        case CB_OP_GELU_TANH_BWD: slope = gelu_tanh(x, in[1], true); break;
        case CB_OP_SILU_BWD: slope = silu(x, in[1], true); break;
        case CB_OP_TANH_BWD: slope = apply_one(x, CB_X_TANH_SLOPE, in[1]); break;
        case CB_OP_SIGMOID_BWD: slope = apply_one(x, CB_X_SIGMOID_SLOPE, in[1]); break;
        case CB_OP_FULL: return cb_t_filled_with(x, instr);
        case CB_OP_SQUARE: return apply_two(x, CB_X_MUL, in[0], in[0]);
        case CB_OP_CONTIGUOUS: return in[0];
        case CB_OP_CAST: return cast(x, instr, in[0]);
        case CB_OP_DROPOUT: return dropout(x, at, in[0]);
        case CB_OP_BATCH_NORM_APPLY: return batch_norm_apply(x, in);
        case CB_OP_TRIL:
            return cb_t_value(x, CB_X_SELECT, pattern(x, CB_X_TRIANGLE, at), in[0],
                              cb_t_filled_with(x, instr));
        default: x->is_full = true; return CB_T_NOTHING;
    }
    return apply_two(x, CB_X_MUL, in[0], slope);
}

#define POINT_INPUTS 5 /* most inputs of a pointwise op */

static void translate_pointwise(cb_translation *x, uint32_t at, cb_part part) {
    const cb_instr *instr = &x->p->instr[at];
    cb_x_ref in[POINT_INPUTS] = {CB_T_NOTHING};
    if (instr->code == CB_OP_UNPACK_BITS) {
        translate_unpack(x, instr);
        return;
    }
    for (uint32_t k = 0; k < instr->n_in && k < POINT_INPUTS; k++) {
        in[k] = part == CB_PART_MAP ? cb_t_read_full(x, instr->in_begin + k)
                                    : cb_t_read_number(x, instr->in_begin + k, part == CB_PART_ONE);
    }
    cb_x_ref out = pointwise(x, at, in);
    const bool exact = is_exact(instr->code);
    if (part == CB_PART_MAP) cb_t_give_full(x, instr->out_begin, out, exact);
    else cb_t_give_number(x, instr->out_begin, out, part == CB_PART_ONE, exact);
}

/* ---- reductions ------------------------------------------------------------------------------ */

static cb_x_ref mean_of(cb_translation *x, cb_x_ref sum, int64_t n) {
    return cb_t_number(x, CB_X_DIV, sum, cb_t_constant(x, (double)n), CB_T_NOTHING);
}

static void translate_reduction(cb_translation *x, const cb_instr *instr) {
    cb_x_ref in = cb_t_read_full(x, instr->in_begin);
    cb_x_op op = instr->code == CB_OP_AMAX   ? CB_X_AMAX
                 : instr->code == CB_OP_AMIN ? CB_X_AMIN
                                             : CB_X_ACC;
    cb_x_ref sum = cb_t_over_row(x, op, in);
    if (instr->code == CB_OP_MEAN) sum = mean_of(x, sum, x->m->columns);
    cb_t_give_number(x, instr->out_begin, sum, false, is_exact(instr->code));
}

static void translate_total(cb_translation *x, const cb_instr *instr) {
    cb_x_ref in = cb_t_read_full(x, instr->in_begin);
    int16_t at = cb_t_add(x, &x->m->n_total, CB_X_TOTALS),
            acc = cb_t_add(x, &x->m->n_acc, x->limits->accs),
            id = cb_t_new_scalar(x, -1, CB_X_AFTER_ALL);
    cb_t_emit(x, CB_X_ACC, in, CB_T_NOTHING, CB_T_NOTHING)->dst = acc;
    const cb_operand *out = cb_t_operand(x, instr->out_begin);
    x->m->total[at] = (cb_x_total){.tensor = instr->out_begin,
                                   .is_local = out->space == CB_SPACE_LOCAL,
                                   .acc = acc,
                                   .number = id,
                                   .is_mean = instr->code == CB_OP_MEAN};
    cb_t_give_name(x, instr->out_begin, cb_t_number_ref(id));
}

static void column_sum(cb_translation *x, uint32_t at, int16_t part, uint32_t tensor, bool is_mean,
                       bool has_runs, cb_x_ref of) {
    if (cb_t_operand(x, tensor)->space == CB_SPACE_LOCAL) return; /* the sum is never read */
    int16_t id = cb_t_new_stream(x, CB_X_SUMS, tensor, cb_t_real(x)),
            entry = cb_t_add(x, &x->m->n_columns, CB_X_ROW_VALUES);
    x->m->stream[id].instr = at;
    x->m->stream[id].part = part;
    x->m->stream[id].is_read = x->m->stream[id].is_written = true;
    if (has_runs) x->m->stream[id].tile = x->m->n_tile++;
    cb_t_emit(x, CB_X_COLUMN, of, CB_T_NOTHING, CB_T_NOTHING)->dst = id;
    x->m->column[entry] =
        (cb_x_columns){.stream = id, .terms = -1, .tensor = tensor, .is_mean = is_mean};
}

static void translate_columns(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    column_sum(x, at, 0, instr->out_begin, instr->code == CB_OP_MEAN, true,
               cb_t_read_full(x, instr->in_begin));
}

static void translate_pieces(cb_translation *x, const cb_instr *instr, bool is_whole) {
    const cb_operand *out = cb_t_operand(x, instr->out_begin);
    if (out->space == CB_SPACE_LOCAL) return; /* the sum is never read */
    cb_x_ref in = cb_t_read_full(x, instr->in_begin);
    int16_t at = cb_t_add(x, &x->m->n_pieces, CB_X_ACCS),
            acc = cb_t_add(x, &x->m->n_acc, x->limits->accs),
            id = cb_t_new_stream(x, CB_X_PIECES, instr->out_begin, out->dtype);
    x->m->stream[id].is_written = true;
    cb_t_emit(x, CB_X_ACC, in, CB_T_NOTHING, CB_T_NOTHING)->dst = acc;
    const int64_t length = x->domain.count / cb_numel(&out->shape);
    x->m->pieces[at] = (cb_x_pieces){.stream = id,
                                     .acc = acc,
                                     .length = length,
                                     .is_whole = is_whole,
                                     .is_mean = instr->code == CB_OP_MEAN};
    while (length >> x->m->pieces[at].log_length > 1) x->m->pieces[at].log_length++;
}

static void translate_lines(cb_translation *x, const cb_instr *instr) {
    if (cb_t_operand(x, instr->out_begin)->space == CB_SPACE_LOCAL) return; /* it is never read */
    cb_x_ref in = cb_t_read_full(x, instr->in_begin);
    int16_t at = cb_t_add(x, &x->m->n_line_sum, CB_X_ACCS),
            acc = cb_t_add(x, &x->m->n_acc, x->limits->accs),
            id = cb_t_new_scalar(x, -1, CB_X_OF_LINE);
    cb_t_emit(x, CB_X_ACC, in, CB_T_NOTHING, CB_T_NOTHING)->dst = acc;
    x->m->line_sum[at] = (cb_x_line_sum){.tensor = instr->out_begin,
                                         .acc = acc,
                                         .number = id,
                                         .total = -1,
                                         .is_mean = instr->code == CB_OP_MEAN};
}

/* ---- softmax and norms ----------------------------------------------------------------------- */

static cb_x_ref below_largest(cb_translation *x, cb_x_ref in) {
    return cb_t_of_two(x, CB_X_SUB, in, cb_t_over_row(x, CB_X_AMAX, in));
}

/* Returns e^(in - largest of the row); `sum` is their sum over the row. */
static cb_x_ref exponentials(cb_translation *x, cb_x_ref in, cb_x_ref *sum) {
    cb_x_ref e = cb_t_of_one(x, CB_X_EXP, below_largest(x, in));
    *sum = cb_t_over_row(x, CB_X_ACC, e);
    return e;
}

static void translate_softmax(cb_translation *x, const cb_instr *instr) {
    cb_x_ref in = cb_t_read_full(x, instr->in_begin), sum = CB_T_NOTHING, out;
    cb_x_ref e = exponentials(x, in, &sum);
    if (instr->code == CB_OP_SOFTMAX) {
        out = cb_t_of_two(x, CB_X_MUL, e,
                          cb_t_number(x, CB_X_RECIPROCAL, sum, CB_T_NOTHING, CB_T_NOTHING));
    } else {
        out = cb_t_of_two(x, CB_X_SUB, below_largest(x, in),
                          cb_t_number(x, CB_X_LOG, sum, CB_T_NOTHING, CB_T_NOTHING));
    }
    cb_t_give_full(x, instr->out_begin, out, false);
}

static void translate_softmax_bwd(cb_translation *x, const cb_instr *instr) {
    cb_x_ref g = cb_t_read_full(x, instr->in_begin), y = cb_t_read_full(x, instr->in_begin + 1),
             out;
    if (instr->code == CB_OP_SOFTMAX_BWD) {
        cb_x_ref dot = cb_t_over_row(x, CB_X_ACC, cb_t_of_two(x, CB_X_MUL, g, y));
        out = cb_t_of_two(x, CB_X_MUL, y, cb_t_of_two(x, CB_X_SUB, g, dot));
    } else {
        cb_x_ref total = cb_t_over_row(x, CB_X_ACC, g);
        out = cb_t_of_two(x, CB_X_SUB, g,
                          cb_t_of_two(x, CB_X_MUL, cb_t_of_one(x, CB_X_EXP, y), total));
    }
    cb_t_give_full(x, instr->out_begin, out, false);
}

static void translate_norm(cb_translation *x, const cb_instr *instr) {
    bool is_centred = instr->code == CB_OP_LAYER_NORM;
    int64_t n = x->m->columns;
    cb_x_ref in = cb_t_read_full(x, instr->in_begin),
             weight = cb_t_read_column(x, instr->in_begin + 1);
    cb_x_ref mean = CB_T_NOTHING, d = in;
    if (is_centred) {
        mean = mean_of(x, cb_t_over_row(x, CB_X_ACC, in), n);
        d = cb_t_of_two(x, CB_X_SUB, in, mean);
    }
    cb_x_ref spread = mean_of(x, cb_t_over_row(x, CB_X_ACC, cb_t_of_two(x, CB_X_MUL, d, d)), n);
    cb_x_ref variance =
        cb_t_number(x, CB_X_ADD, spread, cb_t_constant(x, instr->attrs.f[0]), CB_T_NOTHING);
    cb_x_ref rstd = cb_t_number(x, CB_X_RSQRT, variance, CB_T_NOTHING, CB_T_NOTHING);
    if (is_centred) d = cb_t_of_two(x, CB_X_SUB, in, mean);
    cb_x_ref out = cb_t_times(x, cb_t_of_two(x, CB_X_MUL, d, rstd), weight);
    if (is_centred) out = cb_t_of_two(x, CB_X_ADD, out, cb_t_read_column(x, instr->in_begin + 2));
    cb_t_give_full(x, instr->out_begin, out, false);
    if (is_centred) cb_t_give_number(x, instr->out_begin + 1, mean, false, false);
    cb_t_give_number(x, instr->out_begin + (is_centred ? 2 : 1), rstd, false, false);
}

/* See kern_norm_rows.h for the formula. */
static void translate_norm_bwd(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    bool is_centred = instr->code == CB_OP_LAYER_NORM_BWD;
    uint32_t first = instr->in_begin;
    int64_t n = x->m->columns;
    cb_x_ref g = cb_t_read_full(x, first), in = cb_t_read_full(x, first + 1),
             weight = cb_t_read_column(x, first + 2);
    cb_x_ref mean = is_centred ? cb_t_read_number(x, first + 3, false) : CB_T_NOTHING;
    cb_x_ref rstd = cb_t_read_number(x, first + (is_centred ? 4 : 3), false);
    cb_x_ref d = is_centred ? cb_t_of_two(x, CB_X_SUB, in, mean) : in;
    cb_x_ref v = cb_t_times(x, g, weight), mean_v = CB_T_NOTHING;
    if (is_centred) mean_v = mean_of(x, cb_t_over_row(x, CB_X_ACC, v), n);
    cb_x_ref sum_vh = cb_t_over_row(x, CB_X_ACC, cb_t_of_two(x, CB_X_MUL, d, v));
    cb_x_ref mean_vh = mean_of(x, cb_t_number(x, CB_X_MUL, sum_vh, rstd, CB_T_NOTHING), n);
    cb_x_ref h =
        cb_t_of_two(x, CB_X_MUL, is_centred ? cb_t_of_two(x, CB_X_SUB, in, mean) : in, rstd);
    cb_x_ref rest = cb_t_times(x, g, weight);
    if (is_centred) rest = cb_t_of_two(x, CB_X_SUB, rest, mean_v);
    rest = cb_t_of_two(x, CB_X_SUB, rest, cb_t_of_two(x, CB_X_MUL, h, mean_vh));
    cb_t_give_full(x, instr->out_begin, cb_t_of_two(x, CB_X_MUL, rest, rstd), false);
    column_sum(x, at, 0, instr->out_begin + 1, false, false, cb_t_of_two(x, CB_X_MUL, g, h));
    if (is_centred) column_sum(x, at, 1, instr->out_begin + 2, false, false, g);
}

/* ---- an element of each row ------------------------------------------------------------------ */

static void translate_gather(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    cb_x_ref in = cb_t_read_full(x, instr->in_begin), index = cb_t_read_index(x, at, 1, -1);
    cb_t_give_number(x, instr->out_begin, cb_t_take(x, in, index), false, true);
}

static void translate_scatter_add(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    cb_x_ref base = cb_t_read_full(x, instr->in_begin), index = cb_t_read_index(x, at, 1, -1),
             add = cb_t_read_number(x, instr->in_begin + 2, false);
    cb_t_give_full(x, instr->out_begin, cb_t_value(x, CB_X_ADD_AT, base, index, add), false);
}

/* Returns 1 if the row has a label, 0 if it is ignored. */
static cb_x_ref counts_where(cb_translation *x, cb_x_ref label) {
    return cb_t_number(x, CB_X_GE, label, cb_t_constant(x, 0), CB_T_NOTHING);
}

/* nll = log(sum(e^(x - largest))) + largest - x[label], 0 in ignored rows. */
static void translate_cross_entropy(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    cb_x_ref in = cb_t_read_full(x, instr->in_begin),
             label = cb_t_read_index(x, at, 1, instr->attrs.i[0]), sum = CB_T_NOTHING;
    (void)exponentials(x, in, &sum);
    cb_x_ref log_sum = cb_t_number(x, CB_X_LOG, sum, CB_T_NOTHING, CB_T_NOTHING);
    cb_x_ref logsumexp =
        cb_t_number(x, CB_X_ADD, cb_t_over_row(x, CB_X_AMAX, in), log_sum, CB_T_NOTHING);
    cb_x_ref nll = cb_t_number(x, CB_X_SUB, logsumexp, cb_t_take(x, in, label), CB_T_NOTHING);
    nll = cb_t_number(x, CB_X_SELECT, counts_where(x, label), nll, cb_t_constant(x, 0));
    cb_t_give_number(x, instr->out_begin, nll, false, false);
    cb_t_give_number(x, instr->out_begin + 1, logsumexp, false, false);
}

/* g (softmax(x) - onehot(label)), 0 in ignored rows. If cross_entropy is in the same group, its
 * exponentials and their sum are reused. */
static void translate_cross_entropy_bwd(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    cb_x_ref g = cb_t_read_number(x, instr->in_begin, false),
             in = cb_t_read_full(x, instr->in_begin + 1),
             label = cb_t_read_index(x, at, 2, instr->attrs.i[0]), sum = CB_T_NOTHING;
    cb_x_ref e = exponentials(x, in, &sum), counts = counts_where(x, label);
    cb_x_ref scale = cb_t_number(x, CB_X_DIV, g, sum, CB_T_NOTHING),
             less = cb_t_number(x, CB_X_NEG, g, CB_T_NOTHING, CB_T_NOTHING);
    cb_x_ref out = cb_t_value(x, CB_X_ADD_AT, cb_t_of_two(x, CB_X_MUL, e, scale), label, less);
    cb_t_give_full(x, instr->out_begin, cb_t_of_two(x, CB_X_KEEP, counts, out), false);
}

static void translate_row_wise(cb_translation *x, uint32_t at) {
    const cb_instr *instr = &x->p->instr[at];
    switch (instr->code) {
        case CB_OP_SCATTER_ADD: translate_scatter_add(x, at); break;
        case CB_OP_CROSS_ENTROPY_BWD: translate_cross_entropy_bwd(x, at); break;
        case CB_OP_SOFTMAX:
        case CB_OP_LOG_SOFTMAX: translate_softmax(x, instr); break;
        case CB_OP_SOFTMAX_BWD:
        case CB_OP_LOG_SOFTMAX_BWD: translate_softmax_bwd(x, instr); break;
        case CB_OP_LAYER_NORM:
        case CB_OP_RMS_NORM: translate_norm(x, instr); break;
        default: translate_norm_bwd(x, at);
    }
}

static void translate_rows(cb_translation *x, uint32_t at) {
    switch (x->p->instr[at].code) {
        case CB_OP_GATHER: translate_gather(x, at); break;
        case CB_OP_CROSS_ENTROPY: translate_cross_entropy(x, at); break;
        default: translate_reduction(x, &x->p->instr[at]);
    }
}

void cb_t_instruction(cb_translation *x, uint32_t at, cb_part part) {
    const cb_instr *instr = &x->p->instr[at];
    switch (part) {
        case CB_PART_MAP:
        case CB_PART_ROW_MAP:
        case CB_PART_ONE: translate_pointwise(x, at, part); break;
        case CB_PART_ROWS:
        case CB_PART_ACROSS: translate_rows(x, at); break;
        case CB_PART_COLUMNS: translate_columns(x, at); break;
        case CB_PART_PIECES:
        case CB_PART_ODD_PIECES: translate_pieces(x, instr, part == CB_PART_PIECES); break;
        case CB_PART_LINES: translate_lines(x, instr); break;
        case CB_PART_BITS: translate_pack(x, instr); break;
        case CB_PART_TOTAL: translate_total(x, instr); break;
        case CB_PART_ROW_WISE: translate_row_wise(x, at); break;
        case CB_PART_NONE: x->is_full = true;
    }
}
