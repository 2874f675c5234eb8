/* The reader of traced graphs. It takes two passes: the first checks nodes and gives every tensor a
 * value id and a storage, the second fills in the problem.
 *
 * In the file, tensors with the same storage id share memory. But an op that reads no tensor of a
 * storage makes a new allocation of that size, even if the id is in use. Problems have no such
 * reuse of ids, so the second allocation gets a separate storage here.
 *
 * With `over` outputs may take over the memory of inputs. Files hold no strides: tensors are
 * assumed to be contiguous, so that an elementwise op may write over an input with the same shape
 * and number of bytes.
 *
 * Times are those of the graphs' reference evaluator: bytes moved count each storage read once, and
 * all arithmetic is f32 whatever the tensors' type. */
#include "traced.h"

#include "../model/names.h"
#include "../model/over.h"
#include "aten.h"

#define LONG_TEXT ((size_t)1 << 20) /* bytes; the document of a shorter text takes little memory */
#define LONG_TEXT_HEAD 1024         /* number of bytes that are searched for the format */

#define MOST_BYTES (UINT64_C(1) << 60)
#define MOST_READS (UINT32_C(1) << 24) /* values that ops read, counted with repetition */

typedef struct tensor {
    const cb_json *node; /* the node in the document */
    uint64_t bytes;
    uint32_t file_storage; /* id in the file */
    uint32_t storage;      /* id in the problem */
} tensor;

typedef struct node {
    const cb_json *json, *inputs, *outs;
    const char *op;
    uint32_t first; /* tensor */
    bool placeholder, tangent, depends, mutates;
} node;

typedef struct reader {
    cb_alloc *alloc;
    cb_arena *scratch;
    cb_error *err;
    uint32_t n_node, n_tensor, n_read, n_file_storage, n_storage;
    node *nodes;
    tensor *tensors;
    uint64_t *file_bytes; /* [n_file_storage] */
    bool *is_static;      /* [n_file_storage] true for the storage of a placeholder */
    uint32_t *seen,
        *seen_as;     /* [n_file_storage] last node that reads or makes it, and its storage */
    uint32_t *source; /* [n_file_storage + n_tensor] file storage of each storage */
    cb_problem *p;
} reader;

/* ---- first pass ------------------------------------------------------------------------------ */

static cb_status want_object(const reader *r, const cb_json *json, const char *what) {
    if (json->kind == CB_JSON_OBJECT) return CB_OK;
    return cb_fail(r->err, CB_INVALID, "line %u: a %s must be an object, not of kind %s",
                   json->line, what, cb_json_kind_name(json->kind));
}

static cb_status read_flag(const reader *r, const cb_json *object, const char *key, bool *out) {
    const cb_json *json = cb_json_get(object, key);
    if (!json) return CB_OK;
    CB_TRY(cb_json_want(object, key, CB_JSON_BOOL, &json, r->err));
    *out = json->as.boolean;
    return CB_OK;
}

static cb_status read_header(const reader *r, uint32_t i, const cb_json *json) {
    node *n = &r->nodes[i];
    const cb_json *text;
    CB_TRY(want_object(r, json, "node"));
    n->json = json;
    CB_TRY(cb_json_want(json, "kind", CB_JSON_STRING, &text, r->err));
    n->placeholder = strcmp(text->as.string, "placeholder") == 0;
    if (!n->placeholder && strcmp(text->as.string, "call_function") != 0) {
        return cb_fail(r->err, CB_INVALID,
                       "line %u: node %u is of kind \"%.40s\", not placeholder or call_function",
                       text->line, i, text->as.string);
    }
    CB_TRY(cb_json_want(json, "op", CB_JSON_STRING, &text, r->err));
    n->op = text->as.string;
    if (n->placeholder && cb_json_get(json, "role")) {
        CB_TRY(cb_json_want(json, "role", CB_JSON_STRING, &text, r->err));
        n->tangent = n->depends = strcmp(text->as.string, "tangent") == 0;
    }
    CB_TRY(read_flag(r, json, "mutates", &n->mutates));
    CB_TRY(cb_json_want(json, "inputs", CB_JSON_ARRAY, &n->inputs, r->err));
    return cb_json_want(json, "out", CB_JSON_ARRAY, &n->outs, r->err);
}

