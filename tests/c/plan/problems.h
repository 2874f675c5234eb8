/* problems.h: planning problems for tests, built op by op or at random.
 *
 *     maker m = {0};
 *     uint32_t x = make_input(&m, 64), y = make_op(&m, CB_POP_FUSIBLE, 1, &x, 64);
 *     m.backward_starts = m.n_op;  ...  m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, ...);
 *     cb_problem *p = make_problem(&m, &alloc);   NULL: out of memory */
#ifndef CB_TESTS_PLAN_PROBLEMS_H
#define CB_TESTS_PLAN_PROBLEMS_H

#include <stdio.h>

#include "plan/model/over.h"
#include "plan/model/problem.h"
#include "plan/model/updates.h"

#define MAKER_MOST 512

typedef struct maker {
    uint32_t n_op, n_in, n_value, n_storage, n_result, n_grad, backward_starts;
    uint32_t flags[MAKER_MOST], in_begin[MAKER_MOST + 1], in[4 * MAKER_MOST],
        out_begin[MAKER_MOST + 1];
    uint32_t storage[MAKER_MOST], result[8], grad[64];
    uint8_t constraint[MAKER_MOST], storage_flags[MAKER_MOST];
    uint64_t bytes[MAKER_MOST], workspace[MAKER_MOST];
    double flops[MAKER_MOST];
    uint32_t region[MAKER_MOST]; /* 0: none, else region id + 1 */
    uint64_t limit[4];           /* indexed by region id; all regions are siblings */
    uint32_t n_region;
    cb_reruns reruns;
    uint32_t over;    /* seed for outputs that may reuse the memory of inputs; 0: none */
    uint32_t updates; /* seed for gradients that updates consume; 0: none */
    uint32_t n_member, member_begin[MAKER_MOST + 1]; /* members of ops with an inside */
    cb_member member[2 * MAKER_MOST];
    uint8_t value_member[MAKER_MOST];
    uint32_t n_inlining; /* sorted by op, then by value */
    cb_inlining inlining[2 * MAKER_MOST];
} maker;

static inline uint32_t make_storage(maker *m, uint64_t bytes, uint8_t flags) {
    m->bytes[m->n_storage] = bytes;
    m->storage_flags[m->n_storage] = flags;
    return m->n_storage++;
}

/* Finishes an op whose outputs were added; returns its first output. */
static inline uint32_t end_op(maker *m, uint32_t flags, uint32_t n_in, const uint32_t *in,
                              uint32_t n_out) {
    m->flags[m->n_op] = flags;
    for (uint32_t j = 0; j < n_in; j++) m->in[m->n_in++] = in[j];
    m->n_value += n_out;
    m->n_op++;
    m->in_begin[m->n_op] = m->n_in;
    m->out_begin[m->n_op] = m->n_value;
    m->member_begin[m->n_op] = m->n_member;
    return m->n_value - n_out;
}

static inline uint32_t make_input(maker *m, uint64_t bytes) {
    m->storage[m->n_value] = make_storage(m, bytes, CB_STORE_STATIC);
    return end_op(m, CB_POP_PLACEHOLDER, 0, NULL, 1);
}

static inline uint32_t make_op(maker *m, uint32_t flags, uint32_t n_in, const uint32_t *in,
                               uint64_t bytes) {
    m->storage[m->n_value] = make_storage(m, bytes, 0);
    m->flops[m->n_op] = flags & CB_POP_COMPUTE ? 1e6 : 1e3;
    return end_op(m, flags, n_in, in, 1);
}

static inline uint32_t make_pair_op(maker *m, uint32_t flags, uint32_t n_in, const uint32_t *in,
                                    uint64_t a, uint64_t b) {
    m->storage[m->n_value] = make_storage(m, a, 0);
    m->storage[m->n_value + 1] = make_storage(m, b, 0);
    m->flops[m->n_op] = 5e3;
    return end_op(m, flags, n_in, in, 2);
}

static inline uint32_t make_view(maker *m, uint32_t flags, uint32_t of) {
    m->storage[m->n_value] = m->storage[of];
    return end_op(m, flags | CB_POP_VIEW, 1, &of, 1);
}

static inline bool copy_ids(cb_arena *a, const uint32_t *from, uint32_t n, uint32_t **to) {
    *to = CB_NEW(a, uint32_t, n);
    if (*to && n > 0) memcpy(*to, from, n * sizeof *from);
    return *to;
}

