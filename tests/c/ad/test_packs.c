/* Packed values: which values the backward reads from bits, and how often it makes a copy. */
#include "ad/rewrites/packs.h"

#include "ad/joint.h"
#include "ir/ir.h"
#include "oom.h"

#define HEAD                                             \
    "cutback.graph 1\n"                                  \
    "%0 = input {role=param, name=\"w\"} : f32[64,64]\n" \
    "%1 = input {role=data, name=\"x\"} : f32[64,64]\n"  \
    "%2 = mul(%1, %0) : f32[64,64]\n"
#define LOSS(value)                                          \
    "%9 = sum(" value ") {axes=[0,1], keepdims=0} : f32[]\n" \
    "output \"loss\" %9 result\n"

/* One mask of 4,096 bytes, which two ops of the backward read, one of them transposed. */
static const char *masked = HEAD "%3 = gt(%2, %1) : bool[64,64]\n"
                                 "%4 = square(%2) : f32[64,64]\n"
                                 "%5 = where(%3, %4, %1) : f32[64,64]\n"
                                 "%6 = transpose(%3) {axes=[1,0]} : bool[64,64]\n"
                                 "%7 = sin(%5) : f32[64,64]\n"
                                 "%8 = where(%6, %7, %2) : f32[64,64]\n" LOSS("%8");
/* Only the gradient of the ReLU reads its result. */
static const char *sign = HEAD "%3 = relu(%2) : f32[64,64]\n"
                               "%4 = neg(%3) : f32[64,64]\n"
                               "%5 = neg(%4) : f32[64,64]\n"
                               "%6 = neg(%5) : f32[64,64]\n"
                               "%7 = neg(%6) : f32[64,64]\n"
                               "%8 = neg(%7) : f32[64,64]\n" LOSS("%8");
/* So does the gradient of the square. */
static const char *read = HEAD "%3 = relu(%2) : f32[64,64]\n"
                               "%4 = square(%3) : f32[64,64]\n"
                               "%5 = neg(%4) : f32[64,64]\n"
                               "%6 = neg(%5) : f32[64,64]\n"
                               "%7 = neg(%6) : f32[64,64]\n"
                               "%8 = neg(%7) : f32[64,64]\n" LOSS("%8");

/* The index of the pooling has 5,400 elements, of windows of four, and that of argmax 1,200. */
#define PLANES          \
    "cutback.graph 1\n" \
    "%0 = input {role=param, name=\"w\"} : f32[6,2,60,30]\n"
static const char *pooled =
    PLANES "%1, %2 = max_pool2d(%0) {kernel_h=2,kernel_w=2,stride_h=2,stride_w=2,"
           "pad_h=0,pad_w=0} : "
           "f32[6,2,30,15], i32[6,2,30,15]\n"
           "%3 = square(%1) : f32[6,2,30,15]\n"
           "%4 = sum(%3) {axes=[0,1,2,3], keepdims=0} : f32[]\n"
           "output \"loss\" %4 result\n";
static const char *largest = PLANES "%1 = reshape(%0) {shape=[1200,18]} : f32[1200,18]\n"
                                    "%2 = argmax(%1) {axis=1,keepdims=1} : i64[1200,1]\n"
                                    "%3 = gather(%1, %2) {axis=1} : f32[1200,1]\n"
                                    "%4 = square(%3) : f32[1200,1]\n"
                                    "%5 = sum(%4) {axes=[0,1], keepdims=0} : f32[]\n"
                                    "output \"loss\" %5 result\n";

static cb_graph *parse(const char *text, const char *more) {
    char all[4096];
    cb_graph *g = NULL;
    snprintf(all, sizeof all, "%s%s", text, more);
    CHECK_OK(cb_graph_parse(&ir_alloc, all, strlen(all), &g, &err));
    return g;
}

static cb_status build(const cb_graph *g, cb_alloc *alloc, bool packed, cb_graph **out) {
    static const uint32_t wrt[] = {0};
    const cb_joint_options options = {.wrt = wrt, .n_wrt = 1, .packed = packed};
    return cb_joint_build(g, &options, alloc, out, &err);
}

static cb_graph *joint_of(const char *text, const char *more, bool packed) {
    cb_graph *g = parse(text, more), *joint = NULL;
    CHECK_OK(build(g, &ir_alloc, packed, &joint));
    cb_graph_free(g);
    return joint;
}

static size_t count(const cb_graph *g, cb_opcode code) {
    size_t n = 0;
    for (size_t i = 0; i < g->ops.len; i++) n += g->ops.at[i].code == code;
    return n;
}