static cb_status read_tensors(reader *r, uint32_t i) {
    const cb_json *number;
    r->nodes[i].first = r->n_tensor;
    for (const cb_json *c = r->nodes[i].outs->as.child; c; c = c->next) {
        tensor *t = &r->tensors[r->n_tensor++];
        uint64_t storage;
        CB_TRY(want_object(r, c, "tensor"));
        t->node = c;
        CB_TRY(cb_json_want(c, "storage", CB_JSON_INT, &number, r->err));
        if (r->n_file_storage == 0)
            return cb_fail(r->err, CB_INVALID, "line %u: storage_bytes is empty", c->line);
        CB_TRY(cb_json_as_u64(number, "storage", r->n_file_storage - 1, &storage, r->err));
        t->file_storage = (uint32_t)storage;
        CB_TRY(cb_json_want(c, "bytes", CB_JSON_DOUBLE, &number, r->err));
        CB_TRY(cb_json_as_u64(number, "bytes", MOST_BYTES, &t->bytes, r->err));
        if (r->nodes[i].placeholder) r->is_static[storage] = true;
    }
    return CB_OK;
}

static cb_status read_input(const reader *r, uint32_t i, const cb_json *json, uint32_t *out) {
    uint64_t id;
    if (i == 0 || json->kind != CB_JSON_INT || json->as.integer >= (int64_t)i) {
        return cb_fail(r->err, CB_INVALID,
                       "line %u: node %u reads an input that is not the id of an earlier node",
                       json->line, i);
    }
    CB_TRY(cb_json_as_u64(json, "input", i - 1, &id, r->err));
    *out = (uint32_t)id;
    return CB_OK;
}

static const tensor *end_of(const reader *r, uint32_t i) {
    return r->tensors + (i + 1 < r->n_node ? r->nodes[i + 1].first : r->n_tensor);
}

static cb_status count_reads(reader *r, uint32_t i) {
    node *n = &r->nodes[i];
    for (const cb_json *c = n->inputs->as.child; c; c = c->next) {
        uint32_t from = 0;
        CB_TRY(read_input(r, i, c, &from));
        uint32_t outs = r->nodes[from].outs->n;
        if (outs > MOST_READS - r->n_read) {
            return cb_fail(r->err, CB_INVALID, "line %u: the nodes read more than %u tensors",
                           c->line, MOST_READS);
        }
        r->n_read += outs;
        n->depends |= r->nodes[from].depends;
    }
    if (n->placeholder && n->inputs->n > 0)
        return cb_fail(r->err, CB_INVALID, "line %u: placeholder %u has inputs", n->json->line, i);
    return CB_OK;
}

/* Records the storages of the tensors that node i reads, in `seen_as` at the entries where `seen`
 * is i. */
static void see_inputs(reader *r, uint32_t i) {
    for (const cb_json *c = r->nodes[i].inputs->as.child; c; c = c->next) {
        uint32_t from = (uint32_t)c->as.integer;
        for (const tensor *t = r->tensors + r->nodes[from].first; t < end_of(r, from); t++) {
            r->seen[t->file_storage] = i;
            r->seen_as[t->file_storage] = t->storage;
        }
    }
}

/* Gives each tensor a storage. `made` [n_file_storage] is true if a node has made the storage. */
static void set_storages(reader *r, bool *made) {
    r->n_storage = r->n_file_storage;
    for (uint32_t s = 0; s < r->n_file_storage; s++) {
        r->seen[s] = CB_NONE;
        r->source[s] = s;
    }
    for (uint32_t i = 0; i < r->n_node; i++) {
        see_inputs(r, i);
        for (uint32_t v = r->nodes[i].first; v < (uint32_t)(end_of(r, i) - r->tensors); v++) {
            uint32_t s = r->tensors[v].file_storage;
            if (r->seen[s] != i) {
                bool again = made[s] && !r->is_static[s];
                if (again) r->source[r->n_storage] = s;
                r->seen[s] = i;
                r->seen_as[s] = again ? r->n_storage++ : s;
                made[s] = true;
            }
            r->tensors[v].storage = r->seen_as[s];
        }
    }
}