static inline bool fill_regions(const maker *m, cb_problem *p) {
    p->n_region = m->n_region;
    p->region_name = CB_NEW(&p->arena, const char *, m->n_region);
    p->region_parent = CB_NEW(&p->arena, uint32_t, m->n_region);
    p->region_limit = CB_NEW(&p->arena, uint64_t, m->n_region);
    if (!p->region_name || !p->region_parent || !p->region_limit) return false;
    for (uint32_t r = 0; r < m->n_region; r++) {
        p->region_name[r] = "block";
        p->region_parent[r] = CB_NONE;
        p->region_limit[r] = m->limit[r];
    }
    return true;
}

static inline uint32_t maker_draw(uint64_t *state, uint32_t n) {
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ x >> 31) % n);
}

static inline bool is_drawn(const void *context, const cb_problem *p, uint32_t op, uint32_t at) {
    uint64_t state = *(const uint32_t *)context + p->in_begin[op] + at;
    return maker_draw(&state, 4) != 0;
}

/* Lets outputs reuse the memory of inputs. There are few sizes, so that many fit. */
static inline bool make_over(cb_problem *p, uint32_t seed) {
    uint64_t state = seed;
    for (uint32_t s = 0; s < p->n_storage; s++)
        if (!(p->storage_flags[s] & CB_STORE_STATIC))
            p->storage_bytes[s] = 640 * (1 + maker_draw(&state, 3));
    p->keep_saved = seed % 3 == 0;
    return cb_list_over(p, is_drawn, &seed, NULL) == CB_OK;
}

/* Removes the value from the backward's outputs. */
static inline void drop_output(cb_problem *p, uint32_t storage) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        if (p->value_storage[p->backward_output[i]] != storage)
            p->backward_output[n++] = p->backward_output[i];
    p->n_backward_output = n;
}

/* Gives most arguments a gradient: any value that an op makes in its own memory, usually a late
 * one. */
static inline bool make_updates(cb_problem *p, uint32_t seed) {
    uint64_t state = seed;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!(p->storage_flags[s] & CB_STORE_STATIC) || maker_draw(&state, 4) == 0) continue;
        uint32_t late = p->n_value - p->n_value / 2, v = 0;
        v = maker_draw(&state, 3) ? late + maker_draw(&state, p->n_value - late)
                                  : maker_draw(&state, p->n_value);
        uint32_t gradient = p->value_storage[v], root = 0, argument = 0;
        while (p->value_storage[root] != gradient) root++;
        while (argument < p->n_value && p->value_storage[argument] != s) argument++;
        bool fits = !p->storage_flags[gradient] && argument < p->n_value &&
                    p->op_flags[p->value_op[argument]] & CB_POP_PLACEHOLDER &&
                    !(p->updates && p->updates[gradient] != CB_NONE);
        for (uint32_t i = 0; i < p->n_forward_output; i++)
            fits &= p->value_storage[p->forward_output[i]] != gradient;
        if (!fits) continue;
        drop_output(p, gradient);
        if (cb_set_update(p, gradient, s, NULL) != CB_OK) return false;
    }
    return true;
}

