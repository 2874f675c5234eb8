/* Prints the records of a group as text. A record has only a function pointer, so its name is found
 * by searching for the function in the table that it came from:
 *
 *     group 1 [16x64] f32, rows of 64 in 3 phases
 *       stream 0: in0:f32[16,64] read
 *       stream 5: tile 0 written
 *       s2 = 64
 *       phase 0
 *         LOAD    r0 = stream 0
 *         ADD     r0, stream 1
 *         STORE   stream 5 = r0
 *         ACC     acc 0 += r0
 *         LOOP
 *       s4 = DIV(s0, s2) after phase 0
 *
 * r: a virtual register, s: a number of the row, slot: a spilled value. In a build with CB_PROFILE
 * each record also says how often it ran and how many ticks it took. */
#include "print.h"

#include <inttypes.h>
#include <string.h>

#define OP_NAME(id, ...) [CB_X_##id] = #id,
static const char *const op_names[CB_X_OP_COUNT] = {
    CB_X_BINARY(OP_NAME) CB_X_UNARY(OP_NAME) CB_X_MATH(OP_NAME) CB_X_ROUND(OP_NAME)
        CB_X_HALF(OP_NAME) CB_X_PAIR(OP_NAME)[CB_X_SELECT] = "SELECT",
    [CB_X_ACC] = "ACC",
    [CB_X_AMAX] = "AMAX",
    [CB_X_AMIN] = "AMIN",
    [CB_X_COLUMN] = "COLUMN",
    [CB_X_COLUMN_MAX] = "COLUMN_MAX",
    [CB_X_COLUMN_MIN] = "COLUMN_MIN",
    [CB_X_TAKE] = "TAKE",
    [CB_X_ADD_AT] = "ADD_AT",
    [CB_X_STORE] = "STORE"};
#undef OP_NAME
static const char *const format_names[CB_X_FORMAT_COUNT] = {"", " bf16", " f16", " bool"};

/* The meaning of a record: its register, and the forms of its operands. */
typedef struct meaning {
    int reg, form, other, format;
    cb_x_op op;
    bool has_third;
} meaning;

/* Prints an operand of a form, whose number is `index`. */
static void add_operand(cb_str *out, const meaning *is, int form, int index) {
    switch (form) {
        case CB_X_OTHER: cb_str_addf(out, "r%d", 1 - is->reg); break;
        case CB_X_SELF: cb_str_addf(out, "r%d", is->reg); break;
        case CB_X_STREAM: cb_str_addf(out, "stream %d", index); break;
        case CB_X_SLOT: cb_str_addf(out, "slot %d", index); break;
        default: cb_str_addf(out, "s%d", index);
    }
}

static bool equals(cb_x_fn known, cb_x_fn fn) { return known && known == fn; }

/* ---- operations on registers ----------------------------------------------------------------- */

static bool print_arithmetic(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (int k = 0; k < CB_X_N_BINARY; k++)
        for (is.form = 0; is.form < CB_X_FORM_COUNT; is.form++) {
            if (!equals(t->binary[k][is.reg][is.form], r->fn)) continue;
            cb_str_addf(out, "%-15s r%d, ", op_names[k], is.reg);
            add_operand(out, &is, is.form, r->b);
            return true;
        }
    for (int k = 0; k < CB_X_N_UNARY; k++) {
        if (!equals(t->unary[k][is.reg], r->fn)) continue;
        cb_str_addf(out, "%-15s r%d", op_names[CB_X_BINARY_END + k], is.reg);
        return true;
    }
    for (int k = 0; k < CB_X_N_PAIR; k++) {
        if (!equals(t->pair[k][is.reg], r->fn)) continue;
        cb_str_addf(out, "%-15s r%d, r%d", op_names[CB_X_UNARY_END + k], is.reg, 1 - is.reg);
        return true;
    }
    for (int k = 0; k < 9; k++) {
        if (!equals(t->select[is.reg][k / 3][k % 3], r->fn)) continue;
        cb_str_addf(out, "%-15s r%d ? ", "SELECT", is.reg);
        add_operand(out, &is, CB_X_STREAM + k / 3, r->b);
        cb_str_addf(out, " : ");
        add_operand(out, &is, CB_X_STREAM + k % 3, r->c);
        return true;
    }
    return false;
}