static cb_status read_storage_bytes(reader *r, const cb_json *list) {
    uint32_t s = 0;
    for (const cb_json *c = list->as.child; c; c = c->next)
        CB_TRY(cb_json_as_u64(c, "storage_bytes", MOST_BYTES, &r->file_bytes[s++], r->err));
    return CB_OK;
}

static cb_status allocate(reader *r, const cb_json *nodes, const cb_json *storages) {
    uint64_t n_tensor = 0;
    for (const cb_json *c = nodes->as.child; c; c = c->next) {
        const cb_json *outs = cb_json_get(c, "out");
        if (outs && outs->kind == CB_JSON_ARRAY) n_tensor += outs->n;
    }
    r->n_node = nodes->n;
    r->n_file_storage = storages->n;
    r->nodes = CB_NEW(r->scratch, node, nodes->n);
    r->tensors = CB_NEW(r->scratch, tensor, n_tensor);
    r->file_bytes = CB_NEW(r->scratch, uint64_t, storages->n);
    r->is_static = CB_NEW(r->scratch, bool, storages->n);
    r->seen = CB_NEW(r->scratch, uint32_t, storages->n);
    r->seen_as = CB_NEW(r->scratch, uint32_t, storages->n);
    r->source = CB_NEW(r->scratch, uint32_t, storages->n + n_tensor);
    bool ok = r->nodes && r->tensors && r->file_bytes && r->is_static && r->seen && r->seen_as &&
              r->source;
    return ok ? CB_OK : cb_no_memory(r->err);
}

static cb_status first_pass(reader *r, const cb_json *nodes, const cb_json *storages) {
    uint32_t i = 0;
    CB_TRY(allocate(r, nodes, storages));
    CB_TRY(read_storage_bytes(r, storages));
    for (const cb_json *c = nodes->as.child; c; c = c->next, i++) {
        CB_TRY(read_header(r, i, c));
        CB_TRY(read_tensors(r, i));
        CB_TRY(count_reads(r, i));
    }
    bool *made = CB_NEW(r->scratch, bool, r->n_file_storage);
    if (!made) return cb_no_memory(r->err);
    set_storages(r, made);
    return CB_OK;
}

/* ---- second pass ----------------------------------------------------------------------------- */

/* Reads a dtype and a shape as a text like "f32[8,32]". */
static cb_status read_type(const reader *r, const cb_json *json, const char **out) {
    static const char *const words[][2] = {
        {"float32", "f32"}, {"float64", "f64"}, {"float16", "f16"}, {"bfloat16", "bf16"},
        {"int64", "i64"},   {"int32", "i32"},   {"uint8", "u8"}};
    const cb_json *shape, *dtype = cb_json_get(json, "dtype");
    cb_str text;
    cb_str_init(&text, &r->p->arena);
    if (!dtype || dtype->kind != CB_JSON_STRING) return CB_OK;
    const char *word = dtype->as.string;
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        if (strcmp(word, words[k][0]) == 0) word = words[k][1];
    cb_str_addf(&text, "%.20s[", word);
    shape = cb_json_get(json, "shape");
    for (const cb_json *c = shape && shape->kind == CB_JSON_ARRAY ? shape->as.child : NULL; c;
         c = c->next) {
        if (c->kind == CB_JSON_INT) cb_str_addf(&text, "%lld", (long long)c->as.integer);
        if (c->next) cb_str_add(&text, ",", 1);
    }
    cb_str_add(&text, "]", 1);
    *out = text.at;
    return text.failed ? cb_no_memory(r->err) : CB_OK;
}

static bool has_tag(const node *n, const char *tag) {
    const cb_json *tags = cb_json_get(n->json, "tags");
    for (const cb_json *c = tags && tags->kind == CB_JSON_ARRAY ? tags->as.child : NULL; c;
         c = c->next) {
        if (c->kind == CB_JSON_STRING && strcmp(c->as.string, tag) == 0) return true;
    }
    return false;
}

static uint64_t add_bytes(uint64_t a, uint64_t b) {
    return a > MOST_BYTES - b ? MOST_BYTES + 1 : a + b; /* saturates above the limit of a problem */
}

