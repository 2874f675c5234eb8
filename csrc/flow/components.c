/* Tarjan's algorithm (1972) with its two stacks in arrays. A component is complete when the search
 * leaves the first of its nodes that it reached. The components that it leads to are complete by
 * then and have smaller numbers. */
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
