#include "device.h"

#include <math.h>
#include <string.h>

#include "names.h"

#define LONGEST_NAME 80
#define LONGEST_LAUNCH 1.0 /* seconds */
#define FUSED_SUFFIX "+fused"
#define LEAST_RATE 1.0 /* per second: keeps the time of one op finite */
#define MOST_RATE 1e30

/* Copies the row of a name like "a100" or "a100+fused" to `out`, with `name` as its name. */
static bool find_row(const char *name, cb_device *out) {
    size_t length = strlen(name), suffix = strlen(FUSED_SUFFIX);
    char base[LONGEST_NAME + 1];
    bool fused = length > suffix && strcmp(name + length - suffix, FUSED_SUFFIX) == 0;
    if (fused) length -= suffix;
    if (length > LONGEST_NAME) return false;
    memcpy(base, name, length);
    base[length] = 0;
    const cb_device *row = cb_device_find(base);
    if (!row) return false;
    *out = *row;
    out->name = name;
    out->fused = fused;
    return true;
}

static bool is_row_of_table(const cb_device *d) {
    cb_device found, *row = &found;
    if (!find_row(d->name, row)) return false;
    for (int i = 0; i < CB_WORK_CLASS_COUNT; i++) {
        if (row->flops_per_s[i] != d->flops_per_s[i]) return false;
        if (row->point_per_s[i] != d->point_per_s[i]) return false;
    }
    return row->bytes_per_s == d->bytes_per_s && row->launch_s == d->launch_s &&
           row->link_bytes_per_s == d->link_bytes_per_s && row->fused == d->fused;
}

static cb_status read_rate(const cb_json *object, const char *key, double *out, cb_error *err) {
    const cb_json *node;
    CB_TRY(cb_json_want(object, key, CB_JSON_DOUBLE, &node, err));
    CB_TRY(cb_json_as_double(node, key, out, err));
    if (*out >= LEAST_RATE && *out <= MOST_RATE) return CB_OK;
    return cb_fail(err, CB_INVALID, "device: %s is %g; it must be from %g to %g", key, *out,
                   LEAST_RATE, MOST_RATE);
}

/* Reads the rate of each work class; a missing class has that of f32. */
static cb_status read_rates(const cb_json *root, const char *key, double *rate, cb_error *err) {
    const cb_json *object;
    CB_TRY(cb_json_want(root, key, CB_JSON_OBJECT, &object, err));
    CB_TRY(cb_known_keys(object, key, cb_work_class_names, CB_WORK_CLASS_COUNT, err));
    CB_TRY(read_rate(object, "f32", &rate[CB_WORK_F32], err));
    for (int i = 0; i < CB_WORK_CLASS_COUNT; i++) {
        rate[i] = rate[CB_WORK_F32];
        if (cb_json_get(object, cb_work_class_names[i]))
            CB_TRY(read_rate(object, cb_work_class_names[i], &rate[i], err));
    }
    return CB_OK;
}

