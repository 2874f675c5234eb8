/* Problems as JSON; docs/problem.md states the schema. Keys at their defaults are left out. */
#include <inttypes.h>
#include <stdio.h>

#include "../model/inlining.h"
#include "../model/names.h"
#include "../model/over.h"
#include "../model/updates.h"
#include "problem_format.h"

static void put_flags(cb_json_writer *w, uint32_t flags, const char *const *names, uint32_t n) {
    if (flags == 0) return;
    cb_json_begin(w, "flags", '[');
    for (uint32_t i = 0; i < n; i++)
        if (flags >> i & 1) cb_json_put_string(w, NULL, names[i]);
    cb_json_end(w, ']');
}

static void put_ids(cb_json_writer *w, const char *key, const uint32_t *ids, uint32_t n) {
    cb_json_begin(w, key, '[');
    for (uint32_t i = 0; i < n; i++) cb_json_put_u64(w, NULL, ids[i]);
    cb_json_end(w, ']');
}

static void put_storages(cb_json_writer *w, const cb_problem *p) {
    cb_json_begin(w, "storages", '[');
    for (uint32_t s = 0; s < p->n_storage; s++) {
        cb_json_begin(w, NULL, '{');
        cb_json_put_u64(w, "bytes", p->storage_bytes[s]);
        put_flags(w, p->storage_flags[s], cb_store_flag_names, CB_STORE_FLAG_COUNT);
        if (cb_is_updating(p, s)) cb_json_put_u64(w, "updates", p->updates[s]);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

static void put_text_unless_empty(cb_json_writer *w, const char *key, const char *text) {
    if (text[0]) cb_json_put_string(w, key, text);
}

static void put_outputs(cb_json_writer *w, const cb_problem *p, uint32_t op) {
    cb_json_begin(w, "out", '[');
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        cb_json_begin(w, NULL, '{');
        cb_json_put_u64(w, "storage", p->value_storage[v]);
        put_text_unless_empty(w, "type", p->value_type[v]);
        if (cb_value_bytes(p, v) != p->storage_bytes[p->value_storage[v]])
            cb_json_put_u64(w, "bytes", p->value_bytes[v]);
        if (p->value_constraint[v] != CB_FREE)
            cb_json_put_string(w, "constraint", cb_constraint_names[p->value_constraint[v]]);
        if (cb_has_inside(p, op)) cb_json_put_u64(w, "member", p->value_member[v]);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

static void put_bits(cb_json_writer *w, const char *key, uint64_t set) {
    cb_json_begin(w, key, '[');
    for (uint32_t i = 0; i < 64; i++)
        if (set >> i & 1) cb_json_put_u64(w, NULL, i);
    cb_json_end(w, ']');
}

/* Writes the work of an op, a member or an inlining. */
static void put_work(cb_json_writer *w, double flops, uint64_t bytes, uint8_t work_class,
                     int64_t time_ps, uint64_t workspace) {
    if (flops != 0) cb_json_put_double(w, "flops", flops);
    if (bytes != 0) cb_json_put_u64(w, "bytes", bytes);
    if (work_class != CB_WORK_F32) cb_json_put_string(w, "class", cb_work_class_names[work_class]);
    if (time_ps != -1) cb_json_put_int(w, "time_ps", time_ps);
    if (workspace != 0) cb_json_put_u64(w, "workspace", workspace);
}

static void put_inside(cb_json_writer *w, const cb_problem *p, uint32_t op) {
    if (!cb_has_inside(p, op)) return;
    cb_json_begin(w, "inside", '[');
    for (uint32_t i = p->member_begin[op]; i < p->member_begin[op + 1]; i++) {
        const cb_member *m = &p->member[i];
        cb_json_begin(w, NULL, '{');
        put_flags(w, m->flags, cb_op_flag_names, CB_OP_FLAG_COUNT);
        put_bits(w, "reads", m->reads);
        put_bits(w, "uses", m->uses);
        if (m->size != 0) cb_json_put_u64(w, "size", m->size);
        put_work(w, m->flops, m->bytes, m->work_class, m->time_ps, m->workspace);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

static void put_op(cb_json_writer *w, const cb_problem *p, uint32_t op) {
    cb_json_begin(w, NULL, '{');
    put_text_unless_empty(w, "name", p->op_name[op]);
    put_text_unless_empty(w, "kind", p->op_kind[op]);
    put_text_unless_empty(w, "at", p->op_location[op]);
    put_flags(w, p->op_flags[op], cb_op_flag_names, CB_OP_FLAG_COUNT);
    put_ids(w, "in", p->in_value + p->in_begin[op], p->in_begin[op + 1] - p->in_begin[op]);
    put_outputs(w, p, op);
    put_work(w, p->op_flops[op], p->op_bytes[op], p->op_class[op], p->op_time_ps[op],
             p->op_workspace[op]);
    if (p->op_group[op] != CB_NONE) cb_json_put_u64(w, "group", p->op_group[op]);
    if (p->op_region[op] != CB_NONE) cb_json_put_u64(w, "region", p->op_region[op]);
    put_inside(w, p, op);
    if (cb_count_over(p, op) > 0) put_ids(w, "over", cb_over_of(p, op), cb_count_over(p, op));
    cb_json_end(w, '}');
}

static void put_regions(cb_json_writer *w, const cb_problem *p) {
    if (p->n_region == 0) return;
    cb_json_begin(w, "regions", '[');
    for (uint32_t r = 0; r < p->n_region; r++) {
        cb_json_begin(w, NULL, '{');
        cb_json_put_string(w, "name", p->region_name[r]);
        if (p->region_parent[r] != CB_NONE) cb_json_put_u64(w, "parent", p->region_parent[r]);
        if (p->region_limit[r] != UINT64_MAX) cb_json_put_u64(w, "saved_limit", p->region_limit[r]);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

static void put_inlinings(cb_json_writer *w, const cb_problem *p) {
    if (!p->inline_begin) return;
    cb_json_begin(w, "inlinings", '[');
    for (uint32_t i = 0; i < p->inline_begin[p->n_op]; i++) {
        const cb_inlining *x = &p->inlining[i];
        cb_json_begin(w, NULL, '{');
        cb_json_put_u64(w, "value", x->value);
        cb_json_put_u64(w, "op", x->op);
        put_work(w, x->flops, x->bytes, x->work_class, x->time_ps, x->workspace);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

cb_status cb_problem_to_json(const cb_problem *p, cb_str *out, cb_error *err) {
    cb_json_writer w = {.out = out};
    char fingerprint[17];
    (void)snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, cb_problem_fingerprint(p));
    cb_json_begin(&w, NULL, '{');
    cb_json_put_string(&w, "format", CB_PROBLEM_FORMAT);
    cb_json_put_int(&w, "version", CB_PROBLEM_VERSION);
    cb_json_put_string(&w, "fingerprint", fingerprint);
    cb_json_put_u64(&w, "backward_starts", p->backward_starts);
    cb_json_put_u64(&w, "align", p->align);
    cb_json_put_u64(&w, "static_bytes", p->static_bytes);
    if (p->link_bytes_per_s != 0) cb_json_put_double(&w, "link_bytes_per_s", p->link_bytes_per_s);
    if (p->reruns != CB_RERUNS_FORWARD)
        cb_json_put_string(&w, "reruns", cb_reruns_names[p->reruns]);
    if (p->collective_again) cb_json_put_bool(&w, "collective_again", true);
    if (p->keep_saved) cb_json_put_bool(&w, "keep_saved", true);
    if (p->network_bytes_per_s != 0)
        cb_json_put_double(&w, "network_bytes_per_s", p->network_bytes_per_s);
    put_ids(&w, "forward_outputs", p->forward_output, p->n_forward_output);
    put_ids(&w, "backward_outputs", p->backward_output, p->n_backward_output);
    put_regions(&w, p);
    put_storages(&w, p);
    cb_json_begin(&w, "ops", '[');
    for (uint32_t op = 0; op < p->n_op; op++) put_op(&w, p, op);
    cb_json_end(&w, ']');
    put_inlinings(&w, p);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}