static inline cb_problem *make_problem(const maker *m, cb_alloc *alloc) {
    cb_problem *p;
    cb_problem_sizes n = {m->n_op,     m->n_in,       m->n_value, m->n_storage,
                          m->n_member, m->n_inlining, 0};
    if (cb_problem_create(alloc, n, &p, NULL) != CB_OK) return NULL;
    bool ok = fill_regions(m, p);
    memcpy(p->in_begin, m->in_begin, (m->n_op + 1) * sizeof *p->in_begin);
    memcpy(p->out_begin, m->out_begin, (m->n_op + 1) * sizeof *p->out_begin);
    memcpy(p->in_value, m->in, m->n_in * sizeof *p->in_value);
    memcpy(p->value_storage, m->storage, m->n_value * sizeof *p->value_storage);
    memcpy(p->value_constraint, m->constraint, m->n_value);
    memcpy(p->storage_bytes, m->bytes, m->n_storage * sizeof *p->storage_bytes);
    memcpy(p->storage_flags, m->storage_flags, m->n_storage);
    if (m->n_member > 0) {
        memcpy(p->member_begin, m->member_begin, (m->n_op + 1) * sizeof *p->member_begin);
        memcpy(p->member, m->member, m->n_member * sizeof *p->member);
        memcpy(p->value_member, m->value_member, m->n_value);
    }
    for (uint32_t i = 0; i < m->n_inlining; i++) {
        p->inlining[i] = m->inlining[i];
        p->inline_begin[m->inlining[i].op + 1] = i + 1;
    }
    for (uint32_t op = 0; m->n_inlining > 0 && op < m->n_op; op++) {
        if (p->inline_begin[op + 1] < p->inline_begin[op])
            p->inline_begin[op + 1] = p->inline_begin[op];
    }
    for (uint32_t op = 0; op < m->n_op; op++) {
        char name[32];
        int length = snprintf(name, sizeof name, "op_%u", op);
        p->op_flags[op] = m->flags[op];
        p->op_flops[op] = m->flops[op];
        p->op_workspace[op] = m->workspace[op];
        p->op_region[op] = m->region[op] ? m->region[op] - 1 : CB_NONE;
        p->op_name[op] = cb_arena_strdup(&p->arena, name, (size_t)length);
        ok &= p->op_name[op] != NULL;
        p->op_location[op] = "model.py:7";
        for (uint32_t v = m->out_begin[op]; v < m->out_begin[op + 1]; v++) {
            p->value_op[v] = op;
            p->value_type[v] = "f32[4]";
            p->op_bytes[op] += m->bytes[m->storage[v]];
        }
    }
    p->backward_starts = m->backward_starts;
    p->reruns = (uint8_t)m->reruns;
    p->n_forward_output = m->n_result;
    p->n_backward_output = m->n_grad;
    ok &= copy_ids(&p->arena, m->result, m->n_result, &p->forward_output) &&
          copy_ids(&p->arena, m->grad, m->n_grad, &p->backward_output);
    if (ok && m->updates) ok = make_updates(p, m->updates);
    if (ok && m->over) ok = make_over(p, m->over);
    if (ok) return p;
    cb_problem_free(p);
    return NULL;
}

/* ---- at random ------------------------------------------------------------------------------- */

/* Returns a forward value, with a preference for recent ones. */
static inline uint32_t recent_value(uint64_t *state, uint32_t n) {
    uint32_t back = maker_draw(state, maker_draw(state, 4) ? (n < 4 ? n : 4) : n);
    return n - 1 - back;
}

/* Makes a chain with skips and every feature of a problem: views, ops with two outputs, values of
 * no bytes, ops that run once, scratch, a result; then a backward that reads them last to first. */
static inline void make_random(maker *m, uint64_t seed, uint32_t n_forward) {
    static const uint32_t kinds[] = {CB_POP_FUSIBLE,
                                     CB_POP_FUSIBLE,
                                     CB_POP_FUSIBLE,
                                     CB_POP_COMPUTE,
                                     CB_POP_COMPUTE,
                                     0,
                                     CB_POP_FUSIBLE | CB_POP_RANDOM_COUNTER,
                                     CB_POP_FUSIBLE | CB_POP_REDUCTION,
                                     CB_POP_RANDOM_STATEFUL,
                                     CB_POP_UNKNOWN};
    uint64_t s = seed * 977 + 1;
    memset(m, 0, sizeof *m);
    make_input(m, 1000);
    make_input(m, 64);
    for (uint32_t i = 0; i < n_forward; i++) {
        uint32_t in[2] = {recent_value(&s, m->n_value), recent_value(&s, m->n_value)};
        uint32_t n_in = 1 + maker_draw(&s, 2),
                 kind = kinds[maker_draw(&s, maker_draw(&s, 6) ? 8 : 10)];
        uint64_t bytes = maker_draw(&s, 12) ? 64 * (1 + maker_draw(&s, 40)) + maker_draw(&s, 3) : 0;
        if (maker_draw(&s, 12) == 0) m->workspace[m->n_op] = maker_draw(&s, 2000);
        uint32_t choice = maker_draw(&s, 8);
        if (choice == 0) make_view(m, 0, in[0]);
        else if (choice == 1) make_pair_op(m, kind, n_in, in, bytes, 64 * (1 + maker_draw(&s, 10)));
        else make_op(m, kind, n_in, in, bytes);
    }
    m->backward_starts = m->n_op;
    m->result[m->n_result++] = m->n_value - 1;
    if (maker_draw(&s, 2)) m->storage_flags[m->storage[m->n_value - 1]] |= CB_STORE_HOLD_END;
    uint32_t last = m->n_value, gradient = make_input(m, 64);
    m->flags[m->n_op - 1] |= CB_POP_BACKWARD;
    for (uint32_t v = last; v-- > 0;) {
        uint32_t in[3] = {gradient, v, recent_value(&s, last)};
        if (maker_draw(&s, 4) == 0) continue;
        uint64_t bytes = 64 * (1 + maker_draw(&s, 30));
        if (maker_draw(&s, 10) == 0)
            in[1] = make_view(m, 0, v); /* a forward op placed in the backward */
        uint32_t next = make_op(m, CB_POP_BACKWARD, 2 + maker_draw(&s, 2), in, bytes);
        if (maker_draw(&s, 6) == 0 && m->n_grad < 60) m->grad[m->n_grad++] = next;
        if (maker_draw(&s, 5)) gradient = next;
    }
    m->grad[m->n_grad++] = gradient;
    if (maker_draw(&s, 2)) m->storage_flags[m->storage[gradient]] |= CB_STORE_HOLD_END;
}

