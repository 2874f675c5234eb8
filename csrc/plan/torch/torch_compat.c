/* The rules are those of min_cut_rematerialization_partition in PyTorch 2.13 at its default
 * settings; `rules` holds their numbers, aten.c their op lists. They are kept unchanged, even where
 * other rules would do better; the presets meant for planning are conservative and aggressive.
 *
 *   weight: bytes x 1.1^distance to the backward, twice that if no reader needs it in memory
 *   bans:   ops that are not on the list, values that the backward needs in memory anyway, results
 *           much smaller than their inputs, readers beyond an op that does not fuse, ends of long
 *           fused chains */
#include "torch_compat.h"

#include <math.h>

#include "aten.h"

static const struct {
    double growth;     /* growth of the weight with each op between a value and the backward */
    uint32_t farthest; /* distance at which the growth ends */
    double unwritten;  /* factor for a value that fusion would keep out of memory */
    double shrink;     /* results this many times smaller than their inputs are saved */
    uint32_t chain;    /* longest fused chain, in forward ops */
} rules = {1.1, 100, 2, 4, 100};

typedef struct torch_graph {
    const cb_facts *f;
    cb_arena *scratch;
    uint32_t *class_of;          /* [n_op] CB_ATEN_* */
    uint32_t *user_begin, *user; /* [n_op + 1], distinct readers in order */
    uint64_t *bytes;             /* [n_op] bytes of all its tensors */
    bool *part;                  /* [n_op] true for arguments and for ops in the base order */
    bool *forward;               /* [n_op] true if forward outputs need it, and for all arguments
                                    except tangents */
    bool *output;                /* [n_op] */
    bool *gradient;              /* [n_op] true for backward outputs */
    bool *banned;                /* [n_op] */
    uint32_t *distance;          /* [n_op] distance to the backward; CB_NONE: it does not lead
                                    there */
    uint32_t *order;             /* [n_op] place among the forward ops */
    uint32_t n_forward, *forward_op;
    double scale; /* factor of all weights: 1, or less if their sum would exceed 2^61 */
} torch_graph;

static bool is_tangent(const torch_graph *g, uint32_t op) {
    return g->f->p->op_flags[op] & CB_POP_BACKWARD;
}

static bool is_argument(const torch_graph *g, uint32_t op) {
    return g->f->p->op_flags[op] & CB_POP_PLACEHOLDER;
}

static bool fuses(const torch_graph *g, uint32_t from, uint32_t to) {
    const uint32_t any = CB_ATEN_RECOMPUTE | CB_ATEN_RANDOM;
    return (g->class_of[to] & CB_ATEN_JOIN) ||
           ((g->class_of[from] & any) && (g->class_of[to] & any));
}

static bool wants_save(uint8_t wish) { return wish == CB_MUST_SAVE || wish == CB_PREFER_SAVE; }
static bool wants_recompute(uint8_t wish) {
    return wish == CB_MUST_RECOMPUTE || wish == CB_PREFER_RECOMPUTE;
}

/* ---- the graph in PyTorch's terms ------------------------------------------------------------ */

static bool allocate(torch_graph *g) {
    const cb_problem *p = g->f->p;
    cb_arena *a = g->scratch;
    g->class_of = CB_NEW(a, uint32_t, p->n_op);
    g->user_begin = CB_NEW(a, uint32_t, (size_t)p->n_op + 2);
    g->user = CB_NEW(a, uint32_t, p->in_begin[p->n_op]);
    g->bytes = CB_NEW(a, uint64_t, p->n_op);
    g->part = CB_NEW(a, bool, p->n_op);
    g->forward = CB_NEW(a, bool, p->n_op);
    g->output = CB_NEW(a, bool, p->n_op);
    g->gradient = CB_NEW(a, bool, p->n_op);
    g->banned = CB_NEW(a, bool, p->n_op);
    g->distance = CB_NEW(a, uint32_t, p->n_op);
    g->order = CB_NEW(a, uint32_t, p->n_op);
    g->forward_op = CB_NEW(a, uint32_t, p->n_op);
    return g->class_of && g->user_begin && g->user && g->bytes && g->part && g->forward &&
           g->output && g->gradient && g->banned && g->distance && g->order && g->forward_op;
}

/* Lists readers in the order of ids. Two passes over the inputs: count, then place; `last` [n_op]
 * prevents an op that reads another twice from counting twice. */
