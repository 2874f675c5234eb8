/* Two registers are allocated in one pass over the operations of a phase. An operation overwrites
 * one of its operands, if possible one that is not read later; otherwise it works on a copy. If a
 * register is needed, the value whose next read is farthest is evicted (Belady), to a slot if it is
 * not stored elsewhere. Since operands may be in memory, few values ever leave their register.
 * Packed elements are unpacked into a register each time they are read. */
#include "assemble.h"

#include <string.h>

#include "../../../base/ints.h"
#include "../../../micro/join.h"

#define NOWHERE (-1)
#define VALUE_SLOTS (CB_X_SLOTS - 2) /* the last two slots hold unpacked conditions */
#define PREFETCH_AHEAD 512           /* elements; measured: half and twice as many are slower */

typedef struct place {
    cb_x_form form;
    int16_t index;
} place;

typedef struct made { /* the value that the last record has put into a register */
    enum {
        SOMETHING,
        AN_OPERAND,
        OF_OPERANDS,
        A_PRODUCT,
        OF_A_PRODUCT,
        A_SUM_OF_2,
        A_SUM_OF_3
    } what;
    int reg;
    place x;       /* operand x of x, op(x, y), x * scale or op(x * scale, y) */
    int16_t scale; /* a number */
    cb_x_op op;
    place y;
} made;

typedef struct assembler {
    const cb_microcode *m;
    const cb_x_table *table;
    cb_x_code *code;
    bool masked;
    int n, at; /* operations of the phase, in order; the current one */
    int16_t order[CB_X_MICROS];
    cb_x_joint joint[CB_X_MICROS];
    int16_t in_register[2]; /* value, NOWHERE: free */
    int16_t slot_of[CB_X_VALUES];
    int16_t slot_owner[CB_X_SLOTS];
    made last;
} assembler;

static bool is_sink(cb_x_op op) {
    return op == CB_X_STORE || op == CB_X_ACC || op == CB_X_AMAX || op == CB_X_AMIN ||
           op == CB_X_COLUMN || op == CB_X_COLUMN_MAX || op == CB_X_COLUMN_MIN || op == CB_X_TAKE;
}

static bool runs_in(const cb_micro *micro, int phase) {
    return !micro->is_dead && micro->phase == phase;
}

static bool reads_itself(const cb_micro *micro, cb_x_kind kind, int16_t id) {
    for (int k = 0; k < 3; k++)
        if (micro->in[k].kind == kind && micro->in[k].id == id) return true;
    return false;
}

/* True if operation `at`, or a part of it, reads this value. */
static bool reads(const assembler *a, int16_t at, cb_x_kind kind, int16_t id) {
    const cb_x_joint *joint = &a->joint[at];
    bool does = reads_itself(&a->m->micro[at], kind, id);
    for (int k = 0; k < joint->n_part; k++)
        does |= reads_itself(&a->m->micro[joint->part[k]], kind, id);
    return does;
}

/* Moves each operation that overwrites an array to after the array's last reader. */
static void defer_stores(assembler *a) {
    for (int k = a->n - 1; k >= 0; k--) {
        const int16_t moved = a->order[k];
        const cb_micro *store = &a->m->micro[moved];
        if (store->op != CB_X_STORE || a->m->stream[store->dst].over < 0) continue;
        const int16_t over = a->m->stream[store->dst].over;
        int last = k;
        for (int j = k + 1; j < a->n; j++)
            if (reads(a, a->order[j], CB_X_IN_STREAM, over)) last = j;
        for (int j = k; j < last; j++) a->order[j] = a->order[j + 1];
        a->order[last] = moved;
    }
}

/* Orders operations as in the program, but moves an operation that only accumulates a value to
 * right after the one that computes it. */
