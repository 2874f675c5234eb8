/* Devices as text, and the cost of ops on a device that fuses. */
#include "plan/model/device.h"

#include "check.h"
#include "oom.h"
#include "plan/torch/inductor_fusion.h"
#include "problems.h"

static cb_alloc alloc;

static const char mine[] =
    "{\"name\":\"mine\",\"flops_per_s\":{\"f32\":2000,\"f64\":2000,\"f16\":2000,\"bf16\":4000,"
    "\"int\":2000},\"point_per_s\":{\"f32\":20,\"f64\":5,\"f16\":20,\"bf16\":20,\"int\":20},"
    "\"bytes_per_s\":100,\"launch_s\":1e-06,\"link_bytes_per_s\":10,"
    "\"fused\":true}";

static cb_status parse_and_print(cb_alloc *a, void *user) {
    const cb_device *d;
    cb_arena arena;
    cb_str out;
    cb_arena_init(&arena, a);
    cb_str_init(&out, &arena);
    cb_status status = cb_device_parse(user, &arena, &d, &err);
    if (status == CB_OK) {
        cb_json_writer w = {.out = &out};
        cb_json_begin(&w, NULL, '[');
        cb_device_put(&w, NULL, d);
        cb_json_end(&w, ']');
        if (out.failed) status = cb_no_memory(&err);
    }
    cb_arena_free(&arena);
    return status;
}

static void expect_text(const char *text, const char *expected) {
    const cb_device *d;
    cb_arena arena;
    cb_str out;
    cb_arena_init(&arena, &alloc);
    cb_str_init(&out, &arena);
    CHECK_OK(cb_device_parse(text, &arena, &d, &err));
    cb_json_writer w = {.out = &out};
    cb_json_begin(&w, NULL, '[');
    cb_device_put(&w, NULL, d);
    cb_json_end(&w, ']');
    CHECK(!out.failed && out.len == strlen(expected) && memcmp(out.at, expected, out.len) == 0);
    cb_arena_free(&arena);
}

TEST(rows_are_read_and_written) {
    char list[400];
    expect_text("a100", "[\"a100\"]");
    expect_text("a100+fused", "[\"a100+fused\"]");
    (void)snprintf(list, sizeof list, "[%s]", mine);
    expect_text(mine, list);
    expect_text("{\"name\": \"mine\", \"launch_s\": 1e-6, \"bytes_per_s\": 1e2, \"fused\": true, "
                "\"link_bytes_per_s\": 1e1, \"flops_per_s\": {\"bf16\": 4e3, \"f32\": 2e3}, "
                "\"point_per_s\": {\"f64\": 5, \"f32\": 20}}",
                list);
}

TEST(nonsense_is_refused) {
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"abacus", "no device is called \"abacus\""},
        {"abacus+fused", "no device is called"},
        {"a100+fused+fused", "no device is called"},
        {"+fused", "no device is called"},
        {"", "no device is called"},
        {"{", ""},
        {"{\"name\": \"x\"}", "flops_per_s"},
        {"{\"name\": \"x\", \"flops_per_s\": {\"f32\": 1}, \"bytes_per_s\": 0, \"launch_s\": 0}",
         "bytes_per_s is 0"},
        {"{\"name\": \"x\", \"flops_per_s\": {\"f32\": 1}, \"bytes_per_s\": 1, \"launch_s\": 2}",
         "launch_s is 2"},
        {"{\"name\": \"x\", \"flops_per_s\": {\"f32\": 1}, \"bytes_per_s\": 1, \"launch_s\": 0, "
         "\"point_per_s\": {\"f64\": 1}}",
         "f32"},
        {"{\"name\": \"x\", \"flops_per_s\": {\"f32\": 1}, \"bytes_per_s\": 1, \"launch_s\": 0, "
         "\"point_per_s\": {\"f32\": 0}}",
         "f32 is 0"},
        {"{\"name\": \"cpu\", \"flops_per_s\": {\"f32\": 1}, \"bytes_per_s\": 1, \"launch_s\": 0}",
         "row of the table with other numbers"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cb_arena arena;
        const cb_device *d;
        cb_arena_init(&arena, &alloc);
        CHECK_FAIL(cb_device_parse(bad[i].text, &arena, &d, &err), CB_INVALID, bad[i].part);
        cb_arena_free(&arena);
    }
}