/* Computes the bytes that the node moves, and the number of its tensors that are in memory of an
 * input (`aliases`). `read` [n_file_storage] is 0 before and after. */
static uint64_t bytes_moved(reader *r, uint32_t i, uint64_t *read, uint32_t *aliases) {
    const node *n = &r->nodes[i];
    uint64_t moved = 0;
    see_inputs(r, i);
    for (const tensor *t = r->tensors + n->first; t < end_of(r, i); t++) {
        *aliases += r->seen[t->file_storage] == i;
        moved = add_bytes(moved, t->bytes);
    }
    for (const cb_json *c = n->inputs->as.child; c; c = c->next) {
        uint32_t from = (uint32_t)c->as.integer;
        for (const tensor *t = r->tensors + r->nodes[from].first; t < end_of(r, from); t++) {
            uint64_t whole = r->file_bytes[t->file_storage],
                     bytes = t->bytes < whole ? t->bytes : whole, *most = &read[t->file_storage];
            if (bytes <= *most) continue;
            moved = add_bytes(moved, bytes - *most);
            *most = bytes;
        }
    }
    for (const cb_json *c = n->inputs->as.child; c; c = c->next) {
        uint32_t from = (uint32_t)c->as.integer;
        for (const tensor *t = r->tensors + r->nodes[from].first; t < end_of(r, from); t++)
            read[t->file_storage] = 0;
    }
    return moved;
}

static cb_status fill_work(reader *r, uint32_t i, uint64_t *read) {
    const node *n = &r->nodes[i];
    cb_problem *p = r->p;
    const cb_json *number;
    uint32_t flags = n->depends ? CB_POP_BACKWARD : 0, aliases = 0;
    if (n->placeholder) {
        p->op_flags[i] = flags | CB_POP_PLACEHOLDER;
        return CB_OK;
    }
    uint64_t moved = bytes_moved(r, i, read, &aliases);
    flags |= cb_aten_flags(n->op);
    if (has_tag(n, "pointwise") && !(flags & CB_POP_COMPUTE)) flags |= CB_POP_FUSIBLE;
    if (has_tag(n, "reduction") && (cb_aten_row(n->op) & CB_ATEN_REDUCE))
        flags |= CB_POP_FUSIBLE | CB_POP_REDUCTION;
    /* A tensor in memory of an input next to a new one: assumed to be written, which is always
     * safe. */
    if (n->mutates || (aliases > 0 && aliases < n->outs->n)) flags |= CB_POP_MUTATES;
    bool view = aliases == n->outs->n && !n->mutates;
    if (view) flags = (flags & ~(uint32_t)CB_POP_FUSIBLE) | (n->outs->n > 0 ? CB_POP_VIEW : 0);
    p->op_flags[i] = flags;
    if (view || (cb_aten_row(n->op) & CB_ATEN_GETITEM)) {
        p->op_time_ps[i] = 0;
        return CB_OK;
    }
    p->op_bytes[i] = moved;
    if (!cb_json_get(n->json, "flops")) return CB_OK;
    CB_TRY(cb_json_want(n->json, "flops", CB_JSON_DOUBLE, &number, r->err));
    return cb_json_as_double(number, "flops", &p->op_flops[i], r->err);
}

static cb_status copy_text(const reader *r, const cb_json *object, const char *key,
                           const char **out) {
    const cb_json *text = cb_json_get(object, key);
    if (!text || text->kind != CB_JSON_STRING) return CB_OK;
    *out = cb_arena_strdup(&r->p->arena, text->as.string, text->n);
    return *out ? CB_OK : cb_no_memory(r->err);
}

