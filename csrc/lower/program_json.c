/* The groups of a program as JSON, which shows the result of fusion:
 *
 *     {"format": "cutback.kernels", "version": 1, "arena_bytes": 786432, "live_bytes": 786400,
 *      "backward_starts": 3, "groups": [
 *       {"elements": 8388608, "columns": 1024,            both 0: one op; columns 0: no rows
 *        "steps": [0, 1],                                 positions in the plan's schedule
 *        "ops": [{"name": "add_5", "kind": "add", "at": "model.py:3", "part": "map",
 *                 "recomputed": false}, ...],
 *        "read_bytes": 67108864, "written_bytes": 33554432, "apart_bytes": 167772160,
 *        "scratch_bytes": 0, "modelled_ps": 4194304000,   by the cost model (group_time.h)
 *        "locals": [{"name": "add_5", "type": "f32[8192,1024]", "bytes": 33554432}],
 *        "end": {"reason": "op", "before": "matmul_12", "waits_for": null}}, ...]}
 *
 * Bytes are the minimum traffic to memory: a value from outside counts once, for any number of
 * readers and views; elements that strides of 0 repeat count once; of an indexed table, only the
 * picked elements count. `locals` are the values that never exist in memory. `apart_bytes` is the
 * traffic if each op ran separately. `before` is the op that did not join, or null if there is
 * none; if the group's op cannot be in any group, it is that op. `waits_for` is the op that makes
 * an input of `before`, if that is the reason ("wait"). */
#include "group_time.h"
#include "program.h"

static const char *const reasons[] = {
    "none",  "program", "backend", "op",   "domain", "cut",
    "dtype", "read",    "wait",    "room", "limit",  "plan",
};
static const char *const parts[] = {
    "none",  "map", "row_wise", "rows",       "row_map", "columns",
    "total", "one", "pieces",   "odd_pieces", "across",  "lines",
};
_Static_assert(sizeof parts / sizeof *parts == CB_PART_LINES + 1, "a name for each part");

typedef struct writing {
    const cb_program *program;
    const cb_problem *p;
    const cb_plan *plan;
    cb_json_writer w;
    uint32_t group;
    uint32_t *seen;          /* [n_operand] group + 1 that counted it last */
    uint32_t *made;          /* [n_memory] group + 1 in which it was written last */
    uint32_t *read;          /* [n_memory] group + 1 in which it was read last; `bytes` are of this
                                group */
    uint64_t *bytes;         /* [n_memory] */
    uint64_t in, out, apart; /* bytes of the current group; bytes if its ops ran separately */
} writing;

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Numbers memory: buffers, then inputs, then outputs. */
static uint32_t memory_of(const cb_program *program, const cb_operand *x) {
    if (x->space == CB_SPACE_ARENA) return x->buffer;
    return program->n_buffer + x->buffer + (x->space == CB_SPACE_INPUT ? 0 : program->n_input);
}

static uint64_t memory_bytes(const cb_program *program, const cb_operand *x) {
    if (x->space == CB_SPACE_ARENA) return program->buffer[x->buffer].bytes;
    return (x->space == CB_SPACE_INPUT ? program->input : program->output)[x->buffer].bytes;
}

/* Returns the bytes of an operand's distinct elements. */
static uint64_t operand_bytes(const cb_operand *x) {
    uint64_t n = cb_dtype_size(x->dtype);
    for (int32_t k = 0; k < x->shape.rank; k++)
        if (x->stride[k] != 0 || x->shape.dim[k] == 0) n *= (uint64_t)x->shape.dim[k];
    return n;
}

/* Counts a read. Views of the same memory may show the same elements, so the sum is limited to the
 * memory's size. */
static void count_read(writing *x, uint32_t id) {
    const cb_operand *operand = &x->program->operand[id];
    if (operand->space == CB_SPACE_LOCAL || x->seen[id] == x->group + 1) return;
    const uint32_t memory = memory_of(x->program, operand);
    if (x->made[memory] == x->group + 1) return;
    if (x->read[memory] != x->group + 1) x->bytes[memory] = 0;
    x->seen[id] = x->read[memory] = x->group + 1;
    const uint64_t most = memory_bytes(x->program, operand), before = x->bytes[memory];
    const uint64_t sum = before + operand_bytes(operand);
    x->bytes[memory] = sum < most ? sum : most;
    x->in += x->bytes[memory] - before;
}

static void count_written(writing *x, uint32_t id) {
    const cb_operand *operand = &x->program->operand[id];
    if (operand->space == CB_SPACE_LOCAL || x->seen[id] == x->group + 1) return;
    x->seen[id] = x->made[memory_of(x->program, operand)] = x->group + 1;
    x->out += operand_bytes(operand);
}

static void count(writing *x, const cb_group *group) {
    const cb_program *program = x->program;
    x->in = x->out = x->apart = 0;
    for (uint32_t i = 0; i < group->n_instr; i++) {
        const cb_instr *instr = &program->instr[group->instr_begin + i];
        const uint32_t *in = program->operand_id + instr->in_begin,
                       *out = program->operand_id + instr->out_begin;
        x->apart += x->p->op_bytes[instr->op];
        for (uint32_t k = 0; k < instr->n_in; k++) count_read(x, in[k]);
        for (uint32_t k = 0; k < instr->n_out; k++) count_written(x, out[k]);
    }
    if (cb_group_fuses(group)) return;
    if (x->apart >= x->out && x->apart - x->out < x->in) x->in = x->apart - x->out; /* picked */
}