static void place_users(torch_graph *g, uint32_t *last, bool count) {
    const cb_problem *p = g->f->p;
    for (uint32_t op = 0; op < p->n_op; op++) last[op] = CB_NONE;
    for (uint32_t op = 0; op < p->n_op; op++) {
        for (uint32_t j = p->in_begin[op]; g->part[op] && j < p->in_begin[op + 1]; j++) {
            uint32_t from = p->value_op[p->in_value[j]];
            if (last[from] == op) continue;
            last[from] = op;
            if (count) g->user_begin[from + 2]++;
            else g->user[g->user_begin[from + 1]++] = op;
        }
    }
}

static bool find_users(torch_graph *g) {
    uint32_t n = g->f->p->n_op, *last = CB_NEW(g->scratch, uint32_t, n);
    if (!last) return false;
    place_users(g, last, true);
    for (uint32_t i = 2; i < n + 2; i++) g->user_begin[i] += g->user_begin[i - 1];
    place_users(g, last, false);
    return true;
}

static void find_parts(torch_graph *g) {
    const cb_problem *p = g->f->p;
    for (uint32_t op = 0; op < p->n_op; op++) {
        g->part[op] = is_argument(g, op) || g->f->position[op] != CB_NONE;
        g->class_of[op] = cb_aten_class(p, op);
        for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
            g->bytes[op] += cb_value_bytes(p, v);
        g->forward[op] = is_argument(g, op) && !is_tangent(g, op);
    }
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        g->output[p->value_op[p->forward_output[i]]] = true;
        g->forward[p->value_op[p->forward_output[i]]] = true;
    }
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        g->output[p->value_op[p->backward_output[i]]] = true;
        g->gradient[p->value_op[p->backward_output[i]]] = true;
    }
    for (uint32_t op = p->n_op; op-- > 0;) {
        for (uint32_t j = p->in_begin[op]; g->forward[op] && j < p->in_begin[op + 1]; j++)
            g->forward[p->value_op[p->in_value[j]]] = true;
    }
    for (uint32_t op = 0; op < p->n_op; op++) {
        if (!g->forward[op]) continue;
        g->order[op] = g->n_forward;
        g->forward_op[g->n_forward++] = op;
    }
}

static void find_distances(torch_graph *g) {
    for (uint32_t op = g->f->p->n_op; op-- > 0;) {
        if (!g->forward[op]) continue;
        g->distance[op] = CB_NONE;
        for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++) {
            uint32_t next = g->distance[g->user[k]];
            if (next != CB_NONE && next + 1 < g->distance[op]) g->distance[op] = next + 1;
        }
    }
}

/* ---- bans ------------------------------------------------------------------------------------ */

static void ban(torch_graph *g, uint32_t op) {
    if (!(g->class_of[op] & CB_ATEN_VIEW) && !wants_recompute(g->f->wish[op])) g->banned[op] = true;
}

/* `needed` [n_op]: true if the backward, directly or through views, reads it without fusing with
 * it. */
static void find_needed(const torch_graph *g, bool *needed) {
    for (uint32_t op = g->f->p->n_op; op-- > 0;) {
        needed[op] = g->output[op];
        for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++) {
            uint32_t user = g->user[k];
            if (!g->forward[user] && !fuses(g, op, user)) needed[op] = true;
            if ((g->class_of[user] & CB_ATEN_VIEW) && needed[user]) needed[op] = true;
        }
    }
}

static bool shrinks(const torch_graph *g, uint32_t op) {
    const cb_problem *p = g->f->p;
    double read = 0;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++)
        read += (double)cb_value_bytes(p, p->in_value[j]);
    return (double)g->bytes[op] * rules.shrink < read;
}

static void ban_by_op(torch_graph *g, const bool *needed) {
    for (uint32_t op = 0; op < g->f->p->n_op; op++) {
        uint32_t class = g->class_of[op];
        if (wants_save(g->f->wish[op])) g->banned[op] = true;
        if (!g->forward[op]) continue;
        if (is_argument(g, op)) ban(g, op);
        if (is_argument(g, op) || (class & CB_ATEN_GETITEM)) continue;
        if (!(class & CB_ATEN_RECOMPUTE) || g->f->once[op] || needed[op] || shrinks(g, op))
            ban(g, op);
    }
}

/* Follows fused chains from the forward readers of `from` in program order. Returns the place of
 * the first op that does not fuse, or `most` if all ops before it fuse. `fused` and `other` [n_op]
 * note the `from` for which an op was reached in each way. */