static cb_status fill_node(reader *r, uint32_t i, uint64_t *read) {
    const node *n = &r->nodes[i];
    cb_problem *p = r->p;
    uint32_t at = p->in_begin[i];
    CB_TRY(copy_text(r, n->json, "name", &p->op_name[i]));
    if (n->placeholder) p->op_kind[i] = "placeholder";
    else CB_TRY(copy_text(r, n->json, "op", &p->op_kind[i]));
    for (const cb_json *c = n->inputs->as.child; c; c = c->next) {
        uint32_t from = (uint32_t)c->as.integer;
        for (uint32_t k = 0; k < r->nodes[from].outs->n; k++)
            p->in_value[at++] = r->nodes[from].first + k;
    }
    p->in_begin[i + 1] = at;
    p->out_begin[i + 1] = n->first + n->outs->n;
    for (uint32_t v = n->first; v < p->out_begin[i + 1]; v++) {
        p->value_op[v] = i;
        p->value_storage[v] = r->tensors[v].storage;
        p->value_bytes[v] = r->tensors[v].bytes;
        CB_TRY(read_type(r, r->tensors[v].node, &p->value_type[v]));
    }
    return fill_work(r, i, read);
}

static void fill_storages(const reader *r) {
    cb_problem *p = r->p;
    for (uint32_t s = 0; s < r->n_storage; s++) {
        p->storage_bytes[s] = r->file_bytes[r->source[s]];
        if (!r->is_static[r->source[s]]) continue;
        p->storage_flags[s] = CB_STORE_STATIC;
        p->static_bytes = add_bytes(p->static_bytes, p->storage_bytes[s]);
    }
}

/* Fills in forward and backward outputs, which are held to the end. Null stands for an input
 * without a gradient. */
