/* The table behind aten.h. Its first column of marks follows the default op lists of PyTorch 2.13's
 * partitioner; it also recomputes every aten op with the tag `pointwise`, which traced graphs
 * record (FUSIBLE here). Random ops are those that the reference evaluator of traced plans
 * lists. */
#include "aten.h"

#include <ctype.h>
#include <stdlib.h>

typedef struct aten_row {
    const char *name;
    uint32_t bits;
} aten_row;

enum {
    R = CB_ATEN_RECOMPUTE | CB_ATEN_FUSE,
    V = CB_ATEN_RECOMPUTE | CB_ATEN_VIEW,
    S = CB_ATEN_RECOMPUTE | CB_ATEN_REDUCE,
    F = CB_ATEN_FUSE
};

static const aten_row table[] = {
    /* sorted by name */
    {"_operator.getitem", CB_ATEN_RECOMPUTE | CB_ATEN_GETITEM},
    {"aten.__and__", R},
    {"aten.__lshift__", R},
    {"aten.__or__", R},
    {"aten.__rshift__", R},
    {"aten.__xor__", R},
    {"aten._grad_sum_to_size", S},
    {"aten._to_copy", R},
    {"aten._unsafe_view", R},
    {"aten.abs", R},
    {"aten.acos", R},
    {"aten.add", R},
    {"aten.addcmul", R},
    {"aten.alias", V},
    {"aten.amax", S},
    {"aten.amin", CB_ATEN_REDUCE},
    {"aten.any", S},
    {"aten.arange", R},
    {"aten.argmax", S},
    {"aten.argmin", CB_ATEN_REDUCE},
    {"aten.as_strided", V},
    {"aten.asin", R},
    {"aten.atan", R},
    {"aten.atan2", R},
    {"aten.atanh", R},
    {"aten.bitwise_not", R},
    {"aten.broadcast_tensors", R},
    {"aten.cat", CB_ATEN_JOIN | CB_ATEN_FUSE},
    {"aten.ceil", R},
    {"aten.clamp", R},
    {"aten.clone", R},
    {"aten.constant_pad_nd", F},
    {"aten.copy", F},
    {"aten.cos", R},
    {"aten.cosh", R},
    {"aten.div", R},
    {"aten.embedding", F},
    {"aten.empty", R},
    {"aten.empty_like", R},
    {"aten.eq", R},
    {"aten.erf", R},
    {"aten.erfc", R},
    {"aten.exp", R},
    {"aten.expand", V},
    {"aten.expm1", R},
    {"aten.floor", R},
    {"aten.fmod", R},
    {"aten.frac", R},
    {"aten.full", R},
    {"aten.full_like", R},
    {"aten.gather", R},
    {"aten.ge", R},
    {"aten.gelu", R},
    {"aten.gelu_backward", R},
    {"aten.gt", R},
    {"aten.index", R},
    {"aten.isinf", R},
    {"aten.le", R},
    {"aten.lerp", R},
    {"aten.lgamma", R},
    {"aten.lift_fresh_copy", R},
    {"aten.log", R},
    {"aten.log10", R},
    {"aten.log1p", R},
    {"aten.log2", R},
    {"aten.lt", R},
    {"aten.max", R},
    {"aten.maximum", R},
    {"aten.mean", S},
    {"aten.min", R},
    {"aten.mul", R},
    {"aten.native_dropout", CB_ATEN_RANDOM},
    {"aten.ne", R},
    {"aten.neg", R},
    {"aten.new_zeros", R},
    {"aten.ones", R},
    {"aten.permute", V},
    {"aten.pow", R},
    {"aten.rand_like", CB_ATEN_RANDOM},
    {"aten.randn_like", CB_ATEN_RANDOM},
    {"aten.reciprocal", R},
    {"aten.relu", R},
    {"aten.remainder", R},
    {"aten.reshape", R},
    {"aten.round", R},
    {"aten.rsqrt", R},
    {"aten.rsub", R},
    {"aten.scalar_tensor", R},
    {"aten.select", V},
    {"aten.select_scatter", F},
    {"aten.sigmoid", R},
    {"aten.silu", R},
    {"aten.sin", R},
    {"aten.sinh", R},
    {"aten.slice", V},
    {"aten.slice_scatter", F},
    {"aten.softplus", R},
    {"aten.split", V},
    {"aten.sqrt", R},
    {"aten.squeeze", V},
    {"aten.std", S},
    {"aten.sub", R},
    {"aten.sum", S},
    {"aten.sum_to_size", S},
    {"aten.t", V},
    {"aten.tan", R},
    {"aten.tanh", R},
    {"aten.threshold", R},
    {"aten.threshold_backward", R},
    {"aten.to", R},
    {"aten.triu", R},
    {"aten.trunc", R},
    {"aten.type_as", R},
    {"aten.unsqueeze", V},
    {"aten.var", S},
    {"aten.var_mean", S},
    {"aten.view", V},
    {"aten.where", R},
    {"aten.zeros", R},
    {"aten.zeros_like", R},
    {"prims._low_memory_max_pool_offsets_to_indices", R},
    {"prims.broadcast_in_dim", V},
    {"prims.convert_element_type", R},
    {"prims.div", R},
    {"prims.fma", F},
    {"prims.iota", R},
    {"prims.prepare_softmax_online", S},
    {"prims.sum", S},
    {"prims.var", S},
};

/* In these ops each output element depends only on the input elements at the same position, and is
 * written after these are read. */
