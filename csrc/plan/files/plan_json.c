/* Plans as JSON; docs/problem.md states the schema. Only the schedule, the request and the
 * decisions are read back: lives, offsets and numbers follow from the schedule and are
 * recomputed. */
#include "plan_json.h"

#include <inttypes.h>
#include <stdio.h>

#include "../explain/explain.h"
#include "../model/device.h"
#include "../model/names.h"
#include "../planner.h"

#define PLAN_FORMAT "cutback.plan"
#define PLAN_VERSION 3

/* ---- writing --------------------------------------------------------------------------------- */

static void put_moved(cb_json_writer *w, const cb_lives *lives) {
    cb_json_put_int(w, "stall_ps", lives->stall_ps);
    cb_json_put_u64(w, "out_bytes", lives->out_bytes);
    cb_json_put_u64(w, "in_bytes", lives->in_bytes);
    cb_json_put_u64(w, "host_bytes", lives->host_bytes);
}

void cb_plan_put_numbers(cb_json_writer *w, const cb_plan *plan) {
    cb_json_begin(w, "numbers", '{');
    cb_json_put_u64(w, "arena_bytes", plan->arena_bytes);
    cb_json_put_u64(w, "live_bytes", plan->live_bytes);
    cb_json_put_u64(w, "saved_bytes", plan->saved_bytes);
    cb_json_put_u64(w, "total_bytes", plan->total_bytes);
    cb_json_put_u64(w, "save_all_arena_bytes", plan->save_all_arena_bytes);
    cb_json_put_u64(w, "save_all_live_bytes", plan->save_all_live_bytes);
    cb_json_put_u64(w, "save_all_saved_bytes", plan->save_all_saved_bytes);
    cb_json_put_int(w, "time_ps", plan->time_ps);
    cb_json_put_int(w, "once_ps", plan->once_ps);
    cb_json_put_int(w, "lower_bound_ps", plan->lower_bound_ps);
    cb_json_put_string(w, "bound_class", cb_bound_class_names[plan->bound_class]);
    if (cb_plan_gap(plan) >= 0) cb_json_put_double(w, "gap", cb_plan_gap(plan));
    else cb_json_put_null(w, "gap");
    cb_json_put_u64(w, "recomputed", plan->lives.n_recomputed);
    if (plan->schedule.action) put_moved(w, &plan->lives);
    cb_json_end(w, '}');
}

/* Writes a step. 7: op 7 runs. ["out", 7]: its outputs move to the host. ["run", 7, [0, 2]]: op 7
 * runs and makes outputs 0 and 2. ["run", 7, [0, 2], [5]]: value 5 is also inlined. */
static void put_step(cb_json_writer *w, const cb_problem *p, const cb_schedule *s, uint32_t step) {
    cb_action action = cb_action_at(s, step);
    uint32_t op = s->step[step], made = cb_made_at(p, s, step);
    uint64_t taken = cb_taken_at(s, step);
    bool some = action == CB_ACTION_RUN && (taken || made != cb_all_made(p, op));
    if (action == CB_ACTION_RUN && !some) {
        cb_json_put_u64(w, NULL, op);
        return;
    }
    cb_json_begin(w, NULL, '[');
    cb_json_put_string(w, NULL, cb_action_names[action]);
    cb_json_put_u64(w, NULL, op);
    if (some) {
        cb_json_begin(w, NULL, '[');
        for (uint32_t i = 0; i < p->out_begin[op + 1] - p->out_begin[op]; i++)
            if (cb_makes(made, i)) cb_json_put_u64(w, NULL, i);
        cb_json_end(w, ']');
    }
    if (taken) {
        cb_json_begin(w, NULL, '[');
        for (uint32_t i = 0; i < CB_MOST_INLININGS; i++) {
            if (taken >> i & 1)
                cb_json_put_u64(w, NULL, p->inlining[p->inline_begin[op] + i].value);
        }
        cb_json_end(w, ']');
    }
    cb_json_end(w, ']');
}

static void put_steps(cb_json_writer *w, const cb_problem *p, const cb_schedule *s) {
    cb_json_begin(w, "steps", '[');
    for (uint32_t t = 0; t < s->n_step; t++) put_step(w, p, s, t);
    cb_json_end(w, ']');
}

