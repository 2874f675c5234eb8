/* kern_map.h: runs a loop over contiguous tiles for a pointwise op on tensors of any strides and
 * dtypes.
 *
 * The output is cut into tasks of CB_CHUNK elements and those into runs. For each run an input is
 * one of
 *
 *     direct      its elements are adjacent: the loop reads it in place
 *     repeated    one value for the whole row (stride 0): a tile is filled once
 *     gathered    anything else, or rows too short to be runs of their own: copied to a tile first
 *
 * and 16-bit floats pass through f32 tiles. The loop is the same in each case, so strides cannot
 * change the result. */
#ifndef CB_EXEC_CPU_POINT_KERN_MAP_H
#define CB_EXEC_CPU_POINT_KERN_MAP_H

#include "../move/kern_copy.h"

/* out[i] = f(in[0][i], in[1][i], ...); inputs may be the same tensor, and the output may be an
 * input; otherwise tensors never overlap. */
typedef void (*cb_loop_fn)(const void *const *in, void *out, int64_t n);

#define CB_SHORT_ROW 64 /* rows below this are gathered together */

typedef struct cb_map {
    cb_loop_fn loop;
    int n_in;
    bool raw_in, raw_out; /* the loop takes 16-bit floats without conversion */
    const cb_tensor *in[CB_WALKERS];
    const cb_tensor *out;
    cb_walk walk;
    bool whole[CB_WALKERS]; /* the whole tensor is contiguous */
} cb_map;

typedef struct cb_map_tiles { /* the tiles of one task */
    _Alignas(64) uint64_t
        value[CB_WALKERS + 1][CB_TILE]; /* inputs of the loop; the last one is its output */
    _Alignas(64) uint16_t half[CB_TILE];
    const char *repeated[CB_WALKERS]; /* source of the tile's repeated value; NULL: not repeated */
    int64_t n_repeated[CB_WALKERS];
} cb_map_tiles;

/* Returns input t for a run of n elements at position p, whose index in the output is `linear`. */
static inline const void *cb_map_input(const cb_map *m, cb_map_tiles *tiles, int t,
                                       const cb_position *p, int64_t linear, int64_t n) {
    const cb_tensor *in = m->in[t];
    bool rows = m->walk.dim[m->walk.rank - 1] >= CB_SHORT_ROW;
    bool widens = !m->raw_in && is_half(in->dtype);
    int64_t stride = m->walk.stride[t][m->walk.rank - 1];
    size_t size = cb_dtype_size(in->dtype);
    const char *at = cb_at(in, m->whole[t] ? linear : p->offset[t]);
    if (m->whole[t] || (rows && stride == 1)) {
        if (!widens) return at;
        half_widen(in->dtype, (const uint16_t *)(const void *)at, (float *)tiles->value[t], n);
        return tiles->value[t];
    }
    bool repeats = rows && stride == 0;
    if (repeats && tiles->repeated[t] == at && tiles->n_repeated[t] >= n) return tiles->value[t];
    tiles->repeated[t] = repeats ? at : NULL;
    tiles->n_repeated[t] = n;
    void *to = widens ? (void *)tiles->half : (void *)tiles->value[t];
    if (repeats) cb_copy_run(at, 0, size, to, n);
    else cb_walk_copy(&m->walk, *p, t, in->data, size, to, n);
    if (widens) half_widen(in->dtype, tiles->half, (float *)tiles->value[t], n);
    return tiles->value[t];
}

static inline void cb_map_task(void *user, int64_t task, int thread) {
    (void)thread;
    const cb_map *m = user;
    cb_map_tiles tiles;
    for (int t = 0; t < m->n_in; t++) tiles.repeated[t] = NULL;
    bool narrows = !m->raw_out && is_half(m->out->dtype);
    bool rows = m->walk.dim[m->walk.rank - 1] >= CB_SHORT_ROW, direct = !narrows;
    for (int t = 0; t < m->n_in; t++)
        direct = direct && m->whole[t] && (m->raw_in || !is_half(m->in[t]->dtype));
    int64_t at = task * CB_CHUNK, end = min_i64(at + CB_CHUNK, m->walk.count);
    cb_position p = cb_walk_to(&m->walk, at);
    while (at < end) {
        int64_t n = direct ? end - at : min_i64(end - at, CB_TILE);
        if (rows) n = min_i64(n, cb_walk_left(&m->walk, &p));
        const void *in[CB_WALKERS];
        for (int t = 0; t < m->n_in; t++) in[t] = cb_map_input(m, &tiles, t, &p, at, n);
        void *out = cb_at(m->out, at);
        m->loop(in, narrows ? (void *)tiles.value[CB_WALKERS] : out, n);
        if (narrows) half_narrow(m->out->dtype, (const float *)tiles.value[CB_WALKERS], out, n);
        at += n;
        if (at == end) break;
        if (rows) cb_walk_step(&m->walk, &p, n);
        else p = cb_walk_to(&m->walk, at);
    }
}

static inline cb_status cb_map_run(const cb_kernel_args *args, cb_loop_fn loop, bool raw_in,
                                   bool raw_out) {
    cb_map m = {.loop = loop,
                .n_in = (int)args->n_in,
                .raw_in = raw_in,
                .raw_out = raw_out,
                .out = &args->out[0]};
    for (int t = 0; t < m.n_in; t++) {
        m.in[t] = &args->in[t];
        m.whole[t] = cb_is_contiguous(&args->in[t].shape, args->in[t].stride);
    }
    m.walk = cb_walk_of(m.in, m.n_in);
    cb_parallel(args->pool, div_up(m.walk.count, CB_CHUNK), cb_map_task, &m);
    return CB_OK;
}

#endif