/* Counts ops of the backward that read values of the forward made by ops of this code. */
static size_t readers(const cb_graph *g, cb_opcode code) {
    size_t n = 0;
    for (cb_op_id id = g->backward_starts; id < g->ops.len; id++) {
        for (uint32_t k = 0; k < g->ops.at[id].n_in; k++) {
            const cb_value *v = &g->values.at[cb_op_ins(g, id)[k]];
            n += ir_code(g, g->storages.at[v->storage].root) == code;
        }
    }
    return n;
}

TEST(a_mask_is_unpacked_once) {
    cb_graph *whole = joint_of(masked, "", false), *packed = joint_of(masked, "", true);
    CHECK(readers(whole, CB_OP_GT) > 1 && count(whole, CB_OP_PACK_BITS) == 0);
    CHECK(readers(packed, CB_OP_GT) == 0);
    CHECK(count(packed, CB_OP_PACK_BITS) == 1 && count(packed, CB_OP_UNPACK_BITS) == 1);
    for (cb_op_id id = 0; id < packed->ops.len; id++) {
        const cb_op *op = &packed->ops.at[id];
        if (op->code == CB_OP_PACK_BITS) CHECK(id < packed->backward_starts);
        if (op->code == CB_OP_UNPACK_BITS)
            CHECK(id >= packed->backward_starts && op->phase == CB_FORWARD);
    }
    cb_graph_free(whole);
    cb_graph_free(packed);
}

TEST(a_relu_is_packed_if_only_its_sign_is_read) {
    cb_graph *of_sign = joint_of(sign, "", true), *of_read = joint_of(read, "", true);
    CHECK(count(of_sign, CB_OP_PACK_BITS) == 1 && count(of_sign, CB_OP_RELU_BWD) == 0);
    CHECK(readers(of_sign, CB_OP_RELU) == 0);
    CHECK(count(of_read, CB_OP_PACK_BITS) == 0 && count(of_read, CB_OP_RELU_BWD) == 1);
    cb_graph_free(of_sign);
    cb_graph_free(of_read);
}

TEST(results_stay_whole) {
    cb_graph *joint = joint_of(masked, "output \"mask\" %3 result\n", true);
    CHECK(count(joint, CB_OP_PACK_BITS) == 0);
    cb_graph_free(joint);
    joint = joint_of(sign, "output \"y\" %3 result\n", true);
    CHECK(count(joint, CB_OP_PACK_BITS) == 0);
    cb_graph_free(joint);
}

static void check_index(const char *text, int64_t bytes) {
    cb_graph *joint = joint_of(text, "", true);
    CHECK(count(joint, CB_OP_PACK_INDEX) == 1 && count(joint, CB_OP_UNPACK_INDEX) == 1);
    for (cb_op_id id = 0; id < joint->ops.len; id++) {
        const cb_op *op = &joint->ops.at[id];
        const cb_value *out = &joint->values.at[op->out_begin];
        if (op->code == CB_OP_PACK_INDEX) CHECK(cb_numel(&out->shape) == bytes);
        for (uint32_t k = 0; id >= joint->backward_starts && k < op->n_in; k++) {
            const cb_value *in = &joint->values.at[cb_op_ins(joint, id)[k]];
            const cb_dtype dtype = joint->values.at[joint->storages.at[in->storage].root].dtype;
            if (dtype == CB_I32 || dtype == CB_I64)
                CHECK(ir_code(joint, joint->storages.at[in->storage].root) == CB_OP_UNPACK_INDEX);
        }
    }
    cb_graph_free(joint);
}

TEST(indices_become_bytes) {
    check_index(pooled, 5400);
    check_index(largest, 1200);
}

static cb_status pack(cb_alloc *alloc, void *user) {
    cb_graph *out = NULL;
    const cb_status status = build(user, alloc, true, &out);
    cb_graph_free(out);
    return status;
}

TEST(out_of_memory) {
    const char *const texts[] = {masked, sign, pooled, largest};
    for (int k = 0; k < 4; k++) {
        cb_graph *g = parse(texts[k], "");
        check_oom(pack, g);
        cb_graph_free(g);
    }
}

int main(void) {
    cb_alloc_init(&ir_alloc);
    RUN(a_mask_is_unpacked_once);
    RUN(a_relu_is_packed_if_only_its_sign_is_read);
    RUN(indices_become_bytes);
    RUN(results_stay_whole);
    RUN(out_of_memory);
    return ir_report();
}
