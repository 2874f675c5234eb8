/* Hostile text and JSON: accepted input verifies, works with the rest of the layer and survives a
 * round trip; refused input names the line. */
#include "fuzz.h"
#include "ir.h"
#include "ir/graph_json.h"
#include "ir/work.h"

static const char *seeds[2][4]; /* text, JSON */

typedef cb_status (*read_fn)(cb_alloc *, const char *, size_t, cb_graph **, cb_error *);
typedef cb_status (*write_fn)(const cb_graph *, cb_str *, cb_error *);

/* Checks that writing, reading and writing again gives the same bytes. */
static void check_round_trip(const cb_graph *g, write_fn write, read_fn read) {
    cb_arena arena;
    cb_str first, second;
    cb_graph *again = NULL;
    cb_arena_init(&arena, &ir_alloc);
    cb_str_init(&first, &arena);
    cb_str_init(&second, &arena);
    CHECK_OK(write(g, &first, &err));
    CHECK_OK(read(&ir_alloc, first.at, first.len, &again, &err));
    if (again) {
        CHECK_OK(write(again, &second, &err));
        CHECK(first.len == second.len && memcmp(first.at, second.at, first.len) == 0);
    }
    cb_graph_free(again);
    cb_arena_free(&arena);
}

static void check_accepted(const cb_graph *g) {
    cb_graph *less = NULL;
    cb_status status = cb_graph_verify(g, CB_SPEC_SPLIT, &err);
    CHECK(status == CB_OK || strstr(err.text, "origin") || strstr(err.text, "input"));
    (void)!cb_graph_verify(g, CB_SPEC_FORWARD, &err);
    (void)!cb_graph_verify(g, CB_SPEC_JOINT, &err);
    for (size_t op = 0; op < g->ops.len; op++) CHECK(cb_op_work(g, (cb_op_id)op).flops >= 0);
    CHECK_OK(cb_graph_prune(g, &ir_alloc, &less, &err));
    CHECK(less && less->ops.len <= g->ops.len);
    cb_graph_free(less);
    check_round_trip(g, cb_graph_print, cb_graph_parse);
    check_round_trip(g, cb_graph_to_json, cb_graph_from_json);
}

static bool try_one(read_fn read, const char *text, size_t length) {
    cb_graph *g = NULL;
    cb_status status = read(&ir_alloc, text, length, &g, &err);
    CHECK((status == CB_OK) == (g != NULL) && status != CB_NOMEM && status != CB_INTERNAL);
    if (g) check_accepted(g);
    else CHECK(err.text[0] && strlen(err.text) < sizeof err.text);
    cb_graph_free(g);
    CHECK(cb_alloc_stats(&ir_alloc).live_bytes == 0);
    return status == CB_OK;
}

static bool try_text(const char *text, size_t length) {
    return try_one(cb_graph_parse, text, length);
}
static bool try_json(const char *text, size_t length) {
    return try_one(cb_graph_from_json, text, length);
}

/* The golden joint graph, and one with the ops whose shape rules do the most arithmetic. */
static const char *const windows =
    "cutback.graph 1\n%0 = input {role=data} : f32[2,4,7,8]\n%1 = input {role=param} : "
    "bf16[6,2,3,3]\n"
    "%2 = cast(%1) {dtype=f32} : f32[6,2,3,3]\n"
    "%3 = conv2d(%0, %2) {stride_h=2, stride_w=1, pad_h=1, pad_w=0, dilation_h=1, dilation_w=2, "
    "groups=2} : f32[2,6,4,4]\n"
    "%4, %5 = max_pool2d(%3) {kernel_h=2, kernel_w=2, stride_h=2, stride_w=2, pad_h=1, pad_w=0} : "
    "f32[2,6,3,2], i32[2,6,3,2]\n"
    "%6 = conv2d_wgrad(%3, %0) {stride_h=2, stride_w=1, pad_h=1, pad_w=0, dilation_h=1, "
    "dilation_w=2, groups=2, "
    "shape=[6,2,3,3]} : f32[6,2,3,3]\n"
    "%7 = pad(%4) {axis=2, low=1, high=2, interior=1, value=0} : f32[2,6,8,2]\n"
    "%8 = concat(%7, %7) {axis=1} : f32[2,12,8,2]\n"
    "%9 = gather(%4, %5) {axis=3} : f32[2,6,3,2]\n"
    "%10 = expand(%9) {shape=[5,2,6,3,2]} : f32[5,2,6,3,2]\n"
    "%11 = slice(%10) {axis=4, start=1, stop=2, step=9} : f32[5,2,6,3,1]\n"
    "%12 = amax(%11) {axes=[0,4], keepdims=0} : f32[2,6,3]\noutput \"y\" %12 result\n";

int main(int argc, char **argv) {
    cb_arena arena;
    char block[8192];
    cb_alloc_init(&ir_alloc);
    cb_alloc keep; /* so that the seeds do not count as leaks */
    cb_alloc_init(&keep);
    cb_arena_init(&arena, &keep);
    FILE *f = fopen(CB_GOLDEN "/ir/joint.txt", "rb");
    size_t length = f ? fread(block, 1, sizeof block - 1, f) : 0;
    if (f) fclose(f);
    block[length] = '\0';
    CHECK(length > 0);
    seeds[0][0] = windows;
    seeds[0][1] = block;
    for (int i = 0; i < 2; i++) {
        cb_graph *g = NULL;
        cb_str json;
        cb_str_init(&json, &arena);
        CHECK_OK(cb_graph_parse(&ir_alloc, seeds[0][i], strlen(seeds[0][i]), &g, &err));
        if (g) CHECK_OK(cb_graph_to_json(g, &json, &err));
        cb_graph_free(g);
        seeds[1][i] = json.at ? json.at : "";
    }
    fuzz_run(seeds[0], 2, fuzz_count(argc, argv), try_text);
    fuzz_run(seeds[1], 2, fuzz_count(argc, argv), try_json);
    cb_arena_free(&arena);
    return ir_report();
}
