/* The roofline model of a whole group. While a thread waits for memory, its vector units work on
 * earlier data. So arithmetic and traffic overlap, except for a part of the smaller one. Work that
 * occurs twice in one group, for example because a plan recomputes a value, is done once
 * (exec/cpu/executor), and so is the expensive part that an op and its gradient share if both read
 * the same value. */
#include "group_time.h"

#include <math.h>
#include <string.h>

#include "../fuse/grow.h"

#define SHARED 0.9 /* share of their expensive part in an op and its gradient; measured */
#define EXPOSED \
    0.3                /* share of the smaller of arithmetic and traffic that does not overlap;
                          measured */
#define STREAM 0.7     /* flops for reading or writing an element of an array */
#define GATHERED 1.5   /* flops for an element of an operand whose rows are not contiguous */
#define ONE_NUMBER 300 /* flops for reducing the lanes of a sum to a number */

/* The op that represents the expensive part, and the index of the input that this part depends on;
 * NONE: it shares nothing. */
typedef struct expensive_part {
    cb_opcode of;
    uint32_t input;
} expensive_part;

static expensive_part expensive_part_of(cb_opcode code) {
    switch (code) {
        case CB_OP_SIN: return (expensive_part){CB_OP_COS, 0}; /* computes both at once */
        case CB_OP_COS:
        case CB_OP_GELU:
        case CB_OP_GELU_TANH:
        case CB_OP_SILU:
        case CB_OP_CROSS_ENTROPY:
        case CB_OP_DROPOUT: return (expensive_part){code, 0};
        case CB_OP_GELU_BWD: return (expensive_part){CB_OP_GELU, 1};
        case CB_OP_GELU_TANH_BWD: return (expensive_part){CB_OP_GELU_TANH, 1};
        case CB_OP_SILU_BWD: return (expensive_part){CB_OP_SILU, 1};
        case CB_OP_CROSS_ENTROPY_BWD: return (expensive_part){CB_OP_CROSS_ENTROPY, 1};
        default: return (expensive_part){code, CB_NONE};
    }
}

/* The state for one group. */
typedef struct timing {
    const cb_program *program;
    const cb_problem *p;
    const cb_device *device;
    const cb_instr *instr;
    uint32_t n;
    uint32_t same[CB_GROUP_MOST]; /* the first instruction that computes the same as this one */
} timing;

/* Returns the output that this operand shows, numbered so that a recomputed value has the number of
 * its first computation; CB_NONE: it comes from outside the group. */
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

/* True if the expensive parts of two ops depend on the same value. Dropout's bits depend on its
 * stream instead of a value. */
static bool shares(const timing *t, uint32_t i, uint32_t k) {
    const cb_instr *x = &t->instr[i], *y = &t->instr[k];
    const expensive_part a = expensive_part_of(x->code), b = expensive_part_of(y->code);
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
        double there = 0; /* the part that another instruction has computed */
        t->same[i] = i;
        for (uint32_t k = i; k-- > 0;)
            if (computes_the_same(t, i, k)) t->same[i] = t->same[k];
        for (uint32_t k = 0; k < i; k++)
            if (shares(t, i, k)) there = fmax(there, SHARED * fmin(own, instr_s(t, k)));
        sum += t->same[i] == i ? own - there : 0;
    }
    return sum;
}

/* Returns how many sums or maxima the instruction reduces to single numbers. A row-wise op has
 * about three per row, such as a mean, a variance and a value of the next pass. */
static double numbers_of(const timing *t, const cb_instr *instr, const cb_domain *domain) {
    const double rows = domain->columns ? (double)(domain->count / domain->columns) : 0;
    const cb_operand *out = &t->program->operand[t->program->operand_id[instr->out_begin]];
    switch (instr->part) {
        case CB_PART_ROW_WISE: return 3 * rows;
        case CB_PART_ROWS: return rows;
        case CB_PART_ACROSS: return 0; /* adjacent numbers are computed as vectors */
        case CB_PART_LINES:
        case CB_PART_PIECES:
        case CB_PART_ODD_PIECES: return (double)cb_numel(&out->shape);
        default: return 0;
    }
}

