/* The stages from a forward graph to an executable. Each stage takes the result of the previous one
 * and returns a new object, which is always verified before the next stage: the verifiers are
 * linear and cheap compared with planning, and an error is reported by the stage that made it. */
#include "pipeline.h"

#include <stdio.h>

#include "following.h"
#include "optim/extras.h"

#include "ad/joint.h"
#include "ad/lacking.h"
#include "ad/rewrites/packs.h"
#include "base/sort.h"
#include "fuse/contract.h"
#include "fuse/find_groups.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "lower/annotate.h"
#include "lower/indices.h"
#include "lower/split.h"
#include "lower/within.h"
#include "plan/files/explanation.h"
#include "plan/files/plan_json.h"
#include "plan/model/device.h"
#include "plan/torch/inductor_fusion.h"

/* Passes the text of a stage to the caller's hook, if there is one. */
static cb_status dump(const cb_step *step, const cb_compile_options *o, const char *stage,
                      cb_error *err) {
    char *text;
    if (!o->dump) return CB_OK;
    CB_TRY(cb_step_text(step, stage, &text, err));
    o->dump(o->dump_user, stage, text);
    cb_free(&step->ctx->alloc, text);
    return CB_OK;
}

/* Copies the caller's graph, which the step does not keep. */
static cb_status dump_forward(const cb_step *step, const cb_compile_options *o,
                              const cb_graph *forward, cb_error *err) {
    cb_arena scratch;
    cb_str text;
    if (!o->dump) return CB_OK;
    cb_arena_init(&scratch, &step->ctx->alloc);
    cb_str_init(&text, &scratch);
    const cb_status status = cb_graph_print(forward, &text, err);
    if (status == CB_OK) o->dump(o->dump_user, "forward", text.at);
    cb_arena_free(&scratch);
    return status;
}

/* NULL: out of memory. */
static cb_step *step_new(cb_context *ctx, const cb_compile_options *o) {
    cb_arena arena;
    cb_arena_init(&arena, &ctx->alloc);
    cb_step *step = CB_NEW(&arena, cb_step, 1);
    if (!step) return NULL;
    *step = (cb_step){
        .arena = arena, .ctx = ctx, .n_gradients = o->n_wrt, .keep_gradients = o->keep_gradients};
    step->updates_inside = o->updates_inside && o->keep_gradients;
    step->updates_reason = "";
    return step;
}

static cb_status no_backend(cb_alloc *alloc, const char *name, cb_error *err) {
    cb_arena scratch;
    cb_str names;
    cb_arena_init(&scratch, alloc);
    cb_str_init(&names, &scratch);
    cb_backend_names(&names);
    const cb_status status =
        names.failed
            ? cb_no_memory(err)
            : cb_fail(err, CB_INVALID, "compile: no backend is called \"%s\"; there are %s", name,
                      names.at);
    cb_arena_free(&scratch);
    return status;
}

static cb_status find_backend(cb_alloc *alloc, const char *name, const cb_backend **out,
                              cb_error *err) {
    *out = name ? cb_backend_find(name) : cb_backends[0];
    return *out ? CB_OK : no_backend(alloc, name, err);
}

static cb_status make_joint(cb_step *step, const cb_graph *forward, const cb_compile_options *o,
                            cb_error *err) {
    cb_str_init(&step->sliced, &step->arena);
    const cb_joint_options options = {.wrt = o->wrt,
                                      .n_wrt = o->n_wrt,
                                      .slices = o->slices,
                                      .packed = step->packs,
                                      .sliced = &step->sliced};
    cb_graph *known = NULL, *copying = NULL;
    CB_TRY(cb_expand_lacking(forward, step->backend->lacks, &step->ctx->alloc, &known, err));
    const cb_graph *from = known ? known : forward;
    cb_status status = CB_OK;
    if (step->updates_inside) status = cb_copy_index_inputs(from, &step->ctx->alloc, &copying, err);
    if (status == CB_OK)
        status = cb_joint_build(copying ? copying : from, &options, &step->ctx->alloc, &step->joint,
                                err);
    cb_graph_free(copying);
    cb_graph_free(known);
    CB_TRY(status);
    if (step->sliced.failed) return cb_no_memory(err);
    return cb_graph_verify(step->joint, CB_SPEC_JOINT, err);
}

