/* Problems from JSON; docs/problem.md states the schema. The reader does not validate the problem:
 * it builds what the text describes, and cb_problem_verify checks it. Version 1 has no ops with an
 * inside and no inlinings; version 2 has no repeated collectives and no memory taken over.
 *
 * Long texts are read op by op (cb_json_unfold). */
#include <inttypes.h>
#include <stdio.h>

#include "../../base/map.h"
#include "../../base/sort.h"
#include "../model/inlining.h"
#include "../model/names.h"
#include "../model/over.h"
#include "../model/updates.h"
#include "problem_format.h"

#define FIRST_WITH_INSIDES 2  /* the first version with insides and inlinings */
#define FIRST_WITH_NETWORKS 3 /* the first version with `reruns` and the reserved keys */
#define MOST_WHOLE ((uint64_t)INT64_MAX)
#define MOST_WORDS 4096 /* words that share memory with equal ones; later words are copied */

typedef struct reader {
    cb_problem *p;
    int64_t version;
    cb_problem_sizes room;
    cb_names *words; /* kinds, types and source locations, which many ops share */
    cb_error *err;
} reader;

enum { STORAGES = 0, OPS, FOLDS }; /* the lists of a long text that are folded */

/* The objects of an array: its children, or objects that are unfolded one by one. */
typedef struct objects {
    cb_json_fold *fold; /* NULL: the objects are children */
    const cb_json *next;
    cb_arena arena; /* memory of the last unfolded object */
} objects;

static objects objects_of(const reader *r, const cb_json *list, cb_json_fold *fold) {
    objects o = {.fold = fold, .next = list->as.child};
    cb_arena_init(&o.arena, r->p->arena.alloc);
    return o;
}

/* Sets NULL after the last object. */
static cb_status next_object(objects *o, const cb_json **out, cb_error *err) {
    *out = o->next;
    if (o->fold) {
        cb_arena_free(&o->arena);
        return cb_json_unfold(&o->arena, o->fold, out, err);
    }
    if (*out) o->next = (*out)->next;
    return CB_OK;
}

static cb_status read_u64(const reader *r, const cb_json *object, const char *key, uint64_t max,
                          uint64_t *out) {
    const cb_json *node = cb_json_get(object, key);
    return node ? cb_json_as_u64(node, key, max, out, r->err) : CB_OK;
}

static cb_status read_u32(const reader *r, const cb_json *object, const char *key, uint32_t *out) {
    uint64_t wide = *out;
    CB_TRY(read_u64(r, object, key, CB_NONE - 1, &wide));
    if (cb_json_get(object, key)) *out = (uint32_t)wide;
    return CB_OK;
}

static cb_status read_text(const reader *r, const cb_json *object, const char *key,
                           const char **out) {
    const cb_json *node;
    if (!cb_json_get(object, key)) return CB_OK;
    CB_TRY(cb_json_want(object, key, CB_JSON_STRING, &node, r->err));
    *out = cb_arena_strdup(&r->p->arena, node->as.string, node->n);
    return *out ? CB_OK : cb_no_memory(r->err);
}

static cb_status read_word(const reader *r, const cb_json *object, const char *key,
                           const char **out) {
    const cb_json *node;
    uint32_t id;
    if (!cb_json_get(object, key) || r->words->len >= MOST_WORDS)
        return read_text(r, object, key, out);
    CB_TRY(cb_json_want(object, key, CB_JSON_STRING, &node, r->err));
    if (!cb_names_intern(r->words, node->as.string, node->n, &id)) return cb_no_memory(r->err);
    *out = r->words->text[id];
    return CB_OK;
}

static cb_status read_double(const reader *r, const cb_json *object, const char *key, double *out) {
    const cb_json *node = cb_json_get(object, key);
    return node ? cb_json_as_double(node, key, out, r->err) : CB_OK;
}

static cb_status read_name(const reader *r, const cb_json *object, const char *key,
                           const char *const *names, uint32_t n, uint8_t *out) {
    const cb_json *node = cb_json_get(object, key);
    uint32_t index;
    if (!node) return CB_OK;
    CB_TRY(cb_name_index(node, key, names, n, &index, r->err));
    *out = (uint8_t)index;
    return CB_OK;
}

