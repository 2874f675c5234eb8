#include "lower/annotate.h"

#include "ir/verify.h"
#include "model.h"

static cb_alloc alloc;

/* Returns the first op of a kind, or CB_NONE. */
static uint32_t find(const cb_problem *p, const char *kind, uint32_t flags) {
    for (uint32_t i = 0; i < p->n_op; i++) {
        if (strcmp(p->op_kind[i], kind) == 0 && (p->op_flags[i] & CB_POP_BACKWARD) == flags) {
            return i;
        }
    }
    return CB_NONE;
}

TEST(ids_flags_and_texts) {
    model m = {0};
    cb_problem *p = NULL;
    const cb_annotate_options options = {.static_bytes = 77, MODEL_BACKEND};
    CHECK_OK(model_joint(&alloc, true, &m, &err));
    CHECK_OK(cb_annotate(m.joint, &options, &alloc, &p, &err));
    CHECK_OK(cb_problem_verify(p, &err));
    CHECK(p->n_op == m.joint->ops.len && p->n_value == m.joint->values.len &&
          p->n_storage == m.joint->storages.len);
    CHECK(p->backward_starts == m.joint->backward_starts && p->static_bytes == 77 &&
          p->align == 64);
    uint32_t matmul = find(p, "matmul", 0), gelu = find(p, "gelu", 0), sum = find(p, "sum", 0),
             view = find(p, "reshape", 0);
    uint32_t dropout = find(p, "dropout", 0), input = find(p, "input", 0);
    CHECK(p->op_flags[matmul] == CB_POP_COMPUTE);
    CHECK(p->op_flags[gelu] == CB_POP_FUSIBLE);
    CHECK(p->op_flags[sum] == (CB_POP_FUSIBLE | CB_POP_REDUCTION));
    CHECK(p->op_flags[dropout] == (CB_POP_FUSIBLE | CB_POP_RANDOM_COUNTER));
    CHECK(p->op_flags[view] == CB_POP_VIEW);
    CHECK(p->op_flags[input] == CB_POP_PLACEHOLDER);
    CHECK(find(p, "matmul", CB_POP_BACKWARD) != CB_NONE);
    CHECK(p->op_flops[matmul] == 2.0 * 8 * 8 * 16);
    CHECK(p->op_class[matmul] == CB_WORK_F32);
    CHECK(strcmp(p->op_name[input], "x_0") == 0 && strcmp(p->op_location[gelu], "") == 0);
    CHECK(strcmp(p->op_location[matmul], "model.py:7") == 0);
    CHECK(strcmp(p->value_type[p->out_begin[input]], "f32[2,4,8]") == 0);
    cb_problem_free(p);
    model_free(&m);
}

static int count(const cb_problem *p, uint8_t flags) {
    int n = 0;
    for (uint32_t s = 0; s < p->n_storage; s++) n += p->storage_flags[s] == flags;
    return n;
}

TEST(who_owns_an_output) {
    for (int keep = 0; keep < 2; keep++) {
        model m = {0};
        cb_problem *p = NULL;
        const cb_annotate_options options = {.keep_gradients = keep, MODEL_BACKEND};
        CHECK_OK(model_joint(&alloc, true, &m, &err));
        CHECK_OK(cb_annotate(m.joint, &options, &alloc, &p, &err));
        /* 5 inputs and the loss belong to the caller; the state, and gradients if kept, are held */
        CHECK(count(p, CB_STORE_STATIC) == (keep ? 6 : 9));
        CHECK(count(p, CB_STORE_HOLD_END) == (keep ? 4 : 1));
        CHECK(p->n_forward_output == 2 && p->n_backward_output == 3);
        cb_problem_free(p);
        model_free(&m);
    }
}

/* True if the constraint applies to a value and its views (two or more), and to nothing else. */
static bool on_one_storage(const cb_problem *p, cb_constraint c) {
    uint32_t n = 0, storage = CB_NONE;
    for (uint32_t v = 0; v < p->n_value; v++) {
        if (p->value_constraint[v] != c) continue;
        if (n++ > 0 && p->value_storage[v] != storage) return false;
        storage = p->value_storage[v];
    }
    return n >= 2;
}

