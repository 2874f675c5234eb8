/* warp.c: operations in which the lanes of a warp meet. A lane waits until all live lanes in its
 * mask wait at the same instruction; the last one computes all results. */
#include <stdio.h>

#include "../runtime/sim_math.h"
#include "block.h"
#include "report.h"

static void fail(const sim_fiber *f, const char *what) {
    char where[256];
    sim_where(f, f->site, where, sizeof where);
    sim_report("%s: divergence: %s (mask %08x)", where, what, f->mask);
    sim_fail_block(SIM_DIVERGENCE);
}

/* Returns the source lane of a shuffle, and whether it is in range. `c`: the segment and its
 * bound. */
static int source_of(const sim_fiber *f, bool *in_range) {
    const int lane = (int)f->thread.lane, b = (int)(f->b & 31);
    const int segment = (int)(f->c >> 8 & 31), clamp = (int)(f->c & 31);
    const int least = lane & segment, most = least | (clamp & ~segment);
    int source = lane;
    switch (f->op) {
        case SIM_SHUFFLE_IDX: source = least | (b & ~segment); break;
        case SIM_SHUFFLE_UP: source = lane - b; break;
        case SIM_SHUFFLE_DOWN: source = lane + b; break;
        default: source = lane ^ b;
    }
    *in_range = f->op == SIM_SHUFFLE_UP ? source >= most : source <= most;
    return *in_range ? source : lane;
}

static uint32_t combine(sim_warp_op op, uint32_t a, uint32_t b) {
    switch (op) {
        case SIM_REDUCE_ADD: return a + b;
        case SIM_REDUCE_MIN: return a < b ? a : b;
        case SIM_REDUCE_MAX: return a > b ? a : b;
        case SIM_REDUCE_MIN_SIGNED: return (int32_t)a < (int32_t)b ? a : b;
        case SIM_REDUCE_MAX_SIGNED: return (int32_t)a > (int32_t)b ? a : b;
        case SIM_REDUCE_AND: return a & b;
        case SIM_REDUCE_OR: return a | b;
        default: return a ^ b;
    }
}

static void give_result(sim_fiber *warp, sim_fiber *f, uint32_t active) {
    uint32_t equal = 0, truths = 0, total = 0;
    bool has_total = false;
    for (uint32_t i = 0; i < SIM_WARP; i++) {
        if (!(active >> i & 1)) continue;
        equal |= (uint32_t)(warp[i].value == f->value) << i;
        truths |= (uint32_t)(warp[i].value != 0) << i;
        total = has_total ? combine(f->op, total, warp[i].value) : warp[i].value;
        has_total = true;
    }
    switch (f->op) {
        case SIM_SYNC: break;
        case SIM_VOTE_ALL: f->result = truths == active; break;
        case SIM_VOTE_ANY: f->result = truths != 0; break;
        case SIM_VOTE_UNI: f->result = truths == 0 || truths == active; break;
        case SIM_VOTE_BALLOT: f->result = truths; break;
        case SIM_MATCH_ANY: f->result = equal; break;
        case SIM_MATCH_ALL:
            f->predicate = equal == active;
            f->result = f->predicate ? active : 0;
            break;
        case SIM_SHUFFLE_IDX:
        case SIM_SHUFFLE_UP:
        case SIM_SHUFFLE_DOWN:
        case SIM_SHUFFLE_BFLY: {
            const int source = source_of(f, &f->predicate);
            if (!(active >> source & 1)) fail(f, "a shuffle reads a lane that takes no part");
            f->result = warp[source].value;
            break;
        }
        default: f->result = total;
    }
}

/* Returns an element of a matrix in the manual's layout: lane = 4 * group + place. */
static double element(const sim_product *p, const uint32_t *registers, int half) {
    const uint32_t bits = registers[half / 2];
    switch (p->type) {
        case SIM_F16: return sim_from_f16((uint16_t)(bits >> 16 * (half & 1)));
        case SIM_BF16: return sim_from_bf16((uint16_t)(bits >> 16 * (half & 1)));
        default: return sim_f32(registers[half] & 0xffffe000u); /* tf32: 10 fraction bits */
    }
}

/* A[row][k] is in lane (row % 8, k / step % 4), B[k][column] in lane (column, k / step % 4). */
static double a_at(sim_fiber *warp, int row, int k) {
    const sim_product *any = warp[0].operands;
    const int step = any->type == SIM_TF32 ? 1 : 2, in_step = k % step, part = k / (4 * step);
    const sim_product *p = warp[row % 8 * 4 + k / step % 4].operands;
    return element(p, p->a, (part * 2 + row / 8) * step + in_step);
}
static double b_at(sim_fiber *warp, int k, int column) {
    const sim_product *any = warp[0].operands;
    const int step = any->type == SIM_TF32 ? 1 : 2, in_step = k % step, part = k / (4 * step);
    const sim_product *p = warp[column * 4 + k / step % 4].operands;
    return element(p, p->b, part * step + in_step);
}