/* Falls back to updates after the run. */
static cb_status update_after(cb_step *step, const char *reason, cb_error *err) {
    step->updates_inside = false;
    step->updates_reason = cb_arena_strdup(&step->arena, reason, strlen(reason));
    return step->updates_reason ? CB_OK : cb_no_memory(err);
}

/* Decides whether updates come inside the run, and makes the joint graph. */
static cb_status make_joint_for_updates(cb_step *step, const cb_graph *forward,
                                        const cb_compile_options *o, cb_error *err) {
    char reason[256];
    cb_op_id late;
    if (step->updates_inside && !step->backend->is_host)
        CB_TRY(update_after(step, CB_UPDATES_AFTER_RUNS, err));
    CB_TRY(make_joint(step, forward, o, err));
    if (!step->updates_inside) return CB_OK;
    CB_TRY(cb_find_late_check(step->joint, &late, err));
    if (late == CB_NONE) return CB_OK;
    const cb_op *op = &step->joint->ops.at[late];
    (void)snprintf(
        reason, sizeof reason,
        "the indices of %s_%u (%.100s) are checked only in the backward, so the step may "
        "fail there",
        cb_op_def_of(op->code)->name, late, cb_graph_name(step->joint, op->location));
    CB_TRY(update_after(step, reason, err));
    cb_graph_free(step->joint);
    step->joint = NULL;
    return make_joint(step, forward, o, err);
}

/* Groups named by the caller run unchanged; groups found automatically may be merged. */
static cb_status find_request(cb_step *step, const char *text, cb_group_request *out,
                              cb_error *err) {
    step->merges = strcmp(text, CB_GROUPS_FOUND) == 0;
    if (!step->merges) return cb_group_request_read(text, strlen(text), &step->arena, out, err);
    return cb_find_groups(step->joint, step->problem, step->backend->fuses, &step->arena, out, err);
}

static cb_status make_groups(cb_step *step, const char *text, cb_error *err) {
    cb_group_request request;
    CB_TRY(find_request(step, text, &request, err));
    CB_TRY(cb_grouping_make(step->joint, step->problem, &request, step->backend->fuses,
                            &step->arena, &step->grouping, err));
    return cb_grouping_verify(&step->grouping, step->joint, step->problem, err);
}

/* Replaces the problem of single ops with that of groups. */
static cb_status enter_groups(cb_step *step, const cb_compile_options *o, const char *text,
                              cb_error *err) {
    CB_TRY(make_groups(step, text, err));
    step->single = step->problem;
    step->problem = NULL;
    CB_TRY(dump(step, o, "groups", err));
    CB_TRY(cb_contract(step->joint, step->single, &step->grouping, &step->ctx->alloc,
                       &step->problem, err));
    return cb_find_fusion(step->problem, err);
}

static void leave_groups(cb_step *step) {
    cb_problem_free(step->problem);
    step->problem = step->single;
    step->single = NULL;
}

static cb_status problem_of(const cb_step *step, const cb_graph *joint, uint64_t static_bytes,
                            cb_problem **out, cb_error *err) {
    const cb_annotate_options options = {.keep_gradients = step->keep_gradients,
                                         .updates_inside = step->updates_inside,
                                         .static_bytes = static_bytes,
                                         .alignment = step->backend->alignment,
                                         .workspace = step->backend->workspace,
                                         .reruns = CB_RERUNS_ALL,
                                         .takes_over = true};
    CB_TRY(cb_annotate(joint, &options, &step->ctx->alloc, out, err));
    CB_TRY(cb_problem_verify(*out, err));
    return cb_find_fusion(*out, err);
}

static cb_status make_problem(cb_step *step, const cb_compile_options *o, cb_error *err) {
    return problem_of(step, step->joint, o->static_bytes, &step->problem, err);
}

/* Only backends whose memory is host memory make copies to the host. */
static cb_status check_moves(const cb_step *step, cb_error *err) {
    const cb_schedule *s = &step->plan->schedule;
    if (step->backend->is_host) return CB_OK;
    for (uint32_t t = 0; t < s->n_step; t++) {
        if (cb_action_at(s, t) == CB_ACTION_RUN) continue;
        return cb_fail(err, CB_UNSUPPORTED,
                       "compile: step %u of the plan moves %s to the host or back, which backend "
                       "%s cannot run; plan without offload",
                       t, step->problem->op_name[s->step[t]], step->backend->name);
    }
    return CB_OK;
}