/* clang-format off */
static const char *const over_names[] = { /* sorted */
    "aten.abs", "aten.acos", "aten.acosh", "aten.add", "aten.addcdiv", "aten.addcmul",
    "aten.asin", "aten.asinh", "aten.atan", "aten.atan2", "aten.atanh", "aten.bitwise_and",
    "aten.bitwise_not", "aten.bitwise_or", "aten.bitwise_xor", "aten.ceil", "aten.clamp",
    "aten.clamp_max", "aten.clamp_min", "aten.copysign", "aten.cos", "aten.cosh", "aten.div",
    "aten.elu", "aten.elu_backward", "aten.eq", "aten.erf", "aten.erfc", "aten.exp",
    "aten.exp2", "aten.expm1", "aten.floor", "aten.fmod", "aten.frac", "aten.ge", "aten.gelu",
    "aten.gelu_backward", "aten.gt", "aten.hardsigmoid", "aten.hardsigmoid_backward",
    "aten.hardswish", "aten.hardswish_backward", "aten.hardtanh", "aten.hardtanh_backward",
    "aten.le", "aten.leaky_relu", "aten.leaky_relu_backward", "aten.lerp", "aten.lgamma",
    "aten.log", "aten.log10", "aten.log1p", "aten.log2", "aten.logical_and", "aten.logical_not",
    "aten.logical_or", "aten.logical_xor", "aten.lt", "aten.masked_fill", "aten.maximum",
    "aten.minimum", "aten.mish", "aten.mul", "aten.ne", "aten.neg", "aten.pow",
    "aten.reciprocal", "aten.relu", "aten.remainder", "aten.round", "aten.rsqrt", "aten.rsub",
    "aten.sigmoid", "aten.sigmoid_backward", "aten.sign", "aten.silu", "aten.silu_backward",
    "aten.sin", "aten.sinh", "aten.softplus", "aten.softplus_backward", "aten.sqrt",
    "aten.square", "aten.sub", "aten.tan", "aten.tanh", "aten.tanh_backward", "aten.threshold",
    "aten.threshold_backward", "aten.trunc", "aten.where", "aten.xlogy", "prims.div",
    "prims.fma",
};
/* clang-format on */

static const char *const random_words[] = {"rand",   "dropout", "bernoulli", "multinomial",
                                           "normal", "philox",  "uniform"};
static const char *const compute_words[] = {"mm.", "addmm", "bmm", "convolution", "attention"};
static const char *const known_spaces[] = {"aten.", "prims.", "_operator."};

/* Returns the length of "aten.mul" in "aten.mul.Tensor". */
static size_t packet_length(const char *op) {
    const char *dot = strchr(op, '.');
    if (dot) dot = strchr(dot + 1, '.');
    return dot ? (size_t)(dot - op) : strlen(op);
}

static int compare_row(const void *key, const void *item) {
    const char *op = key, *name = ((const aten_row *)item)->name;
    size_t length = packet_length(op);
    int order = strncmp(op, name, length);
    return order != 0 ? order : name[length] ? -1 : 0;
}

uint32_t cb_aten_row(const char *op) {
    const aten_row *row =
        bsearch(op, table, sizeof table / sizeof *table, sizeof *table, compare_row);
    return row ? row->bits : 0;
}

/* True if the lower-case `word` occurs in `text`, ignoring case. */
static bool holds(const char *text, const char *word) {
    for (; *text; text++) {
        size_t i = 0;
        while (word[i] && tolower((unsigned char)text[i]) == word[i]) i++;
        if (!word[i]) return true;
    }
    return false;
}

static bool holds_any(const char *text, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (holds(text, words[i])) return true;
    return false;
}

static bool is_pytorch(const char *op) {
    for (size_t i = 0; i < sizeof known_spaces / sizeof *known_spaces; i++)
        if (strncmp(op, known_spaces[i], strlen(known_spaces[i])) == 0) return true;
    return false;
}

uint32_t cb_aten_flags(const char *op) {
    uint32_t row = cb_aten_row(op), flags = 0;
    if (row & CB_ATEN_FUSE) flags |= CB_POP_FUSIBLE;
    if (row & CB_ATEN_REDUCE) flags |= CB_POP_FUSIBLE | CB_POP_REDUCTION;
    if (holds_any(op, compute_words, sizeof compute_words / sizeof *compute_words))
        flags |= CB_POP_COMPUTE;
    if (holds_any(op, random_words, sizeof random_words / sizeof *random_words) &&
        !holds(op, "dropout_backward"))
        flags |= CB_POP_RANDOM_STATEFUL;
    if (strncmp(op, "_c10d_functional.", 17) == 0) flags |= CB_POP_COLLECTIVE;
    else if (!is_pytorch(op)) flags |= CB_POP_UNKNOWN;
    return flags;
}

static int compare_name(const void *key, const void *item) {
    const char *op = key, *name = *(const char *const *)item;
    size_t length = packet_length(op);
    int order = strncmp(op, name, length);
    return order != 0 ? order : name[length] ? -1 : 0;
}

bool cb_aten_may_be_over(const char *op) {
    return bsearch(op, over_names, sizeof over_names / sizeof *over_names, sizeof *over_names,
                   compare_name) != NULL;
}

uint32_t cb_aten_class(const cb_problem *p, uint32_t op) {
    const char *kind = p->op_kind[op];
    uint32_t flags = p->op_flags[op], row = cb_aten_row(kind);
    if (row) return row;
    bool pointwise = (flags & (CB_POP_FUSIBLE | CB_POP_REDUCTION)) == CB_POP_FUSIBLE;
    if (is_pytorch(kind))
        return pointwise && strncmp(kind, "aten.", 5) == 0 ? CB_ATEN_RECOMPUTE : 0;
    if (flags & CB_POP_VIEW) return CB_ATEN_RECOMPUTE | CB_ATEN_VIEW;
    return flags & CB_POP_FUSIBLE ? CB_ATEN_RECOMPUTE : 0;
}
