/* A member uses only members before it, so one pass from the last to the first finds a slice. */
#include "inside.h"

#include <math.h>

#define MOST_BYTES (UINT64_C(1) << 60)
#define MOST_TIME \
    (INT64_C(1)   \
     << 43) /* limit for one member, which keeps the sum over all members of an op within
                          range */

static uint64_t low_bits(uint32_t n) { return n >= 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1; }

cb_slice cb_slice_of(const cb_problem *p, uint32_t op, uint32_t made) {
    cb_slice slice = {0, UINT64_MAX};
    if (!cb_has_inside(p, op)) return slice;
    const cb_member *member = p->member + p->member_begin[op];
    slice.inputs = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        if (cb_makes(made, v - p->out_begin[op]))
            slice.members |= UINT64_C(1) << p->value_member[v];
    }
    for (uint32_t m = p->member_begin[op + 1] - p->member_begin[op]; m-- > 0;) {
        if (!(slice.members >> m & 1)) continue;
        slice.members |= member[m].uses;
        slice.inputs |= member[m].reads;
    }
    return slice;
}

uint64_t cb_run_workspace(const cb_problem *p, uint32_t op, uint32_t made) {
    uint64_t bytes = p->op_workspace[op];
    if (!cb_has_inside(p, op)) return bytes;
    const cb_member *member = p->member + p->member_begin[op];
    uint64_t members = cb_slice_of(p, op, made).members;
    for (uint32_t m = 0; m < p->member_begin[op + 1] - p->member_begin[op]; m++)
        bytes += members >> m & 1 ? member[m].workspace : 0;
    return bytes;
}

cb_status cb_refuse_insides(const cb_problem *p, const char *what, cb_error *err) {
    if (!p->member_begin) return CB_OK;
    return cb_fail(
        err, CB_UNSUPPORTED,
        "%s: not supported for ops with insides, which groups=True makes; plan without groups",
        what);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static cb_status verify_size(const cb_problem *p, uint32_t op, cb_error *err) {
    uint32_t n_member = p->member_begin[op + 1] - p->member_begin[op],
             n_in = p->in_begin[op + 1] - p->in_begin[op],
             n_out = p->out_begin[op + 1] - p->out_begin[op];
    if (n_member > CB_MOST_MEMBERS || n_in > CB_MOST_INNER_INPUTS ||
        n_out > CB_MOST_INNER_OUTPUTS) {
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): an inside of %u members, %u inputs and %u outputs; the limits "
                       "are %d, %d and %d",
                       op, p->op_name[op], n_member, n_in, n_out, CB_MOST_MEMBERS,
                       CB_MOST_INNER_INPUTS, CB_MOST_INNER_OUTPUTS);
    }
    uint32_t flags = p->op_flags[op];
    if (flags & (CB_POP_ONCE | CB_POP_PLACEHOLDER | CB_POP_VIEW)) {
        return cb_fail(
            err, CB_INVALID,
            "op %u (%s): an op that runs once, a view or a placeholder cannot have an inside", op,
            p->op_name[op]);
    }
    return CB_OK;
}

static cb_status verify_member(const cb_problem *p, uint32_t op, uint32_t at, cb_error *err) {
    const cb_member *m = &p->member[p->member_begin[op] + at];
    const char *name = p->op_name[op];
    uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op];
    if (m->flags & ~(uint32_t)CB_POP_INNER)
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): member %u has a flag that members must not have", op, name, at);
    if (m->reads & ~low_bits(n_in))
        return cb_fail(err, CB_INVALID, "op %u (%s): member %u reads an input beyond the op's %u",
                       op, name, at, n_in);
    if (m->uses & ~low_bits(at))
        return cb_fail(err, CB_INVALID, "op %u (%s): member %u uses a member that is not before it",
                       op, name, at);
    if (!isfinite(m->flops) || m->flops < 0 || m->bytes > MOST_BYTES || m->size > MOST_BYTES ||
        m->work_class >= CB_WORK_CLASS_COUNT || m->time_ps < -1 || m->time_ps > MOST_TIME) {
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): the work of member %u is out of range (bytes to 2^60, "
                       "picoseconds to 2^43)",
                       op, name, at);
    }
    return CB_OK;
}

/* Every output has a separate storage, and is the value of a different member. */
static cb_status verify_outputs(const cb_problem *p, uint32_t op, const uint32_t *root,
                                cb_error *err) {
    uint64_t made = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v], m = p->value_member[v];
        if (m >= p->member_begin[op + 1] - p->member_begin[op] || (made >> m & 1)) {
            return cb_fail(
                err, CB_INVALID,
                "value %u of %s: each output must be the value of a different member (%u)", v,
                p->op_name[op], m);
        }
        made |= UINT64_C(1) << m;
        bool own = root[s] == op;
        for (uint32_t u = p->out_begin[op]; u < v; u++) own &= p->value_storage[u] != s;
        if (!own) {
            return cb_fail(err, CB_INVALID,
                           "value %u of %s: an output of an op with an inside needs a separate "
                           "storage, which the op makes",
                           v, p->op_name[op]);
        }
    }
    return CB_OK;
}

/* A value that does not depend on a tangent may be read in either phase, so a separate op makes
 * it. */
static cb_status verify_tangents(const cb_problem *p, uint32_t op, cb_error *err) {
    uint64_t inputs = 0, members = 0;
    if (!(p->op_flags[op] & CB_POP_BACKWARD)) return CB_OK;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        bool tangent = p->op_flags[p->value_op[p->in_value[j]]] & CB_POP_BACKWARD;
        inputs |= (uint64_t)tangent << (j - p->in_begin[op]);
    }
    for (uint32_t i = p->member_begin[op]; i < p->member_begin[op + 1]; i++) {
        const cb_member *m = &p->member[i];
        if ((m->reads & inputs) || (m->uses & members))
            members |= UINT64_C(1) << (i - p->member_begin[op]);
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        if (members >> p->value_member[v] & 1) continue;
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): value %u does not depend on a tangent, but the op is in the "
                       "backward; make it in an op of the forward",
                       op, p->op_name[op], v);
    }
    return CB_OK;
}

cb_status cb_verify_inside(const cb_problem *p, uint32_t op, const uint32_t *root, cb_error *err) {
    CB_TRY(verify_size(p, op, err));
    uint32_t n = p->member_begin[op + 1] - p->member_begin[op];
    for (uint32_t m = 0; m < n; m++) CB_TRY(verify_member(p, op, m, err));
    CB_TRY(verify_outputs(p, op, root, err));
    cb_slice all = cb_slice_of(p, op, cb_all_made(p, op));
    if (all.members != low_bits(n) ||
        (all.inputs & low_bits(p->in_begin[op + 1] - p->in_begin[op])) !=
            low_bits(p->in_begin[op + 1] - p->in_begin[op])) {
        return cb_fail(err, CB_INVALID,
                       "op %u (%s): a member that leads to no output, or an input that no member "
                       "reads",
                       op, p->op_name[op]);
    }
    return verify_tangents(p, op, err);
}
