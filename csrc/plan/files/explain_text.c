/* Writes a plan as text for people. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../../base/format.h"
#include "../explain/explain.h"
#include "../model/names.h"
#include "explanation.h"

#define MOST_LINES 400 /* the rest is summarized; the JSON lists everything */
#define MOST_SETS 4
#define MOST_KINDS 8
#define MOST_DELAYED 12

static const char *bytes_text(uint64_t bytes, char buffer[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double shown = (double)bytes;
    int i = 0;
    for (; shown >= 1024 && i < 6; i++) shown /= 1024;
    cb_format(buffer, 32, i == 0 ? "%.0f %s" : "%.2f %s", shown, unit[i]);
    return buffer;
}

static const char *time_text(int64_t ps, char buffer[32]) {
    double us = (double)ps / 1e6, size = us < 0 ? -us : us;
    if (size < 1e3) cb_format(buffer, 32, "%.2f us", us);
    else if (size < 1e6) cb_format(buffer, 32, "%.2f ms", us / 1e3);
    else cb_format(buffer, 32, "%.2f s", us / 1e6);
    return buffer;
}

/* Writes a text like "+1.50 MiB", "-3 B" or "0 B". */
static const char *change_text(int64_t change, char buffer[33]) {
    buffer[0] = change < 0 ? '-' : '+';
    (void)bytes_text(change < 0 ? (uint64_t)-change : (uint64_t)change, buffer + (change != 0));
    return buffer;
}

/* Writes the numbers of readers in the forward and in the backward: "2 + 1". */
static const char *readers_text(const cb_explanation *e, uint32_t storage, char buffer[32]) {
    uint32_t backward = 0, n = e->reader_begin[storage + 1] - e->reader_begin[storage];
    for (uint32_t i = e->reader_begin[storage]; i < e->reader_begin[storage + 1]; i++)
        backward += (e->p->op_flags[e->reader[i]] & CB_POP_BACKWARD) != 0;
    cb_format(buffer, 32, "%u + %u", n - backward, backward);
    return buffer;
}

static void put_line(cb_str *out, const cb_explanation *e, const cb_explained *l) {
    const cb_problem *p = e->p;
    const cb_plan *plan = e->plan;
    char bytes[32], readers[32], peak[33], time[32];
    cb_str_addf(out, "%c %-20s %11s  %-24s %-20s %7s  %-10s %-10s", l->at_peak ? '*' : ' ',
                p->value_type[l->value], bytes_text(l->bytes, bytes), p->op_name[l->op],
                p->op_location[l->op], readers_text(e, l->storage, readers),
                cb_decision_names[plan->decision[l->value]],
                cb_reason_names[plan->reason[l->value]]);
    if (!l->otherwise.known) {
        cb_str_addf(out, " %11s\n", "-");
        return;
    }
    int64_t bytes_change =
        plan->measure == CB_MEASURE_SAVED ? l->otherwise.saved_bytes : l->otherwise.peak_bytes;
    cb_str_addf(out, " %11s %s%s\n", change_text(bytes_change, peak),
                l->otherwise.time_ps < 0 ? "" : "+", time_text(l->otherwise.time_ps, time));
}

static void put_measure(cb_str *out, const char *name, uint64_t bytes, uint64_t of) {
    char a[32], b[32];
    cb_str_addf(out, "  %-8s %12s  of %12s when everything is saved (%.1f %%)\n", name,
                bytes_text(bytes, a), bytes_text(of, b),
                of > 0 ? 100.0 * (double)bytes / (double)of : 100.0);
}

static void put_bound(cb_str *out, const cb_plan *plan) {
    char a[32];
    double gap = cb_plan_gap(plan);
    static const char *const what[] = {
        [CB_BOUND_TRIVIAL] = "trivial: every op runs once, and no better bound is known",
        [CB_BOUND_ANY] = "no plan that keeps the budget takes less",
        [CB_BOUND_ORDERED] = "no plan that keeps the budget and the order of ops takes less"};
    cb_str_addf(out, "  %-8s %12s  %s\n", "bound", time_text(plan->lower_bound_ps, a),
                what[plan->bound_class]);
    if (gap >= 0) cb_str_addf(out, "  %-8s %10.2f %%  above the bound\n", "gap", 100 * gap);
    else cb_str_addf(out, "  %-8s %12s  the bound is 0\n", "gap", "n/a");
}

/* Writes the part of a share that no plan can reduce. */
static void put_held(cb_str *out, const cb_explanation *e) {
    char a[32];
    uint64_t whole = e->plan->save_all_live_bytes;
    if (e->plan->measure == CB_MEASURE_SAVED) return;
    cb_str_addf(
        out,
        "  %-8s %12s  results and gradients, which every plan has at its end (%.1f %% of live "
        "bytes when everything is saved)\n",
        "held", bytes_text(e->held_bytes, a),
        whole > 0 ? 100.0 * (double)e->held_bytes / (double)whole : 0.0);
}

static void put_floor(cb_str *out, const cb_explanation *e) {
    const cb_problem *p = e->p;
    uint64_t floor = cb_explanation_floor(e);
    char a[32], op[CB_OP_TEXT];
    bool moves = e->plan->lives.out_bytes > 0;
    if (floor == UINT64_MAX) return;
    cb_str_addf(out,
                "  %-8s %12s  no plan with this order of ops%s takes less; set by %s\n"
                "  largest working sets (inputs, outputs and scratch of one op):\n",
                "floor", bytes_text(floor, a), moves ? " that moves nothing to the host" : "",
                cb_op_text(p, e->floor.op, op));
    for (uint32_t i = 0; i < e->n_set && i < MOST_SETS; i++) {
        cb_str_addf(out, "  %-8s %12s  %s\n", "", bytes_text(e->set[i].bytes, a),
                    cb_op_text(p, e->base[e->set[i].at], op));
    }
}

static void put_moved(cb_str *out, const cb_lives *lives) {
    char a[32], b[32], c[32], d[32];
    cb_str_addf(out, "  %-8s %12s  out, %s back; %s of waiting; at most %s on the host\n",
                "offload", bytes_text(lives->out_bytes, a), bytes_text(lives->in_bytes, b),
                time_text(lives->stall_ps, c), bytes_text(lives->host_bytes, d));
}

static void put_totals(cb_str *out, const cb_problem *p, const cb_plan *plan) {
    char a[32], b[32];
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
    if (plan->schedule.action) put_moved(out, &plan->lives);
    put_bound(out, plan);
    if (peak < plan->schedule.n_step) {
        uint32_t op = plan->schedule.step[peak];
        cb_str_addf(out, "  %-8s step %u of %u, %s%s%s\n", "peak at", peak, plan->schedule.n_step,
                    p->op_name[op], p->op_location[op][0] ? ", " : "", p->op_location[op]);
    }
}

static void put_lines(cb_str *out, const cb_explanation *e) {
    bool saved = e->plan->measure == CB_MEASURE_SAVED;
    cb_str_addf(out,
                "\n  Otherwise: how %s and the time of the step change if only this decision were "
                "different.\n  Readers: ops of the forward + of the backward. *: alive at the "
                "peak.\n\n",
                saved ? "saved bytes" : "the peak");
    cb_str_addf(out, "  %-20s %11s  %-24s %-20s %7s  %-10s %-10s %11s\n", "value", "bytes",
                "made by", "at", "readers", "decision", "reason", "otherwise");
    for (uint32_t i = 0; i < e->n_line && i < MOST_LINES; i++) put_line(out, e, &e->line[i]);
    if (e->n_line > MOST_LINES) cb_str_addf(out, "  and %u smaller ones\n", e->n_line - MOST_LINES);
    if (e->n_tried < e->n_line)
        cb_str_addf(out, "  other choices were tried for %u of %u\n", e->n_tried, e->n_line);
}

typedef struct kept_kind {
    const char *kind;
    const char *why;
    uint32_t n;
    uint64_t bytes;
} kept_kind;

/* Lists values kept because their op may not run again, by kind of op, ordered by the largest
 * value. */
static void put_once(cb_str *out, const cb_explanation *e) {
    kept_kind found[MOST_KINDS];
    uint32_t n = 0, left = 0;
    char bytes[32];
    for (uint32_t i = 0; i < e->n_line; i++) {
        const cb_explained *l = &e->line[i];
        const char *why = cb_explained_once(e, l);
        uint32_t k = 0;
        if (!why) continue;
        while (k < n && (strcmp(found[k].kind, e->p->op_kind[l->op]) != 0 || found[k].why != why))
            k++;
        if (k == MOST_KINDS) {
            left++;
            continue;
        }
        if (k == n) found[n++] = (kept_kind){.kind = e->p->op_kind[l->op], .why = why};
        found[k].n++;
        found[k].bytes += l->bytes;
    }
    if (n == 0) return;
    cb_str_addf(out, "\n  Ops that run once; what the backward needs of them is kept:\n");
    for (uint32_t k = 0; k < n; k++) {
        cb_str_addf(out, "  %11s  %u of %s: %s\n", bytes_text(found[k].bytes, bytes), found[k].n,
                    found[k].kind, found[k].why);
    }
    if (left > 0) cb_str_addf(out, "  and %u smaller ones of other kinds\n", left);
}

/* Lists delayed ops. They take no extra time, because each runs once, only later. */
static void put_delayed(cb_str *out, const cb_explanation *e) {
    char bytes[32], op[CB_OP_TEXT], before[CB_OP_TEXT];
    if (e->n_delayed == 0) return;
    cb_str_addf(
        out,
        "\n  Ops of the backward that run later than their position in the graph, at no cost:\n");
    for (uint32_t i = 0; i < e->n_delayed && i < MOST_DELAYED; i++) {
        const cb_delayed *d = &e->delayed[i];
        bool ends = d->before == CB_NONE;
        cb_str_addf(out, "  %11s  %s, delayed to %s%s\n", bytes_text(d->bytes, bytes),
                    cb_op_text(e->p, d->op, op), ends ? "" : "right before ",
                    ends ? "the end of the step" : cb_op_text(e->p, d->before, before));
    }
    if (e->n_delayed > MOST_DELAYED)
        cb_str_addf(out, "  and %u smaller ones\n", e->n_delayed - MOST_DELAYED);
}

cb_status cb_plan_explanation_to_text(const cb_problem *p, const cb_plan *plan, cb_str *out,
                                      cb_error *err) {
    cb_arena scratch;
    cb_explanation e;
    cb_arena_init(&scratch, out->arena->alloc);
    cb_status status = cb_explanation_make(p, plan, &scratch, &e, err);
    if (status == CB_OK) {
        put_totals(out, p, plan);
        put_held(out, &e);
        put_floor(out, &e);
        put_lines(out, &e);
        put_once(out, &e);
        put_delayed(out, &e);
        if (out->failed) status = cb_no_memory(err);
    }
    cb_arena_free(&scratch);
    return status;
}
