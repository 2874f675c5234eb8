/* Roofline of a whole group: while one thread waits for memory, its vector units are busy with what
 * came before, so arithmetic and traffic overlap. What is computed twice in one group, as where a
 * plan runs something again, is computed once (exec/cpu/executor), and so is what is dear in an op
 * and in its gradient, where both read the same value. */
#include "group_time.h"

#include <math.h>
#include <string.h>

#include "fuse_join.h"

#define SHARED 0.75 /* of an op and its gradient: what is dear in them; measured */

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

/* A group under way. */
typedef struct timing {
    const cb_program *program;
    const cb_problem *p;
    const cb_device *device;
    const cb_instr *instr;
    uint32_t n;
    uint32_t same[CB_GROUP_MOST]; /* the first instruction that computes what this one does */
} timing;

/* Which output of which instruction this operand shows, numbered so that what is computed again has
 * the number of the first; CB_NONE: it comes from outside. */
static uint32_t number_of(const timing *t, const cb_operand *x) {
    for (uint32_t i = 0; i < t->n; i++) {
        for (uint32_t k = 0; k < t->instr[i].n_out; k++) {
            const uint32_t id = t->program->operand_id[t->instr[i].out_begin + k];
            const cb_operand *y = &t->program->operand[id];
            if (x->space == y->space && x->buffer == y->buffer)
                return t->same[i] * CB_GROUP_MOST + k;
        }
    }
    return CB_NONE;
}

static bool same_input(const timing *t, uint32_t i, uint32_t in_i, uint32_t k, uint32_t in_k) {
    const uint32_t *id = t->program->operand_id;
    const cb_operand *x = &t->program->operand[id[t->instr[i].in_begin + in_i]],
                     *y = &t->program->operand[id[t->instr[k].in_begin + in_k]];
    const uint32_t number = number_of(t, x);
    if (number != number_of(t, y)) return false;
    if (number == CB_NONE && (x->space != y->space || x->buffer != y->buffer)) return false;
    return x->offset == y->offset && memcmp(x->stride, y->stride, sizeof x->stride) == 0;
}

static bool computes_the_same(const timing *t, uint32_t i, uint32_t k) {
    const cb_instr *x = &t->instr[i], *y = &t->instr[k];
    bool same = x->code == y->code && x->n_in == y->n_in &&
                memcmp(&x->attrs, &y->attrs, sizeof x->attrs) == 0;
    for (uint32_t in = 0; in < x->n_in && same; in++) same = same_input(t, i, in, k, in);
    return same;
}

/* Whether what is dear in two ops is computed of the same value. Dropout's bits are of no value,
 * but of its stream. */
static bool shares(const timing *t, uint32_t i, uint32_t k) {
    const cb_instr *x = &t->instr[i], *y = &t->instr[k];
    const dear a = dear_of(x->code), b = dear_of(y->code);
    if (a.of != b.of || a.input == CB_NONE) return false;
    if (a.of == CB_OP_DROPOUT) return x->attrs.i[0] == y->attrs.i[0];
    return same_input(t, i, a.input, k, b.input);
}

static double instr_s(const timing *t, uint32_t i) {
    const uint32_t op = t->instr[i].op;
    return cb_arithmetic_s(t->device, t->p->op_flags[op], t->p->op_class[op], t->p->op_flops[op]);
}

static double arithmetic_s(timing *t) {
    double sum = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        const double own = instr_s(t, i);
        double there = 0; /* of it */
        t->same[i] = i;
        for (uint32_t k = i; k-- > 0;)
            if (computes_the_same(t, i, k)) t->same[i] = t->same[k];
        for (uint32_t k = 0; k < i; k++)
            if (shares(t, i, k)) there = fmax(there, SHARED * fmin(own, instr_s(t, k)));
        sum += t->same[i] == i ? own - there : 0;
    }
    return sum;
}

int64_t cb_group_time_ps(const cb_program *program, const cb_group *group, const cb_problem *p,
                         uint64_t bytes, const cb_device *device) {
    const int64_t measured = p->op_time_ps[program->instr[group->instr_begin].op];
    if (group->n_instr == 1 && measured >= 0) return measured;
    timing t = {.program = program,
                .p = p,
                .device = device,
                .instr = &program->instr[group->instr_begin],
                .n = group->n_instr};
    const double work = arithmetic_s(&t);
    const double s = fmax(work, (double)bytes / device->bytes_per_s) + device->launch_s;
    return (int64_t)fmin(s * 1e12 + 0.5, 1e15);
}
