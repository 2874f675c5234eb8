/* The plan for people: one line a forward value the backward needs, largest first, and totals.
 * "Otherwise" is what the other choice would cost: a saved value's recompute time, a recomputed
 * one's bytes. */
#include <inttypes.h>
#include <stdio.h>

#include "../base/sort.h"
#include "names.h"

#define MOST_LINES 400 /* the rest is summed up; the JSON has all of it */

typedef struct line {
    uint64_t bytes;
    uint32_t value;
} line;

static int compare_lines(const void *a, const void *b) {
    const line *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* One line a storage: the first value of it that has a decision speaks for its views. */
static uint32_t collect(const cb_problem *p, const cb_plan *plan, bool *seen, line *lines) {
    uint32_t n = 0;
    for (uint32_t v = 0; v < p->n_value; v++) {
        uint32_t s = p->value_storage[v];
        if (plan->decision[v] == CB_DECISION_NONE || seen[s]) continue;
        seen[s] = true;
        lines[n++] = (line){p->storage_bytes[s], v};
    }
    cb_sort(lines, n, sizeof *lines, compare_lines);
    return n;
}

static const char *bytes_text(uint64_t bytes, char buffer[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double shown = (double)bytes;
    int i = 0;
    for (; shown >= 1024 && i < 6; i++) shown /= 1024;
    (void)snprintf(buffer, 32, i == 0 ? "%.0f %s" : "%.2f %s", shown, unit[i]);
    return buffer;
}

static const char *time_text(int64_t ps, char buffer[32]) {
    double us = (double)ps / 1e6;
    if (us < 1e3) (void)snprintf(buffer, 32, "%.2f us", us);
    else if (us < 1e6) (void)snprintf(buffer, 32, "%.2f ms", us / 1e3);
    else (void)snprintf(buffer, 32, "%.2f s", us / 1e6);
    return buffer;
}

/* The op that allocated the value's storage: what would run again. */
static uint32_t allocator_of(const cb_problem *p, uint32_t value) {
    uint32_t first = value;
    for (uint32_t op = p->value_op[value];;) {
        uint32_t found = CB_NONE;
        for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && found == CB_NONE; j++) {
            if (p->value_storage[p->in_value[j]] == p->value_storage[value]) found = p->in_value[j];
        }
        if (found == CB_NONE) return p->value_op[first];
        first = found;
        op = p->value_op[found];
    }
}

static void put_line(cb_str *out, const cb_problem *p, const cb_plan *plan, const cb_device *device,
                     const line *l) {
    char bytes[32], other[32];
    uint32_t v = l->value, op = allocator_of(p, v);
    bool saved = plan->decision[v] == CB_DECISION_SAVE;
    const char *otherwise =
        saved ? time_text(cb_op_time_ps(p, op, device), other) : bytes_text(l->bytes, other);
    cb_str_addf(out, "  %-20s %12s  %-24s %-20s %-10s %-10s %s%s\n", p->value_type[v],
                bytes_text(l->bytes, bytes), p->op_name[op], p->op_location[op],
                cb_decision_names[plan->decision[v]], cb_reason_names[plan->reason[v]],
                saved ? "+" : "keep ", otherwise);
}

static void put_measure(cb_str *out, const char *name, uint64_t bytes, uint64_t of) {
    char a[32], b[32];
    cb_str_addf(out, "  %-8s %12s  of %12s when everything is saved (%.1f %%)\n", name,
                bytes_text(bytes, a), bytes_text(of, b),
                of > 0 ? 100.0 * (double)bytes / (double)of : 100.0);
}

static void put_totals(cb_str *out, const cb_problem *p, const cb_plan *plan) {
    char a[32], b[32], c[32], d[32];
    int64_t extra = plan->time_ps - plan->once_ps;
    uint32_t peak = plan->lives.peak_step;
    if (plan->budget_bytes == UINT64_MAX) {
        cb_str_addf(out, "plan: preset %s, no budget\n", cb_preset_names[plan->preset]);
    } else {
        cb_str_addf(out, "plan: budget %" PRIu64 " bytes (%s)\n", plan->budget_bytes,
                    cb_measure_names[plan->measure]);
    }
    put_measure(out, "arena", plan->arena_bytes, plan->save_all_arena_bytes);
    put_measure(out, "live", plan->live_bytes, plan->save_all_live_bytes);
    put_measure(out, "saved", plan->saved_bytes, plan->save_all_saved_bytes);
    cb_str_addf(out, "  %-8s %12s  modelled; %s (%.2f %%) of it for %u recomputed ops%s\n", "time",
                time_text(plan->time_ps, a), time_text(extra, b),
                plan->once_ps > 0 ? 100.0 * (double)extra / (double)plan->once_ps : 0.0,
                plan->lives.n_recomputed, plan->schedule.action ? " and waiting" : "");
    if (plan->schedule.action) {
        cb_str_addf(out, "  %-8s %12s  out, %s back; %s of waiting; at most %s on the host\n",
                    "offload", bytes_text(plan->lives.out_bytes, a),
                    bytes_text(plan->lives.in_bytes, b), time_text(plan->lives.stall_ps, c),
                    bytes_text(plan->lives.host_bytes, d));
    }
    if (plan->lower_bound_ps >= 0) {
        cb_str_addf(out,
                    "  %-8s %12s  at least, of plans that keep the order of ops and are without a "
                    "forward value once at most\n",
                    "bound", time_text(plan->lower_bound_ps, a));
    }
    if (peak < plan->schedule.n_step) {
        uint32_t op = plan->schedule.step[peak];
        cb_str_addf(out, "  %-8s step %u of %u, %s%s%s\n", "peak at", peak, plan->schedule.n_step,
                    p->op_name[op], p->op_location[op][0] ? ", " : "", p->op_location[op]);
    }
}

static cb_status explain(const cb_problem *p, const cb_plan *plan, cb_arena *scratch, cb_str *out,
                         cb_error *err) {
    bool *seen = CB_NEW(scratch, bool, p->n_storage);
    line *lines = CB_NEW(scratch, line, p->n_value);
    if (!seen || !lines) return cb_no_memory(err);
    uint32_t n = collect(p, plan, seen, lines);
    put_totals(out, p, plan);
    cb_str_addf(out, "\n  %-20s %12s  %-24s %-20s %-10s %-10s %s\n", "value", "bytes", "made by",
                "at", "decision", "reason", "otherwise");
    for (uint32_t i = 0; i < n && i < MOST_LINES; i++)
        put_line(out, p, plan, plan->device, &lines[i]);
    if (n > MOST_LINES) cb_str_addf(out, "  and %u smaller ones\n", n - MOST_LINES);
    return out->failed ? cb_no_memory(err) : CB_OK;
}

cb_status cb_plan_explain(const cb_problem *p, const cb_plan *plan, cb_str *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, out->arena->alloc);
    cb_status status = explain(p, plan, &scratch, out, err);
    cb_arena_free(&scratch);
    return status;
}