static cb_lowered lowered_of(const cb_step *step) {
    const bool in_groups = step->single;
    return (cb_lowered){.joint = step->joint,
                        .single = in_groups ? step->single : step->problem,
                        .p = step->problem,
                        .grouping = in_groups ? &step->grouping : NULL,
                        .fuses = in_groups && !step->merges ? NULL : step->backend->fuses};
}

static bool is_auto(const cb_compile_options *o) {
    return o->groups && strcmp(o->groups, CB_GROUPS_AUTO) == 0;
}

static cb_status read_as_is(cb_step *step, const cb_compile_options *o, const cb_device *device,
                            cb_error *err) {
    return cb_plan_from_json(step->problem, device, &step->ctx->alloc, o->plan_json,
                             strlen(o->plan_json), &step->plan, err);
}

/* The caller's plan may be for single ops or for groups; both are tried where both are allowed. */
static cb_status read_plan(cb_step *step, const cb_compile_options *o, const cb_device *device,
                           cb_error *err) {
    const bool of_single = step->single; /* if that is tried second */
    const bool may = step->merges || is_auto(o);
    const cb_status status = read_as_is(step, o, device, err);
    if (status == CB_OK || status == CB_NOMEM || !step->backend->fuses) return status;
    const cb_error why = *err;
    if (of_single) leave_groups(step);
    else CB_TRY(enter_groups(step, o, CB_GROUPS_FOUND, err));
    if (read_as_is(step, o, device, err) != CB_OK) {
        *err = why;
        return status;
    }
    if (may) return dump(step, o, "problem", err);
    return cb_fail(err, CB_INVALID,
                   of_single ? "plan: it plans single ops, but groups= lists groups; leave groups= "
                               "out, or pass groups=False"
                             : "plan: it plans groups, but groups=False asks for single ops; leave "
                               "groups= out, or pass groups=True");
}

static cb_status make_within(cb_step *step, const cb_plan_options *options, cb_error *err) {
    const cb_lowered of = lowered_of(step);
    return cb_plan_within(&of, options, &step->ctx->alloc, &step->plan, &step->program, err);
}

/* A share is relative to saving everything in groups, whether groups or single ops are planned in
 * the end. If a policy moves values to the host, which groups cannot do, it is relative to saving
 * everything op by op. `whole` receives those bytes, or 0 if the budget is not a share. */
static cb_status share_in_bytes(const cb_step *step, const cb_plan_options *options, cb_budget *out,
                                uint64_t *whole, cb_error *err) {
    cb_plan_options any = *options;
    cb_plan *plan;
    *out = options->budget;
    *whole = 0;
    if (out->kind != CB_BUDGET_SHARE) return CB_OK;
    any.budget = (cb_budget){.kind = CB_BUDGET_NONE, .measure = out->measure};
    const cb_problem *p = step->problem;
    cb_status status = cb_plan_make(p, &any, &step->ctx->alloc, &plan, err);
    if (status == CB_UNSUPPORTED && step->single) {
        p = step->single;
        status = cb_plan_make(p, &any, &step->ctx->alloc, &plan, err);
    }
    CB_TRY(status);
    const cb_lives all = {.peak_bytes = plan->save_all_live_bytes,
                          .saved_bytes = plan->save_all_saved_bytes};
    *whole = cb_measured(p, out->measure, &all, plan->save_all_arena_bytes);
    cb_plan_free(plan);
    out->kind = CB_BUDGET_BYTES;
    out->bytes = (uint64_t)(out->share * (double)*whole);
    return CB_OK;
}

static bool is_smallest(const cb_budget *budget) {
    return budget->kind == CB_BUDGET_MIN || budget->kind == CB_BUDGET_SMALLEST;
}

static cb_lowered single_ops_of(const cb_step *step) {
    return (cb_lowered){.joint = step->joint,
                        .single = step->single,
                        .p = step->single,
                        .fuses = step->backend->fuses};
}

void cb_join_refusals(cb_refusal *out, const cb_refusal *other) {
    const bool known = other->smallest_bytes > 0 && other->reason == out->reason;
    if (known && (out->smallest_bytes == 0 || other->smallest_bytes < out->smallest_bytes)) {
        out->smallest_bytes = other->smallest_bytes;
        memcpy(out->op, other->op, sizeof out->op);
        memcpy(out->location, other->location, sizeof out->location);
    }
    if (other->floor_bytes < out->floor_bytes) {
        out->floor_bytes = other->floor_bytes;
        memcpy(out->floor_op, other->floor_op, sizeof out->floor_op);
    }
}