/* Computes D = A B + C. Products are exact and summed in double, then rounded once. Tensor cores
 * truncate the summands, so results may differ by a few units of the last place of the largest
 * summand. */
static void multiply(sim_fiber *warp) {
    for (int lane = 0; lane < SIM_WARP; lane++) {
        const sim_product *p = warp[lane].operands;
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = sim_f32(p->sum[i]);
            for (int k = 0; k < p->k; k++) sum += a_at(warp, row, k) * b_at(warp, k, column);
            p->sum[i] = sim_bits32((float)sum);
        }
    }
}

typedef struct matrix_load {
    uint64_t address;
    int count;
    bool transposed;
    uint32_t *out;
} matrix_load;

/* Lane 8 m + r has the address of row r of matrix m; lane l gets element 2 (l % 4) and the next of
 * row l / 4, or of that column if the matrices are transposed. */
static void load_matrices(sim_fiber *warp) {
    for (int lane = 0; lane < SIM_WARP; lane++) {
        const matrix_load *own = warp[lane].operands;
        for (int m = 0; m < own->count; m++) {
            uint32_t pair = 0;
            for (int i = 0; i < 2; i++) {
                int row = lane / 4, column = lane % 4 * 2 + i;
                if (own->transposed) row = lane % 4 * 2 + i, column = lane / 4;
                const matrix_load *from = warp[8 * m + row].operands;
                const char *at = sim_host(from->address + (uint64_t)column * 2);
                pair |= (uint32_t)sim_load16(at) << 16 * i;
            }
            own->out[m] = pair;
        }
    }
}

void sim_finish_warp(sim_fiber *f, const sim_fiber *running) {
    const uint32_t w = f->thread.id / SIM_WARP, active = f->mask & ~sim_now.gone[w];
    sim_fiber *warp = &sim_fibers[w * SIM_WARP];
    if ((sim_now.arrived[w] & active) != active) return;
    uint16_t clock = 0;
    for (uint32_t i = 0; i < SIM_WARP; i++) {
        if (!(active >> i & 1)) continue;
        if (warp[i].site != f->site || warp[i].mask != f->mask)
            fail(&warp[i], "lanes of one mask wait in different warp operations");
        if (warp[i].warps > clock) clock = warp[i].warps;
    }
    if (f->op >= SIM_MULTIPLY && active != UINT32_MAX)
        fail(f, "a matrix operation needs all lanes");
    if (f->op == SIM_MULTIPLY) multiply(warp);
    if (f->op == SIM_LOAD_MATRIX) load_matrices(warp);
    for (uint32_t i = 0; i < SIM_WARP && f->op < SIM_MULTIPLY; i++)
        if (active >> i & 1) give_result(warp, &warp[i], active);
    sim_now.arrived[w] &= ~active;
    for (uint32_t i = 0; i < SIM_WARP; i++) {
        if (!(active >> i & 1)) continue;
        warp[i].warps = clock + 1;
        if (&warp[i] == running) warp[i].state = READY;
        else sim_wake(&warp[i]);
    }
}

static void meet(sim_fiber *f, uint32_t site, sim_warp_op op, uint32_t mask) {
    f->site = site;
    f->op = op;
    f->mask = mask;
    f->state = IN_WARP_OP;
    if (!(mask >> f->thread.lane & 1)) fail(f, "the lane is not in its own mask");
    sim_now.arrived[f->thread.id / SIM_WARP] |= 1u << f->thread.lane;
    sim_finish_warp(f, f);
    sim_wait(f);
}

static uint32_t on_warp(sim_thread *t, uint32_t site, sim_warp_op op, uint32_t mask, uint32_t value,
                        uint32_t b, uint32_t c, bool *predicate) {
    if (sim_is_left_out(site)) return value;
    sim_fiber *f = (sim_fiber *)t;
    f->value = value;
    f->b = b;
    f->c = c;
    f->predicate = true;
    meet(f, site, op, mask);
    *predicate = f->predicate;
    return f->result;
}

static void on_multiply(sim_thread *t, uint32_t site, const sim_product *product) {
    sim_fiber *f = (sim_fiber *)t;
    f->operands = product;
    meet(f, site, SIM_MULTIPLY, UINT32_MAX);
}

static void on_load_matrix(sim_thread *t, uint32_t site, uint64_t address, int count,
                           bool transposed, uint32_t out[4]) {
    sim_fiber *f = (sim_fiber *)t;
    const matrix_load load = {address, count, transposed, out};
    if ((int)t->lane < 8 * count) sim_check(t, site, address, 16, SIM_READ);
    f->operands = &load;
    meet(f, site, SIM_LOAD_MATRIX, UINT32_MAX);
}

const sim_hooks sim_warp_hooks = {
    .warp = on_warp, .multiply = on_multiply, .load_matrix = on_load_matrix};
