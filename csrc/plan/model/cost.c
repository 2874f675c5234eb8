/* Roofline model: an op takes the time of its arithmetic or of its traffic, whichever is longer,
 * plus a launch. The rows hold dense peaks and bandwidths from the vendors' data sheets, in decimal
 * units. */
#include "cost.h"

#include <math.h>
#include <string.h>

#define PS_PER_S 1e12
#define MOST_PS 1e15      /* limit for one op, the same as that of measured times */
#define MOST_SUMMANDS 256 /* terms in the time of an op with an inside, and of its inlined values */

_Static_assert(1 + CB_MOST_MEMBERS + CB_MOST_INNER_OUTPUTS + CB_MOST_INLININGS <= MOST_SUMMANDS,
               "the array holds all summands");

_Static_assert(CB_WORK_CLASS_COUNT == 5 && CB_WORK_INT == 4, "the columns of the table");

/* f32 on a GPU means TF32 matrix units, as deep-learning frameworks run f32 products there; no row
 * assumes sparsity. The int column is the rate of the vector units. Sources: NVIDIA's data sheets
 * "A100 40GB" (SXM), "H100 Tensor Core GPU" (SXM), "H200 Tensor Core GPU" (SXM), "HGX B200" (one of
 * eight) and "Ada GPU architecture" (GeForce RTX 4090, f32 accumulation); a launch takes 2 us on
 * all GPUs. The cpu row is a guess for two cores of a server, since no row can fit all CPUs; a
 * profile replaces it.
 *
 * The link to the host is one direction of what the same sheets state: PCIe 5.0 x16, 128 GB/s both
 * ways, for h100, h200 and b200, PCIe 4.0 x16 for rtx4090. The a100 row has 25 GB/s, the rate of
 * pinned copies over PCIe 4.0 x16. If the device is the host, a move is a copy in memory, which
 * reads and writes each byte and therefore runs at half of the memory's rate. */
static const cb_device devices[] = {
    /* name, flop/s of f32, f64, f16, bf16 and int, bytes/s, seconds per launch, bytes/s of the
     * link, fused, arithmetic rates of ops that fuse (none given) */
    {"cpu", {100e9, 50e9, 100e9, 100e9, 50e9}, 20e9, 1e-6, 10e9, false, {0}},
    {"a100", {156e12, 19.5e12, 312e12, 312e12, 19.5e12}, 1.555e12, 2e-6, 25e9, false, {0}},
    {"h100", {494.7e12, 67e12, 989.4e12, 989.4e12, 33.5e12}, 3.35e12, 2e-6, 64e9, false, {0}},
    {"h200", {494.7e12, 67e12, 989.4e12, 989.4e12, 33.5e12}, 4.8e12, 2e-6, 64e9, false, {0}},
    {"b200", {1100e12, 37e12, 2250e12, 2250e12, 37e12}, 7.7e12, 2e-6, 64e9, false, {0}},
    {"rtx4090", {82.6e12, 1.29e12, 165.2e12, 165.2e12, 41.3e12}, 1.008e12, 2e-6, 32e9, false, {0}},
};

const cb_device *cb_device_find(const char *name) {
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i].name, name) == 0) return &devices[i];
    return NULL;
}

cb_status cb_unknown_device(const char *name, cb_error *err) {
    char list[128] = "";
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (strlen(list) + strlen(devices[i].name) + 3 > sizeof list) break;
        if (i > 0) strcat(list, ", ");
        strcat(list, devices[i].name);
    }
    return cb_fail(err, CB_INVALID,
                   "no device is called \"%.40s\"; choose %s, or describe your own device in a "
                   "JSON file (docs/planner.md, section 6)",
                   name, list);
}

double cb_arithmetic_s(const cb_device *device, uint32_t flags, uint32_t work_class, double flops) {
    const bool points = (flags & CB_POP_FUSIBLE) && device->point_per_s[work_class] > 0;
    return flops / (points ? device->point_per_s : device->flops_per_s)[work_class];
}

