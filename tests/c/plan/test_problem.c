/* Problems: what the checks refuse, JSON round trips, fingerprints. */
#include "plan/model/names.h"
#include "plan/model/problem.h"

#include "check.h"
#include "oom.h"
#include "problems.h"

static cb_alloc alloc;

static cb_problem *random_problem(uint64_t seed) {
    static maker m;
    make_random(&m, seed, 30);
    m.n_region = 2;
    m.limit[0] = 1000;
    m.limit[1] = UINT64_MAX;
    for (uint32_t op = 5; op < 15; op++) m.region[op] = 1 + op % 2;
    for (uint32_t v = 0; v < m.n_value; v += 9) m.constraint[v] = CB_PREFER_SAVE;
    cb_problem *p = make_problem(&m, &alloc);
    p->op_time_ps[3] = 12345;
    p->op_group[4] = 2;
    p->op_class[4] = CB_WORK_BF16;
    p->static_bytes = 77;
    p->link_bytes_per_s = 2.5e10;
    return p;
}

static cb_str to_json(const cb_problem *p, cb_arena *arena) {
    cb_str text;
    cb_str_init(&text, arena);
    CHECK_OK(cb_problem_to_json(p, &text, &err));
    return text;
}

TEST(json_there_and_back) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        cb_problem *p = random_problem(seed), *back = NULL;
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        CHECK_OK(cb_problem_verify(p, &err));
        cb_str text = to_json(p, &arena);
        CHECK_OK(cb_problem_from_json(&alloc, text.at, text.len, &back, &err));
        if (!back) return;
        cb_str again = to_json(back, &arena);
        CHECK(text.len == again.len && memcmp(text.at, again.at, text.len) == 0);
        CHECK(cb_problem_fingerprint(p) == cb_problem_fingerprint(back));
        CHECK(back->op_time_ps[3] == 12345 && back->op_class[4] == CB_WORK_BF16 &&
              back->region_limit[1] == UINT64_MAX);
        cb_problem_free(back);
        cb_problem_free(p);
        cb_arena_free(&arena);
    }
}

/* With any characters between two objects, and in strings. */
TEST(long_texts_are_read_op_by_op) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        cb_problem *p = random_problem(seed), *back = NULL;
        cb_arena arena;
        cb_arena_init(&arena, &alloc);
        if (seed % 2) p->op_name[1] = "\"]}, {\\\"in\": [\\";
        cb_str text = to_json(p, &arena), spread;
        cb_str_init(&spread, &arena);
        bool quoted = seed % 2; /* inside a string, or there is nothing to insert */
        for (size_t i = 0; i < text.len; i++) {
            cb_str_add(&spread, &text.at[i], 1);
            if (seed % 2 == 0 && text.at[i] == '"') quoted = !quoted;
            if (!quoted && strchr("[]{},:", text.at[i])) cb_str_add(&spread, "\n ", 2);
        }
        CHECK_OK(cb_problem_from_long_text(&alloc, spread.at, spread.len, &back, &err));
        if (!back) return;
        CHECK(cb_problem_fingerprint(p) == cb_problem_fingerprint(back));
        CHECK(strcmp(p->op_name[1], back->op_name[1]) == 0);
        cb_problem_free(back);
        cb_arena_free(&arena);
        cb_problem_free(p);
    }
}

TEST(counts_by_other_spellings_are_not_trusted) {
    static const char text[] =
        "{\"format\":\"cutback.problem\",\"version\":1,\"storages\":[{\"bytes\":8}],\"ops\":[{"
        "\"in\":[],\"out\":[{\"storage\":0}]},{\"\\u0069n\":[0,0,0],\"out\":[]}],\"forward_"
        "outputs\":[],\"backward_outputs\":[]}";
    cb_problem *p;
    CHECK_FAIL(cb_problem_from_long_text(&alloc, text, sizeof text - 1, &p, &err), CB_INVALID,
               "spelled with escapes");
    CHECK_OK(cb_problem_from_json(&alloc, text, sizeof text - 1, &p, &err));
    cb_problem_free(p);
}

