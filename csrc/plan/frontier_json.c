#include "frontier_json.h"

#include <inttypes.h>
#include <stdio.h>

#include "frontier.h"
#include "names.h"
#include "sim.h"

typedef struct baseline {
    bool known; /* a preset may be out of reach of what the user demands */
    uint64_t saved_bytes;
    int64_t time_ps;
} baseline;

static cb_status measure_preset(cb_cut *cut, cb_preset preset, cb_sim *sim, cb_pairs *pairs,
                                baseline *out, cb_error *err) {
    cb_status status = cb_cut_preset(cut, preset, err);
    if (status == CB_INFEASIBLE || status == CB_UNSUPPORTED) return CB_OK;
    CB_TRY(status);
    CB_TRY(cb_recompute_lazily(cut->f, cut->recompute, NULL, pairs, err));
    CB_TRY(cb_sim_run(sim, pairs->list.at, pairs->list.len, err));
    *out = (baseline){true, sim->saved, sim->time_ps};
    return CB_OK;
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
    for (int preset = 0; preset < CB_PRESET_COUNT; preset++) {
        if (!rows[preset].known) continue;
        cb_json_begin(w, cb_preset_names[preset], '{');
        cb_json_put_u64(w, "saved_bytes", rows[preset].saved_bytes);
        cb_json_put_int(w, "time_ps", rows[preset].time_ps);
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
    cb_json_put_string(&w, "device", f->device->name);
    cb_json_put_string(&w, "preset", cb_preset_names[preset]);
    cb_json_put_int(&w, "once_ps", f->once_ps);
    put_points(&w, t);
    put_baselines(&w, rows);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}

cb_status cb_frontier_to_json(const cb_problem *p, cb_preset preset, const cb_device *device,
                              cb_alloc *alloc, cb_str *out, cb_error *err) {
    cb_facts facts;
    cb_cut cut;
    cb_tradeoffs t;
    cb_sim sim = {0};
    cb_arena scratch;
    cb_status status;
    baseline rows[CB_PRESET_COUNT] = {0};
    cb_arena_init(&scratch, alloc);
    cb_pairs pairs = {.arena = &scratch};
    if (preset == CB_PRESET_AUTOGRAD) preset = CB_PRESET_RECOMPUTE_ALL;
    CB_TRY_DONE(cb_facts_make(p, device ? device : cb_device_find("cpu"), &scratch, &facts, err));
    if (facts.offloads) {
        status = cb_fail(err, CB_UNSUPPORTED,
                         "frontier: a constraint asks to offload, which the frontier does not "
                         "know; plan with a budget, or use SAVE or RECOMPUTE");
        goto done;
    }
    CB_TRY_DONE(cb_cut_init(&cut, &facts, &scratch, err));
    CB_TRY_DONE(cb_sim_init(&sim, &facts, alloc, err));
    CB_TRY_DONE(cb_tradeoffs_make(&t, &cut, preset, &scratch, err));
    for (cb_preset i = 0; i < CB_PRESET_COUNT; i++)
        CB_TRY_DONE(measure_preset(&cut, i, &sim, &pairs, &rows[i], err));
    CB_TRY_DONE(write(&t, preset, rows, out, err));
done:
    cb_sim_free(&sim);
    cb_arena_free(&scratch);
    return status;
}
