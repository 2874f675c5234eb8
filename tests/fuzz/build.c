/* Bytes -> a small valid graph, made op by op with the builder -> run by every backend
 * (everywhere.h). Any bytes give a graph: a byte selects an op of ops.def, the next ones its inputs
 * and attributes, which are interpreted by their names in the table. An op that the builder refuses
 * must leave the graph as it was. `fuzz_build --seeds FOLDER` writes graphs as text and as JSON. */
#include "everywhere.h"

#include "ir/builder.h"
#include "ir/text.h"

#define MOST_OPS 24
#define MOST_ELEMENTS 600

typedef struct work {
    cb_graph *g;
    bytes *b;
    cb_value_id value[128]; /* results and inputs, for later ops to read */
    uint32_t n;
    cb_dtype dtype; /* for new floats */
    uint32_t n_inputs;
} work;

static const cb_shape *shape_of(const work *w, cb_value_id v) { return &w->g->values.at[v].shape; }
static cb_dtype dtype_of(const work *w, cb_value_id v) { return w->g->values.at[v].dtype; }

static void keep(work *w, cb_value_id v) {
    if (w->n < sizeof w->value / sizeof *w->value && cb_numel(shape_of(w, v)) <= MOST_ELEMENTS)
        w->value[w->n++] = v;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static cb_value_id add_input(work *w, cb_role role, cb_dtype dtype, cb_shape shape) {
    cb_value_id v = w->value[0];
    if (w->n_inputs >= MOST_ARGUMENTS / 4) return v;
    EXPECT_OK(cb_graph_add_input(w->g, "", role, dtype, shape, &v, &err));
    w->n_inputs++;
    return v;
}

static cb_role take_role(work *w) { return take_below(w->b, 4) ? CB_ROLE_PARAM : CB_ROLE_DATA; }

static cb_shape take_shape(work *w) {
    static const int64_t sizes[] = {2, 3, 4, 5, 1, 7, 8, 0, 2, 3, 4, 6, 1, 17, 2, 3};
    static const int32_t ranks[] = {2, 2, 2, 3, 1, 4, 4, 0, 2, 2, 3, 1, 5, 2, 2, 2};
    cb_shape shape = {.rank = ranks[take_below(w->b, 16)]};
    for (int32_t k = 0; k < shape.rank; k++) shape.dim[k] = sizes[take_below(w->b, 16)];
    return cb_numel(&shape) <= MOST_ELEMENTS ? shape : (cb_shape){.rank = 2, .dim = {3, 4}};
}

static cb_value_id take_value(work *w) { /* recent ones are more likely */
    const uint32_t r = take(w->b);
    return w->value[r < 192 ? w->n - 1 - r % (w->n < 5 ? w->n : 5) : r % w->n];
}

/* Finds a value for which `fits` with `like`, starting at a position given by a byte. */
static cb_value_id find_value(work *w, cb_value_id like,
                              bool (*fits)(const work *, cb_value_id, cb_value_id)) {
    const uint32_t start = take(w->b);
    for (uint32_t k = 0; k < w->n; k++) {
        const cb_value_id v = w->value[(start + w->n - k) % w->n];
        if (fits(w, v, like)) return v;
    }
    return CB_NONE;
}

static bool broadcasts(const work *w, cb_value_id v, cb_value_id like) {
    cb_shape shape;
    return dtype_of(w, v) == dtype_of(w, like) &&
           cb_shape_broadcast(shape_of(w, v), shape_of(w, like), &shape, NULL) == CB_OK &&
           cb_numel(&shape) <= MOST_ELEMENTS;
}

static bool is_float(const work *w, cb_value_id v, cb_value_id like) {
    (void)like;
    return cb_dtype_is_float(dtype_of(w, v));
}

static bool is_bool(const work *w, cb_value_id v, cb_value_id like) {
    cb_shape shape;
    return dtype_of(w, v) == CB_BOOL &&
           cb_shape_broadcast(shape_of(w, v), shape_of(w, like), &shape, NULL) == CB_OK &&
           cb_numel(&shape) <= MOST_ELEMENTS;
}

static bool multiplies(const work *w, cb_value_id v, cb_value_id like) {
    const cb_shape *a = shape_of(w, like), *b = shape_of(w, v);
    return dtype_of(w, v) == dtype_of(w, like) && a->rank > 0 && b->rank > 1 &&
           a->dim[a->rank - 1] == b->dim[b->rank - 2];
}

/* ---- special inputs of some ops
 * --------------------------------------------------------------- */

static cb_value_id new_channel(work *w, cb_value_id x, int32_t axis) {
    const cb_shape *s = shape_of(w, x);
    if (axis < 0) axis += s->rank;
    const cb_shape shape = {.rank = 1, .dim = {axis >= 0 && axis < s->rank ? s->dim[axis] : 1}};
    return add_input(w, take_role(w), dtype_of(w, x), shape);
}

/* Makes indices into `x`: along `axis`, or replacing its last axes. */
static cb_value_id new_index(work *w, cb_value_id x, int drop) {
    cb_shape shape = *shape_of(w, x);
    if (drop && shape.rank > 0) shape.rank--;
    if (take_below(w->b, 4) == 0 && shape.rank > 0)
        shape.dim[take_below(w->b, (uint32_t)shape.rank)] = take_below(w->b, 5);
    if (cb_numel(&shape) > MOST_ELEMENTS) shape = *shape_of(w, x);
    return add_input(w, CB_ROLE_DATA, take_below(w->b, 2) ? CB_I32 : CB_I64, shape);
}

static cb_value_id new_filter(work *w, cb_value_id x, int64_t groups) {
    const cb_shape *s = shape_of(w, x);
    const int64_t channels = s->rank == 4 ? s->dim[1] / groups : 1;
    cb_shape shape = {.rank = 4,
                      .dim = {groups * (1 + take_below(w->b, 3)), channels, 1 + take_below(w->b, 3),
                              1 + take_below(w->b, 3)}};
    if (cb_numel(&shape) > MOST_ELEMENTS) shape.dim[0] = groups;
    return add_input(w, take_role(w), dtype_of(w, x), shape);
}

static cb_value_id new_plane(work *w) {
    const cb_shape shape = {.rank = 4,
                            .dim = {1 + take_below(w->b, 2), 1 + take_below(w->b, 4),
                                    1 + take_below(w->b, 6), 1 + take_below(w->b, 6)}};
    return add_input(w, take_role(w), w->dtype, shape);
}

static cb_value_id second_factor(work *w, cb_value_id x) {
    const cb_shape *s = shape_of(w, x);
    cb_value_id v = take_below(w->b, 2) ? find_value(w, x, multiplies) : CB_NONE;
    if (v != CB_NONE) return v;
    const cb_shape shape = {.rank = 2,
                            .dim = {s->rank ? s->dim[s->rank - 1] : 1, 1 + take_below(w->b, 6)}};
    return add_input(w, take_role(w), dtype_of(w, x), shape);
}

static cb_value_id find_or(work *w, cb_value_id like, cb_value_id otherwise,
                           bool (*fits)(const work *, cb_value_id, cb_value_id)) {
    const cb_value_id v = find_value(w, like, fits);
    return v == CB_NONE ? otherwise : v;
}

static cb_value_id new_mask(work *w, cb_value_id x) {
    const cb_value_id zero = find_or(w, x, x, broadcasts);
    cb_value_id mask = x;
    if (cb_build2(w->g, take_below(w->b, 2) ? CB_OP_LT : CB_OP_EQ, x, zero, &mask, &err) == CB_OK)
        keep(w, mask);
    return mask;
}

/* Makes the inputs of one op; returns their number. */
static uint32_t take_inputs(work *w, cb_opcode code, const cb_attrs *attrs, cb_value_id *in) {
    const cb_op_def *def = cb_op_def_of(code);
    uint32_t n = (uint32_t)def->min_ins;
    if (def->max_ins < 0) n += take_below(w->b, 3);
    if (n == 0) return 0;
    in[0] = take_value(w);
    if (!is_float(w, in[0], in[0]) && take_below(w->b, 4))
        in[0] = find_or(w, in[0], in[0], is_float);
    for (uint32_t k = 1; k < n; k++) in[k] = find_or(w, in[0], in[0], broadcasts);
    switch (code) {
        case CB_OP_LOGICAL_NOT:
        case CB_OP_LOGICAL_AND:
        case CB_OP_LOGICAL_OR: in[0] = find_or(w, in[0], new_mask(w, in[0]), is_bool); break;
        case CB_OP_WHERE:
            in[2] = in[1];
            in[1] = in[0];
            in[0] = take_below(w->b, 2) ? new_mask(w, in[1])
                                        : find_or(w, in[1], new_mask(w, in[1]), is_bool);
            break;
        case CB_OP_GATHER: in[1] = new_index(w, in[0], 0); break;
        case CB_OP_SCATTER_ADD:
            in[1] = new_index(w, in[0], 0);
            if (!cb_shape_equal(shape_of(w, in[1]), shape_of(w, in[2])))
                in[2] = add_input(w, take_role(w), dtype_of(w, in[0]), *shape_of(w, in[1]));
            break;
        case CB_OP_EMBEDDING:
        case CB_OP_CROSS_ENTROPY: in[1] = new_index(w, in[0], 1); break;
        case CB_OP_EMBEDDING_BWD: in[1] = new_index(w, in[0], 1); break;
        case CB_OP_MATMUL: in[1] = second_factor(w, in[0]); break;
        case CB_OP_CONV2D:
        case CB_OP_CONV2D_DGRAD:
        case CB_OP_CONV2D_WGRAD:
            if (shape_of(w, in[0])->rank != 4) in[0] = new_plane(w);
            in[1] = new_filter(w, in[0], attrs->i[6] ? attrs->i[6] : 1);
            break;
        case CB_OP_MAX_POOL2D:
        case CB_OP_AVG_POOL2D:
        case CB_OP_AVG_POOL2D_BWD:
            if (shape_of(w, in[0])->rank != 4) in[0] = new_plane(w);
            break;
        case CB_OP_RMS_NORM: in[1] = new_channel(w, in[0], -1); break;
        case CB_OP_LAYER_NORM:
        case CB_OP_BATCH_NORM:
            in[1] = new_channel(w, in[0], code == CB_OP_BATCH_NORM ? 1 : -1);
            in[2] = take_below(w->b, 2) ? in[1]
                                        : new_channel(w, in[0], code == CB_OP_BATCH_NORM ? 1 : -1);
            break;
        default: break;
    }
    return n;
}

/* ---- attributes -------------------------------------------------------------------------------
 */

static bool is_named(const cb_attr_slot *slot, const char *name) {
    return slot->name_length == strlen(name) && memcmp(slot->name, name, slot->name_length) == 0;
}

static bool starts(const cb_attr_slot *slot, const char *name) {
    return slot->name_length >= strlen(name) && memcmp(slot->name, name, strlen(name)) == 0;
}

/* Returns a shape with as many elements as `s`, or one that it broadcasts to. */
static cb_shape take_target(work *w, cb_opcode code, const cb_shape *s) {
    cb_shape out = *s;
    if (code == CB_OP_RESHAPE) {
        const uint32_t how = take_below(w->b, 4);
        if (how == 0) return (cb_shape){.rank = 1, .dim = {-1}};
        if (how == 1 && s->rank > 1) return (cb_shape){.rank = 2, .dim = {s->dim[s->rank - 1], -1}};
        if (how == 2 && s->rank < 6) {
            out.dim[out.rank++] = 1;
            return out;
        }
        for (int32_t k = 0; k < s->rank; k++) out.dim[k] = s->dim[s->rank - 1 - k];
        return out;
    }
    if (code == CB_OP_EXPAND) {
        for (int32_t k = 0; k < out.rank; k++)
            if (out.dim[k] == 1) out.dim[k] = take_below(w->b, 5);
        if (out.rank < 5 && take_below(w->b, 2)) {
            memmove(out.dim + 1, out.dim, (size_t)out.rank * sizeof *out.dim);
            out.dim[0] = 1 + take_below(w->b, 3);
            out.rank++;
        }
        return out;
    }
    if (code == CB_OP_TRANSPOSE || code == CB_OP_SUM || code == CB_OP_MEAN || code == CB_OP_AMAX ||
        code == CB_OP_AMIN)
        return (cb_shape){0};
    return take_shape(w);
}

static cb_shape take_axes(work *w, cb_opcode code, int32_t rank) {
    cb_shape axes = {0};
    const uint32_t which = take(w->b);
    if (code == CB_OP_TRANSPOSE) {
        axes.rank = rank;
        for (int32_t k = 0; k < rank; k++) axes.dim[k] = (k + (int32_t)(which % 8)) % rank;
        return axes;
    }
    for (int32_t k = 0; k < rank; k++)
        if (which >> k & 1) axes.dim[axes.rank++] = which & 128 ? k - rank : k;
    return axes;
}

static double take_float(work *w, const cb_attr_slot *slot) {
    static const double values[] = {0, 1, -2, 0.5, 3, INFINITY, NAN, -0.0};
    static const double rates[] = {0.5, 0, 0.25, 0.9};
    static const double small[] = {1e-3, 1, 1e-5, 0.5};
    const uint32_t r = take(w->b);
    if (is_named(slot, "p")) return rates[r % 4];
    if (is_named(slot, "eps")) return small[r % 4];
    return values[r % 8];
}

static int64_t take_int(work *w, const cb_attr_slot *slot, const cb_shape *s) {
    const int64_t r = take(w->b);
    if (starts(slot, "axis")) return s->rank ? r % s->rank - (r & 128 ? s->rank : 0) : 0;
    if (starts(slot, "keepdims") || starts(slot, "interior")) return r % 2;
    if (starts(slot, "kernel")) return 1 + r % 3;
    if (starts(slot, "stride") || starts(slot, "dilation")) return r % 4 == 3 ? 2 : 1;
    if (starts(slot, "groups")) return r % 8 == 7 ? 2 : 1;
    if (starts(slot, "pad")) return r % 2;
    if (starts(slot, "start")) return r % 2;
    if (starts(slot, "stop")) return 1 + r % 8;
    if (starts(slot, "step")) return 1 + r % 3;
    if (starts(slot, "k")) return r % 5 - 2;
    if (starts(slot, "ignore")) return r % 2 ? -100 : 0;
    if (starts(slot, "rows")) return 1 + r % 8;
    return r % 4; /* streams, edges of a pad */
}

static cb_attrs take_attrs(work *w, cb_opcode code, const cb_shape *s) {
    cb_attrs attrs = {.dtype = w->dtype};
    cb_attr_slot slot;
    for (int k = 0; cb_op_attr(code, k, &slot); k++) {
        switch (slot.kind) {
            case CB_ATTR_F: attrs.f[slot.index] = take_float(w, &slot); break;
            case CB_ATTR_I: attrs.i[slot.index] = take_int(w, &slot, s); break;
            case CB_ATTR_DIMS:
                attrs.dims =
                    is_named(&slot, "axes") ? take_axes(w, code, s->rank) : take_target(w, code, s);
                break;
            case CB_ATTR_DTYPE: {
                const uint32_t r = take(w->b);
                attrs.dtype = r < 128 ? w->dtype : (cb_dtype)(r % CB_DTYPE_COUNT);
                break;
            }
        }
    }
    if (code == CB_OP_SLICE && s->rank > 0) {
        const int64_t n = s->dim[(attrs.i[0] + s->rank) % s->rank];
        if (attrs.i[2] > n) attrs.i[2] = n;
        if (attrs.i[1] > attrs.i[2]) attrs.i[1] = attrs.i[2];
    }
    return attrs;
}

/* ---- the graph ---------------------------------------------------------------------------------
 */

static void add_op(work *w, cb_opcode code) {
    cb_value_id in[8] = {0}, out[4] = {0};
    const bytes at = *w->b; /* attributes depend on the first input, some inputs on attributes */
    const cb_shape *s = cb_op_def_of(code)->min_ins ? shape_of(w, take_value(w)) : &(cb_shape){0};
    cb_shape first = *s;
    cb_attrs attrs = take_attrs(w, code, &first);
    bytes rest = *w->b;
    *w->b = at;
    const uint32_t n = take_inputs(w, code, &attrs, in);
    if (rest.n < w->b->n) *w->b = rest;
    if (n && cb_numel(shape_of(w, in[0])) > MOST_ELEMENTS) return;
    const size_t ops = w->g->ops.len, values = w->g->values.len;
    cb_status status = cb_graph_add_op(w->g, cb_op_def_of(code)->name, n, in, &attrs,
                                       (uint32_t)cb_op_def_of(code)->n_outs, out, &err);
    if (status != CB_OK) {
        expect_refusal(status);
        EXPECT(w->g->ops.len == ops && w->g->values.len == values);
        return;
    }
    for (int k = 0; k < cb_op_def_of(code)->n_outs; k++) keep(w, out[k]);
}

static void vary(work *w) {
    static const cb_constraint choices[] = {CB_FREE,           CB_MUST_SAVE,
                                            CB_PREFER_SAVE,    CB_PREFER_RECOMPUTE,
                                            CB_MUST_RECOMPUTE, CB_PREFER_OFFLOAD};
    const uint32_t r = take(w->b);
    cb_graph_set_constraint(w->g, choices[r % 6]);
    if (r < 64) {
        uint32_t region;
        EXPECT_OK(cb_graph_add_region(w->g, "r", w->g->region, r < 16 ? r * 64 : UINT64_MAX,
                                      &region, &err));
        EXPECT_OK(cb_graph_set_region(w->g, region, &err));
    } else if (r < 96) {
        EXPECT_OK(cb_graph_set_region(w->g, CB_NONE, &err));
    }
}

/* Adds the sum of a few values, as a scalar of the graph's dtype. */
static bool add_loss(work *w) {
    cb_value_id loss = CB_NONE, term;
    const uint32_t terms = 1 + take_below(w->b, 3);
    for (uint32_t k = 0; k < terms; k++) {
        cb_value_id v = take_value(w);
        v = find_or(w, v, v, is_float);
        if (!is_float(w, v, v)) return false;
        EXPECT_OK(cb_build_cast(w->g, v, w->dtype, &term, &err));
        EXPECT_OK(cb_build_sum(w->g, term, 0, NULL, false, &term, &err));
        if (loss == CB_NONE) loss = term;
        else EXPECT_OK(cb_build2(w->g, CB_OP_ADD, loss, term, &loss, &err));
    }
    EXPECT_OK(cb_graph_add_output(w->g, loss, "loss", &err));
    return true;
}

static void add_outputs(work *w) {
    const uint32_t n = take_below(w->b, 4);
    for (uint32_t k = 0; k < n; k++) EXPECT_OK(cb_graph_add_output(w->g, take_value(w), "y", &err));
    if (take_below(w->b, 4)) return;
    const uint32_t input = take_below(w->b, w->n_inputs);
    cb_status status = cb_graph_add_state(w->g, input, take_value(w), &err);
    if (status != CB_OK) expect_refusal(status);
}

static void choose_gradients(const work *w, asked *a) {
    const uint32_t which = take(w->b);
    a->options.wrt = a->wrt;
    for (uint32_t i = 0; i < w->g->inputs.len; i++) {
        const cb_op *op = &w->g->ops.at[w->g->inputs.at[i]];
        const int64_t role = w->g->attrs.at[op->attrs].i[0];
        if (role == CB_ROLE_STATE || !cb_dtype_is_float(w->g->values.at[op->out_begin].dtype))
            continue;
        if (role == CB_ROLE_PARAM || which >> i % 8 & 1) a->wrt[a->options.n_wrt++] = i;
    }
    if (which >= 240) a->options.n_wrt = 0;
}

/* Builds the graph from the bytes. Returns false if it has no loss. */
static bool build(work *w, asked *a) {
    static const cb_dtype dtypes[] = {CB_F32,  CB_F32, CB_F64, CB_F32,
                                      CB_BF16, CB_F16, CB_F32, CB_F64};
    w->dtype = dtypes[take_below(w->b, 8)];
    EXPECT_OK(cb_graph_new(context(), &w->g, &err));
    for (uint32_t k = 1 + take_below(w->b, 3); k > 0; k--) {
        cb_value_id v = CB_NONE;
        EXPECT_OK(cb_graph_add_input(w->g, "", take_role(w), w->dtype, take_shape(w), &v, &err));
        w->n_inputs++;
        keep(w, v);
    }
    for (uint32_t k = 0; k < MOST_OPS && w->b->n > 4; k++) {
        const uint32_t code = take(w->b);
        if (code >= 2 * CB_OP_COUNT) vary(w);
        else if (code % CB_OP_COUNT != CB_OP_INPUT) add_op(w, (cb_opcode)(code % CB_OP_COUNT));
    }
    if (!add_loss(w)) return false;
    add_outputs(w);
    choose_gradients(w, a);
    return true;
}

/* Prints the decoded bytes for humans. */
static void tell(const work *w, const asked *a) {
    char *text = NULL;
    EXPECT_OK(cb_graph_to_text(w->g, &text, &err));
    fprintf(stderr, "%spreset %d, budget kind %d share %g measure %d, fill %u, %u gradients:", text,
            (int)a->options.preset, (int)a->options.budget.kind, a->options.budget.share,
            (int)a->options.budget.measure, a->fill, a->options.n_wrt);
    for (uint32_t k = 0; k < a->options.n_wrt; k++) fprintf(stderr, " %u", a->wrt[k]);
    fprintf(stderr, "\n");
    cb_text_free(context(), text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, size};
    asked a = {0};
    work w = {.b = &b};
    const uint64_t before = cb_context_memory(context()).live_bytes;
    take_asked(&b, &a);
    const bool has_loss = build(&w, &a);
    if (getenv("CB_FUZZ_VERBOSE")) tell(&w, &a);
    if (has_loss && is_small(w.g)) run_everywhere(&a, w.g);
    cb_graph_free(w.g);
    EXPECT(cb_context_memory(context()).live_bytes == before);
    return 0;
}

/* ---- seeds for the target that reads graphs as text -------------------------------------------
 */

int LLVMFuzzerInitialize(int *argc, char ***argv);

static void write_file(const char *folder, const char *form, uint32_t number, const char *text) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s-%u", folder, form, number);
    FILE *f = fopen(path, "wb");
    EXPECT(f && fputs(text, f) >= 0);
    fclose(f);
}

static void write_seed(const char *folder, uint32_t number) {
    uint8_t data[256];
    uint64_t state = number;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)next_random(&state);
    bytes b = {data, 64 + 3 * (size_t)number % 192};
    asked a = {0};
    work w = {.b = &b};
    char *text = NULL, *json = NULL;
    if (build(&w, &a)) {
        EXPECT_OK(cb_graph_to_text(w.g, &text, &err));
        EXPECT_OK(cb_graph_save_json(w.g, &json, &err));
        write_file(folder, "text", number, text);
        write_file(folder, "json", number, json);
    }
    cb_text_free(context(), text);
    cb_text_free(context(), json);
    cb_graph_free(w.g);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    if (*argc == 3 && strcmp((*argv)[1], "--seeds") == 0) {
        for (uint32_t i = 0; i < 64; i++) write_seed((*argv)[2], i);
        exit(0);
    }
    return 0;
}
