#include "../explain/explain.h"
#include "../model/names.h"
#include "explanation.h"
#include "plan_json.h"

static void put_op(cb_json_writer *w, const cb_problem *p, uint32_t op) {
    cb_json_put_u64(w, "op", op);
    cb_json_put_string(w, "name", p->op_name[op]);
    cb_json_put_string(w, "kind", p->op_kind[op]);
    cb_json_put_string(w, "at", p->op_location[op]);
}

static void put_peak(cb_json_writer *w, const cb_explanation *e) {
    const cb_plan *plan = e->plan;
    uint32_t step = plan->lives.peak_step;
    if (step >= plan->schedule.n_step) {
        cb_json_put_null(w, "peak");
        return;
    }
    cb_json_begin(w, "peak", '{');
    cb_json_put_u64(w, "bytes", plan->lives.peak_bytes);
    cb_json_put_u64(w, "step", step);
    put_op(w, e->p, plan->schedule.step[step]);
    cb_json_end(w, '}');
}

static void put_floor(cb_json_writer *w, const cb_explanation *e) {
    uint64_t floor = cb_explanation_floor(e);
    if (floor == UINT64_MAX) {
        cb_json_put_null(w, "floor");
    } else {
        cb_json_begin(w, "floor", '{');
        cb_json_put_u64(w, "bytes", floor);
        put_op(w, e->p, e->floor.op);
        cb_json_end(w, '}');
    }
    cb_json_begin(w, "working_sets", '[');
    for (uint32_t i = 0; i < e->n_set; i++) {
        cb_json_begin(w, NULL, '{');
        cb_json_put_u64(w, "bytes", e->set[i].bytes);
        put_op(w, e->p, e->base[e->set[i].at]);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

static void put_readers(cb_json_writer *w, const cb_explanation *e, uint32_t storage,
                        bool backward) {
    cb_json_begin(w, backward ? "backward_readers" : "forward_readers", '[');
    for (uint32_t i = e->reader_begin[storage]; i < e->reader_begin[storage + 1]; i++) {
        uint32_t op = e->reader[i];
        if (backward == ((e->p->op_flags[op] & CB_POP_BACKWARD) != 0))
            cb_json_put_string(w, NULL, e->p->op_name[op]);
    }
    cb_json_end(w, ']');
}

static void put_otherwise(cb_json_writer *w, const cb_explanation *e, const cb_explained *line) {
    bool saved = e->plan->decision[line->value] == CB_DECISION_SAVE;
    if (!line->otherwise.known) {
        cb_json_put_null(w, "otherwise");
        return;
    }
    cb_json_begin(w, "otherwise", '{');
    cb_json_put_string(w, "decision",
                       cb_decision_names[saved ? CB_DECISION_RECOMPUTE : CB_DECISION_SAVE]);
    cb_json_put_int(w, "peak_bytes", line->otherwise.peak_bytes);
    cb_json_put_int(w, "saved_bytes", line->otherwise.saved_bytes);
    cb_json_put_int(w, "time_ps", line->otherwise.time_ps);
    cb_json_end(w, '}');
}

static void put_line(cb_json_writer *w, const cb_explanation *e, const cb_explained *line) {
    const cb_plan *plan = e->plan;
    cb_json_begin(w, NULL, '{');
    cb_json_put_u64(w, "value", line->value);
    cb_json_put_u64(w, "storage", line->storage);
    cb_json_put_string(w, "type", e->p->value_type[line->value]);
    cb_json_put_u64(w, "bytes", line->bytes);
    put_op(w, e->p, line->op);
    int64_t run_ps = cb_run_time_ps(e->p, line->op, line->made, plan->device);
    cb_json_put_int(w, "run_ps", run_ps);
    put_readers(w, e, line->storage, false);
    put_readers(w, e, line->storage, true);
    cb_json_put_string(w, "decision", cb_decision_names[plan->decision[line->value]]);
    cb_json_put_string(w, "reason", cb_reason_names[plan->reason[line->value]]);
    cb_json_put_string(w, "runs_once", cb_explained_once(e, line));
    cb_json_put_bool(w, "at_peak", line->at_peak);
    put_otherwise(w, e, line);
    cb_json_end(w, '}');
}

static void put_explanation(cb_json_writer *w, const cb_explanation *e) {
    cb_json_begin(w, NULL, '{');
    cb_json_put_string(w, "format", "cutback.explanation");
    cb_json_put_int(w, "version", 1);
    cb_plan_put_question(w, e->plan);
    cb_plan_put_numbers(w, e->plan);
    put_peak(w, e);
    put_floor(w, e);
    cb_json_put_u64(w, "held_bytes", e->held_bytes);
    cb_json_put_u64(w, "tried", e->n_tried);
    cb_json_begin(w, "values", '[');
    for (uint32_t i = 0; i < e->n_line; i++) put_line(w, e, &e->line[i]);
    cb_json_end(w, ']');
    cb_json_end(w, '}');
}

cb_status cb_plan_explanation_to_json(const cb_problem *p, const cb_plan *plan, cb_str *out,
                                      cb_error *err) {
    cb_arena scratch;
    cb_explanation e;
    cb_arena_init(&scratch, out->arena->alloc);
    cb_status status = cb_explanation_make(p, plan, &scratch, &e, err);
    cb_json_writer w = {.out = out};
    if (status == CB_OK) {
        put_explanation(&w, &e);
        if (out->failed) status = cb_no_memory(err);
    }
    cb_arena_free(&scratch);
    return status;
}