/* Handles the case that single ops have no plan either (`err`); `groups` is the refusal for groups.
 * The budget of single ops was in bytes, so a share is restored. */
static cb_status refuse_both(const cb_error *groups, double share, uint64_t whole, cb_error *err) {
    if (groups->status == CB_INFEASIBLE) {
        const cb_refusal single = err->refusal;
        *err = *groups;
        cb_join_refusals(&err->refusal, &single);
    } else if (whole > 0) {
        err->refusal.share = share;
        err->refusal.save_all_bytes = whole;
    }
    return CB_INFEASIBLE;
}

/* Plans single ops if groups cannot meet the budget, have no smaller program, or would have to move
 * values to the host. */
static cb_status make_with_groups(cb_step *step, const cb_plan_options *options, cb_error *err) {
    const bool smallest = is_smallest(&options->budget);
    cb_plan_options by_op = *options;
    const cb_lowered alone = single_ops_of(step);
    cb_plan *plan = NULL;
    cb_program *program = NULL;
    const cb_status status = make_within(step, options, err);
    const bool has_other = status == CB_INFEASIBLE || status == CB_UNSUPPORTED;
    if (!has_other && !(smallest && status == CB_OK)) return status;
    cb_error groups = {0};
    if (has_other) groups = *err;
    uint64_t whole;
    CB_TRY(share_in_bytes(step, options, &by_op.budget, &whole, err));
    const cb_status other = cb_plan_within(&alone, &by_op, &step->ctx->alloc, &plan, &program, err);
    if (other == CB_INFEASIBLE)
        return status == CB_OK ? CB_OK : refuse_both(&groups, options->budget.share, whole, err);
    CB_TRY(other);
    if (status == CB_OK &&
        cb_bytes_within(step->problem, options->budget.measure, step->plan, step->program) <=
            cb_bytes_within(step->single, options->budget.measure, plan, program)) {
        cb_plan_free(plan);
        cb_program_free(program);
        return CB_OK;
    }
    cb_plan_free(step->plan);
    cb_program_free(step->program);
    step->plan = plan;
    step->program = program;
    leave_groups(step);
    return CB_OK;
}

static cb_status make_in_groups(cb_step *step, cb_plan_options options, cb_error *err) {
    const double position = options.budget.share;
    cb_ends ends;
    if (options.budget.kind != CB_BUDGET_POSITION) return make_with_groups(step, &options, err);
    const cb_lowered groups = lowered_of(step), single = single_ops_of(step);
    CB_TRY(cb_ends_within(&groups, &single, &options, &step->ctx->alloc, &ends, err));
    options.budget.kind = CB_BUDGET_BYTES;
    options.budget.bytes = cb_bytes_at(position, ends);
    CB_TRY(make_with_groups(step, &options, err));
    step->plan->position = position;
    step->plan->smallest_bytes = ends.smallest;
    step->plan->everything_bytes = ends.everything;
    return CB_OK;
}

static bool any_group(const cb_grouping *x) {
    bool any = false;
    for (uint32_t op = 0; op < x->n_op; op++) any |= cb_group_size(x, op) > 1;
    return any;
}

/* Single ops cannot meet the budget, as err says. Plans groups if they can; otherwise err also
 * counts what the smallest plan in groups takes. It leaves out the smallest plan if both do. */
static cb_status try_groups(cb_step *step, const cb_compile_options *o, cb_plan_options options,
                            cb_error *err) {
    const cb_budget asked = options.budget;
    const bool brief = cb_is_brief(&options, err);
    cb_error why = *err;
    uint64_t whole;
    options.brief = brief;
    CB_TRY(share_in_bytes(step, &options, &options.budget, &whole, err));
    CB_TRY(enter_groups(step, o, CB_GROUPS_FOUND, err));
    const bool has_groups = any_group(&step->grouping);
    const cb_status status = has_groups ? make_within(step, &options, err) : CB_INFEASIBLE;
    if (status == CB_OK) return dump(step, o, "problem", err);
    leave_groups(step);
    if (status != CB_INFEASIBLE && status != CB_UNSUPPORTED) return status;
    const cb_refusal groups = err->refusal;
    const bool knows = has_groups && status == CB_INFEASIBLE && !cb_is_brief(&options, err);
    if (knows && brief) {
        options.brief = false;
        options.budget = asked;
        const cb_status single = make_within(step, &options, &why);
        if (single != CB_INFEASIBLE) {
            *err = why;
            return single;
        }
    }
    if (knows) cb_join_refusals(&why.refusal, &groups);
    *err = why;
    return CB_INFEASIBLE;
}