TEST(fingerprint_sees_structure_only) {
    cb_problem *p = random_problem(1);
    uint64_t before = cb_problem_fingerprint(p);
    p->op_flops[3] = 1e9;
    p->op_time_ps[5] = 3;
    p->op_location[2] = "elsewhere.py:1";
    p->value_constraint[4] = CB_MUST_SAVE;
    CHECK(cb_problem_fingerprint(p) == before);
    p->storage_bytes[3]++;
    CHECK(cb_problem_fingerprint(p) != before);
    p->storage_bytes[3]--;
    p->op_flags[4] ^= CB_POP_COMPUTE;
    CHECK(cb_problem_fingerprint(p) != before);
    p->op_flags[4] ^= CB_POP_COMPUTE;
    p->reruns = CB_RERUNS_ALL;
    const uint64_t all = cb_problem_fingerprint(p);
    CHECK(all != before);
    p->collective_again = true;
    CHECK(cb_problem_fingerprint(p) != all);
    p->reruns = CB_RERUNS_FORWARD;
    CHECK(cb_problem_fingerprint(p) != all && cb_problem_fingerprint(p) != before);
    cb_problem_free(p);
}

/* Makes x -> a -> b, a view of b, and a gradient. */
static maker small(void) {
    maker m = {0};
    uint32_t x = make_input(&m, 8), a = make_op(&m, 0, 1, &x, 16), b = make_op(&m, 0, 1, &a, 24);
    make_view(&m, 0, b);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 1, &b, 8);
    m.result[m.n_result++] = b;
    return m;
}

/* Changes one field and expects one text in the error. */
#define REFUSES(change, part)                                     \
    do {                                                          \
        maker made = small();                                     \
        cb_problem *p = make_problem(&made, &alloc);              \
        CHECK_OK(cb_problem_verify(p, &err));                     \
        change;                                                   \
        CHECK_FAIL(cb_problem_verify(p, &err), CB_INVALID, part); \
        cb_problem_free(p);                                       \
    } while (0)

TEST(refuses_what_cannot_be) {
    REFUSES(p->align = 48, "align is 48");
    REFUSES(p->backward_starts = 9, "backward_starts is 9");
    REFUSES(p->in_value[0] = 1, "op 1 (op_1): reads value 1, which no earlier op makes");
    REFUSES(p->in_value[0] = CB_NONE, "reads value 4294967295");
    REFUSES(p->in_begin[1] = 9, "out of order");
    REFUSES(p->out_begin[5] = 4, "not the 5 values in order");
    REFUSES(p->value_op[2] = 1, "its op is not op 2");
    REFUSES(p->value_storage[2] = 99, "storage 99, but there are 4 storages");
    REFUSES(p->value_storage[2] = 1, "neither a view nor mutates");
    REFUSES(p->value_storage[2] = 1; p->in_value[1] = 0, "storage 1 was made by op_1");
    REFUSES(p->value_storage[3] = 1, "no input is in its storage 1");
    REFUSES(p->storage_flags[0] = 0, "must be static");
    REFUSES(p->op_flags[1] = CB_POP_BACKWARD, "is before the backward");
    REFUSES(p->op_flags[1] = CB_POP_PLACEHOLDER, "a placeholder has no inputs");
    REFUSES(p->op_flags[1] = UINT32_C(1) << 30, "unknown flags");
    REFUSES(p->op_flops[1] = NAN, "flops");
    REFUSES(p->op_flops[1] = -1, "flops");
    REFUSES(p->op_time_ps[1] = -2, "-2 ps");
    REFUSES(p->op_class[1] = 9, "work class 9");
    REFUSES(p->op_region[1] = 0, "region 0, but there are 0 regions");
    REFUSES(p->op_workspace[1] = UINT64_C(1) << 60, "2^60");
    REFUSES(p->storage_bytes[1] = UINT64_C(1) << 61, "limit is 2^60");
    REFUSES(p->storage_bytes[1] = p->storage_bytes[2] = UINT64_C(1) << 59;
            p->storage_bytes[3] = 9, "together exceed 2^60");
    REFUSES(p->storage_flags[1] = 64, "unknown flags 64");
    REFUSES(p->storage_flags[3] = CB_STORE_HOLD_FORWARD, "op_4 makes it in the backward");
    REFUSES(p->value_constraint[1] = 99, "unknown constraint");
    REFUSES(p->forward_output[0] = 99, "value 99, but there are 5 values");
    REFUSES(p->forward_output[0] = 4, "op_4 runs in the backward");
    REFUSES(p->backward_output[0] = 99, "value 99, but there are 5 values");
    REFUSES(p->op_flags[3] |= CB_POP_BACKWARD; p->backward_starts = 3; p->op_flags[4] = 0;
            p->in_value[3] = 3, "is not marked backward");
}