/* ---- text ------------------------------------------------------------------------------------ */

static void put_op(writing *x, const cb_instr *instr) {
    cb_json_begin(&x->w, NULL, '{');
    cb_json_put_string(&x->w, "name", x->p->op_name[instr->op]);
    cb_json_put_string(&x->w, "kind", x->p->op_kind[instr->op]);
    cb_json_put_string(&x->w, "at", instr->location);
    cb_json_put_string(&x->w, "part", parts[instr->part]);
    cb_json_put_bool(&x->w, "recomputed", instr->recomputed);
    cb_json_end(&x->w, '}');
}

static void put_locals(writing *x, const cb_instr *instr) {
    for (uint32_t k = 0; k < instr->n_out; k++) {
        const cb_operand *out = &x->program->operand[x->program->operand_id[instr->out_begin + k]];
        if (out->space != CB_SPACE_LOCAL) continue;
        cb_json_begin(&x->w, NULL, '{');
        cb_json_put_string(&x->w, "name", x->p->op_name[instr->op]);
        cb_json_put_string(&x->w, "type", x->p->value_type[x->p->out_begin[instr->op] + k]);
        cb_json_put_u64(&x->w, "bytes", x->program->locals[out->buffer].bytes);
        cb_json_end(&x->w, '}');
    }
}

static void put_step(writing *x, const char *key, uint32_t step) {
    const char *op = step == CB_NONE ? NULL : x->p->op_name[x->plan->schedule.step[step]];
    cb_json_put_string(&x->w, key, op);
}

static void put_end(writing *x, const cb_group *group) {
    cb_json_begin(&x->w, "end", '{');
    cb_json_put_string(&x->w, "reason", reasons[group->end]);
    put_step(x, "before", group->end_step);
    put_step(x, "waits_for", group->end_wait);
    cb_json_end(&x->w, '}');
}

/* Returns the scratch of a group. Instructions with the same indices share their copy. */
static uint64_t scratch_bytes(const writing *x, const cb_group *group) {
    const cb_instr *instr = &x->program->instr[group->instr_begin];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < group->n_instr; i++) {
        bool is_known = instr[i].scratch == CB_NONE;
        for (uint32_t k = 0; k < i; k++) is_known |= instr[k].scratch == instr[i].scratch;
        if (!is_known) bytes += x->program->buffer[instr[i].scratch].bytes;
    }
    return bytes;
}

static void put_group(writing *x, const cb_group *group) {
    const cb_instr *instr = &x->program->instr[group->instr_begin];
    count(x, group);
    cb_json_begin(&x->w, NULL, '{');
    cb_json_put_int(&x->w, "elements", group->domain.count);
    cb_json_put_int(&x->w, "columns", group->domain.columns);
    cb_json_begin(&x->w, "steps", '[');
    for (uint32_t i = 0; i < group->n_instr; i++) cb_json_put_u64(&x->w, NULL, instr[i].step);
    cb_json_end(&x->w, ']');
    cb_json_begin(&x->w, "ops", '[');
    for (uint32_t i = 0; i < group->n_instr; i++) put_op(x, &instr[i]);
    cb_json_end(&x->w, ']');
    cb_json_put_u64(&x->w, "read_bytes", x->in);
    cb_json_put_u64(&x->w, "written_bytes", x->out);
    cb_json_put_u64(&x->w, "apart_bytes", x->apart);
    cb_json_put_u64(&x->w, "scratch_bytes", scratch_bytes(x, group));
    cb_json_put_int(&x->w, "modelled_ps",
                    cb_group_time_ps(x->program, group, x->p, x->in + x->out, x->plan->device));
    cb_json_begin(&x->w, "locals", '[');
    for (uint32_t i = 0; i < group->n_instr; i++) put_locals(x, &instr[i]);
    cb_json_end(&x->w, ']');
    put_end(x, group);
    cb_json_end(&x->w, '}');
}

cb_status cb_program_kernels(const cb_program *program, const cb_problem *p, const cb_plan *plan,
                             cb_str *out, cb_error *err) {
    writing x = {.program = program, .p = p, .plan = plan, .w = {.out = out}};
    const size_t n_memory = (size_t)program->n_buffer + program->n_input + program->n_output;
    CB_TRY_NEW(x.seen, out->arena, program->n_operand, err);
    CB_TRY_NEW(x.made, out->arena, n_memory, err);
    CB_TRY_NEW(x.read, out->arena, n_memory, err);
    CB_TRY_NEW(x.bytes, out->arena, n_memory, err);
    cb_json_begin(&x.w, NULL, '{');
    cb_json_put_string(&x.w, "format", "cutback.kernels");
    cb_json_put_u64(&x.w, "version", 1);
    cb_json_put_u64(&x.w, "arena_bytes", program->arena_bytes);
    cb_json_put_u64(&x.w, "live_bytes", program->live_bytes);
    cb_json_put_u64(&x.w, "backward_starts", program->backward_starts);
    cb_json_begin(&x.w, "groups", '[');
    for (x.group = 0; x.group < program->n_group; x.group++)
        put_group(&x, &program->group[x.group]);
    cb_json_end(&x.w, ']');
    cb_json_end(&x.w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}
