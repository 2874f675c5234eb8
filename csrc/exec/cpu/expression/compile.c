/* Compiles each phase to the executor's microcode, as a single phase, and to records. An array that
 * is read and written becomes two streams; the assembler stores to it after all its readers.
 *
 * The executor has two registers, and merges a product with a number, its user and the store into
 * one record if they are adjacent. So values are computed just before their use: of two operands,
 * the one that takes more registers comes first, and of equal ones the one that is not such a
 * product (Sethi and Ullman, The generation of optimal code for arithmetic expressions, 1970). With
 * this order and the records of join.h, AdamW takes six records instead of fourteen. */
#include "compile.h"

#include "../../../micro/phases.h"

typedef struct building {
    cb_translation t;
    const cb_expression *x;
    cb_e_phase *phase;
    cb_x_ref ref[CB_E_NODES];  /* CB_X_NONE: not computed yet */
    int16_t read[CB_E_ARRAYS]; /* the stream that reads the array; -1: none */
    uint8_t room[CB_E_NODES];  /* registers needed to compute a value; 0: it is in memory */
    bool is_visited[CB_E_NODES];
    bool scales; /* gradients */
} building;

#define X_LEAF(id, name) [CB_E_##id] = CB_X_OP_COUNT,
#define X_OP(id, name, n_in, op, ...) [CB_E_##id] = op,
static const cb_x_op x_ops[CB_E_OP_COUNT] = {CB_E_LEAVES(X_LEAF) CB_E_OPS(X_OP)};

static int16_t new_stream(building *b, int array) {
    int16_t id = cb_t_new_stream(&b->t, CB_X_ARRAY, (uint32_t)array, CB_F32);
    b->phase->array[id] = (uint8_t)array;
    return id;
}

static cb_x_ref array_ref(building *b, int array) {
    int16_t id = new_stream(b, array);
    b->t.m->stream[id].is_read = true;
    b->read[array] = id;
    return (cb_x_ref){CB_X_IN_STREAM, id};
}

static cb_x_ref number_ref(building *b, uint16_t node) {
    int16_t slot = cb_t_new_scalar(&b->t, -1, CB_X_BEFORE_ALL);
    if (!b->t.is_full) b->phase->give[b->phase->n_give++] = (cb_e_give){node, slot};
    return cb_t_number_ref(slot);
}

static cb_x_ref ref_of(building *b, uint16_t node) {
    const cb_e_node *n = &b->x->node[node];
    if (b->ref[node].kind != CB_X_NONE) return b->ref[node];
    cb_x_ref in[3] = {CB_T_NOTHING, CB_T_NOTHING, CB_T_NOTHING};
    if (!n->is_vector) return b->ref[node] = number_ref(b, node);
    if (n->op == CB_E_PARAM) return b->ref[node] = array_ref(b, 0);
    if (n->op == CB_E_GRAD) {
        cb_x_ref grad = array_ref(b, 1);
        if (b->scales)
            grad = cb_t_of_two(&b->t, CB_X_MUL, grad, number_ref(b, (uint16_t)b->x->n_node));
        return b->ref[node] = grad;
    }
    if (n->op == CB_E_STATE) return b->ref[node] = array_ref(b, 2 + n->in[0]);
    for (int k = 0; k < n->n_in; k++) in[k] = b->ref[n->in[k]];
    return b->ref[node] = cb_t_value(&b->t, x_ops[n->op], in[0], in[1], in[2]);
}

static bool is_leaf(const cb_e_node *n) {
    return n->op == CB_E_PARAM || n->op == CB_E_GRAD || n->op == CB_E_STATE;
}

static void measure_room(building *b) {
    for (int i = 0; i < b->x->n_node; i++) {
        const cb_e_node *n = &b->x->node[i];
        int room[3] = {0}; /* registers that the operands take, largest first */
        for (int k = 0; k < n->n_in && n->is_vector && !is_leaf(n); k++) {
            int next = b->room[n->in[k]];
            for (int j = 0; j <= k; j++) {
                const int larger = next > room[j] ? next : room[j];
                next -= larger - room[j];
                room[j] = larger;
            }
        }
        int most = n->is_vector && !is_leaf(n);
        for (int k = 0; k < 3; k++) { /* the operands before it are kept meanwhile */
            if (room[k] && room[k] + k > most) most = room[k] + k;
        }
        b->room[i] = (uint8_t)(most < UINT8_MAX ? most : UINT8_MAX);
    }
}

/* True if the node is a vector times a number; such a product merges with its user. */
static bool is_scaled(const building *b, uint16_t node) {
    const cb_e_node *n = &b->x->node[node];
    return n->op == CB_E_MUL && b->x->node[n->in[0]].is_vector != b->x->node[n->in[1]].is_vector;
}