/* Uses the plan that follows the decisions if it keeps their budget at these sizes. */
static cb_status try_decisions(cb_step *step, const cb_decisions *d, const cb_device *device,
                               cb_error *err) {
    const cb_lowered of = lowered_of(step);
    cb_arena scratch;
    cb_expanded expanded;
    CB_TRY(cb_decisions_plan(d, step->problem, device, &step->ctx->alloc, &step->plan, err));
    if (!step->plan) return CB_OK;
    cb_arena_init(&scratch, &step->ctx->alloc);
    const cb_status status =
        cb_lower_plan(&of, step->plan, &scratch, &expanded, &step->program, err);
    cb_arena_free(&scratch);
    CB_TRY(status);
    step->follows =
        d->budget_bytes == UINT64_MAX ||
        cb_bytes_within(step->problem, d->measure, step->plan, step->program) <= d->budget_bytes;
    if (step->follows) return CB_OK;
    cb_program_free(step->program);
    cb_plan_free(step->plan);
    step->program = NULL;
    step->plan = NULL;
    return CB_OK;
}

/* Decisions are for single ops or for groups. If they do not fit, the step does not change. */
static cb_status follow(cb_step *step, const cb_compile_options *o, const cb_device *device,
                        cb_error *err) {
    const cb_decisions *d = o->decisions;
    const bool was_in_groups = step->single;
    const cb_problem *single = step->single ? step->single : step->problem;
    if (cb_problem_structure(single) != d->single_structure) return CB_OK;
    if (d->in_groups && !was_in_groups) {
        if (!is_auto(o)) return CB_OK;
        CB_TRY(enter_groups(step, o, CB_GROUPS_FOUND, err));
    } else if (!d->in_groups && was_in_groups) {
        leave_groups(step);
    }
    CB_TRY(try_decisions(step, d, device, err));
    if (step->follows || d->in_groups == was_in_groups) return CB_OK;
    if (was_in_groups) return enter_groups(step, o, o->groups, err);
    leave_groups(step);
    return CB_OK;
}

/* Makes a plan with its program, or reads the caller's plan. In both cases the evaluator has
 * checked the plan. */
static cb_status make_plan(cb_step *step, const cb_compile_options *o, cb_error *err) {
    const cb_device *device;
    CB_TRY(cb_device_parse(o->device ? o->device : "cpu", &step->arena, &device, err));
    if (o->plan_json) return read_plan(step, o, device, err);
    if (o->decisions) CB_TRY(follow(step, o, device, err));
    if (step->follows) return CB_OK;
    if (step->only_follows)
        return cb_fail(err, CB_UNSUPPORTED, "compile: the decisions do not fit this graph");
    const cb_plan_options options = {.preset = o->preset,
                                     .budget = o->budget,
                                     .device = device,
                                     .poll = {o->poll, o->poll_user},
                                     .progress = o->progress,
                                     .brief = step->brief,
                                     .threads = step->ctx->runtime.pool};
    if (step->single && !step->merges)
        return cb_plan_make(step->problem, &options, &step->ctx->alloc, &step->plan, err);
    if (step->single) return make_in_groups(step, options, err);
    const cb_status status = make_within(step, &options, err);
    return status == CB_INFEASIBLE && is_auto(o) ? try_groups(step, o, options, err) : status;
}

/* Splits a plan in groups by the ops that its steps run. */
static cb_status make_split(const cb_step *step, cb_split *split, cb_error *err) {
    const cb_plan *plan = step->single ? &step->expanded.plan : step->plan;
    CB_TRY(cb_split_make(step->joint, plan, &step->ctx->alloc, split, err));
    CB_TRY(cb_graph_verify(split->forward, CB_SPEC_SPLIT, err));
    return cb_graph_verify(split->backward, CB_SPEC_SPLIT, err);
}

/* Plans in groups are split only when their text is requested. */
static cb_status check_split(const cb_step *step, const cb_compile_options *o, cb_error *err) {
    cb_split split = {0};
    if (step->single) return CB_OK;
    const cb_status status = make_split(step, &split, err);
    cb_split_free(&split);
    return status == CB_OK ? dump(step, o, "split", err) : status;
}

