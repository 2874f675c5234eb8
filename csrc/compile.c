/* compile.c: plans a step, without packed values and with them if the caller asks for that, keeps
 * the better plan, and makes it ready to run.
 *
 * Packing takes time, so a step that keeps its budget without it and recomputes nothing packs
 * nothing. Shares and positions refer to the step without packed values, and become bytes before
 * the other plan is made. Only the smaller end of a position is that of the smaller plan. */
#include "following.h"
#include "pipeline.h"
#include "planning.h"

#include "lower/within.h"
#include "plan/ends.h"
#include "plan/requests.h"

typedef struct both {
    cb_context *ctx;
    const cb_graph *forward;
    const cb_compile_options *o;
    bool opens_device, brief;
    cb_step *whole, *packed; /* NULL: there is none */
    cb_error *err;
} both;

static cb_status plan(const both *b, cb_variant v, cb_step **out) {
    cb_step *step = NULL;
    v.opens_device = b->opens_device;
    v.brief = b->brief;
    CB_TRY(cb_plan_variant(b->ctx, b->forward, b->o, &v, &step, b->err));
    cb_step_free(*out);
    *out = step;
    return CB_OK;
}

static uint64_t bytes_of(const cb_step *step, cb_measure measure) {
    return cb_bytes_within(step->problem, measure, step->plan, step->program);
}

/* ---- budgets --------------------------------------------------------------------------------- */

/* Returns a share of the step without packed values, in bytes. */
static uint64_t share_of(const both *b) {
    const cb_plan *p = b->whole ? b->whole->plan : NULL;
    const cb_budget *asked = &b->o->budget;
    if (!p) return b->err->refusal.budget_bytes;
    const cb_lives all = {.peak_bytes = p->save_all_live_bytes,
                          .saved_bytes = p->save_all_saved_bytes};
    return (uint64_t)(asked->share * (double)cb_measured(b->whole->problem, asked->measure, &all,
                                                         p->save_all_arena_bytes));
}

static cb_budget in_bytes(const cb_budget *asked, uint64_t bytes) {
    cb_budget out = *asked;
    out.kind = CB_BUDGET_BYTES;
    out.share = 0;
    out.bytes = bytes;
    return out;
}

/* Plans both steps for the bytes of a position, if the smallest step is one with packed values. */
static cb_status join_positions(both *b) {
    const cb_budget *asked = &b->o->budget;
    const cb_plan *whole = b->whole->plan, *packed = b->packed->plan;
    const cb_ends ends = {.smallest = packed->smallest_bytes < whole->smallest_bytes
                                          ? packed->smallest_bytes
                                          : whole->smallest_bytes,
                          .everything = whole->everything_bytes};
    const cb_budget bytes = in_bytes(asked, cb_bytes_at(asked->share, ends));
    cb_step *steps[2] = {NULL, NULL};
    cb_status status = plan(b, (cb_variant){.budget = bytes, .packs = true}, &steps[1]);
    if (status == CB_OK && ends.smallest < whole->smallest_bytes)
        status = plan(b, (cb_variant){.budget = bytes}, &steps[0]);
    if (status == CB_INFEASIBLE) status = CB_OK; /* position 0 of the other step */
    for (int k = 0; k < 2; k++) {
        cb_step **old = k ? &b->packed : &b->whole;
        if (k == 0 && ends.smallest >= whole->smallest_bytes) continue;
        cb_step_free(*old);
        *old = steps[k];
        if (*old) cb_plan_set_position((*old)->plan, asked->share, ends.smallest, ends.everything);
    }
    return status;
}

/* ---- the better one -------------------------------------------------------------------------- */

/* True if no plan with packed values can be better. */
static bool is_best(const both *b) {
    const cb_budget_kind kind = b->o->budget.kind;
    if (!b->whole) return false;
    if (b->o->plan_json || b->whole->follows || kind == CB_BUDGET_NONE) return true;
    return !cb_is_smallest(&b->o->budget) && b->whole->plan->time_ps <= b->whole->plan->once_ps;
}

static bool is_packed_better(const both *b) {
    const cb_budget *asked = &b->o->budget;
    if (!b->whole || !b->packed) return b->packed;
    const uint64_t whole = bytes_of(b->whole, asked->measure),
                   packed = bytes_of(b->packed, asked->measure);
    if (cb_is_smallest(asked) && whole != packed) return packed < whole;
    return b->packed->plan->time_ps < b->whole->plan->time_ps;
}

/* Neither step has a plan. The refusal is that of the step without packed values, with the bytes
 * that either can meet and a bound that holds for both. */
static cb_status refuse(both *b, const cb_error *whole) {
    const cb_refusal other = b->err->refusal;
    *b->err = *whole;
    cb_join_refusals(&b->err->refusal, &other);
    return whole->status;
}

