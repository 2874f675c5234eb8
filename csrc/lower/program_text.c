/* The program as text, for reading and golden tests:
 *
 *     cutback.program 1
 *     arena=1024 live=900 groups=5 buffers=6
 *     input 0 "w" f32[16,32] param
 *     output 0 "loss" f32[] result
 *     output 1 "w" f32[16,32] grad of input 0 in b4
 *     buffer 0 bytes=512 at=0 groups=0..3
 *     group 0: b0:f32[8,32] = matmul(in1:f32[8,16], in0:f32[16,32]) scratch=b1 @"model.py:12"
 *     --- backward
 *     group 4: b4:f32[16,32] = matmul(in1:f32[16,8]{1,16}, b3:f32[8,32]) recomputed
 *
 * A group of several instructions shows its domain, and has a line for each instruction:
 *
 *     group 3 [8192x1024]:
 *         l0:f32[8192,1024] = gelu(b1:f32[8192,1024]) @"model.py:3"
 *         b2:f32[8192,1024] = mul(l0:f32[8192,1024], in3:f32[8192,1024])
 *
 * b: a buffer, l: a local, in and out: an argument's memory; +n: elements from its start; {..}:
 * strides, if they are not row-major. Moves to the host and back have lines between the groups:
 *
 *     move b3 to the host at 0
 *     move b7 from the host at 0 */
#include <inttypes.h>

#include "program.h"

static void print_shape(cb_str *out, cb_dtype dtype, const cb_shape *shape) {
    cb_str_addf(out, "%s[", cb_dtype_name(dtype));
    for (int32_t k = 0; k < shape->rank; k++)
        cb_str_addf(out, k ? ",%" PRId64 : "%" PRId64, shape->dim[k]);
    cb_str_addf(out, "]");
}

void cb_program_print_operand(const cb_program *p, uint32_t id, cb_str *out) {
    static const char *const spaces[] = {"b", "in", "out", "l"};
    const cb_operand *x = &p->operand[id];
    cb_str_addf(out, "%s%" PRIu32, spaces[x->space], x->buffer);
    if (x->offset) cb_str_addf(out, "+%" PRId64, x->offset);
    cb_str_addf(out, ":");
    print_shape(out, x->dtype, &x->shape);
    if (cb_is_contiguous(&x->shape, x->stride)) return;
    for (int32_t k = 0; k < x->shape.rank; k++) {
        cb_str_addf(out, "%c%" PRId64, k ? ',' : '{', x->stride[k]);
    }
    cb_str_addf(out, "}");
}

static void print_arguments(const cb_program *p, cb_str *out) {
    static const char *const roles[] = {"data", "param", "tangent", "state"};
    static const char *const kinds[] = {"result", "state", "grad"};
    for (uint32_t i = 0; i < p->n_input; i++) {
        cb_str_addf(out, "input %" PRIu32 " \"%s\" ", i, p->input[i].name);
        print_shape(out, p->input[i].dtype, &p->input[i].shape);
        cb_str_addf(out, " %s\n", roles[p->input[i].role_or_kind]);
    }
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_argument *output = &p->output[i];
        const cb_operand *place = &p->operand[output->operand];
        cb_str_addf(out, "output %" PRIu32 " \"%s\" ", i, output->name);
        print_shape(out, output->dtype, &output->shape);
        cb_str_addf(out, " %s", kinds[output->role_or_kind]);
        if (output->input != CB_NONE) cb_str_addf(out, " of input %" PRIu32, output->input);
        if (place->space == CB_SPACE_ARENA) cb_str_addf(out, " in b%" PRIu32, place->buffer);
        if (p->updates_inside && output->role_or_kind == CB_OUTPUT_GRAD)
            cb_str_addf(out, " updates after group %" PRIu32, p->buffer[place->buffer].last);
        cb_str_addf(out, "\n");
    }
}

static void print_buffers(const cb_program *p, cb_str *out) {
    for (uint32_t b = 0; b < p->n_buffer; b++) {
        const cb_buffer *x = &p->buffer[b];
        cb_str_addf(out, "buffer %" PRIu32 " bytes=%" PRIu64 " at=%" PRIu64 " groups=%" PRIu32 "..",
                    b, x->bytes, x->offset, x->made);
        if (x->last == p->n_group) cb_str_addf(out, "end");
        else cb_str_addf(out, "%" PRIu32, x->last);
        if (x->takes_over) cb_str_addf(out, " over=%" PRIu32, x->over);
        cb_str_addf(out, "\n");
    }
}