static void order_phase(assembler *a, int phase) {
    const cb_microcode *m = a->m;
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (!runs_in(micro, phase) || a->joint[k].kind == CB_X_PART) continue;
        bool has_maker = micro->in[0].kind == CB_X_VALUE;
        if (is_sink(micro->op) && has_maker) continue;
        a->order[a->n++] = (int16_t)k;
        if (micro->value < 0) continue;
        for (int j = 0; j < m->n_micro; j++) {
            const cb_micro *sink = &m->micro[j];
            if (runs_in(sink, phase) && is_sink(sink->op) && sink->in[0].kind == CB_X_VALUE &&
                (sink->in[0].id == micro->value || sink->in[0].id == micro->second))
                a->order[a->n++] = (int16_t)j;
        }
    }
    defer_stores(a);
}

/* ---- records --------------------------------------------------------------------------------- */

static cb_record *put(assembler *a, cb_x_fn fn, int16_t dst, int16_t b, int16_t c) {
    cb_x_code *code = a->code;
    if (code->n == code->room) {
        code->is_full = true;
        code->n--;
    }
    code->store[code->n] = (cb_x_store){NOWHERE, 0};
    code->record[code->n] = (cb_record){.fn = fn, .dst = dst, .b = b, .c = c};
    a->last = (made){.what = SOMETHING};
    return &code->record[code->n++];
}

/* ---- where values are ------------------------------------------------------------------------ */

static int register_of(const assembler *a, cb_x_ref r) {
    if (r.kind != CB_X_VALUE) return NOWHERE;
    return a->in_register[0] == r.id ? 0 : (a->in_register[1] == r.id ? 1 : NOWHERE);
}

/* Returns the next operation after the current one that reads value v. */
static int next_use(const assembler *a, int16_t v) {
    for (int k = a->at + 1; k < a->n; k++)
        if (reads(a, a->order[k], CB_X_VALUE, v)) return k;
    return INT32_MAX;
}

/* True if the current operation may overwrite the register of value v. */
static bool is_spare(const assembler *a, int16_t v) {
    return a->slot_of[v] != NOWHERE || next_use(a, v) == INT32_MAX;
}

static void spill(assembler *a, int reg) {
    int16_t v = a->in_register[reg];
    for (int16_t k = 0; k < VALUE_SLOTS; k++) {
        int16_t owner = a->slot_owner[k];
        if (owner != NOWHERE && next_use(a, owner) != INT32_MAX) continue;
        if (owner != NOWHERE && reads(a, a->order[a->at], CB_X_VALUE, owner)) continue;
        if (owner != NOWHERE) a->slot_of[owner] = NOWHERE;
        a->slot_owner[k] = v;
        a->slot_of[v] = k;
        put(a, a->table->spill[reg], k, 0, 0);
        return;
    }
    a->code->is_full = true;
}

/* Returns a register to write to, other than `kept`. With NOWHERE, any register will do. */
static int free_register(assembler *a, int kept) {
    int best = NOWHERE, furthest = -1;
    for (int reg = 0; reg < 2; reg++) {
        if (reg == kept) continue;
        int16_t v = a->in_register[reg];
        int use = v == NOWHERE ? INT32_MAX : next_use(a, v);
        if (use > furthest) best = reg, furthest = use;
    }
    int16_t v = a->in_register[best];
    if (v != NOWHERE && !is_spare(a, v)) spill(a, best);
    a->in_register[best] = NOWHERE;
    return best;
}

static place place_of(const assembler *a, cb_x_ref r, int dst) {
    int reg = register_of(a, r);
    if (reg != NOWHERE) return (place){reg == dst ? CB_X_SELF : CB_X_OTHER, 0};
    if (r.kind == CB_X_VALUE) return (place){CB_X_SLOT, a->slot_of[r.id]};
    return (place){r.kind == CB_X_NUMBER ? CB_X_SCALAR : CB_X_STREAM, r.id};
}

static bool is_packed(const assembler *a, cb_x_ref r) {
    return r.kind == CB_X_IN_STREAM && a->m->stream[r.id].format != CB_X_REAL;
}

static int load(assembler *a, cb_x_ref r, int kept) {
    int from = register_of(a, r);
    int reg = free_register(a, from != NOWHERE ? from : kept);
    place p = place_of(a, r, reg);
    const cb_x_table *t = a->table;
    const bool packed = is_packed(a, r);
    put(a, packed ? t->unpack[a->m->stream[r.id].format][reg] : t->load[reg][p.form], 0, p.index,
        0);
    if (!packed) a->last = (made){.what = AN_OPERAND, .reg = reg, .x = p};
    return reg;
}