/* Returns true if operand `y` must be computed before `x`, which precedes it in the list. */
static bool goes_first(const building *b, uint16_t y, uint16_t x) {
    if (b->room[y] != b->room[x]) return b->room[y] > b->room[x];
    return is_scaled(b, x) && !is_scaled(b, y);
}

/* Emits a value after its operands. */
static void visit(building *b, uint16_t node) {
    const cb_e_node *n = &b->x->node[node];
    uint16_t in[3];
    if (b->is_visited[node]) return;
    b->is_visited[node] = true;
    const int n_in = n->is_vector && !is_leaf(n) ? n->n_in : 0;
    for (int k = 0; k < n_in; k++) {
        int at = k;
        for (; at > 0 && goes_first(b, n->in[k], in[at - 1]); at--) in[at] = in[at - 1];
        in[at] = n->in[k];
    }
    for (int k = 0; k < n_in; k++) visit(b, in[k]);
    (void)ref_of(b, node);
}

static bool is_sum_of(const cb_e_node *n, int level) {
    return n->is_needed && n->op == CB_E_SUM && n->level == level + 1;
}

static bool is_array(const cb_e_node *n, int array) {
    return array == 0 ? n->op == CB_E_PARAM : n->op == CB_E_STATE && n->in[0] == array - 2;
}

/* Stores a result, unless it is the unchanged array. An array returned under another name is
 * copied: like every value, it is read before anything is stored. */
static void store(building *b, int array, uint16_t node) {
    const cb_e_node *n = &b->x->node[node];
    if (is_array(n, array)) return;
    cb_x_ref ref = ref_of(b, node);
    if (ref.kind == CB_X_IN_STREAM) ref = cb_t_of_two(&b->t, CB_X_MAXIMUM, ref, ref);
    int16_t id = new_stream(b, array);
    b->t.m->stream[id].is_written = true;
    b->t.m->stream[id].over = b->read[array];
    cb_t_emit(&b->t, CB_X_STORE, ref, CB_T_NOTHING, CB_T_NOTHING)->dst = id;
}

static void build(building *b, int level) {
    const cb_expression *x = b->x;
    measure_room(b);
    if (level + 1 == x->n_phase) {
        for (uint32_t k = 0; k <= x->base.n_state; k++) visit(b, x->out[k]);
        for (uint32_t k = 0; k <= x->base.n_state; k++)
            store(b, k == 0 ? 0 : 1 + (int)k, x->out[k]);
    } else {
        for (int i = 0; i < x->n_node; i++) {
            if (!is_sum_of(&x->node[i], level)) continue;
            visit(b, x->node[i].in[0]);
            (void)cb_t_over_row(&b->t, CB_X_ACC, ref_of(b, x->node[i].in[0]));
            if (!b->t.is_full) b->phase->sum[b->phase->n_sum++].node = (uint16_t)i;
        }
    }
    cb_t_arrange(&b->t);
}

static cb_status compile_phase(cb_expression *x, int level, bool scales, cb_arena *scratch,
                               cb_error *err) {
    building *b = CB_NEW(scratch, building, 1);
    cb_microcode *m = CB_NEW(scratch, cb_microcode, 1);
    cb_x_room *room = CB_NEW(scratch, cb_x_room, 1);
    if (!b || !m || !room) return cb_no_memory(err);
    cb_t_lay_out(m, room);
    cb_e_phase *phase = &x->phase[scales][level];
    *b = (building){.x = x, .phase = phase, .scales = scales};
    b->t.m = m;
    b->t.limits = &cb_x_record_limits;
    for (int k = 0; k < CB_E_ARRAYS; k++) b->read[k] = -1;
    build(b, level);
    cb_status status = CB_UNSUPPORTED;
    if (!b->t.is_full) status = cb_x_phase_make(m, 0, x->table, &x->arena, &phase->code, err);
    if (status == CB_UNSUPPORTED) {
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s needs more values at the same time than the executor can hold; "
                       "compute each of them closer to its use",
                       x->base.name);
    }
    /* Lists sums in the order in which they were requested (cb_t_over_row). */
    for (int k = 0; k < phase->n_sum; k++) phase->sum[k].acc = m->number[k].a;
    phase->n_stream = m->n_stream;
    return status;
}

cb_status cb_e_compile(cb_expression *x, cb_error *err) {
    x->table = cb_x_table_of(false);
    for (int k = 0; k < 2; k++) CB_TRY_NEW(x->phase[k], &x->arena, x->n_phase, err);
    cb_status status = CB_OK;
    for (int k = 0; k < 2 * x->n_phase && status == CB_OK; k++) {
        cb_arena scratch;
        cb_arena_init(&scratch, x->arena.alloc);
        status = compile_phase(x, k / 2, k % 2, &scratch, err);
        cb_arena_free(&scratch);
    }
    return status;
}