static cb_status read_flags(const reader *r, const cb_json *object, const char *const *names,
                            uint32_t n, uint32_t *out) {
    const cb_json *list;
    if (!cb_json_get(object, "flags")) return CB_OK;
    CB_TRY(cb_json_want(object, "flags", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint32_t bit;
        CB_TRY(cb_name_index(c, "flag", names, n, &bit, r->err));
        *out |= UINT32_C(1) << bit;
    }
    return CB_OK;
}

static cb_status read_ids(const reader *r, const cb_json *list, const char *what, uint32_t *out) {
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint64_t id;
        CB_TRY(cb_json_as_u64(c, what, CB_NONE - 1, &id, r->err));
        *out++ = (uint32_t)id;
    }
    return CB_OK;
}

static cb_status want_object(const reader *r, const cb_json *node, const char *what) {
    if (node->kind == CB_JSON_OBJECT) return CB_OK;
    return cb_fail(r->err, CB_INVALID, "line %u: a %s must be an object, not of kind %s",
                   node->line, what, cb_json_kind_name(node->kind));
}

static cb_status read_storage(const reader *r, const cb_json *node, uint32_t s) {
    static const char *const known[] = {"bytes", "flags", "updates"};
    const cb_json *bytes;
    uint32_t flags = 0, parameter = CB_NONE;
    CB_TRY(want_object(r, node, "storage"));
    CB_TRY(cb_known_keys(node, "storage", known, r->version < FIRST_WITH_NETWORKS ? 2 : 3, r->err));
    CB_TRY(cb_json_want(node, "bytes", CB_JSON_DOUBLE, &bytes, r->err));
    CB_TRY(cb_json_as_u64(bytes, "bytes", MOST_WHOLE, &r->p->storage_bytes[s], r->err));
    CB_TRY(read_flags(r, node, cb_store_flag_names, CB_STORE_FLAG_COUNT, &flags));
    r->p->storage_flags[s] = (uint8_t)flags;
    CB_TRY(read_u32(r, node, "updates", &parameter));
    return parameter == CB_NONE ? CB_OK : cb_set_update(r->p, s, parameter, r->err);
}

