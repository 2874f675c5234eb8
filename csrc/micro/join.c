/* An operation can be a part of another if both are in the same phase and nothing else reads its
 * value. */
#include "join.h"

#include <string.h>

enum { NOWHERE = -1, SHARED = -2 };

typedef struct joining {
    const cb_microcode *m;
    int phase;
    int16_t reader[CB_X_VALUES]; /* the only operation that reads a value, or NOWHERE or SHARED */
    int16_t maker[CB_X_VALUES];  /* the operation of the phase that makes it, or NOWHERE */
} joining;

typedef struct product { /* x s, or (x s) z */
    int16_t x, s, z;
    int16_t part[2];
    int n_part;
} product;

static bool runs_in(const cb_micro *micro, int phase) {
    return !micro->is_dead && micro->phase == phase;
}

static void list_readers(joining *j) {
    memset(j->reader, 0xFF, sizeof j->reader); /* NOWHERE */
    memset(j->maker, 0xFF, sizeof j->maker);
    for (int16_t k = 0; k < j->m->n_micro; k++) {
        const cb_micro *micro = &j->m->micro[k];
        if (micro->is_dead) continue;
        for (int i = 0; i < 3; i++) {
            if (micro->in[i].kind != CB_X_VALUE) continue;
            int16_t *reader = &j->reader[micro->in[i].id];
            *reader = *reader == NOWHERE ? k : SHARED;
        }
        if (micro->value >= 0 && micro->second < 0 && micro->phase == j->phase)
            j->maker[micro->value] = k;
    }
}

/* Returns the operation that makes value r, if only operation `by` reads it; otherwise NOWHERE. */
static int16_t part_of(const joining *j, cb_x_ref r, int16_t by) {
    if (r.kind != CB_X_VALUE || j->reader[r.id] != by) return NOWHERE;
    return j->maker[r.id];
}

static bool is_plain_stream(const joining *j, cb_x_ref r) {
    return r.kind == CB_X_IN_STREAM && j->m->stream[r.id].format == CB_X_REAL;
}

/* Returns the index of the operand that has this kind, if exactly one of the two has it; otherwise
 * NOWHERE. */
static int side_of(const cb_micro *micro, cb_x_kind kind) {
    const bool first = micro->in[0].kind == kind, second = micro->in[1].kind == kind;
    return first == second ? NOWHERE : second;
}

static bool find_scaled(const joining *j, cb_x_ref r, int16_t by, product *out) {
    const int16_t at = part_of(j, r, by);
    if (at < 0 || j->m->micro[at].op != CB_X_MUL) return false;
    const cb_micro *micro = &j->m->micro[at];
    const int number = side_of(micro, CB_X_NUMBER);
    if (number < 0 || !is_plain_stream(j, micro->in[!number])) return false;
    out->x = micro->in[!number].id;
    out->s = micro->in[number].id;
    out->z = NOWHERE;
    out->part[out->n_part++] = at;
    return true;
}

static bool find_product(const joining *j, cb_x_ref r, int16_t by, product *out) {
    *out = (product){.n_part = 0};
    if (find_scaled(j, r, by, out)) return true;
    const int16_t at = part_of(j, r, by);
    if (at < 0 || j->m->micro[at].op != CB_X_MUL) return false;
    const cb_micro *micro = &j->m->micro[at];
    const int stream = side_of(micro, CB_X_IN_STREAM);
    if (stream < 0 || !is_plain_stream(j, micro->in[stream])) return false;
    if (!find_scaled(j, micro->in[!stream], at, out)) return false;
    out->z = micro->in[stream].id;
    out->part[out->n_part++] = at;
    return true;
}

static bool join_products(const joining *j, int16_t at, cb_x_joint *out) {
    const cb_micro *micro = &j->m->micro[at];
    product a, b;
    if (!find_product(j, micro->in[0], at, &a) || !find_product(j, micro->in[1], at, &b))
        return false;
    if (a.z >= 0 && b.z >= 0) return false;
    if (a.z >= 0) { /* addition is commutative */
        const product swapped = a;
        a = b;
        b = swapped;
    }
    *out = (cb_x_joint){.kind = b.z >= 0 ? CB_X_SUM_OF_3 : CB_X_SUM_OF_2,
                        .x = a.x,
                        .s = a.s,
                        .y = b.x,
                        .t = b.s,
                        .z = b.z};
    for (int k = 0; k < a.n_part; k++) out->part[out->n_part++] = a.part[k];
    for (int k = 0; k < b.n_part; k++) out->part[out->n_part++] = b.part[k];
    return true;
}

static bool join_root(const joining *j, int16_t at, cb_x_joint *out) {
    const cb_micro *sum = &j->m->micro[at];
    const int number = side_of(sum, CB_X_NUMBER);
    const int16_t scaled = number < 0 ? NOWHERE : part_of(j, sum->in[!number], at);
    if (scaled < 0 || j->m->micro[scaled].op != CB_X_MUL) return false;
    const cb_micro *times = &j->m->micro[scaled];
    const int factor = side_of(times, CB_X_NUMBER);
    const int16_t root = factor < 0 ? NOWHERE : part_of(j, times->in[!factor], scaled);
    if (root < 0 || j->m->micro[root].op != CB_X_SQRT) return false;
    *out = (cb_x_joint){.kind = CB_X_SCALED_ROOT,
                        .v = j->m->micro[root].in[0],
                        .s = times->in[factor].id,
                        .t = sum->in[number].id,
                        .part = {scaled, root},
                        .n_part = 2};
    return true;
}

void cb_x_join(const cb_microcode *m, int phase, cb_x_joint *out) {
    joining j = {.m = m, .phase = phase};
    for (int k = 0; k < m->n_micro; k++) out[k] = (cb_x_joint){.kind = CB_X_SINGLE};
    if (m->is_wide) return;
    list_readers(&j);
    for (int16_t k = 0; k < m->n_micro; k++) {
        if (!runs_in(&m->micro[k], phase) || m->micro[k].op != CB_X_ADD) continue;
        if (!join_products(&j, k, &out[k]) && !join_root(&j, k, &out[k])) continue;
        for (int p = 0; p < out[k].n_part; p++) out[out[k].part[p]].kind = CB_X_PART;
    }
}