/* Gives the last op random members: the outputs come last, every input is read, and every member is
 * used. */
static inline void give_inside(maker *m, uint64_t *state) {
    uint32_t op = m->n_op - 1, n_in = m->in_begin[op + 1] - m->in_begin[op],
             n_out = m->out_begin[op + 1] - m->out_begin[op], n = n_out + maker_draw(state, 3);
    uint64_t inputs = (UINT64_C(1) << n_in) - 1, read = 0, used = 0;
    cb_member *member = m->member + m->n_member;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t before = (UINT64_C(1) << i) - 1;
        member[i] =
            (cb_member){.uses = maker_draw(state, 1u << 16) & before,
                        .reads = maker_draw(state, 1u << 16) & inputs,
                        .size = 64,
                        .flops = maker_draw(state, 3) * 1e5,
                        .bytes = 64 * maker_draw(state, 9),
                        .time_ps = maker_draw(state, 4) ? -1 : (int64_t)maker_draw(state, 5000),
                        .workspace = maker_draw(state, 5) ? 0 : maker_draw(state, 900),
                        .flags = CB_POP_FUSIBLE};
        if (i == 0 || !(member[i].uses | member[i].reads)) member[i].reads |= 1; /* the gradient */
        if (i > 0) member[i].uses |= 1;
        read |= member[i].reads;
        used |= member[i].uses;
    }
    member[n - 1].reads |= inputs & ~read;
    member[n - 1].uses |=
        ((UINT64_C(1) << (n - n_out)) - 1) & ~used & ((UINT64_C(1) << (n - 1)) - 1);
    m->n_member += n;
    m->member_begin[op + 1] = m->n_member;
    for (uint32_t k = 0; k < n_out; k++)
        m->value_member[m->out_begin[op] + k] = (uint8_t)(n - n_out + k);
}

/* Like make_random, but most ops have an inside and up to four outputs. */
static inline void make_random_insides(maker *m, uint64_t seed, uint32_t n_forward) {
    uint64_t s = seed * 1201 + 7;
    memset(m, 0, sizeof *m);
    make_input(m, 1000);
    make_input(m, 64);
    for (uint32_t i = 0; i < n_forward; i++) {
        uint32_t in[2] = {recent_value(&s, m->n_value), recent_value(&s, m->n_value)};
        uint32_t n_in = 1 + maker_draw(&s, 2), choice = maker_draw(&s, 8);
        if (choice == 0) {
            make_view(m, 0, in[0]);
            continue;
        }
        uint32_t n_out = choice < 3 ? 1 : 1 + maker_draw(&s, 4);
        if (maker_draw(&s, 6) == 0) m->workspace[m->n_op] = maker_draw(&s, 2000);
        for (uint32_t k = 0; k < n_out; k++) {
            uint64_t bytes = maker_draw(&s, 12) ? 64 * (1 + maker_draw(&s, 40)) : 0;
            m->storage[m->n_value + k] = make_storage(m, bytes, 0);
        }
        m->flops[m->n_op] = 1e3;
        end_op(m, choice == 1 ? CB_POP_RANDOM_STATEFUL : CB_POP_FUSIBLE, n_in, in, n_out);
        if (choice > 2) give_inside(m, &s);
    }
    m->backward_starts = m->n_op;
    m->result[m->n_result++] = m->n_value - 1;
    uint32_t last = m->n_value, gradient = make_input(m, 64);
    m->flags[m->n_op - 1] |= CB_POP_BACKWARD;
    for (uint32_t v = last; v-- > 0;) {
        uint32_t in[3] = {gradient, v, recent_value(&s, last)};
        if (maker_draw(&s, 3) == 0) continue;
        if (maker_draw(&s, 10) == 0) in[1] = make_view(m, 0, v);
        uint32_t next =
            make_op(m, CB_POP_BACKWARD, 2 + maker_draw(&s, 2), in, 64 * (1 + maker_draw(&s, 30)));
        if (maker_draw(&s, 3) == 0) give_inside(m, &s);
        if (maker_draw(&s, 6) == 0 && m->n_grad < 60) m->grad[m->n_grad++] = next;
        if (maker_draw(&s, 5)) gradient = next;
    }
    m->grad[m->n_grad++] = gradient;
    if (maker_draw(&s, 2)) m->storage_flags[m->storage[gradient]] |= CB_STORE_HOLD_END;
}