static void print_attrs(const cb_instr *instr, cb_str *out) {
    cb_attr_slot slot;
    for (int k = 0; cb_op_attr(instr->code, k, &slot); k++) {
        const cb_shape *dims = &instr->attrs.dims;
        if (slot.kind == CB_ATTR_DTYPE) continue; /* the operand shows the dtype */
        cb_str_addf(out, "%s%.*s=", k ? ", " : " {", (int)slot.name_length, slot.name);
        if (slot.kind == CB_ATTR_F) cb_str_addf(out, "%g", instr->attrs.f[slot.index]);
        if (slot.kind == CB_ATTR_I) cb_str_addf(out, "%" PRId64, instr->attrs.i[slot.index]);
        if (slot.kind == CB_ATTR_DIMS) cb_str_addf(out, "[");
        for (int32_t d = 0; slot.kind == CB_ATTR_DIMS && d < dims->rank; d++)
            cb_str_addf(out, d ? ",%" PRId64 : "%" PRId64, dims->dim[d]);
        if (slot.kind == CB_ATTR_DIMS) cb_str_addf(out, "]");
    }
    if (cb_op_attr(instr->code, 0, &slot) && slot.kind != CB_ATTR_DTYPE) cb_str_addf(out, "}");
}

static void print_instr(const cb_program *p, const cb_instr *instr, cb_str *out) {
    for (uint32_t k = 0; k < instr->n_out; k++) {
        if (k) cb_str_addf(out, ", ");
        cb_program_print_operand(p, p->operand_id[instr->out_begin + k], out);
    }
    cb_str_addf(out, " = %s(", cb_op_def_of(instr->code)->name);
    for (uint32_t k = 0; k < instr->n_in; k++) {
        if (k) cb_str_addf(out, ", ");
        cb_program_print_operand(p, p->operand_id[instr->in_begin + k], out);
    }
    cb_str_addf(out, ")");
    print_attrs(instr, out);
    if (instr->recomputed) cb_str_addf(out, " recomputed");
}

static void print_domain(const cb_domain *domain, cb_str *out) {
    if (domain->inner) {
        cb_str_addf(out, " [%" PRId64 "x%" PRId64 "x%" PRId64 "]",
                    domain->count / domain->columns / domain->inner, domain->columns,
                    domain->inner);
    } else if (domain->columns) {
        cb_str_addf(out, " [%" PRId64 "x%" PRId64 "]", domain->count / domain->columns,
                    domain->columns);
    } else {
        cb_str_addf(out, " [%" PRId64 "]", domain->count);
    }
}

/* Writes the moves of a group: values that come back, or that leave. */
static void print_moves(const cb_program *p, uint32_t g, bool leaving, cb_str *out) {
    if (!p->move_begin) return;
    for (uint32_t m = p->move_begin[g]; m < p->move_begin[g + 1]; m++) {
        const cb_move *move = &p->move[m];
        if ((move->from == CB_NONE) != leaving) continue;
        cb_str_addf(out, "move b%" PRIu32 " %s the host at %" PRIu64 "\n", move->buffer,
                    leaving ? "to" : "from", move->host);
    }
}

static void print_groups(const cb_program *p, cb_str *out) {
    for (uint32_t g = 0; g < p->n_group; g++) {
        const cb_group *group = &p->group[g];
        if (g == p->backward_starts && g > 0) cb_str_addf(out, "--- backward\n");
        print_moves(p, g, false, out);
        cb_str_addf(out, "group %" PRIu32, g);
        if (cb_group_fuses(group)) print_domain(&group->domain, out);
        cb_str_addf(out, ":");
        for (uint32_t i = 0; i < group->n_instr; i++) {
            const cb_instr *instr = &p->instr[group->instr_begin + i];
            cb_str_addf(out, group->n_instr > 1 ? "\n    " : " ");
            print_instr(p, instr, out);
            if (instr->scratch != CB_NONE) cb_str_addf(out, " scratch=b%" PRIu32, instr->scratch);
            if (instr->location[0]) cb_str_addf(out, " @\"%s\"", instr->location);
        }
        cb_str_addf(out, "\n");
        print_moves(p, g, true, out);
    }
}

cb_status cb_program_print(const cb_program *program, cb_str *out, cb_error *err) {
    const cb_program *p = program;
    cb_str_addf(out,
                "cutback.program 1\narena=%" PRIu64 " live=%" PRIu64 " groups=%" PRIu32
                " buffers=%" PRIu32,
                p->arena_bytes, p->live_bytes, p->n_group, p->n_buffer);
    if (p->n_local) cb_str_addf(out, " locals=%" PRIu32, p->n_local);
    if (p->n_move) cb_str_addf(out, " host=%" PRIu64, p->host_bytes);
    cb_str_addf(out, "\n");
    print_arguments(p, out);
    print_buffers(p, out);
    print_groups(p, out);
    return out->failed ? cb_no_memory(err) : CB_OK;
}