static cb_status make_program(cb_step *step, cb_error *err) {
    const cb_lowered of = lowered_of(step);
    if (step->single) { /* lower it again: step->expanded has not been filled yet */
        cb_program_free(step->program);
        step->program = NULL;
    }
    if (!step->program)
        CB_TRY(cb_lower_plan(&of, step->plan, &step->arena, &step->expanded, &step->program, err));
    return cb_program_verify(step->program, err);
}

/* Allocates the structures for copying arguments and for ordering runs. */
static cb_status make_surroundings(cb_step *step, cb_error *err) {
    const cb_program *p = step->program;
    const cb_backend *b = step->backend;
    const size_t n_slot =
        p->n_input + (size_t)p->n_output + CB_MAX_STATES * (size_t)step->n_gradients;
    CB_TRY(cb_staging_init(&step->staging, b, step->device, n_slot, &step->arena, err));
    CB_TRY(cb_run_memory_copies(step->memory, &step->staging, err));
    CB_TRY(b->event_new(step->device, &step->began, err));
    CB_TRY(b->event_new(step->device, &step->stepping, err));
    return b->event_new(step->device, &step->turn.ended, err);
}

/* Allocates room for the data about all gradients that an update's extras need, because updates do
 * not allocate. */
static cb_status make_squares(cb_step *step, cb_error *err) {
    const cb_program *p = step->program;
    const cb_optim_extras all = {.skips = true};
    for (uint32_t k = 0; k < step->n_gradients; k++)
        step->rows[k] =
            (cb_optim_row){.n = cb_numel(&p->output[p->n_output - step->n_gradients + k].shape)};
    const cb_optim_table table = {.rows = step->rows, .n_rows = step->n_gradients};
    const size_t bytes = cb_gradients_scratch(&table, &all);
    step->squares = cb_arena_get(&step->arena, bytes + 1, 1);
    return step->squares ? CB_OK : cb_no_memory(err);
}

static int by_group(const void *a, const void *b) {
    const struct cb_due *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->gradient < y->gradient ? -1 : x->gradient > y->gradient;
}

/* An update comes after the last group of its gradient's buffer. */
static cb_status list_updates(cb_step *step, cb_error *err) {
    const cb_program *p = step->program;
    if (!step->updates_inside) return CB_OK;
    CB_TRY_NEW(step->due, &step->arena, step->n_gradients, err);
    for (uint32_t k = 0; k < step->n_gradients; k++) {
        const cb_operand *x = &p->operand[p->output[p->n_output - step->n_gradients + k].operand];
        const uint32_t last = p->buffer[x->buffer].last;
        step->due[k] = (struct cb_due){last < p->n_group ? last : p->n_group - 1, k};
    }
    cb_sort(step->due, step->n_gradients, sizeof *step->due, by_group);
    return CB_OK;
}

static cb_status make_executable(cb_step *step, cb_error *err) {
    const cb_program *p = step->program;
    CB_TRY(step->backend->compile(p, step->device, &step->state, err));
    step->turn = (cb_turn){.backend = step->backend, .device = step->device, .state = step->state};
    const size_t n_run = p->n_input + (size_t)p->n_output;
    const size_t n_ranges = n_run + (3 + CB_MAX_STATES) * (size_t)step->n_gradients;
    const size_t n_update = step->keep_gradients ? n_ranges : 0;
    CB_TRY_NEW(step->ranges, &step->arena, n_ranges, err);
    CB_TRY_NEW(step->run_ranges.at, &step->arena, n_run, err);
    CB_TRY_NEW(step->update_ranges.at, &step->arena, n_update, err);
    CB_TRY_NEW(step->rows, &step->arena, step->n_gradients, err);
    CB_TRY_NEW(step->is_stepped, &step->arena, p->n_input, err);
    CB_TRY_NEW(step->inputs, &step->arena, p->n_input, err);
    CB_TRY_NEW(step->outputs, &step->arena, p->n_output, err);
    CB_TRY(list_updates(step, err));
    if (!step->keep_gradients) return CB_OK;
    for (uint32_t k = 0; k < step->n_gradients; k++)
        step->is_stepped[p->output[p->n_output - step->n_gradients + k].input] = true;
    return make_squares(step, err);
}