static uint32_t first_unfused(const torch_graph *g, uint32_t from, uint32_t most, uint32_t *fused,
                              uint32_t *other) {
    uint32_t start = most;
    for (uint32_t k = g->user_begin[from]; k < g->user_begin[from + 1]; k++) {
        if (!g->forward[g->user[k]]) continue;
        fused[g->user[k]] = from;
        if (g->order[g->user[k]] < start) start = g->order[g->user[k]];
    }
    for (uint32_t place = start; place <= most; place++) {
        uint32_t op = g->forward_op[place];
        if (other[op] == from) return place;
        if (fused[op] != from) continue;
        for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++) {
            uint32_t user = g->user[k];
            if (!g->forward[user] || g->order[user] > most) continue;
            if (fuses(g, op, user)) fused[user] = from;
            else other[user] = from;
        }
    }
    return most;
}

/* Bans readers beyond an op that breaks the fusion: they would be recomputed separately from the
 * other readers. */
static bool ban_far_readers(torch_graph *g) {
    uint32_t n = g->f->p->n_op, *fused = CB_NEW(g->scratch, uint32_t, n),
             *other = CB_NEW(g->scratch, uint32_t, n);
    if (!fused || !other) return false;
    for (uint32_t op = 0; op < n; op++) fused[op] = other[op] = CB_NONE;
    for (uint32_t i = 0; i < g->n_forward; i++) {
        uint32_t op = g->forward_op[i], most = 0;
        for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++) {
            uint32_t user = g->user[k];
            if (g->forward[user] && g->order[user] > most) most = g->order[user];
        }
        if (most == 0) continue;
        uint32_t first = first_unfused(g, op, most, fused, other);
        for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++) {
            uint32_t user = g->user[k];
            if (g->forward[user] && g->order[user] > first && fuses(g, op, user)) ban(g, user);
        }
    }
    return true;
}

typedef struct heap { /* a heap of positions, which may occur several times */
    uint32_t *at, len;
} heap;

static void heap_push(heap *h, uint32_t place) {
    uint32_t i = h->len++;
    for (; i > 0 && h->at[(i - 1) / 2] > place; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = place;
}

static uint32_t heap_pop(heap *h) {
    uint32_t top = h->at[0], last = h->at[--h->len], i = 0;
    for (uint32_t child; (child = 2 * i + 1) < h->len; i = child) {
        if (child + 1 < h->len && h->at[child + 1] < h->at[child]) child++;
        if (h->at[child] >= last) break;
        h->at[i] = h->at[child];
    }
    h->at[i] = last;
    return top;
}

/* Cuts long fused chains where they narrow to a single op. */
static bool ban_long_chains(torch_graph *g) {
    heap h = {.at = CB_NEW(g->scratch, uint32_t, (size_t)g->f->p->in_begin[g->f->p->n_op] + 1)};
    bool *visited = CB_NEW(g->scratch, bool, g->n_forward);
    if (!h.at || !visited) return false;
    for (uint32_t start = 0; start < g->n_forward; start++) {
        h.len = 0;
        heap_push(&h, start);
        while (h.len > 0) {
            uint32_t place = heap_pop(&h), op = g->forward_op[place];
            if (visited[place]) continue;
            visited[place] = true;
            if (place > start + rules.chain && h.len == 0) {
                ban(g, op);
                break;
            }
            for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++) {
                uint32_t user = g->user[k];
                if (g->forward[user] && fuses(g, op, user) && !g->banned[user])
                    heap_push(&h, g->order[user]);
            }
        }
    }
    return true;
}

static bool find_bans(torch_graph *g) {
    bool *needed = CB_NEW(g->scratch, bool, g->f->p->n_op);
    if (!needed) return false;
    find_needed(g, needed);
    ban_by_op(g, needed);
    return ban_far_readers(g) && ban_long_chains(g);
}

/* ---- network --------------------------------------------------------------------------------- */

/* True for an op with several tensors that are all picked from it: PyTorch saves the picked
 * ones. */
static bool is_tuple(const torch_graph *g, uint32_t op) {
    const cb_problem *p = g->f->p;
    if (p->out_begin[op + 1] - p->out_begin[op] < 2) return false;
    for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++)
        if (!(g->class_of[g->user[k]] & CB_ATEN_GETITEM)) return false;
    return g->user_begin[op] < g->user_begin[op + 1] && !g->output[op];
}

static double weigh(const torch_graph *g, uint32_t op) {
    bool argument = is_argument(g, op), written = argument || g->output[op];
    if (argument && (g->f->p->op_flags[op] & CB_POP_PARAMETER)) return 0;
    for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1] && !written; k++)
        written = !fuses(g, op, g->user[k]);
    uint32_t distance = g->distance[op] < rules.farthest ? g->distance[op] : rules.farthest;
    double weight = floor((double)g->bytes[op] * pow(rules.growth, distance > 1 ? distance : 1));
    return written ? weight : rules.unwritten * weight;
}

