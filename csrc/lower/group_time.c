/* Roofline of a whole group: while one thread waits for memory, its vector units are busy with what
 * came before, so arithmetic and traffic overlap. What is dear in an op and in its gradient is
 * computed once where both are in one group and read the same value (exec/cpu/executor): then the
 * dearer of the two counts. */
#include "group_time.h"

#include <math.h>
#include <string.h>

/* What stands for the dear part of an op, and the place of the input that it is of; NONE: it shares
 * nothing. */
typedef struct dear {
    cb_opcode of;
    uint32_t input;
} dear;

static dear dear_of(cb_opcode code) {
    switch (code) {
        case CB_OP_GELU:
        case CB_OP_GELU_TANH:
        case CB_OP_SILU:
        case CB_OP_CROSS_ENTROPY:
        case CB_OP_DROPOUT: return (dear){code, 0};
        case CB_OP_GELU_BWD: return (dear){CB_OP_GELU, 1};
        case CB_OP_GELU_TANH_BWD: return (dear){CB_OP_GELU_TANH, 1};
        case CB_OP_SILU_BWD: return (dear){CB_OP_SILU, 1};
        case CB_OP_CROSS_ENTROPY_BWD: return (dear){CB_OP_CROSS_ENTROPY, 1};
        default: return (dear){code, CB_NONE};
    }
}

static bool same_operand(const cb_operand *x, const cb_operand *y) {
    return x->space == y->space && x->buffer == y->buffer && x->offset == y->offset &&
           memcmp(x->stride, y->stride, sizeof x->stride) == 0;
}

static bool same_input(const cb_program *p, const cb_instr *x, uint32_t i, const cb_instr *y,
                       uint32_t j) {
    return same_operand(&p->operand[p->operand_id[x->in_begin + i]],
                        &p->operand[p->operand_id[y->in_begin + j]]);
}

/* Whether two instructions compute what is dear in them of the same value. Dropout's bits are of no
 * value, but of its stream. */
static bool share(const cb_program *p, const cb_instr *x, const cb_instr *y) {
    const dear a = dear_of(x->code), b = dear_of(y->code);
    if (a.of != b.of) return false;
    if (a.of == CB_OP_DROPOUT) return x->attrs.i[0] == y->attrs.i[0];
    if (a.input != CB_NONE) return same_input(p, x, a.input, y, b.input);
    bool alike =
        x->n_in == y->n_in && x->n_in > 0 && memcmp(&x->attrs, &y->attrs, sizeof x->attrs) == 0;
    for (uint32_t k = 0; k < x->n_in && alike; k++) alike = same_input(p, x, k, y, k);
    return alike;
}

static double instr_s(const cb_problem *p, const cb_instr *x, const cb_device *device) {
    return cb_arithmetic_s(device, p->op_flags[x->op], p->op_class[x->op], p->op_flops[x->op]);
}

static double arithmetic_s(const cb_program *program, const cb_group *group, const cb_problem *p,
                           const cb_device *device) {
    const cb_instr *instr = &program->instr[group->instr_begin];
    double sum = 0;
    for (uint32_t i = 0; i < group->n_instr; i++) {
        double counted = 0;
        for (uint32_t k = 0; k < i; k++)
            if (share(program, &instr[k], &instr[i]))
                counted = fmax(counted, instr_s(p, &instr[k], device));
        sum += fmax(0, instr_s(p, &instr[i], device) - counted);
    }
    return sum;
}

int64_t cb_group_time_ps(const cb_program *program, const cb_group *group, const cb_problem *p,
                         uint64_t bytes, const cb_device *device) {
    const int64_t measured = p->op_time_ps[program->instr[group->instr_begin].op];
    if (group->n_instr == 1 && measured >= 0) return measured;
    const double work = arithmetic_s(program, group, p, device);
    const double s = fmax(work, (double)bytes / device->bytes_per_s) + device->launch_s;
    return (int64_t)fmin(s * 1e12 + 0.5, 1e15);
}
