/* attention_rows.h: the units of work of kern_attention.c, for one compute type. A template:
 * included with REAL_BITS 32 and 64. */
#include "attention_tile.h"

/* ---- forward --------------------------------------------------------------------------------- */

static void CB_TYPED(take_larger)(const CB_REAL *restrict x, CB_REAL *restrict most, int64_t n) {
    for (int64_t i = 0; i < n; i++) most[i] = x[i] > most[i] ? x[i] : most[i];
}

/* Replaces scores by exp(score - shift) and adds these to `total`. */
static void CB_TYPED(weigh_line)(CB_REAL *restrict x, const CB_REAL *restrict shift,
                                 CB_REAL *restrict total, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const CB_REAL weight = TILE_EXP(x[i] - shift[i]);
        total[i] += weight;
        x[i] = weight;
    }
}

static void CB_TYPED(multiply_line)(const CB_REAL *restrict by, CB_REAL *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] *= by[i];
}

/* Returns the maximum, or 0 if it is -inf, because -inf - -inf is NaN. */
static CB_REAL CB_TYPED(shift_of)(CB_REAL most) { return most == LOWEST ? 0 : most; }

/* Replaces the tile's scores by weights. The caller must scale sums over earlier tiles by
 * s->factor. */
static void CB_TYPED(weigh)(const attention *a, const CB_TYPED(slot) * s, int64_t i0, int64_t j0,
                            int64_t keys) {
    const int64_t line = a->t.line, used = used_columns(a, i0);
    CB_REAL shift[CB_ATTENTION_QUERIES], total[CB_ATTENTION_QUERIES] = {0};
    for (int64_t i = 0; i < used; i++) shift[i] = s->most[i];
    for (int64_t j = 0; j < keys; j++) {
        CB_REAL *x = s->scores + j * line;
        const int64_t begin = CB_TYPED(begin_line)(a, i0, j0 + j, LOWEST, x);
        const int64_t n = used - begin;
        if (a->mask) CB_TYPED(add_to)(s->mask + j * line + begin, x + begin, n);
        CB_TYPED(take_larger)(x + begin, s->most + begin, n);
    }
    for (int64_t i = 0; i < used; i++) {
        const CB_REAL before = shift[i];
        shift[i] = CB_TYPED(shift_of)(s->most[i]);
        s->factor[i] = TILE_EXP(before - shift[i]);
    }
    for (int64_t j = 0; j < keys; j++) {
        CB_REAL *x = s->scores + j * line;
        const int64_t first = a->is_causal ? max_i64(j0 + j - i0, 0) : 0;
        const int64_t begin = first / TILE_VECTOR * TILE_VECTOR, n = used - begin;
        CB_TYPED(weigh_line)(x + begin, shift + begin, total + begin, n);
        if (a->drops) CB_TYPED(multiply_line)(s->kept + j * line + begin, x + begin, n);
        CB_TYPED(clear_before)(x, begin);
    }
    for (int64_t i = 0; i < used; i++) s->total[i] = s->total[i] * s->factor[i] + total[i];
}

static void CB_TYPED(finish_rows)(const attention *a, const CB_TYPED(slot) * s, int64_t item,
                                  int64_t i0, int64_t n) {
    const int64_t d = a->t.d, size = (int64_t)cb_dtype_size(a->dtype);
    CB_REAL *lse = (CB_REAL *)a->args->out[1].data + item * a->t.l + i0;
    char *to = (char *)a->args->out[0].data + (item * a->t.l + i0) * d * size;
    for (int64_t i = 0; i < n; i++) {
        CB_REAL *row = s->sum_q + i * a->t.wide_d;
        const bool is_closed = s->total[i] == 0 && (a->mask || a->t.s == 0);
        const CB_REAL by = is_closed ? 0 : 1 / s->total[i];
        for (int64_t p = 0; p < d; p++) row[p] = a->t.s == 0 ? 0 : row[p] * by;
        CB_TYPED(store_row)(a->dtype, row, d, to + i * d * size);
        lse[i] = CB_TYPED(shift_of)(s->most[i]) + CB_TYPED(cb_log)(s->total[i]);
    }
}