void cb_plan_put_question(cb_json_writer *w, const cb_plan *plan) {
    char fingerprint[17];
    (void)snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, plan->fingerprint);
    cb_json_put_string(w, "fingerprint", fingerprint);
    cb_device_put(w, "device", plan->device);
    cb_json_put_string(w, "preset", cb_preset_names[plan->preset]);
    cb_json_put_string(w, "measure", cb_measure_names[plan->measure]);
    if (plan->budget_bytes == UINT64_MAX) cb_json_put_null(w, "budget_bytes");
    else cb_json_put_u64(w, "budget_bytes", plan->budget_bytes);
}

static void put_decisions(cb_json_writer *w, const cb_problem *p, const cb_plan *plan) {
    cb_json_begin(w, "decisions", '[');
    for (uint32_t v = 0; v < p->n_value; v++) {
        if (plan->decision[v] == CB_DECISION_NONE) continue;
        cb_json_begin(w, NULL, '{');
        cb_json_put_u64(w, "value", v);
        cb_json_put_string(w, "decision", cb_decision_names[plan->decision[v]]);
        cb_json_put_string(w, "reason", cb_reason_names[plan->reason[v]]);
        cb_json_end(w, '}');
    }
    cb_json_end(w, ']');
}

/* Writes one row per life: storage (null: scratch of a step), first step, last step, bytes, offset.
 */
static void put_lives(cb_json_writer *w, const cb_plan *plan) {
    cb_json_begin(w, "lives", '[');
    for (uint32_t i = 0; i < plan->lives.n_instance; i++) {
        const cb_instance *life = &plan->lives.instance[i];
        cb_json_begin(w, NULL, '[');
        if (life->storage == CB_NONE) cb_json_put_null(w, NULL);
        else cb_json_put_u64(w, NULL, life->storage);
        cb_json_put_u64(w, NULL, life->made);
        cb_json_put_u64(w, NULL, life->last);
        cb_json_put_u64(w, NULL, life->bytes);
        cb_json_put_u64(w, NULL, life->offset);
        cb_json_end(w, ']');
    }
    cb_json_end(w, ']');
}

cb_status cb_plan_to_json(const cb_problem *p, const cb_plan *plan, cb_str *out, cb_error *err) {
    cb_json_writer w = {.out = out};
    cb_json_begin(&w, NULL, '{');
    cb_json_put_string(&w, "format", PLAN_FORMAT);
    cb_json_put_int(&w, "version", PLAN_VERSION);
    cb_plan_put_question(&w, plan);
    cb_plan_put_numbers(&w, plan);
    cb_json_put_u64(&w, "backward_starts", plan->schedule.backward_starts);
    put_steps(&w, p, &plan->schedule);
    put_decisions(&w, p, plan);
    put_lives(&w, plan);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Also accepts the fingerprint of the same problem without reruns of backward ops, because its
 * plans are valid for this problem too. */
static cb_status check_fingerprint(const cb_problem *p, const cb_json *root, cb_error *err) {
    const cb_json *node;
    cb_problem narrow = *p;
    char own[17], of_narrow[17];
    narrow.reruns = CB_RERUNS_FORWARD;
    CB_TRY(cb_json_want(root, "fingerprint", CB_JSON_STRING, &node, err));
    (void)snprintf(own, sizeof own, "%016" PRIx64, cb_problem_fingerprint(p));
    (void)snprintf(of_narrow, sizeof of_narrow, "%016" PRIx64, cb_problem_fingerprint(&narrow));
    if (strcmp(own, node->as.string) == 0 || strcmp(of_narrow, node->as.string) == 0) return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "plan: made for the problem with fingerprint %.32s, but this one has %s",
                   node->as.string, own);
}

/* Reads the outputs of ["run", 7, [0, 2]]. */
static cb_status read_made(const cb_problem *p, const cb_json *list, uint32_t op, uint32_t *made,
                           cb_error *err) {
    uint32_t n = p->out_begin[op + 1] - p->out_begin[op], count = 0;
    bool in_order = true;
    if (list->kind != CB_JSON_ARRAY) {
        return cb_fail(err, CB_INVALID,
                       "line %u: the outputs of a run must be a list, not of kind %s", list->line,
                       cb_json_kind_name(list->kind));
    }
    *made = 0;
    for (const cb_json *c = list->as.child; c; c = c->next, count++) {
        uint64_t at;
        if (n == 0) return cb_fail(err, CB_INVALID, "line %u: the op has no outputs", c->line);
        CB_TRY(cb_json_as_u64(c, "output", n - 1, &at, err));
        in_order &= at == count;
        if (!cb_has_inside(p, op)) continue;
        if (*made >> at & 1)
            return cb_fail(err, CB_INVALID, "line %u: output %llu is made twice", c->line,
                           (unsigned long long)at);
        *made |= UINT32_C(1) << at;
    }
    if (!cb_has_inside(p, op) && in_order && count == n) *made = CB_ALL_OUTPUTS;
    return CB_OK;
}