static bool all_free(const cb_problem *p) {
    for (uint32_t v = 0; v < p->n_value; v++) {
        if (p->value_constraint[v] != CB_FREE) return false;
    }
    return true;
}

static cb_status annotate_with(model *m, cb_value_id first, cb_constraint a, cb_value_id second,
                               cb_constraint b, cb_problem **p) {
    static const uint32_t wrt[] = {1, 2, 3};
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 3};
    const cb_annotate_options annotate = {MODEL_BACKEND};
    CHECK_OK(cb_graph_create(&alloc, &m->forward, &err));
    CHECK_OK(model_ops(m->forward, false, m, &err));
    m->forward->ops.at[m->forward->values.at[first].producer].constraint = (uint8_t)a;
    m->forward->ops.at[m->forward->values.at[second].producer].constraint = (uint8_t)b;
    CHECK_OK(cb_joint_build(m->forward, &options, &alloc, &m->joint, &err));
    return cb_annotate(m->joint, &annotate, &alloc, p, &err);
}

TEST(constraints_are_those_of_the_storage) {
    model m = {0}, ids = {0};
    cb_problem *p = NULL;
    cb_graph *g;
    CHECK_OK(cb_graph_create(&alloc, &g, &err));
    CHECK_OK(model_ops(g, false, &ids, &err)); /* value ids, which are the same in every build */
    cb_graph_free(g);

    /* saving a view saves its storage, so both values get the constraint */
    CHECK_OK(annotate_with(&m, ids.flat, CB_MUST_SAVE, ids.flat, CB_MUST_SAVE, &p));
    CHECK(on_one_storage(p, CB_MUST_SAVE));
    cb_problem_free(p);
    model_free(&m);
    /* a view inherits */
    CHECK_OK(annotate_with(&m, ids.a, CB_PREFER_RECOMPUTE, ids.h, CB_FREE, &p));
    CHECK(on_one_storage(p, CB_PREFER_RECOMPUTE));
    cb_problem_free(p);
    model_free(&m);
    /* recomputing a view has no effect */
    CHECK_OK(annotate_with(&m, ids.flat, CB_MUST_RECOMPUTE, ids.flat, CB_MUST_RECOMPUTE, &p));
    CHECK(all_free(p));
    cb_problem_free(p);
    model_free(&m);
    /* a MUST on the view overrides a PREFER on the root; two MUSTs contradict each other */
    CHECK_OK(annotate_with(&m, ids.a, CB_PREFER_RECOMPUTE, ids.flat, CB_MUST_SAVE, &p));
    CHECK(on_one_storage(p, CB_MUST_SAVE));
    cb_problem_free(p);
    model_free(&m);
    CHECK_FAIL(annotate_with(&m, ids.a, CB_MUST_RECOMPUTE, ids.flat, CB_MUST_SAVE, &p), CB_INVALID,
               "contradicting");
    model_free(&m);
}

TEST(out_of_memory) {
    model m = {0};
    const cb_annotate_options options = {MODEL_BACKEND};
    CHECK_OK(model_joint(&alloc, true, &m, &err));
    uint64_t before = cb_alloc_stats(&alloc).live_bytes;
    cb_status status = CB_NOMEM;
    for (uint64_t n = 1; status == CB_NOMEM; n++) {
        cb_problem *p = NULL;
        cb_alloc_fail(&alloc, n);
        status = cb_annotate(m.joint, &options, &alloc, &p, &err);
        cb_alloc_fail(&alloc, 0);
        CHECK(status == CB_NOMEM || status == CB_OK);
        cb_problem_free(p);
        CHECK(cb_alloc_stats(&alloc).live_bytes == before);
    }
    model_free(&m);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(ids_flags_and_texts);
    RUN(who_owns_an_output);
    RUN(constraints_are_those_of_the_storage);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
