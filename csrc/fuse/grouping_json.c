/* Reads the groups that a caller requests, as JSON with ids of the joint graph:
 *
 *     {"groups": [[7, 8], [12, 14, 15]], "inlinings": [[8, 12]]}     a pair: value and reader */
#include "grouping.h"

typedef struct reading {
    cb_arena *arena;
    cb_error *err;
} reading;

static cb_status read_id(const reading *r, const cb_json *node, uint32_t *out) {
    uint64_t id;
    CB_TRY(cb_json_as_u64(node, "groups: an id", CB_NONE - 1, &id, r->err));
    *out = (uint32_t)id;
    return CB_OK;
}

static cb_status want_list(const reading *r, const cb_json *node, uint32_t n) {
    if (node->kind == CB_JSON_ARRAY && (n ? node->n == n : node->n > 0)) return CB_OK;
    return cb_fail(r->err, CB_INVALID,
                   "line %u: groups must be non-empty lists of ids, and inlinings pairs of ids",
                   node->line);
}

static cb_status read_groups(const reading *r, const cb_json *list, cb_group_request *out) {
    uint32_t n = 0, group = 0;
    for (const cb_json *c = list->as.child; c; c = c->next) {
        CB_TRY(want_list(r, c, 0));
        n += c->n;
    }
    uint32_t *begin = CB_NEW(r->arena, uint32_t, list->n + (size_t)1),
             *op = CB_NEW(r->arena, uint32_t, n);
    if (!begin || !op) return cb_no_memory(r->err);
    for (const cb_json *c = list->as.child; c; c = c->next, group++) {
        begin[group + 1] = begin[group];
        for (const cb_json *id = c->as.child; id; id = id->next)
            CB_TRY(read_id(r, id, &op[begin[group + 1]++]));
    }
    out->kernel = NULL;
    out->domain = NULL;
    out->n_group = list->n;
    out->begin = begin;
    out->op = op;
    return CB_OK;
}

static cb_status read_inlinings(const reading *r, const cb_json *list, cb_group_request *out) {
    uint32_t *value = CB_NEW(r->arena, uint32_t, list->n),
             *reader = CB_NEW(r->arena, uint32_t, list->n), n = 0;
    if (!value || !reader) return cb_no_memory(r->err);
    for (const cb_json *c = list->as.child; c; c = c->next, n++) {
        CB_TRY(want_list(r, c, 2));
        CB_TRY(read_id(r, c->as.child, &value[n]));
        CB_TRY(read_id(r, c->as.child->next, &reader[n]));
    }
    out->n_inlining = n;
    out->value = value;
    out->reader = reader;
    return CB_OK;
}

cb_status cb_group_request_read(const char *text, size_t length, cb_arena *arena,
                                cb_group_request *out, cb_error *err) {
    const reading r = {arena, err};
    const cb_json *root, *groups, *inlinings;
    CB_TRY(cb_json_parse(arena, text, length, &root, err));
    CB_TRY(cb_json_want(root, "groups", CB_JSON_ARRAY, &groups, err));
    CB_TRY(cb_json_want(root, "inlinings", CB_JSON_ARRAY, &inlinings, err));
    CB_TRY(read_groups(&r, groups, out));
    return read_inlinings(&r, inlinings, out);
}