/* Sets the scale. Weights are bytes times up to 2 x 1.1^100, and bytes may be as large as 2^60. */
static void set_scale(torch_graph *g) {
    double sum = 0;
    for (uint32_t op = 0; op < g->f->p->n_op; op++)
        if (g->part[op]) sum += weigh(g, op);
    g->scale = sum > 0x1p61 ? 0x1p61 / sum : 1;
}

static int64_t capacity_of(const torch_graph *g, uint32_t op) {
    bool parameter = is_argument(g, op) && (g->f->p->op_flags[op] & CB_POP_PARAMETER);
    return is_tuple(g, op) && !parameter ? CB_FLOW_INF : (int64_t)(g->scale * weigh(g, op));
}

typedef struct network {
    cb_arena *arena;
    CB_VEC(uint32_t) from;
    CB_VEC(uint32_t) to;
    CB_VEC(int64_t) capacity;
} network;

static uint32_t in_of(uint32_t op) { return 2 + 2 * op; }
static uint32_t out_of(uint32_t op) { return 3 + 2 * op; }

static bool add_arc(network *n, uint32_t from, uint32_t to, int64_t capacity) {
    return CB_PUSH(n->arena, n->from, from) && CB_PUSH(n->arena, n->to, to) &&
           CB_PUSH(n->arena, n->capacity, capacity);
}

static bool add_op(const torch_graph *g, network *n, uint32_t op) {
    if (!g->part[op]) return true;
    if (is_tangent(g, op)) return add_arc(n, in_of(op), CB_TORCH_SINK, CB_FLOW_INF);
    if (g->gradient[op] && !add_arc(n, out_of(op), CB_TORCH_SINK, CB_FLOW_INF)) return false;
    if (wants_recompute(g->f->wish[op])) return add_arc(n, in_of(op), CB_TORCH_SINK, CB_FLOW_INF);
    if (g->banned[op] && !add_arc(n, CB_TORCH_SOURCE, in_of(op), CB_FLOW_INF)) return false;
    if (!add_arc(n, in_of(op), out_of(op), capacity_of(g, op))) return false;
    for (uint32_t k = g->user_begin[op]; k < g->user_begin[op + 1]; k++)
        if (!add_arc(n, out_of(op), in_of(g->user[k]), CB_FLOW_INF)) return false;
    return true;
}

static cb_status read_cut(const torch_graph *g, cb_arena *arena, cb_torch_cut *out, cb_error *err) {
    uint32_t n = g->f->p->n_op;
    const bool *side = out->flow.sink_side;
    CB_TRY_NEW(out->saved, arena, n, err);
    CB_TRY_NEW(out->again, arena, n, err);
    for (uint32_t op = 0; op < n; op++) {
        if (!g->part[op] || is_tangent(g, op)) continue;
        if (side[in_of(op)]) out->again[op] = !is_argument(g, op);
        else if (side[out_of(op)]) out->saved[out->n_saved++] = op;
    }
    return CB_OK;
}

static cb_status solve(torch_graph *g, cb_arena *arena, cb_torch_cut *out, cb_error *err) {
    const cb_problem *p = g->f->p;
    network n = {.arena = arena};
    if (!allocate(g)) return cb_no_memory(err);
    find_parts(g);
    if (!find_users(g)) return cb_no_memory(err);
    find_distances(g);
    if (!find_bans(g)) return cb_no_memory(err);
    set_scale(g);
    for (uint32_t op = 0; op < p->n_op; op++)
        if (!add_op(g, &n, op)) return cb_no_memory(err);
    out->capacity = n.capacity.at;
    CB_TRY(cb_flow_build(&out->flow, arena, 2 + 2 * p->n_op, (uint32_t)n.from.len, n.from.at,
                         n.to.at, err));
    cb_status status =
        cb_flow_solve(&out->flow, CB_TORCH_SOURCE, CB_TORCH_SINK, n.capacity.at, err);
    if (status == CB_INFEASIBLE) {
        cb_refusal refusal = {.reason = CB_REFUSED_CONSTRAINTS, .budget_bytes = UINT64_MAX};
        cb_refusal_set_op(&refusal, p, (out->flow.path[1] - 2) / 2);
        return cb_refuse(err, &refusal);
    }
    return status == CB_OK ? read_cut(g, arena, out, err) : status;
}

cb_status cb_torch_cut_solve(const cb_facts *f, cb_arena *arena, cb_torch_cut *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    torch_graph g = {.f = f, .scratch = &scratch};
    *out = (cb_torch_cut){0};
    cb_status status = solve(&g, arena, out, err);
    cb_arena_free(&scratch);
    return status;
}
