#include "names.h"

#include <string.h>

const char *const cb_op_flag_names[CB_OP_FLAG_COUNT] = {
    "placeholder",    "backward",        "view",     "fusible",    "compute",
    "random_counter", "random_stateful", "effect",   "collective", "mutates",
    "unknown",        "reduction",       "parameter"};
const char *const cb_store_flag_names[CB_STORE_FLAG_COUNT] = {"static", "hold_forward", "hold_end"};
const char *const cb_work_class_names[CB_WORK_CLASS_COUNT] = {"f32", "f64", "f16", "bf16", "int"};
const char *const cb_constraint_names[CB_CONSTRAINT_COUNT] = {
    "free",         "must_save",     "prefer_save", "must_recompute", "prefer_recompute",
    "must_offload", "prefer_offload"};
const char *const cb_reruns_names[CB_RERUNS_COUNT] = {"forward", "all"};
const char *const cb_preset_names[CB_PRESET_COUNT] = {"autograd",   "recompute_all", "conservative",
                                                      "aggressive", "torch-compat",  "shape-aware"};
const char *const cb_measure_names[CB_MEASURE_COUNT] = {"arena", "live", "saved", "total"};

_Static_assert(CB_POP_PARAMETER == 1 << (CB_OP_FLAG_COUNT - 1), "every op flag has a name");
_Static_assert(CB_STORE_HOLD_END == 1 << (CB_STORE_FLAG_COUNT - 1),
               "every storage flag has a name");

const char *cb_why_once(uint32_t op_flags) {
    return op_flags & CB_POP_RANDOM_STATEFUL ? "it draws from a hidden random state"
           : op_flags & CB_POP_UNKNOWN       ? "it is not known to give the same result again"
           : op_flags & CB_POP_COLLECTIVE    ? "it communicates"
                                             : "it, or an op after it, changes memory";
}

cb_status cb_name_index(const cb_json *node, const char *what, const char *const *names, uint32_t n,
                        uint32_t *out, cb_error *err) {
    char list[256] = "";
    if (node->kind == CB_JSON_STRING) {
        for (uint32_t i = 0; i < n; i++) {
            if (strcmp(node->as.string, names[i]) != 0) continue;
            *out = i;
            return CB_OK;
        }
    }
    for (uint32_t i = 0; i < n && strlen(list) + strlen(names[i]) + 3 < sizeof list; i++) {
        if (i > 0) strcat(list, ", ");
        strcat(list, names[i]);
    }
    if (node->kind != CB_JSON_STRING) {
        return cb_fail(err, CB_INVALID, "line %u: %s must be a string, not of kind %s: one of %s",
                       node->line, what, cb_json_kind_name(node->kind), list);
    }
    return cb_fail(err, CB_INVALID, "line %u: %s is \"%.60s\", not one of %s", node->line, what,
                   node->as.string, list);
}

cb_status cb_known_keys(const cb_json *object, const char *what, const char *const *known,
                        uint32_t n, cb_error *err) {
    for (const cb_json *c = object->as.child; c; c = c->next) {
        uint32_t i = 0;
        while (i < n && strcmp(c->key, known[i]) != 0) i++;
        if (i == n)
            return cb_fail(err, CB_INVALID, "line %u: a %s has no key \"%.60s\"", c->line, what,
                           c->key);
    }
    return CB_OK;
}

cb_status cb_check_format(const cb_json *root, const char *format, int64_t newest, int64_t *version,
                          cb_error *err) {
    const cb_json *name, *number;
    if (root->kind != CB_JSON_OBJECT) {
        return cb_fail(err, CB_INVALID, "%s: the document must be an object, not of kind %s",
                       format, cb_json_kind_name(root->kind));
    }
    CB_TRY(cb_json_want(root, "format", CB_JSON_STRING, &name, err));
    CB_TRY(cb_json_want(root, "version", CB_JSON_INT, &number, err));
    if (strcmp(name->as.string, format) != 0) {
        return cb_fail(err, CB_INVALID, "the document's format is \"%.60s\", not \"%s\"",
                       name->as.string, format);
    }
    if (number->as.integer < 1 || number->as.integer > newest) {
        return cb_fail(err, CB_INVALID, "%s: version %lld; this library reads versions 1 to %lld",
                       format, (long long)number->as.integer, (long long)newest);
    }
    *version = number->as.integer;
    return CB_OK;
}