/* Readers of graphs also accept joint graphs, so this is the caller's error, not ours. */
static cb_status check_forward(const cb_graph *forward, cb_error *err) {
    cb_error why = {0};
    cb_status status = cb_graph_verify(forward, CB_SPEC_FORWARD, &why);
    if (status == CB_OK) return CB_OK;
    return cb_fail(err, status == CB_INTERNAL ? CB_INVALID : status,
                   "compile: needs a forward graph, without ops or outputs of a backward; %s",
                   why.text);
}

/* Runs all stages up to the program. Needs no device. */
static cb_status make_stages(cb_step *step, const cb_graph *forward, const cb_compile_options *o,
                             cb_error *err) {
    CB_TRY(check_forward(forward, err));
    CB_TRY(dump_forward(step, o, forward, err));

    CB_TRY(make_joint_for_updates(step, forward, o, err));
    CB_TRY(dump(step, o, "joint", err));

    CB_TRY(make_problem(step, o, err));
    if (o->groups && !is_auto(o)) CB_TRY(enter_groups(step, o, o->groups, err));
    CB_TRY(dump(step, o, "problem", err));

    CB_TRY(make_plan(step, o, err));
    CB_TRY(check_moves(step, err));
    CB_TRY(dump(step, o, "plan", err));

    CB_TRY(check_split(step, o, err));

    CB_TRY(make_program(step, err));
    CB_TRY(dump(step, o, "program", err));
    return cb_backend_supports(step->backend, step->program, err);
}

cb_status cb_plan_variant(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                          const cb_variant *v, cb_step **out, cb_error *err) {
    cb_status status;
    cb_compile_options own = *o;
    own.budget = v->budget;
    cb_step *step = step_new(ctx, o);
    if (!step) return cb_no_memory(err);
    step->packs = v->packs;
    step->brief = v->brief;
    step->only_follows = v->only_follows;
    CB_TRY_DONE(find_backend(&ctx->alloc, o->backend, &step->backend, err));
    if (v->opens_device)
        CB_TRY_DONE(cb_devices_get(&ctx->devices, step->backend, &step->device, err));
    CB_TRY_DONE(make_stages(step, forward, &own, err));
    *out = step;
done:
    if (status != CB_OK) cb_step_free(step);
    return status;
}

cb_status cb_step_finish(cb_step *step, const cb_compile_options *o, cb_error *err) {
    CB_TRY(make_executable(step, err));
    CB_TRY(cb_run_memory_join(&step->ctx->devices, o->memory, step->backend, &step->memory, err));
    return make_surroundings(step, err);
}

bool cb_step_follows(const cb_step *step) { return step->follows; }

void cb_step_free(cb_step *step) {
    if (!step) return;
    if (step->device) {
        cb_run_memory_leave(step->memory, &step->turn, step->pinned);
        step->backend->event_free(step->device, step->began);
        step->backend->event_free(step->device, step->stepping);
        step->backend->event_free(step->device, step->turn.ended);
    }
    cb_program_free(step->program);
    cb_plan_free(step->plan);
    cb_problem_free(step->problem);
    cb_problem_free(step->single);
    cb_graph_free(step->joint);
    cb_free(&step->ctx->alloc, step->scratch);
    cb_arena arena = step->arena; /* the step is allocated in it */
    cb_arena_free(&arena);
}

static uint64_t event_bytes(const cb_step *step, const cb_event *event) {
    return event && step->backend->is_host ? cb_block_bytes(event) : 0;
}

uint64_t cb_step_bytes(const cb_step *step) {
    uint64_t bytes = cb_arena_bytes(&step->arena) + cb_graph_bytes(step->joint);
    if (step->scratch) bytes += cb_block_bytes(step->scratch);
    bytes += cb_arena_bytes(&step->problem->arena) + cb_arena_bytes(&step->plan->arena);
    if (step->single) bytes += cb_arena_bytes(&step->single->arena);
    bytes += cb_arena_bytes(&step->program->arena) + step->backend->bytes(step->state);
    bytes += event_bytes(step, step->began) + event_bytes(step, step->turn.ended);
    return bytes + event_bytes(step, step->stepping);
}

/* Writes one graph of the split, or both. */
static cb_status print_split(const cb_step *step, bool forward, bool backward, cb_str *out,
                             cb_error *err) {
    cb_split split = {0};
    cb_status status = make_split(step, &split, err);
    if (status == CB_OK && forward) status = cb_graph_print(split.forward, out, err);
    if (status == CB_OK && backward) status = cb_graph_print(split.backward, out, err);
    cb_split_free(&split);
    return status;
}

