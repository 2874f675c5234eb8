#include "frontier_json.h"

#include <inttypes.h>
#include <stdio.h>

#include "../cut/frontier.h"
#include "../model/device.h"
#include "../model/names.h"
#include "../schedule/sim.h"

typedef struct baseline {
    bool known; /* the user's constraints may make a preset impossible */
    uint64_t saved_bytes, peak_bytes;
    int64_t time_ps;
} baseline;

#define REGIONS_ROW CB_PRESET_COUNT /* the row after those of the presets */

static cb_status measure(const cb_facts *f, const bool *recompute, cb_sim *sim, cb_pairs *pairs,
                         baseline *out, cb_error *err) {
    CB_TRY(cb_recompute_lazily(f, recompute, NULL, pairs, err));
    CB_TRY(cb_sim_run(sim, pairs->list.at, pairs->list.len, err));
    *out = (baseline){true, sim->saved, sim->peak, sim->time_ps};
    return CB_OK;
}

static cb_status measure_preset(cb_cut *cut, cb_preset preset, cb_sim *sim, cb_pairs *pairs,
                                baseline *out, cb_error *err) {
    CB_TRY(cb_cut_poll(cut, err));
    /* this preset needs single ops */
    if (preset == CB_PRESET_TORCH_COMPAT && cut->f->unit_begin) return CB_OK;
    cb_status status = cb_cut_preset(cut, preset, err);
    if (status == CB_INFEASIBLE || status == CB_UNSUPPORTED) return CB_OK;
    CB_TRY(status);
    return measure(cut->f, cut->recompute, sim, pairs, out, err);
}

/* Measures plain checkpointing: values that leave a region are saved, values inside it are
 * recomputed. */
static cb_status measure_regions(const cb_facts *f, cb_sim *sim, cb_pairs *pairs, baseline *out,
                                 cb_error *err) {
    const cb_problem *p = f->p;
    if (p->n_region == 0) return CB_OK;
    bool *recompute = CB_NEW(pairs->arena, bool, f->n_unit);
    if (!recompute) return cb_no_memory(err);
    for (uint32_t k = 0; k < f->base_backward; k++) {
        uint32_t op = f->base[k];
        bool inside = p->op_region[op] != CB_NONE && !f->once[op] &&
                      !(p->op_flags[op] & CB_POP_VIEW) && f->wish[op] != CB_MUST_SAVE;
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
            inside &= f->scope[p->value_storage[v]] != CB_NONE;
        recompute[op] = inside;
        for (uint32_t u = 0; cb_has_units(f, op) && u < p->out_begin[op + 1] - p->out_begin[op];
             u++)
            recompute[f->unit_begin[op] + u] = inside;
    }
    return measure(f, recompute, sim, pairs, out, err);
}

static void put_points(cb_json_writer *w, const cb_tradeoffs *t) {
    cb_json_begin(w, "saved_bytes", '[');
    for (uint32_t i = 0; i < t->n_point; i++) cb_json_put_u64(w, NULL, t->point[i].saved_bytes);
    cb_json_end(w, ']');
    cb_json_begin(w, "time_ps", '[');
    for (uint32_t i = 0; i < t->n_point; i++) cb_json_put_int(w, NULL, t->point[i].time_ps);
    cb_json_end(w, ']');
    cb_json_begin(w, "bound_ps", '[');
    for (uint32_t i = 0; i < t->n_point; i++) cb_json_put_int(w, NULL, t->point[i].bound_ps);
    cb_json_end(w, ']');
    cb_json_begin(w, "kind", '[');
    for (uint32_t i = 0; i < t->n_point; i++)
        cb_json_put_string(w, NULL, cb_tradeoff_names[t->point[i].kind]);
    cb_json_end(w, ']');
}

static void put_baselines(cb_json_writer *w, const baseline *rows) {
    cb_json_begin(w, "baselines", '{');
    for (int i = 0; i <= REGIONS_ROW; i++) {
        if (!rows[i].known) continue;
        cb_json_begin(w, i == REGIONS_ROW ? "regions" : cb_preset_names[i], '{');
        cb_json_put_u64(w, "saved_bytes", rows[i].saved_bytes);
        cb_json_put_u64(w, "peak_bytes", rows[i].peak_bytes);
        cb_json_put_int(w, "time_ps", rows[i].time_ps);
        cb_json_end(w, '}');
    }
    cb_json_end(w, '}');
}

static cb_status write(const cb_tradeoffs *t, cb_preset preset, const baseline *rows, cb_str *out,
                       cb_error *err) {
    const cb_facts *f = t->cut->f;
    cb_json_writer w = {.out = out};
    char fingerprint[17];
    (void)snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, cb_problem_fingerprint(f->p));
    cb_json_begin(&w, NULL, '{');
    cb_json_put_string(&w, "format", "cutback.frontier");
    cb_json_put_int(&w, "version", 1);
    cb_json_put_string(&w, "fingerprint", fingerprint);
    cb_device_put(&w, "device", f->device);
    cb_json_put_string(&w, "preset", cb_preset_names[preset]);
    cb_json_put_int(&w, "once_ps", f->once_ps);
    put_points(&w, t);
    put_baselines(&w, rows);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}

cb_status cb_frontier_to_json(const cb_problem *p, const cb_frontier_request *request,
                              cb_alloc *alloc, cb_str *out, cb_error *err) {
    const cb_device *device = request->device ? request->device : cb_device_find("cpu");
    cb_preset preset = request->preset;
    cb_facts facts;
    cb_cut cut;
    cb_tradeoffs t;
    cb_sim sim = {0};
    cb_arena scratch;
    cb_status status;
    baseline rows[REGIONS_ROW + 1] = {0};
    cb_arena_init(&scratch, alloc);
    cb_pairs pairs = {.arena = &scratch};
    if (preset == CB_PRESET_AUTOGRAD) preset = CB_PRESET_RECOMPUTE_ALL;
    if (preset == CB_PRESET_TORCH_COMPAT)
        CB_TRY_DONE(cb_refuse_insides(p, "frontier: torch-compat", err));
    CB_TRY_DONE(cb_facts_make(p, device, &scratch, &facts, err));
    if (facts.offloads) {
        status = cb_fail(err, CB_UNSUPPORTED,
                         "frontier: a constraint asks for offload, which the frontier does not "
                         "support; plan with a budget, or use SAVE or RECOMPUTE");
        goto done;
    }
    CB_TRY_DONE(cb_cut_init(&cut, &facts, &scratch, err));
    cut.poll = request->poll;
    CB_TRY_DONE(cb_sim_init(&sim, &facts, alloc, err));
    CB_TRY_DONE(cb_cut_poll(&cut, err));
    CB_TRY_DONE(cb_tradeoffs_make(&t, &cut, preset, &scratch, err));
    for (cb_preset i = 0; i < CB_PRESET_COUNT; i++)
        CB_TRY_DONE(measure_preset(&cut, i, &sim, &pairs, &rows[i], err));
    CB_TRY_DONE(measure_regions(&facts, &sim, &pairs, &rows[REGIONS_ROW], err));
    CB_TRY_DONE(write(&t, preset, rows, out, err));
done:
    cb_sim_free(&sim);
    cb_arena_free(&scratch);
    return status;
}