/* Marks some outputs of forward ops as held, returned, or in the caller's memory. */
static inline void hold_parts(maker *m, uint64_t seed) {
    static const uint8_t flags[] = {CB_STORE_HOLD_END, CB_STORE_HOLD_FORWARD, CB_STORE_STATIC, 0};
    uint64_t s = seed * 53 + 11;
    for (uint32_t op = 2; op < m->backward_starts; op++) {
        uint32_t v = m->out_begin[op + 1] - 1;
        bool pair = v > m->out_begin[op], view = m->flags[op] & CB_POP_VIEW;
        if (view || maker_draw(&s, pair ? 2 : 8) || m->n_result == 8) continue;
        uint8_t flag = flags[maker_draw(&s, 4)];
        if (flag == CB_STORE_STATIC && m->storage_flags[m->storage[v]]) flag = 0;
        m->storage_flags[m->storage[v]] |= flag;
        if (flag == 0 || flag == CB_STORE_STATIC) m->result[m->n_result++] = v;
    }
}

/* True if readers may inline the value. */
static inline bool may_inline(const maker *m, uint32_t value) {
    uint32_t op = 0, shared = 0;
    while (m->out_begin[op + 1] <= value) op++;
    for (uint32_t v = 0; v < m->n_value; v++) shared += m->storage[v] == m->storage[value];
    bool alone = m->out_begin[op + 1] - m->out_begin[op] == 1 ||
                 m->member_begin[op] < m->member_begin[op + 1];
    return alone && shared == 1 && !(m->storage_flags[m->storage[value]] & CB_STORE_STATIC) &&
           !(m->flags[op] & (CB_POP_ONCE | CB_POP_PLACEHOLDER | CB_POP_VIEW));
}

/* True if the op reads it, directly or through a value that `listed` [n_value] marks as inlined. */
static inline bool is_read_for(const maker *m, const bool *listed, uint32_t op, uint32_t value) {
    for (uint32_t r = op + 1; r-- > 0;) {
        bool reads = r == op;
        for (uint32_t v = m->out_begin[r]; v < m->out_begin[r + 1]; v++) reads |= listed[v];
        for (uint32_t j = m->in_begin[r]; reads && j < m->in_begin[r + 1]; j++)
            if (m->in[j] == value) return true;
    }
    return false;
}

/* Allows half of the possible inlinings, some of them nested. Must be the last change to the
 * problem. */
static inline void give_inlinings(maker *m, uint64_t seed) {
    uint64_t s = seed * 1543 + 3;
    for (uint32_t op = 0; op < m->n_op; op++) {
        bool listed[MAKER_MOST] = {0}, none = m->flags[op] & (CB_POP_PLACEHOLDER | CB_POP_VIEW);
        uint32_t n = 0;
        for (uint32_t v = m->out_begin[op]; !none && n < 8 && v-- > 0;) {
            listed[v] = is_read_for(m, listed, op, v) && may_inline(m, v) && maker_draw(&s, 2);
            n += listed[v];
        }
        for (uint32_t v = 0; v < m->out_begin[op]; v++) {
            if (!listed[v] || m->n_inlining == 2 * MAKER_MOST) continue;
            m->inlining[m->n_inlining++] =
                (cb_inlining){.value = v,
                              .op = op,
                              .flops = 1e5 * maker_draw(&s, 3),
                              .bytes = 64 * maker_draw(&s, 20),
                              .time_ps = maker_draw(&s, 3) ? -1 : (int64_t)maker_draw(&s, 5000),
                              .workspace = maker_draw(&s, 4) ? 0 : maker_draw(&s, 900)};
        }
    }
}

#endif