static cb_status print_grouping(const cb_step *step, cb_str *out, cb_error *err) {
    if (step->single) return cb_grouping_print(&step->grouping, step->joint, out, err);
    return cb_fail(err, CB_UNSUPPORTED,
                   "text: this step was planned op by op, so it has no groups");
}

/* Writes the problem of the same step with packed values; "null" if it has none to pack. */
static cb_status print_packed(const cb_step *step, cb_str *out, cb_error *err) {
    cb_alloc *alloc = &step->ctx->alloc;
    cb_graph *packed = NULL, *pruned = NULL;
    cb_problem *problem = NULL;
    cb_status status;
    if (!step->packs) CB_TRY(cb_pack_saves(step->joint, alloc, &packed, err));
    if (!packed) {
        cb_str_addf(out, "null");
        return CB_OK;
    }
    CB_TRY_DONE(cb_graph_prune(packed, alloc, &pruned, err));
    CB_TRY_DONE(problem_of(step, pruned, step->problem->static_bytes, &problem, err));
    CB_TRY_DONE(cb_problem_to_json(problem, out, err));
done:
    cb_problem_free(problem);
    cb_graph_free(pruned);
    cb_graph_free(packed);
    return status;
}

static cb_status print_launches(const cb_step *step, cb_str *out, cb_error *err) {
    if (step->backend->launches && !step->state)
        return cb_fail(err, CB_UNSUPPORTED, "text: only a compiled step has launches");
    if (step->backend->launches) return step->backend->launches(step->state, out, err);
    return cb_fail(err, CB_UNSUPPORTED, "text: the backend \"%s\" launches no kernels",
                   step->backend->name);
}

static cb_status print_code(const cb_step *step, cb_str *out, cb_error *err) {
    if (step->backend->code)
        return step->backend->code(step->program, &step->ctx->runtime, step->state, out, err);
    return cb_fail(err, CB_UNSUPPORTED, "text: the backend \"%s\" has no code to show",
                   step->backend->name);
}

static cb_status print_named(const cb_step *step, const char *what, cb_str *out, cb_error *err) {
    if (strcmp(what, "joint") == 0) return cb_graph_print(step->joint, out, err);
    if (strcmp(what, "forward") == 0) return print_split(step, true, false, out, err);
    if (strcmp(what, "backward") == 0) return print_split(step, false, true, out, err);
    if (strcmp(what, "split") == 0) return print_split(step, true, true, out, err);
    if (strcmp(what, "groups") == 0) return print_grouping(step, out, err);
    if (strcmp(what, "problem") == 0) return cb_problem_to_json(step->problem, out, err);
    if (strcmp(what, "single") == 0)
        return cb_problem_to_json(step->single ? step->single : step->problem, out, err);
    if (strcmp(what, "packed") == 0) return print_packed(step, out, err);
    if (strcmp(what, "plan") == 0) return cb_plan_to_json(step->problem, step->plan, out, err);
    if (strcmp(what, "explain") == 0)
        return cb_plan_explanation_to_text(step->problem, step->plan, out, err);
    if (strcmp(what, "program") == 0) return cb_program_print(step->program, out, err);
    if (strcmp(what, "kernels") == 0)
        return cb_program_kernels(step->program, step->single ? step->single : step->problem,
                                  step->single ? &step->expanded.plan : step->plan, out, err);
    if (strcmp(what, "launches") == 0) return print_launches(step, out, err);
    if (strcmp(what, "slices") == 0) {
        cb_str_add(out, step->sliced.at ? step->sliced.at : "", step->sliced.len);
        return CB_OK;
    }
    if (strcmp(what, "code") == 0) return print_code(step, out, err);
    return cb_fail(
        err, CB_INVALID,
        "text: unknown name \"%s\"; use joint, forward, backward, split, groups, "
        "problem, single, packed, plan, explain, program, kernels, launches, slices or code",
        what);
}

cb_status cb_step_text(const cb_step *step, const char *what, char **out, cb_error *err) {
    cb_arena scratch;
    cb_str text;
    cb_arena_init(&scratch, &step->ctx->alloc);
    cb_str_init(&text, &scratch);
    cb_status status = print_named(step, what, &text, err);
    if (status == CB_OK) status = cb_text_give(&step->ctx->alloc, &text, out, err);
    cb_arena_free(&scratch);
    return status;
}