/* Reads distinct indices below 64 as a set. */
static cb_status read_bits(const reader *r, const cb_json *object, const char *key, uint64_t *out) {
    const cb_json *list;
    CB_TRY(cb_json_want(object, key, CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint64_t at;
        CB_TRY(cb_json_as_u64(c, key, 63, &at, r->err));
        if (*out >> at & 1)
            return cb_fail(r->err, CB_INVALID, "line %u: %llu appears in \"%s\" twice", c->line,
                           (unsigned long long)at, key);
        *out |= UINT64_C(1) << at;
    }
    return CB_OK;
}

static cb_status read_member(const reader *r, const cb_json *node, cb_member *m) {
    static const char *const known[] = {"reads", "uses",  "size",    "flops",    "bytes",
                                        "class", "flags", "time_ps", "workspace"};
    CB_TRY(want_object(r, node, "member"));
    CB_TRY(cb_known_keys(node, "member", known, sizeof known / sizeof *known, r->err));
    CB_TRY(read_flags(r, node, cb_op_flag_names, CB_OP_FLAG_COUNT, &m->flags));
    CB_TRY(read_bits(r, node, "reads", &m->reads));
    CB_TRY(read_bits(r, node, "uses", &m->uses));
    CB_TRY(read_u64(r, node, "size", MOST_WHOLE, &m->size));
    CB_TRY(read_double(r, node, "flops", &m->flops));
    CB_TRY(read_u64(r, node, "bytes", MOST_WHOLE, &m->bytes));
    CB_TRY(read_name(r, node, "class", cb_work_class_names, CB_WORK_CLASS_COUNT, &m->work_class));
    if (cb_json_get(node, "time_ps"))
        CB_TRY(cb_json_as_i64(cb_json_get(node, "time_ps"), "time_ps", &m->time_ps, r->err));
    return read_u64(r, node, "workspace", MOST_WHOLE, &m->workspace);
}

/* The members were counted before, so there is room. */
static cb_status read_inside(const reader *r, const cb_json *node, uint32_t op) {
    cb_problem *p = r->p;
    const cb_json *list;
    if (!p->member_begin) return CB_OK;
    uint32_t m = p->member_begin[op];
    p->member_begin[op + 1] = m;
    if (!cb_json_get(node, "inside")) return CB_OK;
    CB_TRY(cb_json_want(node, "inside", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *c = list->as.child; c; c = c->next)
        CB_TRY(read_member(r, c, &p->member[m++]));
    p->member_begin[op + 1] = m;
    return CB_OK;
}

/* Reads the member that makes an output: required if the op has an inside, otherwise forbidden. */
static cb_status read_value_member(const reader *r, const cb_json *node, uint32_t value) {
    cb_problem *p = r->p;
    const cb_json *member = cb_json_get(node, "member");
    bool inside = cb_has_inside(p, p->value_op[value]);
    uint64_t at;
    if (!inside && !member) return CB_OK;
    if (!inside || !member) {
        return cb_fail(r->err, CB_INVALID,
                       "line %u: a value has a \"member\" if its op has an inside, and only then",
                       node->line);
    }
    CB_TRY(cb_json_as_u64(member, "member", CB_MOST_MEMBERS - 1, &at, r->err));
    p->value_member[value] = (uint8_t)at;
    return CB_OK;
}

static cb_status read_outputs(const reader *r, const cb_json *list, uint32_t op) {
    static const char *const known[] = {"storage", "type", "constraint", "bytes", "member"};
    uint32_t n_known = r->version < FIRST_WITH_INSIDES ? 4 : 5;
    cb_problem *p = r->p;
    uint32_t v = p->out_begin[op];
    for (const cb_json *c = list->as.child; c; c = c->next, v++) {
        CB_TRY(want_object(r, c, "value"));
        CB_TRY(cb_known_keys(c, "value", known, n_known, r->err));
        p->value_op[v] = op;
        CB_TRY(read_value_member(r, c, v));
        const cb_json *storage; /* there is no default to fall back to */
        CB_TRY(cb_json_want(c, "storage", CB_JSON_INT, &storage, r->err));
        CB_TRY(read_u32(r, c, "storage", &p->value_storage[v]));
        CB_TRY(read_word(r, c, "type", &p->value_type[v]));
        CB_TRY(read_u64(r, c, "bytes", MOST_WHOLE, &p->value_bytes[v]));
        CB_TRY(read_name(r, c, "constraint", cb_constraint_names, CB_CONSTRAINT_COUNT,
                         &p->value_constraint[v]));
    }
    return CB_OK;
}

/* Checks what is reserved for later versions: a list of an op, which must be empty if present, and
 * a flag. */
static cb_status check_reserved(const reader *r, const cb_json *node) {
    const cb_json *flags = cb_json_get(node, "flags"), *list = cb_json_get(node, "variants");
    if (list && !(list->kind == CB_JSON_ARRAY && list->n == 0))
        return cb_fail(r->err, CB_UNSUPPORTED,
                       "line %u: \"variants\" is reserved and not supported in this version; leave "
                       "it out",
                       list->line);
    if (!flags || flags->kind != CB_JSON_ARRAY) return CB_OK;
    for (const cb_json *c = flags->as.child; c; c = c->next)
        if (c->kind == CB_JSON_STRING && strcmp(c->as.string, "update") == 0)
            return cb_fail(r->err, CB_UNSUPPORTED,
                           "line %u: the flag \"update\" is reserved and not supported in this "
                           "version",
                           c->line);
    return CB_OK;
}

/* Checks the keys of an op in this version. */
static cb_status check_op_keys(const reader *r, const cb_json *node) {
    static const char *const known[] = {
        "name",  "kind",    "at",        "flags", "in",     "out",    "flops", "bytes",
        "class", "time_ps", "workspace", "group", "region", "inside", "over",  "variants"};
    uint32_t n_known = sizeof known / sizeof *known;
    if (r->version < FIRST_WITH_NETWORKS) n_known -= 2;
    if (r->version < FIRST_WITH_INSIDES) n_known--;
    CB_TRY(cb_known_keys(node, "op", known, n_known, r->err));
    return r->version < FIRST_WITH_NETWORKS ? CB_OK : check_reserved(r, node);
}

/* The indices were counted before, so there is room. */
static cb_status read_over(const reader *r, const cb_json *node, uint32_t op) {
    cb_problem *p = r->p;
    const cb_json *list;
    if (p->over_begin) p->over_begin[op + 1] = p->over_begin[op];
    if (!cb_json_get(node, "over")) return CB_OK;
    CB_TRY(cb_json_want(node, "over", CB_JSON_ARRAY, &list, r->err));
    if (!p->over_begin) return CB_OK;
    p->over_begin[op + 1] += list->n;
    return read_ids(r, list, "over", p->over + p->over_begin[op]);
}

/* Checks that a list fits. Lists were counted before anything was allocated for them; in a long
 * text they were found by the spelling of their keys, so keys with escapes were missed. */
static cb_status want_room(const reader *r, const cb_json *node, const char *key, uint64_t used,
                           uint64_t room) {
    const cb_json *list = cb_json_get(node, key);
    if (!list || list->kind != CB_JSON_ARRAY || used + list->n <= room) return CB_OK;
    return cb_fail(r->err, CB_INVALID,
                   "line %u: the key \"%s\" is spelled with escapes; write it without them",
                   list->line, key);
}

static cb_status check_room(const reader *r, const cb_json *node, uint32_t op) {
    const cb_problem *p = r->p;
    const uint32_t *member = p->member_begin, *over = p->over_begin;
    CB_TRY(want_room(r, node, "in", p->in_begin[op], r->room.n_in));
    CB_TRY(want_room(r, node, "out", p->out_begin[op], r->room.n_value));
    CB_TRY(want_room(r, node, "inside", member ? member[op] : 0, r->room.n_member));
    return want_room(r, node, "over", over ? over[op] : 0, r->room.n_over);
}

static cb_status read_op(const reader *r, const cb_json *node, uint32_t op) {
    cb_problem *p = r->p;
    const cb_json *list;
    CB_TRY(want_object(r, node, "op"));
    CB_TRY(check_op_keys(r, node));
    CB_TRY(check_room(r, node, op));
    CB_TRY(read_inside(r, node, op));
    CB_TRY(read_text(r, node, "name", &p->op_name[op]));
    CB_TRY(read_word(r, node, "kind", &p->op_kind[op]));
    CB_TRY(read_word(r, node, "at", &p->op_location[op]));
    CB_TRY(read_flags(r, node, cb_op_flag_names, CB_OP_FLAG_COUNT, &p->op_flags[op]));
    CB_TRY(cb_json_want(node, "in", CB_JSON_ARRAY, &list, r->err));
    p->in_begin[op + 1] = p->in_begin[op] + list->n;
    CB_TRY(read_ids(r, list, "input", p->in_value + p->in_begin[op]));
    CB_TRY(cb_json_want(node, "out", CB_JSON_ARRAY, &list, r->err));
    p->out_begin[op + 1] = p->out_begin[op] + list->n;
    CB_TRY(read_outputs(r, list, op));
    CB_TRY(read_double(r, node, "flops", &p->op_flops[op]));
    CB_TRY(read_u64(r, node, "bytes", MOST_WHOLE, &p->op_bytes[op]));
    CB_TRY(read_name(r, node, "class", cb_work_class_names, CB_WORK_CLASS_COUNT, &p->op_class[op]));
    if (cb_json_get(node, "time_ps"))
        CB_TRY(cb_json_as_i64(cb_json_get(node, "time_ps"), "time_ps", &p->op_time_ps[op], r->err));
    CB_TRY(read_u64(r, node, "workspace", MOST_WHOLE, &p->op_workspace[op]));
    CB_TRY(read_u32(r, node, "group", &p->op_group[op]));
    CB_TRY(read_over(r, node, op));
    return read_u32(r, node, "region", &p->op_region[op]);
}

static cb_status read_regions(const reader *r, const cb_json *root) {
    static const char *const known[] = {"name", "parent", "saved_limit"};
    cb_problem *p = r->p;
    const cb_json *list;
    uint32_t id = 0;
    if (!cb_json_get(root, "regions")) return CB_OK;
    CB_TRY(cb_json_want(root, "regions", CB_JSON_ARRAY, &list, r->err));
    p->n_region = list->n;
    CB_TRY_NEW(p->region_name, &p->arena, list->n, r->err);
    CB_TRY_NEW(p->region_parent, &p->arena, list->n, r->err);
    CB_TRY_NEW(p->region_limit, &p->arena, list->n, r->err);
    for (const cb_json *c = list->as.child; c; c = c->next, id++) {
        CB_TRY(want_object(r, c, "region"));
        CB_TRY(cb_known_keys(c, "region", known, 3, r->err));
        p->region_name[id] = "";
        p->region_parent[id] = CB_NONE;
        p->region_limit[id] = UINT64_MAX;
        CB_TRY(read_text(r, c, "name", &p->region_name[id]));
        CB_TRY(read_u32(r, c, "parent", &p->region_parent[id]));
        CB_TRY(read_u64(r, c, "saved_limit", MOST_WHOLE, &p->region_limit[id]));
    }
    return CB_OK;
}

static cb_status read_inlining(const reader *r, const cb_json *node, cb_inlining *x) {
    static const char *const known[] = {"value", "op",      "flops",    "bytes",
                                        "class", "time_ps", "workspace"};
    const cb_json *id;
    CB_TRY(want_object(r, node, "inlining"));
    CB_TRY(cb_known_keys(node, "inlining", known, sizeof known / sizeof *known, r->err));
    CB_TRY(cb_json_want(node, "value", CB_JSON_INT, &id, r->err));
    CB_TRY(read_u32(r, node, "value", &x->value));
    CB_TRY(cb_json_want(node, "op", CB_JSON_INT, &id, r->err));
    CB_TRY(read_u32(r, node, "op", &x->op));
    CB_TRY(read_double(r, node, "flops", &x->flops));
    CB_TRY(read_u64(r, node, "bytes", MOST_WHOLE, &x->bytes));
    CB_TRY(read_name(r, node, "class", cb_work_class_names, CB_WORK_CLASS_COUNT, &x->work_class));
    if (cb_json_get(node, "time_ps"))
        CB_TRY(cb_json_as_i64(cb_json_get(node, "time_ps"), "time_ps", &x->time_ps, r->err));
    return read_u64(r, node, "workspace", MOST_WHOLE, &x->workspace);
}

/* The inlinings were counted before, so there is room. A file may list them in any order. */
static cb_status read_inlinings(const reader *r, const cb_json *root) {
    cb_problem *p = r->p;
    const cb_json *list;
    uint32_t n = 0;
    if (!cb_json_get(root, "inlinings")) return CB_OK;
    CB_TRY(cb_json_want(root, "inlinings", CB_JSON_ARRAY, &list, r->err));
    for (const cb_json *c = list->as.child; c; c = c->next)
        CB_TRY(read_inlining(r, c, &p->inlining[n++]));
    return cb_inlinings_index(p, n, r->err);
}

static cb_status read_ends(const reader *r, const cb_json *root, const char *key, uint32_t *n,
                           uint32_t **ids) {
    const cb_json *list;
    CB_TRY(cb_json_want(root, key, CB_JSON_ARRAY, &list, r->err));
    CB_TRY_NEW(*ids, &r->p->arena, list->n, r->err);
    *n = list->n;
    return read_ids(r, list, key, *ids);
}

static cb_status read_again(const reader *r, const cb_json *root) {
    cb_problem *p = r->p;
    const cb_json *again, *keep;
    CB_TRY(read_name(r, root, "reruns", cb_reruns_names, CB_RERUNS_COUNT, &p->reruns));
    if (cb_json_get(root, "collective_again")) {
        CB_TRY(cb_json_want(root, "collective_again", CB_JSON_BOOL, &again, r->err));
        p->collective_again = again->as.boolean;
    }
    if (cb_json_get(root, "keep_saved")) {
        CB_TRY(cb_json_want(root, "keep_saved", CB_JSON_BOOL, &keep, r->err));
        p->keep_saved = keep->as.boolean;
    }
    return read_double(r, root, "network_bytes_per_s", &p->network_bytes_per_s);
}

typedef cb_status (*object_fn)(const reader *r, const cb_json *node, uint32_t at);

static cb_status read_objects(const reader *r, const cb_json *list, cb_json_fold *fold,
                              object_fn read) {
    objects o = objects_of(r, list, fold);
    const cb_json *node;
    cb_status status = next_object(&o, &node, r->err);
    for (uint32_t at = 0; status == CB_OK && node; at++) {
        status = read(r, node, at);
        if (status == CB_OK) status = next_object(&o, &node, r->err);
    }
    cb_arena_free(&o.arena);
    return status;
}

static cb_status read_body(const reader *r, const cb_json *root, cb_json_fold *fold) {
    cb_problem *p = r->p;
    const cb_json *storages = cb_json_get(root, "storages"), *ops = cb_json_get(root, "ops");
    CB_TRY(read_u32(r, root, "backward_starts", &p->backward_starts));
    CB_TRY(read_u64(r, root, "align", MOST_WHOLE, &p->align));
    CB_TRY(read_u64(r, root, "static_bytes", MOST_WHOLE, &p->static_bytes));
    CB_TRY(read_double(r, root, "link_bytes_per_s", &p->link_bytes_per_s));
    CB_TRY(read_again(r, root));
    CB_TRY(read_regions(r, root));
    CB_TRY(read_objects(r, storages, fold ? &fold[STORAGES] : NULL, read_storage));
    CB_TRY(read_objects(r, ops, fold ? &fold[OPS] : NULL, read_op));
    CB_TRY(read_inlinings(r, root));
    CB_TRY(read_ends(r, root, "forward_outputs", &p->n_forward_output, &p->forward_output));
    CB_TRY(read_ends(r, root, "backward_outputs", &p->n_backward_output, &p->backward_output));
    return cb_problem_verify(p, r->err);
}

static cb_status check_fingerprint(const reader *r, const cb_json *root) {
    const cb_json *node;
    char own[17];
    if (!cb_json_get(root, "fingerprint")) return CB_OK;
    CB_TRY(cb_json_want(root, "fingerprint", CB_JSON_STRING, &node, r->err));
    (void)snprintf(own, sizeof own, "%016" PRIx64, cb_problem_fingerprint(r->p));
    if (strcmp(own, node->as.string) == 0) return CB_OK;
    return cb_fail(r->err, CB_INVALID,
                   "problem: the file states the fingerprint %.32s, but its content has %s; remove "
                   "that line after editing the file",
                   node->as.string, own);
}

static cb_status set_sizes(uint64_t in, uint64_t out, uint64_t members, uint64_t over,
                           cb_problem_sizes *n, cb_error *err) {
    if (in >= CB_NONE || out >= CB_NONE || members >= CB_NONE || over >= CB_NONE)
        return cb_fail(err, CB_INVALID, "problem: too many values");
    n->n_in = (uint32_t)in;
    n->n_value = (uint32_t)out;
    n->n_member = (uint32_t)members;
    n->n_over = (uint32_t)over;
    return CB_OK;
}

/* Counts the sizes of all lists before anything is allocated for them. */
static cb_status count_items(const cb_json *ops, cb_problem_sizes *n, cb_error *err) {
    uint64_t in = 0, out = 0, members = 0, over = 0;
    for (const cb_json *c = ops->as.child; c; c = c->next) {
        const cb_json *list;
        if (c->kind != CB_JSON_OBJECT) {
            return cb_fail(err, CB_INVALID, "line %u: an op must be an object, not of kind %s",
                           c->line, cb_json_kind_name(c->kind));
        }
        CB_TRY(cb_json_want(c, "in", CB_JSON_ARRAY, &list, err));
        in += list->n;
        CB_TRY(cb_json_want(c, "out", CB_JSON_ARRAY, &list, err));
        out += list->n;
        const cb_json *inside = cb_json_get(c, "inside"), *listed = cb_json_get(c, "over");
        if (inside && inside->kind == CB_JSON_ARRAY) members += inside->n;
        if (listed && listed->kind == CB_JSON_ARRAY) over += listed->n;
    }
    return set_sizes(in, out, members, over, n, err);
}

/* `fold` [FOLDS] belongs to a long text; otherwise it is NULL. */
static cb_status read_document(cb_alloc *alloc, const cb_json *root, cb_json_fold *fold,
                               cb_problem **out, cb_error *err) {
    static const char *const known[] = {"format",
                                        "version",
                                        "fingerprint",
                                        "source",
                                        "backward_starts",
                                        "align",
                                        "static_bytes",
                                        "link_bytes_per_s",
                                        "forward_outputs",
                                        "backward_outputs",
                                        "regions",
                                        "storages",
                                        "ops",
                                        "inlinings",
                                        "reruns",
                                        "collective_again",
                                        "keep_saved",
                                        "network_bytes_per_s"};
    const cb_json *storages, *ops, *inlinings = cb_json_get(root, "inlinings");
    cb_problem_sizes n = {0};
    int64_t version;
    CB_TRY(cb_check_format(root, CB_PROBLEM_FORMAT, CB_PROBLEM_VERSION, &version, err));
    uint32_t n_known = sizeof known / sizeof *known;
    if (version < FIRST_WITH_NETWORKS) n_known -= 4;
    if (version < FIRST_WITH_INSIDES) n_known--;
    CB_TRY(cb_known_keys(root, "problem", known, n_known, err));
    CB_TRY(cb_json_want(root, "storages", CB_JSON_ARRAY, &storages, err));
    CB_TRY(cb_json_want(root, "ops", CB_JSON_ARRAY, &ops, err));
    CB_TRY(fold ? set_sizes(fold[OPS].count[0], fold[OPS].count[1], fold[OPS].count[2],
                            fold[OPS].count[3], &n, err)
                : count_items(ops, &n, err));
    n.n_op = ops->n;
    n.n_storage = storages->n;
    if (inlinings && inlinings->kind == CB_JSON_ARRAY) n.n_inlining = inlinings->n;
    cb_problem *p = NULL;
    CB_TRY(cb_problem_create(alloc, n, &p, err));
    cb_names words;
    cb_names_init(&words, &p->arena);
    reader r = {.p = p, .version = version, .room = n, .words = &words, .err = err};
    p->backward_starts = ops->n;
    cb_status status = read_body(&r, root, fold);
    if (status == CB_OK) status = check_fingerprint(&r, root);
    if (status == CB_OK) *out = p;
    else cb_problem_free(p);
    return status;
}

cb_status cb_problem_from_document(cb_alloc *alloc, const cb_json *root, cb_problem **out,
                                   cb_error *err) {
    return read_document(alloc, root, NULL, out, err);
}

cb_status cb_problem_from_long_text(cb_alloc *alloc, const char *text, size_t length,
                                    cb_problem **out, cb_error *err) {
    cb_json_fold fold[FOLDS] = {
        [STORAGES] = {.key = "storages"},
        [OPS] = {.key = "ops", .list = {"in", "out", "inside", "over"}},
    };
    const cb_json *root;
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    cb_status status = cb_json_parse_folded(&scratch, text, length, fold, FOLDS, &root, err);
    if (status == CB_OK && !(fold[STORAGES].node && fold[OPS].node))
        status = cb_fail(err, CB_INVALID, "problem: there are no storages, or no ops");
    if (status == CB_OK) status = read_document(alloc, root, fold, out, err);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_problem_from_json(cb_alloc *alloc, const char *text, size_t length, cb_problem **out,
                               cb_error *err) {
    const cb_json *root;
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    cb_status status = cb_json_parse(&scratch, text, length, &root, err);
    if (status == CB_OK) status = cb_problem_from_document(alloc, root, out, err);
    cb_arena_free(&scratch);
    return status;
}