/* Reads the inlined values of ["run", 7, [0, 2], [5]]. */
static cb_status read_taken(const cb_problem *p, const cb_json *list, uint32_t op, uint64_t *taken,
                            cb_error *err) {
    if (list->kind != CB_JSON_ARRAY) {
        return cb_fail(
            err, CB_INVALID,
            "line %u: the inlined values of a run must be a list of values, not of kind %s",
            list->line, cb_json_kind_name(list->kind));
    }
    *taken = 0;
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint64_t value;
        CB_TRY(cb_json_as_u64(c, "value", CB_NONE - 1, &value, err));
        uint64_t bit = p->inline_begin ? cb_inlining_bit(p, op, (uint32_t)value) : 0;
        if (!bit) {
            return cb_fail(err, CB_INVALID,
                           "line %u: the problem has no inlining of value %llu into %s", c->line,
                           (unsigned long long)value, p->op_name[op]);
        }
        if (*taken & bit)
            return cb_fail(err, CB_INVALID, "line %u: value %llu is inlined twice", c->line,
                           (unsigned long long)value);
        *taken |= bit;
    }
    return CB_OK;
}

/* Reads ["out", 7], or a run with its outputs and inlined values. */
static cb_status read_list_step(const cb_json *c, const cb_json **op, uint32_t *action,
                                const cb_json **made, cb_error *err) {
    *made = NULL;
    if (c->n < 2 || c->n > 4) {
        return cb_fail(err, CB_INVALID,
                       "line %u: a step is the id of an op, or a list of an action and an id; this "
                       "list has %u entries",
                       c->line, c->n);
    }
    CB_TRY(cb_name_index(c->as.child, "the action of a step", cb_action_names, CB_ACTION_COUNT,
                         action, err));
    *op = c->as.child->next;
    if (c->n == 2) return CB_OK;
    if (*action != CB_ACTION_RUN) {
        return cb_fail(err, CB_INVALID,
                       "line %u: a step that moves something is a list of an action and an id; "
                       "this list has %u entries",
                       c->line, c->n);
    }
    *made = (*op)->next;
    return CB_OK;
}

static bool has_lists(const cb_json *list, uint32_t n) {
    for (const cb_json *c = list->as.child; c; c = c->next)
        if (c->kind == CB_JSON_ARRAY && c->n == n) return true;
    return false;
}

typedef struct steps_read { /* NULL: missing */
    uint32_t *step;
    uint8_t *action;
    uint32_t *made;
    uint64_t *taken;
} steps_read;

static cb_status read_step(const cb_problem *p, const cb_json *c, const steps_read *out, uint32_t t,
                           cb_error *err) {
    const cb_json *op = c, *outputs = NULL;
    uint32_t act = CB_ACTION_RUN;
    uint64_t number;
    if (p->n_op == 0)
        return cb_fail(err, CB_INVALID, "line %u: a step, but the problem has no ops", c->line);
    if (c->kind == CB_JSON_ARRAY) CB_TRY(read_list_step(c, &op, &act, &outputs, err));
    CB_TRY(cb_json_as_u64(op, "step", p->n_op - 1, &number, err));
    out->step[t] = (uint32_t)number;
    if (out->action) out->action[t] = (uint8_t)act;
    if (out->made) out->made[t] = CB_ALL_OUTPUTS;
    if (outputs) CB_TRY(read_made(p, outputs, out->step[t], &out->made[t], err));
    return outputs && outputs->next
               ? read_taken(p, outputs->next, out->step[t], &out->taken[t], err)
               : CB_OK;
}