/* Computes a block of queries of a head. Blocks that see more keys come first, so that threads
   finish together. */
static void CB_TYPED(attend)(const attention *a, int64_t unit, int64_t slot) {
    const CB_TYPED(slot) s = CB_TYPED(slot_of)(a, slot);
    const int64_t blocks = div_up(a->t.l, a->t.queries), item = unit / blocks;
    const int64_t i0 = (blocks - 1 - unit % blocks) * a->t.queries;
    const int64_t n = min_i64(a->t.queries, a->t.l - i0), kv = kv_item(a, item);
    const CB_TYPED(block) q = CB_TYPED(rows_of)(a->q, item, i0, n, s.queries_e);
    CB_TYPED(pack_columns)
    (q, n, a->t.e, (CB_REAL)a->args->attrs->f[0], s.columns_e, a->t.line);
    for (int64_t i = 0; i < a->t.line; i++) {
        s.most[i] = LOWEST;
        s.total[i] = 0;
    }
    for (int64_t j0 = 0; j0 < a->t.s; j0 += a->t.keys) {
        const int64_t keys = keys_seen(a, i0, n, j0);
        if (keys == 0) break;
        const CB_TYPED(block) k = CB_TYPED(rows_of)(a->k, kv, j0, keys, s.keys_e);
        const CB_TYPED(block) v = CB_TYPED(rows_of)(a->v, kv, j0, keys, s.keys_d);
        const CB_TYPED(panels) right = CB_TYPED(pack_panels)(v, keys, a->t.d, s.panels_k);
        CB_TYPED(fill_tiles)(a, &s, item, i0, n, j0, keys);
        CB_TYPED(multiply_tile)(a, k, keys, a->t.e, s.columns_e, i0, j0, s.scores);
        CB_TYPED(weigh)(a, &s, i0, j0, keys);
        for (int64_t i = 0; i < n && j0 > 0; i++)
            for (int64_t p = 0; p < a->t.d && s.factor[i] != 1; p++)
                s.sum_q[i * a->t.wide_d + p] *= s.factor[i];
        CB_TYPED(multiply_queries)
        (a, s.scores, right, i0, n, j0, (CB_TYPED(sums)){s.sum_q, a->t.wide_d, a->t.d, j0 > 0});
    }
    CB_TYPED(finish_rows)(a, &s, item, i0, n);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* One block of queries: rows of q and of the gradient g. */
typedef struct CB_TYPED(queries) {
    CB_TYPED(block) q, g;
    int64_t item, i0, n;
} CB_TYPED(queries);

/* Returns the sum of g * y over a row, computed in TILE_VECTOR lanes. */
static CB_REAL CB_TYPED(dot)(const CB_REAL *g, const CB_REAL *y, int64_t n) {
    CB_REAL lane[TILE_VECTOR] = {0};
    int64_t p = 0;
    for (; p + TILE_VECTOR <= n; p += TILE_VECTOR)
        for (int k = 0; k < TILE_VECTOR; k++) lane[k] += g[p + k] * y[p + k];
    for (int k = 0; p < n; p++, k++) lane[k] += g[p] * y[p];
    for (int half = TILE_VECTOR / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    return lane[0];
}

/* Loads rows, columns and statistics of a block. `knows_by`: sum(g * y) is read from the shared
 * scratch; otherwise it is computed and stored there. */
static CB_TYPED(queries) CB_TYPED(open_queries)(const attention *a, const CB_TYPED(slot) * s,
                                                int64_t item, int64_t i0, bool knows_by) {
    const int64_t n = min_i64(a->t.queries, a->t.l - i0), d = a->t.d, line = a->t.line;
    const int64_t stride = a->y->stride[a->y->shape.rank - 1];
    const CB_TYPED(queries) x = {CB_TYPED(rows_of)(a->q, item, i0, n, s->queries_e),
                                 CB_TYPED(rows_of)(a->g, item, i0, n, s->queries_d), item, i0, n};
    CB_REAL *by = (CB_REAL *)a->args->scratch + item * a->t.l + i0, row[CB_ATTENTION_HEAD];
    CB_TYPED(pack_columns)(x.q, n, a->t.e, (CB_REAL)a->args->attrs->f[0], s->columns_e, line);
    CB_TYPED(pack_columns)(x.g, n, d, 1, s->columns_d, line);
    for (int64_t i = 0; i < n; i++) {
        if (!knows_by) {
            CB_TYPED(load_row)(a->y, row_at(a->y, item, i0 + i), d, stride, row);
            by[i] = CB_TYPED(dot)(x.g.at + i * x.g.ld, row, d);
        }
        const CB_REAL total = ((const CB_REAL *)a->lse->data)[lse_offset(a->lse, item, i0 + i)];
        s->total[i] = total == LOWEST ? -LOWEST : total; /* an infinite shift makes all weights 0 */
        s->by[i] = by[i];
    }
    for (int64_t i = n; i < line; i++) s->total[i] = s->by[i] = 0;
    return x;
}

/* Replaces the scores in `x` by weights, and the gradients of weights in `slope` by gradients of
 * scores. */
static void CB_TYPED(slope_line)(CB_REAL *restrict x, CB_REAL *restrict slope,
                                 const CB_REAL *restrict lse, const CB_REAL *restrict by,
                                 CB_REAL scale, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const CB_REAL weight = TILE_EXP(x[i] - lse[i]);
        x[i] = weight;
        slope[i] = weight * (slope[i] - by[i]) * scale;
    }
}

/* Computes a tile of weights after dropout and a tile of gradients of scores. */
static void CB_TYPED(slope_tile)(const attention *a, const CB_TYPED(slot) * s,
                                 const CB_TYPED(queries) * x, int64_t j0, CB_TYPED(block) k,
                                 CB_TYPED(block) v) {
    const int64_t line = a->t.line, used = used_columns(a, x->i0);
    const int64_t keys = keys_seen(a, x->i0, x->n, j0);
    CB_TYPED(fill_tiles)(a, s, x->item, x->i0, x->n, j0, keys);
    CB_TYPED(multiply_tile)(a, k, keys, a->t.e, s->columns_e, x->i0, j0, s->scores);
    CB_TYPED(multiply_tile)(a, v, keys, a->t.d, s->columns_d, x->i0, j0, s->slopes);
    for (int64_t j = 0; j < keys; j++) {
        CB_REAL *score = s->scores + j * line, *slope = s->slopes + j * line;
        const int64_t begin = CB_TYPED(begin_line)(a, x->i0, j0 + j, LOWEST, score);
        const int64_t n = used - CB_TYPED(begin_line)(a, x->i0, j0 + j, 0, slope);
        const CB_REAL *kept = s->kept + j * line + begin;
        if (a->mask) CB_TYPED(add_to)(s->mask + j * line + begin, score + begin, n);
        if (a->drops) CB_TYPED(multiply_line)(kept, slope + begin, n);
        CB_TYPED(slope_line)
        (score + begin, slope + begin, s->total + begin, s->by + begin,
         (CB_REAL)a->args->attrs->f[0], n);
        if (a->drops) CB_TYPED(multiply_line)(kept, score + begin, n);
        CB_TYPED(clear_before)(score, begin);
        CB_TYPED(clear_before)(slope, begin);
    }
    CB_TYPED(clear_behind)(a, s->scores, keys);
    CB_TYPED(clear_behind)(a, s->slopes, keys);
}

/* Returns where gradients of rows are summed: in the result, or in scratch if the result has 16
 * bits. */
static CB_TYPED(sums) CB_TYPED(sums_in)(const attention *a, uint32_t out, int64_t row,
                                        int64_t columns, CB_REAL *beside) {
    CB_REAL *to = (CB_REAL *)a->args->out[out].data + row * columns;
    return (CB_TYPED(sums)){is_half(a->dtype) ? beside : to, columns, columns, false};
}

/* Rounds sums in scratch to the result. `is_empty`: nothing was summed; the result is 0. */
static void CB_TYPED(close_sums)(const attention *a, uint32_t out, int64_t row, int64_t n,
                                 const CB_TYPED(sums) * sums, bool is_empty) {
    const int64_t size = (int64_t)cb_dtype_size(a->dtype);
    char *to = (char *)a->args->out[out].data + row * sums->columns * size;
    if (is_empty) memset(to, 0, (size_t)(n * sums->columns * size));
    else if (is_half(a->dtype)) CB_TYPED(store_row)(a->dtype, sums->at, n * sums->columns, to);
}

/* Returns the first query of the first block of queries that sees a key of the block at j0. */
static int64_t CB_TYPED(first_seeing)(const attention *a, int64_t j0) {
    return a->is_causal ? j0 / a->t.queries * a->t.queries : 0;
}

/* Returns the first of the heads of q that share head `kv`. */
static int64_t CB_TYPED(first_item)(const attention *a, int64_t kv) {
    const int64_t shared = a->t.heads / a->t.kv_heads;
    return kv / a->t.kv_heads * a->t.heads + kv % a->t.kv_heads * shared;
}

/* Packs a block of queries for add_to_keys. */
static void CB_TYPED(pack_queries)(const attention *a, const CB_TYPED(slot) * s,
                                   const CB_TYPED(queries) * x) {
    (void)CB_TYPED(pack_panels)(x->q, x->n, a->t.e, s->panels_q);
    (void)CB_TYPED(pack_panels)(x->g, x->n, a->t.d, s->panels_g);
}

/* Adds a tile's contribution to the gradients of a block of keys, or, if `add` is false, stores
 * it. */
static void CB_TYPED(add_to_keys)(const attention *a, const CB_TYPED(slot) * s,
                                  const CB_TYPED(queries) * x, int64_t j0, CB_TYPED(sums) dk,
                                  CB_TYPED(sums) dv, bool add) {
    const CB_TYPED(panels) q = {s->panels_q, x->n, a->t.e}, g = {s->panels_g, x->n, a->t.d};
    dk.add = dv.add = add;
    CB_TYPED(multiply_keys)(a, s->slopes, q, x->i0, x->n, j0, dk);
    CB_TYPED(multiply_keys)(a, s->scores, g, x->i0, x->n, j0, dv);
}

/* Iterates over all keys that a block of queries sees. Computes the gradient of the queries and,
 * with `is_whole`, adds to those of keys and values. `is_first`: no head has added to them yet. */
static void CB_TYPED(pass_keys)(const attention *a, const CB_TYPED(slot) * s, int64_t item,
                                int64_t i0, bool is_whole, bool is_first) {
    const CB_TYPED(queries) x = CB_TYPED(open_queries)(a, s, item, i0, false);
    const int64_t kv = kv_item(a, item), row = item * a->t.l + i0;
    CB_TYPED(sums) dq = CB_TYPED(sums_in)(a, 0, row, a->t.e, s->sum_q);
    if (is_whole) CB_TYPED(pack_queries)(a, s, &x);
    for (int64_t j0 = 0; j0 < a->t.s; j0 += a->t.keys) {
        const int64_t keys = keys_seen(a, i0, x.n, j0), to = kv * a->t.s + j0;
        if (keys == 0) break;
        const CB_TYPED(block) k = CB_TYPED(rows_of)(a->k, kv, j0, keys, s->keys_e);
        const CB_TYPED(block) v = CB_TYPED(rows_of)(a->v, kv, j0, keys, s->keys_d);
        const CB_TYPED(panels) right = CB_TYPED(pack_panels)(k, keys, a->t.e, s->panels_k);
        dq.add = j0 > 0;
        CB_TYPED(slope_tile)(a, s, &x, j0, k, v);
        CB_TYPED(multiply_queries)(a, s->slopes, right, i0, x.n, j0, dq);
        if (!is_whole) continue;
        CB_TYPED(add_to_keys)
        (a, s, &x, j0, CB_TYPED(sums_in)(a, 1, to, a->t.e, s->sum_k),
         CB_TYPED(sums_in)(a, 2, to, a->t.d, s->sum_v),
         !is_first || i0 > CB_TYPED(first_seeing)(a, j0));
    }
    CB_TYPED(close_sums)(a, 0, row, x.n, &dq, a->t.s == 0);
}

/* Computes all gradients of a head of k and v. Keys that no query sees get zeros. */
static void CB_TYPED(backward_head)(const attention *a, int64_t kv, int64_t slot) {
    const CB_TYPED(slot) s = CB_TYPED(slot_of)(a, slot);
    const int64_t first = CB_TYPED(first_item)(a, kv), last = first + a->t.heads / a->t.kv_heads;
    for (int64_t item = first; item < last; item++)
        for (int64_t i0 = 0; i0 < a->t.l; i0 += a->t.queries)
            CB_TYPED(pass_keys)(a, &s, item, i0, true, item == first);
    const bool sees_all = !a->is_causal && a->t.l > 0 && last > first;
    const int64_t seen = last > first ? div_up(a->t.l, a->t.keys) * a->t.keys : 0;
    if (sees_all || seen >= a->t.s) return;
    CB_TYPED(sums) dk = CB_TYPED(sums_in)(a, 1, kv * a->t.s + seen, a->t.e, s.sum_k);
    CB_TYPED(sums) dv = CB_TYPED(sums_in)(a, 2, kv * a->t.s + seen, a->t.d, s.sum_v);
    CB_TYPED(close_sums)(a, 1, kv * a->t.s + seen, a->t.s - seen, &dk, true);
    CB_TYPED(close_sums)(a, 2, kv * a->t.s + seen, a->t.s - seen, &dv, true);
}

/* Computes the gradient of a block of queries. Blocks are in the same order as in the forward
 * pass. */
static void CB_TYPED(backward_queries)(const attention *a, int64_t unit, int64_t slot) {
    const CB_TYPED(slot) s = CB_TYPED(slot_of)(a, slot);
    const int64_t blocks = div_up(a->t.l, a->t.queries);
    CB_TYPED(pass_keys)
    (a, &s, unit / blocks, (blocks - 1 - unit % blocks) * a->t.queries, false, false);
}

/* Computes the gradients of a block of keys and values of a head. */
static void CB_TYPED(backward_keys)(const attention *a, int64_t unit, int64_t slot) {
    const CB_TYPED(slot) s = CB_TYPED(slot_of)(a, slot);
    const int64_t blocks = div_up(a->t.s, a->t.keys), kv = unit / blocks;
    const int64_t j0 = unit % blocks * a->t.keys, n = min_i64(a->t.keys, a->t.s - j0);
    const int64_t first = CB_TYPED(first_item)(a, kv), last = first + a->t.heads / a->t.kv_heads;
    const int64_t row = kv * a->t.s + j0;
    const CB_TYPED(sums) dk = CB_TYPED(sums_in)(a, 1, row, a->t.e, s.sum_k);
    const CB_TYPED(sums) dv = CB_TYPED(sums_in)(a, 2, row, a->t.d, s.sum_v);
    bool any = false;
    const CB_TYPED(block) k = CB_TYPED(rows_of)(a->k, kv, j0, n, s.keys_e);
    const CB_TYPED(block) v = CB_TYPED(rows_of)(a->v, kv, j0, n, s.keys_d);
    for (int64_t item = first; item < last; item++) {
        for (int64_t i0 = CB_TYPED(first_seeing)(a, j0); i0 < a->t.l; i0 += a->t.queries) {
            const CB_TYPED(queries) x = CB_TYPED(open_queries)(a, &s, item, i0, true);
            CB_TYPED(pack_queries)(a, &s, &x);
            CB_TYPED(slope_tile)(a, &s, &x, j0, k, v);
            CB_TYPED(add_to_keys)(a, &s, &x, j0, dk, dv, any);
            any = true;
        }
    }
    CB_TYPED(close_sums)(a, 1, row, n, &dk, !any);
    CB_TYPED(close_sums)(a, 2, row, n, &dv, !any);
}