/* ---- several operations in one record (kern_made.h, kern_scaled.h) --------------------------- */

static bool print_made(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (int k = 0; k < CB_X_N_MADE * CB_X_FORM_COUNT * CB_X_FORM_COUNT; k++) {
        const int op = k / (CB_X_FORM_COUNT * CB_X_FORM_COUNT);
        is.form = k / CB_X_FORM_COUNT % CB_X_FORM_COUNT;
        is.other = k % CB_X_FORM_COUNT;
        const bool stores = equals(t->store_made[op][is.reg][is.form][is.other], r->fn),
                   is_twin = is.other == CB_X_SELF;
        if (!stores && !equals(t->made[op][is.reg][is.form][is.other], r->fn)) continue;
        if (stores)
            cb_str_addf(out, "%s, %-*s stream %d = ", op_names[op], 13 - (int)strlen(op_names[op]),
                        "STORE", r->to);
        else cb_str_addf(out, "%-15s ", op_names[op]);
        cb_str_addf(out, "r%d = ", is.reg);
        add_operand(out, &is, is.form, r->b);
        cb_str_addf(out, ", ");
        add_operand(out, &is, is_twin ? is.form : is.other, is_twin ? r->b : r->c);
        return true;
    }
    return false;
}

static void add_scaled(const cb_record *r, const meaning *is, const char *op, cb_str *out) {
    cb_str_addf(out, "%s(", op);
    add_operand(out, is, is->form, r->b);
    cb_str_addf(out, " * s%d, ", r->c);
    add_operand(out, is, is->other, r->dst);
    cb_str_addf(out, ")");
}

static bool print_of_scaled(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (int k = 0; k < CB_X_N_OF_SCALED * CB_X_FORM_COUNT * CB_X_FORM_COUNT; k++) {
        const int op = k / (CB_X_FORM_COUNT * CB_X_FORM_COUNT);
        is.form = k / CB_X_FORM_COUNT % CB_X_FORM_COUNT;
        is.other = k % CB_X_FORM_COUNT;
        const bool stores =
            op < CB_X_N_SUMS && equals(t->store_scaled[op][is.reg][is.form][is.other], r->fn);
        if (!stores && !equals(t->of_scaled[op][is.reg][is.form][is.other], r->fn)) continue;
        cb_str_addf(out, "%-15s ", stores ? "SCALED, STORE" : "SCALED");
        if (stores) cb_str_addf(out, "stream %d = ", r->to);
        cb_str_addf(out, "r%d = ", is.reg);
        add_scaled(r, &is, op_names[op], out);
        return true;
    }
    return false;
}

static bool print_sum_of(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (int third = 0; third < 2; third++) {
        const bool stores = equals(t->store_sum_of[third][is.reg], r->fn);
        if (!stores && !equals(t->sum_of[third][is.reg], r->fn)) continue;
        cb_str_addf(out, "%-15s ", stores ? "SUM_OF, STORE" : "SUM_OF");
        if (stores) cb_str_addf(out, "stream %d = ", r->to);
        cb_str_addf(out, "r%d = stream %d * s%d + stream %d * s%d", is.reg, r->b, r->c & 0xFF,
                    r->dst & 0xFF, r->c >> 8);
        if (third) cb_str_addf(out, " * stream %d", r->dst >> 8);
        return true;
    }
    return false;
}