/* Plans the step with packed values; `status` is that of the step without. */
static cb_status add_packed(both *b, cb_status status) {
    const cb_error why = *b->err;
    cb_budget budget = b->o->budget;
    if (budget.kind == CB_BUDGET_SHARE) budget = in_bytes(&budget, share_of(b));
    const cb_status other = plan(b, (cb_variant){.budget = budget, .packs = true}, &b->packed);
    if (other == CB_INFEASIBLE && status == CB_INFEASIBLE) return refuse(b, &why);
    if (other == CB_INFEASIBLE || (status == CB_INVALID && other == CB_INVALID)) {
        *b->err = why;
        return status;
    }
    CB_TRY(other);
    if (status == CB_OK && budget.kind == CB_BUDGET_POSITION) return join_positions(b);
    return CB_OK;
}

/* Uses the caller's decisions, which are those of one of both steps. */
static cb_status follow(both *b) {
    for (int k = 0; k < 2 && !b->whole; k++) {
        const cb_variant v = {.budget = b->o->budget, .packs = k == 1, .only_follows = true};
        const cb_status status = plan(b, v, &b->whole);
        if (status != CB_OK && status != CB_UNSUPPORTED) return status;
    }
    return CB_OK;
}

static cb_status check_options(const cb_compile_options *o, cb_error *err) {
    if (!o) return cb_fail(err, CB_INVALID, "compile: no options given (NULL)");
    if (o->n_wrt && !o->wrt)
        return cb_fail(err, CB_INVALID, "compile: n_wrt is %u and wrt is NULL", o->n_wrt);
    if ((int)o->preset < 0 || o->preset >= CB_PRESET_COUNT)
        return cb_fail(err, CB_INVALID, "compile: unknown preset %d", (int)o->preset);
    if ((int)o->budget.measure < 0 || o->budget.measure >= CB_MEASURE_COUNT) {
        return cb_fail(err, CB_INVALID, "compile: unknown measure %d", (int)o->budget.measure);
    }
    return CB_OK;
}

static cb_status plan_best(both b, cb_step **out) {
    const cb_compile_options *o = b.o;
    cb_status status = o->packed && o->decisions ? follow(&b) : CB_OK;
    if (status == CB_OK && !b.whole) status = plan(&b, (cb_variant){.budget = o->budget}, &b.whole);
    const bool may_pack = status == CB_OK || status == CB_INFEASIBLE ||
                          (status == CB_INVALID && o->plan_json); /* a plan of the other step */
    if (o->packed && may_pack && !is_best(&b)) status = add_packed(&b, status);
    if (status == CB_OK) {
        cb_step **best = is_packed_better(&b) ? &b.packed : &b.whole;
        *out = *best;
        *best = NULL;
    }
    cb_step_free(b.whole);
    cb_step_free(b.packed);
    return status;
}

/* ---- the public functions -------------------------------------------------------------------- */

static cb_status compile(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                         bool brief, cb_step **out, cb_error *err) {
    cb_error own = {0};
    cb_step *step = NULL;
    if (!err) err = &own; /* stages read the errors of earlier tries */
    CB_TRY(check_options(o, err));
    const both b = {
        .ctx = ctx, .forward = forward, .o = o, .opens_device = true, .brief = brief, .err = err};
    CB_TRY(plan_best(b, &step));
    const cb_status status = cb_step_finish(step, o, err);
    if (status == CB_OK) *out = step;
    else cb_step_free(step);
    return status;
}

cb_status cb_compile(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                     cb_step **out, cb_error *err) {
    return compile(ctx, forward, o, false, out, err);
}

cb_status cb_compile_briefly(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                             cb_step **out, cb_error *err) {
    return compile(ctx, forward, o, true, out, err);
}

/* Makes a step with all stages up to the program, and nothing on a device. */
static cb_status plan_step(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                           cb_step **out, cb_error *err) {
    CB_TRY(check_options(o, err));
    return plan_best((both){.ctx = ctx, .forward = forward, .o = o, .err = err}, out);
}

cb_status cb_compile_text(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                          const char *what, char **out, cb_error *err) {
    cb_step *step;
    cb_error own = {0};
    if (!err) err = &own;
    CB_TRY(plan_step(ctx, forward, o, &step, err));
    const cb_status status = cb_step_text(step, what, out, err);
    cb_step_free(step);
    return status;
}

cb_status cb_decisions_make(cb_context *ctx, const cb_graph *forward, const cb_compile_options *o,
                            cb_decisions **out, cb_error *err) {
    cb_step *step;
    cb_error own = {0};
    if (!err) err = &own;
    CB_TRY(plan_step(ctx, forward, o, &step, err));
    const cb_problem *single = step->single ? step->single : step->problem;
    const cb_status status =
        cb_decisions_copy(step->problem, single, step->plan, &ctx->alloc, out, err);
    cb_step_free(step);
    return status;
}
