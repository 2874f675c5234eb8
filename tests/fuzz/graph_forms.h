/* graph_forms.h: invariants of a graph that a reader has accepted, for every form. */
#ifndef CB_FUZZ_GRAPH_FORMS_H
#define CB_FUZZ_GRAPH_FORMS_H

#include "ad/joint.h"
#include "base/map.h"
#include "exec/tiles.h"
#include "exec/workspace.h"
#include "ir/graph_json.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "target.h"

typedef cb_status (*read_fn)(cb_alloc *, const char *, size_t, cb_graph **, cb_error *);
typedef cb_status (*write_fn)(const cb_graph *, cb_str *, cb_error *);

/* Checks that writing, reading and writing again gives the same bytes. */
static inline void expect_round_trip(const cb_graph *g, cb_alloc *alloc, write_fn write,
                                     read_fn read) {
    cb_arena arena;
    cb_str first, second;
    cb_graph *again = NULL;
    cb_arena_init(&arena, alloc);
    cb_str_init(&first, &arena);
    cb_str_init(&second, &arena);
    EXPECT_OK(write(g, &first, &err));
    EXPECT_OK(read(alloc, first.at, first.len, &again, &err));
    EXPECT_OK(write(again, &second, &err));
    EXPECT(same_text(&first, &second));
    cb_graph_free(again);
    cb_arena_free(&arena);
}

/* Checks that the joint graph verifies and can be written if autodiff accepts the graph. */
static inline void try_joint(const cb_graph *g, cb_alloc *alloc) {
    uint32_t wrt[2] = {0, (uint32_t)g->inputs.len - 1};
    const cb_joint_options options = {.wrt = wrt,
                                      .n_wrt = (uint32_t)(g->inputs.len < 2 ? g->inputs.len : 2),
                                      .tangent_inputs = g->ops.len % 2};
    cb_graph *joint = NULL;
    cb_status status = cb_joint_build(g, &options, alloc, &joint, &err);
    if (status != CB_OK) {
        expect_refusal(status);
        return;
    }
    EXPECT_OK(cb_graph_verify(joint, CB_SPEC_JOINT, &err));
    expect_round_trip(joint, alloc, cb_graph_print, cb_graph_parse);
    cb_graph_free(joint);
}

static inline void expect_graph(const cb_graph *g, cb_alloc *alloc) {
    cb_graph *less = NULL, *copy = NULL;
    for (size_t op = 0; op < g->ops.len; op++)
        EXPECT(cb_op_workspace(g, (cb_op_id)op) <=
               CB_WORKSPACE_MAX + cb_op_index_copy(g, (cb_op_id)op));
    EXPECT_OK(cb_graph_prune(g, alloc, &less, &err));
    EXPECT(less->ops.len <= g->ops.len);
    EXPECT_OK(cb_graph_copy(g, alloc, &copy, &err));
    EXPECT(copy->ops.len == g->ops.len);
    cb_graph_free(less);
    cb_graph_free(copy);
    expect_round_trip(g, alloc, cb_graph_print, cb_graph_parse);
    expect_round_trip(g, alloc, cb_graph_to_json, cb_graph_from_json);
    (void)!cb_graph_verify(g, CB_SPEC_JOINT, &err);
    (void)!cb_graph_verify(g, CB_SPEC_SPLIT, &err);
    if (cb_graph_verify(g, CB_SPEC_FORWARD, &err) == CB_OK) try_joint(g, alloc);
    else EXPECT(err.text[0]);
}

static inline int try_graph(read_fn read, const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    cb_alloc alloc;
    cb_graph *g = NULL;
    cb_alloc_init(&alloc);
    cb_status status = read(&alloc, text, size, &g, &err);
    EXPECT((status == CB_OK) == (g != NULL));
    if (g) expect_graph(g, &alloc);
    else expect_refusal(status);
    cb_graph_free(g);
    EXPECT(cb_alloc_stats(&alloc).live_bytes == 0);
    g = NULL;
    cb_alloc_fail(&alloc, 1 + cb_hash_bytes(text, size, 0) % 64);
    cb_status starved = read(&alloc, text, size, &g, &err);
    EXPECT(starved == status || starved == CB_NOMEM);
    cb_graph_free(g);
    EXPECT(cb_alloc_stats(&alloc).live_bytes == 0);
    return 0;
}

#endif