/* Makes x -> a -> b -> c, and a backward op that reads c and returns g. The memory of a goes to b,
 * and that of b to c. */
static maker pointwise(void) {
    maker m = {0};
    uint32_t x = make_input(&m, 64), a = make_op(&m, 0, 1, &x, 64), b = make_op(&m, 0, 1, &a, 64);
    uint32_t c = make_op(&m, 0, 2, (const uint32_t[]){b, a}, 64);
    m.backward_starts = m.n_op;
    m.grad[m.n_grad++] = make_op(&m, CB_POP_BACKWARD, 1, &c, 64);
    return m;
}

static bool reads_second_last(const void *context, const cb_problem *p, uint32_t op, uint32_t at) {
    (void)context, (void)p;
    return op > 1 && at == 0;
}

/* Changes one field and expects one text in the error. Op 3 lists b, its input 0. */
#define KEEPS(change, part)                                                          \
    do {                                                                             \
        maker made = pointwise();                                                    \
        cb_problem *p = make_problem(&made, &alloc);                                 \
        CHECK_OK(cb_list_over(p, reads_second_last, NULL, &err));                    \
        CHECK_OK(cb_problem_verify(p, &err));                                        \
        CHECK(cb_count_over(p, 3) == 1 && p->over[p->over_begin[3]] == 0);           \
        change;                                                                      \
        CHECK_FAIL(cb_problem_verify(p, &err), CB_INVALID,                           \
                   "op 3 (op_3): its output may not take over the memory of input"); \
        CHECK(strstr(err.text, part) != NULL);                                       \
        cb_problem_free(p);                                                          \
    } while (0)

TEST(refuses_memory_that_must_not_be_taken_over) {
    KEEPS(p->over[p->over_begin[3]] = 2, "the op has no such input");
    KEEPS(p->in_value[p->in_begin[3]] = 1, "another input of the op shares its memory");
    KEEPS(p->in_value[p->in_begin[3]] = 0, "the input is in the caller's memory");
    KEEPS(p->storage_flags[2] = CB_STORE_HOLD_END, "the input's memory is held or returned");
    KEEPS(p->storage_bytes[3] = 128, "differ in size");
    KEEPS(p->value_bytes[3] = 32, "does not fill its storage");
    KEEPS(p->storage_flags[3] = CB_STORE_STATIC, "the output is in the caller's memory");
    KEEPS(p->op_flags[3] = CB_POP_MUTATES, "the op is a view, or writes into an input");
}

