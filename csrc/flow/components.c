/* Tarjan's algorithm (1972) with its two stacks in arrays. A component is complete when the search
 * leaves the first node it saw of it; all it leads to is complete by then and has smaller numbers.
 */
#include "components.h"

bool cb_components_init(cb_components *c, cb_arena *arena, size_t n_node) {
    c->order = CB_NEW(arena, uint32_t, n_node);
    c->low = CB_NEW(arena, uint32_t, n_node);
    c->cursor = CB_NEW(arena, uint32_t, n_node);
    c->open = CB_NEW(arena, uint32_t, n_node);
    c->walk = CB_NEW(arena, uint32_t, n_node);
    return c->order && c->low && c->cursor && c->open && c->walk;
}

uint32_t cb_components_find(cb_components *c, uint32_t n_node, const uint32_t *first,
                            const cb_half_arc *arc, const bool *is_arc, uint32_t *component) {
    uint32_t n_seen = 0, n_open = 0, n_component = 0;
    if (n_node) memset(c->order, 0, n_node * sizeof *c->order);
    for (uint32_t v = 0; v < n_node; v++) component[v] = CB_NONE;
    for (uint32_t root = 0; root < n_node; root++) {
        uint32_t depth = 0;
        if (c->order[root]) continue;
        for (uint32_t v = root;;) {
            if (c->order[v] == 0) {
                c->order[v] = c->low[v] = ++n_seen;
                c->cursor[v] = first[v];
                c->open[n_open++] = v;
            }
            uint32_t next = CB_NONE;
            while (next == CB_NONE && c->cursor[v] < first[v + 1]) {
                uint32_t e = c->cursor[v]++, u = arc[e].to;
                if (!is_arc[e] || component[u] != CB_NONE) continue;
                if (c->order[u] == 0) next = u;
                else if (c->order[u] < c->low[v]) c->low[v] = c->order[u];
            }
            if (next != CB_NONE) {
                c->walk[depth++] = v;
                v = next;
                continue;
            }
            if (c->low[v] == c->order[v]) {
                uint32_t u;
                do component[u = c->open[--n_open]] = n_component;
                while (u != v);
                n_component++;
            }
            if (depth == 0) break;
            uint32_t parent = c->walk[--depth];
            if (c->low[v] < c->low[parent]) c->low[parent] = c->low[v];
            v = parent;
        }
    }
    return n_component;
}

/* Marks what supply still reaches: on the source side of every minimum cut. */
static void mark_source_side(const cb_flow *f, uint32_t *queue, bool *reached) {
    uint32_t tail = 0;
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->excess[v] <= 0) continue;
        reached[v] = true;
        queue[tail++] = v;
    }
    for (uint32_t head = 0; head < tail; head++) {
        uint32_t v = queue[head];
        for (uint32_t e = f->first[v]; e < f->first[v + 1]; e++) {
            uint32_t u = f->arc[e].to;
            if (f->residual[e] == 0 || reached[u]) continue;
            reached[u] = true;
            queue[tail++] = u;
        }
    }
}

/* Components are numbered so that arcs fall; the chain wants the nodes that lead to others first.
 */
static void number_steps(cb_chain *chain, const cb_flow *f, uint32_t n_component, uint32_t *step) {
    for (uint32_t k = 0; k < n_component; k++) step[k] = 0;
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (chain->joins[v] != CB_NONE) step[chain->joins[v]] = 1;
    }
    for (uint32_t k = n_component; k-- > 0;) {
        if (step[k]) step[k] = ++chain->n_step;
    }
    for (uint32_t v = 0; v < f->n_node; v++) {
        if (f->sink_side[v]) chain->joins[v] = 0;
        else if (chain->joins[v] != CB_NONE) chain->joins[v] = step[chain->joins[v]];
    }
}

cb_status cb_chain_of(cb_chain *chain, const cb_flow *solved, cb_arena *arena, cb_error *err) {
    const cb_flow *f = solved;
    uint32_t n = f->n_node;
    size_t n_half = 2 * (size_t)f->n_arc;
    cb_components c;
    cb_arena scratch;
    cb_status status = CB_OK;
    cb_arena_init(&scratch, arena->alloc);
    *chain = (cb_chain){.joins = CB_NEW(arena, uint32_t, n)};
    bool *is_arc = CB_NEW(&scratch, bool, n_half), *reached = CB_NEW(&scratch, bool, n);
    uint32_t *component = CB_NEW(&scratch, uint32_t, n);
    if (!chain->joins || !is_arc || !reached || !component ||
        !cb_components_init(&c, &scratch, n)) {
        status = cb_no_memory(err);
        goto done;
    }
    mark_source_side(f, c.open, reached);
    for (size_t e = 0; e < n_half; e++) is_arc[e] = f->residual[e] > 0;
    uint32_t n_component = cb_components_find(&c, n, f->first, f->arc, is_arc, component);
    for (uint32_t v = 0; v < n; v++) {
        bool is_open = !f->fixed[v] && !reached[v] && !f->sink_side[v];
        chain->joins[v] = is_open ? component[v] : CB_NONE;
    }
    number_steps(chain, f, n_component, component);
done:
    cb_arena_free(&scratch);
    return status;
}