int64_t cb_own_time_ps(const cb_problem *p, uint32_t op, const cb_device *device) {
    if (p->op_flags[op] & (CB_POP_VIEW | CB_POP_PLACEHOLDER)) return 0;
    if (p->op_time_ps[op] >= 0) return p->op_time_ps[op];
    double arithmetic = cb_arithmetic_s(device, p->op_flags[op], p->op_class[op], p->op_flops[op]);
    bool fused = device->fused && p->fused_bytes;
    double bytes = (double)(fused ? p->fused_bytes[op] : p->op_bytes[op]);
    double launch = fused && !p->fused_launch[op] ? 0 : device->launch_s;
    double rate = device->bytes_per_s;
    if ((p->op_flags[op] & CB_POP_COLLECTIVE) && p->network_bytes_per_s > 0)
        rate = fmin(rate, p->network_bytes_per_s);
    double ps = (fmax(arithmetic, bytes / rate) + launch) * PS_PER_S;
    return (int64_t)fmin(ps + 0.5, MOST_PS);
}

int64_t cb_member_time_ps(const cb_problem *p, uint32_t op, uint32_t member,
                          const cb_device *device) {
    const cb_member *m = &p->member[p->member_begin[op] + member];
    if (m->time_ps >= 0) return m->time_ps;
    double arithmetic = cb_arithmetic_s(device, m->flags, m->work_class, m->flops);
    double ps = fmax(arithmetic, (double)m->bytes / device->bytes_per_s) * PS_PER_S;
    return (int64_t)fmin(ps + 0.5, MOST_PS / MOST_SUMMANDS);
}

int64_t cb_inline_time_ps(const cb_problem *p, uint32_t at, const cb_device *device) {
    const cb_inlining *x = &p->inlining[at];
    if (x->time_ps >= 0) return x->time_ps;
    double arithmetic = cb_arithmetic_s(device, CB_POP_FUSIBLE, x->work_class, x->flops);
    double ps = fmax(arithmetic, (double)x->bytes / device->bytes_per_s) * PS_PER_S;
    return (int64_t)fmin(ps + 0.5, MOST_PS / MOST_SUMMANDS);
}

int64_t cb_taken_time_ps(const cb_problem *p, uint32_t op, uint64_t taken,
                         const cb_device *device) {
    int64_t time_ps = 0;
    for (uint32_t i = 0; taken && i < CB_MOST_INLININGS; i++)
        if (taken >> i & 1) time_ps += cb_inline_time_ps(p, p->inline_begin[op] + i, device);
    return time_ps;
}

int64_t cb_write_time_ps(const cb_problem *p, uint32_t value, const cb_device *device) {
    double ps = (double)cb_value_bytes(p, value) / device->bytes_per_s * PS_PER_S;
    return (int64_t)fmin(ps + 0.5, MOST_PS / MOST_SUMMANDS);
}

int64_t cb_run_time_ps(const cb_problem *p, uint32_t op, uint32_t made, const cb_device *device) {
    int64_t time_ps = cb_own_time_ps(p, op, device);
    if (!cb_has_inside(p, op)) return time_ps;
    uint64_t members = cb_slice_of(p, op, made).members;
    for (uint32_t m = 0; m < p->member_begin[op + 1] - p->member_begin[op]; m++)
        time_ps += members >> m & 1 ? cb_member_time_ps(p, op, m, device) : 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        time_ps += cb_makes(made, v - p->out_begin[op]) ? cb_write_time_ps(p, v, device) : 0;
    return time_ps;
}

int64_t cb_op_time_ps(const cb_problem *p, uint32_t op, const cb_device *device) {
    return cb_run_time_ps(p, op, CB_ALL_OUTPUTS, device);
}

double cb_link_bytes_per_s(const cb_problem *p, const cb_device *device) {
    return p->link_bytes_per_s > 0 ? p->link_bytes_per_s : device->link_bytes_per_s;
}

int64_t cb_copy_time_ps(uint64_t bytes, double link_bytes_per_s) {
    double ps = (double)bytes / link_bytes_per_s * PS_PER_S + 0.5;
    return ps < MOST_PS ? (int64_t)ps : -1;
}