TEST(reader_names_the_slip) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"[]", "must be an object"},
        {"{}", "no \"format\""},
        {"{\"format\":\"x\",\"version\":1}", "format is \"x\""},
        {"{\"format\":\"cutback.problem\",\"version\":4}", "version 4"},
        {"{\"format\":\"cutback.problem\",\"version\":2,\"collective_again\":true}",
         "no key \"collective_again\""},
        {"{\"format\":\"cutback.problem\",\"version\":1,\"opps\":[]}", "no key \"opps\""},
        {"{\"format\":\"cutback.problem\",\"version\":1,\"storages\":[],\"ops\":[1]}",
         "an op must be an object"},
        {"{\"format\":\"cutback.problem\",\"version\":1,\"storages\":[{\"bytes\":-1}],\"ops\":[],"
         "\"forward_outputs\":[],\"backward_outputs\":[]}",
         "bytes is -1"},
        {"{\"format\":\"cutback.problem\",\"version\":1,\"storages\":[],\"ops\":[{\"in\":[],"
         "\"out\":[],\"flags\":[\"fast\"]}],\"forward_outputs\":[],\"backward_outputs\":[]}",
         "flag is \"fast\", not one of placeholder, backward"},
        {"{\"format\":\"cutback.problem\",\"version\":1,\"storages\":[],\"ops\":[{\"in\":[0],"
         "\"out\":[]}],\"forward_outputs\":[],\"backward_outputs\":[]}",
         "no earlier op makes"},
        {"{\"format\":\"cutback.problem\",\"version\":1,\"storages\":[],\"ops\":[],\"forward_"
         "outputs\":[],\"backward_outputs\":[],\"fingerprint\":\"0\"}",
         "fingerprint 0"},
    };
    cb_problem *p;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t length = strlen(cases[i].text);
        CHECK(cb_problem_from_long_text(&alloc, cases[i].text, length, &p, &err) != CB_OK);
        CHECK_FAIL(cb_problem_from_json(&alloc, cases[i].text, length, &p, &err), CB_INVALID,
                   cases[i].part);
    }
    CHECK_FAIL(cb_problem_create(&alloc, (cb_problem_sizes){.n_op = UINT32_MAX}, &p, &err),
               CB_INVALID, "the limit is");
}

TEST(reader_names_what_is_reserved) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"format\":\"cutback.problem\",\"version\":3,\"storages\":[],\"ops\":[{\"in\":[],"
         "\"out\":[],\"flags\":[\"update\"]}],\"forward_outputs\":[],\"backward_outputs\":[]}",
         "the flag \"update\" is reserved"},
        {"{\"format\":\"cutback.problem\",\"version\":3,\"storages\":[],\"ops\":[{\"in\":[],"
         "\"out\":[],\"variants\":[0]}],\"forward_outputs\":[],\"backward_outputs\":[]}",
         "\"variants\" is reserved"},
    };
    cb_problem *p;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_FAIL(cb_problem_from_json(&alloc, cases[i].text, strlen(cases[i].text), &p, &err),
                   CB_UNSUPPORTED, cases[i].part);
    }
}

static cb_status read_and_write(cb_alloc *a, void *user) {
    const cb_str *text = user;
    cb_problem *p;
    CB_TRY(cb_problem_from_long_text(a, text->at, text->len, &p, &err));
    cb_problem_free(p);
    CB_TRY(cb_problem_from_json(a, text->at, text->len, &p, &err));
    cb_arena arena;
    cb_str again;
    cb_arena_init(&arena, a);
    cb_str_init(&again, &arena);
    cb_status status = cb_problem_to_json(p, &again, &err);
    cb_arena_free(&arena);
    cb_problem_free(p);
    return status;
}

TEST(out_of_memory) {
    cb_problem *p = random_problem(3);
    cb_arena arena;
    cb_arena_init(&arena, &alloc);
    cb_str text = to_json(p, &arena);
    check_oom(read_and_write, &text);
    cb_arena_free(&arena);
    cb_problem_free(p);
}

int main(void) {
    cb_alloc_init(&alloc);
    RUN(json_there_and_back);
    RUN(long_texts_are_read_op_by_op);
    RUN(counts_by_other_spellings_are_not_trusted);
    RUN(fingerprint_sees_structure_only);
    RUN(refuses_what_cannot_be);
    RUN(refuses_memory_that_must_not_be_taken_over);
    RUN(reader_names_the_slip);
    RUN(reader_names_what_is_reserved);
    RUN(out_of_memory);
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
    return check_report();
}