/* Returns a register with this operand that may be overwritten. `other`: an operand whose register
 * must not change. */
static int take(assembler *a, cb_x_ref r, cb_x_ref other) {
    int reg = register_of(a, r);
    if (reg == NOWHERE) return load(a, r, register_of(a, other));
    if (is_spare(a, r.id)) return reg;
    int twin = register_of(a, other);
    if (twin == NOWHERE || twin == reg) { /* the other register may be free */
        int16_t v = a->in_register[1 - reg];
        if (v == NOWHERE || is_spare(a, v)) return load(a, r, reg);
    }
    spill(a, reg);
    return reg;
}

static void define(assembler *a, int reg, int16_t v) { a->in_register[reg] = v; }

/* ---- operations ------------------------------------------------------------------------------ */

static cb_x_op reversed(cb_x_op op) {
    static const cb_x_op twin[CB_X_N_BINARY] = {
        [CB_X_ADD] = CB_X_ADD,
        [CB_X_SUB] = CB_X_RSUB,
        [CB_X_RSUB] = CB_X_SUB,
        [CB_X_MUL] = CB_X_MUL,
        [CB_X_DIV] = CB_X_RDIV,
        [CB_X_RDIV] = CB_X_DIV,
        [CB_X_MAXIMUM] = CB_X_RMAXIMUM,
        [CB_X_RMAXIMUM] = CB_X_MAXIMUM,
        [CB_X_MINIMUM] = CB_X_RMINIMUM,
        [CB_X_RMINIMUM] = CB_X_MINIMUM,
        [CB_X_EQ] = CB_X_EQ,
        [CB_X_NE] = CB_X_NE,
        [CB_X_LT] = CB_X_GT,
        [CB_X_GT] = CB_X_LT,
        [CB_X_LE] = CB_X_GE,
        [CB_X_GE] = CB_X_LE,
        [CB_X_AND] = CB_X_AND,
        [CB_X_OR] = CB_X_OR,
        [CB_X_RELU_BWD] = CB_X_RRELU_BWD,
        [CB_X_RRELU_BWD] = CB_X_RELU_BWD,
        [CB_X_KEEP] = CB_X_RKEEP,
        [CB_X_RKEEP] = CB_X_KEEP,
        [CB_X_GELU_TANH_SLOPE] = CB_X_RGELU_TANH_SLOPE,
        [CB_X_RGELU_TANH_SLOPE] = CB_X_GELU_TANH_SLOPE,
    };
    return twin[op];
}

static bool can_overwrite(const assembler *a, cb_x_ref r) {
    return register_of(a, r) != NOWHERE && is_spare(a, r.id);
}

/* ---- two records in one (kern_scaled.h): the last one, and an operation on its register ---- */

/* Emits the product of a number and a register, or of a number and the value that the last record
 * has loaded. */
static bool scale(assembler *a, int reg, place p) {
    const made last = a->last;
    const bool loaded = last.what == AN_OPERAND && last.reg == reg;
    if (!loaded && p.form != CB_X_SCALAR) return false;
    if (!loaded) {
        put(a, a->table->binary[CB_X_MUL][reg][CB_X_SCALAR], 0, p.index, 0);
        a->last = (made){.what = A_PRODUCT, .reg = reg, .x = {CB_X_SELF, 0}, .scale = p.index};
        return true;
    }
    const bool swaps = last.x.form == CB_X_SCALAR;
    const place x = swaps ? p : last.x, number = swaps ? last.x : p;
    const cb_x_fn fn = a->table->scaled[reg][x.form];
    if (number.form != CB_X_SCALAR || !fn) return false;
    a->code->n--;
    put(a, fn, 0, x.index, number.index);
    a->last = (made){.what = A_PRODUCT, .reg = reg, .x = x, .scale = number.index};
    return true;
}