static cb_status read_steps(const cb_problem *p, const cb_json *root, cb_plan *plan,
                            cb_error *err) {
    const cb_json *list, *starts;
    uint64_t number;
    CB_TRY(cb_json_want(root, "steps", CB_JSON_ARRAY, &list, err));
    CB_TRY(cb_json_want(root, "backward_starts", CB_JSON_INT, &starts, err));
    CB_TRY(cb_json_as_u64(starts, "backward_starts", list->n, &number, err));
    bool moves = has_lists(list, 2), inlines = has_lists(list, 4);
    bool chooses = inlines || has_lists(list, 3);
    uint32_t t = 0;
    const steps_read out = {.step = CB_NEW(&plan->arena, uint32_t, list->n),
                            .action = moves ? CB_NEW(&plan->arena, uint8_t, list->n) : NULL,
                            .made = chooses ? CB_NEW(&plan->arena, uint32_t, list->n) : NULL,
                            .taken = inlines ? CB_NEW(&plan->arena, uint64_t, list->n) : NULL};
    if (!out.step || (moves && !out.action) || (chooses && !out.made) || (inlines && !out.taken))
        return cb_no_memory(err);
    plan->schedule = (cb_schedule){.n_step = list->n,
                                   .step = out.step,
                                   .action = out.action,
                                   .made = out.made,
                                   .taken = out.taken,
                                   .backward_starts = (uint32_t)number};
    for (const cb_json *c = list->as.child; c; c = c->next) CB_TRY(read_step(p, c, &out, t++, err));
    return CB_OK;
}

static cb_status read_question(const cb_json *root, cb_plan *plan, cb_error *err) {
    const cb_json *node;
    uint32_t index;
    CB_TRY(cb_json_want(root, "preset", CB_JSON_STRING, &node, err));
    CB_TRY(cb_name_index(node, "preset", cb_preset_names, CB_PRESET_COUNT, &index, err));
    plan->preset = (cb_preset)index;
    CB_TRY(cb_json_want(root, "measure", CB_JSON_STRING, &node, err));
    CB_TRY(cb_name_index(node, "measure", cb_measure_names, CB_MEASURE_COUNT, &index, err));
    plan->measure = (cb_measure)index;
    node = cb_json_get(root, "budget_bytes");
    plan->budget_bytes = UINT64_MAX;
    if (!node || node->kind == CB_JSON_NULL) return CB_OK;
    return cb_json_as_u64(node, "budget_bytes", INT64_MAX, &plan->budget_bytes, err);
}

/* Reasons come from the planner and cannot be derived again; decisions can, and must agree. */
static cb_status read_reasons(const cb_problem *p, const cb_json *root, cb_plan *plan,
                              cb_error *err) {
    const cb_json *list, *node;
    if (!cb_json_get(root, "decisions")) return CB_OK;
    CB_TRY(cb_json_want(root, "decisions", CB_JSON_ARRAY, &list, err));
    for (const cb_json *c = list->as.child; c; c = c->next) {
        uint64_t value;
        uint32_t decision, reason;
        if (c->kind != CB_JSON_OBJECT)
            return cb_fail(err, CB_INVALID, "line %u: a decision must be an object", c->line);
        CB_TRY(cb_json_want(c, "value", CB_JSON_INT, &node, err));
        CB_TRY(cb_json_as_u64(node, "value", CB_NONE - 1, &value, err));
        CB_TRY(cb_json_want(c, "decision", CB_JSON_STRING, &node, err));
        CB_TRY(cb_name_index(node, "decision", cb_decision_names, CB_DECISION_OFFLOAD + 1,
                             &decision, err));
        CB_TRY(cb_json_want(c, "reason", CB_JSON_STRING, &node, err));
        CB_TRY(cb_name_index(node, "reason", cb_reason_names, CB_REASON_PRESET + 1, &reason, err));
        if (value >= p->n_value || plan->decision[value] != decision) {
            return cb_fail(err, CB_INVALID, "line %u: the steps contradict the decision on %llu",
                           c->line, (unsigned long long)value);
        }
        plan->reason[value] = (uint8_t)reason;
    }
    return CB_OK;
}

static cb_status read_device(const cb_json *root, cb_arena *arena, const cb_device **out,
                             cb_error *err) {
    const cb_json *node = cb_json_get(root, "device");
    if (!node) return cb_fail(err, CB_INVALID, "plan: \"device\" is missing");
    return cb_device_from_json(node, arena, out, err);
}

/* The bound cannot be derived either; it holds on the device that the document names. Before
 * version 3 it held for a smaller class of plans, unless the budget was on saved bytes. */
