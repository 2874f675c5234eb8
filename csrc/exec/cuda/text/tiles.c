#include "tiles.h"

#include <string.h>

#include "sums.h"

bool cb_cu_is_acc(cb_x_op op) { return op == CB_X_ACC || op == CB_X_AMAX || op == CB_X_AMIN; }

bool cb_cu_is_row_acc(const cb_microcode *m, const cb_micro *micro) {
    if (!cb_cu_is_acc(micro->op) || micro->is_dead) return false;
    const cb_x_acc_kind kind = m->acc_kind[micro->dst];
    return kind == CB_X_ROW_SUM || kind == CB_X_LARGEST;
}

bool cb_cu_is_take(const cb_micro *micro) { return micro->op == CB_X_TAKE && !micro->is_dead; }

bool cb_cu_is_leaf(const cb_cu_micro *x, const cb_micro *micro) {
    return x->has_leaves && cb_cu_is_total(x->m, micro);
}

bool cb_cu_need_phase(cb_cu_micro *x, int phase) {
    const cb_microcode *m = x->m;
    bool any = false;
    cb_cu_forget(x);
    x->phase = phase;
    for (int k = 0; k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        const bool ends = cb_cu_is_row_acc(m, micro) || cb_cu_is_leaf(x, micro) ||
                          cb_cu_is_store(x, micro) || cb_cu_is_take(micro);
        if (micro->phase != phase || !ends) continue;
        cb_cu_need(x, k);
        any = true;
    }
    return any;
}

/* Holds, for each stream and phase, the first operation that reads the stream, or -1. */
typedef struct reads {
    int16_t at[CB_X_STREAMS][CB_X_PHASES];
} reads;

static void find_reads(cb_cu_micro *x, reads *r) {
    const cb_microcode *m = x->m;
    memset(r, 0xFF, sizeof *r);
    for (int phase = 0; phase < m->n_phase; phase++) {
        if (!cb_cu_need_phase(x, phase)) continue;
        for (int16_t k = 0; k < m->n_micro; k++) {
            for (int j = 0; x->needed[k] && !m->micro[k].is_dead && j < 3; j++) {
                const int16_t loaded = cb_cu_loads(x, m->micro[k].in[j]);
                if (loaded >= 0 && r->at[loaded][phase] < 0) r->at[loaded][phase] = k;
            }
        }
    }
}

/* Marks arrays of a row's elements that several phases read. */
static void hold_arrays(cb_cu_micro *x, const reads *r) {
    const cb_microcode *m = x->m;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_source source = m->stream[k].source;
        int phases = 0;
        for (int phase = 0; phase < m->n_phase; phase++) phases += r->at[k][phase] >= 0;
        x->is_held[k] = phases > 1 && (source == CB_X_ARRAY || source == CB_X_GATHERED) &&
                        !cb_cu_is_same_in_rows(x, k);
    }
}

/* The lifetime of a tile: from the operation that fills it in phase `born` to the last phase that
 * reads it, with the first operation of that phase that reads it. */
typedef struct life {
    int stream, born, dies;
    int16_t filled_at, read_at;
} life;

static life life_of(const cb_cu_micro *x, const reads *r, int stream) {
    const cb_microcode *m = x->m;
    life l = {.stream = stream, .born = -1};
    for (int phase = 0; phase < m->n_phase; phase++) {
        const int16_t at = r->at[stream][phase];
        if (at < 0) continue;
        if (l.born < 0) l.born = phase, l.filled_at = at;
        l.dies = phase, l.read_at = at;
    }
    for (int16_t k = 0; !x->is_held[stream] && k < m->n_micro; k++) {
        const cb_micro *micro = &m->micro[k];
        if (micro->op != CB_X_STORE || micro->is_dead || micro->dst != stream) continue;
        if (l.born < 0) l.dies = micro->phase, l.read_at = k;
        l.born = micro->phase, l.filled_at = k;
    }
    return l;
}

static bool is_before(const life *a, const life *b) {
    return a->born != b->born ? a->born < b->born : a->filled_at < b->filled_at;
}

/* True if a tile can be reused. A thread reads and writes only its own elements, in order, so a
 * tile can be reused in the phase of its last read, after that read. */
static bool can_follow(const life *last, const life *next) {
    return last->dies < next->born || (last->dies == next->born && last->read_at < next->filled_at);
}

/* Assigns a free tile to each stream that has one, in the order in which the tiles are filled. */
static int share_tiles(cb_cu_micro *x, const reads *r) {
    life all[CB_X_STREAMS], last[CB_X_STREAMS];
    int n = 0, n_tile = 0;
    for (int k = 0; k < x->m->n_stream; k++) {
        if (!x->is_held[k] && (x->in_tile[k] < 0 || x->is_cheap[k])) continue;
        const life l = life_of(x, r, k);
        int at = n++;
        for (; at > 0 && is_before(&l, &all[at - 1]); at--) all[at] = all[at - 1];
        all[at] = l;
    }
    for (int i = 0; i < n; i++) {
        int tile = 0;
        while (tile < n_tile && !can_follow(&last[tile], &all[i])) tile++;
        last[tile] = all[i];
        x->tile_of[all[i].stream] = (int16_t)tile;
        if (tile == n_tile) n_tile++;
    }
    return n_tile;
}

int cb_cu_find_tiles(cb_cu_micro *x, bool holds) {
    reads r;
    memset(x->is_held, 0, sizeof x->is_held);
    cb_cu_find_cheap(x);
    find_reads(x, &r);
    if (holds) {
        hold_arrays(x, &r);
        cb_cu_find_cheap(x); /* held arrays make more tiles cheap */
        find_reads(x, &r);
    }
    return share_tiles(x, &r);
}