typedef enum laid { AS_A_NUMBER, IN_MEMORY, IN_PIECES } laid;

/* Returns how an operand provides the elements of the domain: as a number, loaded at most once per
 * row; row by row from memory; or from rows that are first gathered from pieces. A domain without
 * rows uses the rows for which such an operand is one number. */
static laid laid_out(const cb_operand *x, const cb_domain *domain) {
    const cb_view view = cb_view_of(&x->shape, x->stride, domain);
    int64_t run = 1;
    if (cb_numel(&x->shape) != domain->count || view == CB_VIEW_ROW || view == CB_VIEW_ONE)
        return AS_A_NUMBER;
    if (view != CB_VIEW_OTHER) return IN_MEMORY;
    for (int32_t k = x->shape.rank; k-- > 0;) {
        if (x->shape.dim[k] == 1) continue;
        if (run == 1 && x->stride[k] == 0 && !domain->columns) return AS_A_NUMBER;
        if (x->stride[k] != run) break;
        run *= x->shape.dim[k];
    }
    return run % (domain->columns ? domain->columns : domain->count) == 0 ? IN_MEMORY : IN_PIECES;
}

/* True if an earlier instruction or operand has read the same elements. */
static bool is_read_before(const timing *t, uint32_t i, uint32_t in) {
    bool known = false;
    for (uint32_t k = 0; k <= i && !known; k++) {
        const uint32_t n = k < i ? t->instr[k].n_in : in;
        for (uint32_t j = 0; j < n && !known; j++) known = same_input(t, i, in, k, j);
    }
    return known;
}

/* Returns the flops of reading one instruction's operands from memory and writing its results. */
static double flops_of_streams(const timing *t, uint32_t i, const cb_domain *domain) {
    const cb_instr *instr = &t->instr[i];
    const uint32_t *id = t->program->operand_id;
    double flops = 0;
    for (uint32_t k = 0; k < instr->n_in; k++) {
        const cb_operand *x = &t->program->operand[id[instr->in_begin + k]];
        const laid how = laid_out(x, domain);
        if (how == AS_A_NUMBER || number_of(t, x) != CB_NONE || is_read_before(t, i, k)) continue;
        flops += STREAM + (how == IN_PIECES ? GATHERED : 0);
    }
    for (uint32_t k = 0; k < instr->n_out; k++) {
        const cb_operand *x = &t->program->operand[id[instr->out_begin + k]];
        if (cb_numel(&x->shape) == domain->count && x->space != CB_SPACE_LOCAL) flops += STREAM;
    }
    return flops * (double)domain->count;
}

/* Returns the additional flops that depend on how a group's operands are laid out over its domain.
 */
static double flops_of_rows(const timing *t, const cb_domain *domain) {
    double flops = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->same[i] != i) continue;
        flops += ONE_NUMBER * numbers_of(t, &t->instr[i], domain);
        flops += flops_of_streams(t, i, domain);
    }
    return flops;
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
    const uint32_t first = t.instr->op;
    double work = arithmetic_s(&t);
    if (cb_group_fuses(group))
        work += cb_arithmetic_s(device, CB_POP_FUSIBLE, p->op_class[first],
                                flops_of_rows(&t, &group->domain));
    const double traffic = (double)bytes / device->bytes_per_s;
    const bool is_product = p->op_flags[first] & CB_POP_COMPUTE; /* a product has its own order */
    const double rest = is_product ? 0 : EXPOSED * fmin(work, traffic);
    const double s = fmax(work, traffic) + rest + device->launch_s;
    return (int64_t)fmin(s * 1e12 + 0.5, 1e15);
}
