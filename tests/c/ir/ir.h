/* ir.h: helpers shared by tests of graphs. */
#ifndef CB_TESTS_IR_H
#define CB_TESTS_IR_H

#include "check.h"
#include "ir/builder.h"
#include "ir/text.h"
#include "ir/verify.h"

#define DIMS(...)                                                                      \
    ((cb_shape){.rank = (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                .dim = {__VA_ARGS__}})
#define SCALAR ((cb_shape){0})
#define INS(...)                                                                              \
    (uint32_t)(sizeof((cb_value_id[]){__VA_ARGS__}) / sizeof(cb_value_id)), (cb_value_id[]) { \
        __VA_ARGS__                                                                           \
    }

static cb_alloc ir_alloc;

static inline cb_graph *ir_graph(void) {
    cb_graph *g = NULL;
    CHECK_OK(cb_graph_create(&ir_alloc, &g, &err));
    return g;
}

static inline cb_value_id ir_input(cb_graph *g, cb_dtype dtype, cb_shape shape) {
    cb_value_id id = CB_NONE;
    CHECK_OK(cb_graph_append_input(g, "x", CB_ROLE_DATA, dtype, &shape, &id, &err));
    return id;
}

static inline bool ir_shape_is(const cb_graph *g, cb_value_id id, cb_shape shape) {
    return id < g->values.len && cb_shape_equal(&g->values.at[id].shape, &shape);
}

/* Returns the opcode of the op that makes a value. */
static inline cb_opcode ir_code(const cb_graph *g, cb_value_id id) {
    return g->ops.at[g->values.at[id].producer].code;
}

/* Returns the graph's text, in the caller's arena. */
static inline const char *ir_text(const cb_graph *g, cb_arena *arena) {
    cb_str s;
    cb_str_init(&s, arena);
    CHECK_OK(cb_graph_print(g, &s, &err));
    return s.at ? s.at : "";
}

/* Checks that nothing made by the tests is left. */
static inline int ir_report(void) {
    CHECK(cb_alloc_stats(&ir_alloc).live_bytes == 0);
    return check_report();
}

#endif