/* Makes x -> a -> view -> b -> product: a and b are one kernel; views do not count. */
static maker chain(void) {
    maker m = {0};
    uint32_t x = make_input(&m, 100), a = make_op(&m, CB_POP_FUSIBLE, 1, &x, 100);
    uint32_t v = make_view(&m, 0, a), b = make_op(&m, CB_POP_FUSIBLE, 1, &v, 100);
    uint32_t c = make_op(&m, CB_POP_COMPUTE, 1, &b, 100);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 1, &c, 8);
    return m;
}
enum { A = 1, VIEW, B, PRODUCT }; /* op ids of `chain` */

/* Ops, members and inlined values that fuse have their own rate; products do not. */
TEST(arithmetic_of_what_fuses) {
    maker m = chain();
    cb_problem *p = make_problem(&m, &alloc);
    cb_device d = {"d", {1e12, 1e12, 1e12, 1e12, 1e12}, 1e12, 1e-9, 0, false, {0}};
    for (uint32_t op = A; op <= PRODUCT; op++) {
        p->op_bytes[op] = op == VIEW ? 0 : 200;
        p->op_flops[op] = op == VIEW ? 0 : 300;
    }
    CHECK(cb_op_time_ps(p, A, &d) == 300 + 1000 && cb_op_time_ps(p, PRODUCT, &d) == 300 + 1000);
    d.point_per_s[CB_WORK_F32] = 1e11;
    CHECK(cb_op_time_ps(p, A, &d) == 3000 + 1000 && cb_op_time_ps(p, PRODUCT, &d) == 300 + 1000);
    p->op_class[A] = CB_WORK_F64; /* no separate rate is given */
    CHECK(cb_op_time_ps(p, A, &d) == 300 + 1000);
    CHECK(cb_arithmetic_s(&d, CB_POP_FUSIBLE, CB_WORK_F32, 1e11) == 1);
    CHECK(cb_arithmetic_s(&d, CB_POP_COMPUTE, CB_WORK_F32, 1e12) == 1);
    cb_problem_free(p);
}

static cb_status fuse(cb_alloc *a, void *user) {
    cb_problem *p = make_problem(user, a);
    if (!p) return cb_no_memory(&err);
    cb_status status = cb_find_fusion(p, &err);
    cb_problem_free(p);
    return status;
}

TEST(chains_are_one_kernel) {
    maker m = chain();
    cb_problem *p = make_problem(&m, &alloc);
    CHECK_OK(cb_problem_verify(p, &err));
    for (uint32_t op = A; op <= PRODUCT; op++) {
        p->op_bytes[op] = op == VIEW ? 0 : 200;
        p->op_flops[op] = 0;
    }
    cb_device slow = {"slow", {1e12, 1e12, 1e12, 1e12, 1e12}, 1e12, 1e-9, 0, true, {0}};
    int64_t alone = cb_op_time_ps(p, A, &slow); /* before groups are searched */
    CHECK(alone == 200 + 1000);
    CHECK_OK(cb_find_fusion(p, &err));
    CHECK(p->fused_group[A] == B && p->fused_group[B] == B && p->fused_group[PRODUCT] == PRODUCT);
    CHECK(cb_op_time_ps(p, A, &slow) == 100 && cb_op_time_ps(p, B, &slow) == 100 + 1000);
    CHECK(cb_op_time_ps(p, PRODUCT, &slow) == 200 + 1000 && cb_op_time_ps(p, VIEW, &slow) == 0);
    slow.fused = false;
    CHECK(cb_op_time_ps(p, A, &slow) == alone);
    cb_problem_free(p);
}

TEST(out_of_memory) {
    maker m = chain();
    check_oom(parse_and_print, (void *)mine);
    check_oom(parse_and_print, (void *)"a100+fused");
    check_oom(fuse, &m);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(rows_are_read_and_written);
    RUN(nonsense_is_refused);
    RUN(chains_are_one_kernel);
    RUN(arithmetic_of_what_fuses);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