static cb_status read_bound(const cb_json *root, int64_t version, cb_plan *plan, cb_error *err) {
    const cb_json *numbers = cb_json_get(root, "numbers");
    const cb_json *bound = numbers ? cb_json_get(numbers, "lower_bound_ps") : NULL;
    const cb_device *named;
    uint64_t number;
    if (!bound || bound->kind == CB_JSON_NULL) return CB_OK;
    CB_TRY(read_device(root, &plan->arena, &named, err));
    if (strcmp(named->name, plan->device->name) != 0) return CB_OK;
    CB_TRY(cb_json_as_u64(bound, "lower_bound_ps", INT64_MAX, &number, err));
    bool holds = version >= 3 || plan->measure == CB_MEASURE_SAVED;
    if (holds && (int64_t)number <= plan->time_ps) cb_plan_set_bound(plan, (int64_t)number);
    return CB_OK;
}

static cb_status read_plan(const cb_problem *p, const cb_device *device, const cb_json *root,
                           cb_plan *plan, cb_error *err) {
    int64_t version;
    CB_TRY(cb_check_format(root, PLAN_FORMAT, PLAN_VERSION, &version, err));
    CB_TRY(check_fingerprint(p, root, err));
    if (!device) CB_TRY(read_device(root, &plan->arena, &device, err));
    CB_TRY(read_steps(p, root, plan, err));
    CB_TRY(read_question(root, plan, err));
    CB_TRY(cb_plan_adopt(p, device, plan, err));
    CB_TRY(read_bound(root, version, plan, err));
    return read_reasons(p, root, plan, err);
}

static uint64_t count_runs(const cb_schedule *s) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < s->n_step; t++) n += cb_action_at(s, t) == CB_ACTION_RUN;
    return n;
}

/* Reads a schedule from any source: our plan, PyTorch's, or one written by hand. A fingerprint is
 * checked if present. */
static cb_status evaluate(const cb_problem *p, const cb_device *device, const cb_json *root,
                          cb_arena *arena, cb_str *out, cb_error *err) {
    cb_plan plan = {.arena = *arena};
    cb_lives lives;
    uint64_t arena_bytes;
    if (root->kind != CB_JSON_OBJECT)
        return cb_fail(err, CB_INVALID, "plan: the document must be an object, not of kind %s",
                       cb_json_kind_name(root->kind));
    if (cb_json_get(root, "fingerprint")) CB_TRY(check_fingerprint(p, root, err));
    cb_status status = read_steps(p, root, &plan, err);
    *arena = plan.arena;
    if (status != CB_OK) return status;
    CB_TRY(cb_schedule_walk(p, &plan.schedule, device, arena, &lives, err));
    CB_TRY(cb_place(p, &lives, arena, (cb_poll){0}, &arena_bytes, err));
    cb_json_writer w = {.out = out};
    cb_json_begin(&w, NULL, '{');
    cb_device_put(&w, "device", device);
    cb_json_put_u64(&w, "peak_bytes", lives.peak_bytes);
    cb_json_put_u64(&w, "arena_bytes", arena_bytes);
    cb_json_put_u64(&w, "saved_bytes", lives.saved_bytes);
    cb_json_put_int(&w, "time_ps", lives.time_ps);
    cb_json_put_int(&w, "once_ps", lives.once_ps);
    cb_json_put_u64(&w, "runs", count_runs(&plan.schedule));
    cb_json_put_u64(&w, "recomputed", lives.n_recomputed);
    if (plan.schedule.action) put_moved(&w, &lives);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}

cb_status cb_evaluate_to_json(const cb_problem *p, const cb_device *device, cb_alloc *alloc,
                              const char *text, size_t length, cb_str *out, cb_error *err) {
    const cb_json *root;
    cb_arena scratch;
    cb_arena_init(&scratch, alloc);
    cb_status status = cb_json_parse(&scratch, text, length, &root, err);
    if (status == CB_OK && !device && cb_json_get(root, "device"))
        status = read_device(root, &scratch, &device, err);
    if (status == CB_OK)
        status = evaluate(p, device ? device : cb_device_find("cpu"), root, &scratch, out, err);
    cb_arena_free(&scratch);
    return status;
}

cb_status cb_plan_from_json(const cb_problem *p, const cb_device *device, cb_alloc *alloc,
                            const char *text, size_t length, cb_plan **out, cb_error *err) {
    const cb_json *root;
    cb_arena scratch;
    cb_plan *plan = NULL;
    CB_TRY(cb_plan_new(alloc, &plan, err));
    cb_arena_init(&scratch, alloc);
    cb_status status = cb_json_parse(&scratch, text, length, &root, err);
    if (status == CB_OK) status = read_plan(p, device, root, plan, err);
    cb_arena_free(&scratch);
    if (status == CB_OK) *out = plan;
    else cb_plan_free(plan);
    return status;
}