/* Emits an operation on the product of the last record and an operand. */
static bool of_scaled(assembler *a, cb_x_op op, int reg, place p) {
    const made last = a->last;
    if (last.what != A_PRODUCT || last.reg != reg || op >= CB_X_N_OF_SCALED) return false;
    const cb_x_fn fn = a->table->of_scaled[op][reg][last.x.form][p.form];
    if (!fn) return false;
    a->code->n--;
    put(a, fn, p.index, last.x.index, last.scale);
    a->last = last;
    a->last.what = OF_A_PRODUCT;
    a->last.op = op;
    a->last.y = p;
    return true;
}

/* Emits an operation on two operands: the value in a register, or the one that the last record has
 * loaded into it, and another operand. */
static void of_operands(assembler *a, cb_x_op op, int reg, place p) {
    const bool loaded = a->last.what == AN_OPERAND && a->last.reg == reg;
    const place x = loaded ? a->last.x : (place){CB_X_SELF, 0};
    const bool may_store = op < CB_X_N_MADE;
    const cb_x_fn fn = loaded && may_store ? a->table->made[op][reg][x.form][p.form] : NULL;
    if (fn) a->code->n--;
    if (fn) put(a, fn, 0, x.index, p.index);
    else put(a, a->table->binary[op][reg][p.form], 0, p.index, 0);
    if (may_store)
        a->last = (made){
            .what = OF_OPERANDS, .reg = reg, .x = fn ? x : (place){CB_X_SELF, 0}, .op = op, .y = p};
}

/* Returns the record that computes the same as the last record and also stores it, or NULL. */
static cb_x_fn storing(const assembler *a, int reg) {
    const made last = a->last;
    const cb_x_table *t = a->table;
    if (last.reg != reg) return NULL;
    switch (last.what) {
        case OF_OPERANDS: return t->store_made[last.op][reg][last.x.form][last.y.form];
        case A_SUM_OF_2:
        case A_SUM_OF_3: return t->store_sum_of[last.what == A_SUM_OF_3][reg];
        case OF_A_PRODUCT:
            return last.op < CB_X_N_SUMS ? t->store_scaled[last.op][reg][last.x.form][last.y.form]
                                         : NULL;
        default: return NULL;
    }
}

/* Emits a store of the last record's result, if that store never bypasses the caches. */
static bool store_made(assembler *a, int reg, int16_t stream) {
    const cb_x_stream *s = &a->m->stream[stream];
    const cb_x_fn fn = storing(a, reg);
    if (!fn || s->format != CB_X_REAL || (s->source == CB_X_ARRAY && s->over < 0)) return false;
    cb_record *record = &a->code->record[a->code->n - 1];
    if (a->last.what == OF_OPERANDS) {
        record->b = a->last.x.index;
        record->c = a->last.y.index;
    }
    record->fn = fn;
    record->to = stream;
    a->last.what = SOMETHING;
    return true;
}

/* If both operands may be overwritten, chooses the one that merges two records into one. */
static bool swaps_operands(const assembler *a, const cb_micro *micro) {
    const bool first = can_overwrite(a, micro->in[0]), second = can_overwrite(a, micro->in[1]);
    const bool scaled = a->last.what == A_PRODUCT && a->last.reg == register_of(a, micro->in[1]);
    return second && (!first || (micro->op < CB_X_N_OF_SCALED && scaled));
}

static void binary(assembler *a, const cb_micro *micro) {
    const bool swaps = swaps_operands(a, micro);
    cb_x_ref first = micro->in[swaps], second = micro->in[!swaps];
    cb_x_op op = swaps ? reversed(micro->op) : micro->op;
    bool is_square = first.kind == second.kind && first.id == second.id;
    int reg = take(a, first, second);
    /* If `take` has copied the operand, the second operand is still in its own register. For a
     * square, both are the same value. */
    place p = is_square ? (place){CB_X_SELF, 0} : place_of(a, second, reg);
    if (!is_square && is_packed(a, second)) {
        (void)load(a, second, reg);
        p = (place){CB_X_OTHER, 0};
    }
    if (!of_scaled(a, op, reg, p) && !(op == CB_X_MUL && scale(a, reg, p)))
        of_operands(a, op, reg, p);
    define(a, reg, micro->value);
}

