/* push_relabel_impl.h: the source of push_relabel.c and push_relabel128.c.
 *
 * Goldberg and Tarjan (1988), highest label first (Cheriyan and Maheshwari 1989: O(n^2 sqrt m)),
 * with two heuristics (Cherkassky and Goldberg 1997). Global relabeling sets labels to true
 * distances once every n relabels. The gap heuristic removes all nodes above a label that has no
 * nodes left, because they cannot reach a demand. Excess that cannot be delivered is not sent back,
 * since the cut does not need it.
 *
 * A node with excess and a label is active. Each label has two lists: a stack of its active nodes,
 * and a doubly linked list of all its nodes, which the gap heuristic walks. */
#include "maxflow_bits.h"

typedef struct pusher {
    CB_NETWORK *f;
    uint32_t *active, *below;       /* [n] top of each label's stack; by node: the next one down */
    uint32_t *member, *next, *prev; /* [n] first node of each label; by node: its neighbours */
    uint32_t highest;               /* no active node has a larger label */
    uint32_t n_relabel;             /* relabels since labels were last set to distances */
    bool overflows;                 /* the next push would overflow */
} pusher;

static void activate(pusher *p, uint32_t v) {
    uint32_t label = p->f->level[v];
    p->below[v] = p->active[label];
    p->active[label] = v;
    if (label > p->highest) p->highest = label;
}

static void link_node(pusher *p, uint32_t v) {
    uint32_t old = p->member[p->f->level[v]];
    p->next[v] = old;
    p->prev[v] = CB_NONE;
    if (old != CB_NONE) p->prev[old] = v;
    p->member[p->f->level[v]] = v;
}

static void unlink_node(pusher *p, uint32_t v) {
    uint32_t next = p->next[v], prev = p->prev[v];
    if (next != CB_NONE) p->prev[next] = prev;
    if (prev != CB_NONE) p->next[prev] = next;
    else p->member[p->f->level[v]] = next;
}

/* Sets labels to distances to the nearest demand. No label falls, so nodes without a label stay
 * without one. */
static void measure(pusher *p) {
    CB_NETWORK *f = p->f;
    uint32_t head = 0, tail = 0, *queue = p->below; /* free until nodes are activated */
    size_t bytes = f->n_node * sizeof(uint32_t);
    memset(f->level, 0xFF, bytes);
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->excess[v] >= 0) continue;
        f->level[v] = 0;
        queue[tail++] = v;
    }
    while (head < tail) {
        uint32_t v = queue[head++];
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to;
            if (f->level[u] != CB_NONE || f->residual[f->arc[e].pair] == 0) continue;
            f->level[u] = f->level[v] + 1;
            queue[tail++] = u;
        }
    }
    memset(p->active, 0xFF, bytes);
    memset(p->member, 0xFF, bytes);
    memcpy(f->current, f->first, bytes);
    p->highest = p->n_relabel = 0;
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->level[v] == CB_NONE) continue;
        link_node(p, v);
        if (f->excess[v] > 0) activate(p, v);
    }
}

/* Pushes excess from v along half-arc e. The other half of an infinite arc records its flow. A unit
 * may circulate on a cycle of such arcs, so this sum could overflow. */
static void push_along(pusher *p, uint32_t v, uint32_t e) {
    CB_NETWORK *f = p->f;
    uint32_t u = f->arc[e].to, back = f->arc[e].pair;
    CB_CAPACITY amount = f->excess[v] < f->residual[e] ? f->excess[v] : f->residual[e];
    CB_CAPACITY before = f->excess[u];
    if (f->residual[e] == CB_CAPACITY_INF && f->residual[back] != CB_CAPACITY_INF &&
        f->residual[back] >= CB_CAPACITY_MOST - amount) {
        p->overflows = true;
        return;
    }
    if (f->residual[e] != CB_CAPACITY_INF) f->residual[e] -= amount;
    if (f->residual[back] != CB_CAPACITY_INF) f->residual[back] += amount;
    f->excess[v] -= amount;
    f->excess[u] += amount;
    if (before < 0) f->value += amount < -before ? amount : -before;
    if (before <= 0 && f->excess[u] > 0) activate(p, u);
}

/* Called when no node is left at `label`: removes the labels of all nodes above it, which cannot
 * reach a demand. Labels in use are consecutive, so the first unused one ends the search. None of
 * them is active, because the highest labels are served first. */
static void give_up_above(pusher *p, uint32_t label) {
    for (uint32_t k = label + 1; k < p->f->n_node && p->member[k] != CB_NONE; k++) {
        for (uint32_t v = p->member[k]; v != CB_NONE; v = p->next[v]) p->f->level[v] = CB_NONE;
        p->member[k] = CB_NONE;
    }
}

static void relabel(pusher *p, uint32_t v) {
    CB_NETWORK *f = p->f;
    uint32_t lowest = CB_NONE, old = f->level[v];
    for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
        if (f->residual[e] == 0 || f->level[f->arc[e].to] >= lowest) continue;
        lowest = f->level[f->arc[e].to];
        f->current[v] = e;
    }
    unlink_node(p, v);
    p->n_relabel++;
    if (p->member[old] == CB_NONE) {
        give_up_above(p, old);
        lowest = CB_NONE;
    }
    f->level[v] = lowest == CB_NONE || lowest + 1 >= f->n_node ? CB_NONE : lowest + 1;
    if (f->level[v] != CB_NONE) link_node(p, v);
}

/* Pushes the excess of v to nodes one label below, until none is left or v is relabeled. */
static void discharge(pusher *p, uint32_t v) {
    CB_NETWORK *f = p->f;
    uint32_t label = f->level[v], *e = &f->current[v];
    for (; label > 0 && *e < f->first[v + 1]; ++*e) {
        if (f->residual[*e] == 0 || f->level[f->arc[*e].to] != label - 1) continue;
        push_along(p, v, *e);
        if (f->excess[v] == 0 || p->overflows) return;
    }
    relabel(p, v);
    if (f->level[v] != CB_NONE) activate(p, v);
}

/* True if the total supply, which no node's excess ever exceeds, is below CB_CAPACITY_MOST. */
static bool fits(const CB_NETWORK *f) {
    CB_CAPACITY left = CB_CAPACITY_MOST;
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->excess[v] <= 0) continue;
        if (f->excess[v] >= left) return false;
        left -= f->excess[v];
    }
    return true;
}

bool CB_FLOW_FN(push)(CB_NETWORK *f) {
    pusher p = {.f = f,
                .active = f->stack,
                .below = f->queue,
                .member = f->list[0],
                .next = f->list[1],
                .prev = f->list[2]};
    if (f->n_node == 0) return true;
    if (!fits(f)) return false;
    measure(&p);
    while (!p.overflows) {
        uint32_t v = p.active[p.highest];
        if (v == CB_NONE) {
            if (p.highest == 0) return true;
            p.highest--;
            continue;
        }
        p.active[p.highest] = p.below[v];
        discharge(&p, v);
        if (p.n_relabel > f->n_node) measure(&p);
    }
    return false;
}
