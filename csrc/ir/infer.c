/* The rule table. */
#include "infer.h"

#include <inttypes.h>

#include "infer_rules.h"

typedef cb_status (*infer_fn)(cb_infer *x, cb_error *err);

static const infer_fn rules[CB_OP_COUNT] = {
#define CB_OP(id, name, min_ins, max_ins, n_outs, flags, infer, vjp, attrs, doc) \
    [CB_OP_##id] = cb_infer_##infer,
#include "ops.def"
#undef CB_OP
};

/* Axes of size 1 are never stepped along, so their stride does not matter. */
bool cb_is_matrix(const cb_shape *s, const int64_t *stride) {
    if (s->rank < 2) return false;
    if (cb_numel(s) == 0) return true;
    int64_t n = s->dim[s->rank - 2], m = s->dim[s->rank - 1];
    int64_t down = stride[s->rank - 2], right = stride[s->rank - 1];
    bool rows = (m == 1 || right == 1) && (n == 1 || down >= m);
    bool columns = (n == 1 || down == 1) && (m == 1 || right >= n);
    return rows || columns;
}

/* Checks that the op's kernel can read the layouts. Views have their own rules. */
static cb_status check_layouts(const cb_infer *x, cb_error *err) {
    uint32_t flags = cb_op_def_of(x->code)->flags;
    if (flags & (CB_OPF_STRIDED | CB_OPF_VIEW)) return CB_OK;
    for (uint32_t i = 0; i < x->n_ins; i++) {
        const cb_value *in = x->in[i];
        if ((flags & CB_OPF_MATRIX) && in->shape.rank >= 2 &&
            !cb_is_matrix(&in->shape, in->stride)) {
            return cb_fail(err, CB_INVALID,
                           "%s: input %" PRIu32
                           " is neither row- nor column-major in its last two axes; "
                           "add `contiguous` first",
                           cb_infer_name(x), i);
        }
        if (!(flags & CB_OPF_MATRIX) && !cb_is_contiguous(&in->shape, in->stride)) {
            return cb_fail(err, CB_INVALID,
                           "%s: input %" PRIu32 " is not contiguous; add `contiguous` first",
                           cb_infer_name(x), i);
        }
    }
    return CB_OK;
}

cb_status cb_infer_outputs(cb_infer *x, cb_error *err) {
    const cb_op_def *def = cb_op_def_of(x->code);
    CB_TRY(check_layouts(x, err));
    CB_TRY(rules[x->code](x, err));
    for (int i = 0; i < def->n_outs; i++) {
        cb_value *out = &x->out[i];
        cb_error why = {0};
        uint64_t bytes;
        int64_t numel;
        cb_status status = def->flags & CB_OPF_VIEW
                               ? cb_shape_numel(&out->shape, &numel, &why)
                               : cb_shape_bytes(&out->shape, out->dtype, &bytes, &why);
        if (status != CB_OK) return cb_fail(err, status, "%s: %s", def->name, why.text);
        for (int32_t k = out->shape.rank; k < CB_MAX_RANK; k++) out->shape.dim[k] = 0;
        if (!(def->flags & CB_OPF_VIEW)) cb_shape_strides(&out->shape, out->stride);
    }
    return CB_OK;
}