static void unary(assembler *a, const cb_micro *micro) {
    int reg = take(a, micro->in[0], micro->in[0]);
    put(a, a->table->unary[CB_X_UNARY_INDEX(micro->op)][reg], 0, 0, 0);
    define(a, reg, micro->value);
}

static void pair(assembler *a, const cb_micro *micro) {
    int reg = take(a, micro->in[0], micro->in[0]), other = free_register(a, reg);
    put(a, a->table->pair[CB_X_PAIR_INDEX(micro->op)][reg], 0, 0, 0);
    define(a, reg, micro->value);
    define(a, other, micro->second);
}

static void add_at(assembler *a, const cb_micro *micro) {
    int reg = take(a, micro->in[0], micro->in[0]);
    put(a, a->table->add_at[reg], 0, micro->in[1].id, micro->in[2].id);
    define(a, reg, micro->value);
}

/* Makes sure that an alternative of a selection is in memory, from which both are read. */
static place in_memory(assembler *a, cb_x_ref r) {
    int reg = register_of(a, r);
    if (reg == NOWHERE) return place_of(a, r, 0);
    if (a->slot_of[r.id] == NOWHERE) spill(a, reg);
    return (place){CB_X_SLOT, a->slot_of[r.id]};
}

static void choose(assembler *a, const cb_micro *micro) {
    place choice[2];
    for (int k = 0; k < 2; k++) choice[k] = in_memory(a, micro->in[k + 1]);
    for (int16_t k = 0; k < 2; k++) { /* a packed operand takes a register, and comes last */
        if (!is_packed(a, micro->in[k + 1])) continue;
        choice[k] = (place){CB_X_SLOT, (int16_t)(VALUE_SLOTS + k)};
        put(a, a->table->spill[load(a, micro->in[k + 1], register_of(a, micro->in[0]))],
            choice[k].index, 0, 0);
    }
    int reg = take(a, micro->in[0], micro->in[0]);
    put(a, a->table->select[reg][choice[0].form - CB_X_STREAM][choice[1].form - CB_X_STREAM], 0,
        choice[0].index, choice[1].index);
    define(a, reg, micro->value);
}

static void take_in(assembler *a, const cb_micro *micro) {
    const cb_x_table *t = a->table;
    int reg = register_of(a, micro->in[0]);
    if (reg == NOWHERE) {
        reg = load(a, micro->in[0], NOWHERE);
        if (micro->in[0].kind == CB_X_VALUE) define(a, reg, micro->in[0].id);
    }
    cb_x_fn fn = NULL;
    switch (micro->op) {
        case CB_X_ACC: fn = t->acc[a->masked][reg]; break;
        case CB_X_AMAX: fn = t->amax[a->masked][reg]; break;
        case CB_X_AMIN: fn = t->amin[a->masked][reg]; break;
        case CB_X_COLUMN: fn = t->column[reg]; break;
        case CB_X_COLUMN_MAX: fn = t->column_max[reg]; break;
        case CB_X_COLUMN_MIN: fn = t->column_min[reg]; break;
        case CB_X_TAKE: fn = t->take[reg]; break;
        default:
            if (store_made(a, reg, micro->dst)) return;
            fn = t->store[a->m->stream[micro->dst].format][reg];
    }
    put(a, fn, micro->dst, micro->in[1].id, 0);
    if (micro->op == CB_X_STORE) a->code->store[a->code->n - 1] = (cb_x_store){micro->dst, reg};
}

/* ---- operations with their parts (join.h) ---------------------------------------------------- */

/* Packs two indices of numbers or streams into one field. */
static int16_t both(int16_t x, int16_t y) { return (int16_t)(x | y << 8); }