static cb_status fill_ends(const reader *r, const cb_json *root, const char *key, uint32_t *n,
                           uint32_t **out) {
    cb_problem *p = r->p;
    const cb_json *list;
    CB_VEC(uint32_t) ids = {0};
    CB_TRY(cb_json_want(root, key, CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint64_t id;
        if (c->kind == CB_JSON_NULL) continue;
        if (r->n_node == 0)
            return cb_fail(r->err, CB_INVALID, "line %u: has an output, but there are no nodes",
                           c->line);
        CB_TRY(cb_json_as_u64(c, key, r->n_node - 1, &id, r->err));
        for (uint32_t v = p->out_begin[id]; v < p->out_begin[id + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (!CB_PUSH(&p->arena, ids, v)) return cb_no_memory(r->err);
            if (!(p->storage_flags[s] & CB_STORE_STATIC)) p->storage_flags[s] |= CB_STORE_HOLD_END;
        }
    }
    *n = (uint32_t)ids.len;
    *out = ids.at;
    return CB_OK;
}

/* Marks parameters, by their positions among the placeholders that are not tangents. */
static cb_status mark_parameters(const reader *r, const cb_json *root) {
    const cb_json *list = cb_json_get(root, "static_inputs");
    uint32_t n = 0, *input = CB_NEW(r->scratch, uint32_t, r->n_node);
    if (!input) return cb_no_memory(r->err);
    if (!list) return CB_OK;
    CB_TRY(cb_json_want(root, "static_inputs", CB_JSON_ARRAY, &list, r->err));
    for (uint32_t i = 0; i < r->n_node; i++)
        if (r->nodes[i].placeholder && !r->nodes[i].tangent) input[n++] = i;
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint64_t k;
        if (n == 0)
            return cb_fail(r->err, CB_INVALID,
                           "line %u: has a static input, but there are no inputs", c->line);
        CB_TRY(cb_json_as_u64(c, "static_inputs", n - 1, &k, r->err));
        r->p->op_flags[input[k]] |= CB_POP_PARAMETER;
    }
    return CB_OK;
}

static cb_status read_again(cb_problem *p, const cb_json *root, cb_error *err) {
    const cb_json *reruns = cb_json_get(root, "reruns");
    const cb_json *again = cb_json_get(root, "collective_again");
    const cb_json *rate = cb_json_get(root, "network_bytes_per_s");
    if (reruns) {
        uint32_t which;
        CB_TRY(cb_name_index(reruns, "reruns", cb_reruns_names, CB_RERUNS_COUNT, &which, err));
        p->reruns = (uint8_t)which;
    }
    if (again) {
        CB_TRY(cb_json_want(root, "collective_again", CB_JSON_BOOL, &again, err));
        p->collective_again = again->as.boolean;
    }
    if (!rate) return CB_OK;
    return cb_json_as_double(rate, "network_bytes_per_s", &p->network_bytes_per_s, err);
}

static bool has_same_shape(const cb_problem *p, uint32_t a, uint32_t b) {
    const char *x = strchr(p->value_type[a], '['), *y = strchr(p->value_type[b], '[');
    return x && y && strcmp(x, y) == 0;
}

static bool may_be_over(const void *context, const cb_problem *p, uint32_t op, uint32_t at) {
    (void)context;
    return cb_aten_may_be_over(p->op_kind[op]) &&
           has_same_shape(p, p->in_value[p->in_begin[op] + at], p->out_begin[op]);
}

static cb_status read_over(cb_problem *p, const cb_json *root, cb_error *err) {
    const cb_json *over = cb_json_get(root, "over");
    if (!over) return CB_OK;
    CB_TRY(cb_json_want(root, "over", CB_JSON_BOOL, &over, err));
    return over->as.boolean ? cb_list_over(p, may_be_over, NULL, err) : CB_OK;
}

static cb_status second_pass(reader *r, const cb_json *root) {
    cb_problem *p = r->p;
    uint64_t *read = CB_NEW(r->scratch, uint64_t, r->n_file_storage);
    if (!read) return cb_no_memory(r->err);
    for (uint32_t s = 0; s < r->n_file_storage; s++) r->seen[s] = CB_NONE;
    p->backward_starts = r->n_node;
    for (uint32_t i = r->n_node; i-- > 0;)
        if (r->nodes[i].depends && !r->nodes[i].placeholder) p->backward_starts = i;
    for (uint32_t i = 0; i < r->n_node; i++) CB_TRY(fill_node(r, i, read));
    fill_storages(r);
    CB_TRY(fill_ends(r, root, "forward_outputs", &p->n_forward_output, &p->forward_output));
    CB_TRY(fill_ends(r, root, "backward_outputs", &p->n_backward_output, &p->backward_output));
    CB_TRY(mark_parameters(r, root));
    CB_TRY(read_again(p, root, r->err));
    CB_TRY(read_over(p, root, r->err));
    return cb_problem_verify(p, r->err);
}

static cb_status read_traced(cb_alloc *alloc, cb_arena *scratch, const cb_json *root,
                             cb_problem **out, cb_error *err) {
    reader r = {.alloc = alloc, .scratch = scratch, .err = err};
    const cb_json *nodes, *storages;
    CB_TRY(cb_json_want(root, "nodes", CB_JSON_ARRAY, &nodes, err));
    CB_TRY(cb_json_want(root, "storage_bytes", CB_JSON_ARRAY, &storages, err));
    CB_TRY(first_pass(&r, nodes, storages));
    const cb_problem_sizes sizes = {
        .n_op = r.n_node, .n_in = r.n_read, .n_value = r.n_tensor, .n_storage = r.n_storage};
    CB_TRY(cb_problem_create(alloc, sizes, &r.p, err));
    cb_status status = second_pass(&r, root);
    if (status == CB_OK) *out = r.p;
    else cb_problem_free(r.p);
    return status;
}

/* True if the first lines show that the text is a problem, and the text is long. */
static bool is_long(const char *text, size_t length) {
    static const char word[] = "\"cutback.problem\"";
    const char *end = text + LONG_TEXT_HEAD;
    if (length < LONG_TEXT) return false;
    for (const char *at = text; (at = memchr(at, '"', (size_t)(end - at))) != NULL; at++)
        if (memcmp(at, word, sizeof word - 1) == 0) return true;
    return false;
}

cb_status cb_problem_read(cb_alloc *alloc, const char *text, size_t length, cb_problem **out,
                          cb_error *err) {
    const cb_json *root;
    cb_error ignored = {0};
    if (is_long(text, length) &&
        cb_problem_from_long_text(alloc, text, length, out, &ignored) == CB_OK)
        return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    cb_status status = cb_json_parse(&scratch, text, length, &root, err);
    if (status == CB_OK) {
        bool traced = cb_json_get(root, "nodes") && !cb_json_get(root, "format");
        status = traced ? read_traced(alloc, &scratch, root, out, err)
                        : cb_problem_from_document(alloc, root, out, err);
    }
    cb_arena_free(&scratch);
    return status;
}