static bool print_joined(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (is.form = 0; is.form < CB_X_FORM_COUNT; is.form++) {
        if (!equals(t->scaled[is.reg][is.form], r->fn)) continue;
        cb_str_addf(out, "%-15s r%d = ", "SCALED", is.reg);
        add_operand(out, &is, is.form, r->b);
        cb_str_addf(out, " * s%d", r->c);
        return true;
    }
    if (equals(t->scaled_root[is.reg], r->fn)) {
        cb_str_addf(out, "%-15s r%d = SQRT(r%d) * s%d + s%d", "SCALED_ROOT", is.reg, is.reg, r->c,
                    r->dst);
        return true;
    }
    return print_made(t, r, is, out) || print_of_scaled(t, r, is, out) ||
           print_sum_of(t, r, is, out);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool print_packed(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (int k = 0; k < CB_X_FORMAT_COUNT; k++) {
        const bool far = equals(t->store_far[k][is.reg], r->fn);
        if (equals(t->unpack[k][is.reg], r->fn)) {
            cb_str_addf(out, "%-15s r%d = stream %d%s", "UNPACK", is.reg, r->b, format_names[k]);
        } else if (far || equals(t->store[k][is.reg], r->fn)) {
            cb_str_addf(out, "%-15s stream %d = r%d%s", far ? "STORE_FAR" : "STORE", r->dst, is.reg,
                        format_names[k]);
        } else if (equals(t->prefetch[k], r->fn)) {
            cb_str_addf(out, "%-15s stream %d + %d", "PREFETCH", r->dst, r->b);
        } else {
            continue;
        }
        return true;
    }
    return false;
}

static bool print_memory(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (is.form = 0; is.form < CB_X_FORM_COUNT; is.form++) {
        if (!equals(t->load[is.reg][is.form], r->fn)) continue;
        cb_str_addf(out, "%-15s r%d = ", "LOAD", is.reg);
        add_operand(out, &is, is.form, r->b);
        return true;
    }
    if (equals(t->spill[is.reg], r->fn))
        cb_str_addf(out, "%-15s slot %d = r%d", "SPILL", r->dst, is.reg);
    else if (equals(t->column[is.reg], r->fn))
        cb_str_addf(out, "%-15s stream %d += r%d", "COLUMN", r->dst, is.reg);
    else if (equals(t->column_max[is.reg], r->fn))
        cb_str_addf(out, "%-15s stream %d = max with r%d", "COLUMN_MAX", r->dst, is.reg);
    else if (equals(t->column_min[is.reg], r->fn))
        cb_str_addf(out, "%-15s stream %d = min with r%d", "COLUMN_MIN", r->dst, is.reg);
    else if (equals(t->take[is.reg], r->fn))
        cb_str_addf(out, "%-15s s%d = r%d[s%d]", "TAKE", r->dst, is.reg, r->b);
    else if (equals(t->add_at[is.reg], r->fn))
        cb_str_addf(out, "%-15s r%d[s%d] += s%d", "ADD_AT", is.reg, r->b, r->c);
    else return print_packed(t, r, is, out);
    return true;
}

/* ---- sums and control ------------------------------------------------------------------------ */

static bool print_sum(const cb_x_table *t, const cb_record *r, meaning is, cb_str *out) {
    for (int masked = 0; masked < 2; masked++) {
        const char *end = masked ? " where masked" : "";
        if (equals(t->acc[masked][is.reg], r->fn))
            cb_str_addf(out, "%-15s acc %d += r%d%s", "ACC", r->dst, is.reg, end);
        else if (equals(t->amax[masked][is.reg], r->fn))
            cb_str_addf(out, "%-15s acc %d = max with r%d%s", "AMAX", r->dst, is.reg, end);
        else if (equals(t->amin[masked][is.reg], r->fn))
            cb_str_addf(out, "%-15s acc %d = min with r%d%s", "AMIN", r->dst, is.reg, end);
        else continue;
        return true;
    }
    return false;
}

static bool print_control(const cb_x_table *t, const cb_record *r, cb_str *out) {
    const bool is_mean = equals(t->piece[1], r->fn);
    if (equals(t->totals, r->fn))
        cb_str_addf(out, "%-15s acc %d to %d, each leaf", "TOTALS", r->b, r->b + r->c - 1);
    else if (is_mean || equals(t->piece[0], r->fn))
        cb_str_addf(out, "%-15s stream %d = %s of acc %d, each %d elements", "PIECE", r->dst,
                    is_mean ? "mean" : "sum", r->b, 1 << (r->c & 0xFF));
    else if (equals(t->loop_sums, r->fn))
        cb_str_addf(out, "%-15s fold acc %d to %d, each leaf", "LOOP", r->b, r->b + r->c - 1);
    else if (equals(t->loop, r->fn)) cb_str_addf(out, "LOOP");
    else if (equals(t->end, r->fn)) cb_str_addf(out, "END");
    else return false;
    return true;
}

static void print_record(const cb_x_table *t, const cb_record *r, cb_str *out) {
    bool found = print_control(t, r, out);
    for (int reg = 0; reg < 2 && !found; reg++) {
        const meaning is = {.reg = reg};
        found = print_arithmetic(t, r, is, out) || print_joined(t, r, is, out) ||
                print_memory(t, r, is, out) || print_sum(t, r, is, out);
    }
    if (!found) cb_str_addf(out, "unknown record");
}

/* ---- a group --------------------------------------------------------------------------------- */

static void print_source(const cb_program *p, const cb_x_stream *s, cb_str *out) {
    static const char *const made[] = {[CB_X_KEPT] = "what dropout keeps",
                                       [CB_X_TRIANGLE] = "what tril keeps",
                                       [CB_X_SUMS] = "sums of columns",
                                       [CB_X_PIECES] = "sums of pieces, ",
                                       [CB_X_BITS] = "bits of ",
                                       [CB_X_REPEATED] = "repeated for each row, ",
                                       [CB_X_VECTORS] = "rows side by side, vector "};
    switch (s->source) {
        case CB_X_ARRAY:
        case CB_X_GATHERED:
            if (s->source == CB_X_GATHERED) cb_str_addf(out, "gathered from ");
            cb_program_print_operand(p, p->operand_id[s->tensor], out);
            break;
        case CB_X_TILE: cb_str_addf(out, "tile %" PRId32, s->tile); break;
        case CB_X_SPREAD: cb_str_addf(out, "s%d of each row", s->part); break;
        case CB_X_REPEATED:
        case CB_X_PIECES:
        case CB_X_BITS:
            cb_str_addf(out, "%s", made[s->source]);
            cb_program_print_operand(p, p->operand_id[s->tensor], out);
            break;
        case CB_X_VECTORS: cb_str_addf(out, "%s%d", made[s->source], s->part); break;
        default: cb_str_addf(out, "%s", made[s->source]);
    }
    cb_str_addf(out, "%s%s", s->is_read ? " read" : "", s->is_written ? " written" : "");
    if (s->over >= 0) cb_str_addf(out, " over stream %d", s->over);
    cb_str_addf(out, "\n");
}

/* Prints numbers from tensors: one per row, or one for all rows. */
static void print_values(const cb_program *p, const cb_x_row_value *v, int n, const char *when,
                         bool is_store, cb_str *out) {
    for (int k = 0; k < n; k++) {
        cb_str_addf(out, "  ");
        if (!is_store) cb_str_addf(out, "s%d = ", v[k].number);
        cb_program_print_operand(p, p->operand_id[v[k].tensor], out);
        if (is_store) cb_str_addf(out, " = s%d", v[k].number);
        cb_str_addf(out, " %s\n", when);
    }
}

static void print_number(const cb_x_number *x, cb_str *out) {
    static const char *const sums[] = {"sum", "largest", "smallest"};
    cb_str_addf(out, "  s%d = ", x->dst);
    if (x->op >= CB_X_ACC && x->op <= CB_X_AMIN) {
        cb_str_addf(out, "%s of acc %d\n", sums[x->op - CB_X_ACC], x->a);
        return;
    }
    const int n = x->op < CB_X_N_BINARY ? 2 : x->op == CB_X_SELECT ? 3 : 1;
    const int operand[] = {x->a, x->b, x->c};
    cb_str_addf(out, "%s(", op_names[x->op]);
    for (int k = 0; k < n; k++) cb_str_addf(out, "%ss%d", k ? ", " : "", operand[k]);
    cb_str_addf(out, ")\n");
}

static void print_numbers(const cb_microcode *m, int when, int after, cb_str *out) {
    for (int k = 0; k < m->n_number; k++) {
        const cb_x_number *x = &m->number[k];
        if ((int)x->when == when && (when != CB_X_OF_ROW || x->after == after))
            print_number(x, out);
    }
}

/* Prints the numbers that no instruction writes. */
static void print_constants(const cb_microcode *m, cb_str *out) {
    bool is_written[CB_X_SCALARS] = {false};
    for (int k = 0; k < m->n_number; k++) is_written[m->number[k].dst] = true;
    for (int k = 0; k < m->n_load; k++) is_written[m->load[k].number] = true;
    for (int k = 0; k < m->n_once; k++) is_written[m->once[k].number] = true;
    for (int k = 0; k < m->n_total; k++) is_written[m->total[k].number] = true;
    for (int k = 0; k < m->n_scalar; k++)
        if (!is_written[k]) cb_str_addf(out, "  s%d = %.9g\n", k, m->constant[k]);
}

#ifdef CB_PROFILE
static void print_profile(const cb_record *r, cb_str *out) {
    const uint64_t count = r->count, ticks = r->ticks;
    if (count)
        cb_str_addf(out, "  // %" PRIu64 " times, %.1f ticks", count,
                    (double)ticks / (double)count);
}
#else
static void print_profile(const cb_record *r, cb_str *out) { (void)r, (void)out; }
#endif

static void print_phase(const cb_x_fused *f, int phase, cb_str *out) {
    const cb_x_phase *ph = &f->phase[phase];
    cb_str_addf(out, "  phase %d\n", phase);
    for (int k = 0; k < ph->n_record; k++) {
        cb_str_addf(out, "    ");
        print_record(f->table, &ph->code[k], out);
        print_profile(&ph->code[k], out);
        cb_str_addf(out, "\n");
    }
}

static void print_columns(const cb_microcode *m, const cb_program *p, cb_str *out) {
    for (int k = 0; k < m->n_columns; k++) {
        cb_str_addf(out, "  ");
        cb_program_print_operand(p, p->operand_id[m->column[k].tensor], out);
        cb_str_addf(out, " = %s of stream %d over all blocks of rows\n",
                    m->column[k].is_mean ? "mean" : "sum", m->column[k].stream);
    }
}

void cb_x_print(const cb_x_fused *f, const cb_program *p, cb_str *out) {
    const cb_microcode *m = &f->m;
    cb_str_addf(out, "[%" PRId64 "x%" PRId64 "] %s, %d phase%s, %" PRId64 " task%s\n", m->rows,
                m->columns, m->is_wide ? "f64" : "f32", m->n_phase, m->n_phase == 1 ? "" : "s",
                f->n_task, f->n_task == 1 ? "" : "s");
    for (int k = 0; k < m->n_stream; k++) {
        cb_str_addf(out, "  stream %d: ", k);
        print_source(p, &m->stream[k], out);
    }
    print_constants(m, out);
    print_values(p, m->once, m->n_once, "for all rows", false, out);
    print_numbers(m, CB_X_BEFORE_ALL, 0, out);
    print_values(p, m->load, m->n_load, "for each row", false, out);
    print_values(p, m->line, m->n_line, "for each line", false, out);
    print_numbers(m, CB_X_OF_ROW, -1, out);
    for (int phase = 0; phase < m->n_phase; phase++) {
        print_phase(f, phase, out);
        print_numbers(m, CB_X_OF_ROW, phase, out);
    }
    print_values(p, m->store, m->n_store, "for each row", true, out);
    for (int k = 0; k < m->n_line_sum; k++)
        cb_str_addf(out, "  acc %d = sum of %s %d\n", m->line_sum[k].acc,
                    m->inner ? "each line of vector" : "stream", m->acc_lanes[m->line_sum[k].acc]);
    for (int k = 0; k < m->n_total; k++)
        cb_str_addf(out, "  s%d = %s of acc %d over all rows\n", m->total[k].number,
                    m->total[k].is_mean ? "mean" : "sum", m->total[k].acc);
    print_columns(m, p, out);
    print_numbers(m, CB_X_AFTER_ALL, 0, out);
    print_values(p, m->give, m->n_give, "at the end", true, out);
}