static int sum_of(assembler *a, const cb_x_joint *joint) {
    const bool third = joint->kind == CB_X_SUM_OF_3;
    const int reg = free_register(a, NOWHERE);
    put(a, a->table->sum_of[third][reg], third ? both(joint->y, joint->z) : joint->y, joint->x,
        both(joint->s, joint->t));
    a->last = (made){.what = third ? A_SUM_OF_3 : A_SUM_OF_2, .reg = reg};
    return reg;
}

static int scaled_root(assembler *a, const cb_x_joint *joint) {
    const int reg = take(a, joint->v, joint->v);
    put(a, a->table->scaled_root[reg], joint->t, 0, joint->s);
    return reg;
}

static void joined(assembler *a, const cb_micro *micro, const cb_x_joint *joint) {
    const int reg = joint->kind == CB_X_SCALED_ROOT ? scaled_root(a, joint) : sum_of(a, joint);
    define(a, reg, micro->value);
}

static void operation(assembler *a, int16_t at) {
    const cb_micro *micro = &a->m->micro[at];
    if (a->joint[at].kind > CB_X_PART) {
        joined(a, micro, &a->joint[at]);
    } else if (is_sink(micro->op)) {
        take_in(a, micro);
    } else if (micro->op == CB_X_SELECT) {
        choose(a, micro);
    } else if (micro->op == CB_X_ADD_AT) {
        add_at(a, micro);
    } else if (micro->op < CB_X_N_BINARY) {
        binary(a, micro);
    } else if (micro->op < CB_X_UNARY_END) {
        unary(a, micro);
    } else {
        pair(a, micro);
    }
}

/* ---- the phase ------------------------------------------------------------------------------- */

static void prefetches(assembler *a, int phase) {
    for (int16_t k = 0; k < a->m->n_stream; k++) {
        const cb_x_stream *s = &a->m->stream[k];
        bool is_far = s->source == CB_X_ARRAY && s->is_read && !s->is_written;
        if (is_far && s->first_phase == phase && s->format != CB_X_BYTE)
            put(a, a->table->prefetch[s->format], k, PREFETCH_AHEAD, 0);
    }
}

void cb_sums_of(const cb_microcode *m, int phase, cb_x_acc_kind kind, int16_t *first, int16_t *n) {
    *first = INT16_MAX;
    int16_t last = -1;
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (!runs_in(micro, phase) || micro->op != CB_X_ACC) continue;
        if (m->acc_kind[micro->dst] != kind) continue;
        if (micro->dst < *first) *first = micro->dst;
        if (micro->dst > last) last = micro->dst;
    }
    *n = (int16_t)(last < 0 ? 0 : last - *first + 1);
}

void cb_assemble_phase(const cb_microcode *m, int phase, bool masked, const cb_x_table *table,
                       cb_x_code *code) {
    assembler a = {.m = m, .table = table, .code = code, .masked = masked};
    a.in_register[0] = a.in_register[1] = NOWHERE;
    memset(a.slot_of, 0xFF, sizeof a.slot_of);
    memset(a.slot_owner, 0xFF, sizeof a.slot_owner);
    cb_x_join(m, phase, a.joint);
    order_phase(&a, phase);
    if (!masked) prefetches(&a, phase);
    code->n_prefetch = code->n;
    for (a.at = 0; a.at < a.n; a.at++) operation(&a, a.order[a.at]);
    int16_t first, n;
    cb_sums_of(m, phase, CB_X_TOTAL_SUM, &first, &n);
    if (n) put(&a, table->totals, 0, first, n);
    cb_sums_of(m, phase, CB_X_PIECE_SUM, &first, &n);
    for (int k = 0; k < m->n_pieces; k++) {
        const cb_x_pieces *p = &m->pieces[k];
        if (p->acc >= first && p->acc < first + n)
            put(&a, table->piece[p->is_mean], p->stream, p->acc,
                (int16_t)(p->log_length | (int)m->stream[p->stream].format << 8));
    }
    cb_sums_of(m, phase, CB_X_ROW_SUM, &first, &n);
    if (n) put(&a, table->loop_sums, 0, first, n);
    else put(&a, table->loop, 0, 0, 0);
    put(&a, table->end, 0, 0, 0);
}