static cb_status read_row(const cb_json *root, cb_device *d, cb_error *err) {
    static const char *const known[] = {"name",       "flops_per_s",      "bytes_per_s",
                                        "launch_s",   "link_bytes_per_s", "fused",
                                        "point_per_s"};
    const cb_json *node;
    cb_device same;
    CB_TRY(cb_known_keys(root, "device", known, sizeof known / sizeof *known, err));
    CB_TRY(cb_json_want(root, "name", CB_JSON_STRING, &node, err));
    if (node->n == 0 || node->n > LONGEST_NAME)
        return cb_fail(err, CB_INVALID, "device: a name must have 1 to %d bytes, not %u",
                       LONGEST_NAME, node->n);
    d->name = node->as.string;
    CB_TRY(read_rates(root, "flops_per_s", d->flops_per_s, err));
    if (cb_json_get(root, "point_per_s"))
        CB_TRY(read_rates(root, "point_per_s", d->point_per_s, err));
    CB_TRY(read_rate(root, "bytes_per_s", &d->bytes_per_s, err));
    CB_TRY(cb_json_want(root, "launch_s", CB_JSON_DOUBLE, &node, err));
    CB_TRY(cb_json_as_double(node, "launch_s", &d->launch_s, err));
    if (!(d->launch_s >= 0 && d->launch_s <= LONGEST_LAUNCH))
        return cb_fail(err, CB_INVALID, "device: launch_s is %g; it must be from 0 to %g seconds",
                       d->launch_s, LONGEST_LAUNCH);
    if (cb_json_get(root, "link_bytes_per_s"))
        CB_TRY(read_rate(root, "link_bytes_per_s", &d->link_bytes_per_s, err));
    if (cb_json_get(root, "fused")) {
        CB_TRY(cb_json_want(root, "fused", CB_JSON_BOOL, &node, err));
        d->fused = node->as.boolean;
    }
    if (find_row(d->name, &same) && !is_row_of_table(d))
        return cb_fail(err, CB_INVALID,
                       "device: \"%s\" is a row of the table with other numbers; choose another "
                       "name",
                       d->name);
    return CB_OK;
}

cb_status cb_device_copy(const cb_device *device, cb_arena *arena, const cb_device **out,
                         cb_error *err) {
    cb_device *copy = CB_NEW(arena, cb_device, 1);
    const char *name = cb_arena_strdup(arena, device->name, strlen(device->name));
    if (!copy || !name) return cb_no_memory(err);
    *copy = *device;
    copy->name = name;
    *out = copy;
    return CB_OK;
}

static cb_status find_named(const char *name, cb_arena *arena, const cb_device **out,
                            cb_error *err) {
    cb_device row;
    if (!find_row(name, &row)) return cb_unknown_device(name, err);
    return cb_device_copy(&row, arena, out, err);
}

cb_status cb_device_from_json(const cb_json *node, cb_arena *arena, const cb_device **out,
                              cb_error *err) {
    cb_device row = {0};
    if (node->kind == CB_JSON_STRING) return find_named(node->as.string, arena, out, err);
    if (node->kind != CB_JSON_OBJECT)
        return cb_fail(err, CB_INVALID, "device: it must be a name or an object, not of kind %s",
                       cb_json_kind_name(node->kind));
    CB_TRY(read_row(node, &row, err));
    return cb_device_copy(&row, arena, out, err);
}

cb_status cb_device_parse(const char *text, cb_arena *arena, const cb_device **out, cb_error *err) {
    *out = NULL;
    if (!text) return CB_OK;
    if (text[0] != '{') return find_named(text, arena, out, err);
    const cb_json *root;
    CB_TRY(cb_json_parse(arena, text, strlen(text), &root, err));
    return cb_device_from_json(root, arena, out, err);
}

static void put_rates(cb_json_writer *w, const char *key, const double *rate) {
    cb_json_begin(w, key, '{');
    for (int i = 0; i < CB_WORK_CLASS_COUNT; i++)
        cb_json_put_double(w, cb_work_class_names[i], rate[i]);
    cb_json_end(w, '}');
}

void cb_device_put(cb_json_writer *w, const char *key, const cb_device *device) {
    if (is_row_of_table(device)) {
        cb_json_put_string(w, key, device->name);
        return;
    }
    cb_json_begin(w, key, '{');
    cb_json_put_string(w, "name", device->name);
    put_rates(w, "flops_per_s", device->flops_per_s);
    if (device->point_per_s[CB_WORK_F32] > 0) put_rates(w, "point_per_s", device->point_per_s);
    cb_json_put_double(w, "bytes_per_s", device->bytes_per_s);
    cb_json_put_double(w, "launch_s", device->launch_s);
    if (device->link_bytes_per_s > 0)
        cb_json_put_double(w, "link_bytes_per_s", device->link_bytes_per_s);
    if (device->fused) cb_json_put_bool(w, "fused", true);
    cb_json_end(w, '}');
}
