#include "cut_json.h"

#include <inttypes.h>
#include <stdio.h>

#include "../../flow/dimacs.h"
#include "../cut/mincut.h"
#include "../model/names.h"
#include "../torch/torch_compat.h"

typedef struct answer {
    const cb_flow *flow;
    const int64_t *capacity;
    uint32_t n_saved, *saved; /* ids of units (facts.h) */
    uint64_t saved_bytes;
} answer;

/* Sums the bytes of the saved storages, each counted once. The caller's storages do not count. */
static cb_status count_bytes(const cb_problem *p, cb_arena *arena, answer *a, cb_error *err) {
    bool *counted = CB_NEW(arena, bool, p->n_storage);
    if (!counted) return cb_no_memory(err);
    for (uint32_t i = 0; i < a->n_saved; i++) {
        uint32_t op = a->saved[i];
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
            uint32_t s = p->value_storage[v];
            if (counted[s] || (p->storage_flags[s] & CB_STORE_STATIC)) continue;
            counted[s] = true;
            a->saved_bytes += p->storage_bytes[s];
        }
    }
    return CB_OK;
}

static cb_status solve_torch(const cb_facts *f, cb_arena *arena, cb_torch_cut *torch, answer *a,
                             cb_error *err) {
    CB_TRY(cb_torch_cut_solve(f, arena, torch, err));
    *a = (answer){.flow = &torch->flow,
                  .capacity = torch->capacity,
                  .n_saved = torch->n_saved,
                  .saved = torch->saved};
    return count_bytes(f->p, arena, a, err);
}

static cb_status solve_own(const cb_facts *f, cb_preset preset, cb_arena *arena, cb_cut *cut,
                           answer *a, cb_error *err) {
    CB_TRY(cb_cut_init(cut, f, arena, err));
    CB_TRY(cb_cut_preset(cut, preset, err));
    *a = (answer){.flow = &cut->flow, .capacity = cut->capacity};
    CB_TRY_NEW(a->saved, arena, cut->n_save, err);
    for (uint32_t i = 0; i < cut->n_save; i++) {
        uint32_t op = cut->run_op[cut->save_run[i]];
        if (!cut->saved[cut->save_storage[i]]) continue;
        a->saved_bytes += f->p->storage_bytes[cut->save_storage[i]];
        if (a->n_saved == 0 || a->saved[a->n_saved - 1] != op) a->saved[a->n_saved++] = op;
    }
    return CB_OK;
}

static cb_status write_network(const answer *a, cb_arena *arena, cb_str *out, cb_error *err) {
    const cb_flow *flow = a->flow;
    uint32_t *from = CB_NEW(arena, uint32_t, flow->n_arc),
             *to = CB_NEW(arena, uint32_t, flow->n_arc);
    if (!from || !to) return cb_no_memory(err);
    for (uint32_t i = 0; i < flow->n_arc; i++) {
        const cb_half_arc *half = &flow->arc[flow->half[i]];
        to[i] = half->to;
        from[i] = flow->arc[half->pair].to;
    }
    return cb_dimacs_write(out, flow->n_node, flow->n_arc, from, to, a->capacity, 0, 1, err);
}

/* Writes op ids, and [op, its outputs] for an op with an inside. */
static void put_saved(cb_json_writer *w, const cb_facts *f, const answer *a) {
    cb_json_begin(w, "saved", '[');
    for (uint32_t i = 0; i < a->n_saved; i++) {
        const uint32_t op = cb_unit_op(f, a->saved[i]);
        if (!cb_has_units(f, op)) {
            cb_json_put_u64(w, NULL, op);
            continue;
        }
        cb_json_begin(w, NULL, '[');
        cb_json_put_u64(w, NULL, op);
        cb_json_begin(w, NULL, '[');
        cb_json_put_u64(w, NULL, a->saved[i] - f->unit_begin[op]);
        for (; i + 1 < a->n_saved && cb_unit_op(f, a->saved[i + 1]) == op; i++)
            cb_json_put_u64(w, NULL, a->saved[i + 1] - f->unit_begin[op]);
        cb_json_end(w, ']');
        cb_json_end(w, ']');
    }
    cb_json_end(w, ']');
}

static cb_status write_answer(const cb_facts *f, cb_preset preset, const answer *a, double seconds,
                              cb_str *out, cb_error *err) {
    cb_json_writer w = {.out = out};
    char fingerprint[17];
    (void)snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, cb_problem_fingerprint(f->p));
    cb_json_begin(&w, NULL, '{');
    cb_json_put_string(&w, "preset", cb_preset_names[preset]);
    cb_json_put_string(&w, "fingerprint", fingerprint);
    cb_json_put_int(&w, "cut", a->flow->value);
    cb_json_put_u64(&w, "saved_bytes", a->saved_bytes);
    if (seconds >= 0) cb_json_put_double(&w, "solve_ms", seconds * 1e3);
    cb_json_put_u64(&w, "nodes", a->flow->n_node);
    cb_json_put_u64(&w, "arcs", a->flow->n_arc);
    put_saved(&w, f, a);
    cb_json_end(&w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}

cb_status cb_cut_to_json(const cb_problem *p, cb_preset preset, cb_alloc *alloc,
                         double (*clock)(void), cb_str *json, cb_str *network, cb_error *err) {
    if (preset == CB_PRESET_TORCH_COMPAT) CB_TRY(cb_refuse_insides(p, "cut: torch-compat", err));
    cb_facts facts;
    cb_cut cut;
    cb_torch_cut torch;
    answer a = {0};
    cb_arena scratch;
    cb_status status;
    double start = clock ? clock() : 0;
    cb_arena_init(&scratch, alloc);
    CB_TRY_DONE(cb_facts_make(p, cb_device_find("cpu"), &scratch, &facts, err));
    if (preset == CB_PRESET_TORCH_COMPAT)
        CB_TRY_DONE(solve_torch(&facts, &scratch, &torch, &a, err));
    else CB_TRY_DONE(solve_own(&facts, preset, &scratch, &cut, &a, err));
    double seconds = clock ? clock() - start : -1;
    CB_TRY_DONE(write_answer(&facts, preset, &a, seconds, json, err));
    if (network) CB_TRY_DONE(write_network(&a, &scratch, network, err));
done:
    cb_arena_free(&scratch);
    return status;
}
